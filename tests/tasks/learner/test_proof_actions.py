"""On which sampled actions a publish is proved."""

from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.step.proving import PROOF_TARGETS, PROOF_TOKENS, proof_actions
from tests.tasks.learner import update_lab


def forest_of(trajectories: list[Trajectory]) -> Forest:
    return Forest(update_lab.examples(trajectories))


def long(prompt: int, action: int, count: int) -> list[Trajectory]:
    """Trajectories of one step, each with a prompt of its own."""
    trajectories = update_lab.make_trajectories(1, count)
    for number, each in enumerate(trajectories):
        each.nodes = each.nodes[:4]
        each.nodes[0].token_ids = [number % update_lab.VOCAB, *range(prompt - 1)]
        each.nodes[3].token_ids = [7] * action
        each.nodes[3].logprobs = [-1.0] * action
    return trajectories


def test_a_small_batch_is_proved_on_all_that_was_sampled() -> None:
    forest = forest_of(update_lab.make_trajectories(3))
    chosen = proof_actions(forest, 0)
    assert chosen == list(range(len(forest.actions)))
    for number in chosen:
        action = forest.actions[number]
        assert forest.path_ids(number)[-len(action.logprobs_T) :] == forest.ids[action.place].tolist()


def test_the_choice_is_bounded_and_decided_by_the_seed() -> None:
    forest = forest_of(long(300, 40, 50))
    chosen = proof_actions(forest, 5)
    tree = forest.pack(chosen)
    assert PROOF_TOKENS / 2 < len(tree.input_ids_T) <= PROOF_TOKENS
    assert len(tree.target_N) == 40 * len(chosen) < PROOF_TARGETS + 40
    assert chosen == proof_actions(forest, 5) != proof_actions(forest, 6)


def test_sampled_tokens_behind_a_prompt_longer_than_the_bound_are_judged_all_the_same() -> None:
    forest = forest_of(long(PROOF_TOKENS * 2, 30, 3))
    assert len(proof_actions(forest, 0)) == 1
