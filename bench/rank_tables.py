# SPDX-License-Identifier: Apache-2.0
"""Plot, tables and time model of bench_ranks: draws over 1, 2 and 4 GPUs of one host."""

import dataclasses
import math
import statistics

from result_tables import load, stamp, table

FILES = {ranks: f"cuda-h200-ranks-{ranks}" for ranks in (1, 2, 4)}
# The ways to draw over ranks, each with its label, colour and bytes a rank and row of its exchange.
WAYS = {
    "peers": ("peer memory", "#D55E00", 48),
    "nccl": ("NCCL", "#E69F00", 48),
    "peers_k50_p95": ("k, p, peer memory", "#0072B2", 516),
    "nccl_k50_p95": ("k, p, NCCL", "#56B4E9", 516),
}
PLOTTED_BATCHES = 1, 16, 64
GATHER, SHARD = "gather", "shard"

# FlashSampling's own measurements on B200: microseconds by shape and number of ranks.
FLASHSAMPLING_B200 = {
    (151936, 4096): {1: (139, 96, 95), 8: (145, 102, 95), 64: (156, 114, 129)},
    (128256, 8192): {1: (200, 121, 84), 8: (205, 127, 88), 64: (216, 136, 96)},
}

# Assumed times between hosts of 8 GPUs; they were not measured.
GPUS_OF_HOST = 8
STEP_US = 5
BYTES_PER_US = 50_000


@dataclasses.dataclass
class Ranks:
    """A file of bench_ranks."""

    machine: str
    commit: str
    ranks: int
    rows: list  # {V, D, B, shard_us, gather_us, nccl_us, ...}


def read_ranks(data):
    """The measurements of a file of bench_ranks; None for other files."""
    rows = data.get("rows", [])
    if not rows or not {"shard_us", "gather_us"} <= rows[0].keys():
        return None
    return Ranks(data["machine"], data["commit"], data["ranks"], rows)


def index_rows(results):
    """Rows of several files by (V, D, B) and number of ranks."""
    found = {}
    for each in results:
        for row in each.rows:
            found.setdefault((row["V"], row["D"], row["B"]), {})[each.ranks] = row
    return found


def load_rows():
    return index_rows([read_ranks(load(name)) for name in FILES.values()])


def add_to_shard(row, way):
    """Microseconds that a draw takes beyond one shard's plain draw."""
    return row[f"{way}_us"] - row["shard_us"]


# -------------------------------------------------------------------------------------- plot ----


def draw_ranks(pyplot, results):
    """Plots time over the number of ranks: a panel per shape and batch size, a line per way."""
    found = index_rows(results)
    shapes = list(dict.fromkeys(place[:2] for place in found))
    figure, panels = pyplot.subplots(
        len(shapes), len(PLOTTED_BATCHES), figsize=(9.6, 6.2), squeeze=False, sharey="row"
    )
    for line, (vocab, hidden) in zip(panels, shapes):
        for axes, batch in zip(line, PLOTTED_BATCHES):
            draw_panel(axes, found[vocab, hidden, batch])
            axes.set_title(f"V = {vocab}, D = {hidden}, B = {batch}")
        line[0].set_ylim(bottom=0)
        line[0].set_ylabel("microseconds")
    for axes in panels[-1]:
        axes.set_xlabel("GPUs")
    machine, commits = results[0].machine, sorted({each.commit for each in results})
    figure.suptitle(f"{machine}, commit {', '.join(commits)}", fontsize="medium")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure


def draw_panel(axes, rows):
    counts = sorted(rows)

    def plot(way, **style):
        axes.plot(counts, [rows[ranks][f"{way}_us"] for ranks in counts], markersize=3, **style)

    plot(GATHER, label="product and gather of logits, no draw", color="#555555", marker="s")
    for way, (label, colour, _) in WAYS.items():
        plot(way, label=f"draw: {label}", color=colour, marker="o")
    plot(SHARD, label="plain draw of one shard", color="#999999", linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(ranks) for ranks in counts])
    axes.minorticks_off()


# ------------------------------------------------------------------------------------- model ----


def fit_shard(rows):
    """(constant, time of the whole head) of a shard's draw, from the times for 1 and 4 ranks."""
    whole = (rows[1]["shard_us"] - rows[4]["shard_us"]) / (1 - 1 / 4)
    return rows[1]["shard_us"] - whole, whole


