# SPDX-License-Identifier: Apache-2.0
"""Models that `generate` does not run: each error names the fault and what to do."""

import json
import os
import shutil
import unittest

from cli_case import MODELS, Case, SampleCase, gumbel

TARGET = os.path.join(MODELS, "kjv-target")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1234567\n"


class Folder(Case):
    """A copy of a bundled folder, which tests change."""

    def setUp(self):
        super().setUp()
        self.model = self.path("model")
        shutil.copytree(TARGET, self.model)

    def refuse_folder(self, *words, model=None):
        message = self.refuse("--model", "generate", "--model", model or self.model, "--prompt",
                              "a")
        for word in words:
            self.assertIn(word, message)
        return message

    def inside(self, name):
        return os.path.join(self.model, name)

    def write(self, name, data):
        with open(self.inside(name), "wb") as file:
            file.write(data)

    def edit(self, name, **values):
        """Set keys of a JSON file, or within its "model" for `model=`."""
        with open(self.inside(name)) as file:
            root = json.load(file)
        root.get("model", {}).update(values.pop("model", {}))
        root.update(values)
        with open(self.inside(name), "w") as file:
            json.dump(root, file)


class NoModelFolder(Folder):
    def test_a_gguf_file(self):
        self.write("m.gguf", b"GGUF\3\0\0\0")
        self.refuse_folder("m.gguf", "GGUF", "Hugging Face", model=self.inside("m.gguf"))
        os.unlink(self.inside("model.safetensors"))
        self.refuse_folder("m.gguf", "GGUF", "safetensors")
        os.unlink(self.inside("config.json"))
        self.refuse_folder("m.gguf", "GGUF", "config.json")

    def test_a_hub_id(self):
        message = self.refuse_folder("Qwen/Qwen3-0.6B: no such folder", model="Qwen/Qwen3-0.6B")
        self.assertIn("`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B`", message)
        for name in ("./none/there", "/none/there", "none", "a/b/c", "a/", "a b/c", ""):
            self.assertNotIn("hub", self.refuse_folder("No such file", model=name or "none"))

    def test_another_file_or_folder(self):
        self.refuse_folder("is a file; give the folder", model=self.inside("config.json"))
        empty = self.path("empty")
        os.mkdir(empty)
        self.refuse_folder("config.json: is missing", model=empty)
        os.mkdir(os.path.join(empty, "snapshots"))
        self.refuse_folder("Hugging Face cache", "snapshots/", model=empty)
        os.rename(self.inside("config.json"), self.inside("adapter_config.json"))
        self.refuse_folder("adapter_config.json", "merge")

    def test_weights(self):
        os.unlink(self.inside("model.safetensors"))
        self.refuse_folder("model.safetensors: is missing", "download")
        self.write("pytorch_model.bin", b"PK\3\4")
        self.refuse_folder("pytorch_model.bin", "safetensors")
        index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
        self.write("model.safetensors.index.json", json.dumps(index).encode())
        self.refuse_folder("index.json",
                           "model-00001-of-00002.safetensors is not in the folder", "download")

    def test_a_file_cut_short(self):
        size = os.path.getsize(self.inside("model.safetensors"))
        os.truncate(self.inside("model.safetensors"), size - 100)
        self.refuse_folder("model.safetensors", "may be incomplete")

    def test_git_lfs_pointers(self):
        for name in ("tokenizer.json", "model.safetensors", "config.json"):
            self.write(name, POINTER)
            self.refuse_folder(name, "Git LFS pointer", "git lfs pull")

    def test_no_fast_tokenizer(self):
        os.unlink(self.inside("tokenizer.json"))
        self.refuse_folder("tokenizer.json: is missing", "download")
        self.write("tokenizer.model", b"\0")
        self.refuse_folder("tokenizer.json: is missing", "AutoTokenizer")


class NotSupported(Folder):
    def test_config(self):
        transformers = "gumbel.transformers"
        for values, words in (
            ({"model_type": "gemma3"}, ("model_type", "gemma3", "qwen3 and llama", transformers)),
            ({"architectures": ["Qwen3ForSequenceClassification"]},
             ("architectures", "Qwen3ForSequenceClassification", "Qwen3ForCausalLM")),
            ({"attention_bias": True}, ("attention_bias", transformers)),
            ({"mlp_bias": True}, ("mlp_bias", transformers)),
            ({"quantization_config": {"quant_method": "gptq"}},
             ("quantization_config", "gptq", "bfloat16")),
            ({"quantization_config": {}}, ("quantization_config", "bfloat16")),
            ({"hidden_act": "gelu"}, ("hidden_act", "gelu", transformers)),
        ):
            with self.subTest(**values):
                shutil.copy(os.path.join(TARGET, "config.json"), self.model)
                self.edit("config.json", **values)
                self.refuse_folder("config.json", *words)

    def test_a_missing_head(self):
        self.edit("config.json", tie_word_embeddings=False)
        self.refuse_folder("lm_head.weight: is missing", "tie_word_embeddings")
        self.edit("config.json", tie_word_embeddings=True, num_hidden_layers=5)
        self.refuse_folder("model.layers.4.", "is missing", "incomplete")

    def test_weights_with_nan(self):
        """The error names the model, not --logits, which `generate` lacks."""
        with open(self.inside("model.safetensors"), "r+b") as file:
            size = int.from_bytes(file.read(8), "little")
            begin, end = json.loads(file.read(size))["model.norm.weight"]["data_offsets"]
            file.seek(8 + size + begin)
            file.write(b"\xc0\x7f" * ((end - begin) // 2))
        done = gumbel("generate", "--model", self.model, "--prompt", "a")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^gumbel generate: --model: logits: sample 0: .*\n$")

    def test_a_tokenizer_of_sentencepiece(self):
        """The error names the kind of model, even if the file has other faults."""
        self.edit("tokenizer.json", model={"byte_fallback": True},
                  normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend"}]},
                  decoder={"type": "Sequence"}, pre_tokenizer=None)
        self.refuse_folder("tokenizer.json", "byte_fallback", "SentencePiece", "byte-level BPE")
        self.edit("tokenizer.json", model={"type": "Unigram"})
        self.refuse_folder("model.type", "Unigram", "byte-level BPE")

    def test_a_draft_is_recognized(self):
        self.edit("config.json", attention_bias=True)
        message = self.refuse("--draft", "generate", "--model", TARGET, "--prompt", "a", "--draft",
                              self.model)
        self.assertIn("attention_bias", message)


class NotTensors(SampleCase):
    def test_files(self):
        for name, data, word in (("a.safetensors", POINTER, "git lfs pull"),
                                 ("a.npy", POINTER, "git lfs pull"),
                                 ("a.gguf", b"GGUF\3\0\0\0", "GGUF"),
                                 ("a.npz", b"PK\3\4....", "zip archive")):
            with open(self.path(name), "wb") as file:
                file.write(data)
            self.assertIn(word, self.refuse("--logits", "sample", "--logits", self.path(name)))
        self.assertIn("GGUF", gumbel("sample", "--logits", "-", text="GGUF    ").stderr)


if __name__ == "__main__":
    unittest.main()
