"""The estimator that turns step rewards into advantages."""

from typing import Literal

from pydantic import Field, model_validator

from nbrl.infra.closed import FiniteModel

GROUP_RELATIVE = ("reinforce_pp_baseline", "grpo", "dr_grpo", "rloo", "max_rl")
OVER_TOKENS = ("bilevel_gae", "bilevel_reinforce_pp")
WITH_CRITIC = ("gae", *OVER_TOKENS)
USERS = {
    "gamma": ("reinforce_pp", *WITH_CRITIC),
    "lam": ("gae", "bilevel_gae"),
    "token_gamma": OVER_TOKENS,
    "token_lam": OVER_TOKENS,
}


class AdvantageSettings(FiniteModel):
    """`gamma` and `lam` act between steps, `token_gamma` and `token_lam` between the tokens of a step; each is refused if the
    estimator does not use it. The group-relative estimators score whole trajectories, undiscounted.
    """

    estimator: Literal[
        "reinforce_pp",
        "reinforce_pp_baseline",
        "grpo",
        "dr_grpo",
        "rloo",
        "max_rl",
        "gae",
        "bilevel_gae",
        "bilevel_reinforce_pp",
    ] = Field("reinforce_pp", description="how step rewards become advantages: see docs/learning.md")
    gamma: float = Field(0.95, gt=0, le=1, description="discount from step to step: reinforce_pp, gae, bilevel_*")
    lam: float = Field(0.95, ge=0, le=1, description="lambda of GAE over steps: gae, bilevel_gae")
    token_gamma: float = Field(0.99, gt=0, le=1, description="discount from token to token: bilevel_*")
    token_lam: float = Field(0.99, ge=0, le=1, description="lambda of GAE over the tokens of a step: bilevel_*")

    per_ability: bool = Field(
        False,
        description="then whiten them within each ability, over its sampled tokens in the batch, so that no ability outweighs "
        "another by larger rewards (AgentRL)",
    )

    @property
    def with_critic(self) -> bool:
        return self.estimator in WITH_CRITIC

    @model_validator(mode="after")
    def _acts(self) -> "AdvantageSettings":
        for name, value in self.model_dump(include=set(USERS)).items():
            if self.estimator not in USERS[name] and value != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect with {self.estimator}; leave it out, or use {' or '.join(USERS[name])}")
        return self
