/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   transforms, truncates and draws rows of logits (docs/maths.md, sections 8 and 9) in one
 *        launch, for rows that 16 CTAs cannot hold (truncated_grid.cu): several CTAs a row filter
 *        candidates, and the last CTA of a row truncates, draws and writes.
 * COST   reads B V elements once. A CTA finds a bound that k tokens reach in its first tile, and
 *        then keeps about k (1 + ln tiles) tokens. The last CTA of a row makes about ten
 *        descents over a few thousand candidates.
 * MAP    a CTA reads a split of a row in tiles of 4096 tokens; a thread takes two quads of a tile.
 *        Rows that candidates cannot serve (top_p alone, a larger k, masses of untruncated rows),
 *        or whose candidates do not fit, are served by one CTA, as in the naive kernel.
 * SMEM   4096 candidates, the bins of a descent, and a tile of the row if lists edit it.
 * SYNC   all threads of a CTA wait for each other once per tile. No CTA waits for another: the last
 *        CTA of a row to increment a counter in global memory reads the results of all.
 * NUMERICS  the outputs of the naive kernel, bit for bit: dropped tokens contribute to no output.
 */
#include "cuda/common/cta_counter.cuh"
#include "cuda/truncated/row/candidate_list.cuh"
#include "cuda/truncated/row/serve_row.cuh"

