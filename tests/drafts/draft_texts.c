/* SPDX-License-Identifier: Apache-2.0 */
#include "draft_cycles.h"
#include "outcome.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POSITION_HIGH (UINT64_C(1) << 32)

static void *allocate_owned(texts *t, size_t count, size_t size)
{
    return t->owned[t->owned_count++] = make_zeroed(count, size);
}

texts_plan texts_plan_at_random(int index)
{
    uint64_t random = 9000 + (uint64_t)index;
    texts_plan plan = {.requests = 1 + (int32_t)random_below(&random, 6),
                       .vocab = 65 + random_below(&random, 400),
                       .hidden_size = index % 2 ? 8 + random_below(&random, 40) : 0,
                       .length = 24,
                       .transforms = index % 3 != 0,
                       .history = index % 6 < 3,
                       .truncation = index % 4 != 0,
                       .ends_early = index % 5 == 0,
                       .seed = random_bits(&random)};
    return plan;
}

int64_t texts_width(const texts *t)
{
    return t->plan.hidden_size > 0 ? t->plan.hidden_size : t->plan.vocab;
}

int64_t texts_words(const texts *t) { return (t->plan.vocab + 31) / 32; }

int32_t texts_token_before(const texts *t, int32_t r, int64_t place)
{
    return place == 0 ? t->prompts[r] : t->tokens[r * t->plan.length + place - 1];
}

static uint64_t seed_of_row(const texts *t, int32_t r, int64_t place, int32_t token)
{
    uint64_t state = t->plan.seed ^ (uint64_t)r << 40 ^ (uint64_t)place << 20;
    return random_bits(&state) ^ (uint64_t)(uint32_t)token;
}

void texts_row(const texts *t, int32_t r, int64_t place, int32_t token, float *row)
{
    uint64_t random = seed_of_row(t, r, place, token);
    int is_bad = t->plan.ends_early && r % 3 == 0 && place == 7 + r;
    for (int64_t i = 0; i < texts_width(t); i++)
        row[i] = random_normal(&random) * (t->plan.hidden_size > 0 ? 1.0f : 3.0f);
    if (is_bad)
        row[0] = NAN;
}

void texts_mask(const texts *t, int32_t r, int64_t place, int32_t token, int32_t *words)
{
    uint64_t random = seed_of_row(t, r, place, ~token);
    for (int64_t w = 0; w < texts_words(t); w++)
        words[w] = (int32_t)(random_bits(&random) | random_bits(&random));
}

/* Sets temperatures, seeds, positions and truncation. */
static void make_parameters(texts *t, uint64_t *random)
{
    static const float temperatures[] = {0.0f, 0.6f, 1.0f, 1.7f};
    const size_t R = (size_t)t->plan.requests;
    float *temperature = allocate_owned(t, R, sizeof *temperature),
          *min_p = allocate_owned(t, R, sizeof *min_p),
          *top_p = allocate_owned(t, R, sizeof *top_p);
    int32_t *top_k = allocate_owned(t, R, sizeof *top_k);
    uint64_t *seed = allocate_owned(t, R, sizeof *seed),
             *position = allocate_owned(t, R, sizeof *position);
    uint32_t *first_sample = allocate_owned(t, R, sizeof *first_sample);
    for (size_t r = 0; r < R; r++) {
        temperature[r] = temperatures[random_below(random, 4)];
        seed[r] = random_bits(random);
        position[r] = random_below(random, 1000) + (r % 2 ? POSITION_HIGH - 500 : 0);
        first_sample[r] = r % 3 ? UINT32_MAX - 40503 * (uint32_t)r : 0;
        min_p[r] = r % 3 == 0 ? 0.02f : 0.0f;
        top_k[r] = r % 3 == 1 ? 20 : 0;
        top_p[r] = r % 2 ? 0.9f : 1.0f;
    }
    t->truncation =
        (gumbel_truncation){.struct_size = sizeof t->truncation,
                            .min_p = {min_p, 0},
                            .top_k = {top_k, 0},
                            .top_p = {top_p, 0},
                            .ties = t->plan.seed % 2 ? GUMBEL_TIES_EXACT : GUMBEL_TIES_ALL};
    t->sampling = (gumbel_sampling){.struct_size = sizeof t->sampling,
                                    .temperature = {temperature, 0},
                                    .seed = {seed, 0},
                                    .position = {position, 0},
                                    .first_sample = {first_sample, 0}};
}

