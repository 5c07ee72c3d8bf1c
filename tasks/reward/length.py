"""How near a thought is to a wanted length."""

TOLERANCE, FACTOR = 0.2, 0.5


def length_of(text: str, target: int) -> float:
    """1 within TOLERANCE of `target` words, and FACTOR less for each further `target` words off, never below 0.

    L0 gives the tolerance and the factor; that the factor is the slope, and that a step's thought is measured, is ours.
    """
    off = abs(len(text.split()) - target) / target
    return max(0.0, 1.0 - FACTOR * max(0.0, off - TOLERANCE))
