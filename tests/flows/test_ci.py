"""A learning test of a recipe that cannot learn so much in one iteration."""

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.flows.conftest import NBRL, SMALL
from tests.processes import check_gone, mark

pytestmark = [pytest.mark.e2e, pytest.mark.more, pytest.mark.usefixtures("prefect")]


def test_a_recipe_that_does_not_learn_enough_fails_with_a_report_and_a_picture(home: Path, tmp_path: Path) -> None:
    files = ["--junit", str(tmp_path / "r.xml"), "--picture", str(tmp_path / "r.png")]
    line = [NBRL, "ci", "tiny-cpu", "--margin", "1", "--home", str(home), *files]
    line += [part for setting in (*SMALL, "iterations=1") for part in ("--set", setting)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=mark("ci"), check=False)
    check_gone("ci")
    assert done.returncode == 1
    assert "does not learn enough" in done.stderr
    assert ElementTree.parse(tmp_path / "r.xml").getroot().attrib["failures"] == "1"
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
