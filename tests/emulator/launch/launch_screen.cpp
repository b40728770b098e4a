// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics.
#include "ptx_emulated.h"
#include "wgmma_emulated.h"

#include "screen_ptx_emulated.h"

extern "C" {
#include "maths/screen_bound.h"
}

#include "cuda/fused/hopper/fused_fallback_sm90.cu"
#undef KERNEL
#undef KERNELS
#include "cuda/fused/screen/screen_draw.cu"
#undef KERNEL
#undef KERNELS
#include "cuda/fused/screen/screen_make.cu"
#include "cuda/fused/screen/screen_score.cu"

#include "ctas.h"
#include "launch_screen.h"

extern "C" {
#include "guard_pages.h"
#include "hostile.h"
#include "outcome.h"
}

#include <stdlib.h>

#include <algorithm>
#include <vector>

namespace
{

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

template <void (*kernel)(cuda_screen_build)> void build_body(const void *argument)
{
    kernel(*(const cuda_screen_build *)argument);
}

void split_body(const void *argument)
{
    const emulated_screen &launch = *(const emulated_screen *)argument;
    switch (cuda_screen_case_of(&launch.params.call.problem)) {
    case CUDA_SCREEN_PLAIN:
        return gumbel_split_rows({launch.params});
    case CUDA_SCREEN_TRUNCATED:
        return gumbel_split_rows_truncated({launch.params});
    default:
        return gumbel_split_rows_any({launch.params});
    }
}

template <cuda_screen_case kind> using draw_kernel = void (*)(screen_call<kind>);

void draw_body(const void *argument)
{
    static const draw_kernel<CUDA_SCREEN_PLAIN> plain[CUDA_SCREEN_WIDTHS] = {
        gumbel_screen_rows_8, gumbel_screen_rows_16, gumbel_screen_rows_32, gumbel_screen_rows_64,
        gumbel_screen_rows_128};
    static const draw_kernel<CUDA_SCREEN_ANY> any[CUDA_SCREEN_WIDTHS] = {
        gumbel_screen_rows_8_any, gumbel_screen_rows_16_any, gumbel_screen_rows_32_any,
        gumbel_screen_rows_64_any, gumbel_screen_rows_128_any};
    static const draw_kernel<CUDA_SCREEN_TRUNCATED> truncated[CUDA_SCREEN_WIDTHS] = {
        gumbel_screen_rows_8_truncated, gumbel_screen_rows_16_truncated,
        gumbel_screen_rows_32_truncated, gumbel_screen_rows_64_truncated,
        gumbel_screen_rows_128_truncated};
    const emulated_screen &launch = *(const emulated_screen *)argument;
    switch (cuda_screen_case_of(&launch.params.call.problem)) {
    case CUDA_SCREEN_PLAIN:
        return plain[launch.width_index]({launch.params});
    case CUDA_SCREEN_TRUNCATED:
        return truncated[launch.width_index]({launch.params});
    default:
        return any[launch.width_index]({launch.params});
    }
}

void score_body(const void *argument)
{
    const emulated_screen &launch = *(const emulated_screen *)argument;
    const bool half = launch.params.call.problem.weight.dtype == GUMBEL_FLOAT16;
    if (cuda_screen_case_of(&launch.params.call.problem) == CUDA_SCREEN_TRUNCATED)
        half ? gumbel_score_rows_f16_truncated({launch.params})
             : gumbel_score_rows_bf16_truncated({launch.params});
    else
        half ? gumbel_score_rows_f16({launch.params}) : gumbel_score_rows_bf16({launch.params});
}

#define FULL_PASS_KERNELS(dtype)                                                                   \
    {                                                                                              \
        gumbel_fused_fallback_##dtype##_8, gumbel_fused_fallback_##dtype##_16,                     \
            gumbel_fused_fallback_##dtype##_32, gumbel_fused_fallback_##dtype##_64                 \
    }

CUtensorMap make_tensor_map(const gumbel_tensor &t, int box)
{
    return {(const uint16_t *)t.data, t.rows, t.cols, t.stride, box};
}

void full_pass_body(const void *argument)
{
    static void (*const kernels[2][CUDA_SM90_WIDTHS])(sm90_spread_call, CUtensorMap, CUtensorMap,
                                                      const uint32_t *) = {FULL_PASS_KERNELS(bf16),
                                                                           FULL_PASS_KERNELS(f16)};
    const emulated_screen &launch = *(const emulated_screen *)argument;
    const gumbel_problem &q = launch.full_pass.problem;
    const int width_index = cuda_sm90_width_for(launch.params.draws);
    const gumbel_tensor spread = {.data = launch.params.spread_hidden,
                                  .dtype = q.hidden.dtype,
                                  .rows = launch.params.draws,
                                  .cols = q.hidden_size,
                                  .stride = q.hidden_size};
    kernels[q.weight.dtype == GUMBEL_FLOAT16][width_index](
        {{launch.full_pass}}, make_tensor_map(q.weight, CUDA_SM90_TILE),
        make_tensor_map(launch.params.spread_hidden ? spread : q.hidden,
                        cuda_sm90_widths[width_index]),
        &launch.params.state->again);
}

#define STORE_KERNELS(dtype)                                                                       \
    {                                                                                              \
        gumbel_store_fallback_##dtype##_8, gumbel_store_fallback_##dtype##_16,                     \
            gumbel_store_fallback_##dtype##_32, gumbel_store_fallback_##dtype##_64                 \
    }

void store_body(const void *argument)
{
    static void (*const kernels[2][CUDA_SM90_WIDTHS])(sm90_call<CUDA_SM90_STORED>, CUtensorMap,
                                                      CUtensorMap, const int32_t *) = {
        STORE_KERNELS(bf16), STORE_KERNELS(f16)};
    const emulated_screen &launch = *(const emulated_screen *)argument;
    const gumbel_problem &q = launch.full_pass.problem;
    const int width_index = cuda_sm90_width_for(q.batch);
    kernels[q.weight.dtype == GUMBEL_FLOAT16][width_index](
        {{launch.full_pass}}, make_tensor_map(q.weight, CUDA_SM90_TILE),
        make_tensor_map(q.hidden, cuda_sm90_widths[width_index]), launch.fallback);
}

} // namespace

