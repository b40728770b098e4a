# SPDX-License-Identifier: Apache-2.0
"""What does verifying drafts cost beside what PyTorch engines do today, in one run on one GPU?

From hidden states of n = R (drafts + 1) rows to emitted tokens, as CUDA graphs that take turns:
the library's coupled rule, and its rejection by the draft's logits; a rejection sampler as engines
have it, compiled, on probabilities that it forms; and FlashInfer's chain_speculative_sampling where
it is installed. Peers are given the draft's probabilities, which drafting has formed. Needs PyTorch
on an NVIDIA GPU and the package gumbel; helpers come from bench_peers.py.
"""

import argparse
import math

import gumbel
import numpy as np
import torch
from bench_peers import capture, describe, machine, measure, write_json
from bench_peers_contestants import reason

VOCAB, HIDDEN = 151936, 4096
REQUESTS, DRAFTS = (1, 8, 16, 64), (3, 7)
CALLS = 3  # a replay
LOGIT_DEVIATION = 2.5
NEAR = 0.5  # of the deviation: how far the draft's logits lie from the target's


# --------------------------------------------------------------------------- what peers do ----


def rejection(probs, draft_probs, tokens):
    """Leviathan et al. 2023, Algorithm 1, for all requests at once: emitted tokens, -1 behind them.

    probs [R, G + 1, V] of the target, draft_probs [R, G, V], tokens [R, G] drawn by the draft.
    """
    ids = tokens.long().unsqueeze(-1)
    p, q = probs[:, :-1].gather(-1, ids).squeeze(-1), draft_probs.gather(-1, ids).squeeze(-1)
    accepted = (torch.rand_like(p) * q < p).int().cumprod(1)
    left = torch.cat([(probs[:, :-1] - draft_probs).clamp_min(0), probs[:, -1:]], 1)
    drawn = (left / torch.empty_like(left).exponential_()).argmax(-1)
    count = accepted.sum(1, keepdim=True)
    place = torch.arange(probs.shape[1], device=probs.device)
    kept = torch.cat([tokens.long(), drawn[:, -1:]], 1)
    return torch.where(place < count, kept, torch.where(place == count, drawn, -1))


def by_rejection(case):
    shape = (case.requests, case.drafts + 1, VOCAB)

    def step(hidden, weight, draft_probs, tokens):
        logits = torch.mm(hidden, weight.t()).float()
        return rejection(torch.softmax(logits, -1).view(shape), draft_probs, tokens)

    compiled = torch.compile(step)
    return lambda: compiled(case.hidden, case.weight, case.draft_probs, case.drafted)


def by_flashinfer(case):
    from flashinfer.sampling import chain_speculative_sampling, softmax

    shape = (case.requests, case.drafts + 1, VOCAB)

    def step():
        probs = softmax(torch.mm(case.hidden, case.weight.t()).float()).view(shape)
        return chain_speculative_sampling(case.draft_probs, case.drafted, probs)[0]

    return step


# ------------------------------------------------------------------------------- libgumbel ----


def plain(case):
    draw = gumbel.prepare_sample(case.hidden, case.weight, seed=case.row_seed, logprobs=None)
    return lambda: draw().tokens


def coupled(case):
    def step():
        return gumbel.verify(
            case.hidden, case.weight, case.nodes, seed=case.seed, logprobs=None
        ).tokens

    return step


def by_rule(case):
    proposal = gumbel.proposal_logits(case.draft_logits)

    def step():
        return gumbel.verify(
            case.hidden,
            case.weight,
            case.nodes,
            seed=case.seed,
            rule="rejection",
            proposal=proposal,
            logprobs=None,
        ).tokens

    return step


CONTESTANTS = {
    "plain": ("the plain fused draw of as many rows", plain),
    "coupled": ("libgumbel, coupled", coupled),
    "rejection": ("libgumbel, rejection by the draft's logits", by_rule),
    "torch_rejection": ("GEMM, softmax, rejection, compiled", by_rejection),
    "flashinfer": ("GEMM, softmax, FlashInfer's chain_speculative_sampling", by_flashinfer),
}


