"""MLflow's system metrics of this machine, for as long as a training lasts here."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbrl.infra.tracking import Tracking

INTERVAL_S = 10.0


class Machine:
    """CPU, memory, disk, network and NVIDIA GPUs, sampled by a thread of MLflow's. It ends by itself when MLflow is away."""

    def __init__(self, tracking: "Tracking", interval_s: float = INTERVAL_S) -> None:
        self._tracking, self._interval_s = tracking, interval_s
        self._monitor: Any = None

    def watch(self) -> None:
        """Begin, after the last step of an earlier process of the run; does nothing if it has begun."""
        if self._monitor is not None:
            return
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = SystemMetricsMonitor(
            self._tracking.run_id, sampling_interval=self._interval_s, resume_logging=True, tracking_uri=self._tracking.uri
        )
        self._monitor.start()

    def leave(self) -> None:
        """End, and log what was sampled."""
        if self._monitor is not None:
            self._monitor.finish()
            self._monitor = None
