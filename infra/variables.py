"""The variables that libraries read when they are imported, for every process that runs a flow: a command's or a worker's.

Those of Prefect itself are not here: where a worker starts the process, Prefect is imported before any code of ours, so that they
must come with the deployment (`prefect_server.CLIENT`).
"""

import os

from nbrl.infra import ray_cluster, tracking

LOCAL = "127.0.0.1,localhost"


def set_here() -> None:
    """Set them in this process, before Ray and MLflow are imported. Local servers are not reached through a proxy."""
    os.environ.update(tracking.ENVIRONMENT | ray_cluster.ENVIRONMENT)
    for name in ("NO_PROXY", "no_proxy"):
        given = os.environ.get(name, "")
        if LOCAL not in given:
            os.environ[name] = ",".join(filter(None, [given, LOCAL]))
