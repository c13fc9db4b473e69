"""The verb that opens models to programs and browsers: ``serve``."""

import argparse
import errno
import gc
import importlib.util
import math
import os
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ziggurat.cli.verb import BACKENDS, Verb, positive

if TYPE_CHECKING:
    from ziggurat.engine.explain import Explainer
    from ziggurat.web.workers import Worker

RUNS = Path("runs")
PACKAGES = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(args: argparse.Namespace) -> int:
    """Serve classifiers: predictions for programs, and a page that shows where they look."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"serving needs {name}: pip install 'ziggurat[serve]'")
    if args.workers > 1 and sys.platform != "linux":
        raise ValueError(f"--workers {args.workers} needs Linux, which shares connections out")
    with listening(args.host, args.port) as opened:
        if args.workers == 1:
            return answering(args, opened)
        from ziggurat.web.workers import Worker, alone, share, sharing, workers  # nothing large

        with place(args.host, args.port):
            claim = alone(opened)
        share(opened)
        with claim:  # of the process that waits: a worker leaves here at once
            one = workers(args.workers)
        if not isinstance(one, Worker):
            return one
        with sharing(opened) as own:
            return answering(args, own, one)


def answering(
    args: argparse.Namespace, opened: socket.socket, worker: "Worker | None" = None
) -> int:
    """Load what is asked for and answer at a socket, in one process."""
    from ziggurat.web.app import application
    from ziggurat.web.server import Server

    warnings.filterwarnings("ignore", module="PIL")  # one for each way a file can be damaged
    given = args.checkpoints
    models = loaded(given, args.backend) if given else found(args.backend)
    app = application(
        models, args.max_mb, args.max_megapixels, args.batch, args.queue, args.timeout
    )
    server = Server(app, args.grace, worker.up if worker is not None else None)
    with place(args.host, args.port):
        opened.listen()  # who comes before the server is up waits for it
    host, port = opened.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    if worker is None or not worker.number:
        print(f"{', '.join(models)} at http://{shown}:{port} (Ctrl-C ends it)", flush=True)
        if args.host not in LOCAL:
            print("whoever reaches this machine can use it: there is no login", file=sys.stderr)
    gc.collect()
    gc.freeze()  # what is there now stays: not looked through again,
    gc.set_threshold(50_000, 20, 100)  # and what waits in a queue not all the time
    server.run(sockets=[opened])
    left = server.service.unanswered
    if left:
        words = f"{left} requests were not answered within {args.grace} s: give it more --grace"
        print(f"ziggurat: {words}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1 if left else 0)  # threads that are still at work would be waited for


def listening(host: str, port: int) -> socket.socket:
    """A socket of our own, taken before the models are read, which can take long."""
    with place(host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        opened = socket.socket(family, kind, protocol)  # asyncio sends without delay if it is TCP's
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    return opened


@contextmanager
def place(host: str, port: int) -> Iterator[None]:
    """Say what is wrong with an address that cannot be had."""
    try:
        yield
    except OSError as error:
        hint = "take another --port" if error.errno == errno.EADDRINUSE else "see --host, --port"
        raise OSError(f"cannot serve at {host}, port {port}: {error.strerror} ({hint})") from None


def loaded(sources: Sequence[str], backend: str) -> dict[str, "Explainer"]:
    """Models by the names that visitors choose from: the shortest that tell them apart."""
    from ziggurat.engine.explain import Explainer
    from ziggurat.engine.runs import titles

    folders = [source for source in sources if Path(source).is_dir()]
    named = dict(zip(folders, titles(list(map(Path, folders))), strict=True)) if folders else {}
    models = {named.get(source, source): Explainer(source, backend=backend) for source in sources}
    for name, model in models.items():
        if not model.methods:
            raise ValueError(f"{name} cannot be explained by any method")
    return models


def found(backend: str) -> dict[str, "Explainer"]:
    """The classifiers of the runs there are; others are told of and left out."""
    from ziggurat.models.pretrained import CONFIG

    models: dict[str, Explainer] = {}
    for folder in sorted(config.parent for config in RUNS.glob(f"*/{CONFIG}")):
        try:
            models |= loaded([str(folder)], backend)
        except ValueError as error:
            print(f"ziggurat: {folder} is left out: {error}", file=sys.stderr)
    if not models:
        raise ValueError(
            f"there is no trained classifier in {RUNS}/: name a run's folder or a hub id, or train "
            "one (`ziggurat train nest/digits`)"
        )
    return models


def amount(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"takes a number above 0, got {text!r}")
    return value


def port(text: str) -> int:
    """A number that a port can have; 0 is any that is free."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"takes a number from 0 to 65535, got {text!r}")
    return int(text)


def add(verb: Verb) -> None:
    """Add it with its options."""
    one = verb(serve, "ziggurat serve runs/nest runs/deit")
    one.add_argument(
        "checkpoints",
        nargs="*",
        metavar="CHECKPOINT",
        help="runs' folders (also their best/) or hub ids; all of runs/ if none is given",
    )
    one.add_argument("--host", default="127.0.0.1", help="0.0.0.0: other machines, too (127.0.0.1)")
    one.add_argument("--port", type=port, default=8000, help="0: any that is free (8000)")
    one.add_argument("--max-mb", type=amount, default=20, help="of an upload (20)")
    one.add_argument("--max-megapixels", type=amount, default=64, help="of an image (64)")
    one.add_argument(
        "--backend",
        choices=("auto", *BACKENDS),
        default="auto",
        help="what runs predictions (auto: the fastest that is installed)",
    )
    one.add_argument(
        "--workers",
        type=positive,
        default=1,
        help="processes that answer, each with the models, a part of the cores and the limits (1)",
    )
    one.add_argument("--batch", type=positive, default=16, help="images a model takes at once (16)")
    one.add_argument("--queue", type=positive, default=64, help="requests taken in at once (64)")
    one.add_argument("--timeout", type=amount, default=30, help="seconds a request may take (30)")
    one.add_argument("--grace", type=positive, default=30, help="seconds to finish on SIGTERM (30)")
