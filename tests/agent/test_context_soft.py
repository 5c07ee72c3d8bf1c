"""Soft trimming: the policy sums up what leaves its context, as an action of its own."""

import pytest
from pydantic import ValidationError

from nbrl.agent.trajectory import Status, Trajectory, from_table, to_table
from tests.agent.context_lab import TOKENIZER, Asked, act, play, settings


def printing(n: int = 20) -> list[str]:
    return [act(f"print('cell{i} ' * 15)") for i in range(n)]


def kinds(trajectory: Trajectory) -> list[str]:
    return [step.kind for step in trajectory.steps]


def test_the_policy_is_asked_for_a_summary_and_goes_on_from_it() -> None:
    policy = Asked(printing(), ["<think>hm</think> first part done"])
    trajectory = play(policy, settings(trim="soft"))
    first = kinds(trajectory).index("summary")
    assert policy.rooms[first] == 60
    assert policy.texts[first].endswith("left to do.</summarise><|im_end|>\n<|im_start|>assistant\n")
    after = policy.texts[first + 1]
    last = f"cell{first - 1} "
    assert after.index("<summary>first part done</summary>") < after.index(last)
    assert "cell0 " not in after
    step = trajectory.steps[first]
    assert (step.think, step.observation, step.malformed, step.cell_status) == ("<think>hm", "first part done", "", "none")


def test_a_summary_is_a_sampled_step_that_costs_no_step_of_the_budget() -> None:
    trajectory = play(Asked(printing()), settings(trim="soft", max_steps=8))
    assert trajectory.status is Status.STEP_LIMIT
    assert kinds(trajectory).count("cell") == 8
    assert kinds(trajectory).count("summary") >= 2
    sampled = trajectory.sampled()
    assert [node.step for node in sampled] == list(range(len(trajectory.steps)))
    assert all(len(node.logprobs) == len(node.token_ids) > 0 for node in sampled)
    assert from_table(to_table([trajectory])) == [trajectory]


def test_after_a_summary_the_path_branches_off_the_task() -> None:
    trajectory = play(Asked(printing()), settings(trim="soft"))
    node = next(node for node in trajectory.nodes if node.kind == "summary")
    assert trajectory.nodes[node.parent].kind == "task"
    assert TOKENIZER.decode(node.token_ids[:-2]).endswith("<summary>so far so good</summary>")


def test_the_next_summary_takes_the_former_in() -> None:
    policy = Asked(printing(), ["one", "two", "three"])
    trajectory = play(policy, settings(trim="soft", max_steps=10, context_tokens=1000))
    assert policy.summed >= 2
    second = [i for i, kind in enumerate(kinds(trajectory)) if kind == "summary"][1]
    assert "<summary>one</summary>" in policy.texts[second]
    assert "<summary>one</summary>" not in policy.texts[second + 1]
    assert "<summary>two</summary>" in policy.texts[second + 1]


@pytest.mark.parametrize("empty", ["", "  \n", "<think>only thought</think>", "<think>never en"])
def test_an_empty_summary_is_malformed_and_trimming_is_hard(empty: str) -> None:
    policy = Asked(printing(), [empty])
    trajectory = play(policy, settings(trim="soft"))
    assert trajectory.status is Status.STEP_LIMIT
    first = kinds(trajectory).index("summary")
    assert trajectory.steps[first].malformed == "the summary is empty"
    assert kinds(trajectory)[first + 1] == "cell"
    assert policy.texts[first + 1].count("<output>") == 1


def test_a_summary_that_is_too_long_is_cut_to_its_tokens() -> None:
    trajectory = play(Asked(printing(), ["word " * 100]), settings(trim="soft"))
    summary = next(step for step in trajectory.steps if step.kind == "summary")
    assert 50 < len(summary.observation) <= 60
    assert not summary.malformed


def test_pinned_cells_are_not_summed_up() -> None:
    cells = [act("print('pinned text')\ncontext.pin(0)"), *printing()]
    policy = Asked(cells)
    play(policy, settings(trim="soft", context_tokens=1100))
    assert policy.summed
    assert all("pinned text\n" in text or "pinned text</output>" in text for text in policy.texts[1:])


def test_more_last_steps_can_be_kept_beside_a_summary() -> None:
    policy = Asked([act(f"print('{i}' * 20)") for i in range(9)])
    trajectory = play(policy, settings(trim="soft", keep_steps=2))
    first = kinds(trajectory).index("summary")
    assert policy.texts[first + 1].count("<output>") == 2


def test_outputs_too_large_for_any_view_end_in_hard_trimming_not_in_a_loop() -> None:
    policy = Asked([act(f"print('{i}' * 400)") for i in range(6)])
    trajectory = play(policy, settings(trim="soft", observation_chars=5000, max_steps=6, context_tokens=600))
    assert trajectory.status is Status.STEP_LIMIT
    assert kinds(trajectory).count("cell") == 6
    assert len(trajectory.steps) <= 12


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"trim": "soft", "summary_tokens": 800}, "together must be below"),
    ],
)
def test_settings_that_cannot_act_are_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        settings(**changes)


# What a Qwen3 says: its template opens the thinking or it does so itself, and the text may speak of tags.
NATIVE = {"trim": "soft", "thinking": "native"}


@pytest.mark.parametrize(
    ("said", "think", "summary"),
    [
        ("<think>\nhm\n</think>\n\nfirst part", "<think>\nhm\n", "first part"),
        ("hm</think>a </think> tag", "hm", "a </think> tag"),
        ("no thought at all", "", "no thought at all"),
        ("<think>\n\n</think>\n\nquick", "<think>\n\n", "quick"),
    ],
)
def test_a_reasoning_model_sums_up_after_its_own_thinking(said: str, think: str, summary: str) -> None:
    policy = Asked(printing(), [said])
    trajectory = play(policy, settings(**NATIVE))
    first = kinds(trajectory).index("summary")
    step = trajectory.steps[first]
    assert (step.think, step.observation, step.malformed) == (think, summary, "")
    assert f"<summary>{summary}</summary>" in policy.texts[first + 1]
    assert "hm" not in policy.texts[first + 1]


def test_thinking_that_does_not_end_is_no_summary() -> None:
    policy = Asked(printing(), ["<think>\nhm, so long " + "and longer " * 9])
    trajectory = play(policy, settings(**NATIVE))
    first = kinds(trajectory).index("summary")
    assert trajectory.steps[first].malformed == "the summary is empty"
    assert "<summary>" not in policy.texts[first + 1]
    assert "so long" not in policy.texts[first + 1]
    assert kinds(trajectory)[first + 1] == "cell"
