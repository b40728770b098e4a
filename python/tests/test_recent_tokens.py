# SPDX-License-Identifier: Apache-2.0
"""Rings of recent tokens, and their lists, against definitions that compare all pairs of tokens."""

import gc

import gumbel
import numpy as np
import pytest

V, SLOTS, CAPACITY, UNUSED = 40, 5, 24, 2**31 - 1
RNG = np.random.default_rng(23)
LOGITS = RNG.normal(size=(SLOTS, V)).astype(np.float32)
MULTIPLIERS, BASES = [0.8, 0.0, 1.5, 0.5, 2.0], [1.75, 1.5, 0.9, 1.0, 3.0]
ALLOWED, LAST_N = [2, 1, 1, 3, 0], [-1, 10, 0, 9, 12]
SIZES, WINDOWS = [3, 0, 2, 1, 2], [-1, 12, 8, 5, 11]
BREAKERS, KEEP = [[2], [0, 1], [0, 1, 3]], [[3], [], [0, 1], [2], []]
BAD_WORDS = [[[7], [0, 1, 2]], [], [[1, 1, 3], [0, 5]], [[2, 9]], [[6, 6]]]
STOPS = [[30, 31], [32], [], [33], [30]]


def dry(ring, multiplier, base, allowed, last_n, breakers):
    """{token: bias} of DRY; `breakers` are sequences."""
    window = ring if last_n < 0 else ring[len(ring) - min(last_n, len(ring)) :]
    count = len(window)
    if multiplier == 0 or base < 1 or last_n == 0 or count <= allowed:
        return {}
    ends = [
        (start, start + len(breaker))
        for start in range(count)
        for breaker in breakers
        if window[start : start + len(breaker)] == breaker
    ]
    usable = count - max(ends)[1] if ends else count
    longest = {}
    for end in range(1, count):
        length = 0
        while length < min(usable, end) and window[end - 1 - length] == window[-1 - length]:
            length += 1
        token = window[end]
        if length >= allowed and [token] not in breakers and usable >= allowed:
            longest[token] = max(length, longest.get(token, 0))
    return {token: -multiplier * base ** (n - allowed) for token, n in longest.items()}


def bans(ring, size, window, keep, bad_words, stops):
    """The banned tokens of a row."""
    read = ring if window < 0 else ring[len(ring) - min(window, len(ring)) :]
    found = set(stops)
    if size > 0:
        begin = read[len(read) - size + 1 :] if len(read) >= size - 1 else None
        for end in range(size - 1, len(read)):
            if read[end - size + 1 : end] == begin:
                found |= {read[end]} - set(keep)
    for sequence in bad_words:
        before = sequence[:-1]
        if not before or ring[-len(before) :] == before:
            found.add(sequence[-1])
    return found


def ids_of(row):
    """The ids of a list; unused places follow them."""
    found = [int(token) for token in row if token != UNUSED]
    assert found == sorted(set(found)) and (np.asarray(row)[len(found) :] == UNUSED).all()
    return found


def arrays_of(kind):
    """(the argument `like`, a function that converts NumPy arrays)."""
    if kind == "numpy":
        return None, lambda array: array
    torch = pytest.importorskip("torch")
    return torch.zeros(1), torch.from_numpy


def assert_rules(lists, rings, slots, position):
    for row, slot in enumerate(slots):
        wanted = dry(
            rings[slot], MULTIPLIERS[slot], BASES[slot], ALLOWED[slot], LAST_N[slot], BREAKERS
        )
        ids = ids_of(np.asarray(lists.late_ids[row]))
        assert ids == sorted(wanted), (row, rings[slot])
        values = np.asarray(lists.late_values[row])[: len(ids)]
        np.testing.assert_allclose(values, [wanted[token] for token in ids], rtol=1e-5)
        stops = STOPS[row] if position < slot else []
        rules = (SIZES[slot], WINDOWS[slot], KEEP[row], BAD_WORDS[row], stops)
        assert ids_of(np.asarray(lists.banned[row])) == sorted(bans(rings[slot], *rules))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("slots", [None, [4, 0, 2, 1, 3]])
