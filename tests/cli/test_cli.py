# SPDX-License-Identifier: Apache-2.0
"""The `gumbel` command, seen from outside.

usage: test_cli.py GUMBEL MODELS [CLASS...]
"""

import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import unittest

from tensor_files import (
    bfloat16_bits,
    read_npy,
    write_npy,
    write_raw_safetensors,
    write_safetensors,
)

GUMBEL = MODELS = None
COMMANDS = ("info", "generate", "sample", "verify", "bench")


def gumbel(*arguments, text=None):
    """Run the command; returns the finished process, with text output."""
    return subprocess.run([GUMBEL, *map(str, arguments)], capture_output=True, text=True,
                          input="" if text is None else text)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def succeed(self, *arguments, text=None):
        done = gumbel(*arguments, text=text)
        self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
        return done.stdout

    def succeed_json(self, *arguments):
        return json.loads(self.succeed(*arguments, "--json"))

    def refuse(self, field, *arguments):
        """Exit code 2, nothing on stdout, one line on stderr that names the command and the field."""
        done = gumbel(*arguments)
        self.assertEqual(done.returncode, 2, (arguments, done.stderr))
        self.assertEqual(done.stdout, "", arguments)
        self.assertEqual(done.stderr.count("\n"), 1, (arguments, done.stderr))
        self.assertTrue(done.stderr.endswith("\n"), done.stderr)
        name = f" {arguments[0]}" if arguments and arguments[0] in COMMANDS else ""
        self.assertTrue(done.stderr.startswith(f"gumbel{name}: {field}: "),
                        (arguments, done.stderr))
        return done.stderr


class Usage(Case):
    def test_help(self):
        text = self.succeed("--help")
        for command in COMMANDS:
            self.assertIn(command, text)
            for option in ("--help", "-h"):
                page = self.succeed(command, option)
                self.assertTrue(page.startswith(f"Usage: gumbel {command} [OPTION...]"), page)
                self.assertIn("--device", page)

    def test_version(self):
        self.assertRegex(self.succeed("--version"), r"^gumbel \d+\.\d+\.\d+\n$")

    def test_wrong_usage(self):
        self.refuse("command")
        self.refuse("command", "dream")
        self.refuse("command", "two\nlines")
        for command in COMMANDS:
            self.refuse("--dream", command, "--dream")
            self.refuse("--threads", command, "--threads")
            self.refuse("surplus", command, "surplus")
            self.refuse("--isa", command, "--isa", "mmx")
            self.refuse("--threads", command, "--threads", "0")
            self.refuse("--threads", command, "--threads", "99999999999999999999")

    def test_device(self):
        self.succeed("info", "--device", "cpu")
        self.assertIn("cuda", self.refuse("options.device", "info", "--device", "cuda"))


class Info(Case):
    def test_json(self):
        info = self.succeed_json("info", "--threads", 3)
        self.assertEqual(info["threads"], 3)
        self.assertIn(info["isa"], info["isas"])
        self.assertIn("reference", info["isas"])
        self.assertEqual(info["devices"], {"cpu": "available", "cuda": "not in this build"})

    def test_every_isa(self):
        for isa in self.succeed_json("info")["isas"]:
            self.assertEqual(self.succeed_json("info", "--isa", isa)["isa"], isa)

    def test_text(self):
        self.assertRegex(self.succeed("info"), r"(?m)^isa +\w+ \(of reference")


