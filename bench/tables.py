#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tables of README.md, docs/ and findings/ from the files in bench/results/ and the rungs.

usage: bench/tables.py [--check]

A table stands between a line "<!-- table NAME -->" and a line "<!-- end -->". --check writes
nothing, and exits 1 if a page differs from the tables that would be written. rung_tables.py has the
tables of docs/kernels.md, vllm_tables.py those of vLLM on a GPU, screen_tables.py that of screens'
formats, rank_tables.py those of several GPUs, float32_tables.py those of float32 logits,
draft_tables.py those of the guide to drafts, headlines.py that of the README.
"""

import re
import sys

import draft_tables
import float32_tables
import headlines
import rank_tables
import rung_tables
import screen_tables
import vllm_tables
from result_tables import ROOT, load, median, newest, stamp, table

MARKED = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def headline():
    return table(headlines.COLUMNS, headlines.list_table_rows())


def cpu():
    """One row a hidden size and batch, from `gumbel bench`."""
    rows = []
    for name in ("cpu-bf16-d2048", "cpu-bf16-d4096"):
        results = load(name)
        for result in results["results"]:
            ways, batch = result["ways"], result["batch"]
            fused = ways["fused draw"]
            read = ways["read weights"]["bytes"] / median(fused) / 1e3
            of_read = read * 1e11 / results["read_bytes_per_second"]
            operations = 2e8 * results["vocab"] * results["hidden"] * batch / median(fused)
            of_peak = operations / results["float_operations_per_second"]
            draw = 100 * (fused["vs_product"] - 1)
            rows.append([results["hidden"], batch, f"{median(fused) / 1e3:.1f} ms",
                         f"{read:.1f} GB/s", f"{of_read:.0f}%", f"{of_peak:.0f}%", f"{draw:+.1f}%",
                         f"{result['workspace_bytes'] / 1024:.0f} KiB"])
    return table(["D", "B", "fused draw", "bandwidth", "of a plain read's bandwidth",
                  "of the multiply-add peak", "time added to the product", "workspace"], rows)


def cpu_logits():
    """One row a batch and thread count, from bench_torch_logits.py."""
    rows = []
    for point in load("cpu-logits-peers")["results"]:
        one = point["threads"] == 1
        found = point["processor" if one else "wall"]
        cells = [f"{found[f'{name}_us']['median']:,.0f}" for name in
                 ("torch", "gumbel", "gumbel_with_logprobs")]
        ratio = found["torch_over_gumbel"]
        rows.append([point["threads"], point["batch"], *cells, f"{ratio['median']:.0f}",
                     f"{ratio['p10']:.0f} to {ratio['p90']:.0f}",
                     f"{found['torch_over_gumbel_with_logprobs']['median']:.0f}"])
    return table(["threads", "rows", "torch", "libgumbel", "libgumbel with log-probabilities",
                  "torch / libgumbel", "its p10 to p90",
                  "torch / libgumbel with log-probabilities"], rows)


def cpu_logits_source():
    results = load("cpu-logits-peers")
    load_average = " to ".join(f"{load:.0f}" for load in sorted(results["load_average"]))
    return (f"{stamp(results)}, {results['cores']} shared cores of an {results['cpu']} "
            f"({results['isa']}), load average {load_average}, torch {results['torch']}.\n"
            f"V = {results['vocab']}, float32, T = {results['temperature']}; medians in "
            "microseconds, and of the ratio within a round.\n")


def cpu_draw():
    """One row a place of the logits, from bench_draw."""
    results = load("cpu-draw")
    times = {(p["place"], p["isa"], p["route"]): median(p) for p in results["rows"]}
    wanted = {"row maximum only": ("", "bare maximum"), "draw": ("avx512", "draw"),
              "draw of 4 samples": ("avx512", "draw, 4 samples"),
              "draw with log-normaliser": ("avx512", "draw, log-normaliser"),
              "greedy draw": ("avx512", "greedy"), "draw, AVX2": ("avx2", "draw")}
    rows = [[place, *(f"{times[place, *way]:.1f}" for way in wanted.values())]
            for place in dict.fromkeys(p["place"] for p in results["rows"])]
    return table(["logits in", *wanted], rows)


def cpu_draw_source():
    results = load("cpu-draw")
    return f"{stamp(results)}, {results['machine']}, {results['shape']}.\n"


def cpu_source():
    """Source and ceilings of the CPU's table."""
    runs = [load(name) for name in ("cpu-bf16-d2048", "cpu-bf16-d4096")]
    reads = " and ".join(f"{run['read_bytes_per_second'] / 1e9:.1f}" for run in runs)
    multiply_adds = " and ".join(f"{run['float_operations_per_second'] / 1e12:.2f}" for run in runs)
    return (f"{stamp(runs[0])}, {runs[0]['cpu']}, {runs[0]['threads']} threads, medians of "
            f"{runs[0]['rounds']} rounds in turns. The best plain read\nof the same runs has "
            f"{reads} GB/s (D = 2048 and 4096), the peak of multiply-adds is {multiply_adds} "
            "TFLOP/s.\n")


