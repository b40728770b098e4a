/* SPDX-License-Identifier: Apache-2.0
 *
 * The candidates of a row: a CTA goes through its part of the vocabulary once and keeps the tokens
 * that reach a bound which the row is sure to reach often enough, and which rises on the way. What
 * is dropped lies below the bound, so the row's cut, its most likely tokens and every rank that is
 * asked for are those of the candidates alone.
 */
#ifndef GUMBEL_CUDA_REQUEST_SCREEN_CUH
#define GUMBEL_CUDA_REQUEST_SCREEN_CUH

#include "cuda/request/row/request_load.cuh"
#include "cuda/request/row/request_output.cuh"

namespace
{

constexpr int kList = CUDA_REQUEST_CANDIDATES;
constexpr int kOwn = kPiece / kThreads; /* tokens of a piece that a thread takes, in quads */
static_assert(kOwn == 8, "a thread takes two quads of a piece");
/* Bits of a key that a bound need not resolve. */
constexpr int kRough = 14;

/* A CTA's candidates, in shared memory, and what it knows of its part. */
struct request_screen {
    cuda_candidate list[kList];
    uint32_t count;          /* offered to the list; kList at most are there */
    uint32_t largest_key[2]; /* of values, by turns of pieces */
    bool last;               /* of the row's CTAs to end */
};

/* Pieces of a part that ends at `end`, and what of them this thread takes. */
struct part_reader {
    const cuda_request_params &p;
    const request_row &row;
    request_stage &stage;
    int64_t b, end;

    __device__ __forceinline__ int64_t token_of(int64_t piece, int i) const
    {
        return piece + i / 4 * (kPiece / 2) + 4 * (int)threadIdx.x + i % 4;
    }

    __device__ __forceinline__ bool counts(int64_t token) const
    {
        return token >= p.problem.first_token && token < end;
    }

    /* Four logits from a token on, which is divisible by 4; -inf for those that do not count. */
    __device__ __forceinline__ four load_four(int64_t token) const
    {
        return request_load_four(p.problem, b, token, end);
    }

    /* Logits of a piece. */
    __device__ __forceinline__ void load(int64_t piece, float (&l)[kOwn]) const
    {
#pragma unroll
        for (int i = 0; i < kOwn; i += 4) {
            four v = load_four(token_of(piece, i));
#pragma unroll
            for (int j = 0; j < 4; j++)
                l[i + j] = v.v[j];
        }
    }

    /* y of a piece whose logits are l, in their place; by way of `y` where lists edit it. */
    __device__ __forceinline__ void edit(int64_t piece, float (&l)[kOwn], float *y) const
    {
        if (row.lists) {
            stage_piece(p, row, b, piece, min(piece + kPiece, end), stage, y, false);
#pragma unroll
            for (int i = 0; i < kOwn; i++) {
                int64_t token = token_of(piece, i);
                l[i] = counts(token) ? y[token - piece] : -INFINITY;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < kOwn; i += 4)
            make_quad(token_of(piece, i), &l[i]);
    }

    /* y of four logits from a token on, which is divisible by 4, in their place; without lists. */
    __device__ __forceinline__ void make_quad(int64_t token, float *l) const
    {
        const gumbel_problem &q = p.problem;
        if (q.scale != 1.0f || q.soft_cap != 0.0f) {
            four scaled = request_scale_quad(p, token, end, {l[0], l[1], l[2], l[3]});
            for (int i = 0; i < 4; i++)
                l[i] = scaled.v[i];
        }
        if (q.request & GUMBEL_REQUEST_TRANSFORMS)
            edit_four(q, row.edits, token, end, l);
    }
};

/* A CTA's way through its part. */
struct part_screen {
    request_shared &x;
    request_screen &s;
    request_wanted wanted;
    request_values values;
    float nth = -INFINITY; /* z that at least `target` tokens of the row reach */
    float largest;         /* value so far */

    __device__ __forceinline__ float bound() const { return wanted.bound(nth, values, largest); }

