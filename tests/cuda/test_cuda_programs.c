/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows drawn by programs on a GPU, compared with the CPU through the public API: random programs on
 * usual and adversarial rows, from logits and from a head; captured graphs; each rule on hostile
 * rows.
 */
#include "cuda_few_outputs.h"
#include "prefixed_programs.h"

#include <float.h>
#include <stdlib.h>

/* Draws a plan's rows by random programs on both devices. */
static void compare_plan(const request_plan *plan, int fused, int shape, uint64_t *random)
{
    request *req = request_make(plan, cpu);
    prefixed_programs *programs = make_zeroed(1, sizeof *programs);
    const gumbel_tensor *t = &req->logits.logits;
    prefixed_programs_set(programs, req, random);
    for (int64_t b = 0; b < plan->batch && shape >= 0; b++)
        for (int64_t i = 0; i < plan->vocab; i++)
            ((float *)t->data)[b * t->stride + i] = request_hostile_logit(shape, i, plan->vocab);
    compare_requests(req, fused);
    free(programs);
}

static void check_plans(int count, int step, int64_t rows_max)
{
    uint64_t random = 11;
    for (int i = 0; i < count; i += step) {
        request_plan plan = request_plan_at_random(i, 0);
        plan.batch = plan.batch < rows_max ? plan.batch : rows_max;
        plan.truncation = 1;
        compare_plan(&plan, 0, -1, &random);
    }
}

/* Lists of the tokens that orders and programs keep. */
static void programs_kept_sets(void)
{
    uint64_t random = 17;
    for (int i = 0; i < 240; i++) {
        request_plan plan = request_plan_at_random(i, 0);
        plan.kept_capacity = 1 + i * 37 % 900;
        plan.truncation = i % 6 > 0;
        if (i % 2)
            compare_plan(&plan, 0, -1, &random);
        else
            compare_requests(request_make(&plan, cpu), 0);
    }
}

static void programs_plans(void) { check_plans(400, 1, INT64_MAX); }

/* For compute-sanitizer; the second for racecheck, which takes a second a row. */
static void programs_small(void) { check_plans(130, 26, INT64_MAX); }
static void programs_few(void) { check_plans(130, 26, 1); }

/* Heads of mixed dtypes, whose products are summed in the CPU's order. */
static void programs_from_hidden(void)
{
    uint64_t random = 12;
    for (int i = 0; i < 60; i++) {
        request_plan plan = request_plan_at_random(i, 1);
        plan.truncation = 1;
        request *req = request_make(&plan, cpu);
        const int mixed = req->head.weight.dtype != req->head.hidden.dtype;
        request_free(req);
        if (mixed)
            compare_plan(&plan, 1, -1, &random);
    }
}

/* Vocabularies of engines, on rows whose values defeat the first guesses of searches. */
static void programs_large(void)
{
    uint64_t random = 13;
    for (int i = 0; i < 48; i++) {
        request_plan plan = {.batch = i % 3 ? 3 : 40,
                             .vocab = i % 2 ? 151936 - i : 32000 + i,
                             .num_top = i % 4 == 1 ? 20 : 0,
                             .samples = 1 + i % 2,
                             .dtype = GUMBEL_FLOAT32,
                             .ties = (gumbel_ties)(i % 2),
                             .truncation = 1,
                             .kind = 1 + ROW_GAUSSIAN,
                             .seed = 300 + (uint64_t)i};
        compare_plan(&plan, 0, i % 3 == 2 ? i % REQUEST_SHAPES : -1, &random);
    }
}

/* Batches that one CTA a row serves from few blocks: most programs begin with top_k or min_p. */
static void programs_from_blocks(void)
{
    uint64_t random = 15;
    for (int i = 0; i < 40; i++) {
        request_plan plan = {.batch = 17 + i % 4 * 21,
                             .vocab = i % 2 ? 151936 - i : 9000 + 1000 * i,
                             .num_top = i % 4 == 1 ? 20 : 0,
                             .samples = 1 + i % 2,
                             .dtype = (gumbel_dtype)(1 + i % 3),
                             .ties = (gumbel_ties)(i / 2 % 2),
                             .truncation = 1,
                             .transforms = i % 5 == 4,
                             .history = 1,
                             .kind = 1 + ROW_GAUSSIAN,
                             .seed = 500 + (uint64_t)i};
        compare_plan(&plan, 0, -1, &random);
    }
}

