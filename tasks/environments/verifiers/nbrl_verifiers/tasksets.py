"""A taskset by its name: its tasks as plain data, and what of a taskset cannot be carried over."""

import sys
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from verifiers import __version__
from verifiers.v1.session import hook_boundary
from verifiers.v1.utils.decorators import discover_decorated
from verifiers.v1.utils.loaders import taskset_class

from .errors import TasksetRefusalError, in_words

PAGE_CHARS = 1 << 20
TASK_CHARS = 1 << 20


class TasksetSource:
    """The tasks of both splits. Raises TasksetRefusalError for a taskset that is none, or that needs more."""

    def __init__(self, name: str, settings: dict[str, dict[str, Any]], folder: str) -> None:
        """`settings` are those of the taskset by split; its module may be in `folder`."""
        self.version = __version__
        if folder and folder not in sys.path:
            sys.path.append(folder)
        try:
            self._class: type[vf.Taskset[Any, Any]] = taskset_class(name)
        except Exception as error:  # of anything that an import can do
            raise TasksetRefusalError(f"{name} is no taskset that can be imported: {in_words(error)}") from error
        if reason := _beyond_class(name, self._class):
            raise TasksetRefusalError(f"{name} cannot be used: {reason}")
        self._configs = {split: self._config(name, given) for split, given in settings.items()}
        self._pages: dict[str, Iterator[Any]] = {}

    def config(self, split: str) -> Any:
        """Return the settings of a split."""
        return self._configs[split]

    def shared_toolsets(self, split: str) -> list[Any]:
        """Return new servers of the tools that all tasks have in common."""
        return self._class.toolsets(self._configs[split])

    def task(self, split: str, data: str) -> Any:
        """Return a task from what `page` said of it."""
        kind = self._class.task_type()
        return kind(kind.data_type().model_validate_json(data), self._configs[split].task)

    def page(self, split: str, count: int) -> dict[str, Any]:
        """Return the next tasks of a split, up to `count` and so many that a page can hold; `first` is the very first one."""
        begun = split in self._pages
        if not begun:
            self._pages[split] = iter(self._class(self._configs[split]))
        rows: list[dict[str, Any]] = []
        size, ended = 0, False
        while len(rows) < count and size < PAGE_CHARS:
            task = next(self._pages[split], None)
            if task is None:
                ended = True
                break
            rows.append(_row(task, self._class.task_type()))
            size += len(rows[-1]["question"]) + len(rows[-1]["data"])
        return {"rows": rows, "ended": ended, "first": rows[0]["data"] if rows and not begun else None}

    def _config(self, name: str, given: dict[str, Any]) -> Any:
        from verifiers.v1.utils.loaders import taskset_config_type

        try:
            return taskset_config_type(name).model_validate({**given, "id": name})
        except Exception as error:  # of validators of the taskset's own, too
            raise TasksetRefusalError(f"{name} does not take these settings: {in_words(error)}") from error


def _beyond_class(name: str, taskset: type[Any]) -> str:
    """Return why no task of it can be carried over; empty where nothing is in the way."""
    environment = vf.environment_class(name)
    if environment is not vf.SingleAgentEnv:
        return f"it brings an environment of its own, {environment.__name__}, such as a simulated user or several agents"
    if vf.default_harness_id(name) == name:
        return "it brings a harness of its own, and nbrl's agent is the harness here"
    task = taskset.task_type()
    if task.NEEDS_CONTAINER:
        return "its tasks need a container, and nbrl's sandbox is none of verifiers'"
    if task.runtime_env is not vf.Task.runtime_env:
        return "its tasks set environment variables of the programs of an agent, and there are none here"
    return ""


def _row(task: Any, kind: type[Any]) -> dict[str, Any]:
    """Return a task as data: its question, all of it as JSON, and how long an agent may take."""
    where = f"its task {task.data.idx}"
    if reason := _beyond_task(task):
        raise TasksetRefusalError(f"{where} cannot be used: {reason}")
    data = task.data.model_dump_json()
    if len(data) > TASK_CHARS:
        raise TasksetRefusalError(f"{where} has more than {TASK_CHARS} characters of JSON")
    try:
        again = kind.data_type().model_validate_json(data)
        same = again.model_dump_json() == data and type(task) is kind
    except ValueError:
        same = False
    if not same:
        raise TasksetRefusalError(f"{where} is not the same after it was written as JSON and read as {kind.__name__}")
    return {"question": _question(task.data, where), "data": data, "deadline_s": task.data.timeout.agent}


def _beyond_task(task: Any) -> str:
    data = task.data
    for name, what in (("image", "an image"), ("agent_user", "a user"), ("skills", "skills"), ("artifacts", "artifacts")):
        if getattr(data, name):
            return f"it names {what} for a container, and nbrl's sandbox is none of verifiers'"
    if discover_decorated(task, "intercept"):
        return "it rewrites what the model is sent or says (@vf.intercept)"
    for stop in task.hooks("stop"):
        if hook_boundary(stop, allow_trace=True) is not vf.Trace:
            return f"it stops at a request to the model ({stop.__name__}); a stop has to look at the trace here"
    return ""


def _question(data: Any, where: str) -> str:
    """Return what the agent is asked: the task's instructions, and its prompt."""
    if data.prompt is None:
        raise TasksetRefusalError(f"{where} cannot be used: it has no prompt, for a user opens it")
    messages = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt
    texts = [data.system_prompt or ""]
    for message in messages:
        if message.role not in ("system", "user"):
            raise TasksetRefusalError(f"{where} cannot be used: its prompt has a turn of the role {message.role}")
        parts = (
            [message.content] if isinstance(message.content, str) else [getattr(each, "text", None) for each in message.content]
        )
        if None in parts:
            raise TasksetRefusalError(f"{where} cannot be used: its prompt has a picture")
        texts += parts
    return "\n\n".join(text for text in texts if text and text.strip())
