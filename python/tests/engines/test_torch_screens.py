# SPDX-License-Identifier: Apache-2.0
"""Screens of tensors, and their bytes as an argument of torch.ops.gumbel."""

import functools
import threading

import gumbel
import numpy as np
import pytest
from torch_operators import ops, torch  # skips without torch


def screened_head(rows=3000, columns=96, batch=5):
    random = np.random.default_rng(1)
    hidden = torch.tensor(random.standard_normal((batch, columns)), dtype=torch.bfloat16)
    weight = torch.tensor(random.standard_normal((rows, columns)) / 4, dtype=torch.bfloat16)
    return hidden, weight


def test_operators_take_the_bytes_of_a_screen():
    hidden, weight = screened_head()
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
        for call, more in ((ops.sample, ()), (ops.verify, (drafted,))):
            given = dict(common, temperature=torch.tensor(0.7)) if more else common
            wanted = call(hidden, weight, *more, **given)
            found = call(hidden, weight, *more, screen=screen, **given)
            assert all(torch.equal(a, b) for a, b in zip(found, wanted))
    plain = {"seed": torch.tensor(7), "logprobs": None}
    nibbles = gumbel.Screen(weight, format="nibbles")
    given = {"screen": nibbles.bytes, "screen_format": nibbles.format, **plain}
    for found, wanted in zip(
        ops.sample(hidden, weight, **given), ops.sample(hidden, weight, **plain)
    ):
        assert torch.equal(found, wanted)
    with pytest.raises(ValueError, match="format"):
        ops.sample(hidden, weight, **{**given, "screen_format": "bits"})
    given = {"screen": screen, **plain}
    torch.library.opcheck(ops.sample.default, (hidden, weight), given)
    compiled = torch.compile(
        lambda h: ops.sample(h, weight, **given)[0], fullgraph=True, backend="eager"
    )
    plain = ops.sample(hidden, weight, **plain)[0]
    assert torch.equal(compiled(hidden), plain)


def test_invalid_screens_raise():
    hidden, weight = screened_head()
    screen = gumbel.Screen(weight).bytes
    for wrong, text in (
        (screen[:-1], "screen: expected the shape"),
        (screen.float(), "screen: dtype float32"),
        (torch.zeros_like(screen), "screen"),
        (gumbel.Screen(screened_head(rows=2900)[1]).bytes, "screen: expected the shape"),
        (gumbel.Screen(screened_head(rows=2999)[1]).bytes, "made for weights .2999, 96"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            ops.sample(hidden, weight, screen=wrong, logprobs=None)


def test_a_screen_serves_threads():
    hidden, weight = screened_head()
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


def test_screens_of_changed_weights_raise():
    hidden, weight = screened_head()
    parameter = torch.nn.Parameter(weight.clone())
    draw = functools.partial(gumbel.sample, hidden, seed=3, logprobs=None)
    wanted = draw(weight).tokens
    screen = gumbel.Screen(parameter)
    assert torch.equal(draw(screen).tokens, wanted)
    with torch.no_grad():
        parameter.mul_(1)
    with pytest.raises(ValueError, match="weight: it was changed in place"):
        draw(screen)
    screen.verify()  # the values are the same
    assert torch.equal(draw(screen).tokens, wanted)
    with torch.inference_mode():
        parameter.add_(1)
    with pytest.raises(ValueError, match="weight: it was changed in place"):
        draw(screen)
    with pytest.raises(ValueError, match="row 0 "):
        screen.verify()
    screen.update()
    assert torch.equal(draw(screen).tokens, draw(parameter.detach()).tokens)
    parameter.data = weight.clone()
    for call in (lambda: draw(screen), screen.verify, screen.update):
        with pytest.raises(ValueError, match="weight: its memory was replaced"):
            call()


def test_a_prepared_call_keeps_the_memory_of_its_screen():
    hidden, weight = screened_head()
    parameter = torch.nn.Parameter(weight.clone())
    wanted = gumbel.sample(hidden, weight, seed=3, logprobs=None).tokens
    call = gumbel.prepare_sample(hidden, gumbel.Screen(parameter), seed=3, logprobs=None)
    parameter.data = torch.full_like(weight, float("nan"))
    others = [torch.full_like(weight, float("nan")) for _ in range(8)]
    assert torch.equal(call(hidden).tokens, wanted) and len(others) == 8


def test_a_screen_of_inference_tensors():
    with torch.inference_mode():
        hidden, weight = screened_head()
        screen = gumbel.Screen(weight)
        wanted = gumbel.sample(hidden, weight, seed=3, logprobs=None).tokens
        assert torch.equal(gumbel.sample(hidden, screen, seed=3, logprobs=None).tokens, wanted)
