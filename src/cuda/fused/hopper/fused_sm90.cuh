/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the fused draw on Hopper (eq. 1 to 4; FlashSampling, Algorithm 2). Calls with statistics
 *        also exclude banned tokens, and compute entropies and the two largest z of each row
 *        (statistics_sm90.cuh). For rows with other transforms or truncation, the kernel stores
 *        logits instead: all of them, or those above a bound (bound_sm90.cuh), and the maximum of
 *        each tile and row. There is a kernel for each dtype, width and case of a call
 *        (case_sm90.cuh).
 * COST   2 V D bytes of weights, read once; 2 V D B flops on the tensor cores. On an H200 these run
 *        at 4.6 TB/s and 790 TFLOP/s.
 * MAP    one persistent CTA of three warpgroups a multiprocessor. Two warpgroups multiply and draw,
 *        in CUTLASS's ping-pong schedule (sm90_consumer). In the third, three service warps score
 *        candidates and compute the bounds of the next tile, and one thread issues the TMA copies.
 *        A tile is 128 weight rows by N batch rows, N the batch padded to 8 .. 128. At 128 columns
 *        the two CTAs of a cluster multicast hidden states to each other; with 129 to 256 rows they
 *        are paired: both take the same tile, for 128 rows each (sm90_cluster). The 5-dimensional
 *        tensor map permutes weight rows so that MMA row 16 w + 8 f + 2 h + l is token
 *        16 w + 4 h + 2 l + f: a thread holds two neighbouring tokens of each of its columns, and a
 *        warp sixteen, which mostly lie in one block of noise.
 * SMEM   a ring of stages, each of 128 x 64 weights (16 KiB) and N x 64 hidden states (128 N
 *        bytes), both in 128-byte swizzle; then the arrays of shared_sm90.cuh.
 * SYNC   full[s]: a consumer waits for the producer, which arrives once, and for the bytes of the
 *        stage. empty[s]: the producer waits for the consumers; each of their warpgroups, in all
 *        CTAs of the cluster, arrives when its products have read the stage. No CTA exits before
 *        the others of its cluster, because they arrive at its barriers. For each consumer:
 *        served      the consumer waits for the service warps, which arrive when they have written
 *                    the bounds of a tile: in the CTA's first tile, the words that thresholds are
 *                    computed from; if logits are stored by bounds, the rows' bounds and masks; in
 *                    calls with statistics also the bits of banned tokens.
 *        drawn       the service warps wait for all threads of the consumer, which arrive when
 *                    bounds may change and the tile's candidates may be scored.
 *        multiplied  the other consumer waits to start its product.
 *        summed      the other consumer waits to add its masses, unless CTAs are paired; all
 *                    consumers wait before results are written.
 *        At a named barrier the threads of a consumer wait for each other: between writing the
 *        maxima of a turn and reading them, which also separates these reads from the writes two
 *        turns later; and in the first tile, between storing sums, setting thresholds and drawing.
 *        The service warps wait for `drawn` of every tile before they arrive at `served` of the
 *        next one, whichever consumer has it. Between `drawn` and `served` the service warps own
 *        bounds, thresholds, best tokens, the two largest z and the list of candidates; otherwise
 *        the consumer owns these. The bits of banned tokens have one buffer for each consumer; the
 *        service warps write it after `drawn` of this consumer's previous tile. The last CTA
 *        finishes a plain call (finish_sm90.cuh); another launch finishes other calls. Up to 64
 *        columns the kernel may start while the previous launch ends, and prefetches its first
 *        weights until then; it lets the next launch start after its last copy.
 * NUMERICS  a dot product is summed 16 elements a wgmma, in the order of D, whatever N: token,
 *        score and log-normaliser do not depend on the batch.
 */
#ifndef GUMBEL_CUDA_FUSED_SM90_CUH
#define GUMBEL_CUDA_FUSED_SM90_CUH

#include "cuda/fused/tile/bound_sm90.cuh"
#include "cuda/fused/tile/finish_sm90.cuh"
#include "cuda/fused/tile/summaries_sm90.cuh"
#include "cuda/fused/hopper/epilogue_sm90.cuh"
#include "cuda/fused/hopper/logits_sm90.cuh"
#include "cuda/fused/hopper/mass_sm90.cuh"
#include "cuda/fused/hopper/statistics_sm90.cuh"
#include "cuda/fused/hopper/initial_thresholds_sm90.cuh"
#include "cuda/fused/hopper/wgmma.cuh"

