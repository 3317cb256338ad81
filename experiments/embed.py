r"""Compute the vectors of the texts of a data set by a frozen encoder, once.

    python -m experiments.embed --data=banking77 --encoder=BERT --out=vectors/banking77
    python -m experiments.embed --data=clinc150:scope=out --encoder=BERT --out=vectors/clinc150_out
    python -m experiments.embed --data=newsgroups:length=128:cut=end --encoder=BERT --out=FOLDER

BERT is a folder of Hugging Face with config.json, model.safetensors and vocab.txt. A vector is the
mean of the encoder's output over the tokens of a text. The data set is any one with the option
`pieces`, with its other options after colons.

The vectors are computed in batches and written to --out as they come, so a stopped command goes on
where it ended, and a finished one computes nothing. The folder records the encoder, the texts and
the options; vectors of another encoder or of other texts are refused. The data set `vectors` reads
the folder, such as in configs/intents_mlp.py.
"""

import hashlib
import json
import pathlib
from typing import Any

import numpy as np
from absl import flags
from tqdm import tqdm

from calib_jax import data
from calib_jax.core import checks
from calib_jax.data.formats import vectors
from calib_jax.train import log, only_one
from experiments.datasets.text_encoder import TextEncoder
from experiments.running import building, cli, environment

flags.declare_key_flag("data_dir")  # defined by `building`
_DATA = flags.DEFINE_string("data", None, "Data set of the texts, with options: NAME:key=value.")
_ENCODER = flags.DEFINE_string("encoder", None, "Folder of the BERT.")
_OUT = flags.DEFINE_string("out", None, "Folder of the vectors.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Texts in a batch.", lower_bound=1)


def texts_of(given: str, encoder: TextEncoder, data_dir: str | None) -> data.Dataset:
    """Load a data set, such as clinc150:scope=out, as word pieces of the encoder."""
    name, options = checks.name_and_options(given)
    known = data.catalogue()
    fitting = [key for key in known if "pieces" in checks.options_of(known[key])]
    checks.one_of("the data set of --data", name, fitting)
    checks.check_options(name, known[name], options)
    dataset = building.data_set(name, {**options, "pieces": str(encoder.folder)}, data_dir)
    longest = max(_examples(dataset, part)[0].shape[1] for part in vectors.PARTS)
    if longest > encoder.places:
        has_length = "length" in checks.options_of(known[name])
        way = (
            f"--data={name}:length={encoder.places}:cut=end" if has_length else "another --encoder"
        )
        raise ValueError(
            f"{name} has texts of up to {longest} word pieces, and {encoder.folder.name} takes"
            f" {encoder.places}: give {way}."
        )
    return dataset


def identity(given: str, dataset: data.Dataset, encoder: TextEncoder) -> dict[str, Any]:
    """Describe the texts and the encoder, so that others are recognised."""
    known, parts = hashlib.sha256(), {}
    for part in vectors.PARTS:
        tokens, labels, weights = _examples(dataset, part)
        for array in (tokens, labels):
            known.update(str(array.shape).encode() + np.ascontiguousarray(array, "<i4").tobytes())
        parts[part] = {
            **{"count": len(labels), "width": encoder.width, "weights": weights is not None}
        }
    name, _, options = given.partition(":")
    return {
        "texts": {"name": name, "options": options, "digest": known.hexdigest()},
        "encoder": {"name": encoder.folder.name, "digest": encoder.digest},
        "class_names": list(dataset.class_names),
        "parts": parts,
    }


def prepare(folder: pathlib.Path, wanted: dict[str, Any], dataset: data.Dataset) -> None:
    """Create the files of the vectors, or check that a folder holds vectors of the same texts."""
    if (folder / vectors.RECORD).exists():
        there = vectors.read_record(folder)
        for what in ("texts", "encoder"):
            before, now = there[what], wanted[what]
            if before != now:
                raise ValueError(
                    f"{folder} holds vectors of the {what} {_described(before)}, and not of"
                    f" {_described(now)}: give another --out."
                )
        return
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is no folder of vectors, and not empty: give another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    for part in vectors.PARTS:
        _, labels, weights = _examples(dataset, part)
        np.save(folder / f"{part}_labels.npy", labels.astype(np.int32))
        if weights is not None:
            np.save(folder / f"{part}_weights.npy", weights.astype(np.float32))
        shape = (len(labels), wanted["parts"][part]["width"])
        np.save(folder / f"{part}.npy", np.full(shape, np.nan, np.float32))
    text = json.dumps({**wanted, "provenance": environment.published()}, indent=1) + "\n"
    log.replace(folder / vectors.RECORD, text)  # last: it marks a folder of vectors


def _described(entry: dict[str, str]) -> str:
    options = f":{entry['options']}" if entry.get("options") else ""
    return f"{entry['name']}{options} ({entry['digest'][:12]})"


def _examples(dataset: data.Dataset, part: str) -> tuple[np.ndarray, np.ndarray, Any]:
    source = getattr(dataset, part)
    examples = source[np.arange(len(source))]
    return examples.inputs["tokens"], examples.labels, examples.weights


def compute(
    folder: pathlib.Path, dataset: data.Dataset, encoder: TextEncoder, batch_size: int
) -> int:
    """Compute the vectors that a folder lacks, and return their number."""
    computed = 0
    for part in vectors.PARTS:
        tokens, _, _ = _examples(dataset, part)
        stored = np.lib.format.open_memmap(folder / f"{part}.npy", mode="r+")
        missing = np.flatnonzero(np.isnan(stored).any(axis=1))
        with tqdm(total=len(missing), desc=part, unit="text", disable=None) as bar:
            for rows in encoder.batches(tokens[missing], batch_size):
                index = missing[rows]
                stored[index] = encoder.vectors(tokens[index], batch_size)
                stored.flush()
                bar.update(len(index))
        computed += len(missing)
    return computed


def main() -> int:
    """Compute the vectors of a data set."""
    for flag in (_DATA, _ENCODER, _OUT):
        if not flag.value:
            raise cli.Refused(
                "give --data=NAME, --encoder=BERT and --out=FOLDER, such as --data=banking77"
                " --encoder=all-MiniLM-L6-v2 --out=vectors/banking77."
            )
    encoder = cli.refusing(TextEncoder, _ENCODER.value)
    dataset = cli.refusing(texts_of, _DATA.value, encoder, building.DATA_DIR.value)
    folder = pathlib.Path(str(_OUT.value))
    wanted = cli.refusing(identity, _DATA.value, dataset, encoder)
    cli.refusing(prepare, folder, wanted, dataset)
    with only_one(folder):
        computed = cli.failing(compute, folder, dataset, encoder, _BATCH_SIZE.value)
    total = sum(part["count"] for part in wanted["parts"].values())
    cli.say(
        f"{folder}: {total:,} vectors of {encoder.width} numbers by {encoder.folder.name},"
        f" {computed:,} of them computed now. {dataset.description}"
    )
    return 0


if __name__ == "__main__":
    cli.run(main)
