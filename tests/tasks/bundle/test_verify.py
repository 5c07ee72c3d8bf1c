"""What is said of a published run: nothing is called proved that its audit cannot compute again."""

import pytest

from nbrl.tasks.audit.sessions import Replayed
from nbrl.tasks.bundle.contents import FileList
from nbrl.tasks.bundle.verify import claims
from nbrl.tasks.runs.recipes import load

LIVE = ["environments.live.kind=recorded", "environments.world.weight=0"]
CONTENTS = FileList(run="r", version="1", commit="", packages={}, updates=1, files={}, root="0" * 64)


def said(settings: list[str], sessions: Replayed) -> dict[str, str]:
    config = load("tiny-cpu", settings)
    return {each.what: each.certainty for each in claims(CONTENTS, config, False, None, [], 1, sessions, None)}


@pytest.mark.parametrize(
    ("settings", "sessions", "unproved"),
    [
        (["reward.judge.base_url=http://127.0.0.1:9/v1", "reward.judge.name=m"], Replayed(), "grades"),
        ([], Replayed(sessions=3, not_replayable=2), "outcomes"),
        ([], Replayed(sessions=3, in_part=1), "outcomes"),
        (LIVE, Replayed(), "recorded sessions"),
        (
            ["pipeline.stream=true", "pipeline.lag=2", "select.max_rounds=1", "update.tis.kind=mask_tokens"],
            Replayed(),
            "order of a stream",
        ),
        (["advantage.per_ability=true"], Replayed(), "advantages"),
    ],
)
def test_what_no_audit_can_compute_again_is_taken_on_trust(settings: list[str], sessions: Replayed, unproved: str) -> None:
    usual, found = said([], Replayed(sessions=3)), said(settings, sessions)
    assert unproved not in usual
    assert found[unproved] == "on trust"


def test_prompts_and_advantages_are_proved_where_they_are_computed_again() -> None:
    assert said([], Replayed())["rewards, selections, advantages"] == said([], Replayed())["prompts"] == "proved"
    assert "prompts" not in said(LIVE, Replayed())
    assert "rewards, selections, advantages" not in said(["advantage.per_ability=true"], Replayed())
