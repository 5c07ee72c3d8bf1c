"""How close a thought is to a target length."""

TOLERANCE, FACTOR = 0.2, 0.5


def length_of(text: str, target: int) -> float:
    """1 within TOLERANCE of `target` words, and FACTOR less for each further `target` words off, never below 0.

    The tolerance and the factor are L0's; using the factor as the slope, and measuring a step's thought, are choices of nbrl.
    """
    off = abs(len(text.split()) - target) / target
    return max(0.0, 1.0 - FACTOR * max(0.0, off - TOLERANCE))
