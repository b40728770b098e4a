/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   makes the screen of a head: each row of weights as bytes with a scale (step), rounded
 *        behind the dither of the columns, and for each 64 rows bounds of the error of those bytes
 *        (docs/maths.md, section 14); the header is written last. Also verifies a screen.
 * COST   the weights are read twice, the second time mostly from the caches, and half as many bytes
 *        are written.
 * MAP    a CTA for 64 rows, a warp for one row at a time; lane i takes columns 4 i to 4 i + 3 of
 *        every 128.
 * NUMERICS  steps and bytes are the CPU's, bit for bit. Sums of squares in float64, of errors
 *        w - s (q - d), which are rounded by less than 2^-45 s.
 */
#include "cuda/common/widen.cuh"
#include "cuda/fused/screen/screen_split.cuh"

namespace
{

constexpr int kMakeWarps = CUDA_SCREEN_MAKE_THREADS / 32;
constexpr double kMakeUp = 1.0 + 1e-9, kMakeFloatUp = 1.0 + 0x1p-20;

struct four {
    float w[4];
};

/* Elements `column` to `column` + 3 of a row; 0 past the last column. */
__device__ __forceinline__ four load_four(const gumbel_tensor &t, int64_t row, int64_t column)
{
    four f = {};
    const int64_t at = row * t.stride + column;
    if (t.dtype != GUMBEL_FLOAT32 && column + 4 <= t.cols &&
        ((uintptr_t)t.data + 2 * at) % 8 == 0) {
        const uint2 raw = *(const uint2 *)((const uint16_t *)t.data + at);
        const uint32_t bits[4] = {raw.x & 0xffff, raw.x >> 16, raw.y & 0xffff, raw.y >> 16};
#pragma unroll
        for (int i = 0; i < 4; i++)
            f.w[i] = t.dtype == GUMBEL_FLOAT16 ? widen_f16(bits[i]) : widen_bf16(bits[i]);
        return f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (column + i < t.cols)
            f.w[i] = widen_element(t.data, t.dtype, at + i);
    return f;
}

__device__ __forceinline__ double add_over_warp(double x)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

/* Row of the operand that holds a token of the tile: the inverse of the map in screen_draw.cu. */
__device__ __forceinline__ int operand_row(int token)
{
    const int half = token / 64, warp = token % 64 / 16, g = token % 16 / 2, f = token % 2;
    return 64 * half + 16 * warp + 8 * f + g;
}

/* Error, norm of the bytes and norm of the weights of a row, rounded up. */
struct row_bounds {
    float error, size, weight;
};

/* Sums of squares over columns of a row: of s times the errors, the bytes and the weights. */
struct row_sums {
    double error, size, weight;
};

/* Bounds from a lane's sums; by a warp. The size also bounds the norm of w / s. 2^-45 sqrt(D)
 * bounds the norm of the errors' rounding. */
__device__ __forceinline__ row_bounds bound_row(const row_sums &sums, double step, int64_t columns)
{
    const double error = sqrt(add_over_warp(sums.error)) / step + 0x1p-45 * sqrt((double)columns);
    const double size = sqrt(add_over_warp(sums.size)), weight = sqrt(add_over_warp(sums.weight));
    return {(float)(error * kMakeUp * kMakeFloatUp),
            (float)(fmax(size, weight / step) * kMakeUp * kMakeFloatUp),
            fmaxf((float)(weight * kMakeUp * kMakeFloatUp), GUMBEL_SCREEN_STEP_MIN)};
}

/* Quantizes four columns to a word of four bytes; adds to the sums. */
__device__ __forceinline__ uint32_t quantize_four(const four &f, const int32_t *dither, float step,
                                                  float inverse, row_sums &sums)
{
    const uint4 words = *(const uint4 *)dither;
    const int32_t d[4] = {(int32_t)words.x, (int32_t)words.y, (int32_t)words.z, (int32_t)words.w};
    uint32_t bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float unused;
        const int32_t q = gumbel_screen_round(f.w[i] * inverse, d[i], &unused);
        const double u = (double)d[i] * (double)GUMBEL_SCREEN_DITHER_UNIT, w = (double)f.w[i];
        const double error = w - (double)step * ((double)q - u);
        sums.error += error * error;
        sums.size += (double)(q * q);
        sums.weight += w * w;
        bytes |= (uint32_t)(uint8_t)q << (8 * i);
    }
    return bytes;
}

/* Quantizes one row; by a warp. */
__device__ __forceinline__ row_bounds make_row(const cuda_screen_build &m, int64_t row)
{
    const int lane = threadIdx.x % 32, at = operand_row((int)(row % CUDA_SCREEN_TILE));
    const bool is_there = row < m.weight.rows;
    int8_t *to = m.copy + row / CUDA_SCREEN_TILE * m.depths * CUDA_SCREEN_TILE * CUDA_SCREEN_TILE +
                 at * CUDA_SCREEN_TILE + ((lane / 4) ^ (at % 8)) * 16 + lane % 4 * 4;
    uint32_t max_bits = 0;
    for (int k = 0; k < m.depths && is_there; k++) {
        const four f = load_four(m.weight, row, k * CUDA_SCREEN_TILE + 4 * lane);
#pragma unroll
        for (int i = 0; i < 4; i++)
            max_bits = max(max_bits, __float_as_uint(fabsf(f.w[i])));
    }
    max_bits = __reduce_max_sync(~0u, max_bits);
    const bool is_finite = max_bits < 0x7f800000u;
    const float step = gumbel_screen_choose_step(__uint_as_float(max_bits));
    const float inverse = 1.0f / step;
    row_sums sums = {};
    for (int k = 0; k < m.depths; k++) {
        const int column = k * CUDA_SCREEN_TILE + 4 * lane;
        uint32_t bytes = 0;
        if (is_there && is_finite)
            bytes = quantize_four(load_four(m.weight, row, column), m.dither + column, step,
                                  inverse, sums);
        *(uint32_t *)(to + (int64_t)k * CUDA_SCREEN_TILE * CUDA_SCREEN_TILE) = bytes;
    }
    if (lane == 0)
        m.steps[row] = !is_there ? 0.0f : is_finite ? step : __uint_as_float(0x7fc00000);
    return is_there && is_finite ? bound_row(sums, (double)step, m.weight.cols) : row_bounds{};
}

/* Quantizes the rows of a block and stores its bounds; by a CTA. */
__device__ __forceinline__ void make_block(const cuda_screen_build &m)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    row_bounds *all = (row_bounds *)shared_memory; /* [kMakeWarps] */
    const int warp = threadIdx.x / 32;
    row_bounds own = {};
    for (int i = warp; i < GUMBEL_BLOCK; i += kMakeWarps) {
        const row_bounds row = make_row(m, (int64_t)blockIdx.x * GUMBEL_BLOCK + i);
        own = {fmaxf(own.error, row.error), fmaxf(own.size, row.size),
               fmaxf(own.weight, row.weight)};
    }
    if (threadIdx.x % 32 == 0)
        all[warp] = own;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int i = 1; i < kMakeWarps; i++)
        own = {fmaxf(own.error, all[i].error), fmaxf(own.size, all[i].size),
               fmaxf(own.weight, all[i].weight)};
    m.bounds[blockIdx.x] = {own.error, own.size};
    atomicMax((unsigned *)&m.header->error, __float_as_uint(own.error));
    atomicMax((unsigned *)&m.header->weight, __float_as_uint(own.weight));
}

