# SPDX-License-Identifier: Apache-2.0
"""How long does a draw by the Gumbel-max trick take, from logits to one token per row?

The shapes are those of a well-known post, with float32 and bfloat16 logits. The contestants are
softmax with torch.multinomial; the post's sampler, which computes noise once and uses it at
every step; the same sampler with fresh noise at each step; FlashInfer if it can be imported; and
the library. Before anything is timed, the mean log-probability of the tokens is checked, and that
two steps on the same logits draw different tokens. Graphs of the contestants take turns. Finally,
the draws of rare tokens are counted for each. Requires torch and the package gumbel, built with the
CUDA kernels: script/bench-gpu --post builds and runs it.
"""

import math
import sys

import torch
from post_contestants import contestants
from report import machine, write_json
from spread import capture, describe, in_turns, parse, parser_of, reason, timer

SHAPES = [(32, 32000), (128, 50000), (512, 100000)]  # rows, vocabulary
TINY = [(4, 512), (8, 1024)]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROUNDS = 41
CALLS = 4  # steps in one graph
LOGIT_DEVIATION = 2.5
MAX_DEVIATIONS = 6.0  # of a mean log-probability from its expectation
# (rows, vocabulary, gap, steps): one token is likely, and each other one e^gap times rarer. A gap
# of 20 exceeds every difference of noise from 24-bit uniforms, which never draws a rare token.
RARE = (512, 100000, 20.0, 400)
TINY_RARE = (8, 1024, 7.0, 40)


# ----------------------------------------------------------------------------------- checks ----


def count_deviations(logits, tokens):
    """The distance of the mean log-probability of tokens [n, B] from that of exact draws from
    logits [B, V], in standard deviations."""
    logp = torch.log_softmax(logits.float(), -1)
    mass = logp.exp()
    means = (mass * logp).sum(-1)
    variance = (mass * (logp - means[:, None]).square_()).sum().item()
    found = logp.gather(1, tokens.T.long()).sum().item()
    return (found - len(tokens) * means.sum().item()) / math.sqrt(len(tokens) * variance)


def check_tokens(logits, steps):
    """The distance of the tokens from exact draws, and the fraction that differs between two steps
    on the same logits. Raises ValueError if the tokens are not valid ids."""
    tokens = torch.stack([step.reshape(-1) for step in steps])
    if tokens.shape[1] != len(logits) or tokens.min() < 0 or tokens.max() >= logits.shape[1]:
        raise ValueError(f"not {len(logits)} tokens in [0, {logits.shape[1]})")
    changed = (tokens[1:] != tokens[:-1]).float().mean().item()
    return count_deviations(logits, tokens), changed


def count_rare_tokens(device, rows, vocab, gap, steps):
    """The number of draws of rare tokens by each contestant, and the expected number."""
    logits = torch.full((rows, vocab), -gap, device=device)
    logits[:, 0] = 0
    mass = (vocab - 1) * math.exp(-gap)
    found = {"expected": round(rows * steps * mass / (1 + mass), 1)}
    for contestant in contestants(device):
        try:
            step, drawn = contestant.prepare(logits), 0
            for _ in range(steps):
                drawn += (step() != 0).sum()
            found[contestant.name] = int(drawn)
        except Exception as error:  # the table reports the contestant as skipped
            print(f"rare tokens: {contestant.name}: {reason(error)}")
    return found


# --------------------------------------------------------------------------------- measuring ----


def measure_shape(logits, device, rounds, skip):
    """Times and checks of all contestants by name, for one shape."""
    found, timers = {}, {}
    for contestant in contestants(device):
        try:
            step = contestant.prepare(logits)
            deviations, changed = check_tokens(logits, [step().clone() for _ in range(4)])
            if contestant.exact and not (abs(deviations) <= MAX_DEVIATIONS and changed > 0.2):
                raise ValueError(f"{deviations:.1f} deviations, {100 * changed:.0f}% drawn anew")
            timers[contestant.name] = timer(capture(step, device, CALLS), device, CALLS)
            found[contestant.name] = {
                "deviations": round(deviations, 2), "percent_drawn_anew": round(100 * changed, 1)
            }
        except Exception as error:  # the others continue
            skip(contestant.name, reason(error))
    for name, times in in_turns(timers, rounds).items():
        found[name] = {**found[name], "time": describe(times)}
    return found


# ----------------------------------------------------------------------------------- reports ----


def print_row(entry):
    print(f"\n{entry['rows']} x {entry['vocab']}, {entry['dtype']}")
    gumbel_entry = entry["contestants"].get("gumbel")
    for name, one in entry["contestants"].items():
        time = one["time"]
        ratio = time["median_us"] / gumbel_entry["time"]["median_us"] if gumbel_entry else math.nan
        print(
            f"  {name:22}{time['median_us']:10.1f} us  ({time['p10_us']:.1f}.."
            f"{time['p90_us']:.1f})  {ratio:7.2f} of ours   {one['percent_drawn_anew']:5.1f}% "
            "of tokens drawn anew",
            flush=True,
        )


@torch.no_grad()
def main():
    arguments = parse(parser_of(__doc__.splitlines()[0], ROUNDS))
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # each shape is compiled separately
    skipped, entries = [], []
    about = {
        "question": __doc__.splitlines()[0],
        "commit": arguments.commit,
        **machine(arguments.device),
        "logit_deviation": LOGIT_DEVIATION,
        "rounds": arguments.rounds,
        "contestants": {c.name: vars(c) for c in contestants(arguments.device)},
    }
    for contestant in about["contestants"].values():
        del contestant["prepare"]
        print(f"{contestant['name']:22}{contestant['about']}; {contestant['draws']}")
    for rows, vocab in TINY if arguments.tiny else SHAPES:
        for name, dtype in DTYPES.items():
            shape = {"rows": rows, "vocab": vocab, "dtype": name}
            logits = LOGIT_DEVIATION * torch.randn(rows, vocab, device=arguments.device)
            found = measure_shape(
                logits.to(dtype), arguments.device, arguments.rounds,
                lambda who, why, shape=shape: skipped.append(
                    {**shape, "contestant": who, "reason": why}
                ),
            )
            entries.append({**shape, "contestants": found})
            print_row(entries[-1])
    rare_counts = count_rare_tokens(arguments.device, *(TINY_RARE if arguments.tiny else RARE))
    rare_cells = [f"{name} {count}" for name, count in rare_counts.items()]
    print("\nrare tokens drawn:", ", ".join(rare_cells))
    for entry in skipped:
        print("skipped:", ", ".join(f"{key} {value}" for key, value in entry.items()))
    if arguments.json:
        found = {"skipped": skipped, "rare_tokens": rare_counts, "post": entries}
        write_json(arguments.json, {**about, **found})
    return 0 if all("gumbel" in entry["contestants"] for entry in entries) else 1


if __name__ == "__main__":
    sys.exit(main())
