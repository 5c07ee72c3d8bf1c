"""The deep searcher runs as its page says: offline in a real sandbox, and against a server of the chat API."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.flows.model_server import act, model_server

pytestmark = pytest.mark.process

MAIN = Path("examples/deep_searcher/main.py").resolve()
CORPUS = MAIN.with_name("corpus.txt").read_text(encoding="utf-8")


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"COLUMNS": "200"}
    command = [sys.executable, str(MAIN), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.more
def test_offline_it_writes_a_report_through_a_context_too_small_for_it(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    said = re.match(r"answered after (\d+) steps, (\d+) tool calls, (\d+) trims of the context\n", done.stdout)
    assert said, done.stdout
    steps, calls, trims = map(int, said.groups())
    assert (steps, calls) == (9, 19)
    assert trims >= 3
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert len(report) > 2_500
    assert report.count("\n## ") == 6
    assert "62% of those who voted" in report
    assert "44.5 million, 17% more" in report
    body, sources = report.split("## Sources")
    named = set(re.findall(r"\[\d+\]", body))
    assert len(named) > 15
    assert {line.split(" ", 1)[0] for line in sources.split("\n") if line} == named
    assert all(f"\n{line}:" in f"\n{CORPUS}" for line in sources.split("\n") if line), "a source is as the corpus has it"
    made = nbformat.read(tmp_path / "report.ipynb", 4)
    nbformat.validate(made)
    cells = [cell for cell in made.cells if cell.cell_type == "code"]
    assert len(cells) == steps
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    notepad = cells[-1].metadata.nbrl.notepad
    assert [item["state"] for item in notepad["plan"]] == ["done"] * 5
    assert len(notepad["facts"]) > 8


@pytest.mark.more
def test_a_model_behind_a_server_gets_the_corpus_and_the_notepad(tmp_path: Path) -> None:
    cells = ["notepad.add_facts(['noted'])\nprint(search('fish gate'))", "submit_final_answer('done, see [9]')"]
    with model_server(*map(act, cells)) as server:
        done = run(tmp_path, "--endpoint", f"{server.url}/v1", "--question", "Who won?", "--save", "out.ipynb", "--trim", "soft")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.md").read_text(encoding="utf-8") == "done, see [9]\n"
    asked = json.dumps(server.asked[1])
    for words in ("Who won?", "[9] The fish gate", "- noted", "search(query: str)", "You are a researcher"):
        assert words in asked


@pytest.mark.more
def test_what_would_do_nothing_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--web", "serper")
    assert done.returncode == 2
    assert "--web does nothing without --endpoint" in done.stderr
    done = run(tmp_path, "--endpoint", "http://127.0.0.1:9", "--model", "m", "--api-key-env", "NO_SUCH_KEY_HERE")
    assert (done.returncode, done.stderr.count("Traceback")) == (1, 0)
    assert "NO_SUCH_KEY_HERE holds no key" in done.stderr