/* Whether the bytes, step and bounds of a row hold; by a warp. */
__device__ __forceinline__ bool row_holds(const cuda_screen_build &m, int64_t row)
{
    const gumbel_tensor &t = m.weight;
    const gumbel_screen_block bound = m.bounds[row / GUMBEL_BLOCK];
    const double step = (double)m.steps[row];
    const int at = operand_row((int)(row % CUDA_SCREEN_TILE));
    const int8_t *tiles =
        m.copy + row / CUDA_SCREEN_TILE * m.depths * CUDA_SCREEN_TILE * CUDA_SCREEN_TILE;
    double error = 0.0, size = 0.0, weight = 0.0, max_residual = 0.0;
    bool is_finite = true, is_in_range = true;
    for (int64_t i = threadIdx.x % 32; i < t.cols; i += 32) {
        const int in = (int)(i % CUDA_SCREEN_TILE);
        const double w = (double)widen_element(t.data, t.dtype, row * t.stride + i);
        const double q =
            (double)tiles[(i / CUDA_SCREEN_TILE * CUDA_SCREEN_TILE + at) * CUDA_SCREEN_TILE +
                          ((in / 16) ^ (at % 8)) * 16 + in % 16];
        const int32_t d = m.dither[i];
        const double residual = w / step - (q - (double)d * (double)GUMBEL_SCREEN_DITHER_UNIT);
        is_in_range = is_in_range && d >= -(1 << 23) && d < 1 << 23;
        is_finite = is_finite && fabs(w) < INFINITY;
        error += residual * residual;
        size += q * q;
        weight += w * w;
        max_residual = fmax(max_residual, fabs(residual));
    }
    const bool entries_hold =
        !__any_sync(~0u, !is_in_range || max_residual > (double)GUMBEL_SCREEN_ENTRY);
    if (__any_sync(~0u, !is_finite))
        return isnan(step);
    error = sqrt(add_over_warp(error));
    size = sqrt(add_over_warp(size));
    weight = sqrt(add_over_warp(weight));
    return step > 0.0 && entries_hold && error <= (double)bound.error &&
           size <= (double)bound.size && bound.error <= m.header->error &&
           weight <= step * ((double)bound.size + (double)bound.error) &&
           weight <= (double)m.header->weight;
}

} // namespace

