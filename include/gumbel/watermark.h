/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel: watermarks, and their detection.
 *
 * A watermarked token is drawn by the Gumbel-max trick as any other, but its noise is a function of
 * a secret key and of the last h tokens of the text, its context, in place of the request's seed
 * and position. Over random keys a token has exactly the distribution of a draw without a
 * watermark. Whoever has the key can compute the noise of each token again, from the text alone,
 * and find that the tokens had large noise. [docs/maths.md, section 17; Aaronson, 2022]
 *
 * A context that occurred in the text before would repeat its noise, so the token is drawn by the
 * request's seed and position. The first h tokens of a text have no context, and are drawn by them,
 * too: texts of one prompt and key then differ if their seeds do.
 *
 * The noise of a draw is a function of the draw's seed and position (gumbel.h), which are arrays.
 * gumbel_watermark_rows() writes these two arrays, and the draw itself is an ordinary one: fused,
 * truncated, over ranks, of any rung, at the same cost.
 *
 * Example: watermarked decoding of B rows, on the CPU. `recent` holds rings (recent.h) of the text
 * after the prompt; `seeds` and `positions` have B elements; key[2] has 128 random bits.
 *
 *     gumbel_watermark mark = {.struct_size = sizeof mark, .key = key, .key_stride = GUMBEL_SAME};
 *     mark.seed = (gumbel_row_u64){&seed, GUMBEL_SAME};
 *     mark.position = (gumbel_row_u64){&position, GUMBEL_SAME};
 *     gumbel_watermark_draws to = {.struct_size = sizeof to, .seed = seeds, .position = positions};
 *     how.seed = (gumbel_row_u64){seeds, 1};
 *     how.position = (gumbel_row_u64){positions, 1};
 *     while (...) {
 *         check(gumbel_watermark_rows(device, NULL, &mark, &recent, B, &to, &error));
 *         // gumbel_sample() with `how`, then:
 *         check(gumbel_recent_append(device, NULL, &recent, B, NULL, drawn, 1, NULL, &error));
 *         position++;
 *     }
 *
 * Detection, later and elsewhere:
 *
 *     gumbel_detector with = {.struct_size = sizeof with, .key = {key[0], key[1]}};
 *     gumbel_detection found = {.struct_size = sizeof found};
 *     check(gumbel_detect_watermark(&with, text, count, NULL, &found, &error));
 *     // found.p_value: the probability of such a text without the key
 *
 * Row parameters, rings and draws are indexed by slot, as in gumbel.h. CPU and CUDA devices write
 * equal values.
 */
#ifndef GUMBEL_WATERMARK_H
#define GUMBEL_WATERMARK_H

#ifndef GUMBEL_UNSTABLE
#error "gumbel/watermark.h is unstable (see gumbel.h): define GUMBEL_UNSTABLE to use it"
#endif

#include <gumbel/drafts.h>
#include <gumbel/recent.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GUMBEL_CONTEXT_MAX     16                 /* largest number of tokens of a context */
#define GUMBEL_CONTEXT_DEFAULT 4                  /* its default */
#define GUMBEL_DETECT_MAX      (INT64_C(1) << 30) /* largest number of tokens of a detection */

/* ------------------------------------------------------------------------------ generation ---- */

/* Watermarks of rows. `seed` and `position` are the request's own: they draw tokens that are not
 * watermarked.
 *  key         Secret; 128 random bits, for example of getrandom(). The words are the key of a
 *              SipHash-2-4: its bytes in little-endian order.
 *  context     h. With more tokens a text of few words repeats fewer contexts; with fewer tokens
 *              more of an edited text is still detected, as an edited token changes h contexts.
 *  text_start  Number of the ring's first tokens that precede the text, usually its prompt. Only
 *              tokens of the text are contexts. With 0 the whole ring is text.
 *  position    of the token after the ring. At a context that repeats, and in the first h tokens,
 *              the draw has a stream of its own, a function of the key, seed and position.
 * The ring's capacity must be at least the length of the text: a context is new if the ring has
 * forgotten it. On CUDA the host does not read these values; a row whose h is out of range has no
 * watermark. since 0.3; unstable until 1.0 */
typedef struct gumbel_watermark {
    size_t struct_size;
    const uint64_t *key;       /* [B or slots, 2] */
    int64_t key_stride;        /* elements between rows; 0 means 2; GUMBEL_SAME: one key for all */
    gumbel_row_i32 context;    /* 0..GUMBEL_CONTEXT_MAX; the default is GUMBEL_CONTEXT_DEFAULT. 0:
                                * the row has no watermark, and keeps its seed and position */
    gumbel_row_u64 text_start; /* the default is 0 */
    gumbel_row_u64 seed;       /* as in gumbel_sampling */
    gumbel_row_u64 position;   /* as in gumbel_sampling */
    gumbel_slots slots;        /* as in gumbel_sampling; no two rows may have the same slot */
    const int32_t *live_rows;  /* as in gumbel_sampling; nothing is written for other rows */
    const int32_t *drafts;     /* [B] rows of tokens after the ring, `draft_stride` elements apart:
                                * gumbel_watermark_rows() then writes the draw after the first
                                * `num_drafts` of them. Drafters draw their next draft so */
    int64_t draft_stride;      /* >= num_drafts; 0 means num_drafts */
    int32_t num_drafts;        /* 0..GUMBEL_NODES_MAX - 1 */
    int32_t reserved;          /* 0 */
} gumbel_watermark;

