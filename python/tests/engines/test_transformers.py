# SPDX-License-Identifier: Apache-2.0
"""generate() of transformers with gumbel's decoding method: greedy texts equal those of
transformers alone, drawn tokens have the model's distribution, one seed and prompt give one
text, and no logits are computed."""

import contextlib
import copy

import numpy as np
import pytest
from golden_texts import TOKENS, assert_one_text
from transformers_fixtures import (  # noqa: F401, fixtures; skips without transformers
    DRAFT,
    DRAWN,
    PROMPTS,
    Streamer,
    gumbel,
    heads,
    model,
    generate_texts,
    tokenizer,
    torch,
    transformers,
    command_texts,
)

from gumbel._transformers import decoding, stops as stops_module  # noqa: E402
from gumbel._transformers import rules as rules_module  # noqa: E402
from gumbel._transformers.rules import read_rules  # noqa: E402
from gumbel._transformers.stops import LateStopCheck, StopCheck  # noqa: E402


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"cache_implementation": "static"},
        {"cache_implementation": "static", "compile_config": "everywhere"},
        {"use_cache": False},
        {"repetition_penalty": 1.3},
        {"min_new_tokens": 12, "eos_token_id": [269, 259]},
        {"min_length": 10, "eos_token_id": [269], "suppress_tokens": [1037, 3684]},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 1, "repetition_penalty": 1.2},
        {"bad_words_ids": [[269], [259, 1037], [12, 268]]},
        {"no_repeat_ngram_size": 3, "bad_words_ids": [[12]], "min_new_tokens": 9},
    ],
    ids=str,
)
def test_greedy_texts_are_stock_texts_without_logits(model, tokenizer, more):
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        wanted = generate_texts(model, inputs, ours=False, do_sample=False, **more)
        assert model.head_calls > 0
        found = generate_texts(model, inputs, do_sample=False, **more)
        assert torch.equal(found, wanted) and model.head_calls == 0


@pytest.mark.parametrize(
    "more",
    [
        {"sequence_bias": {(269,): 2.0}},
        {"no_repeat_ngram_size": 2, "bad_words_ids": [[7, i] for i in range(2100)]},
        {"no_repeat_ngram_size": 2, "prompt_lookup_num_tokens": 2},
    ],
    ids=str,
)
def test_unsupported_options_run_transformers_processors(model, tokenizer, more):
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    wanted = generate_texts(model, inputs, ours=False, do_sample=False, **more)
    assert torch.equal(generate_texts(model, inputs, do_sample=False, **more), wanted)
    assert model.head_calls > 0


def test_lists_ignore_padding_and_other_texts(model, tokenizer):
    more = {**DRAWN, "no_repeat_ngram_size": 1, "bad_words_ids": [[12], [269, 259]]}
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    together = generate_texts(model, batch, seed=[3, 4, 5, 6], **more)
    assert model.head_calls == 0
    for row, (prompt, seed) in enumerate(zip(PROMPTS, [3, 4, 5, 6])):
        inputs = tokenizer(prompt, return_tensors="pt")
        alone = generate_texts(model, inputs, seed=seed, **more)
        assert torch.equal(together[row, -16:], alone[0, -16:]), prompt
        text, prompt_ids = alone[0, -16:].tolist(), inputs.input_ids[0].tolist()
        assert len(set(text)) == 16 and not {12, *prompt_ids}.intersection(text)


def test_a_text_depends_on_seed_and_prompt_alone(model, tokenizer):
    seeds = [3, 4, 2**64 - 1, 0]
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    together = generate_texts(model, batch, seed=seeds, **DRAWN)
    assert model.head_calls == 0
    for row, (prompt, seed) in enumerate(zip(PROMPTS, seeds)):
        alone = generate_texts(model, tokenizer(prompt, return_tensors="pt"), seed=seed, **DRAWN)
        assert torch.equal(together[row, -16:], alone[0, -16:]), prompt
    first = tokenizer(PROMPTS[0], return_tensors="pt")
    other = generate_texts(model, first, seed=5, **DRAWN)
    assert not torch.equal(other, generate_texts(model, first, seed=3, **DRAWN))


