"""The policy of a warm start: demonstrations, and training on them."""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.tasks.warmstart.demonstrations import Demonstrations, record_demonstrations
from nbrl.tasks.warmstart.model import make_model
from nbrl.tasks.warmstart.settings import WarmstartSettings
from nbrl.tasks.warmstart.tokenizer import PAD_ID
from nbrl.tasks.warmstart.train import train


@dataclass(frozen=True)
class Trained:
    """A policy and what its training measured."""

    model: Qwen3ForCausalLM
    metrics: dict[str, float]


def make_demonstrations(settings: WarmstartSettings, tokenizer: Tokenizer) -> Demonstrations:
    return record_demonstrations(settings, ChatTokenizer(tokenizer))


def make_policy(
    tokenizer: Tokenizer, demonstrations: Demonstrations, settings: WarmstartSettings, report: Callable[[str], None]
) -> Trained:
    """Fresh weights, trained."""
    report(f"{len(demonstrations.copying)} good actions, {len(demonstrations.habits)} mixed ones")
    chat = ChatTokenizer(tokenizer)
    model = make_model(settings, chat.vocab_size, chat.end_id, PAD_ID)
    return Trained(model, train(model, demonstrations, settings, report))
