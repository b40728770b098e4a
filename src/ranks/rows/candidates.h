/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws from the leading tokens of each shard, on CPUs: the messages that ranks exchange, and a row
 * merged from the messages of all ranks. Exchange 1 sends leading tokens, and summaries of rows
 * without truncation; exchange 2 the masses that some rows require; exchange 3 whole fallback rows.
 */
#ifndef GUMBEL_RANKS_CANDIDATES_H
#define GUMBEL_RANKS_CANDIDATES_H

#include "maths/summary.h"
#include "ranks/rows/leading.h"
#include "ranks/rows/whole_rows.h"

/* A rank's report of a row in exchange 1, beside its tokens. */
typedef struct ranks_row_report {
    uint32_t flags;
    int32_t listed; /* number of tokens in the message */
    int32_t more;   /* 1: the shard has other tokens */
    int32_t finite; /* number of tokens with z above -inf */
} ranks_row_report;

/* A row of exchange 2: the mass of the tokens that top_p or min_p counts. S counts and S logits
 * follow. */
typedef struct ranks_row_masses {
    uint64_t mass[2];
} ranks_row_masses;

typedef struct ranks_candidates {
    ranks_draw *draw;
    ranks_whole_rows rows;
    gumbel_problem whole;            /* the problem that parameters of rows refer to */
    int32_t tokens_max;              /* the largest number of tokens that a rank sends for a row */
    int64_t untruncated;             /* number of rows without truncation */
    size_t bytes;                    /* size of a message of exchange 1 */
    gumbel_summary *summaries, *raw; /* [B, S] and [B] of this rank */
    unsigned char *sent, *received, *rest;
    unsigned char *sent_masses, *received_masses;
    ranks_entry *listed, *sorted, *room; /* [R * tokens_max] */
    ranks_entry *heap;                   /* [tokens_max] */
    int64_t *fallback;                   /* [B] rows of exchange 3 */
    int64_t *mass_rows;                  /* [B] rows of exchange 2 */
    gumbel_summary *row;                 /* [S] scratch of one row */
} ranks_candidates;

/* The arrays of a message of exchange 1. */
typedef struct ranks_message {
    const gumbel_summary *raw;       /* [B] if raw log-normalisers are required */
    const gumbel_summary *summaries; /* [untruncated, S] */
    const ranks_row_report *reports; /* [B] */
    const ranks_token *tokens;       /* [B, tokens_max] */
    const float *logits;             /* [B, tokens_max] if unmodified logits are required */
} ranks_message;

/* Finds the arrays of a message that begins at `at`; returns its size in bytes. */
size_t ranks_carve_message(const ranks_candidates *c, const unsigned char *at, ranks_message *m);

/* Bytes of a row in exchange 2. */
size_t ranks_count_masses_bytes(const ranks_candidates *c);

/* Returns whether truncation applies to row b, and writes the row's rules. */
int ranks_row_is_truncated(const ranks_candidates *c, int64_t b, gumbel_rules *rules);

/* A row, from the messages of all ranks. */
typedef struct ranks_merged_row {
    int64_t b;
    int truncated;
    gumbel_rules rules;
    uint32_t flags;
    int64_t finite;
    ranks_leading leading;
    int32_t kept; /* size of a truncated row's kept set, the first of `leading`; -1: unknown */
    gumbel_summary *best; /* [S] */
    gumbel_row_status status;
    int requires_masses; /* whether the row takes part in exchange 2 */
    float bound;
} ranks_merged_row;

/* A row of exchange 2, from all ranks. */
typedef struct ranks_merged_masses {
    gumbel_wide mass;
    const ranks_candidates *c;
    int64_t place; /* of the row among the rows of exchange 2 */
    int64_t rows;  /* of exchange 2 */
} ranks_merged_masses;

/* Merges row b from all messages. `untruncated` is the number of rows without truncation among rows
 * 0 .. b - 1. */
ranks_merged_row ranks_merge_row(const ranks_candidates *c, int64_t b, int64_t untruncated);

/* Rank r's message about a row in exchange 2. */
const ranks_row_masses *ranks_get_row_masses(const ranks_merged_masses *masses, int32_t rank);

/* Draws a row and writes its outputs. Returns 0 if the leading tokens do not determine the row. */
int ranks_write_row(const ranks_candidates *c, ranks_merged_row *row,
                    const ranks_merged_masses *masses);

#endif
