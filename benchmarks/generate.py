"""Does NesT make images? Speed of the paper's generator, and small ones that learn digits.

    python benchmarks/generate.py speed                  # into benchmarks/results/generators.json
    python benchmarks/generate.py --seeds 0 1 2          # what is missing in results/generate

Speed: the generator of Table A4 (64 x 64) against TransGAN's and against convolutions, by turns.

Learning, a small-scale study: digits at 16 x 16 pixels, every generator against the same
discriminator for the same time. Time on a shared machine wanders, so a step of each game is first
measured by turns (`pace`), and who is faster gets as many more epochs. NesT's is trained with each
of Figure 7's ways to grow, too. FID and KID are of Inception's features, over the 359 held-out
digits: they do not compare with those of more images.
"""

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import peers
import study
import torch
from rich.console import Console
from rich.progress import track
from torch.nn.attention import SDPBackend, sdpa_kernel

from ziggurat.cli.verb import progress
from ziggurat.data.images import open_images
from ziggurat.engine import bench, results
from ziggurat.engine.measure import count
from ziggurat.models.generators import create_generator
from ziggurat.tasks.augment import collate
from ziggurat.tasks.generate import Generate, GenerateSettings

RESULTS = study.RESULTS / "generate"
SPEED = study.RESULTS / "generators.json"
PACE, UNTRAINED = RESULTS / "pace.json", RESULTS / "untrained.json"
RECIPE = "nest/digits_gan_small"
EPOCHS = 18  # of NesT's; the others have as many as fit into its time
SET = ["compared=359", "workers=0", "features='inception'"]
SETTINGS = dict(flip=0.0, discriminator="discriminator_small", r1=1.0, compared=359)
BATCH, SEED = 32, 0


class Arm(NamedTuple):
    """One generator."""

    about: str
    model: str
    upsample: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What is changed of the variant."""
        return {"upsample": self.upsample} if self.upsample else {}


ARMS = {
    "shuffle": Arm("NesT, pixel shuffle (the paper's)", "nest_generator_16"),
    "nearest": Arm("NesT, nearest neighbour", "nest_generator_16", "nearest"),
    "conv3": Arm("NesT, nearest neighbour and Conv3x3", "nest_generator_16", "nearest-conv3"),
    "conv": Arm("convolutions", "conv_generator_16"),
    "trans": Arm("TransGAN's, full attention", "trans_generator_16"),
}


# Speed.


def speed(batch: int, rounds: int) -> list[dict[str, Any]]:
    """Table A4's generator and each rival by turns; TransGAN's also as attention was then."""
    ours = create_generator("nest_generator_64")
    found = []
    for rival, peer, fused in (
        ("trans_generator_64", "TransGAN's", True),
        ("trans_generator_64", "TransGAN's, both without fused attention", False),
        ("conv_generator_64", "convolutions", True),
    ):
        torch.manual_seed(SEED)
        theirs = create_generator(rival)
        costs = [count(model) for model in (ours, theirs)]
        about = {
            "ours": "nest_generator_64",
            "peer": peer,
            "same": False,
            "params": [cost.params for cost in costs],
            "macs": [cost.macs for cost in costs],
        }
        noise = (ours.noise(batch), theirs.noise(batch))
        with nullcontext() if fused else sdpa_kernel(SDPBackend.MATH):
            for train in (False, True):
                measured = peers.against(ours, theirs, noise, train, rounds, peer)
                found.append(about | measured)
    return found


# Learning.


def games() -> dict[str, Generate]:
    """The two players of each arm."""
    data = open_images("digits", SEED)
    return {
        name: Generate(
            create_generator(arm.model, **arm.options), GenerateSettings(**SETTINGS), data
        )
        for name, arm in ARMS.items()
    }


def pace(rounds: int) -> dict[str, float]:
    """What a step of each game takes, NesT's being 1: the medians of rounds by turns."""
    torch.manual_seed(SEED)
    played = games()
    samples = played["shuffle"].train_samples()
    batch = collate([samples.make(i) for i in range(BATCH)])

    def play(game: Generate) -> None:
        for player in game.players:
            game(batch, player)["loss"].backward()

    with progress("pace") as tick:
        runs = {name: partial(play, game) for name, game in played.items()}
        spent = bench.interleaved(runs, rounds, tick)
    ratios = {name: bench.ratio(own, spent["shuffle"]) for name, own in spent.items()}
    return {name: ratio.rounded().middle for name, ratio in ratios.items()}


