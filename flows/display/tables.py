"""Tables whose first column is never cut, so that names and ids can be typed back."""

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table

from nbrl.flows.display.terminal import plain

MOST = {"answer": 20, "recipe": 16}  # widths at which columns are cut
NARROW = 10  # and those where the last column would have no room
BETWEEN = 2  # columns from one to the next


def table(names: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", width: int | None = None) -> Table:
    """Columns in MOST are cut at their width, and with `width` the last column where the row is full; the first is never cut.

    Where the row has no room for the last column's name, that column is left out. Print the table without cropping: what is too
    long for a terminal then continues on the next line.
    """
    cells = [[plain(cell) for cell in row] for row in rows]
    needed = [max([len(name), *(row[column].cell_len for row in cells)]) for column, name in enumerate(names)]
    widths = [min(most, MOST.get(name, most)) for name, most in zip(names, needed, strict=True)]
    if width is not None:
        room = width - BETWEEN * len(names) - 1
        if room - sum(widths[:-1]) < len(names[-1]):
            widths = [min(each, NARROW) if name in MOST else each for name, each in zip(names, widths, strict=True)]
        if room - sum(widths[:-1]) < len(names[-1]):
            return table(names[:-1], [row[:-1] for row in rows], title)
        widths[-1] = min(widths[-1], room - sum(widths[:-1]))
    # With enough total width, the table does not change the widths of its columns.
    total = sum(widths) + BETWEEN * len(names) + 1
    shown = Table(title=title or None, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), width=total)
    for name, columns in zip(names, widths, strict=True):
        shown.add_column(name, no_wrap=True, overflow="ellipsis", width=columns)
    for row in cells:
        shown.add_row(*row)
    return shown
