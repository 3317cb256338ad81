"""Every reader of files that others wrote, with a file that each reads, and how it must fail.

A broken file is either read, or refused by `reading.Unreadable` in one sentence that names it;
nothing in it is run, and no more memory is taken than a bound.
"""

import csv
import importlib
import json
import pathlib
import unicodedata
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from calib_jax import calibrators, data, models, report, train
from calib_jax.core.files import reading
from calib_jax.data.images import scenes
from calib_jax.data.text import sentence_pairs
from calib_jax.report import file_scoring
from calib_jax.report.reading import answer_files
from calib_jax.train import log
from tests import broken
from tests.data import tiny, tiny_intents, tiny_scenes

MOST_MEMORY = 300e6  # bytes that all broken files of a format may take beside what was there


class Format(NamedTuple):
    """A reader, with a file that it reads.

    Attributes:
      make: writes a whole file, and others that belong to it, into a folder.
      read: reads it.
      inner: breaks what is inside of it, see `broken.files`.
      names: what the sentence must name, if not the file; of several, one.
      mends: whether the reader warns of what is damaged, and returns what is left.
    """

    make: Callable[[pathlib.Path], pathlib.Path]
    read: Callable[[pathlib.Path], object]
    inner: Callable[[bytes, broken.Ways], Iterator[tuple[str, bytes]]] | None = None
    names: str | tuple[str, ...] = ""
    mends: bool = False


ARRAYS = {
    "fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fc.bias": np.array([1.5, -2], np.float64),
}
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(20, 3)).astype(np.float32)
LABELS = np.arange(20) % 3


def weights(suffix):
    def make(folder):
        models.write_weights(folder / f"w.{suffix}", ARRAYS)
        return folder / f"w.{suffix}"

    return make


def npz(folder):
    np.savez_compressed(folder / "p.npz", logits=LOGITS, labels=LABELS, weights=np.ones(20))
    return folder / "p.npz"


def parquet(folder):
    arrow, files = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    columns = {"label": LABELS, **{f"logit_{k}": LOGITS[:, k] for k in range(3)}}
    files.write_table(arrow.table(columns), folder / "p.parquet")
    return folder / "p.parquet"


