# SPDX-License-Identifier: Apache-2.0
"""Histories count as lists of tokens do, in rows and in slots, from step to step."""

import gumbel
import numpy as np
import pytest

B, V, SLOTS = 3, 70, 5
RNG = np.random.default_rng(19)
LOGITS = RNG.normal(size=(B, V)).astype(np.float32)
PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": [0.2, 0.3, 0.4]}
IN_SLOTS = {"repetition_penalty": 1.3, "frequency_penalty": [0.3, 9, 0.4, 9, 0.2]}
OF_ROW = [4, 0, 2]
PROMPTS, OUTPUTS = [[1, 2, 69], [], [5, 5]], [[3, 3, 3, 9], [69], []]


def bits(lists, width=V):
    """The words of each row that have its tokens' bits."""
    words = np.zeros((len(lists), (width + 31) // 32), np.uint32)
    for row, tokens in zip(words, lists):
        for token in tokens:
            row[token >> 5] |= np.uint32(1 << (token & 31))
    return words


def counts(lists):
    return np.array([np.bincount(np.array(tokens, int), minlength=V) for tokens in lists])


@pytest.mark.parametrize("count_bits, dtype", [(16, np.uint16), (32, np.int32)])
def test_history_counts_tokens(count_bits, dtype):
    history = gumbel.History(B, V, count_bits=count_bits)
    assert history.counts.dtype == dtype and not history.counts.any()
    history.start(PROMPTS, OUTPUTS)
    history.update([7, -1, V])
    history.update(np.array([[7], [69], [0]], np.int32))
    wanted = [[*OUTPUTS[0], 7, 7], [69, 69], [0]]
    np.testing.assert_array_equal(history.prompt, bits(PROMPTS))
    np.testing.assert_array_equal(history.output, bits(wanted))
    np.testing.assert_array_equal(history.counts, counts(wanted))
    history.start([8])
    np.testing.assert_array_equal(history.prompt, bits([[8]] * B))
    assert not history.output.any() and not history.counts.any()
    history.start()
    assert not history.prompt.any()


@pytest.mark.parametrize("count_bits", [16, 32])
def test_counts_saturate(count_bits):
    history = gumbel.History(1, V, count_bits=count_bits)
    history.start(outputs=np.zeros((1, 65534), np.int32))
    for wanted in (65535, 65535):
        history.update([0])
        assert history.counts[0, 0] == wanted


@pytest.mark.parametrize("count_bits", [16, 32])
def test_penalties_match_those_of_lists(count_bits):
    history = gumbel.History(B, V, count_bits=count_bits)
    history.start(PROMPTS, OUTPUTS)
    outputs = [list(tokens) for tokens in OUTPUTS]
    for position in range(4):
        step = {"seed": 5, "position": position}
        lists = {"prompt_tokens": PROMPTS, "output_tokens": outputs}
        wanted = gumbel.process_logits(LOGITS, **lists, **PENALTIES)
        found = gumbel.process_logits(LOGITS, history=history, **PENALTIES)
        np.testing.assert_array_equal(found, wanted)
        drawn = gumbel.sample_logits(LOGITS, history=history, **PENALTIES, **step)
        alike = gumbel.sample_logits(LOGITS, **lists, **PENALTIES, **step)
        np.testing.assert_array_equal(drawn.tokens, alike.tokens)
        history.update(drawn.tokens)
        outputs = [[*row, token] for row, token in zip(outputs, drawn.tokens[:, 0].tolist())]


@pytest.mark.parametrize("kind", [list, lambda slots: np.array(slots, np.int32)])
def test_histories_by_slots(kind):
    """Rows move between slots that keep what they count; other slots are not touched."""
    history = gumbel.History(SLOTS, V)
    slots = kind(OF_ROW)
    history.start([6], [[60, 60]] * SLOTS)
    history.start(PROMPTS, OUTPUTS, slots=slots)
    lists = {"prompt_tokens": PROMPTS, "output_tokens": OUTPUTS}
    wanted = gumbel.process_logits(LOGITS, **lists, **PENALTIES)
    common = {"history": history, "num_slots": SLOTS, **IN_SLOTS}
    found = gumbel.process_logits(LOGITS, slots=slots, **common)
    np.testing.assert_array_equal(found, wanted)
    other = gumbel.process_logits(LOGITS[::-1].copy(), slots=slots[::-1], **common)
    np.testing.assert_array_equal(other, wanted[::-1])
    history.update([11, 12], slots=slots[:2])
    counted = np.zeros((SLOTS, V), int)
    counted[[1, 3], 60] = 2
    counted[OF_ROW] = counts([[*OUTPUTS[0], 11], [*OUTPUTS[1], 12], OUTPUTS[2]])
    np.testing.assert_array_equal(history.counts, counted)


def test_a_smaller_vocabulary():
    """Tokens of the history's vocabulary are counted, those beyond are not penalised."""
    history = gumbel.History(B, 64)
    history.start(PROMPTS, [[3, 63, 64], [69], []])
    found = gumbel.process_logits(LOGITS, history=history, frequency_penalty=1.0)
    wanted = LOGITS.copy()
    wanted[0, [3, 63]] -= 1
    np.testing.assert_array_equal(found, wanted)


def test_no_rows():
    history = gumbel.History(SLOTS, V)
    history.start([1], slots=[])
    history.update([], slots=[])
    assert not history.prompt.any()


@pytest.mark.parametrize(
    "keywords, error, text",
    [
        ({"num_slots": 0}, ValueError, "num_slots: "),
        ({"num_slots": 2.0}, TypeError, "num_slots: "),
        ({"vocab_size": 0}, ValueError, "vocab_size: "),
        ({"vocab_size": 2**31 + 1}, ValueError, "vocab_size: "),
        ({"count_bits": 8}, ValueError, "count_bits: "),
        ({"count_bits": 24}, ValueError, "count_bits: expected 16 or 32, got 24"),
        ({"like": [1.0]}, TypeError, "like: expected a NumPy array or a torch tensor"),
    ],
)
def test_invalid_constructor_arguments(keywords, error, text):
    with pytest.raises(error, match=f"^{text}"):
        gumbel.History(**{"num_slots": 2, "vocab_size": V, **keywords})


def test_invalid_arguments_are_named():
    history = gumbel.History(SLOTS, V)
    calls = [
        (lambda: history.start([[1]]), ValueError, "prompts: expected 5 lists"),
        (lambda: history.start(outputs=["a"] * 5), TypeError, r"outputs\[0\]: "),
        (lambda: history.start(slots=3), ValueError, "slots: expected a list of at most 5 slots"),
        (lambda: history.start(slots=range(2**62)), ValueError, "slots: expected a list"),
        (lambda: history.start(slots=[0, SLOTS]), ValueError, r"slots: slots\[1\] is 5"),
        (lambda: history.start(slots=[-1]), ValueError, r"slots\[0\]: "),
        (lambda: history.update([1]), ValueError, r"tokens: expected the shape \(5,\) or \(5, "),
        (lambda: history.update([0.5], slots=[1]), TypeError, "tokens: "),
        (lambda: history.update([-2], slots=[1]), ValueError, "tokens: token ids must be in"),
    ]
    for call, error, text in calls:
        with pytest.raises(error, match=f"^({text})"):
            call()


def make_arrays(counts):
    """Arrays of a history: read-only bits, and these counts."""
    words = np.frombuffer(bytes(4 * SLOTS * ((V + 31) // 32)), np.uint32).reshape(SLOTS, -1)
    return gumbel.History.of_arrays(words, words.copy(), counts)


def test_read_only_arrays_are_not_written():
    counts = np.frombuffer(bytes(2 * SLOTS * V), np.uint16).reshape(SLOTS, V)
    history = gumbel.History.of_arrays(*(make_arrays(counts).output.copy(),) * 2, counts)
    for call in (lambda: history.update([1] * SLOTS), lambda: history.start([1])):
        with pytest.raises(ValueError, match="^history.counts: the array is read-only"):
            call()
    with pytest.raises(ValueError, match="^history.prompt: the array is read-only"):
        make_arrays(counts.copy()).update([1] * SLOTS)
    assert not counts.any()
    gumbel.sample_logits(LOGITS, history=make_arrays(counts), slots=range(B), num_slots=SLOTS)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint64])
def test_counts_of_other_dtypes(dtype):
    with pytest.raises(TypeError, match="^history_counts: expected int16 or int32"):
        make_arrays(np.zeros((SLOTS, V), dtype))


def test_arrays_cannot_be_replaced():
    history = gumbel.History(SLOTS, V)
    history.counts += 1
    assert (history.counts == 1).all()
    with pytest.raises(AttributeError, match="^counts: the array cannot be replaced"):
        history.counts = np.zeros(1, np.uint16)


@pytest.mark.parametrize(
    "keywords, error, text",
    [
        ({"history": {}}, TypeError, "history: expected a gumbel.History, got dict"),
        ({"history": gumbel.History(B - 1, V)}, ValueError, "history: has 2 slots, .* 3 rows"),
        (
            {"history": gumbel.History(B, V), "slots": [0, 1, 2], "num_slots": 4},
            ValueError,
            "history: has 3 slots, the call has 4 slots",
        ),
        (
            {"history": gumbel.History(B, V), "output_tokens": [1], "presence_penalty": 1},
            ValueError,
            "history: penalties take a history or lists of tokens, not both",
        ),
    ],
)
def test_conflicting_arguments_are_named(keywords, error, text):
    with pytest.raises(error, match=f"^{text}"):
        gumbel.sample_logits(LOGITS, **keywords)


def test_several_tokens_of_a_row_at_once():
    tokens = np.array([[1, 1, 2], [3, 4, -1]], np.int32)
    together, singly = gumbel.History(2, 40), gumbel.History(2, 40)
    together.update(tokens, counts=[3, 1])
    for column, width in zip(tokens.T, (2, 1, 1)):
        singly.update(np.where(np.arange(2) < width, column, -1).astype(np.int32))
    assert (together.counts == singly.counts).all() and together.counts[0, 1] == 2
    assert (together.output == singly.output).all()
    for counts in ([1], [4, 0], [-1, 0]):
        with pytest.raises(ValueError, match="counts"):
            together.update(tokens, counts=counts)
