/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel: rings of recent tokens, and the token lists that follow from them.
 *
 * A ring holds the last tokens of each row. Rules that forbid or discourage repetition read it:
 * gumbel_make_lists() writes a list of banned tokens and a list of late biases for each row, which
 * gumbel_transforms takes. A ring can also keep a gumbel_history that counts the last tokens only,
 * so that penalties have a window. All memory is the caller's; on CUDA it is device memory, and a
 * CUDA graph can capture a whole decode step: lists, draw, append.
 *
 * Example: DRY and a repetition penalty over the last 64 tokens, on the CPU. `tokens`, `count`,
 * `offsets`, `ids`, `values` and `status` have B rows; `history` is a gumbel_history.
 *
 *     gumbel_recent recent = {.struct_size = sizeof recent, .capacity = 4096};
 *     recent.tokens = tokens, recent.count = count, recent.history = &history;
 *     gumbel_list_rules rules = {.struct_size = sizeof rules};
 *     rules.dry_multiplier = (gumbel_row_f32){&multiplier, GUMBEL_SAME};
 *     gumbel_row_lists lists = {.struct_size = sizeof lists, .capacity = 256};
 *     lists.offsets = offsets, lists.status = status;
 *     lists.late_ids = ids, lists.late_values = values;
 *     gumbel_transforms changes = {.struct_size = sizeof changes, .history = &history};
 *     changes.repetition = (gumbel_row_f32){&repetition, GUMBEL_SAME};
 *     changes.late_bias = (gumbel_token_lists){offsets, ids, values, 0};
 *     changes.list_status = status;
 *     check(gumbel_recent_start(device, NULL, &recent, B, NULL, &prompts, NULL, &error));
 *     while (...) {
 *         check(gumbel_make_lists(device, NULL, &rules, &recent, B, NULL, &lists, &error));
 *         // gumbel_sample() with `changes`, then:
 *         check(gumbel_recent_append(device, NULL, &recent, B, NULL, drawn, 1, NULL, &error));
 *     }
 *
 * Drafts. gumbel_verify() applies the lists of a request to all its rows. Drafted tokens are in no
 * ring, so rows after a draft are drawn by the lists of the tokens before all drafts.
 *
 * Row parameters and rings are indexed by slot, lists and outputs by row, as in gumbel.h. A CPU
 * device and a CUDA device write the same lists.
 */
#ifndef GUMBEL_RECENT_H
#define GUMBEL_RECENT_H

#ifndef GUMBEL_UNSTABLE
#error "gumbel/recent.h is unstable (see gumbel.h): define GUMBEL_UNSTABLE to use it"
#endif

#include <gumbel/gumbel.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GUMBEL_RECENT_MAX (INT64_C(1) << 30) /* largest capacity of a ring */
#define GUMBEL_LIST_MAX   2048               /* largest capacity of a row's list */

/* ---------------------------------------------------------------------------------- rings ---- */

/* The last tokens of rows. All zero means empty rings.
 *  history  receives, as its output, the counts of the last `window` tokens of the ring, prompt
 *           included; the bits of its prompt stay 0. Penalties then apply to these tokens alone, as
 *           llama.cpp's repeat_last_n has it. Only the calls below may change the history.
 *  window   must stay the same from one start of a row to the next. On CUDA the host does not read
 *           it; a value out of range counts as the nearest in range. */
typedef struct gumbel_recent {
    size_t struct_size;
    int64_t capacity; /* tokens that a ring keeps, 1..GUMBEL_RECENT_MAX */
    int32_t *tokens;  /* [B or slots, capacity]; token i of a row, from 0 on, at i % capacity */
    uint64_t *count;  /* [B or slots]; tokens of each row so far, also those no longer kept */
    const gumbel_history *history; /* NULL: none */
    gumbel_row_i32 window;         /* 0..capacity, at most GUMBEL_COUNT_MAX; the default is 64, or
                                    * `capacity` if it is smaller */
} gumbel_recent;

/* gumbel_recent_start(): reset the rings of `batch` rows, and their counts in recent->history, then
 *                        append the tokens of their prompts and outputs.
 *  slots             rows of the rings to reset; NULL means rows 0 to batch - 1. No two rows may
 *                    have the same slot. On CUDA slots out of range are ignored.
 *  prompts, outputs  token lists without values, one a row; NULL: none
 *  returns           GUMBEL_OK, GUMBEL_ERROR_ARGUMENT; on CUDA also GUMBEL_ERROR_DEVICE.
 *                                                                                      since 0.3 */
GUMBEL_CALL gumbel_recent_start(gumbel_device *device, void *stream, const gumbel_recent *recent,
                                int64_t batch, const gumbel_slots *slots,
                                const gumbel_token_lists *prompts,
                                const gumbel_token_lists *outputs, gumbel_error *error);

/* gumbel_recent_append(): append tokens to the rings.
 *  slots    as in gumbel_recent_start()
 *  tokens   [B] rows, `token_stride` elements apart; 0 means 1. Ids below 0 are skipped
 *  counts   [B] tokens to append of each row, from its first on: 0..token_stride; NULL: 1 a row
 *  graphs   The call may be captured; replays read all arguments in device memory anew.
 *  else     as gumbel_recent_start().                                                  since 0.3 */
GUMBEL_CALL gumbel_recent_append(gumbel_device *device, void *stream, const gumbel_recent *recent,
                                 int64_t batch, const gumbel_slots *slots, const int32_t *tokens,
                                 int64_t token_stride, const int32_t *counts, gumbel_error *error);

