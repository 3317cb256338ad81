"""The pages of verdicts: results/papers/README.md and one page for each source.

They are written from the files in that folder alone.
"""

import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from calib_jax import plots
from calib_jax.report import tables
from calib_jax.train.folder import files
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import rules, states, verdicts
from experiments.papers.judge.values import Value
from experiments.papers.page import findings, listing, procedure_page
from experiments.papers.store import runs

HEAD = """# Verdicts on the claims of the papers

`python -m experiments.papers --page` writes this page, and the pages of the sources, from the files
in this folder. *Here* is the effect that was measured here, in points, with its interval at 90 %;
*published* is the effect that the paper prints for its network, without an interval, or the number
of rows of its tables that are as the sentence states. A positive effect is as the sentence states.
Effects on calibration are differences of root-CE2, the root of the debiased squared calibration
error; published ones are differences of plug-in ECE. The verdict tests the difference of the
squared errors. The interval here is the interval of that difference, divided by the sum of the two
root-CE2. The interval of one seed is over test examples alone. A claim can have several rows, and
parts without a row; it holds only if all parts of its rule do, after the adjustment for all claims
of the source. *Mostly* is a count above half of the rows, such as 10 of 11. Where a row is as
stated and its claim does not hold, the last column names the reason. *T* is the temperature of
cross-entropy by the validation NLL, in the same setting. Runs of several commits are named.
[Tables](tables.md) show the errors of all networks beside the published ones, the
[procedure](judge/README.md) has the rules of comparison, and the [map](../map/map.md) shows for
which T a loss helps.
"""
COUNTS = """A claim that does not hold is *outside the regime* if it needs the networks of the
papers, and *contradicted here* otherwise. Identities, unit tests and recounts of published tables
are no evidence about trained networks: they stand in the [appendix](appendix.md), and in none of
these counts.
"""
APPENDIX = """Claims about formulas, and counts over rows that the papers print. They are no
evidence about trained networks, and no headline counts them. *Mostly* is a count such as 10 of 11.
Checks whether the numbers of a paper agree with each other are no claims of the paper, and in no
count at all.
"""
RULES = """Every claim has the words of the paper, the rule with its history, the values, and the
command that computes them again. Intervals are at 90 %; seeds, test and validation examples are
random. p-values are one-sided. Holm's method adjusts them for all claims of the source with random
data, and a verdict whose p-value after it is above .05 is undecided; BH is the p-value after
Benjamini and Hochberg's method. The [procedure](judge/README.md) has the variances. Runs of several
commits are named: `runs/same_training.json` has measurements of pairs of commits that train alike.
The same seed on another machine differs as much as another seed. [All findings](README.md).
"""
SOURCES = {
    "guo": "Guo et al. 2017",
    "mukhoti": "Mukhoti et al. 2020, focal loss",
    "adafocal": "Ghosh et al. 2022, AdaFocal",
    "bsce-gra": "Lin et al. 2025, BSCE-GRA",
    "recall": "Tian et al. 2021, recall loss",
}
FOREST = "findings.png"
MAP = """## The map

Which loss is better calibrated depends on how overconfident cross-entropy is, and T of
cross-entropy measures that. Each point is a network on frozen vectors of texts at one weight decay.
Above 0 a loss is better calibrated than cross-entropy ([tables](../map/map.md)). Ten claims of the
papers are judged on these networks too, at every T ([states](../map/claims.md)).

![Gain of each loss against T of cross-entropy](../map/map.png)
"""
APPENDIX_PAGE = "appendix"
LIMIT = 600  # lines of a page
SHOWN_PARTS = 2  # parts of a rule that a row of the first page names
PAGE_LINES = 12  # lines of a page without its claims, at most
REPEAT = """`python -m experiments.papers --run=ENTRY --recompute` computes the verdicts of an entry
again, from the records of its runs in `runs/`, without training. With `--data_dir=DIR` and
`--results=NEW`, it trains the runs again; `DIR` is the folder of the data sets, and `NEW` an empty
one.
"""
NETWORKS = {
    "bert": "BERT",
    "deeplab_small": "DeepLab of .6 million parameters",
    "global_pooling_cnn": "Global pooling CNN",
    "lenet5": "LeNet-5",
    "densenet121": "DenseNet-121",
    "transformer": "Transformer",
    "tree_lstm": "Tree-LSTM",
    "wide_resnet26_10": "Wide ResNet-26-10",
}
# The training examples of a data set where the config does not limit their number.
EXAMPLES = {
    "camvid": (367, "scenes of CamVid"),
    "cifar10": (45_000, "images of CIFAR-10"),
    "cifar100": (45_000, "images of CIFAR-100"),
    "multi30k": (29_000, "sentence pairs of Multi30k"),
    "newsgroups": (10_183, "messages of 20 Newsgroups"),
    "sst": (6_920, "sentences of the SST"),
}
LONG_TAIL = (11_101, "images of CIFAR-10, long-tailed by a factor of 100")
# Changed keys of a config that the line shows elsewhere, or that do not change the training.
SHOWN_ELSEWHERE = ("diagnose", "num_epochs", "model.name", "init_from", "precision")