def on_gpu(name):
    """One row a shape and batch, from bench_fused_vs_gemm."""
    rows = []
    for row in load(name)["fused"]:
        if row["batch"] == 8:
            continue
        fused, gemm = median(row["fused"]), median(row["gemm"])
        rows.append([f"{row['vocab']}, {row['hidden']}", row["batch"], f"{row['floor_us']:.0f}",
                     f"{gemm:.0f}", f"{fused:.0f}", f"{median(row['fused_with_logprobs']):.0f}",
                     f"{fused / gemm:.2f}",
                     f"{median(row['fused_rested']) / median(row['gemm_rested']):.2f}",
                     f"{median(row['fused_behind_norm']) / median(row['gemm_behind_norm']):.2f}",
                     f"{round(row['percent_of_draw'])}%"])
    return table(["V, D", "B", "read weights", "GEMM", "fused draw", "with log-probabilities",
                  "fused / GEMM", "after a pause", "after a norm kernel", "added by the draw"],
                 rows)


def on_gpu_source(name):
    results = load(name)
    times = ", ".join(f"{median(row['draw']):.0f} us at B = {row['batch']}"
                      for row in results["from_float32_logits"] if row["samples"] == 1)
    return (f"{stamp(results)}, one {results['gpu']}, {results['dtype']}, reading at "
            f"{results['read_bytes_per_second'] / 1e12:.2f} TB/s. From float32 logits, V = 151936: "
            f"{times}.\n")


def peers():
    """gumbel's draws beside those of PyTorch engines, from bench_peers.py."""
    wanted = {"gemm": "GEMM alone", "fused": "fused draw", "flashsampling": "FlashSampling",
              "gemm_flashinfer": "GEMM + FlashInfer",
              "gemm_softmax_multinomial_compiled": "GEMM + softmax + multinomial, compiled"}
    rows = []
    for row in load("cuda-h200-peers")["fused"]:
        if row["batch"] in (1, 32, 64, 128, 256):
            times = [row.get(name) for name in wanted]
            rows.append([f"{row['vocab']}, {row['hidden']}", row["batch"],
                         *(f"{median(time):.0f}" if time else "" for time in times)])
    return table(["V, D", "B", *wanted.values()], rows)


def peers_source():
    results = load("cuda-h200-peers")
    versions = results["versions"]
    return (f"{stamp(results)}, one {results['gpu']}, torch {versions['torch']}, FlashInfer "
            f"{versions['flashinfer-python']}, FlashSampling {versions['fused-mm-sampling']}; "
            "microseconds.\n")


def requests(way):
    """One row a request of an entry point, flat rows / peaked rows, from bench_requests."""
    points = [point for point in load("cuda-h200-requests")["requests"]
              if point["table"] == "requests" and point["way"] == way]
    times = {(p["request"], p["batch"], p["rows"]): median(p) for p in points}
    batches = sorted({point["batch"] for point in points})
    kinds = list(dict.fromkeys(point["rows"] for point in points))
    rows = [[request, *(" / ".join(f"{times[request, batch, kind]:.0f}" for kind in kinds)
                      for batch in batches)]
            for request in dict.fromkeys(point["request"] for point in points)]
    return table(["request", *(f"B = {batch}" for batch in batches)], rows)


def over_plain():
    """One row a request and kind of rows: percent over the plain draw, from bench_requests."""
    points = [point for point in load("cuda-h200-requests")["requests"]
              if point["table"] == "over plain"]
    over = {(p["request"], p["rows"], p["batch"]): 100 * (median(p) / p["plain_us"] - 1)
            for p in points}
    batches = sorted({point["batch"] for point in points})
    kinds = dict.fromkeys((point["request"], point["rows"]) for point in points)
    rows = [[*kind, *(f"{over[*kind, batch]:+.1f}%" for batch in batches)] for kind in kinds]
    return table(["request", "rows", *(f"B = {batch}" for batch in batches)], rows)


def drafts():
    """One row a shape of drafts, from bench_verify."""
    rows = []
    for point in load("cuda-h100-drafts")["results"]:
        cells = [f"{median(point[way]):.0f}" if way in point else ""
                 for way in ("plain", "coupled", "rejection", "kept", "supplied", "block")]
        ratio = median(point["coupled"]) / median(point["plain"])
        requests, drafts = point["requests"], point["drafts"]
        rows.append(["head" if point["way"] == "fused" else "logits", requests, drafts,
                     requests * (drafts + 1), *cells[:2], f"{ratio:.2f}", *cells[2:]])
    return table(["from", "requests", "drafts", "rows", "plain draw", "coupled",
                  "coupled / plain", "rejection", "rejection, logits kept",
                  "rejection, supplied", "block"], rows)


