r"""Write the tables of the law's page and its figure from the records.

    python -m experiments.map.report [--records=DIR]

The tables stand in README.md between comments that name them, the figure is
`experiments/results/map/law.png`. With --records, the records of `experiments.map.law` in DIR are
copied to `experiments/results/map/law-records.json` first.
"""

import json
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import app, flags

from experiments.map import figure, points
from experiments.map.heads import CONSTANT, LOSSES, NAMES, PREDICTED
from experiments.map.law import FROZEN, MORE, TRANSFER, path_of
from experiments.map.networks import NETWORKS
from experiments.map.points import Point, agreement, interval, values_of
from experiments.map.settings import BASELINE, RECORDS, RESULTS, read, write

PAGE = pathlib.Path(__file__).parent / "README.md"
KEPT = RESULTS / "law-records.json"
ALL_SEEDS = ("", "more")
FIRST = ("sst2", "sst5", "cifar10", "cifar5", "cifar2")  # the sets of the first complete pass

_RECORDS = flags.DEFINE_string("records", "", "Folder of the records of experiments.map.law.")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float, digits: int = 2) -> str:
    """Write a number without a leading zero.

    >>> number(-0.153), number(1.5), number(float("nan"))
    ('-.15', '1.50', '-')
    """
    if not np.isfinite(value):
        return "-"
    text = f"{value:.{digits}f}"
    if not float(text):
        text = text.lstrip("-")
    return re.sub(r"^(-?)0\.", r"\1.", text)


def ranged(values: tuple[float, float, float], digits: int = 2) -> str:
    """Write a value with its interval, if it has one."""
    value, low, high = (number(of, digits) for of in values)
    return f"{value} [{low}, {high}]" if low != "-" else value


def alive(found: Iterable[Point], loss: str) -> list[Point]:
    """Select the points of a loss whose networks learned something."""
    return [p for p in found if p.loss == loss and not p.dead]


def law(found: Sequence[Point], of_all_seeds: Sequence[Point] = ()) -> str:
    """Write the frozen predictions beside the measured temperatures of the new sets."""
    with_more = {loss for loss, _ in MORE}
    rows = []
    for loss in PREDICTED:
        of = alive(found, loss)
        if not of:
            continue
        all_of = agreement(of, over_groups=True)
        constant, five, state = np.nan, "-", "no rule"
        if loss in with_more and of_all_seeds:
            five = ranged(agreement(alive(of_all_seeds, loss), over_groups=True).bias)
        if loss in CONSTANT:
            errors = [p.measured - p.base - np.log(CONSTANT[loss]) for p in of]
            constant = np.sqrt(np.nanmean(np.square(errors)))
            _, low, high = all_of.bias
            holds = low > -0.2 and high < 0.2 and all_of.rms < constant
            state = "holds" if holds else "does not hold"
        rows.append(
            [
                *(NAMES[loss], f"{all_of.groups}; {all_of.places}", ranged(all_of.bias)),
                *(number(all_of.scatter), number(all_of.slope), number(all_of.rms)),
                *(number(constant), five, state),
            ]
        )
    header = ["loss", "sets; places", "bias", "scatter", "slope", "RMS"]
    return table([*header, "RMS of one factor", "bias, five seeds", "rule"], rows)


def of_map(found: Sequence[Point]) -> str:
    """Write the same for the settings of the map, with intervals over settings."""
    rows = []
    for loss in PREDICTED:
        known = [p for p in alive(found, loss) if np.isfinite(p.predicted)]
        if not known:
            continue
        of = agreement(known)
        rows.append(
            [
                *(NAMES[loss], str(of.places), ranged(of.bias)),
                *(number(of.scatter), number(of.slope), number(of.rms)),
            ]
        )
    return table(["loss", "settings", "bias", "scatter", "slope", "RMS"], rows)


