"""The sigmoid of success over compute, and how high it can rise: R(C) = R0 + (A - R0) / (1 + (Cmid / C)^B).

The form is that of Khatri et al. 2025, The Art of Scaling RL Compute for LLMs (arXiv 2510.13786, equation 1). The fit is least
squares with 0 <= R0 <= A <= 1. The interval of the ceiling A is a percentile bootstrap of the residuals, which are made larger by
sqrt(n / (n - 4)), for a fit of four parameters to n points makes them too small.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbrl.infra.closed import ClosedModel

Floats = NDArray[np.float64]
LEAST = 6  # points
WIDEST = 0.5  # interval of a ceiling that is still worth a number
RESAMPLES = 200
LEVEL = 0.95
SEED = 20
STEEPEST = 10.0  # B
BEYOND = 100.0  # Cmid is at most this many times the largest C
PARAMETERS = 4


class CurvePoint(NamedTuple):
    """A success after so many cumulative sampled tokens."""

    tokens: float
    success: float


class Sigmoid(ClosedModel):
    """The parameters; `middle` (Cmid) is in tokens."""

    start: float
    ceiling: float
    middle: float
    steepness: float

    def at(self, tokens: Sequence[float] | Floats) -> Floats:
        """Return the success after so many tokens."""
        return _curve(
            np.asarray(tokens, dtype=np.float64) / self.middle,
            self.start,
            _share(self.start, self.ceiling),
            0.0,
            self.steepness,
        )


class Fit(ClosedModel):
    """The sigmoid of a curve with the 95 % interval of its ceiling; `why` says why there is no ceiling, if there is none."""

    points: int
    sigmoid: Sigmoid | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def is_determined(self) -> bool:
        return not self.why

    def __str__(self) -> str:
        if self.why or self.sigmoid is None:
            return f"not determined: {self.why}"
        return f"{self.sigmoid.ceiling:.3f} [{self.low:.3f}, {self.high:.3f}]"


def fit(points: Sequence[CurvePoint]) -> Fit:
    """Fit the sigmoid to the points of one curve."""
    if len(points) < LEAST:
        return Fit(points=len(points), why=f"{len(points)} points, and a fit needs {LEAST}")
    tokens, success = (np.asarray([getattr(point, name) for point in points], dtype=np.float64) for name in CurvePoint._fields)
    if tokens.max() <= 0:
        return Fit(points=len(points), why="no tokens were sampled between the points")
    scaled = tokens / tokens.max()
    best = _best(scaled, success, _guesses(success))
    if best is None:
        return Fit(points=len(points), why="the fit found no curve")
    fitted = _curve(scaled, *best)
    sigmoid = Sigmoid(
        start=best[0], ceiling=_ceiling(best), middle=float(np.exp(best[2]) * tokens.max()), steepness=float(best[3])
    )
    residuals = (success - fitted) * np.sqrt(len(points) / (len(points) - PARAMETERS))
    spread = float(np.sqrt(np.mean(residuals**2)))
    found = {"points": len(points), "sigmoid": sigmoid}
    if np.ptp(fitted) <= max(2 * spread, 1e-3):
        return Fit(**found, why="the curve rises no more than it scatters")
    low, high = _interval(scaled, fitted, residuals - residuals.mean(), best)
    why = f"its interval is [{low:.2f}, {high:.2f}]" if high - low > WIDEST else ""
    return Fit(**found, low=low, high=high, why=why)


def _curve(scaled: Floats, start: float, share: float, log_middle: float, steepness: float) -> Floats:
    """Return the sigmoid, also at no tokens; `share` is what the ceiling takes of the way from the start to 1."""
    with np.errstate(divide="ignore"):
        logit = steepness * (np.log(scaled) - log_middle)
    risen: Floats = start + share * (1 - start) / (1 + np.exp(np.clip(-logit, -500, 500)))
    return risen


def _share(start: float, ceiling: float) -> float:
    return (ceiling - start) / (1 - start) if start < 1 else 0.0


def _ceiling(parameters: Floats) -> float:
    start, share = parameters[:2]
    return float(start + share * (1 - start))


def _guesses(success: Floats) -> list[Floats]:
    """Return where to begin: a bend early, in the middle and beyond the end of the curve."""
    start, top = float(np.clip(success[0], 0.0, 0.95)), float(np.clip(success.max(), 0.0, 1.0))
    share = float(np.clip(_share(start, top), 0.05, 0.95))
    return [np.array([start, share, np.log(middle), 2.0]) for middle in (0.15, 0.5, 2.0)]


_LOWEST = np.array([0.0, 0.0, np.log(1e-4), 0.1])
_HIGHEST = np.array([1.0, 1.0, np.log(BEYOND), STEEPEST])


def _best(scaled: Floats, success: Floats, guesses: Sequence[Floats]) -> Floats | None:
    """Return the parameters with the smallest squared error that one of the guesses leads to."""
    from scipy.optimize import OptimizeWarning, curve_fit

    fits: list[tuple[float, Floats]] = []
    for guess in guesses:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", OptimizeWarning)  # a covariance that cannot be estimated; it is not used
                within = np.clip(guess, _LOWEST + 1e-6, _HIGHEST - 1e-6)
                parameters, _ = curve_fit(_curve, scaled, success, within, bounds=(_LOWEST, _HIGHEST), max_nfev=400)
        except RuntimeError:  # it did not converge
            continue
        fits.append((float(np.sum((_curve(scaled, *parameters) - success) ** 2)), parameters))
    return min(fits, key=lambda each: each[0])[1] if fits else None


def _interval(scaled: Floats, fitted: Floats, residuals: Floats, best: Floats) -> tuple[float, float]:
    """Return percentiles of ceilings fitted to resampled residuals, with the estimate between; always the same draws."""
    draws, ceilings, late = np.random.default_rng(SEED), [_ceiling(best)], _guesses(fitted)[-1]
    for _ in range(RESAMPLES):
        again = _best(scaled, fitted + draws.choice(residuals, len(residuals)), [best, late])
        if again is not None:
            ceilings.append(_ceiling(again))
    low, high = np.quantile(ceilings, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return min(float(low), ceilings[0]), max(float(high), ceilings[0])
