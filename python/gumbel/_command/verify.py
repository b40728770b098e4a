# SPDX-License-Identifier: Apache-2.0
"""gumbel verify: check on this machine that draws follow the softmax and are reproducible."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from .. import SampleOutput, finish, info, partial, sample, sample_logits
from .chi_squared import ChiSquared, compare_counts
from .output import write_line

DESCRIPTION = """Check the draws on this machine: chi-squared of many draws of one row, the power of
that test, and equal bits from every instruction set, thread count and batch. The full command,
which is written in C, also checks rare tokens, models and GPUs. Exit code 1 if a check fails."""
# A correct sampler fails at most one run in a million; a wrong temperature passes as rarely.
P_VALUE_MIN = 1e-7
WRONG_TEMPERATURE = 1.02
DRAWS_A_CALL = 4096
BITS = ("tokens", "logprobs", "lse", "status")


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "verify", help="check the draws on this machine", description=DESCRIPTION
    )
    parser.add_argument("--logits", help=".npy file, logits [B, V]")
    parser.add_argument("--hidden", help=".npy file, hidden states [B, D]; with --weights")
    parser.add_argument("--weights", help=".npy file, LM head [V, D]; default: a synthetic one")
    parser.add_argument("--row", type=int, default=0, help="row to count draws of (default 0)")
    parser.add_argument("--draws", type=int, default=2**20, help="draws of each way (2^20)")
    parser.add_argument("--seed", type=int, default=0, help="64-bit seed (default 0)")
    parser.add_argument("--temperature", type=float, default=1.0, help="above 0 (default 1)")
    parser.add_argument("-j", "--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


@dataclass
class Verdicts:
    """The checks so far; each is printed at once unless `quiet`."""

    quiet: bool
    checks: List[Dict[str, Any]] = field(default_factory=list)

    def add(self, result: str, name: str, text: str) -> None:
        self.checks.append({"check": name, "result": result, "details": text})
        if not self.quiet:
            write_line(f"{result:8} {name:30} {text}")

    def count(self, result: str) -> int:
        return sum(check["result"] == result for check in self.checks)


def loaded(option: str, path: str) -> Any:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"--{option}: {path} is no .npy file that can be read: {error}") from None
    if not isinstance(array, np.ndarray) or array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"--{option}: {path} does not hold one array of two axes")
    return array


def arrays_of(given: argparse.Namespace) -> Tuple[Optional[Any], Optional[Any], Any]:
    """(hidden, weight, logits); without a head the first two are None."""
    if given.logits:
        if given.hidden or given.weights:
            raise ValueError("--logits: not together with --hidden and --weights")
        return None, None, loaded("logits", given.logits)
    if bool(given.hidden) != bool(given.weights):
        raise ValueError("--hidden: --hidden and --weights belong together")
    if given.hidden:
        hidden, weight = loaded("hidden", given.hidden), loaded("weights", given.weights)
        if hidden.shape[1] != weight.shape[1]:
            raise ValueError(f"--weights: {weight.shape[1]} columns; --hidden: {hidden.shape[1]}")
    else:
        random = np.random.default_rng(1)
        hidden = random.standard_normal((6, 64), np.float32)
        weight = random.standard_normal((1000, 64), np.float32) / 4
    wide = [np.asarray(each, np.float32) for each in (hidden, weight)]
    return hidden, weight, wide[0] @ wide[1].T


def exact_logits(hidden: Any, weight: Any, logits: Any, row: int) -> Any:
    """The logits of a row in float64."""
    if hidden is None:
        return np.asarray(logits[row], np.float64)
    return np.asarray(weight, np.float64) @ np.asarray(hidden[row], np.float64)


def softmax(logits: Any, temperature: float) -> Any:
    """Probabilities [V], float64; NaN if the row has NaN, +inf or no token to draw."""
    with np.errstate(invalid="ignore"):
        powers = np.exp((logits - logits.max()) / temperature)
        return powers / powers.sum()


def counted(
    draw: Callable[..., SampleOutput], given: argparse.Namespace, seed: int, vocab: int
) -> Any:
    """The number of times that each token is drawn in `given.draws` draws."""
    counts = np.zeros(vocab, np.int64)
    for first in range(0, given.draws, DRAWS_A_CALL):
        out = draw(
            temperature=given.temperature, seed=seed, position=first // DRAWS_A_CALL,
            num_samples=min(DRAWS_A_CALL, given.draws - first), logprobs=None,
        )  # fmt: skip
        if out.status[0] != 0:
            raise ValueError(f"--row: row {given.row} has nothing to draw from, or NaN or +inf")
        counts += np.bincount(out.tokens[0], minlength=vocab)
    return counts


def is_testable(right: Any, wrong: Any, draws: int) -> bool:
    """Whether counts of `right` are expected to be rejected as draws from `wrong`."""
    shift = compare_counts(right * draws, wrong)
    spread = 2 * (shift.degrees + 2 * shift.statistic)
    low = shift.degrees + shift.statistic - 5 * spread**0.5
    return shift.degrees > 0 and low > shift.degrees + 8 * (2 * shift.degrees) ** 0.5 + 40


def shown(test: ChiSquared) -> str:
    return f"{test.statistic:.1f}, {test.degrees} degrees of freedom, p = {test.p_value:.4g}"


def check_draws(given: argparse.Namespace, arrays: Tuple[Any, Any, Any], found: Verdicts) -> None:
    hidden, weight, logits = arrays
    row, vocab = slice(given.row, given.row + 1), logits.shape[1]
    exact = exact_logits(hidden, weight, logits, given.row)
    right = softmax(exact, given.temperature)
    wrong = softmax(exact, given.temperature * WRONG_TEMPERATURE)
    ways: List[Tuple[str, Callable[..., SampleOutput]]] = [
        ("chi-squared, from logits", lambda **how: sample_logits(logits[row], **how))
    ]
    if hidden is not None:
        head: Any = weight
        ways.insert(0, ("chi-squared, fused", lambda **how: sample(hidden[row], head, **how)))
    for number, (name, draw) in enumerate(ways):
        counts = counted(draw, given, given.seed + number, vocab)
        test = compare_counts(counts, right)
        if test.degrees < 1:
            found.add("skipped", name, "too few draws for this row; raise --draws")
            continue
        result = "passed" if test.p_value >= P_VALUE_MIN else "FAILED"
        found.add(result, name, f"{shown(test)} ({given.draws} draws)")
    name = "power: temperature off by 2%"
    if not is_testable(right, wrong, given.draws):
        found.add("skipped", name, "this row cannot show it; choose another --row or more --draws")
        return
    test = compare_counts(counts, wrong)
    rejected = test.p_value < P_VALUE_MIN
    text = "rejected, as it must be" if rejected else "NOT rejected"
    found.add("passed" if rejected else "FAILED", name, f"{text}: {shown(test)}")


def check_bits(given: argparse.Namespace, arrays: Tuple[Any, Any, Any], found: Verdicts) -> None:
    """Check that all instruction sets, thread counts, batches and shards give equal bits."""
    weight, logits = arrays[1], arrays[2][:8]
    hidden = None if arrays[0] is None else arrays[0][:8]
    rows = len(logits)
    seeds = np.arange(given.seed, given.seed + rows, dtype=np.uint64)

    def draw(rows: Any = slice(None), **how: Any) -> SampleOutput:
        how = {"temperature": given.temperature, "seed": seeds[rows], "num_samples": 16,
               "position": 0, **how}  # fmt: skip
        if hidden is None:
            return sample_logits(logits[rows], **how)
        return sample(hidden[rows], weight, **how)

    wanted = draw()

    def compare(name: str, *parts: SampleOutput) -> None:
        differs = [
            each for each in BITS
            if np.concatenate([getattr(part, each) for part in parts]).tobytes()
            != getattr(wanted, each).tobytes()
        ]  # fmt: skip
        text = f"{', '.join(differs)} differ" if differs else "the same bits in every output"
        found.add("FAILED" if differs else "passed", name, f"{text} ({rows} rows, 16 draws each)")

    for isa in info().isas:
        compare(f"isa {isa}", draw(isa=isa))
    for threads in (1, 2, 3):
        compare(f"{threads} thread{'s' if threads > 1 else ''}", draw(threads=threads))
    compare("each row alone", *(draw(slice(b, b + 1)) for b in range(rows)))
    vocab = logits.shape[1]
    if hidden is not None and vocab > 64:
        middle = (vocab // 2 + 63) // 64 * 64
        parts = [
            partial(hidden, weight[begin:end], first_token=begin, vocab_size=vocab, seed=seeds,
                    position=0, num_samples=16, temperature=given.temperature)
            for begin, end in ((0, middle), (middle, vocab))
        ]  # fmt: skip
        compare("two shards", finish(np.stack(parts)))


def check_options(given: argparse.Namespace, rows: int) -> None:
    if not 0 <= given.row < rows:
        raise ValueError(f"--row: {given.row} is not in 0 to {rows - 1}")
    if not 1 <= given.draws <= 2**40:
        raise ValueError(f"--draws: {given.draws} is not in 1 to 2^40")
    if not 0 <= given.seed < 2**64 - 8:
        raise ValueError(f"--seed: {given.seed} is not in 0 to 2^64 - 9")
    if not 0 < given.temperature < float("inf"):
        raise ValueError(f"--temperature: {given.temperature} is not above 0 and finite")


def run(given: argparse.Namespace) -> int:
    arrays = arrays_of(given)
    check_options(given, len(arrays[2]))
    found = Verdicts(quiet=given.json)
    check_draws(given, arrays, found)
    check_bits(given, arrays, found)
    totals = {result.lower(): found.count(result) for result in ("passed", "FAILED", "skipped")}
    if given.json:
        write_line(json.dumps({"checks": found.checks, **totals}, indent=1))
    else:
        write_line(", ".join(f"{count} {result}" for result, count in totals.items()))
    return 1 if totals["failed"] else 0
