"""The warm start as a Prefect flow, shortened."""

import asyncio
from pathlib import Path

import pytest
from prefect.testing.utilities import prefect_test_harness

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.flows.warmstart import run
from nbrl.tasks.warmstart.settings import WarmstartSettings

pytestmark = pytest.mark.e2e


def test_the_flow_makes_a_policy(tmp_path: Path) -> None:
    with prefect_test_harness(server_startup_timeout=120):
        metrics = asyncio.run(run(WarmstartSettings(demonstrations=40, steps=4, batch=8), tmp_path / "policy"))
    assert metrics["habits_loss"] > 0
    assert ChatTokenizer.load(tmp_path / "policy").vocab_size == 640
