r"""Write the map's table and figure from its records.

    python -m experiments.map.report [--records=FOLDER] [--page=FOLDER]

It writes map.md, map.png and map.svg. Weight decays that lack a loss are left out and named, and
the rule waits for the records of all three data sets.
"""

import pathlib
from typing import Any

import numpy as np
from absl import flags

from calib_jax import plots
from calib_jax.core.files import writing
from experiments.map import records, statistics
from experiments.map.settings import settings
from experiments.running import cli

_PAGE = flags.DEFINE_string("page", str(records.FOLDER), "Folder of the table and the figure.")
_MARKERS = {
    "banking77": ("o", "#0072B2"),
    "clinc150": ("s", "#D55E00"),
    "newsgroups": ("^", "#009E73"),
}
_BANDS = ("below 0.8", "0.8 to 1.25", "1.25 to 1.8", "above 1.8")


def read_all(folder: pathlib.Path) -> statistics.Records:
    """Read all records of a folder."""
    found = ((setting, records.read(folder, setting)) for setting in settings())
    return {setting: record for setting, record in found if record is not None}


def page(found: statistics.Records) -> str:
    """Write the tables of the map."""
    before, after = (statistics.cells(found, f"ce2_{when}") for when in ("before", "after"))
    lines = [
        "# The map",
        "",
        f"Written by `python -m experiments.map.report` from {len(found)} of"
        f" {len(list(settings()))} settings; {len(before.places)} of 18 pairs of a data set and a"
        " weight decay have all losses. The rules are in `experiments/map/README.md`.",
        "",
        *_best(before),
        *_ranks(before),
        *_gains(before),
        *_slopes(before),
        *_regret(before, after),
    ]
    return "\n".join(lines) + "\n"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["", *(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)), ""]


def _best(found: statistics.Cells) -> list[str]:
    """Tabulate which loss has the lowest root-CE2 at which T, with all losses beside it."""
    scores, _ = found.scores()
    rows = []
    for row in np.argsort(found.temperature):
        order = scores[row].argsort()
        texts, weight_decay = found.places[row]
        best = ", ".join(f"{found.losses[k]} {100 * scores[row, k]:.1f}" for k in order[:3])
        rows.append(
            [
                *(f"{found.temperature[row]:.2f}", texts, f"{weight_decay:g}", best),
                f"{100 * scores[row, 0]:.1f}",
            ]
        )
    header = ["T of cross-entropy", "data", "weight decay", "the three best", "cross-entropy"]
    return ["## Which loss at which T", "", "Root-CE2 in points, before T.", *_table(header, rows)]


def _ranks(found: statistics.Cells) -> list[str]:
    """Tabulate the mean rank of each loss in each band of T."""
    columns = {}
    for band, name in enumerate(_BANDS):
        rows = np.flatnonzero(statistics.band_of(found.temperature) == band)
        if rows.size:
            of_band = found._replace(means=found.means[rows], draws=found.draws[:, rows])
            columns[f"T {name} ({rows.size})"] = statistics.ranks(of_band)
    body = [
        [loss, *(f"{m[k]:.1f} [{low[k]:.1f}, {high[k]:.1f}]" for m, low, high in columns.values())]
        for k, loss in enumerate(found.losses)
    ]
    note = "Mean rank of CE2 before T, 1 is best, with 90 % of the draws; (places)."
    return ["## Ranks", "", note, *_table(["loss", *columns], body)]


def _gains(found: statistics.Cells) -> list[str]:
    """Tabulate y of every cell; a star marks Holm-adjusted p < .05."""
    gains = statistics.gains(found)
    stars = statistics.holm(gains.p) < statistics.LEVEL
    rows = [
        [
            f"{texts} {weight_decay:g}",
            f"{found.temperature[row]:.2f}",
            *(
                f"{1000 * value:+.1f}{'*' * int(star)}"
                for value, star in zip(gains.value[row], stars[row], strict=True)
            ),
        ]
        for row, (texts, weight_decay) in enumerate(found.places)
    ]
    note = "CE2(cross-entropy) - CE2(loss) before T, in thousandths; * p < .05 after Holm."
    return ["## Gains", "", note, *_table(["place", "T", *found.losses[1:]], rows)]


