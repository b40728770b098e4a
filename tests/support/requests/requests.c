/* SPDX-License-Identifier: Apache-2.0 */
#include "requests.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(table) (sizeof(table) / sizeof *(table))

void *request_allocate(request *generated, size_t count, size_t size)
{
    if (generated->owned_count == REQUEST_OWNED)
        die("a request has too many arrays");
    return generated->owned[generated->owned_count++] = make_zeroed(count, size);
}

/* ------------------------------------------------------------------------------- logits ---- */

static void store_element(gumbel_tensor *t, int64_t index, float value)
{
    if (isfinite(value))
        dtype_store((void *)t->data, t->dtype, index, value);
    else if (isnan(value))
        dtype_store_nan((void *)t->data, t->dtype, index);
    else
        dtype_store_infinite((void *)t->data, t->dtype, index, value < 0 ? -1 : 1);
}

static float logit_of_kind(row_kind kind, int64_t i, int64_t chosen, uint64_t *random)
{
    static const float levels[] = {-7, -7.5f, -8, -12};
    float normal = random_normal(random);
    switch (kind) {
    case ROW_PEAKED:
        return 2 * normal + (random_below(random, 40) == 0 ? 9 : -9);
    case ROW_EQUAL:
        return -3;
    case ROW_LEVELS:
        return levels[random_below(random, COUNT(levels))];
    case ROW_TAIL:
        return i % 2 ? -INFINITY : 3 * normal;
    case ROW_LONE:
        return i == chosen ? -40 : -INFINITY;
    case ROW_FLAT:
        return 1e-3f * normal - 20;
    case ROW_WIDE:
        return 100 * normal;
    case ROW_EMPTY:
        return -INFINITY;
    case ROW_NAN:
        return i == chosen ? NAN : 3 * normal;
    case ROW_INFINITE:
        return i == chosen ? INFINITY : 3 * normal;
    case ROW_MASKED:
        return chosen % 2 || random_below(random, 8) ? -FLT_MAX : 3 * normal;
    default:
        return 3 * normal - 10;
    }
}

float request_hostile_logit(int shape, int64_t i, int64_t vocab)
{
    switch (shape) {
    case 0: /* all likely tokens are adjacent */
        return -1e-3f * (float)i;
    case 1:
        return -1e-3f * (float)(vocab - i);
    case 2: /* most tokens have one of two values, few are between */
        return i % 5000 == 7 ? 3.0f - 1e-7f * (float)(i % 9973) : i % 2 ? 3.0f : 2.999f;
    case 3: /* neighbouring float32 values */
        return 8.0f + 0x1p-20f * (float)(i * 7919 % 5);
    case 4: /* one value so low that bins of equal width cannot separate the others */
        return i == vocab / 3 ? -3e38f : (float)(i * 104729 % 1000003) * 1e-5f;
    case 5: /* masked with the lowest float instead of -inf */
        return i % 3 ? -FLT_MAX : (float)(i * 104729 % 1000003) * 1e-5f;
    case 7: /* a hundred values, equally frequent */
        return -1e-2f * (float)(i * 7919 % 100);
    default: /* one token far above equal others */
        return i == vocab - 1 ? 60.0f : -5.0f;
    }
}

/* Up to a third of all rows are faulty. */
static row_kind kind_of_row(const request_plan *plan, uint64_t *random)
{
    uint32_t kinds = random_below(random, 3) ? ROW_EMPTY : ROW_KINDS;
    uint32_t kind = random_below(random, kinds);
    return (row_kind)(plan->kind ? plan->kind - 1 : (int)kind);
}

static void make_logits(request *generated, uint64_t *random)
{
    const request_plan *plan = &generated->plan;
    int64_t stride = plan->vocab + random_below(random, 3);
    gumbel_tensor *t = &generated->logits.logits;
    *t = tensor_of(NULL, plan->dtype ? plan->dtype : GUMBEL_FLOAT32, plan->batch, plan->vocab,
                   stride);
    t->data = request_allocate(generated, (size_t)(plan->batch * stride), dtype_size(t->dtype));
    for (int64_t b = 0; b < plan->batch; b++) {
        row_kind kind = kind_of_row(plan, random);
        int64_t chosen = random_below(random, (uint32_t)plan->vocab);
        for (int64_t i = 0; i < stride; i++)
            store_element(t, b * stride + i,
                          i < plan->vocab ? logit_of_kind(kind, i, chosen, random) : NAN);
    }
}

