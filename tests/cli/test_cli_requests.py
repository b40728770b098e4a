# SPDX-License-Identifier: Apache-2.0
"""Options of `sample` and `generate` beside the temperature: truncation, edits of the
logits, penalties, further results."""

import json
import math
import os
import unittest

from cli_case import MODELS, SANITIZED, Case, SampleCase
from tensor_files import read_npy, write_npy

NEVER = -math.inf


def lse(row):
    top = max(row)
    return top + math.log(sum(math.exp(x - top) for x in row))


class Request(SampleCase):
    def rows(self):
        return [self.logits[b * self.V : (b + 1) * self.V] for b in range(self.B)]

    def check(self, found, rows, raw=None):
        """Results from the processed logits `rows`; NEVER is what cannot be drawn."""
        for b, row in enumerate(rows):
            norm = lse(raw[b] if raw else row)
            of = raw[b] if raw else row
            self.assertEqual(found["status"][b], 0)
            self.assertAlmostEqual(found["lse"][b], norm, places=4)
            for token, logprob in zip(found["tokens"][b], found["logprobs"][b], strict=True):
                self.assertGreater(row[token], NEVER)
                self.assertAlmostEqual(logprob, of[token] - norm, places=4)

    def keep(self, row, k):
        cut = sorted(row, reverse=True)[k - 1]
        return [x if x >= cut else NEVER for x in row]

    def test_top_k(self):
        found = self.sample(*self.head, "--top-k", 7, "--num-samples", 60, "--kept", "--ranks")
        kept = [self.keep(row, 7) for row in self.rows()]
        self.check(found, kept)
        for b, row in enumerate(kept):
            self.assertEqual(found["kept"][b], sum(x > NEVER for x in row))
            self.assertEqual(found["ranks"][b],
                             [1 + sum(x > row[t] for x in row) for t in found["tokens"][b]])

    def test_every_rule_together(self):
        found = self.sample(*self.head, "--temperature", 0.8, "--top-k", 40, "--top-p", 0.7,
                            "--min-p", 0.01, "--num-samples", 40, "--kept")
        rows = []
        for row in self.rows():
            z = [x / 0.8 for x in row]
            z = [x if x >= max(z) + math.log(0.01) else NEVER for x in z]
            z = self.keep(z, 40)
            mass = math.exp(lse(z))
            rows.append([x if sum(math.exp(y) for y in z if y > x) < 0.7 * mass else NEVER
                         for x in z])
        self.check(found, rows)
        self.assertEqual(found["kept"], [sum(x > NEVER for x in row) for row in rows])

    def test_given_tokens(self):
        drawn = self.sample(*self.head, "--temperature", 0.8, "--num-samples", 3, "--ranks")
        flat = [token for row in drawn["tokens"] for token in row]
        write_npy(self.path("given.npy"), "<i4", (self.B, 3), flat)
        scored = self.sample(*self.head, "--temperature", 0.8, "--num-samples", 3, "--ranks",
                             "--given", self.path("given.npy"))
        for name in ("tokens", "logprobs", "ranks", "lse", "status"):
            self.assertEqual(scored[name], drawn[name])
        write_npy(self.path("same.npy"), "<i4", (2,), [5, -1])
        scored = self.sample(*self.head, "--num-samples", 2, "--ranks",
                             "--given", self.path("same.npy"))
        for row, tokens in zip(self.rows(), scored["tokens"], strict=True):
            self.assertEqual(tokens, [5, -1])
        row = self.rows()[0]
        self.assertEqual(scored["ranks"][0], [1 + sum(x > row[5] for x in row), -1])
        # Tokens that cannot be drawn have -inf; padding has NaN. JSON has null for both.
        out = self.path("logprobs.npy")
        self.succeed("sample", *self.head, "--num-samples", 2, "--ban", 5, "--given",
                     self.path("same.npy"), "--out-logprobs", out)
        logprobs = read_npy(out)[2]
        self.assertEqual(set(logprobs[::2]), {NEVER})
        self.assertTrue(all(map(math.isnan, logprobs[1::2])))
        self.refuse("--given", "sample", *self.head, "--given", self.path("given.npy"))
        self.refuse("--chunk", "sample", *self.head, "--num-samples", 3, "--chunk", 64,
                    "--given", self.path("given.npy"))

    def test_allowed_tokens(self):
        allowed = [3, 17, self.V - 1]
        found = self.sample(*self.head, "--num-samples", 40, "--kept", "--allow",
                            ",".join(map(str, allowed)))
        self.check(found, [[x if i in allowed else NEVER for i, x in enumerate(row)]
                           for row in self.rows()])
        self.assertEqual(found["kept"], [3] * self.B)
        self.assertTrue(all(set(row) <= set(allowed) for row in found["tokens"]))
        # A row whose list is empty may draw any token.
        write_npy(self.path("allow.npy"), "<i4", (self.B, 2), [9, -1] + [-1, -1] * (self.B - 1))
        found = self.sample(*self.head, "--kept", "--allow", self.path("allow.npy"))
        self.assertEqual(found["kept"], [1] + [self.V] * (self.B - 1))
        self.assertEqual(found["tokens"][0], [9])

    def test_orders_and_ties(self):
        write_npy(self.path("four.npy"), "<f4", (1, 5),
                  [math.log(p) for p in (0.30, 0.25, 0.24, 0.11, 0.10)])
        logits = ("--logits", self.path("four.npy"), "--kept")
        # Of the first three, which hold 0.79, the largest alone has 0.35 of the mass.
        self.assertEqual(self.sample(*logits, "--top-k", 3, "--top-p", 0.35)["kept"], [1])
        joint = ("--order", "joint", "--top-k", 3, "--top-p", 0.35)
        self.assertEqual(self.sample(*logits, *joint)["kept"], [2])
        hot = ("--temperature", 1000, "--min-p", 0.9)
        self.assertEqual(self.sample(*logits, *hot)["kept"], [5])
        self.assertEqual(self.sample(*logits, *hot, "--order", "before_temperature")["kept"], [1])
        for order, kept in {"vllm": (2, 1), "hf": (2, 2), "top_k,top_p,min_p": (2, 2),
                            "llama.cpp": (1, 2), "top_k,top_p,min_p,temperature": (1, 2),
                            "sglang": (3, 2), "mlx": (1, 2), "joint,temperature": (1, 2)}.items():
            rules = ("--order", order, "--top-k", 3)
            hot = ("--temperature", 1.5, "--min-p", 0.84, "--top-p", 0.52)
            cold = ("--min-p", 0.82, "--top-p", 0.5)
            found = [self.sample(*logits, *rules, *at)["kept"] for at in (hot, cold)]
            self.assertEqual(found, [[k] for k in kept], order)
        write_npy(self.path("tied.npy"), "<f4", (1, 4), [1, 2, 1, 1])
        tied = ("--logits", self.path("tied.npy"), "--kept", "--top-k", 2)
        self.assertEqual(self.sample(*tied)["kept"], [4])
        self.assertEqual(self.sample(*tied, "--ties", "exact")["kept"], [2])

    def test_likeliest_and_raw(self):
        found = self.sample(*self.head, "--temperature", 2, "--top-k", 3, "--top-logprobs", 5,
                            "--raw-logprobs")
        rows = self.rows()
        self.check(found, [self.keep([x / 2 for x in row], 3) for row in rows], raw=rows)
        processed = self.sample(*self.head, "--temperature", 2, "--top-k", 3, "--top-logprobs", 5)
        for b, row in enumerate(rows):
            best = sorted(range(self.V), key=lambda i: (-row[i], i))[:5]
            self.assertEqual(found["top_ids"][b], best)
            self.assertEqual(processed["top_ids"][b], best)
            kept = [row[i] / 2 for i in best[:3]]
            for i, logprob in enumerate(processed["top_logprobs"][b]):
                if i < 3:
                    self.assertAlmostEqual(logprob, kept[i] - lse(kept), places=4)
                else:
                    self.assertIsNone(logprob)

    def test_masked_banned_and_biased(self):
        words = (self.V + 31) // 32
        odd = 0xAAAAAAAA - 2**32
        write_npy(self.path("one.npy"), "<i4", (words,), [odd] * words)
        write_npy(self.path("each.npy"), "<i4", (self.B, words),
                  [odd, *[-1] * (words - 1)] * self.B)
        rows = self.rows()
        rest = ("--num-samples", 30)
        edited = [[x if i % 2 else NEVER for i, x in enumerate(row)] for row in rows]
        self.check(self.sample(*self.head, *rest, "--mask", self.path("one.npy")), edited)
        edited = [[x if i % 2 or i >= 32 else NEVER for i, x in enumerate(row)] for row in rows]
        self.check(self.sample(*self.head, *rest, "--mask", self.path("each.npy")), edited)
        best = [max(range(self.V), key=row.__getitem__) for row in rows]
        banned = ",".join(map(str, best))
        edited = [[NEVER if i in best else x for i, x in enumerate(row)] for row in rows]
        self.check(self.sample(*self.head, *rest, "--ban", banned), edited)
        lists = [x for b in range(self.B) for x in (best[b], -1, 5)]
        write_npy(self.path("ban.npy"), "<i4", (self.B, 3), lists)
        edited = [[NEVER if i == best[b] else x for i, x in enumerate(row)]
                  for b, row in enumerate(rows)]
        self.check(self.sample(*self.head, *rest, "--ban", self.path("ban.npy")), edited)
        edited = [[NEVER if i == 3 else x + 2 * (i == 9) - 0.5 * (i == 300)
                   for i, x in enumerate(row)] for row in rows]
        self.check(self.sample(*self.head, *rest, "--logit-bias", "3=-inf,9=2,300=-0.5"), edited)

    def test_penalties(self):
        found = self.sample(*self.head, "--num-samples", 20, "--repetition-penalty", 1.5,
                            "--frequency-penalty", 0.5, "--presence-penalty", 0.25,
                            "--prompt-tokens", "1,2,3", "--output-tokens", "3,4,4")
        rows = []
        for row in self.rows():
            for i in (1, 2, 3, 4):
                row[i] = row[i] / 1.5 if row[i] > 0 else row[i] * 1.5
            row[3] -= 0.5 * 1 + 0.25
            row[4] -= 0.5 * 2 + 0.25
            rows.append(row)
        self.check(found, rows)

    def test_a_value_for_each_row(self):
        write_npy(self.path("k.npy"), "<i4", (self.B,), [1, 2, 3, 0, 333])
        write_npy(self.path("p.npy"), "<f4", (self.B,), [0, 0, 0, 0, 9])
        found = self.sample(*self.head, "--top-k", self.path("k.npy"), "--kept",
                            "--presence-penalty", self.path("p.npy"), "--output-tokens", "7")
        self.assertEqual(found["kept"], [1, 2, 3, self.V, self.V])
        rows = self.rows()
        rows[4][7] -= 9
        self.assertAlmostEqual(found["lse"][4], lse(rows[4]), places=4)

    def test_every_input_form_gives_the_same_results(self):
        rest = ("--top-k", 9, "--top-p", 0.8, "--ban", "1,2", "--num-samples", 9, "--seed", 5,
                "--top-logprobs", 4, "--ranks", "--kept")
        wanted = self.sample(*self.head, *rest)
        self.assertEqual(self.sample("--logits", self.path("logits.npy"), *rest), wanted)

    def test_chunks(self):
        edits = ("--ban", "1,2", "--logit-bias", "70=1.5", "--frequency-penalty", 1,
                 "--output-tokens", "5,5,200", "--num-samples", 4)
        whole = self.sample(*self.head, *edits)
        for chunk in (64, 100, 192, 1000):
            found = self.sample(*self.head, *edits, "--chunk", chunk)
            self.assertEqual(found["tokens"], whole["tokens"], chunk)
        for option in (("--top-k", 3), ("--top-p", 0.5), ("--min-p", 0.1), ("--raw-logprobs",),
                       ("--kept",), ("--ranks",), ("--top-logprobs", 3),
                       ("--out-kept", self.path("kept.npy"))):
            self.refuse("--chunk", "sample", *self.head, *option, "--chunk", 64)

    def test_npy_output(self):
        shapes = {"ranks": (self.B, 2), "kept": (self.B,), "top-ids": (self.B, 3),
                  "top-logprobs": (self.B, 3)}
        options = [x for name in shapes for x in (f"--out-{name}", self.path(f"{name}.npy"))]
        rest = ("--num-samples", 2, "--top-logprobs", 3)
        self.assertEqual(self.succeed("sample", *self.head, *rest, *options), "")
        found = self.sample(*self.head, *rest, "--ranks", "--kept")
        for name, shape in shapes.items():
            descr, got, values = read_npy(self.path(f"{name}.npy"))
            self.assertEqual((descr, got), ("<f4" if name == "top-logprobs" else "<i4", shape))
            wanted = found[name.replace("-", "_")]
            wanted = wanted if len(shape) == 1 else [x for row in wanted for x in row]
            for value, want in zip(values, wanted, strict=True):
                self.assertAlmostEqual(value, want, delta=1e-7 * abs(want))


