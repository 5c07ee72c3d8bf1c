"""Files of questions that are small and mean much work."""

from pathlib import Path

import pytest

from nbrl.tasks.environments.files import read_questions
from nbrl.tasks.environments.tables import _distinct
from nbrl.tasks.errors import ConfigError


@pytest.mark.attack(
    tried="An object of JSON with twenty thousand keys, of which the last stands twice",
    wall="the doubled key is found in one pass",
    effect="one sentence",
)
def test_a_doubled_key_is_found_without_a_look_at_all_others(tmp_path: Path) -> None:
    hashed = list[str]()

    class Name(str):
        def __hash__(self) -> int:
            hashed.append(self)
            return super().__hash__()

    def work(count: int) -> int:
        hashed.clear()
        with pytest.raises(ValueError, match=f"has the name 'k{count - 1}' twice"):
            _distinct([(Name(f"k{number}"), number) for number in [*range(count), count - 1]])
        return len(hashed)

    assert work(400) < 2.5 * work(200)
    keys = ", ".join(f'"k{number}": 1' for number in [*range(20_000), 19_999])
    (tmp_path / "x.jsonl").write_text(f"{{{keys}}}\n")
    with pytest.raises(ConfigError, match="line 1: an object has the name 'k19999' twice"):
        read_questions(tmp_path / "x.jsonl", {}, "qa")
