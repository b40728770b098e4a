# SPDX-License-Identifier: Apache-2.0
"""`gumbel generate --watermark-key` and `gumbel detect`."""

import os
import unittest

from cli_case import MODELS, SANITIZED, Case, gumbel

KEY = "000102030405060708090a0b0c0d0e0f"
OTHER = "f" * 32


class Watermark(Case):
    def setUp(self):
        super().setUp()
        self.model = os.path.join(MODELS, "kjv-target")
        self.many = 60 if SANITIZED else 200
        self.rest = ("generate", "--model", self.model, "--prompt", "In the beginning", "--seed", 3,
                     "--ignore-eos", "--max-tokens", self.many)

    def detect(self, ids, *rest, key=KEY):
        return self.succeed_json("detect", "--key", key, "--tokens", ",".join(map(str, ids)), *rest)

    def test_texts_are_detected(self):
        written = self.succeed_json(*self.rest, "--watermark-key", KEY, "--samples", 3)
        texts = [sample["ids"] for sample in written["samples"]]
        self.assertEqual(len({tuple(ids) for ids in texts}), 3)
        for sample, ids in enumerate(texts):
            found = self.detect(ids, "--sample", sample)
            self.assertEqual(found["tokens"], self.many)
            self.assertGreater(found["scored"], self.many // 2)
            self.assertLess(found["p_value"], 1e-2 if SANITIZED else 1e-6)
            scores = [score for score in found["scores"] if score is not None]
            self.assertEqual(len(scores), found["scored"])
            self.assertAlmostEqual(sum(scores), found["statistic"], places=3)
            for wrong in (self.detect(ids, "--sample", sample + 1),
                          self.detect(ids, "--sample", sample, "--context", 3),
                          self.detect(ids, "--sample", sample, key=OTHER)):
                self.assertGreater(wrong["p_value"], 1e-4)
        alone = self.succeed_json(*self.rest, "--watermark-key", KEY)
        self.assertEqual(alone["samples"][0]["ids"], texts[0])
        plain = self.succeed_json(*self.rest)["samples"][0]["ids"]
        self.assertNotEqual(plain, texts[0])
        self.assertGreater(self.detect(plain)["p_value"], 1e-4)

    def test_the_context_and_the_skipped_tokens(self):
        written = self.succeed_json(*self.rest, "--watermark-key", KEY, "--watermark-context", 2)
        ids = written["samples"][0]["ids"]
        found = self.detect(ids, "--context", 2)
        self.assertLess(found["p_value"], 1e-2 if SANITIZED else 1e-6)
        late = self.detect(ids, "--context", 2, "--first", 20)
        self.assertEqual(late["scores"][20:], found["scores"][20:])
        self.assertEqual(late["scores"][:20], [None] * 20)
        self.assertEqual(self.detect(ids[:2], "--context", 2)["p_value"], 1)

    def test_inputs(self):
        """Ids on stdin, and a text by its tokenizer; the output in words."""
        written = self.succeed_json(*self.rest, "--watermark-key", KEY)["samples"][0]
        text = " \n,".join(map(str, written["ids"]))
        words = self.succeed("detect", "--key", KEY, text=text)
        self.assertRegex(words, rf"^tokens +{self.many}, of which \d+ are scored\n"
                                r"statistic +[\d.]+, a mean score of [\d.]+; .*\n"
                                r"p-value +\S+: the probability of such a text without this key\n$")
        encoded = self.succeed("detect", "--key", KEY, "--tokenizer", self.model,
                               text=written["text"])
        self.assertIn("are scored", encoded)
        short = self.succeed("detect", "--key", KEY, text="1 2 3")
        self.assertIn("p-value    1: the text is too short", short)

    def test_errors(self):
        some = ("--tokens", "1,2,3")
        self.refuse("--key", "detect", *some)
        for key in ("12", "g" * 32, KEY + "0"):
            message = self.refuse("--key", "detect", "--key", key, *some)
            self.assertNotIn(key, message)
            self.refuse("--watermark-key", *self.rest, "--watermark-key", key)
        self.refuse("--tokens", "detect", "--key", KEY, "--tokens", "1,-2")
        self.refuse("--tokens", "detect", "--key", KEY, *some, "--tokenizer", self.model)
        self.refuse("--tokenizer", "detect", "--key", KEY, "--text", "And")
        self.refuse("--first", "detect", "--key", KEY, *some, "--first", 4)
        self.refuse("--context", "detect", "--key", KEY, *some, "--context", 17)
        self.refuse("--watermark-key", *self.rest, "--watermark-key", KEY, "--draft", "ngram")
        done = gumbel("detect", "--key", KEY, text="1 x")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^gumbel detect: --tokens: .*\n$")
        done = gumbel("detect", "--key", KEY, text="1\0 2")
        self.assertRegex(done.stderr, r"^gumbel detect: --tokens: stdin has a NUL byte")


if __name__ == "__main__":
    unittest.main()