def test_lists_follow_their_definitions(kind, slots):
    """Rings that wrap, of tokens that repeat; the lists of every step, in the same arrays."""
    like, convert = arrays_of(kind)
    recent = gumbel.Recent(SLOTS, CAPACITY, like=like)
    of_row = slots or list(range(SLOTS))
    where = None if slots is None else convert(np.array(slots, np.int32))
    texts = [[] for _ in range(SLOTS)]
    prompts = [RNG.integers(0, 4, 3 * row).tolist() for row in range(SLOTS)]
    recent.start(prompts, [[1, 2]] * SLOTS, slots=where)
    for row, slot in enumerate(of_row):
        texts[slot] += [*prompts[row], 1, 2]
    position = convert(np.zeros(SLOTS, np.uint64).view(np.int64))
    lists = recent.make_lists(
        dry_multiplier=MULTIPLIERS,
        dry_base=BASES,
        dry_allowed_length=ALLOWED,
        dry_last_n=LAST_N,
        dry_breakers=BREAKERS,
        ngram_size=SIZES,
        ngram_window=WINDOWS,
        ngram_keep=KEEP,
        bad_words=BAD_WORDS,
        position=position,
        min_position=list(range(SLOTS)),
        stop_tokens=STOPS,
        slots=where,
        capacity=V,
    )
    late, dry_rows = lists.late_ids, 0
    for step in range(2 * CAPACITY):
        rings = [text[-CAPACITY:] for text in texts]
        assert_rules(lists, rings, of_row, step)
        dry_rows += int((np.asarray(lists.late_ids)[:, 0] != UNUSED).sum())
        tokens = RNG.integers(0, 4, (SLOTS, 1)).astype(np.int32)
        tokens[step % SLOTS] = -1
        recent.append(convert(tokens), slots=where)
        for slot, token in zip(of_row, tokens[:, 0].tolist()):
            texts[slot] += [token] if token >= 0 else []
        position += 1
        lists.update()
    assert lists.late_ids is late and dry_rows > CAPACITY
    assert np.asarray(recent.count).tolist() == [len(text) for text in texts]


def test_counts_choose_the_tokens_to_append():
    recent = gumbel.Recent(2, 8)
    recent.start()
    recent.append([[1, 2, 3], [4, -1, 5]], counts=[2, 3])
    assert recent.count.tolist() == [2, 2]
    assert recent.tokens[:, :2].tolist() == [[1, 2], [4, 5]]
    recent.start([[9]], slots=[1])
    assert recent.count.tolist() == [2, 1] and recent.tokens[1, 0] == 9


@pytest.mark.parametrize("window", [None, 3, [0, 1, 5, CAPACITY, 7]])
def test_penalties_have_a_window(window):
    """A history of a Recent counts the last tokens alone, prompt included."""
    history = gumbel.History(SLOTS, V)
    recent = gumbel.Recent(SLOTS, CAPACITY, history=history, window=window)
    lengths = window if isinstance(window, list) else [window or CAPACITY] * SLOTS
    texts = [RNG.integers(0, 6, 4).tolist() for _ in range(SLOTS)]
    recent.start(texts)
    for _ in range(2 * CAPACITY):
        tokens = RNG.integers(0, 6, SLOTS)
        recent.append(tokens)
        for text, token in zip(texts, tokens.tolist()):
            text.append(token)
        last = [text[len(text) - min(n, len(text)) :] for text, n in zip(texts, lengths)]
        counted = [np.bincount(np.array(each, int), minlength=V) for each in last]
        np.testing.assert_array_equal(history.counts, counted)
    penalties = {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1}
    np.testing.assert_array_equal(
        gumbel.process_logits(LOGITS, history=history, **penalties),
        gumbel.process_logits(LOGITS, output_tokens=last, **penalties),
    )


