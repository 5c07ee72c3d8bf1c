"""Columns of tables of trajectories that a model judges."""

NEEDED = ["id", "rule", "question", "answers", "answer"]  # what it is told, or told by
GRADES = ("grade", "ungraded")  # what it said, and why it said nothing
