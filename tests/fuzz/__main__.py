"""Fuzz all readers, each in a fork of this process, and write one page about them.

python -m tests.fuzz --cases=10000 --out=experiments/results/fuzz.md
python -m tests.fuzz --cases=300 --readers='answers|costs' --failures=/tmp/failures
"""

import argparse
import json
import pathlib
import re
import shlex
import sys

from tests.fuzz import engine

with engine.instrumented():
    from calib_jax.core.files import writing
    from experiments.running import provenance
    from tests.fuzz.readers import FORMATS, MOST_MEMORY

HEAD = f"""# Fuzzing of the readers of files

Every reader of files that others wrote gets broken files: mutations of a whole one, also of what
stands under a checksum or a length. A reader must accept a file, or refuse it with one short,
printable sentence that names it. Everything else is a failure: another exception, a case of more
than {engine.LONGEST:g} s. The goals are 0 failures and at most {MOST_MEMORY / 1e6:g} MB for all
cases of a reader together, beyond what its process held at the start.
"""
GUIDED = "atheris (libFuzzer), guided by the coverage of calib_jax"
RANDOM = "random mutations of whole files, not guided by coverage"
COLUMNS = "| reader | cases | accepted | refused | failed | slowest, ms | memory, MB |"


def _line(row: dict) -> str:
    counts = (f"{row[key]:,}" for key in ("cases", "accepted", "refused", "failed"))
    sizes = f"{1e3 * row['slowest']:,.0f}", f"{max(0, row['memory']) / 1e6:,.0f}"
    return f"| {' | '.join([row['reader'], *counts, *sizes])} |"


def page(rows: list[dict], origin: dict, arguments: list[str]) -> str:
    """Format the rows and where they come from."""
    engines = sorted({GUIDED if row["guided"] else RANDOM for row in rows})
    total = {key: sum(row[key] for row in rows) for key in ("cases", "refused", "failed")}
    about = {
        "engine": "; ".join(engines),
        "machine": f"{origin['processor']}, {origin['cores']} cores, {origin['system']}",
        "versions": f"python {origin['python']}, "
        + ", ".join(f"{name} {version}" for name, version in origin["versions"].items()),
        "commit": f"{origin['commit']}, {origin['date']}",
        "command": f"`{shlex.join(['python', '-m', 'tests.fuzz', *arguments])}`",
        "all": f"{total['cases']:,} cases of {len(rows)} readers, {total['refused']:,} refused,"
        f" {total['failed']:,} failed; slowest case {max(row['slowest'] for row in rows):.2g} s;"
        f" most memory {max(row['memory'] for row in rows) / 1e6:.0f} MB",
    }
    listing = "".join(f"- {key}: {value}\n" for key, value in about.items())
    rule = "|---|" + "--:|" * (COLUMNS.count("|") - 2)
    return "\n".join([HEAD, listing, COLUMNS, rule, *map(_line, rows), ""])


def main(arguments: list[str]) -> int:
    """Fuzz the chosen readers; return 1 if a case failed or a reader took too much memory."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="cases of each reader")
    parser.add_argument("--readers", default="", help="regular expression of their names; all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", default="", help="folder for contents that failed")
    parser.add_argument("--out", default="", help="page to write")
    parser.add_argument("--rows", default="", help="JSON file of finished rows, to continue")
    given = parser.parse_args(arguments)
    names = [name for name in FORMATS if re.search(given.readers, name)]
    store = pathlib.Path(given.rows)
    finished = json.loads(store.read_text()) if given.rows and store.exists() else {}
    print(COLUMNS)
    for name in names:
        if name not in finished:
            finished[name] = engine.run_in_fork(name, given.cases, given.seed, given.failures)
            print(_line(finished[name]), flush=True)
            if given.rows:
                with writing.replacing(store) as new:
                    new.write_text(json.dumps(finished, indent=1))
    rows = [finished[name] for name in FORMATS if name in finished]
    if given.out:
        origin = provenance.published()
        kept = [a for a in arguments if not a.startswith(("--rows", "--failures"))]
        pathlib.Path(given.out).write_text(page(rows, origin, kept), encoding="utf-8")
    return int(any(row["failed"] or row["memory"] > MOST_MEMORY for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
