# SPDX-License-Identifier: Apache-2.0
"""Invalid arguments, whose errors name them, and the layout of C structs."""

import os
import re

import gumbel
import numpy as np
import pytest

HIDDEN = np.zeros((2, 8), dtype=np.float32)
WEIGHT = np.zeros((16, 8), dtype=np.float32)
LOGITS = np.zeros((2, 16), dtype=np.float32)


@pytest.mark.parametrize("dtype", ["f8", ">f4", "i4", "i2", "u1", "c8", "O", "?"])
def test_unsupported_dtypes_raise(dtype):
    other = {"hidden": HIDDEN, "weight": WEIGHT, "bias": np.zeros(16, np.float32)}
    for name in other:
        arguments = {**other, name: other[name].astype(dtype)}
        with pytest.raises(TypeError, match=f"^{name}: dtype "):
            gumbel.sample(arguments.pop("hidden"), arguments.pop("weight"), **arguments)
    with pytest.raises(TypeError, match="^logits: dtype "):
        gumbel.sample_logits(LOGITS.astype(dtype))


@pytest.mark.parametrize("other", [LOGITS.tolist(), None, 1.0, np.ma.masked_array(LOGITS)])
def test_other_objects_raise(other):
    with pytest.raises(TypeError, match="^logits: expected a NumPy array or a torch tensor, got "):
        gumbel.sample_logits(other)


UNALIGNED = np.zeros(2 * 16 * 4 + 1, dtype=np.uint8)[1:].view(np.float32).reshape(2, 16)


@pytest.mark.parametrize(
    "logits, text",
    [
        (LOGITS[0], r"expected two axes, got .*; for one row pass logits\[None\]$"),
        (LOGITS[None], "expected two axes"),
        (np.zeros((2**40, 0), np.float32), r"the shape \(1099511627776, 0\) has no columns"),
        (LOGITS[:, ::2], r"last axis is not contiguous; pass np.ascontiguousarray\(logits\)$"),
        (np.asfortranarray(LOGITS), "last axis is not contiguous"),
        (LOGITS[::-1], "row stride of -64 bytes"),
        (np.broadcast_to(LOGITS[:1], (2, 16)), "row stride of 0 bytes"),
        (np.lib.stride_tricks.as_strided(LOGITS, (2, 9), (4, 4)), "row stride of 4 bytes"),
        (UNALIGNED, "not aligned"),
    ],
)
def test_unsupported_layouts_raise(logits, text):
    with pytest.raises(ValueError, match=f"^logits: .*{text}"):
        gumbel.sample_logits(logits)


def test_layouts_of_one_row_or_column():
    for logits in (LOGITS[:1][::-1], np.broadcast_to(LOGITS[:1], (1, 16)), LOGITS[:, 3:4]):
        assert gumbel.sample_logits(logits).status.tolist() == [0] * len(logits)


