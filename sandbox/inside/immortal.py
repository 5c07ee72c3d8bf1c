"""Makes what a zygote holds immortal, so that its forks do not write reference counts into the pages that they share with it.

Python 3.12 leaves the count of an immortal object alone (PEP 683), and makes a few objects so by itself: None, small integers,
its own types. Earlier versions count the references to every object; here they are left as they are.
"""

import ctypes
import gc
import sys
from types import CodeType
from typing import Any


def _count(of: object) -> ctypes.c_uint64:
    """The field of an object's reference count, with which it begins."""
    return ctypes.c_uint64.from_address(id(of))


def immortalize() -> None:
    """Make all objects immortal that the garbage collector knows, and what these refer to. None is finalized or freed later.

    Does nothing before Python 3.12.
    """
    if sys.version_info < (3, 12):
        return
    immortal = _count(None).value
    # None of the objects that are in use here is among them: they are made later, or never listed.
    found: list[Any] = gc.get_objects()
    while found:
        each = found.pop()
        count = _count(each)
        if count.value == immortal:
            continue
        count.value = immortal
        found.extend(gc.get_referents(each))
        if isinstance(each, CodeType):  # which the collector does not look into
            found += (each.co_consts, each.co_names, each.co_filename, each.co_name, each.co_qualname, each.co_linetable)
