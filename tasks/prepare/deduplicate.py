"""deduplicate: of equal and of nearly equal questions one stays."""

from collections.abc import Sequence

import pyarrow as pa

from nbrl.tasks.prepare.rows import Map, Reason, marked
from nbrl.tasks.prepare.settings import DeduplicateSettings
from nbrl.tasks.prepare.similar import Index, normalise, signatures
from nbrl.tasks.reward.rules import qa

DUPLICATE, NEAR = "duplicate", "near duplicate"


def deduplicate(questions: pa.Table, sources: Sequence[str], settings: DeduplicateSettings, map_: Map) -> pa.Table:
    """The questions, marked; the detail of a reason is the id of the question that stays in its place.

    Of two the one of the earlier source stays, or of the smaller id. So the order of the rows decides nothing, and each dropped
    question is like one that stays.
    """
    rows = questions.select(["id", "question", "answers", "source"]).to_pylist()
    texts = [normalise(row["question"]) for row in rows]
    signed = signatures(texts, settings, map_)
    ranks = {name: rank for rank, name in enumerate(sources)}
    order = sorted(range(len(rows)), key=lambda place: (ranks[rows[place]["source"]], rows[place]["id"]))
    words = [{qa.normalise(answer) for answer in row["answers"]} for row in rows]
    reasons: list[Reason] = [None] * len(rows)
    stays: dict[str, int] = {}  # the row that stays for each normalised text
    index = Index(settings)  # of the rows that stay, by their number in `order`
    for number, place in enumerate(order):
        text = texts[place]
        if text in stays:
            reasons[place] = (DUPLICATE, rows[stays[text]]["id"])
            continue
        for near in index.candidates(signed[place]):
            if (not settings.same_answer or words[order[near]] & words[place]) and index.alike(near, text):
                reasons[place] = (NEAR, rows[order[near]]["id"])
                stays[text] = order[near]
                break
        else:
            stays[text] = place
            index.add(number, text, signed[place])
    return marked(questions, reasons)
