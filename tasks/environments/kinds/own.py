"""An environment of one's own, from a class."""

import json
from collections.abc import Mapping
from hashlib import sha256
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from nbrl.agent.tools.sessions import SessionSource
from nbrl.agent.tools.settings import BUILT_IN
from nbrl.infra.parse import json_value
from nbrl.tasks.environments.environment import Environment, Tables
from nbrl.tasks.environments.own_world import WorldSource, check_session, made
from nbrl.tasks.environments.questions import CORPUS_SCHEMA, attach, check, table_of
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.own import Question, Tasks, World
from nbrl.tasks.reward.rules.rule import FILES, OWN, RULES, WORLD

SHIPPED = "nbrl.tasks.environments.worlds."


class OwnEnvironment(Environment):
    """A class of your own, a subclass of `nbrl.tasks.own.Tasks` or `nbrl.tasks.own.World`: see docs/environments.md."""

    kind: Literal["own"] = Field(description="a class that gives questions and scores trajectories")
    place: str = Field(description="where it is: package.module:Class", pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    settings: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the class")

    def load(self, key: str) -> Tables:
        tasks = made(key, self.place, self.settings)
        attached: dict[str, Path | bytes] = {}
        rule = WORLD if isinstance(tasks, World) else OWN
        try:
            asked, evaluated = list(tasks.questions("train")), list(tasks.questions("held_out"))
            passages = tasks.corpus()
            if isinstance(passages, str):
                raise TypeError("the corpus is one text where a list of passages is needed")
            corpus = pa.table({"passage": list(passages)}, schema=CORPUS_SCHEMA)
        except Exception as error:  # of a user's code
            raise ConfigError(f"{key}: {self.place} gives no questions: {type(error).__name__}: {error}") from error
        train, held_out = [
            self._table(key, split, given, attached, rule) for split, given in (("train", asked), ("held_out", evaluated))
        ]
        if isinstance(tasks, World):
            if type(tasks).score is Tasks.score:
                raise ConfigError(
                    f"{key}: {self.place} has no method score; write it, for every question of a world is scored by it"
                )
            searched = ("search",) if self.tools is None and len(corpus) else ()
            others = [name for name in self.tools or searched if name in BUILT_IN]
            for question in (*asked[:1], *evaluated[:1]):
                check_session(key, tasks, question, others)
        return Tables(train, held_out, corpus, attached)

    def session_source(self) -> SessionSource:
        return WorldSource(self.place, self.settings)

    def scores_children(self) -> bool:
        return type(made("the environment", self.place, self.settings)).score_child is not Tasks.score_child

    def source(self) -> str:
        """Return the SHA-256 of the module's source or, in a package, of all files of the package."""
        return source_digest(self.place)

    def _table(self, key: str, split: str, asked: list[Question], attached: dict[str, Path | bytes], rule: str) -> pa.Table:
        if not asked and split == "held_out":
            raise ConfigError(f"{key}: {self.place} gives no {split} questions; give at least one")
        rows = [self._row(key, split, number, question, attached, rule) for number, question in enumerate(asked)]
        try:
            table = table_of(rows)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ConfigError(f"{key}: {self.place} gives {split} questions that are no text: {error}") from error
        check(table, f"{key}, {split}")
        return table

    def _row(
        self, key: str, split: str, number: int, question: Question, attached: dict[str, Path | bytes], ours: str
    ) -> Mapping[str, Any]:
        name = (question.id if isinstance(question, Question) else "") or f"{split}-{number:06d}"
        if not isinstance(question, Question):
            raise ConfigError(f"{key}: {self.place} gives {type(question).__name__} {name} where a Question is needed")
        for field in ("text", "ability", "rule", "id"):
            if not isinstance(vars(question)[field], str):
                raise ConfigError(f"{key}: the {field} of question {name} is no text")
        for field in ("answers", "collect"):
            given = vars(question)[field]
            if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
                raise ConfigError(f"{key}: {field} of question {name} is no list of texts")
        for field in ("max_steps", "deadline_s"):
            given = vars(question)[field]
            if given is not None and (isinstance(given, bool) or not isinstance(given, int | float)):
                raise ConfigError(f"{key}: {field} of question {name} is no number")
        if question.rule == FILES:
            raise ConfigError(
                f"{key}: question {name} has the rule files, which is for questions from files; score it in the class"
            )
        if question.rule not in (OWN, *RULES):
            raise ConfigError(
                f"{key}: question {name} has the rule {question.rule!r}; {did_you_mean(question.rule, [OWN, *RULES])}"
            )
        if question.rule != OWN and ours == WORLD:
            raise ConfigError(
                f"{key}: question {name} has the rule {question.rule!r}; the class of a world scores every question"
            )
        reference = {"place": self.place, "settings": self.settings, "reference": question.reference}
        try:
            stored = json.dumps(reference, allow_nan=False) if question.rule == OWN else ""
            if question.rule == OWN and json_value(stored) != reference:
                raise ValueError("it changes when it is written and read, as keys that are no texts do")
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{key}: settings or the reference of question {name} is no JSON: {error}") from error
        return {
            "id": name,
            "question": question.text,
            "answers": list(question.answers),
            "ability": question.ability,
            "source": self.place,
            "rule": ours if question.rule == OWN else question.rule,
            "max_steps": question.max_steps,
            "deadline_s": question.deadline_s,
            "reference": stored,
            "collect": list(question.collect),
            "files": attach(_given(key, name, question.files), f"{key}: question {name}", attached),
        }


def _given(key: str, name: str, files: object) -> list[Path | tuple[str, bytes]]:
    given: list[Path | tuple[str, bytes]] = []
    for each in files if isinstance(files, list | tuple) else (files,):
        match each:
            case str():
                given.append(Path(each))
            case (str() as title, bytes() as content):
                given.append((title, content))
            case _:
                raise ConfigError(f"{key}: files of question {name} are no list of paths, or of pairs of a name and bytes")
    return given


def source_digest(place: str, folder: Path | None = None) -> str:
    """Return the SHA-256 of the source of a module or, in a package, of all files of the package; empty if it is gone.

    The module is one of this Python's or, where a folder is given, one that lies there. A world that ships is its file alone.
    """
    if place.startswith(SHIPPED):
        spec = find_spec(place.partition(":")[0])
        return sha256(Path(spec.origin).read_bytes()).hexdigest() if spec and spec.origin else ""
    top = place.partition(":")[0].partition(".")[0]
    spec = find_spec(top) if folder is None else PathFinder.find_spec(top, [str(folder)])
    if spec is None:
        return ""
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = sorted(
        (folder, path) for folder in folders for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    whole = sha256()
    alone = [Path(spec.origin)] if spec.origin and not files else []
    if not files and not all(path.is_file() for path in alone):  # of a module that was imported before it went
        return ""
    for folder, path in files or [(path.parent, path) for path in alone]:
        whole.update(f"{path.relative_to(folder)}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()
