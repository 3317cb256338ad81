"""The fault table: tries, their outcomes, and the page."""

import collections
import dataclasses
import datetime
import platform
import re
import shlex
import signal

from experiments.running import provenance

OUTCOMES = ("survived", "refused", "lost", "wrong")
TRACES = re.compile("Traceback \\(most recent call last\\)|Fatal Python error")
SENTENCES = re.compile(r"^(error|warning): .*|^stopped by .*|.*; nothing is lost.*", re.MULTILINE)
ABORTS = {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE}


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

    def read(self, run):
        """Read what a run printed: count tracebacks, and keep its first error or warning."""
        output, codes = run.output(), [process.returncode for process in run.processes]
        silent = any(code in (1, 2) for code in codes) and "error: " not in output
        if silent or ABORTS & set(codes) or TRACES.search(output):
            self.tracebacks += 1
            self.notes.append(f"codes {codes}:\n{output[-2500:]}")
        said = SENTENCES.search(output)
        if said and not self.sentence:
            self.sentence = shown(said[0])

    @property
    def good(self):
        """Whether no try was lost or wrong, and none printed a traceback."""
        return not (self.counts["lost"] or self.counts["wrong"] or self.tracebacks)


def shown(text):
    """Drop the folders of this machine and process ids from a sentence."""
    text = re.sub(r"(?<![\w.])/[\w./-]*?/((disk_\d+/)?run_\d+|data)(?=[/ :;,]|$)", "RUN", text)
    text = re.sub(r"\bprocess \d+", "process N", text)
    return " ".join(text.split())


def section(rows, arguments, minutes):
    """Format the table of a family in Markdown, with its provenance."""
    head = ["fault", "tries", *OUTCOMES[:2], "lost", "silently wrong", "tracebacks", "sentence"]
    lines = [line_of(head), "|---" * len(head) + "|"]
    for row in rows:
        counts = [row.counts.total(), *(row.counts[name] for name in OUTCOMES), row.tracebacks]
        lines.append(line_of([row.fault, *counts, row.sentence.replace("|", "\\|")]))
    versions = ", ".join(f"{name} {value}" for name, value in provenance.versions().items())
    command = provenance.without_folders(shlex.join(["python", "-m", "tests.faults", *arguments]))
    about = (
        f"`{command}` at commit {provenance.commit()} on {datetime.date.today()}, {minutes:.0f}"
        f" minutes, {platform.system()} {platform.machine()}, Python {platform.python_version()};"
        f" {versions}."
    )
    return "\n".join([*lines, "", about])


def page(sections):
    """Format the page of all families, and count all tries.

    Args:
      sections: the section of each family, by name.
    """
    cells = [
        [cell.strip() for cell in line.split(" | ")[1:7]]
        for text in sections.values()
        for line in text.splitlines()
        if re.match(r"\| .* \| \d+ \|", line)
    ]
    tries, survived, refused, lost, wrong, traces = map(
        sum, zip(*[map(int, row) for row in cells], strict=True)
    )
    total = (
        f"**{tries} tries: {survived} survived, {refused} refused, {lost} lost, {wrong} silently"
        f" wrong; {traces} tracebacks.**"
    )
    parts = [f"## {name}\n\n{text}" for name, text in sections.items()]
    return "\n\n".join(["# The fault table", total, INTRODUCTION, *parts]) + "\n"


def sections_in(text):
    """Return the sections of a page by family."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)[1:]
    return {name: part.strip() for name, part in zip(parts[::2], parts[1::2], strict=True)}


INTRODUCTION = """\
Every fault hits a run of a network of two parameters on tiny data. Then the same command is given
again, without the fault.

- Survived: the end is that of an undisturbed run: the arrays of the newest checkpoint bit for bit,
  and every row, prediction and number of a report except times; no file is missing.
- Refused: an error names the cause, and what the run had is unchanged; or an evaluation warns that
  the newest checkpoint is damaged, and its report states the step of the one before.
- Lost: the run does not reach this end, or has lost a checkpoint that was complete.
- Silently wrong: the end differs, and no error names a cause.
- Tracebacks: outputs with a traceback of Python or an abort of a library.

The sentence is the first error or warning that the user reads. Random moments and places come from
a fixed seed, but how far a run has got at a moment depends on the machine."""


def line_of(cells):
    """Format a row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"