class Generate(Case):
    def setUp(self):
        super().setUp()
        self.model = os.path.join(MODELS, "kjv-target")

    def test_golden(self):
        with open(os.path.join(MODELS, "golden.json")) as file:
            golden = json.load(file)
        for name in ("target", "draft"):
            model = os.path.join(MODELS, f"kjv-{name}")
            for case in golden[name]["greedy"]:
                arguments = ("generate", "--model", model, "--prompt", case["prompt"],
                             "--temperature", 0, "--max-tokens", len(case["greedy_ids"]))
                with self.subTest(model=name, prompt=case["prompt"]):
                    found = self.succeed_json(*arguments)
                    self.assertEqual(found["prompt_ids"], case["prompt_ids"])
                    self.assertEqual(found["samples"][0]["ids"], case["greedy_ids"])
                    self.assertEqual(found["samples"][0]["text"], case["text"])
                    self.assertEqual(self.succeed(*arguments), case["text"] + "\n")

    def test_stdin_is_the_prompt(self):
        rest = ("--model", self.model, "--max-tokens", 8, "--seed", "0xabc")
        given = self.succeed("generate", "--prompt", "And it came", *rest)
        self.assertEqual(self.succeed("generate", *rest, text="And it came\n"), given)
        echoed = self.succeed("generate", "--prompt", "And it came", "--echo", *rest)
        self.assertEqual(echoed, "And it came" + given)

    def test_bos(self):
        rest = ("generate", "--model", self.model, "--prompt", "And", "--max-tokens", 1)
        with_bos = self.succeed_json(*rest)["prompt_ids"]
        self.assertEqual(self.succeed_json(*rest, "--bos")["prompt_ids"], with_bos)
        self.assertEqual(self.succeed_json(*rest, "--no-bos")["prompt_ids"], with_bos[1:])

    def test_samples_are_independent_of_each_other(self):
        rest = ("generate", "--model", self.model, "--prompt", "In the", "--max-tokens", 12,
                "--seed", 5)
        many = self.succeed_json(*rest, "--samples", 3)["samples"]
        self.assertEqual(len({tuple(sample["ids"]) for sample in many}), 3)
        alone = self.succeed_json(*rest, "--first-sample", 2)["samples"]
        self.assertEqual(alone[0]["ids"], many[2]["ids"])
        text = self.succeed(*rest, "--samples", 3)
        wanted = "".join(f"--- sample {j}\n{many[j]['text']}\n" for j in range(3))
        self.assertEqual(text, wanted)

    def test_stats(self):
        arguments = ("generate", "--model", self.model, "--prompt", "In the", "--max-tokens", 9,
                     "--stats", "--samples", 2, "--ignore-eos")
        done = gumbel(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"18 tokens, [\d.]+ tokens/s")
        self.assertIn("head and sampling", done.stderr)
        self.assertIn("materialised route", done.stderr)
        stats = json.loads(gumbel(*arguments, "--json").stdout)["stats"]
        self.assertTrue(0 < stats["head_share"] < 1)
        self.assertEqual((stats["tokens"], stats["steps"], stats["step_rows"]), (18, 9, 2))
        self.assertGreater(stats["step_materialised_us"], stats["step_product_us"])

    def test_wrong_input(self):
        model = ("generate", "--model", self.model)
        self.refuse("--model", "generate")
        self.refuse("--model", "generate", "--model", self.path("none"), "--prompt", "a")
        self.refuse("--temperature", *model, "--temperature", "-0.5")
        self.refuse("--temperature", *model, "--temperature", "nan")
        self.refuse("--temperature", *model, "--temperature", "1e99")
        self.refuse("--seed", *model, "--seed", "nan")
        self.refuse("--seed", *model, "--seed", "-1")
        self.refuse("--seed", *model, "--seed", str(2**64))
        self.refuse("--max-tokens", *model, "--max-tokens", "0")
        self.refuse("--model", *model, "--max-tokens", "100000", "--prompt", "a")
        self.refuse("--samples", *model, "--samples", "1025")
        self.refuse("--prompt", *model, "--prompt", "", "--no-bos")
        self.refuse("options.device", *model, "--device", "tpu")
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            folder = tempfile.mkdtemp(dir=self.folder)
            for other in os.listdir(self.model):
                if other != name:
                    os.symlink(os.path.abspath(os.path.join(self.model, other)),
                               os.path.join(folder, other))
            with open(os.path.join(folder, name), "wb") as file:
                file.write(b"\xff" * 7)
            message = self.refuse("--model", "generate", "--model", folder, "--prompt", "a")
            self.assertIn(name, message)


