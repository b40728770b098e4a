# SPDX-License-Identifier: Apache-2.0
"""Watermarks: draws against slow references, drafts, detection, and every error."""

import math

import gumbel
import numpy as np
import pytest

KEY = bytes(range(16))
V = 300
RNG = np.random.default_rng(7)
MASK = 2**64 - 1


def siphash(key, message):
    """SipHash-2-4 of bytes, by the paper."""

    def rotate(x, bits):
        return (x << bits | x >> (64 - bits)) & MASK

    def run_rounds(v, count):
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    k = [int.from_bytes(key[i : i + 8], "little") for i in (0, 8)]
    v = [k[0] ^ 0x736F6D6570736575, k[1] ^ 0x646F72616E646F6D]
    v += [k[0] ^ 0x6C7967656E657261, k[1] ^ 0x7465646279746573]
    padded = message + bytes(-(len(message) + 1) % 8) + bytes([len(message) % 256])
    for i in range(0, len(padded), 8):
        word = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= word
        run_rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xFF
    run_rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def expect(key, context, text, seed, position):
    """(seed, position, watermarked) of the draw after `text`."""
    if context == 0:
        return seed, position, 0

    def hash_purpose(purpose, more):
        head = (purpose | context << 8).to_bytes(8, "little")
        return siphash(key, head + more + bytes(-len(more) % 8))

    last = text[len(text) - context :]
    before = [text[i : i + context] for i in range(len(text) - context)]
    new = len(text) >= context and last not in before
    if new:
        more = b"".join(token.to_bytes(4, "little") for token in reversed(last))
        return hash_purpose(1, b""), hash_purpose(2, more), 1
    own = seed.to_bytes(8, "little") + position.to_bytes(8, "little")
    return hash_purpose(1, b""), hash_purpose(3, own), 0


def like_of(kind):
    return pytest.importorskip("torch").zeros(1) if kind == "torch" else None


def logits_after(token):
    return np.random.default_rng(int(token)).normal(size=V).astype(np.float32) * 3


def decode(watermark, recent, steps, kind="numpy", rows=1):
    """Texts [rows, steps] of `logits_after`, and whether each token is watermarked."""
    text = np.zeros((rows, steps), np.int32)
    marks = np.zeros((rows, steps), np.int32)
    for step in range(steps):
        logits = np.stack([logits_after(text[b, step - 1] if step else 0) for b in range(rows)])
        if kind == "torch":
            logits = pytest.importorskip("torch").from_numpy(logits)
        watermark.update(recent, step)
        out = gumbel.sample_logits(logits, seed=watermark.seed, position=watermark.position)
        recent.append(out.tokens)
        text[:, step] = np.asarray(out.tokens)[:, 0]
        marks[:, step] = np.asarray(watermark.watermarked)
    return text, marks


def test_siphash_as_published():
    assert siphash(KEY, bytes(range(15))) == 0xA129CA6149BE45E5


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_rows_follow_their_definition(kind):
    slots, capacity = 5, 40
    keys = [RNG.bytes(16) for _ in range(slots)]
    contexts, starts = [0, 1, 2, 4, 16], [0, 3, 0, 0, 1]
    recent = gumbel.Recent(slots, capacity, like=like_of(kind))
    watermark = gumbel.Watermark(
        slots, keys, context=contexts, seed=9, text_start=starts, like=like_of(kind)
    )
    texts = [[] for _ in range(slots)]
    found = 0
    for step in range(200):
        rows = RNG.permutation(slots)[: 1 + step % slots]
        drafts = RNG.integers(0, 3, (len(rows), step % 4)).astype(np.int32)
        watermark.update(
            recent, [step + 10 * s for s in range(slots)], slots=rows.tolist(),
            drafts=drafts if step % 4 else None,
        )
        for b, slot in enumerate(rows):
            kept = texts[slot][max(starts[slot], len(texts[slot]) - capacity) :]
            before = max(starts[slot] - len(texts[slot]), 0)
            kept = kept + drafts[b, before:].tolist()
            own = gumbel._abi.lib.gumbel_row_seed(9, int(slot))
            position = step + 10 * int(slot) + step % 4
            wanted = expect(keys[slot], contexts[slot], kept, own, position)
            at = int(slot)
            assert int(watermark.seed[at]) == wanted[0]
            assert int(watermark.position[at]) == wanted[1]
            assert int(watermark.watermarked[b]) == wanted[2]
            found += wanted[2]
        tokens = RNG.integers(0, 3, slots).astype(np.int32)
        recent.append(tokens)
        for slot in range(slots):
            texts[slot].append(int(tokens[slot]))
    assert found > 30


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_texts_are_detected_by_their_key(kind):
    recent = gumbel.Recent(2, 256, like=like_of(kind))
    watermark = gumbel.Watermark(2, [KEY, KEY[::-1]], context=[4, 2], like=like_of(kind))
    text, marks = decode(watermark, recent, 150, kind, rows=2)
    for b, (key, context) in enumerate([(KEY, 4), (KEY[::-1].hex(), 2)]):
        found = gumbel.detect_watermark(text[b], key, context=context)
        np.testing.assert_array_equal(np.isfinite(found.scores), marks[b] == 1)
        assert found.scored == marks[b].sum() > 100
        np.testing.assert_allclose(np.nansum(found.scores), found.statistic, rtol=1e-12)
        assert found.p_value < 1e-6
        np.testing.assert_allclose(found.log10_p, math.log10(found.p_value), rtol=1e-9)
        assert gumbel.detect_watermark(text[b].tolist(), b"x" * 16).p_value > 1e-4
    one = gumbel.detect_watermark(text[0], KEY)
    noise = [
        gumbel.noise(*expect(KEY, 4, text[0, :i].tolist(), 0, 0)[:2], V)[text[0, i]]
        for i in range(4, 9)
    ]
    scores = -np.log(-np.expm1(-np.exp(-np.array(noise, np.float64))))
    np.testing.assert_allclose(one.scores[4:9], scores, rtol=1e-12)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_verified_texts_are_those_of_single_steps(kind):
    steps, most = 120, 5
    recent = gumbel.Recent(1, 256, like=like_of(kind))
    watermark = gumbel.Watermark(1, KEY, context=2, seed=5, like=like_of(kind))
    text, _ = decode(watermark, recent, steps, kind)
    recent.start()
    recent.append(text[:, :1])
    done, accepted = 1, 0
    while done + most < steps:
        tokens = np.array([text[0, done - 1 : done - 1 + most]], np.int32)
        if done % 2:
            tokens[0, RNG.integers(1, most)] = RNG.integers(0, V)
        parents = [[0, 0, 1, 2, 3]] if done % 3 else None
        nodes = watermark.update_nodes(recent, tokens, done, parents=parents)
        logits = np.stack([logits_after(token) for token in tokens[0]])
        out = gumbel.verify_logits(
            logits if kind == "numpy" else pytest.importorskip("torch").from_numpy(logits),
            tokens,
            parents=parents,
            seed=watermark.seed,
            position=done,
            node_position=nodes,
        )
        emitted = int(out.emitted[0])
        drawn = np.asarray(out.tokens)[0, :emitted]
        np.testing.assert_array_equal(drawn, text[0, done : done + emitted])
        recent.append(out.tokens, counts=out.emitted)
        done += emitted
        accepted += emitted - 1
    assert accepted > steps // 3


