"""Lets IPython prepare a cell's source once: ipykernel transforms and compiles it to see how to run it, and again to run it."""

import inspect
from typing import Any


class CellSource:
    """Stands before two methods of a shell. `begin` says that the next source to transform is that of a request."""

    def __init__(self, shell: Any) -> None:
        self._transform, self._should_run_async = shell.transform_cell, shell.should_run_async
        self._expected = False
        self._made: tuple[str, str] | None = None
        shell.transform_cell, shell.should_run_async = self._transformed, self._awaits
        # ipykernel asks for it at each cell.
        run = type(shell).run_cell_async
        run.__signature__ = inspect.signature(run)

    def begin(self) -> None:
        self._expected, self._made = True, None

    def _transformed(self, raw_cell: str) -> str:
        """Of a request the second call gets what the first made. Cells, which may change transformers, run after both."""
        made, self._made = self._made, None
        if made is not None and made[0] == raw_cell:
            return made[1]
        expected, self._expected = self._expected, False
        transformed: str = self._transform(raw_cell)
        if expected:
            self._made = raw_cell, transformed
        return transformed

    def _awaits(self, raw_cell: str, *, transformed_cell: str | None = None, preprocessing_exc_tuple: Any = None) -> bool:
        """Without these words nothing is awaited, which the stock method finds out by compiling."""
        if transformed_cell is not None and "await" not in transformed_cell and "async" not in transformed_cell:
            return False
        self._made = None  # of a cell that runs as a coroutine there is no second call
        awaits: bool = self._should_run_async(
            raw_cell, transformed_cell=transformed_cell, preprocessing_exc_tuple=preprocessing_exc_tuple
        )
        return awaits
