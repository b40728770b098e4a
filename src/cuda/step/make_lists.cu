/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   makes the lists that follow from recent tokens: DRY, n-grams, bad words, minimum lengths.
 * COST   reads the window once, 4 bytes a token, and the places where it repeats its last tokens
 *        up to the length that makes a difference, unless the token after it has that length
 *        already; writes 12 bytes a place of the lists. A window of 4096 tokens is 8 tokens a
 *        thread.
 * MAP    a CTA a row. A thread takes every 512th token of the window; those that equal the last
 *        token are compared further.
 * SMEM   a hash table of ids with two places for each place of a list, then the ids of the list:
 *        up to 49 KB.
 * SYNC   all threads wait before and after each use of the table. Threads insert ids by
 *        compare-and-swap; a search ends after one pass over the table.
 */
#include "core/recent_row.h"
#include "cuda/common/cuda_recent_params.h"
#include "cuda/policy/cuda_policy.h"

namespace
{

constexpr int kListThreads = CUDA_LISTS_THREADS;
constexpr int kFirstIds = CUDA_LISTS_FIRST_IDS;

/* Shared state of a CTA; the arrays of list_memory are behind it. */
struct list_state {
    unsigned long long breaker; /* tokens after the start of the last breaker, in the high word, and
                                 * after its end */
    int32_t used;               /* distinct ids in the table */
    int32_t listed;             /* ids copied from it */
    int32_t overflows;          /* a list has no room */
    int32_t padding[3];
    int32_t first_ids[kFirstIds]; /* of the row's breakers, ascending; unless there are more */
};

static_assert(sizeof(list_state) == CUDA_LISTS_STATE_BYTES, "the launcher reserves that much");

/* Shared memory of a CTA. */
struct list_memory {
    list_state &state;
    int32_t *ids, *lengths; /* [places] table; lengths of matches, the largest of each id */
    int32_t *listed_ids, *listed_lengths; /* [capacity] */
    uint32_t places;
    int32_t capacity;
};

__device__ __forceinline__ list_memory carve_list_memory(const cuda_lists_params &p)
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    int32_t *ids = (int32_t *)(shared_memory + sizeof(list_state));
    const int32_t capacity = (int32_t)p.call.lists.capacity;
    return {*(list_state *)shared_memory,
            ids,
            ids + p.places,
            ids + 2 * p.places,
            ids + 2 * p.places + capacity,
            (uint32_t)p.places,
            capacity};
}

/* Empties the table, by all threads. */
__device__ void clear_table(const list_memory &m)
{
    __syncthreads();
    for (uint32_t at = threadIdx.x; at < m.places; at += kListThreads) {
        m.ids[at] = GUMBEL_LIST_UNUSED;
        m.lengths[at] = 0;
    }
    if (threadIdx.x == 0)
        m.state.used = m.state.listed = 0;
    __syncthreads();
}

/* The place of an id in the table, if no other id has it. */
__device__ __forceinline__ uint32_t first_place(const list_memory &m, int32_t id)
{
    return ((uint32_t)id * 0x9E3779B1u >> 16) & (m.places - 1);
}

/* The length of an id; -1 if the table lacks the id, or has it in another place than its first. */
__device__ __forceinline__ int32_t peek_length(const list_memory &m, int32_t id)
{
    const uint32_t at = first_place(m, id);
    return *(volatile int32_t *)&m.ids[at] == id ? *(volatile int32_t *)&m.lengths[at] : -1;
}

/* Inserts an id, or raises its length; by any thread. */
__device__ void insert_id(const list_memory &m, int32_t id, int32_t length)
{
    uint32_t at = first_place(m, id);
    if (*(volatile int32_t *)&m.state.used > m.capacity)
        return;
    for (uint32_t probes = 0; probes < m.places; probes++) {
        int32_t found = *(volatile int32_t *)&m.ids[at];
        if (found == GUMBEL_LIST_UNUSED) {
            found = atomicCAS(&m.ids[at], GUMBEL_LIST_UNUSED, id);
            if (found == GUMBEL_LIST_UNUSED)
                atomicAdd(&m.state.used, 1);
        }
        if (found == GUMBEL_LIST_UNUSED || found == id) {
            atomicMax(&m.lengths[at], length);
            return;
        }
        at = (at + 1) & (m.places - 1);
    }
}

/* Writes the ids of the table to a row's list, ascending, by all threads: store(place, id, length)
 * for each, and for unused places. */
