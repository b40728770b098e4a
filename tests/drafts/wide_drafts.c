/* SPDX-License-Identifier: Apache-2.0 */
#include "wide_drafts.h"
#include "inputs.h"
#include "outcome.h"

#include <math.h>
#include <stdlib.h>

static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};

/* Rows of logits at an odd stride, or contiguous. */
static gumbel_tensor make_rows(void **data, size_t *bytes, int64_t rows, int64_t vocab,
                               uint64_t *random)
{
    gumbel_dtype dtype = dtypes[random_below(random, 3)];
    int64_t stride = vocab + (int64_t)random_below(random, 2) * random_below(random, 20);
    *bytes = (size_t)(rows * stride) * dtype_size(dtype);
    *data = make_zeroed(*bytes, 1);
    return tensor_of(*data, dtype, rows, vocab, stride);
}

/* Fills a row of the target and a similar row of the draft; returns a token that is likely in both.
 * Some rows have no valid draw. */
static int64_t fill_row(wide_drafts *w, int64_t b, uint64_t *random)
{
    const gumbel_tensor *p = &w->target.logits, *q = &w->drafted.logits;
    const float spread = 0.5f + (float)random_below(random, 4);
    const int near = random_below(random, 3) > 0;
    int64_t best = 0;
    float most = -INFINITY;
    for (int64_t i = 0; i < p->cols; i++) {
        float z = spread * random_normal(random), other = near ? z : spread * random_normal(random);
        other += 0.3f * random_normal(random);
        dtype_store(w->target_data, p->dtype, b * p->stride + i, z);
        dtype_store(w->draft_data, q->dtype, b * q->stride + i, other);
        if (z + other > most) {
            most = z + other;
            best = i;
        }
    }
    const int64_t spoiled = random_below(random, (uint32_t)p->cols);
    switch (random_below(random, 24)) {
    case 0:
        dtype_store_nan(w->target_data, p->dtype, b * p->stride + spoiled);
        break;
    case 1:
        dtype_store_infinite(w->target_data, p->dtype, b * p->stride + spoiled, 1);
        break;
    case 2:
        dtype_store_nan(w->draft_data, q->dtype, b * q->stride + spoiled);
        break;
    case 3:
        for (int64_t i = 0; i < p->cols; i++)
            dtype_store_infinite(w->target_data, p->dtype, b * p->stride + i, -1);
        break;
    default:
        break;
    }
    return best;
}

/* Multiples of 1/8, whose products and sums are exact. */
static float *make_eighths(int64_t count, uint64_t *random)
{
    float *generated = make_zeroed((size_t)count, sizeof *generated);
    for (int64_t i = 0; i < count; i++)
        generated[i] = 0.125f * ((float)random_below(random, 17) - 8);
    return generated;
}

/* Converts numbers to another dtype. */
static void *narrow_numbers(const float *numbers, gumbel_dtype dtype, int64_t count)
{
    void *generated = make_zeroed((size_t)count, dtype_size(dtype));
    for (int64_t i = 0; i < count; i++)
        dtype_store(generated, dtype, i, numbers[i]);
    return generated;
}

static gumbel_head head_of(const wide_drafts *w, const void *hidden, const void *weight,
                           gumbel_dtype dtype)
{
    const int64_t vocab = w->target.logits.cols, size = w->hidden_size;
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = tensor_of(hidden, dtype, w->rows, size, 0),
                        .weight = tensor_of(weight, dtype, vocab, size, 0),
                        .bias = tensor_of(w->bias, GUMBEL_FLOAT32, 1, vocab, 0),
                        .scale = w->target.scale,
                        .soft_cap = w->target.soft_cap,
                        .first_token = w->target.first_token};
    return head;
}

/* Replaces logits by hidden states and weights of this dtype. */
static void use_heads(wide_drafts *w, gumbel_dtype dtype)
{
    const int64_t hidden = w->rows * w->hidden_size;
    const int64_t weight = w->target.logits.cols * w->hidden_size;
    w->narrow[0] = narrow_numbers(w->hidden, dtype, hidden);
    w->narrow[1] = narrow_numbers(w->weight, dtype, weight);
    w->narrow[2] = narrow_numbers(w->draft_hidden, dtype, hidden);
    w->narrow[3] = narrow_numbers(w->draft_weight, dtype, weight);
    w->target_head = head_of(w, w->narrow[0], w->narrow[1], dtype);
    w->draft_head = head_of(w, w->narrow[2], w->narrow[3], dtype);
    w->draft.logits = NULL;
    w->draft.head = &w->draft_head;
}

