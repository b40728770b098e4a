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
#include "screen_arrays.h"

extern "C" {
#include "outcome.h"
}

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace
{

void dither_body(const void *argument)
{
    gumbel_store_dither(*(const cuda_screen_dither *)argument);
}

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
    case CUDA_SCREEN_NESTED:
        return gumbel_split_rows_nested({launch.params});
    case CUDA_SCREEN_NESTED_ANY:
        return gumbel_split_rows_nested_any({launch.params});
    case CUDA_SCREEN_NESTED_TRUNCATED:
        return gumbel_split_rows_nested_truncated({launch.params});
    default:
        return gumbel_split_rows_any({launch.params});
    }
}

/* Runs the kernel of this width; `kernels` are those of a case. */
template <cuda_screen_case kind>
void run_draw(const emulated_screen &launch,
              void (*const (&kernels)[CUDA_SCREEN_WIDTHS])(screen_call<kind>))
{
    kernels[launch.width_index]({launch.params});
}

#define DRAW_CASE(kind, name)                                                                      \
    case kind:                                                                                     \
        return run_draw<kind>(launch, {gumbel_screen_rows_8##name, gumbel_screen_rows_16##name,    \
                                       gumbel_screen_rows_32##name, gumbel_screen_rows_64##name,   \
                                       gumbel_screen_rows_128##name})

void draw_body(const void *argument)
{
    const emulated_screen &launch = *(const emulated_screen *)argument;
    switch (cuda_screen_case_of(&launch.params.call.problem)) {
        DRAW_CASE(CUDA_SCREEN_PLAIN, );
        DRAW_CASE(CUDA_SCREEN_ANY, _any);
        DRAW_CASE(CUDA_SCREEN_TRUNCATED, _truncated);
    case CUDA_SCREEN_NESTED:
        return run_draw<CUDA_SCREEN_NESTED>(
            launch, {gumbel_screen_rows_8_nested, gumbel_screen_rows_16_nested,
                     gumbel_screen_rows_32_nested, gumbel_screen_rows_64_nested});
        DRAW_CASE(CUDA_SCREEN_NESTED_ANY, _nested_any);
        DRAW_CASE(CUDA_SCREEN_NESTED_TRUNCATED, _nested_truncated);
    default:
        die("no such case");
    }
}

void refine_body(const void *argument)
{
    gumbel_refine_rows({((const emulated_screen *)argument)->params});
}

void score_body(const void *argument)
{
    const emulated_screen &launch = *(const emulated_screen *)argument;
    const bool half = launch.params.call.problem.weight.dtype == GUMBEL_FLOAT16;
    if (cuda_screen_truncates(cuda_screen_case_of(&launch.params.call.problem)))
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

gumbel_screen_certificate choose_certificate(uint64_t *random)
{
    return one_in(random, 2) ? GUMBEL_SCREEN_CERTAIN : GUMBEL_SCREEN_PROBABLE;
}

void enlarge_steps(const gumbel_tensor &weight)
{
    const int64_t stride = weight.stride ? weight.stride : weight.cols;
    for (int64_t row = 0; row < weight.rows; row += 2) {
        float largest = 0.0f;
        for (int64_t i = 0; i < weight.cols; i++)
            largest = std::max(largest,
                               std::fabs(dtype_load(weight.data, weight.dtype, row * stride + i)));
        dtype_store((void *)weight.data, weight.dtype, row * stride, 4 * largest);
    }
}

void lean_on_dither(const gumbel_tensor &hidden, const void *screen)
{
    const gumbel_screen_header &header = *(const gumbel_screen_header *)screen;
    const int64_t stride = hidden.stride ? hidden.stride : hidden.cols;
    gumbel_screen_offsets offsets;
    gumbel_screen_find_offsets_as(GUMBEL_SCREEN_LAYOUT_TILES, header.rows, header.columns,
                                  &offsets);
    const int32_t *dither = (const int32_t *)((const char *)screen + offsets.dither);
    for (int64_t row = 0; row < hidden.rows; row++)
        for (int64_t i = 0; i < hidden.cols; i++) {
            const float size = (row % 2 ? -3 : 3) * GUMBEL_SCREEN_DITHER_UNIT;
            const float x = dtype_load(hidden.data, hidden.dtype, row * stride + i);
            dtype_store((void *)hidden.data, hidden.dtype, row * stride + i,
                        i == 0 ? 0.0f : size * (float)dither[i] + 0.1f * x);
        }
}

namespace
{

const cta_shape one_warp = {1, 1, 32, 0, memories};

void store_dither(const cuda_screen_build &build, uint64_t seed, uint64_t *random, const char *what)
{
    const int64_t columns = build.weight.cols, padded = CUDA_SCREEN_TILE * build.depths;
    std::vector<int32_t> dither((size_t)padded);
    if (build.low_nibbles) {
        std::fill(dither.begin(), dither.end(), (int32_t)GUMBEL_SCREEN_COLUMN_NONE);
        gumbel_screen_seed_columns(seed, 0, columns, (gumbel_screen_column *)dither.data());
    } else
        gumbel_screen_seed_dither(seed, 0, columns, dither.data());
    for (int64_t first = 0; first < padded; first += CUDA_SCREEN_DITHER_COUNT) {
        cuda_screen_dither d = {};
        d.to = build.dither + first;
        d.count = (int32_t)std::min<int64_t>(padded - first, CUDA_SCREEN_DITHER_COUNT);
        std::copy_n(dither.data() + first, d.count, d.values);
        run_ctas(dither_body, &d, {1, 1, CUDA_SCREEN_MAKE_THREADS, 0, memories}, random, what);
    }
}

/* The byte of a weight in the copy. */
int8_t &find_byte(const cuda_screen_build &build, int64_t row, int64_t column)
{
    const int64_t tile = row / CUDA_SCREEN_TILE * build.depths + column / CUDA_SCREEN_TILE;
    const int in = (int)(column % CUDA_SCREEN_TILE), at = operand_row(row % CUDA_SCREEN_TILE);
    return build.copy[(tile * CUDA_SCREEN_TILE + at) * CUDA_SCREEN_TILE +
                      ((in / 16) ^ (at % 8)) * 16 + in % 16];
}

/* A weight's place in a copy of nibbles: its byte in either half, and the place in the byte. */
struct nibble_place {
    int8_t &high, &low;
    int shift;
};

nibble_place find_nibbles(const cuda_screen_build &build, int64_t row, int64_t column)
{
    const int64_t tile = row / CUDA_SCREEN_TILE * build.depths + column / CUDA_SCREEN_TILE;
    const int in = (int)(column % CUDA_SCREEN_TILE), at = operand_row(row % CUDA_SCREEN_TILE);
    const int part = in % 16 / 4, word = in / 64 * 2 + in % 32 / 16;
    const int64_t byte = (tile * CUDA_SCREEN_TILE + at) * 64 + 16 * part + 4 * word + in % 4;
    return {build.copy[byte], build.low_nibbles[byte], in % 64 / 32 * 4};
}

/* Flips bits of a stored q: of its low nibble and, above, of its high one. */
void flip_bits(const cuda_screen_build &build, int64_t row, int64_t column, int bits)
{
    if (!build.low_nibbles) {
        find_byte(build, row, column) ^= (int8_t)bits;
        return;
    }
    const nibble_place place = find_nibbles(build, row, column);
    place.low ^= (int8_t)((bits & 15) << place.shift);
    place.high ^= (int8_t)(bits >> 4 << place.shift);
}

/* The first row for which verification fails, or CUDA_SCREEN_HOLDS. */
unsigned long long find_fault_of(cuda_screen_build &build, int64_t blocks, uint64_t *random,
                                 const char *what)
{
    unsigned long long fault = CUDA_SCREEN_HOLDS;
    build.fault = &fault;
    run_ctas(build_body<gumbel_verify_screen>, &build,
             {blocks, 1, CUDA_SCREEN_MAKE_THREADS, 0, memories}, random, what);
    return fault;
}

/* Moves the dither of a column by a whole step, and with it the bytes of the first block: for this
 * block, the range of the dither alone is then wrong. Returns 0 for a column without room. */
bool shift_column(cuda_screen_build &build, int64_t column)
{
    const int64_t rows = std::min<int64_t>(build.weight.rows, GUMBEL_BLOCK);
    for (int64_t row = 0; row < rows; row++)
        if (find_byte(build, row, column) > 125)
            return false;
    for (int64_t row = 0; row < rows; row++)
        find_byte(build, row, column)++;
    build.dither[column] += 1 << 24;
    return true;
}

/* Verification of row 0 fails if a bit of one of its integers is flipped, which moves it by two
 * steps or more. */
void verify_flips(cuda_screen_build &build, int64_t blocks, const uint64_t *random,
                  const char *what)
{
    const int64_t column = build.weight.cols * 2 / 3;
    uint64_t own = *random; /* so that no later problem changes */
    for (int bit = 1; bit < 7 && std::isfinite(build.steps[0]); bit += 3) {
        flip_bits(build, 0, column, 1 << bit);
        if (find_fault_of(build, blocks, &own, what) != 0)
            die("%s: verification passes with a flipped bit", what);
        flip_bits(build, 0, column, 1 << bit);
    }
}

/* Verification fails if N bounds the norms of q, but not those of 16 (n - 8). */
void verify_high_nibbles(cuda_screen_build &build, int64_t blocks, uint64_t *random,
                         const char *what)
{
    double fine = 0.0, coarse = 0.0;
    for (int64_t row = 0; row < std::min<int64_t>(build.weight.rows, GUMBEL_BLOCK); row++) {
        double fine_square = 0.0, coarse_square = 0.0;
        for (int64_t i = 0; i < build.weight.cols; i++) {
            const nibble_place place = find_nibbles(build, row, i);
            const int high = ((place.high >> place.shift & 15) ^ 8) * 16 - 128;
            const int q = high + (place.low >> place.shift & 15);
            fine_square += q * q;
            coarse_square += high * high;
        }
        fine = std::max(fine, sqrt(fine_square));
        coarse = std::max(coarse, sqrt(coarse_square));
    }
    const float size = build.bounds->size;
    if (size < coarse)
        die("%s: the size is below the norm of the high nibbles", what);
    build.bounds->size = (float)(0.999 * coarse);
    if (fine < 0.998 * coarse && find_fault_of(build, blocks, random, what) >= GUMBEL_BLOCK)
        die("%s: verification passes with too small a bound of high nibbles", what);
    build.bounds->size = size;
}

/* Verification passes; unless all bytes are 0, it fails if a bound is halved, the dither of a
 * column changes by half a step (of nibbles: by eight), or is out of range. */
void verify_screen(cuda_screen_build &build, int64_t blocks, uint64_t *random, const char *what)
{
    const auto find_fault = [&] { return find_fault_of(build, blocks, random, what); };
    if (find_fault() != CUDA_SCREEN_HOLDS)
        die("%s: the screen is wrong for row %llu", what, find_fault());
    const float size = build.bounds->size;
    build.bounds->size *= 0.5f;
    if (size >= 1 && find_fault() >= GUMBEL_BLOCK)
        die("%s: verification passes with half of a bound", what);
    build.bounds->size = size;
    int32_t &dither = build.dither[build.weight.cols - 1];
    const int32_t was = dither;
    dither = build.low_nibbles ? was ^ INT32_MIN : was < 0 ? was + (1 << 23) : was - (1 << 23);
    if (size >= 1 && find_fault() >= GUMBEL_BLOCK)
        die("%s: verification passes with wrong dither", what);
    dither = was;
    verify_flips(build, blocks, random, what);
    if (build.low_nibbles)
        return verify_high_nibbles(build, blocks, random, what);
    const int64_t column = build.weight.cols / 2, rows = build.weight.rows;
    if (size >= 1 && shift_column(build, column)) {
        uint64_t own = *random; /* so that a column without room changes no later problem */
        build.bounds->size = 4 * size;
        if (find_fault_of(build, blocks, &own, what) >= GUMBEL_BLOCK)
            die("%s: verification passes with dither that is out of range", what);
        build.bounds->size = size;
        build.dither[column] -= 1 << 24;
        for (int64_t row = 0; row < std::min<int64_t>(rows, GUMBEL_BLOCK); row++)
            find_byte(build, row, column)--;
    }
}

} // namespace

namespace
{

/* Arguments of the kernels that make a screen, in memory on the heap, which the caller frees. */
cuda_screen_build make_build(const gumbel_tensor &weight, gumbel_screen_certificate certificate,
                             gumbel_screen_format format, int list_max,
                             gumbel_screen_offsets *offsets, const char *what)
{
    const gumbel_screen_layout layout = cuda_screen_layout_of(format);
    if (!gumbel_screen_find_offsets_as(layout, weight.rows, weight.cols, offsets))
        die("%s: a screen does not support the weights", what);
    char *screen = (char *)poisoned_workspace(offsets->bytes);
    cuda_screen_build build = {};
    build.weight = weight;
    build.initial_header.magic = GUMBEL_SCREEN_MAGIC;
    build.initial_header.version = GUMBEL_SCREEN_VERSION;
    build.initial_header.layout = layout;
    build.initial_header.rows = weight.rows;
    build.initial_header.columns = weight.cols;
    build.initial_header.dtype = (uint32_t)weight.dtype;
    build.initial_header.list_max = list_max;
    build.initial_header.certificate = certificate;
    build.header = (gumbel_screen_header *)screen;
    build.bounds = (gumbel_screen_block *)(screen + offsets->bounds);
    build.steps = (float *)(screen + offsets->steps);
    build.dither = (int32_t *)(screen + offsets->dither);
    build.copy = (int8_t *)(screen + offsets->copy);
    build.depths = (int32_t)(offsets->columns / CUDA_SCREEN_TILE);
    if (format == GUMBEL_SCREEN_NIBBLES) {
        build.low_nibbles = build.copy + CUDA_SCREEN_HIGH_BYTES(offsets->blocks, build.depths);
        build.squares = (double *)build.copy;
        build.max_square = (unsigned long long *)(build.squares + offsets->columns);
    }
    return build;
}

/* Chooses the scales of columns. */
void choose_scales(cuda_screen_build &build, uint64_t *random, const char *what)
{
    const cta_shape shape = {build.depths, 1, CUDA_SCREEN_TILE, 0, memories};
    run_ctas(build_body<gumbel_measure_columns>, &build, shape, random, what);
    run_ctas(build_body<gumbel_choose_scales>, &build, shape, random, what);
}

/* Quantizes the weights, behind dither that is already stored. */
void make_copy(cuda_screen_build &build, int64_t blocks, uint64_t *random, const char *what)
{
    run_ctas(build_body<gumbel_make_screen>, &build,
             {blocks, 1, CUDA_SCREEN_MAKE_THREADS, CUDA_SCREEN_MAKE_BYTES, memories}, random, what);
    run_ctas(build_body<gumbel_seal_screen>, &build, one_warp, random, what);
}

} // namespace

void *emulate_prepare_screen(const gumbel_tensor &weight, gumbel_screen_certificate certificate,
                             uint64_t seed, int list_max, uint64_t *random, const char *what,
                             gumbel_screen_format format)
{
    gumbel_screen_offsets offsets;
    cuda_screen_build build = make_build(weight, certificate, format, list_max, &offsets, what);
    run_ctas(build_body<gumbel_begin_screen>, &build, one_warp, random, what);
    store_dither(build, seed, random, what);
    if (build.low_nibbles)
        choose_scales(build, random, what);
    make_copy(build, offsets.blocks, random, what);
    verify_screen(build, offsets.blocks, random, what);
    return build.header;
}

bool finds_norm_fault(uint64_t *random)
{
    constexpr int64_t rows = 16, columns = 1024;
    const char *what = "norms of weights";
    std::vector<uint16_t> weights(rows * columns);
    for (int64_t i = 0; i < rows * columns; i++)
        dtype_store(weights.data(), GUMBEL_BFLOAT16, i, i % columns ? 0.498046875f : 126.0f);
    gumbel_screen_offsets offsets;
    cuda_screen_build build = make_build(
        tensor_of(weights.data(), GUMBEL_BFLOAT16, rows, columns, columns), GUMBEL_SCREEN_CERTAIN,
        GUMBEL_SCREEN_BYTES, GUMBEL_SCREEN_LIST_MAX, &offsets, what);
    run_ctas(build_body<gumbel_begin_screen>, &build, one_warp, random, what);
    /* All bytes but the first column's are 0, and all errors small: the weights are -u. */
    std::fill_n(build.dither, columns, -(int32_t)(0.49 * (1 << 24)));
    build.dither[0] = 0;
    make_copy(build, offsets.blocks, random, what);
    const bool holds = find_fault_of(build, offsets.blocks, random, what) == CUDA_SCREEN_HOLDS;
    build.bounds->size = 126.001f; /* above the norm of the bytes */
    const bool fails = find_fault_of(build, offsets.blocks, random, what) == 0;
    free(build.header);
    return holds && fails;
}

namespace
{

/* Runs the launch that splits rows. */
void split_rows(emulated_screen &launch, fenced_arrays &arrays, const cuda_params &call,
                uint64_t *random, const char *what)
{
    prepare_emulated_screen(launch, arrays, call);
    run_ctas(
        split_body, &launch,
        {launch.params.width / 2, 1, CUDA_SCREEN_SPLIT_THREADS, CUDA_SCREEN_SPLIT_BYTES, memories},
        random, what);
}

/* Runs the launches that split rows, filter tokens and compute candidates' scores. */
void find_candidates(emulated_screen &launch, fenced_arrays &arrays, const cuda_params &call,
                     int ctas, uint64_t *random, const char *what)
{
    const gumbel_problem &q = call.problem;
    cuda_screen_params &s = launch.params;
    split_rows(launch, arrays, call, random, what);
    const cuda_screen_case kind = cuda_screen_case_of(&q);
    const int stages_max = cuda_screen_stages(s.width, kind == CUDA_SCREEN_NESTED);
    s.call.stages = 2 + (int)random_below(random, (uint32_t)stages_max - 1);
    const int width = cuda_sm90_widths[cuda_sm90_width_for(s.draws)];
    launch.full_pass = call;
    launch.full_pass.tag++;
    launch.full_pass.tiles = s.call.tiles;
    launch.full_pass.splits = cuda_sm90_ctas(width, s.call.tiles, ctas, 0);
    launch.full_pass.stages =
        2 + (int)random_below(random, (uint32_t)cuda_sm90_stages(width, 1, 0, CUDA_SM90_PLAIN) - 1);
    launch.random = random;
    launch.what = what;
    /* CTAs that wait for each other, with a limit, run at the same time. */
    const int draw_ctas = std::min(s.call.tiles, ctas);
    const bool waits = cuda_screen_truncates(kind) || kind == CUDA_SCREEN_NESTED;
    run_ctas(
        draw_body, &launch,
        {draw_ctas, waits ? draw_ctas : 1, CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES, memories},
        random, what);
    if (kind == CUDA_SCREEN_NESTED)
        run_ctas(refine_body, &launch,
                 {s.draws + ctas, 1, CUDA_SCREEN_REFINE_THREADS,
                  (size_t)CUDA_SCREEN_REFINE_BYTES(s.depths), memories},
                 random, what);
    run_ctas(score_body, &launch,
             {CUDA_SCREEN_GROUPS + ctas, 1, CUDA_SCREEN_SCORE_THREADS, CUDA_SCREEN_SCORE_BYTES,
              memories},
             random, what);
}

} // namespace

emulated_split emulate_split(const cuda_params &call, uint64_t *random, const char *what)
{
    emulated_screen launch = {};
    fenced_arrays arrays;
    emulated_split split;
    const cuda_screen_params &s = launch.params;
    split_rows(launch, arrays, call, random, what);
    for (int64_t row = 0; row < s.draws; row++) {
        split.hidden_error.push_back(s.hidden_errors[row]);
        split.coarse_error.push_back(s.coarse_errors[row]);
        for (int column = 0; column < s.depths * CUDA_SCREEN_TILE; column++)
            for (int plane = 0; plane < 2; plane++) {
                const int n = 2 * (int)row + plane, unit = column % CUDA_SCREEN_TILE / 16 ^ n % 8;
                split.planes[plane].push_back(
                    s.planes[(column / CUDA_SCREEN_TILE * s.width + n) * CUDA_SCREEN_TILE +
                             16 * unit + column % 16]);
            }
    }
    return split;
}

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
    /* CTAs that run at the same time read the scores of the first pass while others add to them. */
    run_ctas(score_body, &launch,
             {(CUDA_SCREEN_GROUPS + ctas) / 4 * 4, 4, CUDA_SCREEN_SCORE_THREADS,
              CUDA_SCREEN_SCORE_BYTES, memories},
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
        *listed += is_fallback ? 0 : cuda_count_scored(*scored_of_row(s, (int)b));
        any_fallback |= is_fallback;
        if ((again && !is_fallback) ||
            rows->row_states[b] != (is_fallback ? CUDA_ROW_FALLBACK_AFTER : CUDA_ROW_SERVED))
            die("%s: row %d is neither served nor a fallback row", what, (int)b);
    }
    return any_fallback;
}
