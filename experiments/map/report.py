r"""Write the map's tables and figure from its records.

    python -m experiments.map.report [--records=FOLDER] [--page=FOLDER]

It writes map.md with the tables, and map.png and map.svg with the figure. The map may be
incomplete: a test that lacks settings has no result, and the page states how many settings it
lacks.
"""

import pathlib

import numpy as np
from absl import flags

from calib_jax import plots
from calib_jax.train import log
from experiments.map import figure, records, statistics, tables
from experiments.map.settings import BASELINE, LOSSES, PARTS, settings
from experiments.running import cli

flags.adopt_module_key_flags(records)  # --records
_PAGE = flags.DEFINE_string("page", str(records.FOLDER), "Folder of the tables and the figure.")


def read_all(folder: pathlib.Path) -> statistics.Records:
    """Read all records of a folder."""
    wanted = [of for part in PARTS for of in settings(part, best=tuple(LOSSES))]
    found = records.read_all(folder, wanted)
    if not any(setting.loss == BASELINE for setting in found):
        raise ValueError(
            f"{folder} has no record of cross-entropy: experiments.map.run writes records, and"
            " --records=FOLDER names their folder."
        )
    return found


def page(found: statistics.Records) -> str:
    """Write the page of the map."""
    lines = [
        "# The map",
        "",
        "Written by `python -m experiments.map.report`. The rules are in"
        " `experiments/map/README.md`. T is the temperature that cross-entropy needs in the same"
        " place. A place is a data set and a weight decay.",
        "",
        "![The gain of each loss against the temperature of cross-entropy](map.svg)",
        "",
        "Above 0 a loss is better calibrated than cross-entropy before any temperature. Points are"
        " means over ten seeds with 90 % intervals over seeds, test rows and validation rows.",
        *untrained(found),
        *(line for section in tables.sections(found) for line in section),
    ]
    return "\n".join(lines).rstrip() + "\n"


def untrained(found: statistics.Records) -> list[str]:
    """Name the settings whose network learned nothing: no confidence is its calibration error."""
    named = [
        f"{key.name} ({np.mean(record['values']['error']):.0%})"
        for key, record in found.items()
        if statistics.is_dead(record)
    ]
    if not named:
        return []
    return [
        "",
        f"These networks err on more than {statistics.LEARNED:.0%}: {', '.join(sorted(named))}. A"
        " network that learned nothing states low confidences, and is calibrated without being of"
        " use, so these are in no comparison.",
    ]


def main() -> int:
    """Write the tables and the figure."""
    folder, out = pathlib.Path(records.IN.value), pathlib.Path(_PAGE.value)
    found = cli.refusing(read_all, folder)
    out.mkdir(parents=True, exist_ok=True)
    log.replace(out / "map.md", page(found))
    drawing = figure.figure(statistics.cells(found, "ce2_before"))
    for name in ("map.png", "map.svg"):
        plots.save(drawing, out / name)
    print(f"written to {out}: map.md, map.png, map.svg, from {len(found)} settings.")
    return 0


if __name__ == "__main__":
    cli.run(main)