/* Generates similar heads of target and draft. */
static void make_heads(wide_drafts *w, uint64_t *random)
{
    const int64_t vocab = w->target.logits.cols, size = 1 + random_below(random, 40);
    w->hidden_size = (int32_t)size;
    w->hidden = make_eighths(w->rows * size, random);
    w->weight = make_eighths(vocab * size, random);
    w->bias = make_eighths(vocab, random);
    w->draft_hidden = make_eighths(w->rows * size, random);
    w->draft_weight = make_eighths(vocab * size, random);
    for (int64_t i = 0; i < w->rows * size; i++)
        if (random_below(random, 8))
            w->draft_hidden[i] = w->hidden[i];
    for (int64_t i = 0; i < vocab * size; i++)
        if (random_below(random, 16))
            w->draft_weight[i] = w->weight[i];
    for (int64_t b = 0; b < w->rows; b++)
        if (random_below(random, 16) == 0) /* a row without a valid draw */
            (random_below(random, 2) ? w->hidden : w->draft_hidden)[b * size] = NAN;
    use_heads(w, dtypes[random_below(random, 3)]);
}

/* The token that is likely by both heads. */
static int64_t likely_by_heads(const wide_drafts *w, int64_t b)
{
    const int64_t size = w->hidden_size;
    int64_t best = 0;
    float most = -INFINITY;
    for (int64_t i = 0; i < w->target.logits.cols; i++) {
        float sum = 0;
        for (int64_t k = 0; k < size; k++)
            sum += w->hidden[b * size + k] * w->weight[i * size + k] +
                   w->draft_hidden[b * size + k] * w->draft_weight[i * size + k];
        if (sum > most) {
            most = sum;
            best = i;
        }
    }
    return best;
}

static void fill_requests(wide_drafts *w, uint64_t *random)
{
    int64_t end = 0;
    for (int32_t r = 0; r < w->requests; r++) {
        const int32_t of_r = (int32_t)random_below(random, (uint32_t)w->max_nodes + 1);
        w->offsets[r] = (int32_t)end;
        w->nodes[r] = of_r - (int32_t)(of_r > 1 && random_below(random, 6) == 0);
        w->temperature[r] = random_below(random, 8) ? 0.3f + random_below(random, 10) * 0.1f : 0.0f;
        w->draft_temperature[r] = random_below(random, 12) ? w->temperature[r] : 0.0f;
        w->seed[r] = random_bits(random);
        w->position[r] = random_below(random, 1000);
        w->first_sample[r] = r % 3 ? UINT32_MAX - 40503 * (uint32_t)r : 0;
        end += of_r;
    }
    w->offsets[w->requests] = (int32_t)end;
    w->rows = end + random_below(random, 2); /* sometimes one unused row */
    w->rows += w->rows == 0;
}

/* Sets the pointers of the calls' structs to the arrays of requests and nodes. */
static void set_call_structs(wide_drafts *w, gumbel_rule rule)
{
    w->sampling = (gumbel_sampling){.struct_size = sizeof w->sampling,
                                    .temperature = {w->temperature, 1},
                                    .seed = {w->seed, 1},
                                    .position = {w->position, 1},
                                    .first_sample = {w->first_sample, 1}};
    w->draft_sampling = w->sampling;
    w->draft_sampling.temperature.data = w->draft_temperature;
    w->draft_sampling.domain = GUMBEL_DOMAIN_DRAFT;
    w->draft = (gumbel_draft){.struct_size = sizeof w->draft,
                              .requests = w->requests,
                              .max_nodes = w->max_nodes,
                              .rule = rule,
                              .tokens = w->tokens,
                              .offsets = w->offsets,
                              .nodes = w->nodes,
                              .logits = &w->drafted,
                              .sampling = &w->draft_sampling};
}

