/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks say of a draw's rows, and what is known of a row by what all said.
 */
#ifndef GUMBEL_RANKS_CANDIDATES_H
#define GUMBEL_RANKS_CANDIDATES_H

#include "ranks/rows/head.h"
#include "ranks/rows/rows.h"
#include "maths/summary.h"

/* What a rank says of a row beside its tokens. */
typedef struct dist_row_note {
    uint32_t flags;
    int32_t listed, more;
    int32_t finite; /* tokens with a z above -inf */
} dist_row_note;

/* What a rank says of a row in exchange 2; S numbers of each kind follow. */
typedef struct dist_row_more {
    uint64_t mass[2];
} dist_row_more;

typedef struct dist_candidates {
    dist_draw *draw;
    dist_rows rows;
    gumbel_problem whole;            /* as rows' parameters see it */
    int32_t most;                    /* tokens that a rank lists of a row */
    int64_t uncut;                   /* rows that nothing cuts */
    size_t bytes;                    /* of exchange 1 */
    gumbel_summary *summaries, *raw; /* [B, S] and [B] of this rank */
    unsigned char *sent, *received, *rest;
    unsigned char *sent_more, *received_more;
    dist_entry *listed, *sorted, *room; /* [R * most] */
    dist_entry *heap;                   /* [most] */
    int64_t *left;                      /* [B] rows for exchange 3 */
    int64_t *needy;                     /* [B] rows of exchange 2 */
    gumbel_summary *row;                /* [S] */
} dist_candidates;

/* Where parts of a rank's dist_message of exchange 1 lie. */
typedef struct dist_message {
    const gumbel_summary *raw;       /* [B] where raw logits are weighed */
    const gumbel_summary *summaries; /* [uncut, S] */
    const dist_row_note *notes;      /* [B] */
    const dist_token *tokens;        /* [B, most] */
    const float *logits;             /* [B, most] where logits as they are count */
} dist_message;

/* Find a dist_message's parts; its bytes. */
size_t dist_message_of(const dist_candidates *c, const unsigned char *at, dist_message *m);

/* Bytes of a row in exchange 2. */
size_t dist_more_bytes(const dist_candidates *c);

/* Whether rules cut row b, and which. */
int dist_row_is_cut(const dist_candidates *c, int64_t b, gumbel_rules *rules);

/* A row by what all ranks said of it. */
typedef struct dist_known_row {
    int64_t b;
    int cut; /* whether rules cut it */
    gumbel_rules rules;
    uint32_t flags;
    int64_t finite;
    dist_head head;
    int32_t kept;         /* of the head, where it is cut; -1: unknown */
    gumbel_summary *best; /* [S] */
    gumbel_row_status status;
    int needs; /* whether exchange 2 has something of it */
    float bound;
} dist_known_row;

/* What all ranks say in exchange 2: a mass, and of each sample a count and a logit. */
typedef struct dist_known_more {
    gumbel_wide mass;
    const dist_candidates *c;
    int64_t place; /* among needy rows */
    int64_t needy; /* how many there are */
} dist_known_more;

/* Read row b of all messages; `uncut` is how many rows before it nothing cuts. */
dist_known_row dist_read_row(const dist_candidates *c, int64_t b, int64_t uncut);

/* What rank r says of a row in exchange 2. */
const dist_row_more *dist_more_of(const dist_known_more *known, int32_t rank);

/* Draw and write a row; 0 where its head does not tell it. */
int dist_write_row(const dist_candidates *c, dist_known_row *row, const dist_known_more *more);

#endif