class RequestErrors(SampleCase):
    def test_numbers(self):
        for option, values in {
            "--top-k": ("-1", "1.5", "x", str(2**31)),
            "--top-p": ("0", "1.5", "-1", "nan", ""),
            "--min-p": ("-0.1", "2", "nan"),
            "--order": ("", "top_k", "JOINT", "llama", "min_p,top_k,top_p,temperature"),
            "--ties": ("none", ""),
            "--ban": ("x", "1,,2", "-1", "1.5", str(2**31)),
            "--allow": ("x", "1,,2", "-1", "1.5", str(2**31)),
            "--logit-bias": ("5", "5=", "5=x", "=1", "-1=2", "5=nan", "5=inf", "5=1,"),
            "--repetition-penalty": ("0", "-1", "nan", "inf"),
            "--frequency-penalty": ("nan", "inf", "x"),
            "--presence-penalty": ("nan", "x"),
            "--prompt-tokens": ("a", "-5"),
            "--output-tokens": ("1;2",),
            "--top-logprobs": ("-1", "129", "x"),
        }.items():
            for value in values:
                with self.subTest(option=option, value=value):
                    tokens = () if option.endswith("-tokens") else ("--prompt-tokens", 1)
                    self.refuse(option, "sample", *self.head, *tokens, f"{option}={value}")

    def test_files(self):
        write_npy(self.path("short.npy"), "<i4", (2, 2), [1, 2, 3, 4])
        write_npy(self.path("floats.npy"), "<f4", (self.B,), [1] * self.B)
        write_npy(self.path("minus.npy"), "<i4", (2,), [1, -2])
        for option in ("--mask", "--allow", "--ban", "--given"):
            for name in ("short", "floats", "none"):
                self.refuse(option, "sample", *self.head, option, self.path(f"{name}.npy"))
        self.refuse("--ban", "sample", *self.head, "--ban", self.path("minus.npy"))
        self.refuse("--top-k", "sample", *self.head, "--top-k", self.path("floats.npy"))
        write_npy(self.path("p.npy"), "<f4", (self.B,), [1, 1, 0, 1, 1])
        self.assertIn("row 2", self.refuse("--top-p", "sample", *self.head, "--top-p",
                                           self.path("p.npy")))

    def test_ids_beyond_the_vocabulary(self):
        """The line names the id and V; a shard's ids may be others', if --vocab-size is larger."""
        write_npy(self.path("far.npy"), "<i4", (2,), [1, self.V])
        for option, value in (("--ban", f"1,{self.V}"), ("--allow", self.V),
                              ("--logit-bias", f"{self.V}=1"), ("--prompt-tokens", self.V),
                              ("--output-tokens", self.V), ("--ban", self.path("far.npy")),
                              ("--allow", self.path("far.npy")),
                              ("--prompt-tokens", self.path("far.npy"))):
            with self.subTest(option=option, value=value):
                message = self.refuse(option, "sample", *self.head, option, value)
                self.assertIn(f"token id {self.V} is not below the vocabulary size V = {self.V}",
                              message)
        given = ("--num-samples", 2, "--given", self.path("far.npy"))
        self.assertIn(f"token id {self.V} ", self.refuse("--given", "sample", *self.head, *given))
        last = self.V - 1
        self.sample(*self.head, "--ban", last, "--logit-bias", f"{last}=1")
        self.refuse("--ban", "sample", *self.head, "--vocab-size", last, "--ban", last)
        shard = (*self.head, "--first-token", 64)
        self.sample(*shard, "--ban", "5,396")
        self.assertIn("V = 397", self.refuse("--ban", "sample", *shard, "--ban", 397))
        self.sample(*shard, "--ban", 900, "--vocab-size", 1000)

    def test_messages_name_options_not_fields(self):
        """Ranges as a person writes them, not the ends of float32."""
        for option, value, wanted in (("--top-p", 0, "(0, 1]"), ("--temperature", -1, "[0, inf)"),
                                      ("--repetition-penalty", 0, "(0, inf)"),
                                      ("--frequency-penalty", "inf", "(-inf, inf)")):
            message = self.refuse(option, "sample", *self.head, "--prompt-tokens", 1,
                                  f"{option}={value}")
            self.assertTrue(message.endswith(f" is not in {wanted}\n"), message)

    def test_values_in_files(self):
        """An error in a file names the option, the file and the row."""
        penalised = ("--prompt-tokens", 1)
        for option, low, high in (("--top-p", 0, 1.5), ("--min-p", -1e-45, 1.5),
                                  ("--temperature", -1e-45, math.inf),
                                  ("--repetition-penalty", 0, math.inf),
                                  ("--frequency-penalty", -math.inf, math.inf),
                                  ("--presence-penalty", -math.inf, math.inf)):
            for value in (low, high, math.nan):
                with self.subTest(option=option, value=value):
                    write_npy(self.path("x.npy"), "<f4", (self.B,), [1, 1, 1, value, value])
                    message = self.refuse(option, "sample", *self.head, *penalised, option,
                                          self.path("x.npy"))
                    self.assertRegex(message, r"x\.npy: value \S+ of row 3 is not in [[(]")

    def test_the_smallest_floats(self):
        """Denormals are numbers; values that float32 rounds to 0 are refused."""
        tiny = ("--prompt-tokens", 1)
        for option in ("--temperature", "--top-p", "--min-p", "--repetition-penalty", "--scale",
                       "--soft-cap", "--frequency-penalty", "--presence-penalty"):
            with self.subTest(option):
                for value in ("1e-45", "1.5e-40", "0x1p-149"):
                    self.sample(*self.head, *tiny, option, value)
                for value in ("1e-46", "-1e-50", "0x1p-200"):
                    message = self.refuse(option, "sample", *self.head, *tiny,
                                          f"{option}={value}")
                    self.assertIn("too small", message)
        self.sample(*self.head, "--logit-bias", "1=1e-45")
        self.assertIn("too small", self.refuse("--logit-bias", "sample", *self.head,
                                               "--logit-bias", "1=1e-46"))
        self.sample(*self.head, "--temperature", "0e-99", "--min-p", "-0.0")

    def test_best_scores(self):
        rest = (*self.head, "--seed", 5, "--temperature", 0.7)
        found = self.sample(*rest, "--num-best", 3)
        plain = self.sample(*rest)
        self.assertEqual([ids[0] for ids in found["best_ids"]], [row[0] for row in plain["tokens"]])
        self.assertEqual([s[0] for s in found["best_scores"]], [row[0] for row in plain["scores"]])
        for scores in found["best_scores"]:
            self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertNotIn("best_ids", plain)

    def test_missing_arguments_are_named(self):
        self.refuse("--prompt-tokens", "sample", *self.head, "--presence-penalty", 1)
        self.refuse("--num-best", "sample", *self.head, "--out-best-ids", self.path("a.npy"))
        self.refuse("--num-best", "sample", *self.head, "--num-best", 17)
        self.refuse("--num-best", "sample", *self.head, "--num-best", 2, "--num-samples", 2)
        self.refuse("--top-logprobs", "sample", *self.head, "--out-top-ids", self.path("a.npy"))
        self.refuse("--out-kept", "sample", *self.head, "--out-kept", self.path("no/kept.npy"))


