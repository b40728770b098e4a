# SPDX-License-Identifier: Apache-2.0
"""DRY of vLLM's requests: tokens are those of a slow oracle, on both runners, alone and in a batch;
its keys, and breakers that are strings."""

import functools

import pytest
from vllm_jobs import PROMPTS, RUNNERS, need_vllm, request, run

need_vllm()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gumbel._vllm import dry, request_rules as rules  # noqa: E402
from gumbel._vllm.dry_lists import SlotRings, make_dry_lists  # noqa: E402
from vllm import SamplingParams  # noqa: E402

TOKENS = 40
REPEATS = [PROMPTS[0] * 3, [0, *[300, 20] * 6], PROMPTS[2]]
CASES = [
    {"dry_multiplier": 2.0, "dry_allowed_length": 1},
    {"dry_multiplier": 0.7, "dry_base": 1.3, "dry_allowed_length": 1, "dry_last_n": 12},
    {"dry_multiplier": 3.0, "dry_allowed_length": 1, "dry_breakers": [[20], [9, 100]]},
    {"dry_multiplier": 1.5, "dry_penalty_last_n": 30, "dry_sequence_breakers": [" the", [7]]},
]


def biases_of(text, multiplier, base, allowed, last_n, breakers):
    """{token: bias} of DRY after a text, by its definition in gumbel/recent.h."""
    window = text[max(0, len(text) - last_n) :] if last_n >= 0 else text
    begins = [
        (start, len(each))
        for each in breakers
        for start in range(len(window) - len(each) + 1)
        if window[start : start + len(each)] == each
    ]
    most = len(window) - sum(max(begins)) if begins else len(window)
    longest = {}
    for place in range(1, len(window)):
        length = 0
        while length < min(most, place) and window[place - 1 - length] == window[-1 - length]:
            length += 1
        if length >= allowed and [window[place]] not in breakers:
            longest[window[place]] = max(length, longest.get(window[place], 0))
    return {token: -multiplier * base ** (n - allowed) for token, n in longest.items()}


@functools.cache
def job(runner):
    greedy = [
        request(REPEATS[at % 3], TOKENS, logprobs=100, extra_args={"gumbel": case})
        for at, case in enumerate(CASES)
    ]
    drawn = [
        request(prompt, TOKENS, temperature=0.8, seed=5, top_k=50, extra_args={"gumbel": case})
        for prompt, case in zip([*REPEATS, REPEATS[0]], CASES)
    ]
    drawn.insert(1, request(REPEATS[1], TOKENS, temperature=0.8, seed=5))
    drawn[0][1]["presence_penalty"] = 0.5
    # Texts of other lengths in the batch move requests to other rows.
    mixed = [request(PROMPTS[1], 5), *drawn, request(PROMPTS[0], 9, temperature=1, seed=3)]
    alone = [[each] for each in drawn]
    return run([greedy, *alone, drawn, mixed], runner=runner)


@pytest.mark.parametrize("runner", RUNNERS)
def test_greedy_tokens_are_those_of_the_oracle(runner):
    """Adds biases to vLLM's log-probabilities of the 100 likeliest tokens, of the raw logits."""
    moved = 0
    for at, case in enumerate(CASES):
        given = dry.rename_keys(case)
        found = job(runner).rounds[0]["requests"][at]["texts"][0]
        breakers = given.get("dry_breakers", [])
        if " the" in breakers:
            words = job_tokenizer()
            breakers = [list(each) for each in dry.find_spellings(" the", *words)] + [[7]]
        text = list(REPEATS[at % 3])
        for token, logprobs in zip(found["ids"], found["logprobs"]):
            biases = biases_of(
                text,
                given["dry_multiplier"],
                given.get("dry_base", 1.75),
                given.get("dry_allowed_length", 2),
                given.get("dry_last_n", -1),
                breakers,
            )
            scores = {int(t): p[0] + biases.get(int(t), 0) for t, p in logprobs.items()}
            best = max(scores, key=scores.get)
            assert scores[token] >= scores[best] - 1e-4, (at, len(text), token, best)
            moved += logprobs[str(token)][1] > 1
            text.append(token)
    assert moved > 10  # steps at which DRY changed the token


@functools.cache
def job_tokenizer():
    from transformers import AutoTokenizer
    from vllm_jobs import TARGET

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    words = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    return words, lambda text: tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("runner", RUNNERS)
def test_texts_are_equal_alone_and_in_batches(runner):
    done = job(runner)
    alone = [done.ids(at)[0] for at in range(1, 6)]
    assert done.ids(6) == alone
    assert done.ids(7)[1:6] == alone
    assert done.counts(7)["stock"] == 0


def test_runners_write_one_text():
    first, second = map(job, RUNNERS)
    assert [first.ids(at) for at in range(8)] == [second.ids(at) for at in range(8)]


# --------------------------------------------------------------------------------- keys ----


class Tokenizer:
    """A tokenizer whose tokens are these words."""

    WORDS = ["a", "b", "ab", "xa", "bc", "c", "\n", "\n\n", ".\n", " the"]

    def __len__(self):
        return len(self.WORDS)

    def decode(self, ids):
        return "".join(self.WORDS[token] for token in ids)

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return [self.WORDS.index(letter) for letter in text]


def parse(**given):
    return rules.parse(given, SamplingParams(), Tokenizer())


