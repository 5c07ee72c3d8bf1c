"""Settings of the agent; nbrl.tasks.runs.config composes them into the run's configuration."""

from string import Formatter
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from nbrl.agent.grammar import CODE_TAG, CodeStyle, Grammar, Thinking
from nbrl.agent.messages import Span, SystemPrompt

Argument = str | bool | int
"""A value that a chat template accepts."""

SYSTEM_PROMPT = (
    "You solve a task by writing Python cells for a notebook. Each turn, {form}. Its output comes back inside <output></output>; "
    "variables persist from cell to cell. Keep what you must not forget with notepad.add_facts([...]), "
    "notepad.add_todo([...]) and notepad.write_draft(text): older output may "
    "vanish, the notepad stays. history[i] is cell i as it was; print(context) lists the cells in view, context.drop(i), "
    "context.summarise([i, j], text), context.pin(i) and context.recall(i) change them. End with submit_final_answer(answer).\n"
    "Tools:\n{tools}"
)
SUMMARY_PROMPT = (
    "<summarise>The context is full and earlier steps are about to leave it; task and notepad stay. Do not write a cell now. In "
    "at most {tokens} tokens of plain text, say what was done, what was found and what is left to do.</summarise>"
)


_SOFT: JsonDict = {"acts_if": {"key": "trim", "values": ["soft"]}}
OF_NOTEBOOKS = (
    "children", "trim", "keep_steps", "summary_tokens", "cell_timeout_s", "thinking", "think_tag", "code_style", "system_prompt"
)  # fmt: skip
_PROGRAM: JsonDict = {"acts_if": {"key": "kind", "values": ["program"]}}


Credit = Literal["parent", "own", "none"]