/* Generates lists of a few ids for each request; every second list is empty. */
static gumbel_token_lists make_lists(texts *t, int32_t most, int with_values, uint64_t *random)
{
    const int32_t R = t->plan.requests;
    int64_t *offsets = allocate_owned(t, (size_t)R + 1, sizeof *offsets);
    int32_t *ids = allocate_owned(t, (size_t)(R * most), sizeof *ids);
    float *values = with_values ? allocate_owned(t, (size_t)(R * most), sizeof *values) : NULL;
    for (int32_t r = 0; r < R; r++) {
        int32_t count = r % 2 ? (int32_t)random_below(random, (uint32_t)most) : 0;
        offsets[r + 1] = offsets[r] + count;
        for (int64_t i = offsets[r]; i < offsets[r + 1]; i++) {
            ids[i] = (int32_t)random_below(random, (uint32_t)t->plan.vocab);
            if (values)
                values[i] = random_normal(random);
        }
    }
    return (gumbel_token_lists){.offsets = offsets, .ids = ids, .values = values};
}

static void make_transforms(texts *t, uint64_t *random)
{
    const size_t R = (size_t)t->plan.requests;
    uint64_t late = *random ^ 0x1a7e;
    float *repetition = allocate_owned(t, R, sizeof *repetition),
          *frequency = allocate_owned(t, R, sizeof *frequency),
          *presence = allocate_owned(t, R, sizeof *presence);
    for (size_t r = 0; r < R; r++) {
        repetition[r] = r % 4 == 3 ? 1.0f : 1.3f;
        frequency[r] = r % 4 == 3 ? 0.0f : 0.7f;
        presence[r] = r % 4 == 3 ? 0.0f : 0.2f;
    }
    t->transforms = (gumbel_transforms){.struct_size = sizeof t->transforms,
                                        .allowed = make_lists(t, 60, 0, random),
                                        .banned = make_lists(t, 10, 0, random),
                                        .bias = make_lists(t, 10, 1, random),
                                        .repetition = {repetition, 0},
                                        .frequency = {frequency, 0},
                                        .presence = {presence, 0},
                                        .late_bias = make_lists(t, 10, 1, &late)};
}

static void make_head(texts *t, uint64_t *random)
{
    const texts_plan *plan = &t->plan;
    t->logits = (gumbel_logits){.struct_size = sizeof t->logits};
    t->head = (gumbel_head){.struct_size = sizeof t->head};
    if (plan->hidden_size == 0)
        return;
    int64_t elements = plan->vocab * plan->hidden_size;
    void *weight = allocate_owned(t, (size_t)elements, 2);
    for (int64_t i = 0; i < elements; i++)
        dtype_store(weight, GUMBEL_BFLOAT16, i,
                    random_normal(random) * 3.0f / sqrtf((float)plan->hidden_size));
    t->head.weight = tensor_of(weight, GUMBEL_BFLOAT16, plan->vocab, plan->hidden_size, 0);
}

/* The inputs of the step at index `place`, one row for each request. */
typedef struct step {
    float *input;
    int32_t *mask;
    uint64_t *position;
    int64_t *prompt_offsets, *output_offsets;
    int32_t *output_ids;
    gumbel_history history;
    outcome *drawn;
} step;

static void fill_step(const texts *t, int64_t place, step *s)
{
    const int32_t R = t->plan.requests;
    for (int32_t r = 0; r < R; r++) {
        int32_t token = texts_token_before(t, r, place);
        texts_row(t, r, place, token, s->input + r * texts_width(t));
        texts_mask(t, r, place, token, s->mask + r * texts_words(t));
        s->position[r] = t->sampling.position.data[r] + (uint64_t)place;
        s->prompt_offsets[r + 1] = r + 1;
        s->output_offsets[r + 1] = s->output_offsets[r] + place;
        memcpy(s->output_ids + s->output_offsets[r], t->tokens + r * t->plan.length,
               (size_t)place * sizeof *s->output_ids);
    }
}

/* Draws the tokens at index `place`. */
static void draw_step(const texts *t, gumbel_device *device, int64_t place, const step *s)
{
    const int32_t R = t->plan.requests;
    gumbel_transforms transforms = t->transforms;
    gumbel_sampling sampling = t->sampling;
    gumbel_head head = t->head;
    gumbel_logits logits = t->logits;
    gumbel_status status;
    transforms.mask = (gumbel_row_i32){s->mask, 0};
    if (t->plan.history) {
        transforms.history = &s->history;
    } else {
        transforms.prompt_tokens =
            (gumbel_token_lists){.offsets = s->prompt_offsets, .ids = t->prompts};
        transforms.output_tokens =
            (gumbel_token_lists){.offsets = s->output_offsets, .ids = s->output_ids};
    }
    sampling.position = (gumbel_row_u64){s->position, 0};
    sampling.transforms = t->plan.transforms ? &transforms : NULL;
    sampling.truncation = t->plan.truncation ? &t->truncation : NULL;
    if (t->plan.hidden_size > 0) {
        head.hidden = tensor_of(s->input, GUMBEL_FLOAT32, R, t->plan.hidden_size, 0);
        status = draw(device, &head, &sampling, s->drawn);
    } else {
        logits.logits = tensor_of(s->input, GUMBEL_FLOAT32, R, t->plan.vocab, 0);
        status = draw_logits(device, &logits, &sampling, s->drawn);
    }
    if (status != GUMBEL_OK)
        die("a text could not be decoded at place %" PRId64, place);
}

