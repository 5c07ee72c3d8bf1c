"""When garbage is collected."""

import gc
import importlib
from contextlib import suppress

from nbrl.infra.process.garbage import NEW_OBJECTS, collect_rarely, without_collection


def test_nothing_is_collected_inside_and_garbage_is_afterwards_also_when_an_import_fails() -> None:
    with suppress(ModuleNotFoundError), without_collection():
        assert not gc.isenabled()
        importlib.import_module("no_such_module")
    assert gc.isenabled()


def test_what_was_imported_is_left_out_of_collections() -> None:
    gc.unfreeze()
    try:
        with without_collection():
            kept = [[]]  # type: ignore[var-annotated]
        assert not any(each is kept for each in gc.get_objects())
    finally:
        gc.unfreeze()


def test_a_process_that_collects_rarely_still_does() -> None:
    before = gc.get_threshold()
    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collected.append(info["generation"])

    gc.callbacks.append(note)
    try:
        collect_rarely()
        kept = [[each] for each in range(NEW_OBJECTS // 2)]
        assert collected == []
        kept += [[each] for each in range(NEW_OBJECTS)]
        assert collected
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        gc.unfreeze()
