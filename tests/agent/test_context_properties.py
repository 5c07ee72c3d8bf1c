"""What holds of every context, whatever the episode: limits, the tree, the two views of a prompt, history."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.settings import AgentSettings
from nbrl.agent.trajectory import ROOT, Status, from_table, to_table
from tests.agent.context_lab import TOKENIZER, Asked, act, play, settings

NUMBERS = st.integers(0, 9)
CELLS = st.one_of(
    st.integers(0, 300).map(lambda n: act(f"print('o' * {n})")),
    st.lists(NUMBERS, min_size=1, max_size=3).map(lambda n: act(f"context.drop({n})")),
    st.lists(NUMBERS, min_size=1, max_size=3).map(lambda n: act(f"context.pin({n})")),
    st.lists(NUMBERS, min_size=1, max_size=3).map(lambda n: act(f"context.recall({n})")),
    NUMBERS.map(lambda n: act(f"context.unpin({n})\ncontext.drop({n + 1})")),
    st.tuples(NUMBERS, st.integers(1, 400)).map(lambda p: act(f"context.summarise([{p[0]}, 0], 's' * {p[1]})")),
    st.integers(0, 900).map(lambda n: act(f"notepad.write_draft('d' * {n})")),
    st.sampled_from([act("1 / 0"), "malformed", "", act("notepad.add_todo('t')\nnotepad.mark_doing(0)")]),
    st.text("é<|im_end|>x", max_size=30).map(lambda text: act(f"print({text!r})")),
)
SUMMARIES = st.lists(st.sampled_from(["", "short", "long " * 60, "é" * 40, "<think>x</think>y", "\n"]), min_size=1, max_size=4)


@st.composite
def limits(draw: st.DrawFn) -> AgentSettings:
    trim = draw(st.sampled_from(["none", "hard", "soft"]))
    changes: dict[str, object] = {"trim": trim, "max_steps": draw(st.integers(1, 10))}
    changes["context_tokens"] = draw(st.integers(340, 1500))
    changes["action_tokens"] = draw(st.integers(40, 200))
    changes["observation_chars"] = draw(st.integers(32, 500))
    if trim != "none":
        changes["keep_steps"] = draw(st.integers(0, 3))
    if trim == "soft":
        changes["summary_tokens"] = draw(st.integers(8, 120))
    return settings(**changes)


@given(st.lists(CELLS, min_size=1, max_size=10), SUMMARIES, limits())
def test_every_prompt_fits_and_is_the_path_to_its_action(cells: list[str], summaries: list[str], chosen: AgentSettings) -> None:
    policy = Asked(cells, summaries)
    trajectory = play(policy, chosen)
    assert trajectory.status in (Status.STEP_LIMIT, Status.TOKEN_LIMIT)
    if chosen.trim != "none":
        assert trajectory.status is Status.STEP_LIMIT or not trajectory.steps
    assert all(ROOT <= node.parent < index for index, node in enumerate(trajectory.nodes))
    sampled = [index for index, node in enumerate(trajectory.nodes) if node.kind == "sampled"]
    assert [trajectory.nodes[index].step for index in sampled] == list(range(len(trajectory.steps)))
    assert len(policy.prompts) == len(sampled)
    for index, prompt, room, text in zip(sampled, policy.prompts, policy.rooms, policy.texts, strict=True):
        assert prompt.token_ids == trajectory.path(trajectory.nodes[index].parent)
        assert len(prompt.token_ids) + room <= chosen.context_tokens
        assert TOKENIZER.decode(prompt.token_ids) == text
    for step in trajectory.steps:
        if step.kind == "summary":
            assert len(step.observation.encode()) <= chosen.summary_tokens
    assert not any(one.kind == two.kind == "summary" for one, two in pairwise(trajectory.steps))
    assert from_table(to_table([trajectory])) == [trajectory]


@given(st.lists(CELLS, min_size=1, max_size=6), SUMMARIES, st.sampled_from(["hard", "soft"]))
def test_every_earlier_cell_is_in_history_as_it_was(cells: list[str], summaries: list[str], trim: str) -> None:
    look = act("import json\nprint(json.dumps([[c.number, c.think, c.code, c.output] for c in history]))")
    trajectory = play(Asked([*cells, look], summaries), settings(trim=trim, max_steps=len(cells) + 1))
    *before, last = [step for step in trajectory.steps if step.kind == "cell"]
    known = json.loads(last.observation)
    assert known == [[i, step.think, step.code, step.observation] for i, step in enumerate(before)]


@given(st.lists(CELLS, min_size=2, max_size=8), limits())
def test_a_path_shows_each_cell_once_and_in_order(cells: list[str], chosen: AgentSettings) -> None:
    trajectory = play(Asked(cells), chosen)
    for index, node in enumerate(trajectory.nodes):
        if node.kind != "tail":
            continue
        steps, kinds = [], []
        at = node.parent
        while trajectory.nodes[at].kind in ("action", "observation", "summary"):
            steps.append(trajectory.nodes[at].step)
            kinds.append(trajectory.nodes[at].kind)
            at = trajectory.nodes[at].parent
        assert trajectory.nodes[at].kind == "task", index
        actions = [step for step, kind in zip(steps, kinds, strict=True) if kind == "action"]
        assert actions == sorted(set(actions), reverse=True)
        assert actions == [step for step, kind in zip(steps, kinds, strict=True) if kind == "observation"]