/* ---------------------------------------------------------------------------------- lists ---- */

/* Sequences of tokens: sequence k is ids[offsets[k]] .. ids[offsets[k + 1] - 1]. Row b has the
 * sequences of_row[b] .. of_row[b + 1] - 1. */
typedef struct gumbel_sequences {
    const int64_t *offsets; /* [count + 1], >= 0, increasing: no sequence is empty; NULL: none */
    const int32_t *ids;     /* in [0, 2^31) */
    int64_t count;          /* number of sequences, >= 0 */
    const int64_t *of_row;  /* [B + 1], non-decreasing, in 0..count; NULL: all rows have all */
    int64_t reserved;       /* 0 */
} gumbel_sequences;

/* The rules of gumbel_make_lists(). h is the row's ring, the oldest token first; a window of n
 * means the last n tokens of h, and all of them for -1.          [docs/maths.md, section 16]
 *
 *  DRY ("don't repeat yourself", as llama.cpp has it). In the window of dry_last_n tokens, let R be
 *    the number of tokens after the last breaker, or of all tokens if there is none. For each token
 *    of the window except the first, let L be the number of tokens directly before it that equal
 *    the last tokens of h in order, at most R. If L is dry_allowed_length or more, the token gets a
 *    late bias of
 *        -dry_multiplier * dry_base^(L - dry_allowed_length),
 *    with the largest L if the token occurs several times; the power is limited to the range of
 *    float32. Tokens that are a breaker of length 1 get none. The last breaker is the one that
 *    begins last; of several that begin at one token, the longest counts. A row whose multiplier is
 *    0, or whose base is below 1, has no DRY.
 *  N-grams. No n-gram of ngram_size tokens occurs twice in the window: a token that follows the
 *    last n - 1 tokens of h anywhere in the window is banned, unless ngram_keep lists it. The whole
 *    n-gram must be in the window.
 *  Bad words. The last token of a sequence is banned if h ends in the tokens before it; a sequence
 *    of one token is always banned.
 *  Minimum length. The tokens of stop_tokens are banned while position < min_position.
 *
 * On CUDA the host does not read these values; a value out of range turns its rule off for that
 * row. Ids of the ring that are below 0 or INT32_MAX are never listed.
 * since 0.3; unstable until 1.0 */
typedef struct gumbel_list_rules {
    size_t struct_size;
    gumbel_row_f32 dry_multiplier;     /* finite, >= 0; the default is 0, off */
    gumbel_row_f32 dry_base;           /* finite, >= 0; off below 1; the default is 1.75 */
    gumbel_row_i32 dry_allowed_length; /* >= 0; the default is 2 */
    gumbel_row_i32 dry_last_n;         /* >= -1; 0 is off; the default is -1 */
    gumbel_sequences dry_breakers;     /* sorted by the first id, within the sequences of a row */
    gumbel_row_i32 ngram_size;         /* n >= 0; the default is 0, off */
    gumbel_row_i32 ngram_window;       /* >= -1; 0 is off; the default is -1 */
    gumbel_token_lists ngram_keep;     /* without values: tokens that n-grams do not ban */
    gumbel_sequences bad_words;
    gumbel_row_u64 position;        /* as in gumbel_sampling; the default is 0 */
    gumbel_row_u64 min_position;    /* the default is 0, off */
    gumbel_token_lists stop_tokens; /* without values */
} gumbel_list_rules;

/* Where gumbel_make_lists() writes. In each list the ids are distinct and ascending; unused places
 * hold INT32_MAX, which no vocabulary below 2^31 tokens has, and 0. For gumbel_transforms, the
 * lists are {offsets, banned} and {offsets, late_ids, late_values}. */
typedef struct gumbel_row_lists {
    size_t struct_size;
    int64_t capacity;   /* places of a row in each list, 1..GUMBEL_LIST_MAX */
    int64_t *offsets;   /* [B + 1]; receives b * capacity */
    int32_t *banned;    /* [B, capacity]; may be NULL if the rules are DRY alone */
    int32_t *late_ids;  /* [B, capacity]; may be NULL without dry_multiplier */
    float *late_values; /* [B, capacity], with late_ids */
    int32_t *status;    /* [B] a gumbel_row_status: OK; LISTS, if a list of the row has more than
                         * `capacity` ids; on CUDA also SLOT. If it is not OK, both lists are
                         * empty. Pass this array as gumbel_transforms.list_status */
} gumbel_row_lists;

/* gumbel_make_lists(): write the lists of each row for the next draw.
 *  recent   The rings, which the call does not change. NULL is allowed if the only rule is
 *           min_position.
 *  slots    as in gumbel_sampling
 *  lists    written in full on success, unchanged on error
 *  graphs   The call may be captured; replays read all arguments in device memory anew.
 *  stream   CUDA: the work is queued; the call neither waits nor allocates.
 *  threads  re-entrant
 *  returns  GUMBEL_OK, GUMBEL_ERROR_ARGUMENT; on CUDA also GUMBEL_ERROR_DEVICE, and
 *           GUMBEL_ERROR_UNSUPPORTED if B >= 2^31.                                     since 0.3 */
GUMBEL_CALL gumbel_make_lists(gumbel_device *device, void *stream, const gumbel_list_rules *rules,
                              const gumbel_recent *recent, int64_t batch, const gumbel_slots *slots,
                              const gumbel_row_lists *lists, gumbel_error *error);

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_RECENT_H */
