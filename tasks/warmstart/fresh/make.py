"""Makes a tiny model from nothing as a Hugging Face folder, with random weights."""

import shutil
from pathlib import Path

from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.tasks.warmstart.fresh.model import make_model
from nbrl.tasks.warmstart.fresh.settings import FreshModel
from nbrl.tasks.warmstart.fresh.tokenizer import PAD_ID, make_tokenizer, save_tokenizer


def make_folder(fresh: FreshModel, seed: int, agent: AgentSettings, folder: Path) -> Path:
    """Fill `folder`, a function of the arguments; what an interrupted call left there is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer(fresh, seed, agent)
    chat = ChatTokenizer(tokenizer)
    make_model(fresh, seed, chat.vocab_size, chat.end_id, PAD_ID).save_pretrained(folder, safe_serialization=True)
    save_tokenizer(tokenizer, folder)
    return folder