namespace
{

/* All CTAs of a cluster, as a mask of their ranks. */
template <int n> constexpr uint16_t kAllCtas = (1 << sm90_cluster<n>::ctas) - 1;

/* Copies the hidden states of a stage, from column x on: with `multicast`, this CTA's slice of the
 * rows to all CTAs of its cluster; otherwise all of this CTA's rows, from `first_row` on. */
template <int n>
__device__ __forceinline__ void copy_hidden(unsigned char *to, const CUtensorMap *hidden, int x,
                                            int first_row, bool multicast, uint64_t *arrived,
                                            uint64_t policy)
{
    using cluster = sm90_cluster<n>;
    constexpr int bytes = cluster::rows * SM90_DEPTH * 2;
    const int own = cluster::cta_rank();
    if (multicast)
        ptx_copy_2d_to(kAllCtas<n>, to + own * bytes, hidden, x, own * cluster::rows, arrived,
                       policy);
    else
        for (int i = 0; i < cluster::ctas; i++)
            ptx_copy_2d(to + i * bytes, hidden, x, first_row + i * cluster::rows, arrived, policy);
}

/* Copies a tile's weights of a stage, from column x on: this CTA's half to both CTAs of a pair, or
 * all. */
template <int n>
__device__ __forceinline__ void copy_weights(unsigned char *to, const CUtensorMap *weight, int x,
                                             int tile, bool paired, uint64_t *arrived,
                                             uint64_t policy)
{
    constexpr int blocks = CUDA_SM90_TILE / 16;
    if (sm90_cluster<n>::ctas > 1 && paired) {
        const int own = sm90_cluster<n>::cta_rank();
        ptx_copy_5d_to(kAllCtas<n>, to + own * (SM90_WEIGHT_BYTES / 2), weight, x, 0, 0, 0,
                       tile * blocks + own * (blocks / 2), arrived, policy);
    } else {
        ptx_copy_5d(to, weight, x, 0, 0, 0, tile * blocks, arrived, policy);
    }
}

/* Prefetches the weights of the first stages to L2 before the previous launch has ended. The
 * prefetch is safe even if that launch writes these weights: all writes meet in L2. After a
 * normalization kernel this saves 0.3 to 1%. */
__device__ __forceinline__ void fetch_weights(const cuda_params &p, const CUtensorMap *weight)
{
    const int tile = blockIdx.x, stages = min(p.stages, sm90_depths(p));
    for (int k = 0; k < stages && tile < p.tiles; k++)
        ptx_prefetch_5d(weight, k * SM90_DEPTH, 0, 0, 0, tile * (CUDA_SM90_TILE / 16));
}

template <int n, class call>
__device__ void produce_stages(const call &p, const CUtensorMap *weight, const CUtensorMap *hidden,
                               const shared_sm90<n> &shared)
{
    constexpr int bytes = shared_sm90<n>::stage_bytes;
    stage_ring at(p.stages);
    int depths = sm90_depths(p);
    uint64_t once = ptx_policy_evict_first(), often = ptx_policy_evict_last();
    const bool paired = p.template is_paired<n>();
    const int first_row = p.template first_row<n>(), ctas = p.template cta_count<n>();
    for (int tile = p.template cta_index<n>(); tile < p.tiles; tile += ctas) {
        const bool multicasts_rows = !paired && sm90_cluster<n>::is_whole(p, tile);
#pragma unroll 1
        for (int k = 0; k < depths; k++, at.advance()) {
            unsigned char *stage = shared.stages + at.stage * bytes;
            uint64_t *arrived = &shared.full[at.stage];
            ptx_barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
            ptx_barrier_arrive_expect(arrived, bytes);
            copy_weights<n>(stage, weight, k * SM90_DEPTH, tile, paired, arrived, once);
            copy_hidden<n>(stage + SM90_WEIGHT_BYTES, hidden, k * SM90_DEPTH, first_row,
                           multicasts_rows, arrived, often);
        }
    }
}

/* Half a tile of weights, in units of matrix descriptors. */
constexpr uint32_t kHalfTile = SM90_WEIGHT_BYTES / 2 / 16;

/* Arrives at empty[s] once this warpgroup has read the stage: in each CTA of the cluster, or as
 * many times in this CTA alone. */
template <int n>
__device__ __forceinline__ void release_stage(const shared_sm90<n> &shared, int stage, bool to_all)
{
    using cluster = sm90_cluster<n>;
    const int i = threadIdx.x % 128;
    if (i >= cluster::ctas)
        return;
    if (cluster::ctas > 1)
        ptx_barrier_arrive_at(&shared.empty[stage], to_all ? i : cluster::cta_rank());
    else
        ptx_barrier_arrive(&shared.empty[stage]);
}

/* Computes the product of the consumer's tile. Lane 0's addresses are broadcast, so that offsets
 * are added in the warp's uniform registers. */
template <int n, bool half>
__device__ __forceinline__ void multiply_tile(sm90_sums<n> &sum, int depths,
                                              const shared_sm90<n> &shared, stage_ring &at,
                                              bool multicast)
{
    const uint32_t ring_start = wgmma_address(shared.stages);
    int previous = -1;
#pragma unroll
    for (int i = 0; i < sm90_consumer::halves * n / 2; i++)
        sum[i / (n / 2)][i % (n / 2)] = 0.0f;
#pragma unroll 1
    for (int k = 0; k < depths; k++, at.advance()) {
        uint32_t stage = ring_start + at.stage * (shared_sm90<n>::stage_bytes / 16);
        uint32_t a = __shfl_sync(~0u, stage, 0);
        uint32_t b = __shfl_sync(~0u, stage + 2 * kHalfTile, 0);
        ptx_barrier_wait(&shared.full[at.stage], at.parity);
        ptx_wgmma_fence();
#pragma unroll
        for (int step = 0; step < SM90_DEPTH / 16; step++)
#pragma unroll
            for (int h = 0; h < sm90_consumer::halves; h++)
                wgmma<n, half>::add(sum[h], wgmma_descriptor(a + h * kHalfTile + 2 * step),
                                    wgmma_descriptor(b + 2 * step));
        ptx_wgmma_commit();
        ptx_wgmma_wait<1>();
        if (previous >= 0)
            release_stage<n>(shared, previous, multicast);
        previous = at.stage;
    }
    if (threadIdx.x % 32 == 0) /* every warp has passed its own turn */
        ptx_barrier_arrive(&shared.multiplied[threadIdx.x / 128]);
    ptx_wgmma_wait<0>();
    release_stage<n>(shared, previous, multicast);
}

/* Uses the sums so that the compiler keeps the product; never writes. */
template <int halves, int n>
__device__ __forceinline__ void sink_sums(const float (&sum)[halves][n], uint32_t *flags)
{
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < halves * n; i++)
        all += sum[i / n][i % n];
    if (all == 0x1.23456p+99f)
        *flags = 0;
}