def test_start_and_live_rows():
    recent = gumbel.Recent(3, 64)
    recent.start([[1, 2, 3], [4], []])
    watermark = gumbel.Watermark(3, KEY, context=1, seed=[1, 2, 3])
    watermark.start([3, 1, 0])
    watermark.update(recent, 0)
    assert watermark.watermarked.tolist() == [0, 0, 0]
    watermark.start(0, seed=7, slots=[1])
    watermark.update(recent, 0, live_rows=2)
    assert watermark.watermarked.tolist() == [0, 1, 0]
    watermark.start(1, slots=[1])
    watermark.update(recent, 4, slots=[1])
    assert int(watermark.position[1]) == expect(KEY, 1, [], 7, 4)[1]


def test_arrays_cannot_be_replaced():
    watermark = gumbel.Watermark(2, KEY)
    watermark.position += 1
    for name in ("seed", "position", "watermarked"):
        with pytest.raises(AttributeError, match=f"^{name}: the array cannot be replaced"):
            setattr(watermark, name, np.zeros(1, np.uint8))


def test_errors_name_the_argument():
    recent = gumbel.Recent(2, 8)
    watermark = gumbel.Watermark(2, KEY)
    cases = [
        ("num_slots", lambda: gumbel.Watermark(0, KEY)),
        ("key", lambda: gumbel.Watermark(1, b"short")),
        ("key", lambda: gumbel.Watermark(1, "zz" * 16)),
        ("key", lambda: gumbel.Watermark(2, [KEY])),
        ("key", lambda: gumbel.Watermark(1, 5)),
        (r"key\[1\]", lambda: gumbel.Watermark(2, [KEY, 5])),
        ("context", lambda: gumbel.Watermark(1, KEY, context=17)),
        ("seed", lambda: gumbel.Watermark(1, KEY, seed=-1)),
        ("text_start", lambda: watermark.start(-1)),
        ("slots", lambda: watermark.start(0, slots=[0, 0])),
        ("recent", lambda: watermark.update(3, 0)),
        ("recent", lambda: watermark.update(gumbel.Recent(3, 8), 0)),
        ("recent: keeps 3 tokens", lambda: watermark.update(gumbel.Recent(2, 3), 0)),
        ("position", lambda: watermark.update(recent, [1, 2, 3])),
        ("drafts", lambda: watermark.update(recent, 0, drafts=[1, 2])),
        ("slots", lambda: watermark.update(recent, 0, slots=[2])),
        ("tokens", lambda: watermark.update_nodes(recent, np.zeros((3, 2), np.int32), 0)),
        ("first", lambda: gumbel.detect_watermark([1, 2], KEY, first=3)),
        ("context", lambda: gumbel.detect_watermark([1, 2], KEY, context=0)),
        ("key", lambda: gumbel.detect_watermark([1, 2], 5)),
        ("tokens", lambda: gumbel.detect_watermark([1, -1], KEY)),
        ("domain", lambda: gumbel.detect_watermark([1, 2], KEY, domain=2**31)),
        *(("tokens", lambda text=text: gumbel.detect_watermark(text, KEY))
          for text in (5, None, np.array(3))),
        (
            "node_position",
            lambda: gumbel.verify_logits(
                np.zeros((4, 5), np.float32),
                np.zeros((2, 2), np.int32),
                rule="rejection",
                node_position=[1, 2, 3, 4],
            ),
        ),
        (
            "node_position",
            lambda: gumbel.verify_logits(
                np.zeros((4, 5), np.float32), np.zeros((2, 2), np.int32), node_position=[1, 2]
            ),
        ),
    ]
    for name, call in cases:
        with pytest.raises((TypeError, ValueError), match=f"^{name}"):
            call()
