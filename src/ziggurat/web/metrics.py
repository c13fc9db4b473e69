"""What Prometheus is told at ``/metrics``, in a registry of each application's own.

Of several workers each counts in files that all of them read: whoever is asked tells of all.
"""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.routing import Route
from starlette.types import Scope

from ziggurat.web.workers import SHARED

KIND = CONTENT_TYPE_PLAIN_0_0_4
OTHER = "other"  # a path that is no route's: as many as there are must not become series
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOGETHER = {  # what a sum over processes says; not seconds, which would fall when one has died
    "process_virtual_memory_bytes", "process_resident_memory_bytes", "process_open_fds",
}  # fmt: skip
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters, gauges and histograms; they may be told from any thread."""

    def __init__(self, version: str) -> None:
        own = self.registry = CollectorRegistry()
        self.all = CollectorRegistry() if SHARED in os.environ else own
        if self.all is own:
            ProcessCollector(registry=own)  # memory, processor time, open files
        else:
            MultiProcessCollector(self.all)
            self.all.register(Processes(Path(os.environ[SHARED])))
        Gauge(
            "ziggurat_info", "Version", ["version"], registry=own, multiprocess_mode="max"
        ).labels(version).set(1)
        self.ready = Gauge(
            "ziggurat_ready", "Workers of which /healthz says so", registry=own,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self.inside = Gauge(
            "ziggurat_requests_inside", "Requests at work or waiting", registry=own,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self.requests = Counter(
            "ziggurat_requests", "Requests by route and status", ["route", "status"], registry=own
        )
        self.latency = Histogram(
            "ziggurat_request_seconds", "From a request's headers to its answer's end", ["route"],
            registry=own, buckets=SECONDS,
        )  # fmt: skip
        self.waiting = Gauge(
            "ziggurat_queue", "Images that wait", ["model"], registry=own,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self.batches = Histogram(
            "ziggurat_batch_size", "Images a call of the model", ["model"], registry=own,
            buckets=SIZES,
        )  # fmt: skip
        self.model = Histogram(
            "ziggurat_model_seconds", "A call of the model", ["model"], registry=own,
            buckets=SECONDS,
        )  # fmt: skip
        self.errors = Counter("ziggurat_errors", "Mistakes of the server's own", registry=own)

    def request(self, scope: Scope, status: int, seconds: float) -> None:
        """One that was answered."""
        route = path_of(scope)
        self.requests.labels(route, status).inc()
        self.latency.labels(route).observe(seconds)
        if status == 500:
            self.errors.inc()

    def text(self) -> bytes:
        """All of it, in Prometheus' words."""
        return generate_latest(self.all)


class Processes(Collector):
    """Memory and open files of all workers, added up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def collect(self) -> Iterable[Metric]:
        """Of those whose files say that they live."""
        found: dict[str, Metric] = {}
        for file in self.folder.glob("gauge_livesum_*.db"):
            pid = partial(int, file.stem.rpartition("_")[2])
            for metric in ProcessCollector(pid=pid, registry=None).collect():
                if metric.name in TOGETHER:
                    first = found.setdefault(metric.name, metric)
                    if first is not metric:
                        (one,), (other,) = first.samples, metric.samples
                        first.samples = [one._replace(value=one.value + other.value)]
        return found.values()


def path_of(scope: Scope) -> str:
    """The route's, as it is written; also of one that was refused on the way there."""
    route = scope.get("route")
    if route is not None:
        return str(route.path)
    known = (one.path for one in scope["app"].routes if isinstance(one, Route))
    return scope["path"] if scope["path"] in known else OTHER
