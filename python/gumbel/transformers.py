# SPDX-License-Identifier: Apache-2.0
"""Texts by Hugging Face transformers, drawn by libgumbel: a decoding method for generate().

>>> import gumbel.transformers
>>> model.generate(**inputs, do_sample=True, temperature=0.8, top_k=50, seed=7,
...                custom_generate=gumbel.transformers.generate)

The LM head and the draw are one pass, and no logits are formed: so it is for greedy texts, the
temperature, top_k, top_p, min_p, a repetition penalty, suppressed tokens and a least length. What
else a GenerationConfig or a list of logits processors asks for is done by transformers on logits,
from which the library draws: the texts are those asked for, at the cost of the logits.

One (seed, prompt) gives one text, alone or in a batch, padded or not, up to the rounding of hidden
states: the noise of a token depends on the seed, the token and its place in the text alone. Needs
transformers 5.16 or 5.17, and torch.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence, Union

try:
    import torch
    import transformers
    from transformers.generation import GenerateDecoderOnlyOutput, logits_process
except ImportError as missing:
    raise ImportError(
        "gumbel.transformers needs PyTorch and transformers: "
        "pip install torch 'transformers==5.17.*'"
    ) from missing

from . import _prepared, _sampling
from ._history import History
from ._inputs.numbers import integer

SUPPORTED = ("5.16", "5.17")

if ".".join(transformers.__version__.split(".")[:2]) not in SUPPORTED:
    raise ImportError(
        f"gumbel.transformers knows transformers {' and '.join(SUPPORTED)}, "
        f"not {transformers.__version__}"
    )

TOLERANCE = 0.02  # of the largest logit: what two products of a bfloat16 head may differ by


# ----------------------------------------------------------------------------------- heads ----


@dataclass(frozen=True)
class _Head:
    """How a model's logits come from the last hidden state of its decoder."""

    base: Any  # the decoder, which gives hidden states
    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    scale: float
    softcap: float


_heads: weakref.WeakKeyDictionary[Any, Optional[_Head]] = weakref.WeakKeyDictionary()


def _head_of(model: Any, input_ids: torch.Tensor) -> Optional[_Head]:
    """The head of a model, tried on its first token once; None: its logits are something else."""
    if model not in _heads:
        _heads[model] = _find_head(model, input_ids[:1, :1])
    return _heads[model]


def _find_head(model: Any, ids: torch.Tensor) -> Optional[_Head]:
    linear, base = model.get_output_embeddings(), model.base_model
    if type(linear) is not torch.nn.Linear or base is model or linear.weight.is_meta:
        return None
    config = model.config.get_text_config()
    head = _Head(
        base,
        linear.weight.detach(),
        None if linear.bias is None else linear.bias.detach(),
        getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1),
        getattr(config, "final_logit_softcapping", None) or 0.0,
    )
    found = model(input_ids=ids, use_cache=False).logits[0, -1].float()
    hidden = base(input_ids=ids, use_cache=False).last_hidden_state[0, -1]
    logits = torch.nn.functional.linear(hidden, head.weight, head.bias).float() * head.scale
    if head.softcap:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    alike = found.shape == logits.shape and torch.allclose(
        found, logits, rtol=0, atol=TOLERANCE * float(found.abs().max())
    )
    return head if alike else None


# ------------------------------------------------------------------------------ processors ----


@dataclass
class _Rules:
    """What logits processors ask for, in the library's terms."""

    truncation: dict[str, Any] = field(default_factory=dict)
    repetition: float = 1.0
    suppressed: list[int] = field(default_factory=list)
    least: int = 0  # length before which `early` may not be drawn
    early: list[int] = field(default_factory=list)

    def take(self, processor: Any) -> bool:
        """Whether one more processor can be served, which is then among the rules."""
        reader = _READERS.get(type(processor))
        return reader is not None and reader(self, processor)


def _temperature(rules: _Rules, processor: Any) -> bool:
    if rules.truncation:  # behind a cut it would be another distribution
        return False
    rules.truncation["temperature"] = float(processor.temperature)
    return True


def _cut(name: str, *before: str) -> Callable[[_Rules, Any], bool]:
    """A cut that may stand behind the temperature and those of `before`."""

    def read(rules: _Rules, processor: Any) -> bool:
        value = getattr(processor, name)
        kept = getattr(processor, "min_tokens_to_keep", 1)
        if set(rules.truncation) - {"temperature", *before} or kept != 1:
            return False
        rules.truncation[name] = value
        return True

    return read


def _repetition(rules: _Rules, processor: Any) -> bool:
    if rules.truncation or rules.repetition != 1 or processor.prompt_ignore_length:
        return False
    rules.repetition = float(processor.penalty)
    return True


def _suppress(rules: _Rules, processor: Any) -> bool:
    rules.suppressed += processor.suppress_tokens.tolist()
    return not rules.truncation