namespace
{

/* Filters the split from token `begin` on. `staged`, in shared memory, holds a tile of edited
 * logits. */
__device__ __forceinline__ cuda_split_result filter_split(const row_reader &reader,
                                                          candidate_filter &filter, int64_t begin,
                                                          float *staged)
{
    bool fits = true;
    uint32_t flags = 0;
    float next[kThreadTokens], y[kThreadTokens];
    reader.load(begin, next);
    int turn = 0;
    for (int64_t tile = begin; tile < reader.end && fits; tile += kTruncatedTile, turn++) {
#pragma unroll
        for (int i = 0; i < kThreadTokens; i++)
            y[i] = next[i];
        if (tile + kTruncatedTile < reader.end)
            reader.load(tile + kTruncatedTile, next);
        reader.edit_tile(tile, y, staged);
#pragma unroll
        for (int i = 0; i < kThreadTokens; i++) {
            float z = filter.values.to_z(y[i]);
            flags |= flags_of_z(z);
        }
        fits = filter.add_tile(reader, tile, turn, y);
    }
    flags = reduce_cta(flags, filter.x.scratch, [](uint32_t a, uint32_t b) { return a | b; });
    return {fits ? filter.s.count : kCandidates + 1, flags, filter.current_bound(), filter.largest};
}

/* Publishes the candidates of this CTA's split of row b. Returns whether all other splits of the
 * row have been published. */
__device__ __forceinline__ bool publish_split(const cuda_truncated_params &p, candidate_list &s,
                                              const cuda_split_result &own, int64_t b,
                                              int64_t split)
{
    cuda_candidate *to = p.candidates + (b * p.splits + split) * kCandidates;
    for (uint32_t i = threadIdx.x; i < own.count && i < kCandidates; i += kThreads)
        to[i] = s.list[i];
    if (threadIdx.x == 0)
        p.split_results[b * p.splits + split] = own;
    __syncthreads();
    if (threadIdx.x == 0)
        s.last = count_cta_end(get_split_counter(p, b), p.tag, p.splits);
    __syncthreads();
    return s.last;
}

/* Gathers the candidates of all splits of row b whose z reaches `min_z`; returns whether they fit.
 */
__device__ __forceinline__ bool gather_candidates(const cuda_truncated_params &p, candidate_list &s,
                                                  int64_t b, const candidate_filter &filter,
                                                  float min_z)
{
    int groups = p.splits < kWarps ? p.splits : kWarps, size = kThreads / groups;
    int group = threadIdx.x / size, place = threadIdx.x % size;
    bool full = false;
    __syncthreads();
    if (threadIdx.x == 0)
        s.count = 0;
    __syncthreads();
    for (int split = group; group < groups && split < p.splits; split += groups) {
        uint32_t count = __ldcg(&p.split_results[b * p.splits + split].count);
        const cuda_candidate *from = p.candidates + (b * p.splits + split) * kCandidates;
        for (uint32_t i = place; i < count; i += size) {
            uint2 raw = __ldcg((const uint2 *)&from[i]);
            float y = __uint_as_float(raw.x);
            if (filter.values.to_z(y) >= min_z)
                full |= filter.offer_token(y, (int32_t)raw.y) >= kCandidates;
        }
    }
    return !__syncthreads_or(full);
}

/* Merges the splits of row b; returns whether all its candidates are in the list. */
__device__ __forceinline__ bool merge_splits_of_row(const cuda_truncated_params &p,
                                                    candidate_list &s, int64_t b,
                                                    candidate_filter &filter, uint32_t &flags)
{
    uint32_t max_count = 0, bound = 0, largest = 0;
    flags = 0;
    for (int split = threadIdx.x; split < p.splits; split += kThreads) {
        uint4 raw = __ldcg((const uint4 *)&p.split_results[b * p.splits + split]);
        max_count = max(max_count, raw.x);
        flags |= raw.y;
        bound = max(bound, gumbel_key_of_value(__uint_as_float(raw.z)));
        largest = max(largest, gumbel_key_of_value(__uint_as_float(raw.w)));
    }
    truncated_scratch &x = filter.x.scratch;
    flags = reduce_cta(flags, x, [](uint32_t a, uint32_t b) { return a | b; });
    float min_z = gumbel_value_of_key(largest_of_cta(bound, x));
    filter.largest = gumbel_value_of_key(largest_of_cta(largest, x));
    if (largest_of_cta(max_count, x) > kCandidates)
        return false;
    /* If the candidates do not fit, those that do fit yield a higher bound. */
    for (int tries = 0; tries < 4; tries++) {
        if (gather_candidates(p, s, b, filter, min_z))
            return true;
        filter.raise_bound(list_source{s.list, kCandidates});
        min_z = fmaxf(min_z, filter.current_bound());
    }
    return false;
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, CUDA_TRUNCATED_CTAS)
    gumbel_truncated_two_pass(const __grid_constant__ cuda_truncated_params p)
{
    __shared__ truncated_shared x;
    candidate_list &s = *(candidate_list *)get_dynamic_memory();
    staged_tile &staged = *(staged_tile *)(&s + 1);
    const gumbel_problem &q = p.problem;
    const int64_t b = blockIdx.x / p.splits, split = blockIdx.x % p.splits;
    ptx_wait_for_launch();
    if (end_unused_row(p, b, threadIdx.x == 0 && split == 0))
        return;
    if (threadIdx.x == 0) {
        x.row = load_truncated_row(q, b);
        s.count = s.largest_key[0] = s.largest_key[1] = 0;
        start_cta_counter(get_split_counter(p, b), p.tag);
    }
    __syncthreads();
    required_tokens required;
    bool filtered = candidates_suffice(p, x.row, x.row.draw.greedy, required);
    uint32_t flags = 0;
    if (filtered) {
        candidate_filter filter = {
            x, s, required, {x.row.draw.inverse_temperature, x.row.rules.before != 0}};
        int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + split * p.split_size;
        row_reader reader = {p, x.row, staged.stage, b, min(begin + p.split_size, q.end_token)};
        cuda_split_result own = filter_split(reader, filter, begin, staged.y);
        flags = own.flags;
        filtered = own.count <= kCandidates;
        if (p.splits > 1) {
            if (!publish_split(p, s, own, b, split))
                return;
            filtered = merge_splits_of_row(p, s, b, filter, flags);
        }
        /* Fewer candidates make the remaining steps faster. */
        if (filtered && s.count > kCompared) {
            filter.raise_bound(list_source{s.list, (int)s.count});
            __syncthreads();
            filter.prune_list(0, 0);
        }
    } else if (split != 0) {
        return;
    }
    if (filtered)
        serve_row(p, list_source{s.list, (int)s.count}, x, b, flags);
    else
        serve_row(p, row_source{p, x.row, staged, b}, x, b);
}
