/* SPDX-License-Identifier: Apache-2.0
 *
 * A CTA's slice of a row in shared memory: loading, editing in place, and scanning.
 */
#ifndef GUMBEL_CUDA_CLUSTER_SLICE_CUH
#define GUMBEL_CUDA_CLUSTER_SLICE_CUH

#include "cuda/truncated/few/shortlist_maxima.cuh"
#include "cuda/truncated/cluster/cluster_exchange.cuh"

namespace
{

/* y of `size` tokens from `begin` on; -inf for invalid tokens. `begin` is a multiple of 64, `size`
 * of 128. */
struct slice_source {
    int64_t begin;
    int size;

    /* Calls more(offset, y) for the quads for which test(y) holds in any lane. Tests are short and
     * unrolled, since most passes select few tokens; more() is in a loop. */
    template <class Test, class More>
    __device__ __forceinline__ void each_passing(Test test, More more) const
    {
        constexpr int ahead = 5; /* two turns cover a slice of 19,072 tokens */
        int lane = threadIdx.x % 32;
#pragma unroll 1
        for (int warp = 4 * (threadIdx.x - lane); warp < size; warp += ahead * 4 * kThreads) {
            uint32_t found = 0;
#pragma unroll
            for (int i = 0; i < ahead; i++) {
                int at = warp + i * 4 * kThreads;
                float4 y = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
                if (at < size)
                    y = *(const float4 *)(slice_logits() + at + 4 * lane);
                found |= (uint32_t)(test(y) && at < size) << i;
            }
#pragma unroll 1
            for (found = __reduce_or_sync(~0u, found); found; found &= found - 1) {
                int at = warp + (__ffs(found) - 1) * 4 * kThreads + 4 * lane;
                float4 raw = *(const float4 *)(slice_logits() + at);
                float y[4] = {raw.x, raw.y, raw.z, raw.w};
                more(at, y);
            }
        }
    }