/* A captured draw, replayed, reads the row parameters again. */
static void programs_graph(void)
{
    uint64_t random = 14;
    for (int i = 0; i < 8; i++) {
        request_plan plan = {.batch = 5, .vocab = 9000, .truncation = 1, .seed = 40 + (uint64_t)i};
        request *req = request_make(&plan, cpu);
        prefixed_programs *programs = make_zeroed(1, sizeof *programs);
        prefixed_programs_set(programs, req, &random);
        gpu_request *on_gpu = gpu_request_make(req);
        outcome *host = request_outcome(req), *device = request_outcome(req);
        gpu_replay captured = gpu_request_capture(on_gpu, 0, device);
        CHECK(request_draw(cpu, req, host) == GUMBEL_OK, "%s", programs->text);
        for (int replay = 0; replay < 3; replay++) {
            gpu_replay_draw(&captured, device);
            compare_request(host, device, programs->text);
        }
        gpu_replay_free(&captured);
        outcome_free(host);
        outcome_free(device);
        gpu_request_free(on_gpu);
        request_free(req);
        free(programs);
    }
}

/* ---------------------------------------------------------------------------- hostile rows ---- */

enum { RULES = GUMBEL_PROGRAM_ADAPTIVE_P, CHOICES = 3 };

/* Values of the parameters: nearly all, some and nearly none of the tokens stay, or the reverse. */
typedef struct rule_values {
    float min_p[CHOICES], top_p[CHOICES], typical_p[CHOICES], sigma[CHOICES], epsilon[CHOICES];
    float eta[CHOICES], top_a[CHOICES], surprise[CHOICES], xtc_p[CHOICES], xtc_t[CHOICES];
    float factor[CHOICES], curve[CHOICES], range[CHOICES], target[CHOICES];
    int32_t top_k[CHOICES], min_keep[CHOICES];
} rule_values;

static const rule_values values = {
    .min_p = {1, 0.05f, 0x1p-149f},
    .top_p = {0x1p-149f, 0.5f, 1 - 0x1p-24f},
    .typical_p = {0x1p-149f, 0.5f, 1 - 0x1p-24f},
    .sigma = {0x1p-149f, 1, FLT_MAX},
    .epsilon = {1 - 0x1p-24f, 0.01f, 0x1p-149f},
    .eta = {1 - 0x1p-24f, 2e-3f, 0x1p-149f},
    .top_a = {1, 0.2f, 0x1p-149f},
    .surprise = {0, 3, 1e30f},
    .xtc_p = {0.5f, 1, 1 - 0x1p-24f},
    .xtc_t = {0.1f, 0x1p-149f, 0.5f},
    .factor = {0.3f, 10, 1e-3f},
    .curve = {1, 3, 2},
    .range = {0.5f, 5, 1e-3f},
    .target = {0.5f, 0, 1},
    .top_k = {1, 300, INT32_MAX},
    .min_keep = {1, 5, INT32_MAX},
};

/* A parameter of each row, of `batch` rows. */
static gumbel_row_f32 rows_of_f32(request *req, const float choices[CHOICES], int64_t batch)
{
    float *rows = request_allocate(req, (size_t)batch, sizeof *rows);
    for (int64_t b = 0; b < batch; b++)
        rows[b] = choices[b % CHOICES];
    return (gumbel_row_f32){rows, 1};
}

static gumbel_row_i32 rows_of_i32(request *req, const int32_t choices[CHOICES], int64_t batch)
{
    int32_t *rows = request_allocate(req, (size_t)batch, sizeof *rows);
    for (int64_t b = 0; b < batch; b++)
        rows[b] = choices[b / CHOICES % CHOICES];
    return (gumbel_row_i32){rows, 1};
}

/* Sets programs of a rule alone, or behind TOP_K, for rows of one kind; rows have all combinations
 * of the values of top_k or min_keep and of the rule. Parameters of other rules are not set. */
static void set_hostile(request *req, uint8_t rule, int behind_top_k)
{
    const int last = rule == GUMBEL_PROGRAM_ADAPTIVE_P;
    const uint8_t other = rule == GUMBEL_PROGRAM_TEMPERATURE ? 0 : GUMBEL_PROGRAM_TEMPERATURE;
    const request_plan *plan = &req->plan;
    gumbel_programs *q = &req->programs;
    uint8_t *rules = request_allocate(req, GUMBEL_PROGRAM_LENGTH, 1);
    if (behind_top_k)
        *rules = GUMBEL_PROGRAM_TOP_K;
    rules[behind_top_k] = last ? other : rule;
    rules[behind_top_k + 1] = last ? rule : other;
#define ROWS_OF(type, name) rows_of_##type(req, values.name, plan->batch)
    *q = (gumbel_programs){.struct_size = sizeof *q,
                           .rules = rules,
                           .count = 1,
                           .typical_p = ROWS_OF(f32, typical_p),
                           .top_n_sigma = ROWS_OF(f32, sigma),
                           .epsilon = ROWS_OF(f32, epsilon),
                           .eta = ROWS_OF(f32, eta),
                           .top_a = ROWS_OF(f32, top_a),
                           .surprise = ROWS_OF(f32, surprise),
                           .xtc_probability = ROWS_OF(f32, xtc_p),
                           .xtc_threshold = ROWS_OF(f32, xtc_t),
                           .smoothing_factor = ROWS_OF(f32, factor),
                           .smoothing_curve = ROWS_OF(f32, curve),
                           .adaptive_target = ROWS_OF(f32, target)};
    req->truncation = (gumbel_truncation){.struct_size = sizeof req->truncation,
                                          .ties = plan->ties,
                                          .min_p = ROWS_OF(f32, min_p),
                                          .top_k = ROWS_OF(i32, top_k),
                                          .top_p = ROWS_OF(f32, top_p),
                                          .programs = q};
    if (rule == GUMBEL_PROGRAM_TEMPERATURE)
        q->temperature_range = ROWS_OF(f32, range);
    if (plan->ties)
        q->min_keep = ROWS_OF(i32, min_keep);
#undef ROWS_OF
}