@pytest.mark.parametrize("sequences", [1, 3])
def test_the_command_writes_the_same_texts(model, tokenizer, sequences):
    for prompt, seed in zip(PROMPTS, (3, 4, 5, 6)):
        ids, theirs = command_texts(tokenizer, prompt, seed, sequences)
        inputs = torch.tensor([ids])
        ours = generate_texts(
            model,
            {"input_ids": inputs, "attention_mask": torch.ones_like(inputs)},
            seed=seed,
            num_return_sequences=sequences,
            eos_token_id=None,
            **DRAWN,
        )
        assert ours[:, len(ids) :].tolist() == theirs, prompt


def test_one_seed_and_prompt_give_one_text(model):
    def write(ids, seed):
        inputs = torch.tensor([ids])
        inputs = {"input_ids": inputs, "attention_mask": torch.ones_like(inputs)}
        ours = generate_texts(model, inputs, tokens=TOKENS, seed=seed, eos_token_id=None, **DRAWN)
        return ours[0, len(ids) :].tolist()

    assert_one_text(write)


def test_sequences_of_a_prompt_are_samples_of_its_seed(model, tokenizer):
    inputs = tokenizer(PROMPTS[:2], return_tensors="pt", padding=True)
    several = generate_texts(model, inputs, seed=[8, 9], num_return_sequences=3, **DRAWN)
    single = generate_texts(model, inputs, seed=[8, 9], **DRAWN)
    assert torch.equal(several[[0, 3]], single)
    assert len({tuple(row) for row in several.tolist()}) == 6
    fewer = generate_texts(model, inputs, seed=[8, 9], num_return_sequences=2, **DRAWN)
    assert torch.equal(fewer, several[[0, 1, 3, 4]])


def test_without_a_seed_torch_decides(model, tokenizer):
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    found = []
    for state in (1, 1, 2):
        torch.manual_seed(state)
        found.append(generate_texts(model, inputs, **DRAWN))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"top_k": 20},
        {"top_p": 0.9},
        {"min_p": 0.1, "top_k": 30},
        {"min_p": 0.05, "top_p": 0.9},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.1},
    ],
    ids=str,
)
def test_first_tokens_have_the_processed_distribution(model, tokenizer, rules):
    """A chi-squared test, which detects a temperature wrong by 10%."""
    rows, batch = 4096, 1024
    inputs = tokenizer([PROMPTS[3]] * batch, return_tensors="pt").to(model.device)
    config = {"do_sample": True, "temperature": 0.8, "top_k": 0, **rules}
    drawn = torch.cat(
        [
            generate_texts(model, inputs, tokens=1, seed=list(range(at, at + batch)), **config)[
                :, -1
            ]
            for at in range(0, rows, batch)
        ]
    )
    single = tokenizer(PROMPTS[3], return_tensors="pt").to(model.device)
    for temperature, right in ((0.8, True), (0.72, False)):
        scores = model.generate(
            **single,
            max_new_tokens=1,
            output_scores=True,
            return_dict_in_generate=True,
            **{**config, "temperature": temperature},
        ).scores[0][0]
        assert (chi_squared(drawn, torch.softmax(scores.double(), -1)) < 6) == right


@pytest.mark.parametrize("top_k", [0, 40])
def test_its_rules_keep_what_its_processors_keep(model, tokenizer, top_k):
    """For float32 logits without a sum near a cutoff. No logits are computed for a text."""
    rules = {"do_sample": True, "temperature": 0.8, "top_k": top_k, "top_p": 0.9, "min_p": 0.1}
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True).to(model.device)
    out = model.generate(
        **inputs,
        max_new_tokens=16,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        **rules,
    )
    rules.pop("do_sample")
    found = gumbel.process_logits(torch.cat(out.logits), order="hf", **rules)
    first = gumbel.process_logits(torch.cat(out.logits), order="vllm", **rules)
    wanted = torch.cat(out.scores).isfinite()
    assert torch.equal(found.isfinite(), wanted)
    assert not torch.equal(first.isfinite(), wanted)  # the set if min_p came first
    generate_texts(model, inputs, do_sample=True, seed=1, **rules)
    assert model.head_calls == 0


CUTOFFS = {"typical_p": 0.8, "epsilon_cutoff": 0.03, "eta_cutoff": 0.05}


