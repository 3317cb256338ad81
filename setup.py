"""Packaging of calib_jax. Tool settings stand in pyproject.toml, everything else here."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent


def version() -> str:
    """Read the version from the package, its one source, without importing JAX."""
    source = (ROOT / "calib_jax" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if found is None:
        raise RuntimeError('calib_jax/__init__.py has no line of the form __version__ = "1.2.3".')
    return found.group(1)


class SourceDistribution(sdist):
    """A source distribution that also runs `python -m experiments.train` and the tests."""

    FOLDERS = ("configs", "experiments", "tests")
    PAGES = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md")
    # Records of single trainings, 8 MB: only `experiments.papers --run` reads them.
    LEFT_OUT = ("experiments/results/papers/runs",)

    def make_distribution(self) -> None:
        """Add the folders beside the package, then build the archive."""
        folders = (path for name in self.FOLDERS for path in sorted((ROOT / name).rglob("*")))
        files = (path.relative_to(ROOT).as_posix() for path in folders if path.is_file())
        self.filelist.extend(
            name
            for name in (*files, *self.PAGES)
            if "__pycache__" not in name and not name.startswith(self.LEFT_OUT)
        )
        super().make_distribution()


REQUIRED = [
    "absl-py>=2.3.1",
    "chex>=0.1.91",
    "flax>=0.12.2",
    "jax>=0.10",
    "jaxtyping>=0.3.2",
    "matplotlib>=3.9",
    "ml_collections>=1.1",
    "numpy>=2.0",
    "optax>=0.2.6",
    "pandas>=2.2.2",  # the first for NumPy 2; imported when a table is read
    # Lift the cap when train/checkpoint.py and its tests pass with 1.0, a new API.
    "orbax-checkpoint>=0.11.25,<1.0",
    "safetensors>=0.4.3",  # imported when such a file is read or written
    "scipy>=1.14",
    "tqdm>=4.66.3",
    # tfds.data_source reads with these; it does not need TensorFlow.
    "array_record>=0.8",
    "importlib_resources>=6.0",
    "Pillow>=13.0",  # older ones overflow buffers in decoding: experiments/documentation/safety.md
    "tensorflow-datasets>=4.9.9",
]
PARQUET = ["pyarrow>=15"]
SKLEARN = ["scikit-learn>=1.6"]
EXPORT = ["flatbuffers>=24.3.25"]
TEXT = ["tokenizers>=0.20"]
TEST = [
    *EXPORT,
    *PARQUET,
    *SKLEARN,
    *TEXT,
    "beartype>=0.20",
    "hypothesis>=6.130",
    "pytest>=8.3",
    "pytest-xdist>=3.6",
    "setuptools>=78.1.1",
]
# A formatter and a type checker find something new in every minor version, so they are pinned.
DEV = [*TEST, "basedpyright>=1.40,<1.41", "mypy>=2.4,<2.5", "ruff>=0.17.5,<0.18"]

setup(
    name="calib_jax",
    version=version(),
    description="Calibration losses and metrics for classifiers, in JAX",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    # The wheel holds the library alone: configs and experiments run from a checkout or an
    # unpacked source distribution.
    packages=find_packages(str(ROOT), include=["calib_jax", "calib_jax.*"]),
    # With this, an editable install is one line in a .pth file, which editors can follow.
    package_dir={"": "."},
    package_data={
        "calib_jax": [*("py.typed", "**/*.csv", "**/*.json", "**/*.npz", "**/*.txt", "**/*.html")]
    },
    entry_points={"console_scripts": ["calib-score = calib_jax.score_command:main"]},
    zip_safe=False,
    cmdclass={"sdist": SourceDistribution},
    install_requires=REQUIRED,
    extras_require={
        "test": TEST,
        "dev": DEV,
        # Networks in files that run without calib_jax: experiments.export.
        "export": EXPORT,
        # Predictions in Parquet files.
        "parquet": PARQUET,
        "docs": [
            *("ipykernel>=6.29", "nbclient>=0.10", "nbformat>=5.10"),
            *("myst-nb>=1.3", "sphinx>=8.2", "sphinx-book-theme>=1.1.4"),
        ],
        # Calibrators as estimators: calib_jax.calibrators.scikit_learn.
        "sklearn": SKLEARN,
        "tensorboard": ["tensorboardX>=2.6.2"],
        # Compilers of accelerators, without the devices: experiments.benchmarks.topologies.
        "topologies": ["jax-cuda13-plugin", "libtpu"],
        # Word pieces of a BERT, and subwords of translations.
        "text": TEXT,
        "wandb": ["wandb>=0.19.10"],
        # BLEU and chrF of translations.
        "translation": ["sacrebleu>=2.5"],
        # To prepare a data set of TFDS; to read a prepared one it is not needed.
        "tensorflow": ["tensorflow>=2.18"],
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