def texts(
    listed: list[listing.Row],
    standing: Mapping[str, verdicts.Verdict],
    by_claim: Mapping[str, Entry],
    found: Sequence[findings.Finding],
) -> dict[str, str]:
    """Format the pages, by the name of the file.

    Args:
      listed: the states of all claims.
      standing: the verdicts that were read.
      by_claim: the entries at the scale of the verdicts.
      found: the findings on the first page.
    """
    sections: dict[str, list[_Section]] = {}
    for section in _sections(listed, standing, by_claim):
        sections.setdefault(section.page, []).append(section)
    pages: dict[str, list[_Section]] = {}
    for stem in sorted(sections, key=lambda stem: stem == APPENDIX_PAGE):
        for number, part in enumerate(_split(sections[stem]), start=1):
            pages[f"{stem}{f'_{number}' if number > 1 else ''}.md"] = part
    written = {name: _page(name, part, listed) for name, part in pages.items()}
    written["README.md"] = _first_page(listed, standing, found, pages)
    return written


class _Section(NamedTuple):
    """The section of an entry: its text, and the rows of its claims on this page."""

    name: str
    page: str
    rows: list[listing.Row]
    text: str

    @property
    def lines(self) -> int:
        """The number of lines on a page, with the lines of its claims in the index."""
        return self.text.count("\n") + 2 + len(self.rows)


def _sections(
    listed: list[listing.Row],
    standing: Mapping[str, verdicts.Verdict],
    by_claim: Mapping[str, Entry],
) -> Iterator[_Section]:
    """Format the sections of the entries that have a verdict."""
    of_entries = {verdict.entry: verdict.record for verdict in standing.values()}
    for name in dict.fromkeys(row.entry for row in listed if row.entry in of_entries):
        record = of_entries[name]
        of_entry = [row for row in listed if row.entry == name and row.claim.id in standing]
        # An entry can test a claim of another source, too.
        stem = next(s for s in (each.replace("-", "_") for each in SOURCES) if name.startswith(s))
        for page, on_page in (
            (stem, [row for row in of_entry if row.kind not in states.IN_APPENDIX]),
            (APPENDIX_PAGE, [row for row in of_entry if row.kind in states.IN_APPENDIX]),
        ):
            if not on_page:
                continue
            parts = [f"## {name}"]
            if record["note"]:
                parts.append(record["note"])
            parts.append(evidence(by_claim[of_entry[0].claim.id], on_page))
            parts += [_claim(standing[row.claim.id], row) for row in on_page]
            parts += [f"![{file.removesuffix('.png')}]({file})" for file in record["figures"]]
            parts.append(_cost(record, of_entries.values()))
            text = "\n\n".join(part.strip("\n") for part in parts)
            yield _Section(name, page, on_page, text)


def _is_short(sections: Iterable[_Section]) -> bool:
    return PAGE_LINES + sum(section.lines for section in sections) <= LIMIT


def _split(sections: Iterable[_Section]) -> list[list[_Section]]:
    """Split sections into pages of at most LIMIT lines."""
    parts: list[list[_Section]] = [[]]
    for section in sections:
        if parts[-1] and not _is_short([*parts[-1], section]):
            parts.append([])
        parts[-1].append(section)
    return parts


