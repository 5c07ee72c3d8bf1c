"""Lets IPython prepare a cell's source once: ipykernel transforms and compiles it to see how to run it, and again to run it."""

import inspect
from functools import partial
from typing import Any


class CellSource:
    """Replaces two methods of a shell. `begin` is called for a request, whose source is transformed twice."""

    def __init__(self, shell: Any) -> None:
        self._shell, self._should_run_async = shell, shell.should_run_async
        shell.should_run_async = self._awaits
        # ipykernel asks for it at each cell.
        run = type(shell).run_cell_async
        run.__signature__ = inspect.signature(run)

    def begin(self) -> None:
        self._shell.transform_cell = self._first

    def _first(self, raw_cell: str) -> str:
        """Transform the source and keep the result for the second call. A failure has the stock method's traceback alone."""
        self._end()
        transformed: str = self._shell.transform_cell(raw_cell)
        self._shell.transform_cell = partial(self._second, raw_cell, transformed)
        return transformed

    def _second(self, earlier: str, transformed: str, raw_cell: str) -> str:
        """Return the kept result. Called before any code of the cell, which may change transformers and run further cells."""
        self._end()
        return transformed if raw_cell == earlier else str(self._shell.transform_cell(raw_cell))

    def _end(self) -> None:
        """Restore the stock method."""
        vars(self._shell).pop("transform_cell", None)

    def _awaits(self, raw_cell: str, *, transformed_cell: str | None = None, preprocessing_exc_tuple: Any = None) -> bool:
        """Return whether the cell awaits: not without these words. The stock method compiles to see, which repeats the compiler's
        warnings.

        Source that is nested too deeply for that fails when it is compiled to be run.
        """
        if transformed_cell is not None and "await" not in transformed_cell and "async" not in transformed_cell:
            return False
        given = {"transformed_cell": transformed_cell, "preprocessing_exc_tuple": preprocessing_exc_tuple}
        try:
            awaits: bool = self._should_run_async(raw_cell, **given)
        except RecursionError:
            return False
        if awaits:
            self._end()  # there is no second call
        return awaits
