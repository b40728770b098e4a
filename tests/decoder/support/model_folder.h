/* SPDX-License-Identifier: Apache-2.0
 *
 * Small synthetic models, written as Hugging Face folders. Every weight is a function of its name
 * and index, a multiple of 1/32 that all three dtypes hold exactly.
 */
#ifndef TEST_MODEL_FOLDER_H
#define TEST_MODEL_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "decoder/files/tensor.h"

/* Sizes that are not multiples of a vector or tile size. */
enum {
    FOLDER_HIDDEN = 44,
    FOLDER_INNER = 70,
    FOLDER_LAYERS = 2,
    FOLDER_HEADS = 6,
    FOLDER_KV_HEADS = 3,
    FOLDER_HEAD_DIM = 10,
    FOLDER_VOCAB = 640, /* tokens of tests/decoder/tokenizers/llama, rounded up */
    FOLDER_POSITIONS = 200,
};

typedef struct folder_options {
    const char *family; /* "llama" or "qwen3" */
    tensor_dtype dtype; /* of all weights */
    int shards;         /* 0: one file; else that many, and an index */
    bool tied;
    const char *config;    /* more fields for config.json, as in "\"rope_theta\":5," or "" */
    const char *leave_out; /* name of a tensor to omit; NULL for none */
    const char *reshape;   /* name of a tensor whose first dimension is one too small */
} folder_options;

/* Writes config.json, tokenizer.json and the weights into `folder`; overwrites existing files. */
void folder_write(const char *folder, const folder_options *options);

/* Element `index` of the tensor called `name`. */
double folder_weight(const char *name, int64_t index);

/* Computes the final hidden states of the llama family, with or without head_norm, by plain loops
 * in double. `frequencies` has the shape [FOLDER_HEAD_DIM / 2], `hidden` [count, FOLDER_HIDDEN]. */
void folder_reference(bool head_norm, const float *frequencies, const int32_t *tokens, int count,
                      double *hidden);

#endif /* TEST_MODEL_FOLDER_H */
