/* SPDX-License-Identifier: Apache-2.0
 *
 * A CTA's share of a row: fetched, edited in place, and gone through.
 */
#ifndef GUMBEL_CUDA_REQUEST_SHARE_CUH
#define GUMBEL_CUDA_REQUEST_SHARE_CUH

#include "cuda/request/few/request_peaks.cuh"
#include "cuda/request/team/request_team.cuh"

namespace
{

/* y of `size` tokens from `begin` on, -inf for those that do not count. `begin` is a multiple of
 * 64, `size` of 128. */
struct share_source {
    int64_t begin;
    int size;

    /* more(place, y) for quads that a first look(y) tells to be of interest to any lane. Looks are
     * short and side by side, since most passes look for few tokens; more() is in a loop. */
    template <class Look, class More>
    __device__ __forceinline__ void each_passing(Look look, More more) const
    {
        constexpr int ahead = 5; /* two turns go through a share of 19,072 tokens */
        int lane = threadIdx.x % 32;
#pragma unroll 1
        for (int warp = 4 * (threadIdx.x - lane); warp < size; warp += ahead * 4 * kThreads) {
            uint32_t found = 0;
#pragma unroll
            for (int i = 0; i < ahead; i++) {
                int at = warp + i * 4 * kThreads;
                float4 y = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
                if (at < size)
                    y = *(const float4 *)(share() + at + 4 * lane);
                found |= (uint32_t)(look(y) && at < size) << i;
            }
#pragma unroll 1
            for (found = __reduce_or_sync(~0u, found); found; found &= found - 1) {
                int at = warp + (__ffs(found) - 1) * 4 * kThreads + 4 * lane;
                float4 raw = *(const float4 *)(share() + at);
                float y[4] = {raw.x, raw.y, raw.z, raw.w};
                more(at, y);
            }
        }
    }

