"""The README says what is true today."""

import json
import re
from pathlib import Path

from calib_jax import losses

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_table_names_objectives_and_nothing_else():
    # A new loss need not stand here (it touches no list), but what stands here must exist.
    table = README.partition("## The losses")[2].partition("\n## ")[0]
    first_columns = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(first_columns))
    assert len(named) > 30
    assert set(named) <= set(losses.catalogue())


def test_it_holds_one_test_command():
    (line,) = re.findall(r"^.*-m pytest$", README, re.MULTILINE)  # .ci/run reads the same line
    assert line.startswith("python3 -m venv .venv && ")


def test_its_results_are_those_of_the_file():
    """Every value and interval of the table, as the command of the first table wrote them."""
    saved = json.loads((ROOT / "experiments/results/digits_sweep.json").read_text())
    cells = {(c["loss"], c["phase"], c["metric"]): c for c in saved["cells"]}
    columns = [("as trained", m) for m in ("error", "nll", "ece")] + [("after temperature", "ece")]
    results = README.partition("## Results")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", results, re.MULTILINE)
    assert {loss for loss, _ in rows} == {c["loss"] for c in saved["cells"]}
    for loss, row in rows:
        for text, column in zip(row.split(" | "), columns, strict=True):
            cell = cells[loss, *column]
            low, high = (f"{cell[end]:.3f}".lstrip("0") for end in ("low", "high"))
            assert text == f"{cell['value']:.3f} [{low}, {high}]".lstrip("0")
    assert f"over {cells['focal', *columns[0]]['n']} seeds" in results
    made = saved["provenance"]
    machine = f"an {made['processor']} with {made['cores']} cores at commit {made['commit']}."
    assert machine in " ".join(results.split())


def test_it_activates_the_environment_before_its_commands_need_it():
    before, _, after = README.partition("\nsource .venv/bin/activate\n")
    assert after
    assert not re.search(r"^(calib-score|python -m) ", before, re.MULTILINE)


def test_its_functions_are_objectives_too():
    (names,) = re.findall(r"`configs/losses`\. (.*?) are also functions", README, re.DOTALL)
    for name in re.findall(r"`(\w+)`", names):
        assert callable(getattr(losses, name))
        assert name in losses.catalogue()


def test_its_results_on_real_data_are_those_of_the_tables():
    tables = (ROOT / "experiments/results/papers/tables.md").read_text(encoding="utf-8")
    methods = {"cross_entropy": "Cross-Entropy", "flsd53": "FLSD-53", "brier": "Brier Loss"}
    methods |= {"label_smoothing": "LS-0.05", "adafocal": "AdaFocal", "bsce_gra": "BSCE-GRA"}
    methods |= {"dual_focal": "Dual focal", "focal`, γ = 3": "FL-3", "mmce": "MMCE"}
    methods |= {"recall": "Recall"}
    titles = {
        "CIFAR-10, 10,000 images, ResNet-8": "ResNet-8 on 10,000 images of CIFAR-10",
        "CIFAR-10-LT (factor 100), ResNet-8": "ResNet-8 on CIFAR-10-LT",
        "20 Newsgroups, CNN": "Global pooling CNN on 20 Newsgroups",
        "binary SST, Tree-LSTM": "Tree-LSTM on the binary SST",
    }
    rows = re.findall(r"^\| ([^|`]*?) ?\| `(\w+(?:`, γ = 3)?)`? \| (.*) \|$", README, re.MULTILINE)
    task = ""
    for first, loss, cells in rows:
        task = first or task
        section = tables.partition(f"## {titles[task]}\n")[2].partition("\n## ")[0]
        (known,) = re.findall(rf"^\| {methods[loss]} \| 3 \| (.*) \|$", section, re.MULTILINE)
        assert cells.split(" | ") == [cell.partition(" (")[0] for cell in known.split(" | ")[:3]]
    assert len(rows) >= 8
