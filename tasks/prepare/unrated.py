"""Counts questions without a rating, of which there may be a few."""

from nbrl.tasks.errors import PrepareError
from nbrl.tasks.prepare.settings import DifficultySettings, RateSettings

UNRATED = "unrated"


class Unrated:
    """The questions that stay unrated, by row, each with the reason."""

    def __init__(self, stage: str, rows: int, settings: RateSettings | DifficultySettings) -> None:
        self._stage, self._rows, self._settings = stage, rows, settings
        self.reasons: dict[int, str] = {}

    def add(self, row: int, reason: str) -> None:
        """Raises PrepareError once they are too many."""
        self.reasons[row] = reason
        if len(self.reasons) > self._settings.max_unrated * self._rows:
            raise PrepareError(
                f"{self._stage}: {len(self.reasons)} of {self._rows} questions could not be rated by {self._settings.model}, "
                f"more than {self._stage}.max_unrated ({self._settings.max_unrated:g}) allows; the last one because {reason}\n"
                f"All replies so far are kept. Look at the model and {self._stage}.max_tokens, or allow more."
            )
