/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

typedef struct token_bytes {
    uint32_t offset; /* into the arena */
    uint32_t size;
} token_bytes;

typedef struct merge {
    int32_t first; /* -1: an empty slot */
    int32_t second;
    int32_t result;
    uint32_t rank; /* the order in which merges were added */
} merge;

struct bpe {
    unsigned char *arena;
    size_t arena_used;
    token_bytes *tokens; /* [size] */
    int32_t size;
    int32_t *index; /* hash table: bytes -> id, -1 empty; [index_mask + 1] */
    size_t index_mask;
    merge *merges; /* hash table: (first, second) -> merge; [merge_mask + 1] */
    size_t merge_mask;
    uint32_t merge_count;
};

/* Size of a hash table of `count` entries: a power of two, at most half full. */
static size_t table_size(size_t count)
{
    size_t size = 16;
    while (size < 2 * count) {
        size *= 2;
    }
    return size;
}

bpe *bpe_new(int32_t size, size_t bytes, size_t merges)
{
    bpe *b = calloc(1, sizeof *b);
    if (!b) {
        return NULL;
    }
    b->size = size;
    b->index_mask = table_size((size_t)size) - 1;
    b->merge_mask = table_size(merges) - 1;
    b->arena = malloc(3 * bytes + 1); /* room behind the tokens to join any two */
    b->tokens = calloc((size_t)size + 1, sizeof *b->tokens);
    b->index = malloc((b->index_mask + 1) * sizeof *b->index);
    b->merges = malloc((b->merge_mask + 1) * sizeof *b->merges);
    if (!b->arena || !b->tokens || !b->index || !b->merges) {
        bpe_free(b);
        return NULL;
    }
    memset(b->index, -1, (b->index_mask + 1) * sizeof *b->index);
    memset(b->merges, -1, (b->merge_mask + 1) * sizeof *b->merges);
    return b;
}

void bpe_free(bpe *b)
{
    if (b) {
        free(b->arena);
        free(b->tokens);
        free(b->index);
        free(b->merges);
        free(b);
    }
}

static uint64_t mix_bits(uint64_t x)
{
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static uint64_t hash_bytes(const unsigned char *bytes, size_t size)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
    return mix_bits(hash);
}

const unsigned char *bpe_token(const bpe *b, int32_t id, size_t *size)
{
    *size = 0;
    if (id < 0 || id >= b->size || b->tokens[id].size == 0) {
        return NULL;
    }
    *size = b->tokens[id].size;
    return b->arena + b->tokens[id].offset;
}

/* The slot of these bytes in the index, or the empty slot for them. */
static size_t find_index_slot(const bpe *b, const unsigned char *bytes, size_t size)
{
    size_t slot = hash_bytes(bytes, size) & b->index_mask;
    while (b->index[slot] >= 0) {
        const token_bytes *token = &b->tokens[b->index[slot]];
        if (token->size == size && memcmp(b->arena + token->offset, bytes, size) == 0) {
            break;
        }
        slot = (slot + 1) & b->index_mask;
    }
    return slot;
}

void bpe_add_token(bpe *b, int32_t id, const unsigned char *bytes, size_t size, bool indexed)
{
    size_t slot = find_index_slot(b, bytes, size);
    b->tokens[id] = (token_bytes){(uint32_t)b->arena_used, (uint32_t)size};
    memcpy(b->arena + b->arena_used, bytes, size);
    b->arena_used += size;
    if (indexed) {
        b->index[slot] = id;
    }
}

int32_t bpe_find(const bpe *b, const unsigned char *bytes, size_t size)
{
    return b->index[find_index_slot(b, bytes, size)];
}

static merge *find_merge_slot(const bpe *b, int32_t first, int32_t second)
{
    size_t slot = mix_bits((uint64_t)(uint32_t)first << 32 | (uint32_t)second) & b->merge_mask;
    while (b->merges[slot].first >= 0 &&
           (b->merges[slot].first != first || b->merges[slot].second != second)) {
        slot = (slot + 1) & b->merge_mask;
    }
    return &b->merges[slot];
}

int bpe_add_merge(bpe *b, int32_t first, int32_t second)
{
    token_bytes x = b->tokens[first], y = b->tokens[second];
    unsigned char *joined = b->arena + b->arena_used;
    memcpy(joined, b->arena + x.offset, x.size);
    memcpy(joined + x.size, b->arena + y.offset, y.size);
    int32_t result = bpe_find(b, joined, (size_t)x.size + y.size);
    merge *slot = find_merge_slot(b, first, second);
    if (result < 0) {
        return -1;
    }
    *slot = (merge){first, second, result, b->merge_count++};
    return 0;
}

