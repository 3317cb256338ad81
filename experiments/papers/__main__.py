r"""Test the claims of the papers: list them, run what they need, and write the page of verdicts.

    python -m experiments.papers --list
    python -m experiments.papers --run=mukhoti-nll-overfits-on-wrong --data_dir=DIR
    python -m experiments.papers --run=all --recompute
    python -m experiments.papers --page
    python -m experiments.papers --tables
    python -m experiments.papers --scale=gpu --minutes=20 --out=DIR --data_dir=DIR

--run takes claims, entries or all, and computes their verdicts. It trains the runs that are in
neither --results nor --runs_dir, and keeps a small record of each run; --recompute uses these
records alone. Comparisons name runs of several commits. --scale=toy tries the same on
digits in seconds, in a folder of its own: its verdicts are not about the claims. --scale=gpu has a
wide network in a short schedule, in a folder of its own; with --minutes it trains what is worth
most and fits, and --tiny tries this.
"""

import pathlib
from typing import TYPE_CHECKING

from absl import flags

from experiments.running import building, cli

if TYPE_CHECKING:
    from experiments.papers import entry
    from experiments.papers.judge import blocks

flags.adopt_module_key_flags(building)  # --data_dir
_LIST = flags.DEFINE_bool("list", False, "List every claim, what it needs, and its state.")
_RUN = flags.DEFINE_list("run", [], "Claims or entries, separated by commas; or all.")
_PAGE = flags.DEFINE_bool("page", False, "Write README.md and the pages of the sources.")
_TABLES = flags.DEFINE_bool(
    "tables", False, "Write tables.md: the networks of --results and --runs_dir, beside published."
)
_SCALE = flags.DEFINE_enum("scale", "cpu", ["toy", "cpu", "gpu"], "Size of the runs.")
_RECOMPUTE = flags.DEFINE_bool("recompute", False, "Compute verdicts from records; never train.")
_TRAIN = flags.DEFINE_bool("train", True, "Train missing runs; --notrain reports them instead.")
_RUNS_DIR = flags.DEFINE_string("runs_dir", "runs", "Folder of the sweeps, one per config.")
_RESULTS = flags.DEFINE_string(
    "results", "experiments/results/papers", "Folder of verdicts and of the records of runs."
)

_MINUTES = flags.DEFINE_float(
    "minutes", 0.0, "With --scale=gpu: train for this long what is worth most.", lower_bound=0.0
)
_AT_ONCE = flags.DEFINE_integer(
    "at_once", 1, "With --minutes: trainings that share the accelerator.", lower_bound=1
)
_OUT = flags.DEFINE_string("out", None, "With --minutes: folder of the results.")
_TINY = flags.DEFINE_bool("tiny", False, "With --minutes: a small network and few images.")
_PRECISION = flags.DEFINE_enum(
    "precision", "bfloat16", ["bfloat16", "float32"], "With --scale=gpu: that of the layers."
)


def main() -> int:
    """Run, list and write the page, in this order."""
    if _MINUTES.value:
        return _session()
    idle = {
        "--tiny": _TINY.value and "--minutes=M",
        "--out": _OUT.value is not None and "--minutes=M",
        "--recompute": _RECOMPUTE.value
        and not (_RUN.value or _TABLES.value)
        and "--run=ENTRY or --tables",
        "--notrain": not _TRAIN.value and not _RUN.value and "--run=ENTRY",
        "--precision": flags.FLAGS["precision"].present and _SCALE.value != "gpu" and "--scale=gpu",
    }
    for flag, needed in idle.items():
        if needed:
            raise cli.Refused(f"{flag} needs {needed}.")
    if not (_LIST.value or _RUN.value or _PAGE.value or _TABLES.value):
        raise cli.Refused("give --list, --run=CLAIM[,CLAIM], --tables or --page: see --help.")
    from experiments.papers import entry, scales
    from experiments.papers.judge import blocks, verdicts
    from experiments.papers.page import listing
    from experiments.papers.page import verdicts_page as page

    results = pathlib.Path(_RESULTS.value)
    folder = results if _SCALE.value == "cpu" else results / _SCALE.value
    _check_folder(results, folder)
    code = 0
    scaled = [
        scales.at(each, _SCALE.value, _PRECISION.value) for each in entry.catalogue().values()
    ]
    reader = blocks.Reader(folder, scaled)
    for chosen in cli.refusing(entry.chosen, _RUN.value):
        try:
            code = max(code, _run(scales.at(chosen, _SCALE.value, _PRECISION.value), reader))
        except cli.Refused as error:
            # `all` has entries whose records or data this machine lacks: the others go on.
            if "all" not in _RUN.value or not isinstance(error.__cause__, FileNotFoundError):
                raise
            print(f"{chosen.name}: not run; {error}", flush=True)
    if _TABLES.value:
        print(f"written to {_tables(folder)}")
    if _LIST.value or _PAGE.value:
        by_claim = {claim: tested_by for tested_by in scaled for claim in tested_by.claims}
        standing = cli.refusing(verdicts.read, folder, by_claim)
    if _LIST.value:
        data_dir = building.DATA_DIR.value
        places = (folder, standing, by_claim, data_dir)
        listed = cli.refusing(listing.rows, *places, look_for_data=True)
        print(listing.text(listed, data_dir))
    if _PAGE.value:  # the same on every machine, whatever data it has
        listed = cli.refusing(listing.rows, folder, standing, by_claim)
        print(f"written to {cli.refusing(page.write, folder, listed, standing, by_claim)}")
    return code


