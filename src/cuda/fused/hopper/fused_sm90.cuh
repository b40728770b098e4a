/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the fused draw on Hopper (eq. 1 to 4; FlashSampling, Algorithm 2); or, for a request, the
 *        logits themselves, all or those that can matter (bound_sm90.cuh), and the largest one
 *        of each tile and row: their peaks. A kernel for each dtype, width and case of a call
 *        (case_sm90.cuh).
 * COST   2 V D bytes of weights, once; 2 V D B flops on the tensor cores. On an H200 these run at
 *        4.6 TB/s and 790 TFLOP/s.
 * MAP    a persistent CTA a multiprocessor, of three warpgroups: two multiply and draw, in turns or
 *        together (sm90_team); of the third, three warps score what may win and bound what comes
 *        next, and one thread copies. A tile is 128 weight rows by N batch rows, N the batch padded
 *        to 8 .. 256. At 128 columns the two CTAs of a cluster copy hidden states for each other
 *        (sm90_cluster).
 *        The 5-dimensional tensor map lays weight rows down so that MMA row 16 w + 8 f + 2 h + l is
 *        token 16 w + 4 h + 2 l + f: a thread holds two neighbouring tokens of each of its columns,
 *        a warp sixteen, which mostly share a block of noise.
 * SMEM   a ring of stages, each 128 x 64 weights (16 KiB) and N x 64 hidden states (128 N bytes),
 *        both in 128-byte swizzle; then what shared_sm90.cuh lays out.
 * SYNC   full[s]: the producer's one arrival and the bytes of the stage. empty[s]: one arrival of
 *        each warpgroup of a team, of all CTAs of a cluster, once the products that read the stage
 *        are done; no CTA ends before the others, which arrive at its barriers. For each team:
 *        served, by all who serve, once a tile's bounds are there, in the CTA's first tile the
 *        words they follow from, or bounds of rows and masks; drawn, by all its threads, once those
 *        may change and what it offered may be scored; multiplied, once the other team's product
 *        may follow; summed, once its masses may; and a named barrier, which for peaks parts each
 *        turn's writes from its reads, and thereby these from the writes of the turn after the
 *        next, and in the first tile seeds from thresholds and these from the draw. Who serve wait
 *        for `drawn` of each tile before they serve the next one, of whichever team: between the
 *        two, bounds, thresholds, best tokens and the list of offers are theirs, else the team's.
 *        A plain call is ended by the last CTA (ending_sm90.cuh), others by a launch behind.
 *        Up to 64 columns the kernel may start while the launch before it ends, and asks for its
 *        first weights until then; and lets the launch behind start when it has copied its last.
 * NUMERICS  a dot product is summed 16 elements a wgmma, in the order of D, whatever N: token,
 *        score and log-normaliser do not depend on the batch.
 */
#ifndef GUMBEL_CUDA_FUSED_SM90_CUH
#define GUMBEL_CUDA_FUSED_SM90_CUH

#include "cuda/fused/tile/bound_sm90.cuh"
#include "cuda/fused/tile/ending_sm90.cuh"
#include "cuda/fused/tile/nap_sm90.cuh"
#include "cuda/fused/hopper/epilogue_sm90.cuh"
#include "cuda/fused/hopper/logits_sm90.cuh"
#include "cuda/fused/hopper/mass_sm90.cuh"
#include "cuda/fused/hopper/seeds_sm90.cuh"
#include "cuda/fused/hopper/wgmma.cuh"

