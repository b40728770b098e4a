# SPDX-License-Identifier: Apache-2.0
"""The decoding method for generate(custom_generate=...): one token a step, or with drafts."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

import torch
from transformers import StaticCache
from transformers.generation import GenerateDecoderOnlyOutput

from .assisted import decode_assisted
from .drafters import ModelDrafter, NgramDrafter
from .draws import Draw, make_draw
from .heads import Head
from .mode_arguments import takes_mode_arguments
from .stops import make_stop_check
from .texts import Texts

# Settings of a GenerationConfig for kinds of drafts that are not supported.
OTHER_DRAFTS = ("assistant_early_exit", "use_mtp", "speculation_type", "assistant_ensemble_weight")


@takes_mode_arguments
@torch.no_grad()
def generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    synced_gpus: bool = False,
    streamer: Any = None,
    *,
    seed: Union[None, int, Sequence[int]] = None,
    token_streamer: Any = None,
    draft_model: Any = None,
    screen: bool = False,
    tokenizer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decoding method for model.generate(custom_generate=...), which passes the other arguments.

    seed         an int, or one for each prompt, in [0, 2**64); None: drawn by torch's generator.
                 Sequence s of a prompt is sample s of its seed.
    token_streamer, draft_model
                 other names of generate()'s `streamer` and `assistant_model`. The draft model
                 drafts generation_config.num_assistant_tokens tokens at once, by default 4.
    screen       draw by a screen of the head (gumbel.Screen), built at the first text of a model
                 and kept: the same texts, with half of the head's bytes read at each step or
                 fewer, for half as much additional memory. A step uses it only if it is faster
                 (gumbel/screen.h). A screen is built again after the head has changed; forget()
                 documents which changes are detected. Unstable: may change in a minor release; see
                 docs/compatibility.md.
    tokenizer    the tokenizer for stop_strings.

    Each call reads the head, its parameters and hooks again, so a head may be replaced, resized,
    cast, adapted or hooked between calls, but not during a call. If the head computes more than a
    product, bias, scale and soft-cap, it is called and tokens are drawn from its logits; the logger
    `gumbel.transformers` reports the reason once.

    Drafts, from a draft_model or generate(prompt_lookup_num_tokens=), are supported for one text at
    a time, and do not change the text: they are accepted while they equal the drawn tokens.

    On a GPU the next step is queued before the host knows whether all texts have ended, except if
    generate() returns the cache or received one. Stopping criteria and streamers then run one step
    late.

    Returns the result of generate(): token ids [B, L], or a GenerateDecoderOnlyOutput. Raises
    ValueError for unsupported settings: encoders, beams, attentions and hidden states as outputs;
    with drafts also several texts and static caches.
    """
    config = generation_config
    _check_settings(model, config)
    lookup = config.prompt_lookup_num_tokens is not None
    by_drafts = draft_model is not None or lookup
    if by_drafts:
        _check_drafts(input_ids, draft_model, model_kwargs)
    if token_streamer is not None:
        streamer = token_streamer
        streamer.put(input_ids.cpu())
    copies = (config.num_return_sequences or 1) if config.do_sample else 1
    texts = Texts(input_ids, model_kwargs.get("attention_mask"), seed, copies)
    kept = _make_lists(config)
    greedy = not config.do_sample
    longest = None if by_drafts else config.max_length
    head, draw = make_draw(model, logits_processor, greedy, texts, input_ids, kept, screen, longest)
    given = (model, input_ids, head, draw, stopping_criteria, config, synced_gpus, streamer)
    if not by_drafts:
        ids, cache = _decode_texts(*given, model_kwargs)
    else:
        if draft_model is None:
            drafter: Any = NgramDrafter(config)
        else:
            drafter = ModelDrafter(
                draft_model, input_ids, texts, logits_processor, greedy, model_kwargs, screen
            )
        ids, cache = decode_assisted(*given, drafter, model_kwargs)
    if streamer is not None:
        streamer.end()
    if not config.return_dict_in_generate:
        return ids
    for each in (kept or {}).values():
        del each[ids.shape[1] - input_ids.shape[1] :]  # of drafts after the last token
    return GenerateDecoderOnlyOutput(
        sequences=ids,
        scores=tuple(kept["scores"]) if kept and config.output_scores else None,
        logits=tuple(kept["logits"]) if kept and config.output_logits else None,
        past_key_values=cache,
    )


