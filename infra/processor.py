"""What this machine's processor can do."""

import re
from functools import cache
from pathlib import Path

IN_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})  # Linux's names of the instructions that multiply in bfloat16
CPUINFO = Path("/proc/cpuinfo")


@cache
def computes_in_bfloat16() -> bool:
    """Whether it has instructions for bfloat16: without them such products take several times as long as in float32."""
    return has_bfloat16(CPUINFO.read_text(errors="replace")) if CPUINFO.exists() else False


def has_bfloat16(cpuinfo: str) -> bool:
    """The same, of the text of /proc/cpuinfo."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return flags is not None and not IN_BFLOAT16.isdisjoint(flags[1].split())
