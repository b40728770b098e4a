# SPDX-License-Identifier: Apache-2.0
"""How long does verifying drafts take, compared with the methods of PyTorch engines, on one GPU?

The input is the hidden states of n = R (G + 1) rows, for R requests with chains of G drafts; the
output is the emitted tokens. The contestants are:

- the library's coupled rule;
- the library's rejection rule with the drafter's log-normalisers, with the draft's stored logits,
  or with the draft's head alone;
- a compiled rejection sampler on probabilities, as in engines;
- FlashInfer's chain_speculative_sampling, if installed;
- for comparison, a plain fused draw of n rows.

Emitted tokens are checked before a shape is timed: coupled tokens must equal those of the plain
draw, and the other rules must accept the expected number of drafts. The CUDA graphs of the
contestants are replayed alternately. Shapes with one request are measured last, and the file is
written after each shape, so that a run that ends early keeps the other shapes. Requires torch and
the package gumbel, built with the CUDA kernels: script/bench-gpu --verify-peers builds and runs it,
in two minutes on an H100.
"""

import sys
import time
from collections import Counter

import torch
from report import machine, write_json
from spread import capture, describe, in_turns, parse, parser_of, reason, timer
from verify_contestants import CONTESTANTS, LOGIT_DEVIATION, NEAR, Case

VOCAB, HIDDEN, DRAFT_HIDDEN = 151936, 4096, 1024
REQUESTS, DRAFTS = (1, 8, 16, 64), (3, 7)
TINY_REQUESTS = (1, 16)
TINY = {"vocab": 640, "hidden": 32, "draft_hidden": 16}
CALLS = 3  # steps in one graph
ROUNDS = 21
SECONDS = 120
MAX_DEVIATIONS = 6.0  # standard deviations between the accepted drafts and their expected number


# ----------------------------------------------------------------------------------- checks ----


def accepted_in(tokens, case):
    """The number of accepted drafts; raises ValueError if `tokens` are not chains with -1 after the
    last token."""
    rows = tokens.reshape(-1)
    if rows.numel() != case.rows:
        raise ValueError(f"{rows.numel()} tokens, not {case.rows}")
    rows = rows.view(case.requests, -1)
    there = rows >= 0
    if int(rows.max()) >= case.vocab or not bool(there[:, 0].all()):
        raise ValueError("a request has no token, or one that does not exist")
    if bool((there[:, 1:] & ~there[:, :-1]).any()):
        raise ValueError("a token follows the first -1")
    return int(there.sum()) - case.requests


def check(contestant, tokens, case, drawn, expected):
    """Checks the emitted tokens. Returns the mean number of accepted drafts per request, or None if
    the contestant emits no chains.

    drawn     tokens of a plain draw of all rows
    expected  (mean, standard deviation) of the number of accepted drafts
    """
    if not contestant.rule:
        return None
    accepted = accepted_in(tokens, case)
    if contestant.rule == "coupled":
        rows = tokens.reshape(case.requests, -1)
        if not torch.equal(rows, torch.where(rows >= 0, drawn.view_as(rows), -1)):
            raise ValueError("the tokens are not those of a plain draw")
    else:
        mean, deviation = expected
        # 1% of the rows exceeds the effect of the summation order and of bfloat16 logits.
        if abs(accepted - mean) > MAX_DEVIATIONS * deviation + 0.01 * case.rows:
            due = f"{mean:.1f} +- {deviation:.1f} are due"
            raise ValueError(f"{accepted} drafts are accepted, {due}")
    return accepted / case.requests


# -------------------------------------------------------------------------------- measuring ----


def peak_of(step, device):
    """The result of a step, and its peak of newly allocated bytes; None on a CPU."""
    if device == "cpu":
        return step(), None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    tokens = step().clone()
    torch.cuda.synchronize()
    return tokens, torch.cuda.max_memory_allocated() - before


def compete(case, arguments, ends, skip):
    """Measures one shape. Returns, by contestant: times, peak bytes, accepted drafts, and seconds
    of preparation. After the time `ends` peers are skipped; `skip` receives a name and a reason."""
    found, timers = {}, {}
    drawn, expected = None, case.expected()
    for contestant in CONTESTANTS:
        try:
            if not contestant.ours and time.monotonic() > ends:
                raise TimeoutError(f"{arguments.seconds} s were over")
            begin = time.monotonic()
            step = contestant.prepare(case)
            step()  # compiles and loads before the measurement
            prepared = round(time.monotonic() - begin, 2)
            tokens, peak = peak_of(step, arguments.device)
            drawn = tokens if contestant.name == "plain" else drawn
            accepted = check(contestant, tokens, case, drawn, expected)
            timers[contestant.name] = timer(
                capture(step, arguments.device, CALLS), arguments.device, CALLS
            )
            found[contestant.name] = {
                "peak_bytes": peak, "accepted": accepted, "prepare_s": prepared
            }
        except Exception as error:  # a failing peer is skipped; the others continue
            if contestant.ours:
                raise
            skip(contestant.name, reason(error))
    for name, times in in_turns(timers, arguments.rounds).items():
        found[name] = {**found[name], "time": describe(times)}
    return found