@pytest.mark.parametrize(
    "keywords, error, text",
    [
        ({"temperature": -1.0}, ValueError, r"temperature.*: "),
        ({"temperature": [1.0, np.nan]}, ValueError, r"temperature\[1\]: "),
        ({"temperature": [1.0, -2.0]}, ValueError, r"temperature\[1\]: "),
        ({"temperature": 1e39}, ValueError, r"temperature.*: "),
        ({"temperature": [1.0] * 3}, ValueError, r"temperature: .*\(2,\), got \(3,\)"),
        ({"temperature": [[1.0, 1.0]]}, ValueError, r"temperature: .*got \(1,\)"),
        ({"temperature": np.ones((1, 2))}, ValueError, r"temperature: .*got \(1, 2\)"),
        ({"temperature": "hot"}, TypeError, "temperature: "),
        ({"temperature": None}, TypeError, "temperature: "),
        ({"temperature": [1.0, [2.0]]}, TypeError, r"temperature\[1\]: "),
        ({"seed": -1}, ValueError, "seed: "),
        ({"seed": 2**64}, ValueError, "seed: "),
        ({"seed": [0, 2**64]}, ValueError, r"seed\[1\]: "),
        ({"seed": np.array([0, -1])}, ValueError, r"seed\[1\]: "),
        ({"seed": np.zeros(3, dtype=int)}, ValueError, "seed: "),
        ({"seed": np.zeros((2, 1), dtype=int)}, ValueError, "seed: "),
        ({"seed": 1.0}, TypeError, "seed: "),
        ({"seed": np.zeros(2)}, TypeError, "seed: "),
        ({"position": 2**64}, ValueError, "position: "),
        ({"first_sample": 2**32}, ValueError, "first_sample: "),
        ({"first_sample": np.array([0, 2**32])}, ValueError, r"first_sample\[1\]: "),
        ({"first_sample": [0, -1]}, ValueError, r"first_sample\[1\]: "),
        ({"first_sample": 1.5}, TypeError, "first_sample: "),
        ({"first_sample": [1]}, ValueError, "first_sample: "),
        ({"position": np.array([0, -1])}, ValueError, r"position\[1\]: "),
        ({"num_samples": 0}, ValueError, "num_samples: "),
        ({"num_samples": 65537}, ValueError, "num_samples: "),
        ({"num_samples": 2**32 + 1}, ValueError, "num_samples: "),
        ({"num_samples": 1.0}, TypeError, "num_samples: "),
        ({"scale": 0.0}, ValueError, "scale: "),
        ({"scale": 1e-50}, ValueError, "scale: "),
        ({"scale": np.inf}, ValueError, "scale: "),
        ({"scale": "1"}, TypeError, "scale: "),
        ({"softcap": -1.0}, ValueError, "soft_?cap: "),
        ({"softcap": 1e-50}, ValueError, "softcap: "),
        ({"vocab_size": 0}, ValueError, "vocab_size: "),
        ({"vocab_size": -5}, ValueError, "vocab_size: "),
        ({"vocab_size": 2**64 + 1}, ValueError, "vocab_size: "),
        ({"threads": 0}, ValueError, r"threads: 0 is not in \[1, 1024\]"),
        ({"threads": 1025}, ValueError, r"threads: 1025 is not in \[1, 1024\]"),
        ({"threads": 2**32 + 1}, ValueError, "threads: "),
        ({"isa": "sse9"}, ValueError, "isa: 'sse9' is none of auto, reference, "),
        ({"isa": 2}, TypeError, "isa: "),
        ({"logprobs": "full"}, ValueError, "logprobs: 'full' is none of None, 'processed', 'raw'"),
        ({"logprobs": True}, ValueError, "logprobs: True is none of"),
        ({"temprature": 1.0}, TypeError, "'temprature'"),
        ({"top_k": -1}, ValueError, "top_k: "),
        ({"top_k": [1, -1]}, ValueError, r"top_k\[1\]: "),
        ({"top_k": 2.0}, TypeError, "top_k: "),
        ({"top_k": 2**31}, ValueError, "top_k: "),
        ({"top_p": [0.5] * 3}, ValueError, r"top_p: .*got \(3,\)"),
        ({"top_p": "all"}, TypeError, "top_p: "),
        (
            {"order": "random"},
            ValueError,
            "order: 'random' is none of 'min_p,top_k,top_p', 'joint'",
        ),
        ({"order": []}, ValueError, "order: "),
        ({"ties": 1}, ValueError, "ties: 1 is none of 'all', 'exact'"),
        ({"mask": np.zeros(1, np.int64)}, TypeError, "mask: dtype int64 is not int32"),
        ({"mask": np.zeros((2, 2), np.int32)}, ValueError, r"mask: expected the shape \(1,\)"),
        ({"mask": [1]}, TypeError, "mask: "),
        ({"banned": 3}, TypeError, "banned: "),
        ({"banned": "3"}, TypeError, "banned: "),
        ({"banned": [1.5]}, TypeError, "banned: "),
        ({"banned": [[1], [[2]]]}, TypeError, r"banned\[1\]\[0\]: "),
        ({"banned": [1, [2]]}, TypeError, r"banned\[0\]: "),
        ({"banned": [[1], [-2]]}, ValueError, r"banned\[1\]: -2 is not a token id"),
        ({"banned": [2**31]}, ValueError, "banned: 2147483648 is not a token id"),
        ({"banned": [[1], [2], [3]]}, ValueError, "banned: expected 2 lists"),
        ({"logit_bias": [1]}, TypeError, "logit_bias: "),
        ({"logit_bias": {1: "x"}}, TypeError, r"logit_bias\[1\]: "),
        ({"logit_bias": {-1: 2.0}}, ValueError, "logit_bias: -1 is not a token id"),
        ({"logit_bias": [{}, {}, {}]}, ValueError, "logit_bias: expected 2 lists"),
        ({"prompt_tokens": [[1]]}, ValueError, "prompt_tokens: expected 2 lists"),
        ({"output_tokens": [[1], ["a"]]}, TypeError, r"output_tokens\[1\]\[0\]: "),
        ({"repetition_penalty": 1.5}, ValueError, "repetition_penalty: requires prompt_tokens, "),
        ({"presence_penalty": [1, 0]}, ValueError, "presence_penalty: requires prompt_tokens, "),
        ({"top_p": 0}, ValueError, "top_p: is 0"),  # no index for one number
        ({"top_p": [0, 1]}, ValueError, r"top_p\[0\]: is 0"),
        ({"top_p": [0.5, 1.5]}, ValueError, r"top_p\[1\]: "),
        ({"min_p": [0.5, np.nan]}, ValueError, r"min_p\[1\]: "),
        ({"logit_bias": {1: np.nan}}, ValueError, "logit_bias: "),
        ({"logit_bias": {1: np.inf}}, ValueError, "logit_bias: "),
        (
            {"repetition_penalty": [1, 0], "prompt_tokens": [1]},
            ValueError,
            r"repetition_penalty\[1\]: ",
        ),
        (
            {"frequency_penalty": np.inf, "output_tokens": [1]},
            ValueError,
            "frequency_penalty: is inf",
        ),
        ({"top_logprobs": 129}, ValueError, "top_logprobs: "),
        ({"top_logprobs": True + 0.5}, TypeError, "top_logprobs: "),
        ({"ranks": 1}, TypeError, "ranks: "),
        ({"kept": None}, TypeError, "kept: "),
    ],
)
def test_invalid_parameters_are_named(keywords, error, text):
    with pytest.raises(error, match=text):
        gumbel.sample(HIDDEN, WEIGHT, **keywords)
    for call in (gumbel.sample_logits, gumbel.process_logits):
        with pytest.raises(error, match=text):
            call(LOGITS, **keywords)


