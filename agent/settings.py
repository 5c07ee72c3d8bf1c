"""How the agent behaves; composed into the run's configuration by tasks.config."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SYSTEM_PROMPT = (
    "You solve a task by writing Python cells for a notebook. Each turn, think inside <{think}></{think}>, then write one cell "
    "inside <{code}></{code}>. Its output comes back inside <output></output>; variables persist from cell to cell. Keep what "
    "you must not forget with notepad.add_facts([...]), notepad.add_todo([...]) and notepad.write_draft(text): older output may "
    "vanish, the notepad stays. history[i] is cell i as it was; print(context) lists the cells in view, context.drop(i), "
    "context.summarise([i, j], text), context.pin(i) and context.recall(i) change them. End with submit_final_answer(answer).\n"
    "Tools:\n{tools}"
)
SUMMARY_PROMPT = (
    "<summarise>The context is full and earlier steps are about to leave it; task and notepad stay. Do not write a cell now. In "
    "at most {tokens} tokens of plain text, say what was done, what was found and what is left to do.</summarise>"
)


class AgentSettings(BaseModel):
    """Limits and wording of one episode. Token limits count the policy's tokens, `context_tokens` the prompt and the action."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_steps: int = Field(8, ge=1, le=1000, description="think-code-observe steps before the trajectory ends")
    context_tokens: int = Field(25_600, ge=64, description="most tokens of prompt and action together")
    action_tokens: int = Field(3_072, ge=8, description="most tokens of one action")
    observation_chars: int = Field(20_000, ge=32, description="longest observation; the middle of a longer one is cut")
    trim: Literal["none", "hard", "soft"] = Field(
        "hard",
        description="at the token limit: end; keep task, notepad, last and pinned steps; or have the policy summarise the others",
    )
    keep_steps: int = Field(1, ge=0, description="last steps that trimming keeps in view as long as they fit; not with trim none")
    summary_tokens: int = Field(512, ge=8, description="most tokens of a summary; trim soft only")
    summary_prompt: str = Field(SUMMARY_PROMPT, description="asks for a summary, may use {tokens}; trim soft only")
    cell_timeout_s: float = Field(30.0, gt=0)
    deadline_s: float = Field(240.0, gt=0, description="wall time of a trajectory; at the deadline it ends and is scored")
    think_tag: str = Field("think", pattern=r"^[a-z_]+$")
    code_tag: str = Field("code", pattern=r"^[a-z_]+$")
    system_prompt: str = Field(SYSTEM_PROMPT, description="may use {think}, {code} and {tools}")

    @model_validator(mode="after")
    def _consistent(self) -> "AgentSettings":
        if self.action_tokens >= self.context_tokens:
            raise ValueError(f"action_tokens ({self.action_tokens}) must be below context_tokens ({self.context_tokens})")
        if self.trim == "soft" and self.summary_tokens + self.action_tokens >= self.context_tokens:
            raise ValueError(
                f"summary_tokens ({self.summary_tokens}) and action_tokens ({self.action_tokens}) together must be below "
                f"context_tokens ({self.context_tokens}): an action follows a summary"
            )
        self._refuse_idle()
        if self.think_tag == self.code_tag:
            raise ValueError("think_tag and code_tag must differ")
        try:
            self.render_system_prompt("")
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"system_prompt may use {{think}}, {{code}} and {{tools}} only, other braces doubled: {error}"
            ) from error
        try:
            self.render_summary_prompt()
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"summary_prompt may use {{tokens}} only, other braces doubled: {error}") from error
        return self

    def _refuse_idle(self) -> None:
        summaries = ("summary_tokens", "summary_prompt")
        for name in {"none": ("keep_steps", *summaries), "hard": summaries, "soft": ()}[self.trim]:
            if self.__dict__[name] != type(self).model_fields[name].default:
                raise ValueError(f"{name} does nothing with trim {self.trim}; leave it out or choose another trim")

    def render_system_prompt(self, tools: str) -> str:
        return self.system_prompt.format(think=self.think_tag, code=self.code_tag, tools=tools).rstrip()

    def render_summary_prompt(self) -> str:
        return self.summary_prompt.format(tokens=self.summary_tokens)