/* Where the calls write. The arrays must not overlap each other or inputs. */
typedef struct gumbel_watermark_draws {
    size_t struct_size;
    uint64_t *seed;       /* [B or slots]; pass {seed, 1} as gumbel_sampling.seed */
    uint64_t *position;   /* of rows: [B or slots]; pass {position, 1} as gumbel_sampling.position.
                           * Of nodes: [n]; pass it as gumbel_draft.node_position */
    int32_t *watermarked; /* [B], or [n] for nodes: 1 if the key and the context determine the
                           * noise, else 0; NULL: not written */
} gumbel_watermark_draws;

/* gumbel_watermark_rows(): write the seed and position with which each row's next token is drawn.
 *  recent     the rings, which the call does not change
 *  draws      written on success, unchanged on error. The draw must have S = 1 and domain 0, and a
 *             `first_sample` of 0, unless the detector is given others.
 *  cost       O(capacity) a row: 4 bytes a token of the text are read
 *  graphs     The call may be captured; replays read all arguments in device memory anew.
 *  stream     CUDA: the work is queued; the call neither waits nor allocates.
 *  threads    re-entrant
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT; on CUDA also GUMBEL_ERROR_DEVICE, and
 *             GUMBEL_ERROR_UNSUPPORTED if B >= 2^31.                                   since 0.3 */
GUMBEL_CALL gumbel_watermark_rows(gumbel_device *device, void *stream,
                                  const gumbel_watermark *watermark, const gumbel_recent *recent,
                                  int64_t batch, const gumbel_watermark_draws *draws,
                                  gumbel_error *error);

/* gumbel_watermark_nodes(): write the positions with which gumbel_verify() draws the nodes of a
 *                           draft. The text it emits is that of single steps, whatever is drafted.
 *  watermark  row parameters of R requests; `drafts` must be NULL
 *  recent     rings of R requests, which must include the root; the call does not change them
 *  draft      GUMBEL_RULE_COUPLED; its tokens, offsets, nodes and parents are read
 *  rows       n, rows of hidden states or logits of the verification
 *  draws      `seed` is written for live requests with nodes. The verification takes it as
 *             sampling.seed, and `position` as draft.node_position; sampling.position is the
 *             request's own, which the verification advances.
 *  else       as gumbel_watermark_rows(). A CUDA device does not check the draft; rows of an
 *             invalid request have position 0.                                         since 0.3 */
GUMBEL_CALL gumbel_watermark_nodes(gumbel_device *device, void *stream,
                                   const gumbel_watermark *watermark, const gumbel_recent *recent,
                                   const gumbel_draft *draft, int64_t rows,
                                   const gumbel_watermark_draws *draws, gumbel_error *error);

/* ------------------------------------------------------------------------------- detection ---- */

/* The watermark to search for. */
typedef struct gumbel_detector {
    size_t struct_size;
    uint64_t key[2];
    int32_t context;  /* h, 1..GUMBEL_CONTEXT_MAX; 0 means GUMBEL_CONTEXT_DEFAULT */
    uint32_t sample;  /* the draw's `first_sample` */
    uint32_t domain;  /* the draw's `domain`, < 2^31 */
    int32_t reserved; /* 0 */
    int64_t first;    /* tokens before this one are contexts, but are not scored: a prompt that
                         * was text for the generator. 0..count; the default is 0 */
} gumbel_detector;

/* The result of a detection. A token is scored if h tokens precede it, and if they precede no
 * earlier token of the text: gumbel_watermark_rows() watermarks these tokens. The score is
 * -ln(1 - u), with u = exp(-exp(-g)) for its noise g. In a text that does not depend on the key
 * each score is exponential with mean 1; in a watermarked text it is larger. */
typedef struct gumbel_detection {
    size_t struct_size;
    int64_t scored;   /* n, number of scored tokens */
    double statistic; /* S, the sum of their scores */
    double p_value;   /* P(Gamma(n, 1) >= S), the probability of S or more in a text that does not
                         * depend on the key; 1 if n is 0; 0 below 1e-307 */
    double log10_p;   /* its decimal logarithm, also where p_value is 0 */
} gumbel_detection;

/* gumbel_detect_watermark(): search for a watermark in a text. Requires no device.
 *  tokens     [count] ids in [0, 2^31), in host memory; count in 0..GUMBEL_DETECT_MAX. The text as
 *             it was generated, without the prompt, or any part of it
 *  scores     [count] receives the score of each token, NaN if it is not scored; NULL: not written
 *  detection  set `struct_size`; the other fields are written on success, unchanged on error
 *  keys       Call once for each key that may have been used. With m keys, compare m * p_value with
 *             the level of the test.
 *  accuracy   log10_p is off by less than 1e-9 of max(1, |log10_p|), besides the rounding of g to
 *             float32
 *  cost       computes 3 words of noise a token; in a text with many repeated or many contexts, up
 *             to count comparisons a token. threads: re-entrant
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT.                                        since 0.3 */
GUMBEL_CALL gumbel_detect_watermark(const gumbel_detector *detector, const int32_t *tokens,
                                    int64_t count, double *scores, gumbel_detection *detection,
                                    gumbel_error *error);

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_WATERMARK_H */