@pytest.mark.parametrize("names", [[name] for name in CUTOFFS] + [list(CUTOFFS)], ids=str)
@pytest.mark.parametrize("more", [{}, {"top_k": 30, "top_p": 0.95, "min_p": 0.01}], ids=str)
def test_it_keeps_what_typical_epsilon_and_eta_keep(model, names, more):
    """On random rows, by transformers' own processors in their order."""
    rows = torch.randn(200, 500, generator=torch.Generator().manual_seed(5)) * 4
    rules = {name: CUTOFFS[name] for name in names}
    config = transformers.GenerationConfig(
        do_sample=True, temperature=0.8, **{"top_k": 0, **more, **rules}
    )
    processors = model._get_logits_processor(config, input_ids_seq_length=1, device="cpu")
    parameters = read_rules(processors, torch.device("cpu")).library_arguments(greedy=False)
    found = gumbel.process_logits(rows, **parameters).isfinite()
    wanted = processors(torch.zeros(200, 1, dtype=torch.long), rows.clone()).isfinite()
    assert (found.sum(-1) < 500).any()
    differing = (found != wanted).any(-1).sum()
    assert differing <= 1, "one row may have a sum near a cutoff"


@pytest.mark.parametrize("names", [[name] for name in CUTOFFS] + [list(CUTOFFS)], ids=str)
def test_texts_of_typical_epsilon_and_eta(model, tokenizer, names):
    """Fused if the device supports it; from logits with outputs that require logits."""
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    rules = {**DRAWN, **{name: CUTOFFS[name] for name in names}}
    fused = generate_texts(model, inputs, seed=3, **rules)
    assert (model.head_calls == 0) == rules_module._supports_programs(model.device)
    assert model.head_calls == 0 or model.device.type != "cpu"
    scores = {"output_scores": True, "return_dict_in_generate": True}
    assert torch.equal(generate_texts(model, inputs, seed=3, **scores, **rules).sequences, fused)
    assert model.head_calls > 0
    assert not torch.equal(generate_texts(model, inputs, seed=3, **DRAWN), fused)


def test_cutoffs_that_a_device_does_not_support_are_applied_by_transformers(monkeypatch):
    processors = [transformers.TypicalLogitsWarper(0.9)]
    assert read_rules(processors, torch.device("cpu")).truncation == {"typical_p": 0.9}
    monkeypatch.setattr(rules_module, "_supports_programs", lambda device: False)
    assert read_rules(processors, torch.device("cpu")) is None
    assert read_rules([transformers.TopKLogitsWarper(5)], torch.device("cpu")) is not None
    monkeypatch.undo()
    late = [transformers.TypicalLogitsWarper(0.9), transformers.TopKLogitsWarper(5)]
    assert read_rules(late, torch.device("cpu")) is None


def chi_squared(drawn, probs):
    """Deviation from the expectation in standard deviations, over cells of at least 10."""
    counts = torch.bincount(drawn, minlength=len(probs)).double()
    expected = probs * len(drawn)
    if bool((counts[expected == 0] > 0).any()):
        return float("inf")
    order = expected.argsort(descending=True)
    counts, expected = counts[order].cpu().numpy(), expected[order].cpu().numpy()
    whole = int((expected >= 10).sum())
    cells = np.append(counts[:whole], counts[whole:].sum())
    wanted = np.append(expected[:whole], expected[whole:].sum())
    keep = wanted > 0
    sum_ = (((cells - wanted) ** 2)[keep] / wanted[keep]).sum()
    free = int(keep.sum()) - 1
    return (sum_ - free) / (2 * free) ** 0.5


def test_streamers_and_outputs(model, tokenizer):
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    plain = generate_texts(model, inputs, seed=1, **DRAWN)
    streamer = Streamer()
    assert torch.equal(
        generate_texts(model, inputs, seed=1, token_streamer=streamer, **DRAWN), plain
    )
    assert streamer.tokens == plain[0].tolist() and streamer.ended
    out = generate_texts(model, inputs, seed=1, return_dict_in_generate=True, **DRAWN)
    assert torch.equal(out.sequences, plain) and out.scores is None and model.head_calls == 0
    out = generate_texts(
        model,
        inputs,
        seed=1,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **DRAWN,
    )
    assert torch.equal(out.sequences, plain) and len(out.scores) == len(out.logits) == 16


