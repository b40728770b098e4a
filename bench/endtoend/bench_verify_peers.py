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
contestants are replayed alternately. The file is written after each shape, and shapes with one
request are measured last, so that a run that ends early keeps the other shapes. Requires torch and
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
MAX_DEVIATIONS = 6.0  # largest difference of accepted and expected drafts, in standard deviations


# ----------------------------------------------------------------------------------- checks ----


def count_accepted(tokens, case):
    """The number of accepted drafts. Raises ValueError unless each row has valid tokens, then only
    -1."""
    rows = tokens.reshape(-1)
    if rows.numel() != case.rows:
        raise ValueError(f"{rows.numel()} tokens, not {case.rows}")
    rows = rows.view(case.requests, -1)
    emitted = rows >= 0
    if int(rows.max()) >= case.vocab or not bool(emitted[:, 0].all()):
        raise ValueError("a request has no token, or one outside the vocabulary")
    if bool((emitted[:, 1:] & ~emitted[:, :-1]).any()):
        raise ValueError("a token follows the first -1")
    return int(emitted.sum()) - case.requests


def check_tokens(contestant, tokens, case, drawn, expected):
    """Checks the emitted tokens. Returns the mean number of accepted drafts per request, or None if
    the contestant emits no chains.

    drawn     tokens of a plain draw of all rows
    expected  (mean, standard deviation) of the number of accepted drafts
    """
    if not contestant.rule:
        return None
    accepted = count_accepted(tokens, case)
    if contestant.rule == "coupled":
        rows = tokens.reshape(case.requests, -1)
        if not torch.equal(rows, torch.where(rows >= 0, drawn.view_as(rows), -1)):
            raise ValueError("the tokens are not those of a plain draw")
    else:
        mean, deviation = expected
        # The summation order and bfloat16 logits change the count by less than 1% of the rows.
        if abs(accepted - mean) > MAX_DEVIATIONS * deviation + 0.01 * case.rows:
            expectation = f"{mean:.1f} +- {deviation:.1f}"
            raise ValueError(f"{accepted} drafts are accepted, expected are {expectation}")
    return accepted / case.requests


# -------------------------------------------------------------------------------- measuring ----


def run_and_measure_peak(step, device):
    """The result of a step, and the peak of the bytes that it allocates; None on a CPU."""
    if device == "cpu":
        return step(), None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    tokens = step().clone()
    torch.cuda.synchronize()
    return tokens, torch.cuda.max_memory_allocated() - before


def measure_shape(case, arguments, deadline, skip):
    """Measures one shape. Returns, by contestant: times, peak bytes, accepted drafts, and seconds
    of preparation. Peers that would begin after `deadline` are skipped: `skip` receives the name
    and the reason."""
    measured, timers = {}, {}
    drawn, expected = None, case.expected()
    for contestant in CONTESTANTS:
        try:
            if not contestant.ours and time.monotonic() > deadline:
                raise TimeoutError(f"{arguments.seconds} s were over")
            begin = time.monotonic()
            step = contestant.prepare(case)
            step()  # compiles and loads before the measurement
            prepared = round(time.monotonic() - begin, 2)
            tokens, peak = run_and_measure_peak(step, arguments.device)
            drawn = tokens if contestant.name == "plain" else drawn
            accepted = check_tokens(contestant, tokens, case, drawn, expected)
            timers[contestant.name] = timer(
                capture(step, arguments.device, CALLS), arguments.device, CALLS
            )
            measured[contestant.name] = {
                "peak_bytes": peak, "accepted": accepted, "prepare_s": prepared
            }
        except Exception as error:  # a failing peer is skipped; the others continue
            if contestant.ours:
                raise
            skip(contestant.name, reason(error))
    for name, times in in_turns(timers, arguments.rounds).items():
        measured[name] = {**measured[name], "time": describe(times)}
    return measured


def compute_ratios(measured):
    """The fastest peer's time divided by that of each rule of gumbel, None without peers; and the
    time of the coupled rule divided by that of the plain draw."""
    time_of = {name: one["time"]["median_us"] for name, one in measured.items()}
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
    titles = ["R", "G", "rows", *(c.column for c in CONTESTANTS), "coupled / plain",
             "peer / coupled", "peer / supplied"]
    rows = [titles]
    for entry in entries:
        measured = entry["contestants"]
        cells = [f"{measured[c.name]['time']['median_us']:.0f}" if c.name in measured else "skipped"
                 for c in CONTESTANTS]
        over = [entry[f"fastest_peer_vs_{name}"] for name in ("coupled", "supplied")]
        rows.append([str(entry["requests"]), str(entry["drafts"]), str(entry["rows"]), *cells,
                     f"{entry['coupled_vs_plain']:.3f}",
                     *("-" if ratio is None else f"{ratio:.2f}" for ratio in over)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(titles))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


def make_heads(size, device):
    """The weights of the target's LM head, and of the draft's, which are its first columns."""
    weight = torch.randn(size["vocab"], size["hidden"], device=device).bfloat16()
    return weight, weight[:, : size["draft_hidden"]].contiguous()


def list_shapes(arguments):
    """(R, G) in the order of measurement: single requests last."""
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


def print_report(run, entries, skipped):
    print(f"commit {run['commit']}, {run['gpu']}, V = {run['vocab']}, D = {run['hidden']}, "
          f"the draft's D = {run['draft_hidden']}, medians in microseconds")
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
                        help=f"time after which peers are skipped ({SECONDS})")
    arguments = parse(parser)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # each shape is compiled separately
    size = TINY if arguments.tiny else {
        "vocab": VOCAB, "hidden": HIDDEN, "draft_hidden": DRAFT_HIDDEN
    }
    heads, entries, skipped = make_heads(size, arguments.device), [], []
    run = describe_run(arguments, size)
    for requests, drafts in list_shapes(arguments):
        shape = {"requests": requests, "drafts": drafts, "rows": requests * (drafts + 1)}
        measured = measure_shape(
            Case(heads, requests, drafts), arguments, begin + arguments.seconds,
            lambda who, why, shape=shape: skipped.append(
                {"contestant": who, **shape, "reason": why}
            ),
        )
        entries.append({**shape, "contestants": measured, **compute_ratios(measured)})
        if arguments.json:
            write_json(arguments.json, {**run, "skipped": skipped, "verify_peers": entries})
        print(f"{requests} requests, {drafts} drafts: {time.monotonic() - begin:.0f} s",
              file=sys.stderr)
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    print_report(run, entries, skipped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
