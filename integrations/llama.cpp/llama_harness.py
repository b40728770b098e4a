# SPDX-License-Identifier: Apache-2.0
"""Shared by the sampler's tests and benchmark: converts the bundled models to GGUF, and builds C
programs with gumbel and an installed llama-cpp-python, or LLAMA_PREFIX with include/ and lib/."""

import importlib.util
import json
import os
import pathlib
import shlex
import struct
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
PARTS = ("", "_draw", "_graph", "_recent", "_rules", "_verify")
SAMPLER = [HERE / f"gumbel_llama{part}.c" for part in PARTS]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wvla", "-Werror"]


def llama_folders():
    """The folders of llama.h and of libllama, or None without llama.cpp."""
    prefix = os.environ.get("LLAMA_PREFIX")
    spec = None if prefix else importlib.util.find_spec("llama_cpp")
    if prefix:
        places = [pathlib.Path(prefix)]
    elif spec:
        package = pathlib.Path(spec.origin).parent
        places = [package, package.parent, pathlib.Path(sys.prefix)]
    else:
        return None
    include = next((p / "include" for p in places if (p / "include/llama.h").is_file()), None)
    library = next((p / "lib" for p in places if list((p / "lib").glob("libllama.*"))), None)
    return (include, library) if include and library else None


def gumbel_flags(*options):
    """The output of `python -m gumbel --cflags` or --libs, or GUMBEL_FLAGS for both."""
    if os.environ.get("GUMBEL_FLAGS"):
        return shlex.split(os.environ["GUMBEL_FLAGS"])
    command = [sys.executable, "-m", "gumbel", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return shlex.split(done.stdout)


def build(program, out, options=("-O2",), include=None):
    """Compile a C file of a program with the sampler, and link both; returns `out`.

    Raises CalledProcessError with the compiler's words in stderr.
    """
    folders = llama_folders()
    include = include or folders[0]
    command = ["cc", "-std=c17", "-D_GNU_SOURCE", *WARNINGS, *options, f"-I{include}", f"-I{HERE}",
               *gumbel_flags("--cflags"), program, *SAMPLER, "-o", out,
               f"-L{folders[1]}", f"-Wl,-rpath,{folders[1]}", "-lllama", "-lggml", "-lggml-base",
               *gumbel_flags("--libs"), "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return out


# ---------------------------------------------------------------------------------- models ----

LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight",
         "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}


def read_tensors(folder):
    """Name and bfloat16 words of each tensor of a Hugging Face folder."""
    raw = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            yield name, np.frombuffer(raw[start:end], np.uint16).reshape(entry["shape"])


def convert_name(name):
    if name in WHOLE:
        return WHOLE[name]
    parts = name.split(".")
    return f"blk.{parts[2]}.{LAYER['.'.join(parts[3:-1])]}.weight"


def pad_rows(words, rows):
    """Append random rows with the standard deviation of `words`, up to `rows` rows."""
    spread = (words.astype(np.uint32) << 16).view(np.float32).std()
    random = np.random.default_rng(0).standard_normal((rows - words.shape[0], words.shape[1]))
    more = (random * spread).astype(np.float32).view(np.uint32) >> 16
    return np.concatenate([words, more.astype(np.uint16)])


def write_tokenizer(writer, folder):
    """The tokenizer of a bundled model, which splits texts as Qwen2's does."""
    import gguf

    found = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in found["added_tokens"]}
    kinds = gguf.TokenType
    tokens = sorted(found["model"]["vocab"], key=found["model"]["vocab"].get)
    types = [kinds.CONTROL if at in special else kinds.NORMAL for at in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in found["model"]["merges"]])
    writer.add_eos_token_id(min(special))
    writer.add_add_bos_token(False)


def write_gguf(folder, out, dtype="bf16", rows=None):
    """Write a bundled Qwen3 model.

    dtype is "bf16", "f32" or "q8_0", of all matrices; `rows` pads the vocabulary, which then has no
    tokenizer: token ids in, token ids out.
    """
    import gguf

    config = json.loads((folder / "config.json").read_text())
    kinds = gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(out, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    if rows:
        writer.add_vocab_size(rows)
        writer.add_tokenizer_model("no_vocab")
    else:
        write_tokenizer(writer, folder)
    for name, words in read_tensors(folder):
        if rows and name == "model.embed_tokens.weight":
            words = pad_rows(words, rows)
        values = (words.astype(np.uint32) << 16).view(np.float32)
        if words.ndim == 1 or dtype == "f32":
            writer.add_tensor(convert_name(name), values)
        elif dtype == "bf16":
            packed = words.view(np.uint8).reshape(words.shape[0], -1)
            writer.add_tensor(convert_name(name), packed, raw_dtype=kinds.BF16)
        else:
            packed = gguf.quants.quantize(values, kinds.Q8_0)
            writer.add_tensor(convert_name(name), packed, raw_dtype=kinds.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