float *product_logits(gumbel_device *device, const gumbel_head *head)
{
    int64_t batch = head->hidden.rows, vocab = head->weight.rows;
    float *logits = make_zeroed((size_t)(batch * vocab), sizeof *logits);
    const float cold = 0;
    gumbel_sampling greedy = {.struct_size = sizeof greedy, .temperature = {&cold, GUMBEL_SAME}};
    outcome *drawn = outcome_make(batch, 1);
    for (int64_t i = 0; i < vocab; i++) {
        gumbel_head lone = problem_shard(head, i, 1);
        lone.vocab_size = 0;
        lone.scale = lone.soft_cap = 0;
        if (draw(device, &lone, &greedy, drawn) != GUMBEL_OK)
            die("the logits of the product cannot be computed");
        for (int64_t b = 0; b < batch; b++)
            logits[b * vocab + i] = drawn->status[b] == GUMBEL_ROW_EMPTY      ? -INFINITY
                                    : drawn->status[b] == GUMBEL_ROW_INFINITE ? INFINITY
                                                                              : drawn->scores[b];
    }
    outcome_free(drawn);
    return logits;
}

/* Some hidden states are zeros, so that only the bias distinguishes logits; some have a NaN. */
static void make_product(request *generated, gumbel_device *device, uint64_t *random)
{
    const request_plan *plan = &generated->plan;
    problem_plan of_product = {.batch = plan->batch,
                               .vocab = plan->vocab,
                               .hidden_size = plan->hidden_size,
                               .weight_dtype = (gumbel_dtype)(1 + random_below(random, 3)),
                               .bias_dtype = random_below(random, 2) ? GUMBEL_FLOAT32 : 0,
                               .first_token = plan->first_token,
                               .vocab_size = plan->vocab_size,
                               .scale = plan->scale,
                               .soft_cap = plan->soft_cap,
                               .seed = plan->seed};
    generated->product = problem_make(&of_product);
    generated->head = generated->product->head;
    float *hidden = generated->product->hidden;
    for (int64_t b = 0; b < plan->batch; b++) {
        uint32_t kind = random_below(random, 8);
        for (int64_t k = 0; k < plan->hidden_size && kind < 2; k++)
            hidden[b * plan->hidden_size + k] = 0;
        if (kind == 2)
            hidden[b * plan->hidden_size] = NAN;
    }
    float *logits = product_logits(device, &generated->head);
    generated->owned[generated->owned_count++] = logits;
    generated->logits.logits = tensor_of(logits, GUMBEL_FLOAT32, plan->batch, plan->vocab, 0);
}

/* ----------------------------------------------------------------------- row parameters ---- */

/* A random parameter of the table for each row, or one for all rows. */
static gumbel_row_f32 choose_floats(request *generated, const float *table, size_t count,
                                    uint64_t *random)
{
    static const int64_t strides[] = {0, 1, 3, GUMBEL_SAME}, steps[] = {1, 1, 3, 0};
    uint32_t choice = random_below(random, 4);
    int64_t length = (generated->plan.batch - 1) * steps[choice] + 1;
    float *data = request_allocate(generated, (size_t)length, sizeof *data);
    for (int64_t k = 0; k < length; k++)
        data[k] = table[random_below(random, (uint32_t)count)];
    return (gumbel_row_f32){data, strides[choice]};
}

/* Sample counters: the largest one for all rows, one for each row, or none. */
static gumbel_row_u32 choose_counters(request *generated, uint32_t choice)
{
    uint32_t *counters =
        request_allocate(generated, (size_t)generated->plan.batch, sizeof *counters);
    if (choice > 1)
        return (gumbel_row_u32){NULL, 0};
    for (uint32_t b = 0; b < (uint32_t)generated->plan.batch; b++)
        counters[b] = UINT32_MAX - 40503 * b;
    return (gumbel_row_u32){counters, choice ? 0 : GUMBEL_SAME};
}

