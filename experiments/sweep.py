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
import functools
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags
from tqdm import tqdm

from calib_jax import train
from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.train import checkpoint, log
from experiments.reports import evaluation_record, excluded, streamed_scores, summary, summary_text
from experiments.reports.evaluation_record import Evaluated
from experiments.running import (
    building,
    cli,
    finished,
    imports,
    initial,
    provenance,
    resuming,
    seed_folders,
    training,
)
from experiments.running.trained import predictions

_CONFIG = imports.define_config(
    "File of the config; options of a loss, --config.loss.options.KEY, are those of the first of"
    " --losses.",
    losses="losses",
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the sweep; created if it does not exist."
)
flags.adopt_module_key_flags(building)  # --data_dir
_LOSSES = flags.DEFINE_list(
    "losses", [], "Names in configs/losses, or import paths MODULE:NAME, separated by commas."
)
_SEEDS = flags.DEFINE_integer("seeds", 1, "Number of seeds, from config.seed on.", lower_bound=1)
_BASELINE = flags.DEFINE_string("baseline", None, "Loss to test the others against.")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "latest, or best_NAME; by default latest, or the best where patience has ended a run.",
)
_CRITERION = cli.define_criterion()
_RESAMPLES = cli.define_resamples()
_LOGITS = cli.define_logits(streamed_scores.KINDS)


class Member(NamedTuple):
    """One run of the sweep."""

    loss: str
    seed: int
    experiment: building.Experiment
    folder: pathlib.Path

    @property
    def name(self) -> str:
        """The name of the run in messages."""
        return f"{self.loss} seed {self.seed}"

    @property
    def config(self) -> dict[str, Any]:
        """The config of the run, as JSON."""
        return cli.plain(building.of_seed(self.experiment.config, self.seed))

    def result(self) -> dict[str, Any]:
        """Read the file that a finished run writes; empty if it is missing or damaged."""
        path = self.folder / evaluation_record.OF_SWEEP
        try:
            record = reading.json_mapping(path, "a result", "it is written again")
        except FileNotFoundError:
            return {}
        except reading.Unreadable as error:
            initial.warn(str(error))
            return {}
        return record if isinstance(record.get("config"), dict) else {}

    def check(self) -> None:
        """Raise an error if the folder holds a finished run that cannot go on with this config."""
        result = self.result()
        if not result:
            return
        rows = log.read_rows(self.folder / log.ROWS)
        step, free = rows[-1]["step"] if rows else 0, resuming.free(self.experiment)
        if keys := checkpoint.forbidden(result["config"], self.config, step, free):
            raise ValueError(
                f"{self.folder} holds a run of a sweep of another config"
                f" ({checkpoint.listed(keys)}): choose another folder, or use the old values."
            )
        name = (_CHECKPOINT.value or "latest").removeprefix("best_")
        if name not in ("latest", *result["config"].get("best", {})):
            raise ValueError(
                f"{self.name} has not kept best_{name}: give --checkpoint=best_{name} in a new"
                " folder, from the start."
            )

    def is_complete(self) -> bool:
        """Check that the predictions of the requested checkpoint are written and complete.

        A finished run continues if a changed key may prolong it, such as num_epochs or patience.
        """
        result = self.result()
        if not result or result.get("asked", "") != _CHECKPOINT.value:
            return False
        if train.differences(result["config"], self.config, free=resuming.MEASURED):
            return False
        try:
            streamed = self.read().streamed
            if streamed and _LOGITS.value != "keep":
                num_bins = self.experiment.config.num_bins
                streamed.check_table(self.name, _CRITERION.value, num_bins)
        except (OSError, ValueError) as error:
            initial.warn(f"{cli.sentence(error)} It is written again.")
            return False
        return not streamed or _LOGITS.value != "keep"

    def read(self) -> summary.Run:
        """Read the predictions or the streamed values of the run, and its log."""
        return finished.read_run(self.loss, self.seed, self.folder, self.experiment.config)


# ------------------------------------------------------------------------------------------------
# The requested trainings.


def members(folder: pathlib.Path, losses: Sequence[str], seeds: int) -> list[Member]:
    """List the requested runs, and raise an error for unknown names before any run begins."""
    overrides = config_flags.get_override_values(flags.FLAGS["config"])
    requested, data_dir = [], building.DATA_DIR.value
    read: dict[str, Any] = {}  # the data sets, which losses share
    for loss in losses:
        config = _config_of(loss, overrides)
        key = json.dumps([config.data.name, cli.plain(config.data.options)])
        if key not in read:
            read[key] = building.data_set(config.data.name, config.data.options, data_dir)
        experiment = building.assemble(config, read[key])._replace(data_dir=data_dir)
        for note in building.unused(config, overrides):
            cli.say_once(f"note: {note}.")
        checks.seed(config.seed, seeds)
        requested += [
            Member(loss, seed, experiment, folder / "runs" / loss / str(seed))
            for seed in range(config.seed, config.seed + seeds)
        ]
    for member in requested:
        member.check()
    missing = next((member for member in requested if not member.result()), None)
    if missing is not None and missing.experiment.config.init_from:
        missing.experiment.state()  # raises if the weights do not fit the network
    return requested


