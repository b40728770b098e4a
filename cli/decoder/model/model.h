/* SPDX-License-Identifier: Apache-2.0
 *
 * The weights of a Qwen3 or Llama model, whose shapes have been checked.
 */
#ifndef DECODER_MODEL_H
#define DECODER_MODEL_H

#include "decoder/files/checkpoint.h"
#include "decoder/files/config.h"
#include "decoder/error.h"
#include "gumbel/gumbel.h"

/* Letters: D hidden_size, H heads * head_dim, K kv_heads * head_dim, I intermediate_size. */
typedef struct model_layer {
    float *attention_norm; /* [D] */
    gumbel_tensor query;   /* [H, D] */
    gumbel_tensor key;     /* [K, D] */
    gumbel_tensor value;   /* [K, D] */
    float *query_norm;     /* [head_dim]; NULL if the family has no norm of heads */
    float *key_norm;       /* as query_norm */
    gumbel_tensor output;  /* [D, H], o_proj */
    float *mlp_norm;       /* [D] */
    gumbel_tensor gate;    /* [I, D] */
    gumbel_tensor up;      /* [I, D] */
    gumbel_tensor down;    /* [D, I] */
} model_layer;

typedef struct model {
    model_config config;
    checkpoint *weights;
    gumbel_tensor embedding; /* [V, D] */
    gumbel_tensor head;      /* [V, D]; the embedding if tied */
    float *final_norm;       /* [D] */
    model_layer *layers;     /* [config.layers] */
    int64_t parameters;      /* elements of all weights; a tied head counts once */
} model;

/* model_open(): reads the config and finds every weight. Matrices stay in the mapped files; norms
 * are widened to float32. If the config ties the head to the embedding, lm_head is not read.
 *  m        filled on success, zeroed on error. Release it with model_close().
 *  returns  0; -1 with `error` filled: an error of config_load() or checkpoint_open(), a missing
 *           tensor, a wrong shape, a dtype other than F32, F16 and BF16. */
int model_open(const char *folder, model *m, decoder_error *error);

/* Frees the weights and zeroes the struct. A zeroed model is allowed. */
void model_close(model *m);

#endif /* DECODER_MODEL_H */
