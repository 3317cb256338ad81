"""Fuzz all readers, each in a process of its own, and write one page about them.

python -m tests.fuzz --cases=10000 --out=experiments/results/fuzz.md
python -m tests.fuzz --cases=300 --readers=answers,costs --failures=/tmp/failures
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import shlex
import subprocess
import sys

from calib_jax.core.files import writing
from experiments.running import provenance
from tests.fuzz import engine
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


def fuzz(name: str, cases: int, seed: int, failures: str) -> dict:
    """Fuzz one reader in its own process; a process that ends without its row has failed."""
    command = [sys.executable, "-m", "tests.fuzz.engine", name, str(cases), str(seed), failures]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    try:
        row = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        row = {"reader": name, "cases": 0, "accepted": 0, "refused": 0, "failed": 1}
        row |= {"slowest": 0, "memory": 0, "guided": engine.HAS_ATHERIS}
    if row["failed"]:
        sys.stderr.write(done.stderr[-8000:])
    print(_line(row), flush=True)
    return row


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
    parser.add_argument("--readers", default="", help="words in the names of readers; all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--failures", default="", help="folder for contents that failed")
    parser.add_argument("--out", default="", help="page to write")
    parser.add_argument("--rows", default="", help="JSON file of finished rows, to continue")
    given = parser.parse_args(arguments)
    words = [re.escape(word) for word in given.readers.split(",") if word]
    names = [name for name in FORMATS if re.search("|".join(words), name)]
    store = pathlib.Path(given.rows)
    finished = json.loads(store.read_text()) if given.rows and store.exists() else {}
    missing = [name for name in names if name not in finished]
    print(COLUMNS)
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        tasks = {
            pool.submit(fuzz, name, given.cases, given.seed, given.failures): name
            for name in missing
        }
        for task in concurrent.futures.as_completed(tasks):
            finished[tasks[task]] = task.result()
            if given.rows:
                with writing.replacing(store) as new:
                    new.write_text(json.dumps(finished, indent=1))
    rows = [finished[name] for name in FORMATS if name in finished]
    if given.out:
        origin = provenance.published()
        kept = [a for a in arguments if not a.startswith(("--rows", "--jobs", "--failures"))]
        pathlib.Path(given.out).write_text(page(rows, origin, kept), encoding="utf-8")
    return int(any(row["failed"] or row["memory"] > MOST_MEMORY for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