static void make_sampling(request *generated, uint64_t *random)
{
    static const float temperatures[] = {1, 1, 0.7f, 1.5f, 0.05f, 0, 1e-6f, 1e6f, 1e-42f, 30};
    static const float usual[] = {1, 1, 1, 0.7f, 0.9f, 1.5f, 0.6f, 0};
    const request_plan *plan = &generated->plan;
    gumbel_sampling *s = &generated->sampling;
    uint64_t *seed = request_allocate(generated, (size_t)plan->batch, sizeof *seed);
    uint64_t *position = request_allocate(generated, (size_t)plan->batch, sizeof *position);
    for (int64_t b = 0; b < plan->batch; b++) {
        seed[b] = random_bits(random);
        position[b] = (uint32_t)random_bits(random);
    }
    *s = (gumbel_sampling){.struct_size = sizeof *s,
                           .seed = {seed, 0},
                           .position = {position, 0},
                           .first_sample = choose_counters(generated, random_below(random, 4)),
                           .num_samples = plan->samples,
                           .domain = random_below(random, 6)};
    s->temperature = choose_floats(generated, plan->usual ? usual : temperatures,
                                   plan->usual ? COUNT(usual) : COUNT(temperatures), random);
}

static const int32_t *choose_ks(request *generated, const int32_t *table, uint32_t count,
                                uint64_t *random)
{
    int32_t *k = request_allocate(generated, (size_t)generated->plan.batch, sizeof *k);
    for (int64_t b = 0; b < generated->plan.batch; b++)
        k[b] = table[random_below(random, count)];
    return k;
}

/* The plan's truncation, with usual values. */
static void make_usual_truncation(request *generated, uint64_t *random)
{
    static const int32_t ks[] = {50, 20, 40, 5, 1, 100, 256, 50, 20, 0};
    static const float min_ps[] = {0.02f, 0.05f, 0.1f, 0.3f, 0.02f, 0.05f, 0},
                       top_ps[] = {0.95f, 0.9f, 0.8f, 0.5f, 0.3f, 0.99f, 1};
    const request_plan *plan = &generated->plan;
    gumbel_truncation *t = &generated->truncation;
    int one = plan->top_p > 0;
    if (plan->cuts & REQUEST_MIN_P)
        t->min_p = choose_floats(generated, min_ps, COUNT(min_ps), random);
    if (plan->cuts & REQUEST_TOP_P)
        t->top_p =
            choose_floats(generated, one ? &plan->top_p : top_ps, one ? 1 : COUNT(top_ps), random);
    if (plan->cuts & REQUEST_TOP_K) {
        const int32_t *k = choose_ks(generated, ks, COUNT(ks), random);
        t->top_k = (gumbel_row_i32){k, random_below(random, 4) ? 0 : GUMBEL_SAME};
    }
}

static void make_truncation(request *generated, uint64_t *random)
{
    int32_t v = (int32_t)generated->plan.vocab;
    const int32_t ks[] = {0, 0, 1, 2, 5, 40, v - 1, v, v + 7, INT32_MAX, v / 2, v / 3};
    float part = (float)random_below(random, (uint32_t)v) + 1;
    const float min_ps[] = {0, 0, 1, 0.05f, 0.5f, 1e-6f, 1e-30f, 1e-42f, 0.999f};
    const float top_ps[] = {1,      0.95f,  0.5f,         0.1f,           1e-6f,
                            1e-30f, 1e-42f, 1 - 0x1p-24f, part / (float)v};
    gumbel_truncation *t = &generated->truncation;
    *t = (gumbel_truncation){
        .struct_size = sizeof *t, .order = generated->plan.order, .ties = generated->plan.ties};
    generated->sampling.truncation = t;
    if (generated->plan.programs)
        request_make_programs(generated, random);
    if (generated->plan.by_program)
        request_set_order_program(generated);
    if (generated->plan.usual) {
        make_usual_truncation(generated, random);
        return;
    }
    if (random_below(random, 4))
        t->min_p = choose_floats(generated, min_ps, COUNT(min_ps), random);
    if (random_below(random, 4))
        t->top_p = choose_floats(generated, top_ps, COUNT(top_ps), random);
    if (random_below(random, 4))
        t->top_k = (gumbel_row_i32){choose_ks(generated, ks, COUNT(ks), random), 1};
}

/* --------------------------------------------------------------------------- transforms ---- */

