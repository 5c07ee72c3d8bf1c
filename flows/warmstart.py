"""A tiny policy from nothing: tokenizer → demonstrations → train → save."""

from pathlib import Path

from prefect import flow, get_run_logger, task

from tasks.warmstart import run as nodes
from tasks.warmstart.settings import WarmstartSettings

tokenizer = task(name="tokenizer", persist_result=False)(nodes.make_tokenizer)
demonstrations = task(name="demonstrations", persist_result=False)(nodes.make_demonstrations)
save = task(name="save", persist_result=False)(nodes.save)


@task(persist_result=False)
def train(words: nodes.Tokenizer, examples: nodes.Demonstrations, settings: WarmstartSettings) -> nodes.Trained:
    return nodes.make_policy(words, examples, settings, get_run_logger().info)


@flow(name="warmstart", persist_result=False)
async def run(settings: WarmstartSettings, out: Path) -> dict[str, float]:
    """Make a policy in `out`; the metrics of its training."""
    words = tokenizer(settings)
    examples = demonstrations(settings, words)
    trained = train(words, examples, settings)
    save(trained.model, words, out)
    return trained.metrics