@pytest.mark.parametrize("zeros", [(-0.0, 0, 0.0), (0, -0.0), (0.0, -0.0, 0)])
def test_equal_zeros_are_distinct(zeros):
    """Numbers are cached: an earlier call with an equal number must not change a later error."""
    for value in zeros:
        sign = "-" if str(value).startswith("-") else ""
        with pytest.raises(ValueError, match=rf"top_p: is {sign}0;"):
            gumbel.sample_logits(LOGITS, top_p=value)
    for wrong in (False, np.False_):
        with pytest.raises(TypeError, match="top_p: expected a number"):
            gumbel.sample_logits(LOGITS, top_p=wrong)


@pytest.mark.parametrize(
    "keywords, text",
    [
        ({"weight": WEIGHT[:, :7]}, "(hidden|weight).*: "),
        ({"weight": WEIGHT[:0]}, "weight.*: "),
        ({"bias": np.zeros(15, np.float32)}, "bias.*: "),
        ({"bias": np.zeros((1, 16), np.float32)}, "bias: expected one axis"),
        ({"bias": np.zeros(32, np.float32)[::2]}, "bias: the last axis is not contiguous"),
    ],
)
def test_inconsistent_sizes_are_named(keywords, text):
    with pytest.raises(ValueError, match=text):
        gumbel.sample(HIDDEN, **{"weight": WEIGHT, **keywords})


def test_an_isa_of_another_machine():
    names = {"reference", "avx2", "avx512", "neon"}
    assert "reference" in gumbel.info().isas
    for isa in names - set(gumbel.info().isas):
        with pytest.raises(RuntimeError, match="isa: "):
            gumbel.info(isa=isa)


def test_info_and_version():
    about = gumbel.info(threads=2)
    assert re.fullmatch(r"\d+\.\d+\.\d+", gumbel.__version__)
    assert about.version == gumbel.__version__
    assert (about.threads, about.device) == (2, "cpu")
    assert about.isa in about.isas
    assert about.tile % 64 == 0
    assert about.cuda_kernels == bool(about.cuda_architectures)
    assert all(re.fullmatch(r"(sm|compute)_\d+a?", each) for each in about.cuda_architectures)
    assert (about.capability, about.cuda_images) == ("", ())
    assert hash(about) == hash(gumbel.info(threads=2))


def test_info_of_a_gpu_describes_it_or_names_what_is_missing():
    try:
        about = gumbel.info(device="cuda:0")
    except RuntimeError as error:
        missing = "no NVIDIA driver|CUDA driver|0 CUDA devices|compute capability"
        if not gumbel.info().cuda_kernels:
            missing = "this build has no CUDA kernels; build it where nvcc"
        assert re.search(f"^device: .*({missing})", str(error))
        return
    assert (about.device, about.isa) == ("cuda:0", "")
    assert about.threads > 1 and about.description and about.cuda_kernels


@pytest.mark.parametrize("name", ["cuda", "cuda:-1", "gpu", "cpu\0", ""])
def test_info_of_an_unknown_device_raises(name):
    with pytest.raises(ValueError, match="^device: .*cpu, cuda:0, cuda:1"):
        gumbel.info(device=name)


def test_info_of_a_non_string_device_raises():
    with pytest.raises(TypeError, match="^device: expected a name, got int"):
        gumbel.info(device=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_opens_its_own_device():
    expected = gumbel.sample(HIDDEN, WEIGHT, seed=1, threads=3).tokens
    child = os.fork()
    if child == 0:
        same = np.array_equal(gumbel.sample(HIDDEN, WEIGHT, seed=1, threads=3).tokens, expected)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
