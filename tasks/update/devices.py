"""Which devices the ranks take."""

from tasks.update.errors import UpdateError
from tasks.update.settings import UpdateSettings


def on_cuda(settings: UpdateSettings, gpus: float) -> bool:
    """Whether every rank takes one of the Ray cluster's `gpus`.

    Raises UpdateError for settings that only act beside a GPU, and where auto would leave GPUs idle because they are too few.
    """
    if settings.device == "auto" and 0 < gpus < settings.workers:
        raise UpdateError(
            f"update.workers {settings.workers} need a GPU each, and there are {gpus:g}: lower update.workers, "
            f"or set update.device to cpu"
        )
    cuda = settings.device == "cuda" or (settings.device == "auto" and gpus > 0)
    if settings.offload and not cuda:
        raise UpdateError(
            f"update.offload {', '.join(settings.offload)} moves state from a GPU to the host, but the learner runs on the CPU: "
            f"{gpus:g} GPUs for update.workers {settings.workers}; leave it out, or add GPUs"
        )
    return cuda
