"""Losses of single sampled tokens. Each gives [N] losses and, where it has a bound, [N] flags of the tokens that met it."""
