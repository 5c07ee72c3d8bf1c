"""How many trajectories of a round may have no score."""

from collections.abc import Sequence

from nbrl.tasks.errors import RewardError

MAX_UNSCORED = 0.2  # of a round's trajectories; if scorers fail on more, they are at fault and not the trajectories


def check_unscored(faults: Sequence[str], count: int) -> None:
    """Raises RewardError if scorers failed, so far, on more than MAX_UNSCORED of `count` trajectories; `faults` say why."""
    if len(faults) > MAX_UNSCORED * count:
        raise RewardError(
            f"scorers failed on {len(faults)} of {count} trajectories, of which {MAX_UNSCORED:.0%} are allowed; the first says: "
            f"{faults[0]}; correct what scores them, then continue the run by `nbrl resume` or the evaluation by the same "
            "command, or begin another one if code or a setting that decides results, such as the judge, had to change"
        )
