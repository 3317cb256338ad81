"""The binary Tree-LSTM as a plain PyTorch loop over nodes, for comparison with calib_jax.

The computation follows configs/sst_tree_lstm.py: cross-entropy at every node, summed over a
tree and averaged over 25 trees, AdaGrad for the network and SGD for the word vectors.

References:
  Mukhoti et al. 2020, Calibrating Deep Neural Networks using Focal Loss: the released code, which
  also visits one node at a time.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from experiments.benchmarks import random_trees

WIDTH, MEMORY = 300, 150
GATES = ("i", "lf", "rf", "u")


class Network(nn.Module):
    """The network of `models.tree_lstm`, with the layer names of the released code."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(random_trees.WORDS, WIDTH, padding_idx=0)
        self.tree_module = nn.Module()
        leaf, composer, output = nn.Module(), nn.Module(), nn.Module()
        leaf.cx, leaf.ox = nn.Linear(WIDTH, MEMORY), nn.Linear(WIDTH, MEMORY)
        for gate in GATES:
            for side in "lr":
                composer.add_module(f"{gate}{side}h", nn.Linear(MEMORY, MEMORY))
        output.l1 = nn.Linear(MEMORY, random_trees.CLASSES)
        self.tree_module.leaf_module, self.tree_module.composer = leaf, composer
        self.tree_module.output_module = output
        self.dropout = dropout

    def forward(self, words: Any, children: list[list[int]]) -> Any:
        """Compute the logits of every node of a tree, one node at a time."""
        leaf, composer = self.tree_module.leaf_module, self.tree_module.composer
        states = []
        for vector in self.embedding(words):
            memory = leaf.cx(vector)
            states.append((torch.sigmoid(leaf.ox(vector)) * torch.tanh(memory), memory))
        for left, right in children:
            (left_hidden, left_memory), (right_hidden, right_memory) = states[left], states[right]
            update, keep_left, keep_right, new = (
                getattr(composer, f"{gate}lh")(left_hidden)
                + getattr(composer, f"{gate}rh")(right_hidden)
                for gate in GATES
            )
            memory = torch.sigmoid(update) * torch.tanh(new)
            memory = memory + torch.sigmoid(keep_left) * left_memory
            memory = memory + torch.sigmoid(keep_right) * right_memory
            states.append((torch.tanh(memory), memory))
        logits = []
        for hidden, _ in states:
            dropped = functional.dropout(hidden, self.dropout, self.training)
            logits.append(self.tree_module.output_module.l1(dropped))
        return torch.stack(logits)


class Loop:
    """Training of the network, an epoch at a time."""

    def __init__(self, network: Network, batch_size: int, steps: int) -> None:
        self.network = network
        self._batch_size = batch_size
        self._trees = [
            (torch.as_tensor(tree.words), tree.children.tolist(), torch.as_tensor(tree.labels))
            for tree in random_trees.draw(batch_size * steps)
        ]
        self._txs = [
            torch.optim.Adagrad(network.tree_module.parameters(), lr=0.05, weight_decay=1e-4),
            torch.optim.SGD(network.embedding.parameters(), lr=0.1),
        ]

    def epoch(self) -> float:
        """Train for an epoch, and return the mean loss of a tree."""
        self.network.train()
        total = 0.0
        for start in range(0, len(self._trees), self._batch_size):
            self.network.zero_grad()
            for words, children, labels in self._trees[start : start + self._batch_size]:
                logits = self.network(words, children)
                loss = functional.cross_entropy(logits, labels, reduction="sum") / self._batch_size
                loss.backward()
                total += float(loss)
            for tx in self._txs:
                tx.step()
        return total * self._batch_size / len(self._trees)