def samples(folder):
    lines = [
        {"doc_id": k, "target": int(label), "filtered_resps": [[float(z), False] for z in row]}
        for k, (row, label) in enumerate(zip(LOGITS, LABELS, strict=True))
    ]
    (folder / "samples_x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "samples_x.jsonl"


def image(folder):
    return tiny.own_images(folder) / "cat" / "0.png"


def read_image(path):
    importlib.import_module("calib_jax.data.own.image_folder")._pixels(path, (4, 4, 3))


def read_texts(path):
    """Read the lines; that they make a data set is another check."""
    importlib.import_module("calib_jax.data.own.tables").rows_of(path, "text")


def npy(folder):
    np.save(folder / "labels.npy", LABELS)
    np.save(folder / "logits.npy", LOGITS)
    return folder / "logits.npy"


def word_vectors(folder):
    data.write_vectors(folder / "vectors.txt", {"the": LOGITS[0], "a": LOGITS[1]})
    return folder / "vectors.txt"


def vocabulary(folder):
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    return folder / "vocab.txt"


def subwords(folder):
    data.Subwords.of(tiny.sentences(9)[0], size=40).write(folder / "subwords.txt")
    return folder / "subwords.txt"


def table(folder):
    rows = [f"{y}," + ",".join(map(str, z)) for y, z in zip(LABELS, LOGITS.tolist(), strict=True)]
    (folder / "p.csv").write_text("\n".join(["label,logit_0,logit_1,logit_2", *rows]) + "\n")
    return folder / "p.csv"


def calibrator(folder):
    calibrators.save(folder / "t.npz", "matrix", calibrators.matrix.fit(LOGITS, LABELS))
    return folder / "t.npz"


def block(folder):
    train.write_blocks([(LOGITS, LABELS, np.ones(20))], folder / "blocks")
    return folder / "blocks" / "block_00000.npz"


def rows(folder):
    some = [{"step": step, "nll": 1 / (1 + step), "name": "ä"} for step in range(5)]
    text = "".join(json.dumps(row) + "\n" for row in some)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return folder / "metrics.jsonl"


def corrupted(folder):
    return tiny.cifar10_c(folder) / "fog.npy"


def read_corrupted(path):
    data.cifar10_c(data_dir=str(path.parent.parent), corruption="fog")


def house_numbers(folder):
    return tiny.svhn(folder) / "test_32x32.mat"


def read_house_numbers(path):
    data.svhn(data_dir=str(path.parent.parent))


def answers(suffix):
    """Write answers of two models to ten questions, with a group and a weight each."""

    def make(folder):
        columns = {
            "question": [f"q{k // 2}" for k in range(20)],
            "model": list("ab" * 10),
            "confidence": np.linspace(0.05, 1, 20).round(2).tolist(),
            "correct": [bool(k % 3) for k in range(20)],
            "group": ["x,y" if k % 4 else "z" for k in range(20)],
            "weight": [1.5] * 20,
        }
        path = folder / f"answers.{suffix}"
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        if suffix == "npz":
            np.savez(path, **{name: np.array(column) for name, column in columns.items()})
        elif suffix == "parquet":
            arrow, files = (importlib.import_module(f"pyarrow{m}") for m in ("", ".parquet"))
            files.write_table(arrow.table(columns), path)
        elif suffix == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(rows)
        return path

    return make


def generated(folder):
    """Write a generating task of lm-evaluation-harness, with two filters."""
    lines = [
        {
            "doc_id": k,
            "resps": [["It is 4"]],
            "filtered_resps": ["4"],
            "filter": kind,
            "metrics": ["exact_match"],
            "exact_match": float(k % 2),
            "logprobs": [[-0.5, -0.25 * k]],
        }
        for k in range(6)
        for kind in ("strict", "flexible")
    ]
    (folder / "samples_gsm8k.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder / "samples_gsm8k.jsonl"


def inspect(ending):
    """Write a log of Inspect with two epochs of three samples and two scorers."""

    def make(folder):
        header = {"version": 2, "eval": {"task": "sums", "model": "openai/gpt"}}
        samples = {
            f"samples/{number}_epoch_{epoch}.json": {
                "id": number,
                "epoch": epoch,
                "scores": {
                    "match": {"value": "CI"[epoch - 1], "metadata": {"confidence": 0.5}},
                    "other": {"value": 0.5},
                },
                "output": {"choices": [{"logprobs": {"content": [{"logprob": -0.5}]}}]},
            }
            for number in range(3)
            for epoch in (1, 2)
        }
        path = folder / f"log.{ending}"
        if ending == "json":
            path.write_text(json.dumps(header | {"samples": [*samples.values()]}))
        else:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, value in {"header.json": header, **samples}.items():
                    archive.writestr(name, json.dumps(value))
        return path

    return make


def costs(folder):
    (folder / "costs.csv").write_text("0,1,2.5\n1,0,1\n5,1e1,0\n")
    return folder / "costs.csv"


def vectors(name):
    return lambda folder: tiny_intents.vectors(folder) / name


def encoder(name):
    """Write a BERT of 2 x 8 numbers with its vocabulary and the settings of its tokenizer."""

    def make(folder):
        bert = {"words": 60, "width": 6, "depth": 1, "heads": 2, "mlp_width": 8, "places": 40}
        network = models.bert(num_classes=2, **bert)
        variables = network.init(jax.random.key(0), network.example_inputs(), train=False)
        models.write_bert(folder / "bert", network, variables)
        tiny.word_pieces(folder / "bert")
        settings = {"do_lower_case": True, "strip_accents": None, "model_max_length": 40}
        (folder / "bert" / "tokenizer_config.json").write_text(json.dumps(settings))
        return folder / "bert" / name

    return make


def german(suffix):
    return lambda folder: tiny.multi30k(folder, suffix) / f"val.de{suffix}"


def read_german(path):
    english = path.with_name(path.name.replace(".de", ".en"))
    sentence_pairs.parallel((path, english), tuple(map(sentence_pairs.read_lines, (path, english))))


def label_map(folder):
    """Write a label map of SYNTHIA, whose channels have 16 bits."""
    tiny_scenes.synthia(folder, count=1)
    return next((folder / "synthia").rglob("GT/LABELS/**/*.png"))


def read_label_map(path):
    table = scenes.table_of(range(1, 16), void=(0,))
    coded = reading.content(path, "an image")
    scenes.resized(scenes.opened_label_map(str(path), coded, table), (4, 4))


def listed_images(folder):
    """Write a CSV file that names the images of a folder."""
    place = tiny.own_images(folder)
    rows = [f"{p.relative_to(place)},{p.parent.name}" for p in sorted(place.glob("*/*.png"))]
    (place / "list.csv").write_text("\n".join(["file,label", *rows]) + "\n")
    return place / "list.csv"


FORMATS = {
    "weights, npz": Format(weights("npz"), models.read_weights, broken.in_npz),
    "weights, safetensors": Format(
        weights("safetensors"), models.read_weights, broken.in_safetensors
    ),
    "predictions, npz": Format(npz, lambda path: report.read_predictions(str(path)), broken.in_npz),
    "predictions, npy": Format(
        npy,
        lambda path: report.read_predictions(f"{path},{path.with_name('labels.npy')}"),
        broken.in_npy,
    ),
    "predictions, csv": Format(table, lambda path: report.read_predictions(str(path))),
    "predictions, parquet": Format(parquet, lambda path: report.read_predictions(str(path))),
    "samples of lm-evaluation-harness": Format(
        samples, lambda path: report.read_predictions(str(path))
    ),
    "image of one's own": Format(image, read_image),
    "texts of one's own": Format(tiny.own_texts, read_texts),
    "block of logits": Format(
        block, lambda path: list(train.read_blocks(path.parent)), broken.in_npz
    ),
    "calibrator": Format(calibrator, calibrators.load, broken.in_npz),
    "rows of a run": Format(rows, log.read_rows, mends=True),
    "CIFAR-10-C, array": Format(corrupted, read_corrupted, broken.in_npy),
    "word vectors": Format(word_vectors, lambda path: data.read_vectors(path, ["the"])),
    "subwords": Format(subwords, data.Subwords.read),
    "vocabulary of WordPiece": Format(vocabulary, data.WordPiece.read),
    "SVHN, MATLAB": Format(house_numbers, read_house_numbers, broken.in_matlab),
    **{
        f"answers, {suffix}": Format(
            answers(suffix), lambda path: answer_files.read_answers(str(path)), inner
        )
        for suffix, inner in {
            **{"csv": None, "jsonl": None, "parquet": None},
            "npz": broken.in_npz,
        }.items()
    },
    "answers of lm-evaluation-harness": Format(
        generated, lambda path: answer_files.read_answers(str(path))
    ),
    **{
        f"answers of Inspect, {ending}": Format(
            inspect(ending), lambda path: answer_files.read_answers(str(path)), inner
        )
        for ending, inner in {"json": None, "eval": broken.in_npz}.items()
    },
    "costs": Format(costs, lambda path: file_scoring._costs_of(str(path))),
    "vectors of texts, record": Format(
        vectors("record.json"), lambda path: data.from_vectors(str(path.parent)), names="vectors"
    ),
    "vectors of texts, array": Format(
        vectors("train.npy"), lambda path: data.from_vectors(str(path.parent)), broken.in_npy
    ),
    "vectors of texts, labels": Format(
        vectors("test_labels.npy"), lambda path: data.from_vectors(str(path.parent)), broken.in_npy
    ),
    "BERT, config": Format(
        encoder("config.json"), lambda path: models.read_bert(path.parent), names="bert"
    ),
    "BERT, tokenizer": Format(
        encoder("tokenizer_config.json"), lambda path: data.WordPiece.of_folder(path.parent)
    ),
    "BANKING77, csv": Format(
        lambda folder: tiny_intents.banking77(folder) / "train.csv",
        lambda path: data.banking77(data_dir=str(path.parent.parent)),
    ),
    "CLINC150, json.gz": Format(
        tiny_intents.clinc150,
        lambda path: data.clinc150(data_dir=str(path.parent.parent)),
        broken.in_gzip,
    ),
    "SST, trees": Format(
        lambda folder: tiny.sst(folder) / "dev.txt.gz",
        lambda path: data.sst(data_dir=str(path.parent.parent)),
    ),
    "Multi30k, sentences": Format(german(""), read_german),
    "Multi30k, sentences, gz": Format(german(".gz"), read_german, broken.in_gzip),
    "label map of 16 bits": Format(label_map, read_label_map, broken.in_png),
    "list of one's own images": Format(
        listed_images,
        lambda path: data.from_folder(str(path.parent), csv_file=path.name, height=4, width=4),
        names=("own_images", "the class"),
    ),
    "Places-LT, list": Format(
        lambda folder: tiny_scenes.places_lt(folder) and folder / "places_lt/Places_LT_val.txt",
        lambda path: data.places_lt(data_dir=str(path.parent.parent)),
    ),
    "iNaturalist 2018, list": Format(
        lambda folder: (
            tiny_scenes.inaturalist2018(folder) and folder / "inaturalist2018/val2018.json"
        ),
        lambda path: data.inaturalist2018(data_dir=str(path.parent.parent)),
    ),
}


def judged(form: Format, path: pathlib.Path, how: str) -> bool:
    """Read a broken file: true if it was read, false if it was refused as it must be."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries; ours are errors elsewhere
            form.read(path)
    except (ValueError, FileNotFoundError) as error:  # what a broken list names is not there
        text = str(error)
    except BaseException as error:
        error.add_note(f"{path.name}: {how}")
        raise
    else:
        return True
    names = form.names or path.name
    assert any(name in text for name in ([names] if isinstance(names, str) else names)), (
        f"{how}: {text}"
    )
    # Spaces, joiners and characters that do not exist yet do no harm.
    shown = (c for c in text.replace("\n", "") if unicodedata.category(c) not in ("Zs", "Cn"))
    assert all(c.isprintable() or c in "\u200c\u200d" for c in shown), f"{how}: {text}"
    assert text.count("\n") <= 2, f"{how}: {text}"
    assert len(text) < 1000, f"{how}: {text}"
    return False