class GenerateRequest(Case):
    MODEL = os.path.join(MODELS, "kjv-target")
    ARGUMENTS = ("generate", "--model", MODEL, "--prompt", "In the beginning")

    def texts(self, *arguments):
        return self.succeed_json(*self.ARGUMENTS, "--ignore-eos", *arguments)["samples"]

    def test_one_survivor_is_greedy(self):
        with open(os.path.join(MODELS, "golden.json")) as file:
            case = json.load(file)["target"]["greedy"][0]
        found = self.succeed_json("generate", "--model", self.MODEL, "--prompt", case["prompt"],
                                  "--max-tokens", len(case["greedy_ids"]), "--top-k", 1, "--kept")
        self.assertEqual(found["samples"][0]["ids"], case["greedy_ids"])
        self.assertEqual(set(found["samples"][0]["kept"]), {1})

    def test_likeliest(self):
        text = self.texts("--temperature", 0, "--max-tokens", 12, "--top-logprobs", 4, "--ranks")[0]
        self.assertEqual(text["ranks"], [1] * 12)
        for token, logprob, top in zip(text["ids"], text["logprobs"], text["top"], strict=True):
            self.assertEqual(top["ids"][0], token)
            self.assertEqual(top["logprobs"][0], logprob)
            self.assertEqual(top["logprobs"], sorted(top["logprobs"], reverse=True))
        raw = self.texts("--temperature", 3, "--max-tokens", 1, "--top-logprobs", 4,
                         "--raw-logprobs")
        self.assertEqual(raw[0]["top"][0], text["top"][0])

    def check_sets(self, texts, places):
        """Kept sets by the counts, and by the likeliest tokens; returns the number of sets."""
        listed = 0
        for text in texts:
            for i, found in enumerate(text["kept_sets"]):
                if text["kept"][i] > places:
                    self.assertIsNone(found)
                    continue
                listed += 1
                self.assertEqual(len(found["ids"]), text["kept"][i])
                self.assertEqual(found["ids"], sorted(set(found["ids"])))
                own = dict(zip(found["ids"], found["logprobs"], strict=True))
                self.assertEqual(own[text["ids"][i]], text["logprobs"][i])
                top = text["top"][i]
                self.assertEqual(own, dict(list(zip(top["ids"], top["logprobs"]))[:len(own)]))
        return listed

    def test_kept_sets(self):
        request = ("--temperature", 0.8, "--top-k", 30, "--ties", "exact", "--top-p", 0.9,
                   "--top-logprobs", 30, "--max-tokens", 12, "--samples", 9, "--seed", 6)
        whole = self.texts(*request, "--kept-ids", 30)
        self.assertEqual(self.check_sets(whole, 30), 9 * 12)
        for text in whole:
            for found in text["kept_sets"]:
                self.assertAlmostEqual(sum(map(math.exp, found["logprobs"])), 1, places=4)
        few = self.check_sets(self.texts(*request, "--kept-ids", 3), 3)
        self.assertTrue(0 < few < 9 * 12, few)
        self.check_sets(self.texts(*request, "--kept-ids", 2**31 - 1, "--raw-logprobs"), 2**31)
        draft = os.path.join(MODELS, "kjv-draft")
        self.assertEqual(self.texts(*request, "--kept-ids", 30, "--draft", draft), whole)
        alone = self.texts("--top-k", 1, "--max-tokens", 3, "--kept-ids", 1)[0]
        self.assertEqual(alone["kept_sets"],
                         [{"ids": [token], "logprobs": [0.0]} for token in alone["ids"]])
        everything = self.texts("--max-tokens", 1, "--kept-ids", 10**6)[0]
        self.assertEqual(everything["kept_sets"][0]["ids"], list(range(everything["kept"][0])))
        self.assertEqual(self.texts("--max-tokens", 1, "--kept-ids", 1)[0]["kept_sets"], [None])

    def test_edits(self):
        forced = self.texts("--max-tokens", 3, "--logit-bias", "77=1e6")
        self.assertEqual(forced[0]["ids"], [77] * 3)
        self.assertNotIn(77, self.texts("--max-tokens", 3, "--logit-bias", "77=1e6", "--ban",
                                        "77,78")[0]["ids"])
        for text in self.texts("--max-tokens", 9, "--samples", 9, "--allow", "77,78", "--kept"):
            self.assertLessEqual(set(text["ids"]), {77, 78})
            self.assertEqual(text["kept"], [2] * 9)

    def test_penalties_count_prompt_and_output(self):
        """With a penalty beyond every logit no token comes twice, in any of the texts."""
        many = 15 if SANITIZED else 60
        for option in ("--presence-penalty", "--frequency-penalty"):
            for text in self.texts(option, "1e6", "--max-tokens", many, "--samples", 11):
                self.assertEqual(len(set(text["ids"])), many, option)
        found = self.succeed_json(*self.ARGUMENTS, "--repetition-penalty", "1e6", "--max-tokens",
                                  many, "--ignore-eos", "--logit-bias",
                                  ",".join(f"{i}=100" for i in range(200)))
        ids = found["samples"][0]["ids"]
        self.assertEqual(len(set(ids) | set(found["prompt_ids"])), many + len(found["prompt_ids"]))

    def test_every_text_counts_its_own(self):
        """Texts end at different steps; those that go on keep their histories."""
        most = 40 if SANITIZED else 120
        rest = (*self.ARGUMENTS, "--max-tokens", most, "--repetition-penalty", 1.3,
                "--frequency-penalty", 0.4, "--temperature", 1.5, "--top-k", 50, "--seed", 3,
                "--logit-bias", "0=7")  # the end token
        many = self.succeed_json(*rest, "--samples", 11)["samples"]
        lengths = {len(text["ids"]) for text in many}
        self.assertGreater(len(lengths), 1, "all texts end at once: nothing is tested")
        for j in (0, 4, 8, 10):
            alone = self.succeed_json(*rest, "--first-sample", j)["samples"][0]
            self.assertEqual(alone, many[j], j)

    def test_wrong_input(self):
        for option in (("--top-logprobs", 3), ("--ranks",), ("--kept",), ("--raw-logprobs",),
                       ("--kept-ids", 4)):
            self.refuse("--json", *self.ARGUMENTS, *option)
        for places in (0, -1, 2**31, "many"):
            self.refuse("--kept-ids", *self.ARGUMENTS, "--json", "--kept-ids", places)
        self.refuse("--top-p", *self.ARGUMENTS, "--top-p", 0)
        self.refuse("--mask", *self.ARGUMENTS, "--mask", self.path("none.npy"))
        self.refuse("--prompt-tokens", *self.ARGUMENTS, "--prompt-tokens", "1")
        message = self.refuse("--ban", *self.ARGUMENTS, "--ban", 999999)
        self.assertIn("token id 999999 is not below the vocabulary size V = 8192", message)


if __name__ == "__main__":
    unittest.main()
