r"""Write the table and the figure of the law of temperatures from the records and the frozen file.

    python -m experiments.map.law_report --records=DIR

DIR has the records of experiments.map.law, and the logits for the differences of losses. The table
and the figure are written to experiments/results/map, as are the records themselves.
"""

import json
import pathlib
from typing import Any

import numpy as np
from absl import app, flags
from scipy import stats

from experiments.map.law import FROZEN, LOSSES, RESULTS, SETS, WEIGHT_DECAYS

_RECORDS = flags.DEFINE_string("records", "", "Folder of the records of experiments.map.law.")
_CONSTANT = {"focal_1": 0.76, "focal_3": 0.58, "bsce_gra": 0.58}  # of the map's text sets
_COLORS = {"focal_1": "#56B4E9", "focal_3": "#0072B2", "bsce_gra": "#D55E00", "adafocal": "#009E73"}
_LOG = tuple[np.ndarray, np.ndarray, np.ndarray]


def interval(by_set: Any) -> tuple[float, float, float]:
    """Return the mean over sets with its 90 % t-interval."""
    values = np.asarray(by_set, float)
    half = np.inf
    if len(values) > 1:
        error = values.std(ddof=1) / np.sqrt(len(values))
        half = float(stats.t.ppf(0.95, len(values) - 1) * error)
    return float(values.mean()), float(values.mean()) - half, float(values.mean()) + half


def log_mean(temperatures: Any) -> np.ndarray:
    """Average log T over the seeds of each place; NaN where a seed has no T."""
    return np.asarray(np.log(np.asarray(temperatures, float)).mean(axis=1))


def law(frozen: dict[str, Any], records: dict[tuple[str, str], Any], loss: str) -> list[_LOG]:
    """Return log T of cross-entropy, predicted and measured, for each set with a record."""
    rows = []
    for name, of_set in frozen.items():
        if (name, loss) in records and loss in of_set["predicted"]:
            predicted = log_mean(of_set["predicted"][loss]["temperature"])
            measured = log_mean(records[name, loss]["values"]["temperature"])
            rows.append((log_mean(of_set["cross_entropy"]["temperature"]), predicted, measured))
    return rows


