/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/decoder.h"

#include <stdlib.h>
#include <string.h>

#include "decoder/model/linear.h"
#include "decoder/model/model.h"
#include "decoder/pool.h"
#include "decoder/model/trunk.h"

struct decoder {
    model model;
    tokenizer *tokenizer;
    pool *pool;
    trunk *trunk;
    decoder_info info;
};

struct decoder_sequence {
    const decoder *owner;
    trunk_cache cache;
    int32_t length;
};

static void fill_info(decoder *d)
{
    const model_config *c = &d->model.config;
    d->info = (decoder_info){.model_type = c->model_type,
                             .hidden_size = c->hidden_size,
                             .vocab_size = c->vocab_size,
                             .layers = c->layers,
                             .max_positions = c->max_positions,
                             .bos_id = c->bos_id,
                             .eos_count = c->eos_count,
                             .parameters = d->model.parameters,
                             .threads = pool_threads(d->pool)};
    memcpy(d->info.eos_ids, c->eos_ids, sizeof d->info.eos_ids);
}

int decoder_open(const char *folder, int32_t threads, decoder **result, decoder_error *error)
{
    *result = NULL;
    decoder *d = calloc(1, sizeof *d);
    if (!d) {
        return decoder_fail(error, folder, NULL, "out of memory");
    }
    if (model_open(folder, &d->model, error) != 0 ||
        tokenizer_open(folder, &d->tokenizer, error) != 0 ||
        pool_new(threads, &d->pool, error) != 0 ||
        trunk_new(&d->model, d->pool, &d->trunk, error) != 0) {
        decoder_close(d);
        return -1;
    }
    fill_info(d);
    *result = d;
    return 0;
}

void decoder_close(decoder *d)
{
    if (d) {
        trunk_free(d->trunk);
        pool_free(d->pool);
        tokenizer_close(d->tokenizer);
        model_close(&d->model);
        free(d);
    }
}

const decoder_info *decoder_describe(const decoder *d) { return &d->info; }

const tokenizer *decoder_tokenizer(const decoder *d) { return d->tokenizer; }

gumbel_tensor decoder_head(const decoder *d) { return d->model.head; }

void decoder_parallel_for(void *context, int32_t count, gumbel_task task, void *argument)
{
    pool_run(((decoder *)context)->pool, count, task, argument);
}

/* Floats between the layers of a cache, and between the positions of a layer. */
static size_t position_size(const decoder *d)
{
    return (size_t)d->model.config.kv_heads * (size_t)d->model.config.head_dim;
}

int decoder_sequence_new(const decoder *d, int32_t capacity, decoder_sequence **result,
                         decoder_error *error)
{
    *result = NULL;
    if (capacity < 1 || capacity > d->info.max_positions) {
        return decoder_fail(error, NULL, "capacity", "is %d, not in [1, %d]", capacity,
                            d->info.max_positions);
    }
    size_t bytes = position_size(d) * (size_t)d->info.layers * sizeof(float);
    decoder_sequence *s = calloc(1, sizeof *s);
    if (s && !__builtin_mul_overflow(bytes, (size_t)capacity, &bytes)) {
        s->owner = d;
        s->cache = (trunk_cache){capacity, malloc(bytes), malloc(bytes)};
    }
    if (!s || !s->cache.keys || !s->cache.values) {
        decoder_sequence_free(s);
        return decoder_fail(error, NULL, "capacity", "out of memory for a cache of %d tokens",
                            capacity);
    }
    *result = s;
    return 0;
}

void decoder_sequence_free(decoder_sequence *sequence)
{
    if (sequence) {
        free(sequence->cache.keys);
        free(sequence->cache.values);
        free(sequence);
    }
}

int32_t decoder_sequence_length(const decoder_sequence *sequence) { return sequence->length; }

int decoder_sequence_copy(decoder_sequence *to, const decoder_sequence *from, decoder_error *error)
{
    if (to->owner != from->owner || to->cache.capacity < from->length) {
        return decoder_fail(error, NULL, "sequence", "holds %d tokens of one decoder, not %d",
                            to->cache.capacity, from->length);
    }
    size_t row = position_size(to->owner);
    for (size_t layer = 0; to != from && layer < (size_t)to->owner->info.layers; layer++) {
        size_t source = layer * (size_t)from->cache.capacity * row;
        size_t target = layer * (size_t)to->cache.capacity * row;
        size_t bytes = (size_t)from->length * row * sizeof(float);
        memcpy(to->cache.keys + target, from->cache.keys + source, bytes);
        memcpy(to->cache.values + target, from->cache.values + source, bytes);
    }
    to->length = from->length;
    return 0;
}

