"""Demonstrations from conversations: JSON Lines with `messages`, as chat servers take them."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field

from nbrl.agent.messages import Role
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import describe
from nbrl.agent.trajectory import ROOT, Node, NodeKind, Status, Trajectory
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.warmstart.demonstrators.play import Stage
from nbrl.tasks.warmstart.sources.source import Found, Source

Turn = tuple[Role, str]
ROLES = ("system", "user", "assistant")
KINDS: dict[str, NodeKind] = {"system": "system", "user": "observation", "assistant": "action"}


class ChatDemonstrations(Source):
    """Conversations. Every turn of the assistant is learnt as it stands."""

    kind: Literal["chat"] = Field(description="conversations; every turn of the assistant is learnt as it stands")
    path: Path = Field(description='JSON Lines, each {"messages": [{"role": "user", "content": "..."}, ...]}')

    def check(self) -> None:
        if not sum(1 for _ in self._conversations()):
            raise ConfigError(f"{self.path} holds no conversation; give one on each line")

    def files(self) -> list[Path]:
        if not self.path.is_file():
            raise ConfigError(f"there are no conversations {self.path}; give a file of JSON Lines")
        return [self.path]

    def record(self, stage: Stage, seed: int) -> Found:
        """A conversation that the agent could not have is left out: one longer than its context, with more turns of the assistant
        than it has steps, or with a longer one than its actions. One without a system turn gets the agent's.
        """
        system = stage.agent.render_system_prompt(describe(stage.tools), stage.instruction).text
        found = []
        for number, messages in self._conversations():
            stage.check()
            given = messages if messages[0][0] == "system" else [("system", system), *messages]
            found.append(_trajectory(f"{self.path.name}:{number}", given, stage.tokenizer))
        fitting = [each for each in found if _fits(each, stage.agent)]
        return Found(fitting, len(found) - len(fitting))

    def _conversations(self) -> Iterator[tuple[int, list[Turn]]]:
        """Each with the number of its line."""
        (path,) = self.files()
        try:
            with path.open(encoding="utf-8-sig") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield number, _messages(line, f"line {number} of {path}")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read as text: {error}; give JSON Lines in UTF-8") from error


def _messages(line: str, where: str) -> list[Turn]:
    """Raises ConfigError unless the line is a conversation that any template takes."""
    try:
        row: Any = json.loads(line)
        line.encode()
        json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON that can be stored: {type(error).__name__}: {error}; correct it") from error
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not messages:
        raise ConfigError(f'{where} has no messages; write {{"messages": [{{"role": "user", "content": "..."}}, ...]}}')
    turns = [_turn(message, where) for message in messages]
    roles = [role for role, _ in turns]
    if "system" in roles[1:]:
        raise ConfigError(f"{where} has a system turn that is not its first; put it first, or leave it out")
    if any(before != "user" for before, role in pairwise(["", *roles]) if role == "assistant"):
        raise ConfigError(f"{where} has a turn of the assistant that answers no user; put a turn of the user before it")
    if "assistant" not in roles:
        raise ConfigError(f"{where} has no turn of the assistant, so nothing is demonstrated")
    return turns


def _turn(message: Any, where: str) -> Turn:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    if role not in ROLES or not isinstance(content, str):
        raise ConfigError(f"{where} has a message without a role of {', '.join(ROLES)} and a content that is text")
    if role == "assistant" and not content.strip():
        raise ConfigError(f"{where} has an empty turn of the assistant, such as one with only tool_calls; take it out")
    return cast(Role, role), content


def _trajectory(name: str, messages: list[Turn], tokenizer: ChatTokenizer) -> Trajectory:
    """The turns one after another; each of the assistant's is sampled off a generation prompt, and stands as history then."""
    nodes: list[Node] = []
    trunk, step = ROOT, 0
    before: Role = "assistant"
    for role, content in messages:
        if role == "assistant":
            sampled = tokenizer.encode_action(content)
            nodes.append(Node(parent=trunk, kind="tail", step=step, token_ids=tokenizer.generation_prompt()))
            nodes.append(Node(parent=len(nodes) - 1, kind="sampled", step=step, token_ids=sampled, logprobs=[0.0] * len(sampled)))
            ids, step = tokenizer.history(sampled), step + 1
        else:
            ids = tokenizer.message(role, content, before)
        nodes.append(Node(parent=trunk, kind=KINDS[role], step=step, token_ids=ids))
        trunk, before = len(nodes) - 1, role
    question = next((content for role, content in messages if role == "user"), "")
    return Trajectory(
        id=name, group=name, sample=0, question=question, ability="", status=Status.ANSWERED, answer=None, nodes=nodes, steps=[]
    )


def _fits(trajectory: Trajectory, agent: AgentSettings) -> bool:
    longest = max(len(trajectory.path(place)) for place, node in enumerate(trajectory.nodes) if node.kind == "sampled")
    actions = [len(node.token_ids) for node in trajectory.sampled()]
    return longest <= agent.context_tokens and max(actions) <= agent.action_tokens and len(actions) <= agent.max_steps