def drafts_source():
    results = load("cuda-h100-drafts")
    return (f"Commit {results['commit']}, V = {results['vocab']}, D = {results['hidden']}, the "
            f"draft's D = {results['draft_hidden']}, medians in microseconds.\n")


VERIFIERS = {"plain": "plain draw", "coupled": "coupled", "supplied": "rejection, supplied",
             "kept": "rejection, logits kept", "head": "rejection",
             "torch": "rejection by PyTorch, compiled", "flashinfer": "FlashInfer"}


def verify_peers():
    """Verification beside peers, from bench_verify_peers: one row a shape of drafts."""
    results = newest("verify-peers")
    if results is None:
        return ""
    rows = []
    for point in results["verify_peers"]:
        found = point["contestants"]
        cells = [f"{median(found[name]['time']):.0f}" if name in found else ""
                 for name in VERIFIERS]
        over = [point[f"fastest_peer_vs_{name}"] for name in ("coupled", "supplied")]
        rows.append([point["requests"], point["drafts"], point["rows"], *cells,
                     *("" if ratio is None else f"{ratio:.2f}" for ratio in over)])
    return ("From hidden states to emitted tokens, microseconds:\n\n" +
            table(["requests", "drafts", "rows", *VERIFIERS.values(), "fastest peer / coupled",
                   "fastest peer / supplied"], rows))


def verify_peers_source():
    results = newest("verify-peers")
    if results is None:
        return ""
    versions = results["versions"]
    flashinfer = versions.get("flashinfer-python", "none")
    return (f"Commit {results['commit']}, {results['gpu']}, torch {versions['torch']}, FlashInfer "
            f"{flashinfer}, V = {results['vocab']},\nD = {results['hidden']}, the draft's D = "
            f"{results['draft_hidden']}; graph replays, medians of {results['rounds']}.\n")


CONTESTANTS = {"stock": "stock", "logits": "from logits", "fused": "fused"}


def transformers(way, contestants):
    """A way to generate texts, from bench_transformers: one row a model, request and batch."""
    results = newest("transformers")
    if results is None:
        return ""
    rows = []
    points = [point for point in results["transformers"] if point["way"] == way]
    for point in sorted(points, key=lambda p: (p["model"], p["request"], p["batch"])):
        row = [point["model"], point["request"], point["batch"]]
        row += [f"{median(point[name]) / 1e3:.2f}" if name in point else ""
                for name in contestants]
        ratio = point.get("fused_vs_stock")
        row.append(f"{100 * (ratio - 1):+.1f}%" if ratio else "")
        if way == "step":
            shares = [point.get(f"{name}_percent_of_head_and_draw") for name in ("stock", "fused")]
            row.append(" / ".join(f"{share:.0f}%" for share in shares if share is not None))
        rows.append(row)
    heads = ["model", "request", "sequences", *(CONTESTANTS[name] for name in contestants),
             "time, fused vs stock"]
    return table(heads + ["share of head and draw, stock / fused"] * (way == "step"), rows)


def transformers_source():
    results = newest("transformers")
    if results is None:
        return ""
    versions, request = results["versions"], results["request_parameters"]["top_k, top_p"]
    lacking = len(results["skipped"])
    with_memory = [p for p in results["transformers"]
            if {"stock_peak_bytes", "fused_peak_bytes"} <= p.keys()]
    most = max(with_memory, key=lambda p: p["stock_peak_bytes"], default=None)
    commits = sorted({p.get("commit", results["commit"]) for p in results["transformers"]})
    text = (f"{stamp(results, commits)}, one {results['gpu']}, torch {versions['torch']}, "
            f"transformers {versions['transformers']}; medians.\n\"top_k, top_p\" is "
            f"T = {request['temperature']}, k = {request['top_k']}, p = {request['top_p']}; "
            "\"plain\" is T = 1.\n")
    if most:
        stock, fused = (most[f"{name}_peak_bytes"] >> 20 for name in ("stock", "fused"))
        text += (f"Beside the weights {most['batch']} texts of {most['model']} need at most "
                 f"{stock} MiB by stock, and {fused} MiB fused.\n")
    return text + (f"{lacking} measurements are missing; the results name them.\n" if lacking
                   else "")


def vllm(section):
    """A table of vLLM on a GPU; empty without a results file or without points."""
    results = newest("vllm")
    heads, rows = section(results) if results else ([], [])
    return table(heads, rows) if rows else ""


def vllm_source():
    results = newest("vllm")
    return vllm_tables.source(results) if results else ""


