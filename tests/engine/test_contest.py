"""Small models, few rounds: what rows say, not how long anything took."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ziggurat.engine import backends, bench
from ziggurat.engine.contest import Wanted, contest, entries, late
from ziggurat.engine.measure import count


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.SIDES, "cpu", (128, 256))


def measured(*models: str, **options: Any) -> dict[str, Any]:
    return contest(Wanted(models, sizes=(64,), rounds=2, **options))


def test_every_model_batch_and_type_has_a_row_beside_the_reference() -> None:
    found = measured(
        "hvt_ti_1", "timm/resnet18", batches=(2, 1), dtypes=("float32", "bfloat16"),
        against="timm/resnet18",
    )  # fmt: skip
    rows = found["rows"]
    places = [(row["batch"], row["model"], row["dtype"]) for row in rows]
    assert places == [
        (batch, model, dtype)
        for batch in (2, 1)
        for model in ("hvt_ti_1", "timm/resnet18")
        for dtype in ("float32", "bfloat16")
    ]
    for row in rows:
        cost = count(row["model"], 64)
        assert (row["params"], row["macs"]) == (cost.params, cost.macs)
        assert row["passes"] >= 2
        assert row["passes"] < 20 or row["latency_ms"] <= row["latency_p95_ms"]
        assert row["memory_mib"] > 0
        low, middle, high = row["peak_share"]
        assert 0 < low <= middle <= high
        if row["model"] == found["against"]:
            assert row["speed"] == (1, 1, 1)
        assert (row["over_first"] == (1, 1, 1)) == (row["dtype"] == "float32")
    assert [one["dtype"] for one in found["peak"]] == ["float32", "bfloat16"] * 2
    assert [one["sizes"] for one in found["peak"]] == [[64]] * 4
    assert found["rounds"] == 2


def test_a_95th_percentile_is_one_of_twenty_passes() -> None:
    assert late([0.001] * 19) is None
    assert late([0.001] * 30 + [0.1]) == 1
    assert late([0.001] * 15 + [0.1] * 5) == 100


def test_a_size_that_was_not_asked_for_is_the_models_own() -> None:
    (row,) = contest(Wanted(["nest_tiny_cifar"], batches=(1,), rounds=1))["rows"]
    assert row["size"] == 32
    assert row["top1"] is None  # its paper prints CIFAR's


def test_accuracy_is_what_the_paper_prints() -> None:
    wanted = Wanted(["hivit_tiny"])
    with torch.device("meta"):
        assert [one.top1 for one in entries(["hivit_tiny"], None, wanted, [])] == [82.1]
        assert [one.top1 for one in entries(["hivit_tiny"], 96, wanted, [])] == [None]


def test_memory_of_a_training_step_has_the_gradients() -> None:
    found = measured("hvt_ti_1", "rest_lite", mode="train", batches=(2,))
    assert [row["model"] for row in found["rows"]] == ["hvt_ti_1", "rest_lite"]
    assert all(row["memory_mib"] > 4 * row["params"] / 2**20 for row in found["rows"])


def test_pretraining_leaves_hidden_units_out_where_the_model_can() -> None:
    found = measured("hivit_tiny", "hvt_ti_1", mode="pretrain", batches=(1,))
    masked, filled = found["rows"]
    assert masked["params"] > count("hivit_tiny", 64).params  # the decoder's, too
    decoder = 16 * 6 * 12 * 512**2  # units of 64 px, blocks, a block's weights
    assert masked["macs"] < count("hivit_tiny", 64).macs / 2 + 1.3 * decoder
    assert filled["macs"] > count("hvt_ti_1", 64).macs  # all of it, and SimMIM's layer


def test_twins_have_the_same_weights() -> None:
    notes: list[str] = []
    names = ["nest_tiny", "timm/nest_tiny"]
    ours, theirs = entries(names, 32, Wanted(names), notes)
    assert ours.options
    assert not theirs.options
    assert ours.cost.macs == theirs.cost.macs
    assert notes[0].startswith("nest_tiny is built as timm/nest_tiny is and has its weights")
    assert not entries(names[:1], 32, Wanted(names), notes)[0].options


def test_other_backends_run_what_they_made_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, tuple[int, int], torch.dtype]] = []

    def runner(model: nn.Module, name: str, size: tuple[int, int], dtype: torch.dtype) -> Any:
        made.append((name, size, dtype))
        return lambda images: torch.zeros(len(images), 1000)

    monkeypatch.setattr(backends, "runner", runner)
    monkeypatch.setattr(backends, "missing", lambda name: None)
    found = measured("hvt_ti_1", backends=("eager", "onnx"), batches=(1,))
    assert made == [("eager", (64, 64), torch.float32), ("onnx", (64, 64), torch.float32)]
    assert [row["memory_mib"] is None for row in found["rows"]] == [False, True]


def test_what_cannot_be_measured_is_told_before_anything_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "interleaved", lambda *_, **__: pytest.fail("it was measured"))
    with pytest.raises(ValueError, match=r"--against is one of the models measured \(hvt_ti_1\)"):
        measured("hvt_ti_1", against="nest_tiny")
    with pytest.raises(ValueError, match="--backend onnx is for --mode infer: take eager or comp"):
        measured("hvt_ti_1", mode="train", backends=("onnx",))
    with pytest.raises(ValueError, match="timm/nest_tiny cannot take images of 66 px: "):
        contest(Wanted(["hvt_ti_1", "timm/nest_tiny"], sizes=(66,)))
    with pytest.raises(ValueError, match="timm/hiera_tiny_224 cannot be pre-trained on images"):
        contest(Wanted(["timm/hiera_tiny_224"], mode="pretrain"))
    monkeypatch.setattr(backends, "missing", lambda name: f"{name} needs a package: install it")
    with pytest.raises(ImportError, match="openvino needs a package"):
        measured("hvt_ti_1", backends=("openvino",))


def test_a_gpu_is_asked_for_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none here: events that tell a clock of ours."""
    clock = iter(range(100))

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = next(clock)

        def elapsed_time(self, other: "Event") -> float:
            return 1000.0 * (other.at - self.at)

    waits: list[None] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(None))
    ran: list[Tensor] = []
    assert bench.clocked(lambda: ran.append(torch.zeros(1)), 3, "cuda") == [1.0, 1.0, 1.0]
    assert len(ran) == 3
    assert len(waits) == 2
