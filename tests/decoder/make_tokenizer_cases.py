# SPDX-License-Identifier: Apache-2.0
"""Writes tokenizers/ and tokenizer_cases.json: the ids that the `tokenizers` package gives for
difficult texts.

Usage: python make_tokenizer_cases.py MODELS_FOLDER, with `pip install tokenizers==0.23.3`.

Trains three small tokenizers in the style of Llama 3, Qwen 3 and GPT-2, and encodes texts with
them and with the tokenizer of the bundled models. Only required for new cases, as the repository
has the results.
"""

import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's they'll we've I'd I'm don't",
    "12345 678 3.14159",
    "Größe naïve café São Paulo façade — “quotes” … äöü ß ÆØÅ",
    "日本語のテキスト 中文字符 한국어 텍스트",
    "Привет мир, как дела? Ελληνικά κείμενα",
    "  spaces   and\ttabs\n\nnewlines\r\n  end ",
    "def f(x):\n    return x**2 + 1 # comment\n",
    "🙂🚀👩‍👩‍👧‍👦 emoji",
    "हिन्दी में पाठ  العربية نص",
] * 20
PIECES = [
    *("the ", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\x0b"),
    *("'s", "'S", "'ll", "'ſ", "I'VE", "123", "4567", "½", "Ⅷ", "٣", "__init__", "!!!", "…", "—"),
    *("é", "e\u0301", "A\u030a", "Å", "\u1e9b\u0323", "\u1100\u1161", "가", "\u2126", "ﬁ", "İ"),
    *("日本語", "テスト", "हिन्दी", "العربية", "🙂", "👩‍👩‍👧", "\U0001f1e9\U0001f1ea"),
    *("\x0c", "\x00", "\x1f", "\u180e", "\u200b", "\ufeff", "\uffff"),
    *("a" * 50, " " * 40, "\n" * 9, "ß"),
    *("<|endoftext|>", "<|im_start|>", "<|begin_of_text|>", "<|eot_id|>", "<|end", "<think>"),
    *("<think>ing", "A\u030a-tok", " zzzq", "qqqq", "http://a.b/c?d=e&f"),
]


def llama_post_processor(begin, begin_id):
    return {
        "type": "Sequence",
        "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
            {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": begin, "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                ],
                "pair": [
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"Sequence": {"id": "B", "type_id": 1}},
                ],
                "special_tokens": {begin: {"id": begin, "ids": [begin_id], "tokens": [begin]}},
            },
        ],
    }


def finish_llama(trained):
    """Adds features of Llama 3's file: words that no merge reaches (ignore_merges), special tokens
    after the vocabulary, merges as strings, a begin token from the post-processor."""
    document = json.loads(trained.to_str())
    vocab = document["model"]["vocab"]
    ids = sorted(vocab, key=vocab.get)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in (" zzzq", "qqqq", "日本語"):
        spelled = byte_level.pre_tokenize_str(word)[0][0]
        if spelled not in vocab:
            ids.append(spelled)
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    document["model"]["vocab"] = {spelling: i for i, spelling in enumerate(ids)}
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    document["added_tokens"] = [
        {"id": len(ids) + i, "content": content, **flags, "special": True}
        for i, content in enumerate(specials)
    ]
    document["post_processor"] = llama_post_processor(specials[0], len(ids))
    return Tokenizer.from_str(json.dumps(document)), document


def train(style, size):
    tokenizer = Tokenizer(models.BPE(ignore_merges=style == "llama"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=style == "gpt2")
    tokenizer.pre_tokenizer = byte_level
    if style != "gpt2":
        pattern = PATTERN.replace("DIGITS", r"\p{N}{1,3}" if style == "llama" else r"\p{N}")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level]
        )
    if style == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    if style == "llama":
        return finish_llama(tokenizer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(s, normalized=False) for s in specials])
    if style == "qwen":
        tokenizer.add_tokens([AddedToken(s, normalized=False) for s in ("<think>", "<think>ing")])
        tokenizer.add_tokens([AddedToken("Å-tok", normalized=True)])
    return tokenizer, json.loads(tokenizer.to_str())


def random_text(source):
    length = source.choice([0, 1, 2, 3, 5, 8, 12])
    if source.random() < 0.7:
        return "".join(source.choice(PIECES) for _ in range(length))
    ranges = [(0x20, 0x7F), (0x80, 0x800), (0x800, 0x3000), (0x4E00, 0xA000), (0x1F300, 0x1F600)]
    return "".join(chr(source.randrange(*source.choice(ranges))) for _ in range(length))


def cases(tokenizer, special, count, seed):
    source = random.Random(seed)
    texts = [random_text(source) for _ in range(count)]
    encoded = [tokenizer.encode(text, add_special_tokens=special).ids for text in texts]
    return [{"text": text, "ids": ids} for text, ids in zip(texts, encoded)]


def main():
    bundled = Tokenizer.from_file(f"{sys.argv[1]}/kjv-target/tokenizer.json")
    groups = {"kjv-target": {"special": False, "cases": cases(bundled, False, 200, 1)}}
    for style, size in (("llama", 700), ("qwen", 700), ("gpt2", 400)):
        tokenizer, document = train(style, size)
        folder = HERE / "tokenizers" / style
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, ensure_ascii=False, indent=0, separators=(",", ":"))
        (folder / "tokenizer.json").write_text(text + "\n")
        special = style == "llama"
        groups[style] = {"special": special, "cases": cases(tokenizer, special, 100, 2)}
    lines = [
        f'"{name}":{{"special":{json.dumps(group["special"])},"cases":[\n'
        + ",\n".join(json.dumps(case, separators=(",", ":")) for case in group["cases"])
        + "\n]}"
        for name, group in groups.items()
    ]
    (HERE / "tokenizer_cases.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