def _config_file() -> tuple[str, str]:
    """Return the config file, and the loss after the colon, if there is one."""
    file, _, loss = str(config_flags.get_config_filename(flags.FLAGS["config"])).partition(":")
    return file, loss


def _config_of(loss: str, overrides: Mapping[str, Any]) -> ConfigDict:
    """Load the config file for one loss, and apply the overrides of the command line."""
    config = imports.config_of(_config_file()[0], loss)
    for key, flag in {"loss.name": "losses", "num_seeds": "seeds"}.items():
        if key in overrides:
            raise ValueError(f"a sweep takes --{flag}, and not --config.{key}.")
    try:
        config.update_from_flattened_dict(overrides)
    except (KeyError, AttributeError) as error:
        raise ValueError(f"for the loss {loss!r}, {cli.sentence(error)}") from error
    config.init_from = building.INIT_FROM.value or config.init_from
    # A sweep resumes whole runs, so a run is saved only when it ends or is stopped.
    config.run.checkpoint_every_epochs = 0
    # Keep only the best checkpoints that patience and --checkpoint need.
    best, name = building.best_of(config), _CHECKPOINT.value or "latest"
    checks.one_of("--checkpoint", name, ["latest", *(f"best_{metric}" for metric in best)])
    wanted = {name.removeprefix("best_"), config.patience_for if config.patience else ""}
    config.best = ConfigDict({metric: best[metric] for metric in best if metric in wanted})
    return config


# ------------------------------------------------------------------------------------------------
# Training and evaluation.


def run(seeds: Sequence[Member]) -> list[train.Outcome]:
    """Train the seeds of one loss, or resume them, and evaluate those that are finished."""
    experiment = seeds[0].experiment
    outcomes = training.fit(experiment, {m.seed: m.folder for m in seeds}, quiet=True)
    with contextlib.ExitStack() as locks:
        trained = []
        for member, outcome in zip(seeds, outcomes, strict=False):  # a signal ends the loop
            if outcome.finished:
                lock = train.only_one(member.folder, checkpoint.EVALUATION)
                cli.failing(locks.enter_context, lock)
                trained.append((member, *cli.refusing(_weights_of, member, outcome)))
        if trained:
            cli.failing(_evaluate, trained, experiment)
    return outcomes


def _weights_of(member: Member, outcome: train.Outcome) -> tuple[train.TrainState, Evaluated]:
    """Restore the checkpoint to evaluate, and return its state and its name and step."""
    with initial.opened(member.folder) as checkpoints:
        name = _CHECKPOINT.value or initial.chosen(checkpoints)
        step, state = initial.step_of(checkpoints, name), outcome.state
        if step is not None:
            state = checkpoints.restore(state, step).state
    return state, Evaluated(name, int(state.step))


def _evaluate(
    trained: Sequence[tuple[Member, train.TrainState, Evaluated]], experiment: building.Experiment
) -> None:
    """Write the predictions or the streamed values of the runs of a loss, and mark the runs."""
    states = [state for _, state, _ in trained]
    for member, _, weights in trained:
        evaluation_record.begin(member.folder, weights)
    parts = ("validation", "test") if _LOGITS.value == "keep" else ()
    for part in parts:
        predicted = predictions(experiment, states, getattr(experiment.dataset, part))
        for (member, _, weights), logits in zip(trained, predicted.logits, strict=True):
            of_member = predicted._replace(logits=logits)
            evaluation_record.keep(member.folder, part, of_member, weights)
    for member, state, weights in trained:
        if not parts:
            scored = streamed_scores.evaluate_network(
                experiment,
                state,
                member.folder,
                logits=_LOGITS.value,
                names=summary.CELLS,
                calibrate="temperature",
                batch_size=experiment.plan.batch_size,
            )
            evaluation_record.save_report(member.folder / "report", scored.save)
        evaluation_record.write(member.folder, weights, parts)
        result = {
            "config": member.config,
            "asked": _CHECKPOINT.value,
            "checkpoint": weights.checkpoint,
            "step": weights.step,
        }
        # Written last, to mark a finished run.
        log.replace(member.folder / evaluation_record.OF_SWEEP, json.dumps(result) + "\n")


def _train_all(requested: Sequence[Member]) -> tuple[int, dict[str, str]]:
    """Train the missing runs, loss by loss.

    Returns:
      The exit code if a signal stopped the sweep, else 0; and the reasons of failed runs, by name.
    """
    missing = [member for member in requested if not member.is_complete()]
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
                if reason:
                    failed[member.name] = reason
                result = f"failed: {reason}" if reason else f"{_measured(member)} | {seconds:.1f} s"
                tqdm.write(cli.printable(f"{number}/{len(missing)}  {member.name}: {result}"))
    return 0, failed


