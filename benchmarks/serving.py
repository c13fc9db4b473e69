"""The service under load, on loopback: images a second, how long each takes, what it survives.

    python benchmarks/serving.py           # ten minutes, into benchmarks/results/serving.json
    python benchmarks/serving.py --seconds 2 --rounds 1 --fuzz 200 --out short.json

A server is asked while others send it what is broken, huge or slow, or are killed; then come files
that were damaged at random; then it is stopped with all clients' requests inside. Servers of one
model that compute image by image, in batches, and in batches by a worker for each core are asked by
turns, by clients that each wait for their answer. Last comes a minute of requests at a given rate,
whether or not the ones before were answered, after a new look at what that rate is: the machine's
speed changes. Those are asked by wrk, which costs the machine least, if it is installed. Weights
are random; the light model is that of the recipe nest/digits. The table of docs/serve.md is written
anew.
"""

import argparse
import asyncio
import itertools
import json
import signal
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import load
import study
import torch

import ziggurat
from ziggurat.engine import results

RESULTS = study.RESULTS / "serving.json"
DIGITS: dict[str, Any] = dict(
    img_size=32, patch_size=4, dims=(32, 64, 128), heads=(2, 4, 8), depths=(1, 1, 1),
    attention="multi_head", num_classes=10,
)  # fmt: skip
MODELS = {"digits": ("nest_tiny_cifar", DIGITS), "rest_lite": ("rest_lite", {})}  # light, heavy
CLIENTS, SECONDS, ROUNDS, FUZZ = 32, 5.0, 3, 10_000
BATCH = 16
QUEUES = {"digits": 400}  # of each worker: a second or two; else serve's own
SUSTAINED = 12  # times as long as the other loads: a minute
ONE, LOADS = "one_client", ("image_by_image", "batches", "workers")
DONE = 'ziggurat_request_seconds_count{route="/api/predict"}'


async def stopped(server: load.Serving, requests: Sequence[bytes], clients: int) -> dict[str, Any]:
    """SIGTERM with all clients' requests inside: what becomes of them."""
    before = load.metric(server.address, DONE)
    asked = [
        asyncio.create_task(load.Client(server.address).ask(requests[i % len(requests)]))
        for i in range(clients)
    ]
    while True:  # read twice in this order, so that none is counted twice
        done = await asyncio.to_thread(load.metric, server.address, DONE) - before
        inside = await asyncio.to_thread(load.metric, server.address, "ziggurat_requests_inside")
        if done + inside >= clients:
            break
    server.process.send_signal(signal.SIGTERM)
    answers = await asyncio.gather(*asked)
    code = await asyncio.to_thread(server.process.wait, 60)
    return {
        "accepted": clients,
        "unanswered_at_sigterm": inside,
        "answered": sum(one.status == 200 for one in answers),
        "exit_code": code,
    }


