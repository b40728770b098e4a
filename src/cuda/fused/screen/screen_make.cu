/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   makes the screen of a head: each row of weights as bytes with a scale (step), rounded
 *        behind the dither of the columns, and for each 64 rows bounds of the error of those bytes
 *        (docs/maths.md, section 14); the header is written last. Nibbles first get the scales of
 *        the columns, from a sample of the rows. Also verifies a screen.
 * COST   the weights are read twice, the second time mostly from the caches, and half as many bytes
 *        are written.
 * MAP    a CTA for 64 rows, a warp for one row at a time; lane i takes columns 4 i to 4 i + 3 of
 *        every 128. Samples: a thread for a column.
 * NUMERICS  steps, scales and bytes are the CPU's, bit for bit. Sums of squares in float64, of
 *        errors w - s (q - d), which are rounded by less than 2^-45 s; w of nibbles is the float32
 *        quotient of weight and scale.
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

/* Four columns: the dither, and the inverse scales, which are 1 without nibbles. */
struct four_columns {
    int32_t dither[4];
    float inverse_scale[4];
};

template <bool nibbles> __device__ __forceinline__ four_columns load_columns(const int32_t *dither)
{
    const uint4 raw = *(const uint4 *)dither;
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    four_columns c;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        c.dither[i] = nibbles ? gumbel_screen_column_dither(words[i]) : (int32_t)words[i];
        c.inverse_scale[i] =
            nibbles ? gumbel_screen_compute_inverse_scale(gumbel_screen_column_scale(words[i]))
                    : 1.0f;
    }
    return c;
}

/* load_four(), divided by the scales of the columns. */
__device__ __forceinline__ four load_scaled(const gumbel_tensor &t, int64_t row, int64_t column,
                                            const four_columns &c)
{
    four f = load_four(t, row, column);
#pragma unroll
    for (int i = 0; i < 4; i++)
        f.w[i] *= c.inverse_scale[i];
    return f;
}

__device__ __forceinline__ double add_over_warp(double x)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

/* Error, norm of the bytes and norm of the weights of a row, rounded up. */
struct row_bounds {
    float error, size, weight;
};

/* Sums of squares over columns of a row: of s times the errors, the bytes, their high nibbles (in
 * place, if they are stored apart) and the weights. */
struct row_sums {
    double error, size, coarse, weight;
};

/* Bounds from a lane's sums; by a warp. The size also bounds the norm of w / s. 2^-45 sqrt(D)
 * bounds the norm of the errors' rounding. */
__device__ __forceinline__ row_bounds bound_row(const row_sums &sums, double step, int64_t columns)
{
    const double error = sqrt(add_over_warp(sums.error)) / step + 0x1p-45 * sqrt((double)columns);
    const double size = sqrt(fmax(add_over_warp(sums.size), add_over_warp(sums.coarse)));
    const double weight = sqrt(add_over_warp(sums.weight));
    return {(float)(error * kMakeUp * kMakeFloatUp),
            (float)(fmax(size, weight / step) * kMakeUp * kMakeFloatUp),
            fmaxf((float)(weight * kMakeUp * kMakeFloatUp), GUMBEL_SCREEN_STEP_MIN)};
}

/* The square of a byte's high nibble, in place. */
__device__ __forceinline__ double square_high_nibble(int32_t q)
{
    const int32_t high = q & ~15;
    return (double)(high * high);
}

/* Quantizes four columns to a word of four bytes; adds to the sums. */
template <bool nibbles>
__device__ __forceinline__ uint32_t quantize_four(const four &f, const four_columns &c, float step,
                                                  float inverse, row_sums &sums)
{
    uint32_t bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float unused;
        const int32_t q = gumbel_screen_round(f.w[i] * inverse, c.dither[i], &unused);
        const double u = (double)c.dither[i] * (double)GUMBEL_SCREEN_DITHER_UNIT;
        const double w = (double)f.w[i], error = w - (double)step * ((double)q - u);
        sums.error += error * error;
        sums.size += (double)(q * q);
        sums.coarse += nibbles ? square_high_nibble(q) : 0.0;
        sums.weight += w * w;
        bytes |= (uint32_t)(uint8_t)q << (8 * i);
    }
    return bytes;
}

