"""A Transformer in plain PyTorch, for comparison with calib_jax: training, and beam search.

The network equals configs/multi30k_transformer_small.py, built from PyTorch's layers. Beam search
runs the decoder over all earlier tokens for each new one, as these layers keep no keys and values.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from experiments.benchmarks import random_pairs

WIDTH, DEPTH, HEADS, MLP_WIDTH, DROPOUT = 256, 3, 4, 512, 0.2
BEAM, TOKENS = 4, 20  # candidates, and new tokens of a sentence


class Network(nn.Module):
    """An encoder and a decoder with norms before the layers, and tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(random_pairs.WORDS, WIDTH)
        nn.init.normal_(self.table.weight, std=WIDTH**-0.5)
        options: dict[str, Any] = {"dropout": DROPOUT, "batch_first": True, "norm_first": True}
        encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, MLP_WIDTH, **options)
        decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, MLP_WIDTH, **options)
        self.encoder = nn.TransformerEncoder(
            encoder, DEPTH, nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(decoder, DEPTH, nn.LayerNorm(WIDTH))
        places = torch.arange(random_pairs.LENGTH)[:, None]
        rates = torch.exp(-math.log(10_000) * torch.arange(0, WIDTH, 2) / WIDTH)
        waves = torch.cat([torch.sin(places * rates), torch.cos(places * rates)], dim=1)
        self.register_buffer("waves", waves, persistent=False)
        self.drop = nn.Dropout(DROPOUT)

    def encode(self, source: Any) -> Any:
        """Compute the vectors of the source tokens."""
        padding = source == random_pairs.PADDING
        return self.encoder(self._embedded(source), src_key_padding_mask=padding)

    def decode(self, target: Any, memory: Any, source: Any) -> Any:
        """Compute the vectors of the target tokens with causal attention."""
        length = target.shape[1]
        later = torch.triu(torch.ones(length, length, dtype=torch.bool, device=target.device), 1)
        return self.decoder(
            self._embedded(target),
            memory,
            tgt_mask=later,
            memory_key_padding_mask=source == random_pairs.PADDING,
        )

    def logits(self, hidden: Any) -> Any:
        """Map vectors to logits of the next token."""
        return hidden @ self.table.weight.T

    def _embedded(self, tokens: Any) -> Any:
        vectors = self.table(tokens) * math.sqrt(WIDTH) + self.waves[: tokens.shape[1]]
        return self.drop(vectors)


class Loop:
    """Training of the network, an epoch at a time, with Adam."""

    def __init__(self, network: Network, batch_size: int, steps: int) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network, self._batch_size, self._steps = network.to(device), batch_size, steps
        pairs = random_pairs.draw(batch_size * steps)
        self._pairs = [torch.as_tensor(side, device=device).long() for side in pairs]
        self._tx = torch.optim.Adam(network.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)

    def epoch(self) -> float:
        """Train for an epoch, and return the mean loss of a token in its last step."""
        self.network.train()
        loss = torch.zeros(())
        for step in range(self._steps):
            rows = slice(step * self._batch_size, (step + 1) * self._batch_size)
            source, target, labels = (side[rows] for side in self._pairs)
            self._tx.zero_grad()
            hidden = self.network.decode(target, self.network.encode(source), source)
            loss = functional.cross_entropy(
                self.network.logits(hidden).flatten(0, 1),
                labels.flatten(),
                ignore_index=random_pairs.PADDING,
            )
            loss.backward()
            self._tx.step()
        return float(loss.detach())  # Waits for the device.


class Translation:
    """Beam search over sentences; each candidate gets the same number of tokens."""

    def __init__(self, network: Network, sentences: int) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = network.to(device).eval()
        self._source = torch.as_tensor(random_pairs.draw(sentences).source, device=device).long()

    @torch.no_grad()
    def epoch(self) -> float:
        """Translate all sentences, and return the mean log-probability of the best ones."""
        count, source = len(self._source), self._source.repeat_interleave(BEAM, 0)
        memory = self.network.encode(self._source).repeat_interleave(BEAM, 0)
        tokens = torch.full((count * BEAM, 1), random_pairs.BEGIN, device=source.device)
        scores = torch.zeros(count, BEAM, device=source.device)
        scores[:, 1:] = -1e9  # All candidates of a sentence start equal.
        first = BEAM * torch.arange(count, device=source.device)[:, None]
        for _ in range(TOKENS):
            hidden = self.network.decode(tokens, memory, source)[:, -1]
            grown = torch.log_softmax(self.network.logits(hidden), -1).view(count, BEAM, -1)
            scores, chosen = (grown + scores[:, :, None]).flatten(1).topk(BEAM)
            parents = (first + chosen // random_pairs.WORDS).flatten()
            added = (chosen % random_pairs.WORDS).flatten()[:, None]
            tokens = torch.cat([tokens[parents], added], dim=1)
        return float(scores[:, 0].mean())
