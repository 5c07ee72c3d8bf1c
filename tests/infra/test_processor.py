"""What is read of a processor."""

import pytest

from nbrl.infra.gpu import has_bfloat16


@pytest.mark.parametrize(
    ("flags", "able"),
    [("fpu avx2 avx512f avx512_bf16", True), ("fpu amx_bf16 amx_tile", True), ("fpu avx2 avx512f", False), ("", False)],
)
def test_instructions_for_bfloat16_are_found_among_the_flags(flags: str, able: bool) -> None:
    assert has_bfloat16(f"processor\t: 0\nmodel name\t: amx_bf16\nflags\t\t: {flags}\nbugs\t: none\n") == able


def test_another_kind_of_processor_is_taken_for_one_without_them() -> None:
    assert not has_bfloat16("processor\t: 0\nFeatures\t: fp asimd bf16\n")
