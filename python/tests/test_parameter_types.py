# SPDX-License-Identifier: Apache-2.0
"""Passes unusual values to every parameter of every function: the function accepts them correctly,
or raises an error that names the parameter."""

import inspect
import os
import re
import subprocess
import sys
from collections import deque

import gumbel
import numpy as np
import pytest

B, V, D = 2, 40, 8
HIDDEN = np.ones((B, D), np.float32)
WEIGHT = np.ones((V, D), np.float32)
LOGITS = np.zeros((B, V), np.float32)
BIAS = np.zeros(V, np.float32)
MASK = np.full((B, 2), -1, np.int32)


def masked(values, dtype):
    return np.ma.masked_array(np.array(values, dtype), mask=np.ones(np.shape(values), bool))


VALUES = {
    "none": None,
    "true": True,
    "numpy true": np.True_,
    "nan": np.nan,
    "inf": np.inf,
    "-inf": -np.inf,
    "-0.0": -0.0,
    "a denormal": 1e-45,
    "below all denormals": 1e-300,
    "1e300": 1e300,
    "-1": -1,
    "0": 0,
    "2**31": 2**31,
    "2**32": 2**32,
    "2**63": 2**63,
    "2**64": 2**64,
    "-2**63": -(2**63),
    "10**400": 10**400,
    "-10**400": -(10**400),
    "10**5000": 10**5000,
    "1j": 1j,
    "text": "1",
    "a surrogate": "\udcff",
    "a long text": "x" * 10000,
    "bytes": b"1",
    "bytearray": bytearray(b"\1\2"),
    "memoryview": memoryview(b"\1\2"),
    "memoryview of ints": memoryview(np.ones(2, np.int32)),
    "memoryview of words": memoryview(np.ones(4, np.uint32)),
    "memoryview of rows": memoryview(np.ones((2, 2), np.int32)),
    "memoryview of a matrix": memoryview(LOGITS),
    "bytes, words": bytes(4),
    "bytearray, words": bytearray(4),
    "a deque of true": deque([True, 1]),
    "an object": object(),
    "a class": int,
    "a function": len,
    "ellipsis": ...,
    "[]": [],
    "()": (),
    "{}": {},
    "[none]": [None, None],
    "[nan]": [np.nan, np.nan],
    "[true]": [True, False],
    "[true, 1]": [True, 1],
    "[[true, 1]]": [[True, 1], [2]],
    "[0-d true]": [np.array(True), np.array(1)],
    "[text]": ["1", "2"],
    "[bytes]": [b"1", b"2"],
    "[no text]": ["", ""],
    "[bytearray]": [bytearray(b"\1"), bytearray(b"\2")],
    "[memoryview]": [memoryview(b"\1"), memoryview(b"\2")],
    "[10**400]": [10**400, 1],
    "[-10**400]": [-(10**400), 1],
    "[10**5000]": [10**5000, 1],
    "[2**64]": [2**64, 2**64],
    "[1j]": [1j, 1j],
    "[object]": [object(), object()],
    "ragged": [[1], [1, 2]],
    "very ragged": [1, [1, [2]]],
    "[[10**400]]": [[10**400], [1]],
    "deep": [[[1]], [[2]]],
    "a dict of texts": {"a": "b"},
    "a dict of none": {None: None},
    "a dict of huge": {10**400: 10**400},
    "a dict of huge ids": {10**5000: 1.0},
    "a dict of huge values": {1: 10**400},
    "a dict of huge negative values": {1: -(10**400)},
    "a dict of complex": {1: 1j},
    "a dict of arrays": {1: np.ones(2)},
    "a dict of masked": {1: masked(1.0, "f4")},
    "a dict of true": {1: True},
    "a dict by true": {True: 1.0, 2: 1.0},
    "a dict of timedelta": {1: np.timedelta64(2)},
    "a dict of datetime": {1: np.datetime64(2, "s")},
    "a dict, words": {1: 1, 2: 2, 3: 3, 4: 4},
    "a dict, two words": {1: 1, 2: 2},
    "a set, words": {1, 2, 3, 4},
    "a set, two words": {1, 2},
    "dicts": [{1: 2}, {1: 2}],
    "a dict of tuples": {(1, 2): 1.0},
    "a dict of half ids": {1.5: 1.0},
    "dicts of text and none": [{"a": 1.0}, {1: None}],
    "a set of texts": {"a"},
    "an iterator": iter(["a", "b"]),
    "a range": range(10**6, 10**6 + 3),
    "slice": slice(3),
    "0-d float": np.array(1.0),
    "0-d int": np.array(1),
    "0-d int32": np.array(1, np.int32),
    "0-d text": np.array("1"),
    "0-d object": np.array(None),
    "0-d huge": np.array(10**400),
    "0-d float32": np.array(1, np.float32),
    "[0-d]": [np.array(1), np.array(2)],
    "[0-d text]": [np.array("1"), np.array("2")],
    "[0-d float]": [np.array(1.5), np.array(2.5)],
    "no elements": np.empty(0, np.float32),
    "no int elements": np.empty(0, np.int32),
    "no rows": np.empty((0, V), np.float32),
    "no columns": np.empty((B, 0), np.float32),
    "one axis": np.ones(V, np.float32),
    "three axes": np.ones((1, B, V), np.float32),
    "three int axes": np.ones((1, B, 2), np.int32),
    "32 axes": np.ones((1,) * 32, np.float32),
    "float64": np.ones((B, V)),
    "complex": np.ones((B, V), np.complex64),
    "complex row": np.ones(B, complex),
    "boolean row": np.ones(B, bool),
    "text row": np.array(["a", "b"]),
    "bytes row": np.array([b"a", b"b"]),
    "object row": np.array([1, 2], object),
    "huge object row": np.array([10**400, 2], object),
    "object of none": np.array([None, None]),
    "object of lists": np.array([[1], [1, 2]], object),
    "datetime": np.datetime64(1, "s"),
    "timedelta": np.timedelta64(1),
    "[timedelta]": [np.timedelta64(1), 1],
    "0-d timedelta": np.array(1, "m8[s]"),
    "datetime row": np.array([1, 2], "M8[s]"),
    "timedelta row": np.array([1, 2], "m8[s]"),
    "void row": np.zeros(2, "V4"),
    "structured": np.zeros((B, V), [("a", "f4")]),
    "record": np.rec.array([(1, 2.0), (3, 4.0)]),
    "longdouble": np.ones(B, np.longdouble),
    "longdouble max": np.array(np.finfo(np.longdouble).max),
    "float16 row": np.ones(B, np.float16),
    "big-endian": np.ones((B, V), ">f4"),
    "big-endian row": np.ones(B, ">f4"),
    "big-endian int row": np.ones(B, ">i8"),
    "big-endian int32": np.ones((B, 2), ">i4"),
    "nan row": np.full(B, np.nan, np.float32),
    "huge row": np.full(B, 1e300),
    "uint64 row": np.full(B, 2**64 - 1, np.uint64),
    "uint8 row": np.full(B, 255, np.uint8),
    "negative row": np.full(B, -(2**63)),
    "strided": np.zeros((B, 2 * V), np.float32)[:, ::2],
    "strided ints": np.zeros((B, 4), np.int32)[:, ::2],
    "strided row": np.ones(2 * B, np.float32)[::2],
    "backwards": np.ones((B, V), np.float32)[::-1, ::-1],
    "transposed": np.ones((V, B), np.float32).T,
    "no strides": np.broadcast_to(np.float32(1), (B, V)),
    "int, no strides": np.broadcast_to(np.int32(1), (B, 2)),
    "huge, no strides": np.broadcast_to(np.float32(1), (2**31, 2**20)),
    "tall": np.zeros((2**40, 0), np.float32),
    "tall ints": np.zeros((2**40, 0), np.int32),
    "long, no strides": np.broadcast_to(1, (2**50,)),
    "long rows, no strides": np.broadcast_to(1, (B, 2**50)),
    "[long, no strides]": [np.broadcast_to(1, (2**50,)), [1]],
    "a long range": range(2**62),
    "a long, long range": range(2**70),
    "unaligned": np.zeros(4 * B * V + 1, np.uint8)[1:].view(np.float32).reshape(B, V),
    "unaligned ints": np.zeros(4 * B * 2 + 1, np.uint8)[1:].view(np.int32).reshape(B, 2),
    "read-only": np.frombuffer(bytes(4 * B * V), np.float32).reshape(B, V),
    "matrix": np.ones((B, V), np.float32).view(np.matrix),
    "int matrix": np.array([[1, 2], [3, 4]]).view(np.matrix),
    "masked": masked(1.0, "f4"),
    "masked int": masked(1, "i8"),
    "masked row": masked([1.0] * B, "f4"),
    "masked int row": masked([1] * B, "i8"),
    "masked constant": np.ma.masked,
    "[masked constant]": [np.ma.masked, np.ma.masked],
    "[masked]": [masked(1, "i8"), masked(1, "i8")],
    "[masked rows]": [masked([1, 2], "i8"), [3]],
    "[[masked]]": [[masked(1, "i8")], [1]],
    "[[masked float]]": [[masked(1.0, "f4")], [1.0]],
    "[[masked constant]]": [[np.ma.masked], [1]],
    "masked matrix": np.ma.masked_array(LOGITS, mask=LOGITS == 0),
    "masked ints": np.ma.masked_array(MASK, mask=MASK == 0),
    "masked words": masked([1, 2, 3, 4], "u4"),
}

