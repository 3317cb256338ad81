"""Entries: which claims a file tests, on which runs, by which statistic and rules.

An entry is a file entries/SOURCE/TOPIC.py with an ENTRY, called SOURCE_TOPIC. It is found by its
place, and no list names it. A file may instead have several entries, as ENTRIES by topic:

    def statistic() -> dict[str, Value]: ...

    ENTRY = Entry(claims={"guo-forecast-gap": rules.true("both are 0.2")}, statistic=statistic)

The statistic returns named values, and the rule of each claim judges some of them; the page also
shows the others. Claims that share no values may each have a function, in a mapping by id. An entry
with `runs` has a statistic of one argument: the trained networks by the names in `runs`, for each a
list over seeds.
"""

import dataclasses
import functools
import importlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from experiments.papers import claims
from experiments.papers.judge.rules import Rule
from experiments.papers.judge.values import Value

FOLDER = pathlib.Path(__file__).parent / "entries"
NOTES = claims.PUBLISHED / "notes.csv"
SEEDS = 3

Statistic = Callable[..., Mapping[str, Value]]


@dataclasses.dataclass(frozen=True)
class Training:
    """A training that an entry needs, with several seeds.

    Attributes:
      loss: a name in configs/losses.
      options: the options of the loss, in place of those of its fragment.
      config: a name in configs, without .py.
      changes: other keys of the config, such as {"optimizer.weight_decay": 0.0}.
      alias: a short name of the changes, for names of folders.
      seeds: number of seeds.
      checkpoint: the measured checkpoint, such as "best_error"; "" is the sweep's default.
      keep: "logits" keeps the logits of the validation and the test set in the record, "columns"
        only the confidence of every example and whether it is right, a tenth of the size; "none"
        keeps the log alone, where measures say the rest, such as of pixels.
      diagnosed: whether an entry reads what `config.diagnose` logs; if not, a run without it, which
        takes two thirds of the time, serves as well.
    """

    loss: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config: str = "cifar10_resnet8"
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    alias: str = ""
    seeds: int = SEEDS
    checkpoint: str = ""
    keep: str = "logits"
    diagnosed: bool = True

    def __hash__(self) -> int:
        return hash((self.config, self.label))

    @property
    def of_seeds(self) -> range:
        """The seeds, from 1 on."""
        return range(1, self.seeds + 1)

    @property
    def overrides(self) -> dict[str, Any]:
        """All changed keys of the config."""
        return _options(self.options) | dict(self.changes)

    @property
    def variant(self) -> str:
        """The changes in short, as part of a folder's name.

        >>> Training("focal", {"gamma": 1.0}).variant
        'gamma=1.0'
        """
        changes = _options(self.options) if self.alias else self.overrides
        parts = [f"{key.rpartition('.')[2]}={value}" for key, value in changes.items()]
        return "-".join([self.alias] * bool(self.alias) + parts)

    @property
    def label(self) -> str:
        """The loss with the changes, as in a folder's name."""
        return self.loss + (f"-{self.variant}" if self.variant else "")


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {f"loss.options.{key}": value for key, value in options.items()}


@dataclasses.dataclass(frozen=True)
class Entry:
    """The claims that one file tests, with their runs, statistics and rules.

    Attributes:
      claims: the rule of every claim, by id.
      statistic: returns the values by name; takes the trained networks if there are `runs`. Or a
        mapping of such functions by claim.
      runs: trainings by the name under which the statistic gets them.
      measures: names of further measurements of the runs, in `measures.py`.
      measured: names of the runs that are measured further; all if None.
      data: names of data sets that the statistic itself reads.
      minutes: the minutes of the statistic itself, where it takes more than one.
      figures: returns figures by name, for the page; takes what the statistic takes.
      note: what was chosen here, and why, for the page: from experiments/published/notes.csv.
      originals: the first rule of claims whose rule was changed, by id, where today's values can be
        judged by it.
      name: its source and topic.
    """

    claims: Mapping[str, Rule]
    statistic: Statistic | Mapping[str, Statistic]
    runs: Mapping[str, Training] = dataclasses.field(default_factory=dict)
    measures: tuple[str, ...] = ()
    measured: tuple[str, ...] | None = None
    data: tuple[str, ...] = ()
    minutes: float = 0.0
    figures: Callable[..., Mapping[str, Any]] | None = None
    note: str = ""
    originals: Mapping[str, Rule] = dataclasses.field(default_factory=dict)
    name: str = ""

    def measures_of(self, run: str) -> tuple[str, ...]:
        """Return the names of the further measurements of a run, by its name in `runs`."""
        return self.measures if self.measured is None or run in self.measured else ()


def computed(tests: Mapping[str, tuple[Statistic, Rule]], **more: Any) -> Entry:
    """Build an entry from the statistic and the rule of every claim.

    Args:
      tests: statistic and rule by claim.
      **more: other attributes of the entry.
    """
    rules = {claim: rule for claim, (_, rule) in tests.items()}
    return Entry(rules, {claim: compute for claim, (compute, _) in tests.items()}, **more)


@functools.cache
def catalogue() -> dict[str, Entry]:
    """Import all entries, by the names of their files; raise an error for a claim tested twice."""
    known = claims.read()
    rooms = sorted(source.replace("-", "_") for source in claims.sources(known.values()))
    found: dict[str, Entry] = {}
    for path in (path for room in rooms for path in sorted((FOLDER / room).glob("[!_]*.py"))):
        room, topic = path.parent.name, path.stem
        module = importlib.import_module(f"experiments.papers.entries.{room}.{topic}")
        if hasattr(module, "ENTRIES"):
            found |= {f"{room}_{name}": entry for name, entry in module.ENTRIES.items()}
        elif hasattr(module, "ENTRY"):
            found[f"{room}_{topic}"] = module.ENTRY
        else:
            raise ValueError(f"{room}/{path.name} has no ENTRY: see the docstring of entry.py.")
    notes = {row["entry"]: row["note"] for _, row in claims.table(NOTES, ("entry", "note"))}
    if unknown := notes.keys() - found:
        raise ValueError(f"{NOTES} has notes on {', '.join(sorted(unknown))}: no such entries.")
    entries = {
        name: dataclasses.replace(found[name], name=name, note=notes.get(name, ""))
        for name in sorted(found)
    }
    tested: dict[str, str] = {}
    for name, entry in entries.items():
        for claim in entry.claims:
            if claim not in known:
                raise claims.unknown(claim, known)
            if claim in tested:
                raise ValueError(f"{tested[claim]} and {name} both test {claim}: keep one.")
            tested[claim] = name
    return entries


def of_claims() -> dict[str, Entry]:
    """Return the entry of every claim that has one, by id."""
    return {claim: entry for entry in catalogue().values() for claim in entry.claims}


def chosen(names: list[str]) -> list[Entry]:
    """Return the entries of some claims or files; "all" stands for all entries."""
    entries, by_claim, known = catalogue(), of_claims(), claims.read()
    selected: dict[str, Entry] = {}
    for name in names:
        if name == "all":
            selected |= entries
        elif name in entries:
            selected[name] = entries[name]
        elif name in by_claim:
            selected[by_claim[name].name] = by_claim[name]
        elif name in known:
            claim = known[name]
            raise LookupError(
                f"no entry tests {name} yet: write experiments/papers/entries/"
                f"{claim.source.replace('-', '_')}/TOPIC.py. Its test is: {claim.test}"
            )
        else:
            raise claims.unknown(name, [*entries, *known])
    return list(selected.values())
