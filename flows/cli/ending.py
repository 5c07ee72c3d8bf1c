"""The end of the process."""

import atexit
import os
import sys


class QuickEnd:
    """Ends the process with `status`, if it has one, as soon as all is done that was registered for its end after this.

    By itself Python would take apart all objects then: more than a second of a core once Ray, Prefect and MLflow were imported.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        atexit.register(self._leave)

    def _leave(self) -> None:
        if self.status is None:
            return
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):  # None where it was closed
                stream.flush()
        except (OSError, ValueError):
            return  # Python says what cannot be written, and ends with a status of its own
        os._exit(self.status)
