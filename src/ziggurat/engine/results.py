"""The one format of measured numbers: what was measured, and all it takes to measure it again."""

import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import timm
import torch

import ziggurat
from ziggurat.data.files import written_whole

METRICS, RESULTS, BAD = "metrics.jsonl", "results.json", "bad_files.txt"  # in a run's folder
SNAPSHOTS = "snapshots"


def history(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of metrics.jsonl, but one that a kill has cut off."""
    for line in file.read_text().splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and "epoch" in found:
                yield found


def write(path: str | Path, measured: Any, seed: int | None = None) -> Path:
    """Write ``measured`` with command, seed, commit, date, hardware and versions beside it.

    The file appears whole or not at all.
    """
    path = Path(path)
    result = {
        "command": command(),
        "seed": seed,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": {
            "ziggurat": ziggurat.__version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
        },
        "measured": measured,
    }
    with written_whole(path) as file:
        file.write(json.dumps(result, indent=2).encode() + b"\n")
    return path


def command() -> str:
    """How this was started: our command by its name, a script by its path."""
    program, *words = sys.argv
    ours = Path(program).name in ("ziggurat", "__main__.py")
    return shlex.join(["ziggurat", *words] if ours else ["python", program, *words])


def hardware() -> dict[str, Any]:
    """Processor, cores, memory, accelerators."""
    cpu: dict[str, str] = {}
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            cpu.setdefault(key.strip(), value.strip())
    kind = ", ".join(
        f"{key.split()[-1]} {cpu[key]}" for key in ("cpu family", "model") if key in cpu
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": cpu.get("model name") or platform.processor(),
        "processor_kind": kind,  # a name may be of several generations
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def commit() -> str | None:
    """The commit of this code, ``+`` behind it if code or data of it changed; None without git."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        run = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ":/*.py", ":/*.toml")  # results may
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
