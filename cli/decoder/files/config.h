/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json and generation_config.json of the model families that the decoder runs.
 */
#ifndef DECODER_CONFIG_H
#define DECODER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decoder/decoder.h"
#include "decoder/error.h"

/* Rotary position embedding: frequency i of head_dim / 2 is theta^(-2i / head_dim), scaled by
 * Llama 3's rule if `llama3` is set. */
typedef struct rope_config {
    double theta;
    bool llama3;
    double factor; /* llama3 only, as the next three */
    double low_freq_factor;
    double high_freq_factor;
    double original_positions; /* original_max_position_embeddings */
} rope_config;

typedef struct model_config {
    const char *model_type; /* "qwen3" or "llama" */
    bool head_norm;         /* queries and keys are normalised per head (Qwen3) */
    bool tied;              /* the embedding is the LM head */
    int32_t hidden_size;
    int32_t intermediate_size;
    int32_t layers;
    int32_t heads; /* a multiple of kv_heads */
    int32_t kv_heads;
    int32_t head_dim; /* even */
    int32_t vocab_size;
    int32_t max_positions;
    float rms_norm_eps;
    rope_config rope;
    int32_t bos_id; /* -1: none */
    int32_t eos_count;
    int32_t eos_ids[DECODER_MAX_EOS];
} model_config;

/* config_load(): reads config.json of a folder, and generation_config.json if present, whose eos
 * tokens replace the others. Fields that are not supported and would change the result (other
 * families, biases, sliding windows, quantised weights, other rope types) are errors.
 *  returns  0; -1 with `error` filled. */
int config_load(const char *folder, model_config *config, decoder_error *error);

/* config_parse(): parses the bytes of a config.json. `name` replaces the path in messages. */
int config_parse(const void *bytes, size_t size, const char *name, model_config *config,
                 decoder_error *error);

/* config_parse_generation(): replaces the eos tokens by those of a generation_config.json, if
 * any. */
int config_parse_generation(const void *bytes, size_t size, const char *name, model_config *config,
                            decoder_error *error);

/* rope_frequencies(): radians a position, float32, rounded as in the reference implementation.
 *  head_dim   even
 *  out        [head_dim / 2] */
void rope_frequencies(const rope_config *rope, int32_t head_dim, float *out);

#endif /* DECODER_CONFIG_H */