ORDER = (
    "temperature,min_p,top_k,top_p,typical_p,top_n_sigma,epsilon,eta,top_a,p_less,surprise,"
    "smoothing,xtc"
)
DRAWS = {
    "temperature": 1.0,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.1,
    "order": ORDER,
    "program": None,
    "typical_p": 0.9,
    "top_n_sigma": 2.0,
    "epsilon": 0.01,
    "eta": 0.01,
    "top_a": 0.1,
    "p_less": True,
    "surprise": 5.0,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "xtc_keep": [1],
    "smoothing_factor": 0.1,
    "smoothing_curve": 2.0,
    "temperature_range": 0.1,
    "temperature_exponent": 2.0,
    "min_keep": 2,
    "ties": "all",
    "mask": MASK,
    "allowed": [1, 2],
    "banned": [1],
    "logit_bias": {1: 2.0},
    "prompt_tokens": [1],
    "output_tokens": [1],
    "history": None,
    "repetition_penalty": 2.0,
    "frequency_penalty": 1.0,
    "presence_penalty": 1.0,
    "seed": 1,
    "position": 1,
    "first_sample": 1,
    "num_samples": 2,
    "given": [[0, 1], [2, -1]],
    "slots": [1, 0],
    "num_slots": B,
    "live_rows": 1,
    "logprobs": "raw",
    "top_logprobs": 2,
    "ranks": True,
    "kept": True,
    "kept_ids": 2,
    "isa": "reference",
    "threads": 1,
    "scale": 1.0,
    "softcap": 0.0,
    "vocab_size": V,
}
EXPLAINED = {name: DRAWS[name] for name in DRAWS if name not in ("scale", "softcap", "vocab_size")}
SCORED = {name: DRAWS[name] for name in DRAWS if name not in ("given", "num_samples", "ranks")}
OF_STEPS = inspect.signature(gumbel.explain_draw).parameters
STEPS = {name: DRAWS[name] for name in DRAWS if name in OF_STEPS}
OF_PARTS = inspect.signature(gumbel.partial).parameters
SHARDED = {name: DRAWS[name] for name in DRAWS if name in OF_PARTS}
SUMMARIES = gumbel.partial_logits(LOGITS)