def _check_folder(results: pathlib.Path, folder: pathlib.Path) -> None:
    """Refuse a folder of results that does not exist, unless this command creates it.

    Args:
      results: the folder of --results.
      folder: that of the scale in it.
    """
    if _RUN.value and not _RECOMPUTE.value:
        return
    reads_folder = _PAGE.value or _TABLES.value or _RECOMPUTE.value
    if not reads_folder and _SCALE.value == "toy":
        return
    needed = folder if reads_folder else results
    if not needed.is_dir():
        raise cli.Refused(
            f"the folder {needed} does not exist: --results=DIR is the folder of verdicts and"
            " records, and --run=ENTRY creates it."
        )


def _session() -> int:
    """Use the minutes of an accelerator."""
    if _SCALE.value != "gpu" or _RUN.value:
        raise cli.Refused("--minutes needs --scale=gpu, and chooses the runs itself: omit --run.")
    from experiments.papers import accelerator

    scale = "tiny" if _TINY.value else "gpu"
    out = pathlib.Path(_OUT.value or pathlib.Path(_RESULTS.value) / scale)
    runs_dir, data_dir = pathlib.Path(_RUNS_DIR.value), building.DATA_DIR.value
    place = accelerator.Place(out, runs_dir, data_dir, scale, _PRECISION.value)
    return accelerator.session(place, _MINUTES.value, _AT_ONCE.value)


def _tables(folder: pathlib.Path) -> pathlib.Path:
    """Write the tables of trained networks, with records of all runs that are finished."""
    from calib_jax.train.folder import files
    from experiments.papers.page import repetitions, trained_tables

    if not _RECOMPUTE.value:
        runs_dir, data_dir = pathlib.Path(_RUNS_DIR.value), building.DATA_DIR.value
        for page in (trained_tables, repetitions):
            cli.refusing(page.collect, folder, runs_dir, data_dir)
    path = folder / trained_tables.FILE
    cli.refusing(files.replace, path, cli.refusing(trained_tables.text, folder))
    return path


def _run(scaled: "entry.Entry", reader: "blocks.Reader") -> int:
    """Compute the verdicts of an entry, and train what is missing; return the exit code."""
    from experiments.papers import scales
    from experiments.papers.judge import blocks, values, verdicts
    from experiments.papers.store import records, runs

    folder = reader.folder
    if scaled.runs and not _RECOMPUTE.value:
        runs_dir, data_dir = pathlib.Path(_RUNS_DIR.value), building.DATA_DIR.value
        missing = cli.refusing(records.collect, folder, scaled, runs_dir, data_dir)
        if missing and not _TRAIN.value:
            parts = [f"{t.config} {t.label} ({', '.join(seeds)})" for t, seeds in missing.items()]
            print(f"{scaled.name}: not run; {runs_dir} lacks {', '.join(parts)}.", flush=True)
            return 0
        if large := [training for training in missing if scales.is_large(training)]:
            names = ", ".join(sorted({training.config for training in large}))
            print(f"{scaled.name}: not run; {names} need an accelerator: --scale=gpu.", flush=True)
            return 0
        if missing:
            for training in missing:
                name = runs.config_of(training)["data"]["name"]
                if why := runs.missing_data(name, data_dir):
                    raise cli.Refused(f"{scaled.name}: {why}") from FileNotFoundError(why)
            runs.train_missing(list(missing), runs_dir, data_dir)
            cli.refusing(records.collect, folder, scaled, runs_dir, data_dir)
        reader = blocks.Reader(folder, reader.entries)  # with the new records
    record = cli.refusing(verdicts.compute, scaled, folder, _SCALE.value, reader)
    path = cli.refusing(verdicts.write, folder, record)
    for claim, part in record["claims"].items():
        print(f"{claim}: {part['state']}" + (f" (p {part['p']:.2g})" if part["p"] else ""))
        for name, plain in part["values"].items():
            print(f"  {name}: {values.Value.of(plain).text()}")
    print(f"written to {path}", flush=True)
    return 0


if __name__ == "__main__":
    cli.run(main)