def _decode_texts(
    model: Any,
    ids: torch.Tensor,
    head: Optional[Head],
    draw: Draw,
    criteria: Any,
    config: Any,
    synced_gpus: bool,
    streamer: Any,
    kwargs: dict[str, Any],
) -> tuple[torch.Tensor, Any]:
    """Extend texts [B, L] step by step; returns the complete texts and the cache."""
    unfinished = torch.ones(len(ids), dtype=torch.long, device=ids.device)
    ends = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
    cache = kwargs.get("past_key_values")
    stops = make_stop_check(ids, criteria, config, cache, synced_gpus, streamer)
    done, first = False, True
    while model._has_unfinished_sequences(done, synced_gpus, device=ids.device):
        step = _count_uncached(ids, kwargs) if first else 1 if kwargs["use_cache"] else None
        inputs = model.prepare_inputs_for_generation(
            ids, next_sequence_length=step, is_first_iteration=first, **kwargs
        )
        run = model if head is None else head.decoder
        if head is not None:
            inputs.pop("logits_to_keep", None)
        if not first and model._valid_auto_compile_criteria(kwargs, config):
            run = (head or model).get_compiled_call(config.compile_config)
        out = run(**inputs, return_dict=True)
        first = False
        kwargs = model._update_model_kwargs_for_generation(out, kwargs)
        if synced_gpus and done:
            continue
        tokens = draw(draw.select_rows(out), ids)
        draw.texts.position += 1
        if ends:
            pad = config._pad_token_tensor.to(ids.device)
            tokens = tokens * unfinished + pad * (1 - unfinished)
        ids = torch.cat(
            [ids, tokens[:, None].clamp(min=0)], -1
        )  # `stops` raises for -1, maybe late
        unfinished = unfinished & ~criteria(ids, None)
        done = stops(unfinished, tokens, ids.shape[1])
    return ids[:, : ids.shape[1] - stops.finish()], kwargs.get("past_key_values")


def _count_uncached(ids: torch.Tensor, kwargs: dict[str, Any]) -> Optional[int]:
    """The number of prompt tokens that the caller's cache does not hold; None: all."""
    cache, mask = kwargs.get("past_key_values"), kwargs.get("attention_mask")
    if cache is None or mask is None or mask.shape != ids.shape:
        return None
    return int(ids.shape[1] - cache.get_seq_length())


def _make_lists(config: Any) -> Optional[dict[str, list[Any]]]:
    """Lists that collect scores and logits; None if generate() does not return them."""
    if config.return_dict_in_generate and (config.output_scores or config.output_logits):
        return {"scores": [], "logits": []}
    return None


def _check_settings(model: Any, config: Any) -> None:
    if config is None:
        raise TypeError(
            "generate() is not called directly: pass it to "
            "model.generate(..., custom_generate=gumbel.transformers.generate)"
        )
    if model.config.is_encoder_decoder:
        raise ValueError("model: models with an encoder are not supported")
    if (config.num_beams or 1) != 1:
        raise ValueError(
            f"num_beams: {config.num_beams}; beam search is not supported: set num_beams=1, or "
            "leave out custom_generate"
        )
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            raise ValueError(f"{name}: not supported; use the default decoding method")
    for name in OTHER_DRAFTS:
        if getattr(config, name, None):
            raise ValueError(f"{name}: not supported; use draft_model or prompt_lookup_num_tokens")


def _check_drafts(ids: torch.Tensor, draft_model: Any, kwargs: dict[str, Any]) -> None:
    if len(ids) != 1:
        raise ValueError(
            f"draft_model, prompt_lookup_num_tokens: one text at a time, not {len(ids)}"
        )
    if draft_model is not None and draft_model.config.is_encoder_decoder:
        raise ValueError("draft_model: models with an encoder are not supported")
    mask = kwargs.get("attention_mask")
    if mask is not None and mask.shape != ids.shape:
        raise ValueError("input_ids: drafts require all ids of the prompt")
    cache = kwargs.get("past_key_values")
    if not kwargs["use_cache"] or cache is None:
        raise ValueError("use_cache: drafts require a cache")
    if isinstance(cache, StaticCache):
        raise ValueError("cache_implementation: a static cache cannot drop rejected drafts")