def test_texts_end(model, tokenizer):
    inputs = tokenizer(PROMPTS[:2], return_tensors="pt", padding=True)
    for more in ({"do_sample": False}, {"seed": 4, **DRAWN}):
        found = generate_texts(model, inputs, eos_token_id=269, pad_token_id=0, tokens=24, **more)
        for row in found[:, inputs["input_ids"].shape[1] :].tolist():
            if 269 in row:
                assert set(row[row.index(269) + 1 :]) <= {0}


@pytest.mark.parametrize("more", [{}, {"eos_token_id": 269}, {"stop": ["the", "And"]}], ids=str)
def test_texts_that_are_stopped_a_step_late_are_the_same(model, tokenizer, more, monkeypatch):
    arguments = {"pad_token_id": 0, "tokens": 24, **more, **DRAWN}
    if "stop" in arguments:
        arguments["stopping_criteria"] = [
            transformers.StopStringCriteria(tokenizer, arguments.pop("stop"))
        ]
    alone = tokenizer(PROMPTS[0], return_tensors="pt")
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    found, forwards = {}, {}
    for late in (False, True):
        kind = lambda ids, criteria, *given: (
            LateStopCheck(given[-1], ids, criteria.max_length) if late else StopCheck(given[-1])
        )
        monkeypatch.setattr(decoding, "make_stop_check", lambda *given, kind=kind: kind(*given))
        streamers, found[late], forwards[late] = [Streamer(), Streamer()], [], []
        for inputs, streamer in zip((alone, batch), streamers):
            before = model.forwards
            found[late].append(
                generate_texts(model, inputs, seed=4, token_streamer=streamer, **arguments)
            )
            forwards[late].append(model.forwards - before)
            streamed = torch.tensor(streamer.tokens[inputs["input_ids"].numel() :])
            drawn = found[late][-1][:, inputs["input_ids"].shape[1] :].cpu()
            assert torch.equal(streamed.view(-1, len(drawn)), drawn.T) and streamer.ended
    for soon, behind in zip(found[False], found[True]):
        assert torch.equal(soon, behind)
    for text, soon, behind, inputs in zip(
        found[True], forwards[False], forwards[True], (alone, batch)
    ):
        ended = text.shape[1] < inputs["input_ids"].shape[1] + 24
        assert behind == soon + ended
    assert bool(more) == (forwards[True][0] != forwards[False][0])


def test_a_cache_that_the_caller_sees_is_never_a_step_ahead():
    class Place:
        device = torch.device("cuda")

        def __len__(self):
            return 1

    def stops(cache, late=True, **config):
        config = transformers.GenerationConfig(**config)
        criteria = transformers.StoppingCriteriaList(
            [transformers.MaxLengthCriteria(9)] if late else []
        )
        return stops_module.make_stop_check(Place(), criteria, config, cache, False, None)

    callers, own = transformers.DynamicCache(), transformers.DynamicCache()
    callers._is_user_defined = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stops_module, "LateStopCheck", lambda *_: "late")
        assert stops(None) == "late" and stops(callers, cache_implementation="static") == "late"
        assert isinstance(stops(callers), StopCheck)
        assert isinstance(stops(own, return_dict_in_generate=True), StopCheck)
        assert isinstance(stops(own, late=False), StopCheck)
        patch.setattr(stops_module, "_MARKS_CACHES", True)
        assert stops(own) == "late"
        patch.setattr(stops_module, "_MARKS_CACHES", False)
        assert isinstance(stops(own), StopCheck)


