# SPDX-License-Identifier: Apache-2.0
"""Options of `sample` and `generate` for orders of more rules: --samplers and its parameters."""

import math
import os
import unittest

from cli_case import MODELS, Case, SampleCase
from tensor_files import write_npy

NEVER = -math.inf


def probabilities(row):
    mass = [math.exp(x - max(row)) for x in row]
    return [x / sum(mass) for x in mass]


def keep(row, allows):
    """The values of tokens whose probability `allows`; the likeliest always stays."""
    p = probabilities(row)
    return [x if allows(q, p) or q == max(p) else NEVER for x, q in zip(row, p, strict=True)]


def entropy(p):
    return -sum(q * math.log(q) for q in p if q > 0)


def keep_typical(row, share):
    p = probabilities(row)
    h = entropy(p)
    far = [abs(-math.log(q) - h) if q > 0 else math.inf for q in p]
    total, last = 0, 0
    for distance, q in sorted(zip(far, p, strict=True)):
        last = distance
        total += q
        if total >= share:
            break
    return [x if d <= last else NEVER for x, d in zip(row, far, strict=True)]


class Rules(SampleCase):
    def rows(self):
        return [self.logits[b * self.V : (b + 1) * self.V] for b in range(self.B)]

    def check(self, rows, *options):
        """The number of kept tokens, and the log-probabilities of drawn ones."""
        found = self.sample(*self.head, "--num-samples", 20, "--kept", *options)
        for b, row in enumerate(rows):
            alive = [x for x in row if x > NEVER]
            norm = max(alive) + math.log(sum(math.exp(x - max(alive)) for x in alive))
            self.assertEqual(found["kept"][b], len(alive), options)
            for token, logprob in zip(found["tokens"][b], found["logprobs"][b], strict=True):
                self.assertAlmostEqual(logprob, row[token] - norm, places=4)
        self.assertLess(sum(found["kept"]), self.B * self.V)
        return found

    def test_each_rule(self):
        rows = self.rows()
        sigma = [math.sqrt(sum((x - sum(row) / self.V) ** 2 for x in row) / self.V)
                 for row in rows]
        for rule, options, wanted in (
            ("typ_p", ("--typical", 0.5), [keep_typical(row, 0.5) for row in rows]),
            ("top_n_sigma", ("--top-nsigma", 1.5),
             [[x if x >= max(row) - 1.5 * s else NEVER for x in row]
              for row, s in zip(rows, sigma, strict=True)]),
            ("epsilon", ("--epsilon", 0.01), [keep(row, lambda q, p: q >= 0.01) for row in rows]),
            ("eta", ("--eta", 0.02),
             [keep(row, lambda q, p: q >= min(0.02, math.sqrt(0.02) * math.exp(-entropy(p))))
              for row in rows]),
            ("top_a", ("--top-a", 0.5),
             [keep(row, lambda q, p: q >= 0.5 * max(p) ** 2) for row in rows]),
            ("p_less", ("--p-less",),
             [keep(row, lambda q, p: q >= sum(r * r for r in p)) for row in rows]),
            ("surprise", ("--surprise", 5),
             [keep(row, lambda q, p: q >= 2.0**-5) for row in rows]),
        ):
            with self.subTest(rule):
                self.check(wanted, "--samplers", f"{rule};temperature", *options)

    def test_orders_of_rules(self):
        rows = [[x / 0.6 for x in keep_typical(row, 0.7)] for row in self.rows()]
        options = ("--temperature", 0.6, "--typical", 0.7)
        self.check(rows, "--samplers", "typ_p;temperature", *options)
        self.check(rows, "--order", "llama.cpp", *options)
        rows = [keep_typical([x / 0.6 for x in row], 0.7) for row in self.rows()]
        self.check(rows, "--samplers", "temperature;typ_p", *options)
        self.check(rows, "--order", "hf", *options)

    def test_a_list_of_three_rules_is_the_order_with_its_name(self):
        options = ("--top-k", 40, "--top-p", 0.8, "--min-p", 0.05, "--temperature", 0.7)
        for named, listed in (("llama.cpp", "top_k;top_p;min_p;temperature"),
                              ("hf", "temperature;top_k;top_p;min_p"),
                              ("before_temperature", "min_p;top_k;top_p;temperature"),
                              ("vllm", "temp;min-p;top-k;nucleus")):
            self.assertEqual(self.sample(*self.head, *options, "--samplers", listed),
                             self.sample(*self.head, *options, "--order", named), named)

    def test_llamacpp_names(self):
        """llama.cpp's default list, with the penalties that always come first."""
        rest = ("--typical", 0.8, "--top-nsigma", 2, "--top-k", 40, "--min-p", 0.01)
        wanted = self.sample(*self.head, *rest, "--order", "llama.cpp")
        for names in ("penalties;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature",
                      "top-n-sigma;top-k;typical;top-p;min-p;xtc;temp",
                      "top_n_sigma;top_k;typical_p;min_p;temperature"):
            self.assertEqual(self.sample(*self.head, *rest, "--samplers", names), wanted, names)

    def test_xtc(self):
        rows = []
        for row in self.rows():
            p = probabilities(row)
            likely = [x for x, q in zip(row, p, strict=True) if q >= 0.03]
            start = min(likely) if len(likely) > 1 else math.inf
            rows.append([NEVER if x > start else x for x in row])
        self.check(rows, "--samplers", "xtc;temperature", "--xtc-probability", 1,
                   "--xtc-threshold", 0.03)

    def test_temperature_by_entropy_and_smoothing(self):
        rows = []
        for row in self.rows():
            power = (entropy(probabilities(row)) / math.log(self.V)) ** 2
            rows.append([x / (0.5 + 1 * power) for x in row])
        found = self.sample(*self.head, "--dynatemp-range", 0.5, "--dynatemp-exp", 2)
        for b, row in enumerate(rows):
            p = probabilities(row)
            self.assertAlmostEqual(found["logprobs"][b][0], math.log(p[found["tokens"][b][0]]),
                                   places=3)
        found = self.sample(*self.head, "--samplers", "temperature;smoothing",
                            "--smoothing-factor", 0.2, "--smoothing-curve", 2)
        for b, row in enumerate(self.rows()):
            top = max(row)
            bent = [top + 0.2 * (0.5 * (x - top) ** 3 - 0.5 * (x - top) ** 2) for x in row]
            p = probabilities(bent)
            self.assertAlmostEqual(found["logprobs"][b][0], math.log(p[found["tokens"][b][0]]),
                                   places=3)

    def test_adaptive_p(self):
        found = self.sample(*self.head, "--samplers", "temperature;adaptive_p",
                            "--adaptive-target", 0.2)
        for b, row in enumerate(self.rows()):
            distances = [abs(q - 0.2) / 0.3 for q in probabilities(row)]
            p = probabilities([5 - 10 * d * d / (1 + d) for d in distances])
            self.assertAlmostEqual(found["logprobs"][b][0], math.log(p[found["tokens"][b][0]]),
                                   places=3)
        self.assertEqual(self.sample(*self.head, "--samplers", "temperature;adaptive-p",
                                     "--adaptive-target=-1"), self.sample(*self.head))

    def test_min_keep_and_values_of_rows(self):
        rest = (*self.head, "--kept", "--samplers", "typ_p;temperature")
        self.assertEqual(self.sample(*rest, "--typical", 0.001, "--min-keep", 9)["kept"],
                         [9] * self.B)
        write_npy(self.path("p.npy"), "<f4", (self.B,), [1, 0.001, 1, 0.001, 1])
        found = self.sample(*rest, "--typical", self.path("p.npy"))["kept"]
        self.assertEqual([found[0], found[2], found[4]], [self.V] * 3)
        self.assertEqual([found[1], found[3]], [1, 1])

    def test_wrong_options(self):
        for value in ("", "top_k", "top_k;;temperature", "top_k;temperature;", "dry;temperature",
                      "top_k;top_k;temperature", "xtc;top_k;temperature", "temperature;penalties",
                      "temperature;adaptive_p;top_k", "temperature;xtc;adaptive_p",
                      "top_k,temperature"):
            with self.subTest(value):
                self.refuse("--samplers", "sample", *self.head, f"--samplers={value}")
        for option, values in {
            "--typical": ("0", "1.5", "x"), "--top-nsigma": ("-1", "inf"), "--epsilon": ("1", "-1"),
            "--eta": ("1", "nan"), "--top-a": ("2",), "--surprise": ("-1",),
            "--xtc-probability": ("1.5",), "--xtc-threshold": ("0",), "--dynatemp-range": ("-1",),
            "--dynatemp-exp": ("-1",), "--smoothing-factor": ("-1",),
            "--smoothing-curve": ("0.5", "4"), "--adaptive-target": ("1.5", "-2", "nan"),
            "--min-keep": ("-1", "0"),
        }.items():
            every = ("temperature;typ_p;top_n_sigma;epsilon;eta;top_a;surprise;smoothing;xtc")
            every = every.replace("xtc", "adaptive_p") if option == "--adaptive-target" else every
            for value in values:
                with self.subTest(option=option, value=value):
                    self.refuse(option, "sample", *self.head, "--samplers", every,
                                f"{option}={value}")
        both = ("--samplers", "temperature", "--order", "hf")
        self.refuse("--samplers", "sample", *self.head, *both)
        listed = ("--samplers", "top_k;temperature")
        for option in (("--top-p", 0.5), ("--typical", 0.5), ("--p-less",),
                       ("--xtc-threshold", 0.2)):
            self.refuse(option[0], "sample", *self.head, *listed, *option)
            self.refuse(option[0], "sample", *self.head, *option, *(
                ("--order", "sglang") if option[0] != "--top-p" else listed))
        self.assertIn("has no typ_p", self.refuse("--typical", "sample", *self.head, "--typical",
                                                  0.5))
        self.assertIn("joint", self.refuse("--min-keep", "sample", *self.head, "--min-keep", 2,
                                           "--order", "mlx"))
        self.refuse("--dynatemp-range", "sample", *self.head, "--order", "llama.cpp",
                    "--xtc-probability", 0.5, "--dynatemp-range", 0.5)
        self.refuse("--chunk", "sample", *self.head, "--order", "hf", "--typical", 0.5, "--chunk",
                    64)