def factors(found: Sequence[Point]) -> str:
    """Write T(loss) / T(cross-entropy) by the number of classes, predicted and measured."""
    groups: dict[str, Callable[[Point], bool]] = {
        "K = 2": lambda p: p.classes == 2,
        "K = 10": lambda p: p.classes == 10,
        "K = 77 to 200": lambda p: p.classes >= 77,
    }
    rows = []
    for loss in (*PREDICTED, "adafocal", "mmce"):
        row = [NAMES[loss]]
        for chosen in groups.values():
            of = [p for p in alive(found, loss) if chosen(p) and p.source != "published"]
            of = [p for p in of if np.isfinite(p.measured)]
            theory = [np.exp(p.predicted - p.base) for p in of if np.isfinite(p.predicted)]
            if not of:
                row += ["", ""]
                continue
            mean = np.exp(interval(p.measured - p.base for p in of))
            row += [number(float(np.mean(theory))) if theory else "-", ranged(tuple(mean))]
        if any(row[1:]) and loss != BASELINE:
            rows.append(row)
    header = [part for name in groups for part in (f"{name}: theory", "measured")]
    return table(["loss", *header], rows)


def networks(found: Sequence[Point]) -> str:
    """Write predicted and measured T of full networks."""
    rows = []
    for name in dict.fromkeys(p.group for p in found):
        of = [p for p in found if p.group == name and p.loss in (*PREDICTED, "adafocal", "mmce")]
        cells = [
            f"{NAMES[p.loss]} {number(np.exp(p.predicted))}, {number(np.exp(p.measured))}"
            for p in of
        ]
        row = [name, str(of[0].classes), number(float(np.exp(of[0].base)))]
        rows.append([*row, "; ".join(cells)])
    return table(["network", "K", "T", "loss: predicted, measured T"], rows)


def published(found: Sequence[Point]) -> str:
    """Write the factors that follow from published temperatures."""
    groups, rows = (2, 10, 20, 100, 200, 1000), []
    for loss in ("focal_3", "flsd53", "adafocal", "brier", "label_smoothing", "mmce"):
        row = [NAMES[loss]]
        for classes in groups:
            of = sorted(
                p.measured - p.base for p in found if (p.loss, p.classes) == (loss, classes)
            )
            ends = (
                dict.fromkeys(number(float(np.exp(end))) for end in (of[0], of[-1])) if of else ()
            )
            row.append(f"{' to '.join(ends)} ({len(of)})" if of else "")
        rows.append(row)
    return table(["loss", *(f"K = {classes:,}" for classes in groups)], rows)


def _root(values: Mapping[str, np.ndarray], column: str) -> np.ndarray:
    return np.asarray(100 * np.sqrt(np.maximum(values[column].mean(axis=1), 0)))


def method(frozen: Mapping[str, Any], records: Mapping[str, Any]) -> str:
    """Write matched focal beside the other methods, and the frozen comparisons."""
    rows, matched = [], {}
    for label, loss, after in (
        *(("matched focal", "matched", ""), ("cross-entropy", BASELINE, "")),
        *(("cross-entropy with T", BASELINE, "_after"), ("FL-3", "focal_3", "")),
        *(("FLSD-53", "flsd53", ""), ("AdaFocal", "adafocal", "")),
    ):
        of_sets, differences, dead = [], {}, 0
        for name in frozen:
            values = values_of(records, name, loss, *ALL_SEEDS)
            if values is None:
                continue
            most = 0.9 * (1 - 1 / frozen[name]["classes"])
            live = values_of(records, name, BASELINE)["error"].mean(axis=1) <= most
            if not live.any():
                continue
            dead += int((values["error"].mean(axis=1)[live] > most).sum())
            columns = {
                "error": 100 * values["error"].mean(axis=1),
                "nll": values[f"nll{after}"].mean(axis=1),
                "ce2": _root(values, f"ce2{after}"),
                "ce2_after": _root(values, "ce2_after"),
                "auroc": 100 * values["auroc"].mean(axis=1),
            }
            of_sets.append([of[live].mean() for of in columns.values()])
            if loss == "matched":
                matched[name] = columns["ce2"][live]
            elif name in matched:
                differences[name] = (matched[name] - columns["ce2"][live]).mean()
        if not of_sets:
            continue
        means = [number(of, 2 if k == 1 else 1) for k, of in enumerate(np.mean(of_sets, axis=0))]
        cells = []
        for chosen in (FIRST, tuple(differences)):
            of = [differences[name] for name in chosen if name in differences]
            if not of:
                cells.append("")
                continue
            difference = interval(of)
            rule = {"FL-3": difference[2] < 0, "AdaFocal": difference[2] < 0.5}.get(label)
            state = "" if rule is None else "; holds" if rule else "; does not hold"
            cells.append(ranged(difference, 1) + state)
        trainings = "2" if loss == "matched" else "1"
        rows.append([label, f"{len(of_sets)}; {dead}", *means, trainings, *cells])
    header = ["method", "sets; dead", "error %", "NLL", "root-CE2", "after T", "AUROC", "trainings"]
    return table([*header, "matched focal minus it: first 5 sets", "all sets"], rows)