extern "C" __global__ void gumbel_begin_screen(const __grid_constant__ cuda_screen_build m)
{
    if (threadIdx.x == 0)
        *m.header = m.initial_header;
}

extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_MAKE_THREADS)
    gumbel_store_dither(const __grid_constant__ cuda_screen_dither d)
{
    for (int i = threadIdx.x; i < d.count; i += CUDA_SCREEN_MAKE_THREADS)
        d.to[i] = d.values[i];
}

extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_MAKE_THREADS)
    gumbel_make_screen(const __grid_constant__ cuda_screen_build m)
{
    make_block(m);
}

/* Writes the checksum that makes the header valid. */
extern "C" __global__ void gumbel_seal_screen(const __grid_constant__ cuda_screen_build m)
{
    if (threadIdx.x == 0)
        m.header->check = checksum_of(*m.header);
}

/* Lowers *fault to the first row for which the screen does not hold, or to CUDA_SCREEN_IS_OTHER if
 * the screen is not of this head. *fault begins above both. */
extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_MAKE_THREADS)
    gumbel_verify_screen(const __grid_constant__ cuda_screen_build m)
{
    gumbel_problem p = {};
    p.weight = m.weight;
    p.vocab = m.weight.rows;
    p.hidden_size = m.weight.cols;
    const bool is_own = is_screen_of(*m.header, p);
    for (int i = threadIdx.x / 32; i < GUMBEL_BLOCK; i += kMakeWarps) {
        const int64_t row = (int64_t)blockIdx.x * GUMBEL_BLOCK + i;
        if (row >= m.weight.rows || (is_own && row_holds(m, row)))
            continue;
        if (threadIdx.x % 32 == 0)
            atomicMin(m.fault, is_own ? (unsigned long long)row : CUDA_SCREEN_IS_OTHER);
    }
}
