"""openat2(2): open a path that a hostile process may change at any moment without leaving the folder it starts from."""

import ctypes
import errno
import os
import struct

_NUMBER = 437  # the same on every architecture
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RACES = 8

_libc = ctypes.CDLL(None, use_errno=True)


def open_beneath(folder: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Return a descriptor of `path` below `folder`. No link of any kind is followed, no mount crossed, no FIFO waited for.

    Raises OSError: ELOOP where a link is on the way, EXDEV where the path leaves the folder or its file system.
    """
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    how = struct.pack("QQQ", flags, mode, _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)
    for _ in range(_RACES):
        descriptor = int(_libc.syscall(_NUMBER, folder, path, how, len(how)))
        if descriptor >= 0:
            return descriptor
        code = ctypes.get_errno()
        if code != errno.EAGAIN:  # something was renamed on the way, and the answer is not safe to give
            break
    raise OSError(code, os.strerror(code), os.fsdecode(path))
