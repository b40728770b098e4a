/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks compare before they draw: digests of what each was given, a field each, so that an
 * error has a name.
 */
#ifndef GUMBEL_DIST_AGREE_H
#define GUMBEL_DIST_AGREE_H

#include "core/problem.h"

typedef enum ranks_field {
    RANKS_CALL,
    RANKS_BATCH,
    RANKS_INPUT, /* head or logits, hidden size, scale, soft-cap */
    RANKS_VOCAB_SIZE,
    RANKS_SAMPLES,
    RANKS_TEMPERATURE,
    RANKS_SEED,
    RANKS_POSITION,
    RANKS_FIRST_SAMPLE,
    RANKS_DOMAIN,
    RANKS_TRANSFORMS,
    RANKS_TRUNCATION,
    RANKS_GIVEN,
    RANKS_NOISE,
    RANKS_OUTPUT,
    RANKS_DRAFT,
    RANKS_FIELDS,
} ranks_field;

/* The first bytes of a call's first exchange. */
typedef struct ranks_header {
    uint32_t magic;
    int32_t status;    /* what this rank's call came to before the exchange */
    uint64_t step;     /* which call of the group this is */
    int64_t end_token; /* of what counts in its shard; its first token where nothing does */
    uint64_t digests[RANKS_FIELDS];
    char field[48];    /* the argument at fault, where status is an error */
    char reserved[56]; /* 0 */
} ranks_header;

_Static_assert(sizeof(ranks_header) == 256, "dist.h says so");

/* FNV-1a of `bytes`, going on from `digest`. */
uint64_t ranks_add_digest(uint64_t digest, const void *data, size_t bytes);
#define RANKS_DIGEST_START UINT64_C(0xcbf29ce484222325)

/* A header of a call that has nothing yet. */
ranks_header ranks_new_header(uint64_t step);

/* Fill the digests of a header from what the host knows of a call whose parameters lie on a GPU. */
void ranks_digest_host_arguments(ranks_header *header, const gumbel_problem *problem,
                        const gumbel_output *output);

/* Fill the digests of a header from a checked problem and what is asked of it. */
void ranks_digest_arguments(ranks_header *header, const gumbel_problem *problem, const gumbel_output *output);

/* Compare the headers of all ranks: GUMBEL_OK, or what is wrong, the same on each. `headers` lie
 * `stride` bytes apart. */
gumbel_status ranks_compare_headers(const void *headers, size_t stride, int32_t ranks, gumbel_error *error);

#endif