def untrained() -> dict[str, Any]:
    """The measures of generators as they are built."""
    torch.manual_seed(SEED)
    played = games()
    found = {}
    for name in ("shuffle", "conv"):
        game = played[name]
        samples = game.test_samples()
        model = game.model.eval()
        for first in track(range(0, len(game.reals), BATCH), f"untrained {name}"):
            part = range(first, min(first + BATCH, len(game.reals)))
            game.measure(model, collate([samples.make(i) for i in part]))
        found[name] = game.measured()
    return found


def epochs(name: str) -> int:
    """As many as fit into the time of NesT's."""
    return round(EPOCHS / json.loads(PACE.read_text())["measured"][name])


def run(name: str, seed: int, folder: Path) -> None:
    """One arm for one seed."""
    arm, steps = ARMS[name], epochs(name)
    words = ["train", RECIPE, "--model", arm.model, "--seed", str(seed)]
    words += ["--set", f"epochs={steps}", f"eval_epochs={-(-steps // 3)}", *SET]
    if arm.upsample:
        words.append(f"model_args={{upsample='{arm.upsample}'}}")
    command = f"python benchmarks/generate.py {name} --seeds {seed}"
    study.run(words, folder / f"{name}-{seed}", RESULTS / f"{name}-{seed}.json", command)


def markdown() -> str:
    """The arms as the README shows them."""
    lines = [
        "| digits, 16 px | epochs in equal time | FID (seeds) | KID x 1000 | recall, % |",
        "| --- | --- | --- | --- | --- |",
    ]
    before = json.loads(UNTRAINED.read_text())["measured"] if UNTRAINED.exists() else {}
    for name, own in before.items():
        about = ARMS[name].about.partition(",")[0]
        lines.append(f"| {about}, untrained | 0 | " + " | ".join(shown([own])) + " |")
    found = study.kept(RESULTS)
    for name, arm in ARMS.items():
        if runs := found.get(name):
            spent = runs[0]["measured"]["recipe"]["epochs"]
            tests = [one["measured"]["test"] for one in runs]
            lines.append(f"| {arm.about} | {spent:g} | " + " | ".join(shown(tests)) + " |")
    return "\n".join(lines)


def shown(tests: list[dict[str, float]]) -> list[str]:
    """FID, KID and recall of all seeds."""
    scaled = {"fid": 1, "kid": 1000, "recall": 100}
    cells = [study.spread([one[key] * scale for one in tests]) for key, scale in scaled.items()]
    return [cells[0], *(cell.split(" (")[0] for cell in cells[1:])]


def main() -> None:
    """Run what is missing, then write the tables."""
    parser = study.Parser(__doc__, [*ARMS, "speed", "pace", "untrained"], "runs/generate")
    parser.add_argument("--rounds", type=int, default=8, help="of speed and pace")
    parser.add_argument("--batch", type=int, default=4, help="images at a time, of speed")
    args = parser.parsed()
    torch.manual_seed(SEED)
    if "speed" in args.names and not SPEED.exists():
        results.write(SPEED, speed(args.batch, args.rounds), SEED)
    if SPEED.exists():
        study.update("generators", peers.markdown(json.loads(SPEED.read_text())["measured"]))
    if not PACE.exists():
        results.write(PACE, pace(args.rounds), SEED)
    if "untrained" in args.names and not UNTRAINED.exists():
        results.write(UNTRAINED, untrained(), SEED)
    for seed in args.seeds:
        for name in (name for name in args.names if name in ARMS):
            run(name, seed, args.runs)
            study.update("generate", markdown())
    Console().print(markdown())


if __name__ == "__main__":
    main()
