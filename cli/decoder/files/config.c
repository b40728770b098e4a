/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/files/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/files/json_file.h"
#include "decoder/files/mapping.h"

/* Advice for a model that the decoder does not support. */
#define ELSEWHERE "gumbel.transformers of the Python package draws from other models"

static const struct {
    const char *model_type;
    const char *architecture;
    bool head_norm;
} families[] = {
    {"qwen3", "Qwen3ForCausalLM", true},
    {"llama", "LlamaForCausalLM", false},
};

/* A required integer of a model_config field; the bounds keep every product below 2^63. */
static int size_field(const json_place *place, const char *key, int64_t hi, int32_t *value)
{
    int64_t number = 0;
    if (json_integer_in(place, key, true, 1, hi, &number) != 0) {
        return -1;
    }
    *value = (int32_t)number;
    return 0;
}

static int read_family(const json_place *place, model_config *config)
{
    const char *model_type = "";
    if (json_text(place, "model_type", true, &model_type) != 0) {
        return -1;
    }
    size_t family = 0;
    size_t count = sizeof families / sizeof families[0];
    while (family < count && strcmp(families[family].model_type, model_type) != 0) {
        family++;
    }
    if (family == count) {
        return json_fail(place, "model_type",
                         "\"%.64s\" is not supported; qwen3 and llama are, and " ELSEWHERE,
                         model_type);
    }
    const json_t *names = json_value(place, "architectures");
    const char *name = json_string_value(json_array_get(names, 0));
    if (names && (json_array_size(names) != 1 || !name ||
                  strcmp(name, families[family].architecture) != 0)) {
        return json_fail(place, "architectures", "is [\"%.64s\"], not [\"%s\"], which is supported",
                         name ? name : "", families[family].architecture);
    }
    config->model_type = families[family].model_type;
    config->head_norm = families[family].head_norm;
    return 0;
}

static int read_sizes(const json_place *place, model_config *config)
{
    if (size_field(place, "hidden_size", 1 << 20, &config->hidden_size) != 0 ||
        size_field(place, "intermediate_size", 1 << 22, &config->intermediate_size) != 0 ||
        size_field(place, "num_hidden_layers", 1 << 12, &config->layers) != 0 ||
        size_field(place, "num_attention_heads", 1 << 12, &config->heads) != 0 ||
        size_field(place, "vocab_size", INT32_MAX, &config->vocab_size) != 0 ||
        size_field(place, "max_position_embeddings", INT32_MAX, &config->max_positions) != 0) {
        return -1;
    }
    int64_t kv_heads = config->heads;
    /* Families disagree about the default of head_dim; only Llama's is settled. */
    int64_t head_dim = config->hidden_size / config->heads;
    bool named = config->head_norm;
    if (json_integer_in(place, "num_key_value_heads", false, 1, config->heads, &kv_heads) != 0 ||
        json_integer_in(place, "head_dim", named, 2, 1 << 10, &head_dim) != 0) {
        return -1;
    }
    if (config->heads % kv_heads != 0) {
        return json_fail(place, "num_key_value_heads", "%d heads cannot share %lld", config->heads,
                         (long long)kv_heads);
    }
    if (head_dim < 2 || head_dim % 2 != 0 || head_dim > 1 << 10) {
        return json_fail(place, "head_dim", "is %lld, not an even number in [2, 1024]",
                         (long long)head_dim);
    }
    config->kv_heads = (int32_t)kv_heads;
    config->head_dim = (int32_t)head_dim;
    return 0;
}

