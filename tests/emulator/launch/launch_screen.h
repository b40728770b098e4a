/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernels that prepare screens and draw with them.
 */
#ifndef TESTS_EMULATOR_LAUNCH_SCREEN_H
#define TESTS_EMULATOR_LAUNCH_SCREEN_H

#include "cuda/fused/screen/screen_params.h"
#include "problems.h"

#include <gumbel/screen.h>

#include <vector>

/* Prepares a screen of weights [V, D] on the heap, as cuda_prepare_screen() does, with dither from
 * `seed`. `list_max`: the most candidates of a list. */
void *emulate_prepare_screen(const gumbel_tensor &weight, gumbel_screen_certificate certificate,
                             uint64_t seed, int list_max, uint64_t *random, const char *what,
                             gumbel_screen_format format = GUMBEL_SCREEN_BYTES);

/* Whether verification finds that N + E does not bound the norm of w / s, in a screen whose N
 * bounds the norm of the bytes, and E that of the errors. */
bool finds_norm_fault(uint64_t *random);

/* A random certificate. */
gumbel_screen_certificate choose_certificate(uint64_t *random);

/* Multiplies the steps of half of the rows, by a large first weight. A shift of the wrong sign,
 * which moves the bounds of equal steps alike, then changes their order. */
void enlarge_steps(const gumbel_tensor &weight);

/* Makes hidden states nearly parallel to the dither of a screen, of either direction, so that the
 * shift is as large as certain bounds are wide; their first element is 0. Probable bounds do not
 * hold for them. */
void lean_on_dither(const gumbel_tensor &hidden, const void *screen);

/* The launches of a draw with a screen. */
struct emulated_screen {
    cuda_screen_params params;
    cuda_params full_pass;
    const int32_t *fallback; /* [B], for truncated rows */
    int width_index;         /* in cuda_screen_widths */
    uint64_t *random;
    const char *what;
};

/* Splits the hidden states of `call`, whose screen is call.problem.screen, of screen_format. */
struct emulated_split {
    std::vector<int8_t> planes[2];                                      /* [B][128 * depths]: high,
                                                                         * low */
    std::vector<gumbel_screen_hidden_error> hidden_error, coarse_error; /* [B] */
};
emulated_split emulate_split(const cuda_params &call, uint64_t *random, const char *what);

/* Draws with a screen over `ctas` CTAs, as cuda_run_screen() does, but with shorter rings of
 * stages; the full pass draws if the candidates do not suffice. `call` comes from
 * emulated_launch_of(), with outputs, tag and thresholds; the full pass has the next tag. Returns
 * whether the full pass has drawn. `listed` receives the number of candidates. */
bool emulate_screen(const cuda_params &call, int ctas, uint64_t *random, const char *what,
                    int64_t *listed);

/* Draws as emulate_screen() by mma.sync, as cuda_run_screen_sm80() does, on a GPU with
 * `shared_bytes` of shared memory a multiprocessor. */
bool emulate_screen_sm80(const cuda_params &call, int ctas, int shared_bytes, uint64_t *random,
                         const char *what, int64_t *listed);

/* Truncates rows and draws them from the candidates of a screen. */
void emulate_screen_rows(const cuda_screen_rows &rows, uint64_t *random, const char *what);

/* Both for truncated rows, as cuda_run_screen_truncated() prepares them, without the kernels that
 * serve fallback rows. `rows` receives the logits and states of these rows. Returns whether there
 * are fallback rows. */
bool emulate_truncated_screen(const cuda_params &call, cuda_truncated_params *rows, int ctas,
                              uint64_t *random, const char *what, int64_t *listed);

#endif
