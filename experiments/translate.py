"""Translate the lines of a text with a trained Transformer.

    python -m experiments.translate --workdir=/tmp/multi30k < sentences.de > sentences.en
    python -m experiments.translate --workdir=/tmp/multi30k --beam=1 --checkpoint=best_nll < a.de

--workdir is the folder of a run, or of one seed of several; the data set is not needed, because the
folder holds its subwords. Every line of the input is a sentence, and the output has as many lines.
An empty line stays empty; the end of a line that is too long for the network is cut off, with a
warning; a character that the training part does not have is an unknown subword, U+FFFD if it is
translated by itself. The last line of standard error has the number of sentences per second.
"""

import pathlib
import sys
import time

from absl import flags

from experiments.running import cli

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "latest, best_NAME, or a step, as for experiments.evaluate."
)
_BEAM = flags.DEFINE_integer("beam", 4, "Candidates of a sentence; 1 is greedy.", lower_bound=1)
_LENGTH_PENALTY = flags.DEFINE_float(
    "length_penalty", 0.6, "Exponent of the length; 0 favors short translations.", lower_bound=0
)
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "The logits are divided by it.")
_LENGTH = flags.DEFINE_integer("length", 64, "Most subwords of a translation.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Sentences at a time.", lower_bound=1)
_ALLOW_IMPORTS = cli.define_allow_imports()


def main() -> int:
    """Translate standard input."""
    if not _WORKDIR.value:
        raise cli.Refused("give --workdir=FOLDER of the run.")
    lines = cli.refusing(_lines)
    from experiments.translation import networks as translating  # imports JAX

    cli.use_compilation_cache()
    folder = pathlib.Path(_WORKDIR.value)
    translator = cli.refusing(
        translating.restored, folder, _CHECKPOINT.value, allow_imports=_ALLOW_IMPORTS.value
    )
    began = time.monotonic()
    translations = cli.refusing(
        translator.translate,
        lines,
        beam=_BEAM.value,
        length=_LENGTH.value,
        length_penalty=_LENGTH_PENALTY.value,
        temperature=_TEMPERATURE.value,
        batch_size=_BATCH_SIZE.value,
    )
    for line in translations:
        print(line)
    seconds = time.monotonic() - began
    cli.say_step(
        f"{len(lines):,} sentences in {seconds:.1f} s, {len(lines) / max(seconds, 1e-9):.1f} per"
        f" second with compilation; checkpoint {translator.checkpoint}"
    )
    return 0


def _lines() -> list[str]:
    """Read standard input, which must be UTF-8."""
    content = sys.stdin.buffer.read()
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"line {line} of the input is not UTF-8.") from None
    lines = [line.removesuffix("\r") for line in lines]
    return lines[:-1] if lines[-1] == "" else lines


if __name__ == "__main__":
    cli.run(main)
