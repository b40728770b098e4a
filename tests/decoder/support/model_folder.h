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

/* Sizes that are multiples of nothing in particular. */
enum {
    FOLDER_HIDDEN = 44,
    FOLDER_INNER = 70,
    FOLDER_LAYERS = 2,
    FOLDER_HEADS = 6,
    FOLDER_KV_HEADS = 3,
    FOLDER_HEAD_DIM = 10,
    FOLDER_VOCAB = 640, /* as many as tests/decoder/tokenizers/llama has, rounded up */
    FOLDER_POSITIONS = 200,
};

typedef struct folder_options {
    const char *family; /* "llama" or "qwen3" */
    tensor_dtype dtype; /* of all weights */
    int shards;         /* 0: one file; else that many, and an index */
    bool tied;
    const char *config;    /* more fields for config.json, as in "\"rope_theta\":5," or "" */
    const char *leave_out; /* a tensor that is not written; NULL for none */
    const char *reshape;   /* a tensor whose first size is one too small */
} folder_options;

/* Write config.json, tokenizer.json and the weights into `folder`, over what is there. */
void folder_write(const char *folder, const folder_options *options);

/* Element `index` of the tensor called `name`. */
double folder_weight(const char *name, int64_t index);

/* folder_reference(): final hidden states of the llama family with head_norm off or on, by plain
 * loops in double. frequencies  [FOLDER_HEAD_DIM / 2] hidden       [count, FOLDER_HIDDEN] */
void folder_reference(bool head_norm, const float *frequencies, const int32_t *tokens, int count,
                      double *hidden);

#endif /* TEST_MODEL_FOLDER_H */