/* Appends the drawn tokens; a text ends if its row could not be drawn. */
static void keep_step(texts *t, gumbel_device *device, int64_t place, const step *s)
{
    gumbel_error error;
    for (int32_t r = 0; r < t->plan.requests; r++) {
        int64_t at = r * t->plan.length + place;
        t->tokens[at] = s->drawn->tokens[r];
        t->scores[at] = s->drawn->scores[r];
        t->logprobs[at] = s->drawn->logprobs[r];
        if (s->drawn->status[r] != GUMBEL_ROW_OK && t->lengths[r] == t->plan.length) {
            t->lengths[r] = (int32_t)place;
            t->ends[r] = s->drawn->status[r];
        }
        if (t->tokens[at] < 0)
            t->tokens[at] = 0; /* a valid id, with which the next step can be drawn */
    }
    if (gumbel_history_update(device, NULL, &s->history, t->plan.requests, NULL, s->drawn->tokens,
                              0, NULL, &error) != GUMBEL_OK)
        die("gumbel_history_update: %s", error.message);
}

static void decode_texts(texts *t, gumbel_device *device)
{
    const size_t R = (size_t)t->plan.requests, length = (size_t)t->plan.length;
    const size_t words = (size_t)texts_words(t), vocab = (size_t)t->plan.vocab;
    step s = {.input = make_zeroed(R * (size_t)texts_width(t), sizeof *s.input),
              .mask = make_zeroed(R * words, sizeof *s.mask),
              .position = make_zeroed(R, sizeof *s.position),
              .prompt_offsets = make_zeroed(R + 1, sizeof *s.prompt_offsets),
              .output_offsets = make_zeroed(R + 1, sizeof *s.output_offsets),
              .output_ids = make_zeroed(R * length, sizeof *s.output_ids),
              .history = {.struct_size = sizeof s.history, .vocab_size = t->plan.vocab},
              .drawn = outcome_make((int64_t)R, 1)};
    void *counted[] = {make_zeroed(R * words, 4), make_zeroed(R * words, 4),
                       make_zeroed(R * vocab, 2)};
    s.history.prompt = counted[0];
    s.history.output = counted[1];
    s.history.counts = counted[2];
    for (size_t r = 0; r < R; r++)
        s.history.prompt[r * words + (size_t)t->prompts[r] / 32] |= 1u << t->prompts[r] % 32;
    for (int64_t place = 0; place < t->plan.length; place++) {
        fill_step(t, place, &s);
        draw_step(t, device, place, &s);
        keep_step(t, device, place, &s);
    }
    outcome_free(s.drawn);
    for (int i = 0; i < 3; i++)
        free(counted[i]);
    free(s.input);
    free(s.mask);
    free(s.position);
    free(s.prompt_offsets);
    free(s.output_offsets);
    free(s.output_ids);
}

texts *texts_make(const texts_plan *plan, gumbel_device *device)
{
    const size_t R = (size_t)plan->requests, all = R * (size_t)plan->length;
    texts *t = make_zeroed(1, sizeof *t);
    uint64_t random = plan->seed;
    t->plan = *plan;
    t->prompts = allocate_owned(t, R, sizeof *t->prompts);
    t->tokens = allocate_owned(t, all, sizeof *t->tokens);
    t->scores = allocate_owned(t, all, sizeof *t->scores);
    t->logprobs = allocate_owned(t, all, sizeof *t->logprobs);
    t->lengths = allocate_owned(t, R, sizeof *t->lengths);
    t->ends = allocate_owned(t, R, sizeof *t->ends);
    for (size_t r = 0; r < R; r++) {
        t->prompts[r] = (int32_t)random_below(&random, (uint32_t)plan->vocab);
        t->lengths[r] = plan->length;
    }
    make_head(t, &random);
    make_parameters(t, &random);
    make_transforms(t, &random);
    decode_texts(t, device);
    return t;
}

void texts_free(texts *t)
{
    for (int i = 0; i < t->owned_count; i++)
        free(t->owned[i]);
    free(t);
}
