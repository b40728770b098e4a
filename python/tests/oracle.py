# SPDX-License-Identifier: Apache-2.0
"""The sampling contract in plain NumPy, float64 throughout; shares no code with the package."""

import numpy as np

WORD = np.uint64(0xFFFFFFFF)
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = 0x9E3779B9, 0xBB67AE85
BLOCK = 1 << 31  # set in `domain` for the words of blocks


def philox4x32(counter, key, rounds=10):
    """Salmon et al., SC 2011. counter: 4 arrays of words (or words), key: 2 words."""
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(rounds):
        p0, p1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        high0, low0, high1, low1 = p0 >> np.uint64(32), p0 & WORD, p1 >> np.uint64(32), p1 & WORD
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint64(k0), low1, high0 ^ c3 ^ np.uint64(k1), low0
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def words(counts, seed, position, sample, domain):
    """Philox's four words [4, n] of every first counter; a position's high half moves the seed."""
    if position >> 32:
        seed = row_seed(seed, 2**64 - 1 - (position >> 32))
    counts = np.asarray(counts, dtype=np.uint64)
    rest = [np.full(counts.shape, word) for word in (position & 0xFFFFFFFF, sample, domain)]
    return np.stack(philox4x32((counts, *rest), (seed & 0xFFFFFFFF, seed >> 32)))


