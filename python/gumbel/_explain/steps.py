# SPDX-License-Identifier: Apache-2.0
"""explain_draw(): the rules, the scores and the winner of each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from .._calls.noise import noise
from .._calls.outputs import RowStatus
from .._calls.sample_calls import sample_logits
from .._inputs.arrays import Array, import_array
from .._inputs.common import takes_common
from .._inputs.fresh_seeds import fresh_seed
from .._inputs.numbers import TEXTS, format_value, get_length, is_list, read_integer, reject_masked
from .._inputs.parameters import Common
from .._inputs.tensors import is_tensor, to_numpy
from .._statuses import describe_status
from .explanation import DrawExplanation
from .prefixes import Floats, RowRules, select_row, store_lists
from .results import DrawStep, RankedToken, RuleEffect, Survivor

if TYPE_CHECKING:
    from typing_extensions import Unpack

EXAMPLES = 3  # removed tokens to name for each rule
RANKED = 48  # likeliest tokens before the rules
PROCESSING = "logits processing"
_EXCLUDED = (
    *("given", "token_ids", "num_samples", "slots", "num_slots", "live_rows", "logprobs"),
    *("top_logprobs", "ranks", "kept", "kept_ids", "num_best", "entropy", "lists", "list_status"),
)


@takes_common(*_EXCLUDED)
def explain_draw(
    logits: Array,
    *,
    vocabulary: Optional[Sequence[Optional[str]]] = None,
    max_tokens: int = 20,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> DrawExplanation:
    """Explain draws from logits [V] or [T, V]: the effect of each rule, and each score.

    logits       [V], or [T, V] with one row for each step of a text: a NumPy array, or a torch
                 tensor on the CPU; dtypes as in sample_logits().
    vocabulary   the texts of the V tokens; None for a token without a text. None: no texts.
    max_tokens   number of survivors to list for each row, at least 2. Default 20.

    Row t is the draw of sample_logits(logits[t:t + 1], ...) with the same parameters. One seed
    serves all rows unchanged, as in the steps of one text, and `position` is t if it is not given.
    The result has one step for each row, and is a table (str()), a dict for JSON (to_dict()) and a
    page (to_html()). A row without a token has a step with its status. Raises the errors of
    sample_logits(). Parameters are otherwise those of sample_logits() for T rows.
    """
    matrix = _read_matrix(logits)
    rows, vocab = (int(size) for size in matrix.shape)
    limit = read_integer("max_tokens", max_tokens, 2, 2**31 - 1)
    texts = _check_vocabulary(vocabulary, vocab)
    sampling: dict[str, Any] = dict(common, scale=scale, softcap=softcap, vocab_size=vocab_size)
    store_lists(sampling)
    if sampling.get("position") is None:
        sampling["position"] = np.arange(rows, dtype=np.uint64)
    seed = fresh_seed() if sampling.get("seed") is None else sampling["seed"]
    single = not is_list(seed) and not getattr(seed, "ndim", 0)
    sampling["seed"] = np.full(rows, _read_seed(seed), np.uint64) if single else seed
    # One call for all rows checks the arguments and draws the tokens.
    out = sample_logits(matrix, logprobs=None, num_best=2, kept=True, **sampling)
    found = {
        name: to_numpy(name, getattr(out, name)) for name in ("best_ids", "kept", "status")
    }  # fmt: skip
    steps = tuple(
        _Row(matrix, row, sampling, texts).explain(
            found["best_ids"][row], int(found["kept"][row]), int(found["status"][row]), limit
        )
        for row in range(rows)
    )
    return DrawExplanation(vocab, steps)


def _read_matrix(logits: Any) -> Any:
    """The logits [T, V]."""
    found = import_array("logits", logits)
    reject_masked("logits", found)
    if is_tensor(found) and found.device.type != "cpu":
        raise ValueError(f"logits: the tensor is on {found.device}; pass logits.cpu()")
    if isinstance(found, np.ndarray):
        found = found.view(np.ndarray)  # rows of a numpy.matrix are matrices
    elif not is_tensor(found):
        raise TypeError(f"logits: expected an array, got {type(logits).__name__}")
    if len(found.shape) not in (1, 2):
        raise ValueError(f"logits: has {len(found.shape)} axes, expected [V] or [T, V]")
    if 0 in found.shape:
        raise ValueError(f"logits: the shape {list(found.shape)} has no element")
    return found[None] if len(found.shape) == 1 else found


def _read_seed(seed: Any) -> int:
    return read_integer("seed", seed, 0, 2**64 - 1)


def _check_vocabulary(vocabulary: Any, vocab: int) -> Optional[Any]:
    """The texts of the tokens, or None."""
    if vocabulary is None:
        return None
    count = get_length(vocabulary)
    if isinstance(vocabulary, (*TEXTS, dict, set, frozenset)) or count is None:
        raise TypeError(
            f"vocabulary: expected a sequence of {vocab} texts in the order of token ids, got "
            f"{type(vocabulary).__name__}"
        )
    if count != vocab:
        raise ValueError(
            f"vocabulary: has {count} tokens, but the logits have {vocab}; pass one text for each "
            "id (None for an id without a text)"
        )
    return vocabulary


def _rank(values: Any, count: int) -> Any:
    """Indices of the `count` largest values that are not -inf, largest first; lower ids first."""
    finite = np.flatnonzero(~np.isneginf(values))
    if len(finite) > count:
        cutoff = np.partition(values[finite], len(finite) - count)[len(finite) - count]
        finite = finite[values[finite] >= cutoff]
    return finite[np.argsort(-values[finite], kind="stable")][:count]


def _softmax(values: Floats) -> Any:
    """Probabilities [V], float64; all 0 if no token can be drawn."""
    wide = values.astype(np.float64)
    largest = wide.max()
    if not np.isfinite(largest):
        return np.zeros(len(wide))
    np.subtract(wide, largest, out=wide)
    np.exp(wide, out=wide)
    return wide / wide.sum()


class _Row:
    """Computes the step of one row."""

    def __init__(self, logits: Any, row: int, sampling: dict[str, Any], texts: Any) -> None:
        self.rules = RowRules(logits, row, sampling)
        self.row, self.sampling, self.texts = row, sampling, texts
        self.seed = int(select_row(sampling["seed"], row)) % 2**64
        self.position = int(select_row(sampling["position"], row)) % 2**64
        self.raw = self._widen(to_numpy("logits", logits[row]))

    @staticmethod
    def _widen(raw: Any) -> Floats:
        """Logits as float32; uint16 holds bfloat16 bits."""
        bits = raw.dtype == np.uint16
        wide: Floats = (raw.astype(np.uint32) << 16).view(np.float32) if bits else raw
        return np.asarray(wide, np.float32)

    def find_text(self, token: int) -> Optional[str]:
        text = None if self.texts is None else self.texts[token]
        if text is not None and not isinstance(text, str):
            kind = f"{format_value(text)} ({type(text).__name__})"
            raise TypeError(f"vocabulary[{token}]: expected str, got {kind}")
        return None if text is None else str(text)

    def explain(self, best: Any, kept: int, status: int, limit: int) -> DrawStep:
        common: dict[str, Any] = dict(
            row=self.row, seed=self.seed, position=self.position, status=RowStatus(status).name,
            description=describe_status(status), greedy=self.rules.greedy,
            order=self.rules.order_name, kept=kept,
        )  # fmt: skip
        none: dict[str, Any] = dict(ranking=(), survivors=(), winner=None, runner_up=None)
        if status == RowStatus.EMPTY:
            processed = self.rules.compute_values(())
            return DrawStep(rules=(self._explain_processing(processed),), **common, **none)
        if status != RowStatus.OK:
            return DrawStep(rules=(), **common, **none)
        effects, values, ranking = self._apply_rules()
        listed = self._list_survivors(values, best, limit)
        named = {each.token: each for each in listed}
        return DrawStep(
            rules=effects, ranking=ranking, survivors=listed, winner=named[int(best[0])],
            runner_up=named.get(int(best[1])), **common,
        )  # fmt: skip

    def _explain_processing(self, values: Floats) -> RuleEffect:
        """The effect of scale, soft-cap, mask, bans, bias and penalties."""
        raw = self.raw
        kept, removed = ~np.isneginf(values), ~np.isneginf(raw) & np.isneginf(values)
        changed = int((kept & (raw != values)).sum())
        shares = _softmax(np.where(np.isfinite(raw), raw, -np.inf).astype(np.float32))
        return RuleEffect(
            PROCESSING, {}, bool(changed or removed.any()), int((~np.isneginf(raw)).sum()),
            int(kept.sum()), float(shares[removed].sum()),
            self._find_examples(raw, removed, shares), changed=changed,
        )  # fmt: skip

    def _find_examples(self, values: Floats, removed: Any, shares: Any) -> tuple[RankedToken, ...]:
        found = _rank(np.where(removed, values, -np.inf), EXAMPLES)
        return tuple(RankedToken(int(i), self.find_text(int(i)), float(shares[i])) for i in found)

    def _apply_rules(self) -> tuple[tuple[RuleEffect, ...], Floats, tuple[RankedToken, ...]]:
        """The effects in their order, the values after all rules, and the ranking before them."""
        values = self.rules.compute_values(())
        effects = [self._explain_processing(values)]
        likeliest = _rank(values, RANKED)
        first, removed_by = _softmax(values), dict.fromkeys(map(int, likeliest))
        order = () if self.rules.greedy else self.rules.order
        for place, rule in enumerate(order):
            count, parameters = effects[-1].after, self.rules.read_parameters(rule)
            if not self.rules.is_active(rule):
                effects.append(RuleEffect(rule, parameters, False, count, count, 0.0))
                continue
            before, values = values, self.rules.compute_values(order[: place + 1])
            effects.append(self._explain_rule(rule, before, values))
            for token in removed_by:
                if removed_by[token] is None and np.isneginf(values[token]):
                    removed_by[token] = rule
        ranking = tuple(
            RankedToken(token, self.find_text(token), float(first[token]), rule)
            for token, rule in removed_by.items()
        )
        return tuple(effects), values, ranking

    def _explain_rule(self, rule: str, before: Floats, after: Floats) -> RuleEffect:
        """The effect of an active rule on values [V]."""
        remained, kept = ~np.isneginf(before), ~np.isneginf(after)
        removed = remained & ~kept
        shares = _softmax(before) if removed.any() else np.zeros(1)
        lowered, shift = self._find_shift() if rule == "xtc" else (0, None)
        return RuleEffect(
            rule, self.rules.read_parameters(rule), True, int(remained.sum()), int(kept.sum()),
            float(shares[removed].sum()) if removed.any() else 0.0,
            self._find_examples(before, removed, shares), lowered=lowered, shift=shift,
        )  # fmt: skip

    def _find_shift(self) -> tuple[int, Optional[float]]:
        """The number of tokens that xtc lowers, and the constant that it adds to their z."""
        order = self.rules.order
        plain = self.rules.compute_values(order, without="xtc")
        values = self.rules.compute_values(order)
        lowered = np.flatnonzero((values < plain) & ~np.isneginf(values))
        if not len(lowered):
            return 0, None
        # z is rounded to float32, and the token of the least |z| has the smallest rounding error.
        token = lowered[np.abs(plain[lowered]).argmin()]
        return len(lowered), float(values[token]) - float(plain[token])

    def _list_survivors(self, values: Floats, best: Any, limit: int) -> tuple[Survivor, ...]:
        tokens = [int(token) for token in _rank(values, limit)]
        for token in (int(each) for each in best if each >= 0):
            if token not in tokens:
                if len(tokens) == limit:
                    tokens.remove(next(each for each in reversed(tokens) if each not in best))
                tokens.append(token)
        variates = None if self.rules.greedy else self._compute_noise(len(values))
        shares = _softmax(values)
        found = []
        for token in tokens:
            value = values[token]
            drawn = None if variates is None else variates[token]
            found.append(
                Survivor(
                    token, self.find_text(token), float(self.raw[token]), float(value),
                    float(shares[token]), None if drawn is None else float(drawn),
                    float(value if drawn is None else value + drawn),
                )  # fmt: skip
            )
        return tuple(found)

    def _compute_noise(self, vocab: int) -> Floats:
        first = select_row(self.sampling.get("first_sample", 0), self.row)
        domain = self.sampling.get("domain", 0)
        return noise(self.seed, self.position, vocab, sample=int(first) % 2**32, domain=domain)
