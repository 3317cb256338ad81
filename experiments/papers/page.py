"""The first page of the results on the papers, and its figure, from two CSV files."""

import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calib_jax import plots
from experiments.papers import verdicts
from experiments.papers.verdicts import SOURCES, STATES, TRAINED, WHOLE, Finding, Verdict

if TYPE_CHECKING:
    import matplotlib.figure

FIGURE = "findings.png"
AS_STATED, OPPOSITE, OPEN = "as stated", "opposite", "open"
COLORS = {AS_STATED: "#1b7837", OPPOSITE: "#b2182b"}
SEEDS = 3

HEAD = f"""# Claims of five papers, tested on small networks

`python -m experiments.papers --page` writes this page from `verdicts.csv`, which has all 153
claims, and `findings.csv`. The software and every record of a run stand at commit
`{WHOLE}`.

*Here* is the effect in points with its 90 % interval over seeds and test examples; positive is as
the sentence states. Effects on calibration are differences of root-CE2, the root of the debiased
squared calibration error; published ones are differences of the ECE, without interval. A row is
*as stated* if its interval lies above 0, *opposite* if it lies below. The *claim* can have more
parts than a row: it holds if the intervals of all parts lie above 0 and the two-sided p after
Holm's method within the paper is at most .05. Fewer than three seeds give no verdict. Networks with
an error of 90 % or more are in no comparison. The temperature of *after a temperature* is the
papers': of .1, .2, ..., 10 the one with the least validation ECE. *T* of cross-entropy in the same
setting minimises the validation NLL.

All networks are smaller than those of the papers and err more: a state says what these networks
show, for or against a claim. They are ResNet-8 of width 16 on 10,000 images of CIFAR-10 (40 epochs)
or on its long tail (11,101 images); a global pooling CNN (22 epochs) and a MiniLM (2 epochs) on 20
Newsgroups; a DeepLab of .6 million parameters on 367 scenes of CamVid (60 epochs).
"""
FIGURE_TEXT = """The left axis has our networks, which err 32 to 51 %; the right one, on another
scale, the papers' networks, which err about 5 % on CIFAR-10.
"""


def write(folder: pathlib.Path) -> pathlib.Path:
    """Write the page and the figure into a folder that has the data."""
    found, known = verdicts.findings(folder), verdicts.read(folder)
    plots.save(figure([f for f in found if f.of_calibration == "yes"]), folder / FIGURE, dpi=100)
    path = folder / "README.md"
    path.write_text(text(found, list(known.values())), encoding="utf-8")
    return path


def text(found: Sequence[Finding], known: Sequence[Verdict]) -> str:
    """Format the page."""
    parts = [HEAD, f"![Differences of calibration errors, here and published]({FIGURE})"]
    parts.append(FIGURE_TEXT)
    for source, title in SOURCES.items():
        page = source.replace("-", "_")
        rows = [f for f in found if f.claim.startswith(f"{source}-")]
        table = [["finding", "here", "published", "network; seeds; error; T", "row; claim"]]
        table += [[f.finding, _here(f), _published(f), _network(f), _state(f)] for f in rows]
        parts.append(f"## [{title}]({page}.md)\n\n{_table(table)}")
    parts.append(f"## All claims\n\n{_counts(known)}")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _here(finding: Finding) -> str:
    if not finding.effect:
        return ""
    effect, low, high = map(float, (finding.effect, finding.low, finding.high))
    return f"{effect:.1f} [{low:.1f}, {high:.1f}]"


def _row(finding: Finding) -> str:
    """Return what the interval of the row says; nothing for a count, or with few seeds."""
    if not finding.effect or int(finding.seeds) < SEEDS:
        return ""
    if float(finding.low) > 0:
        return AS_STATED
    return OPPOSITE if float(finding.high) < 0 else OPEN


def _state(finding: Finding) -> str:
    """Format the states of the row and of the whole claim.

    >>> row = Finding("", "", "2", "1", "3", *7 * [""], "", *4 * [""])
    >>> _state(row._replace(seeds="3", state="undecided"))
    'as stated; claim undecided'
    """
    row = _row(finding)
    if row:
        return f"{row}; claim {finding.state}"
    return "no verdict" if finding.effect else f"claim {finding.state}"


def _published(finding: Finding) -> str:
    if finding.counted:
        return f"{finding.counted} rows"
    return f"{finding.published} ({finding.published_for})" if finding.published else ""


def _network(finding: Finding) -> str:
    if not finding.data:
        return finding.network
    parts = [f"{finding.network}, {_data(finding)}", _seeds(finding)]
    parts += [f"{float(e):.0f} %" for e in [finding.error] if e]
    parts += [f"T {t}" for t in [finding.temperature] if t]
    return "; ".join(parts)


def _data(finding: Finding) -> str:
    """Return the data set: '10,000 images of CIFAR-10, 40 epochs' is CIFAR-10."""
    name = finding.data.split(" of ", 1)[-1].split(",")[0]
    return f"long tail of {name}" if "long-tailed" in finding.data else name


def _seeds(finding: Finding) -> str:
    return f"{finding.seeds} seed{'s' * (finding.seeds != '1')}"


def _counts(known: Sequence[Verdict]) -> str:
    """Count the states by kind, and of claims about trained networks by source."""
    states = (*STATES, "mostly")
    trained = [v for v in known if v.kind == TRAINED]
    groups = [(f"{TRAINED}: {SOURCES[v.source]}", v.state) for v in trained]
    groups += [(f"{TRAINED}: all", v.state) for v in trained]
    groups += [(v.kind, v.state) for v in known if v.kind != TRAINED]
    numbers, names = Counter(groups), dict.fromkeys(name for name, _ in groups)
    table = [["kind", *states]]
    table += [[name, *(str(numbers[name, state] or "") for state in states)] for name in names]
    return _table(table)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


def figure(found: Sequence[Finding]) -> "matplotlib.figure.Figure":
    """Draw the effects on calibration with state, seeds and network of each row."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(11.5, 0.42 * len(found) + 1.3), layout="constrained")
    here, published = drawn.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    labels = []
    for place, finding in enumerate(found):
        effect, low, high = map(float, (finding.effect, finding.low, finding.high))
        color = COLORS.get(_row(finding), "0.45")
        here.plot([low, high], [place, place], color=color, linewidth=1.5)
        here.plot(effect, place, "o", color=color, markersize=4)
        if finding.published:
            published.plot(float(finding.published), place, "D", color="0.2", markersize=4)
        labels.append(
            f"{finding.finding}\n{_state(finding)}; {_seeds(finding)}; {finding.network},"
            f" {_data(finding)}, {float(finding.error):.0f} % error"
        )
    here.set_yticks(range(len(found)), labels, fontsize=7)
    here.set_ylim(len(found) - 0.5, -0.5)
    for axes, title in (
        (here, "here, 32 to 51 % error:\npoints of root-CE2, 90 % interval"),
        (published, "published, 5 % error on CIFAR-10:\npoints of ECE, another scale"),
    ):
        axes.axvline(0.0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_title(title, fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.grid(axis="y", color="0.92", linewidth=0.5)
        axes.set_axisbelow(True)
    return drawn
