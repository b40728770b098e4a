/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   drafts verified (drafts/draft_walk.h): before a draw each row is told its request and its
 *        position; behind it each request walks from its root and emits. By a rule that weighs
 *        probabilities (drafts/rules.h) it is decided first what is emitted behind each node.
 * COST   some 40 bytes a row: nothing beside the launches. Rules: REJECTION reads both models' rows
 *        of the first node whose draft is rejected, 8 bytes a token, and makes noise where p > q;
 *        BLOCK reads those of every node, and of the last once more.
 * MAP    expand, choose: a thread a row. accept: a warp a request, whose lanes read its nodes; one
 *        lane walks. weigh: a CTA a request, whose threads share the tokens of a row.
 * SMEM   the nodes of a request, 20 bytes each; weigh: 12 bytes a thread.
 * SYNC   accept: one __syncwarp() between reading nodes and walking. weigh: __syncthreads() before
 *        and after each row, and around what lane 0 does alone.
 */
#include "drafts/rules.h"
#include "cuda/common/ptx.cuh"
#include "cuda/policy/cuda_policy.h"

namespace
{

constexpr int kWeighThreads = CUDA_WEIGH_THREADS;

/* [M] in shared memory, from a place on. */
__device__ __forceinline__ gumbel_node *nodes_of_request(int place)
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return (gumbel_node *)(shared_memory + place);
}

/* What the threads of a CTA bring together; nodes lie behind it. */
struct weigh_shared {
    union {
        double sums[kWeighThreads];
        gumbel_contender best[kWeighThreads];
    };
    int32_t emitted;
};
static_assert(sizeof(weigh_shared) <= CUDA_WEIGH_BYTES, "the launcher reserves that much");

__device__ __forceinline__ weigh_shared &shared_of_weighing()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return *(weigh_shared *)shared_memory;
}

/* Read the nodes of a request whose rows begin at `first`, by `threads`: whether those that this
 * thread has read can be. */
__device__ bool read_nodes(const gumbel_verification &v, int64_t r, gumbel_span span,
                           gumbel_node *nodes, int threads)
{
    bool sound = span.sound;
    for (int32_t j = threadIdx.x; j < span.count; j += threads) {
        nodes[j] = gumbel_draft_node(&v, r, span.first, j);
        sound &= nodes[j].parent != GUMBEL_PARENT_NONE;
    }
    return sound;
}

/* Whether request r has nodes to walk over, or such as cannot be. */
__device__ bool is_asked(const gumbel_verification &v, int64_t r, gumbel_span span)
{
    return r < gumbel_draft_live(&v) && !(span.sound && span.count == 0);
}

/* Both rows of node j. */
struct weighed_rows {
    const float *target, *draft;
    float target_lse, draft_lse;
};

__device__ __forceinline__ weighed_rows rows_of(const gumbel_chain *c, int32_t j)
{
    const gumbel_proposal *by = c->by;
    const int64_t b = c->first + j;
    return {by->target_rows + b * by->row_stride, by->draft_rows + b * by->row_stride,
            by->target_lse[b], by->draft_lse[b]};
}

/* The one of two that is drawn. */
__device__ __forceinline__ gumbel_contender better_of(gumbel_contender a, gumbel_contender b)
{
    if (a.id < 0 || b.id < 0)
        return a.id < 0 ? b : a;
    return b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;
}