void *emulate_prepare_screen(const gumbel_tensor &weight, int list_max, uint64_t *random,
                             const char *what)
{
    gumbel_screen_offsets offsets;
    if (!gumbel_screen_find_offsets_as(GUMBEL_SCREEN_LAYOUT_TILES, weight.rows, weight.cols,
                                       &offsets))
        die("%s: a screen does not support the weights", what);
    char *screen = (char *)poisoned_workspace(offsets.bytes);
    cuda_screen_build build = {};
    build.weight = weight;
    build.initial_header.magic = GUMBEL_SCREEN_MAGIC;
    build.initial_header.version = GUMBEL_SCREEN_VERSION;
    build.initial_header.layout = GUMBEL_SCREEN_LAYOUT_TILES;
    build.initial_header.rows = weight.rows;
    build.initial_header.columns = weight.cols;
    build.initial_header.dtype = (uint32_t)weight.dtype;
    build.initial_header.list_max = list_max;
    build.header = (gumbel_screen_header *)screen;
    build.bounds = (gumbel_screen_block *)(screen + offsets.bounds);
    build.steps = (float *)(screen + offsets.steps);
    build.copy = (int8_t *)(screen + offsets.copy);
    build.depths = (int32_t)(offsets.columns / CUDA_SCREEN_TILE);
    run_ctas(build_body<gumbel_begin_screen>, &build, {1, 1, 32, 0, memories}, random, what);
    run_ctas(build_body<gumbel_make_screen>, &build,
             {offsets.blocks, 1, CUDA_SCREEN_MAKE_THREADS, CUDA_SCREEN_MAKE_BYTES, memories},
             random, what);
    run_ctas(build_body<gumbel_seal_screen>, &build, {1, 1, 32, 0, memories}, random, what);
    /* Verification passes, and fails if a bound is halved. */
    unsigned long long fault = CUDA_SCREEN_HOLDS;
    build.fault = &fault;
    const cta_shape verify_shape = {offsets.blocks, 1, CUDA_SCREEN_MAKE_THREADS, 0, memories};
    run_ctas(build_body<gumbel_verify_screen>, &build, verify_shape, random, what);
    if (fault != CUDA_SCREEN_HOLDS)
        die("%s: the screen is wrong for row %llu", what, fault);
    const float size = build.bounds->size;
    build.bounds->size *= 0.5f;
    run_ctas(build_body<gumbel_verify_screen>, &build, verify_shape, random, what);
    if (size > 0 && fault >= GUMBEL_BLOCK)
        die("%s: verification passes with half of a bound", what);
    build.bounds->size = size;
    return screen;
}