def _page(name: str, sections: Sequence[_Section], listed: list[listing.Row]) -> str:
    """Format a page of a source, or of the appendix: the index of its claims, and the sections."""
    stem = sections[0].page
    titles = {each.replace("-", "_"): title for each, title in SOURCES.items()}
    title = titles.get(stem, "Appendix: formulas and published tables")
    number = name.removesuffix(".md").removeprefix(stem).removeprefix("_")
    parts = [f"# {title}" + f", page {number}" * bool(number), RULES]
    if name == f"{APPENDIX_PAGE}.md":
        kinds = (states.IDENTITY, states.RECOUNT)
        table = states.counts(kinds, ((row.kind, row.standing.state) for row in listed), "kind")
        parts += [APPENDIX, tables.in_markdown(table)]
    index = [["claim", "state", "p", "Holm", "BH", "kind", "entry"]]
    index += [
        [
            row.claim.id,
            row.standing.state,
            *map(listing.p_value, row.standing[1:]),
            row.kind,
            f"[{section.name}](#{section.name})",
        ]
        for section in sections
        for row in section.rows
    ]
    parts.append(tables.in_markdown(index, is_markup=True))
    return _joined([*parts, *(section.text for section in sections)])


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _first_page(
    listed: list[listing.Row],
    standing: Mapping[str, verdicts.Verdict],
    found: Sequence[findings.Finding],
    pages: Mapping[str, Sequence[_Section]],
) -> str:
    """Format the first page: findings, counts, and links to the pages of the sources."""
    parts = [HEAD]
    if any(finding.of_calibration for finding in found):
        parts.append(f"![Differences of calibration errors, here and published]({FOREST})")
    standings = {row.claim.id: row.standing for row in listed}
    places = {
        row.claim.id: f"{page}#{section.name}"
        for page, sections in pages.items()
        for section in sections
        for row in section.rows
    }
    for source, title in SOURCES.items():
        of_source = [f for f in found if f.row.claim.startswith(f"{source}-")]
        if of_source:
            table = [["finding", "here", "published", "network; its error; T", "claim"]]
            for finding in of_source:
                claim = finding.row.claim
                state = f"[{standings[claim].state}]({places[claim]})"
                reason = _why_not(finding, standing[claim], standings[claim])
                table.append([*_finding(finding), state + reason])
            parts += [f"## {title}", tables.in_markdown(table, is_markup=True)]
    parts += [
        MAP,
        "## Counts",
        f"{listing.headline(listed)} {_undecided(listed, standing)}",
        tables.in_markdown(listing.counts(listed)),
    ]
    toys = [("toy problem", row.standing.state) for row in listing.of_kind(listed, states.TOY)]
    parts += [COUNTS, tables.in_markdown(states.counts(["toy problem"], toys, "apart"))]
    contents = [["page", "claims", "entries"]]
    for page, sections in pages.items():
        number = sum(len(section.rows) for section in sections)
        names = ", ".join(f"[{section.name}]({page}#{section.name})" for section in sections)
        contents.append([f"[{page.removesuffix('.md')}]({page})", str(number), names])
    parts += ["## Claims", tables.in_markdown(contents, is_markup=True)]
    of_entries = {verdict.entry: verdict.record for verdict in standing.values()}
    parts += ["## Cost", _total_cost(of_entries.values()), REPEAT]
    untested = [["claim", "why", "needs"]]
    untested += [[row.claim.id, row.missing, row.data] for row in listed if row.missing]
    return _joined([*parts, "## Without a verdict", tables.in_markdown(untested)])


def _undecided(listed: Iterable[listing.Row], standing: Mapping[str, verdicts.Verdict]) -> str:
    """Count by which step the claims about trained networks are undecided."""
    before = [
        standing[row.claim.id].state
        for row in listing.of_kind(listed, states.TRAINED)
        if row.standing.state == states.UNDECIDED
    ]
    number = {state: before.count(state) for state in (rules.HOLDS, rules.FAILS, rules.UNDECIDED)}
    return (
        f"Of the {len(before)} that are undecided, the rules leave {number[rules.UNDECIDED]} open;"
        f" {number[rules.HOLDS]} hold and {number[rules.FAILS]} do not hold before Holm's method,"
        " and are undecided after it."
    )


def _why_not(
    finding: findings.Finding, verdict: verdicts.Verdict, standing: states.Standing
) -> str:
    """Name what else decided the claim of a finding that is as stated, if the claim does not hold.

    That is Holm's method, the seeds, or the other parts of the rule whose intervals do not
    lie above 0.
    """
    if not finding.effect or finding.effect[1] <= 0 or standing.state == states.HOLDS:
        return ""
    if verdict.state == states.HOLDS:
        return f" (p {listing.p_value(standing.p)}, after Holm {listing.p_value(standing.holm)})"
    parts = [
        name
        for name, value in verdict.values.items()
        if name == "seeds" or (value.deviation is not None and value.low <= 0)
        if name != finding.row.value
    ]
    more = f"; {len(parts) - SHOWN_PARTS} more" if len(parts) > SHOWN_PARTS else ""
    return f" by another part: {'; '.join(parts[:SHOWN_PARTS])}{more}" if parts else ""


