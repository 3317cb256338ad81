"""The page of verdicts: results/papers/README.md, from the files in that folder alone."""

import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from calib_jax.report import tables
from calib_jax.train.folder import files
from experiments.papers import entry
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import verdicts
from experiments.papers.judge.values import Value
from experiments.papers.page import listing
from experiments.papers.store import runs

HEAD = """# Verdicts on the claims of the papers

`python -m experiments.papers --page` judges the values in the JSON files in this folder by today's
rules, and writes this page. Intervals are at 90 %; seeds and test examples are both random.
Calibration errors are compared by the debiased squared error, because noise raises a plug-in error
by an amount that depends on the model. p-values are one-sided. Holm's method adjusts them for the
number of claims of the same source that have a p-value; proofs and counts have none. A verdict
whose adjusted p-value is above .05 is undecided. [Tables](tables.md) show the trained networks
beside the published ones.
"""
COUNTS = f"""The kind of a claim is the evidence that its test gives:

- *{listing.FORMULA}*: no network is trained. An identity is
  evaluated, a problem with a known answer is solved, or the published numbers are counted.
- *{listing.SMALL}*: small networks are trained, or a cost is measured. Such a verdict is
  about these networks, and does not refute a claim about those of the papers.
- *{listing.LARGE}*: the test needs the papers' networks.
"""
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


def text(
    listed: list[listing.Row],
    standing: Mapping[str, verdicts.Verdict],
    by_claim: Mapping[str, Entry] | None = None,
) -> str:
    """Format the page.

    Args:
      listed: the states of all claims.
      standing: the verdicts that were read.
      by_claim: the entries at the scale of the verdicts; by default as they stand in their files.
    """
    by_claim = entry.of_claims() if by_claim is None else by_claim
    states = verdicts.adjusted(standing)
    of_entries = {verdict.entry: verdict.record for verdict in standing.values()}
    parts = [HEAD, "## Counts", COUNTS, tables.in_markdown(listing.counts(listed))]
    parts += ["## Cost", _total_cost(of_entries.values()), REPEAT]
    parts += ["## Claims", _index(listed, standing)]
    for name in dict.fromkeys(row.entry for row in listed if row.entry in of_entries):
        record = of_entries[name]
        of_entry = [row for row in listed if row.entry == name and row.claim.id in standing]
        parts.append(f"## {name}")
        if record["note"]:
            parts.append(record["note"])
        parts.append(evidence(by_claim[of_entry[0].claim.id], of_entry))
        for row in of_entry:
            parts.append(_claim(standing[row.claim.id], states[row.claim.id]))
        parts += [f"![{file.removesuffix('.png')}]({file})" for file in record["figures"]]
        parts.append(_cost(record, of_entries.values()))
    untested = [["claim", "state", "needs"]]
    untested += [
        [row.claim.id, row.state, row.data] for row in listed if row.claim.id not in standing
    ]
    parts += ["## Without a verdict", tables.in_markdown(untested)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _index(listed: list[listing.Row], standing: Mapping[str, verdicts.Verdict]) -> str:
    """List all claims that have a verdict, with links to their entries."""
    table = [["claim", "verdict", "kind", "entry"]]
    table += [
        [row.claim.id, row.state, row.evidence, f"[{row.entry}](#{row.entry})"]
        for row in listed
        if row.claim.id in standing
    ]
    return tables.in_markdown(table, is_markup=True)


def evidence(tested_by: Entry, of_entry: Iterable[listing.Row]) -> str:
    """Describe on what the verdicts of an entry rest: its trainings, in groups."""
    if not tested_by.runs:
        kinds = {row.evidence for row in of_entry}
        if kinds == {listing.FORMULA}:
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


def _claim(verdict: verdicts.Verdict, adjusted: tuple[str, float | None]) -> str:
    state, p = adjusted
    lines = [f"**{verdict.claim}: {state}**" + (f", adjusted p {p:.2g}" if p is not None else "")]
    if state != verdict.state:
        lines.append(f"Without the adjustment for several claims: {verdict.state}.")
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
        " runs, so the costs of the entries below add up to more."
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
    if record.get("same_training"):
        trained += "these commits were measured to train the same (`runs/same_training.json`); "
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
    by_claim: Mapping[str, Entry] | None = None,
) -> pathlib.Path:
    """Write the page, and the verdicts of today's rules into the files of their values."""
    for record in {verdict.entry: verdict.record for verdict in standing.values()}.values():
        verdicts.write(folder, record)
    path = folder / "README.md"
    files.replace(path, text(listed, standing, by_claim))
    return path
