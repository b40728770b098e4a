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

/* Workspace of a call: each array ends at a guard page. */
class fenced_arrays
{
    std::vector<guarded_buffer> all;

  public:
    /* `count` elements, 64-byte aligned, filled by hostile_fill(). */
    template <class T> void take(T *&array, size_t count)
    {
        const size_t bytes = (count * sizeof *array + 63) / 64 * 64;
        all.push_back(make_guarded_buffer(NULL, bytes, 0, 1));
        hostile_fill(all.back().data, bytes);
        array = (T *)all.back().data;
    }
    ~fenced_arrays()
    {
        for (guarded_buffer &array : all)
            free_guarded_buffer(&array);
    }
};

struct making {
    cuda_screen_build params;
};

void make_body(const void *argument) { gumbel_make_screen(((const making *)argument)->params); }
void begin_body(const void *argument) { gumbel_begin_screen(((const making *)argument)->params); }
void verify_body(const void *argument) { gumbel_verify_screen(((const making *)argument)->params); }
void seal_body(const void *argument) { gumbel_seal_screen(((const making *)argument)->params); }

void split_body(const void *argument)
{
    const emulated_screen &own = *(const emulated_screen *)argument;
    switch (cuda_screen_case_of(&own.params.call.problem)) {
    case CUDA_SCREEN_PLAIN:
        return gumbel_split_rows({own.params});
    case CUDA_SCREEN_TRUNCATED:
        return gumbel_split_rows_truncated({own.params});
    default:
        return gumbel_split_rows_any({own.params});
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
    static const draw_kernel<CUDA_SCREEN_TRUNCATED> cut[CUDA_SCREEN_WIDTHS] = {
        gumbel_screen_rows_8_truncated, gumbel_screen_rows_16_truncated,
        gumbel_screen_rows_32_truncated, gumbel_screen_rows_64_truncated,
        gumbel_screen_rows_128_truncated};
    const emulated_screen &own = *(const emulated_screen *)argument;
    switch (cuda_screen_case_of(&own.params.call.problem)) {
    case CUDA_SCREEN_PLAIN:
        return plain[own.place]({own.params});
    case CUDA_SCREEN_TRUNCATED:
        return cut[own.place]({own.params});
    default:
        return any[own.place]({own.params});
    }
}

void score_body(const void *argument)
{
    const emulated_screen &own = *(const emulated_screen *)argument;
    const bool half = own.params.call.problem.weight.dtype == GUMBEL_FLOAT16;
    if (cuda_screen_case_of(&own.params.call.problem) == CUDA_SCREEN_TRUNCATED)
        half ? gumbel_score_rows_f16_truncated({own.params})
             : gumbel_score_rows_bf16_truncated({own.params});
    else
        half ? gumbel_score_rows_f16({own.params}) : gumbel_score_rows_bf16({own.params});
}

#define AGAIN_OF(dtype)                                                                            \
    {                                                                                              \
        gumbel_fused_fallback_##dtype##_8, gumbel_fused_fallback_##dtype##_16,                     \
            gumbel_fused_fallback_##dtype##_32, gumbel_fused_fallback_##dtype##_64                 \
    }

CUtensorMap map_of(const gumbel_tensor &t, int box)
{
    return {(const uint16_t *)t.data, t.rows, t.cols, t.stride, box};
}

void again_body(const void *argument)
{
    static void (*const kernels[2][CUDA_SM90_WIDTHS])(sm90_spread_call, CUtensorMap, CUtensorMap,
                                                      const uint32_t *) = {AGAIN_OF(bf16),
                                                                           AGAIN_OF(f16)};
    const emulated_screen &own = *(const emulated_screen *)argument;
    const gumbel_problem &q = own.whole.problem;
    const int place = cuda_sm90_width_for(own.params.draws);
    const gumbel_tensor spread = {.data = own.params.spread_hidden,
                                  .dtype = q.hidden.dtype,
                                  .rows = own.params.draws,
                                  .cols = q.hidden_size,
                                  .stride = q.hidden_size};
    kernels[q.weight.dtype == GUMBEL_FLOAT16][place](
        {{own.whole}}, map_of(q.weight, CUDA_SM90_TILE),
        map_of(own.params.spread_hidden ? spread : q.hidden, cuda_sm90_widths[place]),
        &own.params.state->again);
}

#define STORE_OF(dtype)                                                                            \
    {                                                                                              \
        gumbel_store_fallback_##dtype##_8, gumbel_store_fallback_##dtype##_16,                     \
            gumbel_store_fallback_##dtype##_32, gumbel_store_fallback_##dtype##_64                 \
    }

void store_body(const void *argument)
{
    static void (*const kernels[2][CUDA_SM90_WIDTHS])(
        sm90_call<CUDA_SM90_STORED>, CUtensorMap, CUtensorMap, const int32_t *) = {STORE_OF(bf16),
                                                                                   STORE_OF(f16)};
    const emulated_screen &own = *(const emulated_screen *)argument;
    const gumbel_problem &q = own.whole.problem;
    const int place = cuda_sm90_width_for(q.batch);
    kernels[q.weight.dtype == GUMBEL_FLOAT16][place](
        {{own.whole}}, map_of(q.weight, CUDA_SM90_TILE), map_of(q.hidden, cuda_sm90_widths[place]),
        own.left);
}

} // namespace

