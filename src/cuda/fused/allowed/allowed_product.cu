/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   stores the logits of the tokens that masks allow, on Hopper, for rows that allow few. All
 *        other logits stay unwritten; the kernels that follow apply the masks again.
 *        If the masks are still to be made of short lists, the kernel reads the lists and also
 *        makes the masks, which saves a launch.
 * COST   D weights of each allowed token of eight rows, once, and a chain of D / 16 wgmmas for each
 *        32 of them; V / 8 bytes of mask a row. From lists, a token listed twice is multiplied
 *        twice.
 * MAP    CTAs are split over groups of eight rows, and the CTAs of a group over the bytes of their
 *        masks, or over the ids of their lists, in turn, so that neighbouring tokens go to
 *        different CTAs. A token that any row of the group allows is multiplied with all of them.
 *        The last CTAs take the tiles of the masks.
 * SMEM   the ring of gathered_product.cuh, and tokens that wait for their product.
 * SYNC   no CTA waits for another.
 * NUMERICS  as the logits that fused_sm90.cu stores, bit for bit.
 */
#include "cuda/common/allowed_mask.cuh"
#include "cuda/common/widen.cuh"
#include "cuda/fused/allowed/allowed_params.h"
#include "cuda/fused/screen/gathered_product.cuh"

namespace
{

constexpr int kThreads = CUDA_SCREEN_SCORE_THREADS;
/* Tokens that wait: those of a byte a thread, and fewer than one product takes. */
constexpr int kWaiting = 8 * kThreads + kScoreRows;
static_assert(kWaiting >= kMaskTileWords, "their memory holds a tile of a mask");

/* The list of a row: ids[begin] and on. */
struct row_list {
    int64_t begin, count;
};

struct allowed_shared {
    gathered_rows rows;
    bool is_drawn[kGroup];
    const int32_t *masks[kGroup]; /* of drawn rows, unless they have lists */
    row_list lists[kGroup];       /* of drawn rows, if they have lists; count 0: not drawn */
    int64_t listed;               /* ids of all lists; -1: a drawn row allows every token */
    uint32_t tokens[kScoreRows];  /* of rows.weights: offsets from the first token */
    uint32_t waiting[kWaiting];   /* the same */
    int count;                    /* of `waiting` */
};
static_assert(sizeof(allowed_shared) <= CUDA_ALLOWED_SIDE_BYTES, "the launch has this size");

template <bool half> class allowed_product
{
    const cuda_params &p;
    const bool by_lists;
    allowed_shared &shared;
    const gathered_product<half> weight_product;
    const int group;

  public:
    __device__ __forceinline__ allowed_product(const cuda_allowed_params &params,
                                               allowed_shared &memory, unsigned char *ring,
                                               int of_rows)
        : p(params.call), by_lists(params.new_masks != nullptr), shared(memory),
          weight_product(params.call, memory.rows, ring,
                         min(kGroup, (int)params.call.problem.batch - kGroup * of_rows)),
          group(of_rows)
    {
    }

    /* Loads the rows of the group; ends with a barrier. */
    __device__ __forceinline__ void load_rows() const
    {
        const gumbel_problem &q = p.problem;
        const int i = threadIdx.x;
        const int64_t b = (int64_t)kGroup * group + i;
        if (i < kGroup) {
            shared.is_drawn[i] = b < q.batch && gumbel_problem_row_flags(&q, b) == 0;
            shared.masks[i] = nullptr;
            shared.lists[i] = {0, 0};
            if (b < q.batch)
                shared.rows.hidden[i] = (const uint16_t *)q.hidden.data + b * q.hidden.stride;
            if (shared.is_drawn[i])
                load_allowed(i, b);
        }
        if (i == 0)
            shared.count = 0;
        __syncthreads();
        if (i == 0) {
            shared.listed = 0;
            for (int row = 0; row < kGroup; row++)
                shared.listed += shared.lists[row].count;
            for (int row = 0; row < kGroup && by_lists; row++)
                if (shared.is_drawn[row] && shared.lists[row].count == 0)
                    shared.listed = -1;
        }
        __syncthreads();
    }

    /* Stores the logits of the group's tokens, as number `member` of `members` CTAs. */
    __device__ __forceinline__ void store_all(int member, int members) const
    {
        const int64_t first = p.problem.first_token / 8, end = (p.problem.end_token + 7) / 8;
        if (by_lists && shared.listed >= 0)
            store_units(0, shared.listed, member, members,
                        [&](int64_t at) { add_tokens(find_listed(at), 1); });
        else
            store_units(first, end, member, members, [&](int64_t at) {
                add_tokens(8 * at - p.problem.first_token, find_allowed(at));
            });
    }

  private:
    __device__ __forceinline__ void load_allowed(int i, int64_t b) const
    {
        const gumbel_problem &q = p.problem;
        if (!by_lists) {
            shared.masks[i] = gumbel_problem_mask(&q, b);
            return;
        }
        const int64_t *offsets = q.transforms.allowed.offsets + gumbel_problem_list_of_row(&q, b);
        shared.lists[i] = {offsets[0], offsets[1] - offsets[0]};
    }

    /* Calls add(unit), which appends at most eight tokens that wait, for this CTA's share of the
     * units [first, end), and stores the logits of all. */
    template <class F>
    __device__ __forceinline__ void store_units(int64_t first, int64_t end, int member, int members,
                                                F add) const
    {
        const int64_t turn = (int64_t)kThreads * members;
        for (int64_t from = first + member; from < end; from += turn) {
            const int64_t at = from + (int64_t)members * threadIdx.x;
            if (at < end)
                add(at);
            __syncthreads();
            int count = shared.count;
            __syncthreads(); /* all threads have read the count before it changes */
            const int min_count = from + turn < end ? kScoreRows : 1; /* the last turn stores all */
            while (count >= min_count)
                count = store_waiting(count);
        }
    }

    /* Bits of the tokens 8 * at .. 8 * at + 7 that any row allows. */
    __device__ __forceinline__ uint32_t find_allowed(int64_t at) const
    {
        uint32_t bits = by_lists ? ~0u : 0;
#pragma unroll
        for (int i = 0; i < kGroup; i++)
            if (shared.masks[i])
                bits |= (uint32_t)__ldcg(&shared.masks[i][at / 4]);
        return bits >> 8 * (at % 4) & 0xff;
    }

    /* The offset from the first token of number `at` of the group's ids. */
    __device__ __forceinline__ int64_t find_listed(int64_t at) const
    {
        int row = 0;
        while (at >= shared.lists[row].count)
            at -= shared.lists[row++].count;
        return p.problem.transforms.allowed.ids[shared.lists[row].begin + at] -
               p.problem.first_token;
    }

    /* Appends the tokens first + i, as offsets from the first token, for each bit i of eight, if
     * they count. */
    __device__ __forceinline__ void add_tokens(int64_t first, uint32_t bits) const
    {
        const int64_t counted = p.problem.end_token - p.problem.first_token - first;
        bits = first < 0 ? bits >> min(-first, (int64_t)8) << min(-first, (int64_t)8) : bits;
        bits = counted < 8 ? bits & ((1u << max(counted, (int64_t)0)) - 1) : bits;
        if (bits == 0)
            return;
        for (int place = atomicAdd(&shared.count, __popc(bits)); bits; bits &= bits - 1)
            shared.waiting[place++] = (uint32_t)(first + __ffs(bits) - 1);
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
        weight_product.multiply(sum);
        weight_product.each(sum,
                            [&](int at, int column, float logit) { store(at, column, logit); });
        __syncthreads(); /* the tokens may change */
        return first;
    }

    __device__ __forceinline__ void store(int at, int column, float logit) const
    {
        const gumbel_tensor &bias = p.problem.bias;
        const int64_t token = shared.tokens[at], b = (int64_t)kGroup * group + column;
        if (shared.is_drawn[column])
            p.logits_out[b * p.logits_out_stride + token] =
                logit + (bias.data ? widen_element(bias.data, bias.dtype, token) : -0.0f);
    }
};

/* Makes the masks of all rows' lists, in tiles, of which the last CTAs take one each first. `bits`
 * is in shared memory that no thread uses any more. */
__device__ __forceinline__ void make_masks(const cuda_allowed_params &s, uint32_t *bits)
{
    const gumbel_problem &q = s.call.problem;
    const int64_t units = q.batch * s.mask_tiles;
    for (int64_t at = gridDim.x - 1 - blockIdx.x; at < units; at += gridDim.x) {
        const int64_t b = at / s.mask_tiles;
        make_mask_tile<kThreads>(q, b, at % s.mask_tiles, nullptr, bits,
                                 s.new_masks + b * s.mask_words, s.mask_words);
        __syncthreads(); /* the bits may change */
    }
}

template <bool half> __device__ __forceinline__ void store_allowed(const cuda_allowed_params &s)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    allowed_shared &shared =
        *(allowed_shared *)(shared_memory + CUDA_SCREEN_SEGMENTS * CUDA_SCREEN_SEGMENT_BYTES);
    const int groups = (int)((s.call.problem.batch + kGroup - 1) / kGroup);
    const int group = blockIdx.x % groups, member = blockIdx.x / groups;
    const int members = ((int)gridDim.x - group + groups - 1) / groups;
    const allowed_product<half> own(s, shared, shared_memory, group);
    ptx_wait_for_launch();
    ptx_allow_launch();
    own.load_rows();
    own.store_all(member, members);
    if (s.new_masks)
        make_masks(s, shared.waiting);
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_store_allowed_bf16(const __grid_constant__ cuda_allowed_params s)
{
    store_allowed<false>(s);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_store_allowed_f16(const __grid_constant__ cuda_allowed_params s)
{
    store_allowed<true>(s);
}
