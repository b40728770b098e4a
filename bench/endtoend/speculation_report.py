# SPDX-License-Identifier: Apache-2.0
"""The tables that bench_speculation.py prints last."""


def print_table(titles, rows):
    rows = [titles, *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(titles))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


def sum_parts(parts, drafts, prefix=""):
    """Milliseconds of a cycle's draft steps, draws of drafts, target step, and verification."""
    draft = parts["draft, 2 tokens"] + (drafts - 1) * parts["draft, 1 token"]
    times = (draft, drafts * parts[f"{prefix}draft's draw"], parts["target, all nodes"],
             parts[f"{prefix}verify"])
    return [time / 1e3 for time in times]


def print_parts(wholes):
    print("\nmilliseconds; 'torch' is decoding without the library")
    titles = ["batch", "drafts", "plain", "of it draw", "draft steps", "draft draws", "target",
              "verify", "torch: draw", "draft draws", "verify", "torch / ours, plain", "cycle",
              "plain tokens that differ"]
    rows = []
    for one in wholes:
        parts, drafts = one["parts_us"], one["drafts"]
        stock = sum_parts(parts, drafts, "torch: ")
        times = [one["plain"]["median_us"] / 1e3, parts["draw"] / 1e3, *sum_parts(parts, drafts),
                 parts["torch: draw"] / 1e3, stock[1], stock[3]]
        ratios = [one["torch_plain_vs_plain"], one["torch_cycle_vs_cycle"]]
        rows.append([str(one["batch"]), str(drafts), *(f"{time:.3f}" for time in times),
                     *(f"{ratio:.3f}" for ratio in ratios),
                     f"{one['plain_differing']} of {one['plain_written']}"])
    print_table(titles, rows)


def print_speed_ups(points):
    print("\nspeed-up by drafts, measured and predicted from the parts")
    titles = ["batch", "drafts", "rate", "tokens a cycle", "expected", "cycle, ms", "tokens/s",
              "plain tokens/s", "speed-up", "predicted", "ratio", "tokens that differ"]
    print_table(titles, [
        [str(p["batch"]), str(p["drafts"]), f"{p['accept_rate']:.1f}", f"{p['tokens_a_cycle']:.2f}",
         f"{p['tokens_a_cycle_expected']:.2f}", f"{p['cycle']['median_us'] / 1e3:.3f}",
         f"{p['tokens_a_second']:.0f}", f"{p['plain_tokens_a_second']:.0f}",
         f"{p['speed_up']:.3f}", f"{p['predicted']:.3f}", f"{p['measured_vs_predicted']:.3f}",
         f"{p['differing']} of {p['written']}"]
        for p in points
    ])


def print_report(points, wholes, skipped):
    for one in skipped:
        print(f"skipped: batch {one['batch']}, {one['drafts']} drafts: {one['reason']}")
    if points:
        print_parts(wholes)
        print_speed_ups(points)
