"""One night of learning from questions of one's own use: its settings, and the report of what changed."""

from pathlib import Path

from pydantic import Field

from nbrl.infra.closed import ClosedModel, FiniteModel
from nbrl.tasks.comparison.gate import Gate
from nbrl.tasks.comparison.scored import Side

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$"


class NightlySettings(ClosedModel):
    """The settings of nightly trainings. An unknown key is an error."""

    name: str = Field(pattern=NAME, description="what its runs and folders are named after, beside the date")
    recipe: str = Field(max_length=255, description="recipe of the training: a name, or a path relative to this file")
    environment: str = Field(description="the recipe's environment whose training questions are the prepared ones")
    prepare: Path = Field(
        description="YAML file of a preparation, as for `nbrl prepare`, relative to this file: among its sources what "
        "`nbrl agent --keep` wrote, among its evaluation files the held-out questions"
    )
    fewest: int = Field(16, ge=1, description="questions to train on below which a night does nothing")
    margin: float = Field(0.02, ge=0, le=1, description="how much worse an ability may be than before")
    settings: tuple[str, ...] = Field((), description="settings of the training as KEY=VALUE")


class NightStart(ClosedModel):
    """With what a night begins, decided once: the number of its questions, why there is none, and the champion, empty where there
    is none.
    """

    questions: int
    why_none: str = ""
    champion: str = ""
    updates: int = 0


class NightReport(FiniteModel):
    """What a night did: `run` is empty where nothing was trained; `reasons` say why nothing was promoted, where it was not.

    Scores are successes on held-out questions: of the champion, or the policy that the recipe begins with, and of what was
    trained from it.
    """

    night: str
    recipe: str
    questions: int
    run: str = ""
    began_with: str = ""
    before: float | None = None
    after: float | None = None
    gain: str = ""
    by_ability: dict[str, str] = Field(default_factory=dict)
    promoted: bool = False
    in_mlflow: str = ""
    reasons: tuple[str, ...] = ()

    def judged(self, before: Side, after: Side, gate: Gate) -> "NightReport":
        """Return the report with the scores and what speaks against a promotion."""
        scores = {"before": before.scored.final.estimate.value, "after": after.scored.final.estimate.value}
        said = {"gain": str(gate.gain or ""), "by_ability": {name: str(each) for name, each in gate.by_ability.items()}}
        return self.model_copy(update={**scores, **said, "reasons": tuple(gate.against)})

    def markdown(self) -> str:
        """Return the page of the night."""
        lines = [f"# {self.recipe}, night of {self.night}\n", f"Questions to train on: {self.questions}.\n"]
        if self.run:
            lines.append(f"Run `{self.run}` began with {self.began_with}.\n")
        if self.before is not None:
            lines += [
                "| held-out success | before | after | difference |\n|---|---|---|---|",
                f"| all | {self.before:.3f} | {self.after:.3f} | {self.gain} |",
                *(f"| {name} | | | {each} |" for name, each in self.by_ability.items()),
                *(["\nDifferences are on the same questions, with 95 % intervals (paired bootstrap).\n"] if self.gain else [""]),
            ]
        if self.promoted:
            lines.append(f"**Promoted.** To go back: `nbrl promote --back {self.recipe}`. In MLflow: {self.in_mlflow}.")
        else:
            lines += ["**Not promoted:**\n", *(f"- {reason}" for reason in self.reasons)]
        return "\n".join(lines) + "\n"
