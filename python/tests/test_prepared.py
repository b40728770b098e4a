# SPDX-License-Identifier: Apache-2.0
"""Prepared calls draw the tokens of plain calls; DLPack imports arrays of other libraries."""

import weakref

import gumbel
import numpy as np
import pytest

B, V, D = 4, 300, 24
RNG = np.random.default_rng(5)
HIDDEN = RNG.normal(size=(3, B, D)).astype(np.float32)  # of three steps
WEIGHT = (RNG.normal(size=(V, D)) * (3 / np.sqrt(D))).astype(np.float32)
LOGITS = np.ascontiguousarray(HIDDEN @ WEIGHT.T)
FIELDS = (
    "tokens",
    "logprobs",
    "lse",
    "status",
    "ranks",
    "kept",
    "top_ids",
    "top_logprobs",
    "best_ids",
    "best_scores",
)
EVERYTHING = {
    "top_k": 40,
    "top_p": 0.9,
    "ranks": True,
    "kept": True,
    "top_logprobs": 5,
    "num_best": 3,
    "logit_bias": {3: 2.5},
    "banned": [7],
}


def assert_equal_outputs(a, b):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@pytest.mark.parametrize("more", [{}, EVERYTHING], ids=["plain", "everything"])
def test_prepared_calls_draw_what_plain_calls_draw(more):
    inputs = HIDDEN[0].copy()
    position, temperature = np.zeros(B, np.uint64), np.full(B, 0.7, np.float32)
    rows = {
        "position": position,
        "temperature": temperature,
        "first_sample": np.array([0, 1, 2**32 - 1, 7], np.uint32),
    }
    call = gumbel.prepare_sample(inputs, WEIGHT, seed=9, **rows, **more)
    for step in range(3):
        inputs[:] = HIDDEN[step]
        position[:] = 10 * step
        temperature[1] = step / 2  # 0 at first: greedy
        rows["first_sample"][0] = 5 * step
        out = call()
        assert out is call.output
        assert_equal_outputs(out, gumbel.sample(HIDDEN[step], WEIGHT, seed=9, **rows, **more))


def test_inputs_can_be_replaced():
    call = gumbel.prepare_sample_logits(LOGITS[0], seed=np.arange(B, dtype=np.int64))
    for step in (1, 2, 0):
        assert_equal_outputs(
            call(LOGITS[step]), gumbel.sample_logits(LOGITS[step], seed=list(range(B)))
        )
    assert_equal_outputs(
        call(), gumbel.sample_logits(LOGITS[0], seed=list(range(B)))
    )  # those of the last call
    other = LOGITS[0].copy()
    for bad in (other[:2], other.astype(np.float16), other[:, ::-1], other.T, [[1.0]], None):
        if bad is not None:
            with pytest.raises(ValueError, match="logits: expected the kind"):
                call(bad)
    odd = np.zeros(LOGITS[0].nbytes + 1, np.uint8)[1:].view(np.float32).reshape(B, V)
    with pytest.raises(ValueError, match="logits: the data is not aligned"):
        call(odd)
    assert_equal_outputs(call(), gumbel.sample_logits(LOGITS[0], seed=list(range(B))))


def test_masks_and_slots_are_read_in_place():
    mask = np.full((6, (V + 31) // 32), -1, np.int32)
    slots, live = np.array([4, 0, 2, 5], np.int32), np.array([B], np.int32)
    place = {"mask": mask, "slots": slots, "num_slots": 6, "seed": 0}
    call = gumbel.prepare_sample_logits(LOGITS[0], live_rows=live, **place)
    for step in range(3):
        mask[:, step] = RNG.integers(-(2**31), 2**31, 6)
        slots[:] = RNG.permutation(6)[:B]
        live[0] = B - step
        assert_equal_outputs(call(), gumbel.sample_logits(LOGITS[0], live_rows=live, **place))


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", np.ones(B)),
        ("position", np.ones(B, np.int32)),
        ("top_k", np.ones(B, np.int64)),
        ("top_p", np.ones(2 * B, np.float32)[::2]),
        ("seed", np.ones(B, np.float32)),
    ],
)
def test_arrays_that_require_a_copy_raise(name, value):
    with pytest.raises(TypeError, match=f"{name}: "):
        gumbel.prepare_sample_logits(LOGITS[0], **{name: value})


def test_invalid_inputs_are_named_at_every_call():
    with pytest.raises(ValueError, match=r"top_p\[0\]: "):
        gumbel.prepare_sample_logits(LOGITS[0], top_p=2.0)()
    temperature = np.ones(B, np.float32)
    call = gumbel.prepare_sample_logits(LOGITS[0], temperature=temperature, seed=0)
    before = gumbel.sample_logits(LOGITS[0], seed=0)
    assert_equal_outputs(call(), before)
    temperature[2] = -1
    with pytest.raises(ValueError, match=r"temperature\[2\]: "):
        call()
    temperature[2] = 1
    assert_equal_outputs(call(), before)


