"""What a recipe, `--set` and `--corpus` make of tools and passages for one question."""

import json
from pathlib import Path

import pytest

from nbrl.flows.ask.equipment import Equipped, check_tools, corpus_of, of_recipe
from nbrl.infra.home import Home
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.rollout import corpora

PASSAGES = ["one\u2028line", "next\x85line", "page\x0cline"]
SIMULATED = "rollout.tools.search={engine: simulated, model: {base_url: 'http://127.0.0.1:1', name: m}}"


def equipped(*overrides: str, corpus: Path | None = None, attached: bool = False, played: bool = False) -> Equipped:
    return of_recipe("", overrides, corpus, attached, played, print)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "home"))


def test_a_passage_may_hold_other_ends_of_lines_than_a_newline(tmp_path: Path, home: Home) -> None:
    rows = tmp_path / "corpus.jsonl"
    rows.write_text("\r\n".join(json.dumps({"passage": text}, ensure_ascii=False) for text in PASSAGES[:2]), encoding="utf-8-sig")
    assert len(corpus_of(rows, home, print)) == 2
    lines = tmp_path / "corpus.txt"
    lines.write_text("\n\n".join(PASSAGES) + "\n", encoding="utf-8")
    assert [corpus_of(lines, home, print).retrieve(text, 1)[0] for text in ("one", "next", "page")] == PASSAGES


def test_a_corpus_that_is_not_there_or_has_nothing_is_refused(tmp_path: Path, home: Home) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        corpus_of(tmp_path / "none.txt", home, print)
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        corpus_of(tmp_path / "empty.txt", home, print)


@pytest.mark.process
def test_a_large_corpus_is_indexed_once(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "IN_MEMORY", 2)
    lines, said = tmp_path / "corpus.txt", list[str]()
    lines.write_text("Tilo was born\nKeldra lies on the Vorn\n")
    for _ in range(2):
        assert corpus_of(lines, home, said.append).retrieve("vorn", 1) == ["Keldra lies on the Vorn"]
    assert len(said) == 2
    assert (home.root / "corpora").is_dir()


def test_tools_that_are_not_named_are_those_that_have_what_they_need(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("Tilo was born in Keldra.\n")
    assert equipped().config.rollout.tools.default == ()
    assert equipped(corpus=tmp_path / "corpus.txt", attached=True).config.rollout.tools.default == ("search", "inspect_file")
    served = equipped("rollout.tools.search.engine=exa", "rollout.tools.mcp.calc.url=http://127.0.0.1:9")
    assert served.config.rollout.tools.default == ("search", "calc")
    assert equipped("rollout.tools.default=[read_page]", attached=True).config.rollout.tools.default == ("read_page",)


def test_a_recipe_gives_what_it_has_and_leaves_the_rest_as_usual(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("agent: {max_steps: 3}\nrollout: {tools: {default: [read_page]}}\n")
    config = of_recipe(str(tmp_path / "tools.yaml"), ["agent.deadline_s=9"], None, False, False, print).config
    assert (config.agent.max_steps, config.agent.deadline_s, config.agent.cell_timeout_s) == (3, 9.0, 60.0)
    assert config.rollout.tools.default == ("read_page",)
    assert of_recipe("tiny-cpu", (), None, False, False, print).config.agent.context_tokens < 25_600


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("update.lr=1", "only settings of agent, rollout.tools, sandbox, home, evaluate.sampling, seed act here"),
        ("evaluate.samples=3", "only settings of"),
        ("agents.max_steps=3", "only settings of"),
        ("sandbox.warm=3", "but for sandbox.warm"),
        ("engine.threads=3", "only settings of"),
        ("agent.max_step=3", "unknown key 'agent.max_step' in --set agent.max_step=3; did you mean 'max_steps'?"),
        ("agent.max_steps=0", "agent.max_steps=0: Input should be greater"),
        ("evaluate.sampling.temperature=-1", "evaluate.sampling.temperature=-1: "),
        ("rollout.tools.default=[serch]", "did you mean 'search'"),
        ("rollout.tools.default=[search]", "give --corpus FILE or"),
        ("rollout.tools.default=[visual_qa]", "set model.base_url and model.name"),
        ("rollout.tools.mcp.a.url=https://me:secret@host/mcp", "without a name or password in it"),
        (SIMULATED, "simulated from a question's answers"),
    ],
)
def test_a_setting_that_cannot_act_is_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_tools(equipped(override), "", recorded=False)
    assert words in str(refused.value)


@pytest.mark.parametrize("override", ["agent.max_steps=3", "evaluate.sampling.temperature=1", "seed=1"])
def test_what_only_a_model_uses_is_refused_where_actions_are_played(override: str) -> None:
    with pytest.raises(ConfigError, match=r"only settings of agent, rollout.tools, sandbox, home act here"):
        equipped(override, played=True)


def test_a_corpus_that_no_tool_searches_and_an_ability_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("Tilo was born in Keldra.\n")
    with pytest.raises(ConfigError, match="no tool searches the corpus"):
        equipped("rollout.tools.default=[read_page]", corpus=tmp_path / "corpus.txt")
    with pytest.raises(ConfigError, match="has no ability 'sums'; it has none"):
        check_tools(equipped(), "sums", recorded=False)


@pytest.mark.parametrize(
    ("override", "variable"),
    [
        *[(f"rollout.tools.search.engine={engine}", f"{engine.upper()}_API_KEY") for engine in ("serper", "exa", "firecrawl")],
        ("rollout.tools={default: [visual_qa], model: {base_url: 'http://127.0.0.1:9', name: m, key: NO_KEY}}", "NO_KEY"),
    ],
)
def test_a_tool_without_its_key_is_refused_unless_answers_are_recorded(
    override: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, " ")
    asked = equipped(override)
    check_tools(asked, "", recorded=True)
    with pytest.raises(ConfigError, match=f"environment variable {variable} holds none"):
        check_tools(asked, "", recorded=False)
    monkeypatch.setenv(variable, "k")
    check_tools(asked, "", recorded=False)
