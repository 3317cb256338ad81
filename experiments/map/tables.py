"""The tables of the map's report, as lines of Markdown."""

from collections.abc import Callable, Sequence

import numpy as np

from experiments.map import findings, statistics
from experiments.map.settings import (
    BASELINE,
    FOCAL,
    LOSSES,
    METHODS,
    PARTS,
    TEXTS,
    TWO_WEIGHT_DECAYS,
    WEIGHT_DECAYS,
    Setting,
    settings,
)
from experiments.map.statistics import Cells, Place, Records

BANDS = ("below 0.8", "0.8 to 1.25", "1.25 to 1.8", "above 1.8")
# Metric, title, factor, unit; y is cross-entropy minus loss for all of them.
_METRICS = (
    ("ce2_after", "CE2 after T", 1000, "thousandths"),
    ("error", "Error", 100, "points"),
    ("nll_before", "NLL before T", 1000, "thousandths"),
    ("nll_after", "NLL after T", 1000, "thousandths"),
    ("refinement", "Refinement part of the NLL", 1000, "thousandths"),
    ("auroc_before", "AUROC out of scope before T", 100, "points"),
    ("auroc_after", "AUROC out of scope after T", 100, "points"),
)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a table with empty lines around it."""
    return ["", *(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)), ""]


def _waits(found: Records, wanted: Sequence[Setting], what: str) -> str:
    """State how many settings a result lacks; "" if none."""
    count = findings.lacking(found, wanted)
    return f"{what} lacks {count} of {len(wanted)} settings." if count else ""


def counts(found: Records) -> list[str]:
    """Tabulate how many settings of each part and data set have a record, and their cost."""
    rows = []
    for part in PARTS:
        best = statistics.two_best(found) if part == "conditions" else ()
        wanted = list(settings(part, best=best))
        by_text = [[setting for setting in wanted if setting.texts == texts] for texts in TEXTS]
        cells = [f"{len(of) - findings.lacking(found, of)} of {len(of)}" for of in by_text]
        total = f"{len(wanted) - findings.lacking(found, wanted)} of {len(wanted)}"
        note = " (and two losses that the map chooses)" if part == "conditions" and not best else ""
        hours = sum(found[setting]["seconds"] for setting in wanted if setting in found) / 3600
        rows.append([part + note, total, *cells, f"{hours:.1f}"])
    return table(["part", "settings with a record", *TEXTS, "hours of one core"], rows)


def by_band(found: Records) -> list[str]:
    """Tabulate which loss is the best in each band of T."""
    lines = ["## Which loss at which T", ""]
    whole = {
        title: statistics.cells(found, metric).complete()
        for title, metric in (("root-CE2 before T", "ce2_before"), ("NLL after T", "nll_after"))
    }
    if not any(of.places for of in whole.values()):
        return [*lines, "No place has all twelve losses yet, so no band of T has a best loss.", ""]
    rows = []
    for title, of in whole.items():
        factor = 100 if of.metric.startswith("ce2") else 1000
        for band, name in enumerate(BANDS):
            inside = of.rows(np.flatnonzero(statistics.band_of(of.temperature) == band))
            if not inside.places:
                continue
            scores = inside.scored(inside.means).mean(axis=0)
            drawn = inside.scored(inside.draws()).mean(axis=1)
            best_of_draw = drawn == drawn.min(axis=1, keepdims=True)
            wins = (best_of_draw / best_of_draw.sum(axis=1, keepdims=True)).mean(axis=0)
            order = scores.argsort(kind="stable")[:3]
            best = ", ".join(
                f"{of.losses[k]} {factor * scores[k]:.1f} ({100 * wins[k]:.0f} %)" for k in order
            )
            row = [title, name, str(len(inside.places)), best]
            rows.append([*row, f"{factor * scores[0]:.1f}"])
    note = (
        "The three losses with the lowest mean over the places of a band, with the share of draws"
        " in which each is the best of twelve; equal losses share a draw. Root-CE2 in points, NLL"
        " in thousandths."
    )
    header = ["metric", "T of cross-entropy", "places", "the three best", "cross-entropy"]
    return [*lines, note, *table(header, rows)]


def by_place(found: Records) -> list[str]:
    """Tabulate the best losses of every place, before T."""
    cells = statistics.cells(found, "ce2_before")
    scores = cells.scored(cells.means)
    rows = []
    for row in np.argsort(cells.temperature):
        there = np.flatnonzero(np.isfinite(scores[row]))
        order = there[scores[row, there].argsort(kind="stable")][:3]
        best = ", ".join(f"{cells.losses[k]} {100 * scores[row, k]:.1f}" for k in order)
        place = cells.places[row]
        rows.append(
            [
                *(f"{cells.temperature[row]:.2f}", place.texts, f"{place.weight_decay:g}"),
                *(str(len(there)), best, f"{100 * scores[row, 0]:.1f}"),
            ]
        )
    header = ["T", "data", "weight decay", "losses", "the three best", "cross-entropy"]
    return ["## Every place", "", "Root-CE2 in points, before T.", *table(header, rows)]


def _grid(cells: Cells, texts: Callable[[int, int], str]) -> list[str]:
    """Tabulate a text for each place and each loss but cross-entropy; "" without a record."""
    there = np.isfinite(cells.means)
    losses = [k for k in range(1, len(cells.losses)) if there[:, k].any()]
    rows = [
        [
            place.name,
            f"{cells.temperature[row]:.2f}",
            *(texts(row, k - 1) if there[row, k] else "" for k in losses),
        ]
        for row, place in enumerate(cells.places)
    ]
    return table(["place", "T", *(cells.losses[k] for k in losses)], rows)


def _starred(cells: Cells, family: int) -> list[str]:
    """Tabulate y in thousandths; a star marks p < .05 after Holm's correction."""
    gains = statistics.gains(cells)
    adjusted = statistics.holm(gains.p, family)

    def text(row: int, k: int) -> str:
        return f"{1000 * gains.value[row, k]:+.1f}" + "*" * int(adjusted[row, k] < statistics.LEVEL)

    done = int(np.isfinite(gains.p).sum())
    note = "CE2(cross-entropy) - CE2(loss) before T, in thousandths; * p < .05 after Holm."
    if done < family:
        note += (
            f" {done} of {family} tests have their settings; the others count as p = 1, so a star"
            " stays whatever they give."
        )
    return [note, *_grid(cells, text)]


