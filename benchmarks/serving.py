"""The service under load, on loopback: images a second, how long each takes, what it survives.

    python benchmarks/serving.py           # five minutes, into benchmarks/results/serving.json
    python benchmarks/serving.py --seconds 2 --rounds 1 --fuzz 200 --out short.json

A server is asked while others send it what is broken, huge or slow, or are killed; then come files
that were damaged at random; then it is stopped with all clients' requests inside. Two servers of
one model, one that computes batches and one that computes image by image, are asked by turns, by
clients that each wait for their answer; where wrk is installed it asks, too. Last, requests come at
a given rate, whether or not the ones before were answered, and are timed from when they were due.
Weights are random; the light model is that of the recipe nest/digits. The table of docs/serve.md is
written anew.
"""

import argparse
import asyncio
import json
import signal
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import load
import torch

import ziggurat
from ziggurat.engine import results

RESULTS = Path(__file__).parent / "results" / "serving.json"
PAGE = Path(__file__).parents[1] / "docs" / "serve.md"
MARK = "<!-- serving -->\n"
DIGITS: dict[str, Any] = dict(
    img_size=32, patch_size=4, dims=(32, 64, 128), heads=(2, 4, 8), depths=(1, 1, 1),
    attention="multi_head", num_classes=10,
)  # fmt: skip
MODELS = {"digits": ("nest_tiny_cifar", DIGITS), "rest_lite": ("rest_lite", {})}  # light, heavy
CLIENTS, SECONDS, ROUNDS, FUZZ = 32, 5.0, 3, 10_000
BATCH, QUEUE, SHARE = 16, 1024, 0.8  # a queue of some seconds, well below the time-out
SUSTAINED = 12  # times as long as the other loads: a minute
RATES = ("twice_one_client", "most_of_batches")
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
    common = ["--backend", args.backend, "--queue", str(QUEUE)]
    alone: list[Any] = []
    single: list[Any] = []
    together: list[Any] = []
    with (
        load.serving(folder, "--batch", "1", *common) as plain,
        load.serving(folder, "--batch", str(BATCH), *common) as server,
    ):
        about = json.loads(load.read(server.address, "/api/about"))
        for number in range(args.rounds):
            for found, where, clients in (
                (alone, plain, args.clients),
                (single, server, 1),
                (together, server, args.clients),
            ):
                asked = load.closed_loop(where.address, requests, clients, args.seconds)
                found.append(asyncio.run(asked))
            rates = [each[-1]["images_per_second"] for each in (single, alone, together)]
            said = "one client {:.1f}, many {:.1f}, batches {:.1f} images/s".format(*rates)
            print(f"{folder.name}, round {number + 1}: {said}", flush=True)
        wrk = load.by_wrk(server.address, requests, args.clients, args.seconds)
        at_rates = {}
        alone_rate, most_rate = (middle(one)["images_per_second"] for one in (single, together))
        for name, rate in zip(RATES, (2 * alone_rate, SHARE * most_rate), strict=True):
            asked = load.open_loop(server.address, requests, rate, SUSTAINED * args.seconds)
            at_rates[name] = asyncio.run(asked)
            print(f"{folder.name}, {name}: {at_rates[name]}", flush=True)
    both = zip(together, alone, strict=True)
    gains = [one["images_per_second"] / other["images_per_second"] for one, other in both]
    return {
        "model": folder.name,
        "backend": about["models"][0]["backend"],
        "threads": torch.get_num_threads(),
        "clients": args.clients,
        "batch": BATCH,
        "one_client": single,
        "image_by_image": alone,
        "batches": together,
        "wrk": wrk,
        "gain_of_batches": {"median": statistics.median(gains), "rounds": gains},
        **at_rates,
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
        twice, most = (f"{found[key]['asked_per_second']:.0f}" for key in RATES)
        rows = [
            (1, "one after the other", middle(found["one_client"])),
            (many, "image by image (`--batch 1`)", middle(found["image_by_image"])),
            (many, f"in batches (`--batch {batch}`)", middle(found["batches"])),
            ("", f"{twice} a second: twice the first row", found[RATES[0]]),
            ("", f"{most} a second: {SHARE:.0%} of the third row", found[RATES[1]]),
        ]
        if found["wrk"] is not None:
            rows.insert(3, (many, "the same, asked by wrk", found["wrk"]))
        name = f"`{found['model']}`, {found['backend']}"
        lines += [line(name, *row) for row in rows]
    storm = measured["among_abusers"]
    lines.append(line(name_of(measured), 8, "among broken, huge, slow and killed ones", storm))
    return "\n".join(lines) + "\n"


def fill(page: Path, table: str) -> None:
    """Put the table between the page's marks."""
    before, _, after = page.read_text().split(MARK)
    page.write_text(f"{before}{MARK}{table}{MARK}{after}")


def line(name: str, clients: object, what: str, row: dict[str, Any]) -> str:
    """One load."""
    rate = f"**{row['images_per_second']:.1f}**"
    times = " | ".join(f"{row[key]:.0f}" for key in ("median_ms", "p95_ms"))
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
    parser.add_argument("--out", default=str(RESULTS))
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
    if Path(args.out) == RESULTS:
        fill(PAGE, markdown(measured))


if __name__ == "__main__":
    main()
