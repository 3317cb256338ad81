"""The fault table: tries, their outcomes, and the page."""

import collections
import dataclasses
import datetime
import platform
import re
import shlex

from experiments.running import provenance

OUTCOMES = ("survived", "refused", "lost", "wrong")


@dataclasses.dataclass
class Row:
    """The tries of one fault.

    Attributes:
      fault: the fault, and what it hit.
      counts: the number of tries by outcome.
      tracebacks: the number of outputs with a Python traceback.
      sentence: what the user reads in the first try that prints an error or a warning.
      notes: a line for each try that was lost or wrong.
    """

    fault: str
    counts: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    tracebacks: int = 0
    sentence: str = ""
    notes: list = dataclasses.field(default_factory=list)

    def add(self, outcome, note="", *, tries=1):
        """Count tries of one outcome."""
        assert outcome in OUTCOMES, outcome
        self.counts[outcome] += tries
        if outcome in ("lost", "wrong"):
            self.notes.append(f"{outcome}: {note}")

    def read(self, output):
        """Count a traceback in the output of a process, and keep its first error or warning."""
        if "Traceback (most recent call last)" in output or "Fatal Python error" in output:
            self.tracebacks += 1
            self.notes.append(f"traceback:\n{output[-2500:]}")
        said = re.search(r"^(error|warning): .*|^stopped by .*|.*; nothing is lost.*", output, re.M)
        if said and not self.sentence:
            self.sentence = shown(said[0])

    @property
    def good(self):
        """Whether no try was lost or wrong, and none printed a traceback."""
        return not (self.counts["lost"] or self.counts["wrong"] or self.tracebacks)


def shown(text):
    """Drop the folders of this machine and process ids from a sentence."""
    text = re.sub(r"(?<![\w.])/[\w./-]*/(run_\d+|data)\b", r"RUN", text)
    text = re.sub(r"\bprocess \d+", "process N", text)
    return " ".join(text.split())


def page(rows, arguments, minutes):
    """Write the table in Markdown, with its provenance."""
    head = ["fault", "tries", *OUTCOMES[:2], "lost", "silently wrong", "tracebacks", "sentence"]
    lines = ["# The fault table", "", INTRODUCTION, "", line_of(head), "|---" * len(head) + "|"]
    for row in rows:
        counts = [row.counts.total(), *(row.counts[name] for name in OUTCOMES), row.tracebacks]
        lines.append(line_of([row.fault, *counts, row.sentence.replace("|", "\\|")]))
    total = [sum(row.counts[name] for row in rows) for name in OUTCOMES]
    all_counts = [sum(total), *total, sum(row.tracebacks for row in rows)]
    lines.append(line_of(["**all**", *all_counts, ""]))
    versions = ", ".join(f"{name} {value}" for name, value in provenance.versions().items())
    command = provenance.without_folders(shlex.join(["python", "-m", "tests.faults", *arguments]))
    lines += [
        "",
        f"`{command}` at commit {provenance.commit()} on {datetime.date.today()}, {minutes:.0f}"
        f" minutes, {platform.system()} {platform.machine()}, Python {platform.python_version()};"
        f" {versions}.",
    ]
    return "\n".join(lines) + "\n"


INTRODUCTION = """\
Every fault hits a run of a network of two parameters on tiny data. Then the same command is given
again, without the fault.

- Survived: the end is that of an undisturbed run: the arrays of the newest checkpoint bit for bit,
  and every row, prediction and number of a report except times; no file is missing.
- Refused: an error names the cause, and what the run had is unchanged.
- Lost: the run does not reach this end, or has lost a checkpoint that was complete.
- Silently wrong: the end differs, and no error names a cause.
- Tracebacks: outputs with a traceback of Python or an abort of a library.

The sentence is the first error or warning that the user reads. Random moments and places come from
a fixed seed, but how far a run has got at a moment depends on the machine."""


def line_of(cells):
    """Format a row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"