def tests(found: Records) -> list[str]:
    """Write tests 1 to 4."""
    before, error = (statistics.cells(found, metric) for metric in ("ce2_before", "error"))
    family = (len(LOSSES) - 1) * len(TEXTS) * len(WEIGHT_DECAYS)
    return [
        *("## Test 1: the gain depends on T", "", *_slopes(before)),
        *("## Test 2: the gain of each loss", "", *_starred(before, family)),
        *("## Test 3: FL-3 helps above 1.5 and harms below 0.9", ""),
        *_signs(found, before, list(settings()), family),
        *("## Test 4: which loss is not worse in error", "", *_not_worse(error)),
    ]


def _slopes(cells: Cells) -> list[str]:
    """Tabulate the slope of the gain against log T, with the state of each loss."""
    estimate, adjusted, states = findings.slopes(cells)
    rows = []
    for k, loss in enumerate(cells.losses[1:]):
        row = [loss]
        for value, low, high, p in zip(*(a[:, k] for a in (*estimate[:3], adjusted)), strict=True):
            text = f"{1000 * value:+.1f} [{1000 * low:+.1f}, {1000 * high:+.1f}] p {p:.2g}"
            row.append(text if np.isfinite(value) else "")
        rows.append([*row, states[k] or "lacks settings"])
    done = int(np.isfinite(estimate.value).sum())
    note = "Slope of the gain, in thousandths for each unit of log T, with p after Holm."
    if done < adjusted.size:
        note += f" {done} of {adjusted.size} slopes have their six settings; the others count as 1."
    return [note, *table(["loss", *TEXTS, "state"], rows)]


