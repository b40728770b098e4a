# SPDX-License-Identifier: Apache-2.0
"""Seeds of `generate` and `sample`, and stop strings of `generate`."""

import json
import os
import re
import unittest

from cli_case import MODELS, SANITIZED, Case, SampleCase, gumbel, gumbel_unseeded, over_ranks

MODEL = os.path.join(MODELS, "kjv-target")
DRAFT = os.path.join(MODELS, "kjv-draft")
BEGIN = ("generate", "--model", MODEL, "--prompt", "In the beginning", "--max-tokens", 12)


class Seeds(SampleCase):
    def draw(self, what, *arguments):
        """The seed of stderr's line, and stdout."""
        done = gumbel_unseeded(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        line = re.fullmatch(rf"seed (\d+); --seed \1 repeats {what}\n", done.stderr)
        self.assertTrue(line, done.stderr)
        return line[1], done.stdout

    def test_generate(self):
        seeds = set()
        for what, more in (("this text", ()), ("this text", ("--echo",)),
                           ("these texts", ("--samples", 2)),
                           ("this text", ("--stop", "and"))):
            seed, text = self.draw(what, *BEGIN, *more)
            self.assertEqual(self.succeed(*BEGIN, *more, "--seed", seed), text)
            seeds.add(seed)
        self.assertEqual(len(seeds), 4)
        self.assertTrue(any(int(seed) >= 2**32 for seed in seeds), seeds)

    def test_an_error_is_one_line(self):
        """The seed is printed only after all arguments and files have been read."""
        for more in (("--draft", self.path("none")), ("--ban", 9999), ("--max-tokens", 5000),
                     ("--stop", ""), ("--top-p", 2), ("--mask", self.path("none.npy"))):
            done = gumbel_unseeded(*BEGIN, "--echo", *more)
            self.assertEqual((done.returncode, done.stdout), (2, ""), more)
            self.assertRegex(done.stderr, rf"^gumbel generate: {more[0]}: .*\n$")

    def test_generate_json(self):
        done = gumbel_unseeded(*BEGIN, "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = json.loads(done.stdout)
        self.assertEqual(self.succeed_json(*BEGIN, "--seed", found["seed"]), found)
        self.assertNotEqual(json.loads(gumbel_unseeded(*BEGIN, "--json").stdout)["seed"],
                            found["seed"])
        large = self.succeed_json(*BEGIN, "--seed", 2**64 - 1)
        self.assertEqual(large["seed"], str(2**64 - 1))

    def test_a_greedy_text_has_no_seed(self):
        done = gumbel_unseeded(*BEGIN, "--temperature", 0)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_sample(self):
        logits = ("sample", "--logits", self.path("logits.npy"), "--num-samples", 4)
        found = json.loads(gumbel_unseeded(*logits).stdout)
        self.assertEqual(self.sample(*logits[1:], "--seed", found["seed"]), found)
        self.assertNotEqual(json.loads(gumbel_unseeded(*logits).stdout)["seed"], found["seed"])
        out = ("--out-tokens", self.path("tokens.npy"))
        seed, _ = self.draw("these draws", *logits, *out)
        with open(self.path("tokens.npy"), "rb") as file:
            tokens = file.read()
        self.succeed(*logits, *out, "--seed", seed)
        with open(self.path("tokens.npy"), "rb") as file:
            self.assertEqual(file.read(), tokens)

    def test_ranks_share_the_seed(self):
        """Each process draws a seed; all use that of the first."""
        found = json.loads(over_ranks(self, 3, *BEGIN, "--threads", 1, "--samples", 2, "--json"))
        alone = self.succeed_json(*BEGIN, "--samples", 2, "--seed", found["seed"])
        self.assertEqual(found, alone)
        found = json.loads(over_ranks(self, 3, "sample", *self.head, "--threads", 1))
        self.assertEqual(found, self.sample(*self.head, "--seed", found["seed"]))


class Stop(Case):
    REST = ("generate", "--model", MODEL, "--prompt", "And", "--max-tokens", 60, "--seed", 5,
            "--ignore-eos")

    def texts(self, *arguments):
        return self.succeed_json(*self.REST, *arguments)["samples"]

    def lengths(self, count):
        """The lengths of the texts of the first n tokens, n = 1 to `count`."""
        return [len(self.texts("--max-tokens", n)[0]["text"]) for n in range(1, count + 1)]

    def test_a_text_ends_before_the_string(self):
        """A stop string at every index of a text, within tokens and across them; the ids end with
        the string."""
        whole = self.texts()[0]
        self.assertEqual(whole["ended_by"], "max-tokens")
        text, lengths = whole["text"], self.lengths(len(whole["ids"]))
        for size in (2, 23) if SANITIZED else (1, 2, 7, 23):
            for start in range(0, len(text) - size, 150 if SANITIZED else 67):
                stop = text[start : start + size]
                place = text.find(stop)
                with self.subTest(stop=stop):
                    found = self.texts("--stop", stop)[0]
                    self.assertEqual(found["text"], text[:place])
                    self.assertEqual((found["ended_by"], found["stop"]), ("stop", stop))
                    count = next(i for i, n in enumerate(lengths, 1) if n >= place + size)
                    self.assertEqual(found["ids"], whole["ids"][:count])
                    self.assertEqual(len(found["logprobs"]), count)
                    self.assertEqual(self.succeed(*self.REST, "--stop", stop), text[:place] + "\n")

    def test_text_without_a_stop_string(self):
        """Text that may be the beginning of a stop string is printed at the end."""
        text = self.texts()[0]["text"]
        for stop in (text[-5:] + "~", text[-1:] + "~~", "~", text + "~"):
            done = self.succeed(*self.REST, "--stop", stop)
            self.assertEqual(done, text + "\n")
        self.assertEqual(self.texts("--stop", "~")[0]["ended_by"], "max-tokens")

    def test_the_first_of_several_strings_ends_the_text(self):
        text = self.texts()[0]["text"]
        early, late = text[20:26], text[60:66]
        for stops in ((early, late), (late, early), (text[20:22], early), ("~", early)):
            flags = [x for stop in stops for x in ("--stop", stop)]
            place = min(i for i in map(text.find, stops) if i >= 0)
            self.assertEqual(self.texts(*flags)[0]["text"], text[:place])

    def test_samples_end_each_at_its_own(self):
        many = ("--samples", 9)
        whole = self.texts(*many)
        found = self.texts(*many, "--stop", " the", "--stop", ";")
        for text, ended in zip(whole, found, strict=True):
            places = [i for i in map(text["text"].find, (" the", ";")) if i >= 0]
            self.assertEqual(ended["text"], text["text"][: min(places, default=None)])
        self.assertGreater(len({len(text["ids"]) for text in found}), 3)
        shown = self.succeed(*self.REST, *many, "--stop", " the", "--stop", ";")
        self.assertEqual(shown, "".join(f"--- sample {j}\n{text['text']}\n"
                                        for j, text in enumerate(found)))

    def test_drafts(self):
        """Texts and ids are the same, although a cycle may emit tokens after the string."""
        stops = ("--samples", 4, "--stop", " of the", "--stop", ", and")
        plain = self.texts(*stops)
        self.assertIn("stop", {text["ended_by"] for text in plain})
        for draft in ("ngram", DRAFT):
            drafted = self.texts(*stops, "--draft", draft, "--draft-tokens", 7, "--check")
            self.assertEqual(drafted, plain, draft)
        siblings = self.texts(*stops, "--draft", DRAFT, "--draft-siblings", 2, "--check")
        self.assertEqual(siblings, plain)

    def test_characters_of_several_tokens(self):
        """Texts of the two bytes of an e with an acute accent, each a token."""
        with open(os.path.join(MODEL, "tokenizer.json")) as file:
            vocab = json.load(file)["model"]["vocab"]
        rest = ("--allow", f"{vocab['Ã']},{vocab['©']}", "--samples", 5)
        whole = [text["text"] for text in self.texts(*rest)]
        self.assertTrue(any("\u00e9\u00e9" in text for text in whole), whole)
        for stop in ("\u00e9", "\u00e9\u00e9", "\u00e9\ufffd", "\ufffd\u00e9"):
            found = self.texts(*rest, "--stop", stop)
            for text, ended in zip(whole, found, strict=True):
                self.assertEqual(ended["text"], text.split(stop)[0])

    def test_echo_and_empty_texts(self):
        first = self.texts()[0]["text"][0]
        self.assertEqual(self.succeed(*self.REST, "--echo", "--stop", first), "And\n")
        found = self.texts("--stop", "And")[0]  # in the prompt, which is not searched
        self.assertNotEqual(found["text"], "")

    def test_stats(self):
        done = gumbel(*self.REST, "--stop", ",", "--stats")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tokens/s", done.stderr)

    def test_ranks(self):
        rest = (*self.REST, "--samples", 3, "--stop", " the", "--threads", 1)
        self.assertEqual(over_ranks(self, 2, *rest), self.succeed(*rest))

    def test_wrong_input(self):
        self.refuse("--stop", *self.REST, "--stop", "")
        self.refuse("--stop", *self.REST, "--stop")
        done = gumbel(*self.REST, "--stop", "a\udcff")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^gumbel generate: --stop: is not UTF-8 at byte offset 1\n$")


if __name__ == "__main__":
    unittest.main()
