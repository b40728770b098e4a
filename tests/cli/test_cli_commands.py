# SPDX-License-Identifier: Apache-2.0
"""`gumbel` itself, `info`, `verify` and `bench`."""

import math
import os
import re
import shlex
import subprocess
import unittest

from cli_case import COMMANDS, GUMBEL, MODELS, SANITIZED, Case, SampleCase, gumbel
from tensor_files import write_npy


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
        self.assertIn("cuda", self.refuse("--device", "info", "--device", "cuda"))


class Info(Case):
    def test_json(self):
        info = self.succeed_json("info", "--threads", 3)
        self.assertEqual(info["threads"], 3)
        self.assertIn(info["isa"], info["isas"])
        self.assertIn("reference", info["isas"])
        self.assertEqual(info["devices"]["cpu"], "available")
        self.assertTrue(info["devices"]["cuda"])
        self.assertRegex(info["cuda_architectures"], r"^$|^(sm_\d+a? ?)+(compute_\d+ ?)*$")
        names = info["cuda_architectures"].split()
        for images in (*info["cuda_images"].values(), *(each["images"] for each in info["gpus"])):
            self.assertEqual(list(images), ["portable", "tensor", "clusters", "hopper"])
            self.assertLessEqual(set(images.values()), {"", *names})
        hopper = ["sm_90", "sm_90", "sm_90", "sm_90a"] if names else [""] * 4
        self.assertEqual(list(info["cuda_images"]["9.0"].values()), hopper)
        self.assertEqual(info["cuda_images"]["12.0"]["hopper"], "")
        self.assertEqual(info["gpus"] == [], bool(re.search("^cuda ", self.succeed("info"), re.M)))

    def test_every_isa(self):
        for isa in self.succeed_json("info")["isas"]:
            self.assertEqual(self.succeed_json("info", "--isa", isa)["isa"], isa)

    def test_text(self):
        self.assertRegex(self.succeed("info"), r"(?m)^isa +\w+ \(of reference")
        self.assertRegex(self.succeed("info"), r"(?m)^kernels +(sm_\d+a?( |$)|none: )")

    def test_a_cpu_serves_every_usual_call(self):
        calls = self.succeed_json("info")["served"]
        self.assertIn("penalties", calls)
        for req, columns in calls.items():
            for title, names in columns.items():
                self.assertRegex(names, r"^[a-z-]+(, [a-z-]+)*$", (req, title))
        self.assertNotIn("refused", self.succeed("info"))


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
        for gap in range(4, 31, 2):
            self.assertAlmostEqual(checks[f"tail, gap {gap}"]["relative_rate"], 1, delta=5e-7)
        self.assertLess(checks["tail, gap 28"]["relative_rate_with_32_bits"], 0.5)

    def test_text_and_help_define_the_gap(self):
        lines = self.succeed("verify", "--draws", 100).splitlines()
        first = next(at for at, line in enumerate(lines) if "tail, gap 4 " in line)
        note = " ".join(" ".join(lines[first - 2 : first]).split())
        self.assertTrue(note.startswith("gap: the logit of a likely token minus"), note)
        self.assertTrue(note.endswith("its probability, 1 / (1 + e^gap)."), note)
        words = " ".join(self.succeed("verify", "--help").split())
        self.assertIn("the gap is the difference of their logits", words)

    def test_screen(self):
        model = ("--model", os.path.join(MODELS, "kjv-target"), "--draws", 2000)
        checks = self.outcomes(*model, "--screen")
        for name in ("screen's certificate", "draws with a screen"):
            self.assertEqual(checks[name]["outcome"], "passed")
        self.assertRegex(checks["draws with a screen"]["text"],
                         r"^0 of \d+ tokens and scores differ")
        self.assertNotIn("draws with a screen", self.outcomes(*model))
        checks = self.outcomes("--logits", self.path("logits.npy"), "--draws", 2000, "--screen")
        self.assertEqual(checks["draws with a screen"]["outcome"], "skipped")

    @unittest.skipIf(SANITIZED, "for draws by the quarter million")
    def test_power(self):
        checks = self.outcomes("--draws", 262144)
        self.assertEqual(checks["power: temperature off by 2%"]["outcome"], "passed")

    @unittest.skipIf(SANITIZED, "for draws by the quarter million")
    def test_the_readme_shows_the_power(self):
        """The row and the number of draws are chosen so that no check is skipped."""
        checks = self.outcomes("--model", os.path.join(MODELS, "kjv-target"))
        self.assertEqual(checks["power: temperature off by 2%"]["outcome"], "passed")
        self.assertEqual({check["outcome"] for check in checks.values()}, {"passed"})
        text = gumbel("verify", "--draws", 20000).stdout
        more = re.search(r"skipped +power.*; use --draws (\d+)\n", text)
        self.assertTrue(more, text)
        checks = self.outcomes("--draws", more[1])
        self.assertEqual(checks["power: temperature off by 2%"]["outcome"], "passed")

    def test_few_draws(self):
        """With few draws a correct sampler never fails; with too few the test is skipped."""
        write_npy(self.path("rows.npy"), "<f4", (2, 4), [3, 2, 1, 0, 30, 0, 0, 0])
        logits = ("--logits", self.path("rows.npy"))
        every = (1, 2, 3, 4, 5, 6, 9, 19, 20, 21, 40, 60, 100, 300)
        some = every if os.environ.get("GUMBEL_NIGHTLY") else every[::2]
        if SANITIZED:
            some = (1, 9, 40)
        for turn, draws in enumerate(some):  # each also computes tail rates: half a second
            seed, row = ((0, 0), (2, 1), (1, 0), (1, 0))[turn % 4]
            checks = self.outcomes(*logits, "--draws", draws, "--seed", seed, "--row", row)
            test = checks["chi-squared, from logits"]
            few = draws < 15 or row == 1
            self.assertEqual(test["outcome"], "skipped" if few else "passed", (draws, row))
            self.assertEqual(test["degrees_of_freedom"] > 0, not few)
            self.assertEqual(checks["power: temperature off by 2%"]["outcome"], "skipped")
        text = self.succeed("verify", "--draws", 5)
        self.assertRegex(text, r"skipped  chi-squared, fused +5 draws are too few to test")
        self.assertRegex(text, r"passed, 0 failed, 3 skipped\n$")

    def test_files(self):
        checks = self.outcomes("--logits", self.path("logits.npy"), "--draws", 5000, "--row", 4)
        self.assertNotIn("from logits", checks)
        self.outcomes(*self.head, "--draws", 5000, "--temperature", 0.25)
        self.outcomes("--logits", self.path("logits.npy"), "--draws", 500, "--temperature", 1e-45)
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
        self.refuse("--temperature", *logits, "--temperature", "1e-46")
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
                                  "--rounds", 3, "--buffer", 32)
        self.assertEqual((found["vocab"], found["hidden"], found["dtype"]), (641, 65, "bf16"))
        self.assertGreater(found["read_bytes_per_second"], 1e8)
        self.assertGreater(found["float_operations_per_second"], 1e8)
        self.assertEqual([result["batch"] for result in found["results"]], [1, 3])
        for result in found["results"]:
            self.assertEqual(result["logits_bytes"], 4 * 641 * result["batch"])
            self.assertGreater(result["workspace_bytes"], 0)
            self.assertTrue(result["served_by"])
            self.assertEqual(result["ways"]["product"]["vs_product"], 1)
            for name, way in result["ways"].items():
                self.assertTrue(0 < way["p10_us"] <= way["median_us"] <= way["p90_us"], way)
                if "logits" in name:
                    self.assertIsNone(way["of_ceiling"])
                else:  # at most 1, although these weights fit into a cache
                    self.assertTrue(0 < way["of_ceiling"] <= 1, way)
            self.assertGreaterEqual(result["ceiling_bytes_per_second"],
                                    found["read_bytes_per_second"])

    def test_screen(self):
        sizes = ("bench", "--vocab", 641, "--hidden", 65, "--batch", 3, "--rounds", 2,
                 "--buffer", 32)
        found = self.succeed_json(*sizes, "--screen")
        self.assertGreater(found["screen_bytes"], 641 * 65)
        ways = found["results"][0]["ways"]
        self.assertEqual(ways["screened draw"]["vs_screened"], 1)
        self.assertGreater(ways["fused draw"]["vs_screened"], 0)
        self.assertNotIn("screened draw", self.succeed_json(*sizes)["results"][0]["ways"])
        self.assertIn("screened draw", self.succeed(*sizes, "--screen"))
        self.refuse("--screen", *sizes, "--screen", "--logprobs")

    def test_text(self):
        text = self.succeed("bench", "--vocab", 100, "--hidden", 8, "--batch", 2, "--rounds", 1,
                            "--dtype", "f16", "--logprobs", "--buffer", 32)
        for start in ("question: ", "machine: ", "ceiling: ", "check: "):
            self.assertRegex(text, f"(?m)^{start}")
        for way in ("read weights", "product", "fused draw", "materialised", "from logits"):
            self.assertIn(way, text)

    def test_wrong_input(self):
        for option, value in (("--vocab", "0"), ("--hidden", "-1"), ("--batch", "1,x"),
                              ("--batch", "0"), ("--batch", ",".join("1" * 17)), ("--rounds", "0"),
                              ("--dtype", "f64"), ("--buffer", "0")):
            self.refuse(option, "bench", f"{option}={value}")


