# SPDX-License-Identifier: Apache-2.0
"""The README's chart, which bench/plot.py draws, and its table of headline measurements, which
bench/tables.py writes. Each figure is computed from a file of bench/results/."""

import json
import pathlib

RESULTS = pathlib.Path(__file__).resolve().parent / "results"

# The chart: a result file, one of its shapes, and a label and colour for each series shown.
CHART = "cuda-h200-peers"
CHART_SHAPE = 151936, 4096
CHART_BATCHES = 256
CHART_LINES = {
    "gemm_softmax_multinomial_compiled": ("cuBLAS, softmax, multinomial", "#009E73"),
    "flashsampling": ("FlashSampling", "#CC79A7"),
    "gemm_flashinfer": ("cuBLAS, then FlashInfer", "#0072B2"),
    "fused": ("libgumbel: product and draw", "#D55E00"),
    "gemm": ("cuBLAS alone, nothing drawn", "#555555"),
}


def space_labels(heights, gap):
    """Raises labels until their heights are at least `gap` apart; keeps their order."""
    order = sorted(range(len(heights)), key=lambda at: heights[at])
    spaced = list(heights)
    for below, at in zip(order, order[1:]):
        spaced[at] = max(spaced[at], spaced[below] + gap)
    return spaced


def draw_chart(pyplot, results):
    """Plots time over the batch: one line per contestant, with its label at the right end."""
    times = results[0].times[CHART_SHAPE]
    lines = [[(batch, us) for batch, us in sorted(times[name].items()) if batch <= CHART_BATCHES]
             for name in CHART_LINES]  # fmt: skip
    largest = max(us for line in lines for _, us in line)
    batches = [batch for batch, _ in lines[0]]
    label_heights = space_labels([line[-1][1] for line in lines], largest / 15)
    figure, axes = pyplot.subplots(figsize=(8.4, 4.2))
    for line, label_height, (label, colour) in zip(lines, label_heights, CHART_LINES.values()):
        ours = label.startswith("libgumbel")
        axes.plot(*zip(*line), color=colour, linewidth=3 if ours else 1.6, marker="o",
                  markersize=5 if ours else 3.5, zorder=3 if ours else 2)  # fmt: skip
        axes.text(batches[-1] * 1.12, label_height, label, color=colour, va="center", fontsize=11,
                  fontweight="bold" if ours else "normal")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.set_xlim(right=batches[-1] * 1.05)
    axes.set_ylim(0, 1.06 * largest)
    axes.set_xlabel("rows in the batch")
    axes.set_ylabel("microseconds")
    axes.yaxis.set_major_formatter(lambda us, _: f"{us:,.0f}")
    axes.set_title("Time of LM head and draw in a decode step (lower is better)", loc="left")
    machine, commit, (vocab, hidden) = results[0].machine, results[0].commit, CHART_SHAPE
    figure.text(0.99, 0.015, f"V = {vocab}, D = {hidden}, bfloat16, {machine}, commit {commit}",
                ha="right", fontsize=8, color="#555555")  # fmt: skip
    figure.subplots_adjust(left=0.09, right=0.66, top=0.91, bottom=0.16)
    return figure


# --------------------------------------------------------------------------- headline table ----