def token_words(tokens, seed, position, sample=0, domain=0):
    """r and r2 of every token's block of 64, and its own word."""
    tokens = np.asarray(tokens, dtype=np.int64)
    each = np.arange(len(tokens))
    own = words(tokens // 4, seed, position, sample, domain)[tokens % 4, each]
    of_blocks = words(tokens // 128, seed, position, sample, domain | BLOCK)
    half = 2 * (tokens // 64 % 2)
    return of_blocks[half, each], of_blocks[half + 1, each], own


def exponential(r):
    """-log1p(-u) with u = (r + 0.5) / 2^32, from the nearer end of (0, 1)."""
    r = r.astype(float)
    low = np.minimum(r, 2.0**31)  # keeps the unused half finite
    return np.where(
        r < 2**31, -np.log1p(-(low + 0.5) * 2.0**-32), -np.log((float(WORD) - r + 0.5) * 2.0**-32)
    )


def noise(tokens, seed, position, sample=0, domain=0):
    """Standard Gumbel noise. A block's least exponential is by its words, for r < 256 with 26 bits
    of r2, whose other six name the token; every other token's is an exponential of its own more.
    """
    r, r2, own = token_words(tokens, seed, position, sample, domain)
    fine = (r.astype(float) * 2.0**32 + (r2 - r2 % np.uint64(64)).astype(float) + 32) * 2.0**-64
    least = np.where(r < 256, -np.log1p(-np.minimum(fine, 0.5)), exponential(r)) / 64
    above = np.where(np.asarray(tokens) % 64 == r2.astype(np.int64) % 64, 0, exponential(own))
    return -np.log(least + above)


def row_seed(seed, row):
    """seed XOR the SplitMix64 finaliser of row * 0x9E3779B97F4A7C15."""
    mask = 2**64 - 1
    x = row * 0x9E3779B97F4A7C15 & mask
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
    return seed ^ x ^ x >> 31


def draw(logits, temperature, seeds, positions, num_samples=1, scale=1.0, softcap=0.0):
    """tokens [B, S], logprobs [B, S], lse [B] of float64 logits [B, V]; one parameter a row."""
    batch, vocab = logits.shape
    y = scale * np.asarray(logits, dtype=float)
    if softcap:
        y = softcap * np.tanh(y / softcap)
    tokens = np.empty((batch, num_samples), dtype=np.int32)
    z = np.empty_like(y)
    for b in range(batch):
        greedy = temperature[b] == 0
        z[b] = y[b] if greedy else y[b] / temperature[b]
        for s in range(num_samples):
            g = 0.0 if greedy else noise(np.arange(vocab), seeds[b], positions[b], s)
            tokens[b, s] = np.argmax(z[b] + g)
    top = z.max(axis=1)
    lse = top + np.log(np.exp(z - top[:, None]).sum(axis=1))
    return tokens, np.take_along_axis(z, tokens.astype(int), axis=1) - lse[:, None], lse


def edit(y, mask=None, allowed=(), banned=(), bias=None, prompt=(), output=(), penalties=(1, 0, 0)):
    """Transformed logits of one row before the temperature, from y = softcap(scale * l)."""
    y = np.array(y, dtype=float)
    tokens = np.arange(len(y))
    if mask is not None:
        y[(np.asarray(mask)[tokens >> 5] >> (tokens & 31)) & 1 == 0] = -np.inf
    if len(allowed):
        y[~np.isin(tokens, allowed)] = -np.inf
    y[list(banned)] = -np.inf
    for token, value in (bias or {}).items():
        y[token] += value
    repetition, frequency, presence = penalties
    seen = sorted({*prompt, *output})
    y[seen] = np.where(y[seen] > 0, y[seen] / repetition, y[seen] * repetition)
    counts = np.bincount(list(output), minlength=len(y))
    return y - frequency * counts - presence * (counts > 0)


def keep(z, min_p=0.0, top_k=0, top_p=1.0, joint=False, last=False, exact=False):
    """Which tokens of a row the rules keep, min_p first or last; sorts by (larger z, lower id)."""
    order = np.lexsort((np.arange(len(z)), -z))
    kept = z > -np.inf
    likely = kept & (z >= z.max() + np.log(min_p)) if min_p else kept
    if last:
        return likely & keep(z, top_k=top_k, top_p=top_p, exact=exact)
    left = likely
    whole = kept if joint else left
    if top_k and top_k < whole.sum():
        chosen = order[whole[order]][:top_k]
        by_k = np.isin(np.arange(len(z)), chosen) if exact else z >= z[chosen[-1]]
        left = left & by_k
        whole = kept if joint else left
    if top_p < 1:
        chosen = order[whole[order]]
        mass = np.exp(z[chosen] - z.max())
        larger = np.cumsum(mass) - mass  # of those before a token, and of equals among them
        if not exact:
            larger = np.array([mass[z[chosen] > z[token]].sum() for token in chosen])
        left = left & np.isin(np.arange(len(z)), chosen[larger < top_p * mass.sum()])
    return left


def process(y, temperature, order="min_p,top_k,top_p", ties="all", **rules):
    """Transformed logits of one row: y is edit()'s; -inf where a rule removed a token."""
    z = y if temperature == 0 else y / temperature
    if temperature == 0:
        return z
    last = order in ("hf", "top_k,top_p,min_p", "llama.cpp", "top_k,top_p,min_p,temperature")
    joint = order in ("joint", "sglang", "joint,temperature", "mlx")
    by_y = order in ("before_temperature", "llama.cpp", "mlx") or order.endswith(",temperature")
    kept = keep(y if by_y else z, **rules, joint=joint, last=last, exact=ties == "exact")
    return np.where(kept, z, -np.inf)


def log_normaliser(z):
    return z.max() + np.log(np.exp(z - z.max()).sum())


def bfloat16_bits(array):
    """float32 to bfloat16 bits (uint16), to nearest, ties to even."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widen(bits):
    """bfloat16 bits (uint16) to float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def keep_above(v, distance, floor=1):
    """v without values more than `distance` below the largest, and at least `floor` of them."""
    bound = min(v.max() - distance, np.sort(v[v > -np.inf])[::-1][:floor][-1])
    return np.where(v >= bound, v, -np.inf)


def keep_nearest(v, distances, mass, needed, floor):
    """v without tokens whose `distances` are larger than those up to which `mass` is `needed`."""
    order = np.argsort(distances, kind="stable")
    order = order[v[order] > -np.inf]
    last = max(int((np.cumsum(mass[order]) < needed).sum()), floor - 1)
    return np.where(distances <= distances[order[min(last, len(order) - 1)]], v, -np.inf)


def exclude_top_choices(v, start, probability, keep_tokens, floor):
    """XTC's average over its choice: `start` is the smallest value that it keeps."""
    above = v > start
    mass = np.exp(v - v.max())
    share = mass[above].sum() / mass.sum()
    left = (v > -np.inf).sum() - above.sum()
    if not above.any() or left < floor or any(above[list(keep_tokens)]):
        return v
    with np.errstate(divide="ignore"):
        shift = np.log((1 - probability) / (1 + probability * share / (1 - share)))
    return np.where(above, v + shift, v)


def run_program(y, temperature, rules, **given):
    """The values of one row, -inf where a rule removed a token; y is edit()'s, ties all stay."""
    off = {"min_keep": 1, "xtc_threshold": 0.1, "smoothing_curve": 1, "temperature_exponent": 1}
    off.update(adaptive_target=-1, typical_p=1, top_p=1, surprise=np.inf, xtc_keep=(), p_less=True)
    g = {name: given.get(name, off.get(name, 0)) for name in (*off, *given)}
    v, floor, start = np.array(y, dtype=float), g["min_keep"], None
    with np.errstate(divide="ignore", invalid="ignore"):
        for rule in rules:
            used = v[v > -np.inf]
            z = np.exp(v - v.max())
            p = z / z.sum()
            logs = np.where(p > 0, np.log(p), 0)
            entropy, best, value = -(p * logs).sum(), p.max(), g.get(rule, 0)
            if rule == "temperature":
                t, spread = temperature, g.get("temperature_range", 0)
                if spread and len(used) > 1:
                    low = max(0, t - spread)
                    power = (entropy / np.log(len(used))) ** g["temperature_exponent"]
                    t = low + (t + spread - low) * power
                v = v / t
                start = None if start is None else start / t
            elif rule == "min_p" and value:
                v = keep_above(v, -np.log(value), floor)
            elif rule == "top_k" and value:
                v = keep_above(v, -np.inf, min(value, len(used)))
            elif rule == "top_p" and value < 1:
                v = keep_nearest(v, -v, p, value, floor)
            elif rule == "typical_p" and value < 1:
                v = keep_nearest(v, abs(-logs - entropy), p, value, floor)
            elif rule == "top_n_sigma" and value:
                v = keep_above(v, value * used.std(), floor)
            elif rule == "epsilon" and value:
                v = keep_above(v, max(np.log(best / value), 0), floor)
            elif rule == "eta" and value:
                least = min(value, np.sqrt(value) * np.exp(-entropy))
                v = keep_above(v, max(np.log(best / least), 0), floor)
            elif rule == "top_a" and value:
                v = keep_above(v, np.log(best / (value * best * best)), floor)
            elif rule == "p_less":
                v = keep_above(v, np.log(best / (p * p).sum()), floor)
            elif rule == "surprise":
                v = keep_above(v, max(np.log(best) + value * np.log(2), 0), floor)
            elif rule == "smoothing" and g.get("smoothing_factor"):
                d, curve = v - v.max(), g["smoothing_curve"]
                bend = (curve - 1) / 2 * d**3 - (3 - curve) / 2 * d**2
                v = np.where(v > -np.inf, v.max() + g["smoothing_factor"] * bend, v)
            elif rule == "adaptive_p" and g["adaptive_target"] >= 0:
                d = abs(p - g["adaptive_target"]) / 0.3
                v = np.where(v > -np.inf, 5 - 10 * d * d / (1 + d), v)
            elif rule == "xtc" and g.get("xtc_probability"):
                likely = v[p >= g["xtc_threshold"]]
                start = likely.min() if len(likely) > 1 else None
    if start is None:
        return v
    return exclude_top_choices(v, start, g["xtc_probability"], g["xtc_keep"], floor)
