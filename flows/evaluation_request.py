"""The request for an evaluation, and its plan: which model, on which settings, under which name."""

import asyncio
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from nbrl.agent.policies.settings import ChatSettings
from nbrl.flows.ask.endpoint import Endpoint, Flags, chat_url, check_limit, checked, key_in, model_of, served
from nbrl.infra.closed import ClosedModel
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment, HubEnvironment
from nbrl.tasks.environments.settings import Environments
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.evaluation.deliver import has_mlflow, was_delivered
from nbrl.tasks.evaluation.question_file import NAME, NOT_TRAINED, content_of, is_question_file, options_in_errors, settings_of
from nbrl.tasks.evaluation.subject import check_began_with, run_of, subject_of_policy, subject_of_run
from nbrl.tasks.evaluation.summary import EvaluationSummary, Subject, read
from nbrl.tasks.layout.runs import EVALUATIONS, RUNS, DataLayout, EvaluationLayout, RunLayout
from nbrl.tasks.model_folder.source import is_hub_name
from nbrl.tasks.reward.judge.settings import JudgeSettings
from nbrl.tasks.rollout.plan import Server
from nbrl.tasks.runs.changes import DIFFERING, Changes, as_overrides
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import digest
from nbrl.tasks.runs.preflight import preflight
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipes import from_settings, load, resumed_config, trusted_config
from nbrl.tasks.runs.run import checked_name, unknown

ROOT = ".nbrl/storage"
IN_PROCESS = 64  # trajectories that one process asks for
NAMED = 40  # characters of a model's name in that of its evaluation
JUDGE_FLAGS = Flags("--judge", "--judge-model", "--judge-key-env")


class EvaluationRequest(ClosedModel):
    """An evaluation as a user asks for it."""

    recipe: str = Field(
        "",
        description="name or path of a recipe, or a file of questions; may be left out to take the settings and questions of the "
        "run of `model`",
    )
    model: str = Field(
        "",
        description="RUN, RUN@UPDATES, or a model folder; with `endpoint`, the server's name of it; empty: the recipe's policy",
    )
    endpoint: str = Field("", description="an OpenAI-compatible server (…/v1) whose model is evaluated")
    api_key_env: str = Field("", description="the environment variable with that server's key")
    columns: dict[str, str] = Field({}, description="of a file of questions: its columns for ours, such as question and answers")
    rule: str = Field("", description="of a file of questions: how answers are compared; qa when not set")
    environments: tuple[str, ...] = Field((), description="environments of the settings to evaluate on; all when empty")
    samples: int | None = Field(None, ge=1, le=100, description="answers for each question; that of the settings when not set")
    questions: int | None = Field(None, ge=1, description="questions of each environment, from the first; as set when not set")
    mode: Literal["agent", "direct", "vote"] | None = Field(None, description="how the model is asked; as set when not set")
    judge: str = Field("", description="an OpenAI-compatible server (…/v1) whose model grades the answers to questions of files")
    judge_model: str = Field("", description="the server's name of that model; not needed if it has only one")
    judge_key_env: str = Field("", description="the environment variable with the judge's key")
    settings: Changes = Field(Changes(), description=DIFFERING)
    overrides: tuple[str, ...] = Field((), description="further settings as KEY=VALUE, such as environments.NAME.train=64")
    root: str = Field(ROOT, description="storage root, where there is no recipe")
    name: str = Field(
        "", description="name of the evaluation; by default made of the model and of a digest of all that decides it"
    )


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
    overrides, asks_file = _overrides(order), is_question_file(order.recipe)
    if not asks_file and (order.columns or order.rule):
        raise ConfigError("--columns and --rule describe a file of questions; give one in place of a recipe, or leave them out")
    with options_in_errors() if asks_file else nullcontext():
        return _planned(order, overrides, asks_file, trust)


def _planned(order: EvaluationRequest, overrides: Sequence[str], asks_file: bool, trust: bool) -> EvaluationPlan:
    config, named = (_of_file if asks_file else _of_recipe)(order, overrides, trust)
    storage = Storage(config.storage)
    environments = _chosen(config.environments, order.environments)
    config = config.model_copy(update={"environments": _judged(environments) if order.judge else environments})
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
    asked = Counter(plan.questions()["environment"].to_pylist()).values()
    count = sum(min(each, config.evaluate.questions or each) for each in asked) * config.evaluate.samples
    return plan.model_copy(update={"trajectories": count})


Named = tuple[str, int | None] | None
"""The run whose policy is evaluated, and after how many updates, if it is that of a run."""