/* A token of the shard, often one of the first few; sometimes one of a neighbouring shard. */
static int32_t choose_token(const request_plan *plan, uint64_t *random)
{
    int64_t few = plan->vocab < 6 ? plan->vocab : 6, range = plan->vocab;
    int64_t token = plan->first_token;
    uint32_t choice = random_below(random, 8);
    if (choice == 0)
        return (int32_t)(token < 3 ? 0 : token - 3);
    if (choice == 1)
        return (int32_t)(token + plan->vocab + random_below(random, 40));
    return (int32_t)(token + random_below(random, (uint32_t)(choice < 5 ? few : range)));
}

gumbel_token_lists request_make_lists(request *generated, uint32_t longest, const float *values,
                                      size_t count, uint64_t *random)
{
    size_t batch = (size_t)generated->plan.batch, most = batch * longest;
    int64_t *offsets = request_allocate(generated, batch + 1, sizeof *offsets);
    int32_t *ids = request_allocate(generated, most, sizeof *ids);
    float *chosen = values ? request_allocate(generated, most, sizeof *chosen) : NULL;
    for (size_t b = 0; b < batch; b++) {
        offsets[b + 1] = offsets[b] + random_below(random, longest + 1);
        for (int64_t k = offsets[b]; k < offsets[b + 1]; k++) {
            ids[k] = choose_token(&generated->plan, random);
            if (values)
                chosen[k] = values[random_below(random, (uint32_t)count)];
        }
    }
    return (gumbel_token_lists){.offsets = offsets, .ids = ids, .values = chosen};
}

/* Masks that allow most tokens, few, one, none or all. */
static void make_mask(request *generated, uint64_t *random)
{
    const request_plan *plan = &generated->plan;
    int64_t words = (plan->first_token + plan->vocab + 31) / 32;
    int64_t stride = random_below(random, 4) ? words + random_below(random, 3) : 0;
    int64_t rows = stride ? plan->batch : 1;
    int32_t *mask =
        request_allocate(generated, (size_t)(rows * (stride ? stride : words)), sizeof *mask);
    for (int64_t b = 0; b < rows; b++) {
        uint32_t kind = random_below(random, 10);
        int64_t lone = plan->first_token + random_below(random, (uint32_t)plan->vocab);
        for (int64_t w = 0; w < words; w++) {
            uint64_t some = random_bits(random) & random_bits(random) & random_bits(random);
            mask[b * stride + w] = (int32_t)(kind < 6    ? ~some
                                             : kind < 8  ? some
                                             : kind == 9 ? UINT32_MAX
                                                         : 0);
        }
        if (kind == 8 && random_below(random, 4))
            mask[b * stride + lone / 32] = (int32_t)(1u << lone % 32);
    }
    generated->transforms.mask = (gumbel_row_i32){mask, stride ? stride : GUMBEL_SAME};
}

/* Converts the lists of a request to a history by simple counting. */
static void make_history(request *generated, const gumbel_token_lists *prompts,
                         const gumbel_token_lists *outputs)
{
    size_t batch = (size_t)generated->plan.batch;
    size_t vocab = (size_t)(generated->plan.first_token + generated->plan.vocab),
           words = (vocab + 31) / 32;
    gumbel_history *h = &generated->history;
    *h = (gumbel_history){.struct_size = sizeof *h, .vocab_size = (int64_t)vocab};
    h->prompt = request_allocate(generated, batch * words, sizeof *h->prompt);
    h->output = request_allocate(generated, batch * words, sizeof *h->output);
    uint16_t *counts = request_allocate(generated, batch * vocab, sizeof *counts);
    h->counts = counts;
    for (size_t b = 0; b < batch; b++) {
        for (int64_t k = prompts->offsets[b]; k < prompts->offsets[b + 1]; k++)
            if (prompts->ids[k] < h->vocab_size)
                h->prompt[b * words + (size_t)prompts->ids[k] / 32] |= 1u << prompts->ids[k] % 32;
        for (int64_t k = outputs->offsets[b]; k < outputs->offsets[b + 1]; k++)
            if (outputs->ids[k] < h->vocab_size) {
                h->output[b * words + (size_t)outputs->ids[k] / 32] |= 1u << outputs->ids[k] % 32;
                counts[b * vocab + (size_t)outputs->ids[k]]++;
            }
    }
    generated->transforms.history = h;
}

