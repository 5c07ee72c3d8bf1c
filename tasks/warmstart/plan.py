"""Checks a warm start before any work begins, and describes it."""

from pathlib import Path

from nbrl.infra.gpu import gpus
from nbrl.infra.ray_cluster import check_address
from nbrl.infra.storage import Storage
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.policy_check import check_devices
from nbrl.tasks.runs.preflight import check_makeable, check_workers
from nbrl.tasks.warmstart.settings import Phase, WarmstartSettings
from nbrl.tasks.warmstart.stage import check_environments
from nbrl.tasks.warmstart.start import check_start, start_digest
from nbrl.tasks.warmstart.work_folder import Identity, check_free, unfinished
from nbrl.tasks.warmstart.work_folder import check as check_folder

FRESH = "fresh"  # stands for the digest of a model that the settings describe


def digest_of(settings: WarmstartSettings, storage: Storage) -> str:
    """What identifies the model to start from. Raises ConfigError if there is none."""
    return FRESH if settings.start is None else start_digest(settings.start, storage)


def check(settings: WarmstartSettings, training: RunConfig, storage: Storage, out: Path, home: Path) -> None:
    """Raises ConfigError for what cannot work, as far as it can be told at once. Nothing is fetched."""
    check_environments(settings, training)
    for source in settings.sources.values():
        source.check()
    check_makeable("--home", home)
    check_free(out)
    check_makeable("the output", out.parent)
    check_workers(settings.update, settings.ray)
    if settings.ray.address is not None:
        check_address(settings.ray.address)
    check_devices(settings.update.for_learner(1), settings.ray)
    check_start(settings, training.agent, storage)
    if unfinished(out).exists():
        check_folder(out, Identity.of(settings, training, digest_of(settings, storage)))


def describe(settings: WarmstartSettings, training: RunConfig, out: Path) -> str:
    """What would be done, in a few lines."""
    start = f"from {settings.start}" if settings.start else "a model made from nothing"
    update = settings.update
    adapters = f", LoRA of rank {update.lora.rank}" if update.lora else ""
    passes = update.passes_dtype(gpus() > 0)
    lines = [
        f"{out}: {start}, to act as the agent of {settings.training}",
        *(_phase(name, phase) for name, phase in settings.phases.items()),
        f"{settings.batch} demonstrations per step, lr {update.lr:g}, {passes} passes, {update.workers} workers{adapters}; "
        f"a state to continue from every {settings.checkpoint_steps} steps",
        f"prompt, but for tools: {training.agent.render_system_prompt('').text!r}",
    ]
    return "\n".join(lines)


def _phase(name: str, phase: Phase) -> str:
    sources = [_source(each, source.model_dump(exclude_defaults=True)) for each, source in phase.demonstrations.items()]
    return f"{name}: {phase.epochs:g} passes over {', '.join(sources)}"


def _source(name: str, settings: dict[str, object]) -> str:
    shown = [f"{key} {value}" for key, value in settings.items() if key != "kind"]
    return f"{name} ({': '.join(filter(None, [str(settings['kind']), ', '.join(shown)]))})"
