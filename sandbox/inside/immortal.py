"""Makes what a zygote holds immortal, so that its forks do not write reference counts into the pages that they share with it.

Python 3.12 leaves the count of an immortal object alone (PEP 683), and makes a few objects so by itself: None, small integers,
its own types.
"""

import ctypes
import gc
import sys
from types import CodeType
from typing import Any

_IMMORTAL = 2**32 - 1  # _Py_IMMORTAL_REFCNT of CPython 3.12
_WORD, _MEMORY = 8, 2**48  # bytes: of a word, and of all memory that a process can have


def immortalize() -> None:
    """Make all objects immortal that the garbage collector knows, and what these refer to. None is finalized or freed later.

    Does so in Python 3.12 alone: earlier versions have no such objects, and later ones keep more than a count in that field.
    """
    if sys.version_info[:2] != (3, 12):
        return
    # An object's id is its address, where the count of its references is.
    words = (ctypes.c_uint64 * (_MEMORY // _WORD)).from_address(0)
    immortal, mortal = words[id(None) // _WORD], object()
    if immortal != _IMMORTAL or words[id(mortal) // _WORD] != sys.getrefcount(mortal) - 1:
        return
    # None of the objects that are in use here is among them: they are made later, or never listed.
    objects: list[Any] = gc.get_objects()
    while objects:
        each = objects.pop()
        count = id(each) // _WORD
        if words[count] == immortal:
            continue
        words[count] = immortal
        objects += gc.get_referents(each)
        if isinstance(each, CodeType):  # which the collector does not look into
            objects += (each.co_consts, each.co_names, each.co_filename, each.co_name, each.co_qualname, each.co_linetable)
