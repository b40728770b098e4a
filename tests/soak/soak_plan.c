/* SPDX-License-Identifier: Apache-2.0 */
#include "soak_plan.h"

#include "soak_pool.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COUNT_OF(table) (sizeof(table) / sizeof *(table))
/* A random entry of a table. */
#define CHOOSE(table, random) ((table)[random_below(random, COUNT_OF(table))])

/* Tokens of a tile of the product; most replays of a captured step, and most calls. */
enum { TILE = 128, REPLAYS_MAX = 60, CALLS_MAX = 20 };

/* Limits: estimated nanoseconds of a step and of all steps; elements of [B, V]; for plans that the
 * CPU also computes, multiply-adds and draws. */
#define STEP_NS_MAX   5e6
#define CALL_NS_MAX   3e7
#define LOGITS_MAX    (INT64_C(1) << 25)
#define COUNTS_MAX    (INT64_C(1) << 23)
#define CPU_MACS_MAX  (INT64_C(1) << 28)
#define CPU_DRAWS_MAX (INT64_C(1) << 22)

static int one_in(uint32_t count, uint64_t *random) { return random_below(random, count) == 0; }

/* A random size whose logarithm is uniform. */
static int64_t choose_size(double smallest, double largest, uint64_t *random)
{
    double fraction = (double)random_below(random, 1u << 20) / (double)(1u << 20);
    return (int64_t)floor(smallest * exp(fraction * log((largest + 1) / smallest)));
}

static int64_t choose_batch(int64_t smallest, int64_t largest, uint64_t *random)
{
    static const int64_t edge_cases[] = {1,  4,  5,  8,   16,  17,  32, 33,
                                         63, 64, 65, 100, 128, 129, 256};
    int64_t batch = one_in(2, random) ? CHOOSE(edge_cases, random)
                                      : choose_size((double)smallest, (double)largest, random);
    return batch < smallest ? smallest : batch > largest ? largest : batch;
}

/* A random vocabulary size, often near a multiple of a wave: one tile per multiprocessor. */
static int64_t choose_vocab(int64_t multiprocessors, uint64_t *random)
{
    int64_t vocab = choose_size(64, 300000, random), waves = random_below(random, 5);
    if (one_in(2, random))
        vocab = TILE * (multiprocessors * waves - 1) + random_below(random, 2 * TILE);
    vocab = vocab < 64 ? 64 : vocab;
    return one_in(4, random) ? vocab : vocab / 16 * 16;
}

