/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits a hidden state into two planes of bytes, and computes the terms that the split adds to the
 * error bounds (docs/maths.md, section 14). A CTA splits a row, in two to four passes over it.
 * Outliers are elements above a limit. Any limit gives a valid bound; the least bound of up to
 * three limits is used. A limit is the magnitude from which on one more outlier would lower
 * entry A + deviation R, for the R of the limit before.
 */
#ifndef GUMBEL_CUDA_SCREEN_SPLIT_CUH
#define GUMBEL_CUDA_SCREEN_SPLIT_CUH

#include "cuda/common/widen.cuh"
#include "cuda/fused/screen/screen_case.cuh"
#include "cuda/fused/screen/screen_law.cuh"

namespace
{

/* One more warp checks whether the screen belongs to the head. */
constexpr int kSplitThreads = CUDA_SCREEN_SPLIT_THREADS - 32, kSplitWarps = kSplitThreads / 32;
static_assert(kSplitWarps == 16, "sum_over_cta() reduces over 16 warps");

/* The checksum (FNV-1a) of a screen's header. */
__device__ __forceinline__ uint64_t checksum_of(const gumbel_screen_header &h)
{
    unsigned char bytes[offsetof(gumbel_screen_header, check)];
    uint64_t check = 0xcbf29ce484222325u;
    memcpy(bytes, &h, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        check = (check ^ bytes[i]) * 0x100000001b3u;
    return check;
}

/* Whether a screen belongs to the call's head. */
__device__ __forceinline__ bool is_screen_of(const gumbel_screen_header &h, const gumbel_problem &q)
{
    const uint64_t check = checksum_of(h);
    return h.magic == GUMBEL_SCREEN_MAGIC && h.version == GUMBEL_SCREEN_VERSION &&
           h.layout == (uint32_t)cuda_screen_layout_of(q.screen_format) && h.rows == q.vocab &&
           h.columns == q.hidden_size && h.dtype == (uint32_t)q.weight.dtype && h.list_max >= 1 &&
           h.list_max <= GUMBEL_SCREEN_LIST_MAX && h.check == check;
}

/* Error terms of a hidden state: by products of the bytes q and, of a CUDA_SCREEN_NESTED call, by
 * products of 16 (n - 8). */
struct split_errors {
    gumbel_screen_hidden_error fine, coarse;
};

/* Partial sums of the CTA's warps, and whether the screen belongs to the head. */
struct split_shared {
    double parts[5][kSplitWarps];
    uint32_t max_bits[kSplitWarps];
    uint32_t fits;
};

template <class call> class row_split
{
    const call &s;
    split_shared &shared;
    const int row;
    const int vectors; /* D / 8: a thread loads eight elements at a time */

  public:
    __device__ __forceinline__ row_split(const call &params, split_shared &memory, int b)
        : s(params), shared(memory), row(b), vectors((int)(params.call.problem.hidden_size / 8))
    {
    }

    /* Checks the screen's header; by the last warp, while the others split the row. */
    __device__ __forceinline__ void check_header() const
    {
        if (threadIdx.x == kSplitThreads)
            shared.fits = is_screen_of(*s.header, s.call.problem);
    }

    /* Writes the planes of the row and returns its error terms; writes zeros if the row has no
     * finite split. By the other warps. */
    __device__ __forceinline__ split_errors split_hidden() const
    {
        const float weight = s.header->weight;
        const gumbel_screen_hidden_error none = {__uint_as_float(0x7fc00000), 0, 0, 0, 0, 0, 0};
        gumbel_screen_hidden_error fine = none;
        double sums[kSums] = {};
        const uint32_t max_bits = measure_hidden(sums);
        const double norm = sqrt(sums[HIDDEN_SQUARE]) * kUp;
        if (max_bits >= 0x7f800000u || !(norm < GUMBEL_SCREEN_HIDDEN_MAX) ||
            !(norm * (double)weight < GUMBEL_SCREEN_LOGIT_MAX)) {
            clear();
            return {none, none};
        }
        fine.unit = (float)((double)__uint_as_float(max_bits) / (256 * 127) * kFloatUp);
        fine.unit = fmaxf(fine.unit, 0x1p-100f);
        /* Also the rounding of w times the inverse of the step, and by scales of columns. */
        fine.rounding = (float)((s.gamma + (call::nibbles ? 0x1p-20 : 0x1p-22)) * norm * kFloatUp);
        const error_law<call::nibbles> law(*s.header, 0.0f);
        double outliers[2] = {};
        const float limit = law.find_limit(norm);
        fine.residual = split_all(limit, (double)fine.unit, outliers);
        const outlier_bound best = find_best(law, limit, outliers);
        set_quantization(law, best, sums, fine);
        if constexpr (call::coarse)
            return {fine, find_coarse(fine, norm, sums, law.certain, best)};
        return {fine, none};
    }

    /* Copies the row to spread_hidden, which the full pass reads. */
    __device__ __forceinline__ void copy_for_full_pass() const
    {
        const uint4 *from = (const uint4 *)s.hidden_of(row);
        uint4 *to = (uint4 *)(s.spread_hidden + (int64_t)row * s.call.problem.hidden_size);
        for (int v = threadIdx.x; v < vectors; v += kSplitThreads)
            to[v] = __ldg(from + v);
    }

    /* Writes planes of zeros. */
    __device__ __forceinline__ void clear() const
    {
        for (int v = threadIdx.x; v < s.depths * (CUDA_SCREEN_TILE / 8); v += kSplitThreads)
            *(uint64_t *)plane_address(v, 0) = *(uint64_t *)plane_address(v, 1) = 0;
    }

  private:
    static constexpr int kSums = call::coarse ? HIDDEN_SUMS : HIDDEN_SUM;

    /* The terms of products of 16 (n - 8) with the same planes. If both laws are probable, the
     * best outliers are those of the fine law, and the bound is 16 times as large. */
    __device__ __forceinline__ gumbel_screen_hidden_error
    find_coarse(const gumbel_screen_hidden_error &fine, double norm, const double (&sums)[kSums],
                bool fine_is_certain, outlier_bound best) const
    {
        const error_law<call::nibbles, true> law(*s.header, s.low_nibbles_norm);
        gumbel_screen_hidden_error coarse = fine;
        best.bound *= law.scale;
        if (fine_is_certain || law.certain) {
            const float limit = law.find_limit(norm);
            double outliers[2] = {};
            sum_outliers(limit, outliers);
            best = find_best(law, limit, outliers);
        }
        set_quantization(law, best, sums, coarse);
        return coarse;
    }

    /* Computes HIDDEN_SUMS, and returns the bits of the largest magnitude. */
    __device__ __forceinline__ uint32_t measure_hidden(double (&sums)[kSums]) const
    {
        uint32_t max_bits = 0;
        each([&](int vector, const float(&h)[8]) {
            uint32_t words[8];
            load_columns(vector, words);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                max_bits = max(max_bits, __float_as_uint(fabsf(h[i])));
                sums[HIDDEN_SQUARE] += (double)h[i] * (double)h[i];
                sums[HIDDEN_MAGNITUDE] += (double)fabsf(h[i]);
                const int32_t d =
                    call::nibbles ? gumbel_screen_column_dither(words[i]) : (int32_t)words[i];
                sums[HIDDEN_SHIFT] += (double)d * (double)h[i];
                if constexpr (call::coarse)
                    sums[HIDDEN_SUM] += (double)h[i];
            }
        });
        max_bits = __reduce_max_sync(~0u, max_bits);
        if (threadIdx.x % 32 == 0)
            shared.max_bits[threadIdx.x / 32] = max_bits;
        sum_over_cta(sums);
        for (int i = 0; i < kSplitWarps; i++)
            max_bits = max(max_bits, shared.max_bits[i]);
        return max_bits;
    }

    /* The best of up to three limits of outliers, the first of which has these sums. */
    template <class error_law>
    __device__ __forceinline__ outlier_bound find_best(const error_law &law, float limit,
                                                       double (&sums)[2]) const
    {
        outlier_bound last = bound_outliers(law, sums), best = last;
#pragma unroll 1
        for (int i = 0; i < 2 && law.find_limit(last.inlier_norm) != limit; i++) {
            limit = law.find_limit(last.inlier_norm);
            sum_outliers(limit, sums);
            last = bound_outliers(law, sums);
            if (last.bound < best.bound)
                best = last;
        }
        return best;
    }

    /* Computes the sums of split_outliers(). */
    __device__ __forceinline__ void sum_outliers(float limit, double (&sums)[2]) const
    {
        sums[0] = sums[1] = 0.0;
        each([&](int, const float(&h)[8]) { split_outliers(h, limit, sums); });
        sum_over_cta(sums);
    }

    /* Clears the columns past the last one, up to a whole tile. */
    __device__ __forceinline__ void clear_behind() const
    {
        const int v = vectors + threadIdx.x;
        if (v < s.depths * (CUDA_SCREEN_TILE / 8))
            *(uint64_t *)plane_address(v, 0) = *(uint64_t *)plane_address(v, 1) = 0;
    }

    /* Writes the planes, computes the sums of split_outliers(), and returns the rounding error of
     * the split. */
    __device__ __forceinline__ float split_all(float limit, double unit,
                                               double (&outlier_sums)[2]) const
    {
        double sums[5] = {};
        each([&](int vector, const float(&h)[8]) {
            split_outliers(h, limit, sums);
            split_eight(h, vector, unit, sums);
        });
        clear_behind();
        sum_over_cta(sums);
        outlier_sums[0] = sums[0];
        outlier_sums[1] = sums[1];
        const double steps = 256 * sqrt(sums[3]) + sqrt(sums[4]);
        return float_above(sqrt(sums[2]) + 0x1p-21 * unit * steps);
    }

    /* Dither of eight columns, or gumbel_screen_column words of nibbles. */
    __device__ __forceinline__ void load_columns(int vector, uint32_t (&words)[8]) const
    {
        const uint4 *dither = (const uint4 *)s.dither + 2 * vector;
        const uint4 a = __ldg(dither), b = __ldg(dither + 1);
        const uint32_t all[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            words[i] = all[i];
    }

    /* Calls f for eight elements at a time, which for nibbles are multiplied by the scales of their
     * columns. */
    template <class F> __device__ __forceinline__ void each(F f) const
    {
        const uint4 *from = (const uint4 *)s.hidden_of(row);
        for (int v = threadIdx.x; v < vectors; v += kSplitThreads) {
            const uint4 raw = from[v];
            const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
            uint32_t columns[8];
            float h[8];
            if (call::nibbles)
                load_columns(v, columns);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t bits = i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffff;
                h[i] = s.call.problem.hidden.dtype == GUMBEL_FLOAT16 ? widen_f16(bits)
                                                                     : widen_bf16(bits);
                if (call::nibbles)
                    h[i] *= gumbel_screen_compute_scale(gumbel_screen_column_scale(columns[i]));
            }
            f(v, h);
        }
    }

    /* Adds the magnitudes of outliers to sums[0], the squares of other elements to sums[1]. */
    template <int count>
    static __device__ __forceinline__ void split_outliers(const float (&h)[8], float limit,
                                                          double (&sums)[count])
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const bool is_outlier = fabsf(h[i]) > limit;
            sums[0] += is_outlier ? (double)fabsf(h[i]) : 0.0;
            sums[1] += is_outlier ? 0.0 : (double)h[i] * (double)h[i];
        }
    }

    __device__ __forceinline__ void split_eight(const float (&h)[8], int vector, double unit,
                                                double (&sums)[5]) const
    {
        uint64_t high = 0, low = 0;
        int32_t of_high = 0, of_low = 0;
        const double inverse = 1.0 / unit;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int32_t k = (int32_t)rint((double)h[i] * inverse);
            const int32_t upper = (k + 128) >> 8, lower = k - upper * 256;
            const double r = (double)h[i] - unit * (double)k;
            sums[2] += r * r;
            of_high += upper * upper;
            of_low += lower * lower;
            high |= (uint64_t)(uint8_t)upper << (8 * i);
            low |= (uint64_t)(uint8_t)lower << (8 * i);
        }
        sums[3] += (double)of_high;
        sums[4] += (double)of_low;
        *(uint64_t *)plane_address(vector, 0) = high;
        *(uint64_t *)plane_address(vector, 1) = low;
    }

    /* Address of eight columns of a plane. The two planes are adjacent rows of the operand. */
    __device__ __forceinline__ int8_t *plane_address(int vector, int plane) const
    {
        const int column = 8 * vector, n = 2 * row + plane;
        const int unit = (column % CUDA_SCREEN_TILE / 16) ^ (n % 8);
        return s.planes + ((int64_t)(column / CUDA_SCREEN_TILE) * s.width + n) * CUDA_SCREEN_TILE +
               16 * unit + column % 16;
    }

    /* Sums over all threads of the split; every one of them gets the sums. */
    template <int count> __device__ __forceinline__ void sum_over_cta(double (&sums)[count]) const
    {
#pragma unroll
        for (int i = 0; i < count; i++)
#pragma unroll
            for (int lanes = 16; lanes > 0; lanes /= 2)
                sums[i] += __shfl_xor_sync(~0u, sums[i], lanes);
        ptx_named_barrier<1, kSplitThreads>(); /* the sums before have been read */
        if (threadIdx.x % 32 == 0)
#pragma unroll
            for (int i = 0; i < count; i++)
                shared.parts[i][threadIdx.x / 32] = sums[i];
        ptx_named_barrier<1, kSplitThreads>();
#pragma unroll
        for (int i = 0; i < count; i++) {
            sums[i] = shared.parts[i][threadIdx.x % kSplitWarps];
#pragma unroll
            for (int lanes = kSplitWarps / 2; lanes > 0; lanes /= 2)
                sums[i] += __shfl_xor_sync(~0u, sums[i], lanes);
        }
    }
};