__device__ __forceinline__ uint32_t first_token_of(const cuda_params &p, int tile)
{
    return (uint32_t)p.problem.first_token + CUDA_SM90_TILE * (uint32_t)tile;
}

/* Cycles from the end of a first tile's wait for bounds to the end of its draw. */
constexpr int kPatienceReserve = 14000;

/* Cycles that a consumer may wait for bounds before its tile is stored; negative: no wait. The
 * value is equal for all threads of the consumer. The first of two consumers waits in its first
 * tile, which `took` these cycles, while the other one multiplies. Short tiles do not wait: they
 * end before any bound exists. */
template <int n, class call>
__device__ __forceinline__ int patience_of(const call &p, int tile, int took)
{
    if (!p.by_bounds() || tile != (int)blockIdx.x || tile + (int)gridDim.x >= p.tiles)
        return -1;
    return took > 3 * kPatienceReserve ? took - kPatienceReserve : 0;
}

/* Draws from the consumer's tile in `sum`, its turn-th; `patience`: see tile_logits::store_tile().
 */
template <int n, class call>
__device__ __forceinline__ void draw_tile(const call &p, const shared_sm90<n> &shared,
                                          sm90_sums<n> &sum, int thread, int tile, int turn,
                                          int patience)
{
    const int own = sm90_consumer(thread).index, other = 1 - own;
    const bool first = turn == 0 && own == 0;
    tile_logits<n, call> logits(p, shared, first_token_of(p, tile), thread);
    if constexpr (call::stores) {
        const bool by_bounds = p.by_bounds();
        if (by_bounds)
            ptx_barrier_wait(&shared.served[own], turn & 1);
        logits.store_tile(sum, turn, patience);
        if (by_bounds)
            ptx_barrier_arrive(&shared.drawn[own]);
        return;
    }
    logits.prepare_sums(sum);
    if constexpr (call::also_stores)
        logits.store_all(sum);
    ptx_barrier_wait(&shared.served[own], turn & 1);
    if constexpr (call::has_statistics)
        logits.drop_removed(sum, turn);
    if (first)
        initial_thresholds<n, call>(p, shared, thread).set_thresholds(sum);
    sm90_epilogue<n, call>(p, shared, first_token_of(p, tile), thread).draw_sums(sum);
    ptx_barrier_arrive(&shared.drawn[own]);
    if (p.with_mass()) {
        const bool paired = p.template is_paired<n>();
        if (!paired && !first)
            ptx_barrier_wait(&shared.summed[other], (turn & 1) ^ (own == 0));
        tile_mass<n, call>(p, shared, thread).add(sum, paired ? turn == 0 : first);
        ptx_barrier_arrive(&shared.summed[own]);
    }
}

