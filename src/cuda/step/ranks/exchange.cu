/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Exchanges among GPUs: rows and summaries by peer buffers, for GPUs that reach each other's
 *        memory; summaries are merged over all ranks and written as outputs. Other GPUs: a host
 *        collective gathers fallback rows (gumbel_request_rows), and gathered rows are scattered
 *        into whole rows (gumbel_scatter_rows).
 * COST   16 bytes a word and pair of ranks over the link. A few words cost one latency of the link,
 *        some 2 us, and a launch.
 * MAP    Threads of all CTAs take words in turns, as many at a time as the buffers hold. A warp
 *        merges a draw: lanes 0..11 hold the words of its summary.
 * SYNC   Fallback rows: this launch waits for each row's flag, which the previous launch publishes
 *        as soon as it is known; if no row is chosen, this launch ends when that one does.
 *        Words: a thread writes its words to the buffers of all other ranks before it polls for
 *        theirs. After it has received these, it writes the other half of its slot: the same
 *        threads of all other ranks have then read the words that it overwrites. The CTAs are few,
 *        so all run at once, and waits are limited in time. After a time-out the buffer is
 *        unusable: no later exchange waits, and outputs state that nothing was drawn.
 *        End: the last CTA waits until all ranks have begun (core/ranks/peers.h), and increments
 *        the number of the exchange, which all CTAs have read. In gumbel_request_rows the last CTA
 *        requests the host collective and waits for the host, with a time-out, unless no row is
 *        chosen.
 *        The next launch may not start before all rows have arrived: a kernel that waits and holds
 *        shared memory could keep out, on this GPU or another, the kernels that send.
 */
#include "core/ranks/host_collective.h"
#include "cuda/common/merge.cuh"
#include "cuda/step/ranks/exchange.cuh"
#include "cuda/step/ranks/top64_params.h"

namespace
{

constexpr int kThreads = CUDA_EXCHANGE_THREADS;
constexpr int kSummaryWords = sizeof(gumbel_summary) / sizeof(uint32_t);

/* A word of the exchanged rows: its row, the place of the row, and its column. */
struct word_place {
    int64_t place, row, column;

