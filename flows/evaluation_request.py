"""The request for an evaluation, and the settings that it means."""

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from nbrl.flows.ask.endpoint import Endpoint, Flags, chat_url, check_limit, checked, key_in, model_of, served
from nbrl.infra.closed import ClosedModel
from nbrl.infra.home import ROOT, storage_of
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment, HubEnvironment
from nbrl.tasks.environments.settings import Environments
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.question_file import NAME, NOT_TRAINED, settings_of
from nbrl.tasks.reward.judge.settings import JudgeSettings
from nbrl.tasks.runs.changes import DIFFERING, Changes, as_overrides
from nbrl.tasks.runs.checkpoints import run_of
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.recipes import from_settings, load, resumed_config, trusted_config

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


Named = tuple[str, int | None] | None
"""The run whose policy is evaluated, and after how many updates, if it is that of a run."""


def of_recipe(order: EvaluationRequest, overrides: Sequence[str], trust: bool) -> tuple[RunConfig, Named]:
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


def of_file(order: EvaluationRequest, overrides: Sequence[str], trust: bool) -> tuple[RunConfig, Named]:
    """Return settings with the questions of a file: those of the run that the order names, or else the usual ones."""
    settings = settings_of(order.recipe, order.columns, order.rule)
    if not (order.endpoint or order.model):
        raise ConfigError(f"no model is given for the questions of {order.recipe}; give --endpoint URL or --model")
    storage = Storage(StorageSettings(root=order.root))
    if not order.endpoint and (named := run_of(storage, order.model)) is not None:
        others = [f"environments.{name}=null" for name in resumed_config(storage, named[0], ()).environments]
        replaced = [f"name={settings['name']}", f"environments.{NAME}={json.dumps(settings['environments'][NAME])}"]
        return trusted_config(storage, named[0], [*others, *replaced, *overrides], trust), named
    settings |= {**NOT_TRAINED, **({} if order.root == ROOT else {"storage": {"root": order.root}})}
    return from_settings(RunConfig, settings, order.recipe, overrides), None


def check_root(root: str, config: RunConfig) -> None:
    """Raises ConfigError if a root was given beside a recipe that names another."""
    if os.path.abspath(root) not in map(os.path.abspath, (ROOT, storage_of(config.home), config.storage.root)):
        raise ConfigError(
            f"--root {root} changes nothing where there is a recipe, whose storage.root is {config.storage.root}; give "
            f"--set storage.root={root} instead"
        )


def overrides_of(order: EvaluationRequest) -> list[str]:
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
    name = asyncio.run(model_served(server, None))
    judge = checked(JudgeSettings, base_url=chat_url(server), name=name, key=order.judge_key_env or None)
    values = judge.model_dump(include={"base_url", "name", "key"}, exclude_none=True)
    return [f"reward.judge.{key}={json.dumps(value)}" for key, value in values.items()]


def _no_settings(order: EvaluationRequest) -> str:
    if not order.model or order.endpoint or "/" in order.model:
        return "neither a recipe nor a file of questions is given; it says what the model is asked"
    run = order.model.partition("@")[0]
    return f"there is no run {run!r} in {order.root} whose settings could be used; give a recipe, or --root"


def judged(environments: Environments) -> Environments:
    """Return the environments, with a judge for the answers that else would be compared by words."""
    judged: Environments = {}
    for name, each in environments.items():
        graded = (isinstance(each, FilesEnvironment) and each.rule == "qa") or (
            isinstance(each, HubEnvironment) and each.rule is None
        )
        judged[name] = each.model_copy(update={"rule": "judge"}) if graded else each
    return judged


async def model_served(endpoint: Endpoint, context_tokens: int | None) -> str:
    async with endpoint.client() as client:
        models = await served(client, endpoint)
    if context_tokens is not None:
        check_limit(endpoint, models, context_tokens)
    return model_of(endpoint, models)