def _least_length(rules: _Rules, processor: Any) -> bool:
    """A length, of the whole text or behind the prompt, before which a text does not end."""
    if hasattr(processor, "min_new_tokens"):
        least = processor.prompt_length_to_skip + processor.min_new_tokens
    else:
        least = processor.min_length
    early = processor.eos_token_id.tolist()
    if rules.truncation or (rules.early and rules.early != early):
        return False
    rules.least, rules.early = max(rules.least, least), early
    return True


# Processors come in the order that generate() gives them, which is the library's "hf".
_READERS: dict[type, Callable[[_Rules, Any], bool]] = {
    logits_process.TemperatureLogitsWarper: _temperature,
    logits_process.TopKLogitsWarper: _cut("top_k"),
    logits_process.TopPLogitsWarper: _cut("top_p", "top_k"),
    logits_process.MinPLogitsWarper: _cut("min_p", "top_k", "top_p"),
    logits_process.RepetitionPenaltyLogitsProcessor: _repetition,
    logits_process.SuppressTokensLogitsProcessor: _suppress,
    logits_process.MinLengthLogitsProcessor: _least_length,
    logits_process.MinNewTokensLengthLogitsProcessor: _least_length,
}


def _rules_of(processors: Sequence[Any]) -> Optional[_Rules]:
    rules = _Rules()
    return rules if all(rules.take(processor) for processor in processors) else None


# ----------------------------------------------------------------------------------- draws ----