/* Bytes of a row of a tile: of the copy, or of either half of a copy of nibbles. */
template <bool nibbles> constexpr int kRowBytes = nibbles ? CUDA_SCREEN_TILE / 2 : CUDA_SCREEN_TILE;

/* Offset of a row in the first tile of its rows. */
template <bool nibbles>
__device__ __forceinline__ int64_t find_row(const cuda_screen_build &m, int64_t row)
{
    const int64_t tile = row / CUDA_SCREEN_TILE * m.depths;
    return (tile * CUDA_SCREEN_TILE + operand_row((int)(row % CUDA_SCREEN_TILE))) *
           kRowBytes<nibbles>;
}

/* Stores the bytes of 128 columns of a row, a word of each lane; by a warp. Columns of the two
 * halves of a byte of nibbles belong to lanes i and i + 8: the first one stores the high nibbles,
 * the other one the low nibbles. The nibble n - 8 is the high one of the byte q. */
template <bool nibbles>
__device__ __forceinline__ void store_word(const cuda_screen_build &m, int64_t at, uint32_t bytes)
{
    const int lane = threadIdx.x % 32;
    if (!nibbles) {
        const int row = (int)(at / CUDA_SCREEN_TILE % 8);
        *(uint32_t *)(m.copy + at + ((lane / 4) ^ row) * 16 + lane % 4 * 4) = bytes;
        return;
    }
    const uint32_t other = __shfl_xor_sync(~0u, bytes, 8), mask = 0x0f0f0f0fu;
    const bool is_low = lane / 8 % 2;
    const int word = 2 * (lane / 16) + lane / 4 % 2;
    *(uint32_t *)((is_low ? m.low_nibbles : m.copy) + at + lane % 4 * 16 + 4 * word) =
        is_low ? (other & mask) | (bytes & mask) << 4 : (bytes >> 4 & mask) | (other & ~mask);
}

/* The byte q of a column of a row whose find_row() is `at`. */
template <bool nibbles>
__device__ __forceinline__ int load_byte(const cuda_screen_build &m, int64_t at, int64_t column)
{
    const int in = (int)(column % CUDA_SCREEN_TILE);
    at += column / CUDA_SCREEN_TILE * CUDA_SCREEN_TILE * kRowBytes<nibbles>;
    if (!nibbles)
        return m.copy[at + ((in / 16) ^ (int)(at / CUDA_SCREEN_TILE % 8)) * 16 + in % 16];
    at += in % 16 / 4 * 16 + 8 * (in / 64) + 4 * (in / 16 % 2) + in % 4;
    const int shift = in / 32 % 2 * 4;
    return (int8_t)((uint8_t)m.copy[at] >> shift << 4 | ((uint8_t)m.low_nibbles[at] >> shift & 15));
}

/* Bits of the largest scaled |w| of a row; by a warp. */
template <bool nibbles>
__device__ __forceinline__ uint32_t find_max_bits(const cuda_screen_build &m, int64_t row)
{
    uint32_t max_bits = 0;
    for (int k = 0; k < m.depths; k++) {
        const int column = k * CUDA_SCREEN_TILE + 4 * (threadIdx.x % 32);
        const four f = load_scaled(m.weight, row, column, load_columns<nibbles>(m.dither + column));
#pragma unroll
        for (int i = 0; i < 4; i++)
            max_bits = max(max_bits, __float_as_uint(fabsf(f.w[i])));
    }
    return __reduce_max_sync(~0u, max_bits);
}

