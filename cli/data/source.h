/* SPDX-License-Identifier: Apache-2.0
 *
 * Input of a draw: hidden states and an LM head, or logits; and calls of the library on all of it,
 * on rows, on vocabulary ranges and in chunks.
 */
#ifndef GUMBEL_CLI_SOURCE_H
#define GUMBEL_CLI_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "gumbel/gumbel.h"

/* Does not own its memory. */
struct source {
    bool from_logits;     /* `logits` is used, else `head` */
    gumbel_head head;     /* hidden [B, D], weight [V, D], bias [1, V] or absent */
    gumbel_logits logits; /* logits [B, V] */
};

struct source source_from_head(gumbel_tensor hidden, gumbel_tensor weight);
struct source source_from_logits(gumbel_tensor logits);

int64_t source_batch(const struct source *source);
int64_t source_vocab(const struct source *source);
int64_t source_hidden_size(const struct source *source); /* 0 from logits */

/* The number of samples S of a row; num_samples 0 means 1. */
int32_t count_samples(const gumbel_sampling *sampling);

/* Bytes of an element of a dtype. */
size_t dtype_size(gumbel_dtype dtype);

/* Rows [first, first + count) of a matrix. */
gumbel_tensor tensor_rows(gumbel_tensor matrix, int64_t first, int64_t count);

/* The batch rows [first, first + count) of `source`. */
struct source source_rows(const struct source *source, int64_t first, int64_t count);

/* The shard of vocabulary rows [begin, end): global ids and vocab_size do not change. */
struct source source_shard(const struct source *source, int64_t begin, int64_t end);

/* A workspace for any plain call on `source` with `num_samples`, and one for a call with the given
 * arguments, `output` NULL for gumbel_partial(); release it with free(). */
void *source_workspace(const struct source *source, gumbel_device *device, int32_t num_samples,
                       size_t *bytes);
void *source_call_workspace(const struct source *source, gumbel_device *device,
                            const gumbel_sampling *sampling, const gumbel_output *output,
                            size_t *bytes);

/* gumbel_sample() or gumbel_sample_logits(), which allocates its workspace; fail() on an error. */
void source_sample(const struct source *source, gumbel_device *device,
                   const gumbel_sampling *sampling, const gumbel_output *output);

/* source_sample() by gumbel_partial(), gumbel_merge() and gumbel_finish(), `chunk` vocabulary rows
 * at a time. `drop_weights`, for weights in a mapped file, releases their pages after use, so that
 * a file may exceed the memory. `label` is shown as progress; NULL: none. */
void source_sample_chunks(const struct source *source, gumbel_device *device,
                          const gumbel_sampling *sampling, const gumbel_output *output,
                          int64_t chunk, bool drop_weights, const char *label);

/* The logits l = dot(weight, hidden) + bias of `source`, a head, into out[B, V] float32, with the
 * bits of the fused draw: greedy scores of one vocabulary row a call, V calls of about 2
 * microseconds. */
void source_logits(const struct source *source, gumbel_device *device, float *out);

#endif
