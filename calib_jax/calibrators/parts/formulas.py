"""The formula of every calibrator, as NumPy statements, which saved files contain.

A formula computes `answer` from `z`, finite logits `[n, classes]`, and the arrays of the file. The
softmax of `answer` is the calibrated probabilities. The formula of an event computes `confidence`
from `x`, confidences or scores `[n]`. The formula is text for readers: this library never executes
it.
"""

_SOFTMAX = """\
p = np.exp(z - z.max(axis=1, keepdims=True))
p /= p.sum(axis=1, keepdims=True)"""

_LOG_SOFTMAX = """\
log_p = z - z.max(axis=1, keepdims=True)
log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))"""

# Each class against the rest; two classes are one question, about class 1.
_QUESTIONS = f"{_SOFTMAX}\np = p[:, 1:] if p.shape[1] == 2 else p"

_BOTH = "q = np.hstack([1 - q, q]) if q.shape[1] == 1 else q"
_FLOOR = "q = np.maximum(q, 1e-6)"
_LOG = "answer = np.log(q / q.sum(axis=1, keepdims=True))"

_BINS = f"""\
{_QUESTIONS}
columns = range(p.shape[1])
b = [np.searchsorted(edges[k, 1:-1], p[:, k], side="SIDE") for k in columns]
q = np.stack([VALUES[k, b[k]] for k in columns], axis=1)
{_BOTH}
{_FLOOR}
{_LOG}"""

_CURVES = f"""\
{_QUESTIONS}
q = np.stack([np.interp(p[:, k], knots[k], values[k]) for k in range(p.shape[1])], axis=1)
{_BOTH}
{_FLOOR}
{_LOG}"""

_MIXED = """\
p = np.exp((z - z.max(axis=1, keepdims=True)) / temperature)
p /= p.sum(axis=1, keepdims=True)
x = np.log((1 - uniform) * p + uniform / z.shape[1])"""

FORMULAS = {
    "temperature": "answer = z / temperature",
    "bias_corrected_temperature": "answer = slope * z + intercept",
    "ensemble_temperature": f"""\
{_SOFTMAX}
t = np.exp((z - z.max(axis=1, keepdims=True)) / temperature)
t /= t.sum(axis=1, keepdims=True)
answer = np.log(mixture[0] * t + mixture[1] * p + mixture[2] / z.shape[1])""",
    "platt": f"""\
{_QUESTIONS}
q = 1 / (1 + np.exp(-slope * np.log(p / (1 - p)) - intercept))
{_BOTH}
{_LOG}""",
    "beta": f"""\
{_QUESTIONS}
q = 1 / (1 + np.exp(-a * np.log(p) + b * np.log(1 - p) - c))
{_BOTH}
{_LOG}""",
    "vector": "answer = z * slope + intercept",
    "matrix": "answer = z @ matrix.T + intercept",
    "dirichlet": f"{_LOG_SOFTMAX}\nanswer = log_p @ matrix.T + intercept",
    "svs": f"{_MIXED}\nanswer = x * slope + intercept",
    "sms": f"{_MIXED}\nanswer = x @ matrix.T + intercept",
    "histogram": _BINS.replace("SIDE", "left").replace("VALUES", "frequency"),
    "bbq": _BINS.replace("SIDE", "right").replace("VALUES", "values").replace(f"{_FLOOR}\n", ""),
    "isotonic": _CURVES,
    "enir": _CURVES,
    "venn_abers": f"""\
{_SOFTMAX}
rows, top = np.arange(len(p)), p.argmax(axis=1) if num_classes > 2 else np.ones(len(p), int)
s, near = p[rows, top], 1e-6
low = np.searchsorted(knots, s + near / 2, side="right") - 1
high = np.where((low >= 0) & (s - knots[np.maximum(low, 0)] < near), low, low + 1)
zero = np.where(low < 0, 0, p0[np.maximum(low, 0)])
one = np.where(high == len(knots), 1, p1[np.minimum(high, len(knots) - 1)])
q = one / (1 - zero + one)
rest = p / (1 - s)[:, None] * (1 - q)[:, None]
rest[rows, top] = q
answer = np.log(rest)""",
}


_PLACES = """\
rank = np.cumsum(np.append(False, scores[1:] > scores[:-1]))
v = np.interp(x, scores, rank / max(rank[-1], 1))"""


def of(name: str, event: str | None = None) -> str | None:
    """Return the formula of a calibrator; None for a calibrator of the user's own.

    Args:
      name: the name of the calibrator.
      event: "probability" or "score" for a calibrator of an event.
    """
    formula = FORMULAS.get(name)
    if formula is None or event is None:
        return formula
    if (name, event) == ("platt", "score"):
        return "confidence = 1 / (1 + np.exp(-slope * x - intercept))"
    start = "v = x" if event == "probability" else _PLACES
    least = "1e-6" if name in ("platt", "beta") else "1e-15"
    two = f"v = np.clip(v, {least}, 1 - {least})\np = np.stack([1 - v, v], axis=1)"
    end = "confidence = 1 / (1 + np.exp(answer[:, 0] - answer[:, 1]))"
    return f"{start}\n{formula.replace(_SOFTMAX, two)}\n{end}"
