# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/guides/speculative_decoding.md: the cost of verification, from bench_verify."""

from result_tables import load, median, table

RESULTS = "cuda-h200-drafts"
RULES = {"coupled": "coupled", "supplied": "rejection, supplied", "kept": "rejection, kept",
         "rejection": "rejection", "block": "block"}
SHAPES = [(1, 3), (64, 7)]  # requests, drafts


def costs():
    """One row a shape, with ratios to the draw of as many rows without drafts; and the source."""
    results, rows = load(RESULTS), []
    for point in results["results"]:
        if (point["requests"], point["drafts"]) in SHAPES:
            plain = median(point["plain"])
            rows.append(["hidden states" if point["way"] == "fused" else "logits",
                         point["requests"], point["drafts"], f"{plain:.0f} us",
                         *(f"{median(point[rule]) / plain:.2f}" if rule in point else ""
                           for rule in RULES)])
    return (table(["from", "requests", "drafts", "plain draw", *RULES.values()], rows) +
            f"\n{results['gpu']}, {results['date']}, commit {results['commit']}, "
            f"V = {results['vocab']}, D = {results['hidden']}, the draft's D = "
            f"{results['draft_hidden']} (`bench/results/{RESULTS}.json`).\n")
