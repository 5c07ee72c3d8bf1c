"""What takes the metrics of a run: MLflow, or TensorBoard's event files."""

from collections.abc import Mapping
from typing import Protocol


class MetricSink(Protocol):
    """Metrics of one run, each at most once per step."""

    def log_metrics(self, metrics: Mapping[str, float], step: int, time_s: float | None = None) -> None:
        """Take the metrics of a step, measured at `time_s` seconds since 1970, by default now."""

    def history(self, metric: str) -> list[tuple[int, float]]:
        """Steps and values of a metric."""


def log_missing(sink: MetricSink, metrics: Mapping[str, float], step: int, time_s: float | None = None) -> None:
    """Log those of the metrics that the sink does not have at this step."""
    missing = {name: value for name, value in metrics.items() if step not in {at for at, _ in sink.history(name)}}
    if missing:
        sink.log_metrics(missing, step, time_s)