namespace
{

/* Runs the launches that split rows, filter tokens and compute candidates' scores. */
void find_candidates(emulated_screen &launch, fenced_arrays &arrays, const cuda_params &call,
                     int ctas, uint64_t *random, const char *what)
{
    const gumbel_problem &q = call.problem;
    const char *screen = (const char *)q.screen;
    gumbel_screen_offsets offsets;
    cuda_screen_params &s = launch.params;
    gumbel_screen_find_offsets_as(GUMBEL_SCREEN_LAYOUT_TILES, q.vocab, q.hidden_size, &offsets);
    s.draws = (int32_t)cuda_screen_draws(&q);
    while (cuda_screen_widths[launch.width_index] < 2 * s.draws)
        launch.width_index++;
    s.call = call;
    s.header = (const gumbel_screen_header *)screen;
    s.bounds = (const gumbel_screen_block *)(screen + offsets.bounds);
    s.steps = (const float *)(screen + offsets.steps);
    s.copy = (const int8_t *)(screen + offsets.copy);
    s.depths = (int32_t)(offsets.columns / CUDA_SCREEN_TILE);
    s.width = cuda_screen_widths[launch.width_index];
    s.gamma = CUDA_SCREEN_GAMMA(q.hidden_size);
    s.listed_stride = q.vocab;
    arrays.allocate(s.planes, (size_t)(s.depths * s.width * CUDA_SCREEN_TILE));
    arrays.allocate(s.hidden_errors, (size_t)s.width);
    arrays.allocate(s.state, 1);
    arrays.allocate(s.entries, CUDA_SCREEN_GROUPS * CUDA_SCREEN_GROUP_CANDIDATES_MAX);
    if (s.draws > q.batch)
        arrays.allocate(s.spread_hidden, (size_t)(s.draws * q.hidden_size));
    arrays.allocate(s.maxima, (size_t)(s.draws * (q.vocab / CUDA_SCREEN_TILE + 1)));
    arrays.allocate(s.listed, (size_t)(s.draws * s.listed_stride));
    arrays.allocate(s.exact, (size_t)s.draws * CUDA_SCREEN_EXACT_MAX);
    s.call.tiles = (int)((q.end_token - q.first_token + CUDA_SCREEN_TILE - 1) / CUDA_SCREEN_TILE);
    s.call.stages = 2 + (int)random_below(random, (uint32_t)cuda_screen_stages(s.width) - 1);
    const int width = cuda_sm90_widths[cuda_sm90_width_for(s.draws)];
    launch.full_pass = call;
    launch.full_pass.tag++;
    launch.full_pass.tiles = s.call.tiles;
    launch.full_pass.splits = cuda_sm90_ctas(width, s.call.tiles, ctas);
    launch.full_pass.stages =
        2 + (int)random_below(random, (uint32_t)cuda_sm90_stages(width, 1, 0, 0) - 1);
    launch.random = random;
    launch.what = what;
    run_ctas(split_body, &launch,
             {s.width / 2, 1, CUDA_SCREEN_SPLIT_THREADS, CUDA_SCREEN_SPLIT_BYTES, memories}, random,
             what);
    /* The CTAs of truncated rows wait for each other with a limit, so they run at the same time. */
    const int draw_ctas = std::min(s.call.tiles, ctas);
    const bool is_truncated = cuda_screen_case_of(&q) == CUDA_SCREEN_TRUNCATED;
    run_ctas(draw_body, &launch,
             {draw_ctas, is_truncated ? draw_ctas : 1, CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES,
              memories},
             random, what);
    run_ctas(score_body, &launch,
             {CUDA_SCREEN_GROUPS + ctas, 1, CUDA_SCREEN_SCORE_THREADS, CUDA_SCREEN_SCORE_BYTES,
              memories},
             random, what);
}

} // namespace

bool emulate_screen(const cuda_params &call, int ctas, uint64_t *random, const char *what,
                    int64_t *listed)
{
    emulated_screen launch = {};
    fenced_arrays arrays;
    const cuda_screen_params &s = launch.params;
    find_candidates(launch, arrays, call, ctas, random, what);
    run_ctas(full_pass_body, &launch,
             {launch.full_pass.splits, 1, CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES, memories},
             random, what);
    const bool again = s.state->again != 0;
    for (int i = 0; i < CUDA_SCREEN_GROUPS; i++)
        *listed += s.state->listed[i];
    return again;
}

bool emulate_truncated_screen(const cuda_params &call, cuda_truncated_params *rows, int ctas,
                              uint64_t *random, const char *what, int64_t *listed)
{
    const int64_t batch = call.problem.batch;
    emulated_screen launch = {};
    fenced_arrays arrays;
    const cuda_screen_params &s = launch.params;
    find_candidates(launch, arrays, call, ctas, random, what);
    launch.params.second_pass = 1;
    run_ctas(score_body, &launch,
             {CUDA_SCREEN_GROUPS + ctas, 1, CUDA_SCREEN_SCORE_THREADS, CUDA_SCREEN_SCORE_BYTES,
              memories},
             random, what);
    std::vector<int32_t> fallback((size_t)batch, 7);
    const cuda_screen_rows found = {*rows,    s.state,        s.exact, s.call.row_thresholds,
                                    call.tag, fallback.data()};
    emulate_screen_rows(found, random, what);
    launch.fallback = fallback.data();
    launch.full_pass.problem.features = 0;
    launch.full_pass.logits_out = (float *)rows->problem.logits.data;
    launch.full_pass.logits_out_stride = rows->problem.logits.stride;
    run_ctas(store_body, &launch,
             {launch.full_pass.splits, 1, CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES, memories},
             random, what);
    const bool again = s.state->again != 0;
    bool any_fallback = false;
    for (int64_t b = 0; b < batch; b++) {
        const bool is_fallback = fallback[(size_t)b];
        *listed += is_fallback ? 0 : *scored_of_row(s, (int)b);
        any_fallback |= is_fallback;
        if ((again && !is_fallback) ||
            rows->row_states[b] != (is_fallback ? CUDA_ROW_FALLBACK_AFTER : CUDA_ROW_SERVED))
            die("%s: row %d is neither served nor a fallback row", what, (int)b);
    }
    return any_fallback;
}
