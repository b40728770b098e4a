# SPDX-License-Identifier: Apache-2.0
"""`bench`, `generate` and `sample` on a GPU; without one, the error."""

import json
import os
import unittest

from cli_case import MODELS, Case, SampleCase, gumbel
from tensor_files import write_npy

DEVICE = ("--device", "cuda:0")
WHY = gumbel("info", *DEVICE).stderr.strip()  # empty where there is a GPU
MODEL = ("--model", os.path.join(MODELS, "kjv-target"))


@unittest.skipUnless(WHY, "there is a GPU")
class WithoutGpu(Case):
    def test_errors_without_a_gpu(self):
        for arguments in (("info",), ("bench",), ("bench", "--json"), ("verify",),
                          ("generate", *MODEL, "--prompt", "And"),
                          ("generate", *MODEL, "--draft", "ngram", "--draft-rule", "block"),
                          ("generate", "--model", self.path("none"), "--threads", 2)):
            with self.subTest(arguments):
                self.assertRegex(self.refuse("--device", *arguments, *DEVICE),
                                 "cuda:0|NVIDIA driver")


@unittest.skipIf(WHY, WHY)
class Cuda(Case):
    QUICK = ("bench", *DEVICE, "--vocab", 8192, "--hidden", 256, "--rounds", 3, "--buffer", 256)

    def test_info(self):
        found = self.succeed("info", *DEVICE)
        self.assertRegex(found, r"(?m)^gpu +.+, \d+ multiprocessors, capability \d+\.\d: portable")
        self.assertGreater(self.succeed_json("info", *DEVICE)["multiprocessors"], 0)

    def test_bench_json(self):
        done = gumbel(*self.QUICK, "--batch", "1,3,80", "--json", "--logprobs")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertTrue(found["gpu"])
        self.assertTrue(found["driver"])
        self.assertGreater(found["read_bytes_per_second"], 1e11)
        self.assertEqual([result["batch"] for result in found["results"]], [1, 3, 80])
        names = {"read weights", "product", "fused draw", "from logits"}
        if found["cublas"]:
            names |= {"cuBLAS alone", "materialised"}
            self.assertGreater(found["float_operations_per_second"], 1e12)
        else:
            self.assertIn("cuBLAS", done.stderr)
        for result in found["results"]:
            self.assertEqual(set(result["ways"]), names)
            self.assertEqual(result["ways"]["product"]["vs_product"], 1)
            for way in result["ways"].values():
                self.assertTrue(0 < way["p10_us"] <= way["median_us"] <= way["p90_us"], way)

    def test_bench_text(self):
        for dtype in ("f16", "f32"):
            done = gumbel(*self.QUICK, "--batch", 2, "--dtype", dtype)
            self.assertEqual(done.returncode, 0, done.stderr)
            for start in ("question: ", "machine: ", "ceiling: ", "check: "):
                self.assertRegex(done.stdout, f"(?m)^{start}")
            for way in ("read weights", "product", "fused draw", "from logits"):
                self.assertIn(way, done.stdout)

    def test_texts_match_the_cpu(self):
        rest = ("generate", *MODEL, "--prompt", "In the beginning", "--max-tokens", 60,
                "--ignore-eos")
        for seed, temperature, samples in ((0, 0, 1), (1, 1, 1), (2, 0.7, 3), (3, 1.3, 11),
                                           (2**64 - 1, 1, 2)):
            draw = ("--seed", seed, "--temperature", temperature, "--samples", samples)
            with self.subTest(draw):
                ours = self.succeed_json(*rest, *draw, *DEVICE)["samples"]
                theirs = self.succeed_json(*rest, *draw)["samples"]
                self.assertEqual([text["ids"] for text in ours], [text["ids"] for text in theirs])

    def test_requests_match_the_cpu(self):
        rest = ("generate", *MODEL, "--prompt", "In the beginning", "--max-tokens", 40,
                "--samples", 10, "--seed", 8, "--ranks", "--kept-ids", 20, "--top-logprobs", 5)
        for request in (("--top-k", 20, "--top-p", 0.9, "--min-p", 0.02),
                        ("--repetition-penalty", 1.3, "--frequency-penalty", 0.4,
                         "--presence-penalty", 0.2),
                        ("--ban", "5,6", "--logit-bias", "0=6,9=-inf", "--raw-logprobs"),
                        ("--allow", "5,6,77,78,79", "--ban", "6")):
            with self.subTest(request):
                ours = self.succeed_json(*rest, *request, *DEVICE)["samples"]
                theirs = self.succeed_json(*rest, *request)["samples"]
                for text, wanted in zip(ours, theirs, strict=True):
                    for key in ("ids", "ranks", "kept"):
                        self.assertEqual(text[key], wanted[key], key)
                    for key in ("top", "kept_sets"):
                        self.assertEqual([found and found["ids"] for found in text[key]],
                                         [found and found["ids"] for found in wanted[key]], key)

    def test_stats(self):
        arguments = ("generate", *MODEL, "--prompt", "And", "--max-tokens", 9, "--stats",
                     "--ignore-eos", *DEVICE)
        done = gumbel(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"head and sampling on cuda:0 \(.+\): [\d.]+% of the time")

    def test_wrong_input(self):
        self.refuse("--isa", "bench", *DEVICE, "--isa", "reference")
        self.refuse("--device", "verify", *DEVICE)
        self.refuse("--model", "generate", "--model", self.path("none"), *DEVICE)


