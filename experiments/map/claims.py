"""Claims of the papers, judged from the map's records: a network with one layer on frozen vectors.

A claim is a list of conditions, each a linear combination of values that must be above 0. It holds
in a place if the 90 % intervals of all conditions lie above 0, does not hold if one lies below 0,
and is undecided otherwise. This is how the rules in verdicts.csv read.
"""

from typing import Any, NamedTuple

import numpy as np

from experiments.map import findings, statistics
from experiments.map.settings import (
    BASELINE,
    FOCAL,
    LOSSES,
    METHODS,
    TEXTS,
    TWO_WEIGHT_DECAYS,
    WEIGHT_DECAYS,
)
from experiments.map.statistics import Place, Records

SPREAD = "abs(log T)"


class Condition(NamedTuple):
    """One condition of a claim: the sum of sign * metric of a loss, plus a shift, is above 0.

    Attributes:
      name: the sum, as it is printed.
      terms: sign, metric and loss.
      shift: a margin of the rule.
      exact: the mean must be above 0, without its interval, and a claim whose mean is not is
        undecided.
    """

    name: str
    terms: tuple[tuple[int, str, str], ...]
    shift: float = 0.0
    exact: bool = False


class Claim(NamedTuple):
    """A claim of claims.csv.

    Attributes:
      title: the claim on this network, in plain words.
      conditions: what must be above 0.
      unit: name and factor of the unit of its values.
      texts: the data sets on which it is tested.
      decays: the weight decays with records of its losses.
    """

    title: str
    conditions: tuple[Condition, ...]
    unit: tuple[str, float] = ("thousandths", 1000)
    texts: tuple[str, ...] = TEXTS
    decays: tuple[float, ...] = WEIGHT_DECAYS

    @property
    def places(self) -> list[Place]:
        """The places in which the claim is tested."""
        return [Place(texts, decay) for texts in self.texts for decay in self.decays]


def _minus(metric: str, first: str, second: str) -> Condition:
    """Require that a metric of `first` is above the metric of `second`."""
    return Condition(f"{metric}: {first} - {second}", ((1, metric, first), (-1, metric, second)))


def _not_worse(loss: str) -> Condition:
    """Require that the error of a loss is less than half a point above cross-entropy."""
    without = _minus("error", BASELINE, loss)
    return without._replace(name=f"{without.name} + 0.5", shift=findings.ERROR_MARGIN)


_POINTS = ("points", 100.0)
_OUT_OF_SCOPE = ("clinc150",)
CLAIMS: dict[str, Claim] = {
    "mukhoti-flsd-outperforms-own": Claim(
        "FLSD-53 has a lower calibration error than cross-entropy, Brier score, MMCE and label"
        " smoothing 0.05, before and after T.",
        tuple(
            _minus(metric, loss, "flsd53")
            for metric in ("ce2_before", "ce2_after")
            for loss in (BASELINE, "brier", "mmce", "label_smoothing")
        ),
    ),
    "mukhoti-temperature-order-own": Claim(
        "T of FLSD-53 is between 0.8 and 1.25, and nearer to 1 than T of cross-entropy and of"
        " MMCE.",
        (
            _minus(SPREAD, BASELINE, "flsd53"),
            _minus(SPREAD, "mmce", "flsd53"),
            Condition("T: flsd53 - 0.8", ((1, "temperature", "flsd53"),), -0.8, exact=True),
            Condition("T: 1.25 - flsd53", ((-1, "temperature", "flsd53"),), 1.25, exact=True),
        ),
        unit=("units", 1.0),
    ),
    "mukhoti-ls-favourable": Claim(
        "Label smoothing 0.05 has a lower calibration error than cross-entropy before T.",
        (_minus("ce2_before", BASELINE, "label_smoothing"),),
    ),
    "mukhoti-ls-005-better-than-01": Claim(
        "Label smoothing 0.05 has a lower calibration error than 0.1 before T.",
        (_minus("ce2_before", "label_smoothing_0.1", "label_smoothing"),),
        decays=TWO_WEIGHT_DECAYS,
    ),
    "mukhoti-accuracy-preserved-own": Claim(
        "FLSD-53 has an error less than half a point above cross-entropy.",
        (_not_worse("flsd53"),),
        unit=_POINTS,
    ),
    "mukhoti-ood-noise-own": Claim(
        "FLSD-53 separates out-of-scope queries better than cross-entropy, before and after T.",
        tuple(_minus(metric, "flsd53", BASELINE) for metric in ("auroc_before", "auroc_after")),
        unit=_POINTS,
        texts=_OUT_OF_SCOPE,
    ),
    "mukhoti-ts-does-not-help-ood": Claim(
        "T raises the AUROC of cross-entropy against out-of-scope queries by less than a point.",
        (
            Condition(
                "auroc of cross_entropy: before - after + 1",
                ((1, "auroc_before", BASELINE), (-1, "auroc_after", BASELINE)),
                0.01,
            ),
        ),
        unit=_POINTS,
        texts=_OUT_OF_SCOPE,
    ),
    "adafocal-error-not-worse": Claim(
        "AdaFocal has an error less than half a point above cross-entropy.",
        (_not_worse("adafocal"),),
        unit=_POINTS,
    ),
    "adafocal-ood-roc": Claim(
        "AdaFocal separates out-of-scope queries better than cross-entropy and FLSD-53, before T.",
        tuple(_minus("auroc_before", "adafocal", loss) for loss in (BASELINE, "flsd53")),
        unit=_POINTS,
        texts=_OUT_OF_SCOPE,
    ),
    "bsce-gra-gradient-beats-loss-own": Claim(
        "Gradient weighting has a lower calibration error than loss weighting before T, for the"
        " weights of focal loss, dual focal loss and BSCE.",
        tuple(
            _minus("ce2_before", loss, gradient)
            for loss, gradient in (
                (FOCAL, "fl_gra"),
                ("dual_focal", "dfl_gra"),
                ("bsce", "bsce_gra"),
            )
        ),
        decays=TWO_WEIGHT_DECAYS,
    ),
}


