# SPDX-License-Identifier: Apache-2.0
"""`gumbel sample`: its draws and its errors."""

import json
import math
import os
import subprocess
import unittest

from cli_case import GUMBEL, SampleCase, gumbel, over_ranks, seeded
from tensor_files import bfloat16_bits, read_npy, write_npy, write_raw_safetensors


class Sample(SampleCase):
    def test_group(self):
        """Processes that share the vocabulary have the output of one process, which one of them
        writes."""
        out = self.path("tokens.npy")
        for source in (self.head, ("--logits", self.path("logits.npy"))):
            for req in (("--num-samples", 3), ("--top-k", 9, "--ranks", "--kept"),
                          ("--top-p", 0.7, "--top-logprobs", 3, "--first-token", 100),
                          ("--raw-logprobs", "--num-best", 2)):
                with self.subTest(source=source[0], req=req):
                    rest = (*source, "--seed", 4, "--threads", 1, *req)
                    found = over_ranks(self, 3, "sample", *rest, "--json")
                    self.assertEqual(json.loads(found), self.sample(*rest))
        over_ranks(self, 2, "sample", *self.head, "--out-tokens", out)
        self.assertTrue(os.path.isfile(out))
        self.refuse("--group", "sample", *self.head, "--group", "mpi", "--chunk", 64)
        self.refuse("--group", "sample", *self.head, "--group", "tcp")

    def test_greedy_is_the_argmax(self):
        found = self.sample(*self.head, "--temperature", 0)
        for b in range(self.B):
            row = self.logits[b * self.V : (b + 1) * self.V]
            self.assertEqual(found["tokens"][b], [row.index(max(row))])
            self.assertAlmostEqual(found["scores"][b][0], max(row), places=4)

    def test_logprobs(self):
        found = self.sample(*self.head, "--temperature", 2)
        self.assertEqual(found["status"], [0] * self.B)
        for b in range(self.B):
            row = [x / 2 for x in self.logits[b * self.V : (b + 1) * self.V]]
            lse = math.log(sum(map(math.exp, row)))
            self.assertAlmostEqual(found["lse"][b], lse, places=5)
            self.assertAlmostEqual(found["logprobs"][b][0], row[found["tokens"][b][0]] - lse,
                                   places=5)

    def test_every_form_gives_the_same_tokens(self):
        rest = ("--seed", 11, "--num-samples", 9)
        wanted = self.sample(*self.head, *rest)
        # All products and sums are multiples of 2^-12 below 2^11: exact in float32 in any order.
        self.assertEqual(self.sample("--logits", self.path("logits.npy"), *rest), wanted)
        self.assertEqual(self.sample("--weights", self.path("weights.npy"), "--hidden",
                                     self.path("hidden.npy"), *rest), wanted)

    def test_uint16_is_bfloat16(self):
        coarse = [round(x * 8) / 8 for x in self.weights]
        bits = [bfloat16_bits(x) for x in coarse]
        write_npy(self.path("bits.npy"), "<u2", (self.V, self.D), bits)
        write_npy(self.path("coarse.npy"), "<f4", (self.V, self.D), coarse)
        hidden = ("--hidden", self.path("hidden.npy"))
        self.assertEqual(self.sample("--weights", self.path("bits.npy"), *hidden),
                         self.sample("--weights", self.path("coarse.npy"), *hidden))

    def test_chunks_give_the_same_results(self):
        rest = ("--seed", 3, "--num-samples", 4, "--bias", self.path("head.safetensors:bias"),
                "--soft-cap", 5, "--scale", 0.5, "--vocab-size", 300)
        whole = self.sample(*self.head, *rest)
        self.assertLess(max(max(row) for row in whole["tokens"]), 300)
        for chunk in (1, 64, 100, 128, 332, 333, 1000):
            found = self.sample(*self.head, *rest, "--chunk", chunk)
            for key in ("tokens", "scores", "status"):
                self.assertEqual(found[key], whole[key], chunk)
            if chunk % 64 == 0 or chunk >= self.V:
                self.assertEqual(found, whole, chunk)
        logits = ("--logits", self.path("logits.npy"), "--seed", 3)
        self.assertEqual(self.sample(*logits, "--chunk", 64), self.sample(*logits))

    def test_first_token(self):
        """The token of the whole vocabulary is the token of one of its halves, drawn as shards."""
        write_npy(self.path("low.npy"), "<f4", (100, self.D), self.weights[: 100 * self.D])
        write_npy(self.path("high.npy"), "<f4", (self.V - 100, self.D),
                  self.weights[100 * self.D :])
        whole = self.sample(*self.head)
        parts = [self.sample("--weights", self.path(f"{name}.npy"), "--hidden",
                             self.path("hidden.npy"), "--first-token", first)
                 for name, first in (("low", 0), ("high", 100))]
        for b in range(self.B):
            best = max(parts, key=lambda part: part["scores"][b][0])
            self.assertEqual(best["tokens"][b], whole["tokens"][b])

    def test_row_parameters(self):
        write_npy(self.path("t.npy"), "<f4", (self.B,), [0, 0.5, 1, 2, 100])
        write_npy(self.path("s.npy"), "<i8", (self.B,), [1, 2, 3, 4, 2**40])
        write_npy(self.path("p.npy"), "<i4", (self.B,), [9, 8, 7, 6, 5])
        write_npy(self.path("c.npy"), "<i8", (self.B,), [0, 1, 2, 3, 2**32 - 1])
        found = self.sample(*self.head, "--temperature", self.path("t.npy"), "--seed",
                            self.path("s.npy"), "--position", self.path("p.npy"),
                            "--first-sample", self.path("c.npy"))
        write_npy(self.path("row.npy"), "<f4", (1, self.D), self.hidden[4 * self.D :])
        alone = self.sample(*self.head[:2], "--hidden", self.path("row.npy"), "--temperature", 100,
                            "--seed", 2**40, "--position", 5, "--first-sample", 2**32 - 1)
        self.assertEqual(found["tokens"][4], alone["tokens"][0])
        self.assertEqual(found["lse"][4], alone["lse"][0])

    def test_unsigned_columns(self):
        """Files of all unsigned dtypes are read correctly, including the largest values."""
        write_npy(self.path("one.npy"), "<f4", (1, self.V), self.logits[: self.V])
        write_npy(self.path("two.npy"), "<f4", (2, self.V), self.logits[: self.V] * 2)
        for option, descr, most in (("--seed", "<u8", 2**64 - 1), ("--seed", "<u4", 2**32 - 1),
                                    ("--position", "<u8", 2**64 - 1),
                                    ("--position", "<u4", 2**32 - 1),
                                    ("--first-sample", "<u4", 2**32 - 1),
                                    ("--first-sample", "<u8", 2**32 - 1),
                                    ("--first-sample", "<u2", 2**16 - 1)):
            with self.subTest(option=option, descr=descr):
                write_npy(self.path("x.npy"), descr, (2,), [0, most])
                rest = ("--num-samples", 9)
                found = self.sample("--logits", self.path("two.npy"), *rest, option,
                                    self.path("x.npy"),
                                    *(("--seed", 0) if option != "--seed" else ()))
                if option == "--seed":  # of rows, each its own
                    alone = self.sample("--logits", self.path("one.npy"), *rest, option, most)
                    self.assertEqual(found["tokens"][1], alone["tokens"][0])
                else:  # one seed for all rows is mixed with the row
                    same = self.sample("--logits", self.path("two.npy"), *rest, "--seed", 0,
                                       option, most)
                    self.assertEqual(found["tokens"][1], same["tokens"][1])
        write_npy(self.path("x.npy"), "<u8", (2,), [0, 2**64 - 1])
        message = self.refuse("--first-sample", "sample", "--logits", self.path("two.npy"),
                              "--first-sample", self.path("x.npy"))
        self.assertIn(f"value {2**64 - 1} of row 1 is not in [0, {2**32 - 1}]", message)

    def test_positions_have_64_bits(self):
        """The upper half h of a position moves the seed: XOR mix(2^64 - 1 - h)."""
        def mix(row):
            row = row * 0x9E3779B97F4A7C15 % 2**64
            row = (row ^ row >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            row = (row ^ row >> 27) * 0x94D049BB133111EB % 2**64
            return row ^ row >> 31

        write_npy(self.path("one.npy"), "<f4", (1, self.V), self.logits[: self.V])
        def draw(seed, position):
            found = self.sample("--logits", self.path("one.npy"), "--num-samples", 9, "--seed",
                                seed, "--position", position)
            found.pop("seed", None)
            return found

        seen = [draw(5, 3)]
        for high in (1, 2**31, 2**32 - 1):
            found = draw(5, high << 32 | 3)
            self.assertEqual(found, draw(5 ^ mix(2**64 - 1 - high), 3))
            self.assertNotIn(found, seen)
            seen.append(found)
        write_npy(self.path("long.npy"), "<i8", (1,), [1 << 32 | 3])
        self.assertEqual(draw(5, self.path("long.npy")), seen[1])

    def test_stdin(self):
        """A file named - is read from stdin, by one option only."""
        wanted = self.sample("--logits", self.path("logits.npy"))

        def from_stdin(path, *arguments):
            with open(path, "rb") as file:
                command = [GUMBEL, *seeded(["sample", *arguments])]
                done = subprocess.run(command, stdin=file, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
            return json.loads(done.stdout)

        self.assertEqual(from_stdin(self.path("logits.npy"), "--logits", "-"), wanted)
        head = self.path("head.safetensors")
        rest = ("--hidden", head + ":hidden")
        wanted = self.sample(*self.head)
        self.assertEqual(from_stdin(head, "--weights", "-:half", *rest), wanted)
        self.assertEqual(from_stdin(self.path("weights.npy"), "--weights=-", *rest)["tokens"],
                         wanted["tokens"])
        for chunk in (64, 100):  # chunks of memory, which cannot be dropped like pages of a file
            found = from_stdin(head, "--weights", "-:half", *rest, "--chunk", chunk)
            self.assertEqual(found["tokens"], wanted["tokens"])
            self.assertEqual(found["scores"], wanted["scores"])
        for name, text in (("-", ""), ("-:x", ""), ("-", "GGUF"), ("-", "0123456789abcdef")):
            done = gumbel("sample", "--logits", name, text=text)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertRegex(done.stderr, r"^gumbel sample: --logits: stdin: .*\n$")
        self.refuse("--group", "sample", "--logits", "-", "--group", "mpi")
        with open(head, "rb") as file:
            twice = subprocess.run(
                [GUMBEL, "sample", "--weights", "-:half", "--hidden", "-:hidden"], stdin=file,
                capture_output=True, text=True)
        self.assertEqual(twice.returncode, 2)
        self.assertIn("--hidden: stdin was already read for --weights", twice.stderr)

    def test_same_for_every_isa_and_thread_count(self):
        rest = ("--num-samples", 3)
        wanted = self.sample(*self.head, *rest)
        for isa in self.succeed_json("info")["isas"]:
            for threads in (1, 3):
                self.assertEqual(self.sample(*self.head, *rest, "--isa", isa, "--threads", threads),
                                 wanted)

    def test_npy_output(self):
        outputs = {name: self.path(f"{name}.npy")
                   for name in ("tokens", "logprobs", "scores", "lse", "status")}
        options = [x for name, path in outputs.items() for x in (f"--out-{name}", path)]
        self.assertEqual(self.succeed("sample", *self.head, "--num-samples", 2, *options), "")
        found = self.sample(*self.head, "--num-samples", 2)
        for name, path in outputs.items():
            descr, shape, values = read_npy(path)
            rows = name in ("lse", "status")
            self.assertEqual(descr, "<i4" if name in ("tokens", "status") else "<f4")
            self.assertEqual(shape, (self.B,) if rows else (self.B, 2))
            wanted = found[name] if rows else [x for row in found[name] for x in row]
            for value, want in zip(values, wanted, strict=True):
                self.assertAlmostEqual(value, want, delta=1e-7 * abs(want))

    def test_faulty_rows_do_not_change_others(self):
        rows = [self.logits[b * self.V : (b + 1) * self.V] for b in range(4)]
        rows[1][7] = math.nan
        rows[2][7] = math.inf
        rows[3] = [-math.inf] * self.V
        write_npy(self.path("bad.npy"), "<f4", (4, self.V), sum(rows, []))
        found = self.sample("--logits", self.path("bad.npy"))
        good = self.sample("--logits", self.path("logits.npy"))
        self.assertEqual(found["status"], [0, 1, 2, 3])
        self.assertEqual(found["tokens"][1:], [[-1]] * 3)
        self.assertEqual(found["lse"][1:], [None] * 3)
        self.assertEqual(found["tokens"][0], good["tokens"][0])

    def test_chunks_release_memory(self):
        """A 256 MiB file of weights is resident as a whole without chunks, and not with chunks."""
        rows, cols = 65536, 2048
        size = rows * cols * 2
        header = {"w": {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [0, size]}}
        write_raw_safetensors(self.path("big.safetensors"), header, b"", sparse_bytes=size)
        write_npy(self.path("h.npy"), "<f4", (1, cols), [1.0] * cols)
        most = []
        for chunk in ((), ("--chunk", "1024")):
            child = subprocess.Popen(
                [GUMBEL, "sample", "--weights", self.path("big.safetensors"), "--hidden",
                 self.path("h.npy"), *chunk], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(child.returncode, 0)
            most.append(usage.ru_maxrss / 1024)
        self.assertLess(most[1], most[0] - 200, "MiB")


class SampleErrors(SampleCase):
    def test_missing_arguments_are_named(self):
        self.refuse("--weights", "sample")
        self.refuse("--hidden", "sample", *self.head[:2])
        self.refuse("--logits", "sample", *self.head, "--logits", self.path("logits.npy"))

    def test_files(self):
        hidden = self.head[2:]
        file = self.path("head.safetensors")
        for name in (self.path("none.npy"), self.path("none.safetensors"), self.folder, file,
                     file + ":nothing", file + ":ids", file + ":cube", file + ":",
                     self.path("weights.npy:x"), "", "/dev/null", self.path("a\nb")):
            with self.subTest(name=name):
                self.refuse("--weights", "sample", "--weights", name, *hidden)
        self.refuse("--hidden", "sample", *self.head[:2], "--hidden", file + ":narrow")
        self.refuse("--bias", "sample", *self.head, "--bias", file + ":hidden")
        self.refuse("--bias", "sample", *self.head, "--bias", self.path("row.npy"))

    def test_hostile_safetensors(self):
        def entry(begin, end, shape=(2, 2), dtype="F32"):
            return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}

        hostile = {
            "outside": {"w": entry(0, 10**12)},
            "backwards": {"w": entry(16, 0)},
            "overflow": {"w": entry(0, 16, (2**62, 2**62))},
            "wrong size": {"w": entry(0, 16, (3, 2))},
            "dtype": {"w": entry(0, 16, (2, 2), "F99")},
            "negative": {"w": entry(0, 16, (-2, -2))},
            "text": {"w": "abc"},
        }
        for name, header in hostile.items():
            with self.subTest(name=name):
                write_raw_safetensors(self.path("bad.safetensors"), header, b"\0" * 16)
                self.refuse("--logits", "sample", "--logits", self.path("bad.safetensors"))
        for data in (b"", b"\xff" * 8, b"\x10\0\0\0\0\0\0\0{", b"[" * 100000):
            with open(self.path("bad.safetensors"), "wb") as file:
                file.write(data)
            self.refuse("--logits", "sample", "--logits", self.path("bad.safetensors"))

    def test_truncated_npy(self):
        with open(self.path("logits.npy"), "rb") as file:
            data = file.read()
        for size in (0, 5, 9, 60, 128, len(data) - 1):
            with open(self.path("cut.npy"), "wb") as file:
                file.write(data[:size])
            self.refuse("--logits", "sample", "--logits", self.path("cut.npy"))

    def test_numbers(self):
        for option, values in {
            "--temperature": ("-1", "nan", "inf", "x", "", "1 2"),
            "--seed": ("nan", "-1", "1.5", str(2**64), "0x", "0x0x1", "0X1g",
                       "0xx1", "a", "+1", " 1", "0x-1", "0x 1", "1 ", hex(2**64), ""),
            "--position": (str(2**64), "-1", "x"),
            "--num-samples": ("0", "65537", "-3", "9" * 40),
            "--first-sample": (str(2**32),),
            "--domain": (str(2**31),),
            "--scale": ("nan", "0", "1e40"),
            "--soft-cap": ("-1", "inf"),
            "--vocab-size": ("0", str(2**31 + 1)),
            "--first-token": ("-1", str(2**31)),
            "--chunk": ("0", "-64", "x"),
        }.items():
            for value in values:
                with self.subTest(option=option, value=value):
                    self.refuse(option, "sample", *self.head, f"{option}={value}")

    def test_columns_must_match(self):
        write_npy(self.path("short.npy"), "<f4", (2,), [1, 1])
        write_npy(self.path("floats.npy"), "<f4", (self.B,), [1] * self.B)
        write_npy(self.path("ints.npy"), "<i8", (self.B,), [-1] * self.B)
        self.refuse("--temperature", "sample", *self.head, "--temperature", self.path("short.npy"))
        self.refuse("--temperature", "sample", *self.head, "--temperature", self.path("ints.npy"))
        self.refuse("--seed", "sample", *self.head, "--seed", self.path("floats.npy"))
        self.refuse("--seed", "sample", *self.head, "--seed", self.path("ints.npy"))
        self.refuse("--position", "sample", *self.head, "--position", self.path("none.npy"))
        write_npy(self.path("t.npy"), "<f4", (self.B,), [1, 1, -1, 1, 1])
        self.assertIn("row 2", self.refuse("--temperature", "sample", *self.head, "--temperature",
                                           self.path("t.npy")))

    def test_nothing_is_written_on_an_error(self):
        output = self.path("tokens.npy")
        write_npy(self.path("t.npy"), "<f4", (self.B,), [math.nan] * self.B)
        before = set(os.listdir(self.folder))
        for rest in (("--temperature", self.path("t.npy")), ("--isa", "mmx"),
                     ("--bias", self.path("none.npy")),
                     ("--out-lse", os.path.join(self.folder, "none", "lse.npy"))):
            done = gumbel("sample", *self.head, "--out-tokens", output, *rest)
            self.assertEqual(done.returncode, 2, rest)
            self.assertEqual(set(os.listdir(self.folder)), before, rest)


if __name__ == "__main__":
    unittest.main()
