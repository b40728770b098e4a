/* SPDX-License-Identifier: Apache-2.0 */
#include "model_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scratch_folder.h"

#define TENSORS_MAX 64

typedef struct listed {
    char name[96];
    int64_t rows; /* 0: a vector */
    int64_t cols;
} listed;

static int list_tensor(listed *list, int count, const char *name, int64_t rows, int64_t cols)
{
    snprintf(list[count].name, sizeof list[count].name, "%s.weight", name);
    list[count].rows = rows;
    list[count].cols = cols;
    return count + 1;
}

/* Lists all tensors of a model. */
static int list_tensors(const folder_options *o, listed *list)
{
    static const struct {
        const char *name;
        int rows, cols;
    } layer_tensors[] = {
        {"input_layernorm", 0, FOLDER_HIDDEN},
        {"self_attn.q_proj", FOLDER_HEADS * FOLDER_HEAD_DIM, FOLDER_HIDDEN},
        {"self_attn.k_proj", FOLDER_KV_HEADS * FOLDER_HEAD_DIM, FOLDER_HIDDEN},
        {"self_attn.v_proj", FOLDER_KV_HEADS * FOLDER_HEAD_DIM, FOLDER_HIDDEN},
        {"self_attn.o_proj", FOLDER_HIDDEN, FOLDER_HEADS * FOLDER_HEAD_DIM},
        {"post_attention_layernorm", 0, FOLDER_HIDDEN},
        {"mlp.gate_proj", FOLDER_INNER, FOLDER_HIDDEN},
        {"mlp.up_proj", FOLDER_INNER, FOLDER_HIDDEN},
        {"mlp.down_proj", FOLDER_HIDDEN, FOLDER_INNER},
        {"self_attn.q_norm", 0, FOLDER_HEAD_DIM},
        {"self_attn.k_norm", 0, FOLDER_HEAD_DIM},
    };
    int per_layer = strcmp(o->family, "qwen3") == 0 ? 11 : 9;
    int count = list_tensor(list, 0, "model.embed_tokens", FOLDER_VOCAB, FOLDER_HIDDEN);
    count = list_tensor(list, count, "model.norm", 0, FOLDER_HIDDEN);
    if (!o->tied) {
        count = list_tensor(list, count, "lm_head", FOLDER_VOCAB, FOLDER_HIDDEN);
    }
    for (int layer = 0; layer < FOLDER_LAYERS; layer++) {
        for (int i = 0; i < per_layer; i++) {
            char name[80];
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, layer_tensors[i].name);
            count = list_tensor(list, count, name, layer_tensors[i].rows, layer_tensors[i].cols);
        }
    }
    return count;
}

double folder_weight(const char *name, int64_t index)
{
    uint32_t hash = 2166136261u;
    for (const char *c = name; *c; c++) {
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    }
    hash = (hash ^ (uint32_t)index) * 2654435761u;
    hash = (hash ^ hash >> 15) * 2246822519u;
    double value = ((int)(hash >> 16) % 15 - 7) / 32.0;
    return strstr(name, "norm") ? 1 + value : value;
}

/* Stores the value in a dtype that represents it exactly. */
static size_t store_element(unsigned char *to, double value, tensor_dtype dtype)
{
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    if (dtype == TENSOR_F32) {
        memcpy(to, &bits, 4);
        return 4;
    }
    uint16_t half = (uint16_t)(bits >> 16);
    if (dtype == TENSOR_F16) {
        int exponent = (int)(bits >> 23 & 255) - 127 + 15;
        half = (uint16_t)(bits >> 31 << 15);
        half |= single == 0 ? 0 : (uint16_t)(exponent << 10 | (int)(bits >> 13 & 1023));
    }
    memcpy(to, &half, 2);
    return 2;
}

/* Writes one file with the tensors of `list` whose index is `part` modulo `parts`. */
static void write_weights(const char *folder, const char *file, const folder_options *o,
                          const listed *list, int count, int part, int parts)
{
    char *header = calloc(1, 64 * 1024);
    unsigned char *data = malloc((size_t)1 << 20);
    size_t length = 0, used = 0;
    for (int i = part; i < count; i += parts) {
        if (o->leave_out && strcmp(list[i].name, o->leave_out) == 0) {
            continue;
        }
        bool small = o->reshape && strcmp(list[i].name, o->reshape) == 0;
        int64_t rows = list[i].rows - (small && list[i].rows > 0);
        int64_t cols = list[i].cols - (small && list[i].rows == 0);
        size_t begin = used;
        for (int64_t k = 0; k < (rows > 0 ? rows : 1) * cols; k++) {
            used += store_element(data + used, folder_weight(list[i].name, k), o->dtype);
        }
        char shape[64];
        snprintf(shape, sizeof shape, rows > 0 ? "%lld,%lld" : "%lld",
                 (long long)(rows > 0 ? rows : cols), (long long)cols);
        length += (size_t)sprintf(
            header + length,
            "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
            length == 0 ? '{' : ',', list[i].name, tensor_dtype_name(o->dtype), shape, begin, used);
    }
    header[length++] = '}';
    while (length % 8 != 0) {
        header[length++] = ' ';
    }
    uint64_t prefix = length;
    unsigned char *bytes = malloc(8 + length + used);
    memcpy(bytes, &prefix, 8);
    memcpy(bytes + 8, header, length);
    memcpy(bytes + 8 + length, data, used);
    scratch_write(folder, file, bytes, 8 + length + used);
    free(bytes);
    free(data);
    free(header);
}

static void write_shards(const char *folder, const folder_options *o, const listed *list, int count)
{
    char index[8192];
    size_t length = (size_t)sprintf(index, "{\"weight_map\":");
    for (int shard = 0; shard < o->shards; shard++) {
        char file[64];
        snprintf(file, sizeof file, "model-%d-of-%d.safetensors", shard + 1, o->shards);
        write_weights(folder, file, o, list, count, shard, o->shards);
    }
    for (int i = 0; i < count; i++) {
        length += (size_t)sprintf(index + length, "%c\"%s\":\"model-%d-of-%d.safetensors\"",
                                  i == 0 ? '{' : ',', list[i].name, i % o->shards + 1, o->shards);
    }
    sprintf(index + length, "}}");
    remove(scratch_path(folder, "model.safetensors"));
    scratch_write_text(folder, "model.safetensors.index.json", index);
}

void folder_write(const char *folder, const folder_options *o)
{
    listed list[TENSORS_MAX];
    int count = list_tensors(o, list);
    char config[1024];
    snprintf(
        config, sizeof config,
        "{\"model_type\":\"%s\",\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%"
        "d,"
        "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,\"vocab_size\":%d,"
        "\"max_position_embeddings\":%d,%s\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":%s}",
        o->family, FOLDER_HIDDEN, FOLDER_INNER, FOLDER_LAYERS, FOLDER_HEADS, FOLDER_KV_HEADS,
        FOLDER_HEAD_DIM, FOLDER_VOCAB, FOLDER_POSITIONS, o->config ? o->config : "",
        o->tied ? "true" : "false");
    scratch_write_text(folder, "config.json", config);
    scratch_copy(folder, "tokenizer.json", CASES_FOLDER "/tokenizers/llama/tokenizer.json");
    if (o->shards > 0) {
        write_shards(folder, o, list, count);
    } else {
        write_weights(folder, "model.safetensors", o, list, count, 0, 1);
    }
}
