"""Run all faults, and print the table.

    python -m tests.faults --out=experiments/results/faults.md
    python -m tests.faults --only=kills --scale=0.2

A family replaces its section of the page, and the others stay. --scale is the share of the random
tries. The exit code is 1 if a run was lost or silently wrong, or
printed a traceback; the reasons are printed.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time


def main(arguments):
    """Run the families of faults, and return the exit code."""
    from tests.faults import table
    from tests.faults.families import FAMILIES
    from tests.faults.kinds import Place

    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, help="file of the page")
    parser.add_argument("--only", default=",".join(FAMILIES), help="families, by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the random tries")
    flags = parser.parse_args(arguments)
    known = table.sections_in(flags.out.read_text()) if flags.out and flags.out.exists() else {}
    good = True
    with tempfile.TemporaryDirectory() as root:
        place = Place(pathlib.Path(root))
        for name in flags.only.split(","):
            rows, began = [], time.monotonic()
            for row in FAMILIES[name].rows(place, flags.scale):
                rows.append(row)
                seconds = time.monotonic() - began
                print(f"{seconds:5.0f} s  {row.fault}: {dict(row.counts)}", flush=True)
                print(*filter(None, [row.sentence, *row.notes]), sep="\n", flush=True)
                good &= row.good
                # The page is written after every row, since all of them take long.
                known[name] = table.section(rows, arguments, seconds / 60)
                if flags.out:
                    text = table.page({name: known[name] for name in FAMILIES if name in known})
                    flags.out.write_text(text, encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as programs:
        os.environ.setdefault("CALIB_JAX_TEST_PROGRAMS", programs)
        sys.exit(main(sys.argv[1:]))
