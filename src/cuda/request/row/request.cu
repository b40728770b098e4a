/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   a request from logits (docs/maths.md, 8 and 9) in one launch: candidates are screened by
 *        many CTAs a row, and the row's last CTA finds the cut among them, draws and writes.
 * COST   reads B V elements once. A bound that k tokens of the row reach is found in a CTA's first
 *        piece and drops all but some k (1 + ln pieces) tokens. What then remains are the steps of
 *        the row's last CTA, some ten descents over a few thousand candidates.
 * MAP    a CTA takes a part of a row, piece by piece; a thread two quads of a piece of 4096 tokens.
 *        A row that cannot be screened (top_p alone, a larger k, masses of untruncated rows), or
 *        whose candidates do not fit, is served by one CTA as the naive kernel would.
 * SMEM   4096 candidates, the bins of a descent, and where edits come from lists a piece of the
 *        row.
 * SYNC   a __syncthreads() a piece. Parts of a row are counted in global memory; the last one reads
 *        what all of them left there.
 * NUMERICS  those of the naive kernel, bit for bit: what is dropped takes part in nothing.
 */
#include "cuda/common/cta_counter.cuh"
#include "cuda/request/row/request_screen.cuh"

namespace
{

/* Go through a part; `staged` holds a piece. */
__device__ __forceinline__ cuda_part_result screen_part(const part_reader &reader,
                                                        part_screen &screen, int64_t begin,
                                                        float *staged)
{
    bool fits = true;
    uint32_t flags = 0;
    float next[kOwn], y[kOwn];
    reader.load(begin, next);
    int turn = 0;
    for (int64_t piece = begin; piece < reader.end && fits; piece += kPiece, turn++) {
#pragma unroll
        for (int i = 0; i < kOwn; i++)
            y[i] = next[i];
        if (piece + kPiece < reader.end)
            reader.load(piece + kPiece, next);
        reader.edit(piece, y, staged);
#pragma unroll
        for (int i = 0; i < kOwn; i++) {
            float z = screen.values.z(y[i]);
            flags |= isnan(z) ? GUMBEL_FLAG_NAN : z == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
        }
        fits = screen.take(reader, piece, turn, y);
    }
    flags = over_cta(flags, screen.x.scratch, [](uint32_t a, uint32_t b) { return a | b; });
    return {fits ? screen.s.count : kList + 1, flags, screen.bound(), screen.largest};
}

/* Tell the other parts what this one found; whether it is the last to do so. */
__device__ __forceinline__ bool tell(const cuda_request_params &p, request_screen &s,
                                     const cuda_part_result &own, int64_t b, int64_t part)
{
    cuda_candidate *to = p.candidates + (b * p.parts + part) * kList;
    for (uint32_t i = threadIdx.x; i < own.count && i < kList; i += kThreads)
        to[i] = s.list[i];
    if (threadIdx.x == 0)
        p.part_results[b * p.parts + part] = own;
    __syncthreads();
    if (threadIdx.x == 0)
        s.last = count_cta_end(request_counter(p, b), p.tag, p.parts);
    __syncthreads();
    return s.last;
}

/* Bring the candidates of all parts of row b that reach `least` into the list, where they do. */
__device__ __forceinline__ bool gather(const cuda_request_params &p, request_screen &s, int64_t b,
                                       const part_screen &screen, float least)
{
    int teams = p.parts < kWarps ? p.parts : kWarps, size = kThreads / teams;
    int team = threadIdx.x / size, place = threadIdx.x % size;
    bool full = false;
    __syncthreads();
    if (threadIdx.x == 0)
        s.count = 0;
    __syncthreads();
    for (int part = team; team < teams && part < p.parts; part += teams) {
        uint32_t count = __ldcg(&p.part_results[b * p.parts + part].count);
        const cuda_candidate *from = p.candidates + (b * p.parts + part) * kList;
        for (uint32_t i = place; i < count; i += size) {
            uint2 raw = __ldcg((const uint2 *)&from[i]);
            float y = __uint_as_float(raw.x);
            if (screen.values.z(y) >= least)
                full |= screen.offer(y, (int32_t)raw.y) >= kList;
        }
    }
    return !__syncthreads_or(full);
}

/* Merge the parts of row b; whether its candidates are all in the list. */
__device__ __forceinline__ bool merge(const cuda_request_params &p, request_screen &s, int64_t b,
                                      part_screen &screen, uint32_t &flags)
{
    uint32_t most = 0, bound = 0, largest = 0;
    flags = 0;
    for (int part = threadIdx.x; part < p.parts; part += kThreads) {
        uint4 raw = __ldcg((const uint4 *)&p.part_results[b * p.parts + part]);
        most = max(most, raw.x);
        flags |= raw.y;
        bound = max(bound, gumbel_key(__uint_as_float(raw.z)));
        largest = max(largest, gumbel_key(__uint_as_float(raw.w)));
    }
    request_scratch &x = screen.x.scratch;
    flags = over_cta(flags, x, [](uint32_t a, uint32_t b) { return a | b; });
    float least = gumbel_of_key(largest_of_cta(bound, x));
    screen.largest = gumbel_of_key(largest_of_cta(largest, x));
    if (largest_of_cta(most, x) > kList)
        return false;
    /* A list that is full leaves a higher bound. */
    for (int tries = 0; tries < 4; tries++) {
        if (gather(p, s, b, screen, least))
            return true;
        screen.raise(list_source{s.list, kList});
        least = fmaxf(least, screen.bound());
    }
    return false;
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, CUDA_REQUEST_CTAS)
    gumbel_request_logits(const __grid_constant__ cuda_request_params p)
{
    __shared__ request_shared x;
    extern __shared__ __align__(16) unsigned char memory[];
    request_screen &s = *(request_screen *)memory;
    request_piece &staged = *(request_piece *)(&s + 1);
    const gumbel_problem &q = p.problem;
    const int64_t b = blockIdx.x / p.parts, part = blockIdx.x % p.parts;
    ptx_wait_for_launch();
    if (ends_unused(p, b, threadIdx.x == 0 && part == 0))
        return;
    if (threadIdx.x == 0) {
        x.row = request_row_of(q, b);
        s.count = s.largest_key[0] = s.largest_key[1] = 0;
        start_cta_counter(request_counter(p, b), p.tag);
    }
    __syncthreads();
    request_wanted wanted;
    bool screened = can_screen(p, x.row, x.row.draw.greedy, wanted);
    uint32_t flags = 0;
    if (screened) {
        part_screen screen = {
            x, s, wanted, {x.row.draw.inverse_temperature, x.row.rules.before != 0}};
        int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + part * p.chunk;
        part_reader reader = {p, x.row, staged.stage, b, min(begin + p.chunk, q.end_token)};
        cuda_part_result own = screen_part(reader, screen, begin, staged.y);
        flags = own.flags;
        screened = own.count <= kList;
        if (p.parts > 1) {
            if (!tell(p, s, own, b, part))
                return;
            screened = merge(p, s, b, screen, flags);
        }
        /* With few candidates left all that follows is short. */
        if (screened && s.count > kFew) {
            screen.raise(list_source{s.list, (int)s.count});
            __syncthreads();
            screen.prune(0, 0);
        }
    } else if (part != 0) {
        return;
    }
    if (screened)
        serve_row(p, list_source{s.list, (int)s.count}, x, b, flags);
    else
        serve_row(p, row_source{p, x.row, staged, b}, x, b);
}
