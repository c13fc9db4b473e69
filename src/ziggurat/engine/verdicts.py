"""Does a claim hold? One rule for each kind, and none of them knows what we hope for.

A trained claim is a contrast, a weighted sum of arms' means over seeds. Its interval at 95 % is
Welch's: arms may differ in how much seeds matter to them. The claim

    holds             if all of the interval is on the claimed side of 0,
    does not hold     if all of it is on the other side,
    is undecided      if 0 is in it.

Its size is shown beside the paper's, and decides nothing: a miniature's points are not the
paper's. Where it is claimed that there is little difference, all of the interval is within the
margin, or all of it outside. A claim of several contrasts holds if each of them does; that one of
m does not is asked at 95 % for all of them together (Bonferroni).

A ratio holds if nine tenths of it are reached by the slower half of the rounds, too, and does not
if the faster half stays below. A count is exact: it holds within one of the last printed digit,
because papers compare numbers that they had rounded.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

CONFIDENCE = 0.95
REACHED = 0.9  # of a claimed ratio
Word = Literal["holds", "does not hold", "undecided at this scale", "not measured yet"]
HOLDS: Word = "holds"
FAILS: Word = "does not hold"
UNDECIDED: Word = "undecided at this scale"
MISSING: Word = "not measured yet"
WORDS: tuple[Word, ...] = (HOLDS, FAILS, UNDECIDED, MISSING)


@dataclass(frozen=True)
class Interval:
    """What was measured, and between what it lies."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Interval":
        """All of it multiplied."""
        ends = sorted((self.low * factor, self.high * factor))
        return Interval(self.value * factor, *ends)


def contrast(
    weights: Mapping[str, float],
    measured: Mapping[str, Sequence[float]],
    confidence: float = CONFIDENCE,
) -> Interval | None:
    """A weighted sum of means with Welch's interval; None with fewer than two seeds of an arm."""
    if any(len(measured.get(arm, ())) < 2 for arm in weights):
        return None
    value, parts = 0.0, []
    for arm, weight in weights.items():
        value += weight * statistics.fmean(measured[arm])
        n = len(measured[arm])
        parts.append((weight**2 * statistics.variance(measured[arm]) / n, n - 1))
    variance = sum(part for part, _ in parts)
    if not variance:
        return Interval(value, value, value)
    freedom = variance**2 / sum(part**2 / n for part, n in parts)  # Satterthwaite's
    half = quantile((1 + confidence) / 2, freedom) * math.sqrt(variance)
    return Interval(value, value - half, value + half)


def trained(
    contrasts: Sequence[Mapping[str, float]],
    measured: Mapping[str, Sequence[float]],
    within: float | None = None,
) -> tuple[Word, list[Interval | None]]:
    """The verdict on a claim of one or more contrasts, and each one's interval."""
    shown = [contrast(weights, measured) for weights in contrasts]
    strict = 1 - (1 - CONFIDENCE) / len(contrasts)
    wide = [contrast(weights, measured, strict) for weights in contrasts]
    known = [one for one in shown if one is not None]
    if len(known) < len(shown):
        return MISSING, shown
    if all(is_on_side(one, within) for one in known):
        return HOLDS, shown
    if any(one is not None and is_off_side(one, within) for one in wide):
        return FAILS, shown
    return UNDECIDED, shown


def is_on_side(found: Interval, within: float | None) -> bool:
    """All of it is above 0, or within the margin."""
    if within is None:
        return found.low > 0
    return -within < found.low and found.high < within


def is_off_side(found: Interval, within: float | None) -> bool:
    """All of it is below 0, or outside the margin."""
    if within is None:
        return found.high < 0
    return found.low > within or found.high < -within


def ratio(found: Interval, claimed: float, relation: str) -> Word:
    """Whether as much was measured as is claimed, but for a tenth."""
    least, most = REACHED * claimed, claimed / REACHED
    above, below = found.low >= least, found.high <= most
    short, beyond = found.high < least, found.low > most
    match relation:
        case "at least":
            return HOLDS if above else FAILS if short else UNDECIDED
        case "at most":
            return HOLDS if below else FAILS if beyond else UNDECIDED
    return HOLDS if above and below else FAILS if short or beyond else UNDECIDED


def count(found: float, claimed: str, relation: str) -> Word:
    """Whether a counted number is the printed one, or on the claimed side of it."""
    printed = Decimal(claimed)
    unit = float(Decimal(1).scaleb(int(printed.as_tuple().exponent)))
    if relation == "equals":
        agrees = abs(found - float(printed)) <= unit
    else:
        agrees = found >= float(printed) if relation == "at least" else found <= float(printed)
    return HOLDS if agrees else FAILS


# Student's t, as there is no need of a library for one function.


def quantile(share: float, freedom: float) -> float:
    """The value that a share of Student's distribution stays below, for a share above a half."""
    low, high = 0.0, 1.0
    while below(high, freedom) < share:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def below(value: float, freedom: float, steps: int = 200) -> float:
    """The share of Student's distribution below a value from 0 up.

    With t = sqrt(freedom) tan(angle) the density is a power of the cosine: Simpson's rule.
    """
    end = math.atan(value / math.sqrt(freedom))
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    width = end / steps
    heights = [math.cos(i * width) ** (freedom - 1) for i in range(steps + 1)]
    inner = 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return 0.5 + scale * width / 3 * (heights[0] + inner + heights[-1])