static_assert(sizeof(split_shared) <= CUDA_SCREEN_SPLIT_BYTES, "the launch has this size");

/* Writes a row's planes, and clears its shared words and the state of the call. */
template <class call> __device__ __forceinline__ void split_row(const call &s)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    split_shared &shared = *(split_shared *)shared_memory;
    const int row = blockIdx.x;
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (row == 0 && threadIdx.x == 0)
        *s.state = {};
    if (row < s.draws && threadIdx.x < CUDA_THRESHOLD_WORDS)
        s.call.row_thresholds[CUDA_THRESHOLD_WORDS * row + threadIdx.x] = 0;
    if (call::truncates && row < s.draws)
        for (int tile = threadIdx.x; tile < s.call.tiles; tile += CUDA_SCREEN_SPLIT_THREADS)
            s.maxima[(int64_t)row * s.call.tiles + tile] = __uint_as_float(~0u); /* the least key */
    const row_split<call> own(s, shared, row);
    if (row >= s.draws || !s.is_live(row)) {
        if (threadIdx.x < kSplitThreads)
            own.clear();
        return;
    }
    split_errors errors = {};
    if (threadIdx.x < kSplitThreads) {
        if (call::sampled && s.spread_hidden)
            own.copy_for_full_pass();
        errors = own.split_hidden();
    } else
        own.check_header();
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    if (!shared.fits)
        errors.fine.unit = errors.coarse.unit = __uint_as_float(0x7fc00000);
    s.hidden_errors[row] = errors.fine;
    if (call::coarse)
        s.coarse_errors[row] = errors.coarse;
}

} // namespace

#endif
