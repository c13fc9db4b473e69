"""Does a convnet teach a small NesT? The same epochs on CIFAR-10 alone, with it hard and soft.

    python benchmarks/cifar10.py resnet             # the teacher: runs/cifar10/resnet-0
    python benchmarks/distill.py --seeds 0 1 2      # what is missing in benchmarks/results/distill

A small-scale study after NesT's Table A2; the teacher is a ResNet of 1.6 M parameters trained for
the same few minutes as all of benchmarks/cifar10.py. All students take the same steps on the same
images; those with a teacher take longer for it.
"""

from pathlib import Path

import study
from rich.console import Console

RESULTS = study.RESULTS / "distill"
STUDENTS: dict[str, list[str]] = {
    "alone": [],
    "hard": ["distillation=hard"],
    "soft": ["distillation=soft", "tau=2"],
}


def run(student: str, seed: int, epochs: float, teacher: Path, folder: Path) -> None:
    """One training, unless its result is there."""
    words = ["train" if student == "alone" else "distill", "nest/cifar10_small"]
    words += [] if student == "alone" else ["--teacher", str(teacher)]
    words += ["--seed", str(seed), "--set", f"epochs={epochs:g}", *STUDENTS[student]]
    command = f"python benchmarks/distill.py {student} --seeds {seed} --epochs {epochs:g}"
    study.run(words, folder / f"{student}-{seed}", RESULTS / f"{student}-{seed}.json", command)


def markdown() -> str:
    """The students as the README shows them."""
    lines = ["| student | epochs | top-1 (seeds) |", "| --- | --- | --- |"]
    for student, runs in study.kept(RESULTS).items():
        tops = [one["measured"]["test"]["top1"] for one in runs]
        epochs = runs[0]["measured"]["recipe"]["epochs"]
        lines.append(f"| NesT, {student} | {epochs:g} | {study.spread(tops)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the table."""
    parser = study.Parser(__doc__, STUDENTS, "runs/distill")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--teacher", type=Path, default=Path("runs/cifar10/resnet-0"))
    args = parser.parsed()
    for seed in args.seeds:
        for student in args.names:
            run(student, seed, args.epochs, args.teacher, args.runs)
            study.update("distill", markdown())
    Console().print(markdown())


if __name__ == "__main__":
    main()