/* A symbol of the word being merged: an element of a doubly linked list in an array. */
typedef struct symbol {
    int32_t id; /* -1: merged into the one before it */
    int32_t previous;
    int32_t next;
} symbol;

/* A possible merge at symbol `at`, valid while the pair there gives `result`. */
typedef struct candidate {
    uint32_t rank;
    int32_t at;
    int32_t result;
} candidate;

typedef struct merging {
    const bpe *b;
    symbol *symbols;
    candidate *heap; /* the best candidate first */
    size_t count;
} merging;

static bool is_better(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void push_candidate(merging *m, candidate item)
{
    size_t at = m->count++;
    while (at > 0 && is_better(item, m->heap[(at - 1) / 2])) {
        m->heap[at] = m->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    m->heap[at] = item;
}

static candidate pop_candidate(merging *m)
{
    candidate best = m->heap[0];
    candidate item = m->heap[--m->count];
    size_t at = 0;
    for (size_t child = 1; child < m->count; child = 2 * at + 1) {
        if (child + 1 < m->count && is_better(m->heap[child + 1], m->heap[child])) {
            child++;
        }
        if (!is_better(m->heap[child], item)) {
            break;
        }
        m->heap[at] = m->heap[child];
        at = child;
    }
    m->heap[at] = item;
    return best;
}

/* The merge of the symbol at `at` with the next one; NULL: none. */
static const merge *find_merge(const merging *m, int32_t at)
{
    const symbol *s = &m->symbols[at];
    if (s->id < 0 || s->next < 0) {
        return NULL;
    }
    const merge *found = find_merge_slot(m->b, s->id, m->symbols[s->next].id);
    return found->first >= 0 ? found : NULL;
}

static void push_at(merging *m, int32_t at)
{
    const merge *found = at >= 0 ? find_merge(m, at) : NULL;
    if (found) {
        push_candidate(m, (candidate){found->rank, at, found->result});
    }
}

static void merge_all(merging *m)
{
    while (m->count > 0) {
        candidate best = pop_candidate(m);
        const merge *found = find_merge(m, best.at);
        if (!found || found->result != best.result) {
            continue; /* an earlier merge used one of the two symbols */
        }
        symbol *s = &m->symbols[best.at];
        symbol *gone = &m->symbols[s->next];
        s->id = best.result;
        s->next = gone->next;
        gone->id = -1;
        if (s->next >= 0) {
            m->symbols[s->next].previous = best.at;
        }
        push_at(m, s->previous);
        push_at(m, best.at);
    }
}

/* There are n - 1 candidates at the start; each of at most n - 1 merges pushes at most two. */
static int reserve_scratch(bpe_scratch *scratch, size_t size, merging *m)
{
    size_t needed = size * sizeof *m->symbols + 3 * size * sizeof *m->heap;
    if (needed > scratch->bytes) {
        void *memory = realloc(scratch->memory, needed);
        if (!memory) {
            return -1;
        }
        scratch->memory = memory;
        scratch->bytes = needed;
    }
    m->symbols = scratch->memory;
    m->heap = (candidate *)(m->symbols + size);
    return 0;
}

int bpe_encode(const bpe *b, const unsigned char *word, size_t size, bool ignore_merges,
               bpe_scratch *scratch, token_list *list)
{
    int32_t whole = ignore_merges || size == 1 ? bpe_find(b, word, size) : -1;
    if (whole >= 0) {
        return token_list_append(list, &whole, 1);
    }
    merging m = {.b = b};
    if (reserve_scratch(scratch, size, &m) != 0) {
        return -1;
    }
    int32_t count = (int32_t)size;
    for (int32_t i = 0; i < count; i++) {
        m.symbols[i] = (symbol){bpe_find(b, word + i, 1), i - 1, i + 1 < count ? i + 1 : -1};
    }
    for (int32_t i = 0; i < count; i++) {
        push_at(&m, i);
    }
    merge_all(&m);
    for (int32_t i = 0; i >= 0 && i < count; i = m.symbols[i].next) {
        if (token_list_append(list, &m.symbols[i].id, 1) != 0) {
            return -1;
        }
    }
    return 0;
}