template <class F> __device__ __forceinline__ void store_table(const list_memory &m, F store)
{
    __syncthreads();
    for (uint32_t at = threadIdx.x; at < m.places; at += kListThreads) {
        if (m.ids[at] == GUMBEL_LIST_UNUSED)
            continue;
        int32_t k = atomicAdd(&m.state.listed, 1);
        if (k < m.capacity) {
            m.listed_ids[k] = m.ids[at];
            m.listed_lengths[k] = m.lengths[at];
        }
    }
    __syncthreads();
    const int32_t count = min(m.state.listed, m.capacity);
    for (int32_t k = threadIdx.x; k < m.capacity; k += kListThreads) {
        if (k >= count) {
            store(k, GUMBEL_LIST_UNUSED, 0);
            continue;
        }
        int32_t smaller = 0;
        for (int32_t j = 0; j < count; j++)
            smaller += m.listed_ids[j] < m.listed_ids[k];
        store(smaller, m.listed_ids[k], m.listed_lengths[k]);
    }
    if (threadIdx.x == 0 && m.state.used > m.capacity)
        m.state.overflows = 1;
}

/* Inserts the row's banned tokens. */
__device__ void insert_banned(const gumbel_lists_call &c, const gumbel_recent_view &v, int64_t b,
                              int64_t slot, const list_memory &m)
{
    const gumbel_list_rules &r = c.rules;
    int64_t size, begin, end;
    const int64_t places = gumbel_ngrams_of_row(&c, slot, &v, &size);
    int32_t token;
    for (int64_t i = 1 + threadIdx.x; i <= places; i += kListThreads)
        if (gumbel_ngram_bans(&c, &v, b, size, i, &token))
            insert_id(m, token, 0);
    gumbel_sequences_of_row(&r.bad_words, b, &begin, &end);
    for (int64_t k = begin + threadIdx.x; k < end; k += kListThreads)
        if (gumbel_is_bad_word(&r.bad_words, k, &v, &token))
            insert_id(m, token, 0);
    const gumbel_token_lists &stops = r.stop_tokens;
    if (!stops.offsets || !gumbel_stops_are_banned(&r, slot))
        return;
    for (int64_t i = stops.offsets[b] + threadIdx.x; i < stops.offsets[b + 1]; i += kListThreads)
        if (gumbel_token_is_listable(stops.ids[i]))
            insert_id(m, stops.ids[i], 0);
}

