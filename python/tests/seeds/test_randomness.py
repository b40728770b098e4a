# SPDX-License-Identifier: Apache-2.0
"""Without a seed every call draws a fresh one and reports it; names of arguments and statuses."""

import os
import re
import threading

import gumbel
import numpy as np
import pytest

B, V, D = 4, 1000, 16
RNG = np.random.default_rng(4)
HIDDEN = RNG.normal(size=(B, D)).astype(np.float32)
WEIGHT = RNG.normal(size=(V, D)).astype(np.float32)
LOGITS = np.zeros((B, V), np.float32)  # every token is as likely: no two draws agree
CALLS = {
    "sample": lambda **how: gumbel.sample(0 * HIDDEN, WEIGHT, **how),
    "sample_logits": lambda **how: gumbel.sample_logits(LOGITS, **how),
    "verify": lambda **how: gumbel.verify(0 * HIDDEN, WEIGHT, np.zeros((B, 1), np.int32), **how),
    "verify_logits": lambda **how: gumbel.verify_logits(LOGITS, np.zeros((B, 1), np.int32), **how),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_ten_calls_differ_and_each_can_be_repeated(call):
    outputs = [call() for _ in range(10)]
    assert len({tuple(out.tokens.ravel()) for out in outputs}) == 10
    assert len({out.seed for out in outputs}) == 10
    for out in outputs:
        assert type(out.seed) is int and 0 <= out.seed < 2**64
        np.testing.assert_array_equal(call(seed=out.seed, position=0).tokens, out.tokens)


def test_fresh_seeds_have_64_bits():
    seeds = [gumbel.sample_logits(LOGITS[:1, :1]).seed for _ in range(200)]
    for bit in range(64):
        assert 50 < sum(seed >> bit & 1 for seed in seeds) < 150


def test_a_seed_and_a_position_repeat_a_draw():
    one, other = (gumbel.sample_logits(LOGITS, seed=5) for _ in range(2))
    np.testing.assert_array_equal(one.tokens, other.tokens)
    assert one.seed == 5
    later = gumbel.sample_logits(LOGITS, seed=5, position=1)
    assert (later.tokens != one.tokens).any()
    seeds = [1, 2, 3, 2**64 - 1]
    assert gumbel.sample_logits(LOGITS, seed=seeds).seed is seeds


def test_partial_without_a_seed():
    """Shards with different fresh seeds draw every token equally often, and no two draws agree."""
    halves = [(0, V // 2), (V // 2, V)]
    drawn = [
        gumbel.finish(
            np.stack([gumbel.partial_logits(LOGITS[:, a:b], first_token=a) for a, b in halves])
        ).tokens
        for _ in range(100)
    ]
    assert len({tuple(tokens.ravel()) for tokens in drawn}) == 100
    assert 130 < (np.array(drawn) < V // 2).sum() < 270


def test_outputs_without_a_draw_have_no_seed():
    tokens = np.zeros(B, np.int32)
    assert gumbel.score_logits(LOGITS, tokens).seed is None
    assert gumbel.sample_logits(LOGITS, given=tokens[:, None], seed=3).seed is None
    summaries = gumbel.partial_logits(LOGITS, seed=3)
    assert gumbel.finish(summaries).seed is None


@pytest.mark.parametrize("more", [{}, {"position": 3}, {"num_samples": 2, "top_k": 900}])
def test_every_prepared_call_without_a_seed_has_its_own(more):
    call = gumbel.prepare_sample_logits(LOGITS, **more)
    seen, seeds = set(), []
    for _ in range(10):
        out = call()
        seen.add(tuple(out.tokens.ravel()))
        seeds.append(int(out.seed))
        again = gumbel.sample_logits(LOGITS, seed=out.seed, **more)
        np.testing.assert_array_equal(again.tokens, out.tokens)
    assert len(seen) == 10 and np.ptp([seed - seeds[0] for seed in seeds]) == 9
    other = gumbel.prepare_sample(0 * HIDDEN, WEIGHT)
    assert int(other().seed) not in seeds


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_a_prepared_call_with_another_seed():
    call = gumbel.prepare_sample_logits(LOGITS)
    first, children = int(call().seed), []
    for _ in range(3):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover
            seeds = [int(call().seed) for _ in range(2)]
            os.write(writer, " ".join(map(str, seeds)).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            children.append([int(seed) for seed in pipe.read().split()])
        assert os.waitpid(child, 0)[1] == 0
    assert int(call().seed) == (first + 1) % 2**64
    starts = {start for start, _ in children}
    assert len(starts | {first + 1}) == 4
    assert all(after == (start + 1) % 2**64 for start, after in children)


def test_a_prepared_call_with_a_seed_keeps_it():
    position = np.zeros(B, np.uint64)
    call = gumbel.prepare_sample_logits(LOGITS, seed=5, position=position)
    first = call().tokens.copy()
    np.testing.assert_array_equal(call().tokens, first)
    gumbel.advance(position)
    assert position.tolist() == [1] * B and (call().tokens != first).any()


def test_a_prepared_score_draws_no_seed():
    call = gumbel.prepare_sample_logits(LOGITS, given=np.zeros((B, 1), np.int32))
    assert call().seed is None


def test_threads_do_not_share_seeds():
    found = []

    def draw():
        for _ in range(50):
            found.append(gumbel.sample_logits(LOGITS[:1]).seed)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 200


# ----------------------------------------------------------------------------------- advance


@pytest.mark.parametrize("dtype", [np.uint64, np.int64])
def test_advance(dtype):
    position = np.array([0, 5, 2**62, 7], dtype)
    gumbel.advance(position)
    assert position.tolist() == [1, 6, 2**62 + 1, 8]
    gumbel.advance(position, slots=[3, 0])
    assert position.tolist() == [2, 6, 2**62 + 1, 9]
    gumbel.advance(position, live_rows=1)
    assert position.tolist() == [3, 6, 2**62 + 1, 9]
    gumbel.advance(position, slots=np.array([1, 2], np.int32), live_rows=0)
    gumbel.advance(position[:0])
    assert position.tolist() == [3, 6, 2**62 + 1, 9]


@pytest.mark.parametrize(
    "position, more, error, text",
    [
        ([1, 2], {}, TypeError, "position: expected a NumPy array"),
        (np.zeros(4, np.int32), {}, TypeError, "position: expected uint64 or int64, got int32"),
        (np.zeros((2, 2), np.uint64), {}, ValueError, "position: expected a contiguous array"),
        (np.zeros(4, np.uint64)[::2], {}, ValueError, "position: expected a contiguous array"),
        (np.frombuffer(bytes(16), np.uint64), {}, ValueError, "position: the array is read-only"),
        (np.zeros(4, np.uint64), {"slots": [4]}, ValueError, r"slots\[0\]: 4 is not in \[0, 3\]"),
        (
            np.zeros(4, np.uint64),
            {"slots": [0] * 5},
            ValueError,
            "slots: expected a list of at most 4",
        ),
        (np.zeros(4, np.uint64), {"slots": 3}, ValueError, "slots: expected a list of at most 4"),
        (np.zeros(4, np.uint64), {"live_rows": 5}, ValueError, "live_rows: is 5"),
    ],
)
def test_invalid_positions_are_named(position, more, error, text):
    before = np.array(position)
    with pytest.raises(error, match=f"^{text}"):
        gumbel.advance(position, **more)
    np.testing.assert_array_equal(position, before)


# ------------------------------------------------------------------------------------- names


def test_statuses_have_names():
    logits = LOGITS.copy()
    logits[0, 1], logits[1, 2], logits[2] = np.nan, np.inf, -np.inf
    out = gumbel.sample_logits(logits)
    assert [gumbel.RowStatus(status).name for status in out.status] == [
        *("NAN", "INFINITE", "EMPTY", "OK")
    ]
    assert (out.status == gumbel.RowStatus.NAN).tolist() == [True, False, False, False]
    assert gumbel.sample_logits(LOGITS, live_rows=0).status[0] == gumbel.RowStatus.UNUSED


def test_outputs_have_a_readable_repr():
    logits = LOGITS.copy()
    logits[1, 2] = np.nan
    text = repr(gumbel.sample_logits(logits, seed=5, temperature=0, top_logprobs=2))
    assert text.startswith("SampleOutput(tokens=int32[4, 1] [[ 0], [-1], [ 0], [ 0]], logprobs=f")
    assert "status=[OK, NAN, OK, OK]" in text and text.endswith("seed=5)")
    assert "top_ids=int32[4, 2]" in text and "ranks" not in text and "\n" not in text
    many = repr(gumbel.sample_logits(np.zeros((5000, 3), np.float32), live_rows=4999))
    assert "status=[4999 x OK, 1 x UNUSED]" in many and len(many) < 600
    text = repr(gumbel.verify_logits(LOGITS, np.zeros((2, 2), np.int32), seed=1, temperature=0))
    assert text.startswith("VerifyOutput(tokens=int32[2, 2] [[0, 0], [0, 0]], emitted=int32[2]")
    assert repr(gumbel.prepare_sample_logits(LOGITS[:0]).output).startswith("SampleOutput(")


UNKNOWN = [
    ("topk", "top_k"),
    ("top_K", "top_k"),
    ("topp", "top_p"),
    ("temp", "temperature"),
    ("temprature", "temperature"),
    ("seeds", "seed"),
    ("nsamples", "num_samples"),
    ("logit_biases", "logit_bias"),
    ("repetition", "repetition_penalty"),
    ("soft_cap", "softcap"),
    ("x", None),
    ("repeat_penalty", "repetition_penalty"),
    ("generator", "seed"),
    ("rng", "seed"),
    ("random_state", "seed"),
    ("greedy", "temperature"),
    ("do_sample", "temperature"),
    ("k", "top_k"),
    ("p", "top_p"),
    ("n", "num_samples"),
    ("num_return_sequences", "num_samples"),
    ("max_tokens", None),
    ("max_new_tokens", None),
]


@pytest.mark.parametrize("name, nearest", UNKNOWN)
def test_unknown_arguments_are_named(name, nearest):
    advice = rf"; did you mean '{nearest}'\?( \(.*\))?" if nearest else "(: .*)?"
    if name.startswith("max"):
        advice = ": a call draws one token for each row; .*"
    if nearest == "temperature" and name[:4] != "temp":
        advice = r".* \(temperature=0 is greedy\)"
    for function, inputs in (
        (gumbel.sample, (HIDDEN, WEIGHT)),
        (gumbel.sample_logits, (LOGITS,)),
        (gumbel.prepare_sample, (HIDDEN, WEIGHT)),
        (gumbel.process_logits, (LOGITS,)),
    ):
        with pytest.raises(TypeError) as refused:
            function(*inputs, **{name: 5})
        wanted = rf"{function.__name__}\(\) has no argument '{name}'{advice}"
        assert re.fullmatch(wanted, str(refused.value)), str(refused.value)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, ">f4"])
def test_unsupported_dtype_errors_name_the_remedy(dtype):
    wide = HIDDEN.astype(dtype)
    with pytest.raises(TypeError, match=r"^hidden: .*; pass hidden.astype\(np.float32\)$"):
        gumbel.sample(wide, WEIGHT)
    with pytest.raises(TypeError, match=r"^bias: .*; pass bias.astype\(np.float32\)$"):
        gumbel.sample(HIDDEN, WEIGHT, bias=np.zeros(V, dtype))
    torch = pytest.importorskip("torch")
    if dtype == np.float64:
        with pytest.raises(TypeError, match=r"^weight: .*; pass weight.float\(\)$"):
            gumbel.sample(torch.zeros(1, D), torch.zeros(V, D, dtype=torch.float64))


OUTSIDE = {"banned": [V], "allowed": [1, V], "logit_bias": {V: 1.0}}


@pytest.mark.parametrize("name, value", OUTSIDE.items())
def test_invalid_token_ids_raise(name, value):
    text = f"{name}: {V} is not in the vocabulary of {V} tokens, 0 to {V - 1}"
    for function in (gumbel.sample_logits, gumbel.process_logits, gumbel.score_logits):
        tokens = (np.zeros(B, np.int32),) if function is gumbel.score_logits else ()
        with pytest.raises(ValueError, match=f"^{text}$"):
            function(LOGITS, *tokens, **{name: value})
    rows = [value] + [[] if isinstance(value, list) else {}] * (B - 1)
    with pytest.raises(ValueError, match=rf"^{name}(\[0\])?: {V} is not in the vocabulary"):
        gumbel.sample(HIDDEN, WEIGHT, **{name: rows})
    with pytest.raises(ValueError, match=f"^{name}: {V} is not in the vocabulary of 900 "):
        gumbel.sample_logits(LOGITS, vocab_size=900, **{name: value})
    with pytest.raises(ValueError, match=f"^{text}$"):
        gumbel.sample_logits(LOGITS, vocab_size=2 * V, **{name: value})
    # A shard without vocab_size does not know how many tokens there are.
    gumbel.partial_logits(LOGITS, first_token=0, **{name: value})
    with pytest.raises(ValueError, match=f"^{name}: {V} is not in the vocabulary of 950"):
        gumbel.partial_logits(LOGITS[:, :900], vocab_size=950, **{name: value})
    gumbel.partial_logits(LOGITS[:, :900], vocab_size=V + 1, **{name: value})


def test_counted_ids_may_be_invalid():
    gumbel.sample_logits(LOGITS, prompt_tokens=[V], output_tokens=[V + 1], presence_penalty=1.0)


VALUES = {
    "temperature": (-1.0, r"temperature: is -1"),
    "top_p": (1.0000001, r"top_p: is 1.0000001; it must be in \(0, 1\]"),
    "min_p": ([0, 0, 1.5, 0], r"min_p\[2\]: is 1.5; it must be in \[0, 1\]"),
    "repetition_penalty": (0.0, r"repetition_penalty: is -?0; it must be finite and > 0"),
    "live_rows": (5, "live_rows: is 5; it must be in 0..4"),
}


@pytest.mark.parametrize("name", VALUES)
def test_explain_raises_the_errors_of_a_call(name):
    value, text = VALUES[name]
    given = {name: value, **({"output_tokens": [1]} if "penalty" in name else {})}
    for call in (
        lambda: gumbel.sample(HIDDEN, WEIGHT, **given),
        lambda: gumbel.explain(WEIGHT, HIDDEN, **given),
        lambda: gumbel.sample_logits(LOGITS, **given),
        lambda: gumbel.explain(LOGITS, **given),
    ):
        with pytest.raises(ValueError, match=f"^{text}"):
            call()


def test_errors_name_arguments_as_they_were_passed():
    drafts = np.zeros((2, 2), np.int32)

    def assert_error(text, call, *args, **keywords):
        with pytest.raises(ValueError, match=f"^{text}"):
            call(*args, **keywords)

    verify = (gumbel.verify_logits, LOGITS, drafts)
    assert_error(r"nodes: nodes\[0\] is 3", *verify, nodes=[3, 1])
    assert_error("parents: ", *verify, parents=np.full((2, 2), 7, np.int32))
    assert_error(r"limit\[1\]: -1 is not in", *verify, limit=[0, -1])
    with pytest.raises(ValueError, match="^offsets: "):
        gumbel.verify_logits(LOGITS, drafts.ravel(), offsets=np.array([0, 3, 2], np.int32))
    text = "weight: has 15 columns, but hidden has 16"
    assert_error(text, gumbel.sample, HIDDEN, WEIGHT[:, 1:])
    assert_error("weight_or_logits: has 15 columns", gumbel.explain, WEIGHT[:, 1:], HIDDEN)
    assert_error("softcap: is -1", gumbel.sample_logits, LOGITS, softcap=-1.0)
    wrong = gumbel.proposal_logits(LOGITS[:, :-1])
    text = f"proposal: {V - 1} vocabulary rows, first_token 0 and vocab_size {V - 1} must equal"
    assert_error(text, *verify, rule="rejection", proposal=wrong)
