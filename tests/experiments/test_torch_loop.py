"""The loop in PyTorch trains as ours does; without PyTorch there is nothing to test."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, models, train
from calib_jax.data.images import image_sets
from tests.experiments import processes

torch = pytest.importorskip("torch")
from experiments.benchmarks import (  # noqa: E402
    random_pairs,
    random_trees,
    torch_loop,
    torch_translation,
    torch_trees,
    training,
)
from experiments.benchmarks.training_work import PairWork, TreeWork  # noqa: E402


def examples(count, size, seed=0):
    draw = np.random.default_rng(seed)
    images = draw.integers(256, size=(count, size, size, 3)).astype(np.uint8)
    return images, draw.integers(10, size=count).astype(np.int32)


def test_crops_and_flips():
    image = examples(1, 5)[0][0]
    for row, column, flip in ((4, 4, False), (0, 8, False), (7, 3, True)):
        result = torch_loop.cropped(image, row, column, flip)
        for y in range(5):
            for x in range(5):
                across = 4 - x if flip else x
                there = (y + row - 4, across + column - 4)
                inside = all(0 <= place < 5 for place in there)
                np.testing.assert_array_equal(result[y, x], image[there] if inside else [0, 0, 0])


@pytest.mark.slow
@pytest.mark.parametrize("name", torch_loop.PLANS)
def test_networks_have_our_parameters(name):
    ours = models.named(name)
    variables = jax.eval_shape(
        lambda: ours.init(jax.random.key(0), jnp.ones((1, 32, 32, 3)), train=False)
    )
    theirs = torch_loop.Network(name)
    count = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    assert sum(parameter.numel() for parameter in theirs.parameters()) == count
    assert count == {"resnet20": 269_722, "resnet50": 23_520_842}[name]
    models.from_torch(ours, theirs.state_dict())  # refuses other names and shapes
    assert sum(p.numel() for p in torch_loop.Network(name, 7).parameters()) < count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "dtype"),
    [("resnet20", 32, "float32"), ("resnet20", 16, "float64"), ("resnet50", 16, "float64")],
)
def test_two_steps_are_ours(name, size, dtype, x64):
    torch.manual_seed(0)
    images, labels = examples(40, size)
    papers = image_sets.CIFAR10
    floats = ((images / 255 - papers.mean) / papers.deviation).astype(dtype)
    ours, theirs = models.named(name, dtype=dtype), torch_loop.Network(name)
    if dtype == "float64":  # in float32 the second step of a deep network has lost three digits
        theirs, images = theirs.double(), floats
    variables = models.from_torch(ours, theirs.state_dict())
    batches = [np.arange(16), np.arange(39, 15, -1)]
    loop = torch_loop.Loop(theirs, images, labels, batches, learning_rate=0.05)
    result = loop.epoch()

    objective = losses.objective("cross_entropy")
    tx = train.optimizer("sgd", 0.05, momentum=0.9, weight_decay=5e-4, clip_norm=2.0)
    step = jax.jit(train.make_train_step(train.linen(ours), objective, tx, reduction="sum"))
    state, total = train.create(variables, objective, tx, 10, 0), 0.0
    for numbers in batches:
        inputs, weights = jnp.asarray(floats[numbers]), jnp.ones(len(numbers), dtype)
        state, measured = step(state, train.Batch(inputs, labels[numbers], weights, numbers))
        total += float(measured["loss"])
        assert float(measured["gradient_norm"]) > torch_loop.CLIP_NORM  # So it is clipped.
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == "float32" else {"rtol": 1e-8, "atol": 1e-9}
    np.testing.assert_allclose(result, total / 40, **close)
    after = models.to_torch(ours, {"params": state.params, **state.model_state})
    before = models.to_torch(ours, variables)
    for key, tensor in theirs.state_dict().items():
        if key in after:
            np.testing.assert_allclose(after[key], tensor.numpy(), **close)
            assert np.abs(after[key] - before[key]).max() > close["atol"]  # and have moved


FORMS = """
import json, sys
import numpy as np, torch
from experiments.benchmarks import torch_loop

draw = np.random.default_rng(0)
images = draw.integers(256, size=(24, 16, 16, 3)).astype(np.uint8)
labels = draw.integers(10, size=24)
batches = [range(0, 24, 2), range(1, 24, 2)]

