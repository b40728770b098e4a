/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   an all-gather among GPUs that reach each other's memory, and for summaries the end of a
 *        draw beside: merged over all ranks and written out. For GPUs that do not, rows that only
 *        the GPU knows to be needed are gathered by its host (gumbel_ask_rows), and gathered rows
 *        are laid side by side (gumbel_lay_rows).
 * COST   16 bytes a word and pair of ranks over the link; of a few words one latency of it, some
 *        2 us, and a launch.
 * MAP    words by threads, of all CTAs in turns, as many at a time as mailboxes have room for; of
 *        summaries a warp a draw, lanes 0..11 its words.
 * SYNC   Which rows are chosen the launch before tells as soon as it knows, and where there are
 *        none this one ends with it. A thread stores its words into the mailboxes of all others
 *        before it looks for theirs, and words of the next half of a place when it has these: what
 *        it heard last but one, the same threads of all others have read. It waits for these: all
 *        CTAs run at once, as they are few, and the wait is counted in time besides. Where that is
 *        over the mailbox is spent: no later exchange waits, and outputs say that nothing was
 *        drawn. The last CTA to end waits until all ranks have begun (core/ranks/peers.h), and
 *        counts the exchange, whose number all have read. Of a launch that asks the host, the last
 *        CTA to end asks and waits, counted in time; where no row is chosen, nobody does. While
 *        rows of others are waited for, the next launch may not start: what waits with all its
 *        shared memory could keep out, on this GPU or another, those that are waited for.
 */
#include "core/ranks/errands.h"
#include "cuda/common/merge.cuh"
#include "cuda/step/ranks/exchange.cuh"
#include "cuda/step/ranks/listed_params.h"

namespace
{

constexpr int kThreads = CUDA_EXCHANGE_THREADS;
constexpr int kSummaryWords = sizeof(gumbel_summary) / sizeof(uint32_t);

/* A word of the rows that are exchanged: of which row it is, and the how manieth that is. */
struct cell {
    int64_t place, row, column;