class Row(NamedTuple):
    """A claim in a place.

    Attributes:
      place: the place.
      temperature: the mean T of cross-entropy.
      error: the mean error of cross-entropy.
      state: one of `findings`; "" if a record is missing.
      condition: the name of the condition that is the least above 0, in standard deviations, among
        those that can give the state.
      value: its value, with the ends of the 90 % interval.
      p: the p-value of the state, two-sided and for all conditions; NaN if a record is missing.
    """

    place: Place
    temperature: float
    error: float
    state: str
    condition: str
    value: tuple[float, float, float]
    p: float


def judge(found: Records, claim: Claim) -> list[Row]:
    """Judge a claim in every place in which cross-entropy has a record."""
    losses = (*LOSSES, *METHODS)
    metrics = {metric for condition in claim.conditions for _, metric, _ in condition.terms}
    options: dict[str, Any] = {"losses": losses, "places": claim.places}
    cells = {
        metric: statistics.cells(found, "temperature", transform=_spread, **options)
        if metric == SPREAD
        else statistics.cells(found, metric, **options)
        for metric in metrics
    }
    first = next(iter(cells.values()))
    estimates = []
    for condition in claim.conditions:
        columns = [(sign, cells[metric], losses.index(of)) for sign, metric, of in condition.terms]
        value = sum(sign * of.means[:, column] for sign, of, column in columns)
        noise = sum(sign * of.noise[:, column] for sign, of, column in columns)
        estimates.append(
            statistics.estimate(
                np.asarray(value) + condition.shift,
                np.asarray(noise) * (not condition.exact),
                first.degrees_of_freedom,
            )
        )
    return [
        _row(found, claim, place, first.temperature[row], [_at(of, row) for of in estimates])
        for row, place in enumerate(first.places)
    ]


def _spread(temperature: np.ndarray) -> np.ndarray:
    return np.abs(np.log(temperature))


def _at(estimate: statistics.Estimate, row: int) -> tuple[float, float, float, float]:
    value, low, high, p = (float(array[row]) for array in estimate)
    return value, low, high, p


def _row(
    found: Records,
    claim: Claim,
    place: Place,
    temperature: float,
    estimates: list[tuple[float, float, float, float]],
) -> Row:
    """Combine the conditions of a claim in a place."""
    error = float(np.mean(found[place.setting(BASELINE)]["values"]["error"]))
    if any(np.isnan(value) for value, *_ in estimates):
        missing = (np.nan, np.nan, np.nan)
        return Row(place, float(temperature), error, "", "", missing, np.nan)
    pairs = zip(claim.conditions, estimates, strict=True)
    with_interval = [of for condition, of in pairs if not condition.exact]
    if all(low > 0 for _, low, _, _ in estimates):
        state = findings.HOLDS
    else:
        below = any(high < 0 for _, _, high, _ in with_interval)
        state = findings.FAILS if below else findings.UNDECIDED
    # One-sided p-values of both directions: that all conditions are above 0, and that one is below.
    holds = max(p / 2 if value > 0 else 1 - p / 2 for value, _, _, p in estimates)
    fails = min(p / 2 if value < 0 else 1 - p / 2 for value, _, _, p in with_interval)
    p = min(1.0, 2 * min(holds, len(with_interval) * fails))
    deciding = [
        k
        for k, condition in enumerate(claim.conditions)
        if not (condition.exact and state == findings.FAILS)
    ]
    number = min(deciding, key=lambda k: _in_deviations(estimates[k]))
    return Row(
        place,
        float(temperature),
        error,
        state,
        claim.conditions[number].name,
        estimates[number][:3],
        p,
    )


def _in_deviations(estimate: tuple[float, float, float, float]) -> float:
    """Return a value in units of half its interval."""
    value, _, high, _ = estimate
    return value / max(high - value, 1e-300)


def adjusted(rows: dict[str, list[Row]]) -> dict[str, np.ndarray]:
    """Adjust the p-values of all places of all claims of a source by Holm's procedure."""
    result: dict[str, np.ndarray] = {}
    for source in dict.fromkeys(name.split("-")[0] for name in rows):
        names = [name for name in rows if name.split("-")[0] == source]
        p = np.array([row.p for name in names for row in rows[name]], float)
        family = sum(len(CLAIMS[name].places) for name in names)
        ends = np.cumsum([len(rows[name]) for name in names])[:-1]
        result |= dict(zip(names, np.split(statistics.holm(p, family), ends), strict=True))
    return result
