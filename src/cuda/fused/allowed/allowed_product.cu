/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   stores the logits of the tokens that masks allow, on Hopper, for rows that allow few. All
 *        other logits stay unwritten; the kernels that follow apply the masks again.
 * COST   D weights of each allowed token of eight rows, once, and a chain of D / 16 wgmmas for each
 *        32 of them; V / 8 bytes of mask a row.
 * MAP    CTAs are split over groups of eight rows, and the CTAs of a group over the bytes of their
 *        masks in turn, so that neighbouring tokens go to different CTAs. A token that any row of
 *        the group allows is multiplied with all of them.
 * SMEM   the ring of gathered_product.cuh, and tokens that wait for their product.
 * SYNC   no CTA waits for another.
 * NUMERICS  as the logits that fused_sm90.cu stores, bit for bit.
 */
#include "core/row.h"
#include "cuda/common/widen.cuh"
#include "cuda/fused/screen/gathered_product.cuh"

namespace
{

constexpr int kThreads = CUDA_SCREEN_SCORE_THREADS;
/* Tokens that wait: those of a byte a thread, and fewer than one product takes. */
constexpr int kWaiting = 8 * kThreads + kScoreRows;

struct allowed_shared {
    gathered_rows rows;
    const int32_t *masks[kGroup]; /* NULL: the row is not drawn */
    uint32_t tokens[kScoreRows];  /* of rows.weights: offsets from the first token */
    uint32_t waiting[kWaiting];   /* the same */
    int count;                    /* of `waiting` */
};
static_assert(sizeof(allowed_shared) <= CUDA_ALLOWED_SIDE_BYTES, "the launch has this size");

template <bool half> class allowed_product
{
    const cuda_params &p;
    allowed_shared &shared;
    const gathered_product<half> product;
    const int group;

  public:
    __device__ __forceinline__ allowed_product(const cuda_params &params, allowed_shared &memory,
                                               unsigned char *ring, int of_rows)
        : p(params), shared(memory),
          product(params, memory.rows, ring,
                  min(kGroup, (int)params.problem.batch - kGroup * of_rows)),
          group(of_rows)
    {
    }

    /* Loads the rows of the group; ends with a barrier. */
    __device__ __forceinline__ void load_rows() const
    {
        const gumbel_problem &q = p.problem;
        const int64_t b = (int64_t)kGroup * group + threadIdx.x;
        if (threadIdx.x < kGroup) {
            const bool is_drawn = b < q.batch && gumbel_problem_row_flags(&q, b) == 0;
            shared.masks[threadIdx.x] = is_drawn ? gumbel_problem_mask(&q, b) : nullptr;
            if (b < q.batch)
                shared.rows.hidden[threadIdx.x] =
                    (const uint16_t *)q.hidden.data + b * q.hidden.stride;
        }
        if (threadIdx.x == 0)
            shared.count = 0;
        __syncthreads();
    }

    /* Stores the logits of the group's tokens, as number `member` of `members` CTAs. */
    __device__ __forceinline__ void store_all(int member, int members) const
    {
        const int64_t end = (p.problem.end_token + 7) / 8, turn = (int64_t)kThreads * members;
        for (int64_t from = p.problem.first_token / 8 + member; from < end; from += turn) {
            const int64_t at = from + (int64_t)members * threadIdx.x;
            if (at < end)
                add_tokens(at);
            __syncthreads();
            int count = shared.count;
            __syncthreads(); /* all threads have read the count before it changes */
            const int min_count = from + turn < end ? kScoreRows : 1; /* the last turn stores all */
            while (count >= min_count)
                count = store_waiting(count);
        }
    }

  private:
    /* The tokens 8 * at .. 8 * at + 7 that any row allows, and that count. */
    __device__ __forceinline__ uint32_t find_allowed(int64_t at) const
    {
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < kGroup; i++)
            if (shared.masks[i])
                bits |= (uint32_t)__ldcg(&shared.masks[i][at / 4]);
        bits = bits >> 8 * (at % 4) & 0xff;
        const int64_t skipped = p.problem.first_token - 8 * at,
                      counted = p.problem.end_token - 8 * at;
        bits = skipped > 0 ? bits >> skipped << skipped : bits;
        return counted < 8 ? bits & ((1u << counted) - 1) : bits;
    }

    __device__ __forceinline__ void add_tokens(int64_t at) const
    {
        uint32_t bits = find_allowed(at);
        if (bits == 0)
            return;
        const uint32_t first = (uint32_t)(8 * at - p.problem.first_token);
        for (int place = atomicAdd(&shared.count, __popc(bits)); bits; bits &= bits - 1)
            shared.waiting[place++] = first + (uint32_t)__ffs(bits) - 1;
    }

    /* Stores the logits of the last tokens that wait; returns how many remain. */
    __device__ __forceinline__ int store_waiting(int waiting) const
    {
        const gumbel_problem &q = p.problem;
        const int count = min(waiting, kScoreRows), first = waiting - count;
        if ((int)threadIdx.x < count) {
            const uint32_t token = shared.waiting[first + threadIdx.x];
            shared.tokens[threadIdx.x] = token;
            shared.rows.weights[threadIdx.x] =
                (const uint16_t *)q.weight.data + token * q.weight.stride;
        }
        if (threadIdx.x == 0) {
            shared.rows.count = count;
            shared.count = first;
        }
        __syncthreads();
        float sum[4] = {};
        product.multiply(sum);
        product.each(sum, [&](int at, int column, float logit) { store(at, column, logit); });
        __syncthreads(); /* the tokens may change */
        return first;
    }

    __device__ __forceinline__ void store(int at, int column, float logit) const
    {
        const gumbel_tensor &bias = p.problem.bias;
        const int64_t token = shared.tokens[at], b = (int64_t)kGroup * group + column;
        if (shared.masks[column])
            p.logits_out[b * p.logits_out_stride + token] =
                logit + (bias.data ? widen_element(bias.data, bias.dtype, token) : -0.0f);
    }
};

template <bool half> __device__ __forceinline__ void store_allowed(const cuda_params &p)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    allowed_shared &shared =
        *(allowed_shared *)(shared_memory + CUDA_SCREEN_SEGMENTS * CUDA_SCREEN_SEGMENT_BYTES);
    const int groups = (int)((p.problem.batch + kGroup - 1) / kGroup);
    const int group = blockIdx.x % groups, member = blockIdx.x / groups;
    const int members = ((int)gridDim.x - group + groups - 1) / groups;
    const allowed_product<half> own(p, shared, shared_memory, group);
    ptx_wait_for_launch();
    ptx_allow_launch();
    own.load_rows();
    own.store_all(member, members);
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_store_allowed_bf16(const __grid_constant__ cuda_params p)
{
    store_allowed<false>(p);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_store_allowed_f16(const __grid_constant__ cuda_params p)
{
    store_allowed<true>(p);
}