/* Waits for the masses of all consumers. The last __syncthreads() orders them too, but racecheck
 * counts data that mbarriers pass on as ordered by mbarriers only. */
template <int n, class call>
__device__ __forceinline__ void wait_for_masses(const call &p, const shared_sm90<n> &shared)
{
    constexpr int consumers = sm90_consumer::consumers;
    const int ctas = p.template cta_count<n>(), stride = consumers * ctas;
    if (!p.with_mass() || !p.draws_tokens())
        return;
    for (int consumer = 0; consumer < consumers; consumer++) {
        int before = p.template cta_index<n>() + consumer * ctas;
        int turns = (p.tiles - before + stride - 1) / stride;
        ptx_barrier_wait(&shared.summed[consumer], (turns & 1) ^ 1);
    }
}

/* One consumer: its tiles, one after the other. The two consumers take turns to multiply and,
 * unless CTAs are paired, to sum masses. The accumulators leave few registers, so addresses are
 * computed anew for each tile's product and for its draw. */
template <int n, bool half, class call>
__device__ void consume_tiles(const call &p, unsigned char *memory)
{
    constexpr int consumers = sm90_consumer::consumers;
    sm90_sums<n> sum;
    stage_ring at(p.stages);
    const int own = sm90_consumer(threadIdx.x).index, depths = sm90_depths(p);
    const int ctas = p.template cta_count<n>(), stride = consumers * ctas;
    const uint32_t began = clock();
    int turn = 0;
    at.skip_stages(own * depths);
    for (int tile = p.template cta_index<n>() + own * ctas; tile < p.tiles;
         tile += stride, turn++) {
        const shared_sm90<n> before(p, memory + ptx_zero());
        if (own != 0 || turn != 0)
            ptx_barrier_wait(&before.multiplied[1 - own], (turn & 1) ^ (own == 0));
        multiply_tile<n, half>(sum, depths, before, at, sm90_cluster<n>::is_whole(p, tile));
        at.skip_stages((consumers - 1) * depths);
        int zero = ptx_zero();
        const shared_sm90<n> shared(p, memory + zero);
        if (p.drops_logits()) {
            sink_sums(sum, shared.flags);
            continue;
        }
        draw_tile<n>(p, shared, sum, threadIdx.x + zero, tile, turn,
                     patience_of<n>(p, tile, (int)((uint32_t)clock() - began)));
    }
    wait_for_masses<n>(p, shared_sm90<n>(p, memory));
}

/* The service warps. After the draw from a tile they score its candidates, publish new thresholds
 * to other CTAs, and compute the noise bounds of the next tile's blocks. Late in the product, when
 * other CTAs have published, they read the shared thresholds and set the bounds of those blocks. If
 * the kernel stores logits by bounds, the service warps maintain the bounds of rows instead. */
