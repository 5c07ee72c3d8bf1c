"""The tiny policy's tokenizer: byte-level BPE with the ChatML markers, trained on the generated world."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from nbrl.agent.context.context import render_tail
from nbrl.agent.context.notepad import NotepadState, State
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import END, START
from nbrl.infra.closed import ClosedModel
from nbrl.tasks.environments.world.world import Problem, World
from nbrl.tasks.warmstart.demonstrators.guesses import sums
from nbrl.tasks.warmstart.demonstrators.habits import script

PAD = "<|endoftext|>"
# Special tokens are numbered first, in the order given to the trainer.
PAD_ID = 0
WORLD = 2_000  # questions of the generated world that it is trained on
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Names (long capitalised words) are cut by syllable and never swallow a space, so a name has the same two ids in a question, a
# cell and an output: copying it is copying ids. Each digit is one piece, and so is a tag; a line break ends a piece, so that
# message glue is context-free.
PIECES = (
    r"</?[a-z]+>",
    r"[0-9]",
    r"[A-Z][a-z]{0,3} ",
    r"[A-Z][a-z](?=[a-z]{3})|(?<=[A-Z][a-z])[a-z]{3,}|[A-Z][a-z]+",
    r"[a-z_]+\n|\n",
    r" ?[a-z_]+ ?",
    r"[^\S\n]+",
    r"[^\sA-Za-z0-9_<]+|<",
)


class FreshModel(ClosedModel):
    """A Qwen3 of a million parameters with a tokenizer of its own for the generated world."""

    vocab_size: int = Field(640, ge=320, description="tokens of the byte-level BPE, special tokens included")
    hidden_size: int = Field(128, ge=16, description="width of the model")
    layers: int = Field(4, ge=1, description="transformer layers")
    heads: int = Field(4, ge=1, description="attention heads of a layer")
    kv_heads: int = Field(2, ge=1, description="key and value heads; several attention heads share one")
    intermediate_size: int = Field(384, ge=16, description="width of the feed-forward layers")
    rope_theta: float = Field(10_000.0, gt=0, description="base of the rotary position embedding")
    max_positions: int = Field(1024, ge=256, description="maximum tokens of the model's context")
    sums: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="share of sums of two numbers, as reasoning-gym's chain_sum asks for them, among the texts of the tokenizer; "
        "needs the extra gym",
    )
    texts: tuple[str, ...] = Field((), description="texts that the tokenizer learns besides, such as calls and outputs of tools")


def _texts(problems: Sequence[Problem], corpus: Sequence[str], seed: int, agent: AgentSettings) -> Iterator[str]:
    """Yield what the policy will read and write, message by message."""
    rng = random.Random(f"tokenizer {seed}")
    yield from (f"<output>'{fact}'</output>" for fact in corpus)
    for problem in problems:
        yield from ("system\n", agent.render_system_prompt("").text, problem.question.question)
        yield from (move.text(agent.grammar) for move in script(problem, 0.5, rng).moves)
        for step in range(agent.max_steps):
            state = State(notepad=NotepadState(facts=list(problem.findings[:1])))
            yield from ("user\n", "assistant\n", render_tail(state, agent.max_steps - step, 100 * (step % 2)))
    yield from ("<output>submitted</output>", "<output>Malformed action: there is no <code> block. Nothing was run.</output>")


def make_tokenizer(settings: FreshModel, seed: int, agent: AgentSettings) -> Tokenizer:
    """Return a tokenizer, deterministic in the arguments, for the generated world as this agent sees it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(PIECES)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    world = World.generate(seed, "train", WORLD)
    problems = [*world.problems, *sums(seed, round(settings.sums * WORLD))]
    texts = [*_texts(problems, world.corpus, seed, agent), *settings.texts * WORLD]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """Write a folder that transformers' AutoTokenizer reads."""
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [START, END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