@unittest.skipIf(WHY, WHY)
class CudaDrafts(Case):
    def test_drafted_texts_match_the_cpu(self):
        rest = ("generate", *MODEL, "--prompt", "In the beginning", "--max-tokens", 60,
                "--ignore-eos", "--temperature", 0.8, "--samples", 3)
        small = os.path.join(MODELS, "kjv-draft")
        for request in ((), ("--top-p", 0.9, "--repetition-penalty", 1.3, "--ban", "5,6"),
                        ("--ranks", "--kept", "--top-logprobs", 3)):
            theirs = self.succeed_json(*rest, *request)["samples"]
            for drafted in (("--draft", small), ("--draft", "ngram"),
                            ("--draft", small, "--draft-siblings", 2)):
                with self.subTest(request=request, drafted=drafted):
                    found = self.succeed_json(*rest, *request, *drafted, "--check", *DEVICE)
                    for text, wanted in zip(found["samples"], theirs, strict=True):
                        for key in {"ids", "ranks", "kept"} & wanted.keys():
                            self.assertEqual(text[key], wanted[key], key)
                    # A penalty on repetition may leave nothing for n-grams to guess.
                    if "ngram" not in drafted:
                        self.assertGreater(found["drafts"]["tokens_a_cycle"], 1)


@unittest.skipIf(WHY, WHY)
class CudaRules(Case):
    def test_accepted_drafts_match_the_cpu(self):
        """By rejection and by blocks, from models and from n-grams: the same texts and counts."""
        rest = ("generate", *MODEL, "--prompt", "In the beginning", "--max-tokens", 60,
                "--ignore-eos", "--temperature", 0.8, "--samples", 3)
        small = os.path.join(MODELS, "kjv-draft")
        for request in ((), ("--top-p", 0.9, "--repetition-penalty", 1.3, "--ban", "5,6"),
                        ("--kept", "--top-logprobs", 3), ("--draft-temperature", 0.7)):
            for rule in ("rejection", "block"):
                for drafter in (small, "ngram"):
                    with self.subTest(request=request, rule=rule, drafter=drafter):
                        line = (*rest, *request, "--draft", drafter, "--draft-rule", rule)
                        ours, theirs = self.succeed_json(*line, *DEVICE), self.succeed_json(*line)
                        for text, wanted in zip(ours["samples"], theirs["samples"], strict=True):
                            for key in {"ids", "kept"} & wanted.keys():
                                self.assertEqual(text[key], wanted[key], key)
                            for found, log in zip(text["logprobs"], wanted["logprobs"],
                                                  strict=True):
                                self.assertAlmostEqual(found, log, places=3)
                        for key in ("tokens_a_cycle", "accepted_by_place"):
                            self.assertEqual(ours["drafts"][key], theirs["drafts"][key], key)
                        if drafter == small:
                            self.assertGreater(ours["drafts"]["accepted_a_cycle"], 0)


@unittest.skipIf(WHY, WHY)
class CudaSample(SampleCase):
    def test_results_match_the_cpu(self):
        words = (self.V + 31) // 32
        write_npy(self.path("mask.npy"), "<i4", (self.B, words), [0x55555555] * self.B * words)
        write_npy(self.path("k.npy"), "<i4", (self.B,), [1, 2, 9, 0, 40])
        write_npy(self.path("given.npy"), "<i4", (self.B, 3), [0, 7, -1] * self.B)
        write_npy(self.path("same.npy"), "<i4", (3,), [5, self.V - 1, -1])
        more = ("--ranks", "--kept", "--top-logprobs", 6)
        for request in ((), ("--chunk", 100), more,
                        ("--top-k", self.path("k.npy"), "--top-p", 0.8, *more),
                        ("--mask", self.path("mask.npy"), "--ban", "2,4", *more),
                        ("--allow", "2,7,300", *more), ("--allow", "2,7,300", "--chunk", 64),
                        ("--given", self.path("given.npy"), "--top-k", 9, *more),
                        ("--given", self.path("same.npy"), "--allow", "5,7", *more),
                        ("--position", 2**32 + 5),
                        ("--logit-bias", "7=2", "--frequency-penalty", 0.5, "--output-tokens",
                         "1,1,7", "--chunk", 128)):
            for source in (self.head, ("--logits", self.path("logits.npy"))):
                with self.subTest(request=request, source=source):
                    rest = (*source, "--num-samples", 3, "--seed", 2, *request)
                    ours, theirs = self.sample(*rest, *DEVICE), self.sample(*rest)
                    self.assertEqual(ours.keys(), theirs.keys())
                    for key in ours.keys() & {"tokens", "status", "ranks", "kept", "top_ids"}:
                        self.assertEqual(ours[key], theirs[key], key)
                    for lse, wanted in zip(ours["lse"], theirs["lse"], strict=True):
                        self.assertAlmostEqual(lse, wanted, places=4)


if __name__ == "__main__":
    unittest.main()
