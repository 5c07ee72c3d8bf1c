"""Weights of the reward's facets (L0: 0.8 QA, 0.1 format, 0.1 execution)."""

from typing import Any, Literal

from pydantic import Field, model_validator

from nbrl.infra.closed import FiniteModel, acts_if
from nbrl.tasks.reward.judge.settings import JudgeSettings

# What L0's training passes to its QA reward (repository cmriat/l0); the paper names 0.4, 0.5 and 0.1.
L0_WEIGHTS = {"f1": 0.0, "exact": 0.9, "answered": 0.1}


class QaWeights(FiniteModel):
    """QA reward = low + (high − low)·(f1·F1 + exact·EM + answered·has-answer) (L0's paper: 0.4, 0.5, 0.1; from 0 to 1)."""

    f1: float = Field(0.4, ge=0, description="weight of the F1 of the answer's words")
    exact: float = Field(0.5, ge=0, description="weight of an exact match")
    answered: float = Field(0.1, ge=0, description="weight of having given any answer")
    low: float = Field(0.0, description="reward of a score of 0, which includes no answer")
    high: float = Field(1.0, description="reward of a score of 1")

    def reward(self, exact: float, partial: float, answered: bool = True) -> float:
        """Return the reward of an answer, or of files that were made, with or without an answer."""
        return self.scaled(self.f1 * partial + self.exact * exact + self.answered * answered)

    def scaled(self, score: float) -> float:
        return self.low + (self.high - self.low) * score

    @model_validator(mode="after")
    def _rises(self) -> "QaWeights":
        if self.low >= self.high:
            raise ValueError("qa_weights.low must be below qa_weights.high: a better answer must earn more")
        if self.f1 + self.exact + self.answered == 0:
            raise ValueError(
                "qa_weights.f1, exact and answered are all 0: every answer would pay the same; set one, or leave qa_weights out "
                "and set qa to 0"
            )
        return self


class RewardSettings(FiniteModel):
    """Step reward = qa·QA (last step) + format·format/T + (execution·execution + length·length)/C, where T is the number of steps
    and C the number of steps with a cell.
    """

    qa: float = Field(0.8, ge=0, description="weight of the answer's score, rewarded on the last step")
    format: float = Field(0.1, ge=0, description="weight of well-formed actions")
    execution: float = Field(0.1, ge=0, description="weight of cells that run without an error")
    length: float = Field(0.0, ge=0, description="weight of thoughts about length_target words long")
    length_target: int | None = Field(None, ge=1, description="target number of words of a thought; for the weight length")
    qa_weights: QaWeights = Field(QaWeights(), json_schema_extra=acts_if("qa"))
    judge: JudgeSettings | None = None
    compat: Literal["none", "l0"] = Field(
        "none",
        description="l0 rewards as L0's training did, including its faults, with qa_weights of 0, 0.9 and 0.1 unless set: see "
        "docs/learning.md",
    )

    @model_validator(mode="before")
    @classmethod
    def _weights_of_l0(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("compat") != "l0" or given.get("qa") == 0:
            return given
        weights = given.get("qa_weights", {})
        return {**given, "qa_weights": L0_WEIGHTS | weights} if isinstance(weights, dict) else given

    @model_validator(mode="after")
    def _pays(self) -> "RewardSettings":
        if self.qa + self.format + self.execution + self.length <= 0:
            raise ValueError("reward.qa, reward.format, reward.execution and reward.length are all 0: nothing would be rewarded")
        return self

    @model_validator(mode="after")
    def _acts(self) -> "RewardSettings":
        if (self.length > 0) != (self.length_target is not None):
            raise ValueError("the weight length and length_target need each other; set both or neither")
        if self.compat == "l0" and self.qa == 0 and self.execution == 0:
            raise ValueError("compat l0 has no effect with qa 0 and execution 0; leave it out, or set a weight")
        return self