def _signs(
    found: Records, cells: Cells, wanted: Sequence[Setting], family: int, number: int = 3
) -> list[str]:
    """Write test 3 or test 6."""
    focal = [setting for setting in wanted if setting.loss in (BASELINE, FOCAL)]
    adjusted = statistics.holm(statistics.gains(cells).p, family)
    signs = findings.focal_signs(cells, adjusted, places=len(focal) // 2, family=family)
    missing = _waits(found, focal, f"Test {number}") or (
        f"Test {number} waits for Holm's correction over all settings."
    )
    text = (
        f"{signs.as_stated} of {signs.places} places with such a T have the stated sign,"
        f" {signs.significant} of them significantly."
    )
    return [
        f"The finding {signs.state}: {text}" if signs.state else f"{missing} So far: {text}",
        "",
    ]


def _not_worse(error: Cells) -> list[str]:
    """Count by data set where each loss is not worse, and where it is worse."""
    not_worse, worse = findings.not_worse(error)
    there = np.isfinite(error.means[:, 1:])
    rows = []
    for k, loss in enumerate(error.losses[1:]):
        row = [loss]
        for texts in TEXTS:
            of = np.array([place.texts == texts for place in error.places], bool)
            counts = [int((array[:, k] & of).sum()) for array in (not_worse, there, worse)]
            row.append("{} of {}; {}".format(*counts) if counts[1] else "")
        rows.append(row)
    note = (
        "Settings in which the 90 % interval of error(loss) - error(cross-entropy) ends below half"
        " a point, of those with a record; settings in which it begins above half a point."
    )
    return [note, *table(["loss", *TEXTS], rows)]


def conditions(found: Records) -> list[str]:
    """Write tests 5 to 7."""
    best = statistics.two_best(found)
    wanted = list(settings("conditions", best=best))
    lines = ["## Conditions: size of the training set, label noise, width", ""]
    if findings.lacking(found, wanted) == len(wanted):
        return [*lines, f"None of {len(wanted)} settings has a record yet.", ""]
    places = list(dict.fromkeys(Place(s.texts, s.weight_decay, s.condition) for s in wanted))
    losses = [BASELINE, FOCAL, *best]
    cells = statistics.cells(found, "ce2_before", losses=losses, places=places)
    family = 3 * len(places)
    lines += ["### Test 5: the gain of each loss", "", *_starred(cells, family)]
    lines += ["### Test 6: FL-3 helps above 1.5 and harms below 0.9", ""]
    lines += _signs(found, cells, wanted, family, number=6)
    lines += ["### Test 7: T explains the gain, on whatever cause T depends", ""]
    of_map = [Place(texts, decay) for texts in TEXTS for decay in WEIGHT_DECAYS]
    rows = []
    for loss in losses[1:]:
        needed = [place.setting(of) for place in (*of_map, *places) for of in (BASELINE, loss)]
        if missing := _waits(found, needed, "It"):
            rows.append([loss, "", "", "", "", "", missing])
            continue
        joint = statistics.cells(found, "ce2_before", losses=losses, places=[*of_map, *places])
        test = findings.explained(joint, loss)
        errors = (f"{1000 * value:.1f}" for value in (test.by_decay, test.by_temperature))
        numbers = (str(test.places), str(test.outside), *errors, f"{100 * test.share:.0f} %")
        rows.append([loss, *numbers, test.state])
    if not best:
        rows.append(["two more losses", *[""] * 5, "The map chooses them once it is complete."])
    note = "Root mean squared error of the two predictions of y, in thousandths."
    header = ["loss", "places", "T outside", "same weight decay", "same T", "lower at same T"]
    return [*lines, note, *table([*header, "state"], rows)]


def methods(found: Records) -> list[str]:
    """Write test 8: the gain of the other losses at the two weight decays."""
    wanted = list(settings("methods"))
    lines = ["## The other losses at two weight decays", ""]
    if findings.lacking(found, wanted) == len(wanted):
        return [*lines, f"None of {len(wanted)} settings has a record yet.", ""]
    places = [Place(texts, decay) for texts in TEXTS for decay in TWO_WEIGHT_DECAYS]
    cells = statistics.cells(found, "ce2_before", losses=(BASELINE, *METHODS), places=places)
    lines += ["### Test 8: the gain of each loss", "", *_starred(cells, len(wanted))]
    return lines


def sections(found: Records) -> list[list[str]]:
    """Return the sections of the page in their order."""
    parts = (by_band, tests, by_place, conditions, methods)
    return [counts(found), *(part(found) for part in parts)]
