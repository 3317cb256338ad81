"""The training benchmark as a page of text, made of its JSON alone.

    python -m experiments.benchmarks.training_page FILE.json FILE.md

The benchmark writes it with --page; this writes it again, once a sentence has changed.
"""

import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from experiments.benchmarks import training_reasons

Row = dict[str, Any]
Found = dict[str, Any]

KEPT, MISSED, OPEN = "kept", "**missed**", "open"


def page(found: Found) -> str:
    """Lay all that was measured out as Markdown."""
    rows: dict[str, list[Row]] = {}
    for row in found["results"]:
        rows.setdefault(row["task"], []).append(row)
    parts = [_head(found)]
    for task, (title, lay) in _PARTS.items():
        if task in rows:
            parts.append("\n\n".join([f"## {title}", *lay(rows[task]), *_misses(rows[task])]))
    return "\n\n".join(parts) + "\n"


def verdict(row: Row) -> str:
    """Tell whether a ratio keeps its target: "open" if the target lies in its middle half.

    >>> ratio = {"median": 1.01, "low": 1.00, "high": 1.03}
    >>> [verdict({"ratio": ratio, "target": {"at_most": most}}) for most in (1.05, 1.02, 0.9)]
    ['kept', 'open', '**missed**']
    """
    if "target" not in row:
        return ""
    ratio = row["ratio"]
    ((bound, target),) = row["target"].items()
    if ratio["low"] < target < ratio["high"]:
        return OPEN
    kept = ratio["median"] <= target if bound == "at_most" else ratio["median"] >= target
    return KEPT if kept else MISSED


# --------------------------------------------------------------------------------------------