class _Texts:
    """Seeds, samples and places of the rows of a batch."""

    def __init__(self, input_ids: torch.Tensor, mask: Any, seed: Any, copies: int) -> None:
        rows, length = input_ids.shape
        self.mask = mask if mask is not None and mask.shape == input_ids.shape else None
        seeds = torch.tensor(_seeds(seed, rows, copies), dtype=torch.uint64)
        self.seed, self.copies = seeds.to(input_ids.device), copies
        self.sample = torch.arange(rows, device=input_ids.device)[:, None] % copies
        if self.mask is None:
            self.position = torch.full((rows,), length - 1, device=input_ids.device)
        else:
            self.position = self.mask.long().sum(1) - 1

    def pick(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of the samples of each row its own."""
        return tokens.long().gather(1, self.sample)[:, 0]

    def prompts(self, input_ids: torch.Tensor) -> list[list[int]]:
        """The tokens of each row without its padding."""
        rows = input_ids.tolist()
        if self.mask is None:
            return rows
        kept = self.mask.bool().tolist()
        return [[t for t, k in zip(row, keep) if k] for row, keep in zip(rows, kept)]


def _seeds(seed: Union[None, int, Sequence[int]], rows: int, copies: int) -> list[int]:
    """A seed a row: that of its prompt."""
    prompts = rows // copies
    if seed is None:
        given = torch.randint(0, 2**63 - 1, (prompts,)).tolist()
    elif isinstance(seed, (list, tuple)):
        if len(seed) != prompts:
            raise ValueError(f"seed: expected one, or {prompts}, one a prompt, got {len(seed)}")
        given = [integer(f"seed[{i}]", s, 0, 2**64 - 1) for i, s in enumerate(seed)]
    else:
        given = [integer("seed", seed, 0, 2**64 - 1)] * prompts
    return [s for s in given for _ in range(copies)]


class _FusedDraw:
    """Draws from hidden states, step after step."""

    def __init__(self, head: _Head, rules: _Rules, greedy: bool, texts: _Texts, ids: Any) -> None:
        self.head, self.rules, self.texts = head, rules, texts
        self.mask = self._mask(ids) if rules.suppressed or rules.early else None
        self.history: Optional[History] = None
        if rules.repetition != 1:
            self.history = History(len(ids), len(head.weight), like=ids)
            self.history.start(texts.prompts(ids))
        self.parameters = {"temperature": 0.0} if greedy else {"order": "hf", **rules.truncation}
        self.call: Optional[_prepared.PreparedCall] = None

    def _mask(self, ids: torch.Tensor) -> torch.Tensor:
        words = (len(self.head.weight) + 31) // 32
        mask = torch.full((words,), -1, dtype=torch.int32, device=ids.device)
        return _without(mask, [*self.rules.suppressed, *self.rules.early])

    def __call__(self, hidden: torch.Tensor, length: int) -> torch.Tensor:
        hidden, rules = hidden.contiguous(), self.rules
        if rules.early and self.mask is not None and length >= rules.least:
            self.mask.copy_(_without(torch.full_like(self.mask, -1), rules.suppressed))
            rules.early = []
        if self.call is None:
            self.call = self._prepare(hidden)
        drawn = self.texts.pick(self.call(hidden).tokens)
        if self.history is not None:
            self.history.update(drawn)
        return drawn

    def _prepare(self, hidden: torch.Tensor) -> _prepared.PreparedCall:
        penalty = {} if self.history is None else {"repetition_penalty": self.rules.repetition}
        return _prepared.prepare_sample(
            hidden,
            self.head.weight,
            bias=self.head.bias,
            scale=self.head.scale,
            softcap=self.head.softcap,
            seed=self.texts.seed,
            position=self.texts.position,
            mask=self.mask,
            history=self.history,
            num_samples=self.texts.copies,
            logprobs=None,
            **self.parameters,
            **penalty,
        )


def _without(mask: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """A mask without these tokens."""
    words: dict[int, int] = {}
    for token in tokens:
        if 0 <= token < 32 * len(mask):
            words[token >> 5] = words.get(token >> 5, 0) | 1 << (token & 31)
    for word, bits in words.items():
        mask[word] &= ~(bits - (bits >> 31 << 32))
    return mask


# ------------------------------------------------------------------------------------ texts ----


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
    **model_kwargs: Any,
) -> Any:
    """A decoding method for generate(custom_generate=...), which makes all arguments but two.

    seed         an int, or one for each prompt, in [0, 2**64); None: drawn by torch's generator.
                 Sequence s of a prompt is sample s of its seed.
    token_streamer
                 a streamer, which generate() does not hand on as `streamer`.

    Returns what generate() returns: token ids, or a GenerateDecoderOnlyOutput. Raises ValueError
    for what no text can be drawn with: encoders, attentions and hidden states as outputs.
    """
    config = generation_config
    _check(model, config)
    if token_streamer is not None:
        streamer = token_streamer
        streamer.put(input_ids.cpu())
    copies = (config.num_return_sequences or 1) if config.do_sample else 1
    texts = _Texts(input_ids, model_kwargs.get("attention_mask"), seed, copies)
    rules = _rules_of(logits_processor)
    keeps = config.return_dict_in_generate and (config.output_scores or config.output_logits)
    head = None if rules is None or keeps else _head_of(model, input_ids)
    draw = None
    if head is not None and rules is not None:
        draw = _FusedDraw(head, rules, not config.do_sample, texts, input_ids)
    forward = model if head is None else head.base
    kept: dict[str, list[torch.Tensor]] = {"scores": [], "logits": []}

    unfinished = torch.ones(len(input_ids), dtype=torch.long, device=input_ids.device)
    ends = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    done, first = False, True
    while model._has_unfinished_sequences(done, synced_gpus, device=input_ids.device):
        step = None if first or not model_kwargs["use_cache"] else 1
        inputs = model.prepare_inputs_for_generation(
            input_ids, next_sequence_length=step, is_first_iteration=first, **model_kwargs
        )
        if head is not None:
            inputs.pop("logits_to_keep", None)
        compiled = not first and model._valid_auto_compile_criteria(model_kwargs, config)
        run = forward.get_compiled_call(config.compile_config) if compiled else forward
        out = run(**inputs, return_dict=True)
        first = False
        model_kwargs = model._update_model_kwargs_for_generation(out, model_kwargs)
        if synced_gpus and done:
            continue
        if draw is not None:
            tokens = draw(out.last_hidden_state[:, -1], input_ids.shape[1])
        else:
            logits = out.logits[:, -1]
            tokens = _draw_processed(logits, input_ids, logits_processor, texts, config, kept)
        texts.position += 1
        if ends:
            pad = config._pad_token_tensor.to(input_ids.device)
            tokens = tokens * unfinished + pad * (1 - unfinished)
        input_ids = torch.cat([input_ids, tokens[:, None]], -1)
        if streamer is not None:
            streamer.put(tokens.cpu())
        unfinished = unfinished & ~stopping_criteria(input_ids, None)
        done = not bool(unfinished.max())
    if streamer is not None:
        streamer.end()
    if not config.return_dict_in_generate:
        return input_ids
    return GenerateDecoderOnlyOutput(
        sequences=input_ids,
        scores=tuple(kept["scores"]) if config.output_scores else None,
        logits=tuple(kept["logits"]) if config.output_logits else None,
        past_key_values=model_kwargs.get("past_key_values"),
    )


def _draw_processed(
    logits: torch.Tensor,
    input_ids: torch.Tensor,
    processors: Any,
    texts: _Texts,
    config: Any,
    kept: dict[str, list[torch.Tensor]],
) -> torch.Tensor:
    """Draw from what transformers makes of the logits."""
    raw = logits.to(copy=True, dtype=torch.float32, device=input_ids.device)
    scores = processors(input_ids, raw)
    if config.return_dict_in_generate and config.output_scores:
        kept["scores"].append(scores)
    if config.return_dict_in_generate and config.output_logits:
        kept["logits"].append(raw)
    drawn = _sampling.sample_logits(
        scores.contiguous(),
        temperature=1.0 if config.do_sample else 0.0,
        seed=texts.seed,
        position=texts.position,
        num_samples=texts.copies,
        logprobs=None,
    )
    return texts.pick(drawn.tokens)


def _check(model: Any, config: Any) -> None:
    if config is None:
        raise TypeError("generate() of a model calls this, as custom_generate=")
    if model.config.is_encoder_decoder:
        raise ValueError("model: texts of models with an encoder are not drawn")
    if (config.num_beams or 1) != 1:
        raise ValueError(f"num_beams: {config.num_beams}; a draw has one")
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            raise ValueError(f"{name}: not kept; the default decoding method keeps them")
