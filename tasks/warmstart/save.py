"""A finished policy as a Hugging Face folder."""

import shutil
import tempfile
from pathlib import Path

from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from nbrl.tasks.warmstart.tokenizer import save_tokenizer


def save(model: Qwen3ForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write to a temporary folder beside `out` and rename: `out` is the old policy or the new one, never half of one."""
    out.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        model.save_pretrained(made, safe_serialization=True)
        save_tokenizer(tokenizer, made)
        made.chmod(0o755)
        for file in made.iterdir():
            file.chmod(0o644)
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
    finally:
        shutil.rmtree(made, ignore_errors=True)