/* Rejects fields that change the result and are not supported. */
static int refuse_unsupported(const json_place *place)
{
    static const char *const flags[] = {"attention_bias", "mlp_bias", "use_sliding_window"};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        bool set = false;
        if (json_flag(place, flags[i], false, &set) != 0) {
            return -1;
        }
        if (set) {
            return json_fail(place, flags[i], "true is not supported; " ELSEWHERE);
        }
    }
    if (json_value(place, "sliding_window") && !json_value(place, "use_sliding_window")) {
        return json_fail(place, "sliding_window", "is not supported; " ELSEWHERE);
    }
    if (json_value(place, "quantization_config")) {
        const char *method = json_string_value(
            json_object_get(json_value(place, "quantization_config"), "quant_method"));
        return json_fail(place, "quantization_config",
                         "weights quantised by %.32s are not supported; give the model with "
                         "weights in bfloat16, float16 or float32",
                         method ? method : "this method");
    }
    const char *activation = "silu";
    double rotary = 1;
    if (json_text(place, "hidden_act", false, &activation) != 0 ||
        json_number_in(place, "partial_rotary_factor", false, 1, 1, &rotary) != 0) {
        return -1;
    }
    if (strcmp(activation, "silu") != 0) {
        return json_fail(place, "hidden_act", "\"%.64s\" is not supported; silu is, and " ELSEWHERE,
                         activation);
    }
    size_t index;
    const json_t *types = json_value(place, "layer_types"), *type;
    json_array_foreach (types, index, type) {
        const char *name = json_string_value(type);
        if (!name || strcmp(name, "full_attention") != 0) {
            return json_fail(place, "layer_types", "entry %zu is not \"full_attention\"", index);
        }
    }
    return 0;
}

static int read_llama3(const json_place *place, rope_config *rope)
{
    rope->llama3 = true;
    if (json_number_in(place, "factor", true, 1, 1e6, &rope->factor) != 0 ||
        json_number_in(place, "low_freq_factor", true, 1e-3, 1e6, &rope->low_freq_factor) != 0 ||
        json_number_in(place, "high_freq_factor", true, 1e-3, 1e6, &rope->high_freq_factor) != 0 ||
        json_number_in(place, "original_max_position_embeddings", true, 1, INT32_MAX,
                       &rope->original_positions) != 0) {
        return -1;
    }
    if (rope->low_freq_factor >= rope->high_freq_factor) {
        return json_fail(place, "low_freq_factor", "is not below high_freq_factor");
    }
    return 0;
}

/* Reads the object under `key`: a type, its parameters and, in newer files, theta. */
static int read_rope_object(const json_place *root, const char *key, rope_config *rope)
{
    json_place place = {root->file, key, json_value(root, key), root->error};
    if (!json_is_object(place.object)) {
        return json_fail(root, key, "is not a JSON object");
    }
    const char *type = "default";
    const char *older = NULL;
    double theta = rope->theta;
    double rotary = 1;
    if (json_text(&place, "type", false, &older) != 0 ||
        json_text(&place, "rope_type", false, &type) != 0 ||
        json_number_in(&place, "rope_theta", false, 1, 1e12, &theta) != 0 ||
        json_number_in(&place, "partial_rotary_factor", false, 1, 1, &rotary) != 0) {
        return -1;
    }
    if (older && json_value(&place, "rope_type") && strcmp(older, type) != 0) {
        return json_fail(&place, "type", "contradicts rope_type");
    }
    if (json_value(root, "rope_theta") && theta != rope->theta) {
        return json_fail(&place, "rope_theta", "contradicts the rope_theta at top level");
    }
    type = older ? older : type;
    rope->theta = theta;
    if (strcmp(type, "llama3") == 0) {
        return read_llama3(&place, rope);
    }
    if (strcmp(type, "default") != 0 || json_value(&place, "factor")) {
        return json_fail(&place, "rope_type",
                         "\"%.64s\"%s is not supported; default and llama3 are", type,
                         strcmp(type, "default") == 0 ? " with a factor" : "");
    }
    return 0;
}

