"""The page of families says what is proved of each now."""

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.long
def test_the_page_of_families_is_what_is_proved(tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import families; open(sys.argv[2], 'w').write(families.page())"
    subprocess.run([sys.executable, "-c", code, str(DOCS), str(tmp_path / "families.md")], check=True, timeout=3600)
    assert (tmp_path / "families.md").read_text() == (DOCS / "families.md").read_text()