def compute_ratios(found):
    """The fastest peer's time divided by that of each rule of gumbel, None without peers; and the
    time of the coupled rule divided by that of the plain draw."""
    time_of = {name: one["time"]["median_us"] for name, one in found.items()}
    peers = [time_of[c.name] for c in CONTESTANTS if not c.ours and c.name in time_of]
    fastest = min(peers, default=None)
    ratio = {
        f"fastest_peer_vs_{c.name}": round(fastest / time_of[c.name], 3) if fastest else None
        for c in CONTESTANTS if c.ours and c.rule
    }
    return {**ratio, "coupled_vs_plain": round(time_of["coupled"] / time_of["plain"], 4)}


# ---------------------------------------------------------------------------------- reports ----


def print_table(entries):
    """Prints one row for each shape: medians in microseconds."""
    heads = ["R", "G", "rows", *(c.column for c in CONTESTANTS), "coupled / plain",
             "peer / coupled", "peer / supplied"]
    rows = [heads]
    for entry in entries:
        found = entry["contestants"]
        cells = [f"{found[c.name]['time']['median_us']:.0f}" if c.name in found else "skipped"
                 for c in CONTESTANTS]
        over = [entry[f"fastest_peer_vs_{name}"] for name in ("coupled", "supplied")]
        rows.append([str(entry["requests"]), str(entry["drafts"]), str(entry["rows"]), *cells,
                     f"{entry['coupled_vs_plain']:.3f}",
                     *("-" if ratio is None else f"{ratio:.2f}" for ratio in over)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


def models_of(size, device):
    """The weights of the target's head, and of the draft's: the first columns of the target's."""
    weight = torch.randn(size["vocab"], size["hidden"], device=device).bfloat16()
    return weight, weight[:, : size["draft_hidden"]].contiguous()


def shapes_of(arguments):
    """(R, G) in the order in which they are measured: single requests last."""
    requests = TINY_REQUESTS if arguments.tiny else REQUESTS
    return sorted(((r, g) for g in DRAFTS for r in requests), key=lambda shape: shape[0] == 1)


def describe_run(arguments, size):
    """Fields that all shapes of a run share."""
    return {
        "question": __doc__.splitlines()[0],
        "commit": arguments.commit,
        **machine(arguments.device),
        **size,
        "dtype": "bf16",
        "logit_deviation": LOGIT_DEVIATION,
        "near": NEAR,
        "calls_a_replay": CALLS,
        "rounds": arguments.rounds,
        "contestants": {c.name: {"column": c.column, "about": c.about} for c in CONTESTANTS},
    }


def print_all(head, entries, skipped):
    print(f"commit {head['commit']}, {head['gpu']}, V = {head['vocab']}, D = {head['hidden']}, "
          f"the draft's D = {head['draft_hidden']}, medians in microseconds")
    for contestant in CONTESTANTS:
        print(f"  {contestant.column:18}{contestant.about}")
    print_table(entries)
    reasons = Counter((entry["contestant"], entry["reason"]) for entry in skipped)
    for (name, why), count in reasons.items():
        print(f"skipped: {name}, in {count} shapes: {why}")


@torch.no_grad()
def main():
    begin = time.monotonic()
    parser = parser_of(__doc__.splitlines()[0], ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS,
                        help=f"after which peers no longer take part ({SECONDS})")
    arguments = parse(parser)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # each shape is compiled separately
    size = TINY if arguments.tiny else {
        "vocab": VOCAB, "hidden": HIDDEN, "draft_hidden": DRAFT_HIDDEN
    }
    models, entries, skipped = models_of(size, arguments.device), [], []
    head = describe_run(arguments, size)
    for requests, drafts in shapes_of(arguments):
        place = {"requests": requests, "drafts": drafts, "rows": requests * (drafts + 1)}
        found = compete(
            Case(models, requests, drafts), arguments, begin + arguments.seconds,
            lambda who, why, place=place: skipped.append(
                {"contestant": who, **place, "reason": why}
            ),
        )
        entries.append({**place, "contestants": found, **compute_ratios(found)})
        if arguments.json:
            write_json(arguments.json, {**head, "skipped": skipped, "verify_peers": entries})
        print(f"{requests} requests, {drafts} drafts: {time.monotonic() - begin:.0f} s",
              file=sys.stderr)
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    print_all(head, entries, skipped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
