"""The records of the map: one JSON file for each setting, in experiments/results/map.

A record contains its config, which must equal the config of the setting today. One difference is
allowed: a key of today's config that the record lacks, if its value is 0, False, None or empty.
By the convention of `configs/base.py` a new key with such a value trains as before the key, so a
new key does not refuse old records. A key with another value, or a key that is gone, refuses them.
"""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from absl import flags
from flax import traverse_util

from calib_jax import train
from calib_jax.core.files import reading
from calib_jax.train import log
from experiments.map import measures
from experiments.map.settings import Setting, config_of
from experiments.running import cli

FOLDER = pathlib.Path(__file__).parents[1] / "results" / "map"
IN = flags.DEFINE_string("records", str(FOLDER), "Folder of the records of the map.")
_KIND, _ADVICE = "a record of the map", "remove it, and experiments.map.run writes it anew"
# Keys of the config on which no number of a record depends.
_FREE = ("run", "metrics")

Record = dict[str, Any]


def write(folder: pathlib.Path, setting: Setting, record: Mapping[str, Any]) -> None:
    """Write the record of a setting."""
    folder.mkdir(parents=True, exist_ok=True)
    log.replace(folder / f"{setting.name}.json", _text(record))


def _text(record: Mapping[str, Any]) -> str:
    """Write one line for each list of numbers, rounded to six digits."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.6g}")
        if isinstance(value, list):
            return [rounded(entry) for entry in value]
        if isinstance(value, Mapping):
            return {key: rounded(entry) for key, entry in value.items()}
        return value

    lines = [f"{json.dumps(key)}: {json.dumps(rounded(value))}" for key, value in record.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(folder: pathlib.Path, setting: Setting) -> Record | None:
    """Read the record of a setting; None if there is none.

    A record of another config, of other seeds or with missing numbers is an error that names the
    file.
    """
    path = folder / f"{setting.name}.json"
    if not path.exists():
        return None
    seeds = list(setting.seeds)
    with reading.guard(path, _KIND, _ADVICE):
        record = reading.json_mapping(path, _KIND, _ADVICE)
        if record.get("seeds") != seeds:
            raise ValueError(f"its seeds are {record.get('seeds')}, and not {seeds}")
        if not isinstance(record.get("config"), Mapping):
            raise ValueError("it is of another config: none is stated")
        if differing := _differing(record["config"], config_key(setting)):
            raise ValueError(f"it is of another config: {differing[0]}")
        measures.check(record, len(seeds))
    return record


def read_all(folder: pathlib.Path, settings: Iterable[Setting]) -> dict[Setting, Record]:
    """Read the records of those settings that have one."""
    found = ((setting, read(folder, setting)) for setting in settings)
    return {setting: record for setting, record in found if record is not None}


def config_key(setting: Setting) -> dict[str, Any]:
    """Return the config of a setting as JSON, without keys that no number depends on."""
    return {key: v for key, v in cli.plain(config_of(setting)).items() if key not in _FREE}


def _differing(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """List the keys in which the config of a record differs, without new keys that are off."""
    there, today = (traverse_util.flatten_dict(dict(one), sep=".") for one in (found, wanted))
    off = [key for key, value in today.items() if key not in there and not value]
    return train.differences(found, wanted, free=off)
