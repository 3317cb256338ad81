r"""Train and judge a claim of the papers, list the claims, or write the page of the results.

    python -m experiments.papers --list
    python -m experiments.papers --run=mukhoti-focal-better-calibrated-than-ce
    python -m experiments.papers --run=guo-batchnorm-hurts-calibration --seeds=3 --data_dir=DIR \
        --results=NEW
    python -m experiments.papers --page

--run reads the records of the row in --results and trains those that are missing. A row is judged
alone and with the variance of its own seeds; the verdicts in verdicts.csv pool the variance of
seeds over the losses of a network, and adjust for all claims of a paper.
"""

import pathlib

from absl import flags

from experiments.papers import verdicts
from experiments.running import building, cli

flags.declare_key_flag("data_dir")  # defined by `building`, whose other flag is for weights
_LIST = flags.DEFINE_bool("list", False, "List every claim with its state.")
_RUN = flags.DEFINE_string("run", None, "The row to train and to judge.")
_PAGE = flags.DEFINE_bool("page", False, "Write README.md and the figure.")
_SEEDS = flags.DEFINE_integer("seeds", 0, "Number of seeds; 0 is that of the table.", lower_bound=0)
_RESULTS = flags.DEFINE_string("results", str(verdicts.FOLDER), "Folder of the records.")
_WORKDIR = flags.DEFINE_string("workdir", "runs/papers", "Folder of the sweeps.")


def main() -> int:
    """List, run and write the page, in this order."""
    if not (_LIST.value or _RUN.value or _PAGE.value):
        raise cli.Refused("give --list, --run=ROW or --page: see --help.")
    if _LIST.value:
        _list()
    if _RUN.value:
        _run(_RUN.value)
    if _PAGE.value:
        from experiments.papers import page

        print(f"written to {cli.refusing(page.write, pathlib.Path(_RESULTS.value))}")
    return 0


def _list() -> None:
    from experiments.papers.rows import ROWS

    for row in cli.refusing(verdicts.read).values():
        again = "--run" if row.id in ROWS else ""
        print(f"{row.id:48} {row.state:14} {row.kind:28} {again}".rstrip())


def _run(name: str) -> None:
    from experiments.papers import judge, records
    from experiments.papers.rows import ROWS, WITHOUT

    verdict = cli.refusing(verdicts.chosen, name, list(ROWS))
    results, workdir = pathlib.Path(_RESULTS.value), pathlib.Path(_WORKDIR.value)
    trainings = judge.trainings_of(ROWS[name], _SEEDS.value)
    for training in trainings.values():
        cli.refusing(records.train, results, training, workdir, building.DATA_DIR.value)
    trained = cli.refusing(judge.read, results, trainings, verdict.commits)
    judged = cli.refusing(judge.judge, ROWS[name], trained)
    print(f"{name}: {judged.state} (two-sided p {judged.p:.2g})\n  {verdict.sentence}")
    for comparison, value in judged.values.items():
        print(f"  {comparison.name}: {value}; seeds {value.seeds}, examples {value.rows:,}")
        if comparison in judged.points:
            effect, low, high = judged.points[comparison]
            print(f"    in points of its root: {effect:.1f} [{low:.1f}, {high:.1f}]")
    for comparison in judged.dropped:
        print(f"  {comparison.name}: left out, a network has an error of 90 % or more")
    if name in WITHOUT:
        print(f"  not computed here: {WITHOUT[name]}")
    print(f"  in verdicts.csv: {verdict.state}")


if __name__ == "__main__":
    cli.run(main)
