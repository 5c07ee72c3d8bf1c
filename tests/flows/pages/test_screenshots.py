"""Every page on which a run is followed, looked at in a browser: nbrl's own, MLflow's and Prefect's."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.processes import check_gone, mark

SCRIPT = Path(__file__).parents[3] / "docs/screenshots.py"
CHROMIUM = shutil.which("chromium")
NAMES = {
    "runs",
    "run",
    "list",
    "trajectory",
    "trajectory-dark",
    "tokens",
    "mlflow-runs",
    "mlflow-run",
    "mlflow-curves",
    "mlflow-traces",
}
NAMES |= {"prefect-run", "prefect-iteration", "prefect-page"}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.more,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: install the package of this name"),
]


@pytest.mark.usefixtures("storage")
def test_every_page_of_a_run_shows_it_and_ours_have_nothing_in_the_console(home: Path, tmp_path: Path) -> None:
    line = [sys.executable, str(SCRIPT), "small", "--home", str(home), "--out", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=mark("screenshots"), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {picture.stem for picture in tmp_path.glob("*.png")} == NAMES
    check_gone("screenshots")


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("screenshots", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def browser(script: ModuleType) -> Iterator[Browser]:
    with sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=CHROMIUM, args=script.FLAGS)


def test_a_page_of_ours_with_an_error_in_the_console_is_a_fault(script: ModuleType, browser: Browser, tmp_path: Path) -> None:
    page = quote("<p>seen</p><script>console.error('broken')</script>")
    shot = script.Shot("page", f"data:text/html,{page}", ("seen",), True)
    with pytest.raises(script.ShotError, match="the console says broken"):
        script.take(browser, shot, tmp_path)
