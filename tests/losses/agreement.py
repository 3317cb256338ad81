"""Print how far every loss is from its float64 reference and from the released code.

    python -m tests.losses.agreement --page=experiments/results/agreement.md

A difference is the largest absolute difference of an array, divided by the largest absolute value
that the array should have, but at least by 1e-12: where one class is certain, gradients are 1e-28.
"""

import argparse
import collections
import pathlib

import jax
import numpy as np

from calib_jax import losses
from tests.losses import checks, test_golden, test_neighbour_margin
from tests.losses.members import OF_IMAGES
from tests.losses.test_references import REFERENCES

BATCHES = tuple(
    checks.batch(num_classes=classes, scale=scale) for classes, scale in ((5, 2), (5, 8), (2, 2))
)


def difference(actual, expected):
    """Return the largest difference where the expected array is finite."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(expected)
    gap = np.max(np.abs(actual - expected)[finite], initial=0)
    return gap / max(np.max(np.abs(expected[finite]), initial=0), 1e-12)


def to_reference(name):
    """Return the differences of values and gradients, and the number of batches."""
    images = [test_neighbour_margin.images((2, 4, 5))]
    found = []
    for logits, labels in images if name in OF_IMAGES else BATCHES:
        values, gradient = checks.objective_values_and_gradient(name, logits, labels)
        expected = REFERENCES[name](logits, labels)
        slopes = checks.numerical_gradient(REFERENCES[name], logits, labels)
        found.append((difference(values, expected), difference(gradient, slopes)))
    return [*map(max, zip(*found, strict=True)), len(found)]


def to_released(case):
    """Return the differences of a recorded loss and of its gradient, 0 if none is recorded."""
    with jax.enable_x64(case.dtype == "float64"):
        value, gradient = test_golden.value_and_gradient(case)
        recorded = case.array("grad")
        if recorded is None:
            recorded = gradient
        elif recorded.ndim == 4:
            recorded = np.moveaxis(recorded, 1, -1)
        return difference(value, case.array("loss")), difference(gradient, recorded)


def page():
    """Return both tables as Markdown."""
    number = "{:.0e}".format
    lines = [
        "# Agreement of the losses",
        "",
        "Written by `python -m tests.losses.agreement --page=experiments/results/agreement.md`. A"
        " difference is the",
        "largest absolute difference of an array, divided by the largest absolute value that the"
        " array should have, but at",
        "least by 1e-12: where one class is certain, gradients are 1e-28.",
        "",
        "## With the references",
        "",
        "Every objective of the catalogue with its default options and its initial state, in"
        " float64, against a NumPy",
        "reference that shares no code: ordinary and confident logits of five classes and logits of"
        " two classes, eight",
        "examples each (`neighbour_margin`: two images of 4 x 5 pixels). The gradients are compared"
        " with central differences",
        "of the reference, which have errors of their own, up to about 1e-8.",
        "",
        "| loss | values | gradient | batches |",
        "|---|---|---|---|",
    ]
    for name in losses.catalogue():
        values, gradient, count = to_reference(name)
        lines.append(f"| `{name}` | {number(values)} | {number(gradient)} | {count} |")
    lines += [
        "",
        "## With the released code",
        "",
        "Numbers recorded from the released code of the papers (tests/golden). Not compared: where"
        " the released gradient is",
        "not finite, gradients at ties, and two cases of a loss that counts ignored pixels as"
        " errors.",
        "",
        "| repository | recorded function | cases | values, float64 | gradient | values, float32 |"
        " gradient |",
        "|---|---|---|---|---|---|---|",
    ]
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for case in test_golden.cases():
        if case.kind in ("loss", "segmentation_loss") and case.id not in test_golden.EXCLUDED:
            groups[case.repository, case.family][case.dtype].append(to_released(case))
    for (repository, family), by_dtype in groups.items():
        count = sum(map(len, by_dtype.values()))
        columns = [
            number(max(row[i] for row in by_dtype[dtype])) if by_dtype[dtype] else "-"
            for dtype in ("float64", "float32")
            for i in (0, 1)
        ]
        lines.append(f"| {repository} | `{family}` | {count} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=pathlib.Path, help="file to write; printed by default")
    given = parser.parse_args()
    text = page()
    if given.page:
        given.page.write_text(text)
    else:
        print(text)
