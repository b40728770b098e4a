/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel: screens, quantized copies of an LM head that halve the bytes a draw reads.
 *
 * A screen is a copy of the weights of an LM head, quantized to one byte each, with a certificate:
 * bounds of the quantization error. From a screen and a hidden state a draw computes exact integer
 * sums, and from these a lower and an upper bound of every logit, between which the float32 logit
 * of the full product lies. The draw then computes the full product only for tokens that may still
 * win, a few of some 150,000. Token, score and status are therefore those of the draw without a
 * screen, bit for bit, and the draw reads half the bytes of a bfloat16 head.
 *                                                                    [docs/maths.md, section 14]
 *
 * Certificates. The weights of a column are rounded behind a random offset, the column's dither.
 * The quantization errors of a row are then independent random numbers, whatever the weights are,
 * and their sum is far smaller than the worst case.
 *
 *   GUMBEL_SCREEN_PROBABLE   the default: a bound of some logit of a draw fails with a chance below
 *                            2^-64, for V <= 262,144. With 10^9 draws a second, this happens once
 *                            in 580 years on average. The bounds are about six times tighter at
 *                            D = 4096 than certain ones.
 *   GUMBEL_SCREEN_CERTAIN    no bound ever fails
 *
 * The chance is over the random dither. The bound of 2^-64 holds for hidden states that do not
 * depend on the dither, as those of a model do: weights, prompts and drawn tokens are the same for
 * any dither. Somebody who knows the dither can search for prompts or hidden states for which a
 * bound fails. Keep the bytes of a screen secret from those who choose prompts, adapters or hidden
 * states, and do not publish them with open weights. A seed is for tests, and for files that must
 * be reproducible; the chance then holds if the seed is random and nothing else uses it.
 *
 * Formats. Both take the same memory, and give the same tokens.
 *
 *   GUMBEL_SCREEN_BYTES      the default: draws read one byte for each weight
 *   GUMBEL_SCREEN_NIBBLES    the upper and the lower four bits of each byte are stored apart. A
 *                            draw without truncation reads the upper bits of all weights, a
 *                            quarter of the bytes of a bfloat16 head. Their bounds are 16 times
 *                            wider; for tokens that may win by these it reads the lower bits, too.
 *                            On a CPU, draws with truncation, with certain bounds, or of more than
 *                            D / 32 rows and samples read all bits, and need up to 40% more time
 *                            than with bytes. On CUDA, draws with truncation, a mask or several
 *                            samples read all bits, also those of more than 32 rows, or 16 if D is
 *                            below 4096; they take as long as with bytes at up to 32 rows, and up
 *                            to 26% more time at 64. Certain bounds are not supported there.
 *
 * gumbel_screen.format repeats the format for CUDA, whose host does not read the screen. If it is
 * not that of the screen, CUDA calls take the full pass.
 *
 * Example: make a screen once, then draw with it.
 *
 *     gumbel_screen screen = {.format = GUMBEL_SCREEN_BYTES};
 *     check(gumbel_screen_size(device, &head.weight, &screen.bytes, &error));
 *     screen.data = aligned_alloc(64, (screen.bytes + 63) / 64 * 64);
 *     check(gumbel_screen_prepare(device, NULL, &head.weight, NULL, &screen, &error));
 *     head.screen = screen; // gumbel_sample() of this head uses the screen whenever it can
 *     check(gumbel_sample(device, NULL, &head, &how, &out, workspace, size, &error));
 *
 * Calls that may use a screen
 *
 *   property     CPU                               CUDA, capability 9.0 (Hopper)
 *   dtypes       any                               bfloat16 or float16
 *   draws        greedy, seeded, samples,          greedy, seeded, samples; given noise only with
 *                given noise                       truncation
 *   transforms   all                               mask and allowed; with truncation and a scale of
 *                                                  1 also penalties of a history
 *   head         scale, soft-cap, bias, shards     positive scale; shards with a first_token that
 *                drawn alone                       is a multiple of 64
 *   truncation   min_p, top_k, top_p, any order    top_k or min_p or both, and top_p of their
 *                                                  survivors, in any such order
 *   outputs      tokens, scores, status; if all    tokens, scores, status; with truncation also
 *                rows have top_k or min_p, and     processed log-probabilities, lse, ranks, kept,
 *                top_p applies to their survivors: kept_ids and top_ids
 *                also processed log-probabilities,
 *                lse, ranks, kept, kept_ids and
 *                top_ids
 *   drafts       GUMBEL_RULE_COUPLED               GUMBEL_RULE_COUPLED
 *
 * Other GPUs of capability 8.0 or later draw with screens of bytes alone, without truncation and
 * with at most 32 draws (rows times samples), from bfloat16 or float16 heads whose D is a multiple
 * of 8; masks and allowed are supported.
 *
 * All other calls take the full pass, as if there were no screen: for example, a call for
 * log-probabilities without truncation, for summaries, or with given tokens. A call of the table
 * also takes the full pass if the screen is not known to be faster, for example if the batch is
 * large. On CUDA the limits are those of probable bounds; with certain bounds, truncated rows may
 * be slower than by the full pass if D or the batch is large.
 * gumbel_explain() reports whether a call uses the screen; if it does not, the text names the
 * feature that the screen does not support, or the limit that the call exceeds. The limits depend
 * on the device and may change between versions; tokens never depend on them.
 *
 * Fallback rows. On a CPU a row takes the full pass if it has too many candidates, if the bounds do
 * not determine its truncation, or if its logits are not finite. On CUDA the whole call takes the
 * full pass if one row is such a row, or a truncated row
 *   - with a top_k, or num_top, above 100;
 *   - without top_k and min_p;
 *   - that is greedy, if processed log-probabilities or kept are requested;
 *   - of which min_p may keep more than 512 tokens by the bounds;
 *   - with penalties that raise logits.
 * The host does not wait, so gumbel_explain() cannot report this.
 *
 * Stale weights. The weights must not change while their screen is used. If they change, by an
 * update in place or by NaN from a training step, the screen is stale. A draw with a stale screen
 * has these properties:
 *
 *   - Every call ends, and reads and writes only its own memory.
 *   - Each row has a token of the vocabulary, or token -1 and a status other than GUMBEL_ROW_OK.
 *   - The token, its score and the status may be wrong for the old and for the new weights. Not
 *     every stale row can be detected: a call scores only the few tokens that could win by the old
 *     weights.
 *   - On a CPU, a row with a NaN score, or with a score above its token's bound, takes the full
 *     pass, and has the token and the status of the current weights. On CUDA, a row with a NaN
 *     score has GUMBEL_ROW_NAN. If all weights are NaN, every row therefore reports it.
 *
 * gumbel_screen_verify() finds every stale row of weights. gumbel_screen_prepare() makes the screen
 * again, and may reuse its memory. If the bytes of the screen itself change, results
 * are undefined; calls check only the screen's header.
 *
 * The sections of gumbel.h on memory, streams, threads, errors and structs apply here, too.
 */