def loaded(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One model under load."""
    requests = [load.request(file) for file in load.photographs()]
    queue = QUEUES.get(folder.name, 64)
    common = ["--backend", args.backend, "--queue", str(queue)]
    cores = max(2, torch.get_num_threads())
    found: dict[str, list[Any]] = {name: [] for name in (ONE, *LOADS)}
    twice: list[Any] = []
    with (
        load.serving(folder, "--batch", "1", *common) as plain,
        load.serving(folder, "--batch", str(BATCH), *common) as server,
        load.serving(folder, "--batch", str(BATCH), "--workers", str(cores), *common) as several,
    ):
        load.wait(several.address, cores)
        about = json.loads(load.read(server.address, "/api/about"))

        def closed(name: str, where: load.Serving, clients: int) -> None:
            asked = load.closed_loop(where.address, requests, clients, args.seconds)
            found[name].append(asyncio.run(asked))

        for number in range(args.rounds):
            closed(ONE, server, 1)
            for name, where in zip(LOADS, (plain, server, several), strict=True):
                closed(name, where, args.clients)
            rates = ", ".join(
                f"{name} {of[-1]['images_per_second']:.1f}" for name, of in found.items()
            )
            print(f"{folder.name}, round {number + 1}: {rates} images/s", flush=True)
        for _ in range(args.rounds):
            closed(ONE, server, 1)
            rate = 2 * found[ONE][-1]["images_per_second"]
            many = queue * cores + args.clients  # more than may wait
            seconds = SUSTAINED * args.seconds
            twice.append(load.by_wrk(several.address, requests, many, seconds, rate))
            print(f"{folder.name}, twice one client's rate: {twice[-1]}", flush=True)
    gains = {
        name: [
            one["images_per_second"] / other["images_per_second"]
            for one, other in zip(found[name], found[before], strict=True)
        ]
        for before, name in itertools.pairwise(LOADS)
    }
    return {
        "model": folder.name,
        "backend": about["models"][0]["backend"],
        "threads": torch.get_num_threads(),
        "processes": cores,
        "clients": args.clients,
        "batch": BATCH,
        **found,
        "gain": {n: {"median": statistics.median(g), "rounds": g} for n, g in gains.items()},
        "twice_one_client": None if None in twice else twice,
    }


def survived(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Abuse, damaged files, and the end."""
    requests = [load.request(file) for file in load.photographs()]
    with load.serving(folder, "--backend", args.backend, giving_back=True) as server:

        async def stormy() -> dict[str, Any]:
            async with load.abused(server.address) as sent:
                found = await load.closed_loop(server.address, requests, 8, args.seconds)
            return found | {"abuse": dict(sent)}

        storm = asyncio.run(stormy())
        print(f"among abusers: {storm}", flush=True)
        broken = asyncio.run(load.fuzz(server.address, args.fuzz))
        print(f"damaged files: {broken}", flush=True)
        errors = load.metric(server.address, "ziggurat_errors_total")
        end = asyncio.run(stopped(server, requests, args.clients))
        print(f"SIGTERM: {end}", flush=True)
    return {
        "among_abusers": storm, "damaged_files": broken, "server_errors": errors, "sigterm": end,
    }  # fmt: skip


def markdown(measured: dict[str, Any]) -> str:
    """What the page shows."""
    head = "model, backend | clients | | images a second | median, ms | p95, ms | errors"
    lines = [f"| {head} |", "| --- | --- | --- | ---: | ---: | ---: | ---: |"]
    for found in measured["loads"]:
        many, batch = found["clients"], found["batch"]
        several = f"`--workers {found['processes']}`"
        rows = [
            (1, "one after the other", middle(found[ONE])),
            (many, "image by image (`--batch 1`)", middle(found["image_by_image"])),
            (many, f"in batches (`--batch {batch}`)", middle(found["batches"])),
            (many, f"in batches, {several}", middle(found["workers"])),
        ]
        for one in found["twice_one_client"] or ():
            what = f"a minute of {one['asked_per_second']:.0f} a second, {several}"
            rows.append(("wrk", what, one))
        name = f"`{found['model']}`, {found['backend']}"
        lines += [line(name, *row) for row in rows]
    storm = measured["among_abusers"]
    lines.append(line(name_of(measured), 8, "among broken, huge, slow and killed ones", storm))
    return "\n".join(lines)


def line(name: str, clients: object, what: str, row: dict[str, Any]) -> str:
    """One load."""
    rate = f"**{row['images_per_second']:.1f}**"
    refused = row.get("refused", 0)  # at once: they would make the times short
    times = " | ".join("" if refused else f"{row[key]:.0f}" for key in ("median_ms", "p95_ms"))
    return f"| {name} | {clients} | {what} | {rate} | {times} | {row['errors']} |"


def name_of(measured: dict[str, Any]) -> str:
    """The first model's."""
    first = measured["loads"][0]
    return f"`{first['model']}`, {first['backend']}"


def middle(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of rounds, and all their errors."""
    keys = ("images_per_second", "median_ms", "p95_ms")
    found = {key: statistics.median(one[key] for one in rounds) for key in keys}
    return found | {"errors": sum(one["errors"] for one in rounds)}


def main(words: Sequence[str] | None = None) -> None:
    """Load, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each load")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--fuzz", type=int, default=FUZZ, help="damaged files")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(words)
    torch.manual_seed(load.SEED)
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / name for name in args.models]
        for folder in folders:
            name, options = MODELS.get(folder.name, (folder.name, {}))
            ziggurat.save_pretrained(ziggurat.create_model(name, **options), folder)
        measured = survived(args, folders[0])
        measured["loads"] = [loaded(args, folder) for folder in folders]
    print(f"wrote {results.write(args.out, measured, load.SEED)}")
    print(markdown(measured))
    study.show(args.out, markdown(measured))


if __name__ == "__main__":
    main()