class Case:
    """Inputs of one shape: a draft whose logits are near the target's, and what it has drawn."""

    def __init__(self, weight, requests, drafts):
        self.requests, self.drafts, self.weight = requests, drafts, weight
        rows = requests * (drafts + 1)
        self.hidden = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
        logits = torch.mm(self.hidden, weight.t()).float()
        noise = torch.randn_like(logits) * (NEAR * LOGIT_DEVIATION)
        self.draft_logits = logits + noise
        probs = torch.softmax(self.draft_logits, -1).view(requests, drafts + 1, VOCAB)
        self.draft_probs = probs[:, :-1].contiguous()
        flat = self.draft_probs.view(-1, VOCAB)
        self.drafted = torch.multinomial(flat, 1).view(requests, drafts).int()
        root = torch.zeros(requests, 1, dtype=torch.int32, device="cuda")
        self.nodes = torch.cat([root, self.drafted], 1)
        self.seed = torch.arange(requests, device="cuda")
        self.row_seed = torch.arange(rows, device="cuda")


def check(tokens, case):
    """Raise ValueError where these are no texts: each has a token, and nothing behind its last."""
    if tokens.numel() != case.requests * (case.drafts + 1):
        raise ValueError(f"{tokens.numel()} tokens")
    rows = tokens.view(case.requests, -1)
    there = rows >= 0
    if int(rows.max()) >= VOCAB or not bool(there[:, 0].all()):
        raise ValueError("a request has no token, or one that does not exist")
    if bool((there[:, 1:] & ~there[:, :-1]).any()):
        raise ValueError("a token stands behind the last one")


def compete(weight, requests, drafts, replays):
    """Median times of all contestants in one shape, and why others are left out."""
    case, graphs, skipped = Case(weight, requests, drafts), {}, {}
    for name, (_, prepare) in CONTESTANTS.items():
        try:
            graphs[name], tokens = capture([prepare(case)] * CALLS)
            check(tokens, case)
        except Exception as error:  # whatever a peer raises: the others still compete
            if name not in ("torch_rejection", "flashinfer"):
                raise
            graphs.pop(name, None)
            skipped[name] = reason(error)
    times = measure(graphs, replays)
    return {name: describe(np.array(times[name]) / CALLS) for name in graphs}, skipped


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the measurements to FILE")
    parser.add_argument("--commit", default="unknown", help="that they are of")
    parser.add_argument("--replays", type=int, default=15, help="of each graph (15)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no NVIDIA GPU is to be had")
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64
    weight = torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16, device="cuda")
    weight *= LOGIT_DEVIATION / math.sqrt(HIDDEN)
    results = []
    for drafts in DRAFTS:
        for requests in REQUESTS:
            row, skipped = compete(weight, requests, drafts, options.replays)
            results.append({"requests": requests, "drafts": drafts, **row, "skipped": skipped})
            medians = {name: spread["median_us"] for name, spread in row.items()}
            print(f"R = {requests:2}, {drafts} drafts: " +
                  ", ".join(f"{name} {time:.0f}" for name, time in medians.items()), flush=True)
            torch.cuda.empty_cache()
    for name in sorted({name for row in results for name in row["skipped"]}):
        print(f"skipped: {name}: {next(row['skipped'].get(name) for row in results)}")
    if options.json:
        about = {name: text for name, (text, _) in CONTESTANTS.items()}
        head = {"question": __doc__.splitlines()[0], "version": gumbel.__version__,
                "commit": options.commit, **machine(), "vocab": VOCAB, "hidden": HIDDEN,
                "dtype": "bf16", "calls_a_replay": CALLS, "replays": options.replays,
                "contestants": about}
        write_json(options.json, {**head, "results": results})


if __name__ == "__main__":
    main()