/* Quantizes one row; by a warp. */
template <bool nibbles>
__device__ __forceinline__ row_bounds make_row(const cuda_screen_build &m, int64_t row)
{
    const int lane = threadIdx.x % 32;
    const int64_t at = find_row<nibbles>(m, row);
    const bool is_there = row < m.weight.rows;
    const uint32_t max_bits = is_there ? find_max_bits<nibbles>(m, row) : 0;
    const bool is_finite = max_bits < 0x7f800000u;
    const float max_weight = __uint_as_float(max_bits);
    const float step = nibbles ? gumbel_screen_choose_nested_step(max_weight)
                               : gumbel_screen_choose_step(max_weight);
    const float inverse = 1.0f / step;
    row_sums sums = {};
    for (int k = 0; k < m.depths; k++) {
        const int column = k * CUDA_SCREEN_TILE + 4 * lane;
        uint32_t bytes = 0;
        if (is_there && is_finite) {
            const four_columns c = load_columns<nibbles>(m.dither + column);
            bytes = quantize_four<nibbles>(load_scaled(m.weight, row, column, c), c, step, inverse,
                                           sums);
        }
        store_word<nibbles>(m, at + (int64_t)k * CUDA_SCREEN_TILE * kRowBytes<nibbles>, bytes);
    }
    if (lane == 0)
        m.steps[row] = !is_there ? 0.0f : is_finite ? step : __uint_as_float(0x7fc00000);
    return is_there && is_finite ? bound_row(sums, (double)step, m.weight.cols) : row_bounds{};
}

/* Quantizes the rows of a block and stores its bounds; by a CTA. */
template <bool nibbles> __device__ __forceinline__ void make_block(const cuda_screen_build &m)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    row_bounds *all = (row_bounds *)shared_memory; /* [kMakeWarps] */
    const int warp = threadIdx.x / 32;
    row_bounds own = {};
    for (int i = warp; i < GUMBEL_BLOCK; i += kMakeWarps) {
        const row_bounds row = make_row<nibbles>(m, (int64_t)blockIdx.x * GUMBEL_BLOCK + i);
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

/* The dither of a column, and a weight of it divided by its scale. */
template <bool nibbles>
__device__ __forceinline__ double read_dither(const cuda_screen_build &m, int64_t column)
{
    const uint32_t word = (uint32_t)m.dither[column];
    return nibbles ? (double)(word >> 12) * 0x1p-16 - 8.5
                   : (double)(int32_t)word * (double)GUMBEL_SCREEN_DITHER_UNIT;
}
template <bool nibbles>
__device__ __forceinline__ double read_weight(const cuda_screen_build &m, int64_t row,
                                              int64_t column)
{
    const float w = widen_element(m.weight.data, m.weight.dtype, row * m.weight.stride + column);
    const int scale = gumbel_screen_column_scale((uint32_t)m.dither[column]);
    return (double)(nibbles ? w * gumbel_screen_compute_inverse_scale(scale) : w);
}

/* Whether the bytes, step and bounds of a row hold; by a warp. All words of nibbles are valid. */
template <bool nibbles>
__device__ __forceinline__ bool row_holds(const cuda_screen_build &m, int64_t row)
{
    const gumbel_screen_block bound = m.bounds[row / GUMBEL_BLOCK];
    const double step = (double)m.steps[row];
    const int64_t at = find_row<nibbles>(m, row);
    row_sums sums = {};
    double max_residual = 0.0;
    bool is_finite = true, is_in_range = true;
    for (int64_t i = threadIdx.x % 32; i < m.weight.cols; i += 32) {
        const double w = read_weight<nibbles>(m, row, i), d = read_dither<nibbles>(m, i);
        const int q = load_byte<nibbles>(m, at, i);
        const double residual = w / step - ((double)q - d);
        is_in_range = is_in_range && (nibbles || (d >= -0.5 && d < 0.5));
        is_finite = is_finite && fabs(w) < INFINITY;
        sums.error += residual * residual;
        sums.size += (double)(q * q);
        sums.coarse += nibbles ? square_high_nibble(q) : 0.0;
        sums.weight += w * w;
        max_residual = fmax(max_residual, fabs(residual));
    }
    const bool entries_hold =
        !__any_sync(~0u, !is_in_range || max_residual > (double)GUMBEL_SCREEN_ENTRY);
    if (__any_sync(~0u, !is_finite))
        return isnan(step);
    const double error = sqrt(add_over_warp(sums.error)), size = sqrt(add_over_warp(sums.size));
    const double coarse = sqrt(add_over_warp(sums.coarse));
    const double weight = sqrt(add_over_warp(sums.weight));
    return step > 0.0 && entries_hold && error <= (double)bound.error &&
           fmax(size, coarse) <= (double)bound.size && bound.error <= m.header->error &&
           weight <= step * ((double)bound.size + (double)bound.error) &&
           weight <= (double)m.header->weight;
}

/* Stores the square of the norm of a column's sample, in the order of the CPU. */
__device__ __forceinline__ void measure_column(const cuda_screen_build &m, int64_t column)
{
    const gumbel_tensor &t = m.weight;
    double square = 0.0;
    for (int64_t row = 0; row < t.rows; row += GUMBEL_SCREEN_SAMPLE_STEP(t.rows)) {
        const double w = (double)widen_element(t.data, t.dtype, row * t.stride + column);
        square += fabs(w) < INFINITY ? w * w : 0.0;
    }
    m.squares[column] = square;
    /* Doubles that are not negative are ordered as their bits are. */
    atomicMax(m.max_square, (unsigned long long)__double_as_longlong(square));
}

} // namespace