def law_table(frozen: dict[str, Any], records: dict[tuple[str, str], Any]) -> list[str]:
    """Write a line for each loss: bias, scatter, slope, and both errors."""
    lines = [
        "| loss | sets | places | bias of log(measured / predicted) | scatter | slope |"
        " RMS error | RMS of the constant factor | law |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for loss in LOSSES:
        rows = law(frozen, records, loss)
        if loss == "cross_entropy" or not rows:
            continue
        base, predicted, measured = (np.concatenate(part) for part in zip(*rows, strict=True))
        ratio = measured - predicted
        mean, low, high = interval([np.nanmean(m - p) for _, p, m in rows])
        known = np.isfinite(ratio)
        slope = np.polyfit(predicted[known], measured[known], 1)[0]
        rms, constant = np.sqrt(np.nanmean(ratio**2)), np.nan
        if loss in _CONSTANT:
            constant = np.sqrt(np.nanmean((measured - base - np.log(_CONSTANT[loss])) ** 2))
        state = "-"
        if loss in _CONSTANT:
            state = "holds" if low > -0.2 and high < 0.2 and rms < constant else "does not hold"
        lines.append(
            f"| {loss} | {len(rows)} | {known.sum()} | {mean:.2f} [{low:.2f}, {high:.2f}] |"
            f" {np.nanstd(ratio):.2f} | {slope:.2f} | {rms:.2f} | {constant:.2f} | {state} |"
        )
    return lines


def factor_table(frozen: dict[str, Any], records: dict[tuple[str, str], Any]) -> list[str]:
    """Write T of each set: cross-entropy, then predicted and measured T of each loss."""
    lines = [
        "| set | K | loss | T by weight decay, predicted | measured |",
        "|---|---|---|---|---|",
    ]
    for name, of_set in frozen.items():
        for loss in LOSSES:
            record = records.get((name, loss))
            if record is None:
                continue
            measured = np.exp(log_mean(record["values"]["temperature"]))
            cells = ["", ", ".join(f"{t:.2f}" for t in measured)]
            if loss in of_set["predicted"]:
                predicted = np.exp(log_mean(of_set["predicted"][loss]["temperature"]))
                cells[0] = ", ".join(f"{t:.2f}" for t in predicted)
            lines.append(f"| {name} | {of_set['classes']} | {loss} | {cells[0]} | {cells[1]} |")
    return lines


def method_table(frozen: dict[str, Any], records: dict[tuple[str, str], Any]) -> list[str]:
    """Write root-CE2 in points of matched focal minus that of each other loss."""

    def root(name: str, loss: str, column: str) -> np.ndarray:
        mean = np.asarray(records[name, loss]["values"][column], float).mean(axis=1)
        return np.asarray(100 * np.sqrt(np.maximum(mean, 0)))

    lines = [
        "| matched focal against | sets | root-CE2, matched | the other | difference | rule |",
        "|---|---|---|---|---|---|",
    ]
    for loss, column in (
        *(("focal_3", "ce2"), ("adafocal", "ce2"), ("cross_entropy", "ce2_after")),
        *(("cross_entropy", "ce2"), ("flsd53", "ce2")),
    ):
        sets = [s for s in frozen if (s, loss) in records and (s, "matched") in records]
        if not sets:
            continue
        first = np.stack([root(name, "matched", "ce2") for name in sets])
        second = np.stack([root(name, loss, column) for name in sets])
        mean, low, high = interval((first - second).mean(axis=1))
        rule = {"focal_3": high < 0, "adafocal": high < 0.5}.get(loss)
        state = "-" if rule is None else "holds" if rule else "does not hold"
        label = f"{loss} with T" if column == "ce2_after" else loss
        lines.append(
            f"| {label} | {len(sets)} | {first.mean():.2f} | {second.mean():.2f} |"
            f" {mean:.2f} [{low:.2f}, {high:.2f}] | {state} |"
        )
    return lines


def figure(frozen: dict[str, Any], records: dict[tuple[str, str], Any]) -> None:
    """Draw T of each loss against T of cross-entropy, with the records of the map in grey."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(8, 4.2), layout="constrained")
    panels = drawing.subplots(1, 2, sharex=True, sharey=True)
    of_map: dict[tuple[Any, ...], dict[str, float]] = {}
    for path in sorted(RESULTS.glob("*-*.json")):
        record = json.loads(path.read_text())
        setting = record.get("setting")
        if setting:
            place = setting["texts"], setting["weight_decay"], setting.get("condition", "")
            mean = np.exp(np.log(record["values"]["temperature"]).mean())
            of_map.setdefault(place, {})[setting["loss"]] = float(mean)
    for panel, two in zip(panels, (False, True), strict=True):
        ends = np.array([0.35, 20.0])
        panel.axhspan(np.exp(-0.1), np.exp(0.1), color="#dddddd", label="calibrated")
        panel.plot(ends, ends, color="black", linewidth=0.7, linestyle=":")
        for loss, color in _COLORS.items():
            x, y = [], []
            if not two:
                known = [v for v in of_map.values() if {loss, "cross_entropy"} <= set(v)]
                x = [v["cross_entropy"] for v in known]
                y = [v[loss] for v in known]
                panel.scatter(x, y, s=8, color=color, alpha=0.35, linewidths=0)
            for name, of_set in frozen.items():
                if (of_set["classes"] == 2) == two and (name, loss) in records:
                    x_new = np.exp(log_mean(of_set["cross_entropy"]["temperature"]))
                    y_new = np.exp(log_mean(records[name, loss]["values"]["temperature"]))
                    panel.scatter(x_new, y_new, s=22, color=color, edgecolors="black")
                    x, y = [*x, *x_new], [*y, *y_new]
            if x and loss != "adafocal":
                factor = float(np.exp(np.nanmedian(np.log(np.divide(y, x)))))
                panel.plot(ends, factor * ends, color=color, label=f"{loss}: {factor:.2f} T")
            elif x:
                panel.scatter([], [], color=color, label=loss)
        panel.set(xscale="log", yscale="log", xlim=ends, ylim=(0.25, 20))
        panel.set_title("two classes" if two else "more than two classes", fontsize=10)
        panel.set_xlabel("T of cross-entropy")
        panel.legend(fontsize=7, loc="upper left")
        ticks = [0.5, 1, 2, 4, 8, 16]
        panel.set_xticks(ticks, map(str, ticks))
        panel.set_yticks(ticks, map(str, ticks))
    panels[0].set_ylabel("T of the loss")
    drawing.savefig(RESULTS / "law.png", dpi=110)


def main(_: Any) -> None:
    """Copy the records, and write law.md and law.png."""
    frozen = json.loads(FROZEN.read_text())
    kept = RESULTS / "law-records.json"
    records: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if _RECORDS.value:
        for name in SETS:
            for loss in LOSSES:
                path = pathlib.Path(_RECORDS.value) / f"{name}-{loss}.json"
                if name in frozen and path.exists():
                    records[f"{name} {loss}"] = json.loads(path.read_text())
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in records.items()]
        kept.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    by_pair = {(r["set"], r["loss"]): r for r in records.values()}
    seconds = sum(record["seconds"] for record in records.values())
    text = [
        "# The law of temperatures: frozen predictions and what was measured",
        "Written by `experiments.map.law_report`; the rules are in `experiments/map/law.py`. Weight"
        f" decays: {', '.join(f'{d:g}' for d in WEIGHT_DECAYS)}; three seeds each;"
        f" {len(records)} records, {seconds / 3600:.1f} hours of wall time.",
        "## Predicted and measured temperature",
        "\n".join(law_table(frozen, by_pair)),
        "## Matched focal loss",
        "\n".join(method_table(frozen, by_pair)),
        "## By set",
        "\n".join(factor_table(frozen, by_pair)),
    ]
    (RESULTS / "law.md").write_text("\n\n".join(text) + "\n")
    figure(frozen, by_pair)


if __name__ == "__main__":
    app.run(main)