@unittest.skipIf(SANITIZED, "for draws by the quarter million")
class Readme(Case):
    """The commands of the README and of the command's page run as printed."""

    def test_commands(self):
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        lines = []
        for page in ("README.md", os.path.join("docs", "reference", "command.rst")):
            with open(os.path.join(root, page)) as file:
                lines += re.findall(r"(?m)^    build/release/cli/gumbel (.*)$", file.read())
        self.assertGreater(len(lines), 3)
        self.assertTrue(any("--check" in line for line in lines))
        texts = [shlex.split(line) for line in lines if line.startswith("generate ")]
        first = texts[0]
        self.assertGreater(float(first[first.index("--temperature") + 1]), 0)
        self.assertIn("--echo", first)
        for line in map(shlex.split, lines):
            if line[0] == "bench":
                line += ["--vocab", "1000", "--rounds", "1", "--buffer", "32"]
            done = subprocess.run([GUMBEL, *line], cwd=root, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, (line, done.stderr))
            if "--check" in line:
                self.assertIn("check passed: the text is the same", done.stderr)
                accepted = [float(x) for x in re.search(r"drafts: (\S+) of (\S+) ",
                                                        done.stderr).groups()]
                self.assertGreater(accepted[0] / accepted[1], 0.8)
            if line[0] == "verify":
                self.assertRegex(done.stdout, r", 0 failed, 0 skipped\n$")


if __name__ == "__main__":
    unittest.main()
