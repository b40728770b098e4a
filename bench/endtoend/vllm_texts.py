# SPDX-License-Identifier: Apache-2.0
"""Are an engine's texts equal, alone and in batches, sent twice, and with the plug-in and without?

In float32 texts with the plug-in must be. In bfloat16 the products of different batch sizes round
differently, so that texts may part at a near tie; the reports then only count them.
"""

TOKENS = 32
ALONE = (0, 3, 7)  # rows of a batch of 8 that are also written alone
KINDS = ("greedy", "seeds", "seeds_top_k_top_p")
TOLERANCE = 2e-3  # between log-probabilities, in float32
COMPARED = {  # with stock: the kind, changes of its parameters, and the number of requests
    "greedy": ("greedy", {"logprobs": 5}, 8),
    "penalties": ("penalties", {"temperature": 0.0, "logprobs": 5}, 4),
}


def common_prefix(a, b):
    """How many tokens two texts have in common at their beginning."""
    return next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def compare(texts, others):
    """{"equal": number of equal texts, "of": all, "common": common tokens of each}."""
    common = [common_prefix(a, b) for a, b in zip(texts, others)]
    equal = sum(a == b for a, b in zip(texts, others))
    return {"equal": equal, "of": len(common), "common": common}


def check_engine(write):
    """Yields (kind, comparisons by name). `write(kind, rows, changes)` is an engine's result."""
    for kind in KINDS:
        batch = write(kind, range(8))["ids"]
        alone = [write(kind, [row])["ids"][0] for row in ALONE]
        yield kind, {
            "twice": compare(batch, write(kind, range(8))["ids"]),
            "alone": compare(alone, [batch[row] for row in ALONE]),
            "in_64": compare(batch, write(kind, range(64))["ids"][:8]),
        }


def logprob_gap(logprobs, token):
    """How much less likely than the likeliest listed token this one is; None: it is not listed."""
    listed = logprobs.get(str(token))
    return None if listed is None else round(max(logprobs.values()) - listed, 5)


def compare_engines(write_stock, write_plugin):
    """Yields (name, comparison) of texts with the plug-in and without."""
    for name, (kind, changes, requests) in COMPARED.items():
        stock = write_stock(kind, range(requests), changes)
        plugin = write_plugin(kind, range(requests), changes)
        found = compare(stock["ids"], plugin["ids"])
        found["gaps"] = [
            logprob_gap(stock["logprobs"][row][at], plugin["ids"][row][at])
            for row, at in enumerate(found["common"]) if at < len(stock["ids"][row])
        ]
        yield name, found
    differences, shared = [], 0
    for row in range(4):  # alone, as attention's float32 products differ between batches of prompts
        stock, plugin = (
            write("logprobs", [row])["logprobs"][0] for write in (write_stock, write_plugin)
        )
        both = stock[0].keys() & plugin[0].keys()  # of the first step, as texts may then part
        shared += len(both)
        differences += [abs(stock[0][token] - plugin[0][token]) for token in both]
    yield "logprobs", {"largest_difference": round(max(differences, default=0.0), 5),
                       "shared": shared}


def compare_drafts(write_plugin, write_drafts):
    """Yields (kind, comparison) of the plug-in's texts with n-gram drafts and without."""
    for kind in KINDS:
        plugin, drafts = (write(kind, range(8))["ids"] for write in (write_plugin, write_drafts))
        yield kind, {"with_drafts": compare(plugin, drafts)}


def find_faults(point):
    """Why the texts of a point are wrong in float32; an empty list if they are right."""
    if point["engine"] == "stock":
        return []
    found = point["found"]
    if point["engine"] != "plugin and stock":
        return [f"{name}: {each['equal']} of {each['of']} texts are equal"
                for name, each in found.items() if each["equal"] < each["of"]]
    if found.get("largest_difference", 0) > TOLERANCE:
        return [f"log-probabilities differ by {found['largest_difference']}"]
    wide = [gap for gap in found.get("gaps", []) if gap is None or gap > TOLERANCE]
    return [f"texts part where log-probabilities differ by {wide}"] if wide else []


def format_texts(point):
    single = {"equal", "largest_difference"} & point["found"].keys()
    named = {"": point["found"]} if single else point["found"]
    cells = []
    for name, each in named.items():
        if "equal" in each:
            parted = "" if each["equal"] == each["of"] else f" (common tokens {each['common']})"
            gaps = f", gaps {each['gaps']}" if each.get("gaps") else ""
            cells.append(f"{name} {each['equal']} of {each['of']} equal{parted}{gaps}".lstrip())
        else:
            cells.append(f"differ by at most {each['largest_difference']}, {each['shared']} shared")
    return f"{point['runner']} {point['engine']}, {point['request']}: {'; '.join(cells)}"
