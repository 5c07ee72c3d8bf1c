"""Demonstrations from conversations: rows with `messages`, as chat servers take them, or `conversations` of ShareGPT."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from nbrl.agent.messages import Role
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import describe
from nbrl.agent.trajectory import ROOT, Node, NodeKind, Status, Trajectory
from nbrl.infra.parse import json_value
from nbrl.tasks.environments.addresses import FilesAt, on_disk
from nbrl.tasks.environments.csv_table import ZIPPED
from nbrl.tasks.environments.tables import SUFFIXES, read_rows
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.sources.source import Demonstrations, DemonstrationSource
from nbrl.tasks.warmstart.sources.turns import HELD, Turn, UnfitError, is_atif, turns_of

KINDS: dict[str, NodeKind] = {"system": "system", "user": "observation", "assistant": "action"}


class ChatDemonstrations(DemonstrationSource):
    """Conversations. Every turn of the assistant is learnt as it is, unless it is marked not to be."""

    kind: Literal["chat"] = Field(description="conversations; every turn of the assistant is learnt as it is")
    path: FilesAt = Field(
        description='JSON Lines, a JSON list or Parquet, or its address: each row {"messages": [{"role": "user", "content": '
        '"..."}, ...]}, of ShareGPT or of ATIF'
    )

    def check(self) -> None:
        self._conversations()

    def files(self) -> dict[str, Path]:
        with on_disk(self.path, "demonstrations", SUFFIXES) as path:
            if not path.is_file():
                raise ConfigError(f"there are no conversations {self.path}; give a file of JSON Lines")
            return {str(self.path): path}

    def record(self, stage: DemonstrationAgent, seed: int) -> Demonstrations:
        """Return the conversations. One that the agent could not have is left out: one longer than its context, with more turns
        of the assistant than it has steps, or with a longer one than its actions; so is a row that is no conversation. One
        without a system turn gets the agent's.
        """
        system = Turn("system", stage.agent.render_system_prompt(describe(stage.tools), stage.instruction).text)
        tag = "think" if stage.agent.thinking == "native" else stage.agent.think_tag
        count, conversations = self._conversations()
        trajectories = []
        for number, turns in conversations:
            stage.check()
            given = turns if turns[0].role == "system" else [system, *turns]
            trajectories.append(_trajectory(f"{Path(self.path).name}:{number}", given, stage.tokenizer, tag))
        fitting = [each for each in trajectories if _fits(each, stage.agent)]
        return Demonstrations(fitting, count - len(fitting))

    def _conversations(self) -> tuple[int, list[tuple[int, list[Turn]]]]:
        """Return the number of rows, and each that is a conversation with its number. Raises ConfigError if none is."""
        (path,) = self.files().values()
        rows: list[dict[str, Any]] = [_object(path)] if path.suffix == ".json" and _atif_file(path) else read_rows(self.path)
        conversations, unfit = list[tuple[int, list[Turn]]](), ""
        for number, row in enumerate(rows, start=1):
            try:
                conversations.append((number, turns_of(row)))
            except UnfitError as error:
                unfit = unfit or f"row {number} of {self.path} {error}"
        if not conversations:
            raise ConfigError(f"{self.path} holds no conversation that can be learnt; {unfit}")
        return len(rows), conversations


def holds_conversations(path: Path) -> bool:
    """Return whether a file has rows of conversations, rather than trajectories."""
    if path.suffix in (".jsonl", ".ndjson", *ZIPPED):
        return True
    with suppress(OSError, ValueError, pa.ArrowException):
        if path.suffix == ".json":
            return path.read_text(encoding="utf-8-sig").lstrip().startswith("[") or _atif_file(path)
        return path.suffix == ".parquet" and bool({*HELD}.intersection(pq.read_schema(path).names))
    return False


def _atif_file(path: Path) -> bool:
    """Return whether a file is one trajectory of ATIF."""
    with suppress(OSError, ValueError):
        return isinstance(value := json_value(path.read_bytes()), dict) and is_atif(value)
    return False


def _object(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json_value(path.read_bytes())
    return value


def _trajectory(name: str, turns: list[Turn], tokenizer: ChatTokenizer, tag: str) -> Trajectory:
    """Return the turns one after another; each of the assistant's is sampled off a generation prompt if it is learnt, and is
    history then. A thought comes before its text, in tags of this name.
    """
    nodes: list[Node] = []
    trunk, step = ROOT, 0
    before: Role = "assistant"
    for role, content, thought, learnt in turns:
        if role == "assistant":
            sampled = tokenizer.encode_action(f"<{tag}>\n{thought}\n</{tag}>\n\n{content}" if thought else content)
            if learnt:
                nodes.append(Node(parent=trunk, kind="tail", step=step, token_ids=tokenizer.generation_prompt()))
                nodes.append(
                    Node(parent=len(nodes) - 1, kind="sampled", step=step, token_ids=sampled, logprobs=[0.0] * len(sampled))
                )
            ids, step = tokenizer.history(sampled), step + 1
        else:
            ids = tokenizer.message(role, content, before)
        nodes.append(Node(parent=trunk, kind=KINDS[role], step=step, token_ids=ids))
        trunk, before = len(nodes) - 1, role
    question = next((turn.text for turn in turns if turn.role == "user"), "")
    return Trajectory(
        id=name, group=name, sample=0, question=question, ability="", status=Status.ANSWERED, answer=None, nodes=nodes, steps=[]
    )


def _fits(trajectory: Trajectory, agent: AgentSettings) -> bool:
    longest = max(len(trajectory.path(place)) for place, node in enumerate(trajectory.nodes) if node.kind == "sampled")
    actions = [len(node.token_ids) for node in trajectory.sampled()]
    return longest <= agent.context_tokens and max(actions) <= agent.action_tokens and len(actions) <= agent.max_steps
