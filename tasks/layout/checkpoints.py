"""Keys of a checkpoint and of the models that runs begin from."""

# Below a checkpoint: states to resume from, the model to serve, its LoRA adapter in peft's format, the order and its result, and
# the learner's log-probs of the tokens that it was made from.
STATE, CRITIC, HF, ADAPTER = "state", "critic", "hf", "adapter"
ORDER, RESULT, TOKEN_LOGPROBS = "order.json", "result.json", "logprobs.parquet"
STATES = (f"{STATE}/", f"{CRITIC}/")


def updates_of(checkpoint: str) -> int:
    """Updates that made the checkpoint in this folder."""
    return int(checkpoint.rpartition("/")[2].partition("-")[0])


def run_of_checkpoint(checkpoint: str) -> str:
    """Folder of the run whose checkpoint this is; empty where the whole storage is one warm start's."""
    return f"/{checkpoint}".rpartition("/checkpoints/")[0].strip("/")


def initial_policy(digest: str) -> str:
    """Folder of a model that runs begin from, by its content; only clusters of several machines need it."""
    return f"policies/{digest}"


def initial_texts(digest: str) -> str:
    """Folder of the same model without its weights."""
    return f"policies/{digest}-texts"
