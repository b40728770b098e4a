# SPDX-License-Identifier: Apache-2.0
"""Assisted generation equals generation step by step, with fewer forward passes."""

import contextlib

import pytest
from transformers_fixtures import (  # noqa: F401, fixtures; skips without transformers
    DRAFT,
    DRAWN,
    PROMPTS,
    TARGET,
    Streamer,
    gumbel,
    model,
    generate_texts,
    tokenizer,
    torch,
    transformers,
    command_texts,
)

PROMPT = PROMPTS[1] + ", and the LORD said unto"
LOOKUP = {"prompt_lookup_num_tokens": 4}
# Tokens that end a text: full stop and comma.
ENDS = {"eos_token_id": [269, 259], "pad_token_id": 0}


def load(path, model):
    loaded = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return loaded.to(model.device).eval()


@pytest.fixture(scope="module")
def draft(model):
    return load(DRAFT, model)


@contextlib.contextmanager
def steps_of(model):
    """Counts the forwards of a model's decoder, as the length of a list."""
    steps = []
    hook = model.model.register_forward_hook(lambda *_: steps.append(1))
    try:
        yield steps
    finally:
        hook.remove()


@pytest.mark.parametrize(
    "more",
    [
        {"do_sample": False},
        DRAWN,
        {"do_sample": True, "top_k": 0, "min_p": 0.05},
        {**DRAWN, "repetition_penalty": 1.3},
        {**DRAWN, **ENDS},
        {**DRAWN, **ENDS, "min_new_tokens": 20, "suppress_tokens": [268]},
    ],
    ids=str,
)
def test_texts_by_drafts_are_texts_without(model, draft, tokenizer, more):
    once, by_draft = 0, 0
    for prompt, seed in ((PROMPTS[0], 3), (PROMPT, 2**64 - 1), (PROMPTS[3], 5)):
        given = {"tokens": 40, "seed": seed, **more}
        inputs = tokenizer(prompt, return_tensors="pt")
        alone = generate_texts(model, inputs, **given)
        once += alone.shape[1] - inputs["input_ids"].shape[1]
        with steps_of(model) as steps:
            assert torch.equal(generate_texts(model, inputs, draft_model=draft, **given), alone)
        by_draft += len(steps)
        assert model.head_calls == 0
        with steps_of(model) as steps:
            assert torch.equal(generate_texts(model, inputs, **LOOKUP, **given), alone)
        assert len(steps) <= alone.shape[1] and model.head_calls == 0
    assert by_draft < 0.75 * once


@pytest.mark.parametrize(
    "more", [{"no_repeat_ngram_size": 3}, {"bad_words_ids": [[268]], "temperature": 0.7}], ids=str
)
def test_processed_logits_are_verified_too(model, draft, tokenizer, more):
    inputs = tokenizer(PROMPT, return_tensors="pt")
    more = {"do_sample": True, "tokens": 32, "seed": 6, "return_dict_in_generate": True, **more}
    more.update(output_scores=True, output_logits=True)
    alone = generate_texts(model, inputs, **more)
    for by in ({"draft_model": draft}, LOOKUP):
        out = generate_texts(model, inputs, **by, **more)
        assert model.head_calls > 0 and torch.equal(out.sequences, alone.sequences)
        for name in ("scores", "logits"):
            found, wanted = torch.cat(out[name]), torch.cat(alone[name])
            assert found.shape == wanted.shape
            assert torch.allclose(found, wanted, atol=1e-3)


def test_greedy_drafts_give_stock_texts(model, draft, tokenizer):
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        wanted = generate_texts(model, inputs, ours=False, do_sample=False)
        assert torch.equal(
            generate_texts(model, inputs, do_sample=False, draft_model=draft), wanted
        )
        stock = generate_texts(model, inputs, ours=False, do_sample=False, assistant_model=draft)
        assert torch.equal(stock, wanted)


def test_the_command_writes_the_same_text_without_drafts(model, draft, tokenizer):
    for prompt, seed in zip(PROMPTS, (3, 4, 5, 6)):
        ids, (theirs,) = command_texts(tokenizer, prompt, seed)
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))}
        for by in ({"draft_model": draft}, LOOKUP):
            ours = generate_texts(model, inputs, seed=seed, eos_token_id=None, **by, **DRAWN)
            assert ours[0, len(ids) :].tolist() == theirs, prompt