def test_strings_become_all_their_spellings():
    found = parse(dry_multiplier=1, dry_breakers=["\n", "abc", [4, 2], "\n"])
    assert found["dry_breakers"] == [[6], [7], [8], [0, 1, 5], [2, 5], [3, 1, 5], [4, 2]]
    names = {"dry_penalty_last_n": 5, "dry_sequence_breakers": []}
    assert parse(dry_multiplier=1, **names) == parse(dry_multiplier=1, dry_last_n=5)


def test_dry_that_is_off_has_no_keys():
    off = parse(dry_multiplier=0, dry_base=2.0)
    assert off == parse() and rules.read(SamplingParams(extra_args={"gumbel": off})).dry is None
    found = parse(dry_multiplier=0.5)
    assert found["dry_base"] == 1.75 and found["dry_last_n"] == -1
    admitted = SamplingParams(temperature=0, extra_args={"gumbel": {"dry_multiplier": 0.5}})
    from test_vllm_rules import config

    rules.admit(admitted, config())
    assert admitted.temperature == 1 and admitted.extra_args["gumbel"]["temperature"] == 0


@pytest.mark.parametrize(
    "given, words",
    [
        ({"dry_base": 2}, "dry_base: requires dry_multiplier"),
        ({"dry_breakers": [[1]]}, "dry_breakers: requires dry_multiplier"),
        ({"dry_multiplier": -1}, "dry_multiplier: "),
        ({"dry_multiplier": float("nan")}, "dry_multiplier: "),
        ({"dry_multiplier": "1"}, "dry_multiplier: is '1', expected a number"),
        ({"dry_multiplier": True}, "dry_multiplier: is True, expected a number"),
        ({"dry_multiplier": 0, "dry_base": float("inf")}, "dry_base: "),
        ({"dry_multiplier": 1, "dry_allowed_length": -1}, "dry_allowed_length: "),
        ({"dry_multiplier": 1, "dry_allowed_length": 1.5}, "dry_allowed_length: "),
        ({"dry_multiplier": 1, "dry_last_n": -2}, "dry_last_n: "),
        ({"dry_multiplier": 1, "dry_last_n": 1, "dry_penalty_last_n": 1}, "is another name of"),
        ({"dry_multiplier": 1, "dry_breakers": "\n"}, "dry_breakers: is a str, expected a list"),
        ({"dry_multiplier": 1, "dry_breakers": [[]]}, "dry_breakers[0]: is [], expected a string"),
        ({"dry_multiplier": 1, "dry_breakers": [[1], 2]}, "dry_breakers[1]: is 2, expected"),
        ({"dry_multiplier": 1, "dry_breakers": [[True]]}, "dry_breakers[0]: is [True]"),
        ({"dry_multiplier": 1, "dry_breakers": [[-1]]}, "dry_breakers[0]: -1 is not a token id"),
        ({"dry_multiplier": 1, "dry_breakers": [[2**31]]}, "dry_breakers[0]: 2147483648 is not"),
        ({"dry_multiplier": 1, "dry_breakers": [""]}, "dry_breakers[0]: has 0 characters"),
        ({"dry_multiplier": 1, "dry_breakers": ["x" * 65]}, "has 65 characters, expected 1 to 64"),
        ({"dry_multiplier": 1, "dry_breakers": ["x"] * 65}, "has 65 strings, expected at most 64"),
    ],
)
def test_faulty_keys_are_refused(given, words):
    with pytest.raises(ValueError) as refused:
        parse(**given)
    assert str(refused.value).startswith("extra_args['gumbel']: ") and words in str(refused.value)


def test_strings_require_a_tokenizer():
    with pytest.raises(ValueError, match=r"dry_breakers\[0\]: is a string, but the engine has no"):
        rules.parse({"dry_multiplier": 1, "dry_breakers": ["a"]}, SamplingParams())


# --------------------------------------------------------------------------------- lists ----


@pytest.mark.parametrize("equal", [False, True])
def test_breakers_of_each_row(equal):
    """Rows of a batch in other slots, some without DRY, whose breakers differ or are equal."""
    random = np.random.default_rng(3)
    texts = random.integers(0, 4, (6, 50)).astype(np.int32)
    states = type("States", (), {"all_token_ids": type("Tokens", (), {})()})()
    states.all_token_ids.gpu = torch.from_numpy(texts)
    rings, slots = SlotRings(states), torch.tensor([4, 0, 5, 2], dtype=torch.int32)
    given = {4: [[1], [2, 3]], 5: [[0, 1, 2]], 2: []}
    found = {
        slot: dry.read_dry(parse(dry_multiplier=1, dry_breakers=given[4] if equal else breakers))
        for slot, breakers in given.items()
    }
    positions = torch.tensor([49, 3, 30, 20])
    rings.update(slots.long(), positions)
    lists = make_dry_lists(rings.recent, found, slots.tolist(), slots)
    for offset in (0, -1):
        rings.update(slots.long(), positions + offset)
        lists.update()
        for row, slot in enumerate(slots.tolist()):
            text = texts[slot, : int(positions[row]) + offset + 1].tolist()
            breakers = given[4] if equal else given.get(slot)
            wanted = {} if slot == 0 else biases_of(text, 1, 1.75, 2, -1, breakers)
            ids, values = lists.late_ids[row].tolist(), lists.late_values[row].tolist()
            listed = {t: v for t, v in zip(ids, values) if t < 2**31 - 1}
            assert listed == pytest.approx(wanted), (row, offset)
    assert len(biases_of(texts[4].tolist(), 1, 1.75, 2, -1, [])) > 0