def _head(found: Found) -> str:
    about, setting = found["provenance"], found["setting"]
    torch, load = setting["torch"], setting["load"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    beside = "not measured: there was none"
    if torch:
        waits = ", ".join(f"{way} {took:.2g} s" for way, took in torch["waiting_seconds"].items())
        beside = (
            f"{torch['torch']} (Python {torch['python']}) on {torch['device']},"
            f" {torch['threads']} threads, in a process of its own, in turns with ours; its threads"
            f" wait {torch['waiting']}, which was faster here (an epoch of 3 steps: {waits})"
        )
    loads = ", ".join(f"{part} {value:g}" for part, value in load.items())
    took = sum(setting["part_seconds"].values()) / 60
    lines = [
        "# Training: what it costs",
        "Written by `experiments.benchmarks.training` from the numbers that it measured, which"
        " stand in the JSON beside this page.",
        "\n".join(
            [
                f"- Machine: {about['processor']}, {about['cores']} cores, {about['system']};"
                f" JAX on {about['device']}",
                f"- Versions: Python {about['python']}, {versions}",
                f"- PyTorch: {beside}",
                f"- Commit {about['commit']}, {about['date']}",
                f"- Command: `{about['command']}`, {took:.0f} minutes",
                f"- Load of the machine as each part began (its own work before it is in it):"
                f" {loads}",
            ]
        ),
        "A ratio is the median over rounds, in which everything takes its turn, with its middle"
        f" half in brackets. A target is {KEPT}, {MISSED}, or {OPEN}, if it lies in that middle"
        " half, so that this run cannot tell.",
    ]
    busy = next(iter(load.values()), 0.0)
    if busy > 1:
        lines.append(
            f"**The machine was not idle when this began (load {busy:g}): seconds and images per"
            " second are those of a busy machine, and ratios may be.**"
        )
    if setting["backend"] != "gpu":
        lines.append("**Nothing on this page was measured on a GPU.**")
    return "\n\n".join(lines)


def _table(columns: dict[str, Callable[[Row], str]], rows: Sequence[Row]) -> str:
    """Lay rows out; columns that are empty in all of them are left out."""
    cells = {title: [cell(row) for row in rows] for title, cell in columns.items()}
    shown = {title: column for title, column in cells.items() if any(column)}
    lines = ["| " + " | ".join(shown) + " |", "|---" + "|---:" * (len(shown) - 1) + "|"]
    lines += ["| " + " | ".join(line) + " |" for line in zip(*shown.values(), strict=True)]
    return "\n".join(lines)


def _number(key: str, form: str, scale: float = 1) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        value = row.get(key)
        return "" if value is None else format(value * scale, form)

    return cell


def _digits(key: str, scale: float = 1) -> Callable[[Row], str]:
    """Write three digits of a number, small or large."""
    return lambda row: f"{float(f'{row[key] * scale:.3g}'):,g}" if key in row else ""


def _ratio(form: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        ratio = row.get("ratio")
        if not ratio:
            return ""
        middle, low, high = (format(ratio[name], form) for name in ("median", "low", "high"))
        return f"{middle} [{low}, {high}]"

    return cell


def _target(form: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        if "target" not in row:
            return ""
        ((bound, target),) = row["target"].items()
        words = bound.replace("_", " ")
        return f"{words} {format(target, form)}: {verdict(row)}"

    return cell


_NAME: dict[str, Callable[[Row], str]] = {"": lambda row: str(row["name"])}
_SPEED: dict[str, Callable[[Row], str]] = {
    "images/s": _number("images_per_second", ",.0f"),
    "ms a step": _digits("step_seconds", 1e3),
    "s an epoch": _digits("seconds"),
}
_COMPILED: dict[str, Callable[[Row], str]] = {
    "s to compile": _number("compile_seconds", ".1f"),
    "s first call": _number("first_call_seconds", ".2f"),
    "MB of a step": _number("memory", ",.0f", 1e-6),
}


def _setting(row: Row) -> str:
    return (
        f"{row['model']}, epochs of {row['steps']} steps of {row['batch_size']} images,"
        f" {row['rounds']} rounds."
    )


def _epoch(rows: Sequence[Row]) -> list[str]:
    against = rows[0]["against"]
    speed = {f"images/s beside {against}": _ratio(".2f"), "target": _target("g")}
    said = (
        f"{_setting(rows[0])} The first call trains nothing: it is what is left to do once a"
        " program is compiled. Memory is what a call takes beside its arguments, by XLA's plan."
    )
    speed["GFLOP/s"] = _digits("gflops")
    return [said, _table(_NAME | _SPEED | speed | _COMPILED, rows)]


def _objective(rows: Sequence[Row]) -> list[str]:
    alone = {"µs of the loss alone": _digits("loss_seconds", 1e6)}
    cost = {f"time beside {rows[0]['against']}": _ratio(".3f"), "target": _target("g")}
    said = (
        f"{_setting(rows[0])} The loss alone is its value and gradient for a batch of logits, as a"
        " program of its own."
    )
    return [said, _table(_NAME | _SPEED | cost | alone | _COMPILED, rows)]


def _fit(rows: Sequence[Row]) -> list[str]:
    share = {"outside the compiled programs": _ratio(".1%"), "target": _target(".0%")}
    whole = rows[-1]
    lost, call = whole["outside"], whole["call"]
    said = (
        f"{_setting(whole)} AdaFocal, seven metrics, a checkpoint an epoch. After every epoch of"
        " `train.fit` its compiled programs train and evaluate alone for as long."
    )
    where = (
        f"Beyond the programs alone, medians: {1e3 * lost['training']:,.0f} ms while steps run"
        f" (checkpoints are written meanwhile), {1e3 * lost['evaluation']:,.0f} ms while it"
        f" evaluates, {1e3 * lost['between']:,.0f} ms between. An epoch of the 352 steps that"
        f" CIFAR-10 has would last {352 * whole['step_seconds']:,.0f} s here. A call of the"
        f" compiled loop costs {1e3 * call['seconds']:.0f} ms beside its steps and"
        f" {call['page_faults']:,} page faults; `train.fit` makes one about every"
        f" {call['piece_seconds']:g} s, the program alone one an epoch."
    )
    return [said, _table(_NAME | _SPEED | share, rows), where]


def _seeds(rows: Sequence[Row]) -> list[str]:
    told = {
        "network": lambda row: f"{row['model']}, {row['steps']} steps of {row['batch_size']}",
        "": lambda row: str(row["name"]),
    }
    more = {
        "images/s": _SPEED["images/s"],
        "s an epoch": _SPEED["s an epoch"],
        "times as fast": _ratio(".2f"),
        "target": _target("g"),
        "s to compile": lambda row: (
            (f"{row['programs']} x " if row["programs"] > 1 else "")
            + f"{row['compile_seconds']:.1f}"
        ),
        "compilation counted": lambda row: f"{row['whole_ratio']:.2f}",
    }
    apart = rows[0]["name"]
    said = (
        f"All seeds of an epoch, {rows[0]['rounds']} rounds. The first ratio is without"
        f" compilation. The last counts it in, for runs of {rows[0]['epochs']} such epochs: the"
        f" {apart} compile {rows[0]['programs']} programs, since each is a process of its own,"
        " whose start is not counted."
    )
    return [said, _table(told | more, rows)]


def _devices(rows: Sequence[Row]) -> list[str]:
    def kind(name: str) -> Callable[[Row], str]:
        return lambda row: (
            f"{row['by_purpose'][name]:,} in {row['operations'][name]}"
            if name in row["by_purpose"]
            else ""
        )

    columns = {
        "gradients, bytes": _number("gradient_bytes", ","),
        "exchanged in a step": _number("bytes", ","),
        "ratio": lambda row: f"{row['bytes'] / row['gradient_bytes']:.3f}",
        "for gradients and sums": kind("gradient"),
        "for batch norm": kind("batch norm"),
        "for the loss": kind("loss"),
    }
    devices = rows[0]["devices"]
    said = (
        f"Counted from the programs compiled for {devices} devices (faked on a CPU; nothing ran):"
        " the payload on one device, in so many operations. In a ring each device sends"
        f" {2 * (devices - 1) / devices:g} times that for a sum."
    )
    return [said, _table(_NAME | columns, rows)]


def _gpu(rows: Sequence[Row]) -> list[str]:
    more = {
        f"images/s beside {rows[0]['against']}": _ratio(".2f"),
        "target": _target("g"),
        "of the peak": _number("utilisation", ".1%"),
    }
    said = (
        f"{_setting(rows[0])} Images are bytes that lie on the device; the released loop and"
        " one of ours crop and flip them. float32 multiplies by TF32 on a GPU that has it. Of the"
        f" peak: {rows[0]['flops_per_image'] / 1e9:.2f} GFLOP that the network needs for an image,"
        " forward and backward, times images per second."
    )
    return [said, _table(_NAME | _SPEED | more | _COMPILED, rows)]


_PARTS: dict[str, tuple[str, Callable[[Sequence[Row]], list[str]]]] = {
    "epoch": ("An epoch", _epoch),
    "objective": ("Losses with a state", _objective),
    "fit": ("Outside the compiled programs", _fit),
    "seeds": ("Several seeds in one program", _seeds),
    "devices": ("What crosses devices", _devices),
    "gpu": ("A large network", _gpu),
}


def _misses(rows: Sequence[Row]) -> list[str]:
    """Explain the targets that are not kept."""
    lines = []
    for row in rows:
        if verdict(row) in (MISSED, OPEN):
            of = f"{row['model']}, " if row["task"] == "seeds" else ""
            why = training_reasons.reason(row, rows)
            lines.append(f"- {of}{row['name']}, {verdict(row)}: {why}")
    return ["\n".join(lines)] if lines else []


def main() -> None:
    """Write the page of a JSON again."""
    source, goal = map(pathlib.Path, sys.argv[1:])
    goal.write_text(page(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
