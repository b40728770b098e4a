/* SPDX-License-Identifier: Apache-2.0
 *
 * The workspace and parameters of an emulated draw with a screen.
 */
#ifndef TESTS_EMULATOR_SCREEN_ARRAYS_H
#define TESTS_EMULATOR_SCREEN_ARRAYS_H

#include "launch_screen.h"

extern "C" {
#include "guard_pages.h"
#include "hostile.h"
}

/* The workspace of a call; each array ends at a guard page. */
class fenced_arrays
{
    std::vector<guarded_buffer> buffers;

  public:
    /* Allocates `count` elements, 64-byte aligned and filled by hostile_fill(). */
    template <class T> void allocate(T *&array, size_t count)
    {
        const size_t bytes = (count * sizeof *array + 63) / 64 * 64;
        buffers.push_back(make_guarded_buffer(NULL, bytes, 0, 1));
        hostile_fill(buffers.back().data, bytes);
        array = (T *)buffers.back().data;
    }
    ~fenced_arrays()
    {
        for (guarded_buffer &array : buffers)
            free_guarded_buffer(&array);
    }
};

/* Prepares the parameters of a draw with a screen, with arrays of its own, as
 * cuda_get_screen_params() does. */
static inline void prepare_emulated_screen(emulated_screen &launch, fenced_arrays &arrays,
                                           const cuda_params &call)
{
    const gumbel_problem &q = call.problem;
    const char *screen = (const char *)q.screen;
    gumbel_screen_offsets offsets;
    cuda_screen_params &s = launch.params;
    const gumbel_screen_layout layout = cuda_screen_layout_of(q.screen_format);
    gumbel_screen_find_offsets_as(layout, q.vocab, q.hidden_size, &offsets);
    s.draws = (int32_t)cuda_screen_draws(&q);
    while (cuda_screen_widths[launch.width_index] < 2 * s.draws)
        launch.width_index++;
    s.call = call;
    s.header = (const gumbel_screen_header *)screen;
    s.bounds = (const gumbel_screen_block *)(screen + offsets.bounds);
    s.steps = (const float *)(screen + offsets.steps);
    s.dither = (const int32_t *)(screen + offsets.dither);
    s.copy = (const int8_t *)(screen + offsets.copy);
    s.depths = (int32_t)(offsets.columns / CUDA_SCREEN_TILE);
    if (gumbel_screen_is_nested(layout)) {
        s.low_nibbles = s.copy + CUDA_SCREEN_HIGH_BYTES(offsets.blocks, s.depths);
        s.low_nibbles_norm = gumbel_screen_bound_low_nibbles(q.hidden_size);
    }
    s.width = cuda_screen_widths[launch.width_index];
    s.gamma = CUDA_SCREEN_GAMMA(q.hidden_size);
    s.listed_stride = q.vocab;
    arrays.allocate(s.planes, (size_t)(s.depths * s.width * CUDA_SCREEN_TILE));
    arrays.allocate(s.hidden_errors, (size_t)s.width);
    arrays.allocate(s.coarse_errors, (size_t)s.width);
    arrays.allocate(s.state, 1);
    arrays.allocate(s.entries, CUDA_SCREEN_GROUPS * CUDA_SCREEN_GROUP_CANDIDATES_MAX);
    arrays.allocate(s.coarse_entries, CUDA_SCREEN_GROUPS * CUDA_SCREEN_GROUP_COARSE);
    if (s.draws > q.batch)
        arrays.allocate(s.spread_hidden, (size_t)(s.draws * q.hidden_size));
    arrays.allocate(s.maxima, (size_t)(s.draws * (q.vocab / CUDA_SCREEN_TILE + 1)));
    arrays.allocate(s.listed, (size_t)(s.draws * s.listed_stride));
    arrays.allocate(s.exact, (size_t)s.draws * CUDA_SCREEN_EXACT_MAX);
    s.call.tiles = (int)((q.end_token - q.first_token + CUDA_SCREEN_TILE - 1) / CUDA_SCREEN_TILE);
}

#endif
