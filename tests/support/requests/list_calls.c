/* SPDX-License-Identifier: Apache-2.0 */
#include "list_calls.h"

#include <stdlib.h>
#include <string.h>

void *list_call_memory(list_call *call, size_t count, size_t size)
{
    if (call->blocks == (int)(sizeof call->memory / sizeof *call->memory))
        die("a list call has too many arrays");
    return call->memory[call->blocks++] = make_zeroed(count + 1, size);
}

static int one_of(uint64_t *random, int times)
{
    return random_below(random, (uint32_t)times) == 0;
}

static int32_t between(uint64_t *random, int32_t low, int32_t high)
{
    return low + (int32_t)random_below(random, (uint32_t)(high - low) + 1);
}

/* ------------------------------------------------------------------------------ parameters ---- */

static gumbel_row_i32 make_integers(list_call *call, uint64_t *random, int32_t low, int32_t high)
{
    const int same = one_of(random, 4);
    int32_t *data = list_call_memory(call, (size_t)call->places, sizeof *data);
    for (int64_t i = 0; i < call->places; i++)
        data[i] = between(random, low, high);
    return (gumbel_row_i32){data, same ? GUMBEL_SAME : 0};
}

static gumbel_row_f32 make_floats(list_call *call, uint64_t *random, const float *choices,
                                  int count)
{
    const int same = one_of(random, 4);
    float *data = list_call_memory(call, (size_t)call->places, sizeof *data);
    for (int64_t i = 0; i < call->places; i++)
        data[i] = choices[random_below(random, (uint32_t)count)];
    return (gumbel_row_f32){data, same ? GUMBEL_SAME : 0};
}

static gumbel_row_u64 make_positions(list_call *call, uint64_t *random)
{
    uint64_t *data = list_call_memory(call, (size_t)call->places, sizeof *data);
    for (int64_t i = 0; i < call->places; i++)
        data[i] = random_below(random, 5) + (one_of(random, 3) ? UINT64_C(1) << 40 : 0);
    return (gumbel_row_u64){data, 0};
}

static gumbel_token_lists make_ids(list_call *call, uint64_t *random, uint32_t most)
{
    gumbel_token_lists lists = {0};
    int64_t *offsets = list_call_memory(call, (size_t)call->batch + 1, sizeof *offsets);
    for (int64_t b = 0; b < call->batch; b++)
        offsets[b + 1] = offsets[b] + random_below(random, most + 1);
    int32_t *ids = list_call_memory(call, (size_t)offsets[call->batch], sizeof *ids);
    for (int64_t i = 0; i < offsets[call->batch]; i++)
        ids[i] = between(random, 0, LIST_CALL_TOKENS - 1);
    lists.offsets = offsets;
    lists.ids = ids;
    return lists;
}

/* Sorts sequences [begin, end), at most `width` ids each, by their first id. */
static void sort_sequences(int32_t (*rows)[4], int32_t *lengths, int64_t begin, int64_t end)
{
    for (int64_t i = begin + 1; i < end; i++)
        for (int64_t k = i; k > begin && rows[k][0] < rows[k - 1][0]; k--) {
            int32_t row[4], length = lengths[k];
            memcpy(row, rows[k], sizeof row);
            memcpy(rows[k], rows[k - 1], sizeof row);
            memcpy(rows[k - 1], row, sizeof row);
            lengths[k] = lengths[k - 1];
            lengths[k - 1] = length;
        }
}

/* Sequences of up to four ids below `alphabet`, of each row or for all rows. */
static gumbel_sequences make_sequences(list_call *call, uint64_t *random, int32_t alphabet)
{
    const int by_row = one_of(random, 2);
    const int64_t groups = by_row ? call->batch : 1;
    int64_t *of_row = list_call_memory(call, (size_t)groups + 1, sizeof *of_row);
    for (int64_t b = 0; b < groups; b++)
        of_row[b + 1] = of_row[b] + random_below(random, 5);
    const int64_t count = of_row[groups];
    int32_t(*rows)[4] = list_call_memory(call, (size_t)count, sizeof *rows);
    int32_t *lengths = list_call_memory(call, (size_t)count, sizeof *lengths);
    int64_t *offsets = list_call_memory(call, (size_t)count + 1, sizeof *offsets);
    int32_t *ids = list_call_memory(call, 4 * (size_t)count, sizeof *ids);
    for (int64_t k = 0; k < count; k++) {
        lengths[k] = one_of(random, 2) ? 1 : between(random, 1, 4);
        for (int i = 0; i < 4; i++)
            rows[k][i] = between(random, 0, alphabet - 1);
        if (k > 0 && one_of(random, 3)) /* one continues the other */
            memcpy(rows[k], rows[k - 1], sizeof *rows);
    }
    for (int64_t b = 0; b < groups; b++)
        sort_sequences(rows, lengths, of_row[b], of_row[b + 1]);
    offsets[0] = between(random, 0, 1);
    for (int64_t k = 0; k < count; k++) {
        offsets[k + 1] = offsets[k] + lengths[k];
        memcpy(ids + offsets[k], rows[k], (size_t)lengths[k] * sizeof *ids);
    }
    return (gumbel_sequences){offsets, ids, count, by_row ? of_row : NULL, 0};
}

