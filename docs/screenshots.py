"""Pictures of the pages on which a finished run is followed, taken in headless Chromium: nbrl's own, MLflow's and Prefect's.

`python docs/screenshots.py RUN --home HOME --out docs/pictures` serves them by `nbrl ui`. Every page must show the words that it
is for, so an empty one fails, and so does an error in the browser's console on nbrl's own pages.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, FloatRect, Page, Route, ViewportSize, sync_playwright
from playwright.sync_api import Error as BrowserError

LOADS_MS, DRAWN_MS = 60_000, 1_000
LEARNED = "for the learner"  # what the page of a trajectory says where the learner trained on it
CLIENT = "nbrl-screenshots"  # as which the script asks Prefect's server, which wants a token from pages and programs alike
SIZE: ViewportSize = {"width": 1440, "height": 900}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


@dataclass(frozen=True)
class Shot:
    """A page, and the words on it without which it counts as empty. On one of `ours` nothing may be wrong in the console.

    `clicked` is the text of what is clicked on before; `dark` is how a browser asks for pages.
    """

    name: str
    url: str
    words: tuple[str | re.Pattern[str], ...]
    ours: bool = False
    clicked: str = ""
    dark: bool = False


@dataclass(frozen=True)
class Served:
    """Where `nbrl ui` serves: the pages of trajectories, MLflow and Prefect."""

    trajectories: str
    mlflow: str
    prefect: str


class ShotError(Exception):
    """A page that does not show what it should."""


@contextmanager
def served(home: Path, root: str) -> Iterator[Served]:
    """`nbrl ui` over a home and a storage, ended afterwards."""
    line = [str(Path(sys.executable).with_name("nbrl")), "ui", "--home", str(home), "--root", root]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found: dict[str, str] = {}
            for text in process.stdout:
                name, _, address = text.strip().partition("  ")
                found[name] = address.strip()
                if "Ctrl-C" in text:
                    break
            if "MLflow" not in found:
                raise ShotError("`nbrl ui` ended before it served its pages")
            yield Served(found["trajectories"], found["MLflow"], found["Prefect"])
        finally:
            process.terminate()


def ours(at: Served, run: str) -> list[Shot]:
    """nbrl's own pages: the runs, one run, the newest evaluation, a trajectory of it, and one that was trained on."""
    with httpx.Client(base_url=at.trajectories, trust_env=False, timeout=60) as client:
        stages = _links(client, f"/runs/{run}", f"/runs/{run}/")
        first = next(_links(client, stage, f"{stage}/") for stage in stages if "/evaluations-" in stage)[2]  # of several steps
        played = (each for stage in stages if "/iterations-" in stage for each in _links(client, stage, f"{stage}/"))
        learned = next(each for each in played if LEARNED in client.get(each).text)
    pages = {
        "runs": ("/", (run,)),
        "run": (f"/runs/{run}", (run, "evaluation after", "iteration 1")),
        "list": (first.rpartition("/")[0], ("reward", "answered")),
        "trajectory": (first, ("question", "step 1", "message tree")),
    }
    shots = [Shot(name, f"{at.trajectories}{path}", words, True) for name, (path, words) in pages.items()]
    dark = replace(shots[-1], name="trajectory-dark", dark=True)
    return [*shots, dark, Shot("tokens", f"{at.trajectories}{learned}", ("differ most",), True, LEARNED)]


def _links(client: httpx.Client, page: str, start: str) -> list[str]:
    """Where the page leads below `start`, which is somewhere."""
    found = re.findall(f'href="({re.escape(start)}[^"]+)"', client.get(page).text)
    if not found:
        raise ShotError(f"{page} has no link to {start}")
    return list(dict.fromkeys(found))


def mlflow(at: Served, run: str) -> list[Shot]:
    """MLflow's pages: the runs of the experiment, and the run with its curves and traces."""
    base, _, place = at.mlflow.partition("/#/experiments/")
    experiment = place.partition("/")[0]
    asked = {"experiment_ids": [experiment], "filter": f"attributes.run_name = '{run}'"}
    found = _ask(f"{base}/api/2.0/mlflow/runs/search", asked).get("runs", [])
    if not found:
        raise ShotError(f"MLflow has no run {run!r}")
    page, mode = f"{base}/#/experiments/{experiment}/runs/{found[0]['info']['run_id']}", "?workflowType=machine_learning"
    return [
        Shot("mlflow-runs", at.mlflow, ("Run Name", re.compile(f"^{re.escape(run)}$"))),
        Shot("mlflow-run", f"{page}{mode}", ("About this run", "Datasets", "Registered models")),
        Shot("mlflow-curves", f"{page}/model-metrics{mode}", ("held_out_success", "mismatch")),
        Shot("mlflow-traces", f"{page}/traces{mode}", ("Trace ID",)),
    ]


