/* SPDX-License-Identifier: Apache-2.0
 *
 * Accepted tokens: the windows of penalties and of DRY, and the list of biases of DRY.
 */
#define GUMBEL_UNSTABLE
#include "gumbel_llama_state.h"

#include <gumbel/recent.h>

#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------- rings ---- */

int64_t gumbel_llama_ring_length(const struct gumbel_llama_ring *ring)
{
    return ring->window >= 0 && ring->count > (uint64_t)ring->window ? ring->window
                                                                     : (int64_t)ring->count;
}

static bool grow_ring(struct gumbel_llama_ring *ring, int64_t room)
{
    if (room <= ring->room)
        return true;
    int32_t *grown = realloc(ring->tokens, (size_t)room * sizeof *grown);
    if (!grown)
        return false;
    ring->tokens = grown;
    ring->room = room;
    return true;
}

bool gumbel_llama_ring_push(struct gumbel_llama_ring *ring, llama_token token)
{
    if (ring->window == 0 || token < 0)
        return true;
    const uint64_t place = ring->window > 0 ? ring->count % (uint64_t)ring->window : ring->count;
    if ((int64_t)place >= ring->room && !grow_ring(ring, 2 * (int64_t)place + 64))
        return false;
    ring->tokens[place] = token;
    ring->count++;
    return true;
}

bool gumbel_llama_ring_copy(const struct gumbel_llama_ring *from, struct gumbel_llama_ring *to)
{
    const int64_t length = gumbel_llama_ring_length(from);

    if (!grow_ring(to, length))
        return false;
    if (length > 0)
        memcpy(to->tokens, from->tokens, (size_t)length * sizeof *to->tokens);
    to->count = from->count;
    return true;
}

/* ------------------------------------------------------------------------------- windows ---- */

bool gumbel_llama_is_penalised(const struct gumbel_llama_params *params)
{
    return params->penalty_last_n != 0 &&
           (params->repetition != 1 || params->frequency != 0 || params->presence != 0);
}

bool gumbel_llama_has_dry(const struct gumbel_llama_params *params)
{
    return params->dry_penalty_last_n != 0 && params->dry_multiplier != 0 &&
           !(params->dry_base < 1);
}

/* -------------------------------------------------------------------------------- DRY ---- */

struct gumbel_llama_dry {
    struct gumbel_llama_breaker *breakers; /* [count], for clones; their tokens are in `ids` */
    int64_t *offsets;                      /* [count + 1] into `ids` */
    int32_t *ids;                          /* of all breakers, which are sorted by the first id */
    int64_t count;
    int64_t late_offsets[2];
    int32_t late_ids[GUMBEL_LIST_MAX];
    float late_values[GUMBEL_LIST_MAX];
    int32_t status;
};

static int compare_first_tokens(const void *a, const void *b)
{
    const llama_token x = *((const struct gumbel_llama_breaker *)a)->tokens;
    const llama_token y = *((const struct gumbel_llama_breaker *)b)->tokens;
    return x < y ? -1 : x > y;
}

/* Copies the breakers, sorted. */
static bool copy_breakers(struct gumbel_llama_dry *dry, const struct gumbel_llama_params *params)
{
    const size_t count = (size_t)params->dry_breaker_count;
    size_t length = 0;

    for (size_t i = 0; i < count; i++)
        length += (size_t)params->dry_breakers[i].count;
    dry->count = (int64_t)count;
    dry->breakers = malloc((count + 1) * sizeof *dry->breakers);
    dry->offsets = malloc((count + 1) * sizeof *dry->offsets);
    dry->ids = malloc((length + 1) * sizeof *dry->ids);
    if (!dry->breakers || !dry->offsets || !dry->ids)
        return false;
    if (count > 0)
        memcpy(dry->breakers, params->dry_breakers, count * sizeof *dry->breakers);
    qsort(dry->breakers, count, sizeof *dry->breakers, compare_first_tokens);
    dry->offsets[0] = 0;
    for (size_t i = 0; i < count; i++) {
        struct gumbel_llama_breaker *breaker = &dry->breakers[i];
        int32_t *ids = dry->ids + dry->offsets[i];
        memcpy(ids, breaker->tokens, (size_t)breaker->count * sizeof *ids);
        breaker->tokens = ids;
        dry->offsets[i + 1] = dry->offsets[i] + breaker->count;
    }
    return true;
}

bool gumbel_llama_start_recent(struct gumbel_llama_state *state)
{
    struct gumbel_llama_params *params = &state->params;

    state->penalised.window = gumbel_llama_is_penalised(params) ? params->penalty_last_n : 0;
    if (!gumbel_llama_has_dry(params))
        return true;
    state->repeated.window = params->dry_penalty_last_n;
    state->dry = calloc(1, sizeof *state->dry);
    if (!state->dry || !copy_breakers(state->dry, params) || !grow_ring(&state->repeated, 64))
        return false;
    params->dry_breakers = state->dry->breakers;
    return true;
}

void gumbel_llama_free_recent(struct gumbel_llama_state *state)
{
    free(state->penalised.tokens);
    free(state->repeated.tokens);
    if (state->dry) {
        free(state->dry->breakers);
        free(state->dry->offsets);
        free(state->dry->ids);
    }
    free(state->dry);
}

gumbel_status gumbel_llama_make_lists(struct gumbel_llama_state *state, gumbel_device *device,
                                      gumbel_transforms *transforms, gumbel_error *error)
{
    const struct gumbel_llama_params *p = &state->params;
    struct gumbel_llama_ring *ring = &state->repeated;
    struct gumbel_llama_dry *dry = state->dry;

    if (!dry)
        return GUMBEL_OK;
    const gumbel_list_rules rules = {
        .struct_size = sizeof rules,
        .dry_multiplier = {&p->dry_multiplier},
        .dry_base = {&p->dry_base},
        .dry_allowed_length = {&p->dry_allowed_length},
        .dry_breakers = {.offsets = dry->offsets, .ids = dry->ids, .count = dry->count}};
    /* While the ring grows, token i is at i; it never grows once it is as long as the window. */
    const bool full = ring->window > 0 && ring->room >= ring->window;
    const gumbel_recent recent = {.struct_size = sizeof recent,
                                  .capacity = full ? ring->window : ring->room,
                                  .tokens = ring->tokens,
                                  .count = &ring->count};
    const gumbel_row_lists lists = {.struct_size = sizeof lists,
                                    .capacity = GUMBEL_LIST_MAX,
                                    .offsets = dry->late_offsets,
                                    .late_ids = dry->late_ids,
                                    .late_values = dry->late_values,
                                    .status = &dry->status};
    transforms->late_bias = (gumbel_token_lists){
        .offsets = dry->late_offsets, .ids = dry->late_ids, .values = dry->late_values};
    transforms->list_status = &dry->status;
    return gumbel_make_lists(device, NULL, &rules, &recent, 1, NULL, &lists, error);
}
