/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits a hidden state into two planes of bytes, and computes the terms that the split adds to the
 * error bounds (docs/maths.md, section 14). A CTA splits a row, in four passes over it. Outliers
 * are elements above a limit. Any limit gives a valid bound; the least bound of three limits is
 * used.
 */
#ifndef GUMBEL_CUDA_SCREEN_SPLIT_CUH
#define GUMBEL_CUDA_SCREEN_SPLIT_CUH

#include "cuda/common/widen.cuh"
#include "cuda/fused/screen/screen_case.cuh"

namespace
{

/* One more warp checks whether the screen belongs to the head. */
constexpr int kSplitThreads = CUDA_SCREEN_SPLIT_THREADS - 32, kSplitWarps = kSplitThreads / 32;
static_assert(kSplitWarps == 16, "sum_over_cta() reduces over 16 warps");
/* Factors that cover the rounding of sums and roots in float64, and of conversion to float32. */
constexpr double kUp = 1.0 + 1e-9, kFloatUp = 1.0 + 0x1p-20;

__device__ __forceinline__ float float_above(double x) { return (float)(x * kUp * kFloatUp); }

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
           h.layout == GUMBEL_SCREEN_LAYOUT_TILES && h.rows == q.vocab &&
           h.columns == q.hidden_size && h.dtype == (uint32_t)q.weight.dtype && h.list_max >= 1 &&
           h.list_max <= GUMBEL_SCREEN_LIST_MAX && h.check == check;
}

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
    __device__ __forceinline__ gumbel_screen_hidden_error split_hidden() const
    {
        const float weight = s.header->weight, error = s.header->error;
        gumbel_screen_hidden_error hidden_error = {__uint_as_float(0x7fc00000), 0, 0, 0, 0};
        uint32_t max_bits = 0;
        double square[1] = {0.0};
        each([&](int, const float(&h)[8]) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                max_bits = max(max_bits, __float_as_uint(fabsf(h[i])));
                square[0] += (double)h[i] * (double)h[i];
            }
        });
        max_bits = __reduce_max_sync(~0u, max_bits);
        if (threadIdx.x % 32 == 0)
            shared.max_bits[threadIdx.x / 32] = max_bits;
        sum_over_cta(square);
        for (int i = 0; i < kSplitWarps; i++)
            max_bits = max(max_bits, shared.max_bits[i]);
        const double norm = sqrt(square[0]) * kUp;
        if (max_bits >= 0x7f800000u || !(norm < GUMBEL_SCREEN_HIDDEN_MAX) ||
            !(norm * (double)weight < GUMBEL_SCREEN_LOGIT_MAX)) {
            clear();
            return hidden_error;
        }
        hidden_error.unit = (float)((double)__uint_as_float(max_bits) / (256 * 127) * kFloatUp);
        hidden_error.unit = fmaxf(hidden_error.unit, 0x1p-100f);
        hidden_error.rounding = (float)(s.gamma * norm * kFloatUp);
        hidden_error.dithered = GUMBEL_SCREEN_WIDTH_MIN;
        const double entry = fmin((double)GUMBEL_SCREEN_ENTRY, (double)error);
        double best = INFINITY, inlier_norm = norm;
        for (int step = 0; step < 3; step++) {
            const float limit = error > 0.0f ? (float)(2 * inlier_norm * entry / error) : INFINITY;
            double sums[2] = {};
            if (step == 0)
                hidden_error.residual = split_all(limit, (double)hidden_error.unit, sums);
            else {
                each([&](int, const float(&h)[8]) { split_outliers(h, limit, sums); });
                sum_over_cta(sums);
            }
            inlier_norm = sqrt(sums[1]) * kUp;
            if (entry * sums[0] + (double)error * inlier_norm < best) {
                best = entry * sums[0] + (double)error * inlier_norm;
                hidden_error.outlier_sum = float_above(sums[0]);
                hidden_error.inlier_norm = float_above(inlier_norm);
            }
        }
        return hidden_error;
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

    template <class F> __device__ __forceinline__ void each(F f) const
    {
        const uint4 *from = (const uint4 *)s.hidden_of(row);
        for (int v = threadIdx.x; v < vectors; v += kSplitThreads) {
            const uint4 raw = from[v];
            const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
            float h[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t bits = i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffff;
                h[i] = s.call.problem.hidden.dtype == GUMBEL_FLOAT16 ? widen_f16(bits)
                                                                     : widen_bf16(bits);
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

} // namespace

#endif
