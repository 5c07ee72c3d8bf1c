"""Runs the checks of the recipe, the sandbox and the infrastructure, one after the other."""

from collections.abc import Iterator

from nbrl.infra.doctor import checks as infra_checks
from nbrl.infra.errors import InfraError
from nbrl.infra.home import Home
from nbrl.sandbox.doctor import checks as sandbox_checks
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.plan import disk


def checkup(config: RunConfig) -> Iterator[tuple[str, bool, str]]:
    """Yields (name of a check, whether it passed, result or how to fix it)."""
    try:
        check_config(config)
        yield "recipe", True, f"{config.name} can work"
    except ConfigError as error:
        yield "recipe", False, str(error)
    if text := disk(config):
        yield "checkpoints", True, text
    yield from sandbox_checks(config.sandbox)
    if config.ray.address is not None:
        yield from _machines(config)
    engine = config.engine if config.ray.address is None else None
    for check in infra_checks(Home(config.home), engine, config.storage):
        yield check.name, check.ok, check.message if check.ok else f"{check.message}; {check.fix}"


def _machines(config: RunConfig) -> Iterator[tuple[str, bool, str]]:
    """Yield each machine of the cluster that the recipe joins."""
    from nbrl.tasks.services.offered import lacking

    from nbrl.infra import ray_cluster  # Ray takes a second to import
    from nbrl.tasks.services.machines import examined, offers_of_machines

    try:
        ray_cluster.start(config.ray, Home(config.home).logs)
        for report in examined(config):
            yield report.machine, not report.fault, report.fault or "can do its part"
        sentences = lacking(config, offers_of_machines())
        for sentence in sentences:
            yield "cluster", False, f"{sentence}; add machines that offer it, or take less"
        if not sentences:
            yield "cluster", True, "offers what the parts of a run take"
    except InfraError as error:
        yield "cluster", False, str(error)
    finally:
        ray_cluster.stop()
