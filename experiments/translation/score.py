r"""Score trained networks of translation: BLEU and chrF, and the calibration of their tokens.

    python -m experiments.translation.score --data_dir=DIR /tmp/cross_entropy
    python -m experiments.translation.score --data_dir=DIR /tmp/cross_entropy /tmp/focal \
        --temperatures=0.6,0.8,1,1.2,1.5 --out=/tmp/translation

The arguments are folders of runs on the same data set, the baseline first. Each network translates
the test part by beam search at every temperature. BLEU and chrF are those of sacrebleu (pip install
sacrebleu) at temperature 1 and at the best one of the validation NLL, with 95 % bootstrap intervals
and a paired bootstrap against the baseline over whole sentences; after a fit that did not converge
there is no p-value. The tokens of the test part, each given the true tokens before it, are scored
before and after the temperature, with intervals that resample whole sentences.

--out, by default the folder translation in the first run, gets translation.json, the figure of BLEU
and of the validation ECE against the temperature, the translations, and a report of the tokens of
each network, tokens_NAME.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from calib_jax import data, metrics, plots, report
from calib_jax.calibrators import temperature
from experiments.reports.short_names import short_names
from experiments.running import building, cli, provenance, subword_files
from experiments.translation import bleu, networks

flags.declare_key_flag("data_dir")  # defined by `building`, whose other flag is for weights
_OUT = flags.DEFINE_string("out", None, "Folder of the results.")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "latest, best_NAME, or a step, as for experiments.evaluate."
)
_TEMPERATURES = flags.DEFINE_list(
    "temperatures", ["0.6", "0.8", "1", "1.2", "1.5"], "Temperatures of the figure."
)
_BEAM = flags.DEFINE_integer("beam", 4, "Candidates of a sentence; 1 is greedy.", lower_bound=1)
_LENGTH_PENALTY = flags.DEFINE_float(
    "length_penalty", 0.6, "Exponent of the length; 0 favors short translations.", lower_bound=0
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Sentences at a time.", lower_bound=1)
_SENTENCES = flags.DEFINE_integer(
    "sentences", 0, "Translate only the first sentences of the test part; 0 translates all."
)
_RESAMPLES = cli.define_resamples()
_ALLOW_IMPORTS = cli.define_allow_imports()

TOKEN_METRICS = ("accuracy", "nll", "ece", "adaptive_ece")


class Scored(NamedTuple):
    """The results of one network.

    Attributes:
      fitted: the temperature with the lowest validation NLL.
      translations: the translations of the test sentences, by temperature.
      validation_ece: the token ECE on the validation part, by temperature.
      tokens: the scores of the test tokens before and after the fitted temperature.
    """

    fitted: float
    translations: dict[float, list[str]]
    validation_ece: dict[float, float]
    tokens: report.Report


def scored(
    translator: networks.Translator,
    dataset: data.Dataset,
    sentences: Sequence[str],
    temperatures: Sequence[float],
) -> Scored:
    """Score one network."""
    cli.say_step("logits of the tokens")
    logits, labels, _ = translator.token_logits(dataset.validation)
    fitted = float(temperature.fit(logits, labels).temperature)
    test_logits, test_labels, clusters = translator.token_logits(dataset.test)
    tokens = report.score(
        test_logits,
        test_labels,
        clusters=clusters,
        calibrate="temperature",
        fit_on=(logits, labels),
        metrics=TOKEN_METRICS,
        num_resamples=_RESAMPLES.value,
        level=0.95,
    )
    translations, validation_ece = {}, {}
    for t in dict.fromkeys((1.0, fitted, *temperatures)):
        cli.say_step(f"translations at temperature {t:.3g}")
        validation_ece[t] = float(metrics.ece(logits / np.float32(t), labels))
        translations[t] = translator.translate(
            sentences,
            beam=_BEAM.value,
            length_penalty=_LENGTH_PENALTY.value,
            temperature=t,
            batch_size=_BATCH_SIZE.value,
        )
    return Scored(fitted, translations, validation_ece, tokens)


def values_of(results: Mapping[str, Scored], references: Sequence[str]) -> dict[str, Any]:
    """Compute BLEU and chrF of all networks, and collect what translation.json holds."""
    first, *others = results
    quality: dict[str, Any] = {}
    for column in ("1", "fitted"):
        at = {name: 1.0 if column == "1" else of.fitted for name, of in results.items()}
        systems = {name: of.translations[at[name]] for name, of in results.items()}
        by_metric, signatures = bleu.qualities(systems, references, _RESAMPLES.value)
        unsettled = {name for name, of in results.items() if of.tokens.unsettled}
        untested = set(others) if first in unsettled else unsettled
        quality[column] = {
            metric: {
                name: one._replace(
                    p_value=None if column == "fitted" and name in untested else one.p_value
                )._asdict()
                for name, one in of_metric.items()
            }
            for metric, of_metric in by_metric.items()
        }
    return {
        "sentences": len(references),
        "temperatures": {name: of.fitted for name, of in results.items()},
        "quality": quality,
        "signatures": signatures,
        "curves": {
            name: {
                f"{t:.4g}": {
                    "bleu": bleu.bleu(of.translations[t], references),
                    "validation_ece": of.validation_ece[t],
                }
                for t in sorted(of.translations)
            }
            for name, of in results.items()
        },
        "tokens": {
            name: [
                {
                    key: getattr(row, key)
                    for key in ("metric", "predictions", "value", "low", "high")
                }
                for row in of.tokens.rows
            ]
            for name, of in results.items()
        },
        "provenance": provenance.describe(),
    }


def lines_of(values: Mapping[str, Any]) -> list[str]:
    """Format the scores as lines."""
    lines = []
    for column, by_metric in values["quality"].items():
        for metric, of_metric in by_metric.items():
            for name, one in of_metric.items():
                t = 1.0 if column == "1" else values["temperatures"][name]
                p = "" if one["p_value"] is None else f", p {one['p_value']:.3f}"
                interval = f"[{one['low']:.2f}, {one['high']:.2f}]"
                lines.append(f"{name}, T {t:.3g}: {metric} {one['score']:.2f} {interval}{p}")
    for name, rows in values["tokens"].items():
        for row in rows:
            cell = f"{row['value']:.4f} [{row['low']:.4f}, {row['high']:.4f}]"
            lines.append(f"{name}, tokens {row['predictions']}: {row['metric']} {cell}")
    return lines


def drawn(curves: Mapping[str, Any], temperatures: Sequence[float]) -> Any:
    """Draw BLEU and the validation ECE against the temperature."""
    panels = {
        title: {name: [of[f"{t:.4g}"][key] for t in temperatures] for name, of in curves.items()}
        for title, key in (("test BLEU", "bleu"), ("validation ECE of tokens", "validation_ece"))
    }
    return plots.training_curves(panels, temperatures, columns=2, axis="temperature", width=7.0)


def _temperatures() -> list[float]:
    values = sorted({float(text) for text in _TEMPERATURES.value})
    if not values or values[0] <= 0:
        raise ValueError(f"--temperatures must be positive, got {','.join(_TEMPERATURES.value)}.")
    return values


def main(given: list[str]) -> int:
    """Score the networks, print the scores, write the files."""
    if not given:
        raise cli.Refused("give the folder of a run, or of several, the baseline first.")
    cli.use_compilation_cache()
    temperatures = cli.refusing(_temperatures)
    options = {"allow_imports": _ALLOW_IMPORTS.value}
    translators = {
        name: cli.refusing(networks.restored, pathlib.Path(name), _CHECKPOINT.value, **options)
        for name in dict.fromkeys(given)
    }
    cli.refusing(networks.check_same_data, translators)
    cli.refusing(bleu.require)
    results = []
    for folder, translator in translators.items():
        config = translator.config
        dataset = cli.refusing(
            building.data_set, config.data.name, config.data.options, building.DATA_DIR.value
        )
        cli.refusing(subword_files.check, pathlib.Path(folder), dataset.vocabulary)
        sources, references = dataset.texts["test"]
        count = _SENTENCES.value or len(sources)
        sources, references = sources[:count], references[:count]
        results.append(cli.refusing(scored, translator, dataset, sources, temperatures))
    named = dict(zip(short_names(list(translators)), results, strict=True))
    values = cli.refusing(values_of, named, references)
    out = pathlib.Path(_OUT.value) if _OUT.value else pathlib.Path(given[0]) / "translation"
    cli.refusing(out.mkdir, parents=True, exist_ok=True)
    content = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    (out / "translation.json").write_text(content, encoding="utf-8")
    plots.save(drawn(values["curves"], temperatures), out / "temperature.png")
    for name, result in named.items():
        of_file = name.replace("/", "_")
        text = "\n".join(result.translations[1.0]) + "\n"
        (out / f"translations_{of_file}.txt").write_text(text, encoding="utf-8")
        result.tokens.save(out / f"tokens_{of_file}")
    print("\n".join(lines_of(values)))
    print(f"written to {out}: translation.json, temperature.png and others")
    return 0


if __name__ == "__main__":
    cli.run(main, positional=True)