def test_a_draft_that_is_the_target_is_always_right(model, tokenizer):
    """A few tokens are excepted, because their hidden states round differently in another batch."""
    inputs, twin = tokenizer(PROMPT, return_tensors="pt"), load(TARGET, model)
    twin.generation_config.num_assistant_tokens = 7
    with steps_of(model) as steps:
        out = generate_texts(
            model, inputs, tokens=48, seed=4, draft_model=twin, eos_token_id=None, **DRAWN
        )
    assert out.shape[1] == inputs["input_ids"].shape[1] + 48
    assert 6 <= len(steps) <= 8


def test_padding_and_stopping_criteria(model, draft, tokenizer):
    padded = tokenizer([PROMPT, PROMPTS[2]], return_tensors="pt", padding=True)
    row = {name: value[1:] for name, value in padded.items()}
    given = {"seed": 7, "tokens": 32, "eos_token_id": None, **DRAWN}
    alone = generate_texts(model, tokenizer(PROMPTS[2], return_tensors="pt"), **given)
    wide = generate_texts(model, row, draft_model=draft, **given)
    assert torch.equal(wide[0, -32:], alone[0, -32:])
    strings = transformers.StopStringCriteria(tokenizer, ["the", "and"])
    kept = {"return_dict_in_generate": True, "output_scores": True}
    for seed in range(4):
        given = {"seed": seed, "tokens": 32, "stopping_criteria": [strings], **DRAWN}
        inputs = tokenizer(PROMPT, return_tensors="pt")
        wanted = generate_texts(model, inputs, **given)
        assert torch.equal(generate_texts(model, inputs, draft_model=draft, **given), wanted)
        out = generate_texts(model, inputs, draft_model=draft, **kept, **given)
        assert len(out.scores) == wanted.shape[1] - inputs["input_ids"].shape[1]


def test_windows_that_slide(model, tokenizer):
    """Models in which every other layer sees 8 tokens: caches are cropped beyond their window."""

    def sliding(path):
        config = transformers.AutoConfig.from_pretrained(path)
        config.use_sliding_window, config.sliding_window = True, 8
        config.layer_types = ["sliding_attention", "full_attention"] * config.num_hidden_layers
        config.layer_types = config.layer_types[: config.num_hidden_layers]
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=torch.float32
        )
        return loaded.to(model.device).eval()

    target, smaller = sliding(TARGET), sliding(DRAFT)
    for prompt in (PROMPTS[0], PROMPT):
        inputs = tokenizer(prompt, return_tensors="pt")
        given = {"seed": 3, "tokens": 32, "eos_token_id": None, **DRAWN}
        alone = generate_texts(target, inputs, **given)
        for by in ({"draft_model": smaller}, LOOKUP):
            assert torch.equal(generate_texts(target, inputs, **by, **given), alone)


def test_streams_and_caches(model, draft, tokenizer):
    inputs, streamer = tokenizer(PROMPT, return_tensors="pt"), Streamer()
    given = {"seed": 1, "draft_model": draft, **DRAWN}
    plain = generate_texts(model, inputs, **given)
    out = generate_texts(
        model, inputs, token_streamer=streamer, return_dict_in_generate=True, **given
    )
    assert torch.equal(out.sequences, plain)
    assert streamer.tokens == plain[0].tolist() and streamer.ended
    assert out.past_key_values.get_seq_length() == plain.shape[1] - 1


def test_a_draft_whose_head_is_more_than_a_product(model, draft, tokenizer):
    inputs = tokenizer(PROMPT, return_tensors="pt")
    wanted = generate_texts(model, inputs, seed=2, **DRAWN)
    hook = draft.lm_head.register_forward_hook(lambda *given: given[2].flip(-1))
    try:
        found = generate_texts(model, inputs, seed=2, draft_model=draft, **DRAWN)
        assert torch.equal(found, wanted) and model.head_calls == 0
    finally:
        hook.remove()


def test_invalid_arguments_raise(model, draft, tokenizer):
    one = tokenizer(PROMPTS[0], return_tensors="pt")
    two = tokenizer(PROMPTS[:2], return_tensors="pt", padding=True)
    by = {"draft_model": draft, **DRAWN}
    for inputs, more, text in (
        (two, by, "one text at a time, not 2"),
        (one, {**by, "num_return_sequences": 2}, "one text at a time, not 2"),
        (one, {**by, "cache_implementation": "static"}, "cache_implementation: "),
        (one, {**by, "use_cache": False}, "use_cache: "),
        (one, {**DRAWN, "assistant_early_exit": 2}, "assistant_early_exit: "),
    ):
        with pytest.raises(ValueError, match=text):
            generate_texts(model, inputs, **more)
