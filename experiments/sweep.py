r"""Train several losses with several seeds, and put them in one table.

    python -m experiments.sweep --config=configs/digits.py --workdir=/tmp/sweep \
        --losses=cross_entropy,focal,adafocal --seeds=3
    python -m experiments.sweep --config=configs/digits.py --workdir=/tmp/sweep \
        --losses=cross_entropy,brier --seeds=5 --baseline=brier --config.num_epochs=20

Each loss takes its fragment of configs/losses; --config.KEY=VALUE holds for all. The seeds of a
loss are one program; --config.run.over=vmap or devices says how, as in experiments.train. Runs
that are done are not done again, and one that was stopped goes on: after Ctrl-C or a power cut the
same command continues, and with more losses or seeds it adds these.

The folder gets runs/LOSS/SEED (as experiments.train leaves it), and over all of them report.md,
sweep.csv, sweep.json and pictures: before and after temperature scaling, with intervals over the
test examples, and tests against the baseline, which is the first loss unless --baseline names one.
"""

import importlib.util
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags
from tqdm import tqdm

from calib_jax import train
from calib_jax.train.journal import read_rows
from calib_jax.train.lock import only_one
from experiments import building, cli, provenance, summary

_CONFIG = config_flags.DEFINE_config_file("config", None, "File of the config, without a loss.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the sweep; made if it is not there.")
flags.adopt_module_key_flags(building)  # --data_dir
_LOSSES = flags.DEFINE_list("losses", [], "Names in configs/losses, with commas between them.")
_SEEDS = flags.DEFINE_integer("seeds", 1, "How many, from config.seed on.", lower_bound=1)
_BASELINE = flags.DEFINE_string("baseline", None, "Loss to test the others against.")
_RESAMPLES = flags.DEFINE_integer("resamples", 1000, "Of the bootstrap.", lower_bound=100)

RESULT = "result.json"


class Member(NamedTuple):
    """One run of the sweep."""

    loss: str
    seed: int
    config: ConfigDict
    folder: pathlib.Path

    @property
    def done(self) -> bool:
        """Whether it is through, its predictions written."""
        return (self.folder / RESULT).exists()


def built(config: ConfigDict) -> building.Experiment:
    """Build a config, with the data where the command line says they are."""
    return building.build(config, data_dir=building.DATA_DIR.value)


def members(folder: pathlib.Path, losses: list[str], seeds: int) -> list[Member]:
    """List the runs that were asked for; anything unknown is refused before one begins."""
    found = []
    for loss in losses:
        config = _config_of(loss)
        built(config)
        first = config.seed
        for seed in range(first, first + seeds):
            own = building.of_seed(config, seed)
            found.append(Member(loss, seed, own, folder / "runs" / loss / str(seed)))
    for member in found:
        if member.done:
            before = json.loads((member.folder / RESULT).read_text(encoding="utf-8"))["config"]
            changed = train.differences(_fixed(before), _fixed(cli.plain(member.config)))
            if changed:
                raise ValueError(
                    f"{folder} holds a sweep of another config ({'; '.join(changed[:5])}): choose"
                    " another folder, or the old values."
                )
    missing = next((member for member in found if not member.done), None)
    if missing is not None and missing.config.init_from:
        built(missing.config).state()  # reads the weights, which may be those of another network
    return found


def _fixed(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "run"}


