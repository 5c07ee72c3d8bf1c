"""docs/extend.md: every block is written or run, from top to bottom, in one folder."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from nbrl.agent.settings import AgentSettings
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.runs.config import RunConfig
from tests.flows.model_server import act, model_server

pytestmark = pytest.mark.sandbox

PAGE = Path("docs/extend.md").resolve()
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
SERVER = "http://127.0.0.1:30000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file of the page."""
    made: Path = tmp_path_factory.mktemp("extend")
    for language, text in BLOCKS:
        if language != "sh":
            name = re.match(r"# ([\w/.-]+)\n", text)
            assert name, f"a {language} block has no file: {text[:60]}"
            (made / name[1]).parent.mkdir(exist_ok=True)
            (made / name[1]).write_text(text, encoding="utf-8")
    return made


def run(folder: Path, command: str) -> str:
    """What a shell prints of `command`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shell(word: str) -> str:
    """The one block of commands that names `word`."""
    (block,) = (text for language, text in BLOCKS if language == "sh" and word in text)
    return block


def test_every_block_is_known() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "yaml", "sh"}
    assert len(BLOCKS) == 20


@pytest.mark.more
def test_tools_of_ones_own_and_of_a_server_reach_a_cell(folder: Path) -> None:
    cells = ["print(min(soundings('north basin')), balance('dredging'))", "submit_final_answer('yes')"]
    with model_server(*map(act, cells)) as server:
        said = run(folder, shell("nbrl agent").replace(SERVER, server.url))
    assert said.splitlines() == [
        "soundings(place: str, newest: int = 3) -> list[float]: "
        "Gives the depths of water measured at a place of the harbour, in metres, newest first.",
        "[3.9] [6.5, 6.7]",
        "the argument newest does not fit: input should be a valid integer, unable to parse string as an integer",
        "yes",
    ]
    made = nbformat.read(folder / "dredging.ipynb", 4)
    assert "3.9 600000.0\n" in [output.text for cell in made.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.mark.more
def test_a_task_of_ones_own_passes_every_check(folder: Path) -> None:
    said = run(folder, shell("train deeper.yaml"))
    assert "# harbour: 20 iterations" in said
    assert "# deeper: 50 iterations" in said
    assert "2 prompts × 16 = 32 trajectories" in said  # its own line over those of its base


@pytest.mark.more
def test_a_class_of_ones_own_is_an_environment(folder: Path) -> None:
    first, *scores, plan = run(folder, shell("survey.yaml")).split("\n", 3)
    assert [line.partition(", steps")[0] for line in (first, *scores)] == [
        "Score(success=True, value=1.0",
        "Score(success=False, value=0.25",
        "Score(success=False, value=0.0",
    ]
    assert "# survey: 20 iterations" in plan
    environments = yaml.safe_load(plan)["environments"]
    assert [(name, each.get("weight", 1.0)) for name, each in environments.items()] == [("harbour", 3.0), ("survey", 1.0)]


@pytest.mark.more
def test_a_world_of_ones_own_is_an_environment(folder: Path) -> None:
    first, plan = run(folder, shell("log.yaml")).split("\n", 1)
    assert first == "The log is empty; 4 depths are missing. [1, 2, 3, 4] True {'depths': [3.9, 4.2, 4.0, 5.1]}"
    assert "# log: 20 iterations" in plan


def settings_of_environments(word: str) -> dict[str, Any]:
    """The settings on docs/environments.md that name `word`."""
    page = Path("docs/environments.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return dict(yaml.safe_load(next(text for text in blocks if word in text)))


def test_the_environments_of_the_page_about_them_are_settings() -> None:
    policy = {"iterations": 1, "policy": {"path": "x"}}
    assert RunConfig.model_validate(policy | settings_of_environments("bamboogle")).weights == {
        "world": 2.0,
        "sums": 1.0,
        "bamboogle": 0.0,
    }


def test_its_reward_is_what_the_settings_pay(folder: Path) -> None:
    assert run(folder, "python try_reward.py") == "1.0 1.0 [0.05, 0.95]\n"


def test_a_judge_is_named_by_settings() -> None:
    recipe = settings_of_environments("judge")
    judge = RewardSettings.model_validate(recipe["reward"]).judge
    assert judge is not None
    assert judge.key == "OPENAI_API_KEY"


def test_a_prompt_says_how_an_action_is_written(folder: Path) -> None:
    said = run(folder, "python try_prompt.py")
    assert "then write one cell inside <code></code>. Answer in metres" in said
    assert "then write one cell as one ```python block. Answer in metres" in said
    assert said.count("soundings(place: str") == 2
    recipe = yaml.safe_load((folder / "prompted.yaml").read_text(encoding="utf-8"))
    assert "a line of a tool" in AgentSettings.model_validate(recipe["agent"]).render_system_prompt("a line of a tool").text