    /* f(id, y) for each token of quads whose largest y may(y) be of interest, as larger are. */
    template <class May, class F> __device__ __forceinline__ void each(May may, F f) const
    {
        each_passing([&](float4 y) { return may(fmaxf(fmaxf(y.x, y.y), fmaxf(y.z, y.w))); },
                     [&](int at, const float(&y)[4]) {
#pragma unroll
                         for (int i = 0; i < 4; i++)
                             f((int32_t)begin + at + i, y[i]);
                     });
    }
};

/* Four neighbours of a share; -inf past its end. */
__device__ __forceinline__ float4 load_quad(const share_source &source, int place)
{
    return place < source.size ? *(const float4 *)(share() + place)
                               : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
}

/* What the product has left out of a share, as it cannot matter (bound_sm90.cuh), is -inf. */
__device__ __noinline__ void fill_left_out(const part_reader &reader, const share_source &source)
{
    const gumbel_problem &q = reader.p.problem;
    float *row = (float *)q.logits.data + reader.b * q.logits.stride - q.first_token;
    const int64_t origin = CUDA_REQUEST_ORIGIN(q.first_token);
    auto is_left_out = [&](int64_t place) {
        uint32_t stored = load_stored(reader.p, reader.b, place / CUDA_REQUEST_BLOCK);
        return !(stored >> place % CUDA_REQUEST_BLOCK / CUDA_REQUEST_SUBTILE & 1);
    };
    const int64_t first = max(source.begin - origin, (int64_t)0) / CUDA_REQUEST_BLOCK;
    bool any = false;
    for (int64_t block = first + threadIdx.x; origin + block * CUDA_REQUEST_BLOCK < reader.end;
         block += kThreads)
        any |= load_stored(reader.p, reader.b, block) != CUDA_REQUEST_ALL_SUBTILES;
    if (!__syncthreads_or(any))
        return;
    for (int64_t token = source.begin + threadIdx.x; token < reader.end; token += kThreads)
        if (reader.counts(token) && is_left_out(token - origin))
            row[token] = -INFINITY;
    __syncthreads();
}

/* Start to bring the logits of a share into it, as float32; they are there after a
 * ptx_copy_async_wait<0>() and a barrier. */
__device__ __forceinline__ void fetch_share(const part_reader &reader, const share_source &source)
{
    const gumbel_problem &q = reader.p.problem;
    const float *row = (const float *)q.logits.data + reader.b * q.logits.stride - q.first_token;
    bool aligned = q.logits.dtype == GUMBEL_FLOAT32 && (uintptr_t)(row + source.begin) % 16 == 0 &&
                   source.begin >= q.first_token;
    int copied =
        aligned ? (int)max(min(reader.end - source.begin, (int64_t)source.size), (int64_t)0) : 0;
    int at = 4 * threadIdx.x;
    copied -= copied % 4;
    if (reader.p.stored_subtiles)
        fill_left_out(reader, source);
#pragma unroll 4
    for (; at < copied; at += 4 * kThreads)
        ptx_copy_async<16>(share() + at, row + source.begin + at);
#pragma unroll 2
    for (; at < source.size; at += 4 * kThreads) {
        four l = reader.load_four(source.begin + at);
        *(float4 *)(share() + at) = make_float4(l.v[0], l.v[1], l.v[2], l.v[3]);
    }
    ptx_copy_async_commit();
}

/* Bring the bits of a share's tokens: which are allowed, and which a history has seen. */
__device__ __forceinline__ void fetch_words(const part_reader &reader, const share_source &source)
{
    const gumbel_problem &q = reader.p.problem;
    const gumbel_history &h = q.history;
    const int64_t words = gumbel_words_of(h.vocab_size), first = source.begin >> 5;
    const row_edits edits = load_row_edits(q, reader.b); /* the row's own are not there yet */
#pragma unroll 2
    for (int i = threadIdx.x; i < source.size / 32; i += kThreads) {
        int64_t at = first + i;
        bool inside = 32 * at < reader.end;
        if (edits.mask)
            shared().words.allowed[i] = inside ? edits.mask[at] : 0;
        if (edits.prompt)
            shared().words.seen[i] = at < words ? edits.prompt[at] | edits.output[at] : 0;
    }
}

/* Set tokens of the share that are not allowed to -inf. */
__device__ __noinline__ void mask_share(share_source source)
{
#pragma unroll 4
    for (int i = threadIdx.x; i < source.size; i += kThreads)
        if (!read_bit(shared().words.allowed, i))
            share()[i] = -INFINITY;
    __syncthreads();
}

/* Edit by the history those tokens of the share that it has seen, a thread a word. */
__device__ __noinline__ void edit_seen(const part_reader &reader, share_source source)
{
    for (int i = threadIdx.x; i < source.size / 32; i += kThreads)
        for (uint32_t left = shared().words.seen[i]; left; left &= left - 1) {
            int place = 32 * i + __ffs(left) - 1;
            if (reader.counts(source.begin + place))
                share()[place] = penalise_by_history(reader.p.problem, reader.row.edits,
                                                     source.begin + place, 0, share()[place]);
        }
    __syncthreads();
}

/* Apply scale and soft-cap to a share. */
__device__ __noinline__ void scale_share(const part_reader &reader, share_source source)
{
    for (int i = threadIdx.x; i < source.size; i += kThreads)
        if (reader.counts(source.begin + i))
            share()[i] = scaled_logit(reader.p, share()[i]);
    __syncthreads();
}

/* Edit a share whose row has lists, in pieces. */
__device__ __noinline__ void edit_by_lists(const part_reader &reader, share_source source)
{
#pragma unroll 1
    for (int at = 0; at < source.size; at += kPiece) {
        int64_t piece = source.begin + at;
        stage_piece(reader.p, reader.row, reader.b, piece, min(piece + kPiece, reader.end),
                    shared().stage, share() + at, true);
    }
    __syncthreads();
}

/* What four tokens are, if some of them are not finite. */
__device__ __forceinline__ void look_at_quad(const float (&y)[4], request_values values,
                                             team_facts &facts, float &peak, float &least)
{
    /* Of the quads of a warp, some may have been looked at already: all of their tokens count. */
    bool whole = true;
    for (int i = 0; i < 4; i++)
        whole &= fabsf(values.z(y[i])) < INFINITY;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float z = values.z(y[i]);
        facts.flags |= isnan(z) ? GUMBEL_FLAG_NAN : z == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
        facts.alive += !whole && z > -INFINITY;
        peak = z > -INFINITY ? fmaxf(peak, y[i]) : peak;
        least = z > -INFINITY ? fminf(least, y[i]) : least;
    }
}

/* Make y of the logits of a share, in their place. */
__device__ __forceinline__ void edit_share(const part_reader &reader, const share_source &source)
{
    const gumbel_problem &q = reader.p.problem;
    if (reader.row.lists) {
        edit_by_lists(reader, source);
        return;
    }
    if (q.scale != 1.0f || q.soft_cap != 0.0f)
        scale_share(reader, source);
    if (reader.row.edits.act)
        edit_seen(reader, source);
    if (q.request & GUMBEL_REQUEST_MASK)
        mask_share(source);
}

/* What this thread sees of a share's y. `peak` is the largest. */
__device__ __forceinline__ team_facts look_at_share(const share_source &source,
                                                    float inverse_temperature, float &peak)
{
    team_facts facts = team_facts::none();
    float least = INFINITY;
    peak = -INFINITY;
    source.each_passing(
        [&](float4 y) {
            float high = largest_of({y.x, y.y, y.z, y.w});
            float low = fminf(fminf(y.x, y.y), fminf(y.z, y.w));
            bool finite =
                low * inverse_temperature > -INFINITY && high * inverse_temperature < INFINITY;
            facts.alive += finite ? 4 : 0;
            peak = finite ? fmaxf(peak, high) : peak;
            least = finite ? fminf(least, low) : least;
            return !finite;
        },
        [&](int, const float(&y)[4]) {
            look_at_quad(y, {inverse_temperature, false}, facts, peak, least);
        });
    if (facts.alive > 0) {
        facts.highest = facts.lowest = gumbel_key(peak);
        facts.least = gumbel_key(least);
        facts.peaks = 1;
    }
    return facts;
}

} // namespace

#endif
