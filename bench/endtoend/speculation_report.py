# SPDX-License-Identifier: Apache-2.0
"""The tables that bench_speculation.py prints last."""


def print_table(titles, rows):
    rows = [titles, *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(titles))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


def list_parts(parts, drafts):
    """Microseconds of a cycle's draft steps, draws of drafts, target step, and verification; then
    of a draw, the draws of drafts, and the verification without the library. None: not measured."""
    draft = parts["draft, 2 tokens"] + (drafts - 1) * parts["draft, 1 token"]
    draws = [parts.get(f"{name}draft's draw") for name in ("", "torch: ")]
    draws = [None if one is None else drafts * one for one in draws]
    return [draft, draws[0], parts["target, all nodes"], parts["verify"], parts.get("torch: draw"),
            draws[1], parts.get("torch: verify")]


def format_number(number, scale=1.0):
    return "-" if number is None else f"{number * scale:.3f}"


def print_parts(wholes):
    print("\nmilliseconds; 'torch' is decoding without the library")
    titles = ["batch", "drafts", "plain", "of it draw", "draft steps", "draft draws", "target",
              "verify", "torch: draw", "draft draws", "verify", "torch / ours, plain", "cycle",
              "plain tokens that differ"]
    rows = []
    for one in wholes:
        parts = one["parts_us"]
        times = [one["plain"]["median_us"], parts["draw"], *list_parts(parts, one["drafts"])]
        ratios = [one.get(f"torch_{name}_vs_{name}") for name in ("plain", "cycle")]
        rows.append([str(one["batch"]), str(one["drafts"]),
                     *(format_number(time, 1e-3) for time in times), *map(format_number, ratios),
                     f"{one['plain_differing']} of {one['plain_written']}"])
    print_table(titles, rows)
    failed = {(name, why) for one in wholes for name, why in one["torch_failed"].items()}
    for name, why in sorted(failed):
        print(f"skipped: {name}: {why}")


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
