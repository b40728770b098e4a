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

/* How a whole is cut: rank r has tokens [first[r], first[r] + rows[r]). */
typedef struct shard_cut {
    int32_t ranks;
    int64_t first[SHARDS_RANKS], rows[SHARDS_RANKS];
} shard_cut;

/* Cut [first, first + vocab) at random places: some shards may be empty, ranks are in any order of
 * tokens. With `aligned` shards meet at multiples of 64. */
shard_cut shards_cut(int64_t first, int64_t vocab, int32_t ranks, int aligned, uint64_t *random);

/* Cut the tokens of a request into shards of one or more each. */
shard_cut shards_cut_tokens(const request_plan *plan, int32_t ranks, int aligned, uint64_t *random);

/* A whole's head, logits or sampling as rank r sees it. */
gumbel_head shards_head(const request *req, const shard_cut *cut, int32_t rank);
gumbel_logits shards_logits(const request *req, const shard_cut *cut, int32_t rank);
gumbel_sampling shards_sampling(const request *req, const shard_cut *cut, int32_t rank);

/* An outcome, with top_logits and the best scores beside. */
typedef struct shard_outcome {
    outcome *drawn;
    float *top_logits, *best_scores;
    int32_t *best_ids;
} shard_outcome;

/* `wide`: every output, but of best_ids and best_scores one or both; else those of a plain draw. */
shard_outcome shards_outcome(const request *req, int wide);
void shards_outcome_free(shard_outcome *generated);
int shards_same(const shard_outcome *whole, const shard_outcome *other, const char *what);

/* The whole on one device. */
gumbel_status shards_draw_whole(gumbel_device *device, const request *req, int fused,
                                shard_outcome *into);
/* One rank's call, with a workspace of exactly the required size. */
gumbel_status shards_draw(gumbel_group *group, const request *req, const shard_cut *cut,
                          int32_t rank, int fused, shard_outcome *into, gumbel_error *error);

#endif