def _of_recipe(order: EvaluationRequest, overrides: Sequence[str], trust: bool) -> tuple[RunConfig, Named]:
    """Return the settings of the order's recipe, or else of the run that it names."""
    if order.recipe:
        config = load(order.recipe, overrides, NOT_TRAINED if order.endpoint else {"iterations": 0})
        check_root(order.root, config)
        return config, run_of(Storage(config.storage), order.model) if order.model and not order.endpoint else None
    storage = Storage(StorageSettings(root=order.root))
    named = run_of(storage, order.model) if order.model else None
    if named is None or order.endpoint:
        raise ConfigError(_no_settings(order))
    return trusted_config(storage, named[0], overrides, trust, anew=bool(order.judge)), named


def _of_file(order: EvaluationRequest, overrides: Sequence[str], trust: bool) -> tuple[RunConfig, Named]:
    """Return settings with the questions of a file: those of the run that the order names, or else the usual ones."""
    settings = settings_of(order.recipe, order.columns, order.rule)
    if not (order.endpoint or order.model):
        raise ConfigError(f"no model is given for the questions of {order.recipe}; give --endpoint URL or --model")
    storage = Storage(StorageSettings(root=order.root))
    if not order.endpoint and (named := run_of(storage, order.model)) is not None:
        others = [f"environments.{name}=null" for name in resumed_config(storage, named[0], ()).environments]
        replaced = [f"name={settings['name']}", f"environments.{NAME}={json.dumps(settings['environments'][NAME])}"]
        return trusted_config(storage, named[0], [*others, *replaced, *overrides], trust), named
    settings |= {**NOT_TRAINED, "storage": {"root": order.root}}
    return from_settings(RunConfig, settings, order.recipe, overrides), None


def check_root(root: str, config: RunConfig) -> None:
    """Raises ConfigError if a root was given beside a recipe that names another."""
    if root not in (ROOT, config.storage.root):
        raise ConfigError(
            f"--root {root} changes nothing where there is a recipe, whose storage.root is {config.storage.root}; give "
            f"--set storage.root={root} instead"
        )


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


def _overrides(order: EvaluationRequest) -> list[str]:
    """Return the overrides of the request, and those of its own fields. Raises ConfigError if the judge is not there."""
    values = {"samples": order.samples, "questions": order.questions, "mode": order.mode}
    given = [*as_overrides(order.settings), *order.overrides]
    set_ = [f"evaluate.{key}={value}" for key, value in values.items() if value is not None]
    if not order.judge:
        if order.judge_model or order.judge_key_env:
            raise ConfigError("--judge-model and --judge-key-env say more of --judge; give its address too, or leave them out")
        return [*given, *set_]
    # A judge that the settings name has another key: without one for this judge, none is sent.
    return ["reward.judge.key=null", *given, *set_, *_judge(order)]


def _judge(order: EvaluationRequest) -> list[str]:
    """Return the overrides that name the judge of the order."""
    server = Endpoint(order.judge, order.judge_model or None, key_in(order.judge_key_env), flags=JUDGE_FLAGS)
    name = asyncio.run(_model(server, None))
    judge = checked(JudgeSettings, base_url=chat_url(server), name=name, key=order.judge_key_env or None)
    values = judge.model_dump(include={"base_url", "name", "key"}, exclude_none=True)
    return [f"reward.judge.{key}={json.dumps(value)}" for key, value in values.items()]


def _no_settings(order: EvaluationRequest) -> str:
    if not order.model or order.endpoint or "/" in order.model:
        return "neither a recipe nor a file of questions is given; it says what the model is asked"
    run = order.model.partition("@")[0]
    return f"there is no run {run!r} in {order.root} whose settings could be used; give a recipe, or --root"


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


def _judged(environments: Environments) -> Environments:
    """Return the environments, with a judge for the answers that else would be compared by words."""
    judged: Environments = {}
    for name, each in environments.items():
        graded = (isinstance(each, FilesEnvironment) and each.rule == "qa") or (
            isinstance(each, HubEnvironment) and each.rule is None
        )
        judged[name] = each.model_copy(update={"rule": "judge"}) if graded else each
    return judged


def _at_server(order: EvaluationRequest, config: RunConfig) -> Subject:
    endpoint = Endpoint(order.endpoint, order.model or None, key_in(order.api_key_env))
    model = asyncio.run(_model(endpoint, config.agent.context_tokens))
    chat = checked(ChatSettings, endpoint=chat_url(endpoint), model=model, seeded=config.engine.seeded_sampling)
    digest_ = hashlib.sha256(f"{chat.endpoint}\n{chat.model}".encode()).hexdigest()
    return Subject(name=f"{model} at {chat.endpoint}", digest=digest_, server=Server(chat=chat, key=order.api_key_env or None))


async def _model(endpoint: Endpoint, context_tokens: int | None) -> str:
    async with endpoint.client() as client:
        models = await served(client, endpoint)
    if context_tokens is not None:
        check_limit(endpoint, models, context_tokens)
    return model_of(endpoint, models)


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