def fit_exchange(found, way):
    """Microseconds of an exchange in a host: the median over 2 and 4 ranks and up to 64 rows."""
    return statistics.median(
        add_to_shard(rows[ranks], way) - add_to_shard(rows[1], way)
        for (_, _, batch), rows in found.items()
        for ranks in (2, 4)
        if batch <= 64
    )


def predict_exchange(ranks, batch, way, in_host):
    """Microseconds of an exchange, by doubling between hosts."""
    beyond = max(0, ranks - GPUS_OF_HOST)
    if not beyond:
        return in_host
    steps = 2 * math.log2(ranks / GPUS_OF_HOST)
    return in_host + steps * STEP_US + beyond * WAYS[way][2] * batch / BYTES_PER_US


def predict_addition(found, place, ranks, way):
    """Microseconds beyond one shard's draw: what a group of one rank adds, and the exchange."""
    exchange = predict_exchange(ranks, place[2], way, fit_exchange(found, way))
    return add_to_shard(found[place][1], way) + exchange


def predict(found, place, ranks, way):
    """Microseconds of a draw over ranks."""
    constant, whole = fit_shard(found[place])
    return constant + whole / ranks + predict_addition(found, place, ranks, way)


# ------------------------------------------------------------------------------------ tables ----


def source():
    results = load(FILES[4])
    return (f"{stamp(results)}, four {results['machine']} of one host, "
            f"`{FILES[1]}.json`, `-2` and `-4`; medians\nin microseconds.\n")  # fmt: skip


def draws():
    """One row a shape, batch and number of ranks."""
    cells = [
        [f"{vocab}, {hidden}", batch, ranks, f"{row['shard_us']:.0f}", f"{row['gather_us']:.0f}",
         *(f"{add_to_shard(row, way):+.1f}" for way in WAYS)]
        for (vocab, hidden, batch), rows in load_rows().items()
        for ranks, row in sorted(rows.items())
    ]  # fmt: skip
    return table(["V, D", "B", "GPUs", "one shard", "product and gather of logits",
                  *(label for label, _, _ in WAYS.values())], cells)  # fmt: skip


def flashsampling():
    """One row a shape and batch: FlashSampling on B200 beside draws by peer memory on H200."""
    found = load_rows()
    cells = [
        [f"{shape[0]}, {shape[1]}", batch, " / ".join(map(str, theirs)),
         " / ".join(f"{found[*shape, batch][ranks]['peers_us']:.0f}" for ranks in (2, 4))]
        for shape, batches in FLASHSAMPLING_B200.items()
        for batch, theirs in batches.items()
    ]  # fmt: skip
    return table(["V, D", "B", "FlashSampling, 2 / 4 / 8 B200", "libgumbel, 2 / 4 H200"], cells)


def deviations():
    """One row a way: how far the model is from the measurements for 2 and 4 ranks."""
    found = load_rows()
    cells = []
    for way, (label, _, _) in WAYS.items():
        times, additions = [], []
        for place, rows in found.items():
            for ranks in (2, 4):
                row = rows[ranks]
                times.append(predict(found, place, ranks, way) / row[f"{way}_us"])
                addition = predict_addition(found, place, ranks, way)
                additions.append(addition / add_to_shard(row, way))
        cells.append([label, f"{fit_exchange(found, way):.1f}",
                      *(f"{min(ratios):.2f} to {max(ratios):.2f}"
                        for ratios in (times, additions))])  # fmt: skip
    return table(["draw", "exchange inside a host, us", "predicted / measured time",
                  "the same of the time beyond one shard"], cells)  # fmt: skip


def predictions():
    """One row a batch and way: predicted microseconds for more ranks, D = 4096."""
    found = load_rows()
    counts = 8, 16, 32, 64
    cells = [
        [batch, WAYS[way][0],
         *("-" if way.startswith("peers") and ranks > GPUS_OF_HOST else
           f"{predict(found, (151936, 4096, batch), ranks, way):.0f}" for ranks in counts)]
        for batch in PLOTTED_BATCHES
        for way in WAYS
    ]  # fmt: skip
    return table(["B", "draw", *(f"{ranks} ranks" for ranks in counts)], cells)
