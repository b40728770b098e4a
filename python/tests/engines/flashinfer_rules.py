# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's rules in NumPy, and rows to try them on."""

import math

import numpy as np
import pytest
import torch

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
V = 48


def weights(rows=3, vocab=V):
    """Rows of weights with ties and zeros; no weight is near a cutoff."""
    powers = np.random.default_rng(5).integers(-2, 36, (rows, vocab))
    return np.where(powers < 0, 0, 1.15**powers)


def kept(row, top_k=None, top_p=None, min_p=0.0, joint=False):
    """The tokens that FlashInfer's rules keep, computed from their values only."""
    row = row / row.sum()
    stay = (row > 0) & (row >= min_p * row.max())
    if top_k is not None:
        within = (row[None] > row[:, None]).sum(1) < top_k
        counted = row * (1 if joint else within)
        stay &= within
    else:
        counted = row
    if top_p is not None:
        above = (counted * (row[None] > row[:, None])).sum(1)
        stay &= above < top_p * counted.sum()
    return stay


def reference(row, **rules):
    left = np.where(kept(row, **rules), row, 0)
    return left / left.sum()


def rows_for(name, device, rows=3, dtype=torch.float32):
    inputs = torch.from_numpy(weights(rows))
    inputs = inputs.log() if name.endswith("logits") else inputs / inputs.sum(-1, keepdim=True)
    return inputs.to(device, dtype)


def chi_squared(tokens, probs):
    """Pearson's chi-squared in standard deviations from its mean, over cells with at least five
    expected draws."""
    counts = np.bincount(tokens, minlength=len(probs))
    expected = probs * len(tokens)
    large = expected >= 5
    freedom = large.sum() - 1
    total = ((counts - expected)[large] ** 2 / expected[large]).sum()
    return (total - freedom) / math.sqrt(2 * freedom)