def test_prepared_call_keeps_its_inputs_alive():
    mask = np.full(10, -1, np.int32)
    call = gumbel.prepare_sample_logits(LOGITS[0].copy(), mask=mask, top_k=7, seed=0)
    del mask
    junk = [np.full((B, V), np.nan, np.float32) for _ in range(50)]
    assert_equal_outputs(call(), gumbel.sample_logits(LOGITS[0], top_k=7, seed=0))
    assert len(junk) == 50


def test_inputs_can_be_released():
    logits = LOGITS[0].copy()
    lives = weakref.ref(logits)
    call = gumbel.prepare_sample_logits(logits, seed=0)
    del logits
    assert lives() is not None
    call.release_inputs()
    assert lives() is None
    with pytest.raises(ValueError, match="^logits: pass it, as release_inputs"):
        call()
    assert_equal_outputs(call(LOGITS[1]), gumbel.sample_logits(LOGITS[1], seed=0))
    assert_equal_outputs(call(), gumbel.sample_logits(LOGITS[1], seed=0))


def test_cached_numbers_are_distinguished_by_type():
    """1, 1.0 and True are equal to Python."""
    for _ in range(2):
        a = gumbel.sample_logits(LOGITS[0], temperature=1, seed=1, top_k=1)
        b = gumbel.sample_logits(LOGITS[0], temperature=1.0, seed=1, top_k=1)
        assert_equal_outputs(a, b)
        for name, value in (("seed", 1.0), ("top_k", 1.0), ("seed", True), ("temperature", True)):
            with pytest.raises(TypeError, match=f"{name}: "):
                gumbel.sample_logits(LOGITS[0], **{name: value})
        for name, value in (("temperature", 10**400), ("seed", -1), ("top_k", 2**31)):
            with pytest.raises((TypeError, ValueError), match=f"{name}: "):
                gumbel.sample_logits(LOGITS[0], **{name: value})


class Foreign:
    """An array of a library that the package does not know."""

    def __init__(self, array, device=(1, 0), dtype="float32"):
        self.array, self.device, self.dtype, self.shape = array, device, dtype, array.shape

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


def test_dlpack_imports():
    hidden, weight = Foreign(HIDDEN[0]), Foreign(WEIGHT)
    mask = Foreign(np.full(10, 0x55555555, np.int32), dtype="int32")
    assert_equal_outputs(
        gumbel.sample(hidden, weight, mask=mask, seed=4),
        gumbel.sample(HIDDEN[0], WEIGHT, mask=mask.array, seed=4),
    )
    call = gumbel.prepare_sample_logits(Foreign(LOGITS[0]), seed=4)
    assert_equal_outputs(call(Foreign(LOGITS[1])), gumbel.sample_logits(LOGITS[1], seed=4))
    assert gumbel.softmax(Foreign(LOGITS[0])).shape == (B, V)


def test_unsupported_dlpack_exports_raise():
    backwards = Foreign(LOGITS[0][:, ::-1])
    with pytest.raises(ValueError, match="logits: the last axis is not contiguous"):
        gumbel.sample_logits(backwards)
    frozen = LOGITS[0].copy()
    frozen.flags.writeable = False  # which NumPy does not export, or exports as such
    try:
        found = gumbel.sample_logits(Foreign(frozen), seed=0)
        assert_equal_outputs(found, gumbel.sample_logits(frozen, seed=0))
    except TypeError as problem:
        assert "logits: DLPack" in str(problem)

    class Broken(Foreign):
        def __dlpack_device__(self):
            raise RuntimeError("no such device")

    with pytest.raises(TypeError, match="logits: cannot be imported by DLPack: no such device"):
        gumbel.sample_logits(Broken(LOGITS[0]))


def test_dlpack_of_other_devices_needs_torch(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(TypeError, match="logits: is on a GPU, which requires torch"):
        gumbel.sample_logits(Foreign(LOGITS[0], device=(2, 0)))


def test_prepared_tensors():
    torch = pytest.importorskip("torch")
    steps = torch.from_numpy(LOGITS.copy())
    position = torch.zeros(B, dtype=torch.int64)
    call = gumbel.prepare_sample_logits(steps[0], seed=0, position=position)
    for step in range(3):
        position += 1
        out = call(steps[step])
        assert isinstance(out.tokens, torch.Tensor)
        plain = gumbel.sample_logits(LOGITS[step], seed=0, position=position.numpy())
        np.testing.assert_array_equal(out.tokens.numpy(), plain.tokens)
    with pytest.raises(ValueError, match="logits: expected the kind"):
        call(LOGITS[0])