def post():
    """Draws from logits over the shapes of a post, from bench_post: one row a contestant."""
    results = newest("post")
    if results is None:
        return ""
    places = results["post"]
    rows = []
    for name, about in results["contestants"].items():
        times = [place["contestants"].get(name) for place in places]
        rare = results["rare_tokens"].get(name)
        if any(times):
            cells = (f"{median(one['time']):.0f}" if one else "" for one in times)
            rows.append([about["about"], *cells, about["draws"], "" if rare is None else rare])
    heads = [f"{p['rows']} x {p['vocab']:,}, {p['dtype']}" for p in places]
    expected = results["rare_tokens"]["expected"]
    return table(["sampler", *heads, "distribution drawn from",
                  f"rare tokens ({expected:.0f} expected)"], rows)


def post_source():
    results = newest("post")
    if results is None:
        return ""
    return (f"{stamp(results)}, one {results['gpu']}, torch "
            f"{results['versions']['torch']}; medians of {results['rounds']} rounds in turns.\n")


def requests_source():
    results = load("cuda-h200-requests")
    return f"{stamp(results)}, one {results['gpu']}, V = 151936, D = 4096, bf16.\n"


PERFORMANCE = "docs/performance"
PAGES = {
    "README.md": {"headline": headline},
    f"{PERFORMANCE}/cpu.md": {
        "cpu-logits": cpu_logits, "cpu-logits-source": cpu_logits_source, "cpu": cpu,
        "cpu-source": cpu_source, "cpu-draw": cpu_draw, "cpu-draw-source": cpu_draw_source},
    f"{PERFORMANCE}/cuda.md": {
        "h200": lambda: on_gpu("cuda-h200"), "h200-source": lambda: on_gpu_source("cuda-h200"),
        "h100": lambda: on_gpu("cuda-h100"), "h100-source": lambda: on_gpu_source("cuda-h100"),
        "requests-logits": lambda: requests("logits"),
        "requests-fused": lambda: requests("fused"),
        "over-plain": over_plain, "requests-source": requests_source,
        "screen-formats": screen_tables.format_screens},
    f"{PERFORMANCE}/peers.md": {"peers": peers, "peers-source": peers_source, "post": post,
                                "post-source": post_source},
    f"{PERFORMANCE}/several_gpus.md": {
        "ranks": rank_tables.format_draws, "ranks-source": rank_tables.format_source,
        "ranks-flashsampling": rank_tables.format_flashsampling},
    f"{PERFORMANCE}/engines.md": {
        "step": lambda: transformers("step", ("stock", "logits", "fused")),
        "generate": lambda: transformers("generate", ("stock", "logits", "fused")),
        "generate_batch": lambda: transformers("generate_batch", ("stock", "fused")),
        "transformers-source": transformers_source},
    f"{PERFORMANCE}/vllm_on_gpu.md": {
        "vllm-source": vllm_source, "vllm-times": lambda: vllm(vllm_tables.times),
        "vllm-kernels": lambda: vllm(vllm_tables.kernels),
        "vllm-host": lambda: vllm(vllm_tables.host_times),
        "vllm-memory": lambda: vllm(vllm_tables.memory)},
    "docs/guides/float32_logits.md": {
        "float32-answer": float32_tables.answer, "float32-tokens": float32_tables.tokens,
        "float32-ratios": float32_tables.ratios, "float32-truncated": float32_tables.truncated,
        "float32-replay": float32_tables.replay, "float32-models": float32_tables.models,
        "float32-source": float32_tables.source},
    "docs/guides/speculative_decoding.md": {"draft-costs": draft_tables.costs},
    "findings/drafts.md": {"drafts": drafts, "drafts-source": drafts_source,
                           "verify-peers": verify_peers,
                           "verify-peers-source": verify_peers_source},
    "findings/ranks.md": {"rank-shards": rank_tables.format_shards,
                          "rank-model": rank_tables.format_model_errors,
                          "rank-predictions": rank_tables.format_predictions},
    "docs/kernels.md": {"products": rung_tables.products_ladder, "rows": rung_tables.rows_ladder,
                        "other-gpus": rung_tables.other_gpus,
                        "rungs-source": rung_tables.rungs_source},
}


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    for page, tables in PAGES.items():
        path = ROOT / page
        text = path.read_text()
        found = [match[2] for match in MARKED.finditer(text)]
        if sorted(found) != sorted(tables):
            sys.exit(f"{page} has the tables {found}, expected are {list(tables)}")
        fresh = MARKED.sub(lambda match: match[1] + tables[match[2]]() + match[3], text)
        if sys.argv[1:] and fresh != text:
            sys.exit(f"{page}: its tables are not those of today; run bench/tables.py")
        if not sys.argv[1:]:
            path.write_text(fresh)


if __name__ == "__main__":
    main()
