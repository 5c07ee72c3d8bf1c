"""What `nbrl ci` writes where the training does not come to its end; the training is a double."""

import asyncio
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer

from nbrl.flows.cli import ci as command
from nbrl.infra.errors import InfraError
from nbrl.tasks.errors import NothingLearnedError, RunError


@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "raised", "words"),
    [
        (NothingLearnedError("no group had signal"), typer.Exit, "no group had signal"),
        (InfraError("the engine ended"), InfraError, "the training failed: the engine ended"),
        (InfraError("it wrote \x1b[31mred\x00"), InfraError, "it wrote \ufffd[31mred\ufffd"),
        (NothingLearnedError("no signal:\nall groups are right."), typer.Exit, "no signal; all groups are right"),
        (asyncio.CancelledError(), asyncio.CancelledError, "the training failed: it was stopped"),
    ],
)
def test_a_training_that_fails_leaves_a_report_without_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException, raised: type[BaseException], words: str
) -> None:
    def train(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(command, "train_run", train)
    junit, picture = tmp_path / "r.xml", tmp_path / "r.png"
    with pytest.raises(raised):
        command.ci("tiny-cpu", 0.05, None, junit, picture, False, str(tmp_path / "home"), None)
    assert words in ElementTree.parse(junit).getroot().find(".//failure").attrib["message"]  # type: ignore[union-attr]
    assert not picture.exists()


@pytest.mark.process
def test_what_cannot_be_judged_leaves_a_report_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "train_run", lambda *_, **__: None)
    with pytest.raises(RunError):
        command.ci("tiny-cpu", 0.05, None, tmp_path / "r.xml", None, False, str(tmp_path / "home"), None)
    case = ElementTree.parse(tmp_path / "r.xml").getroot().find("testcase")
    assert case is not None
    assert case.attrib["name"] == "tiny-cpu learns"
    assert "the training failed" in case.find("failure").attrib["message"]  # type: ignore[union-attr]