def test_a_history_has_one_owner():
    history = gumbel.History(2, V)
    recent = gumbel.Recent(2, 8, history=history)
    for call in (lambda: history.start(), lambda: history.update([1, 2])):
        with pytest.raises(ValueError, match=r"^history: a gumbel\.Recent keeps it"):
            call()
    with pytest.raises(ValueError, match=r"^history: another gumbel\.Recent"):
        gumbel.Recent(2, 8, history=history)
    del recent
    gc.collect()
    history.start([1])
    assert history.prompt.any()


def test_draws_use_the_lists():
    """`lists` is the same as its arrays in `banned` and `late_bias`."""
    recent = gumbel.Recent(2, 16)
    recent.start([[1, 2, 3, 1, 2], [4]])
    lists = recent.make_lists(dry_multiplier=4.0, bad_words=[[4, 7], [9]])
    edits = {"banned": [[9], [7, 9]], "late_bias": [{3: -4.0}, {}]}
    logits = LOGITS[:2]
    more = {"output_tokens": [[3], [5]], "repetition_penalty": 1.5}
    for call, rest in ((gumbel.process_logits, {}), (gumbel.sample_logits, {"seed": 1})):
        found = call(logits, lists=lists, **more, **rest)
        wanted = call(logits, **edits, **more, **rest)
        if call is gumbel.process_logits:
            np.testing.assert_array_equal(found, wanted)
            assert np.isneginf(found[0, 9]) and np.isneginf(found[1, 7])
            assert found[0, 3] == np.float32(
                gumbel.process_logits(logits, **more)[0, 3] - np.float32(4)
            )
        else:
            np.testing.assert_array_equal(found.tokens, wanted.tokens)


def test_rules_that_bias_leave_banned_to_the_caller():
    recent = gumbel.Recent(2, 16)
    recent.start([[1, 2, 3, 1, 2], [4]])
    lists = recent.make_lists(dry_multiplier=4.0)
    assert lists.banned is None
    found = gumbel.process_logits(LOGITS[:2], lists=lists, banned=[[5], []])
    wanted = gumbel.process_logits(LOGITS[:2], late_bias=[{3: -4.0}, {}], banned=[[5], []])
    np.testing.assert_array_equal(found, wanted)
    banning = recent.make_lists(ngram_size=1)
    assert banning.late_ids is None and banning.late_values is None
    gumbel.process_logits(LOGITS[:2], lists=banning, late_bias={3: 1.0})


def test_rows_without_room_are_not_drawn():
    recent = gumbel.Recent(2, 16)
    recent.start([[1, 2], [1]])
    lists = recent.make_lists(ngram_size=1, capacity=1)
    out = gumbel.sample_logits(LOGITS[:2], lists=lists, seed=3)
    assert lists.status.tolist() == out.status.tolist() == [gumbel.RowStatus.LISTS, 0]
    assert out.tokens[0] == -1 and out.tokens[1] >= 0 and ids_of(lists.banned[0]) == []
    status = np.array([0, 8], np.int32)
    call = gumbel.prepare_sample_logits(LOGITS[:2], seed=3, banned=[1], list_status=status)
    assert call().status.tolist() == [0, 8]
    status[:] = [8, 0]
    assert call().status.tolist() == [8, 0]


class RowsOfSampler:
    """Rings with a history and lists, for the rows of a sampler."""

    def __init__(self, count, where):
        self.history = gumbel.History(count, V)
        self.recent = gumbel.Recent(count, 16, history=self.history, window=4)
        self.recent.start([[1, 2, 1], [3]], **where)
        self.lists = self.recent.make_lists(dry_multiplier=3.0, dry_allowed_length=1, **where)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("slots", [None, [3, 1]])
