"""The papers' losses in plain PyTorch, and their recipe on a network of two layers, in float64.

    python -m experiments.benchmarks.torch_losses TASK.npz OUT.npz

`torch_steps.py` writes the task and reads the parameters after the last step. The formulas are
those of the papers' released code; none of its code is copied. As in their loops, the loss is
summed or averaged over the batch, the norm of the gradient is clipped at 2, and SGD has momentum
0.9 and weight decay 5e-4 on all parameters.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CLIP_NORM, MOMENTUM, WEIGHT_DECAY = 2.0, 0.9, 5e-4


class View:
    """The probabilities of a batch of logits `z`, seen from its labels `y`."""

    def __init__(self, z: Any, y: Any) -> None:
        self.z, self.y, (self.count, self.classes) = z, y, z.shape
        self.log_p = functional.log_softmax(z, dim=1)
        self.p = self.log_p.exp()
        self.hot = functional.one_hot(y, self.classes).to(z.dtype)
        self.ce = -self.log_p[range(len(y)), y]
        self.p_y = (-self.ce).exp()
        self.top, self.predicted = self.p.max(dim=1)
        self.right = (self.predicted == y).to(z.dtype)


def _below(v: View) -> Any:
    """Return the largest probability below that of the true class; 0 if there is none."""
    return torch.where(v.p < v.p_y[:, None], v.p, torch.zeros_like(v.p)).max(dim=1).values


def _staged(v: View, thresholds: Any = (0.2, 0.5), gammas: Any = (5.0, 3.0, 3.0)) -> Any:
    index = torch.bucketize(v.p_y.detach(), torch.tensor(thresholds, dtype=v.z.dtype), right=True)
    return torch.tensor(gammas, dtype=v.z.dtype)[index]


def _norm(v: View, beta: float) -> Any:
    return ((v.hot - v.p).abs() ** beta).sum(dim=1) ** (1 / beta)


def _exp_weight(values: Any, temperature: float) -> Any:
    return (torch.clamp(values, 0, temperature) / (temperature + 1)).exp().detach() - 1


def _kernel(a: Any, b: Any, bandwidth: float = 0.4) -> Any:
    return (-(a[:, None] - b[None]).abs() / bandwidth).exp()


def _mmce(v: View) -> Any:
    error = v.right - v.top
    return (error[:, None] * error[None] * _kernel(v.top, v.top)).mean()


def _mmce_weighted(v: View) -> Any:
    """Compute MMCE_w as released: means of pairs, which are divided by their number once more."""
    sure, wrong = v.top[v.right == 1], v.top[v.right == 0]
    m, n = len(sure), len(wrong)
    if not (m and n):
        return torch.zeros((), dtype=v.z.dtype)
    parts = (
        ((1 - sure), sure, (1 - sure), sure, 1 / (m * m + 1e-5)),
        (wrong, wrong, wrong, wrong, 1 / (n * n + 1e-5)),
        ((1 - sure), sure, wrong, wrong, -2 / (m * n + 1e-5)),
    )
    total = 1e-10 + sum(
        factor * (left[:, None] * right[None] * _kernel(a, b)).mean()
        for left, a, right, b, factor in parts
    )
    return total**0.5


def _soft_ece(v: View, bins: int = 15) -> Any:
    number = torch.arange(1, bins + 1, dtype=v.z.dtype)
    offset = torch.cumsum((number - 1) / bins, dim=0)
    member = torch.softmax((v.top[:, None] * number - offset) / 0.01, dim=1) + 1e-6
    member = member / (1 + (bins + 1) * 1e-6)
    rank = 0.5 + torch.sigmoid(100 * (v.p - v.p_y[:, None])).sum(dim=1)
    accuracy = torch.relu(2 - rank)
    return (member * (accuracy - v.top)[:, None]).sum(dim=0).abs().sum() / v.count


def _lovasz(v: View) -> Any:
    """Average the Lovász extension of 1 - IoU over the classes that occur."""
    parts = []
    for k in v.y.unique():
        truth = (v.y == k).to(v.z.dtype)
        errors, order = (truth - v.p[:, k]).abs().sort(descending=True)
        truth = truth[order]
        missed, false = truth.cumsum(0), (1 - truth).cumsum(0)
        jaccard = 1 - (truth.sum() - missed) / (truth.sum() + false)
        parts.append((errors * torch.diff(jaccard, prepend=jaccard[:1] * 0)).sum())
    return torch.stack(parts).mean()


def _soft_iou(v: View) -> Any:
    both, either = (v.p * v.hot).sum(dim=0), (v.p + v.hot - v.p * v.hot).sum(dim=0)
    return 1 - (both / (either + 1e-16)).mean()


def _recall(v: View) -> Any:
    """Return the rate of misses of each class in the batch; both counters are at least 1."""
    truth = torch.bincount(v.y, minlength=v.classes)
    missed = torch.bincount(v.y[v.right == 0], minlength=v.classes)
    return torch.clamp(missed, min=1).to(v.z.dtype) / torch.clamp(truth, min=1)


def _entropy(v: View, gamma: float) -> Any:
    return -((1 - v.p_y) ** gamma) * -(v.p * v.log_p).sum(dim=1)


def _hardest(v: View, count: int) -> Any:
    return v.ce.topk(count).values.mean()


def _smoothed(v: View, alpha: float = 0.05) -> Any:
    target = v.hot * (1 - alpha) + (1 - v.hot) * alpha / (v.classes - 1)
    return -(target * v.log_p).sum(dim=1)


def _of_mean(v: View) -> Any:
    mean = v.ce.mean()
    return (1 - (-mean).exp()) ** 2 * mean


def _of_counts(v: View, counts: Any) -> tuple[Any, Any, Any]:
    """Return the margins of LDAM, log shares, and weights by the effective number."""
    margins = counts**-0.25
    weights = (1 - (1 - 1e-4)) / (1 - (1 - 1e-4) ** counts)
    return (
        0.5 * margins / margins.max(),
        (counts / counts.sum()).log(),
        weights * v.classes / weights.sum(),
    )


class AdaFocal:
    """The gammas and bins of AdaFocal, and the update of the released code."""

    def __init__(self, bins: int = 15) -> None:
        self.gamma, self.edges = np.ones(bins), np.linspace(0, 1, bins + 1)

    def terms(self, v: View) -> Any:
        """Compute focal or inverse focal loss with the gamma of the bin of p_y."""
        p_y = v.p_y.detach().numpy()
        index = np.searchsorted(self.edges[1:-1], p_y, side="right")
        gamma = torch.tensor(self.gamma[index])
        return (1 - torch.sign(gamma) * v.p_y + 1e-20) ** gamma.abs() * v.ce

    def update(self, v: View) -> None:
        """Recompute the bins from validation logits, and move each gamma by its gap."""
        top, right = v.top.detach().numpy(), v.right.numpy()
        bins, count = len(self.gamma), len(top)
        edges = np.interp(np.linspace(0, count, bins + 1), np.arange(count), np.sort(top))
        for b in range(bins):
            inside = (top > edges[b]) & (top <= edges[b + 1])
            gap = (top[inside] - right[inside]).mean() if inside.any() else 0.0
            old = self.gamma[b]
            new = old * np.exp(gap if old > 0 else -gap)
            if abs(new) < 0.2:
                new = -0.2 if new > 0 else 0.2
            self.gamma[b] = np.clip(new, -2, 20)
        self.edges = edges


Terms = Callable[[View, Any], Any]  # (view, class counts) -> terms of the batch, or their mean
LOSSES: dict[str, Terms] = {
    "cross_entropy": lambda v, n: v.ce,
    "label_smoothing": lambda v, n: _smoothed(v),
    "brier": lambda v, n: ((v.hot - v.p) ** 2).sum(dim=1),
    "focal": lambda v, n: (1 - v.p_y) ** 3 * v.ce,
    "fl_gra": lambda v, n: ((1 - v.p_y) ** 3).detach() * v.ce,
    "inverse_focal": lambda v, n: (1 + v.p_y) * v.ce,
    "flsd53": lambda v, n: (1 - v.p_y) ** _staged(v) * v.ce,
    "flsd532": lambda v, n: (1 - v.p_y) ** _staged(v, gammas=(5.0, 3.0, 2.0)) * v.ce,
    "flsd53_text": lambda v, n: (1 - v.p_y) ** _staged(v, (0.19, 0.5)) * v.ce,
    "flsd53_gra": lambda v, n: ((1 - v.p_y) ** _staged(v)).detach() * v.ce,
    "dual_focal": lambda v, n: (1 - v.p_y + _below(v)) ** 5 * v.ce,
    "dfl_gra": lambda v, n: ((1 - v.p_y + _below(v)) ** 5).detach() * v.ce,
    "bsce": lambda v, n: _norm(v, 2) ** 2 * v.ce,
    "bsce_gra": lambda v, n: (_norm(v, 2) ** 2).detach() * v.ce,
    "bsce_adaptive_gra": lambda v, n: (_norm(v, 2) ** _staged(v)).detach() * v.ce,
    "tlbs": lambda v, n: ((v.right - v.top).abs() ** 2).detach() * v.ce,
    "cross_entropy_exp": lambda v, n: v.ce * _exp_weight(v.ce, 1),
    "focal_exp": lambda v, n: (t := (1 - v.p_y) ** 3 * v.ce) * _exp_weight(t, 1),
    "dual_focal_exp": lambda v, n: (t := (1 - v.p_y + _below(v)) ** 5 * v.ce) * _exp_weight(t, 1),
    "brier_exp": lambda v, n: (t := ((v.hot - v.p) ** 2).sum(dim=1)) * _exp_weight(t, 1),
    "cross_entropy_brier_weight": lambda v, n: (
        v.ce * _exp_weight(((v.hot - v.p) ** 2).sum(dim=1).mean(), 1)
    ),
    "mmce": lambda v, n: v.ce + 2 * _mmce(v),
    "mmce_weighted": lambda v, n: v.ce + 2 * _mmce_weighted(v),
    "mmce_gra": lambda v, n: v.ce * _mmce(v).detach(),
    "soft_ece": lambda v, n: v.ce + _soft_ece(v),
    "entropy_regularized": lambda v, n: v.ce + _entropy(v, 1),
    "focal_entropy_regularized": lambda v, n: (1 - v.p_y) ** 3 * v.ce + _entropy(v, 1),
    "recall": lambda v, n: _recall(v)[v.y] * v.ce,
    "focal_of_mean": lambda v, n: _of_mean(v),
    "ohem": lambda v, n: _hardest(v, 28),  # 0.7 of 40
    "bootstrapped": lambda v, n: _hardest(v, 20),
    "lovasz": lambda v, n: _lovasz(v),
    "soft_iou": lambda v, n: _soft_iou(v),
    "class_weighted": lambda v, n: _of_counts(v, n)[2][v.y] * v.ce,
    "ldam": lambda v, n: functional.cross_entropy(
        30 * (v.z - v.hot * _of_counts(v, n)[0]), v.y, reduction="none"
    ),
    "logit_adjusted": lambda v, n: functional.cross_entropy(
        v.z + _of_counts(v, n)[1], v.y, reduction="none"
    ),
    "logit_norm": lambda v, n: functional.cross_entropy(
        v.z / (v.z.norm(dim=1, keepdim=True) + 1e-7) / 0.04, v.y, reduction="none"
    ),
    "margin_smoothing": lambda v, n: (
        v.ce + 0.1 * torch.relu(v.z.max(dim=1, keepdim=True).values - v.z - 1).mean(dim=1)
    ),
    "max_suppression": lambda v, n: v.ce + 0.1 * (v.z.max(dim=1).values - v.z.mean(dim=1)),
    "mdca": lambda v, n: v.ce + (v.p.mean(dim=0) - v.hot.mean(dim=0)).abs().mean(),
    "dca": lambda v, n: v.ce + (v.top.mean() - v.right.mean()).abs(),
}
ADAFOCAL = "adafocal"


def trained(name: str, reduction: str, task: Any) -> dict[str, np.ndarray]:
    """Train from the task's parameters, and return the parameters after some steps."""
    tensors = {key: torch.tensor(task[key]) for key in task.files if key != "losses"}
    inputs, labels, counts = (tensors[key] for key in ("inputs", "labels", "counts"))
    network = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)).double()
    for layer, end in ((network[0], "in"), (network[2], "out")):
        layer.weight = nn.Parameter(tensors[f"{end}_kernel"].T.clone())
        layer.bias = nn.Parameter(tensors[f"{end}_bias"].clone())
    tx = torch.optim.SGD(network.parameters(), lr=0.1, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.MultiStepLR(tx, task["milestones"].tolist(), gamma=0.1)
    state, found, done = AdaFocal(), dict[str, np.ndarray](), 0
    for epoch in tensors["order"]:
        for rows in epoch:
            v = View(network(inputs[rows]), labels[rows])
            terms = state.terms(v) if name == ADAFOCAL else LOSSES[name](v, counts)
            terms = terms.expand(v.count)
            tx.zero_grad()
            (terms.sum() if reduction == "sum" else terms.mean()).backward()
            nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
            tx.step()
            done += 1
            if done in task["after"]:
                for layer, end in ((network[0], "in"), (network[2], "out")):
                    found[f"{done}/{end}_kernel"] = layer.weight.detach().numpy().T.copy()
                    found[f"{done}/{end}_bias"] = layer.bias.detach().numpy().copy()
        schedule.step()
        state.update(View(network(tensors["held_out"]), tensors["held_out_labels"]))
    return found


def main(task_file: str, out: str) -> None:
    """Train with every loss of the task."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # the arrays are small
    with np.load(task_file) as task:
        results = {
            f"{name}/{key}": array
            for name, reduction in json.loads(str(task["losses"])).items()
            for key, array in trained(name, reduction, task).items()
        }
    np.savez(out, version=np.array(torch.__version__), **results)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
