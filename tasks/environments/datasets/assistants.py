"""Data sets for general assistants, whose questions need several tools."""

from nbrl.tasks.environments.datasets.published import Asked, Row


def gaia(row: Row) -> Asked | None:
    """GAIA (arXiv 2311.12983). None for a question that comes with a file, which only a folder with the files can bring."""
    answer, level = row["Final answer"], str(row["Level"])
    if row["file_name"] or answer.strip() == "?":
        return None
    return Asked(row["task_id"], row["Question"], [answer], f"level_{level}")