class ChildSettings(BaseModel):
    """Children of a notebook agent: `await llm(prompt)` in a cell asks the same model once, `await agent(task)` lets it work in a
    notebook of its own. The limits are those of a whole trajectory, and are in view beside its budget.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: int = Field(1, ge=1, le=4, description="1: children have no children; each level holds as many kernels as episodes")
    calls: int = Field(8, ge=1, le=1_000, description="calls of llm and agent, those of children included")
    tokens: int = Field(4_096, ge=1, description="tokens that all children together may sample")
    seconds: float = Field(
        120.0, gt=0, description="wall time in which any child runs; it is not taken from the time of the cell that waits"
    )
    credit: Credit = Field(
        "parent",
        description="what the actions of children learn from: parent: the advantage of the step that called; own: score_child of "
        "the environment's class; none: they are not trained",
    )


class AgentSettings(BaseModel):
    """Limits and wording of one episode. Token limits count the policy's tokens; `context_tokens` is for prompt and action."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["notebook", "program"] = Field(
        "notebook", description="notebook: the model writes cells; program: a program of your own asks the model by the chat API"
    )
    command: tuple[str, ...] = Field(
        (), description="the program and its arguments; python is that of kernels", json_schema_extra=_PROGRAM
    )
    folder: str | None = Field(
        None,
        description="folder with the program, which finds it at /opt/program and can only read it",
        json_schema_extra=_PROGRAM,
    )
    reads: Literal["stdin", "argument", "file"] = Field(
        "stdin",
        description="where the program finds the question: its input, its last argument, or question.txt in its folder",
        json_schema_extra=_PROGRAM,
    )
    answer: Literal["stdout", "file", "call"] = Field(
        "stdout",
        description="the answer: all that the program prints, answer.txt, or what it posts to $NBRL_ADDRESS/answer",
        json_schema_extra=_PROGRAM,
    )
    tool_parser: str | None = Field(
        None,
        description="the engine's parser for calls of tools that a program sends with its requests, such as qwen25 or llama3",
        json_schema_extra=_PROGRAM,
    )
    max_steps: int = Field(
        8, ge=1, le=1000, description="think-code-observe steps, or requests of a program, before the trajectory ends"
    )
    context_tokens: int = Field(25_600, ge=64, description="maximum tokens of prompt and action together")
    action_tokens: int = Field(3_072, ge=8, description="maximum tokens of one action")
    observation_chars: int = Field(20_000, ge=32, description="longest observation; the middle of a longer one is cut")
    trim: Literal["none", "hard", "soft"] = Field(
        "hard",
        description="when the context is full: none ends; hard keeps notepad, last and pinned steps; soft summarises the rest",
    )
    keep_steps: int = Field(
        1,
        ge=0,
        description="number of last steps that trimming keeps in view as long as they fit",
        json_schema_extra={"acts_if": {"key": "trim", "values": ["hard", "soft"]}},
    )
    summary_tokens: int = Field(
        512, ge=8, description="maximum tokens of a summary and the thinking before it", json_schema_extra=_SOFT
    )
    cell_timeout_s: float = Field(30.0, gt=0, description="maximum seconds of one cell; then it is interrupted")
    deadline_s: float = Field(240.0, gt=0, description="wall time of a trajectory; at the deadline it ends and is scored")
    thinking: Thinking = Field(
        "tag",
        description="tag: the model is asked to think inside think_tag; native: a reasoning model thinks by itself, in any text",
    )
    think_tag: str = Field(
        "think",
        pattern=r"^[a-z_]+$",
        description="tag around the thinking",
        json_schema_extra={"acts_if": {"key": "thinking", "values": ["tag"]}},
    )
    code_style: CodeStyle = Field("tag", description="tag: a cell is written inside the tag code; fence: in a ```python block")
    children: ChildSettings | None = Field(None, description="models and agents that cells call; none when not set")
    template_arguments: dict[str, Argument] = Field(
        {}, description="arguments of the model's chat template, such as enable_thinking or date_string"
    )
    system_prompt: str = Field(
        SYSTEM_PROMPT,
        description="may use {form} (how to write an action), {tools} and, if the model writes in tags, {think} and {code}",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "AgentSettings":
        if self.kind == "program":
            if not self.command:
                raise ValueError("an agent of the kind program needs a command, such as [python, /opt/program/agent.py]")
            if idle := [name for name in OF_NOTEBOOKS if getattr(self, name) != type(self).model_fields[name].default]:
                raise ValueError(f"{idle[0]} has no effect for an agent of the kind program; leave it out")
        if self.action_tokens >= self.context_tokens:
            raise ValueError(f"action_tokens ({self.action_tokens}) must be below context_tokens ({self.context_tokens})")
        if self.trim == "soft" and self.summary_tokens + self.action_tokens >= self.context_tokens:
            raise ValueError(
                f"summary_tokens ({self.summary_tokens}) and action_tokens ({self.action_tokens}) together must be below "
                f"context_tokens ({self.context_tokens}): an action follows a summary"
            )
        if self.think_tag == CODE_TAG:
            raise ValueError(f"think_tag cannot be {CODE_TAG}, which is the tag around a cell; choose another")
        try:
            self.render_system_prompt("")
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"system_prompt may use {{form}}, {{tools}}, {{think}} (thinking tag) and {{code}} (code_style tag) only, "
                f"and every other brace is written twice; this is none of them: {error}"
            ) from error
        return self

    def render_system_prompt(self, tools: str, instruction: str = "") -> SystemPrompt:
        """Return the system prompt with the description of the tools, and below it the instruction of an environment."""
        names = {"form": self.grammar.form, "tools": tools}
        if self.thinking == "tag":
            names["think"] = self.think_tag
        if self.code_style == "tag":
            names["code"] = CODE_TAG
        text, own, tags = "", 0, list[Span]()
        for literal, field, spec, conversion in Formatter().parse(self.system_prompt):
            text += literal
            if field is None:
                continue
            said = f"{{{field}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}".format(**names)
            if field in ("form", "think", "code"):
                text += said
            else:  # what tools say of themselves
                tags += self._tags(text, own)
                text += said
                own = len(text)
        tags += self._tags(text, own)
        return SystemPrompt("\n".join(part for part in (text.rstrip(), instruction.strip()) if part), tuple(tags))

    def _tags(self, text: str, start: int) -> list[Span]:
        return [match.span() for match in self.grammar.tags.finditer(text, start)]

    @property
    def grammar(self) -> Grammar:
        return Grammar(self.thinking, self.think_tag, self.code_style)

    @property
    def credit(self) -> Credit | None:
        """Return what children learn from; None where there are none."""
        return None if self.children is None else self.children.credit

    def render_summary_prompt(self) -> str:
        return SUMMARY_PROMPT.format(tokens=self.summary_tokens)