def _finding(finding: findings.Finding) -> list[str]:
    """Format a finding as the first cells of a row of the first page."""
    row, here, published, scope = finding.row, "", "", "published tables"
    if finding.effect:
        estimate, low, high = finding.effect
        here = f"{estimate:.1f} [{low:.1f}, {high:.1f}]"
    if finding.counted:
        published = f"{finding.counted[0]} of {finding.counted[1]} rows"
    if finding.published is not None:
        published = f"{finding.published:.2f} ({row.published_for})"
    if finding.scope:
        scope = _network(finding.scope)
    if finding.error is not None:
        scope += f"; {finding.error:.0f} %"
    if finding.temperature is not None:
        scope += f"; T {finding.temperature:.2f}"
    scope += f"; {finding.commits}" * bool(finding.commits)
    return [row.finding, here, published, scope]


def evidence(tested_by: Entry, of_entry: Iterable[listing.Row]) -> str:
    """Describe on what the verdicts of an entry rest: its trainings, in groups."""
    if not tested_by.runs:
        if not any(row.kind == states.TRAINED for row in of_entry):
            return "Trained: no network."
        return "Trained: no network is kept; the statistic trains or measures what it needs."
    groups: dict[str, list[tuple[str, str]]] = {}
    for training in tested_by.runs.values():
        losses = groups.setdefault(_network(training), [])
        if (loss := (_loss(training), _changes(training))) not in losses:
            losses.append(loss)
    described = [f"{network} ({_listed(losses)})" for network, losses in groups.items()]
    return f"Trained: {'; '.join(described)}."


def _listed(losses: list[tuple[str, str]]) -> str:
    """List losses with their changes, and those of all once.

    >>> _listed([("brier", "minilm"), ("mmce", "minilm")]), _listed([("brier", ""), ("mmce", "x")])
    ('brier, mmce; all with minilm', 'brier, mmce with x')
    """
    changes = {changed for _, changed in losses}
    if len(losses) > 1 and len(changes) == 1 and changes != {""}:
        return f"{', '.join(loss for loss, _ in losses)}; all with {changes.pop()}"
    return ", ".join(loss + (f" with {changed}" if changed else "") for loss, changed in losses)


def _network(training: Training) -> str:
    """Describe network, data, epochs and seeds of a training.

    >>> _network(Training("focal", {"gamma": 3.0}))
    'ResNet-8 on 10,000 images of CIFAR-10, 40 epochs, seeds 1 to 3'
    """
    config = runs.config_of(training)
    name = config["model"]["name"]
    network = NETWORKS.get(name) or re.sub(r"^resnet(\d+)$", r"ResNet-\1", name)
    if config["init_from"]:
        network += f" with the weights of {config['init_from']}"
    options = config["data"]["options"]
    number, examples = EXAMPLES.get(config["data"]["name"], (0, config["data"]["name"]))
    if options.get("imbalance", 1.0) > 1:
        number, examples = LONG_TAIL
    number = options.get("training_size") or number
    seeds = f"seeds 1 to {training.seeds}" if training.seeds > 1 else "seed 1"
    counted = f"{number:,} {examples}" if number else examples
    return f"{network} on {counted}, {config['num_epochs']} epochs, {seeds}"


def _loss(training: Training) -> str:
    """Describe the loss of a training with the options that were chosen, or its only number.

    >>> _loss(Training("focal")), _loss(Training("brier"))
    ('focal gamma 3', 'brier')
    """
    options = training.options
    if not options:
        of_config = runs.config_of(training)["loss"]["options"]
        numbers = {key: value for key, value in of_config.items() if type(value) in (int, float)}
        options = numbers if len(numbers) == 1 else {}
    return " ".join([training.loss, *(f"{key} {_plain(value)}" for key, value in options.items())])


