/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks compare before they draw: digests of what each was given, a field each, so that an
 * error has a name.
 */
#ifndef GUMBEL_RANKS_AGREE_H
#define GUMBEL_RANKS_AGREE_H

#include "core/problem.h"

typedef enum dist_field {
    DIST_CALL,
    DIST_BATCH,
    DIST_INPUT, /* head or logits, hidden size, scale, soft-cap */
    DIST_VOCAB_SIZE,
    DIST_SAMPLES,
    DIST_TEMPERATURE,
    DIST_SEED,
    DIST_POSITION,
    DIST_FIRST_SAMPLE,
    DIST_DOMAIN,
    DIST_TRANSFORMS,
    DIST_TRUNCATION,
    DIST_GIVEN,
    DIST_NOISE,
    DIST_OUTPUT,
    DIST_DRAFT,
    DIST_FIELDS,
} dist_field;

/* The first bytes of a call's first exchange. */
typedef struct dist_header {
    uint32_t magic;
    int32_t status;    /* what this rank's call came to before the exchange */
    uint64_t step;     /* which call of the group this is */
    int64_t end_token; /* of what counts in its shard; its first token where nothing does */
    uint64_t digests[DIST_FIELDS];
    char field[48];    /* the argument at fault, where status is an error */
    char reserved[56]; /* 0 */
} dist_header;

_Static_assert(sizeof(dist_header) == 256, "dist.h says so");

/* FNV-1a of `bytes`, going on from `digest`. */
uint64_t dist_digest(uint64_t digest, const void *data, size_t bytes);
#define DIST_DIGEST_START UINT64_C(0xcbf29ce484222325)

/* A header of a call that has nothing yet. */
dist_header dist_header_at(uint64_t step);

/* Fill the digests of a header from what the host knows of a call whose parameters lie on a GPU. */
void dist_describe_host(dist_header *header, const gumbel_problem *problem,
                        const gumbel_output *output);

/* Fill the digests of a header from a checked problem and what is asked of it. */
void dist_describe(dist_header *header, const gumbel_problem *problem, const gumbel_output *output);

/* Compare the headers of all ranks: GUMBEL_OK, or what is wrong, the same on each. `headers` lie
 * `stride` bytes apart. */
gumbel_status dist_agree(const void *headers, size_t stride, int32_t ranks, gumbel_error *error);

#endif
