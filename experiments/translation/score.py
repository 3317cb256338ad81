r"""Score trained networks of translation: BLEU and chrF, and the calibration of their tokens.

    python -m experiments.translation.score --data_dir=DIR /tmp/cross_entropy
    python -m experiments.translation.score --data_dir=DIR /tmp/cross_entropy /tmp/focal \
        --out=/tmp/translation

The arguments are folders of runs on the same data set, the baseline first. Each network translates
the test part by beam search at temperature 1 and at the best one of the validation NLL. BLEU and
chrF are those of sacrebleu (pip install sacrebleu), with 95 % bootstrap intervals and the two-sided
p of a paired bootstrap against the baseline over whole sentences; if the fit of a temperature did
not converge, nothing is tested after the temperatures. The tokens of the test part, each given the
true tokens before it, are scored before and after the temperature, with intervals that resample
whole sentences.

--out, by default the folder translation in the first run, gets translation.json, the translations,
and a report of the tokens of each network, tokens_NAME.
"""

import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from calib_jax import data, report
from calib_jax.calibrators import temperature
from experiments.evaluation.finished import short_names
from experiments.running import building, cli, environment, training
from experiments.translation import bleu, networks

flags.declare_key_flag("data_dir")  # defined by `building`, whose other flag is for weights
_OUT = flags.DEFINE_string("out", None, "Folder of the results.")
_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "latest, best_NAME, or a step.")
_BEAM = flags.DEFINE_integer("beam", 4, "Candidates of a sentence; 1 is greedy.", lower_bound=1)
_RESAMPLES = cli.define_resamples()
_ALLOW_IMPORTS = cli.define_allow_imports()


class Scored(NamedTuple):
    """The results of one network.

    Attributes:
      fitted: the temperature with the lowest validation NLL.
      translations: the translations of the test sentences at 1 and at `fitted`.
      tokens: the scores of the test tokens before and after the temperature.
    """

    fitted: float
    translations: tuple[list[str], list[str]]
    tokens: report.Report


def scored(
    translator: networks.Translator, dataset: data.Dataset, sentences: Sequence[str]
) -> Scored:
    """Score one network."""
    logits, labels, _ = translator.token_logits(dataset.validation)
    fitted = float(temperature.fit(logits, labels).temperature)
    test_logits, test_labels, clusters = translator.token_logits(dataset.test)
    tokens = report.score(
        *(test_logits, test_labels),
        clusters=clusters,
        calibrate="temperature",
        fit_on=(logits, labels),
        metrics=("accuracy", "nll", "ece", "adaptive_ece"),
        num_resamples=_RESAMPLES.value,
        level=0.95,
    )
    before, after = (
        translator.translate(sentences, beam=_BEAM.value, temperature=t) for t in (1.0, fitted)
    )
    return Scored(fitted, (before, after), tokens)


def values_of(results: Mapping[str, Scored], references: Sequence[str]) -> dict[str, Any]:
    """Compute BLEU and chrF of all networks, and collect what translation.json holds."""
    quality: dict[str, Any] = {}
    for place, column in enumerate(("1", "fitted")):
        systems = {name: of.translations[place] for name, of in results.items()}
        by_metric, signatures = bleu.qualities(systems, references, _RESAMPLES.value)
        # A fit that did not converge has no valid test, neither against it nor of it.
        tested = not place or not any(of.tokens.unsettled for of in results.values())
        quality[column] = {
            metric: {
                name: (one if tested else one._replace(p_value=None))._asdict()
                for name, one in of_metric.items()
            }
            for metric, of_metric in by_metric.items()
        }
    return {
        "sentences": len(references),
        "temperatures": {name: of.fitted for name, of in results.items()},
        "quality": quality,
        "signatures": signatures,
        "provenance": environment.describe(),
    }


def main(given: list[str]) -> int:
    """Score the networks, print the scores, write the files."""
    if not given:
        raise cli.Refused("give the folder of a run, or of several, the baseline first.")
    cli.use_compilation_cache()
    restored = functools.partial(networks.restored, allow_imports=_ALLOW_IMPORTS.value)
    translators = {
        name: cli.refusing(restored, pathlib.Path(name), _CHECKPOINT.value)
        for name in dict.fromkeys(given)
    }
    cli.refusing(networks.check_same_data, translators)
    cli.refusing(bleu.require)
    results = {}
    for name, (folder, translator) in zip(
        short_names(list(translators)), translators.items(), strict=True
    ):
        of_data = translator.config.data
        dataset = cli.refusing(
            building.data_set, of_data.name, of_data.options, building.DATA_DIR.value
        )
        cli.refusing(training.check_subwords, pathlib.Path(folder), dataset.vocabulary)
        sources, references = dataset.texts["test"]
        results[name] = cli.refusing(scored, translator, dataset, sources)
    values = cli.refusing(values_of, results, references)
    out = pathlib.Path(_OUT.value) if _OUT.value else pathlib.Path(given[0]) / "translation"
    cli.refusing(out.mkdir, parents=True, exist_ok=True)
    content = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    (out / "translation.json").write_text(content, encoding="utf-8")
    for name, result in results.items():
        of_file, text = name.replace("/", "_"), "\n".join(result.translations[0])
        (out / f"translations_{of_file}.txt").write_text(text + "\n", encoding="utf-8")
        result.tokens.save(out / f"tokens_{of_file}")
        for column, by_metric in values["quality"].items():
            for metric, of_metric in by_metric.items():
                one = bleu.Quality(**of_metric[name])
                scores = f"{one.score:.2f} [{one.low:.2f}, {one.high:.2f}]"
                print(f"{name}, T {column}: {metric} {scores}, p {one.p_value}")
    print(f"written to {out}: translation.json and others")
    return 0


if __name__ == "__main__":
    cli.run(main, positional=True)
