"""Read the folder of a run without the values that differ between two undisturbed runs."""

import csv
import json

import numpy as np
import tensorstore

# Keys of rows and records that differ between two undisturbed runs.
TIMES = {
    "seconds",
    "evaluation_seconds",
    "examples_per_second",
    "provenance",
    "date",
    "command",
    "commit",
}
# Other files are compared by name only: pages and pictures show times, and logs list the starts.
APART = (".lock", ".lock-evaluation", "log.txt", "environment.jsonl")
DAMAGED = ".damaged"  # the copy of a damaged file, which the library keeps


def end_of(folder, apart=""):
    """Return the contents of a folder by name, with the arrays of the newest checkpoints.

    The file `apart` is left out.

    The arrays are read from the files, without the library and without orbax.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        inside = {"checkpoints", ".compiled"} & set(path.relative_to(folder).parts[:-1])
        if path.name == "checkpoints":
            step = max(int(entry.name) for entry in path.glob("[0-9]*"))
            found[f"{name}/STEP"] = step
            for key, value in arrays_of(path / str(step) / "state").items():
                found[f"{name}/{key}"] = value
        elif path.is_file() and not (
            inside or name == apart or path.name in APART or path.suffix == DAMAGED
        ):
            found[name] = content_of(path)
    return found


def arrays_of(state):
    """Return the stored bytes of every array of a checkpoint."""
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{state}/"}).result()
    return {key.decode(): store.read(key).result().value for key in store.list().result()}


def content_of(path):
    """Return what must be equal in a file."""
    match path.suffix:
        case ".npz":
            with np.load(path) as file:
                return {key: (file[key].dtype.str, file[key].tobytes()) for key in file.files}
        case ".jsonl":
            return [without_times(json.loads(line)) for line in path.read_text().splitlines()]
        case ".json":
            return without_times(json.loads(path.read_text()))
        case ".csv":
            with path.open() as lines:
                return [without_times(row) for row in csv.DictReader(lines)]
    return None


def without_times(value):
    """Drop the keys in `TIMES`, also those inside."""
    if isinstance(value, dict):
        return {key: without_times(entry) for key, entry in value.items() if key not in TIMES}
    return list(map(without_times, value)) if isinstance(value, list) else value
