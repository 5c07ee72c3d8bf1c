"""Questions from folders, patterns, zipped files and what datasets saved."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.tasks.environments.files import read_questions
from nbrl.tasks.errors import ConfigError
from tests.tasks.question_rows import FOUND, ROWS, questions, write


def test_a_folder_a_pattern_or_zipped_text_is_its_files_in_order(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    for place, row in enumerate(FOUND):
        write(shards / f"train-{place}.parquet", [row])
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in FOUND).encode()))
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"question,answers\nq0?,0\nq1?,1\n"))
    write(shards / ".train-2.parquet", [FOUND[0] | {"question": "hidden?"}])
    with pa.CompressedOutputStream(str(tmp_path / "x.jsonl.zst"), "zstd") as packed:
        packed.write("".join(f"{json.dumps(row)}\n" for row in FOUND).encode())
    for path in (shards, shards / "*.parquet", *(tmp_path / name for name in ("x.jsonl.gz", "x.jsonl.zst", "x.csv.gz"))):
        assert questions(path) == FOUND
    assert len({*read_questions(shards, {}, "qa")["id"].to_pylist()}) == 2
    write(shards / "more.csv", ROWS)
    with pytest.raises(ConfigError, match=r"holds files of several formats, \.csv, \.parquet; name one file, or a pattern"):
        questions(shards)


def test_a_data_set_that_datasets_saved_is_read_split_by_split(tmp_path: Path) -> None:
    split = tmp_path / "saved" / "train"
    split.mkdir(parents=True)
    for place, row in enumerate(FOUND):
        table = pa.Table.from_pylist([row])
        with pa.ipc.new_stream(split / f"{place}.arrow", table.schema) as stream:
            stream.write_table(table)
    (split / "dataset_info.json").write_text("{}")
    (split / "state.json").write_text(json.dumps({"_data_files": [{"filename": "1.arrow"}, {"filename": "0.arrow"}]}))
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert questions(split) == FOUND[::-1]
    assert questions(split / "0.arrow") == FOUND[:1]
    with pytest.raises(ConfigError, match=r"has several splits, train; name the folder of one, such as .*/saved/train"):
        questions(tmp_path / "saved")


@pytest.mark.parametrize("name", ["../diary.jsonl", "{folder}/diary.jsonl", "..", ".", "", "deep/x.jsonl", 5, None, []])
@pytest.mark.attack(
    tried="A saved data set that names a file outside its folder as its data",
    wall="it names files of its own folder",
    effect="one sentence",
)
def test_a_saved_data_set_names_files_of_its_own_folder(tmp_path: Path, name: object) -> None:
    split = tmp_path / "train"
    (split / "deep").mkdir(parents=True)
    for path in (tmp_path / "diary.jsonl", split / "deep/x.jsonl"):
        write(path, FOUND)
    named = name.format(folder=tmp_path) if isinstance(name, str) else name
    (split / "dataset_info.json").write_text("{}")
    (split / "state.json").write_text(json.dumps({"_data_files": [{"filename": named}]}))
    with pytest.raises(ConfigError, match=r"state\.json names '.*', which is no file of its folder"):
        questions(split)


@pytest.mark.parametrize("column", ["files", "expected"])
@pytest.mark.attack(
    tried="A pipe as a file that a question comes with, or expects",
    wall="what is no regular file is not read",
    effect="one sentence",
)
def test_a_pipe_beside_questions_is_not_read_for_ever(tmp_path: Path, column: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, words in (("pipe", "is no regular file"), ("loop", "symbolic links"), ("..", "is not in its folder")):
        path = write(tmp_path / "x.jsonl", [{"question": "q?", "answers": ["a"], column: [name]}])
        with pytest.raises(ConfigError, match=words):
            read_questions(path, {}, "qa" if column == "files" else "files")


PUBLISHED = {
    "data_source": "mine/sums",
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q?"}],
    "reward_model": {"style": "rule", "ground_truth": "7"},
    "aliases": [{"text": "x"}, {"text": "y"}],
}


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_what_lies_in_a_column_is_named_by_its_path_and_messages_are_what_they_ask(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"x{suffix}", [PUBLISHED])
    question = "Be brief.\n\nq?"
    assert questions(path, question="prompt", answers="reward_model.ground_truth") == [{"question": question, "answers": ["7"]}]
    assert questions(path) == [{"question": question, "answers": ["7"]}]  # its columns are known
    assert questions(path, question="prompt", answers="reward_model") == [{"question": question, "answers": ["7"]}]
    assert questions(path, question="prompt", answers="aliases.text") == [{"question": question, "answers": ["x", "y"]}]
    with pytest.raises(ConfigError, match=r"no column 'reward_model\.truth', .* did you mean 'reward_model\.ground_truth'"):
        questions(path, question="prompt", answers="reward_model.truth")
    for text in (json.dumps(PUBLISHED["prompt"]), str(PUBLISHED["prompt"])):
        told = write(tmp_path / f"z{suffix}", [PUBLISHED | {"prompt": text}])
        assert questions(told, question="prompt", answers="aliases.text") == [{"question": question, "answers": ["x", "y"]}]
    two = write(tmp_path / f"y{suffix}", [PUBLISHED | {"prompt": [{"role": "user", "content": "q?"}] * 2}])
    with pytest.raises(ConfigError, match="'prompt' has a conversation of user, user, where a user asks once"):
        questions(two, question="prompt", answers="aliases.text")


def test_a_pattern_may_lead_through_folders(tmp_path: Path) -> None:
    for name in ("a/x.jsonl", "b/c/y.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True)
        write(tmp_path / name, [{"question": f"{name}?", "answers": ["7"]}])
    for pattern, count in (("**/*.jsonl", 2), ("*/x.jsonl", 1), ("b/**/*.jsonl", 1)):
        assert len(questions(tmp_path / pattern)) == count


def test_a_folder_of_several_splits_is_not_read_as_one(tmp_path: Path) -> None:
    for name in ("{}-00000-of-00001.parquet", "gsm8k_{}.jsonl", "hotpot_{}_v1.1.json"):
        folder = tmp_path / name.format("")
        folder.mkdir()
        for split in ("train", "test"):
            write(folder / name.format(split), FOUND)
        with pytest.raises(ConfigError, match=r"has files of several splits, test, train; name the files of one"):
            questions(folder)
        assert questions(folder / name.format("t*n")) == FOUND
