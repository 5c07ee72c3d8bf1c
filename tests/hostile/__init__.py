import pytest

pytest.register_assert_rewrite("tests.hostile.arena", "tests.hostile.canaries")
