from io import StringIO

from rich.console import Console

from agent.trajectory import Status, Step, Trajectory, to_table
from flows.show import find, listing, render
from infra.storage import Storage, StorageSettings

EVIL = "\x1b]0;pwned\x07\x1b[2J[red]markup[/red]\x9b"


def trajectory() -> Trajectory:
    step = Step(think=EVIL, code=f"print('{EVIL}')", cell_status="ok", observation=EVIL)
    return Trajectory(
        id="q-0",
        group="q",
        sample=0,
        question=EVIL,
        ability="qa",
        status=Status.ANSWERED,
        answer=EVIL,
        nodes=[],
        steps=[step],
    )


def printed(item: object) -> str:
    console = Console(file=StringIO(), width=100, color_system=None)
    console.print(item)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_what_a_model_wrote_neither_moves_the_terminal_nor_is_markup() -> None:
    shown = printed(render("key", trajectory(), 0.5))
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
    assert "[red]markup[/red]" in shown


def test_runs_and_evaluations_are_listed_and_found(tmp_path: object) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    for folder in ("runs/r/iterations/000003/round-0", "evaluations/e"):
        storage.write_table(f"{folder}/trajectories.parquet", to_table([trajectory()]))
    assert "q-0" in printed(listing(storage, "r", 10))
    assert "iter 3" in printed(listing(storage, "r", 10))
    assert "q-0" in printed(listing(storage, "e", 10))
    assert find(storage, "e", "q-0")[0][1].question == EVIL