def limits(new: Sequence[Point], of_map: Sequence[Point], one_epoch: Sequence[Point]) -> str:
    """Write where predictions fail: the bias of four losses under each condition."""
    places: dict[str, Sequence[Point]] = {
        "T below .7 (map)": [p for p in of_map if p.base < np.log(0.7)],
        "3/10 of the labels wrong (map)": [p for p in of_map if "noise0.3" in p.place],
        "2,000 examples (map)": [p for p in of_map if "size2000" in p.place],
        "one epoch (new sets)": one_epoch,
        "T above 4 (new sets)": [p for p in new if p.base > np.log(4)],
    }
    rows = []
    for name, of in places.items():
        row = [name]
        for loss in ("focal_3", "bsce_gra", "label_smoothing", "brier"):
            known = [p for p in alive(of, loss) if np.isfinite(p.measured - p.predicted)]
            row.append(f"{ranged(agreement(known).bias)}; {len(known)}" if known else "")
        rows.append(row)
    return table(["where", "FL-3", "BSCE-GRA", "label smoothing", "Brier"], rows)


def transfer(frozen: Mapping[str, Any], records: Mapping[str, Any]) -> str:
    """Write gamma, T and root-CE2 of matched focal by the training that chose gamma."""
    rows = []
    for name in frozen:
        cells = [name]
        for variant, chosen in (("", ""), ("tenth", "by_tenth"), ("small", "by_small")):
            values = values_of(records, name, "matched", chosen)
            source = records.get(f"{name} {BASELINE} {variant}") if variant else frozen[name]
            if values is None or source is None:
                break
            gamma = np.mean([gamma for gamma, _ in source["matched"]])
            t = np.exp(np.nanmean(np.log(values["temperature"])))
            root = _root(values, "ce2").mean()
            cells.append(f"{number(float(gamma), 1)}; {number(float(t))}; {number(root, 1)}")
        else:
            rows.append(cells)
    return table(["set", "whole training", "tenth of the schedule", "16 hidden units"], rows)


def tables() -> dict[str, str]:
    """Write all tables by name."""
    frozen, records = read(FROZEN), read(KEPT)
    new, of_the_map = points.of_sets(frozen, records), points.of_map(read(RECORDS))
    full = points.of_networks(read(NETWORKS))
    return {
        "law": law(new, points.of_sets(frozen, records, *ALL_SEEDS)),
        "map": of_map(of_the_map),
        "factors": factors([*new, *of_the_map, *full]),
        "networks": networks(full),
        "published": published(points.published()),
        "method": method(frozen, records),
        "limits": limits(new, of_the_map, points.of_variant(records, "epoch")),
        "transfer": transfer(frozen, records),
    }


def filled(page: str, of: Mapping[str, str]) -> str:
    """Put the tables between their comments."""
    for name, text in of.items():
        pattern = rf"(<!-- table: {name} -->\n).*?<!-- end -->"
        if len(parts := re.split(pattern, page, flags=re.S)) != 3:
            raise ValueError(f"{PAGE} must have one place for the table {name}.")
        page = f"{parts[0]}<!-- table: {name} -->\n{text}\n<!-- end -->{parts[2]}"
    return page


def main(_: Any) -> None:
    """Copy the records, and write the tables and the figure."""
    if _RECORDS.value:
        records = read(KEPT)
        pairs = [*((loss, "") for loss in LOSSES), *MORE, *TRANSFER]
        for name in read(FROZEN):
            for loss, variant in pairs:
                path = path_of(pathlib.Path(_RECORDS.value), name, loss, variant)
                if path.exists():
                    key = " ".join(filter(None, (name, loss, variant)))
                    records[key] = json.loads(path.read_text())
        write(KEPT, records)
    PAGE.write_text(filled(PAGE.read_text(), tables()))
    figure.draw(
        [*points.of_sets(read(FROZEN), read(KEPT)), *points.of_map(read(RECORDS))],
        points.of_networks(read(NETWORKS)),
        RESULTS / "law.png",
    )


if __name__ == "__main__":
    app.run(main)
