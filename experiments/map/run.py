r"""Train the settings of the map, and write a record of each.

    python -m experiments.map.run --vectors=DIR --workdir=DIR [--records=FOLDER] [--texts=banking77]
        [--part=conditions]

--vectors is the folder with the folders banking77, clinc150, clinc150_out and newsgroups of
experiments.embed. All seeds of a setting share their programs. A setting with a record is
not trained again, and a stopped command resumes from the last checkpoint. The checkpoints of a
setting are removed once its record is written. --part chooses the twelve losses along weight decay
(map), the other training sizes, label noise and widths (conditions), or the other losses (methods).
"""

import pathlib

import numpy as np
from absl import flags

from experiments.map import records, statistics, trainings
from experiments.map.settings import PARTS, TEXTS, Setting, settings
from experiments.running import cli

flags.adopt_module_key_flags(records)  # --records
_VECTORS = flags.DEFINE_string("vectors", None, "Folder of the vectors.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the unfinished runs.")
_TEXTS = flags.DEFINE_list("texts", list(TEXTS), "Data sets of the settings.")
_PART = flags.DEFINE_enum("part", "map", PARTS, "Part of the settings.")


def chosen(part: str, folder: pathlib.Path) -> list[Setting]:
    """List the settings of a part; the records of the map choose two losses of the conditions."""
    if part != "conditions":
        return list(settings(part))
    best = statistics.two_best(records.read_all(folder, settings()))
    if not best:
        print(
            "The conditions train cross-entropy and focal loss. Two more losses are chosen once"
            f" the map has all records of {' and '.join(statistics.MADE_ON)}: repeat the command"
            " then.",
            flush=True,
        )
    return list(settings(part, best=best))


def main() -> int:
    """Train the settings that have no record."""
    if not (_VECTORS.value and _WORKDIR.value):
        raise cli.Refused("give --vectors=FOLDER of the vectors and --workdir=FOLDER of the runs.")
    if unknown := sorted(set(_TEXTS.value) - set(TEXTS)):
        raise cli.Refused(f"--texts must be among {', '.join(TEXTS)}, got {', '.join(unknown)}.")
    workdir, out = pathlib.Path(_WORKDIR.value), pathlib.Path(records.IN.value)
    cli.use_compilation_cache()
    of_part = cli.refusing(chosen, _PART.value, out)
    wanted = [setting for setting in of_part if setting.texts in _TEXTS.value]
    missing = [setting for setting in wanted if cli.refusing(records.read, out, setting) is None]
    print(f"{len(wanted) - len(missing)} of {len(wanted)} settings have a record.", flush=True)
    for number, setting in enumerate(missing, start=1):
        arguments = setting, _VECTORS.value, workdir, out
        record, signal = cli.failing(cli.refusing, trainings.record_setting, *arguments)
        if signal:
            print(f"{setting.name}: stopped; the same command resumes it.", flush=True)
            return 128 + signal
        means = {name: float(np.mean(column)) for name, column in record["values"].items()}
        print(
            f"{number}/{len(missing)}  {setting.name}: error {means['error']:.3f}  ECE"
            f" {means['ece_before']:.3f}  T {means['temperature']:.2f} | {record['seconds']:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    cli.run(main)