def prefect(at: Served, run: str) -> list[Shot]:
    """Prefect's pages: the flow run with its lines, that of its newest iteration, and the page that the run writes."""
    token = httpx.get(f"{at.prefect}/api/csrf-token", params={"client": CLIENT}, trust_env=False, timeout=60).json()["token"]
    own = {"Prefect-Csrf-Client": CLIENT, "Prefect-Csrf-Token": token}
    wanted = {"tags": {"all_": [run]}, "parent_task_run_id": {"is_null_": True}}
    whole = _ask(f"{at.prefect}/api/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1, "flow_runs": wanted}, own)
    wanted = {"tags": {"all_": [run]}, "parent_task_run_id": {"is_null_": False}}
    part = _ask(f"{at.prefect}/api/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1, "flow_runs": wanted}, own)
    pages = _ask(f"{at.prefect}/api/artifacts/latest/filter", {"artifacts": {"key": {"any_": [f"run-{run}"]}}}, own)
    if not whole or not part or not pages:
        raise ShotError(f"Prefect has no flow run with the tag {run!r}, none of its iterations, or not its page")
    return [
        Shot("prefect-run", f"{at.prefect}/runs/flow-run/{whole[0]['id']}", (f"train {run}", "iteration 1")),
        Shot("prefect-iteration", f"{at.prefect}/runs/flow-run/{part[0]['id']}", (f"{run} iteration", "Logs")),
        Shot("prefect-page", f"{at.prefect}/artifacts/artifact/{pages[0]['latest_id']}", (f"nbrl show {run}/",)),
    ]


def _ask(url: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
    answer = httpx.post(url, json=body, headers=headers, trust_env=False, timeout=60)
    answer.raise_for_status()
    return answer.json()


def take(browser: Browser, shot: Shot, out: Path) -> None:
    """Write the picture. Raises ShotError for a page without its words, or with an error in the console if it is ours."""
    page = browser.new_page(viewport=SIZE, color_scheme="dark" if shot.dark else "light")
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.route("**/*", _only_here)
    try:
        page.goto(shot.url, timeout=LOADS_MS)
        if shot.clicked:
            _wait_for(page, shot, shot.clicked)
            page.get_by_text(shot.clicked).first.click()
        for words in shot.words:
            _wait_for(page, shot, words)
        page.wait_for_timeout(DRAWN_MS)
        used = page.evaluate("document.body.offsetHeight") if shot.ours else SIZE["height"]
        clip: FloatRect = {"x": 0, "y": 0, "width": SIZE["width"], "height": min(SIZE["height"], used)}
        page.screenshot(path=out / f"{shot.name}.png", clip=clip)
    finally:
        page.close()
    if shot.ours and errors:
        raise ShotError(f"{shot.name}, {shot.url}: the console says {errors[0]}")


def _wait_for(page: Page, shot: Shot, words: str | re.Pattern[str]) -> None:
    try:
        page.get_by_text(words).filter(visible=True).first.wait_for(timeout=LOADS_MS)
    except BrowserError as error:
        raise ShotError(f"{shot.name}, {shot.url}: the page does not show {words!r}") from error


def _only_here(route: Route) -> None:
    """Pages may load nothing from elsewhere."""
    if route.request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
        route.continue_()
    else:
        route.abort()


def screenshots(run: str, home: Path, root: str, out: Path) -> list[Path]:
    """Take the pictures of all pages of a finished run; returns their files."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise ShotError("there is no chromium: install the package of this name")
    out.mkdir(parents=True, exist_ok=True)
    with served(home, root) as at, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        try:
            shots = [*ours(at, run), *mlflow(at, run), *prefect(at, run)]
            for shot in shots:
                take(browser, shot, out)
        finally:
            browser.close()
    return [out / f"{shot.name}.png" for shot in shots]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run", help="a finished run")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--root", help="storage of the run; default: storage/ in the home")
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    given = parser.parse_args()
    try:
        for picture in screenshots(given.run, given.home, given.root or str(given.home / "storage"), given.out):
            print(picture)
    except ShotError as fault:
        sys.exit(f"screenshots: {fault}")


if __name__ == "__main__":
    main()
