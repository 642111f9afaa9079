"""Fit a target's efficiency to what programs took, measured or by a compiler; it serves `estimate`, never the judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from partir.cost.estimate import Estimate
from partir.cost.kernels import Floats
from partir.cost.target import Efficiency
from partir.errors import TargetError, error_text

UNITS = ("matrix", "vector", "memory")

BOUNDS = ((0.05, 1.0), (0.05, 1.0), (0.05, 1.0), (0.0, 1e-6))
"""What a fit to a compiler's figures may say of matrix, vector and memory (no more than their peaks), and seconds for each
kernel: few programs do not tell all of them apart."""

MEASURED_BOUNDS = ((1e-3, 10.0), (1e-3, 10.0), (1e-3, 10.0), (0.0, 1e-3))
"""The same for measured times: the cores of a host are not those of the datasheet, and a program may use many of them."""

_DATASHEET = (1.0, 1.0, 1.0, 0.0)
_NOTHING = 1e-4
"""How much less error a constant must bring (0.01 %) to be more than the datasheet's."""
_STARTS = ((0.7, 0.5, 0.7, 3e-7), (1.0, 1.0, 1.0, 3e-9))
_FACTORS = (10.0, 3.0, 1.7, 1.3, 1.1, 1.03, 1.01, 1.003)


@dataclass(frozen=True, eq=False)
class Sample:
    """A program that takes `seconds`: what each of its K kernels needs of each unit at the datasheet's peak, `units` [4, K] in
    seconds of a step (the last, reductions, are not fitted), and how often each runs in a step, `runs` [K]."""

    name: str
    seconds: float
    units: Floats
    runs: Floats

    @classmethod
    def of(cls, name: str, seconds: float, estimate: Estimate) -> Sample:
        """A program that takes `seconds` without its collectives, and its estimate."""
        reached = np.array([*([getattr(estimate.target.efficiency, unit)] for unit in UNITS), [1.0]])
        units, runs = estimate.samples
        return cls(name, seconds, units * reached, runs)

    def predicted(self, efficiency: Efficiency) -> float:
        """Seconds that a machine of this efficiency needs, as `estimate` has them."""
        return self.at([getattr(efficiency, unit) for unit in UNITS], efficiency.overhead_seconds)

    def at(self, reached: ArrayLike, overhead: float) -> float:
        """Seconds where the units reach these shares of their peaks [3], with this overhead for each kernel."""
        return float((self.units / np.append(reached, 1.0)[:, None]).max(axis=0).sum() + overhead * self.runs.sum())


def off_by(predicted: float, seconds: float) -> float:
    """How far a prediction is off, the same for too much and too little: 0.25 is a factor of 1.25.

    >>> off_by(125.0, 100.0), off_by(100.0, 125.0)
    (0.25, 0.25)
    """
    return max(predicted, seconds) / min(predicted, seconds) - 1


def fit(samples: Sequence[Sample], fitted_on: str, bounds: Sequence[tuple[float, float]] = BOUNDS) -> Efficiency:
    """The efficiency with the least mean error over the samples: constants are moved together by ever smaller factors.

    The error is the logarithm of predicted to true seconds, so that programs of all sizes count alike. A constant that the
    samples say nothing of stays the datasheet's. `bounds` are the least and most of matrix, vector, memory and overhead; the
    links are not fitted. Raises TargetError without samples, or for ones that take no time.
    """
    nothing = [sample.name for sample in samples if not (sample.seconds > 0 and sample.at((1.0, 1.0, 1.0), 0.0) > 0)]
    if nothing or not samples:
        why = f"{', '.join(nothing)}: no time is taken, or nothing is computed" if nothing else "there are no programs"
        raise TargetError(error_text("cannot fit an efficiency", why=why, hint="larger programs"))

    units = np.concatenate([sample.units for sample in samples], axis=1)
    firsts = np.cumsum([0, *(sample.units.shape[1] for sample in samples[:-1])])
    runs, seconds = np.array([sample.runs.sum() for sample in samples]), np.array([sample.seconds for sample in samples])
    lowest, highest = np.array(bounds).T

    def error(constants: Floats) -> float:
        kernels = (units / np.append(constants[:3], 1.0)[:, None]).max(axis=0)
        return float(np.abs(np.log((np.add.reduceat(kernels, firsts) + constants[3] * runs) / seconds)).mean())

    found = min((np.clip(start, lowest, highest) for start in _STARTS), key=error)
    for factor in _FACTORS:
        steps = np.array([*product((1 / factor, 1.0, factor), repeat=4)])
        while error(moved := min(np.clip(found * steps, lowest, highest), key=error)) < error(found):
            found = moved
    for place, plain in enumerate(_DATASHEET):
        tried = found.copy()
        tried[place] = np.clip(plain, lowest[place], highest[place])
        if error(tried) <= error(found) + _NOTHING:
            found = tried
    matrix, vector, memory, overhead = map(float, found)
    return Efficiency(matrix, vector, memory, overhead_seconds=overhead, fitted_on=fitted_on)
