/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/files/folder_hints.h"
#include "decoder/model/linear.h"

/* The model and the layer whose weights are being bound. */
typedef struct binding {
    model *m;
    int32_t layer;
    decoder_error *error;
} binding;

/* The full name of a weight, with the number of its layer. */
static void write_full_name(const binding *b, const char *name, char *text, size_t size)
{
    if (b->layer >= 0) {
        snprintf(text, size, "model.layers.%d.%s.weight", b->layer, name);
    } else {
        snprintf(text, size, "%s.weight", name);
    }
}

/* Finds the tensor called `name`, of rank 1 ([cols], rows = 1) or 2, as a matrix. */
static int bind_matrix(const binding *b, const char *name, int rank, int64_t rows, int64_t cols,
                       gumbel_tensor *matrix)
{
    char full[96], shape[96];
    const char *path;
    write_full_name(b, name, full, sizeof full);
    const tensor_view *view = checkpoint_find(b->m->weights, full, &path);
    if (!view) {
        return decoder_fail(b->error, path, full, "is missing%s",
                            strcmp(name, "lm_head") == 0
                                ? "; if the embedding is the head, config.json must say "
                                  "\"tie_word_embeddings\": true"
                                : "; the file may be another model's, or incomplete");
    }
    if (view->rank != rank || view->shape[rank - 1] != cols ||
        (rank == 2 && view->shape[0] != rows)) {
        tensor_shape_text(view, shape, sizeof shape);
        return rank == 2 ? decoder_fail(b->error, path, full, "shape is %s, not [%lld, %lld]",
                                        shape, (long long)rows, (long long)cols)
                         : decoder_fail(b->error, path, full, "shape is %s, not [%lld]", shape,
                                        (long long)cols);
    }
    if (!tensor_as_matrix(view, matrix)) {
        return decoder_fail(b->error, path, full, "dtype %s is not supported; F32, F16, BF16 are",
                            tensor_dtype_name(view->dtype));
    }
    b->m->parameters += rows * cols;
    return 0;
}

static int bind_vector(const binding *b, const char *name, int64_t size, float **vector)
{
    gumbel_tensor row;
    if (bind_matrix(b, name, 1, 1, size, &row) != 0) {
        return -1;
    }
    *vector = malloc((size_t)size * sizeof **vector);
    if (!*vector) {
        return decoder_fail(b->error, NULL, name, "out of memory");
    }
    linear_widen(row.data, row.dtype, size, *vector);
    return 0;
}

static int bind_layer(const binding *b, model_layer *layer)
{
    const model_config *c = &b->m->config;
    int64_t d = c->hidden_size, inner = c->intermediate_size;
    int64_t h = (int64_t)c->heads * c->head_dim, k = (int64_t)c->kv_heads * c->head_dim;
    if (bind_vector(b, "input_layernorm", d, &layer->attention_norm) != 0 ||
        bind_matrix(b, "self_attn.q_proj", 2, h, d, &layer->query) != 0 ||
        bind_matrix(b, "self_attn.k_proj", 2, k, d, &layer->key) != 0 ||
        bind_matrix(b, "self_attn.v_proj", 2, k, d, &layer->value) != 0 ||
        bind_matrix(b, "self_attn.o_proj", 2, d, h, &layer->output) != 0 ||
        bind_vector(b, "post_attention_layernorm", d, &layer->mlp_norm) != 0 ||
        bind_matrix(b, "mlp.gate_proj", 2, inner, d, &layer->gate) != 0 ||
        bind_matrix(b, "mlp.up_proj", 2, inner, d, &layer->up) != 0 ||
        bind_matrix(b, "mlp.down_proj", 2, d, inner, &layer->down) != 0) {
        return -1;
    }
    if (!c->head_norm) {
        return 0;
    }
    return bind_vector(b, "self_attn.q_norm", c->head_dim, &layer->query_norm) != 0 ||
                   bind_vector(b, "self_attn.k_norm", c->head_dim, &layer->key_norm) != 0
               ? -1
               : 0;
}

static int bind_all(model *m, decoder_error *error)
{
    const model_config *c = &m->config;
    binding b = {m, -1, error};
    m->layers = calloc((size_t)c->layers, sizeof *m->layers);
    if (!m->layers) {
        return decoder_fail(error, NULL, "num_hidden_layers", "out of memory");
    }
    if (bind_matrix(&b, "model.embed_tokens", 2, c->vocab_size, c->hidden_size, &m->embedding) !=
            0 ||
        bind_vector(&b, "model.norm", c->hidden_size, &m->final_norm) != 0) {
        return -1;
    }
    m->head = m->embedding;
    if (!c->tied && bind_matrix(&b, "lm_head", 2, c->vocab_size, c->hidden_size, &m->head) != 0) {
        return -1;
    }
    for (b.layer = 0; b.layer < c->layers; b.layer++) {
        if (bind_layer(&b, &m->layers[b.layer]) != 0) {
            return -1;
        }
    }
    return 0;
}

int model_open(const char *folder, model *m, decoder_error *error)
{
    *m = (model){0};
    if (hint_check_folder(folder, error) != 0 || config_load(folder, &m->config, error) != 0 ||
        checkpoint_open(folder, &m->weights, error) != 0 || bind_all(m, error) != 0) {
        model_close(m);
        return -1;
    }
    return 0;
}

void model_close(model *m)
{
    for (int32_t i = 0; m->layers && i < m->config.layers; i++) {
        free(m->layers[i].attention_norm);
        free(m->layers[i].query_norm);
        free(m->layers[i].key_norm);
        free(m->layers[i].mlp_norm);
    }
    free(m->layers);
    free(m->final_norm);
    checkpoint_close(m->weights);
    *m = (model){0};
}