namespace
{

/* Registers a thread, of 168 each at first: 2 x 208 + 88 = 3 x 168. */
constexpr int kDrawRegisters = 208, kServeRegisters = 88;

/* A place in the ring of stages. */
struct ring {
    int stages, stage;
    uint32_t parity;
    __device__ __forceinline__ explicit ring(int count) : stages(count), stage(0), parity(0) {}
    __device__ __forceinline__ void advance()
    {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
    /* The places that others use. */
    __device__ __forceinline__ void skip(int count)
    {
        int to = stage + count;
        parity ^= to / stages & 1;
        stage = to % stages;
    }
};

/* The hidden states of a stage, from column x on: this CTA's part for all of its cluster, or all
 * parts for itself. */
template <int n>
__device__ __forceinline__ void copy_hidden(unsigned char *to, const CUtensorMap *hidden, int x,
                                            bool for_all, uint64_t *arrived, uint64_t policy)
{
    using cluster = sm90_cluster<n>;
    constexpr int bytes = cluster::rows * SM90_DEPTH * 2;
    const int own = cluster::rank();
    if (for_all)
        ptx_copy_2d_to((1 << cluster::ctas) - 1, to + own * bytes, hidden, x, own * cluster::rows,
                       arrived, policy);
    else
        for (int i = 0; i < cluster::ctas; i++)
            ptx_copy_2d(to + i * bytes, hidden, x, i * cluster::rows, arrived, policy);
}

/* Ask for the weights of the first stages, though the launch before may still write them: the
 * second-level cache, where they go, is where all writes meet. Behind a norm that saves 0.3 to 1%.
 */
__device__ __forceinline__ void fetch_weights(const cuda_params &p, const CUtensorMap *weight)
{
    const int tile = blockIdx.x, stages = min(p.stages, sm90_depths(p));
    for (int k = 0; k < stages && tile < p.tiles; k++)
        ptx_prefetch_5d(weight, k * SM90_DEPTH, 0, 0, 0, tile * (CUDA_SM90_TILE / 16));
}

template <int n>
__device__ void produce(const cuda_params &p, const CUtensorMap *weight, const CUtensorMap *hidden,
                        const shared_sm90<n> &shared)
{
    constexpr int bytes = shared_sm90<n>::stage_bytes;
    ring at(p.stages);
    int depths = sm90_depths(p);
    uint64_t once = ptx_policy_evict_first(), often = ptx_policy_evict_last();
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const bool whole = sm90_cluster<n>::is_whole(p, tile);
#pragma unroll 1
        for (int k = 0; k < depths; k++, at.advance()) {
            unsigned char *stage = shared.stages + at.stage * bytes;
            uint64_t *arrived = &shared.full[at.stage];
            ptx_barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
            ptx_barrier_arrive_expect(arrived, bytes);
            ptx_copy_5d(stage, weight, k * SM90_DEPTH, 0, 0, 0, tile * (CUDA_SM90_TILE / 16),
                        arrived, once);
            copy_hidden<n>(stage + SM90_WEIGHT_BYTES, hidden, k * SM90_DEPTH, whole, arrived,
                           often);
        }
    }
}

/* Half a tile of weights, in the units of descriptors. */
constexpr uint32_t kHalfTile = SM90_WEIGHT_BYTES / 2 / 16;

/* Tell those who copy into a stage that this warpgroup has read it: each CTA of the cluster, or
 * this one as often. */
template <int n>
__device__ __forceinline__ void release(const shared_sm90<n> &shared, int stage, bool to_all)
{
    using cluster = sm90_cluster<n>;
    const int i = threadIdx.x % 128;
    if (i >= cluster::ctas)
        return;
    if (cluster::ctas > 1)
        ptx_barrier_arrive_at(&shared.empty[stage], to_all ? i : cluster::rank());
    else
        ptx_barrier_arrive(&shared.empty[stage]);
}

/* The product of the team's tile; of a tile that is shared, of this warpgroup's half. Addresses are
 * one lane's, so that what is added to them costs the warp's uniform registers alone. */
template <int n, bool half>
__device__ __forceinline__ void multiply(sm90_sums<n> &sum, int depths,
                                         const shared_sm90<n> &shared, ring &at, bool for_all)
{
    using team = sm90_team<n>;
    const uint32_t first = team::alone ? 0 : threadIdx.x / 128;
    const uint32_t start = wgmma_address(shared.stages);
    int previous = -1;
#pragma unroll
    for (int i = 0; i < team::halves * n / 2; i++)
        sum[i / (n / 2)][i % (n / 2)] = 0.0f;
#pragma unroll 1
    for (int k = 0; k < depths; k++, at.advance()) {
        uint32_t stage = start + at.stage * (shared_sm90<n>::stage_bytes / 16);
        uint32_t a = __shfl_sync(~0u, stage + first * kHalfTile, 0);
        uint32_t b = __shfl_sync(~0u, stage + 2 * kHalfTile, 0);
        ptx_barrier_wait(&shared.full[at.stage], at.parity);
        ptx_wgmma_fence();
#pragma unroll
        for (int step = 0; step < SM90_DEPTH / 16; step++)
#pragma unroll
            for (int h = 0; h < team::halves; h++)
                wgmma<n, half>::add(sum[h], wgmma_descriptor(a + h * kHalfTile + 2 * step),
                                    wgmma_descriptor(b + 2 * step));
        ptx_wgmma_commit();
        ptx_wgmma_wait<1>();
        if (previous >= 0)
            release<n>(shared, previous, for_all);
        previous = at.stage;
    }
    if (team::alone && threadIdx.x % 32 == 0) /* every warp has seen its own turn */
        ptx_barrier_arrive(&shared.multiplied[threadIdx.x / 128]);
    ptx_wgmma_wait<0>();
    release<n>(shared, previous, for_all);
}

/* A use of the sums that the compiler cannot see through, and that never writes. */
template <int halves, int n>
__device__ __forceinline__ void keep(const float (&sum)[halves][n], uint32_t *flags)
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

/* What passes from the end of a first tile's wait for bounds to that of its draw, in cycles. */
constexpr int kPatienceReserve = 14000;

/* How long a team may wait for bounds before its tile is stored, in cycles; negative where it does
 * not, for all of the team. The first of two teams does, as the other one multiplies: for as long
 * as its first tile `took`, less what is left to be done. Short tiles end before there are any. */
template <int n, class call>
__device__ __forceinline__ int patience_of(const call &p, int tile, int took)
{
    if (!p.template by_bounds<n>() || sm90_team<n>::teams < 2 || tile != (int)blockIdx.x ||
        tile + (int)gridDim.x >= p.tiles)
        return -1;
    return took > 3 * kPatienceReserve ? took - kPatienceReserve : 0;
}

/* Draw from the team's tile in `sum`, its turn-th; `patience` as tile_logits::store() has it. */
template <int n, class call>
__device__ __forceinline__ void draw_tile(const call &p, const shared_sm90<n> &shared,
                                          sm90_sums<n> &sum, int thread, int tile, int turn,
                                          int patience)
{
    constexpr int teams = sm90_team<n>::teams;
    const int own = sm90_team<n>(thread).index, other = teams - 1 - own;
    const bool first = turn == 0 && own == 0;
    tile_logits<n, call> logits(p, shared, first_token_of(p, tile), thread);
    if constexpr (call::stores) {
        const bool by_bounds = p.template by_bounds<n>();
        if (by_bounds)
            ptx_barrier_wait(&shared.served[own], turn & 1);
        logits.store(sum, turn, patience);
        if (by_bounds)
            ptx_barrier_arrive(&shared.drawn[own]);
        return;
    }
    logits.prepare(sum);
    if constexpr (call::stores_too)
        logits.store_all(sum);
    ptx_barrier_wait(&shared.served[own], turn & 1);
    if (first)
        tile_seeds<n, call>(p, shared, thread).plant(sum);
    epilogue<n, call>(p, shared, first_token_of(p, tile), thread).draw(sum);
    ptx_barrier_arrive(&shared.drawn[own]);
    if (p.with_mass()) {
        if (teams == 2 && !first)
            ptx_barrier_wait(&shared.summed[other], (turn & 1) ^ (own == 0));
        tile_mass<n>(shared, (int)p.problem.batch, p.scale(), thread).add(sum, first);
        ptx_barrier_arrive(&shared.summed[own]);
    }
}

/* All teams' masses are in. The last __syncthreads() orders them too, but racecheck takes what was
 * handed over by mbarriers for ordered by mbarriers alone. */
template <int n, class call>
__device__ __forceinline__ void wait_for_masses(const call &p, const shared_sm90<n> &shared)
{
    constexpr int teams = sm90_team<n>::teams;
    const int stride = teams * (int)gridDim.x;
    if (!p.with_mass() || !p.draws())
        return;
    for (int team = 0; team < teams; team++) {
        int before = (int)(blockIdx.x + team * gridDim.x);
        int turns = (p.tiles - before + stride - 1) / stride;
        ptx_barrier_wait(&shared.summed[team], (turns & 1) ^ 1);
    }
}

/* A team: its tiles, one after the other. Two teams multiply in turns, and sum masses in turns. The
 * sums leave few registers: addresses are found anew for each tile's product and for its draw. */
template <int n, bool half, class call>
__device__ void consume(const call &p, unsigned char *memory)
{
    constexpr int teams = sm90_team<n>::teams;
    sm90_sums<n> sum;
    ring at(p.stages);
    const int own = sm90_team<n>(threadIdx.x).index, depths = sm90_depths(p);
    const int stride = teams * (int)gridDim.x;
    const uint32_t began = clock();
    int turn = 0;
    at.skip(own * depths);
    for (int tile = blockIdx.x + own * gridDim.x; tile < p.tiles; tile += stride, turn++) {
        const shared_sm90<n> before(p, memory + ptx_zero());
        if (teams == 2 && (own != 0 || turn != 0))
            ptx_barrier_wait(&before.multiplied[teams - 1 - own], (turn & 1) ^ (own == 0));
        multiply<n, half>(sum, depths, before, at, sm90_cluster<n>::is_whole(p, tile));
        at.skip((teams - 1) * depths);
        int zero = ptx_zero();
        const shared_sm90<n> shared(p, memory + zero);
        if (p.drops()) {
            keep(sum, shared.flags);
            continue;
        }
        draw_tile<n>(p, shared, sum, threadIdx.x + zero, tile, turn,
                     patience_of<n>(p, tile, (int)((uint32_t)clock() - began)));
    }
    wait_for_masses<n>(p, shared_sm90<n>(p, memory));
}

/* The warps that serve those that draw. Behind the draw from a tile they score what passed there,
 * tell the other CTAs, and make the noise of the next tile's blocks; late in the product, when
 * others have told, they ask them, and bound those blocks by what is known then. Those that store
 * are served with bounds of rows. */
template <int n, class call> __device__ void serve(const call &p, const shared_sm90<n> &shared)
{
    constexpr int teams = sm90_team<n>::teams;
    const int thread = threadIdx.x - SM90_DRAW_THREADS;
    if constexpr (call::stores) {
        if (p.template by_bounds<n>())
            serve_bounds<n>(p, shared);
        return;
    }
    if constexpr (call::stores_too)
        clear_words(p, thread, SM90_SERVE_THREADS);
    const thresholds<n, call> all(p, shared);
    uint32_t ended = clock();
    int turn = 0;
    if (!p.draws())
        return;
    if (p.ends_call() && blockIdx.x == 0)
        start_counters(p, thread);
    for (int tile = blockIdx.x; tile < p.tiles + (int)gridDim.x; tile += gridDim.x, turn++) {
        const uint32_t first = first_token_of(p, tile);
        if (tile >= p.tiles && p.ends_call())
            start_counters(p, thread);
        if (turn == 0) {
            tile_seeds<n, call>::start(p, shared, thread, first);
            ptx_barrier_arrive(&shared.served[0]);
            continue;
        }
        ptx_barrier_wait(&shared.drawn[(turn - 1) % teams], (turn - 1) / teams & 1);
        const uint32_t took = (uint32_t)clock() - ended;
        ended += took;
        offer_list<n, call>(p, shared, first_token_of(p, tile - (int)gridDim.x))
            .score(thread, SM90_SERVE_THREADS);
        if (tile >= p.tiles)
            break;
        ptx_named_barrier<3, SM90_SERVE_THREADS>(); /* all are scored */
        if (thread == 0)
            *shared.offered = 0;
        all.template tell<SM90_SERVE_THREADS>(thread);
        const tile_reaches<n, call> reaches(p, shared, all, thread, first);
        sm90_sleep(ended, nap_behind(took));
        all.template each_floor<SM90_SERVE_THREADS>(
            thread, [&](int i, int k) { all.set_bounds(i, reaches.of[k]); });
        ptx_barrier_arrive(&shared.served[turn % teams]);
    }
}

template <int n, bool half, class call>
__device__ __forceinline__ void fused(const call &p, const CUtensorMap *weight,
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
        consume<n, half>(p, shared_memory);
    } else {
        ptx_decrease_registers<kServeRegisters>();
        if (threadIdx.x < SM90_DRAW_THREADS + SM90_SERVE_THREADS)
            serve<n>(p, shared);
        else if (threadIdx.x == SM90_DRAW_THREADS + SM90_SERVE_THREADS) {
            produce<n>(p, weight, hidden, shared);
            if (CUDA_SM90_OVERLAPS(n) && p.leaves_little())
                ptx_allow_launch();
        }
        __syncwarp(); /* so that the producer's warp comes to the barrier as one */
    }
    __syncthreads();
    if (threadIdx.x < SM90_DRAW_THREADS && p.draws()) {
        if (p.ends_call())
            end_call(p, shared);
        else
            shared.write_summaries(p);
    }
    if (sm90_cluster<n>::ctas > 1) /* until then, others arrive at this CTA's barriers */
        sm90_cluster<n>::sync();
}

} // namespace

#endif