void decoder_sequence_truncate(decoder_sequence *sequence, int32_t length)
{
    if (length >= 0 && length < sequence->length) {
        sequence->length = length;
    }
}

/* Checks that `count` tokens fit behind the sequence. */
static int check_tokens(const decoder *d, const decoder_sequence *sequence, const int32_t *tokens,
                        int32_t count, decoder_error *error)
{
    if (sequence->owner != d) {
        return decoder_fail(error, NULL, "sequence", "belongs to another decoder");
    }
    if (count > sequence->cache.capacity - sequence->length) {
        return decoder_fail(error, NULL, "sequence", "%d tokens do not fit behind %d of %d", count,
                            sequence->length, sequence->cache.capacity);
    }
    for (int32_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= d->info.vocab_size) {
            return decoder_fail(error, NULL, "tokens", "entry %d is %d, not in [0, %d)", i,
                                tokens[i], d->info.vocab_size);
        }
    }
    return 0;
}

/* Returns the row of a token whose position, as all before it, is its row of the cache. */
static trunk_row make_row(decoder_sequence *s, int32_t position, int32_t token, float *hidden)
{
    return (trunk_row){.cache = &s->cache,
                       .position = position,
                       .token = token,
                       .cache_row = position,
                       .tree_begin = position + 1,
                       .hidden = hidden};
}

int decoder_feed(decoder *d, decoder_sequence *sequence, const int32_t *tokens, int32_t count,
                 int32_t skip, float *hidden, decoder_error *error)
{
    if (count < 0 || skip < 0 || skip > count || (skip < count && !hidden)) {
        return decoder_fail(error, NULL, "skip", "%d of %d tokens, hidden %s", skip, count,
                            hidden ? "given" : "not given");
    }
    if (check_tokens(d, sequence, tokens, count, error) != 0) {
        return -1;
    }
    for (int32_t first = 0; first < count; first += TRUNK_MAX_ROWS) {
        trunk_row rows[TRUNK_MAX_ROWS];
        int32_t n = count - first < TRUNK_MAX_ROWS ? count - first : TRUNK_MAX_ROWS;
        for (int32_t i = 0; i < n; i++) {
            int64_t wanted = (int64_t)first + i - skip;
            float *to = wanted >= 0 ? hidden + wanted * d->info.hidden_size : NULL;
            rows[i] = make_row(sequence, sequence->length + i, tokens[first + i], to);
        }
        trunk_run(d->trunk, rows, n);
        sequence->length += n;
    }
    return 0;
}

/* The depth of each node of a tree, and the cache rows of its path from the root. */
typedef struct tree_paths {
    int32_t deepest;
    int32_t *depth; /* [count] */
    int32_t *rows;  /* [count, deepest + 1]: the root's first, the node's own last */
} tree_paths;

static int tree_paths_new(tree_paths *t, const int32_t *parents, int32_t count, int32_t length,
                          decoder_error *error)
{
    *t = (tree_paths){.depth = calloc((size_t)count, sizeof *t->depth)};
    if (!t->depth) {
        return decoder_fail(error, NULL, "parents", "out of memory");
    }
    for (int32_t i = 1; i < count; i++) {
        if (parents[i] < 0 || parents[i] >= i) {
            return decoder_fail(error, NULL, "parents", "entry %d is %d, not in [0, %d)", i,
                                parents[i], i);
        }
        t->depth[i] = t->depth[parents[i]] + 1;
        t->deepest = t->depth[i] > t->deepest ? t->depth[i] : t->deepest;
    }
    size_t width = (size_t)t->deepest + 1;
    t->rows = calloc((size_t)count * width, sizeof *t->rows);
    if (!t->rows) {
        return decoder_fail(error, NULL, "parents", "out of memory");
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t *own = t->rows + (size_t)i * width;
        if (i > 0) {
            memcpy(own, t->rows + (size_t)parents[i] * width, (size_t)t->depth[i] * sizeof *own);
        }
        own[t->depth[i]] = length + i;
    }
    return 0;
}

static void tree_paths_free(tree_paths *t)
{
    free(t->depth);
    free(t->rows);
}

