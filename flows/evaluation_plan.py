"""The plan of an evaluation: which model, on which settings and questions, under which name, and whether in one process."""

import asyncio
import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.policies.settings import ChatSettings
from nbrl.flows.ask.endpoint import Endpoint, chat_url, checked, key_in
from nbrl.flows.evaluation_request import EvaluationRequest, judged, model_served, of_file, of_recipe, overrides_of
from nbrl.infra.closed import ClosedModel
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.settings import Environments
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.evaluation.deliver import has_mlflow, was_delivered
from nbrl.tasks.evaluation.question_file import content_of, is_question_file, options_in_errors
from nbrl.tasks.evaluation.subject import check_began_with, subject_of_policy, subject_of_run
from nbrl.tasks.evaluation.summary import EvaluationSummary, Subject, read
from nbrl.tasks.layout.runs import EVALUATIONS, RUNS, DataLayout, EvaluationLayout, RunLayout
from nbrl.tasks.model_folder.source import is_hub_name
from nbrl.tasks.rollout.plan import Server
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import digest
from nbrl.tasks.runs.preflight import preflight
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipes import resumed_config
from nbrl.tasks.runs.run import checked_name, unknown

IN_PROCESS = 64  # trajectories that one process asks for
NAMED = 40  # characters of a model's name in that of its evaluation


class EvaluationPlan(ClosedModel):
    """An order that was checked: the settings, without the environments that are left out, what they evaluate, and how many
    trajectories that takes.
    """

    name: str
    start: Prepared
    subject: Subject
    trajectories: int

    @property
    def config(self) -> RunConfig:
        return self.start.config

    @property
    def in_process(self) -> bool:
        """Return whether the evaluation runs in one process: Ray and Prefect would take longer than so few trajectories of a
        model that is already served.
        """
        return self.subject.server is not None and self.trajectories <= IN_PROCESS and self.config.ray.address is None

    def questions(self) -> pa.Table:
        """Return all held-out questions of its environments."""
        names, tables = self.config.environments, self.start.tables
        if tables is not None:
            return stored.mixed(names, tables, "held_out")
        folder = self.start.questions or EvaluationLayout(self.name).data.folder
        table = stored.read(Storage(self.config.storage), DataLayout(folder), "held_out")
        return table.filter(pc.is_in(table["environment"], pa.array(list(names))))


def planned(order: EvaluationRequest, trust: bool = False) -> EvaluationPlan:
    """Return the plan of a request. Raises ConfigError or SandboxError if it cannot be made. `trust`: see tasks/runs/trust.py."""
    overrides, asks_file = overrides_of(order), is_question_file(order.recipe)
    if not asks_file and (order.columns or order.rule):
        raise ConfigError("--columns and --rule describe a file of questions; give one in place of a recipe, or leave them out")
    with options_in_errors() if asks_file else nullcontext():
        return _planned(order, overrides, asks_file, trust)


def _planned(order: EvaluationRequest, overrides: Sequence[str], asks_file: bool, trust: bool) -> EvaluationPlan:
    config, named = (of_file if asks_file else of_recipe)(order, overrides, trust)
    storage = Storage(config.storage)
    environments = _chosen(config.environments, order.environments)
    config = config.model_copy(update={"environments": judged(environments) if order.judge else environments})
    if order.endpoint:
        subject = _at_server(order, config)
    elif named is not None:
        subject = subject_of_run(storage, *named)
        if order.recipe and not asks_file and not subject.updates:
            of_policy = [each for each in overrides if each.startswith("policy.")]
            config = config.model_copy(update={"policy": resumed_config(storage, named[0], of_policy).policy})
        check_began_with(config, subject)
    else:
        if order.model:
            path = os.path.expanduser(order.model)
            _check_model(path, storage)
            config = config.model_copy(update={"policy": config.policy.model_copy(update={"path": path, "revision": None})})
        subject = subject_of_policy(config)
    name = checked_name(order.name or _name(subject, config, content_of(order.recipe) if asks_file else ""))
    # A run's own questions are on storage, and what they were made of may be gone.
    questions = "" if order.recipe or order.judge else RunLayout(subject.run).data.folder
    start = preflight(config, "evaluate a server" if subject.server else "evaluate", name, EVALUATIONS, questions)
    plan = EvaluationPlan(name=name, start=start, subject=subject, trajectories=0)
    if asks_file and start.tables is None and not _asks(plan):
        raise ConfigError(f"evaluation {name!r} was begun with other questions than {order.recipe} has; choose another --name")
    asked = Counter(plan.questions()["environment"].to_pylist()).values()
    count = sum(min(each, config.evaluate.questions or each) for each in asked) * config.evaluate.samples
    return plan.model_copy(update={"trajectories": count})


