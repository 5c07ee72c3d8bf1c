"""The pages as a site, their list, and the commands that they show."""

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.main
from typer.core import TyperGroup

from nbrl.flows.cli.commands import app

PAGES = sorted(path for path in Path("docs").glob("*.md") if path.name != "README.md")


@pytest.mark.process
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "WARNING -" not in done.stderr
    assert (tmp_path / "quickstart" / "index.html").exists()
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert '<script src="http' not in text, page
        assert "fonts.googleapis" not in text, page


@pytest.mark.parametrize(
    ("address", "expected"),
    [("https://host/nbrl/", "see [it](https://host/nbrl/blob/HEAD/flows/train.py) and [a](b.md)"), ("", "see it and [a](b.md)")],
)
def test_a_link_that_leaves_the_pages_goes_to_the_repository_or_is_its_text(address: str, expected: str) -> None:
    spec = importlib.util.spec_from_file_location("hooks", "docs/hooks.py")
    assert spec
    assert spec.loader
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = "see [it](../flows/train.py) and [a](b.md)"
    assert hooks.on_page_markdown(page, config=SimpleNamespace(repo_url=address)) == expected


def test_every_page_is_listed() -> None:
    listed = Path("docs/README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"]({page.name})" not in listed] == []


def shown(page: Path) -> list[str]:
    """The lines of a page's shell blocks that begin with `nbrl`."""
    lines, shell = [], False
    for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            shell = line in ("```bash", "```sh")
        elif shell and line.startswith("nbrl "):
            lines.append(line)
    return lines


@pytest.mark.parametrize("page", [page for page in PAGES if shown(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_are_taken_by_the_command_line(page: Path) -> None:
    for line in shown(page):
        _, *arguments = shlex.split(line, comments=True)
        command = typer.main.get_command(app)
        while isinstance(command, TyperGroup):
            assert arguments, line
            assert arguments[0] in command.commands, line
            command = command.commands[arguments.pop(0)]
        command.make_context("nbrl", arguments)  # raises for an option or argument that there is not
