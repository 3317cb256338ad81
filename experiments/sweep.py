r"""Train several losses with several seeds, and put them in one table.

    python -m experiments.sweep --config=configs/digits.py --workdir=/tmp/sweep \
        --losses=cross_entropy,focal,adafocal --seeds=3
    python -m experiments.sweep --config=configs/digits.py --workdir=/tmp/sweep \
        --losses=cross_entropy,brier --seeds=5 --baseline=brier --config.num_epochs=20

Each loss takes its fragment of configs/losses; --config.KEY=VALUE holds for all. Runs that are
done are not done again, and one that was stopped goes on: after Ctrl-C or a power cut the same
command continues, and with more losses or seeds it adds these.

The folder gets runs/LOSS/SEED (as experiments.train leaves it), and over all of them report.md,
sweep.csv, sweep.json and pictures: before and after temperature scaling, with intervals over the
test examples, and tests against the baseline, which is the first loss unless --baseline names one.
"""

import importlib.util
import json
import pathlib
import time
from typing import Any, NamedTuple

import jax
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
            own = config.copy_and_resolve_references()
            own.seed = seed
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
    config.best = ConfigDict()
    return config


def finish(member: Member, experiment: building.Experiment, state: Any, seconds: float) -> None:
    """Write predictions, and then the file that says that the run is through."""
    for part in ("validation", "test"):
        logits, labels = train.predict(
            experiment.task.forward,
            state,
            getattr(experiment.dataset, part),
            prepare=experiment.dataset.prepare,
            batch_size=1024,
            devices=building.devices(member.config),
        )
        np.savez(member.folder / f"predictions_{part}.npz", logits=logits, labels=labels)
    record = {"config": cli.plain(member.config), "seconds": seconds}
    temporary = member.folder / (RESULT + ".new")
    temporary.write_text(json.dumps(record) + "\n", encoding="utf-8")
    temporary.replace(member.folder / RESULT)


def run(member: Member) -> train.Outcome:
    """Train one member, or go on with it."""
    began = time.monotonic()
    experiment = built(member.config)
    outcome: train.Outcome = cli.failing(
        train.fit,
        member.folder,
        cli.refusing(experiment.beginning, member.folder),
        experiment.task,
        experiment.plan,
        config=cli.plain(member.config),
        free=["run"],
        environment=provenance.describe(),
        devices=building.devices(member.config),
        quiet=True,
    )
    if outcome.finished:
        finish(member, experiment, outcome.state, time.monotonic() - began)
    return outcome


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
    # The seeds of a loss are one program: it is compiled for the first of them.
    jax.config.update("jax_compilation_cache_dir", str(folder / ".compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
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
        )
        print("\n" + summary.text(found))
        names = summary.save(found, folder)
        print(f"\nwritten to {folder}: {', '.join(names)}")
    return 0


def _train_all(asked: list[Member]) -> int:
    missing = [member for member in asked if not member.done]
    if len(missing) < len(asked):
        print(f"{len(asked) - len(missing)} of {len(asked)} runs are done already.", flush=True)
    for number, member in enumerate(tqdm(missing, unit="run", disable=None), start=1):
        began = time.monotonic()
        outcome = run(member)
        if outcome.stopped_by is not None and not outcome.finished:
            print("stopped; nothing is lost: the same command goes on from here.", flush=True)
            return 128 + outcome.stopped_by
        row = read_rows(member.folder / "metrics.jsonl")[-1]
        tqdm.write(
            f"{number}/{len(missing)}  {member.loss} seed {member.seed}: validation error"
            f" {row['validation_error']:.3f}  nll {row['validation_nll']:.3f}  ece"
            f" {row['validation_ece']:.3f} | {time.monotonic() - began:.1f} s"
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
