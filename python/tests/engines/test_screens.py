# SPDX-License-Identifier: Apache-2.0
"""Screens in engines: the texts and tokens of draws without, and by half of the head's bytes.

That a screen drew is seen by weights that are spoilt once it is made, of a token that cannot win: a
full pass reads them and finds NaN, a screen's bounds pass them over.
"""

import contextlib
import threading

import numpy as np
import pytest
from kjv import (  # noqa: F401, which skips where there is no transformers; fixtures
    DRAFT,
    DRAWN,
    PROMPTS,
    gumbel,
    heads,
    tokenizer,
    TARGET,
    texts,
    torch,
    transformers,
)

import gumbel.torch  # noqa: E402, F401, registers torch.ops.gumbel

UNLIKELY = 3999  # of the bundled vocabulary


@pytest.fixture(scope="module")
def model():
    made = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.bfloat16).eval()
    made.head_calls = 0
    return made


@contextlib.contextmanager
def spoilt(weight):
    """An unlikely token's weights are NaN."""
    kept = weight.detach()[UNLIKELY].clone()
    weight.detach()[UNLIKELY] = float("nan")
    try:
        yield
    finally:
        weight.detach()[UNLIKELY] = kept


def test_a_full_pass_finds_spoilt_weights(model):
    hidden = torch.randn(3, model.config.hidden_size, dtype=torch.bfloat16)
    weight, screen = model.lm_head.weight.detach(), heads.head_of(model).weights(True)
    with spoilt(weight):
        assert not gumbel.sample(hidden, screen, logprobs=None).status.any()
        assert gumbel.sample(hidden, weight, logprobs=None).status.all()


@pytest.mark.parametrize(
    "more",
    [
        {"do_sample": False},
        DRAWN,
        {"do_sample": True, "top_k": 0, "min_p": 0.05, "repetition_penalty": 1.2},
        {**DRAWN, "num_return_sequences": 3},
    ],
    ids=str,
)
def test_texts_by_a_screen_are_texts_without(model, tokenizer, more):
    for prompt, seed in zip(PROMPTS, (3, 4, 5, 2**64 - 1)):
        given = {"seed": seed, **more}
        inputs = tokenizer(prompt, return_tensors="pt")
        wanted = texts(model, inputs, **given)
        assert torch.equal(texts(model, inputs, screen=True, **given), wanted)
        with spoilt(model.lm_head.weight):
            assert torch.equal(texts(model, inputs, screen=True, **given), wanted)
    assert len(heads.head_of(model)._screens) == 1  # made once


def test_drafts_are_verified_by_screens(model, tokenizer):
    draft = transformers.AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.bfloat16).eval()
    inputs = tokenizer(PROMPTS[1], return_tensors="pt")
    for how in ({"draft_model": draft}, {"prompt_lookup_num_tokens": 4}):
        given = {"seed": 7, "tokens": 40, **DRAWN}
        wanted = texts(model, inputs, **given)
        assert torch.equal(texts(model, inputs, screen=True, **how, **given), wanted)
        with spoilt(model.lm_head.weight):
            assert torch.equal(texts(model, inputs, screen=True, **how, **given), wanted)


def test_a_batch_by_a_screen(model, tokenizer):
    pytest.importorskip("psutil")
    from test_transformers_batches import batching, configured

    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]

    def drawn(**how):
        out = gumbel.transformers.generate_batch(
            model, prompts, configured(**DRAWN), batching(), seed=[3, 4, 5, 6], **how
        )
        assert all(one.error is None for one in out.values())
        return [one.generated_tokens for one in out.values()]

    wanted = drawn()
    assert drawn(screen=True) == wanted
    with spoilt(model.lm_head.weight):
        assert drawn(screen=True) == wanted


def head(rows=3000, columns=96, batch=5):
    random = np.random.default_rng(1)
    hidden = torch.tensor(random.standard_normal((batch, columns)), dtype=torch.bfloat16)
    weight = torch.tensor(random.standard_normal((rows, columns)) / 4, dtype=torch.bfloat16)
    return hidden, weight


def test_operators_take_the_bytes_of_a_screen():
    hidden, weight = head()
    screen = gumbel.Screen(weight).bytes
    assert screen.dtype == torch.uint8 and screen.data_ptr() % 64 == 0
    drafted = torch.zeros(1, 5, dtype=torch.int32)
    for position in range(20):
        common = {
            "temperature": torch.tensor([0.0, 0.5, 1, 2, 100]),
            "seed": torch.tensor(7),
            "position": torch.tensor(position),
            "logprobs": None,
            "top_k": torch.tensor(40, dtype=torch.int32),
            "min_p": torch.tensor(0.01),
        }
        for call, more in ((torch.ops.gumbel.sample, ()), (torch.ops.gumbel.verify, (drafted,))):
            given = dict(common, temperature=torch.tensor(0.7)) if more else common
            wanted = call(hidden, weight, *more, **given)
            found = call(hidden, weight, *more, screen=screen, **given)
            assert all(torch.equal(a, b) for a, b in zip(found, wanted))
    torch.library.opcheck(
        torch.ops.gumbel.sample.default, (hidden, weight), {"screen": screen, "logprobs": None}
    )
    compiled = torch.compile(
        lambda h: torch.ops.gumbel.sample(h, weight, screen=screen, logprobs=None)[0],
        fullgraph=True, backend="eager",
    )
    plain = torch.ops.gumbel.sample(hidden, weight, logprobs=None)[0]
    assert torch.equal(compiled(hidden), plain)


def test_operators_refuse_what_is_no_screen():
    hidden, weight = head()
    screen = gumbel.Screen(weight).bytes
    for wrong, text in (
        (screen[:-1], "screen: expected the shape"),
        (screen.float(), "screen: dtype float32"),
        (torch.zeros_like(screen), "screen"),
        (gumbel.Screen(head(rows=2900)[1]).bytes, "screen: expected the shape"),
        (gumbel.Screen(head(rows=2999)[1]).bytes, "screen: it is of weights .2999, 96"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            torch.ops.gumbel.sample(hidden, weight, screen=wrong, logprobs=None)


def test_screens_of_tensors_are_shared_by_threads():
    hidden, weight = head()
    screen = gumbel.Screen.of_bytes(weight, gumbel.Screen(weight).bytes)
    screen.verify()
    wanted = gumbel.sample(hidden, weight, seed=3, logprobs=None).tokens
    found = []

    def draw():
        found.append(gumbel.sample(hidden, screen, seed=3, logprobs=None).tokens)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(torch.equal(one, wanted) for one in found)
