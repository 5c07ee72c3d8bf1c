"""Keys of what all runs and evaluations share."""

JUDGEMENTS, CHAMPIONS = "judgements", "champions"


def judgement(digest: str) -> str:
    """What a model said of an answer, by the digest of all that it was asked; all runs and evaluations share it."""
    return f"{JUDGEMENTS}/{digest[:2]}/{digest}.json"


def lies_below(key: str, folder: str) -> bool:
    """Whether a key names something in a folder; all keys lie below the empty one."""
    parts = key.split("/")
    return key.startswith(f"{folder}/" if folder else "") and not {"", ".", ".."}.intersection(parts)


def champion_of(recipe: str) -> str:
    """Which checkpoint somebody chose among those of all runs of a recipe."""
    return f"{CHAMPIONS}/{recipe}.json"
