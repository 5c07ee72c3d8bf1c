"""The parts of gpu_day.py, one file each. A part is a function that adds measures to a row."""