class Stream(Case):
    """What becomes of a generate whose output nobody takes."""

    ARGUMENTS = ("generate", "--prompt", "In the", "--max-tokens", "500")

    def test_closed_pipe_ends_it_quietly(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([GUMBEL, *self.ARGUMENTS, "--model",
                               os.path.join(MODELS, "kjv-target")],
                              stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""))

    def test_head(self):
        model = os.path.join(MODELS, "kjv-target")
        done = subprocess.run(f'"{GUMBEL}" {" ".join(self.ARGUMENTS[:1])} --prompt "In the" '
                              f'--max-tokens 500 --model "{model}" | head -c 10',
                              shell=True, capture_output=True)
        self.assertEqual((len(done.stdout), done.stderr), (10, b""))

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_full_disk_is_told(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([GUMBEL, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^gumbel info: stdout: .*\n$")


class SampleCase(Case):
    """A small head in every form: V = 333 (no multiple of a tile), D = 24, B = 5."""

    V, D, B = 333, 24, 5

    def setUp(self):
        super().setUp()
        source = random.Random(4)
        # Multiples of 1/64 below 2 fit every dtype exactly.
        self.weights = [source.randrange(-100, 101) / 64 for _ in range(self.V * self.D)]
        self.hidden = [source.randrange(-64, 65) / 64 for _ in range(self.B * self.D)]
        self.bias = [source.randrange(-64, 65) / 64 for _ in range(self.V)]
        self.logits = [
            sum(self.weights[i * self.D + d] * self.hidden[b * self.D + d] for d in range(self.D))
            for b in range(self.B) for i in range(self.V)
        ]
        write_safetensors(self.path("head.safetensors"), {
            "weights": ("BF16", (self.V, self.D), [round(x * 64) / 64 for x in self.weights]),
            "half": ("F16", (self.V, self.D), self.weights),
            "hidden": ("F32", (self.B, self.D), self.hidden),
            "narrow": ("F32", (self.B, self.D - 1), self.hidden[: self.B * (self.D - 1)]),
            "bias": ("F32", (self.V,), self.bias),
            "ids": ("I32", (2,), [1, 2]),
            "cube": ("F32", (1, 1, 2), [1, 2]),
        })
        write_npy(self.path("weights.npy"), "<f4", (self.V, self.D), self.weights)
        write_npy(self.path("hidden.npy"), "<f2", (self.B, self.D), self.hidden)
        write_npy(self.path("logits.npy"), "<f4", (self.B, self.V), self.logits)
        self.head = ("--weights", self.path("head.safetensors:half"),
                     "--hidden", self.path("head.safetensors:hidden"))

    def sample(self, *arguments):
        return self.succeed_json("sample", *arguments)


class Sample(SampleCase):
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

    def test_chunks(self):
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
        """Two halves of a vocabulary, as shards, hold the winner of the whole between them."""
        write_npy(self.path("low.npy"), "<f4", (100, self.D), self.weights[: 100 * self.D])
        write_npy(self.path("high.npy"), "<f4", (self.V - 100, self.D), self.weights[100 * self.D :])
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
        found = self.sample(*self.head, "--temperature", self.path("t.npy"), "--seed",
                            self.path("s.npy"), "--position", self.path("p.npy"))
        write_npy(self.path("row.npy"), "<f4", (1, self.D), self.hidden[4 * self.D :])
        alone = self.sample(*self.head[:2], "--hidden", self.path("row.npy"), "--temperature", 100,
                            "--seed", 2**40, "--position", 5)
        self.assertEqual(found["tokens"][4], alone["tokens"][0])
        self.assertEqual(found["lse"][4], alone["lse"][0])

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

    def test_bad_rows_stand_alone(self):
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

    def test_chunks_give_memory_back(self):
        """A 256 MiB file of weights: whole it is all resident, in chunks it is not."""
        rows, cols = 65536, 2048
        size = rows * cols * 2
        header = {"w": {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [0, size]}}
        write_raw_safetensors(self.path("big.safetensors"), header, b"", sparse_bytes=size)
        write_npy(self.path("h.npy"), "<f4", (1, cols), [1.0] * cols)
        peaks = []
        for chunk in ((), ("--chunk", "1024")):
            child = subprocess.Popen(
                [GUMBEL, "sample", "--weights", self.path("big.safetensors"), "--hidden",
                 self.path("h.npy"), *chunk], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(child.returncode, 0)
            peaks.append(usage.ru_maxrss / 1024)
        self.assertLess(peaks[1], peaks[0] - 200, "MiB")


class SampleErrors(SampleCase):
    def test_missing(self):
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
            "--seed": ("nan", "-1", "1.5", str(2**64), "0x", ""),
            "--position": (str(2**32), "-1", "x"),
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

    def test_columns(self):
        write_npy(self.path("short.npy"), "<f4", (2,), [1, 1])
        write_npy(self.path("floats.npy"), "<f4", (self.B,), [1] * self.B)
        write_npy(self.path("ints.npy"), "<i8", (self.B,), [-1] * self.B)
        self.refuse("--temperature", "sample", *self.head, "--temperature", self.path("short.npy"))
        self.refuse("--temperature", "sample", *self.head, "--temperature", self.path("ints.npy"))
        self.refuse("--seed", "sample", *self.head, "--seed", self.path("floats.npy"))
        self.refuse("--seed", "sample", *self.head, "--seed", self.path("ints.npy"))
        self.refuse("--position", "sample", *self.head, "--position", self.path("none.npy"))
        write_npy(self.path("t.npy"), "<f4", (self.B,), [1, 1, -1, 1, 1])
        self.refuse("sampling.temperature[2]", "sample", *self.head, "--temperature",
                    self.path("t.npy"))

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


class Verify(SampleCase):
    def outcomes(self, *arguments):
        found = self.succeed_json("verify", *arguments)
        self.assertEqual(found["failed"], 0)
        return {check["name"]: check for check in found["checks"]}

    def test_model(self):
        checks = self.outcomes("--model", os.path.join(MODELS, "kjv-target"), "--prompt",
                               "And God said", "--draws", 20000)
        test = checks["chi-squared, fused"]
        self.assertEqual((test["outcome"], test["draws"]), ("passed", 20000))
        self.assertGreater(test["degrees_of_freedom"], 10)
        self.assertGreater(test["tested_mass"], 0.5)
        for name in ("isa reference", "4 threads", "from logits", "chunks of 1000",
                     "each row alone"):
            self.assertEqual(checks[name]["outcome"], "passed")
        for gap in range(12, 31, 2):
            self.assertAlmostEqual(checks[f"tail, gap {gap}"]["relative_rate"], 1, places=4)
        self.assertLess(checks["tail, gap 24"]["relative_rate_with_32_bits"], 0.3)

    def test_power(self):
        checks = self.outcomes("--draws", 262144)
        self.assertEqual(checks["power: temperature off by 2%"]["outcome"], "passed")

    def test_files(self):
        checks = self.outcomes("--logits", self.path("logits.npy"), "--draws", 5000, "--row", 4)
        self.assertNotIn("from logits", checks)
        self.outcomes(*self.head, "--draws", 5000, "--temperature", 0.25)
        write_npy(self.path("one.npy"), "<f4", (2, 1), [3, 4])
        checks = self.outcomes("--logits", self.path("one.npy"), "--draws", 100)
        self.assertEqual(checks["power: temperature off by 2%"]["outcome"], "skipped")

    def test_text(self):
        text = self.succeed("verify", "--logits", self.path("logits.npy"), "--draws", 3000)
        self.assertRegex(text, r"passed, 0 failed, \d skipped\n$")
        self.assertIn("degrees of freedom", text)

    def test_wrong_input(self):
        logits = ("verify", "--logits", self.path("logits.npy"))
        self.refuse("--row", *logits, "--row", self.B)
        self.refuse("--draws", *logits, "--draws", 0)
        self.refuse("--temperature", *logits, "--temperature", 0)
        self.refuse("--model", *logits, "--model", "x")
        self.refuse("--prompt", *logits, "--prompt", "x")
        self.refuse("--hidden", "verify", *self.head[:2])
        write_npy(self.path("nan.npy"), "<f4", (1, 2), [1, math.nan])
        done = gumbel("verify", "--logits", self.path("nan.npy"), "--draws", 10)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^gumbel verify: --row: row 0 .*\n$")


class Bench(Case):
    def test_json(self):
        found = self.succeed_json("bench", "--vocab", 641, "--hidden", 65, "--batch", "1,3",
                                  "--rounds", 3)
        self.assertEqual((found["vocab"], found["hidden"], found["dtype"]), (641, 65, "bf16"))
        self.assertGreater(found["read_bytes_per_second"], 1e8)
        self.assertGreater(found["float_operations_per_second"], 1e8)
        self.assertEqual([result["batch"] for result in found["results"]], [1, 3])
        for result in found["results"]:
            self.assertEqual(result["logits_bytes"], 4 * 641 * result["batch"])
            self.assertGreater(result["workspace_bytes"], 0)
            self.assertEqual(result["ways"]["product"]["vs_product"], 1)
            for way in result["ways"].values():
                self.assertTrue(0 < way["p10_us"] <= way["median_us"] <= way["p90_us"], way)

    def test_text(self):
        text = self.succeed("bench", "--vocab", 100, "--hidden", 8, "--batch", 2, "--rounds", 1,
                            "--dtype", "f16", "--logprobs")
        for start in ("question: ", "machine: ", "ceiling: ", "check: "):
            self.assertRegex(text, f"(?m)^{start}")
        for way in ("read weights", "product", "fused draw", "materialised", "from logits"):
            self.assertIn(way, text)

    def test_wrong_input(self):
        for option, value in (("--vocab", "0"), ("--hidden", "-1"), ("--batch", "1,x"),
                              ("--batch", "0"), ("--batch", ",".join("1" * 17)), ("--rounds", "0"),
                              ("--dtype", "f64")):
            self.refuse(option, "bench", f"{option}={value}")


if __name__ == "__main__":
    GUMBEL, MODELS = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
