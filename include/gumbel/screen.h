/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel: screens, by which a draw reads half of a head.
 *
 * A screen is a copy of the weights of an LM head, rounded to a byte each, with a certificate: how
 * far the bytes of each 64 rows are off. From it and a hidden state a draw computes, by exact sums
 * of integers, an interval for every logit that provably holds the float32 logit of the full
 * product. What can still win is then scored by that product, a few rows of some 150,000. So the
 * token, its score and its status are those of the draw without a screen, bit by bit, while a
 * bfloat16 head is read at half the bytes.                           [docs/maths.md, section 14]
 *
 * What a screen serves: tokens, scores and statuses of greedy and seeded draws, samples, given
 * noise, masks, allowed and banned tokens, biases, penalties, soft-cap, scale, head bias, shards
 * that are drawn alone, truncation by min_p, top_k and top_p in every order, and drafts under
 * GUMBEL_RULE_COUPLED. Every other call (log-probabilities, ranks, kept counts, lists of tokens,
 * summaries, given tokens) takes the full pass as if there were no screen, and so do single rows
 * whose candidates are too many, whose cut the bounds do not tell or whose logits are not finite.
 * gumbel_explain() tells which way a call goes.
 *
 * On CUDA a screen serves draws without penalties, biases or banned tokens, with masks and allowed
 * tokens or without, on GPUs of capability 9.0 (Hopper): tokens, scores and statuses of up to 64
 * rows and samples of them in all, greedy or seeded, with bfloat16 or float16 weights and hidden
 * states. Cut are rows of a top_k of 1 to 64, with min_p and with a top_p of what it leaves, in any
 * order and with any samples of up to 32 rows; of these also log-probabilities, ranks, kept counts
 * and the num_top most likely. Where it is not known to be faster, and for all else, a screen is
 * left alone. A call with a row that it does not tell, as one of a larger top_k or of none, has the
 * full pass made as a whole, which the host does not wait for.
 *
 * Stale weights. The weights must not change while their screen is used. If they do, by an update
 * in place or by NaN from a training step, the screen is stale, and what it gives is:
 *
 *   - Every call ends. It reads and writes its own memory alone.
 *   - Each row has tokens of the vocabulary, or token -1 and a status other than GUMBEL_ROW_OK.
 *   - The token, its score and the status may be those of no weights, old or new. Not every row
 *     with stale weights can be told from others: a call scores only the few tokens that could win
 *     by the old weights.
 *   - On a CPU, a row with a score that is NaN, or above the bound of its token, takes the full
 *     pass and has the token and the status of the weights as they are. On CUDA, a row with such a
 *     NaN has GUMBEL_ROW_NAN. So a head that is NaN throughout is reported for every row.
 *
 * gumbel_screen_verify() finds every stale row of weights. gumbel_screen_prepare() makes the screen
 * anew, in the same memory if the caller likes. This promise does not extend to the bytes of a
 * screen: if they change, results are undefined. Only its header is checked.
 *
 * What gumbel.h says of memory, strides, threads, errors and structs holds here, too.
 */
#ifndef GUMBEL_SCREEN_H
#define GUMBEL_SCREEN_H

#include <gumbel/gumbel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* gumbel_screen_size(): bytes of a screen: about V * (D + 4), with D rounded up to 64.
 *  device     whose calls will use it. On CUDA D is rounded up to 128, V too.
 *  weight     [V, D] as in gumbel_head, V >= 1, 1 <= D <= 65535; data are not followed
 *  threads    re-entrant.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED.              since 0.2 */
GUMBEL_CALL gumbel_screen_size(const gumbel_device *device, const gumbel_tensor *weight,
                               size_t *bytes, gumbel_error *error);

/* gumbel_screen_prepare(): make the screen of a head, for gumbel_head's field `screen`.
 *  weight     [V, D] as in gumbel_head. What is not finite is allowed: rows that may draw it take
 *             the full pass. The weights must not change while the screen is used ("Stale
 *             weights" above); only gumbel_screen_verify() finds every change.
 *  screen     `bytes` of the caller's memory, at least gumbel_screen_size(), at a multiple of
 *             GUMBEL_WORKSPACE_ALIGNMENT; written in full. It holds no pointer: it may be copied,
 *             and serves any device of the same kind.
 *  stream     as in every call that computes; NULL on a CPU
 *  threads    split over the device's threads; re-entrant.
 *  repeats    the same bytes for every ISA and thread count.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED.              since 0.2 */
GUMBEL_CALL gumbel_screen_prepare(gumbel_device *device, void *stream, const gumbel_tensor *weight,
                                  void *screen, size_t bytes, gumbel_error *error);

/* gumbel_screen_verify(): whether a screen's certificate holds of the weights as they are: each
 *  row's error and size are computed again, in float64, by other code than the one that made them.
 *  A few seconds; for tests, and after weights may have changed. On CUDA it waits for the stream,
 *  60 seconds at most, and is not for capture.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT with the first row at fault, or as above; on CUDA
 *             GUMBEL_ERROR_DEVICE.
 *                                                                                      since 0.2 */
GUMBEL_CALL gumbel_screen_verify(gumbel_device *device, void *stream, const gumbel_tensor *weight,
                                 const void *screen, gumbel_error *error);

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_SCREEN_H */