@pytest.mark.parametrize("passed", [("lists",), ("history",), ("lists", "history")])
def test_samplers_append_what_they_draw(prepared, slots, passed):
    """A Sampler's loop draws the tokens of a loop that appends them itself."""
    where = {} if slots is None else {"slots": slots}
    kind = {"batch": 2} if slots is None else {"num_slots": 4}
    count = next(iter(kind.values()))
    seeds = np.arange(count, dtype=np.uint64)
    sampler = gumbel.Sampler(seeds, **kind)
    own, others = (RowsOfSampler(count, where) for _ in range(2))
    logits = np.zeros((2, V), np.float32)
    logits[:, 12:] = -9
    common = {"logprobs": None, **where}
    if "history" in passed:
        common["repetition_penalty"] = 1.5
    inputs = logits.copy()
    kept = {name: getattr(own, name) for name in passed}
    if prepared:
        call = sampler.prepare_sample_logits(inputs, **kept, **common)
    for position in range(12):
        for rows in (own, others):
            rows.lists.update()
        inputs[:] = np.roll(logits, position, 1)
        out = call() if prepared else sampler.sample_logits(inputs, **kept, **common)
        request = {name: getattr(others, name) for name in passed}
        request.update(common, seed=seeds, position=position)
        if slots is not None:
            request["num_slots"] = count
        alike = gumbel.sample_logits(inputs, **request)
        others.recent.append(alike.tokens, **where)
        np.testing.assert_array_equal(out.tokens, alike.tokens)
    np.testing.assert_array_equal(own.recent.tokens, others.recent.tokens)
    np.testing.assert_array_equal(own.history.counts, others.history.counts)
    assert own.recent.count.max() == 15
    with pytest.raises(ValueError, match=f"^num_samples: must be 1 with {passed[-1]}"):
        sampler.sample_logits(inputs, num_samples=2, **kept, **common)


def make(**rules):
    return gumbel.Recent(2, 16).make_lists(**rules)