static void make_penalties(request *generated, uint64_t *random)
{
    static const float repetitions[] = {1, 1.2f, 0.8f, 3}, frequencies[] = {0, 0.5f, -0.3f, 7},
                       presences[] = {0, 0.7f, -1, 3};
    gumbel_transforms *t = &generated->transforms;
    gumbel_token_lists prompts = request_make_lists(generated, 30, NULL, 0, random);
    gumbel_token_lists outputs = request_make_lists(generated, 30, NULL, 0, random);
    t->repetition = choose_floats(generated, repetitions, 4, random);
    t->frequency = choose_floats(generated, frequencies, 4, random);
    t->presence = choose_floats(generated, presences, 4, random);
    if (generated->plan.history) {
        make_history(generated, &prompts, &outputs);
    } else {
        t->prompt_tokens = prompts;
        t->output_tokens = outputs;
    }
}

static void make_transforms(request *generated, uint64_t *random)
{
    static const float biases[] = {0.5f, -2.25f, 7, -INFINITY, 1e-3f, -100};
    gumbel_transforms *t = &generated->transforms;
    t->struct_size = sizeof *t;
    if (random_below(random, 2))
        make_mask(generated, random);
    if (random_below(random, 2))
        t->banned = request_make_lists(generated, 5, NULL, 0, random);
    if (random_below(random, 2))
        t->bias = request_make_lists(generated, 9, biases, COUNT(biases), random);
    if (random_below(random, 2) || generated->plan.history)
        make_penalties(generated, random);
    /* From a stream of its own, which leaves the rest of the request as it is without. */
    uint64_t late = generated->plan.seed ^ 0x1a7e;
    if (random_below(&late, 2) && !generated->plan.no_late_bias)
        t->late_bias = request_make_lists(generated, 9, biases, COUNT(biases), &late);
    generated->sampling.transforms = t;
}

/* ------------------------------------------------------------------------ whole requests ---- */

static void make_noise(request *generated, gumbel_device *device)
{
    const request_plan *plan = &generated->plan;
    int64_t draws = plan->batch * plan->samples;
    float *noise = request_allocate(generated, (size_t)(draws * plan->vocab), sizeof *noise);
    if (gumbel_prepare_noise(device, NULL, &generated->sampling, plan->batch, plan->first_token,
                             plan->vocab, noise, 0, NULL) != GUMBEL_OK)
        die("noise cannot be computed");
    generated->sampling.noise = noise;
}

static request *begin_request(const request_plan *plan)
{
    request *generated = make_zeroed(1, sizeof *generated);
    generated->plan = *plan;
    generated->plan.samples = plan->samples ? plan->samples : 1;
    generated->logits.struct_size = sizeof generated->logits;
    return generated;
}

/* Generates the rules of a request, without tensors. */
static void make_rules(request *generated, gumbel_device *device, uint64_t *random)
{
    const request_plan *plan = &generated->plan;
    generated->logits.scale = plan->scale;
    generated->logits.soft_cap = plan->soft_cap;
    generated->logits.first_token = plan->first_token;
    generated->logits.vocab_size = plan->vocab_size;
    make_sampling(generated, random);
    if (plan->given_noise)
        make_noise(generated, device);
    if (plan->transforms)
        make_transforms(generated, random);
    if (plan->truncation)
        make_truncation(generated, random);
}

request *request_make(const request_plan *plan, gumbel_device *device)
{
    request *generated = begin_request(plan);
    uint64_t random = plan->seed ^ 0xa5ced;
    if (plan->hidden_size > 0)
        make_product(generated, device, &random);
    else
        make_logits(generated, &random);
    make_rules(generated, device, &random);
    return generated;
}

request *request_make_rules(const request_plan *plan)
{
    request *generated = begin_request(plan);
    uint64_t random = plan->seed ^ 0x501e5;
    generated->plan.given_noise = 0;
    make_rules(generated, NULL, &random);
    generated->head = (gumbel_head){.struct_size = sizeof generated->head,
                                    .scale = plan->scale,
                                    .soft_cap = plan->soft_cap,
                                    .first_token = plan->first_token,
                                    .vocab_size = plan->vocab_size};
    return generated;
}

void request_free(request *generated)
{
    for (int i = 0; i < generated->owned_count; i++)
        free(generated->owned[i]);
    if (generated->product)
        problem_free(generated->product);
    free(generated);
}