def history_of(num_slots, vocab_size, count_bits):
    gumbel.History(num_slots, vocab_size, count_bits=count_bits)


def start(prompts, outputs, slots):
    gumbel.History(B, V).start(prompts, outputs, slots=slots)


def update(tokens, slots):
    gumbel.History(B, V).update(tokens, slots=slots)


def adapt(adaptive_target):
    """`order` above has xtc, which excludes adaptive_p."""
    gumbel.sample_logits(LOGITS, order="adaptive_p", adaptive_target=adaptive_target)


FUNCTIONS = {
    gumbel.sample: {"hidden": HIDDEN, "weight": WEIGHT, "bias": BIAS, **DRAWS},
    gumbel.sample_logits: {"logits": LOGITS, **DRAWS},
    gumbel.score: {"hidden": HIDDEN, "weight": WEIGHT, "bias": BIAS, "tokens": [1, 2], **SCORED},
    gumbel.score_logits: {"logits": LOGITS, "tokens": [1, 2], **SCORED},
    gumbel.partial: {
        "hidden": HIDDEN,
        "weight": WEIGHT,
        "bias": BIAS,
        "first_token": 0,
        **SHARDED,
    },
    gumbel.partial_logits: {"logits": LOGITS, "first_token": 0, **SHARDED},
    gumbel.merge: {"into": SUMMARIES.copy(), "other": SUMMARIES},
    gumbel.finish: {"summaries": SUMMARIES},
    history_of: {"num_slots": B, "vocab_size": V, "count_bits": 16},
    start: {"prompts": [1], "outputs": [1], "slots": [1, 0]},
    update: {"tokens": [1, 2], "slots": [1, 0]},
    adapt: {"adaptive_target": 0.5},
    gumbel.process_logits: {"logits": LOGITS, "out": LOGITS.copy(), **DRAWS},
    gumbel.softmax: {"logits": LOGITS, **DRAWS},
    gumbel.top_k: {"logits": LOGITS, "k": 3},
    gumbel.explain: {"weight_or_logits": WEIGHT, "hidden": HIDDEN, **EXPLAINED},
    gumbel.explain_draw: {"logits": LOGITS, **STEPS},
    gumbel.noise: {"seed": 1, "position": 1, "vocab_size": V, "sample": 1, "domain": 1},
    gumbel.philox4x32: {"counter": [1, 2, 3, 4], "key": [1, 2], "rounds": 10},
    gumbel.info: {"device": "cpu", "isa": "reference", "threads": 1},
}
CASES = [
    pytest.param(function, name, id=f"{function.__name__}-{name}")
    for function, parameters in FUNCTIONS.items()
    for name in parameters
]

