/* SPDX-License-Identifier: Apache-2.0
 *
 * Shards of a request, and the outputs of ranks: poisoned before a draw, and then compared bit by
 * bit with the outputs of one device.
 */
#ifndef TESTS_SHARDS_H
#define TESTS_SHARDS_H

#include "requests.h"

#include <gumbel/dist.h>

enum { SHARDS_BEST = 4, SHARDS_RANKS = 64 };

/* The split of a vocabulary: rank r has the tokens [first[r], first[r] + rows[r]). */
typedef struct shard_split {
    int32_t ranks;
    int64_t first[SHARDS_RANKS], rows[SHARDS_RANKS];
} shard_split;

/* Splits [first, first + vocab) at random tokens. Shards may be empty, and are assigned to ranks in
 * random order. With `aligned`, boundaries between shards are multiples of 64. */
shard_split split_vocabulary(int64_t first, int64_t vocab, int32_t ranks, int aligned,
                             uint64_t *random);

/* Splits the tokens of a request into shards of at least one token. */
shard_split split_request(const request_plan *plan, int32_t ranks, int aligned, uint64_t *random);

/* The shard of rank r of a request's head or logits, and the sampling parameters of rank r. */
gumbel_head shards_head(const request *req, const shard_split *split, int32_t rank);
gumbel_logits shards_logits(const request *req, const shard_split *split, int32_t rank);
gumbel_sampling shards_sampling(const request *req, const shard_split *split, int32_t rank);

/* An outcome, and the outputs that `outcome` lacks: top_logits and the best scores. */
typedef struct shard_outcome {
    outcome *drawn;
    float *top_logits, *best_scores;
    int32_t *best_ids;
} shard_outcome;

/* Allocates the outputs of a plain draw or, if `wide`, all outputs; sometimes only one of best_ids
 * and best_scores. */
shard_outcome shards_outcome(const request *req, int wide);
void shards_outcome_free(shard_outcome *generated);
int shards_same(const shard_outcome *whole, const shard_outcome *other, const char *what);

/* Draws the unsplit request on one device. */
gumbel_status shards_draw_whole(gumbel_device *device, const request *req, int fused,
                                shard_outcome *into);
/* Makes one rank's call, with a workspace of exactly the required size. */
gumbel_status shards_draw(gumbel_group *group, const request *req, const shard_split *split,
                          int32_t rank, int fused, shard_outcome *into, gumbel_error *error);

#endif