def _config_of(loss: str) -> ConfigDict:
    """Load the config file for one loss, and set what the command line sets."""
    flag = flags.FLAGS["config"]
    name = str(config_flags.get_config_filename(flag))
    spec = importlib.util.spec_from_file_location("sweep_config", name.partition(":")[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config: ConfigDict = module.get_config(loss)
    try:
        config.update_from_flattened_dict(config_flags.get_override_values(flag))
    except (KeyError, AttributeError) as error:
        raise ValueError(f"for the loss {loss!r}, {cli.sentence(error)}") from error
    config.init_from = building.INIT_FROM.value or config.init_from
    # The unit that is resumed is the run: it is saved when it ends, and when it is stopped.
    config.run.checkpoint_every_epochs = 0
    best = config.best.to_dict() if config.patience else {}
    config.best = ConfigDict({k: v for k, v in best.items() if k == config.patience_for})
    return config


def finish(members: Sequence[Member], experiment: building.Experiment, states: Any) -> None:
    """Write the predictions of the seeds of a loss."""
    for part in ("validation", "test"):
        logits, labels = train.predict_all(
            experiment.task.forward,
            states,
            getattr(experiment.dataset, part),
            prepare=experiment.dataset.prepare,
            batch_size=1024,
            devices=building.devices(experiment.config),
        )
        for member, own in zip(members, logits, strict=True):
            np.savez(member.folder / f"predictions_{part}.npz", logits=own, labels=labels)


def run(members: Sequence[Member]) -> list[train.Outcome]:
    """Train the seeds of one loss in one program, or go on with them."""
    began = time.monotonic()
    config = members[0].config
    experiment = built(config)
    folders = {member.seed: member.folder for member in members}
    runs = cli.failing(cli.refusing, experiment.runs, folders)
    outcomes: list[train.Outcome] = cli.failing(
        train.fit_all,
        runs,
        experiment.task,
        experiment.plan,
        free=["run"],
        environment=provenance.describe(),
        devices=building.devices(config),
        over=config.run.over,
        quiet=True,
    )
    through = [(m, one.state) for m, one in zip(members, outcomes, strict=True) if one.finished]
    if through:
        finish([member for member, _ in through], experiment, [state for _, state in through])
    for member, _ in through:  # the file that says that a run is through comes last
        seconds = (time.monotonic() - began) / len(members)
        record = {"config": cli.plain(member.config), "seconds": seconds}
        temporary = member.folder / (RESULT + ".new")
        temporary.write_text(json.dumps(record) + "\n", encoding="utf-8")
        temporary.replace(member.folder / RESULT)
    return outcomes


def read(member: Member) -> summary.Run:
    """Read what a run left."""

    def part(name: str) -> tuple[np.ndarray, np.ndarray]:
        with np.load(member.folder / f"predictions_{name}.npz", allow_pickle=False) as arrays:
            return arrays["logits"], arrays["labels"]

    rows = read_rows(member.folder / "metrics.jsonl")
    return summary.Run(member.loss, member.seed, part("validation"), part("test"), rows)


def main() -> int:
    """Train what is missing, then summarise all."""
    losses = list(dict.fromkeys(_LOSSES.value))
    if not (_CONFIG.value and _WORKDIR.value and losses):
        raise cli.Refused(
            "give --config=FILE, --workdir=FOLDER and --losses=NAME,NAME, such as"
            " --config=configs/digits.py --workdir=/tmp/sweep --losses=cross_entropy,focal."
        )
    baseline = _BASELINE.value or losses[0]
    if baseline not in losses:
        raise cli.Refused(f"--baseline={baseline} is not among --losses={','.join(losses)}.")
    folder = pathlib.Path(_WORKDIR.value)
    asked = cli.refusing(members, folder, losses, _SEEDS.value)
    cli.refusing(folder.mkdir, parents=True, exist_ok=True)
    # Losses share what does not differ between them, and so does a sweep that goes on.
    cli.use_compilation_cache(folder / ".compiled")
    with cli.failing(lambda: only_one(folder)):
        code = _train_all(asked)
        if code:
            return code
        found = summary.summarise(
            [read(member) for member in asked],
            baseline=baseline,
            num_bins=_CONFIG.value.num_bins,
            num_resamples=_RESAMPLES.value,
            about=_about(asked),
            say=cli.say_step,
        )
        print("\n" + summary.text(found), flush=True)
        cli.say_step("drawing the figures")
        names = summary.save(found, folder)
        print(f"\nwritten to {folder}: {', '.join(names)}")
    return 0


def _train_all(asked: list[Member]) -> int:
    """Train what is missing, the seeds of a loss together; give the exit code."""
    missing = [member for member in asked if not member.done]
    if len(missing) < len(asked):
        print(f"{len(asked) - len(missing)} of {len(asked)} runs are done already.", flush=True)
    failed: dict[str, str] = {}
    number = 0
    with tqdm(total=len(missing), unit="run", disable=None) as bar:
        for loss in dict.fromkeys(member.loss for member in missing):
            seeds = [member for member in missing if member.loss == loss]
            began = time.monotonic()
            outcomes = run(seeds)
            seconds = (time.monotonic() - began) / len(seeds)
            for member, outcome in zip(seeds, outcomes, strict=True):
                if outcome.stopped_by is not None and not outcome.finished:
                    print("stopped; nothing is lost: the same command goes on from here.")
                    return 128 + outcome.stopped_by
                number += 1
                bar.update()
                if outcome.failed:
                    failed[f"{loss} seed {member.seed}"] = outcome.failed
                    continue
                row = read_rows(member.folder / "metrics.jsonl")[-1]
                tqdm.write(
                    f"{number}/{len(missing)}  {loss} seed {member.seed}: validation error"
                    f" {row['validation_error']:.3f}  nll {row['validation_nll']:.3f}  ece"
                    f" {row['validation_ece']:.3f} | {seconds:.1f} s"
                )
    if failed:
        first, why = next(iter(failed.items()))
        raise cli.Failed(
            f"{len(failed)} of {len(asked)} runs failed ({', '.join(failed)}), so that there is no"
            f" table; {first}: {why}"
        )
    return 0


def _about(asked: list[Member]) -> dict[str, Any]:
    config = asked[0].config
    dataset = built(config).dataset
    model = f"{config.model.name}, {config.num_epochs} epochs"
    return {
        "title": f"{config.data.name}: {len({m.loss for m in asked})} losses",
        "what": f"{dataset.description} {model}; {len(dataset.test):,} test examples.",
        "num_bins": config.num_bins,
        "provenance": provenance.describe(),
        "config": cli.plain(config),
    }


if __name__ == "__main__":
    cli.run(main)