static void compare_hostile(const request_plan *plan, uint8_t rule, int behind_top_k)
{
    const int failed = checks_failed(), kind = plan->kind - 1;
    request *req = request_make(plan, cpu);
    set_hostile(req, rule, behind_top_k);
    compare_requests(req, 0);
    CHECK(checks_failed() == failed, "rule %d%s, rows of kind %d", rule,
          behind_top_k ? " behind top_k" : "", kind);
}

/* Each rule on rows of each kind: equal values (sigma 0), a lone one (entropy 0), tails of -inf,
 * empty rows, NaN and +inf; by clusters and from lists of the largest tokens. */
static void programs_hostile(void)
{
    static const int64_t vocabs[] = {300, 20001};
    for (int rule = 1; rule <= RULES; rule++)
        for (int kind = 0; kind < ROW_ALL_KINDS; kind++)
            for (int i = 0; i < 8; i++) {
                const int behind_top_k = i & 1 && rule != GUMBEL_PROGRAM_TOP_K;
                const request_plan plan = {.batch = i & 2 ? 18 : 9,
                                           .vocab = vocabs[i / 4],
                                           .num_top = 5,
                                           .truncation = 1,
                                           .usual = 1,
                                           .ties = (gumbel_ties)(kind + rule + i / 2) % 2,
                                           .kind = 1 + kind,
                                           .seed = 700 + (uint64_t)(kind + 100 * rule)};
                compare_hostile(&plan, (uint8_t)rule, behind_top_k);
            }
}

/* ------------------------------------------------------------------------------- pivots ---- */

/* Draws tokens alone by a rule, from logits or from a head whose product is exact. */
static void compare_single_rule(const request_plan *plan, uint8_t rule, int first, int fused)
{
    const int failed = checks_failed(), kind = plan->kind - 1;
    request *req = request_make(plan, cpu);
    set_hostile(req, rule, 0);
    if (!first) { /* TEMPERATURE comes before the rule */
        uint8_t *rules = (uint8_t *)(uintptr_t)req->programs.rules;
        rules[0] = GUMBEL_PROGRAM_TEMPERATURE;
        rules[1] = rule;
    }
    if (fused)
        make_exact_head(req, plan->seed % 4 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT16, 64);
    compare_tokens(req, fused);
    CHECK(checks_failed() == failed, "rule %d, rows of kind %d, %s", rule, kind,
          fused ? "from a head" : "from logits");
}

/* Programs with one rule, whose rows are drawn before it, on rows of each kind, several splits of a
 * row, and more rows than run at once. */
static void programs_pivots(void)
{
    static const int64_t vocabs[] = {304, 20000, 151936};
    for (int rule = 1; rule <= RULES; rule++)
        for (int i = 0; i < 2 * ROW_ALL_KINDS && rule != GUMBEL_PROGRAM_TEMPERATURE; i++) {
            const int large = i % 7 == 6, fused = i % 3 == 2, kind = i % ROW_ALL_KINDS;
            const request_plan plan = {.batch = large        ? 9
                                                : i % 5 == 4 ? 150
                                                             : 8 + i,
                                       .vocab = vocabs[large ? 2 : i % 2],
                                       .truncation = 1,
                                       .usual = 1,
                                       .dtype = kind == ROW_MASKED ? GUMBEL_FLOAT32
                                                                   : (gumbel_dtype)(1 + i % 3),
                                       .kind = 1 + kind,
                                       .seed = 2 * (uint64_t)(i + 100 * rule)};
            compare_single_rule(&plan, (uint8_t)rule, i / 2 % 2, fused);
        }
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"programs_plans", programs_plans},
        {"programs_kept_sets", programs_kept_sets},
        {"programs_from_hidden", programs_from_hidden},
        {"programs_large", programs_large},
        {"programs_from_blocks", programs_from_blocks},
        {"programs_graph", programs_graph},
        {"programs_hostile", programs_hostile},
        {"programs_pivots", programs_pivots},
        {"programs_small", programs_small},
        {"programs_few", programs_few},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
