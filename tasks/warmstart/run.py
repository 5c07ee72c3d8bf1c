"""A tiny policy from nothing: tokenizer, demonstrations, training, saved."""

from collections.abc import Callable
from pathlib import Path

from agent.tokens import END, ChatTokenizer
from tasks.warmstart.demonstrations import record_demonstrations
from tasks.warmstart.model import make_model
from tasks.warmstart.save import save
from tasks.warmstart.settings import WarmstartSettings
from tasks.warmstart.tokenizer import PAD, make_tokenizer
from tasks.warmstart.train import train


def warmstart(settings: WarmstartSettings, out: Path, report: Callable[[str], None] = print) -> dict[str, float]:
    """Make a policy in `out`. The same settings on the same machine give the same weights."""
    tokenizer = make_tokenizer(settings)
    demonstrations = record_demonstrations(settings, ChatTokenizer(tokenizer))
    report(f"{len(demonstrations.copying)} good actions, {len(demonstrations.habits)} mixed ones")
    model = make_model(settings, tokenizer.get_vocab_size(), tokenizer.token_to_id(END), tokenizer.token_to_id(PAD))
    metrics = train(model, demonstrations, settings, report)
    save(model, tokenizer, out)
    return metrics
