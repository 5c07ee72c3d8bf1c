"""A trajectory whose policy summed up its own context, from its rewards to the tokens that are trained."""

from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.reward.score import score
from nbrl.tasks.reward.settings import RewardSettings
from tests.agent.context_lab import Asked, act, play, settings
from tests.tasks.learner import update_lab


def test_a_summary_is_scored_and_trained_like_any_action_and_shared_history_is_forwarded_once() -> None:
    cells = [act("print('pinned')\ncontext.pin(0)"), *(act(f"print('cell{i} ' * 15)") for i in range(6)), act("context.drop(0)")]
    trajectory = play(Asked(cells, ["first", "second", ""]), settings(trim="soft", max_steps=9))
    summaries = [index for index, step in enumerate(trajectory.steps) if step.kind == "summary"]
    assert len(summaries) >= 2
    row = trajectory.model_dump() | {"answers": ["Keldra"], "rule": "qa"}
    rewards = score(row, RewardSettings())["step_rewards"]
    assert len(rewards) == len(trajectory.steps) == len(trajectory.sampled())
    advantages = dict(enumerate(rewards))
    forest = Forest([update_lab.example(trajectory.id, trajectory.nodes, advantages)])
    tree, targets = forest.pack(), Targets.of(forest)
    for node in trajectory.sampled():
        mine = targets.step_A[targets.action_N[tree.index_N]] == node.step
        assert tree.target_N[mine].tolist() == node.token_ids
        assert set(tree.advantage_N[mine].tolist()) == {advantages[node.step]}
        assert tree.engine_logprob_N[mine].tolist() == node.logprobs
    prompts = sum(len(trajectory.path(i)) for i, node in enumerate(trajectory.nodes) if node.kind == "sampled")
    assert len(tree.input_ids_T) < 0.7 * prompts