def _measured(member: Member) -> str:
    """Format the first validation metrics of the last evaluation of a run."""
    row, start = log.read_rows(member.folder / log.ROWS)[-1], "validation_"
    values = {key.removeprefix(start): row[key] for key in row if key.startswith(start)}
    shown = [f"{k} {'NaN' if v is None else f'{v:.3f}'}" for k, v in values.items()]
    return "validation " + "  ".join(shown[: log.SHOWN])


# ------------------------------------------------------------------------------------------------
# The table.


def _tabulate(
    folder: pathlib.Path, complete: Sequence[Member], baseline: str, failed: Mapping[str, str]
) -> None:
    """Summarise the finished runs, and name the failed ones with their reasons."""
    about = _about(complete)
    if baseline not in {member.loss for member in complete}:
        first = complete[0].loss
        about["what"] += (
            f" All runs of the baseline {baseline} failed: the others are compared with {first}."
        )
        baseline = first
    if failed:
        about["failed"] = dict(failed)
        about["what"] += "".join(f"\n\nFailed, left out: {name}: {failed[name]}" for name in failed)
    summarized = summary.summarize(
        [member.read() for member in complete],
        baseline=baseline,
        num_bins=_CONFIG.value.num_bins,
        num_resamples=_RESAMPLES.value,
        criteria=_CRITERION.value,
        about=about,
        say=cli.say_step,
    )
    cli.say("\n" + summary_text.text(summarized))
    cli.say_step("drawing the figures")
    save = functools.partial(summary_text.save, summarized)
    names = cli.refusing(evaluation_record.save_report, folder, save)
    cli.say(f"\nwritten to {folder}: {', '.join(names)}")


def _about(complete: Sequence[Member]) -> dict[str, Any]:
    """Describe the runs of the table, with the checkpoints that were evaluated."""
    config, dataset = complete[0].experiment.config, complete[0].experiment.dataset
    results = [member.result() for member in complete]
    counts = collections.Counter(result.get("checkpoint", "latest") for result in results)
    checkpoints = ", ".join(f"{name} of {count}" for name, count in counts.items())
    note = excluded.sentence(config, dataset.class_names)
    return {
        "title": f"{config.data.name}: {len({m.loss for m in complete})} losses",
        "what": f"{dataset.description} {config.model.name}, {config.num_epochs} epochs;"
        f" {len(dataset.test):,} test examples."
        f" Checkpoints: {checkpoints} run{'s' * (len(complete) > 1)}." + f" {note}" * bool(note),
        "checkpoints": {
            member.name: {key: result.get(key) for key in ("checkpoint", "step")}
            for member, result in zip(complete, results, strict=True)
        },
        "examples": len(dataset.test),
        "num_bins": config.num_bins,
        "provenance": provenance.describe(),
        "config": cli.plain(config),
    }


def main() -> int:
    """Train the missing runs, then summarise all runs."""
    losses = list(dict.fromkeys(_LOSSES.value))
    if not (_CONFIG.value and _WORKDIR.value is not None and losses):
        raise cli.Refused(
            "give --config=FILE, --workdir=FOLDER and --losses=NAME,NAME, such as"
            " --config=configs/digits.py --workdir=/tmp/sweep --losses=cross_entropy,focal."
        )
    named, baseline = _config_file()[1], _BASELINE.value or losses[0]
    if named and named not in losses:
        raise cli.Refused(
            f"--config names the loss {named}, which is not among --losses={','.join(losses)}: add"
            " it there, or leave it out."
        )
    if baseline not in losses:
        raise cli.Refused(f"--baseline={baseline} is not among --losses={','.join(losses)}.")
    cli.refusing(summary.phases_of, _CRITERION.value)
    if _LOGITS.value != "keep" and _CRITERION.value != ["nll"]:
        raise cli.Refused("--criterion needs --logits=keep: over a stream it is the NLL.")
    folder = cli.refusing(seed_folders.named, _WORKDIR.value)
    if (folder / "checkpoints").exists() or seed_folders.there(folder):
        raise cli.Refused(f"{folder} holds a run, and no sweep: choose another folder.")
    requested = cli.refusing(members, folder, losses, _SEEDS.value)
    cli.refusing(seed_folders.prepare, folder)
    cli.use_compilation_cache()  # losses share equal programs, and a resumed sweep reuses them
    with contextlib.ExitStack() as stack:
        cli.failing(stack.enter_context, train.only_one(folder))
        code, failed = _train_all(requested)
        complete = [member for member in requested if member.name not in failed]
        if complete and not code:
            _tabulate(folder, complete, baseline, failed)
    if failed and not code:
        first, why = next(iter(failed.items()))
        left = "are not in the table" if complete else "there is no table"
        raise cli.Failed(
            f"{len(failed)} of {len(requested)} runs failed ({', '.join(failed)}), and {left};"
            f" {first}: {why}"
        )
    return code


if __name__ == "__main__":
    cli.run(main)
