"""Weights of the reward's facets (L0: 0.8 QA, 0.1 format, 0.1 execution)."""

from pydantic import BaseModel, ConfigDict, Field, model_validator


class QaWeights(BaseModel):
    """QA reward = f1·F1 + exact·EM + answered·has-answer (L0's paper: 0.4, 0.5, 0.1)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    f1: float = Field(0.4, ge=0)
    exact: float = Field(0.5, ge=0)
    answered: float = Field(0.1, ge=0)


class RewardSettings(BaseModel):
    """Step reward = qa·QA (last step) + format·format/T + execution·execution/C for T steps, C of them cells."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    qa: float = Field(0.8, ge=0)
    format: float = Field(0.1, ge=0)
    execution: float = Field(0.1, ge=0)
    qa_weights: QaWeights = QaWeights()

    @model_validator(mode="after")
    def _pays(self) -> "RewardSettings":
        if self.qa + self.format + self.execution <= 0:
            raise ValueError("reward.qa, reward.format and reward.execution are all 0: nothing would be rewarded")
        return self