#ifndef GUMBEL_SCREEN_H
#define GUMBEL_SCREEN_H

#ifndef GUMBEL_UNSTABLE
#error "gumbel/screen.h is unstable (see gumbel.h): define GUMBEL_UNSTABLE to use it"
#endif

#include <gumbel/gumbel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gumbel_screen_certificate {
    GUMBEL_SCREEN_PROBABLE = 0,
    GUMBEL_SCREEN_CERTAIN = 1,
} gumbel_screen_certificate;

typedef enum gumbel_screen_format {
    GUMBEL_SCREEN_BYTES = 0,
    GUMBEL_SCREEN_NIBBLES = 1,
} gumbel_screen_format;

/* How to make a screen. Set struct_size to sizeof(gumbel_screen_options). */
typedef struct gumbel_screen_options {
    size_t struct_size;
    int32_t certificate; /* a gumbel_screen_certificate */
    int32_t format;      /* a gumbel_screen_format; on CUDA also gumbel_screen.format */
    /* The seed of the dither, for tests and reproducible files; NULL: dither from the operating
     * system's entropy. */
    const uint64_t *seed;
} gumbel_screen_options;

/* gumbel_screen_size(): the size of a screen in bytes: about V * (D + 4), with D rounded up to 64.
 *  device     the device whose calls use the screen. On CUDA, D and V are rounded up to 128.
 *  weight     [V, D] as in gumbel_head, V >= 1, 1 <= D <= 65535; data pointers are not read
 *  threads    re-entrant
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED.              since 0.2 */
GUMBEL_CALL gumbel_screen_size(const gumbel_device *device, const gumbel_tensor *weight,
                               size_t *bytes, gumbel_error *error);

/* gumbel_screen_prepare(): make the screen of a head, for gumbel_head's field `screen`.
 *  weight     [V, D] as in gumbel_head. Infinities and NaN are allowed; rows that may draw a token
 *             with such weights take the full pass. The weights must not change while the screen is
 *             used ("Stale weights" above); only gumbel_screen_verify() finds every change.
 *  options    NULL: GUMBEL_SCREEN_PROBABLE, GUMBEL_SCREEN_BYTES, and dither from the operating
 *             system
 *  screen     memory of the caller, at least gumbel_screen_size() bytes, aligned to
 *             GUMBEL_WORKSPACE_ALIGNMENT; gumbel_screen_size() bytes are written. They hold no
 *             pointer: they may be copied, and are valid for any device of the same kind. On CUDA
 *             its `format` must be that of the options; on a CPU it is not used.
 *  stream     as in every call that computes; NULL on a CPU. On CUDA the call may be captured: each
 *             replay makes the screen of the current weights, with the dither of the capture.
 *  threads    re-entrant; the device's threads share the work
 *  repeats    With a seed the bytes are the same for every ISA and thread count. Steps, dither,
 *             scales of columns and quantized weights are the same on CUDA.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED; GUMBEL_ERROR_DEVICE if
 *             the operating system has no entropy.                                     since 0.2 */
GUMBEL_CALL gumbel_screen_prepare(gumbel_device *device, void *stream, const gumbel_tensor *weight,
                                  const gumbel_screen_options *options, const gumbel_screen *screen,
                                  gumbel_error *error);

/* gumbel_screen_verify(): check a screen's certificate against the current weights. The check
 *  computes each row's error and size again in float64, by code that gumbel_screen_prepare() does
 *  not use; whether the dither is random is not checked. The check takes a few seconds; use it in
 *  tests, and after weights may have changed.
 *  stream     On CUDA the call waits for the stream, at most 60 seconds, and cannot be captured.
 *  returns    GUMBEL_OK; GUMBEL_ERROR_ARGUMENT, which names the first stale row, or as
 *             gumbel_screen_prepare(); on CUDA also GUMBEL_ERROR_DEVICE.               since 0.2 */
GUMBEL_CALL gumbel_screen_verify(gumbel_device *device, void *stream, const gumbel_tensor *weight,
                                 const gumbel_screen *screen, gumbel_error *error);

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_SCREEN_H */