def _changes(training: Training) -> str:
    """Describe what else differs from the config, by the alias if there is one.

    >>> _changes(Training("focal", changes={"optimizer.weight_decay": 0.0}))
    'weight_decay 0'
    """
    changes = {key: v for key, v in training.changes.items() if key not in SHOWN_ELSEWHERE}
    if changes and training.alias:
        return training.alias
    return ", ".join(f"{key.rpartition('.')[2]} {_plain(v)}" for key, v in changes.items())


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _claim(verdict: verdicts.Verdict, row: listing.Row) -> str:
    standing = row.standing
    adjusted = standing.holm is not None
    lines = [
        f"**{verdict.claim}: {standing.state}**"
        + f", Holm p {listing.p_value(standing.holm)}" * adjusted
    ]
    if standing.state == states.UNDECIDED != verdict.state:
        lines.append(f"Without the adjustment for several claims: {verdict.state}.")
    if row.claim.id in states.WITHOUT_P:
        lines.append(f"No p-value: {states.WITHOUT_P[row.claim.id]}.")
    part = verdict.record["claims"][verdict.claim]
    lines += [f"> {part['claim']}", f"Source: {part['source']}, {part['where']}."]
    lines += [f"Published: {part['published']}. Rule: {verdict.rule}."]
    if part["changed"]:
        first = f" Judged by it: {part['original']}." if part["original"] else ""
        lines += [
            f"Original rule: {part['rule_original']}.{first} Changed {part['changed'][:10]}."
            f" {part['why']}"
        ]
    lines += ["\n".join(f"- {name}: {value.text()}" for name, value in verdict.values.items())]
    return "\n\n".join(lines)


def _total_cost(of_entries: Iterable[Mapping[str, Any]]) -> str:
    """Describe the cost of all verdicts, in which a shared run counts once."""
    distinct: dict[tuple[str, ...], float] = {}
    seconds = 0.0
    for record in of_entries:
        distinct |= listing.runs_of(record)
        seconds += record["seconds"]
    return (
        f"All verdicts rest on {len(distinct):,} runs, which took {sum(distinct.values()):,.0f}"
        f" minutes of training; the statistics took {seconds / 60:,.0f} minutes. Entries share"
        " runs, so the costs of the entries add up to more."
    )


def _cost(record: Mapping[str, Any], of_entries: Iterable[Mapping[str, Any]]) -> str:
    made, own = record["provenance"], listing.runs_of(record)
    trained, again = "", ""
    if own:
        processors = sorted({run["processor"] or "unknown" for run in record["runs"]})
        commits = sorted({run["commit"] or "unknown" for run in record["runs"]})
        sharing = sum(bool(own.keys() & listing.runs_of(other).keys()) for other in of_entries) - 1
        shared = f", shared with {sharing} other entr{'ies' if sharing > 1 else 'y'}"
        trained = (
            f"{len(own)} runs, {sum(own.values()):.0f} minutes of training"
            f"{shared if sharing else ''} ({', '.join(processors)}; commit {', '.join(commits)}); "
        )
        again = f"; train again: `--run={record['entry']} --data_dir=DIR --results=NEW`"
    beside = ""
    if record["beside"]:
        texts = (f"- {name}: {Value.of(value).text()}" for name, value in record["beside"].items())
        beside = "\n".join(["Beside them:\n", *texts]) + "\n\n"
    return (
        f"{beside}Cost: {trained}{record['seconds']:.0f} s for the verdicts, {made['date'][:10]},"
        f" commit {made['commit']}, {made['processor']}, {made['cores']} cores, JAX"
        f" {made['versions']['jax']}.\n\n"
        f"Compute again: `--run={record['entry']} --recompute`{again}."
    )


def write(
    folder: pathlib.Path,
    listed: list[listing.Row],
    standing: Mapping[str, verdicts.Verdict],
    by_claim: Mapping[str, Entry],
) -> pathlib.Path:
    """Write the pages, and the verdicts of today's rules into the files of their values."""
    for record in {verdict.entry: verdict.record for verdict in standing.values()}.values():
        verdicts.write(folder, record)
    found = findings.compute(folder, standing, by_claim)
    of_calibration = [finding for finding in found if finding.of_calibration]
    if of_calibration:
        plots.save(findings.figure(of_calibration), folder / FOREST, dpi=100)
    written = texts(listed, standing, by_claim, found)
    if (folder / procedure_page.PREVIOUS).is_file():
        written[procedure_page.FILE] = procedure_page.text(folder, listed, standing)
    for name, text in written.items():
        files.replace(folder / name, text)
    return folder / "README.md"
