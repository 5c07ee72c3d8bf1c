"""Learns every night from questions of one's own use: prepare → train from the champion → judge → promote, or say why not."""

import asyncio
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from prefect import flow
from prefect.artifacts import acreate_markdown_artifact
from pydantic import Field

from nbrl.flows import prepare as preparation
from nbrl.flows import train as training
from nbrl.infra.closed import ClosedModel
from nbrl.infra.home import HOME, Home
from nbrl.infra.storage import Storage
from nbrl.tasks.comparison.gate import judge_gain
from nbrl.tasks.comparison.night import NightlySettings, NightReport
from nbrl.tasks.comparison.scored import read
from nbrl.tasks.errors import ConfigError, NothingLearnedError
from nbrl.tasks.nodes.durable import slug
from nbrl.tasks.prepare.preflight import check, found
from nbrl.tasks.prepare.preflight import load as load_preparation
from nbrl.tasks.runs.checkpoints import checkpoint_folder
from nbrl.tasks.runs.pins import Champion
from nbrl.tasks.runs.pins import recorded as recorded_champion
from nbrl.tasks.runs.preflight import prepared
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipe_tree import RecipeTree
from nbrl.tasks.runs.recipes import from_settings, load, with_home
from nbrl.tasks.tracking.promote import promote


class NightlyOrder(ClosedModel):
    """A night to do, or to go on with. Without `night` it is today's, in UTC, as YYYYMMDD."""

    recipe: Path = Field(description="a YAML file, such as examples/nightly/nightly.yaml")
    night: str = Field("", pattern=r"^(\d{8})?$", description="the date in the names of its run and folder; today when empty")
    home: str = Field(HOME, description="folder of the storage, and of what each night prepared")


def settings_in(recipe: Path) -> NightlySettings:
    """Return the settings in a YAML file, whose paths are relative to its folder. Raises ConfigError."""
    path = found(str(recipe), Path.cwd())
    settings = from_settings(NightlySettings, RecipeTree.read(path, found).settings, str(path), ())
    beside = path.parent / settings.recipe
    return settings.model_copy(
        update={"prepare": path.parent / settings.prepare, "recipe": str(beside) if beside.is_file() else settings.recipe}
    )


@flow(name="nightly", flow_run_name="nightly {order.recipe.stem} {order.night}", persist_result=False)
async def nightly(order: NightlyOrder) -> NightReport:
    """Do a night, and return its report, which is beside the questions of the night too, as a page.

    What a night has finished is found when it is done again. Raises ConfigError for what cannot work.
    """
    settings, night = settings_in(order.recipe), order.night or f"{datetime.now(UTC):%Y%m%d}"
    folder = Home(order.home).root / "nightly" / settings.name / night
    questions, to_prepare = folder / "questions", load_preparation(settings.prepare, (), order.home)
    await asyncio.to_thread(check, to_prepare, questions)
    card = await preparation.prepare.fn(to_prepare, questions, order.home)
    name = load(settings.recipe, with_home(order.home, settings.settings)).name
    report = NightReport(night=night, recipe=name, questions=card["questions"]["train"])
    if report.questions < settings.fewest:
        few = f"there are {report.questions} questions to train on, and fewest is {settings.fewest}"
        report = report.model_copy(update={"reasons": (few,)})
    else:
        report = await _trained(settings, report, questions, order.home)
    folder.joinpath("report.json").write_text(report.model_dump_json(indent=1))
    folder.joinpath("report.md").write_text(report.markdown())
    await acreate_markdown_artifact(report.markdown(), key=slug("nightly", settings.name), description=f"night of {night}")
    return report


async def _trained(settings: NightlySettings, report: NightReport, questions: Path, home: str) -> NightReport:
    """Train from the champion on the questions of the night, and promote what is better."""
    run = f"{settings.name}-{report.night}"
    storage = Storage(load(settings.recipe, with_home(home, settings.settings)).storage)
    champion = await asyncio.to_thread(recorded_champion, storage, report.recipe)
    if champion is not None and champion.run == run:
        return report.model_copy(update={"run": run, "promoted": True, "began_with": "the champion before it"})
    with ExitStack() as stack:
        start, began_with = await asyncio.to_thread(_start, stack, settings, run, questions, home, storage, champion)
        report = report.model_copy(update={"run": run, "began_with": began_with})
        try:
            await training.train.fn(start, run)
        except NothingLearnedError as error:
            return report.model_copy(update={"reasons": (str(error),)})
    before, after = await asyncio.to_thread(lambda: (read(storage, f"{run}@0"), read(storage, run)))
    report = report.judged(before, after, judge_gain(before, after, settings.margin))
    if not report.reasons:
        await asyncio.to_thread(promote, storage, run, None)
    return report.model_copy(update={"promoted": not report.reasons})


def _start(
    stack: ExitStack,
    settings: NightlySettings,
    run: str,
    questions: Path,
    home: str,
    storage: Storage,
    champion: Champion | None,
) -> tuple[Prepared, str]:
    """Return the training of a night from the champion, whose files stay until the stack ends, and what it begins with."""
    overrides = [*settings.settings, f"environments.{settings.environment}.train={questions / 'train.parquet'}"]
    began_with = "the policy of the recipe"
    if champion is not None:
        policy = stack.enter_context(checkpoint_folder(storage, Path(home), champion.run, champion.updates))
        overrides.append(f"policy.path={policy}")
        began_with = f"the champion, run `{champion.run}` after {champion.updates} updates"
    start = prepared(settings.recipe, with_home(home, overrides), "train", run)
    if settings.environment not in start.config.environments:
        raise ConfigError(f"environment {settings.environment!r} is none of the recipe {settings.recipe}; name one of it")
    return start, began_with