wide_drafts *wide_make(int index, int64_t vocab_most)
{
    wide_drafts *w = make_zeroed(1, sizeof *w);
    uint64_t random = 4000 + (uint64_t)index;
    w->requests = 1 + (int32_t)random_below(&random, 4);
    w->max_nodes = 1 + (int32_t)random_below(&random, 5);
    const size_t R = (size_t)w->requests, most = R * (size_t)w->max_nodes + 1;
    const int64_t vocab = 1 + random_below(&random, (uint32_t)vocab_most);
    const int64_t first = random_below(&random, 3) ? 0 : random_below(&random, 200);
    w->temperature = make_zeroed(R, sizeof *w->temperature);
    w->draft_temperature = make_zeroed(R, sizeof *w->draft_temperature);
    w->seed = make_zeroed(R, sizeof *w->seed);
    w->position = make_zeroed(R, sizeof *w->position);
    w->first_sample = make_zeroed(R, sizeof *w->first_sample);
    w->offsets = make_zeroed(R + 1, sizeof *w->offsets);
    w->nodes = make_zeroed(R, sizeof *w->nodes);
    w->tokens = make_zeroed(most, sizeof *w->tokens);
    fill_requests(w, &random);
    w->target = (gumbel_logits){.struct_size = sizeof w->target, .first_token = first};
    w->target.scale = random_below(&random, 3) ? 0.0f : 0.7f;
    w->target.soft_cap = random_below(&random, 4) ? 0.0f : 5.0f;
    w->drafted = w->target;
    w->target.logits = make_rows(&w->target_data, &w->target_bytes, w->rows, vocab, &random);
    w->drafted.logits = make_rows(&w->draft_data, &w->draft_bytes, w->rows, vocab, &random);
    set_call_structs(w, index % 2 ? GUMBEL_RULE_BLOCK : GUMBEL_RULE_REJECTION);
    if (w->draft.rule == GUMBEL_RULE_REJECTION && index % 3 == 0)
        make_heads(w, &random);
    for (int64_t b = 0; b < w->rows; b++) {
        int64_t likely = w->hidden_size ? likely_by_heads(w, b) : fill_row(w, b, &random);
        if (random_below(&random, 5) == 0)
            likely = random_below(&random, (uint32_t)vocab);
        if (b + 1 < w->rows)
            w->tokens[b + 1] = random_below(&random, 20) ? (int32_t)(first + likely) : -1;
    }
    return w;
}

/* A crowd is the set of tokens that a row can draw: all within the 512 tokens of one warp; one, a
 * few or most of them belong to one lane. */
enum { CROWDS = 8, CROWD_VOCAB = 2048, CROWD_SPAN = 512, CROWD_LANES = 32, CROWD_OF_LANE = 16 };
#define CROWD_NEVER (-64.0f)

/* Makes a token drawable by both models, or by one, if the hidden state is the crowd-th unit
 * vector. */
static void set_drawable(wide_drafts *w, int crowd, int64_t token, int target, int draft)
{
    w->weight[token * CROWDS + crowd] = target ? 0.0f : CROWD_NEVER;
    w->draft_weight[token * CROWDS + crowd] = draft ? 0.0f : CROWD_NEVER;
}

/* Fills the weights of a crowd. Returns a token that only the draft draws. */
static int64_t make_crowd(wide_drafts *w, int crowd, uint64_t *random)
{
    const int64_t span = CROWD_SPAN * (int64_t)random_below(random, CROWD_VOCAB / CROWD_SPAN);
    const int many = 3 + (int)random_below(random, crowd % 2 ? 4 : 29);
    const int spared[] = {(int)random_below(random, (uint32_t)many),
                          (int)random_below(random, 2 * (uint32_t)many)};
    const int elsewhere = 1 + (int)random_below(random, 2);
    const int turn = (int)random_below(random, CROWD_LANES), deep[] = {1, 2, CROWD_OF_LANE};
    const int depth = deep[crowd % 3];
    for (int i = 0; i < many; i++) {
        const int lane = (turn + i / depth) % CROWD_LANES;
        const int64_t own = 128 * (int64_t)(i % 4) + i / 4 % 4; /* one of the 16 tokens of a lane */
        set_drawable(w, crowd, span + own + 4 * lane, 1, i != spared[0] && i != spared[1]);
    }
    for (int i = 0; i < elsewhere; i++) /* tokens of other warps */
        set_drawable(w, crowd,
                     (span + CROWD_SPAN + 700 * i + random_below(random, 500)) % CROWD_VOCAB, 1, 0);
    const int64_t drafted = (span + CROWD_SPAN + 520 + random_below(random, 100)) % CROWD_VOCAB;
    set_drawable(w, crowd, drafted, 0, 1);
    return drafted;
}