void *emulate_making(const gumbel_tensor &weight, int list_max, uint64_t *random, const char *what)
{
    gumbel_screen_offsets offsets;
    if (!gumbel_screen_find_offsets_as(GUMBEL_SCREEN_LAYOUT_TILES, weight.rows, weight.cols,
                                       &offsets))
        die("%s: no screen", what);
    char *screen = (char *)poisoned_workspace(offsets.bytes);
    making own = {};
    own.params.weight = weight;
    own.params.initial_header.magic = GUMBEL_SCREEN_MAGIC;
    own.params.initial_header.version = GUMBEL_SCREEN_VERSION;
    own.params.initial_header.layout = GUMBEL_SCREEN_LAYOUT_TILES;
    own.params.initial_header.rows = weight.rows;
    own.params.initial_header.columns = weight.cols;
    own.params.initial_header.dtype = (uint32_t)weight.dtype;
    own.params.initial_header.list_max = list_max;
    own.params.header = (gumbel_screen_header *)screen;
    own.params.bounds = (gumbel_screen_block *)(screen + offsets.bounds);
    own.params.steps = (float *)(screen + offsets.steps);
    own.params.copy = (int8_t *)(screen + offsets.copy);
    own.params.depths = (int32_t)(offsets.columns / CUDA_SCREEN_TILE);
    run_ctas(begin_body, &own, {1, 1, 32, 0, memories}, random, what);
    run_ctas(make_body, &own,
             {offsets.blocks, 1, CUDA_SCREEN_MAKE_THREADS, CUDA_SCREEN_MAKE_BYTES, memories},
             random, what);
    run_ctas(seal_body, &own, {1, 1, 32, 0, memories}, random, what);
    /* The screen verifies, but not with half of a bound. */
    unsigned long long fault = CUDA_SCREEN_HOLDS;
    own.params.fault = &fault;
    const cta_shape all = {offsets.blocks, 1, CUDA_SCREEN_MAKE_THREADS, 0, memories};
    run_ctas(verify_body, &own, all, random, what);
    if (fault != CUDA_SCREEN_HOLDS)
        die("%s: its screen does not hold of row %llu", what, fault);
    const float size = own.params.bounds->size;
    own.params.bounds->size *= 0.5f;
    run_ctas(verify_body, &own, all, random, what);
    if (size > 0 && fault >= GUMBEL_BLOCK)
        die("%s: half of a bound passes", what);
    own.params.bounds->size = size;
    return screen;
}