def _asks(plan: EvaluationPlan) -> bool:
    """Return whether the questions of an evaluation that was begun are those that its environments have now."""
    environments = plan.config.environments
    return bool(stored.mixed(environments, stored.load(environments), "held_out").equals(plan.questions()))


def done(plan: EvaluationPlan) -> EvaluationSummary | None:
    """Return the summary of an evaluation that finished and that MLflow and Prefect know, where it has them; None where anything
    is left to do.
    """
    storage, layout = Storage(plan.config.storage), EvaluationLayout(plan.name)
    summary = read(storage, plan.name)
    if summary is None or summary.subject.digest != plan.subject.digest:
        return None
    reported = plan.in_process or storage.exists(layout.reported)
    delivered = was_delivered(storage, plan.config, plan.name) or (plan.in_process and not has_mlflow(plan.config))
    return summary if reported and delivered else None


def _chosen(environments: Environments, names: Sequence[str]) -> Environments:
    for name in names:
        if name not in environments:
            raise ConfigError(f"there is no environment {name!r} in these settings; {did_you_mean(name, list(environments))}")
    return {name: each for name, each in environments.items() if not names or name in names}


def _check_model(model: str, storage: Storage) -> None:
    if os.path.isdir(model) or is_hub_name(model):
        return
    if "/" in model or model.startswith(("~", ".")):
        raise ConfigError(f"--model {model} is no folder; correct the path, or give owner/name of the hub or the name of a run")
    raise ConfigError(f"--model {model}: there is no such folder, and {unknown(storage, model.partition('@')[0], RUNS)}")


def _at_server(order: EvaluationRequest, config: RunConfig) -> Subject:
    endpoint = Endpoint(order.endpoint, order.model or None, key_in(order.api_key_env))
    model = asyncio.run(model_served(endpoint, config.agent.context_tokens))
    chat = checked(ChatSettings, endpoint=chat_url(endpoint), model=model, seeded=config.engine.seeded_sampling)
    digest_ = hashlib.sha256(f"{chat.endpoint}\n{chat.model}".encode()).hexdigest()
    return Subject(name=f"{model} at {chat.endpoint}", digest=digest_, server=Server(chat=chat, key=order.api_key_env or None))


def _name(subject: Subject, config: RunConfig, questions: str) -> str:
    """Return a name of recipe, model and all that decides the result, so that repeating the command resumes the evaluation.

    `questions` is the digest of a file of questions.
    """
    decided = hashlib.sha256(" ".join(filter(None, [subject.digest, digest(config), questions])).encode()).hexdigest()[:8]
    plain = re.sub(r"[^A-Za-z0-9]+", "-", subject.run or os.path.basename(subject.name.partition(" at ")[0].rstrip("/"))).strip(
        "-"
    )
    updates = f"-{subject.updates:06d}" if subject.run else ""
    recipe = "" if plain.startswith(config.name) else f"{config.name[:NAMED]}-"
    return f"{recipe}{plain[:NAMED] or 'model'}{updates}-{decided}"
