/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks/rows/leading.h"

#include "core/fail.h"

#include <stdlib.h>

ranks_scale ranks_row_scale(const gumbel_problem *whole, int64_t b)
{
    gumbel_row row = gumbel_problem_row(whole, b);
    gumbel_rules rules = gumbel_problem_rules(whole, b, row.greedy);
    int before = rules.before && gumbel_rules_truncate(&rules);
    ranks_scale scale = {before ? 1.0f : row.inverse_temperature, row.inverse_temperature};
    return scale;
}

/* --------------------------------------------------------------------------- selection ---- */

static int compare_entries(const void *a, const void *b)
{
    const ranks_entry *x = a, *y = b;
    return gumbel_entry_before(y, x) - gumbel_entry_before(x, y);
}

static void sift_heap(ranks_entry *heap, int32_t count, int32_t at)
{
    for (int32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && compare_entries(&heap[child + 1], &heap[child]) > 0)
            child++;
        if (compare_entries(&heap[child], &heap[at]) <= 0)
            return;
        ranks_entry moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
    }
}

int32_t ranks_select_leading(const float *y, int64_t count, int64_t first, ranks_scale scale,
                             int32_t max_count, ranks_entry *heap, ranks_token *list,
                             int32_t *finite, int32_t *more, uint32_t *flags)
{
    int32_t listed = 0, with_z = 0;
    int64_t with_value = 0;
    float last = -INFINITY; /* value of the heap's root, the last in order */
    for (int64_t i = 0; i < count; i++) {
        float value = y[i] * scale.value, z = y[i] * scale.z;
        with_z += z > -INFINITY;
        with_value += value > -INFINITY;
        if (z == INFINITY || value == INFINITY)
            *flags |= GUMBEL_FLAG_INFINITE;
        /* Ids rise, so a token of equal value comes after the last. */
        if (!(value > last) || max_count == 0)
            continue;
        const ranks_entry e = {.value = value, .z = y[i], .id = (int32_t)(first + i)};
        int full = listed == max_count;
        heap[full ? 0 : listed++] = e;
        for (int32_t at = max_count / 2; !full && listed == max_count && at >= 0; at--)
            sift_heap(heap, max_count, at);
        if (full)
            sift_heap(heap, max_count, 0);
        if (listed == max_count)
            last = heap[0].value;
    }
    for (int32_t i = 0; i < listed; i++)
        list[i] = (ranks_token){heap[i].z, heap[i].id};
    *finite = with_z;
    *more = with_value > listed;
    return listed;
}

void ranks_leading_begin(ranks_leading *leading)
{
    leading->count = 0;
    leading->complete = 1;
}

void ranks_leading_add(ranks_leading *leading, int32_t *count, const ranks_token *tokens,
                       int32_t listed, int more, int32_t from, ranks_scale scale)
{
    ranks_entry last = {.value = INFINITY, .id = -1};
    for (int32_t i = 0; i < listed; i++) {
        const ranks_entry e = {.value = tokens[i].y * scale.value,
                               .z = tokens[i].y * scale.z,
                               .id = tokens[i].id,
                               .from = from + i};
        if (compare_entries(&e, &last) > 0)
            last = e;
        leading->at[(*count)++] = e;
    }
    /* Tokens that a rank did not send come after those that it sent. */
    if (more && (leading->complete || compare_entries(&last, &leading->end) < 0)) {
        leading->end = last;
        leading->complete = 0;
    }
}

void ranks_leading_end(ranks_leading *leading, int32_t count)
{
    qsort(leading->at, (size_t)count, sizeof *leading->at, compare_entries);
    while (!leading->complete && count > 0 &&
           compare_entries(&leading->at[count - 1], &leading->end) > 0)
        count--;
    leading->count = count;
}

/* -------------------------------------------------------------------------- truncation ---- */

gumbel_wide ranks_sum_masses(const float *y, int64_t count, float factor, float bound,
                             float largest)
{
    gumbel_wide mass = 0;
    for (int64_t i = 0; i < count; i++) {
        float value = y[i] * factor;
        if (value >= bound && value >= largest - GUMBEL_MASS_REACH)
            mass += gumbel_token_mass(gumbel_exp(value - largest));
    }
    return mass;
}

int32_t ranks_truncate_leading(const gumbel_rules *r, ranks_leading *leading, gumbel_wide mass)
{
    GUMBEL_ASSERT(leading->count > 0);
    for (int32_t i = 0; i < leading->count && r->top_p < 1.0f; i++)
        leading->at[i].mass =
            gumbel_token_mass(gumbel_exp(leading->at[i].value - leading->at[0].value));
    return gumbel_truncate_entries(r, leading->at, leading->count, leading->complete, mass);
}

/* --------------------------------------------------------------------------------- draw ---- */

static int compare_ids(const void *a, const void *b)
{
    const ranks_entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* Adds the mass of a block, some tokens of which are in z: (8) of docs/maths.md, in its order. */
static void add_block_mass(gumbel_summary *s, const float z[GUMBEL_BLOCK])
{
    float largest = -INFINITY, lanes[16];
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        largest = z[i] > largest ? z[i] : largest;
    if (!(largest > -INFINITY))
        return;
    for (int j = 0; j < 16; j++)
        lanes[j] = (gumbel_exp(z[j] - largest) + gumbel_exp(z[j + 16] - largest)) +
                   (gumbel_exp(z[j + 32] - largest) + gumbel_exp(z[j + 48] - largest));
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    s->max_z = largest > s->max_z ? largest : s->max_z;
    gumbel_mass_add_block(s, largest, lanes[0]);
}

void ranks_draw_leading(const gumbel_problem *whole, int64_t b, const ranks_leading *leading,
                        int32_t kept, ranks_entry *room, gumbel_summary *summaries)
{
    gumbel_row row = gumbel_problem_row(whole, b);
    float z[GUMBEL_BLOCK];
    memcpy(room, leading->at, (size_t)kept * sizeof *room);
    qsort(room, (size_t)kept, sizeof *room, compare_ids);
    for (int32_t i = 0, end; i < kept; i = end) {
        int32_t block = room[i].id / GUMBEL_BLOCK;
        for (int k = 0; k < GUMBEL_BLOCK; k++)
            z[k] = -INFINITY;
        for (end = i; end < kept && room[end].id / GUMBEL_BLOCK == block; end++)
            z[room[end].id % GUMBEL_BLOCK] = room[end].z;
        add_block_mass(&summaries[0], z);
    }
    for (int32_t s = 0; s < whole->sampling.num_samples; s++) {
        gumbel_stream stream = row.stream;
        stream.sample += (uint32_t)s;
        for (int32_t i = 0; i < kept; i++)
            if (room[i].z > -INFINITY)
                gumbel_summary_offer(
                    &summaries[s], room[i].z + gumbel_noise_of_token(stream, (uint32_t)room[i].id),
                    room[i].z, room[i].id);
    }
}