def losses(**options):
    torch.manual_seed(0)
    loop = torch_loop.Loop(
        torch_loop.Network("resnet20"), images, labels, batches, learning_rate=0.01, **options
    )
    return [loop.epoch(), loop.epoch()]

print(json.dumps({
    "plain": losses(),
    "released": losses(released=True, num_workers=2, augment=False),
    "augmented": losses(released=True, num_workers=2),
    "jax": "jax" in sys.modules,
}))
"""


@pytest.mark.slow
def test_forms_train_alike():
    # A process of its own: workers are forked, which threads of JAX would not survive for sure.
    command = [sys.executable, "-W", "error", "-c", FORMS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=processes.ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert not result["jax"]
    np.testing.assert_allclose(result["released"], result["plain"], rtol=1e-5)
    assert not np.allclose(result["augmented"], result["plain"], rtol=1e-3)
    assert np.isfinite(result["augmented"]).all()


@pytest.mark.slow
def test_the_loop_over_nodes_has_our_loss_and_gradient():
    torch.manual_seed(0)
    theirs = torch_trees.Network(dropout=0.0)
    drawn = random_trees.draw(3)
    logits = [theirs(torch.as_tensor(tree.words), tree.children.tolist()) for tree in drawn]
    labels = [torch.as_tensor(tree.labels) for tree in drawn]
    loss = torch.nn.functional.cross_entropy(torch.cat(logits), torch.cat(labels), reduction="sum")
    loss.backward()

    experiment = TreeWork("tree_lstm", batch_size=3, steps=1).build()
    network = experiment.module.clone(dropout=0.0)
    variables = models.from_torch(network, theirs.state_dict())
    examples = experiment.task.train[np.arange(3)]

    def total(params):
        logits = network.apply({"params": params}, examples.inputs, train=False)
        rows = jnp.take_along_axis(jax.nn.log_softmax(logits), examples.labels[..., None], axis=-1)
        return -jnp.sum(examples.weights * rows[..., 0])

    ours, gradient = jax.jit(jax.value_and_grad(total))(variables["params"])
    np.testing.assert_allclose(ours, float(loss.detach()), rtol=1e-5)
    tensors = models.to_torch(network, {"params": gradient})
    expected = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert set(tensors) == set(expected)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(tensor, expected[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_the_transformer_is_as_large_as_ours_and_learns():
    torch.manual_seed(0)
    template = PairWork("transformer", 4, 1).build().template()
    ours = sum(leaf.size for leaf in jax.tree.leaves(template.params))
    network = torch_translation.Network()
    assert sum(parameter.numel() for parameter in network.parameters()) == ours == 6_002_688
    loop = torch_translation.Loop(network, 4, 1)
    first, *_, last = (loop.epoch() for _ in range(6))
    assert last < first - 0.5


@pytest.mark.slow
def test_beam_search_is_that_of_all_candidates(monkeypatch):
    """With as many candidates as words, two steps keep the best of all pairs."""
    asked = (training.SEARCHED, training.BEAM, training.NEW_TOKENS)
    assert asked == (torch_loop.BEAM_SEARCH, torch_translation.BEAM, torch_translation.TOKENS)
    torch.manual_seed(0)
    for name, value in (("WORDS", 12), ("LENGTH", 6)):
        monkeypatch.setattr(random_pairs, name, value)
    monkeypatch.setattr(torch_translation, "BEAM", 12)
    monkeypatch.setattr(torch_translation, "TOKENS", 2)
    network = torch_translation.Network()
    best = torch_translation.Translation(network, 3).epoch()
    source = torch.as_tensor(random_pairs.draw(3).source).long()
    scores = []
    with torch.no_grad():
        for row in source:
            memory = network.encode(row[None])
            every = []
            for first in range(12):
                tokens = torch.tensor([[random_pairs.BEGIN, first]])
                logits = network.logits(network.decode(tokens, memory, row[None]))
                log_p = torch.log_softmax(logits, -1)[0]
                every.append(float(log_p[0, first] + log_p[1].max()))
            scores.append(max(every))
    assert best == pytest.approx(np.mean(scores), abs=1e-4)
