"""The page of families says what is proved of each now."""

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.long
def test_what_the_page_of_families_says_is_still_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    import families

    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", (DOCS / "families.md").read_text(), re.MULTILINE)
    said = {family: how for how, listed in rows[1:] for family in listed.split(", ") if how != families.NOT_TRIED}
    assert len(said) > 100
    assert {family: families.proof(family) for family in said} == said
