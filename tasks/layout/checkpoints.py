"""Keys of a checkpoint and of the models that runs begin from."""

# Below a checkpoint: states to resume from, the model to serve, its LoRA adapter in peft's format, the result of the order, and
# the learner's log-probs of the tokens that it was made from.
STATE, CRITIC, HF, ADAPTER = "state", "critic", "hf", "adapter"
RESULT, TOKEN_LOGPROBS = "result.json", "logprobs.parquet"
STATES = (f"{STATE}/", f"{CRITIC}/")


def updates_of(checkpoint: str) -> int:
    """Return the number of updates that made the checkpoint in this folder."""
    return int(checkpoint.rpartition("/")[2].partition("-")[0])


def initial_policy(digest: str) -> str:
    """Return the folder of a model that runs begin from, by its content; only clusters of several machines need it."""
    return f"policies/{digest}"


def initial_texts(digest: str) -> str:
    """Return the folder of the same model without its weights."""
    return f"policies/{digest}-texts"