    /* Offer a token; its place in the list. */
    __device__ __forceinline__ uint32_t offer(float y, int64_t token) const
    {
        uint32_t at = atomicAdd(&s.count, 1);
        if (at < kList)
            s.list[at] = {y, (int32_t)token};
        return at;
    }

    /* Raise `nth` by what a source holds. */
    template <class Source> __device__ __forceinline__ void raise(const Source &source)
    {
        if (wanted.target == 0)
            return;
        request_values by_z = {values.inverse_temperature, false};
        float top = values.before ? values.z(largest) : largest;
        cut_finder<Source> finder = {source, x.scratch, by_z, top, {x.peaks}};
        landing found = finder.nth_of(source, wanted.target, fmaxf(nth, -FLT_MAX), kRough);
        if (found.reached)
            nth = fmaxf(nth, gumbel_of_key(found.key));
    }

    /* Keep of the list what reaches the bound and lies outside [from, to). */
    __device__ __forceinline__ void prune(int64_t from, int64_t to) const
    {
        constexpr int each = kList / kThreads;
        cuda_candidate own[each];
        int count = min(s.count, (uint32_t)kList);
        float least = bound();
#pragma unroll
        for (int i = 0; i < each; i++)
            if ((int)threadIdx.x + i * kThreads < count)
                own[i] = s.list[threadIdx.x + i * kThreads];
        __syncthreads();
        if (threadIdx.x == 0)
            s.count = 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < each; i++)
            if ((int)threadIdx.x + i * kThreads < count && values.z(own[i].y) >= least &&
                !(own[i].id >= from && own[i].id < to))
                offer(own[i].y, own[i].id);
        __syncthreads();
    }

    /* Offer this thread's tokens that reach the bound; whether that brings the list to `most`. */
    __device__ __forceinline__ bool offer_all(const part_reader &reader, int64_t piece,
                                              const float (&y)[kOwn], uint32_t most) const
    {
        float least = bound();
        bool full = false;
#pragma unroll
        for (int i = 0; i < kOwn; i++) {
            float z = values.z(y[i]);
            if (z >= least && z > -INFINITY)
                full |= offer(y[i], reader.token_of(piece, i)) >= most;
        }
        return full;
    }

    /* Take a piece; whether all candidates still fit. By all threads, for all of them. */
    __device__ __forceinline__ bool take(const part_reader &reader, int64_t piece, int turn,
                                         const float (&y)[kOwn])
    {
        float peak = y[0];
#pragma unroll
        for (int i = 1; i < kOwn; i++)
            peak = fmaxf(peak, y[i]);
        float v = values.of(peak);
        uint32_t key = isnan(v) ? 0 : gumbel_key(v);
        if (turn == 0) {
            key = largest_of_cta(key, x.scratch);
            x.peaks[threadIdx.x] = peak;
            largest = key ? gumbel_of_key(key) : -FLT_MAX;
            raise(peaks_source{x.peaks});
        } else if (wanted.log_min_p > -INFINITY) {
            key = __reduce_max_sync(~0u, key);
            if (threadIdx.x % 32 == 0)
                atomicMax(&s.largest_key[turn % 2], key);
        }
        bool full = offer_all(reader, piece, y, kList / 2);
        full = __syncthreads_or(full);
        uint32_t seen = turn > 0 ? s.largest_key[turn % 2] : 0;
        if (seen > gumbel_key(largest))
            largest = gumbel_of_key(seen);
        if (!full)
            return true;
        key = largest_of_cta(key, x.scratch);
        if (key > gumbel_key(largest))
            largest = gumbel_of_key(key);
        x.peaks[threadIdx.x] = peak;
        raise(peaks_source{x.peaks});
        raise(list_source{s.list, min((int)s.count, kList)});
        __syncthreads();
        prune(piece, piece + kPiece);
        full = offer_all(reader, piece, y, kList);
        return !__syncthreads_or(full);
    }
};

} // namespace

#endif