template <int n, class call>
__device__ void serve_consumers(const call &p, const shared_sm90<n> &shared)
{
    constexpr int consumers = sm90_consumer::consumers;
    const int thread = threadIdx.x - SM90_DRAW_THREADS;
    if constexpr (call::stores) {
        if (p.by_bounds())
            serve_bounds<n>(p, shared);
        return;
    }
    if constexpr (call::also_stores)
        clear_words(p, thread, SM90_SERVE_THREADS);
    const draw_thresholds<n, call> all(p, shared);
    const int ctas = p.template cta_count<n>(), cta = p.template cta_index<n>();
    uint32_t ended = clock();
    int turn = 0;
    if (!p.draws_tokens())
        return;
    statistics_server<n, call> statistics(p, shared, thread);
    if (p.ends_call() && cta == 0)
        start_counters<n>(p, thread);
    for (int tile = cta; tile < p.tiles + ctas; tile += ctas, turn++) {
        const uint32_t first = first_token_of(p, tile);
        if (call::has_statistics && tile < p.tiles)
            statistics.mark_removed_tokens(first, turn);
        if (tile >= p.tiles && p.ends_call())
            start_counters<n>(p, thread);
        if (turn == 0) {
            initial_thresholds<n, call>::store_words(p, shared, thread, first);
            ptx_barrier_arrive(&shared.served[0]);
            continue;
        }
        ptx_barrier_wait(&shared.drawn[(turn - 1) % consumers], (turn - 1) / consumers & 1);
        const uint32_t took = (uint32_t)clock() - ended;
        ended += took;
        sm90_candidate_list<n, call>(p, shared, first_token_of(p, tile - ctas))
            .score_all(thread, SM90_SERVE_THREADS);
        if (tile >= p.tiles)
            break;
        ptx_named_barrier<3, SM90_SERVE_THREADS>(); /* all candidates are scored */
        if (thread == 0)
            *shared.candidate_count = 0;
        all.template publish_scores<SM90_SERVE_THREADS>(thread);
        if (call::has_statistics)
            statistics.publish_tops();
        const tile_reaches<n, call> reaches(p, shared, all, thread, first);
        sm90_wait_cycles(ended, backoff_cycles(took));
        const auto top_words = statistics.load_tops();
        all.template each_updated<SM90_SERVE_THREADS>(thread, [&](int i, int k) {
            statistics.raise_top(k, top_words);
            all.set_bounds(i, reaches.of[k]);
        });
        ptx_barrier_arrive(&shared.served[turn % consumers]);
    }
}

template <int n, bool half, class call>
__device__ __forceinline__ void run_fused_draw(const call &p, const CUtensorMap *weight,
                                               const CUtensorMap *hidden)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    shared_sm90<n> shared(p, shared_memory);
    if (threadIdx.x == 0) {
        shared.start_barriers(p.stages, call::stores ? 32 : SM90_SERVE_THREADS);
        ptx_prefetch_map(weight);
        ptx_prefetch_map(hidden);
    }
    if (CUDA_SM90_OVERLAPS(n) && threadIdx.x == 32)
        fetch_weights(p, weight);
    ptx_wait_for_launch();
    shared.clear(p);
    sm90_cluster<n>::sync();
    if (threadIdx.x < SM90_DRAW_THREADS) {
        ptx_increase_registers<kDrawRegisters>();
        consume_tiles<n, half>(p, shared_memory);
    } else {
        ptx_decrease_registers<kServeRegisters>();
        if (threadIdx.x < SM90_DRAW_THREADS + SM90_SERVE_THREADS)
            serve_consumers<n>(p, shared);
        else if (threadIdx.x == SM90_DRAW_THREADS + SM90_SERVE_THREADS) {
            produce_stages<n>(p, weight, hidden, shared);
            if (CUDA_SM90_OVERLAPS(n) && p.leaves_little())
                ptx_allow_launch();
        }
        __syncwarp(); /* the producer's warp reaches the barrier as one */
    }
    __syncthreads();
    if (threadIdx.x < SM90_DRAW_THREADS && p.draws_tokens()) {
        if (p.ends_call())
            finish_call(p, shared);
        else
            write_results(p, shared);
    }
    if (sm90_cluster<n>::ctas > 1) /* until then, other CTAs arrive at this CTA's barriers */
        sm90_cluster<n>::sync();
}

} // namespace

#endif