/* Whether one of `count` ascending ids equals `token`. */
__device__ __forceinline__ bool has_id(const int32_t *ids, int count, int32_t token)
{
    int begin = 0;
    for (int end = count; begin < end;) {
        const int middle = (begin + end) / 2;
        if (ids[middle] < token)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin < count && ids[begin] == token;
}

/* How many tokens follow the last breaker, by all threads; the window if it has none. Most tokens
 * begin no breaker, which a search in shared memory finds faster than one in global memory. */
__device__ int64_t count_after_breaker(const gumbel_lists_call &c, const gumbel_recent_view &v,
                                       const gumbel_dry &d, const list_memory &m)
{
    const gumbel_sequences &breakers = c.rules.dry_breakers;
    const int64_t count = d.end - d.begin;
    if (count <= 0)
        return d.window;
    const bool cached = count <= kFirstIds;
    for (int64_t k = threadIdx.x; k < count && cached; k += kListThreads)
        m.state.first_ids[k] = breakers.ids[breakers.offsets[d.begin + k]];
    __syncthreads();
    for (int64_t i = threadIdx.x; i < d.window; i += kListThreads) {
        if (i > (int64_t)(*(volatile unsigned long long *)&m.state.breaker >> 32))
            break;
        if (cached && !has_id(m.state.first_ids, (int)count, gumbel_recent_token(&v, i)))
            continue;
        const int64_t length = gumbel_find_breaker(&breakers, d.begin, d.end, &v, i);
        if (length > 0)
            atomicMin(&m.state.breaker, (unsigned long long)i << 32 | (uint32_t)(i + 1 - length));
    }
    __syncthreads();
    return m.state.breaker == ~0ull ? d.window : (int64_t)(uint32_t)m.state.breaker;
}

/* gumbel_recent_match() from the last token on, by a warp. */
__device__ __forceinline__ int64_t match_by_warp(const gumbel_recent_view &v, int64_t i,
                                                 int64_t most)
{
    for (int64_t from = 0; from < most; from += 32) {
        const int64_t k = from + threadIdx.x % 32;
        const bool differs =
            k >= most || gumbel_recent_token(&v, k) != gumbel_recent_token(&v, i + k);
        if (const uint32_t found = __ballot_sync(~0u, differs))
            return from + __ffs(found) - 1;
    }
    return most;
}

/* Inserts a token that would continue a repetition of `length` tokens, unless it is a breaker. */
__device__ void insert_repetition(const gumbel_lists_call &c, const gumbel_dry &d,
                                  const list_memory &m, int32_t token, int64_t length)
{
    const int64_t count = d.end - d.begin;
    if (length < d.allowed)
        return;
    const bool may_break = count > kFirstIds || has_id(m.state.first_ids, (int)count, token);
    if (!may_break || !gumbel_is_breaker(&c.rules.dry_breakers, d.begin, d.end, token))
        insert_id(m, token, (int32_t)length);
}

/* Inserts the tokens that would continue a repetition, by all threads. A lane compares up to
 * kOwnMatch tokens of its place; longer matches are compared by the warp, one place after the
 * other, since lanes alone would wait for the longest one of each turn. A token that is known to
 * follow as long a match as this place can have is not compared again: otherwise a text that is one
 * repetition would take `most` comparisons at every place. */
__device__ void insert_dry(const gumbel_lists_call &c, const gumbel_recent_view &v,
                           const gumbel_dry &d, const list_memory &m)
{
    constexpr int64_t kOwnMatch = 8;
    const int64_t after = count_after_breaker(c, v, d, m), most = min(after, d.longest);
    const int lane = threadIdx.x % 32;
    if (after < d.allowed)
        return;
    const int32_t last = gumbel_recent_token(&v, 0);
    for (int64_t base = threadIdx.x - lane; base + 1 < d.window; base += kListThreads) {
        const int64_t i = base + 1 + lane, longest = min(most, d.window - i);
        const bool inside = i < d.window;
        const int32_t token = inside ? gumbel_recent_token(&v, i - 1) : -1;
        bool pending = inside && (d.allowed == 0 || gumbel_recent_token(&v, i) == last) &&
                       gumbel_token_is_listable(token) && longest >= d.allowed &&
                       peek_length(m, token) < longest;
        if (pending) {
            const int64_t length = gumbel_recent_match(&v, i, 0, min(longest, kOwnMatch));
            pending = length == kOwnMatch && longest > kOwnMatch;
            if (!pending)
                insert_repetition(c, d, m, token, length);
        }
        while (const uint32_t places =
                   __ballot_sync(~0u, pending && peek_length(m, token) < longest)) {
            const int from = __ffs(places) - 1;
            const int64_t at = base + 1 + from;
            const int64_t length = match_by_warp(v, at, min(most, d.window - at));
            if (lane == from) {
                insert_repetition(c, d, m, token, length);
                pending = false;
            }
            __syncwarp();
        }
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_LISTS_THREADS)
    gumbel_make_row_lists(const __grid_constant__ cuda_lists_params p)
{
    const gumbel_lists_call &c = p.call;
    const gumbel_row_lists &out = c.lists;
    const list_memory m = carve_list_memory(p);
    const int64_t b = blockIdx.x, slot = gumbel_slot_of_row(&c.slots, b), place = b * out.capacity;
    gumbel_recent_view view = {nullptr, 1, 0, 0};
    gumbel_dry dry = {0.0f, 0.0f, 0, 0, 0, 0, 0};
    if (slot >= 0) {
        view = gumbel_recent_of_slot(&c.recent, slot);
        dry = gumbel_dry_of_row(&c, b, slot, &view);
    }
    if (threadIdx.x == 0) {
        m.state.breaker = ~0ull;
        m.state.overflows = 0;
    }
    clear_table(m);
    if (out.banned) {
        if (slot >= 0)
            insert_banned(c, view, b, slot, m);
        store_table(m, [&](int32_t at, int32_t id, int32_t) { out.banned[place + at] = id; });
        clear_table(m);
    }
    if (out.late_ids) {
        if (dry.window > 0)
            insert_dry(c, view, dry, m);
        store_table(m, [&](int32_t at, int32_t id, int32_t length) {
            out.late_ids[place + at] = id;
            out.late_values[place + at] =
                id == GUMBEL_LIST_UNUSED ? 0.0f : gumbel_dry_value(&dry, length);
        });
    }
    __syncthreads();
    const bool overflows = m.state.overflows;
    for (int64_t at = threadIdx.x; at < out.capacity && overflows; at += kListThreads) {
        if (out.banned)
            out.banned[place + at] = GUMBEL_LIST_UNUSED;
        if (out.late_ids) {
            out.late_ids[place + at] = GUMBEL_LIST_UNUSED;
            out.late_values[place + at] = 0.0f;
        }
    }
    if (threadIdx.x == 0) {
        out.status[b] = slot < 0 ? GUMBEL_ROW_SLOT : overflows ? GUMBEL_ROW_LISTS : GUMBEL_ROW_OK;
        out.offsets[b] = place;
        if (b + 1 == c.batch)
            out.offsets[b + 1] = place + out.capacity;
    }
}