/* Feeds the nodes of a tree. */
static void feed_nodes(decoder *d, decoder_sequence *s, const int32_t *tokens, int32_t count,
                       const tree_paths *t, float *hidden)
{
    for (int32_t first = 0; first < count; first += TRUNK_MAX_ROWS) {
        trunk_row rows[TRUNK_MAX_ROWS];
        int32_t n = count - first < TRUNK_MAX_ROWS ? count - first : TRUNK_MAX_ROWS;
        for (int32_t i = 0; i < n; i++) {
            int32_t node = first + i;
            rows[i] = (trunk_row){.cache = &s->cache,
                                  .position = s->length + t->depth[node],
                                  .token = tokens[node],
                                  .cache_row = s->length + node,
                                  .tree_begin = s->length,
                                  .tree_rows = t->rows + (int64_t)node * (t->deepest + 1),
                                  .hidden = hidden + (int64_t)node * d->info.hidden_size};
        }
        trunk_run(d->trunk, rows, n);
    }
    s->length += count;
}

int decoder_feed_tree(decoder *d, decoder_sequence *sequence, const int32_t *tokens,
                      const int32_t *parents, int32_t count, float *hidden, decoder_error *error)
{
    tree_paths paths;
    if (count < 1) {
        return decoder_fail(error, NULL, "tokens", "a tree of %d nodes", count);
    }
    if (check_tokens(d, sequence, tokens, count, error) != 0) {
        return -1;
    }
    int result = tree_paths_new(&paths, parents, count, sequence->length, error);
    if (result == 0) {
        feed_nodes(d, sequence, tokens, count, &paths, hidden);
    }
    tree_paths_free(&paths);
    return result;
}

void decoder_sequence_keep(decoder_sequence *sequence, int32_t first, const int32_t *nodes,
                           int32_t count)
{
    size_t row = position_size(sequence->owner);
    for (int32_t i = 0; i < count; i++) {
        for (size_t layer = 0; nodes[i] != i && layer < (size_t)sequence->owner->info.layers;
             layer++) {
            size_t start = layer * (size_t)sequence->cache.capacity + (size_t)first;
            size_t to = (start + (size_t)i) * row, from = (start + (size_t)nodes[i]) * row;
            memcpy(sequence->cache.keys + to, sequence->cache.keys + from, row * sizeof(float));
            memcpy(sequence->cache.values + to, sequence->cache.values + from, row * sizeof(float));
        }
    }
    decoder_sequence_truncate(sequence, first + count);
}

int decoder_step(decoder *d, decoder_sequence *const *sequences, const int32_t *tokens,
                 int32_t count, float *hidden, decoder_error *error)
{
    for (int32_t i = 0; i < count; i++) {
        if (check_tokens(d, sequences[i], tokens + i, 1, error) != 0) {
            return -1;
        }
        for (int32_t k = 0; k < i; k++) {
            if (sequences[k] == sequences[i]) {
                return decoder_fail(error, NULL, "sequences", "entries %d and %d are the same", k,
                                    i);
            }
        }
    }
    for (int32_t first = 0; first < count; first += TRUNK_MAX_ROWS) {
        trunk_row rows[TRUNK_MAX_ROWS];
        int32_t n = count - first < TRUNK_MAX_ROWS ? count - first : TRUNK_MAX_ROWS;
        for (int32_t i = 0; i < n; i++) {
            decoder_sequence *s = sequences[first + i];
            rows[i] = make_row(s, s->length, tokens[first + i],
                               hidden + (int64_t)(first + i) * d->info.hidden_size);
        }
        trunk_run(d->trunk, rows, n);
        for (int32_t i = 0; i < n; i++) {
            sequences[first + i]->length++;
        }
    }
    return 0;
}

int decoder_compute_logits(decoder *d, const float *hidden, int32_t count, float *logits,
                           decoder_error *error)
{
    const linear_output output = {&d->model.head, logits};
    size_t floats = linear_count_scratch(d->pool, d->model.head.cols, count);
    float *scratch = aligned_alloc(64, (floats * sizeof *scratch + 63) / 64 * 64);
    if (!scratch) {
        return decoder_fail(error, NULL, "logits", "out of memory for %d rows", count);
    }
    linear_multiply(d->pool, &output, 1, hidden, count, scratch);
    free(scratch);
    return 0;
}
