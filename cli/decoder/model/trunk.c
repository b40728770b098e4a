/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/model/trunk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/model/attention.h"
#include "decoder/model/linear.h"

struct trunk {
    const model *m;
    pool *pool;
    int64_t query_size; /* heads * head_dim */
    int64_t kv_size;    /* kv_heads * head_dim */
    /* Activations, [TRUNK_MAX_ROWS, ...] each, in one allocation. */
    float *memory;
    float *x;           /* hidden_size: the residual stream */
    float *normed;      /* hidden_size */
    float *query;       /* query_size */
    float *key;         /* kv_size */
    float *value;       /* kv_size */
    float *mixed;       /* query_size: the output of attention */
    float *gate;        /* intermediate_size */
    float *up;          /* intermediate_size */
    float *cosines;     /* head_dim / 2 */
    float *sines;       /* head_dim / 2 */
    float *frequencies; /* [head_dim / 2] */
    float *scratch;     /* of linear_multiply() */
    /* Of the current pass. */
    const trunk_row *rows;
    int32_t count;
    int32_t layer;
};

/* Assigns each array its part of `memory`; returns the floats used. With memory NULL it only
 * counts. */
static size_t carve_arrays(trunk *t)
{
    const model_config *c = &t->m->config;
    int64_t widest = c->hidden_size > c->intermediate_size ? c->hidden_size : c->intermediate_size;
    widest = widest > t->query_size ? widest : t->query_size;
    const struct {
        float **place;
        int64_t size;
    } arrays[] = {
        {&t->x, c->hidden_size},          {&t->normed, c->hidden_size},
        {&t->query, t->query_size},       {&t->key, t->kv_size},
        {&t->value, t->kv_size},          {&t->mixed, t->query_size},
        {&t->gate, c->intermediate_size}, {&t->up, c->intermediate_size},
        {&t->cosines, c->head_dim / 2},   {&t->sines, c->head_dim / 2},
    };
    size_t used = 0;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        *arrays[i].place = t->memory ? t->memory + used : NULL;
        used += (size_t)arrays[i].size * TRUNK_MAX_ROWS;
    }
    t->frequencies = t->memory ? t->memory + used : NULL;
    used += (size_t)c->head_dim / 2;
    t->scratch = t->memory ? t->memory + used : NULL;
    return used + linear_count_scratch(t->pool, widest, TRUNK_MAX_ROWS);
}

int trunk_new(const model *m, pool *p, trunk **result, decoder_error *error)
{
    *result = NULL;
    trunk *t = calloc(1, sizeof *t);
    if (!t) {
        return decoder_fail(error, NULL, "trunk", "out of memory");
    }
    t->m = m;
    t->pool = p;
    t->query_size = (int64_t)m->config.heads * m->config.head_dim;
    t->kv_size = (int64_t)m->config.kv_heads * m->config.head_dim;
    t->memory = malloc(carve_arrays(t) * sizeof *t->memory);
    if (!t->memory) {
        free(t);
        return decoder_fail(error, NULL, "trunk", "out of memory for activations");
    }
    carve_arrays(t);
    rope_frequencies(&m->config.rope, m->config.head_dim, t->frequencies);
    *result = t;
    return 0;
}

void trunk_free(trunk *t)
{
    if (t) {
        free(t->memory);
        free(t);
    }
}

/* out = x / rms(x) * weight */
static void rms_norm(const float *x, const float *weight, int64_t size, float epsilon, float *out)
{
    double sum = 0;
    for (int64_t i = 0; i < size; i++) {
        sum += (double)x[i] * x[i];
    }
    float scale = (float)(1 / sqrt(sum / (double)size + epsilon));
    for (int64_t i = 0; i < size; i++) {
        out[i] = x[i] * scale * weight[i];
    }
}

static void norm_rows(const trunk *t, const float *weight)
{
    int64_t d = t->m->config.hidden_size;
    for (int32_t row = 0; row < t->count; row++) {
        rms_norm(t->x + row * d, weight, d, t->m->config.rms_norm_eps, t->normed + row * d);
    }
}

/* Sets the angles of a row's position, for all layers. The product is rounded to float32 before the
 * cosine, as in the reference implementation: at large positions the rounding matters. */
static void set_angles(const trunk *t, int32_t row)
{
    int32_t half = t->m->config.head_dim / 2;
    for (int32_t i = 0; i < half; i++) {
        float angle = (float)t->rows[row].position * t->frequencies[i];
        t->cosines[row * half + i] = cosf(angle);
        t->sines[row * half + i] = sinf(angle);
    }
}