    template <typename rows>
    __device__ word_place(const rows &p, const int32_t *list, int64_t i)
        : place(i / p.width), row(p.chosen ? list[place] : place), column(i - place * p.width)
    {
    }
};

/* Back-off sleep in nanoseconds between two polls of a row's flag, and how many polls: 1 ms in all,
 * a hundred times as long as the flags are usually unknown. */
constexpr int kSleepNs = 100, kPollsMax = 10000;

/* Whether a row is chosen. If the previous launch does not publish the flag in 1 ms, waits for its
 * end. */
__device__ bool is_chosen(const int32_t *row)
{
    int32_t known = ptx_load_acquire(row);
    for (int polls = 1; known == CUDA_FALLBACK_UNKNOWN && polls < kPollsMax; polls++) {
        __nanosleep(kSleepNs);
        known = ptx_load_acquire(row);
    }
    if (known == CUDA_FALLBACK_UNKNOWN) {
        ptx_wait_for_launch();
        known = ptx_load_acquire(row);
    }
    return known != 0;
}

/* Lists the chosen rows, in order, by all threads of a CTA; returns how many. The first CTA writes
 * them to the outputs. */
template <typename rows> __device__ int64_t list_chosen_rows(const rows &p, int32_t *list)
{
    __shared__ int32_t count;
    if (threadIdx.x < 32) {
        int32_t before = 0;
        for (int64_t b = threadIdx.x; b - threadIdx.x < p.rows; b += 32) {
            const bool chosen = b < p.rows && is_chosen(&p.chosen[b]);
            const uint32_t all = __ballot_sync(~0u, chosen);
            if (chosen)
                list[before + __popc(all & ((1u << threadIdx.x) - 1))] = (int32_t)b;
            before += __popc(all);
        }
        if (threadIdx.x == 0)
            count = before;
    }
    __syncthreads();
    if (blockIdx.x == 0) {
        for (int i = threadIdx.x; i < count; i += kThreads) {
            p.list[i] = list[i];
            p.slots[i] = p.of_row ? p.of_row[list[i]] : list[i];
        }
        if (threadIdx.x == 0)
            *p.listed = count;
    }
    return count;
}

/* Ends a CTA if no row is chosen: the next launch may start, and launches end in order. */
__device__ void end_without_rows()
{
    ptx_allow_launch();
    if (blockIdx.x == 0)
        ptx_wait_for_launch();
}

/* Skips an exchange in which no rank sends, without waiting. The exchange takes a tag, so that a
 * rank which expects words receives none. */
__device__ void skip_exchange(const cuda_exchange_params &p)
{
    end_without_rows();
    if (blockIdx.x == 0 && threadIdx.x == 0)
        p.peer_buffers[p.rank]->tags++;
}

/* Requests a host collective of `words` of each rank, and waits for it; by one thread of a launch,
 * when all CTAs have written their words. */
__device__ void request_gather(const gumbel_gathered_rows &p, int64_t words)
{
    gumbel_host_collective *c = p.collective;
    const uint64_t number = ptx_load_relaxed_sys_8(&c->requested) + 1,
                   begun = ptx_read_globaltimer();
    if (ptx_load_relaxed_sys_8(&c->failed))
        return;
    ptx_store_relaxed_sys_8(&c->send, (uint64_t)(p.gathered + p.rank * words));
    ptx_store_relaxed_sys_8(&c->receive, (uint64_t)p.gathered);
    ptx_store_relaxed_sys_8(&c->bytes, (uint64_t)words * sizeof(uint32_t));
    __threadfence_system();
    ptx_store_relaxed_sys_8(&c->requested, number);
    while (ptx_load_relaxed_sys_8(&c->done) != number && !ptx_load_relaxed_sys_8(&c->failed))
        if (ptx_read_globaltimer() - begun > (uint64_t)p.timeout_ms * 1000000)
            ptx_store_relaxed_sys_8(&c->failed, 1);
    __threadfence_system();
}

/* Merges draw `at` over all ranks, by a warp; every lane gets the result. */
__device__ gumbel_summary merge_ranks(exchange &e, int64_t at, uint32_t *words)
{
    const int lane = threadIdx.x % 32;
    const int64_t first = at * kSummaryWords;
    gumbel_summary whole;
    gumbel_summary_empty(&whole);
    for (int32_t r = 0; r < e.p.ranks; r++) {
        gumbel_summary own;
        if (lane < kSummaryWords)
            words[lane] = r == e.p.rank ? e.p.words[first + lane] : e.receive_word(r, first + lane);
        __syncwarp();
        memcpy(&own, words, sizeof own);
        __syncwarp();
        gumbel_summary_merge_any(&whole, &own);
    }
    if (__any_sync(~0u, e.failed)) {
        gumbel_summary_empty(&whole);
        whole.flags = GUMBEL_FLAG_NAN;
    }
    return whole;
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_exchange_rows(const __grid_constant__ cuda_exchange_params p)
{
    __shared__ int32_t list[CUDA_EXCHANGE_ROWS_MAX];
    const int64_t stride = (int64_t)gridDim.x * kThreads;
    const int64_t first = (int64_t)blockIdx.x * kThreads + threadIdx.x;
    const int64_t count = (p.chosen ? list_chosen_rows(p, list) : p.rows) * p.width;
    if (count == 0) {
        skip_exchange(p);
        return;
    }
    ptx_wait_for_launch();
    exchange e(p);
    const int64_t room = count <= p.room ? p.room : p.room / 2;
    int64_t half = 0; /* where the words of this turn begin in a slot */
    for (int64_t base = 0; base < count; base += room, half = room - half, e.tag++) {
        const int64_t here = min(room, count - base);
        for (int64_t i = first; i < here && !e.failed; i += stride) {
            const word_place at(p, list, base + i);
            e.send_word(half + i, p.words[at.row * p.width + at.column]);
        }
        for (int32_t r = 0; r < p.ranks; r++)
            for (int64_t i = first; i < here; i += stride) {
                const word_place at(p, list, base + i);
                const uint32_t word = r == p.rank ? p.words[at.row * p.width + at.column]
                                                  : e.receive_word(r, half + i);
                if (at.column < p.widths[r])
                    p.received[at.place * p.received_width + p.begins[r] + at.column] = word;
            }
    }
    e.tag--;
    e.end_by_cta();
}

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_request_rows(const __grid_constant__ gumbel_gathered_rows p)
{
    __shared__ int32_t list[CUDA_EXCHANGE_ROWS_MAX];
    const gumbel_peer_rows &rows = p.rows;
    const int64_t words = list_chosen_rows(rows, list) * rows.width;
    if (words == 0) {
        end_without_rows();
        return;
    }
    ptx_wait_for_launch();
    uint32_t *own = p.gathered + p.rank * words;
    for (int64_t i = (int64_t)blockIdx.x * kThreads + threadIdx.x; i < words;
         i += (int64_t)gridDim.x * kThreads) {
        const word_place at(rows, list, i);
        own[i] = rows.words[at.row * rows.width + at.column];
    }
    if (ends_last(p.ended) && threadIdx.x == 0) {
        *p.ended = 0;
        request_gather(p, words);
    }
}

/* Scatters a tile of a rank's row at a time; 0xffffffff for words that did not arrive. */
extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_scatter_rows(const __grid_constant__ gumbel_gathered_rows p)
{
    __shared__ bool failed;
    const int64_t width = p.rows.width, tiles = (width + CUDA_SCATTER_TILE - 1) / CUDA_SCATTER_TILE;
    ptx_allow_launch();
    ptx_wait_for_launch();
    const int64_t rows = p.collective ? *p.rows.listed : p.rows.rows;
    if (rows == 0)
        return;
    if (threadIdx.x == 0)
        failed = p.collective && ptx_load_relaxed_sys_8(&p.collective->failed);
    __syncthreads();
    for (int64_t turn = blockIdx.x; turn < rows * p.ranks * tiles; turn += gridDim.x) {
        const int64_t tile = turn % tiles, row = turn / tiles % rows, r = turn / tiles / rows;
        const int64_t end = min((tile + 1) * CUDA_SCATTER_TILE, p.rows.widths[r]);
        const uint32_t *from = p.gathered + (r * rows + row) * width;
        uint32_t *to = p.rows.received + row * p.rows.received_width + p.rows.begins[r];
#pragma unroll 8
        for (int64_t j = tile * CUDA_SCATTER_TILE + threadIdx.x; j < end; j += kThreads)
            to[j] = failed ? ~0u : from[j];
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_exchange_summaries(const __grid_constant__ cuda_exchange_params p)
{
    __shared__ uint32_t words[kThreads / 32][kSummaryWords];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = gridDim.x * kThreads / 32;
    const int64_t begin = (int64_t)warp * gridDim.x + blockIdx.x;
    const int64_t draws = p.draws, samples = p.num_samples;
    ptx_wait_for_launch();
    exchange e(p);
    for (int64_t at = begin; at < draws && !e.failed; at += warps)
        if (lane < kSummaryWords)
            e.send_word(at * kSummaryWords + lane, p.words[at * kSummaryWords + lane]);
    ptx_allow_launch();
    for (int64_t at = begin; at < draws; at += warps) {
        gumbel_summary own = merge_ranks(e, at, words[warp]);
        gumbel_summary first = at % samples ? merge_ranks(e, at - at % samples, words[warp]) : own;
        if (lane == 0)
            write_merged(p.output, at, samples, own, first);
    }
    e.end_by_cta();
}
