"""Grades on the storage, by the content of what was graded: paid for once, for all runs of a storage."""

import hashlib
import json
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.runs import judgement
from nbrl.tasks.reward.judge.prompt import INSTRUCTIONS, RUBRIC, JudgedAnswer
from nbrl.tasks.reward.judge.settings import JudgeSettings
from nbrl.tasks.reward.rules.rule import GRADES

REPLY_CHARS = 4000  # of a reply that is kept
PARALLEL = 16


def rubric_digest(settings: JudgeSettings) -> str:
    """SHA-256 of all that is said to the grader but question, references and answer."""
    return hashlib.sha256(json.dumps([INSTRUCTIONS, settings.rubric or RUBRIC]).encode()).hexdigest()


def key_of(asked: JudgedAnswer, settings: JudgeSettings) -> str:
    """Key of the grade: made of the model, the rubric, the limit of tokens, and what is graded."""
    content = [settings.name, rubric_digest(settings), settings.max_tokens, *asked]
    return judgement(hashlib.sha256(json.dumps(content).encode()).hexdigest())


def find(storage: Storage, asked: Collection[JudgedAnswer], settings: JudgeSettings) -> dict[JudgedAnswer, str]:
    """Return the grades that are on the storage. Raises DamagedError for one that is not what was written."""

    def read(each: JudgedAnswer) -> tuple[JudgedAnswer, str | None]:
        try:
            return each, _read(storage, key_of(each, settings))
        except MissingError:
            return each, None

    with ThreadPoolExecutor(PARALLEL) as pool:
        return {each: grade for each, grade in pool.map(read, asked) if grade is not None}


def keep(storage: Storage, asked: JudgedAnswer, settings: JudgeSettings, grade: str, reply: str) -> str:
    """Keep a grade; returns the one that counts: another process's, where that was first."""
    key = key_of(asked, settings)
    fields = {"grade": grade, "model": settings.name, "rubric": rubric_digest(settings), "reply": reply[:REPLY_CHARS]}
    return grade if storage.create_json(key, fields) else _read(storage, key)


def _read(storage: Storage, key: str) -> str:
    grade = storage.read_json(key).get("grade")
    if grade not in GRADES:
        raise DamagedError(f"{storage.uri(key)} is damaged: it holds no grade; bring it back from a copy")
    return str(grade)
