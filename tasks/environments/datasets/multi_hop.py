"""Data sets of questions whose answer needs several passages, which they bring along."""

from nbrl.tasks.environments.datasets.published import Asked, Row


def hotpot_qa(row: Row) -> Asked:
    """HotpotQA (arXiv 1809.09600), of bridges and comparisons. Its own files name the id `_id`."""
    return Asked(row["_id"] if "_id" in row else row["id"], row["question"], [row["answer"]], row["type"])


def two_wiki(row: Row) -> Asked:
    """2WikiMultihopQA (arXiv 2011.01060). Its own files name the id `_id`."""
    return Asked(row["_id"] if "_id" in row else row["id"], row["question"], [row["answer"]], row["type"])


def musique(row: Row) -> Asked | None:
    """MuSiQue (arXiv 2108.00573). Questions that its passages cannot answer are left out; the id begins with the hops."""
    if not row["answerable"]:
        return None
    answers = list(dict.fromkeys([row["answer"], *row["answer_aliases"]]))
    return Asked(row["id"].replace("__", "-"), row["question"], answers, row["id"].partition("_")[0])


def titled_sentences(row: Row) -> list[str]:
    """Passages of HotpotQA and 2WikiMultihopQA: lists of titles and of sentences, or in their own files pairs of both."""
    context = row["context"]
    titled = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
    return [f"{title}: {' '.join(sentence.strip() for sentence in sentences)}" for title, sentences in titled]


def paragraphs(row: Row) -> list[str]:
    """Passages of MuSiQue."""
    return [f"{each['title']}: {each['paragraph_text']}" for each in row["paragraphs"]]