    template <typename rows>
    __device__ cell(const rows &p, const int32_t *list, int64_t i)
        : place(i / p.width), row(p.chosen ? list[place] : place), column(i - place * p.width)
    {
    }
};

/* Nanoseconds between two looks at whether a row is chosen, and how many there are: for 1 ms, a
 * hundred times what is in doubt that long. */
constexpr int kNap = 100, kDoubts = 10000;

/* Whether a row is chosen. The launch before may still be in doubt of it; after a while, its end is
 * waited for. */
__device__ bool is_chosen(const int32_t *row)
{
    int32_t known = ptx_load_acquire(row);
    for (int looks = 1; known == CUDA_LEFT_IN_DOUBT && looks < kDoubts; looks++) {
        __nanosleep(kNap);
        known = ptx_load_acquire(row);
    }
    if (known == CUDA_LEFT_IN_DOUBT) {
        ptx_wait_for_launch();
        known = ptx_load_acquire(row);
    }
    return known != 0;
}

/* The rows that are chosen, in order, by all threads of a CTA; the first one writes them down. */
template <typename rows> __device__ int64_t list_rows(const rows &p, int32_t *list)
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

/* End a CTA where no row is chosen: what comes next may start, and launches end in order. */
__device__ void end_none()
{
    ptx_allow_launch();
    if (blockIdx.x == 0)
        ptx_wait_for_launch();
}

/* An exchange in which no rank says anything: nobody is waited for. What is said has a tag of its
 * own, so that a rank that believes otherwise hears nobody. */
__device__ void pass(const cuda_exchange_params &p)
{
    end_none();
    if (blockIdx.x == 0 && threadIdx.x == 0)
        p.peer_buffers[p.rank]->tags++;
}

/* Have the host gather `words` of each rank, and wait until it has; by one thread of a launch, when
 * all have written theirs. */
__device__ void send_host(const gumbel_gathered_rows &p, int64_t words)
{
    gumbel_errand *e = p.errand;
    const uint64_t number = ptx_load_relaxed_sys_8(&e->asked) + 1, begun = ptx_read_globaltimer();
    if (ptx_load_relaxed_sys_8(&e->failed))
        return;
    ptx_store_relaxed_sys_8(&e->send, (uint64_t)(p.gathered + p.rank * words));
    ptx_store_relaxed_sys_8(&e->receive, (uint64_t)p.gathered);
    ptx_store_relaxed_sys_8(&e->bytes, (uint64_t)words * sizeof(uint32_t));
    __threadfence_system();
    ptx_store_relaxed_sys_8(&e->asked, number);
    while (ptx_load_relaxed_sys_8(&e->done) != number && !ptx_load_relaxed_sys_8(&e->failed))
        if (ptx_read_globaltimer() - begun > (uint64_t)p.timeout_ms * 1000000)
            ptx_store_relaxed_sys_8(&e->failed, 1);
    __threadfence_system();
}

/* Draw `at` of all ranks, merged, by a warp; every lane gets it. */
__device__ gumbel_summary merge_ranks(exchange &e, int64_t at, uint32_t *words)
{
    const int lane = threadIdx.x % 32;
    const int64_t first = at * kSummaryWords;
    gumbel_summary whole;
    gumbel_summary_empty(&whole);
    for (int32_t r = 0; r < e.p.ranks; r++) {
        gumbel_summary said;
        if (lane < kSummaryWords)
            words[lane] = r == e.p.rank ? e.p.words[first + lane] : e.hear(r, first + lane);
        __syncwarp();
        memcpy(&said, words, sizeof said);
        __syncwarp();
        gumbel_summary_merge_any(&whole, &said);
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
    const int64_t count = (p.chosen ? list_rows(p, list) : p.rows) * p.width;
    if (count == 0) {
        pass(p);
        return;
    }
    ptx_wait_for_launch();
    exchange e(p);
    const int64_t room = count <= p.room ? p.room : p.room / 2;
    int64_t half = 0; /* where the words of this turn begin in a place */
    for (int64_t base = 0; base < count; base += room, half = room - half, e.tag++) {
        const int64_t here = min(room, count - base);
        for (int64_t i = first; i < here && !e.failed; i += stride) {
            const cell at(p, list, base + i);
            e.say(half + i, p.words[at.row * p.width + at.column]);
        }
        for (int32_t r = 0; r < p.ranks; r++)
            for (int64_t i = first; i < here; i += stride) {
                const cell at(p, list, base + i);
                const uint32_t word =
                    r == p.rank ? p.words[at.row * p.width + at.column] : e.hear(r, half + i);
                if (at.column < p.widths[r])
                    p.received[at.place * p.received_width + p.begins[r] + at.column] = word;
            }
    }
    e.tag--;
    e.end();
}

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_ask_rows(const __grid_constant__ gumbel_gathered_rows p)
{
    __shared__ int32_t list[CUDA_EXCHANGE_ROWS_MAX];
    const gumbel_peer_rows &rows = p.rows;
    const int64_t words = list_rows(rows, list) * rows.width;
    if (words == 0) {
        end_none();
        return;
    }
    ptx_wait_for_launch();
    uint32_t *own = p.gathered + p.rank * words;
    for (int64_t i = (int64_t)blockIdx.x * kThreads + threadIdx.x; i < words;
         i += (int64_t)gridDim.x * kThreads) {
        const cell at(rows, list, i);
        own[i] = rows.words[at.row * rows.width + at.column];
    }
    if (ends_last(p.ended) && threadIdx.x == 0) {
        *p.ended = 0;
        send_host(p, words);
    }
}

/* A piece of a rank's row at a time. All bits are set of what did not come. */
extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_lay_rows(const __grid_constant__ gumbel_gathered_rows p)
{
    __shared__ bool failed;
    const int64_t width = p.rows.width,
                  pieces = (width + CUDA_SCATTER_SLICE - 1) / CUDA_SCATTER_SLICE;
    ptx_allow_launch();
    ptx_wait_for_launch();
    const int64_t rows = p.errand ? *p.rows.listed : p.rows.rows;
    if (rows == 0)
        return;
    if (threadIdx.x == 0)
        failed = p.errand && ptx_load_relaxed_sys_8(&p.errand->failed);
    __syncthreads();
    for (int64_t turn = blockIdx.x; turn < rows * p.ranks * pieces; turn += gridDim.x) {
        const int64_t piece = turn % pieces, row = turn / pieces % rows, r = turn / pieces / rows;
        const int64_t end = min((piece + 1) * CUDA_SCATTER_SLICE, p.rows.widths[r]);
        const uint32_t *from = p.gathered + (r * rows + row) * width;
        uint32_t *to = p.rows.received + row * p.rows.received_width + p.rows.begins[r];
#pragma unroll 8
        for (int64_t j = piece * CUDA_SCATTER_SLICE + threadIdx.x; j < end; j += kThreads)
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
            e.say(at * kSummaryWords + lane, p.words[at * kSummaryWords + lane]);
    ptx_allow_launch();
    for (int64_t at = begin; at < draws; at += warps) {
        gumbel_summary own = merge_ranks(e, at, words[warp]);
        gumbel_summary first = at % samples ? merge_ranks(e, at - at % samples, words[warp]) : own;
        if (lane == 0)
            write_merged(p.output, at, samples, own, first);
    }
    e.end();
}