namespace
{

/* Splits, filters and scores. */
void find_candidates(emulated_screen &own, fenced_arrays &arrays, const cuda_params &call, int ctas,
                     uint64_t *random, const char *what)
{
    const gumbel_problem &q = call.problem;
    const char *screen = (const char *)q.screen;
    gumbel_screen_offsets offsets;
    cuda_screen_params &s = own.params;
    gumbel_screen_find_offsets_as(GUMBEL_SCREEN_LAYOUT_TILES, q.vocab, q.hidden_size, &offsets);
    s.draws = (int32_t)cuda_screen_draws(&q);
    while (cuda_screen_widths[own.place] < 2 * s.draws)
        own.place++;
    s.call = call;
    s.header = (const gumbel_screen_header *)screen;
    s.bounds = (const gumbel_screen_block *)(screen + offsets.bounds);
    s.steps = (const float *)(screen + offsets.steps);
    s.copy = (const int8_t *)(screen + offsets.copy);
    s.depths = (int32_t)(offsets.columns / CUDA_SCREEN_TILE);
    s.width = cuda_screen_widths[own.place];
    s.gamma = CUDA_SCREEN_GAMMA(q.hidden_size);
    s.listed_stride = q.vocab;
    arrays.take(s.planes, (size_t)(s.depths * s.width * CUDA_SCREEN_TILE));
    arrays.take(s.hidden_errors, (size_t)s.width);
    arrays.take(s.state, 1);
    arrays.take(s.entries, CUDA_SCREEN_GROUPS * CUDA_SCREEN_GROUP_CANDIDATES_MAX);
    if (s.draws > q.batch)
        arrays.take(s.spread_hidden, (size_t)(s.draws * q.hidden_size));
    arrays.take(s.maxima, (size_t)(s.draws * (q.vocab / CUDA_SCREEN_TILE + 1)));
    arrays.take(s.listed, (size_t)(s.draws * s.listed_stride));
    arrays.take(s.exact, (size_t)s.draws * CUDA_SCREEN_EXACT_MAX);
    s.call.tiles = (int)((q.end_token - q.first_token + CUDA_SCREEN_TILE - 1) / CUDA_SCREEN_TILE);
    s.call.stages = 2 + (int)random_below(random, (uint32_t)cuda_screen_stages(s.width) - 1);
    const int width = cuda_sm90_widths[cuda_sm90_width_for(s.draws)];
    own.whole = call;
    own.whole.tag++;
    own.whole.tiles = s.call.tiles;
    own.whole.splits = cuda_sm90_ctas(width, s.call.tiles, ctas);
    own.whole.stages =
        2 + (int)random_below(random, (uint32_t)cuda_sm90_stages(width, 1, 0, 0) - 1);
    own.random = random;
    own.what = what;
    run_ctas(split_body, &own,
             {s.width / 2, 1, CUDA_SCREEN_SPLIT_THREADS, CUDA_SCREEN_SPLIT_BYTES, memories}, random,
             what);
    /* The CTAs of truncated rows wait for each other for a while, so they run at the same time. */
    const int drawing = std::min(s.call.tiles, ctas);
    const bool is_cut = cuda_screen_case_of(&q) == CUDA_SCREEN_TRUNCATED;
    run_ctas(draw_body, &own,
             {drawing, is_cut ? drawing : 1, CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES, memories},
             random, what);
    run_ctas(score_body, &own,
             {CUDA_SCREEN_GROUPS + ctas, 1, CUDA_SCREEN_SCORE_THREADS, CUDA_SCREEN_SCORE_BYTES,
              memories},
             random, what);
}

} // namespace

bool emulate_screen(const cuda_params &call, int ctas, uint64_t *random, const char *what,
                    int64_t *listed)
{
    emulated_screen own = {};
    fenced_arrays arrays;
    const cuda_screen_params &s = own.params;
    find_candidates(own, arrays, call, ctas, random, what);
    run_ctas(again_body, &own,
             {own.whole.splits, 1, CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES, memories}, random,
             what);
    const bool again = s.state->again != 0;
    for (int i = 0; i < CUDA_SCREEN_GROUPS; i++)
        *listed += s.state->listed[i];
    return again;
}

bool emulate_screen_cut(const cuda_params &call, cuda_truncated_params *rows, int ctas,
                        uint64_t *random, const char *what, int64_t *listed)
{
    const int64_t batch = call.problem.batch;
    emulated_screen own = {};
    fenced_arrays arrays;
    const cuda_screen_params &s = own.params;
    find_candidates(own, arrays, call, ctas, random, what);
    own.params.second_pass = 1;
    run_ctas(score_body, &own,
             {CUDA_SCREEN_GROUPS + ctas, 1, CUDA_SCREEN_SCORE_THREADS, CUDA_SCREEN_SCORE_BYTES,
              memories},
             random, what);
    std::vector<int32_t> left((size_t)batch, 7);
    const cuda_screen_rows found = {*rows,    s.state,    s.exact, s.call.row_thresholds,
                                    call.tag, left.data()};
    emulate_screen_rows(found, random, what);
    own.left = left.data();
    own.whole.problem.features = 0;
    own.whole.logits_out = (float *)rows->problem.logits.data;
    own.whole.logits_out_stride = rows->problem.logits.stride;
    run_ctas(store_body, &own,
             {own.whole.splits, 1, CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES, memories}, random,
             what);
    const bool again = s.state->again != 0;
    bool any = false;
    for (int64_t b = 0; b < batch; b++) {
        const bool is_left = left[(size_t)b];
        *listed += is_left ? 0 : *scored_of_row(s, (int)b);
        any |= is_left;
        if ((again && !is_left) ||
            rows->row_states[b] != (is_left ? CUDA_ROW_FALLBACK_AFTER : CUDA_ROW_SERVED))
            die("%s: row %d is neither left nor served", what, (int)b);
    }
    return any;
}