class GenerateRules(Case):
    ARGUMENTS = ("generate", "--model", os.path.join(MODELS, "kjv-target"), "--prompt",
                 "In the beginning", "--ignore-eos", "--max-tokens", 20)

    def texts(self, *arguments):
        return self.succeed_json(*self.ARGUMENTS, *arguments)["samples"]

    def test_texts_follow_the_order(self):
        rest = ("--typical", 0.4, "--min-keep", 2, "--temperature", 0.9, "--kept", "--seed", 7)
        many = self.texts(*rest, "--samplers", "top_n_sigma;typ_p;temperature", "--samples", 3)
        self.assertGreaterEqual(min(min(text["kept"]) for text in many), 2)
        self.assertEqual(len({tuple(text["ids"]) for text in many}), 3)
        for sample in (0, 2):
            alone = self.texts(*rest, "--order", "llama.cpp", "--first-sample", sample)
            self.assertEqual(alone[0], many[sample])
        plain = self.texts("--temperature", 0.9, "--seed", 7)
        self.assertNotEqual(plain[0]["ids"], many[0]["ids"])

    def test_drafts_change_no_text(self):
        rest = ("--order", "llama.cpp", "--typical", 0.5, "--xtc-probability", 0.3, "--seed", 5)
        drafted = self.texts(*rest, "--draft", "ngram")
        self.assertEqual(drafted[0]["ids"], self.texts(*rest)[0]["ids"])


if __name__ == "__main__":
    unittest.main()
