import importlib.util
from pathlib import Path

import pytest

from nbrl.agent.settings import SYSTEM_PROMPT
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import dotted


@pytest.mark.parametrize("name", ["settings", "hostile"])
def test_a_written_page_is_what_its_writer_says(name: str) -> None:
    writer = Path("docs", f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"{name}_page", writer)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert writer.with_suffix(".md").read_text(encoding="utf-8") == module.page(), f"run: python {writer}"


def rows(page: str) -> list[list[str]]:
    """The cells of the tables of settings, without their heads."""
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_setting_has_a_kind_a_default_and_a_description_in_words() -> None:
    page = Path("docs/settings.md").read_text(encoding="utf-8")
    found = rows(page)
    assert len(found) > 150
    for row in found:
        assert len(row) == 4, row
        assert all(row), row
    for internal in ("Annotated[", "FieldInfo", "Optional[", "Literal[", "NoneType", "tuple[", "dict[", "<class", "see the code"):
        assert internal not in page
    assert "`required`" not in page
    assert ["`iterations`", "integer, ≥ 0", "**required**"] in [row[:3] for row in found]


def test_every_key_that_a_recipe_takes_stands_in_its_table() -> None:
    page = Path("docs/settings.md").read_text(encoding="utf-8")
    names = {row[0].strip("`") for row in rows(page)}
    assert {key.rpartition(".")[2] for key in dotted(RunConfig)} - {"mcp", "environments"} <= names
    assert SYSTEM_PROMPT in page