extern "C" __global__ void gumbel_begin_screen(const __grid_constant__ cuda_screen_build m)
{
    if (threadIdx.x > 0)
        return;
    *m.header = m.initial_header;
    if (m.max_square)
        *m.max_square = 0;
}

extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_MAKE_THREADS)
    gumbel_store_dither(const __grid_constant__ cuda_screen_dither d)
{
    for (int i = threadIdx.x; i < d.count; i += CUDA_SCREEN_MAKE_THREADS)
        d.to[i] = d.values[i];
}

extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_TILE)
    gumbel_measure_columns(const __grid_constant__ cuda_screen_build m)
{
    const int64_t column = (int64_t)blockIdx.x * CUDA_SCREEN_TILE + threadIdx.x;
    if (column < m.weight.cols)
        measure_column(m, column);
}

extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_TILE)
    gumbel_choose_scales(const __grid_constant__ cuda_screen_build m)
{
    const int64_t column = (int64_t)blockIdx.x * CUDA_SCREEN_TILE + threadIdx.x;
    if (column < m.weight.cols)
        m.dither[column] |= (int32_t)gumbel_screen_choose_scale(
            m.squares[column], __longlong_as_double((long long)*m.max_square));
}

extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_MAKE_THREADS)
    gumbel_make_screen(const __grid_constant__ cuda_screen_build m)
{
    if (m.low_nibbles)
        make_block<true>(m);
    else
        make_block<false>(m);
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
    p.screen_format = m.low_nibbles ? GUMBEL_SCREEN_NIBBLES : GUMBEL_SCREEN_BYTES;
    const bool is_own = is_screen_of(*m.header, p);
    for (int i = threadIdx.x / 32; i < GUMBEL_BLOCK; i += kMakeWarps) {
        const int64_t row = (int64_t)blockIdx.x * GUMBEL_BLOCK + i;
        if (row >= m.weight.rows ||
            (is_own && (m.low_nibbles ? row_holds<true>(m, row) : row_holds<false>(m, row))))
            continue;
        if (threadIdx.x % 32 == 0)
            atomicMin(m.fault, is_own ? (unsigned long long)row : CUDA_SCREEN_IS_OTHER);
    }
}
