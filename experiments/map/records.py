"""The records of the map: one JSON file for each setting, in experiments/results/map."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from absl import flags

from calib_jax.core.files import reading, writing
from experiments.map import measures
from experiments.map.settings import SEEDS, Setting, config_of
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
    with writing.replacing(folder / f"{setting.name}.json") as path:
        path.write_text(_text(record), encoding="utf-8")


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
    with reading.guard(path, _KIND, _ADVICE):
        record = reading.json_mapping(path, _KIND, _ADVICE)
        if record.get("seeds") != list(SEEDS):
            raise ValueError(f"its seeds are {record.get('seeds')}, and not {list(SEEDS)}")
        if differing := _differing(record.get("config"), config_key(setting)):
            raise ValueError(f"it is of another config: {differing}")
        measures.check(record, len(SEEDS))
    return record


def config_key(setting: Setting) -> dict[str, Any]:
    """Return the config of a setting as JSON, without keys that no number depends on."""
    config: dict[str, Any] = json.loads(json.dumps(cli.plain(config_of(setting))))
    return {key: value for key, value in config.items() if key not in _FREE}


def _differing(found: Any, wanted: Mapping[str, Any]) -> str:
    """Name the first key in which a config differs; "" if none does."""
    if not isinstance(found, Mapping):
        return "none is stated"
    for key in {**wanted, **found}:
        if found.get(key) != wanted.get(key):
            return f"{key} is {found.get(key)}, and not {wanted.get(key)}"
    return ""
