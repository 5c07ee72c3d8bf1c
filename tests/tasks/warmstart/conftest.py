"""An agent that demonstrates, with the tokenizer of the tiny policy."""

from pathlib import Path

import pytest

from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent

TINY = Path(__file__).parents[3] / "infra" / "policies" / "tiny"
AGENT = AgentSettings(max_steps=6, context_tokens=2000, action_tokens=200, system_prompt="Act: {form}.")


@pytest.fixture(scope="module")
def stage() -> DemonstrationAgent:
    return DemonstrationAgent(AGENT, ChatTokenizer.load(TINY, AGENT))