def load_results(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def get_median_us(way):
    return way["median_us"]


def format_range(ratios, form="{:.2f}"):
    """The range of some ratios."""
    low, high = form.format(min(ratios)), form.format(max(ratios))
    return low if low == high else f"{low} to {high}"


def format_cpu_logits():
    points = [p for p in load_results("cpu-logits-peers")["results"] if p["threads"] == 1]
    ratios = [p["processor"]["torch_over_gumbel"]["median"] for p in points]
    return format_range(ratios, "{:.0f}") + " times as fast"


def format_cpu_product():
    results = load_results("cpu-bf16-d4096")["results"]
    over = [100 * (r["ways"]["fused draw"]["vs_product"] - 1) for r in results]
    return f"{min(over):+.1f}% to {max(over):+.1f}% time"


def format_cpu_screen():
    ratios = [r["ratio"] for r in load_results("cpu-screen-nested-d4096")["rows"]
              if (r["batch"], r["truncation"], r["format"]) == (1, "none", "nibbles")]  # fmt: skip
    return format_range(ratios, "{:.1f}") + " times as fast"


def format_gpu_fused():
    rows = [r for r in load_results("cuda-h100")["fused"] if r["batch"] <= 128]
    ratios = [get_median_us(r["fused"]) / get_median_us(r["gemm"]) for r in rows]
    return format_range(ratios) + " of its time"


def format_gpu_screen():
    rows = [r for r in load_results("cuda-h100-screen-formats")["rows"]
            if (r["d"], r["rules"]) == (4096, "none") and r["b"] <= 16]  # fmt: skip
    return format_range([r["nibbles"][1] / r["gemm"][1] for r in rows]) + " of its time"


def format_gpu_flashinfer():
    rows = [r for r in load_results("cuda-h200-peers")["fused"] if r["batch"] <= 128]
    ratios = [get_median_us(r["gemm_flashinfer"]) / get_median_us(r["fused"]) for r in rows]
    return format_range(ratios) + " times as fast"


def list_text_points():
    """The measured points of generate() with top_k and top_p."""
    return [p for p in load_results("cuda-h100-transformers")["transformers"]
            if (p["way"], p["request"]) == ("generate", "top_k, top_p")]  # fmt: skip


def format_texts():
    savings = [100 * (1 - p["fused_vs_stock"]) for p in list_text_points()]
    return format_range(savings, "{:.0f}%") + " less time"


def format_llama():
    ratios = load_results("cpu-llama")["results"][0]["ratios"]
    return f"{ratios['a token from the row']:.1f} times as fast"


def format_ranks():
    results = load_results("cuda-h200-ranks-4")
    rows = [r for r in results["rows"] + results["earlier_rows"] if r["B"] <= 64]
    return format_range([r["peers_us"] - r["shard_us"] for r in rows], "{:.0f}") + " us more"


# A file of results, the comparison in it, the result, and the machine.
HEADLINES = [
    ("cpu-logits-peers", "CPU, one thread: 1 to 64 rows of logits, vs "
     "`torch.multinomial(softmax)`", format_cpu_logits, "Xeon, 2 cores"),
    ("cpu-bf16-d4096", "CPU: head and draw of 1 to 16 rows, D = 4096, vs the product alone",
     format_cpu_product, "Xeon, 2 cores"),
    ("cpu-screen-nested-d4096", "CPU: head and draw of one row with a screen (nibbles), vs without",
     format_cpu_screen, "EPYC, 2 cores"),
    ("cpu-llama", "CPU: `gumbel_llama_sample()`, vs llama.cpp's own chain", format_llama,
     "EPYC, 1 core"),
    ("cuda-h100", "GPU: head and draw of 1 to 128 rows, vs cuBLAS's product alone",
     format_gpu_fused, "H100"),
    ("cuda-h100-screen-formats", "GPU: 1 to 16 rows, D = 4096, with a screen (nibbles), vs "
     "cuBLAS's product alone", format_gpu_screen, "H100"),
    ("cuda-h200-peers", "GPU: head and draw of 1 to 128 rows, vs cuBLAS and FlashInfer",
     format_gpu_flashinfer, "H200"),
    ("cuda-h100-transformers", "GPU: `generate()` of transformers with top_k and top_p, vs "
     "stock", format_texts, "H100"),
    ("cuda-h200-ranks-4", "Four GPUs, peer memory: 1 to 64 rows, vs a draw of one shard",
     format_ranks, "four H200"),
]  # fmt: skip
COLUMNS = ["measured", "result", "machine", "date, commit", "file of `bench/results/`"]


def list_table_rows():
    """One row for each existing file."""
    for name, what, figure, machine in HEADLINES:
        if (RESULTS / f"{name}.json").is_file():
            results = load_results(name)
            points = list_text_points() if figure is format_texts else [results]
            commits = ", ".join(sorted({p.get("commit", results["commit"]) for p in points}))
            yield [what, figure(), machine, f"{results['date']}, {commits}", f"`{name}.json`"]
