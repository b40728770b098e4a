# SPDX-License-Identifier: Apache-2.0
"""Plot and table of bench_screen_formats: the time of draws over that of cuBLAS's product."""

import dataclasses

from result_tables import RESULTS, load, stamp, table

QUESTION = "screen-formats"
HIDDEN_SIZES = 4096, 8192
HEAD, REQUEST = "Gaussian", "none"
# The ways to draw, each with its label and colour.
LINES = {
    "full": ("full pass", "#0072B2"),
    "bytes": ("screen of bytes", "#009E73"),
    "nibbles": ("screen of nibbles", "#D55E00"),
}


@dataclasses.dataclass
class Screens:
    """A file of times of draws with screens."""

    machine: str
    commit: str
    vocab: int
    rows: list  # {d, b, head, rules, gemm, full, bytes, nibbles}


def read_screens(data):
    """The measurements of a file of bench_screen_formats; None for other files."""
    rows = data.get("rows", [])
    if not rows or not {"gemm", *LINES} <= rows[0].keys():
        return None
    return Screens(data["gpu"], data["commit"], data["vocab"], rows)


def select_rows(rows, hidden_size):
    """The rows that plot and table show, by batch size."""
    found = [r for r in rows if (r["d"], r["head"], r["rules"]) == (hidden_size, HEAD, REQUEST)]
    return sorted(found, key=lambda row: row["b"])


def get_median_us(row, way):
    _, median, _ = row[way]
    return median


def divide_medians(row, way):
    return get_median_us(row, way) / get_median_us(row, "gemm")


def draw_screens(pyplot, results):
    """Plots the time over that of cuBLAS's product: a panel per hidden size, a line per way."""
    found = results[0]
    sizes = [size for size in HIDDEN_SIZES if select_rows(found.rows, size)]
    figure, panels = pyplot.subplots(
        1, len(sizes), figsize=(4.4 * len(sizes), 4.2), squeeze=False, sharey=True
    )
    for axes, size in zip(panels[0], sizes):
        rows = select_rows(found.rows, size)
        batches = [row["b"] for row in rows]
        axes.axhline(1, color="#999999", linestyle="--", label="cuBLAS's product, no draw")
        for way, (label, colour) in LINES.items():
            ratios = [divide_medians(row, way) for row in rows]
            axes.plot(batches, ratios, color=colour, marker="o", markersize=3, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.minorticks_off()
        axes.set_xlabel("rows in the batch")
        axes.set_title(f"V = {found.vocab}, D = {size}")
    panels[0][0].set_ylim(bottom=0)
    panels[0][0].set_ylabel("time / that of cuBLAS's product")
    figure.suptitle(f"{found.machine}, commit {found.commit}", fontsize="medium")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.11, 1, 1))
    return figure


def format_screens():
    """Sources, plots and tables of all results."""
    paths = sorted(RESULTS.glob(f"cuda-*-{QUESTION}.json"))
    return "\n".join(format_results(path.stem) for path in paths)


def format_results(name):
    """Source, plot and table of a file of results."""
    results = load(name)
    cells = [
        [size, row["b"], f"{get_median_us(row, 'gemm'):.0f}",
         *(f"{get_median_us(row, way):.0f} ({divide_medians(row, way):.2f})" for way in LINES)]
        for size in HIDDEN_SIZES
        for row in select_rows(results["rows"], size)
    ]  # fmt: skip
    heads = ["D", "B", "cuBLAS", *(f"{label} (/ cuBLAS)" for label, _ in LINES.values())]
    return (f"{stamp(results)}, one {results['gpu']}, `{name}.json`: V = {results['vocab']}, "
            f"bfloat16, {HEAD} head,\nno truncation; medians in microseconds, each call after a "
            "norm.\n\n"
            f"![time of a draw over that of cuBLAS's product](../plots/{name}.svg)\n\n" +
            table(heads, cells))  # fmt: skip
