"""Arms differ in what is studied and in nothing else; a result is that of its recipe."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import ziggurat
from ziggurat.engine import studies
from ziggurat.engine.recipe import names as recipes
from ziggurat.engine.studies import SCALES, Arm, Study, fingerprint, owner, recipe_of, run_of, study

EVERY = [
    pytest.param(name, scale, id=f"{name}-{scale}")
    for name in studies.names()
    for scale in study(name).scales
]
TWO: list[dict[str, Any]] = [
    {"id": "a", "label": "A", "set": {"model_args": {"depth": 1}}},
    {"id": "b", "label": "B"},
]
BUDGET = ("epochs", "batch", "lr", "lr_per", "optimizer", "schedule", "weight_decay", "data")


def made(**changes: Any) -> Study:
    base = {"id": "x/y", "title": "t", "arms": TWO}
    return Study(**base | {"scales": {"laptop": {"recipe": "any/laptop"}}} | changes)


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_arm_names_a_model_that_builds(name: str, scale: Any) -> None:
    one = study(name)
    assert len(one.at(scale)) >= 2
    for arm in one.at(scale):
        recipe = recipe_of(one, arm, scale)
        size = getattr(recipe.settings, "img_size", None)
        convolutional = any(part in recipe.model for part in ("pvt", "resnet"))
        options = {} if size is None or convolutional else {"img_size": size}
        build(recipe.model, json.dumps(options | recipe.model_args))


@cache
def build(model: str, options: str) -> None:
    with torch.device("meta"):
        ziggurat.create_model(model, **json.loads(options))


@pytest.mark.parametrize("name", [name for name in studies.names() if study(name).scales])
def test_all_arms_of_a_study_have_the_same_budget(name: str) -> None:
    """But for what comes before or after another, and what is studied itself."""
    studied = {"nest/convergence": {"epochs"}, "regionvit/transfer": {"data", "epochs"}}
    one = study(name)
    for kind in ("classify", "pretrain"):
        found = [recipe_of(one, arm, "laptop") for arm in one.at("laptop")]
        flat = [recipe.flat() for recipe in found if recipe.task == kind]
        for key in set(BUDGET) - studied.get(name, set()):
            assert len({str(recipe.get(key)) for recipe in flat}) <= 1, (name, key)


def test_studies_of_the_papers_scale_are_the_papers_recipes() -> None:
    for name in studies.names():
        for scale in study(name).scales.values():
            assert scale["recipe"] in recipes()


def test_the_later_setting_counts_and_arguments_are_joined() -> None:
    scale = {"recipe": "any/laptop", "model": "hvt_ti_4", "model_args": {"dim": 24}, "epochs": 3}
    arms: list[dict[str, Any]] = [
        {"id": "a", "label": "A", "set": {"model_args": {"depth": 4}}, "laptop": {"epochs": 5}},
        {"id": "b", "label": "B", "set": {"model": "nest_tiny", "model_args": {"plane": "block"}}},
        {"id": "c", "label": "C", "set": {"recipe": "any/probe", "data": "digits"}},
    ]
    one = made(scales={"laptop": scale}, arms=arms)
    a, b, c = (recipe_of(one, arm, "laptop", seed=7) for arm in one.arms)
    assert (a.epochs, a.model_args, a.seed) == (5, {"dim": 24, "depth": 4}, 7)
    assert (b.epochs, b.model, b.model_args) == (3, "nest_tiny", {"plane": "block"})
    assert (c.epochs, c.model, c.model_args) == (10, "hvt_ti_4", {"dim": 24})  # the probe's


def test_an_arm_may_be_at_some_scales_only() -> None:
    arm = Arm(id="a", label="A", paper={"epochs": 1})
    assert arm.own("laptop") is None
    assert arm.own("paper") == {"epochs": 1}
    assert Arm(id="a", label="A").own("laptop") == {}
    with pytest.raises(ValueError, match="hivit/steps has no arm 'a' at scale workstation"):
        recipe_of(study("hivit/steps"), study("hivit/steps").arm("a"), "workstation")


def test_arms_with_the_same_recipe_are_one_run() -> None:
    pairs = [
        (("hvt/pooling", "max"), ("hvt/depth", "blocks-12")),
        (("hvt/width", "heads-6"), ("hvt/stages", "m4")),
        (("hivit/steps", "c"), ("hivit/shallow", "1-1")),
        (("regionvit/positions", "relative"), ("regionvit/transfer", "regionvit-before")),
    ]
    for one, other in pairs:
        runs = [
            run_of(study(name), study(name).arm(arm), "laptop", 2) for name, arm in (one, other)
        ]
        assert owner(runs[0]) == owner(runs[1])
    run = run_of(study("hvt/pooling"), study("hvt/pooling").arm("avg"), "laptop", 2)
    assert owner(run) == run


def test_what_comes_before_is_part_of_what_a_run_is() -> None:
    one = study("hivit/pretraining")
    tuned = run_of(one, one.arm("hivit-tuned"), "laptop", 1)
    assert tuned.after is not None
    assert (tuned.after.arm, tuned.after.seed, tuned.after.recipe.task) == (
        "hivit-mae", 1, "pretrain",
    )  # fmt: skip
    assert fingerprint(tuned) != fingerprint(tuned._replace(after=None))
    assert tuned.name == "laptop/hivit-pretraining/hivit-tuned-1"


def test_arms_take_turns_so_that_all_have_as_many_seeds() -> None:
    found = [(run.seed, run.arm) for run in studies.runs(study("hvt/class_token"), "laptop", 2)]
    assert found == [(0, "with"), (0, "without"), (1, "with"), (1, "without")]


def test_only_a_result_of_the_very_recipe_counts(tmp_path: Path) -> None:
    one = study("hvt/class_token")
    run = run_of(one, one.arm("with"), "laptop", 0)
    file = tmp_path / f"{run.name}.json"
    file.parent.mkdir(parents=True)
    flat = run.recipe.flat()
    for changed, counts in (({}, True), ({"workers": 3}, True), ({"epochs": 9}, False)):
        found = {"measured": {"recipe": flat | changed, "test": {"top1": 50.0}}}
        file.write_text(json.dumps(found))
        assert (studies.kept(run, tmp_path) is not None) == counts
        results = studies.results(one, "laptop", tmp_path, tmp_path)
        assert list(results) == (["with"] if counts else [])
    assert studies.kept(run._replace(seed=1), tmp_path) is None


def test_a_benchmarks_runs_are_read_where_it_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "dense").mkdir()
    for name in ("pets_rest-0", "pets_rest-1", "pets_rest_frozen-0", "pets_plain-0"):
        (tmp_path / "dense" / f"{name}.json").write_text(json.dumps({"measured": name}))
    found = studies.results(study("rest/levels"), "laptop", tmp_path, tmp_path)
    assert {arm: [one["measured"] for one in ones] for arm, ones in found.items()} == {
        "pets_plain": ["pets_plain-0"],
        "pets_rest": ["pets_rest-0", "pets_rest-1"],
    }
    assert studies.results(study("rest/levels"), "paper", tmp_path, tmp_path) == {}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"arms": [TWO[0], TWO[0]]}, "x/y has a twice"),
        ({"arms": [{**TWO[0], "after": "b"}, TWO[1]]}, "a comes after b, which is not above"),
        ({"script": "benchmarks/x.py"}, "scales, or a script"),
        ({"scales": {"phone": {}}}, "laptop"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made(**wrong)


def test_a_study_is_found_by_its_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'nest/aggregation'"):
        study("nest/agregation")
    assert SCALES == ("laptop", "workstation", "paper")