def _slopes(found: statistics.Cells) -> list[str]:
    """Tabulate the slope of the gain against log T, for data sets with three places or more."""
    texts = [name for name in _MARKERS if len(found.of((name,)).places) > 2]
    if not texts:
        return []
    by_text = [statistics.slopes(found.of((name,))) for name in texts]
    adjusted = statistics.holm(np.stack([slopes.p for slopes in by_text]))
    rows = [
        [
            loss,
            *(
                f"{1000 * s.value[k]:+.1f} [{1000 * s.low[k]:+.1f}, {1000 * s.high[k]:+.1f}]"
                f" p {adjusted[place, k]:.2g}"
                for place, s in enumerate(by_text)
            ),
        ]
        for k, loss in enumerate(found.losses[1:])
    ]
    note = "Slope of the gain, in thousandths for each unit of log T, with p after Holm."
    return ["## Slopes", "", note, *_table(["loss", *texts], rows)]


def _regret(before: statistics.Cells, after: statistics.Cells) -> list[str]:
    """State the rule and its regret, once all three data sets have records."""
    if len({texts for texts, _ in before.places}) < len(_MARKERS):
        return ["## The rule", "", "The records of one data set or more are missing.", ""]
    chosen, regrets, share = statistics.regrets(before, after)
    losses = [[f"T {_BANDS[band]}", before.losses[k]] for band, k in sorted(chosen.items())]
    rows = [
        [name, f"{100 * r.value:.2f}", f"[{100 * r.low:.2f}, {100 * r.high:.2f}]"]
        for name, r in regrets.items()
    ]
    return [
        "## The rule",
        "",
        f"Made on {' and '.join(statistics.MADE_ON)}, tested on {statistics.TESTED_ON}: its regret"
        f" is lower than that of the single best loss in {100 * share:.0f} % of the draws.",
        *_table(["band", "loss"], losses),
        *_table(["choice", "regret, points of root-CE2", "90 %"], rows),
    ]


def figure(found: statistics.Cells) -> Any:
    """Draw the gain of each loss against T of cross-entropy, one panel for each loss."""
    from matplotlib.figure import Figure

    gains = statistics.gains(found)
    others = found.losses[1:]
    across = 4
    down = -(-len(others) // across)
    drawing = Figure(figsize=(10, 2.4 * down + 0.6), layout="constrained")
    panels = drawing.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for number, panel in enumerate(panels):
        if number >= len(others):
            panel.set_axis_off()
            continue
        panel.axhline(0, color="black", linewidth=0.6)
        panel.axvline(1, color="black", linewidth=0.6, linestyle=":")
        for texts, (marker, color) in _MARKERS.items():
            rows = [row for row, place in enumerate(found.places) if place[0] == texts]
            rows.sort(key=lambda row: found.temperature[row])
            if not rows:
                continue
            value, low, high = (
                1000 * array[rows, number] for array in (gains.value, gains.low, gains.high)
            )
            panel.errorbar(
                found.temperature[rows],
                value,
                yerr=(value - low, high - value),
                marker=marker,
                color=color,
                markersize=4,
                linewidth=1,
                label=texts,
            )
        panel.set_xscale("log", base=2)
        panel.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
        panel.set_title(others[number], fontsize=10)
    panels[0].legend(fontsize=8, frameon=False)
    drawing.supxlabel("temperature that cross-entropy needs")
    drawing.supylabel("CE2(cross-entropy) - CE2(loss), in thousandths")
    return drawing


def main() -> int:
    """Write the table and the figure."""
    folder, out = pathlib.Path(records.IN.value), pathlib.Path(_PAGE.value)
    found = cli.refusing(read_all, folder)
    text = cli.refusing(page, found)
    out.mkdir(parents=True, exist_ok=True)
    with writing.replacing(out / "map.md") as path:
        path.write_text(text, encoding="utf-8")
    drawing = figure(statistics.cells(found, "ce2_before"))
    for name in ("map.png", "map.svg"):
        plots.save(drawing, out / name)
    print(f"written to {out}: map.md, map.png, map.svg, from {len(found)} settings.")
    return 0


if __name__ == "__main__":
    cli.run(main)
