"""Imports without the garbage collector."""

import gc
import importlib
from contextlib import suppress

from nbrl.infra.process.importing import without_collection


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
