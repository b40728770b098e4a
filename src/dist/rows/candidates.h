/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks say of a draw's rows, and what is known of a row by what all said.
 */
#ifndef GUMBEL_DIST_CANDIDATES_H
#define GUMBEL_DIST_CANDIDATES_H

#include "dist/rows/head.h"
#include "dist/rows/rows.h"
#include "maths/summary.h"

/* What a rank says of a row beside its tokens. */
typedef struct ranks_row_report {
    uint32_t flags;
    int32_t listed, more;
    int32_t finite; /* tokens with a z above -inf */
} ranks_row_report;

/* What a rank says of a row in exchange 2; S numbers of each kind follow. */
typedef struct ranks_row_extra {
    uint64_t mass[2];
} ranks_row_extra;

typedef struct ranks_candidates {
    ranks_draw *draw;
    ranks_whole_rows rows;
    gumbel_problem whole;            /* as rows' parameters see it */
    int32_t most;                    /* tokens that a rank lists of a row */
    int64_t uncut;                   /* rows that nothing cuts */
    size_t bytes;                    /* of exchange 1 */
    gumbel_summary *summaries, *raw; /* [B, S] and [B] of this rank */
    unsigned char *sent, *received, *rest;
    unsigned char *sent_more, *received_more;
    ranks_entry *listed, *sorted, *room; /* [R * most] */
    ranks_entry *heap;                   /* [most] */
    int64_t *left;                      /* [B] rows for exchange 3 */
    int64_t *needy;                     /* [B] rows of exchange 2 */
    gumbel_summary *row;                /* [S] */
} ranks_candidates;

/* Where parts of a rank's ranks_message of exchange 1 lie. */
typedef struct ranks_message {
    const gumbel_summary *raw;       /* [B] where raw logits are weighed */
    const gumbel_summary *summaries; /* [uncut, S] */
    const ranks_row_report *notes;      /* [B] */
    const ranks_token *tokens;        /* [B, most] */
    const float *logits;             /* [B, most] where logits as they are count */
} ranks_message;

/* Find a ranks_message's parts; its bytes. */
size_t ranks_carve_message(const ranks_candidates *c, const unsigned char *at, ranks_message *m);

/* Bytes of a row in exchange 2. */
size_t ranks_extra_bytes(const ranks_candidates *c);

/* Whether rules cut row b, and which. */
int ranks_row_is_truncated(const ranks_candidates *c, int64_t b, gumbel_rules *rules);

/* A row by what all ranks said of it. */
typedef struct ranks_merged_row {
    int64_t b;
    int cut; /* whether rules cut it */
    gumbel_rules rules;
    uint32_t flags;
    int64_t finite;
    ranks_leading head;
    int32_t kept;         /* of the head, where it is cut; -1: unknown */
    gumbel_summary *best; /* [S] */
    gumbel_row_status status;
    int needs; /* whether exchange 2 has something of it */
    float bound;
} ranks_merged_row;

/* What all ranks say in exchange 2: a mass, and of each sample a count and a logit. */
typedef struct ranks_merged_extra {
    gumbel_wide mass;
    const ranks_candidates *c;
    int64_t place; /* among needy rows */
    int64_t needy; /* how many there are */
} ranks_merged_extra;

/* Read row b of all messages; `uncut` is how many rows before it nothing cuts. */
ranks_merged_row ranks_merge_row(const ranks_candidates *c, int64_t b, int64_t uncut);

/* What rank r says of a row in exchange 2. */
const ranks_row_extra *ranks_extra_of(const ranks_merged_extra *known, int32_t rank);

/* Draw and write a row; 0 where its head does not tell it. */
int ranks_write_row(const ranks_candidates *c, ranks_merged_row *row, const ranks_merged_extra *more);

#endif