static int read_rope(const json_place *place, rope_config *rope)
{
    rope->theta = 10000;
    if (json_number_in(place, "rope_theta", false, 1, 1e12, &rope->theta) != 0) {
        return -1;
    }
    const char *key = json_value(place, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    if (json_value(place, "rope_parameters") && json_value(place, "rope_scaling")) {
        return json_fail(place, "rope_scaling", "stands beside rope_parameters");
    }
    return json_value(place, key) ? read_rope_object(place, key, rope) : 0;
}

/* "eos_token_id": an integer or a list of them. */
static int read_eos(const json_place *place, model_config *config)
{
    const json_t *value = json_value(place, "eos_token_id");
    if (!value) {
        return 0;
    }
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (count > DECODER_MAX_EOS) {
        return json_fail(place, "eos_token_id", "has more than %d entries", DECODER_MAX_EOS);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= config->vocab_size) {
            return json_fail(place, "eos_token_id", "is not a token id below %d",
                             config->vocab_size);
        }
        config->eos_ids[i] = (int32_t)json_integer_value(id);
    }
    config->eos_count = (int32_t)count;
    return 0;
}

static int read_config(const json_place *place, model_config *config)
{
    double epsilon = 0;
    int64_t bos = -1;
    if (read_family(place, config) != 0 || read_sizes(place, config) != 0 ||
        refuse_unsupported(place) != 0 || read_rope(place, &config->rope) != 0 ||
        read_eos(place, config) != 0 ||
        json_flag(place, "tie_word_embeddings", false, &config->tied) != 0 ||
        json_number_in(place, "rms_norm_eps", true, 0, 1, &epsilon) != 0 ||
        json_integer_in(place, "bos_token_id", false, 0, config->vocab_size - 1, &bos) != 0) {
        return -1;
    }
    config->rms_norm_eps = (float)epsilon;
    config->bos_id = (int32_t)bos;
    return 0;
}

int config_parse(const void *bytes, size_t size, const char *name, model_config *config,
                 decoder_error *error)
{
    json_place place = {name, "", json_document(bytes, size, JSON_NUMBERS_EXACT, name, error),
                        error};
    if (!place.object) {
        return -1;
    }
    *config = (model_config){0};
    int result = read_config(&place, config);
    json_decref((json_t *)(uintptr_t)place.object);
    return result;
}

int config_parse_generation(const void *bytes, size_t size, const char *name, model_config *config,
                            decoder_error *error)
{
    json_place place = {name, "", json_document(bytes, size, JSON_NUMBERS_EXACT, name, error),
                        error};
    if (!place.object) {
        return -1;
    }
    int result = read_eos(&place, config);
    json_decref((json_t *)(uintptr_t)place.object);
    return result;
}

typedef int (*config_reader)(const void *, size_t, const char *, model_config *, decoder_error *);

static int read_path(const char *path, config_reader read, model_config *config,
                     decoder_error *error)
{
    file_mapping mapping;
    if (file_map(path, &mapping, error) != 0) {
        return -1;
    }
    int result = read(mapping.data, mapping.size, path, config, error);
    file_unmap(&mapping);
    return result;
}

int config_load(const char *folder, model_config *config, decoder_error *error)
{
    char *path = path_join(folder, "config.json");
    char *generation = path_join(folder, "generation_config.json");
    int result = path && generation ? read_path(path, config_parse, config, error)
                                    : decoder_fail(error, folder, NULL, "out of memory");
    if (result == 0 && file_exists(generation)) {
        result = read_path(generation, config_parse_generation, config, error);
    }
    free(path);
    free(generation);
    return result;
}

void rope_frequencies(const rope_config *rope, int32_t head_dim, float *out)
{
    const double turn = 2 * 3.14159265358979323846;
    for (int32_t i = 0; i < head_dim / 2; i++) {
        double frequency = 1 / pow(rope->theta, 2.0 * i / head_dim);
        if (rope->llama3) {
            /* By the number of turns over the original context: frequencies with many turns are
             * kept, those with few are divided by the factor, with linear interpolation between. */
            double turns = rope->original_positions * frequency / turn;
            double keep =
                (turns - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
            keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
            frequency *= keep + (1 - keep) / rope->factor;
        }
        out[i] = (float)frequency;
    }
}