/* Makes requests with one draft each, and heads of zeros. */
static wide_drafts *make_pairs(int32_t requests, int64_t vocab, int32_t hidden_size,
                               uint64_t *random)
{
    const size_t R = (size_t)requests, size = (size_t)hidden_size, weights = (size_t)vocab * size;
    wide_drafts *w = make_zeroed(1, sizeof *w);
    w->requests = requests;
    w->max_nodes = 2;
    w->rows = 2 * requests;
    w->hidden_size = hidden_size;
    w->temperature = make_zeroed(R, sizeof *w->temperature);
    w->draft_temperature = make_zeroed(R, sizeof *w->draft_temperature);
    w->seed = make_zeroed(R, sizeof *w->seed);
    w->position = make_zeroed(R, sizeof *w->position);
    w->first_sample = make_zeroed(R, sizeof *w->first_sample);
    w->offsets = make_zeroed(R + 1, sizeof *w->offsets);
    w->nodes = make_zeroed(R, sizeof *w->nodes);
    w->tokens = make_zeroed(2 * R, sizeof *w->tokens);
    w->hidden = make_zeroed(2 * R * size, sizeof *w->hidden);
    w->draft_hidden = make_zeroed(2 * R * size, sizeof *w->draft_hidden);
    w->weight = make_zeroed(weights, sizeof *w->weight);
    w->draft_weight = make_zeroed(weights, sizeof *w->draft_weight);
    w->bias = make_zeroed((size_t)vocab, sizeof *w->bias);
    w->target.logits.cols = vocab;
    for (int32_t r = 0; r < requests; r++) {
        w->temperature[r] = w->draft_temperature[r] = 1.0f;
        w->seed[r] = random_bits(random);
        w->offsets[r + 1] = 2 * (r + 1);
        w->nodes[r] = 2;
    }
    set_call_structs(w, GUMBEL_RULE_REJECTION);
    return w;
}

wide_drafts *wide_make_crowded(int index)
{
    enum { R = 2 * CROWDS };
    uint64_t random = 9000 + (uint64_t)index;
    wide_drafts *w = make_pairs(R, CROWD_VOCAB, CROWDS, &random);
    for (int i = 0; i < CROWD_VOCAB * CROWDS; i++)
        w->weight[i] = w->draft_weight[i] = CROWD_NEVER;
    for (int crowd = 0; crowd < CROWDS; crowd++) {
        const int32_t drafted = (int32_t)make_crowd(w, crowd, &random);
        for (int32_t r = crowd; r < R; r += CROWDS) {
            for (int32_t b = 2 * r; b < 2 * r + 2; b++)
                w->hidden[b * CROWDS + crowd] = w->draft_hidden[b * CROWDS + crowd] = 1.0f;
            w->tokens[2 * r + 1] = drafted;
        }
    }
    use_heads(w, dtypes[index % 3]);
    return w;
}

/* The draft reads the first half of a hidden state. */
enum { NEAR_SIZE = 16, NEAR_SEEN = NEAR_SIZE / 2 };

/* Multiples of an eighth that deviate by `deviation`. */
static float random_eighths(float deviation, uint64_t *random)
{
    return 0.125f * rintf(8.0f * deviation * random_normal(random));
}

/* The token for which the draft's logit exceeds the target's most. */
static int32_t most_overestimated_token(const wide_drafts *w, int64_t b)
{
    int64_t wrong = 0;
    float most = -INFINITY;
    for (int64_t i = 0; i < w->target.logits.cols; i++) {
        float unseen = 0;
        for (int64_t k = NEAR_SEEN; k < NEAR_SIZE; k++)
            unseen -= w->hidden[b * NEAR_SIZE + k] * w->weight[i * NEAR_SIZE + k];
        if (unseen > most) {
            most = unseen;
            wrong = i;
        }
    }
    return (int32_t)wrong;
}

