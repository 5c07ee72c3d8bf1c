"""What every rank of the long Ray Train run does: take an order, execute it in step with the others, until told to stop."""

from itertools import count
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
import transformers
from ray.actor import ActorHandle

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.driver.mailbox import Answer
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.settings import UpdateSettings


def loop(config: dict[str, Any]) -> None:
    """Errors of an order are answered and the loop goes on; anything else ends this rank, and with it the run."""
    settings: UpdateSettings = config["settings"]
    mailbox: ActorHandle = config["mailbox"]
    rank = ray.train.get_context().get_world_rank()
    torch.set_num_threads(settings.threads_per_worker)
    transformers.utils.logging.disable_progress_bar()
    learner = Learner(settings, config["model_path"], ray.train.torch.get_device(), config["seed"])
    ray.get(mailbox.report_up.remote(rank))
    for number in count():
        order = ray.get(mailbox.take.remote(number))
        if order is None:
            return
        try:
            answer = Answer(learner.execute(order))
        except UpdateError as error:
            answer = Answer(None, str(error))
        if rank == 0:
            ray.get(mailbox.answer.remote(number, answer))