# An error about inconsistent sizes may name either parameter.
PARTNERS = {
    "hidden": "(weight|mask|weight_or_logits|given|slots|live_rows|tokens)",
    "weight": "(hidden|bias|mask)",
    "weight_or_logits": "(hidden|mask)",
    "logits": "(mask|given|slots|live_rows|tokens)",
    "first_token": "mask",
    "num_samples": "given",
    "slots": "(num_slots|prompts|tokens)",
    "num_slots": "(slots|mask)",
    "vocab_size": "(vocab_size|allowed|xtc_keep)",
    # A parameter whose rule is not in the order is named, and a list of orders requires `program`.
    "order": r"(order|[a-z_]+: (the order|is not supported with the order) '[^']*'|program)",
    "program": "(program|order)",
}


# Kinds of values that no parameter accepts, except those in EXCEPTIONS.
NEVER_ACCEPTED = re.compile(
    "masked|true|boolean|text|byte|memoryview|time|dict|a set|long[ ,]|tall"
)
FLAGS = ("ranks", "kept", "p_less")
LISTS = ("allowed", "banned", "xtc_keep", "prompt_tokens", "output_tokens", "prompts", "outputs")
EXCEPTIONS = {
    "true": FLAGS,
    "numpy true": FLAGS,
    "dicts": "logit_bias",
    "a dict, words": "logit_bias",
    "a dict, two words": "logit_bias",
    "a set, words": LISTS,
    "a set, two words": LISTS,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("function, name", CASES)
def test_unusual_values_are_accepted_or_named(function, name):
    faults = []
    for kind, value in VALUES.items():
        if name == "vocab_size" and function in (gumbel.noise, history_of) and kind == "2**31":
            continue  # 8 GiB of noise or of counts
        try:
            function(**{**FUNCTIONS[function], name: value})
        except (TypeError, ValueError) as error:
            wanted = rf"({name}|{PARTNERS.get(name, name)})\S*: "
            if not re.match(wanted, str(error)):
                faults.append(f"{kind}: {type(error).__name__}: {error}"[:200])
        except Exception as error:
            faults.append(f"{kind}: {type(error).__name__}: {error}"[:200])
        else:
            if NEVER_ACCEPTED.search(kind) and name not in EXCEPTIONS.get(kind, ()):
                faults.append(f"{kind}: accepted")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "keywords, error, text",
    [
        ({"temperature": masked([1.0] * B, "f4")}, TypeError, "temperature: masked arrays are not"),
        ({"top_p": np.ma.masked}, TypeError, "top_p: masked arrays are not"),
        ({"seed": masked(3, "i8")}, TypeError, "seed: masked arrays are not"),
        ({"top_k": [1, masked(3, "i8")]}, TypeError, r"top_k\[1\]: masked arrays are not"),
        ({"banned": masked([3], "i8")}, TypeError, "banned: masked arrays are not"),
        ({"banned": [[1], masked([3], "i8")]}, TypeError, r"banned\[1\]: masked arrays are not"),
        ({"num_samples": masked(3, "i8")}, TypeError, "num_samples: masked arrays are not"),
        ({"mask": np.array(1, np.int32)}, ValueError, "mask: expected "),
        ({"banned": [1, True]}, TypeError, r"banned\[1\]: expected a token id, got bool"),
        ({"banned": np.broadcast_to(1, 2**50)}, ValueError, "banned: has 1125899906842624 entries"),
        ({"banned": ["", ""]}, TypeError, r"banned\[0\]: expected token ids, got str"),
        ({"banned": [[np.ma.masked], []]}, TypeError, r"banned\[0\]\[0\]: masked arrays are"),
        ({"num_samples": True}, TypeError, "num_samples: expected an integer, got bool"),
        ({"scale": np.timedelta64(1)}, TypeError, "scale: expected a number, got timedelta64"),
        ({"banned": np.array(1)}, TypeError, "banned: expected token ids"),
        ({"banned": np.zeros((1, 1, 1), int)}, TypeError, "banned: expected token ids"),
        ({"banned": np.zeros((3, 1), int)}, ValueError, "banned: expected 2 lists"),
        ({"scale": 10**400}, ValueError, "scale: 10+.* is too large for float32"),
        ({"scale": 1e300}, ValueError, r"scale: 1e\+300 is too large for float32"),
        ({"logit_bias": {1: -(10**400)}}, ValueError, r"logit_bias\[1\]: -10+.* is too large"),
        ({"logit_bias": {1: -1e300}}, ValueError, r"logit_bias\[1\]: -1e\+300 is too large"),
        ({"temperature": 10**400}, TypeError, "temperature: expected a number"),
        ({"seed": 10**5000}, ValueError, r"seed: this int is not in \[0, 18446744073709551615\]"),
        ({"order": 10**5000}, ValueError, "order: this int is none of"),
        ({"top_p": 2}, ValueError, r"top_p: is 2"),
    ],
)
def test_error_messages(keywords, error, text):
    with pytest.raises(error, match=f"^{text}"):
        gumbel.sample_logits(LOGITS, **keywords)


@pytest.mark.parametrize("words", [5, None, 1.0, np.array(5), object(), {1, 2, 3}, "1234", [[1]]])
def test_invalid_philox_words_are_named(words):
    with pytest.raises((TypeError, ValueError), match=r"^counter(\[0\])?: "):
        gumbel.philox4x32(words, [0, 0])


def test_errors_quote_any_bytes_of_the_environment():
    """The library quotes the environment, which may not be UTF-8."""
    code = "import gumbel\ntry: gumbel.info()\nexcept ValueError as e: print(ascii(str(e))[1:])"
    for value, shown in ((b"\xff", r"\udcff"), ("\u00e9".encode() * 300, r"\xe9")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environb, b"GUMBEL_ISA": value},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("GUMBEL_ISA: ") and shown in done.stdout, done.stdout