wide_drafts *wide_make_near(int index, int32_t requests, int64_t vocab, float unseen)
{
    uint64_t random = 12000 + (uint64_t)index;
    wide_drafts *w = make_pairs(requests, vocab, NEAR_SIZE, &random);
    const float deviation = 2.5f / sqrtf(NEAR_SEEN);
    for (int64_t i = 0; i < vocab * NEAR_SIZE; i++) {
        w->weight[i] = random_eighths(1.0f, &random);
        w->draft_weight[i] = i % NEAR_SIZE < NEAR_SEEN ? w->weight[i] : 0.0f;
    }
    for (int64_t i = 0; i < w->rows * NEAR_SIZE; i++) {
        const int seen = i % NEAR_SIZE < NEAR_SEEN;
        w->hidden[i] = random_eighths(seen ? deviation : unseen * deviation, &random);
        w->draft_hidden[i] = seen ? w->hidden[i] : 0.0f;
    }
    for (int32_t r = 0; r < requests; r++)
        w->tokens[2 * r + 1] = most_overestimated_token(w, 2 * r);
    use_heads(w, GUMBEL_FLOAT32);
    return w;
}

void wide_free(wide_drafts *w)
{
    void *owned[] = {w->target_data,  w->draft_data,
                     w->temperature,  w->draft_temperature,
                     w->seed,         w->position,
                     w->first_sample, w->tokens,
                     w->offsets,      w->nodes,
                     w->hidden,       w->weight,
                     w->bias,         w->draft_hidden,
                     w->draft_weight, w->lse,
                     w->logprobs,     w};
    for (int i = 0; i < 4; i++)
        free(w->narrow[i]);
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

void wide_supply_logprobs(wide_drafts *w, gumbel_device *cpu)
{
    const size_t rows = (size_t)w->rows;
    float *temperature = make_zeroed(rows, sizeof *temperature);
    int32_t *given = make_zeroed(rows, sizeof *given), *tokens = make_zeroed(rows, sizeof *tokens);
    w->lse = make_zeroed(rows, sizeof *w->lse);
    w->logprobs = make_zeroed(rows, sizeof *w->logprobs);
    for (int32_t r = 0; r < w->requests; r++)
        for (int64_t b = w->offsets[r]; b < w->offsets[r + 1]; b++) {
            temperature[b] = w->draft_temperature[r];
            given[b] = b + 1 < w->rows ? w->tokens[b + 1] : -1;
        }
    const gumbel_sampling how = {
        .struct_size = sizeof how, .temperature = {temperature, 1}, .given = {given, 1}};
    const gumbel_output out = {
        .struct_size = sizeof out, .tokens = tokens, .lse = w->lse, .logprobs = w->logprobs};
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    const gumbel_head *head = w->hidden_size ? &w->draft_head : NULL;
    const gumbel_logits *logits = head ? NULL : &w->drafted;
    gumbel_status status = gumbel_workspace_size(cpu, head, logits, &how, &out, &bytes, &error);
    void *workspace = poisoned_workspace(bytes);
    if (status == GUMBEL_OK)
        status =
            head ? gumbel_sample(cpu, NULL, head, &how, &out, workspace, bytes, &error)
                 : gumbel_sample_logits(cpu, NULL, logits, &how, &out, workspace, bytes, &error);
    if (report_call("scores of drafts", status, &error))
        die("no scores");
    w->draft.lse = w->lse;
    w->draft.logprobs = w->logprobs;
    free(workspace);
    free(tokens);
    free(given);
    free(temperature);
}

gumbel_status wide_verify(gumbel_device *device, const wide_drafts *w, verified_arrays *into)
{
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    const gumbel_head *head = w->hidden_size ? &w->target_head : NULL;
    gumbel_status status = gumbel_verify_workspace_size(
        device, head, head ? NULL : &w->target, &w->sampling, &w->draft, &into->to, &bytes, &error);
    if (status != GUMBEL_OK)
        return report_call("gumbel_verify_workspace_size", status, &error);
    void *workspace = poisoned_workspace(bytes);
    status = head ? gumbel_verify(device, NULL, head, &w->sampling, &w->draft, &into->to, workspace,
                                  bytes, &error)
                  : gumbel_verify_logits(device, NULL, &w->target, &w->sampling, &w->draft,
                                         &into->to, workspace, bytes, &error);
    free(workspace);
    return report_call("gumbel_verify", status, &error);
}
