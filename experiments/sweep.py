r"""Train several losses with several seeds, and summarise them in one table.

    python -m experiments.sweep --config=configs/digits.py --workdir=/tmp/sweep \
        --losses=cross_entropy,focal,adafocal --seeds=3
    python -m experiments.sweep --config=configs/digits.py --workdir=/tmp/sweep \
        --losses=cross_entropy,brier --seeds=5 --baseline=brier --config.num_epochs=20

Each loss uses its fragment of configs/losses; --config.KEY=VALUE applies to all. The seeds of a
loss train one after another with the same compiled program.
Finished runs are not repeated: after Ctrl-C or a power cut the same command resumes, and with more
losses or seeds it adds these. Finished runs also go on with more epochs, where the schedule and the
loss allow it, and with other metrics, bins, patience or best. A run that fails, for example because
its loss is not finite, is left out of the table and named below it with the reason, and the exit
code is 1.

Predictions use the last weights, or the best ones by patience_for if patience ended a run early.
--checkpoint=latest, or best_NAME for a metric of the config's best, applies to all runs.

The folder contains runs/LOSS/SEED (as experiments.train writes it), and for all runs together
report.md, report.html, sweep.csv, sweep.json and figures: before and after temperature scaling,
with intervals over seeds and test examples, and tests against the baseline, which is the first loss
unless --baseline names one. --criterion=nll,ece,adaptive_ece:0.01 shows several temperatures side
by side.

--logits=none is for test sets whose logits do not fit into memory: the table then has values from
streamed statistics, without intervals and p-values over the test examples, and --logits=float16
also writes the logits in blocks. Finished runs are evaluated again only if the table lacks what it
needs.
"""

import collections
import contextlib
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags
from tqdm import tqdm

from calib_jax import train
from calib_jax.train import checkpoint, log
from experiments.evaluation import evaluation_record, streamed_scores, trained
from experiments.evaluation.scoring import on_excluded
from experiments.reports import pages, summary, summary_text
from experiments.running import building, cli, environment, imports, training
from experiments.running.members import Member, members

_CONFIG = imports.define_config(
    "File of the config; --config.KEY=VALUE is for all of --losses.", losses="losses"
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the sweep; created if it does not exist."
)
flags.adopt_module_key_flags(building)  # --data_dir, --init_from
_LOSSES = flags.DEFINE_list(
    "losses", [], "Names in configs/losses, or import paths MODULE:NAME, separated by commas."
)
_SEEDS = flags.DEFINE_integer("seeds", 1, "Number of seeds, from config.seed on.", lower_bound=1)
_BASELINE = flags.DEFINE_string("baseline", None, "Loss to test the others against.")
_CHECKPOINT = cli.define_checkpoint()
_CRITERION = cli.define_criterion()
_RESAMPLES = cli.define_resamples()
_LOGITS = cli.define_logits(streamed_scores.KINDS)


def main() -> int:
    """Train the missing runs, then summarise all runs."""
    losses = list(dict.fromkeys(_LOSSES.value))
    if not (_CONFIG.value and _WORKDIR.value is not None and losses):
        raise cli.Refused(
            "give --config=FILE, --workdir=FOLDER and --losses=NAME,NAME, such as"
            " --config=configs/digits.py --workdir=/tmp/sweep --losses=cross_entropy,focal."
        )
    file, _, named = str(config_flags.get_config_filename(flags.FLAGS["config"])).partition(":")
    baseline = _BASELINE.value or losses[0]
    for flag, loss in (("config", named or losses[0]), ("baseline", baseline)):
        if loss not in losses:
            raise cli.Refused(f"--{flag} names {loss}, not among --losses={','.join(losses)}.")
    cli.refusing(summary.phases_of, _CRITERION.value)
    if _LOGITS.value != "keep" and _CRITERION.value != ["nll"]:
        raise cli.Refused("--criterion needs --logits=keep: over a stream it is the NLL.")
    folder = cli.refusing(training.named, _WORKDIR.value)
    if (folder / "checkpoints").exists() or training.there(folder):
        raise cli.Refused(f"{folder} holds a run, and no sweep: choose another folder.")
    options = (folder, file, losses, _SEEDS.value, _CHECKPOINT.value)
    requested = cli.refusing(members, *options)
    cli.refusing(training.prepare, folder)
    cli.use_compilation_cache()  # losses share equal programs, and a resumed sweep reuses them
    with contextlib.ExitStack() as stack:
        cli.failing(stack.enter_context, train.only_one(folder))
        code, failed = train_all(requested)
        complete = [member for member in requested if member.name not in failed]
        if complete and not code:
            tabulate(folder, complete, baseline, failed)
    if failed and not code:
        first, why = next(iter(failed.items()))
        left = "are not in the table" if complete else "there is no table"
        raise cli.Failed(
            f"{len(failed)} of {len(requested)} runs failed ({', '.join(failed)}), and {left};"
            f" {first}: {why}"
        )
    return code