    /* Calls f(id, y) for the tokens of quads whose largest y passes may(y), which is monotonic. */
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

/* Four neighbouring tokens of a slice; -inf past its end. */
__device__ __forceinline__ float4 load_quad(const slice_source &source, int place)
{
    return place < source.size ? *(const float4 *)(slice_logits() + place)
                               : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
}

/* Calls f(y) for each token of this thread. */
template <class F> __device__ __forceinline__ void each_own_y(const slice_source &source, F f)
{
#pragma unroll 2
    for (int at = 4 * threadIdx.x; at < source.size; at += 4 * kThreads) {
        const float4 raw = load_quad(source, at);
        const float y[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            f(y[i]);
    }
}

/* Sets the logits of a slice that the product has not stored, since they cannot matter
 * (bound_sm90.cuh), to -inf. */
__device__ __noinline__ void fill_unstored(const row_reader &reader, const slice_source &source)
{
    const gumbel_problem &q = reader.p.problem;
    float *row = (float *)q.logits.data + reader.b * q.logits.stride - q.first_token;
    const int64_t origin = CUDA_MAXIMA_ORIGIN(q.first_token);
    auto is_unstored = [&](int64_t place) {
        uint32_t stored = load_stored(reader.p, reader.b, place / CUDA_MAXIMA_BLOCK);
        return !(stored >> place % CUDA_MAXIMA_BLOCK / CUDA_SUBTILE & 1);
    };
    const int64_t first = max(source.begin - origin, (int64_t)0) / CUDA_MAXIMA_BLOCK;
    bool any = false;
    for (int64_t block = first + threadIdx.x; origin + block * CUDA_MAXIMA_BLOCK < reader.end;
         block += kThreads)
        any |= load_stored(reader.p, reader.b, block) != CUDA_ALL_SUBTILES;
    if (!__syncthreads_or(any))
        return;
    for (int64_t token = source.begin + threadIdx.x; token < reader.end; token += kThreads)
        if (reader.is_valid(token) && is_unstored(token - origin))
            row[token] = -INFINITY;
    __syncthreads();
}

/* Starts copying the logits of a slice to shared memory as float32; they are valid after
 * ptx_copy_async_wait<0>() and a barrier. */
__device__ __forceinline__ void fetch_slice(const row_reader &reader, const slice_source &source)
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
        fill_unstored(reader, source);
#pragma unroll 4
    for (; at < copied; at += 4 * kThreads)
        ptx_copy_async<16>(slice_logits() + at, row + source.begin + at);
#pragma unroll 2
    for (; at < source.size; at += 4 * kThreads) {
        four l = reader.load_four(source.begin + at);
        *(float4 *)(slice_logits() + at) = make_float4(l.v[0], l.v[1], l.v[2], l.v[3]);
    }
    ptx_copy_async_commit();
}

/* Loads the mask and history bits of a slice. */
__device__ __forceinline__ void fetch_words(const row_reader &reader, const slice_source &source)
{
    const gumbel_problem &q = reader.p.problem;
    const gumbel_history &h = q.history;
    const int64_t words = gumbel_mask_words_of(h.vocab_size), first = source.begin >> 5;
    const row_edits edits = load_row_edits(q, reader.b); /* the shared copy is not written yet */
#pragma unroll 2
    for (int i = threadIdx.x; i < source.size / 32; i += kThreads) {
        int64_t at = first + i;
        bool inside = 32 * at < reader.end;
        if (edits.mask)
            shared_state().words.allowed[i] = inside ? edits.mask[at] : 0;
        if (edits.prompt)
            shared_state().words.seen[i] = at < words ? edits.prompt[at] | edits.output[at] : 0;
    }
}

/* Sets the masked tokens of a slice to -inf. */
__device__ __noinline__ void mask_slice(slice_source source)
{
#pragma unroll 4
    for (int i = threadIdx.x; i < source.size; i += kThreads)
        if (!read_bit(shared_state().words.allowed, i))
            slice_logits()[i] = -INFINITY;
    __syncthreads();
}

/* Applies penalties to the tokens of a slice that the history has seen, one word per thread. */
__device__ __noinline__ void edit_seen(const row_reader &reader, slice_source source)
{
    for (int i = threadIdx.x; i < source.size / 32; i += kThreads)
        for (uint32_t pending = shared_state().words.seen[i]; pending; pending &= pending - 1) {
            int place = 32 * i + __ffs(pending) - 1;
            if (reader.is_valid(source.begin + place))
                slice_logits()[place] =
                    penalise_by_history(reader.p.problem, reader.row.edits, source.begin + place, 0,
                                        slice_logits()[place]);
        }
    __syncthreads();
}

/* Applies scale and soft-cap to a slice. */
__device__ __noinline__ void scale_slice(const row_reader &reader, slice_source source)
{
    for (int i = threadIdx.x; i < source.size; i += kThreads)
        if (reader.is_valid(source.begin + i))
            slice_logits()[i] = scale_logit(reader.p, slice_logits()[i]);
    __syncthreads();
}

/* Edits a slice whose row has lists, tile by tile. */
__device__ __noinline__ void edit_by_lists(const row_reader &reader, slice_source source)
{
#pragma unroll 1
    for (int at = 0; at < source.size; at += kTruncatedTile) {
        int64_t tile = source.begin + at;
        stage_tile(reader.p, reader.row, reader.b, tile, min(tile + kTruncatedTile, reader.end),
                   shared_state().stage, slice_logits() + at, true);
    }
    __syncthreads();
}

/* Adds a quad with a value that is not finite to the facts. */
__device__ __forceinline__ void scan_quad(const float (&y)[4], logit_values values,
                                          row_facts &facts, float &thread_max, float &min_y)
{
    /* A finite quad of this lane has already been counted: the test holds for any lane of the warp.
     */
    bool whole = true;
    for (int i = 0; i < 4; i++)
        whole &= fabsf(values.to_z(y[i])) < INFINITY;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float z = values.to_z(y[i]);
        facts.flags |= flags_of_z(z);
        facts.alive += !whole && z > -INFINITY;
        thread_max = z > -INFINITY ? fmaxf(thread_max, y[i]) : thread_max;
        min_y = z > -INFINITY ? fminf(min_y, y[i]) : min_y;
    }
}

/* Replaces the logits of a slice by y. */
__device__ __forceinline__ void edit_slice(const row_reader &reader, const slice_source &source)
{
    const gumbel_problem &q = reader.p.problem;
    if (reader.row.lists) {
        edit_by_lists(reader, source);
        return;
    }
    if (q.scale != 1.0f || q.soft_cap != 0.0f)
        scale_slice(reader, source);
    if (reader.row.edits.act)
        edit_seen(reader, source);
    if (q.features & GUMBEL_FEATURE_MASK)
        mask_slice(source);
}

/* Facts of this thread's tokens of a slice; sets `thread_max` to their largest y. */
__device__ __forceinline__ row_facts scan_slice(const slice_source &source,
                                                float inverse_temperature, float &thread_max)
{
    row_facts facts = row_facts::empty();
    float min_y = INFINITY;
    thread_max = -INFINITY;
    source.each_passing(
        [&](float4 y) {
            float high = largest_of({y.x, y.y, y.z, y.w});
            float low = fminf(fminf(y.x, y.y), fminf(y.z, y.w));
            bool finite =
                low * inverse_temperature > -INFINITY && high * inverse_temperature < INFINITY;
            facts.alive += finite ? 4 : 0;
            thread_max = finite ? fmaxf(thread_max, high) : thread_max;
            min_y = finite ? fminf(min_y, low) : min_y;
            return !finite;
        },
        [&](int, const float(&y)[4]) {
            scan_quad(y, {inverse_temperature, false}, facts, thread_max, min_y);
        });
    if (facts.alive > 0) {
        facts.highest = facts.lowest_max = gumbel_key_of_value(thread_max);
        facts.lowest = gumbel_key_of_value(min_y);
        facts.num_maxima = 1;
    }
    return facts;
}

} // namespace

#endif
