"""Learns every night from questions of one's own use: prepare → train from the champion → judge → promote, or say why not."""

import asyncio
import json
import shutil
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from prefect import flow
from prefect.artifacts import acreate_markdown_artifact
from pydantic import Field

from nbrl.flows import prepare as preparation
from nbrl.flows import train as training
from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import ServerError
from nbrl.infra.home import HOME, Home
from nbrl.infra.storage import Storage
from nbrl.tasks.comparison.gate import FEWEST, check_better, judge_gain
from nbrl.tasks.comparison.night import NightlySettings, NightReport, NightStart
from nbrl.tasks.comparison.scored import read
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment
from nbrl.tasks.errors import ConfigError, NoGainError, NoQuestionLeftError, NothingLearnedError
from nbrl.tasks.layout.checkpoints import updates_of
from nbrl.tasks.nodes.durable import slug
from nbrl.tasks.prepare.frozen import frozen
from nbrl.tasks.prepare.preflight import check, found
from nbrl.tasks.prepare.preflight import load as load_preparation
from nbrl.tasks.prepare.settings import PrepareSettings
from nbrl.tasks.runs.checkpoints import checkpoint, checkpoint_folder
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.pins import Champion
from nbrl.tasks.runs.pins import recorded as recorded_champion
from nbrl.tasks.runs.preflight import prepared
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipe_tree import RecipeTree
from nbrl.tasks.runs.recipes import from_settings, load, with_home
from nbrl.tasks.tracking.promote import promote, show_champion

PROMOTED = "promoted"  # in the folder of a night whose policy became the champion


class NightlyOrder(ClosedModel):
    """A night to do, or to go on with. Without `night` it is today's, in UTC, as YYYYMMDD."""

    recipe: Path = Field(description="a YAML file, such as examples/nightly/nightly.yaml")
    night: str = Field("", pattern=r"^(\d{8})?$", description="the date in the names of its run and folder; today when empty")
    home: str = Field(HOME, description="folder of the storage, and of what each night prepared")


def settings_in(recipe: Path) -> NightlySettings:
    """Return the settings in a YAML file, whose paths are relative to its folder. Raises ConfigError."""
    path = found(str(recipe), Path.cwd(), "examples/nightly/nightly.yaml")
    settings = from_settings(NightlySettings, RecipeTree.read(path, found).settings, str(path), ())
    beside = path.parent / settings.recipe
    return settings.model_copy(
        update={"prepare": path.parent / settings.prepare, "recipe": str(beside) if beside.is_file() else settings.recipe}
    )


def check_held_out(settings: NightlySettings, config: RunConfig, preparation: PrepareSettings) -> None:
    """Raises ConfigError where nothing keeps the held-out questions of a file out of the training, or they are too few."""
    if settings.environment not in config.environments:
        raise ConfigError(f"environment {settings.environment!r} is none of the recipe {settings.recipe}; name one of it")
    kept_out = [_whole(each.path) for each in preparation.evaluation]
    files = {name: each for name, each in config.environments.items() if isinstance(each, FilesEnvironment)}
    for name, each in files.items():
        if _whole(each.held_out) not in kept_out:
            raise ConfigError(
                f"{settings.prepare} does not name {each.held_out}, the held-out questions of environments.{name}, under "
                "`evaluation`; add it, so that none of them is trained on"
            )
    asked = config.evaluate.questions
    if len(files) == len(config.environments):
        there = sum(len(each.model_copy(update={"train": None}).load(name).held_out) for name, each in files.items())
        asked = there if asked is None else min(asked, there)
    if asked is not None and asked < FEWEST:
        raise ConfigError(
            f"{settings.recipe} asks {asked} held-out questions, and {FEWEST} at least say whether a policy is better; add some, "
            "or raise evaluate.questions"
        )


def _whole(path: Path | str) -> Path | str:
    return path.resolve() if isinstance(path, Path) else path


@flow(name="nightly", flow_run_name="nightly {order.recipe.stem} {order.night}", persist_result=False)
async def nightly(order: NightlyOrder) -> NightReport:
    """Do a night, and return its report, which is beside the questions of the night too, as a page.

    What a night has finished is found when it is done again. Raises ConfigError for what cannot work.
    """
    settings, night = settings_in(order.recipe), order.night or f"{datetime.now(UTC):%Y%m%d}"
    folder = Home(order.home).root / "nightly" / settings.name / night
    config = load(settings.recipe, with_home(order.home, settings.settings))
    check_held_out(settings, config, load_preparation(settings.prepare, (), order.home))
    storage = Storage(config.storage)
    begun = folder / "begun.json"
    if await asyncio.to_thread(begun.is_file):
        start = NightStart.model_validate_json(begun.read_bytes())
    else:
        start = await _begun(settings, folder, order.home, storage, config.name)
    report = NightReport(night=night, recipe=config.name, questions=start.questions)
    if start.questions < settings.fewest:
        few = start.why_none or f"there are {start.questions} questions to train on, and fewest is {settings.fewest}"
        report = report.model_copy(update={"reasons": (few,)})
        for name in ("sources", "questions"):  # done again, this night begins with what is kept by then
            await asyncio.to_thread(shutil.rmtree, folder / name, ignore_errors=True)
    else:
        scratch = begun.with_suffix(".new")
        scratch.write_text(start.model_dump_json())
        scratch.replace(begun)
        report = await _trained(settings, report, start, folder, order.home, storage, config)
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("report.json").write_text(report.model_dump_json(indent=1))
    folder.joinpath("report.md").write_text(report.markdown())
    await acreate_markdown_artifact(report.markdown(), key=slug("nightly", settings.name), description=f"night of {night}")
    return report


