"""Keys of what all runs and evaluations share."""

JUDGEMENTS, CHAMPIONS = "judgements", "champions"


def judgement(digest: str) -> str:
    """What a model said of an answer, by the digest of all that it was asked; all runs and evaluations share it."""
    return f"{JUDGEMENTS}/{digest[:2]}/{digest}.json"


def champion_of(recipe: str) -> str:
    """Which checkpoint somebody chose among those of all runs of a recipe."""
    return f"{CHAMPIONS}/{recipe}.json"