/* Normalises (if the family does) and rotates every head of a row, in place. */
static void place_heads(const trunk *t, int32_t row, float *heads, int32_t count, const float *norm)
{
    int32_t dim = t->m->config.head_dim, half = dim / 2;
    const float *c = t->cosines + row * half, *s = t->sines + row * half;
    for (int32_t h = 0; h < count; h++) {
        float *head = heads + h * dim;
        if (norm) {
            rms_norm(head, norm, dim, t->m->config.rms_norm_eps, head);
        }
        for (int32_t i = 0; i < half; i++) {
            float first = head[i], second = head[i + half];
            head[i] = first * c[i] - second * s[i];
            head[i + half] = second * c[i] + first * s[i];
        }
    }
}

/* Returns the offset of a row of the cache in this layer. */
static size_t find_cache_offset(const trunk *t, const trunk_cache *cache, int32_t cache_row)
{
    return ((size_t)t->layer * (size_t)cache->capacity + (size_t)cache_row) * (size_t)t->kv_size;
}

static void store_row(void *argument, int32_t row)
{
    const trunk *t = argument;
    const model_config *c = &t->m->config;
    const model_layer *layer = &t->m->layers[t->layer];
    const trunk_row *r = &t->rows[row];
    float *key = t->key + row * t->kv_size;
    place_heads(t, row, t->query + row * t->query_size, c->heads, layer->query_norm);
    place_heads(t, row, key, c->kv_heads, layer->key_norm);
    size_t at = find_cache_offset(t, r->cache, r->cache_row);
    memcpy(r->cache->keys + at, key, (size_t)t->kv_size * sizeof *key);
    memcpy(r->cache->values + at, t->value + row * t->kv_size, (size_t)t->kv_size * sizeof *key);
}

/* item = row * heads + head. */
static void attend_head(void *argument, int32_t item)
{
    const trunk *t = argument;
    const model_config *c = &t->m->config;
    int32_t row = item / c->heads, head = item % c->heads;
    const trunk_row *r = &t->rows[row];
    size_t at = find_cache_offset(t, r->cache, 0) +
                (size_t)(head / (c->heads / c->kv_heads)) * (size_t)c->head_dim;
    int64_t own = row * t->query_size + (int64_t)head * c->head_dim;
    attention_query q = {.query = t->query + own,
                         .keys = r->cache->keys + at,
                         .values = r->cache->values + at,
                         .stride = t->kv_size,
                         .count = r->position + 1,
                         .tree_begin = r->tree_begin,
                         .tree_rows = r->tree_rows,
                         .head_dim = c->head_dim,
                         .out = t->mixed + own};
    attention_mix(&q);
}

/* gate = silu(gate) * up, silu(x) = x / (1 + exp(-x)) */
static void activate_row(void *argument, int32_t row)
{
    const trunk *t = argument;
    int64_t size = t->m->config.intermediate_size;
    float *gate = t->gate + row * size;
    const float *up = t->up + row * size;
    for (int64_t i = 0; i < size; i++) {
        gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
    }
}

/* x += weight . in, with `normed` as scratch. */
static void add_product(trunk *t, const gumbel_tensor *weight, const float *in)
{
    int64_t size = t->count * (int64_t)t->m->config.hidden_size;
    linear_output output = {weight, t->normed};
    linear_multiply(t->pool, &output, 1, in, t->count, t->scratch);
    for (int64_t i = 0; i < size; i++) {
        t->x[i] += t->normed[i];
    }
}

static void run_layer(trunk *t)
{
    const model_layer *layer = &t->m->layers[t->layer];
    norm_rows(t, layer->attention_norm);
    linear_output attention_in[] = {
        {&layer->query, t->query}, {&layer->key, t->key}, {&layer->value, t->value}};
    linear_multiply(t->pool, attention_in, 3, t->normed, t->count, t->scratch);
    pool_run(t->pool, t->count, store_row, t);
    pool_run(t->pool, t->count * t->m->config.heads, attend_head, t);
    add_product(t, &layer->output, t->mixed);
    norm_rows(t, layer->mlp_norm);
    linear_output mlp_in[] = {{&layer->gate, t->gate}, {&layer->up, t->up}};
    linear_multiply(t->pool, mlp_in, 2, t->normed, t->count, t->scratch);
    pool_run(t->pool, t->count, activate_row, t);
    add_product(t, &layer->down, t->gate);
}

void trunk_run(trunk *t, const trunk_row *rows, int32_t count)
{
    const model *m = t->m;
    int64_t d = m->config.hidden_size;
    int64_t element = m->embedding.dtype == GUMBEL_FLOAT32 ? 4 : 2;
    t->rows = rows;
    t->count = count;
    for (int32_t row = 0; row < count; row++) {
        const char *embedding = (const char *)m->embedding.data + rows[row].token * d * element;
        linear_widen(embedding, m->embedding.dtype, d, t->x + row * d);
        set_angles(t, row);
    }
    for (t->layer = 0; t->layer < m->config.layers; t->layer++) {
        run_layer(t);
    }
    for (int32_t row = 0; row < count; row++) {
        if (rows[row].hidden) {
            rms_norm(t->x + row * d, m->final_norm, d, m->config.rms_norm_eps, rows[row].hidden);
        }
    }
}