static void make_rules(list_call *call, uint64_t *random, int32_t alphabet)
{
    static const float multipliers[] = {0, 0.8f, 1, 3e38f};
    static const float bases[] = {0.5f, 1, 1.0000001f, 1.05f, 1.75f, 2, 2, 1e30f};
    const int32_t capacity = (int32_t)call->recent.capacity;
    gumbel_list_rules *r = &call->rules;
    r->struct_size = sizeof *r;
    if (!one_of(random, 5))
        r->dry_multiplier = make_floats(call, random, multipliers, 4);
    if (!one_of(random, 4))
        r->dry_base = make_floats(call, random, bases, 8);
    if (!one_of(random, 4))
        r->dry_allowed_length = make_integers(call, random, 0, 4);
    if (one_of(random, 2))
        r->dry_last_n = make_integers(call, random, -1, capacity + 3);
    if (one_of(random, 2))
        r->dry_breakers = make_sequences(call, random, one_of(random, 2) ? alphabet : 12);
    if (one_of(random, 2))
        r->ngram_size = make_integers(call, random, 0, 4);
    if (one_of(random, 2))
        r->ngram_window = make_integers(call, random, -1, capacity + 3);
    if (one_of(random, 2))
        r->ngram_keep = make_ids(call, random, 3);
    if (one_of(random, 2))
        r->bad_words = make_sequences(call, random, alphabet < 6 ? alphabet + 1 : alphabet);
    if (one_of(random, 2))
        r->min_position = make_positions(call, random);
    if (!one_of(random, 3))
        r->position = make_positions(call, random);
    if (!one_of(random, 3))
        r->stop_tokens = make_ids(call, random, 4);
}

/* ----------------------------------------------------------------------------------- rings ---- */

/* Fills the rings with tokens that repeat, some of them beyond the capacity. */
static void fill_rings(list_call *call, uint64_t *random, int32_t alphabet, gumbel_device *device)
{
    const int64_t capacity = call->recent.capacity;
    const uint32_t most = (uint32_t)(one_of(random, 4) ? 3 * capacity : capacity + 2);
    int64_t *offsets = list_call_memory(call, (size_t)call->batch + 1, sizeof *offsets);
    gumbel_error error;
    for (int64_t b = 0; b < call->batch; b++)
        offsets[b + 1] = offsets[b] + random_below(random, most + 1);
    int32_t *ids = list_call_memory(call, (size_t)offsets[call->batch], sizeof *ids);
    const int64_t period = between(random, 1, 12), noise = between(random, 2, 30);
    for (int64_t i = 0; i < offsets[call->batch]; i++)
        ids[i] = i >= period && !one_of(random, (int)noise) ? ids[i - period]
                                                            : between(random, 0, alphabet - 1);
    const gumbel_token_lists texts = {.offsets = offsets, .ids = ids};
    if (gumbel_recent_start(device, NULL, &call->recent, call->batch, &call->slots, &texts, NULL,
                            &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
}

list_call *list_call_make(uint64_t seed, gumbel_device *device)
{
    uint64_t random = seed;
    list_call *call = make_zeroed(1, sizeof *call);
    const int32_t alphabet = one_of(&random, 6) ? LIST_CALL_TOKENS : between(&random, 1, 6);
    call->batch = between(&random, 1, 5);
    call->places = call->batch;
    if (one_of(&random, 2)) {
        call->places += between(&random, 0, 3);
        int32_t *of_row = list_call_memory(call, (size_t)call->batch, sizeof *of_row);
        for (int64_t b = 0; b < call->batch; b++)
            of_row[b] = (int32_t)(call->places - 1 - b);
        call->slots = (gumbel_slots){of_row, call->places};
    }
    gumbel_recent *r = &call->recent;
    *r = (gumbel_recent){.struct_size = sizeof *r};
    r->capacity = one_of(&random, 8) ? between(&random, 500, 900) : between(&random, 1, 70);
    r->tokens = list_call_memory(call, (size_t)(call->places * r->capacity), sizeof *r->tokens);
    r->count = list_call_memory(call, (size_t)call->places, sizeof *r->count);
    fill_rings(call, &random, alphabet, device);
    make_rules(call, &random, alphabet);
    call->lists = (gumbel_row_lists){.struct_size = sizeof call->lists};
    call->lists.capacity = one_of(&random, 2) ? between(&random, 1, 6) : between(&random, 7, 60);
    call->lists = list_call_outputs(call);
    return call;
}

void list_call_free(list_call *call)
{
    for (int i = 0; i < call->blocks; i++)
        free(call->memory[i]);
    free(call);
}

/* --------------------------------------------------------------------------------- outputs ---- */

gumbel_row_lists list_call_outputs(list_call *call)
{
    const size_t rows = (size_t)call->batch, places = rows * (size_t)call->lists.capacity;
    gumbel_row_lists l = call->lists;
    l.offsets = list_call_memory(call, rows + 1, sizeof *l.offsets);
    l.banned = list_call_memory(call, places, sizeof *l.banned);
    l.late_ids = list_call_memory(call, places, sizeof *l.late_ids);
    l.late_values = list_call_memory(call, places, sizeof *l.late_values);
    l.status = list_call_memory(call, rows, sizeof *l.status);
    memset(l.offsets, 0xA5, (rows + 1) * sizeof *l.offsets);
    memset(l.banned, 0xA5, places * sizeof *l.banned);
    memset(l.late_ids, 0xA5, places * sizeof *l.late_ids);
    memset(l.late_values, 0xA5, places * sizeof *l.late_values);
    memset(l.status, 0xA5, rows * sizeof *l.status);
    return l;
}

int list_call_same(const list_call *call, const gumbel_row_lists *a, const gumbel_row_lists *b)
{
    const size_t rows = (size_t)call->batch, places = rows * (size_t)call->lists.capacity;
    return memcmp(a->offsets, b->offsets, (rows + 1) * sizeof *a->offsets) == 0 &&
           memcmp(a->banned, b->banned, places * sizeof *a->banned) == 0 &&
           memcmp(a->late_ids, b->late_ids, places * sizeof *a->late_ids) == 0 &&
           memcmp(a->late_values, b->late_values, places * sizeof *a->late_values) == 0 &&
           memcmp(a->status, b->status, rows * sizeof *a->status) == 0;
}