static void choose_dtypes(soak_plan *plan, uint64_t *random)
{
    static const gumbel_dtype all[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    static const gumbel_dtype likely[] = {GUMBEL_BFLOAT16, GUMBEL_BFLOAT16, GUMBEL_BFLOAT16,
                                          GUMBEL_BFLOAT16, GUMBEL_FLOAT16,  GUMBEL_FLOAT16,
                                          GUMBEL_FLOAT32};
    plan->weight = plan->hidden = CHOOSE(likely, random);
    if (one_in(8, random))
        plan->hidden = CHOOSE(all, random);
    plan->bias = one_in(3, random) ? CHOOSE(all, random) : 0;
    plan->req.dtype = CHOOSE(all, random);
}

/* Chooses how many steps there are, whether a graph replays them, and whether positions advance. */
static void choose_steps(soak_plan *plan, uint64_t *random)
{
    plan->in_graph = random_below(random, 3) > 0;
    plan->advances = plan->in_graph || one_in(2, random);
    plan->steps =
        1 + (int)random_below(random, (uint32_t)(plan->in_graph ? REPLAYS_MAX : CALLS_MAX));
}

/* Truncated rows whose product stores only logits above a bound: 5 to 128 rows, three waves of
 * tiles or more. */
static void plan_bounded_product(soak_plan *plan, int64_t multiprocessors, uint64_t *random)
{
    static const int cuts[] = {REQUEST_MIN_P,
                               REQUEST_MIN_P,
                               REQUEST_TOP_K,
                               REQUEST_TOP_K | REQUEST_TOP_P,
                               REQUEST_TOP_K | REQUEST_TOP_P,
                               REQUEST_MIN_P | REQUEST_TOP_P,
                               REQUEST_TOP_K | REQUEST_MIN_P,
                               REQUEST_TOP_K | REQUEST_TOP_P | REQUEST_MIN_P};
    request_plan *req = &plan->req;
    int64_t wave = TILE * multiprocessors;
    req->batch = choose_batch(5, 128, random);
    req->vocab = wave * 3 + random_below(random, (uint32_t)(2 * wave));
    if (one_in(8, random))
        req->vocab = wave * 3 + random_below(random, 200000);
    req->vocab = req->vocab / 16 * 16 + 16;
    req->hidden_size = one_in(3, random) ? 128 : choose_size(1, 64, random) * 8;
    plan->weight = plan->hidden = one_in(4, random) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    plan->bias = one_in(6, random) ? GUMBEL_FLOAT32 : 0;
    req->truncation = req->usual = 1;
    req->cuts = CHOOSE(cuts, random);
    req->order =
        one_in(6, random) ? GUMBEL_ORDER_BEFORE_TEMPERATURE : GUMBEL_ORDER_MIN_P_TOP_K_TOP_P;
    if ((req->cuts & REQUEST_TOP_K) && one_in(2, random))
        req->order = one_in(2, random) ? GUMBEL_ORDER_TOP_K_TOP_P_MIN_P
                                       : GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE;
    req->ties = one_in(4, random) ? GUMBEL_TIES_EXACT : GUMBEL_TIES_ALL;
    req->transforms = req->history = one_in(8, random);
    req->samples = one_in(8, random) ? 2 : 1;
    req->num_top = one_in(6, random) ? 1 + (int32_t)random_below(random, 20) : 0;
    req->soft_cap = one_in(10, random) ? 30.0f : 0.0f;
    plan->outputs = one_in(3, random) ? (int)random_below(random, 64) : SOAK_SCORES;
}

/* top_p or programs of one rule, with tokens, scores and statuses as outputs: rows are truncated
 * after their draw. */
static void plan_pivoted_draw(soak_plan *plan, int64_t multiprocessors, uint64_t *random)
{
    static const float scales[] = {0, 0, 0, 0.5f, -2};
    request_plan *req = &plan->req;
    choose_dtypes(plan, random);
    req->batch = choose_batch(1, 300, random);
    req->vocab = choose_vocab(multiprocessors, random);
    req->hidden_size = one_in(2, random) ? choose_size(1, 64, random) * 8 : 0;
    req->truncation = req->usual = 1;
    req->cuts = REQUEST_TOP_P;
    req->single_rule = one_in(2, random);
    req->programs = req->single_rule ? 1 + (int)random_below(random, 3) : 0;
    req->scale = CHOOSE(scales, random);
    req->order = (gumbel_order)random_below(random, REQUEST_ORDERS);
    plan->outputs = (int)random_below(random, 4);
}

/* A draw with a screen, from weights and hidden states of one 16-bit dtype, as screens require. */
static void plan_screened_draw(soak_plan *plan, int64_t multiprocessors, uint64_t *random)
{
    static const int32_t samples[] = {1, 1, 1, 2, 4};
    request_plan *req = &plan->req;
    plan->weight = plan->hidden = one_in(4, random) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    plan->screened = 1;
    plan->nibbles = one_in(2, random);
    req->batch = choose_batch(1, one_in(8, random) ? 100 : 64, random);
    req->vocab = choose_vocab(multiprocessors, random) / 16 * 16;
    req->hidden_size = choose_size(1, 512, random) * 8;
    req->samples = CHOOSE(samples, random);
    req->usual = random_below(random, 3) > 0;
    req->first_token = one_in(4, random) ? 64 * random_below(random, 2000) : 0;
    if (one_in(4, random))
        req->vocab_size = req->first_token + 1 + random_below(random, (uint32_t)req->vocab);
    plan->gap = one_in(6, random) ? 8 * (1 + random_below(random, 8)) : 0;
    plan->faulty = one_in(5, random);
    plan->outputs = (int)random_below(random, one_in(6, random) ? 8 : 4);
}

/* Draws by programs of all rules, in a random order. */
static void plan_program_draw(soak_plan *plan, int64_t multiprocessors, uint64_t *random)
{
    static const int32_t top_counts[] = {0, 0, 0, 1, 20}, samples[] = {1, 1, 1, 2, 4};
    request_plan *req = &plan->req;
    choose_dtypes(plan, random);
    req->batch = choose_batch(1, 300, random);
    req->vocab = choose_vocab(multiprocessors, random);
    req->hidden_size = one_in(2, random) ? choose_size(1, 128, random) * 8 : 0;
    req->truncation = 1;
    req->programs = 1 + (int)random_below(random, GUMBEL_PROGRAMS_MAX);
    req->usual = random_below(random, 3) > 0;
    req->cuts = (int)random_below(random, 8);
    req->ties = (gumbel_ties)random_below(random, 2);
    req->samples = CHOOSE(samples, random);
    req->num_top = CHOOSE(top_counts, random);
    req->soft_cap = one_in(8, random) ? 30.0f : 0.0f;
    req->transforms = one_in(4, random);
    req->history = one_in(2, random);
    plan->faulty = one_in(5, random);
    plan->outputs = one_in(2, random) ? (int)random_below(random, 64) : SOAK_SCORES | SOAK_MASS;
}

static void plan_any_call(soak_plan *plan, int64_t multiprocessors, uint64_t *random)
{
    static const int64_t first_tokens[] = {0, 0, 0, 0, 64, 36, 37, 100004};
    static const float scales[] = {0, 0, 0, 0, 0.5f, 2, -2}, caps[] = {0, 0, 0, 0, 30, 5};
    static const int32_t top_counts[] = {0, 0, 0, 1, 5, 20, 128},
                         samples[] = {1, 1, 1, 1, 2, 3, 4, 20};
    request_plan *req = &plan->req;
    choose_dtypes(plan, random);
    req->batch = choose_batch(1, 300, random);
    req->vocab = choose_vocab(multiprocessors, random);
    if (random_below(random, 3) > 0) {
        req->hidden_size = choose_size(8, 8192, random);
        if (random_below(random, 5) > 0)
            req->hidden_size = req->hidden_size / 8 * 8;
    }
    req->first_token = CHOOSE(first_tokens, random);
    if (one_in(5, random))
        req->vocab_size = req->first_token + 1 + random_below(random, (uint32_t)req->vocab);
    req->samples = CHOOSE(samples, random);
    req->num_top = CHOOSE(top_counts, random);
    req->scale = CHOOSE(scales, random);
    req->soft_cap = CHOOSE(caps, random);
    req->order = (gumbel_order)random_below(random, REQUEST_ORDERS);
    req->ties = (gumbel_ties)random_below(random, 2);
    req->logprobs_of = one_in(4, random) ? GUMBEL_RAW : GUMBEL_PROCESSED;
    req->usual = random_below(random, 3) > 0;
    req->cuts = 1 + (int)random_below(random, 7);
    req->truncation = (int)random_below(random, 2);
    req->transforms = one_in(3, random);
    req->history = one_in(2, random);
    plan->gap = one_in(6, random) ? 8 * (1 + random_below(random, 8)) : 0;
    plan->hidden_gap = one_in(6, random) ? 1 + random_below(random, 16) : 0;
    plan->ragged = one_in(8, random);
    plan->faulty = one_in(5, random);
    plan->prepare_noise = one_in(6, random);
    plan->outputs = one_in(2, random) ? (int)random_below(random, 64) : SOAK_SCORES;
    if (one_in(4, random)) {
        plan->outputs = SOAK_SCORES; /* a plain call */
        req->truncation = req->transforms = req->num_top = 0;
    }
}

/* Adds lists of the tokens that truncation keeps to some plans that count them. */
static void choose_kept_lists(soak_plan *plan, uint64_t *random)
{
    if (plan->outputs & SOAK_KEPT && one_in(2, random))
        plan->req.kept_capacity = (int32_t)choose_size(1, 2000, random);
}

/* --------------------------------------------------------------------------------- limits ---- */

/* An upper estimate of a step's time on an H200, in nanoseconds. */
static double estimate_step_ns(const soak_plan *plan)
{
    const request_plan *req = &plan->req;
    double rows = (double)req->batch, tokens = (double)req->vocab;
    double size = (double)req->hidden_size;
    int fast = plan->weight == plan->hidden && plan->weight != GUMBEL_FLOAT32 && !plan->ragged &&
               plan->hidden_gap % 8 == 0 && req->hidden_size % 8 == 0 && req->samples <= 16;
    double ns = 1e4 + tokens * size * (double)dtype_size(plan->weight) / 2000;
    ns += tokens * size * rows / (fast ? 1e5 : 1e3);
    ns += rows * tokens * (0.01 * req->samples + 0.01);
    ns += plan->prepare_noise ? rows * tokens * 0.01 * req->samples : 0;
    ns += req->programs ? rows * tokens * 0.15 : 0;
    ns += plan->rules ? 1e5 : 0;
    ns += req->entropy ? rows * tokens * 0.01 : 0;
    return ns + (req->transforms || req->logprobs_of ? 3 * tokens : 0);
}

static int is_too_large(const soak_plan *plan)
{
    const request_plan *req = &plan->req;
    size_t weight = (size_t)req->vocab * (size_t)(req->hidden_size + plan->gap);
    return req->batch * (req->vocab + plan->gap) > LOGITS_MAX ||
           (req->hidden_size > 0 && weight * dtype_size(plan->weight) > POOL_PIECE_MAX) ||
           estimate_step_ns(plan) > STEP_NS_MAX;
}

/* Reduces the plan's sizes if it would take too long or too much memory. */
static void limit_cost(soak_plan *plan)
{
    request_plan *req = &plan->req;
    for (int step = 0; is_too_large(plan); step++) {
        if (req->hidden_size >= 1024 && step % 2 == 0)
            req->hidden_size = req->hidden_size / 2;
        else if (req->batch > 1)
            req->batch = (req->batch + 1) / 2;
        else if (req->hidden_size >= 16)
            req->hidden_size = req->hidden_size / 16 * 8;
        else
            req->vocab /= 2;
    }
    double steps_max = CALL_NS_MAX / estimate_step_ns(plan);
    plan->steps = plan->steps > steps_max ? (int)steps_max : plan->steps;
    int64_t words = req->batch * (req->first_token + req->vocab);
    req->history = req->history && req->transforms && words <= COUNTS_MAX;
    req->transforms = req->transforms && (req->history || words <= LOGITS_MAX);
    if (req->vocab_size > req->first_token + req->vocab)
        req->vocab_size = 0;
}

/* Verifies drafts, which few calls can do. */
static void choose_drafts(soak_plan *plan, uint64_t *random)
{
    request_plan *req = &plan->req;
    if (req->samples > 1 || req->first_token > 0 || req->vocab_size || plan->prepare_noise ||
        req->batch == 1 || plan->rules || !one_in(6, random))
        return;
    plan->nodes = 2 + (int)random_below(random, req->batch < 9 ? req->batch - 1 : 8);
    plan->trees = one_in(3, random);
}

/* Gives ids to the rows of plans that name no tokens. */
static void choose_table(soak_plan *plan, uint64_t *random)
{
    const request_plan *req = &plan->req;
    plan->has_table = !plan->screened && !plan->rules && !plan->nodes && !plan->prepare_noise &&
                      !req->transforms && req->first_token == 0 && one_in(6, random);
}

/* Removes combinations that no call supports. */
static void remove_unsupported(soak_plan *plan, uint64_t *random)
{
    request_plan *req = &plan->req;
    plan->exact = one_in(2, random);
    plan->counts = req->history && plan->advances && !plan->rules; /* rings count otherwise */
    req->cuts = req->truncation && req->usual ? req->cuts : 0;
    if (!req->num_top)
        plan->outputs &= ~SOAK_LOGITS;
    if (!req->num_top && !req->entropy && !(plan->outputs & SOAK_MASS))
        req->logprobs_of = GUMBEL_PROCESSED;
    if (req->hidden_size == 0)
        plan->hidden_gap = 0;
    /* Every GPU draws the programs that equal an order. */
    req->by_program = req->truncation && !req->programs && !req->num_top &&
                      !(plan->outputs & SOAK_RANKS) && one_in(4, random);
    choose_drafts(plan, random);
    choose_table(plan, random);
}

void soak_plan_at_random(soak_plan *plan, int64_t multiprocessors, uint64_t *random)
{
    uint32_t kind = random_below(random, 100);
    *plan = (soak_plan){.req.seed = random_bits(random) >> 20, .req.samples = 1};
    plan->weight = plan->hidden = GUMBEL_BFLOAT16;
    choose_steps(plan, random);
    if (kind < 33)
        plan_bounded_product(plan, multiprocessors, random);
    else if (kind < 43)
        plan_screened_draw(plan, multiprocessors, random);
    else if (kind < 53)
        plan_pivoted_draw(plan, multiprocessors, random);
    else if (kind < 73)
        plan_program_draw(plan, multiprocessors, random);
    else
        plan_any_call(plan, multiprocessors, random);
    choose_kept_lists(plan, random);
    plan->req.entropy = one_in(8, random);
    plan->rules = !plan->screened && one_in(plan->req.programs ? 2 : 10, random);
    plan->few_allowed = plan->req.transforms && one_in(3, random);
    limit_cost(plan);
    remove_unsupported(plan, random);
}

int soak_plan_suits_cpu(const soak_plan *plan)
{
    const request_plan *req = &plan->req;
    int64_t draws = req->batch * req->vocab * req->samples;
    /* The tolerance for listed log-probabilities is computed from lse. */
    int comparable = !req->num_top || plan->outputs & SOAK_MASS;
    int fused = req->hidden_size > 0;
    /* Hopper's entropies of plain draws have an error bound (test_cuda_statistics.c). */
    comparable &= !(fused && req->entropy && !req->truncation && !req->programs);
    return comparable && !plan->nodes && draws <= CPU_DRAWS_MAX && (plan->exact || !fused) &&
           req->batch * req->vocab * req->hidden_size <= CPU_MACS_MAX;
}

void soak_plan_describe(const soak_plan *plan, char *text, size_t bytes)
{
    const request_plan *req = &plan->req;
    snprintf(
        text, bytes,
        "%s W %s h %s bias %s gaps %d %d outputs %#x cuts %d nodes %d%s%s%s%s%s%s%s%s%s%s%s%s%s%s, "
        "%d %s: %s",
        req->hidden_size ? "fused" : "logits", dtype_name(plan->weight), dtype_name(plan->hidden),
        dtype_name(plan->bias), (int)plan->gap, (int)plan->hidden_gap, (unsigned)plan->outputs,
        req->cuts, plan->nodes, plan->trees ? " trees" : "", plan->rules ? " rules" : "",
        req->usual ? " usual" : "", plan->exact ? " exact" : "", plan->ragged ? " ragged" : "",
        plan->faulty ? " faulty" : "", plan->screened ? " screened" : "",
        plan->nibbles ? " nibbles" : "", plan->few_allowed ? " few allowed" : "",
        plan->has_table ? " table" : "", req->entropy ? " entropy" : "",
        plan->prepare_noise ? " prepared noise" : "", plan->advances ? " advances" : "",
        plan->counts ? " counts" : "", plan->steps, plan->in_graph ? "replays" : "calls",
        request_describe(req));
}
