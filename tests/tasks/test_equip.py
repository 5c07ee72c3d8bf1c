"""A task's ability decides which tools its kernel has, in a real sandbox."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nbrl.agent.kernel import CellResult
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.files.documents import Documents
from nbrl.agent.tools.library import Equipment, Library
from nbrl.agent.tools.settings import ToolSettings
from nbrl.agent.trajectory import ToolCall
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.start.program import confined_program
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.rollout.notebooks import SandboxedKernel, equip, parser
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.config_check import check_config
from tests.sandbox.sandbox_lab import Lab

pytestmark = pytest.mark.sandbox

SETTINGS = {"abilities": {"math": [], "files": ["search", "inspect_file"]}}


def run(lab: Lab, settings: dict[str, Any], ability: str, *cells: str) -> tuple[list[CellResult], list[ToolCall]]:
    library = Library(
        ToolSettings.model_validate(settings), {"": Equipment(Corpus.in_memory(["Tilo was born in Keldra."]))}, parser()
    )

    async def body(kernel: SandboxKernel) -> tuple[list[CellResult], list[ToolCall]]:
        toolbox = await equip(kernel, library, "", ability)
        wired = SandboxedKernel(kernel)
        return [await wired.execute(cell, 20.0) for cell in cells], toolbox.take_calls()

    asyncio.run(library.open())
    try:
        done: tuple[list[CellResult], list[ToolCall]] = lab.with_kernel(body, prelude=prelude(library.common()))
    finally:
        asyncio.run(library.close())
    return done


def said(result: CellResult) -> str:
    return "".join(output.text for output in result.outputs)


@pytest.mark.parametrize("settings", [{}, SETTINGS])
def test_the_default_is_search_of_the_corpus(shared_lab: Lab, settings: dict[str, Any]) -> None:
    (found, helped), calls = run(shared_lab, settings, "one_hop", "print(search('Tilo born'))", "help(search)")
    assert said(found) == "Tilo was born in Keldra.\n"
    assert "search(query: str) -> str" in said(helped)
    assert [call.name for call in calls] == ["search"]


def test_an_ability_without_tools_has_none(shared_lab: Lab) -> None:
    (named, called), calls = run(shared_lab, SETTINGS, "math", "search", "host_call('search', {'query': 'Tilo'})")
    assert "NameError" in said(named)
    assert "there is no tool 'search'; there are: none" in said(called)
    assert calls == []


def test_a_file_of_the_workspace_is_read_and_no_other(shared_lab: Lab) -> None:
    code = """
import os
open('t.csv', 'w').write('a,b')
os.symlink('/etc/passwd', 'link.txt')
print(inspect_file('t.csv'))
for path in ('/etc/passwd.txt', '../x.txt', 'link.txt', 'none.txt', 't.exe'):
    try: print(inspect_file(path))
    except RuntimeError as error: print(error)
"""
    (result,), calls = run(shared_lab, SETTINGS, "files", code)
    lines = said(result).splitlines()
    assert lines[0] == "a,b"
    assert "is not a path in the workspace" in lines[1]
    assert "is not a path in the workspace" in lines[2]
    assert "link.txt could not be read" in lines[3]
    assert "No such file" in lines[4]
    assert "is of no kind that can be read" in lines[5]
    assert len(lines) == 6
    assert [call.ok for call in calls] == [True, *[False] * 5]


def config(tools: dict[str, Any], **more: Any) -> RunConfig:
    agent = {"context_tokens": 1000, "action_tokens": 48}
    rollout = {"episodes_per_runner": 8, "tools": tools}
    run = {"iterations": 1, "policy": {"path": "infra/policies/tiny"}, "agent": agent, "rollout": rollout}
    run |= {"environments": {"world": {"kind": "world"}}} | more
    return RunConfig.model_validate(run)


def test_search_without_a_corpus_is_refused_before_any_work(tmp_path: Path) -> None:
    row = {"id": "1", "question": "?", "answers": ["a"], "ability": "qa", "source": "s"}
    pq.write_table(table_of([row]), tmp_path / "q.parquet")
    data = {"kind": "files", "train": tmp_path / "q.parquet", "held_out": tmp_path / "q.parquet"}
    with pytest.raises(ConfigError, match=r"environments\.e has the tool search but no corpus"):
        check_config(config({"default": ["search"]}, environments={"e": data}), "evaluate")
    check_config(config({}, environments={"e": data}), "evaluate")
    check_config(config({"default": ["search"], "search": {"engine": "exa"}}, environments={"e": data}), "evaluate")


def test_a_simulated_search_for_questions_without_answers_is_refused_before_any_work() -> None:
    data = {"kind": "reasoning_gym", "tasks": ["chain_sum"], "train": 8, "held_out": 8}
    search = {"engine": "simulated", "model": {"base_url": "http://127.0.0.1:1/v1", "name": "m"}}
    with pytest.raises(ConfigError, match=r"simulated from a question's answers, which those of environments\.e lack"):
        check_config(config({"default": ["search"], "search": search}, environments={"e": data}), "evaluate")


def test_an_own_tool_that_is_not_there_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.tools\.own: the tool mine is not at 'no\.such:f'"):
        check_config(config({"default": ["mine"], "own": {"mine": "no.such:f"}}), "evaluate")


def test_documents_are_parsed_where_there_is_no_host(tmp_path: Path) -> None:
    assert "hello" in asyncio.run(Documents(1_000, 60.0, parser()).to_text("html", b"<html><body><p>hello</p></body></html>"))
    secret, program = tmp_path / "secret", tmp_path / "look.py"
    secret.write_text("x")
    program.write_text(
        "import os\n"
        f"print(os.path.exists({str(secret)!r}), os.path.exists('/etc/shadow'), sorted(os.listdir('/workspace')))\n"
        "print([line.split(':')[0].strip() for line in list(open('/proc/net/dev'))[2:]], os.getpid() < 5)\n"
        "print(os.environ.get('SECRET'))\n"
    )
    done = subprocess.run(confined_program(program), capture_output=True, text=True, env={"SECRET": "x"}, timeout=60, check=True)
    assert done.stdout == "False False []\n['lo'] True\nNone\n"
