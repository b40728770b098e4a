/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of token ids: heads over a subset of the vocabulary. No test framework.
 */
#ifndef TESTS_TOKEN_TABLES_H
#define TESTS_TOKEN_TABLES_H

#include "requests.h"

typedef enum table_kind {
    TABLE_ASCENDING, /* distinct ids */
    TABLE_UNSORTED,  /* distinct ids */
    TABLE_DUPLICATES,
    TABLE_LARGE, /* ids up to 2^31 - 2, unsorted */
    TABLE_KINDS,
} table_kind;

/* A table of `count` ids, which are below `vocab` unless the kind is TABLE_LARGE; vocab >= count.
 * The caller frees it. */
int32_t *table_make(table_kind kind, int64_t count, int64_t vocab, uint64_t *random);

/* Removes what a table does not support from a plan: transforms, shards, prepared noise. */
void table_adapt_plan(request_plan *plan);

/* The noise [B, S, V] of a table, each value by gumbel_noise() alone. The caller frees it. */
float *table_noise(const gumbel_sampling *sampling, int64_t batch, int64_t vocab);

/* Replaces rows by the ids of the table, of `vocab` rows, in all outputs that hold tokens. */
void table_map_outcome(const int32_t *ids, int64_t vocab, outcome *drawn);

/* Logits [B, vocab] of the whole vocabulary, float32: those of the table's rows before `end`, and
 * -inf. The caller frees them. */
float *table_scatter(const gumbel_tensor *logits, const int32_t *ids, int64_t end, int64_t vocab);

#endif