NEW = {"dry_multiplier": 1.0}
REFUSED = [
    (lambda: gumbel.Recent(0, 8), ValueError, "num_slots: 0"),
    (lambda: gumbel.Recent(2, 2**30 + 1), ValueError, "capacity: "),
    (lambda: gumbel.Recent(2, 8, history=3), TypeError, "history: expected a gumbel.History"),
    (lambda: gumbel.Recent(2, 8, history=gumbel.History(1, V)), ValueError, "history: has 1 slots"),
    (lambda: gumbel.Recent(2, 8, window=3), ValueError, "window: requires a history"),
    (
        lambda: gumbel.Recent(2, 8, history=gumbel.History(2, V), window=9),
        ValueError,
        "window: 9 is not in",
    ),
    (
        lambda: gumbel.Recent(2, 8, history=gumbel.History(2, V), window=[1, -1]),
        ValueError,
        r"window\[1\]: -1",
    ),
    (lambda: gumbel.Recent(2, 8).start([[1], [2], [3]]), ValueError, "prompts: expected 2 lists"),
    (lambda: gumbel.Recent(2, 8).start(outputs=[[1], [-2]]), ValueError, r"outputs\[1\]: -2"),
    (lambda: gumbel.Recent(2, 8).start(slots=[0, 0]), ValueError, "slots: slot 0 is repeated"),
    (lambda: gumbel.Recent(2, 8).append([1, 2, 3]), ValueError, "tokens: expected the shape"),
    (lambda: gumbel.Recent(2, 8).append([1.0, 2.0]), TypeError, "tokens: expected token ids"),
    (
        lambda: gumbel.Recent(2, 8).append([[1], [2]], counts=[2, 1]),
        ValueError,
        r"counts: counts\[0\] is 2",
    ),
    (lambda: gumbel.Recent(2, 8).append([1], slots=[2]), ValueError, r"slots\[0\]: 2"),
    (lambda: make(), ValueError, "dry_multiplier: no rule is on"),
    (lambda: make(dry_multiplier=-1.0), ValueError, r"dry_multiplier"),
    (lambda: make(dry_multiplier=[1.0, np.inf]), ValueError, r"dry_multiplier\[1\]"),
    (lambda: make(dry_multiplier=[1.0]), ValueError, "dry_multiplier: expected one value or"),
    (lambda: make(dry_multiplier="1"), TypeError, "dry_multiplier: expected a number"),
    (lambda: make(dry_base=np.nan, **NEW), ValueError, "dry_base"),
    (lambda: make(dry_base=2.0), ValueError, "dry_base: requires dry_multiplier"),
    (lambda: make(dry_allowed_length=-1, **NEW), ValueError, "dry_allowed_length: -1 is not in"),
    (lambda: make(dry_last_n=-2, **NEW), ValueError, "dry_last_n: -2 is not in"),
    (lambda: make(ngram_size=[1, -1]), ValueError, r"ngram_size\[1\]: -1"),
    (lambda: make(ngram_window=4), ValueError, "ngram_window: requires ngram_size"),
    (lambda: make(ngram_size=1, ngram_window=2**31), ValueError, "ngram_window: 2147483648"),
    (lambda: make(ngram_size=1, ngram_keep=[[1]]), ValueError, "ngram_keep: expected 2 lists"),
    (lambda: make(bad_words=5), TypeError, "bad_words: expected a list of sequences"),
    (lambda: make(bad_words=[5]), TypeError, r"bad_words\[0\]: expected token ids, got int"),
    (lambda: make(bad_words=[[1], []]), ValueError, r"bad_words\[1\]: the sequence is empty"),
    (lambda: make(bad_words=[[[1], []], []]), ValueError, r"bad_words\[0\]\[1\]: the sequence is"),
    (lambda: make(bad_words=[[[1]]]), ValueError, "bad_words: expected 2 lists of sequences"),
    (lambda: make(bad_words=[[1, -3]]), ValueError, r"bad_words\[0\]: -3 is not a token id"),
    (lambda: make(bad_words=["ab"]), TypeError, r"bad_words\[0\]: expected token ids, got str"),
    (lambda: make(dry_breakers=[[0.5]], **NEW), TypeError, r"dry_breakers\[0\]: expected token"),
    (lambda: make(dry_breakers=[[1]]), ValueError, "dry_breakers: requires dry_multiplier"),
    (lambda: make(min_position=3), ValueError, "min_position: requires stop_tokens"),
    (lambda: make(stop_tokens=[3]), ValueError, "stop_tokens: requires min_position"),
    (lambda: make(capacity=0, **NEW), ValueError, "capacity: 0 is not in"),
    (lambda: make(capacity=2049, **NEW), ValueError, "capacity: 2049 is not in"),
    (lambda: make(slots=[0, 2], **NEW), ValueError, r"slots: slots\[1\] is 2"),
    (lambda: gumbel.sample_logits(LOGITS, lists=[1]), TypeError, "lists: expected gumbel.RowLists"),
    (lambda: gumbel.sample_logits(LOGITS, lists=make(**NEW)), ValueError, "lists: has 2 rows"),
    (
        lambda: gumbel.sample_logits(LOGITS[:2], lists=make(ngram_size=1), banned=[1]),
        ValueError,
        "banned: lists has one already",
    ),
    (
        lambda: gumbel.sample_logits(LOGITS[:2], lists=make(**NEW), late_bias={1: 2.0}),
        ValueError,
        "late_bias: lists has one already",
    ),
    (
        lambda: gumbel.sample_logits(LOGITS[:2], lists=make(**NEW), list_status=[0, 0]),
        ValueError,
        "list_status: is part of lists",
    ),
    (lambda: gumbel.sample_logits(LOGITS, list_status=[0]), ValueError, "list_status: expected"),
    (lambda: gumbel.sample_logits(LOGITS, late_bias=[1]), TypeError, "late_bias: expected"),
    (lambda: gumbel.sample_logits(LOGITS, late_bias={V: 1.0}), ValueError, f"late_bias: {V} is"),
    (lambda: gumbel.sample_logits(LOGITS, late_bias={1: np.inf}), ValueError, "late_bias"),
    (lambda: gumbel.sample_logits(LOGITS, dry_multiplier=1), TypeError, ".*did you mean 'lists'"),
]


