/* SPDX-License-Identifier: Apache-2.0
 *
 * Headers that ranks compare before they draw. A header holds a digest of each argument, so an
 * error can name the argument in which ranks differ.
 */
#ifndef GUMBEL_RANKS_AGREE_H
#define GUMBEL_RANKS_AGREE_H

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
    int32_t status;    /* of this rank's call before the exchange */
    uint64_t step;     /* number of the group's call */
    int64_t end_token; /* end of the shard's tokens without padding; the shard's first token if it
                        * has none */
    uint64_t digests[RANKS_FIELDS];
    char field[48];    /* the argument at fault, if status is an error */
    char reserved[56]; /* 0 */
} ranks_header;

_Static_assert(sizeof(ranks_header) == 256, "as in dist.h");

/* FNV-1a of `bytes`, starting from `digest`. */
uint64_t ranks_add_digest(uint64_t digest, const void *data, size_t bytes);
#define RANKS_DIGEST_START UINT64_C(0xcbf29ce484222325)

/* A header without digests. */
ranks_header ranks_new_header(uint64_t step);

/* Fills a header's digests from the arguments that are in host memory, for a call whose row
 * parameters are in GPU memory. */
void ranks_digest_host_arguments(ranks_header *header, const gumbel_problem *problem,
                                 const gumbel_output *output);

/* Fills a header's digests from a checked problem and its outputs. */
void ranks_digest_arguments(ranks_header *header, const gumbel_problem *problem,
                            const gumbel_output *output);

/* Compares the headers of all ranks, which are `stride` bytes apart. Returns the same error on each
 * rank. */
gumbel_status ranks_compare_headers(const void *headers, size_t stride, int32_t ranks,
                                    gumbel_error *error);

#endif
