"""`ray start` for nbrl's own cluster, without parts that a run on one machine does not use and that would slow each start.

Such a cluster is reached by its own process alone, grows by no machine and shows its state itself: it needs no server for Ray's
clients, no autoscaler's monitor and no dashboard, for which the start would wait. The command line does without Ray Serve and the
other parts whose subcommands are not called here.
"""

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
UNUSED = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli")


def leave_out(parameters: Any, head: bool) -> None:
    """Change the parameters of the cluster that is about to be started."""
    from ray._private.node import Node

    parameters.ray_client_server_port = None
    parameters.worker_path, parameters.setup_worker_path = str(HERE / "worker.py"), str(HERE / "setup_worker.py")
    Node.start_api_server = lambda *_, **__: None  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # an import then fails, as of what is not installed
    from ray.scripts.scripts import main

    main()
