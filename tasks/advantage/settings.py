"""The estimator that turns step rewards into advantages."""

from typing import Literal

from pydantic import Field

from nbrl.infra.closed import FiniteModel, acts_if

OVER_BRANCHES = ("vine", "tree")
GROUP_RELATIVE = ("reinforce_pp_baseline", "grpo", "dr_grpo", "rloo", "max_rl", *OVER_BRANCHES)
OVER_TOKENS = ("bilevel_gae", "bilevel_reinforce_pp")
WITH_CRITIC = ("gae", *OVER_TOKENS)
_OVER_TOKENS = acts_if("estimator", *OVER_TOKENS)


class AdvantageSettings(FiniteModel):
    """`gamma` and `lam` act between steps, `token_gamma` and `token_lam` between the tokens of a step. The group-relative
    estimators score whole trajectories, undiscounted.
    """

    estimator: Literal[
        "reinforce_pp",
        "reinforce_pp_baseline",
        "grpo",
        "dr_grpo",
        "rloo",
        "max_rl",
        "vine",
        "tree",
        "gae",
        "bilevel_gae",
        "bilevel_reinforce_pp",
    ] = Field("reinforce_pp", description="how step rewards become advantages: see docs/learning.md")
    gamma: float = Field(
        0.95,
        gt=0,
        le=1,
        description="discount from step to step",
        json_schema_extra=acts_if("estimator", "reinforce_pp", *WITH_CRITIC),
    )
    lam: float = Field(
        0.95,
        ge=0,
        le=1,
        description="lambda of GAE over steps",
        json_schema_extra=acts_if("estimator", "gae", "bilevel_gae"),
    )
    token_gamma: float = Field(0.99, gt=0, le=1, description="discount from token to token", json_schema_extra=_OVER_TOKENS)
    token_lam: float = Field(
        0.99, ge=0, le=1, description="lambda of GAE over the tokens of a step", json_schema_extra=_OVER_TOKENS
    )
    per_ability: bool = Field(
        False,
        description="then whiten them within each ability, over its sampled tokens in the batch, so that no ability outweighs "
        "another by larger rewards (AgentRL)",
    )

    @property
    def with_critic(self) -> bool:
        return self.estimator in WITH_CRITIC
