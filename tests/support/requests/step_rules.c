/* SPDX-License-Identifier: Apache-2.0 */
#include "step_rules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------- memory ---- */

static void *copy_on_host(const void *from, size_t bytes)
{
    return memcpy(make_zeroed(bytes + 1, 1), from, bytes);
}

static void put_on_host(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

const step_memory step_host_memory = {copy_on_host, put_on_host, free};

static void *copy(step_rules *s, const void *from, size_t bytes)
{
    if (s->owned_count == (int)(sizeof s->owned / sizeof *s->owned))
        die("the rules of a step own too much");
    return s->owned[s->owned_count++] = s->memory->copy(from, bytes);
}

/* A copy of an array on the heap, which is freed. */
static void *move(step_rules *s, void *from, size_t bytes)
{
    void *to = copy(s, from, bytes);
    free(from);
    return to;
}

static void *poison_on_host(size_t bytes) { return memset(make_zeroed(bytes, 1), 0xA5, bytes); }

static void *make_poisoned(step_rules *s, size_t bytes)
{
    return move(s, poison_on_host(bytes), bytes);
}

/* ------------------------------------------------------------------------------ parameters ---- */

static int one_of(uint64_t *random, uint32_t count) { return random_below(random, count) == 0; }

static gumbel_row_f32 choose_floats(step_rules *s, uint64_t *random, const float *choices,
                                    uint32_t count)
{
    const size_t bytes = (size_t)s->batch * sizeof(float);
    float *values = make_zeroed(bytes, 1);
    for (int64_t b = 0; b < s->batch; b++)
        values[b] = choices[random_below(random, count)];
    return (gumbel_row_f32){move(s, values, bytes), one_of(random, 4) ? GUMBEL_SAME : 0};
}

/* Integers in [low, high]. */
static gumbel_row_i32 choose_integers(step_rules *s, uint64_t *random, int32_t low, int32_t high)
{
    const size_t bytes = (size_t)s->batch * sizeof(int32_t);
    int32_t *values = make_zeroed(bytes, 1);
    for (int64_t b = 0; b < s->batch; b++)
        values[b] = low + (int32_t)random_below(random, (uint32_t)(high - low) + 1);
    return (gumbel_row_i32){move(s, values, bytes), one_of(random, 4) ? GUMBEL_SAME : 0};
}

/* Sequences of the ids `first` to first + 5, some of which continue each other. */
static gumbel_sequences make_sequences(step_rules *s, int32_t first, int breakers)
{
    static const int64_t breaks[] = {0, 1, 3}, bad[] = {0, 1, 3, 6};
    const int32_t of_breaks[] = {first + 1, first + 2, first};
    const int32_t of_bad[] = {first + 3, first, first + 4, first + 1, first + 2, first + 5};
    if (breakers)
        return (gumbel_sequences){copy(s, breaks, sizeof breaks),
                                  copy(s, of_breaks, sizeof of_breaks), 2, NULL, 0};
    return (gumbel_sequences){copy(s, bad, sizeof bad), copy(s, of_bad, sizeof of_bad), 3, NULL, 0};
}

/* Up to two ids of each row, beginning at `first`. */
static gumbel_token_lists make_ids(step_rules *s, uint64_t *random, int32_t first)
{
    const size_t rows = (size_t)s->batch;
    int64_t *offsets = make_zeroed(rows + 1, sizeof *offsets);
    int32_t *ids = make_zeroed(2 * rows, sizeof *ids);
    for (size_t b = 0; b < rows; b++) {
        offsets[b + 1] = offsets[b] + random_below(random, 3);
        for (int64_t k = offsets[b]; k < offsets[b + 1]; k++)
            ids[k] = first + (int32_t)random_below(random, 8);
    }
    gumbel_token_lists lists = {.ids = move(s, ids, 2 * rows * sizeof *ids)};
    lists.offsets = move(s, offsets, (rows + 1) * sizeof *offsets);
    return lists;
}

/* Positions below which stop tokens are banned: some rows' positions are below, some above. */
static gumbel_row_u64 choose_positions(step_rules *s, uint64_t *random)
{
    const size_t bytes = (size_t)s->batch * sizeof(uint64_t);
    uint64_t *values = make_zeroed(bytes, 1);
    for (int64_t b = 0; b < s->batch; b++)
        values[b] = random_below(random, INT32_MAX);
    return (gumbel_row_u64){move(s, values, bytes), 0};
}

static void make_list_rules(step_rules *s, int32_t first, uint64_t *random)
{
    static const float multipliers[] = {0.8f, 1, 0, 3e38f}, bases[] = {1.75f, 2, 1, 0.5f, 1.05f};
    const int32_t capacity = (int32_t)s->recent.capacity;
    gumbel_list_rules *r = &s->rules;
    r->struct_size = sizeof *r;
    r->dry_multiplier = choose_floats(s, random, multipliers, 4);
    r->dry_base = choose_floats(s, random, bases, 5);
    r->dry_allowed_length = choose_integers(s, random, 0, 3);
    r->ngram_size = choose_integers(s, random, 0, 3);
    if (one_of(random, 2))
        r->dry_last_n = choose_integers(s, random, -1, capacity + 1);
    if (one_of(random, 2))
        r->dry_breakers = make_sequences(s, first, 1);
    if (one_of(random, 2))
        r->ngram_window = choose_integers(s, random, -1, capacity + 1);
    if (one_of(random, 2))
        r->ngram_keep = make_ids(s, random, first);
    if (one_of(random, 2))
        r->bad_words = make_sequences(s, first, 0);
    if (one_of(random, 2)) {
        r->min_position = choose_positions(s, random);
        r->stop_tokens = make_ids(s, random, first);
    }
}

/* The first `s->batch` values of a parameter that changes. */
static float *make_first_values(step_rules *s, uint64_t *random, const float *choices,
                                uint32_t count)
{
    float *values = make_zeroed((size_t)s->batch, sizeof *values);
    for (int64_t b = 0; b < s->batch; b++)
        values[b] = choices[random_below(random, count)];
    return values;
}

/* ADAPTIVE_P instead of the surprise, whose log-probabilities are others. */
static void make_adaptive_updates(step_rules *s, uint64_t *random)
{
    static const float goals[] = {0.5f, 0.1f, 1, -1}, decays[] = {0.9f, 0.99f, 0};
    const size_t bytes = (size_t)s->batch * sizeof(float);
    gumbel_rule_updates *u = &s->updates;
    s->first_adaptive = make_first_values(s, random, (const float[]){0.5f, 1, 0.1f}, 3);
    u->surprise = NULL;
    u->adaptive_target = copy(s, s->first_adaptive, bytes);
    u->adaptive_sum = copy(s, s->first_adaptive, bytes);
    u->adaptive_weight = copy(s, s->first_adaptive, bytes);
    u->adaptive_goal = choose_floats(s, random, goals, 4);
    if (one_of(random, 2))
        u->adaptive_decay = choose_floats(s, random, decays, 3);
}

static void make_updates(step_rules *s, int32_t first, uint64_t *random)
{
    static const float targets[] = {3, 5, 1, 0.5f}, rates[] = {0.1f, 1, 0};
    static const float top_ps[] = {0.95f, 1, 0.5f, 1e-3f}, decays[] = {0.9f, 0.5f, 1, 0.99f};
    const size_t bytes = (size_t)s->batch * sizeof(float);
    gumbel_rule_updates *u = &s->updates;
    s->first_surprise = make_first_values(s, random, (const float[]){6, 10, INFINITY, 0}, 4);
    s->first_top_p = make_first_values(s, random, top_ps, 4);
    *u = (gumbel_rule_updates){.struct_size = sizeof *u, .batch = s->batch};
    u->surprise = copy(s, s->first_surprise, bytes);
    u->surprise_target = choose_floats(s, random, targets, 4);
    u->top_p = copy(s, s->first_top_p, bytes);
    u->top_p_decay = choose_floats(s, random, decays, 4);
    if (one_of(random, 2))
        u->surprise_rate = choose_floats(s, random, rates, 3);
    if (one_of(random, 2))
        u->top_p_first = choose_floats(s, random, top_ps, 4);
    if (one_of(random, 2))
        u->top_p_min = choose_floats(s, random, top_ps, 4);
    if (one_of(random, 2))
        u->top_p_reset = choose_integers(s, random, first, first + 40);
    if (one_of(random, 3))
        make_adaptive_updates(s, random);
}

/* ----------------------------------------------------------------------------------- state ---- */

/* Periodic texts of a few ids, with a few other tokens; some are longer than a ring. */
static void make_texts(step_rules *s, const request_plan *plan, uint64_t *random)
{
    const size_t rows = (size_t)s->batch;
    const uint32_t most = (uint32_t)s->recent.capacity + 2;
    const int64_t period = 1 + random_below(random, 12);
    const uint32_t vocab = (uint32_t)plan->vocab, alphabet = one_of(random, 4) ? vocab : 6;
    int64_t *offsets = make_zeroed(rows + 1, sizeof *offsets);
    for (size_t b = 0; b < rows; b++)
        offsets[b + 1] = offsets[b] + random_below(random, most + 1);
    const size_t bytes = (size_t)offsets[rows] * sizeof(int32_t);
    int32_t *ids = make_zeroed(bytes + 1, 1);
    for (int64_t i = 0; i < offsets[rows]; i++)
        ids[i] = i >= period && !one_of(random, 30)
                     ? ids[i - period]
                     : (int32_t)(plan->first_token + random_below(random, alphabet));
    s->texts.ids = move(s, ids, bytes);
    s->texts.offsets = move(s, offsets, (rows + 1) * sizeof *offsets);
}

static void make_outputs(step_rules *s, uint64_t *random)
{
    static const int64_t capacities[] = {256, 64, 6};
    gumbel_row_lists *l = &s->lists;
    *l = (gumbel_row_lists){.struct_size = sizeof *l};
    l->capacity = capacities[random_below(random, 3)];
    const size_t rows = (size_t)s->batch, places = rows * (size_t)l->capacity;
    l->offsets = make_poisoned(s, (rows + 1) * sizeof *l->offsets);
    l->banned = make_poisoned(s, places * sizeof *l->banned);
    l->late_ids = make_poisoned(s, places * sizeof *l->late_ids);
    l->late_values = make_poisoned(s, places * sizeof *l->late_values);
    l->status = make_poisoned(s, rows * sizeof *l->status);
}

/* Watermarks of all context lengths, by a key a row. */
static void make_watermark(step_rules *s, uint64_t *random)
{
    const size_t bytes = (size_t)s->batch * sizeof(uint64_t);
    uint64_t *keys = make_zeroed(2 * bytes, 1);
    for (int64_t i = 0; i < 2 * s->batch; i++)
        keys[i] = random_bits(random);
    s->watermark = (gumbel_watermark){.struct_size = sizeof s->watermark};
    s->watermark.key = move(s, keys, 2 * bytes);
    s->watermark.context = choose_integers(s, random, 0, GUMBEL_CONTEXT_MAX);
    s->draws = (gumbel_watermark_draws){.struct_size = sizeof s->draws};
    s->draws.seed = make_poisoned(s, bytes);
    s->draws.position = make_poisoned(s, bytes);
    s->draws.watermarked = make_poisoned(s, bytes / 2);
}

step_rules *step_rules_make(const request_plan *plan, const step_memory *memory)
{
    uint64_t random = plan->seed ^ 0x57e9;
    step_rules *s = make_zeroed(1, sizeof *s);
    gumbel_recent *r = &s->recent;
    s->batch = plan->batch;
    s->memory = memory;
    *r = (gumbel_recent){.struct_size = sizeof *r};
    r->capacity = one_of(&random, 4) && plan->batch <= 16 ? 4096 : 1 + random_below(&random, 200);
    r->tokens = make_poisoned(s, (size_t)(s->batch * r->capacity) * sizeof *r->tokens);
    r->count = make_poisoned(s, (size_t)s->batch * sizeof *r->count);
    make_texts(s, plan, &random);
    make_list_rules(s, (int32_t)plan->first_token, &random);
    make_outputs(s, &random);
    make_updates(s, (int32_t)plan->first_token, &random);
    make_watermark(s, &random);
    return s;
}

void step_rules_free(step_rules *s)
{
    for (int i = 0; i < s->owned_count; i++)
        s->memory->release(s->owned[i]);
    free(s->first_surprise);
    free(s->first_top_p);
    free(s->first_adaptive);
    free(s);
}

void step_rules_attach(step_rules *s, request *req, gumbel_programs *programs)
{
    const gumbel_row_lists *l = &s->lists;
    gumbel_transforms *t = &req->transforms;
    t->struct_size = sizeof *t;
    t->banned = (gumbel_token_lists){.offsets = l->offsets, .ids = l->banned};
    t->late_bias =
        (gumbel_token_lists){.offsets = l->offsets, .ids = l->late_ids, .values = l->late_values};
    t->list_status = l->status;
    req->sampling.transforms = t;
    s->watermark.seed = req->sampling.seed;
    s->watermark.position = req->sampling.position;
    req->sampling.seed = (gumbel_row_u64){s->draws.seed, 1};
    s->recent.history = t->history;
    if (s->rules.min_position.data)
        s->rules.position = req->sampling.position;
    if (!programs) {
        s->updates.surprise = s->updates.top_p = s->updates.adaptive_target = NULL;
        return;
    }
    if (s->updates.surprise)
        programs->surprise = (gumbel_row_f32){s->updates.surprise, 1};
    if (s->updates.adaptive_target)
        programs->adaptive_target = (gumbel_row_f32){s->updates.adaptive_target, 1};
    req->truncation.top_p = (gumbel_row_f32){s->updates.top_p, 1};
    req->truncation.programs = programs;
    req->sampling.truncation = &req->truncation;
}

gumbel_status step_rules_start(const step_rules *s, gumbel_device *device, void *stream,
                               gumbel_error *error)
{
    const gumbel_recent *r = &s->recent;
    const size_t bytes = (size_t)s->batch * sizeof(float);
    const size_t ring_bytes = (size_t)(s->batch * r->capacity) * sizeof *r->tokens;
    void *poison = poison_on_host(ring_bytes);
    s->memory->put(r->tokens, poison, ring_bytes);
    free(poison);
    if (s->updates.surprise)
        s->memory->put(s->updates.surprise, s->first_surprise, bytes);
    if (s->updates.top_p)
        s->memory->put(s->updates.top_p, s->first_top_p, bytes);
    if (s->updates.adaptive_target) {
        s->memory->put(s->updates.adaptive_target, s->first_adaptive, bytes);
        s->memory->put(s->updates.adaptive_sum, s->first_adaptive, bytes);
        s->memory->put(s->updates.adaptive_weight, s->first_adaptive, bytes);
    }
    return gumbel_recent_start(device, stream, &s->recent, s->batch, NULL, NULL, &s->texts, error);
}

gumbel_status step_rules_list(const step_rules *s, gumbel_device *device, void *stream,
                              gumbel_error *error)
{
    const gumbel_status status =
        gumbel_make_lists(device, stream, &s->rules, &s->recent, s->batch, NULL, &s->lists, error);
    return status == GUMBEL_OK ? gumbel_watermark_rows(device, stream, &s->watermark, &s->recent,
                                                       s->batch, &s->draws, error)
                               : status;
}

gumbel_status step_rules_follow(const step_rules *s, gumbel_device *device, void *stream,
                                const int32_t *tokens, const float *logprobs, int32_t samples,
                                gumbel_error *error)
{
    gumbel_rule_updates u = s->updates;
    u.tokens = tokens;
    u.logprobs = logprobs;
    u.token_stride = samples;
    if (!logprobs)
        u.surprise = u.adaptive_target = NULL;
    const gumbel_status status = gumbel_recent_append(device, stream, &s->recent, s->batch, NULL,
                                                      tokens, samples, NULL, error);
    return status == GUMBEL_OK ? gumbel_update_rules(device, stream, &u, error) : status;
}

void step_rules_arrays(const step_rules *s, step_array arrays[STEP_ARRAYS])
{
    const gumbel_recent *r = &s->recent;
    const gumbel_row_lists *l = &s->lists;
    const size_t rows = (size_t)s->batch, places = rows * (size_t)l->capacity;
    const size_t adaptive = s->updates.adaptive_target ? rows * sizeof(float) : 0;
    const step_array all[STEP_ARRAYS] = {
        {"rings", r->tokens, rows * (size_t)r->capacity * sizeof *r->tokens},
        {"counts of rings", r->count, rows * sizeof *r->count},
        {"offsets of lists", l->offsets, (rows + 1) * sizeof *l->offsets},
        {"banned", l->banned, places * sizeof *l->banned},
        {"late_ids", l->late_ids, places * sizeof *l->late_ids},
        {"late_values", l->late_values, places * sizeof *l->late_values},
        {"status of lists", l->status, rows * sizeof *l->status},
        {"surprise", s->updates.surprise, s->updates.surprise ? rows * sizeof(float) : 0},
        {"top_p", s->updates.top_p, s->updates.top_p ? rows * sizeof(float) : 0},
        {"adaptive_target", s->updates.adaptive_target, adaptive},
        {"adaptive_sum", s->updates.adaptive_sum, adaptive},
        {"adaptive_weight", s->updates.adaptive_weight, adaptive},
        {"seeds", s->draws.seed, rows * sizeof *s->draws.seed},
        {"positions", s->draws.position, rows * sizeof *s->draws.position},
        {"watermarked", s->draws.watermarked, rows * sizeof *s->draws.watermarked},
    };
    memcpy(arrays, all, sizeof all);
}
