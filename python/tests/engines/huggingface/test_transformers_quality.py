# SPDX-License-Identifier: Apache-2.0
"""Texts by transformers alone and by the library are of one quality; a temperature 5% off shows.

Continuations of the bundled model, one of each for a prompt, to the first full stop: how likely
the model finds them, how long they are, which share of their n-grams is distinct in sixteen of
them, compared by paired bootstrap. 400 of each, or 2,000 with GUMBEL_NIGHTLY=1.
"""

import os

import numpy as np
import pytest
from kjv import (  # noqa: F401, which skips where there is no transformers; fixtures
    DRAWN,
    model,
    texts,
    tokenizer,
    torch,
)

NIGHTLY = bool(os.environ.get("GUMBEL_NIGHTLY"))
COUNT = 2000 if NIGHTLY else 400
BATCH, SCORED, TOKENS, RESAMPLES = 200, 40, 40, 1000
STOP, PAD = 269, 0  # a full stop ends a text
STARTS = [
    "In the beginning",
    "And the LORD said unto Moses",
    "Blessed are",
    "The king of",
    "And he",
    "Now when they",
    "Therefore",
    "Behold, I",
    "The word of the LORD came",
    "And it came to pass",
    "Then Jesus",
    "My son,",
    "Woe unto",
    "And David said",
    "O LORD",
    "For the children of",
]
PLAIN = {"do_sample": True, "temperature": 1.0, "top_k": 0}


def continuations(model, tokenizer, ours, **given):
    """COUNT lists of tokens, the stop among them."""
    found = []
    for at in range(0, COUNT, BATCH):
        rows = range(at, min(at + BATCH, COUNT))
        inputs = tokenizer(
            [STARTS[row % len(STARTS)] for row in rows], return_tensors="pt", padding=True
        )
        more = {"seed": [1000 + row for row in rows]} if ours else {}
        torch.manual_seed(1 + at)
        ids = texts(
            model, inputs, ours, tokens=TOKENS, eos_token_id=STOP, pad_token_id=PAD, **more, **given
        )[:, inputs["input_ids"].shape[1] :].tolist()
        found += [row[: row.index(STOP) + 1] if STOP in row else row for row in ids]
    return found


@torch.no_grad()
def likelihoods(model, tokenizer, found):
    """Of each text, the log-probability that the model itself gives its tokens, at temperature 1;
    and what of it is more than the expectation of each token where it stands."""
    sums, more = [], []
    for at in range(0, COUNT, SCORED):
        rows = range(at, min(at + SCORED, COUNT))
        begun = [tokenizer(STARTS[row % len(STARTS)])["input_ids"] for row in rows]
        whole = [prompt + found[row] for prompt, row in zip(begun, rows)]
        width = max(map(len, whole))
        ids = torch.tensor([text + [PAD] * (width - len(text)) for text in whole])
        logs = torch.log_softmax(model(ids.to(model.device)).logits[:, :-1].float(), -1)
        chosen = logs.gather(2, ids[:, 1:, None].to(model.device))[:, :, 0].double()
        beyond = chosen - (logs.exp() * logs).sum(-1)
        for row, (prompt, text) in enumerate(zip(begun, whole)):
            of_text = slice(len(prompt) - 1, len(text) - 1)
            sums.append(float(chosen[row, of_text].sum()))
            more.append(float(beyond[row, of_text].sum()))
    return np.array(sums), np.array(more)


def distinct(texts, n):
    return len({tuple(text[at : at + n]) for text in texts for at in range(len(text) - n + 1)})


def measures(model, tokenizer, found):
    """Of each group of texts, one of each start: numerators of means, and their denominators."""

    def sums(values):
        return np.array(values, float).reshape(-1, len(STARTS)).sum(1)

    likely, beyond = likelihoods(model, tokenizer, found)
    lengths = sums([len(text) for text in found])
    groups = [found[at : at + len(STARTS)] for at in range(0, COUNT, len(STARTS))]
    statistics = {
        "likelihood": (sums(likely), lengths),
        "beyond its expectation": (sums(beyond), lengths),
        "length": (lengths, np.full(len(groups), len(STARTS))),
    }
    for n in (1, 2, 3):
        grams = sums([max(0, len(text) - n + 1) for text in found])
        statistics[f"distinct {n}-grams"] = np.array([distinct(g, n) for g in groups]), grams
    return statistics


def differences(one, other):
    """Of each mean the difference, in standard deviations of its paired resamples."""
    random, found, groups = np.random.default_rng(8), {}, COUNT // len(STARTS)
    weights = random.multinomial(groups, np.full(groups, 1 / groups), RESAMPLES)
    for name in one:
        (top, bottom), (other_top, other_bottom) = one[name], other[name]
        drawn = weights @ top / (weights @ bottom)
        drawn = drawn - weights @ other_top / (weights @ other_bottom)
        whole = top.sum() / bottom.sum() - other_top.sum() / other_bottom.sum()
        found[name] = abs(whole) / np.std(drawn)
    return found


@pytest.mark.parametrize("given", [DRAWN, PLAIN] if NIGHTLY else [PLAIN], ids=str)
def test_texts_are_as_good_as_stock_ones(model, tokenizer, given):
    """A statistic that detects a wrong temperature in few texts; valid for plain draws only."""
    stock = measures(model, tokenizer, continuations(model, tokenizer, False, **given))
    ours = measures(model, tokenizer, continuations(model, tokenizer, True, **given))
    hot = {**given, "temperature": 1.05 * given["temperature"]}
    hotter = measures(model, tokenizer, continuations(model, tokenizer, True, **hot))
    found, wrong = differences(stock, ours), differences(stock, hotter)
    assert max(found.values()) < 3.5, found
    assert wrong["likelihood" if NIGHTLY else "beyond its expectation"] > 3, (found, wrong)