@pytest.mark.parametrize("call, kind, message", REFUSED, ids=[each[2] for each in REFUSED])
def test_errors_name_the_argument(call, kind, message):
    with pytest.raises(kind, match=f"^(?:{message})"):
        call()


def test_values_that_change_in_place_are_checked():
    base = np.array([1.5, 2.0], np.float32)
    lists = make(dry_multiplier=1.0, dry_base=base)
    base[1] = np.nan
    with pytest.raises(ValueError, match=r"^dry_base\[1\]"):
        lists.update()


def test_rings_in_arrays_of_the_caller():
    """An engine's texts are rings whose counts say how far they are read."""
    texts = RNG.integers(0, 6, (SLOTS, CAPACITY)).astype(np.int32)
    count = np.full(SLOTS, CAPACITY, np.uint64)
    recent = gumbel.Recent.of_arrays(texts, count)
    assert (recent.num_slots, recent.capacity) == (SLOTS, CAPACITY)
    lists = recent.make_lists(dry_multiplier=1.0)
    for length in (CAPACITY, 7, 0):
        count[:] = length
        lists.update()
        own = gumbel.Recent(SLOTS, CAPACITY)
        own.start(list(texts[:, :length]))
        wanted = own.make_lists(dry_multiplier=1.0)
        np.testing.assert_array_equal(lists.late_ids, wanted.late_ids)
        np.testing.assert_array_equal(lists.late_values, wanted.late_values)
    assert (wanted.late_ids == UNUSED).all()
    recent.append(np.full(SLOTS, 5, np.int32))
    assert (texts[:, 0] == 5).all() and (count == 1).all()


def test_read_only_rings_are_not_written():
    texts = np.frombuffer(bytes(4 * SLOTS * CAPACITY), np.int32).reshape(SLOTS, CAPACITY)
    recent = gumbel.Recent.of_arrays(texts, np.zeros(SLOTS, np.uint64))
    recent.make_lists(dry_multiplier=1.0)  # reads the rings
    for call in (lambda: recent.append([1] * SLOTS), lambda: recent.start([[1]] * SLOTS)):
        with pytest.raises(ValueError, match="^recent.tokens: the array is read-only"):
            call()
    count = np.frombuffer(bytes(8 * SLOTS), np.uint64)
    with pytest.raises(ValueError, match="^recent.count: the array is read-only"):
        gumbel.Recent.of_arrays(texts.copy(), count).append([1] * SLOTS)
    assert not texts.any()


def test_rings_cannot_be_replaced():
    recent = gumbel.Recent(SLOTS, CAPACITY)
    for name in ("tokens", "count"):
        with pytest.raises(AttributeError, match=f"^{name}: the array cannot be replaced"):
            setattr(recent, name, getattr(recent, name).copy())


@pytest.mark.parametrize(
    "tokens, count, message",
    [
        (np.zeros((2, 4), np.int64), np.zeros(2, np.uint64), "tokens: expected int32"),
        (np.zeros((2, 0), np.int32), np.zeros(2, np.uint64), "tokens: "),
        (np.zeros((4, 4), np.int32)[:, ::2], np.zeros(4, np.uint64), "tokens: "),
        (np.zeros((2, 4), np.int32), np.zeros(2, np.int32), r"count: expected uint64 or int64"),
        (np.zeros((2, 4), np.int32), np.zeros(3, np.uint64), r"count: expected .* \(2,\)"),
        (np.zeros((2, 4), np.int32), np.zeros(4, np.uint64)[::2], "count: is not contiguous"),
    ],
)
def test_arrays_that_are_no_rings(tokens, count, message):
    with pytest.raises(ValueError, match=message):
        gumbel.Recent.of_arrays(tokens, count)
