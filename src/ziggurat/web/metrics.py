"""What Prometheus is told at ``/metrics``, in a registry of each application's own."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.routing import Route
from starlette.types import Scope

KIND = CONTENT_TYPE_PLAIN_0_0_4
OTHER = "other"  # a path that is no route's: as many as there are must not become series
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters, gauges and histograms; they may be told from any thread."""

    def __init__(self, version: str) -> None:
        own = self.registry = CollectorRegistry()
        ProcessCollector(registry=own)  # memory, processor time, open files
        Gauge("ziggurat_info", "Version", ["version"], registry=own).labels(version).set(1)
        self.ready = Gauge("ziggurat_ready", "1 if /healthz says so", registry=own)
        self.inside = Gauge("ziggurat_requests_inside", "Requests at work or waiting", registry=own)
        self.requests = Counter(
            "ziggurat_requests", "Requests by route and status", ["route", "status"], registry=own
        )
        self.latency = Histogram(
            "ziggurat_request_seconds", "From a request's headers to its answer's end", ["route"],
            registry=own, buckets=SECONDS,
        )  # fmt: skip
        self.waiting = Gauge("ziggurat_queue", "Images that wait", ["model"], registry=own)
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
        return generate_latest(self.registry)


def path_of(scope: Scope) -> str:
    """The route's, as it is written; also of one that was refused on the way there."""
    route = scope.get("route")
    if route is not None:
        return str(route.path)
    known = (one.path for one in scope["app"].routes if isinstance(one, Route))
    return scope["path"] if scope["path"] in known else OTHER
