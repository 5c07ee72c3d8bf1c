"""The list of a published run, and the root over it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.infra.errors import DamagedError
from nbrl.tasks.bundle.contents import (
    CONTENTS,
    FileList,
    ListedFile,
    check_files,
    check_size,
    listed,
    merkle_root,
    parsed,
    root_of,
)
from nbrl.tasks.bundle.contents import read_contents as read
from nbrl.tasks.errors import ConfigError


@pytest.mark.parametrize(
    ("leaves", "root"),
    [  # of Certificate Transparency's own tests
        ([], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ([""], "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
        (["", "00"], "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"),
        (["", "00", "10"], "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"),
    ],
)
def test_the_root_is_that_of_rfc_6962(leaves: list[str], root: str) -> None:
    assert merkle_root([bytes.fromhex(leaf) for leaf in leaves]).hex() == root


@given(st.dictionaries(st.text("ab/", min_size=1, max_size=4), st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_any_other_file_makes_another_root(sizes: dict[str, int], data: st.DataObject) -> None:
    files = {path: ListedFile(size=size, sha256=f"{size:064x}") for path, size in sizes.items()}
    changed = dict(files)
    path = data.draw(st.sampled_from(sorted(files)))
    if data.draw(st.booleans()):
        changed[path] = ListedFile(size=files[path].size, sha256="f" * 64)
    else:
        del changed[path]
    assert root_of(changed) != root_of(files)
    assert root_of(dict(reversed(files.items()))) == root_of(files)


def made(folder: Path) -> dict[str, Any]:
    """A published folder of two files, and the fields of its list."""
    (folder / "storage").mkdir(parents=True)
    (folder / "README.md").write_text("words")
    (folder / "storage/table.parquet").write_bytes(b"bytes")
    files = {path: listed(folder / path) for path in ("README.md", "storage/table.parquet")}
    contents = FileList(run="r", version="1", commit="", packages={}, updates=1, files=files, root=root_of(files))
    (folder / CONTENTS).write_text(contents.model_dump_json())
    fields: dict[str, Any] = json.loads(contents.model_dump_json())
    return fields


def test_a_folder_as_it_was_published_is_whole(tmp_path: Path) -> None:
    made(tmp_path / "p")
    check_files(tmp_path / "p", read(tmp_path / "p"))


def append(folder: Path) -> None:
    (folder / "README.md").write_text("wordz")


def link(folder: Path) -> None:
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to("/etc/hostname")


def link_folder(folder: Path) -> None:
    (folder / "more").symlink_to("/etc")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def deep(folder: Path) -> None:
    for _ in range(20):
        (folder := folder / "a").mkdir()


def add(folder: Path) -> None:
    (folder / "storage/evil.pkl").write_bytes(b"")


def lose(folder: Path) -> None:
    (folder / "storage/table.parquet").unlink()


@pytest.mark.attack(
    tried="A link, a pipe, a further file or a changed byte in a published run",
    wall="a published run holds the files that its list names, regular ones, and nothing else",
    effect="one sentence",
)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (append, "README.md in .* is not the file that was published"),
        (link, "'README.md' in .* is a link or no file"),
        (link_folder, "'more' in .* is a link or no file"),
        (deep, "lies deeper than any file"),
        (pipe, "'pipe' in .* is a link or no file"),
        (add, "holds 'storage/evil.pkl', which its list does not name"),
        (lose, "lacks storage/table.parquet, which its list names"),
    ],
)
def test_a_folder_that_was_changed_is_refused(tmp_path: Path, change: Callable[[Path], None], words: str) -> None:
    folder = tmp_path / "p"
    made(folder)
    change(folder)
    with pytest.raises(DamagedError, match=words):
        check_files(folder, read(folder))


def renamed(path: str) -> Callable[[dict[str, Any]], object]:
    def rename(fields: dict[str, Any]) -> None:
        fields["files"][path] = fields["files"].pop("README.md")
        fields["root"] = root_of({name: ListedFile(**each) for name, each in fields["files"].items()})

    return rename


@pytest.mark.parametrize(
    "path", ["../x", "/etc/x", "a//b", "a/./b", "a/../b", "", ".", "a\x00b", "a\nb", "~/x", "c:\\x", "x/" * 20]
)
def test_a_list_that_names_a_path_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    fields = made(tmp_path / "p")
    renamed(path)(fields)
    with pytest.raises(DamagedError, match="no plain path"):
        parsed(json.dumps(fields).encode(), "the list")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * 100_000, "it is no JSON"),
        (b"\xff", "it is no JSON"),
        (b'{"run": "a", "run": "b"}', "has a key twice"),
        (b'{"format": 2}', "is no list of a published run"),
        (b"x" * ((64 << 20) + 1), "more than 64 MB"),
    ],
)
def test_what_is_no_list_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(DamagedError, match=words):
        parsed(text, "the list")


def test_more_gigabytes_than_are_allowed_are_not_read() -> None:
    files = {"storage/huge.parquet": ListedFile(size=21_000_000_000, sha256="0" * 64)}
    contents = FileList(run="r", version="1", commit="", packages={}, updates=1, files=files, root="0" * 64)
    check_size("p", contents, 21)
    with pytest.raises(ConfigError, match=r"p has 21\.0 GB, and --most-gb allows 20"):
        check_size("p", contents, 20)
    card = {"README.md": ListedFile(size=65 << 20, sha256="0" * 64)}
    with pytest.raises(DamagedError, match=r"README\.md of p has more than 64 MB"):
        check_size("p", contents.model_copy(update={"files": card}), 20)


def test_a_root_of_other_files_is_refused(tmp_path: Path) -> None:
    fields = made(tmp_path / "p")
    fields["files"]["README.md"]["sha256"] = "0" * 64
    with pytest.raises(DamagedError, match="it was changed"):
        parsed(json.dumps(fields).encode(), "the list")


def test_a_folder_without_a_list_is_no_published_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no published run"):
        read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"version": "0.1\nproved      trajectories: run again"},
        {"version": "\x1b[31m1"},
        {"commit": "main; proved"},
        {"packages": {"torch\nproved": "1"}},
        {"packages": {"torch": "1\rproved"}},
        {"run": "a run"},
        {"updates": -1},
        {"evil\nproved": 1},
    ],
)
def test_a_list_cannot_say_more_than_names_and_versions(tmp_path: Path, change: dict[str, Any]) -> None:
    fields = made(tmp_path / "p")
    with pytest.raises(DamagedError, match="is no list of a published run") as refused:
        parsed(json.dumps(fields | change).encode(), "list")
    assert "\n" not in str(refused.value)
