"""Checkpoints of a run as MLflow's logged models, and as versions of a model in its registry."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbrl.infra.tracking import Tracking

URI, STEP, DELETED = "uri", "step", "nbrl.deleted"  # tags; the first two have the names that they always had
PAGE = 100


@dataclass(frozen=True)
class LoggedModel:
    """A checkpoint that MLflow has: where its files are, and whether MLflow says that they were deleted."""

    id: str
    uri: str
    deleted: bool


@dataclass(frozen=True)
class Version:
    """A version of a registered model, with its tags and aliases."""

    number: str
    tags: Mapping[str, str]
    aliases: frozenset[str] = frozenset()


class Models:
    """The checkpoints of one run, and the registry."""

    def __init__(self, tracking: "Tracking") -> None:
        self._tracking = tracking

    def of_run(self) -> dict[int, LoggedModel]:
        """Return the run's logged models, by the step at which they were made; list them on its page."""
        found, token = {}, None
        while True:
            page = self._tracking.client.search_logged_models(
                [self._tracking.experiment_id],
                f"source_run_id = '{self._tracking.run_id}'",
                max_results=PAGE,
                page_token=token,
            )
            for model in page:
                if {STEP, URI} <= model.tags.keys():
                    found[int(model.tags[STEP])] = LoggedModel(str(model.model_id), str(model.tags[URI]), DELETED in model.tags)
            if not (token := page.token):
                break
        outputs = self._tracking.client.get_run(self._tracking.run_id).outputs
        shown = {str(each.model_id) for each in outputs.model_outputs} if outputs else set()
        for step, each in found.items():
            if each.id not in shown:
                self._show(each.id, step)
        return found

    def log(self, name: str, uri: str, step: int, tags: Mapping[str, str]) -> LoggedModel:
        """Log the checkpoint whose files are at `uri`. A dot in the name, which MLflow forbids, becomes `_`."""
        import mlflow

        mlflow.set_tracking_uri(self._tracking.uri)  # the function has no client
        model = mlflow.create_external_model(
            name=name.replace(".", "_"),
            source_run_id=self._tracking.run_id,
            tags={URI: uri, STEP: str(step), **tags},
            experiment_id=self._tracking.experiment_id,
        )
        self._show(str(model.model_id), step)
        return LoggedModel(str(model.model_id), uri, False)

    def _show(self, model: str, step: int) -> None:
        """List the model on the run's page."""
        from mlflow.entities import LoggedModelOutput

        self._tracking.client.log_outputs(self._tracking.run_id, [LoggedModelOutput(model, step)])

    def place(self, model: LoggedModel, uri: str, deleted: bool) -> LoggedModel:
        """Record where a logged model's files are, or were before they were deleted; its metrics stay either way."""
        new = ({URI: uri} if uri != model.uri else {}) | ({DELETED: "true"} if deleted and not model.deleted else {})
        if new:
            self._tracking.client.set_logged_model_tags(model.id, new)
        if model.deleted and not deleted:
            self._tracking.client.delete_logged_model_tag(model.id, DELETED)
        return LoggedModel(model.id, uri, deleted)

    def versions(self, registered: str) -> list[Version]:
        """Return all versions of a registered model; none if there is no such model."""
        client = self._tracking.client
        models = client.search_registered_models(f"name = '{registered}'", max_results=1)
        if not models:
            return []
        aliases: dict[str, set[str]] = {}
        for alias, number in models[0].aliases.items():
            aliases.setdefault(str(number), set()).add(alias)
        found, token = [], None
        while True:
            page = client.search_model_versions(f"name = '{registered}'", page_token=token)
            for each in page:
                number = str(each.version)
                found.append(Version(number, dict(each.tags), frozenset(aliases.get(number, ()))))
            if not (token := page.token):
                return found

    def register(self, registered: str, model: LoggedModel, tags: Mapping[str, str], about: str) -> str:
        """Make a version of a registered model, which is created if it does not exist; returns the version's number."""
        import mlflow

        mlflow.set_tracking_uri(self._tracking.uri)  # a database looks the model up without a client
        client = self._tracking.client
        if not client.search_registered_models(f"name = '{registered}'", max_results=1):
            client.create_registered_model(registered, description="Checkpoints of nbrl; the tag uri says where the files are.")
        version = client.create_model_version(
            registered,
            f"models:/{model.id}",
            self._tracking.run_id,
            tags={URI: model.uri, **tags},
            description=about,
            model_id=model.id,
        )
        return str(version.version)

    def tag_version(self, registered: str, number: str, name: str, value: str) -> None:
        self._tracking.client.set_model_version_tag(registered, number, name, value)

    def place_version(self, registered: str, version: Version, uri: str, deleted: bool, about: str) -> None:
        """Record where a version's files are, or were before they were deleted, in its description too."""
        client = self._tracking.client
        if version.tags.get(URI) != uri:
            client.update_model_version(registered, version.number, about)
            client.set_model_version_tag(registered, version.number, URI, uri)
        if deleted and DELETED not in version.tags:
            client.set_model_version_tag(registered, version.number, DELETED, "true")
        if DELETED in version.tags and not deleted:
            client.delete_model_version_tag(registered, version.number, DELETED)

    def set_alias(self, registered: str, alias: str, number: str) -> None:
        """Let the alias name this version, and no other."""
        self._tracking.client.set_registered_model_alias(registered, alias, number)
