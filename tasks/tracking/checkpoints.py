"""The checkpoints of a run in MLflow: each a logged model, the best and the last also versions of a registered model.

All runs of a recipe share one registered model. Its aliases: `last` is the version that was made last, `best` the one with the
highest held-out success, of equal ones the newer, `champion` the one that `nbrl promote` chose. An alias follows from the tags of
the versions alone, so that it does not matter in which order runs are delivered.
"""

from collections.abc import Iterable, Mapping

from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking
from nbrl.infra.tracking_models import DELETED, URI, LoggedModel, Version
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.pins import recorded
from nbrl.tasks.runs.results import scores_of
from nbrl.tasks.runs.retention import complete
from nbrl.tasks.runs.run import Run
from nbrl.tasks.tracking.parameters import RUN_ID
from nbrl.tasks.tracking.steps import MadePolicy

RUN, UPDATES, SUCCESS, FINISHED = "nbrl.run", "nbrl.updates", "nbrl.success", "nbrl.finished"
BEST, LAST, CHAMPION = "best", "last", "champion"


def registered_name(recipe: str) -> str:
    """Return the registered model of a recipe."""
    return f"nbrl-{recipe}"


class Checkpoints:
    """The logged models of one run, as MLflow has them since `begin`."""

    def __init__(self, storage: Storage, run: Run, tracking: Tracking) -> None:
        self._storage, self._run, self._tracking = storage, run, tracking
        self._models: dict[int, LoggedModel] = {}

    def begin(self) -> None:
        """Ask MLflow which models the run has."""
        self._models = self._tracking.models.of_run()

    def at(self, step: int) -> LoggedModel | None:
        """Return the model that was made at a step."""
        return self._models.get(step)

    def log(self, record: Record) -> LoggedModel:
        """Log the checkpoint that an iteration made, unless MLflow has it. The number comes first in the name: the end is cut."""
        step = record.iteration + 1
        if step not in self._models:
            name, uri = f"{record.updates:06d}-{self._run.name}", self._storage.uri(record.checkpoint)
            tags = {UPDATES: str(record.updates), RUN: self._run.name}
            self._models[step] = self._tracking.models.log(name, uri, step, tags)
        return self._models[step]

    def update_places(self) -> set[str]:
        """Record where the files of each model are now, and whether retention has deleted them; returns the folders that are
        there.

        A folder has the same name wherever the storage is, so the storage may be moved or mounted elsewhere.
        """
        folders = complete(self._storage, self._run)
        for step, model in self._models.items():
            folder = self._folder(model.uri)
            self._models[step] = self._tracking.models.place(model, self._storage.uri(folder), folder not in folders)
        return folders

    def register(self, policies: Mapping[int, MadePolicy]) -> None:
        """Make versions of the run's best and last checkpoint and of its champion, and let the aliases name what they should."""
        made = {step: each for step, each in policies.items() if each.weights.updates and step in self._models}
        folders, scores = self.update_places(), scores_of(self._storage, self._run)
        left = {each.weights.updates: step for step, each in made.items() if self._folder(self._models[step].uri) in folders}
        chosen = recorded(self._storage, self._run.recipe)
        ours = chosen.updates if chosen and chosen.run_id == self._run.run_id and chosen.updates in left else None
        best = max((number for number in left if number in scores), key=lambda number: (scores[number], number), default=None)
        name = registered_name(self._run.recipe)
        versions = self._by_folder(self._tracking.models.versions(name))
        for number in sorted({number for number in (max(left, default=None), best, ours) if number is not None}):
            self._version(name, versions, left[number], made[left[number]], scores.get(number))
        self._update_versions(name, versions, folders)
        self._let_aliases_name(name, chosen.checkpoint if chosen and ours is not None else "")

    def _version(self, name: str, versions: Mapping[str, Version], step: int, made: MadePolicy, score: float | None) -> None:
        """Register a checkpoint unless it is; set its score, which may be new."""
        model, models = self._models[step], self._tracking.models
        success = "" if score is None else f"{score:.6f}"
        if (version := versions.get(self._folder(model.uri))) is not None:
            if success and version.tags.get(SUCCESS) != success:
                models.tag_version(name, version.number, SUCCESS, success)
            return
        tags = {
            RUN: self._run.name,
            RUN_ID: self._run.run_id,
            UPDATES: str(made.weights.updates),
            FINISHED: f"{made.finished:.3f}",
        }
        tags |= {SUCCESS: success} if success else {}
        models.register(name, model, tags, self._about(tags[UPDATES], model.uri))

    def _update_versions(self, name: str, versions: Mapping[str, Version], there: set[str]) -> None:
        """Record where the files of this run's versions are now, and whether they are gone."""
        for folder, version in versions.items():
            uri = self._storage.uri(folder)
            about = self._about(version.tags.get(UPDATES, ""), uri)
            self._tracking.models.place_version(name, version, uri, folder not in there, about)

    def _let_aliases_name(self, name: str, champion: str) -> None:
        """Move the aliases where they belong; `champion` is a checkpoint of this run, or empty."""
        versions = [each for each in self._tracking.models.versions(name) if DELETED not in each.tags]
        scored = [each for each in versions if SUCCESS in each.tags]
        wanted = {
            LAST: max(versions, key=_finished, default=None),
            BEST: max(scored, key=lambda each: (float(each.tags[SUCCESS]), _finished(each)), default=None),
        }
        if champion:
            wanted[CHAMPION] = self._by_folder(versions).get(champion)
        for alias, version in wanted.items():
            if version is not None and alias not in version.aliases:
                self._tracking.models.set_alias(name, alias, version.number)

    def _by_folder(self, versions: Iterable[Version]) -> dict[str, Version]:
        """Return those of this run, by the folders of their checkpoints."""
        return {self._folder(each.tags[URI]): each for each in versions if each.tags.get(RUN_ID) == self._run.run_id}

    def _folder(self, uri: str) -> str:
        """Return the folder of a checkpoint on the storage, by its address now or at an earlier place of the storage."""
        return f"{self._run.layout.checkpoints}/{uri.rpartition('/')[2]}"

    def _about(self, updates: str, uri: str) -> str:
        return f"Run {self._run.name} after {updates} updates; the files are at {uri}"


def _finished(version: Version) -> tuple[float, int]:
    return float(version.tags.get(FINISHED, 0.0)), int(version.tags.get(UPDATES, 0))