def train_all(requested: Sequence[Member]) -> tuple[int, dict[str, str]]:
    """Train the missing runs, loss by loss.

    Returns:
      The exit code if a signal stopped the sweep, else 0; and the reasons of failed runs, by name.
    """
    evaluated = _LOGITS.value, _CRITERION.value
    missing = [member for member in requested if not member.is_complete(*evaluated)]
    if done := len(requested) - len(missing):
        cli.say(f"{done} of {len(requested)} runs are done already.")
    failed: dict[str, str] = {}
    number = 0
    with tqdm(total=len(missing), unit="run", disable=None) as bar:
        for loss in dict.fromkeys(member.loss for member in missing):
            seeds = [member for member in missing if member.loss == loss]
            began = time.monotonic()
            try:
                outcomes = run(seeds)
                reasons = [outcome.failed for outcome in outcomes]
            except Exception as error:  # the other losses and the table do not depend on this loss
                outcomes, reasons = [], [cli.reason(error)] * len(seeds)
            if outcomes and outcomes[-1].stopped_by:
                cli.say("stopped; nothing is lost: the same command resumes the sweep.")
                return 128 + outcomes[-1].stopped_by, failed
            seconds = (time.monotonic() - began) / len(seeds)
            for member, reason in zip(seeds, reasons, strict=True):
                number += 1
                bar.update()
                result = f"failed: {reason}"
                if reason:
                    failed[member.name] = reason
                else:
                    row = log.read_rows(member.folder / log.ROWS)[-1]
                    result = f"{log.metrics_of(row, 'validation_')} | {seconds:.1f} s"
                tqdm.write(cli.printable(f"{number}/{len(missing)}  {member.name}: {result}"))
    return 0, failed


def run(seeds: Sequence[Member]) -> list[train.Outcome]:
    """Train the seeds of one loss, or resume them, and evaluate those that are finished."""
    experiment = seeds[0].experiment
    outcomes = training.fit(experiment, {m.seed: m.folder for m in seeds}, quiet=True)
    done = [m for m, of in zip(seeds, outcomes, strict=False) if of.finished]  # a signal ends it
    if not done:
        return outcomes
    with contextlib.ExitStack() as locks:
        for member in done:
            lock = train.only_one(member.folder, checkpoint.EVALUATION)
            cli.failing(locks.enter_context, lock)
        folders, asked = [member.folder for member in done], _CHECKPOINT.value
        _, networks = cli.refusing(trained.restored, folders, asked, experiment=experiment)
        parts = ("validation", "test") if _LOGITS.value == "keep" else ()
        if parts:
            sources = {part: getattr(experiment.dataset, part) for part in parts}
            trained.write_predictions(experiment, networks, sources)
        for member, network in zip(done, networks, strict=True):
            if not parts:
                evaluation_record.begin(network.folder, network.weights)
                options: dict[str, Any] = {"logits": _LOGITS.value, "names": summary.CELLS}
                scored = streamed_scores.evaluate_network(
                    experiment, network.state, member.folder, calibrate="temperature", **options
                )
                pages.replace(member.folder / "report", scored.save)
            network.record(parts)
            result = {"config": member.config, "asked": asked, **network.weights._asdict()}
            # Written last, to mark a finished run.
            log.replace(member.folder / evaluation_record.OF_SWEEP, json.dumps(result) + "\n")
    return outcomes


def tabulate(
    folder: pathlib.Path, complete: Sequence[Member], baseline: str, failed: Mapping[str, str]
) -> None:
    """Summarise the finished runs, and name the failed ones with their reasons."""
    config, dataset = complete[0].experiment.config, complete[0].experiment.dataset
    results = {member.name: member.result() for member in complete}
    counts = collections.Counter(result.get("checkpoint") for result in results.values())
    checkpoints = ", ".join(f"{name} of {count}" for name, count in counts.items())
    what = [
        f"{dataset.description} {config.model.name}, {config.num_epochs} epochs;"
        f" {len(dataset.test):,} test examples.",
        f"Checkpoints: {checkpoints} run{'s' * (len(complete) > 1)}.",
        *on_excluded(config, dataset.class_names),
    ]
    if baseline not in {member.loss for member in complete}:
        first = complete[0].loss
        what.append(
            f"All runs of the baseline {baseline} failed: the others are compared with {first}."
        )
        baseline = first
    left_out = [f"\n\nFailed, left out: {name}: {failed[name]}" for name in failed]
    about = {
        "title": f"{config.data.name}: {len({member.loss for member in complete})} losses",
        "what": " ".join(what) + "".join(left_out),
        "failed": dict(failed),
        "checkpoints": {
            name: {key: result.get(key) for key in ("checkpoint", "step")}
            for name, result in results.items()
        },
        "examples": len(dataset.test),
        "num_bins": config.num_bins,
        "provenance": environment.describe(),
        "config": cli.plain(config),
    }
    options = {"criteria": _CRITERION.value, "num_resamples": _RESAMPLES.value}
    runs = [member.read() for member in complete]
    summary_text.tabulate(runs, folder, baseline=baseline, about=about, **options)


if __name__ == "__main__":
    cli.run(main)