def test_prompts_of_which_a_cache_or_embeddings_hold_a_part(model, tokenizer):
    inputs = tokenizer(PROMPTS[1], return_tensors="pt")
    given = {"seed": 2, "eos_token_id": None, **DRAWN}
    whole = generate_texts(model, inputs, tokens=24, **given)
    begun = generate_texts(model, inputs, tokens=8, return_dict_in_generate=True, **given)
    ids, cache = begun.sequences, begun.past_key_values
    more = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for by in ({}, {"prompt_lookup_num_tokens": 4}):
        held = copy.deepcopy(cache)
        assert torch.equal(generate_texts(model, more, past_key_values=held, **by, **given), whole)
    embeds = model.get_input_embeddings()(inputs["input_ids"].to(model.device)).detach()
    arguments = {"inputs_embeds": embeds, "attention_mask": inputs["attention_mask"]}
    assert torch.equal(generate_texts(model, arguments, **given), whole[:, -24:-8])
    with pytest.raises(ValueError, match="input_ids: drafts require"):
        generate_texts(model, arguments, prompt_lookup_num_tokens=4, **given)


def test_invalid_arguments_raise(model, tokenizer):
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    for more, text in (
        ({"seed": -1}, "seed: "),
        ({"seed": [1, 2]}, "seed: expected one, or 1"),
        ({"num_beams": 2}, "num_beams: 2"),
        ({"return_dict_in_generate": True, "output_attentions": True}, "output_attentions: "),
    ):
        with pytest.raises(ValueError, match=text):
            generate_texts(model, inputs, **{**DRAWN, **more})
    with pytest.raises(TypeError, match="custom_generate="):
        gumbel.transformers.generate(model, inputs["input_ids"])


UNLIKELY = 3999  # of the bundled vocabulary


@contextlib.contextmanager
def spoilt(weight):
    """The weights of a token that cannot win are NaN, as a full pass sees and a screen does not.

    The weights are written through `.data`, in a row that the check for changed weights does not
    sample.
    """
    kept = weight.detach()[UNLIKELY].clone()
    weight.data[UNLIKELY] = float("nan")
    try:
        yield
    finally:
        weight.data[UNLIKELY] = kept


def test_a_full_pass_finds_spoilt_weights(model):
    if model.device.type != "cpu":
        pytest.skip("tried on a CPU")
    torch.manual_seed(1)
    hidden = torch.randn(3, model.config.hidden_size)
    weight, screen = model.lm_head.weight.detach(), heads.get_head(model).weights(True)
    with spoilt(weight):
        assert not gumbel.sample(hidden, screen, seed=1, logprobs=None).status.any()
        assert gumbel.sample(hidden, weight, seed=1, logprobs=None).status.all()


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
    if model.device.type != "cpu":
        pytest.skip("tried on a CPU")
    for prompt, seed in zip(PROMPTS, (3, 4, 5, 2**64 - 1)):
        given = {"seed": seed, **more}
        inputs = tokenizer(prompt, return_tensors="pt")
        wanted = generate_texts(model, inputs, **given)
        assert torch.equal(generate_texts(model, inputs, screen=True, **given), wanted)
        with spoilt(model.lm_head.weight):
            assert torch.equal(generate_texts(model, inputs, screen=True, **given), wanted)
    assert len(heads.get_head(model)._screens) == 1  # made once


def test_drafts_are_verified_by_screens(model, tokenizer):
    if model.device.type != "cpu":
        pytest.skip("tried on a CPU")
    draft = transformers.AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval()
    inputs = tokenizer(PROMPTS[1], return_tensors="pt")
    for how in ({"draft_model": draft}, {"prompt_lookup_num_tokens": 4}):
        given = {"seed": 7, "tokens": 40, **DRAWN}
        wanted = generate_texts(model, inputs, **given)
        assert torch.equal(generate_texts(model, inputs, screen=True, **how, **given), wanted)
        with spoilt(model.lm_head.weight):
            assert torch.equal(generate_texts(model, inputs, screen=True, **how, **given), wanted)


def test_a_batch_by_a_screen(model, tokenizer):
    if model.device.type != "cpu":
        pytest.skip("tried on a CPU")
    pytest.importorskip("psutil")
    from test_transformers_batches import make_batching, make_config

    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]

    def drawn(**how):
        out = gumbel.transformers.generate_batch(
            model, prompts, make_config(**DRAWN), make_batching(), seed=[3, 4, 5, 6], **how
        )
        assert all(one.error is None for one in out.values())
        return [one.generated_tokens for one in out.values()]

    wanted = drawn()
    assert drawn(screen=True) == wanted
    with spoilt(model.lm_head.weight):
        assert drawn(screen=True) == wanted