/* Write what request r has come to; `w` is lane 0's, but for how many were emitted, all lanes'. */
__device__ void end_request(const gumbel_verification &v, int64_t r, const gumbel_walked &w,
                            int lanes)
{
    gumbel_draft_end(&v, r, &w, threadIdx.x, lanes);
    if (threadIdx.x != 0)
        return;
    gumbel_draft_advance(&v, r, w.emitted);
    if (v.verified.histogram && gumbel_walked_counts(&w))
        atomicAdd((unsigned long long *)&v.verified.histogram[gumbel_walked_accepted(&w)], 1ull);
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_expand_drafts(const __grid_constant__ gumbel_verification v)
{
    const int64_t b = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x;
    ptx_wait_for_launch();
    if (b == 0 && v.of_row.path_offsets)
        v.of_row.path_offsets[0] = 0;
    if (b < v.rows)
        gumbel_draft_row(&v, b);
}

extern "C" __global__ void __launch_bounds__(CUDA_DRAFT_THREADS)
    gumbel_accept_drafts(const __grid_constant__ gumbel_verification v)
{
    gumbel_node *nodes = nodes_of_request(0);
    const int64_t r = blockIdx.x;
    ptx_wait_for_launch();
    const gumbel_span span = gumbel_draft_span(&v, r);
    gumbel_walked w = gumbel_walked_not(GUMBEL_ROW_UNUSED);
    if (is_asked(v, r, span)) {
        const bool sound = !__any_sync(~0u, !read_nodes(v, r, span, nodes, CUDA_DRAFT_THREADS));
        w.status = GUMBEL_ROW_DRAFT;
        __syncwarp();
        if (sound && threadIdx.x == 0)
            w = gumbel_draft_walk(&v, r, span.first, nodes, span.count);
        w.emitted = __shfl_sync(~0u, w.emitted, 0);
    }
    end_request(v, r, w, CUDA_DRAFT_THREADS);
}

/* ------------------------------------------------------------------------------- weighed ---- */

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_choose_drafted(const __grid_constant__ gumbel_weighing p)
{
    const int64_t b = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x;
    ptx_wait_for_launch();
    if (b < p.verification.rows)
        gumbel_proposal_choose(&p.by, &p.verification, b);
}

/* Halves are added in one order, whatever runs beside. */
static __device__ gumbel_status gumbel_sum_residual(const gumbel_chain *c, int32_t j, double r,
                                                    double *sum, gumbel_error *)
{
    double *sums = shared_of_weighing().sums;
    const weighed_rows row = rows_of(c, j);
    double own = 0;
    for (int64_t i = threadIdx.x; i < c->by->target.vocab; i += kWeighThreads)
        own += gumbel_residual_of(row.target[i], row.target_lse, row.draft[i], row.draft_lse, r);
    __syncthreads();
    sums[threadIdx.x] = own;
    __syncthreads();
    for (int half = kWeighThreads / 2; half > 0; half /= 2) {
        if ((int)threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    *sum = sums[0];
    return GUMBEL_OK;
}

static __device__ gumbel_status gumbel_race_residual(const gumbel_chain *c, int32_t j, float r,
                                                     gumbel_stream stream, gumbel_contender *best,
                                                     gumbel_error *)
{
    gumbel_contender *bests = shared_of_weighing().best, own = {-1, -INFINITY, NAN};
    const weighed_rows row = rows_of(c, j);
    for (int64_t i = threadIdx.x; i < c->by->target.vocab; i += kWeighThreads)
        gumbel_offer_at(&own, i, c->by->target.first_token, row.target, row.target_lse, row.draft,
                        row.draft_lse, r, stream);
    __syncthreads();
    bests[threadIdx.x] = own;
    __syncthreads();
    for (int half = kWeighThreads / 2; half > 0; half /= 2) {
        if ((int)threadIdx.x < half)
            bests[threadIdx.x] = better_of(bests[threadIdx.x], bests[threadIdx.x + half]);
        __syncthreads();
    }
    *best = bests[0];
    return GUMBEL_OK;
}

extern "C" __global__ void __launch_bounds__(CUDA_WEIGH_THREADS)
    gumbel_weigh_drafts(const __grid_constant__ gumbel_weighing p)
{
    const gumbel_verification &v = p.verification;
    const int64_t r = blockIdx.x;
    ptx_wait_for_launch();
    const gumbel_span span = gumbel_draft_span(&v, r);
    gumbel_node *nodes = nodes_of_request(CUDA_WEIGH_BYTES);
    const gumbel_chain chain = {&p.by,      nullptr, &v,         r,
                                span.first, nodes,   span.count, (int32_t)threadIdx.x};
    gumbel_walked w = gumbel_walked_not(GUMBEL_ROW_UNUSED);
    if (is_asked(v, r, span)) {
        const bool unsound = __syncthreads_or(!read_nodes(v, r, span, nodes, kWeighThreads));
        w.status = GUMBEL_ROW_DRAFT;
        if (!unsound) {
            for (int32_t j = threadIdx.x; j < span.count; j += kWeighThreads)
                gumbel_draft_emits_draw(&v, span.first + j);
            __syncthreads();
            gumbel_decide_chain(&chain, nullptr);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            if (!unsound)
                w = gumbel_draft_walk(&v, r, span.first, nodes, span.count);
            shared_of_weighing().emitted = w.emitted;
        }
        __syncthreads();
        w.emitted = shared_of_weighing().emitted;
    }
    end_request(v, r, w, kWeighThreads);
}