async def _begun(settings: NightlySettings, folder: Path, home: str, storage: Storage, recipe: str) -> NightStart:
    """Prepare what was kept until now, and return with what the night begins. Files that are not there yet hold no question."""
    to_prepare, count = load_preparation(settings.prepare, (), home), 0
    sources = await asyncio.to_thread(frozen, to_prepare.sources, folder / "sources")
    if sources:
        to_prepare = to_prepare.model_copy(update={"sources": sources})
        try:
            await asyncio.to_thread(check, to_prepare, folder / "questions")
            count = (await preparation.prepare.fn(to_prepare, folder / "questions", home))["questions"]["train"]
        except NoQuestionLeftError as error:
            return NightStart(questions=0, why_none=str(error).partition(";")[0])
        except ConfigError:  # another look may find a file that was mended
            await asyncio.to_thread(shutil.rmtree, folder / "sources")
            raise
    champion = await asyncio.to_thread(recorded_champion, storage, recipe)
    if champion is None:
        return NightStart(questions=count)
    return NightStart(questions=count, champion=champion.run, updates=champion.updates)


async def _trained(
    settings: NightlySettings,
    report: NightReport,
    begun: NightStart,
    folder: Path,
    home: str,
    storage: Storage,
    config: RunConfig,
) -> NightReport:
    """Train from the champion on the questions of the night, and promote what is better than it, and than one promoted since."""
    run = f"{settings.name}-{report.night}"
    with ExitStack() as stack:
        start, began_with = await asyncio.to_thread(_start, stack, settings, run, folder / "questions", home, storage, begun)
        report = report.model_copy(update={"run": run, "began_with": began_with})
        try:
            await training.train.fn(start, run)
        except NothingLearnedError as error:
            return report.model_copy(update={"reasons": (str(error),)})
    before, after = await asyncio.to_thread(lambda: (read(storage, f"{run}@0"), read(storage, run)))
    report = report.judged(before, after, judge_gain(before, after, settings.margin))
    now = await asyncio.to_thread(recorded_champion, storage, report.recipe)
    if report.reasons:
        return report
    judged = updates_of(await asyncio.to_thread(checkpoint, storage, run, None))
    if now is not None and (now.run, now.updates) == (run, judged):  # this night was done before
        return await _promoted(report, folder, storage, now, config)
    if await asyncio.to_thread((folder / PROMOTED).exists):
        return report.model_copy(update={"reasons": ("it was promoted before, and another policy has taken its place since",)})
    if now is not None and (now.run, now.updates) != (begun.champion, begun.updates):
        try:
            await asyncio.to_thread(check_better, storage, run, None, settings.margin)
        except (NoGainError, ConfigError) as error:
            return report.model_copy(update={"reasons": (str(error),)})
    return await _promoted(report, folder, storage, await asyncio.to_thread(promote, storage, run, None), config)


async def _promoted(report: NightReport, folder: Path, storage: Storage, champion: Champion, config: RunConfig) -> NightReport:
    """Return the report of a night whose policy is the champion, which MLflow is to show, too, and note that for good."""
    await asyncio.to_thread((folder / PROMOTED).touch)
    try:
        shown = await asyncio.to_thread(show_champion, storage, champion, config.tracking, Home(config.home))
    except ServerError as error:
        shown = f"not yet, for {error}; `nbrl track {champion.run}` delivers it"
    return report.model_copy(update={"promoted": True, "reasons": (), "in_mlflow": shown})


def _start(
    stack: ExitStack, settings: NightlySettings, run: str, questions: Path, home: str, storage: Storage, begun: NightStart
) -> tuple[Prepared, str]:
    """Return the training of a night from the champion, whose files stay until the stack ends, and what it begins with."""
    overrides = [*settings.settings, f"environments.{settings.environment}.train={json.dumps(str(questions / 'train.parquet'))}"]
    began_with = "the policy of the recipe"
    if begun.champion:
        policy = stack.enter_context(checkpoint_folder(storage, Path(home), begun.champion, begun.updates))
        overrides.append(f"policy.path={json.dumps(str(policy))}")
        began_with = f"the champion, run `{begun.champion}` after {begun.updates} updates"
    return prepared(settings.recipe, with_home(home, overrides), "train", run), began_with
