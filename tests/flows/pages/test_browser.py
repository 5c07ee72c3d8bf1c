"""The pages of trajectories in a real browser: what is drawn, chosen, unfolded and renewed, and that nothing hostile acts."""

import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from nbrl.agent.trajectory import Step, to_table
from nbrl.flows.pages.app import app
from nbrl.infra.process.child import free_port
from nbrl.infra.process.identity import identity
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.rollout.chunks import write
from tests.flows.pages.test_pages import played
from tests.tasks.comparison import made
from tests.tasks.storing import stored

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
RIGHT = [1.0, 0.0, 1.0, 0.0]
HOSTILE = "<script>window.acted = 1</script><img src=x onerror='window.acted = 1'><svg onload='window.acted = 1'></svg>"
# The contrast of the text of an element with what is behind it, as WCAG computes it.
CONTRAST = """(element) => {
  const light = (colour) => {
    const linear = (part) => part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = colour.match(/[\\d.]+/g).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let behind = element;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  const both = [light(getComputedStyle(element).color), light(getComputedStyle(behind).backgroundColor)].sort((a, b) => b - a);
  return (both[0] + 0.05) / (both[1] + 0.05);
}"""

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: install the package of this name"),
]


@dataclass(frozen=True)
class Site:
    address: str
    storage: Storage


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    storage = made.storage_in(tmp_path_factory.mktemp("pages"))
    made.run(storage, "first", {0: [0, 0, 0, 0], 1: RIGHT, 2: [1, 1, 1, 0]}, [0.25, 0.5])
    going = made.run(storage, "second", {0: RIGHT}, [0.25])
    made.ended(storage, going, process=identity())
    lease = storage.read_json(going.layout.lease)
    storage.write_json(going.layout.lease, {**lease, "ended": False, "status": ""})
    evil = played(0, HOSTILE)
    long = Step(
        think="I look",
        code="for number in range(200): print(number)",
        cell_status="ok",
        observation="\n".join(map(str, range(200))),
    )
    wrong = Step(think=HOSTILE, code=HOSTILE, cell_status="error", observation=HOSTILE, outputs=evil.steps[0].outputs)
    each = evil.model_copy(update={"question": HOSTILE, "steps": [long, wrong], "nodes": []})
    stored(storage, RunLayout("hostile").iteration(0, "e0001-abcdef").round(0).trajectories, to_table([each]))
    server = uvicorn.Server(uvicorn.Config(app(storage), host="127.0.0.1", port=free_port(), log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Site(f"http://127.0.0.1:{server.config.port}", storage)
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    """A page in whose console nothing may be."""
    opened, said = browser.new_page(base_url=site.address), list[str]()
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    yield opened
    opened.close()
    assert said == []


def test_the_first_page_shows_states_scores_and_curves_the_newest_run_first(page: Page) -> None:
    page.goto("/")
    names = page.locator("a.row").all_inner_texts()
    assert names.index("second") < names.index("first")
    row = page.locator("tbody tr", has_text="first")
    assert [row.locator(kind).count() for kind in ("polyline", "circle")] == [1, 3]
    for words in ("stopped", "2/2", "0.75"):
        expect(row).to_contain_text(words)
    assert page.locator("tbody tr", has_text="second").locator(".state").inner_text() == "running"


def test_a_list_is_filtered_by_a_choice_and_sorted_by_a_column(page: Page) -> None:
    page.goto("/runs/first/evaluations-000001")
    page.get_by_label("result").select_option("wrong")
    expect(page.locator("#list")).to_contain_text("2 of 4 trajectories")
    page.get_by_role("columnheader", name="question").get_by_role("link").click()
    page.get_by_role("columnheader", name="question").get_by_role("link").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("question")
    assert page.locator("a.row").all_inner_texts() == ["What is 3?", "What is 1?"]


def test_keys_lead_through_a_list_and_its_trajectories(page: Page) -> None:
    page.goto("/runs/first/evaluations-000001?result=wrong")
    page.keyboard.press("j")
    for key, shown in (("Enter", "q1-0"), ("j", "q3-0"), ("k", "q1-0")):
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(shown)
        page.wait_for_load_state()
    page.keyboard.press("/")
    search = page.locator("input[type=search]")
    expect(search).to_be_focused()
    page.keyboard.type("jk")
    expect(search).to_have_value("jk")


def test_a_long_output_is_folded_and_code_has_colours(page: Page) -> None:
    page.goto("/runs/hostile/iterations-000000/q:1-0")
    block = page.locator(".block.output", has_text="show all 200 lines").first
    expect(block.locator("pre")).to_be_hidden()
    block.locator("summary").click()
    expect(block.locator("pre")).to_contain_text("199")
    keyword, plain = page.locator(".code .k", has_text="for"), page.locator(".code pre").first
    assert keyword.evaluate("e => getComputedStyle(e).color") != plain.evaluate("e => getComputedStyle(e).color")
    assert page.locator(".block.error .label").first.inner_text().lower() == "error"
    assert page.locator(".block img").first.evaluate("e => e.decode().then(() => e.naturalWidth)") == 1


def test_what_is_new_of_a_run_that_goes_on_comes_by_itself(page: Page, site: Site) -> None:
    chunks = RunLayout("second").iteration(1, "e0001-abcdef").round(0).chunks("w")
    write(site.storage, chunks, to_table([played(0, "42")]))
    page.goto("/runs/second/iterations-000001")
    page.keyboard.press("j")
    page.evaluate("window.same = true")
    write(site.storage, chunks, to_table([played(1, "43")]))
    expect(page.locator("#list")).to_contain_text("2 of 2 trajectories", timeout=60_000)
    expect(page.locator("a.row").first).to_be_focused()
    assert page.evaluate("window.same")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark_and_on_a_telephone(browser: Browser, site: Site, scheme: str) -> None:
    page = browser.new_page(base_url=site.address, color_scheme=scheme, viewport={"width": 390, "height": 800})  # type: ignore[arg-type]
    for address in ("/", "/runs/first", "/runs/first/evaluations-000001", "/runs/hostile/iterations-000000/q:1-0"):
        page.goto(address)
        dark = max(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor")))) < 128
        assert dark == (scheme == "dark")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, address
        for element in page.locator("a, .soft, .label, .state, .good, .bad, pre, pre span, th, td").all():
            assert element.evaluate(CONTRAST) >= 4.5, (address, element.evaluate("e => e.outerHTML"))
    page.close()


@pytest.mark.attack(
    tried="A question, an answer, code, an output or a picture that is a script of a page",
    wall="all text is escaped, pictures are of known kinds, and the content security policy of the pages",
    effect="it is shown as text",
)
def test_nothing_that_a_model_wrote_acts_in_a_browser(page: Page) -> None:
    for address in ("/", "/runs/hostile", "/runs/hostile/iterations-000000", "/runs/hostile/iterations-000000/q:1-0?elsewhere=1"):
        page.goto(address)
        assert page.evaluate("window.acted") is None
        assert page.locator("script").count() == 1
        assert page.locator("img:not([src^='data:image/png'])").count() == 0
    assert HOSTILE in page.locator(".question pre").inner_text()


def test_a_script_in_a_page_would_not_run_either(browser: Browser, site: Site) -> None:
    page = browser.new_page(base_url=site.address)
    page.goto("/runs/first")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.acted = 1'}))")
    assert page.evaluate("window.acted") is None
    page.close()
