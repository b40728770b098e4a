# SPDX-License-Identifier: Apache-2.0
"""The keyword parameters that all calls share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, TypedDict, Union

from numpy.typing import NDArray

from .history import History
from .row_lists import RowLists

RowFloats = Union[float, Sequence[float], NDArray[Any], Any]
RowIntegers = Union[int, Sequence[int], NDArray[Any], Any]
Tokens = Union[Iterable[int], Sequence[Iterable[int]], NDArray[Any], Any]
Orders = Union[str, Sequence[str], Sequence[Union[str, Sequence[str]]]]
TokenSequences = Union[
    Sequence[Union[Sequence[int], NDArray[Any]]],
    Sequence[Sequence[Union[Sequence[int], NDArray[Any]]]],
]
Bias = Union[Mapping[int, float], Sequence[Mapping[int, float]]]


class Common(TypedDict, total=False):
    """Parameters of every call. "one or [B]" is one value for all rows, or one for each row.

    temperature  >= 0, one or [B]; 0 is greedy. Rounded to float32. Default 1.
    top_k        one or [B]: keep the k likeliest tokens; 0: off.
    top_p        in (0, 1], one or [B]: keep the smallest set of likeliest tokens whose probability
                 is at least top_p; 1: off.
    min_p        in [0, 1], one or [B]: keep tokens whose probability is at least min_p times that
                 of the likeliest token; 0: off.
    order        the sequence of the rules, each on the renormalised kept set of the one before.
                 A string such as "top_k,typical_p,min_p,temperature", or a list of rules, of:
                 temperature, min_p, top_k, top_p, typical_p, top_n_sigma, epsilon, eta, top_a,
                 p_less, surprise, xtc, smoothing, adaptive_p. The temperature is first if it is not
                 listed.
                 An engine's name selects its order: "vllm", "hf" or "transformers", "llama.cpp",
                 "exllamav3", "text-generation-webui"; and "sglang" and "mlx", whose orders are
                 joint. "joint": top_k, top_p and min_p each on the whole distribution;
                 "joint,temperature": also at temperature 1. "before_temperature" is
                 "min_p,top_k,top_p,temperature". The default is "min_p,top_k,top_p", as "vllm".
                 A parameter whose rule is not in the order is an error.
    program      int, one or [B], with a list of orders as `order`: the index of each row's order.
    typical_p    in (0, 1], one or [B]: keep tokens whose -ln p is closest to the entropy, up to
                 this probability; 1: off.
    top_n_sigma  >= 0, one or [B]: keep tokens whose logit is at most top_n_sigma standard
                 deviations below the largest one; 0: off.
    epsilon, eta in [0, 1), one or [B]: keep tokens of at least this probability; with `eta` of at
                 least min(eta, sqrt(eta) * exp(-entropy)); 0: off.
    top_a        in [0, 1], one or [B]: keep tokens whose probability is at least top_a times the
                 square of that of the likeliest token; 0: off.
    p_less       True: keep tokens whose probability is at least the sum of squared probabilities,
                 where the order lists p_less.
    surprise     in bits, >= 0, one or [B]: keep tokens with -log2 p <= surprise; inf: off.
    xtc_probability, xtc_threshold
                 one or [B]: with probability xtc_probability, in [0, 1], remove the tokens with a
                 probability of at least xtc_threshold, in (0, 1], except the least likely of them;
                 0: off. Default threshold 0.1. Log-probabilities are those of the average over
                 this choice.
    xtc_keep     token ids, as lists like `banned`: a row in which one of them would be removed
                 skips xtc.
    smoothing_factor, smoothing_curve
                 >= 0, and in [1, 3], one or [B]: the rule smoothing lowers logits by the square and
                 the cube of their distance to the largest one; factor 0: off. Default curve 1.
    adaptive_target
                 in [-1, 1], one or [B]: the rule adaptive_p prefers tokens whose probability is
                 near this value, which RuleUpdates adapts; below 0: off. The rule is last, and no
                 order has it and xtc. Log-probabilities are those after the rule.
    temperature_range, temperature_exponent
                 >= 0, one or [B]: the temperature is between temperature - range and
                 temperature + range, by the entropy, divided by its largest value, to the power of
                 the exponent; range 0: off. Default exponent 1.
    min_keep     >= 1, one or [B]: no rule but top_k keeps fewer tokens. Default 1.
    ties         tokens as likely as the last kept token: "all" keeps them all; "exact" keeps only
                 as many as needed, lower ids first.
    mask         int32 [B, ceil(V / 32)], or one row for all: bit t & 31 of word t >> 5 allows t.
    allowed      the only token ids that may be drawn, as lists like `banned`. An empty list allows
                 all tokens.
    max_allowed  the largest number of tokens that `mask` and `allowed` allow to a row, for calls
                 from hidden states on CUDA, which then read only the weights of allowed tokens if
                 these are few. The value changes the time of a call and no output: a row that
                 allows more tokens takes longer. 0, the default: unknown, unless `allowed` has
                 lists in host memory. Unstable.
    banned       token ids that are never drawn: one list for all rows, or one list for each row. An
                 id outside the vocabulary is an error, also in `allowed`, `logit_bias` and
                 `late_bias`.
    logit_bias   {id: value} to add to the logits, one for all rows or one for each; -inf bans.
    late_bias    {id: value} as `logit_bias`, added after the penalties.
    lists        RowLists of a gumbel.Recent, in place of `list_status`, and of `banned` and
                 `late_bias` as far as its rules make such lists.
    list_status  int32 [B], with `banned` or `late_bias`: rows with the value 8 are not drawn and
                 have this status.
    prompt_tokens, output_tokens
                 the tokens that penalties count: one list of ids for each row. Ids outside the
                 vocabulary are not counted.
    history      a History, which penalties count instead of these two lists.
    repetition_penalty
                 > 0, one or [B], for tokens of prompt and output: divides positive logits,
                 multiplies other ones; 1: off.
    frequency_penalty, presence_penalty
                 one or [B], for tokens of the output: subtracted from the logit once for each
                 occurrence of the token, and once if it occurs at all; 0: off.
    seed         < 2**64. None, the default: every call draws a fresh seed from the operating
                 system and returns it as `seed` of the output. An array [B] sets each row's own
                 seed. From one seed for the batch each row's seed is derived by its row number
                 (gumbel_row_seed); row 0 uses the seed unchanged. **Equal seed and position give
                 equal tokens. Advance `position` by one at every step**, or use a gumbel.Sampler.
    position     < 2**64, one or [B]: the step in the row's sequence. Default 0.
    first_sample < 2**32, one or [B]: the sample counter of the row's first draw; draw j has
                 first_sample + j (mod 2**32). Rows with equal seed and position and different
                 counters draw independently, as the samples of one row do. Default 0.
    domain       < 2**32, the random stream: 0 for texts, draft_domain() for drafts. Default 0.
    num_samples  independent draws for each row, 1 to 65536. Default 1.
    given        int32 [B, num_samples], or [num_samples] for all rows: tokens to score instead of
                 drawing. Outputs are those of a draw of these tokens, such as log-probabilities and
                 ranks of a prompt, without a [B, V] array; -1 is no token.
    token_ids    int32 [V]: the head of a draft model over a subset of the vocabulary, such as
                 EAGLE-3's: row i of `weight`, or column i of the logits, is token token_ids[i].
                 Noise is that of the tokens, so that a target over the whole vocabulary with equal
                 seed and position accepts the draws (gumbel.verify); outputs hold ids of the table.
                 Parameters that name tokens (mask, allowed, banned, logit_bias, penalties, given,
                 ...) and screens are not supported with it. A CUDA tensor is not checked: a row
                 with an id out of range is never drawn. Unstable.
    slots        int32 [B]: row parameters, mask and history have an entry for each slot, and row b
                 uses entry slots[b]. "[B]" above then means [num_slots], except for lists of
                 tokens.
    num_slots    the number of slots; required with `slots`.
    live_rows    number of rows to draw: an int, or on CUDA an int32 tensor of one element, which is
                 read when the call runs. Later rows get token -1 and status 6. None: all rows.
    logprobs     the distribution of `logprobs`, `lse` and `top_logprobs`: "processed", the
                 distribution of the draw; "raw", the softmax of the unmodified logits. None: do not
                 compute `logprobs` and `lse`, which saves time.
    top_logprobs number of likeliest tokens to return, 0 to 128. Default 0.
    ranks        True: return `ranks`.
    kept         True: return `kept`.
    kept_ids     number of places for the ids of the tokens that truncation keeps in a row: return
                 `kept_ids`, `kept` and, with `logprobs`, `kept_logprobs`. A row that keeps more
                 tokens, as a greedy row does, is not listed; other rows fit if top_k is at most
                 this number and ties="exact". Default 0: off. Unstable.
    num_best     number of best scores of the draw to return, 0 to 16, with num_samples 1: draws
                 without replacement. Default 0.
    entropy      True: return `entropy`, of the distribution that `logprobs` names; "processed" with
                 logprobs=None. Unstable.
    isa          None, "reference", "avx2", "avx512" or "neon"; all give the same bits.
    threads      None: the CPUs that this process may use. All counts give the same bits.
    """

    temperature: RowFloats
    top_k: RowIntegers
    top_p: RowFloats
    min_p: RowFloats
    order: Orders
    program: RowIntegers
    typical_p: RowFloats
    top_n_sigma: RowFloats
    epsilon: RowFloats
    eta: RowFloats
    top_a: RowFloats
    p_less: bool
    surprise: RowFloats
    xtc_probability: RowFloats
    xtc_threshold: RowFloats
    xtc_keep: Optional[Tokens]
    smoothing_factor: RowFloats
    smoothing_curve: RowFloats
    adaptive_target: RowFloats
    temperature_range: RowFloats
    temperature_exponent: RowFloats
    min_keep: RowIntegers
    ties: str
    mask: Optional[Any]
    allowed: Optional[Tokens]
    max_allowed: int
    banned: Optional[Tokens]
    logit_bias: Optional[Bias]
    late_bias: Optional[Bias]
    lists: Optional[RowLists]
    list_status: Optional[Any]
    prompt_tokens: Optional[Tokens]
    output_tokens: Optional[Tokens]
    history: Optional[History]
    repetition_penalty: RowFloats
    frequency_penalty: RowFloats
    presence_penalty: RowFloats
    seed: Optional[RowIntegers]
    position: RowIntegers
    first_sample: RowIntegers
    domain: int
    num_samples: int
    given: Optional[Any]
    token_ids: Optional[Any]
    slots: Optional[Any]
    num_slots: Optional[int]
    live_rows: Optional[Any]
    logprobs: Optional[str]
    top_logprobs: int
    ranks: bool
    kept: bool
    kept_ids: int
    num_best: int
    entropy: bool
    isa: Optional[str]
    threads: Optional[int]
