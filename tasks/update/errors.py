"""What goes wrong in the update."""


class UpdateError(Exception):
    """An order that cannot be carried out, or a learner that is gone; the message says why in one line."""
