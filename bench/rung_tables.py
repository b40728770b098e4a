# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/kernels.md: the rungs of src/cuda/plan/, with measured times."""

import re

from result_tables import ROOT, load, median, stamp, table

RUNGS = [ROOT / "src" / "cuda" / "plan" / name
         for name in ("cuda_refusals.h", "cuda_row_refusals.c", "cuda_product_rungs.c",
                      "cuda_row_rungs.c")]
RUNG = re.compile(r"\.name = (\"[^\"]+\"),\s*\.method =\s+((?:\"[^\"]*\"\s*)+),\s*"
                  r"\.kernels =\s+((?:\"[^\"]*\"\s*)+),\s*\.supports =\s+(.*?)"
                  r"(?:,\s*\.requires_any =\s+(.*?))?\},", re.DOTALL)
REFUSES = re.compile(r"\.refuses = (\w+)")
REFUSAL = r"const char \*%s\([^;]*?\)\s*\{(.*?)\n\}"
# The words that a table has for capabilities: for sets of them, and for single ones.
SETS = {
    "GUMBEL_FEATURE_TRANSFORMS": ["mask", "banned", "bias", "penalties"],
    "GUMBEL_CAPABILITIES_OF_TRUNCATION": ["min_p", "top_k", "top_p", "joint", "min_p last",
                                          "exact ties"],
}
WORDS = {
    "GUMBEL_CAPABILITY_LISTS": "lists", "GUMBEL_CAPABILITY_EXACT": "exact ties",
    "GUMBEL_CAPABILITY_MASS": "log-normaliser", "GUMBEL_CAPABILITY_NOISE": "given noise",
    "GUMBEL_CAPABILITY_SOFT_CAP": "soft-cap", "GUMBEL_CAPABILITY_SCALE": "scale <= 0",
    "GUMBEL_CAPABILITY_BIAS": "head bias", "GUMBEL_CAPABILITY_SUMMARIES": "summaries",
    "GUMBEL_CAPABILITY_ROWS": "processed logits", "GUMBEL_CAPABILITY_PRODUCT": "product alone",
    "GUMBEL_CAPABILITY_EMPTY": "shard of padding", "GUMBEL_FEATURE_TOP": "num_top",
    "GUMBEL_FEATURE_GIVEN": "given tokens", "GUMBEL_FEATURE_BEST": "num_best",
    "GUMBEL_FEATURE_LOGITS": "top_logits", "GUMBEL_FEATURE_TRUNCATION": None,
    "GUMBEL_FEATURE_PROGRAM": "programs",
}


def capability_words(expression, text):
    """The words of a C expression of capabilities, without those after "& ~"."""
    defined = re.findall(r"#define (CAPABILITIES_OF_\w+)\s+\\?\s*\((.*?)\)\n", text, re.DOTALL)
    for name, body in defined:
        expression = expression.replace(name, body)
    if "GUMBEL_CAPABILITY_END - 1" in expression:
        left_out, *added = expression.split("GUMBEL_CAPABILITY_END - 1")[1].split("|")
        words = capability_words(left_out, text).split(", ")
        again = capability_words("|".join(added), text).split(", ")
        left_out = ", ".join(word for word in words if word not in again)
        return "all" + (f" except {left_out}" if left_out else "")
    without = re.findall(r"&\s*~(GUMBEL_\w+)", expression)
    words = []
    for name in re.findall(r"GUMBEL_\w+", expression):
        if name not in without:
            plain = name.split("_", 2)[2].lower()
            words += SETS.get(name, [WORDS.get(name, plain)])
    gone = [WORDS.get(name, name.split("_", 2)[2].lower()) for name in without]
    return ", ".join(dict.fromkeys(word for word in words if word and word not in gone))


def joined(literals):
    return "".join(re.findall(r'"([^"]*)"', literals))


def reasons(function, text, rungs_of):
    """Why a function of C refuses calls: its own reasons, and those of the functions that it calls,
    or "as RUNG" if a rung refuses by such a function. Conditions are not followed."""
    body = re.search(REFUSAL % function, text, re.DOTALL)[1]
    for reason, called, problem in re.findall(
            r'(?:return|:|\?)\s+"([^"]+)"|(?:return|=|:)\s+(\w+)\((?:cuda, )?(&?)', body):
        if reason:
            yield reason
        elif called in rungs_of:  # a copy of the problem has one sample
            yield f"as {rungs_of[called]}" + (", except samples" if problem else "")
        elif "refuse" in called:
            yield from reasons(called, text, rungs_of)


def rungs():
    """Yields, for the rungs of products and of rows, a row of the table for each rung."""
    text = "".join(path.read_text() for path in RUNGS)
    products, rows = text.split("cuda_products[CUDA_PRODUCTS]")[1].split(
        "cuda_row_rungs[CUDA_ROW_RUNGS]")
    parts = [[(RUNG.match(block.strip()), REFUSES.search(block))
              for block in part.split(".rung = {")[1:]] for part in (products, rows)]
    rungs_of = {}
    for found, why in (*parts[0], *parts[1]):
        if why:
            rungs_of.setdefault(why[1], joined(found[1]))
    for part in parts:
        entries = []
        for found, why in part:
            others = {f: rung for f, rung in rungs_of.items() if not why or f != why[1]}
            refusals = dict.fromkeys(reasons(why[1], text, others) if why else [])
            serves = capability_words(found[4], text)
            if found[5]:
                serves += f"; only with {capability_words(found[5], text)}"
            entries.append([joined(found[1]), joined(found[2]), joined(found[3]), serves,
                            "; ".join(refusals) or "-"])
        yield entries


def worth(name):
    """The times of requests with and without a rung, in microseconds."""
    cells = []
    for point in load("cuda-h200-rungs")["rungs"]:
        if point["rung"] == name:
            way = "head" if point["way"] == "fused" else "logits"
            cells.append(((point["request"], way),
                          f"B = {point['batch']}: {median(point['with_it']):.0f} / "
                          f"{median(point['without_it']):.0f}"))
    groups = {}
    for key, cell in cells:
        groups.setdefault(key, []).append(cell)
    return "; ".join(f"{request}, {way}: " + ", ".join(cells) for (request, way), cells
                     in groups.items()) or "-"


def ladder(entries):
    return table(["rung", "method", "kernels", "supported capabilities", "not used if",
                  "us with / without the rung"],
                 [[f"`{name}`", what, kernels, serves, refusals, worth(name)]
                  for name, what, kernels, serves, refusals in entries])


def products_ladder():
    return ladder(next(iter(rungs())))


def rows_ladder():
    return ladder(list(rungs())[1])


def other_gpus():
    """The times on one GPU of the rungs that other GPUs use."""
    points = load("cuda-h200-rungs")["gpus"]
    times = {(p["gpu"], p["request"], p["way"], p["batch"]): median(p["time"]) for p in points}
    gpus = list(dict.fromkeys(p["gpu"] for p in points))
    batches = sorted({p["batch"] for p in points})
    rows = [[request, "head" if way == "fused" else "logits",
             *(" / ".join(f"{times[gpu, request, way, batch]:.0f}" for batch in batches)
               for gpu in gpus)]
            for way in ("logits", "fused")
            for request in dict.fromkeys(p["request"] for p in points)]
    heads = [f"{gpu}, B = {' / '.join(map(str, batches))}" for gpu in gpus]
    return table(["request", "from", *heads], rows)


def rungs_source():
    results = load("cuda-h200-rungs")
    return (f"{stamp(results)}, one {results['gpu']}, V = {results['vocab']}, "
            f"D = {results['hidden']}, medians in microseconds.\n")
