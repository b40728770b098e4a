/* SPDX-License-Identifier: Apache-2.0
 *
 * The rungs that the CUDA backend plans for a call on an H200 and on an A100. No GPU is required,
 * as planning runs on the host.
 */
#include "cuda/plan/cuda_plan.h"
#include "inputs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The attributes of a GPU that plans use. */
static cuda_device make_device(int hopper)
{
    cuda_device generated;
    memset(&generated, 0, sizeof generated);
    generated.capability = hopper ? 90 : 80;
    generated.multiprocessors = hopper ? 132 : 108;
    generated.shared_bytes = (hopper ? 228 : 164) * 1024;
    generated.truncated_cluster = hopper ? (CUfunction)&generated : NULL;
    return generated;
}

/* Stands for pointers that must not be NULL; never read. */
static _Alignas(16) char something[64];

static gumbel_problem make_problem(int64_t batch, int64_t hidden_size, uint32_t request)
{
    gumbel_problem p = {.batch = batch, .vocab = 151936, .scale = 1, .features = request};
    p.end_token = p.vocab;
    p.sampling.num_samples = 1;
    p.hidden_size = hidden_size;
    if (hidden_size) {
        p.weight = tensor_of(something, GUMBEL_BFLOAT16, p.vocab, hidden_size, hidden_size);
        p.hidden = tensor_of(something, GUMBEL_BFLOAT16, batch, hidden_size, hidden_size);
    }
    return p;
}

/* ------------------------------------------------------------------------ calls by name ---- */

enum { K = 1, P = 2, MIN_P = 4, JOINT = 8, EXACT = 16, LAST = 32 };
enum { NUCLEUS = 23 }; /* among the calls */

static const struct call {
    const char *what;
    int64_t batch, hidden_size;
    uint32_t request;
    int cuts, mass, samples, noise, history;
    const char *hopper, *ampere; /* the product and the rows that serve it */
} calls[] = {
    {"plain, head", 32, 4096, 0, 0, 0, 1, 0, 0, "hopper", "tensor"},
    {"plain, odd D", 32, 4097, 0, 0, 0, 1, 0, 0, "naive", "naive"},
    {"log-probabilities, head", 32, 4096, 0, 0, 1, 1, 0, 0, "hopper", "tensor"},
    {"given noise, head", 32, 4096, 0, 0, 0, 1, 1, 0, "hopper draw", "tensor draw"},
    {"plain, logits", 32, 0, 0, 0, 0, 1, 0, 0, "draw", "draw"},
    {"mask, logits", 32, 0, GUMBEL_FEATURE_MASK, 0, 0, 1, 0, 0, "draw-edits", "draw-edits"},
    {"history, logits", 32, 0, GUMBEL_FEATURE_PENALTIES, 0, 0, 1, 0, 1, "draw-edits", "draw-edits"},
    {"lists of outputs", 32, 0, GUMBEL_FEATURE_PENALTIES, 0, 0, 1, 0, 0, "edit", "edit"},
    {"mask, lse", 32, 0, GUMBEL_FEATURE_MASK, 0, 1, 1, 0, 0, "edit", "edit"},
    {"banned, head", 32, 4096, GUMBEL_FEATURE_BANNED, 0, 0, 1, 0, 0, "hopper edit", "tensor edit"},
    {"k, head, 32", 32, 4096, 0, K, 0, 1, 0, 0, "hopper bounded", "tensor two-pass"},
    {"k and p, head, 5", 5, 4096, 0, K | P, 0, 1, 0, 0, "hopper bounded", "tensor two-pass"},
    {"k, head, 4", 4, 4096, 0, K, 0, 1, 0, 0, "hopper blocks", "tensor two-pass"},
    {"k, head, 256", 256, 4096, 0, K, 0, 1, 0, 0, "hopper blocks", "tensor two-pass"},
    {"k, logits, 17", 17, 0, 0, K, 0, 1, 0, 0, "blocks", "two-pass"},
    {"k, logits, 16", 16, 0, 0, K, 0, 1, 0, 0, "cluster", "two-pass"},
    {"min_p, logits", 32, 0, 0, MIN_P, 1, 4, 0, 0, "blocks", "two-pass"},
    {"joint, logits", 32, 0, 0, K | P | JOINT, 0, 1, 0, 0, "cluster", "two-pass"},
    {"min_p last, logits", 32, 0, 0, K | P | MIN_P | LAST, 0, 1, 0, 0, "blocks", "two-pass"},
    {"min_p last, head", 32, 4096, 0, K | P | MIN_P | LAST, 0, 1, 0, 0, "hopper bounded",
     "tensor two-pass"},
    {"p of all, min_p last", 32, 0, 0, P | MIN_P | LAST, 0, 1, 0, 0, "cluster", "two-pass"},
    {"p, and min_p last", 32, 0, 0, P | LAST, 0, 1, 0, 0, "pivots", "pivots"},
    {"exact ties", 32, 0, 0, K | EXACT, 0, 1, 0, 0, "blocks", "two-pass"},
    {"p, logits", 32, 0, 0, P, 0, 1, 0, 0, "pivots", "pivots"},
    {"p, head", 32, 4096, 0, P, 0, 1, 0, 0, "hopper pivots", "tensor pivots"},
    {"p, exact ties", 32, 0, 0, P | EXACT, 0, 1, 0, 0, "cluster", "two-pass"},
    {"p, two samples", 32, 0, 0, P, 0, 2, 0, 0, "cluster", "two-pass"},
    {"p, lse", 32, 0, 0, P, 1, 1, 0, 0, "cluster", "two-pass"},
    {"ranks", 32, 0, GUMBEL_FEATURE_RANKS, 0, 0, 1, 0, 0, "cluster", "two-pass"},
    {"given, head", 256, 4096, GUMBEL_FEATURE_GIVEN, 0, 1, 1, 0, 0, "hopper cluster",
     "tensor alone"},
    {"given, k, logits", 32, 0, GUMBEL_FEATURE_GIVEN, K, 1, 1, 0, 0, "cluster", "alone"},
    {"allowed, logits", 32, 0, GUMBEL_FEATURE_ALLOWED, 0, 0, 1, 0, 0, "draw-edits", "draw-edits"},
    {"best scores, logits", 32, 0, GUMBEL_FEATURE_BEST, 0, 0, 1, 0, 0, "cluster", "alone"},
    {"best scores, k, head", 8, 4096, GUMBEL_FEATURE_BEST, K, 0, 1, 0, 0, "hopper cluster",
     "tensor alone"},
    {"raw, k", 32, 0, GUMBEL_FEATURE_RAW, K, 0, 1, 0, 0, "cluster", "two-pass"},
    {"program, logits", 32, 0, GUMBEL_FEATURE_PROGRAM, 0, 0, 1, 0, 0, "program",
     "sampling.truncation.programs"},
    {"program, head", 32, 4096, GUMBEL_FEATURE_PROGRAM, 0, 1, 2, 1, 0, "hopper program",
     "sampling.truncation.programs"},
    {"late bias, logits", 32, 0, GUMBEL_FEATURE_LATE_BIAS, 0, 0, 1, 0, 0, "edit", "edit"},
};

static gumbel_problem problem_of(const struct call *c)
{
    gumbel_problem p = make_problem(c->batch, c->hidden_size, c->request);
    p.features |= c->cuts ? GUMBEL_FEATURE_TRUNCATION : 0;
    p.truncation.top_k.data = c->cuts & K ? (int32_t *)something : NULL;
    p.truncation.top_p.data = c->cuts & P ? (float *)something : NULL;
    p.truncation.min_p.data = c->cuts & MIN_P ? (float *)something : NULL;
    p.truncation.order = c->cuts & JOINT  ? GUMBEL_ORDER_JOINT
                         : c->cuts & LAST ? GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE
                                          : GUMBEL_ORDER_MIN_P_TOP_K_TOP_P;
    p.truncation.ties = c->cuts & EXACT ? GUMBEL_TIES_EXACT : GUMBEL_TIES_ALL;
    p.with_mass = c->mass;
    p.sampling.num_samples = c->samples;
    p.sampling.noise = c->noise ? (float *)something : NULL;
    p.history.prompt = c->history ? (uint32_t *)something : NULL;
    return p;
}

/* The names of the planned rungs, or the field of the error. */
static const char *serves(const cuda_device *device, const gumbel_problem *p, uint32_t more)
{
    static char names[64];
    static gumbel_error error;
    cuda_plan plan;
    gumbel_problem masked = cuda_replace_allowed(p);
    if (cuda_plan_call(&plan, device, &masked, more, &error) != GUMBEL_OK)
        return strcmp(error.field, "options.rungs") == 0 ? "none" : error.field;
    snprintf(names, sizeof names, "%s%s%s", plan.product ? plan.product->rung.name : "",
             plan.product && plan.rows ? " " : "", plan.rows ? plan.rows->rung.name : "");
    return names;
}

static void calls_select_rungs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const cuda_device hopper = make_device(1), ampere = make_device(0);
        gumbel_problem p = problem_of(&calls[i]);
        assert_string_equal(serves(&hopper, &p, 0), calls[i].hopper);
        assert_string_equal(serves(&ampere, &p, 0), calls[i].ampere);
    }
}

/* Programs. */
static const uint8_t K_T[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_TOP_K,
                                                   GUMBEL_PROGRAM_TEMPERATURE};
static const uint8_t SIGMA_T_MIN_P[GUMBEL_PROGRAM_LENGTH] = {
    GUMBEL_PROGRAM_TOP_N_SIGMA, GUMBEL_PROGRAM_TEMPERATURE, GUMBEL_PROGRAM_MIN_P};
static const uint8_t LESS_K_T[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_P_LESS, GUMBEL_PROGRAM_TOP_K,
                                                        GUMBEL_PROGRAM_TEMPERATURE};

/* Replaces the order of a problem by one program. */
static void set_program(gumbel_problem *p, const uint8_t *rules)
{
    p->features &= ~(uint32_t)GUMBEL_FEATURE_TRUNCATION;
    p->features |= GUMBEL_FEATURE_PROGRAM;
    p->programs = (gumbel_programs){.rules = rules, .count = 1};
}

/* The first rule that can remove tokens decides; a rule without parameters is off. */
static void programs_select_rungs(void **state)
{
    const cuda_device hopper = make_device(1);
    gumbel_problem k = make_problem(17, 0, 0), min_p = k, less = k, head = make_problem(4, 4096, 0);
    float *const parameters = (float *)something;
    (void)state;
    set_program(&k, K_T);
    assert_string_equal(serves(&hopper, &k, 0), "program"); /* no top_k */
    k.truncation.top_k.data = (int32_t *)something;
    assert_string_equal(serves(&hopper, &k, 0), "program-blocks");
    k.programs.top_n_sigma.data = parameters;
    assert_string_equal(serves(&hopper, &k, 0), "program-blocks");
    assert_string_equal(serves(&hopper, &k, GUMBEL_CAPABILITY_ROWS), "program");
    k.batch = 16;
    assert_string_equal(serves(&hopper, &k, 0), "program");
    set_program(&min_p, SIGMA_T_MIN_P);
    min_p.truncation.min_p.data = parameters;
    assert_string_equal(serves(&hopper, &min_p, 0), "program-blocks");
    min_p.programs.temperature_range.data = parameters;
    assert_string_equal(serves(&hopper, &min_p, 0), "program");
    min_p.programs.temperature_range.data = NULL;
    min_p.programs.top_n_sigma.data = parameters;
    assert_string_equal(serves(&hopper, &min_p, 0), "program");
    set_program(&less, LESS_K_T);
    less.truncation.top_k.data = (int32_t *)something;
    assert_string_equal(serves(&hopper, &less, 0), "program");
    set_program(&head, K_T);
    head.truncation.top_k.data = (int32_t *)something;
    assert_string_equal(serves(&hopper, &head, 0), "hopper program-blocks");
}

static void purposes_select_rungs(void **state)
{
    const cuda_device hopper = make_device(1), ampere = make_device(0);
    gumbel_problem head = make_problem(8, 4096, 0), logits = make_problem(8, 0, 0);
    gumbel_problem empty = logits, huge = make_problem(8, 0, GUMBEL_FEATURE_RANKS);
    gumbel_problem nucleus = problem_of(&calls[NUCLEUS]);
    assert_string_equal(calls[NUCLEUS].what, "p, logits");
    (void)state;
    empty.end_token = 0;
    huge.vocab = huge.end_token = 450000;
    nucleus.scale = -2;
    assert_string_equal(serves(&hopper, &head, GUMBEL_CAPABILITY_SUMMARIES), "hopper");
    assert_string_equal(serves(&hopper, &head, GUMBEL_CAPABILITY_PRODUCT), "hopper");
    assert_string_equal(serves(&hopper, &logits, GUMBEL_CAPABILITY_SUMMARIES), "draw");
    assert_string_equal(serves(&hopper, &logits, GUMBEL_CAPABILITY_ROWS), "cluster");
    assert_string_equal(serves(&ampere, &logits, GUMBEL_CAPABILITY_ROWS), "alone");
    /* As in verification by rules: rows of a head, edited by lists and paths, and truncated. */
    gumbel_problem verified = make_problem(32, 4096, GUMBEL_FEATURE_PENALTIES);
    verified.features |= GUMBEL_FEATURE_TRUNCATION;
    verified.with_path = 1;
    assert_string_equal(serves(&hopper, &verified, GUMBEL_CAPABILITY_ROWS), "hopper cluster");
    assert_string_equal(serves(&ampere, &verified, GUMBEL_CAPABILITY_ROWS), "tensor alone");
    assert_string_equal(serves(&hopper, &empty, 0), "nothing");
    assert_string_equal(serves(&hopper, &huge, 0), "two-pass");
    assert_string_equal(serves(&hopper, &nucleus, 0), "cluster");
    assert_string_equal(serves(&ampere, &nucleus, 0), "two-pass");
    empty.features = GUMBEL_FEATURE_MASK;
    assert_string_equal(serves(&hopper, &empty, GUMBEL_CAPABILITY_SUMMARIES), "cluster");
    assert_string_equal(serves(&ampere, &empty, GUMBEL_CAPABILITY_SUMMARIES), "alone");
}

/* ------------------------------------------------------------------------ forced rungs ---- */

/* A screen is used where it was measured to be faster, or where preferred, for calls it supports.
 */
static void screens_are_used_where_faster(void **state)
{
    cuda_device hopper = make_device(1), ampere = make_device(0);
    gumbel_problem rows = make_problem(CUDA_SCREEN_ROWS_MAX, 4096, 0), few = rows, p = rows;
    gumbel_error error = {0};
    (void)state;
    assert_string_equal(serves(&hopper, &rows, 0), "hopper");
    rows.screen = few.screen = p.screen = something;
    few.batch = 1;
    assert_string_equal(serves(&hopper, &rows, 0), "screen");
    assert_string_equal(serves(&ampere, &rows, 0), "tensor");
    assert_string_equal(serves(&hopper, &few, 0), "screen");
    p.batch = CUDA_SCREEN_ROWS_MAX + 1;
    assert_string_equal(serves(&hopper, &p, 0), "hopper");
    p.batch = CUDA_SCREEN_ROWS_MAX;
    p.first_token = 32;
    assert_string_equal(serves(&hopper, &p, 0), "hopper");
    p.first_token = 0;
    p.with_mass = 1;
    assert_string_equal(serves(&hopper, &p, 0), "hopper");
    /* Truncated rows: all samples are drawn from one kept set. */
    p.with_mass = 0;
    p.features = GUMBEL_FEATURE_TRUNCATION | GUMBEL_FEATURE_MASK;
    p.truncation.top_p.data = (float *)something;
    p.truncation.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P;
    assert_string_equal(serves(&hopper, &p, 0), "hopper cluster");
    p.truncation.min_p.data = (float *)something;
    p.truncation.order = GUMBEL_ORDER_MIN_P_TOP_K_TOP_P;
    assert_string_equal(serves(&hopper, &p, 0), "screen-truncated");
    p.truncation.min_p.data = NULL;
    p.truncation.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P;
    p.truncation.top_k.data = (int32_t *)something;
    assert_string_equal(serves(&hopper, &p, 0), "screen-truncated");
    p.features |= GUMBEL_FEATURE_PENALTIES;
    assert_string_equal(serves(&hopper, &p, 0), "hopper cluster"); /* of lists */
    p.history.prompt = p.history.output = (uint32_t *)something;
    assert_string_equal(serves(&hopper, &p, 0), "screen-truncated");
    p.features &= ~(uint32_t)GUMBEL_FEATURE_PENALTIES;
    p.truncation.order = GUMBEL_ORDER_JOINT;
    assert_string_equal(serves(&hopper, &p, 0), "hopper cluster");
    p.truncation.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P;
    p.sampling.num_samples = 4;
    assert_string_equal(serves(&hopper, &p, 0), "screen-truncated");
    p.hidden_size = p.weight.cols = p.hidden.cols = CUDA_SCREEN_TRUNCATED_HIDDEN_MAX;
    assert_string_equal(serves(&hopper, &p, 0), "screen-truncated");
    p.hidden_size = p.weight.cols = p.hidden.cols = CUDA_SCREEN_TRUNCATED_HIDDEN_MAX + 64;
    assert_string_equal(serves(&hopper, &p, 0), "hopper bounded");
    assert_int_equal(cuda_read_rungs(&hopper.rungs, "screen-truncated", "f", &error), GUMBEL_OK);
    assert_string_equal(serves(&hopper, &p, 0), "screen-truncated");
    p.batch = CUDA_SCREEN_ROWS_MAX + 1;
    assert_string_equal(serves(&hopper, &p, 0), "hopper bounded");
    assert_int_equal(cuda_read_rungs(&hopper.rungs, "", "f", &error), GUMBEL_OK);
    few.hidden_size = few.weight.cols = few.hidden.cols = 64;
    assert_string_equal(serves(&hopper, &few, 0), "hopper");
    assert_int_equal(cuda_read_rungs(&hopper.rungs, "screen", "f", &error), GUMBEL_OK);
    assert_string_equal(serves(&hopper, &few, 0), "screen");
    assert_int_equal(cuda_read_rungs(&hopper.rungs, "-screen", "f", &error), GUMBEL_OK);
    assert_string_equal(serves(&hopper, &rows, 0), "hopper");
}

/* Asserts that the explanation of a call holds `line`. */
static void assert_explained(const cuda_device *device, const gumbel_problem *p, const char *line)
{
    char text[4096];
    gumbel_text into = {text, sizeof text, 0};
    assert_int_equal(cuda_explain_call(&device->base, p, &into, NULL), GUMBEL_OK);
    if (!strstr(text, line))
        fail_msg("'%s' is missing from:\n%s", line, text);
}

/* explain() names the limit that a call with a screen exceeds. */
static void screen_limits_are_explained(void **state)
{
    const cuda_device hopper = make_device(1), ampere = make_device(0);
    const gumbel_problem rows = make_problem(32, 4096, 0);
    gumbel_problem p = rows;
    (void)state;
    assert_explained(&hopper, &p, "not screen: the head has no screen\n");
    p.screen = something;
    assert_explained(&hopper, &p, "draw: screen: ");
    assert_explained(&ampere, &p, "not screen: the GPU is not of capability 9.0\n");
    p.sampling.num_samples = 3;
    assert_explained(&hopper, &p,
                     "not screen: there are more than 64 draws (rows times samples)\n");
    p.sampling.num_samples = 1;
    p.soft_cap = 30;
    assert_explained(&hopper, &p, "not screen: does not support soft-cap\n");
    p.soft_cap = 0;
    p.first_token = 32;
    assert_explained(&hopper, &p, "not screen: first_token is not a multiple of 64\n");
    p.first_token = 0;
    p.hidden.dtype = GUMBEL_FLOAT32;
    assert_explained(&hopper, &p,
                     "not screen: weights and hidden states are not both bfloat16 or ");
    p = make_problem(32, 1024, 0);
    p.screen = something;
    assert_explained(&hopper, &p, "not screen: a head of fewer than 2^28 weights is faster by ");
    /* Truncated rows. */
    p = make_problem(65, 4096, GUMBEL_FEATURE_TRUNCATION);
    p.screen = something;
    p.truncation.top_p.data = (float *)something;
    assert_explained(&hopper, &p, "not screen: does not support truncation, top_p\n");
    assert_explained(&hopper, &p, "not screen-truncated: supports only calls with min_p, top_k\n");
    p.truncation.top_k.data = (int32_t *)something;
    assert_explained(&hopper, &p,
                     "not screen-truncated: there are more than 64 draws (rows times samples)\n");
    p = make_problem(8, 16384, GUMBEL_FEATURE_TRUNCATION);
    p.screen = something;
    p.truncation.top_k.data = (int32_t *)something;
    assert_explained(&hopper, &p,
                     "not screen-truncated: truncated rows with a D above 8192 were not "
                     "measured\n");
    p.truncation.order = GUMBEL_ORDER_JOINT;
    p.truncation.top_p.data = (float *)something;
    assert_explained(&hopper, &p, "not screen-truncated: does not support joint\n");
    p = make_problem(8, 4096, GUMBEL_FEATURE_TRUNCATION | GUMBEL_FEATURE_PENALTIES);
    p.screen = something;
    p.truncation.top_k.data = (int32_t *)something;
    p.history.prompt = p.history.output = (uint32_t *)something;
    p.scale = 0.5f;
    assert_explained(&hopper, &p,
                     "not screen-truncated: penalties are not supported with a scale other than "
                     "1\n");
}

static void rungs_can_be_forced(void **state)
{
    cuda_device device = make_device(1);
    gumbel_problem head = make_problem(32, 4096, 0), logits = make_problem(32, 0, 0);
    gumbel_problem cut = problem_of(&calls[10]);
    gumbel_error error = {0};
    (void)state;
    assert_int_equal(
        cuda_read_rungs(&device.rungs, "-hopper,-bounded,-blocks,-cluster", "f", &error),
        GUMBEL_OK);
    assert_string_equal(serves(&device, &head, 0), "tensor");
    assert_string_equal(serves(&device, &cut, 0), "tensor two-pass");
    assert_int_equal(cuda_read_rungs(&device.rungs, "naive,alone", "f", &error), GUMBEL_OK);
    assert_string_equal(serves(&device, &head, 0), "naive");
    assert_string_equal(serves(&device, &cut, 0), "naive alone");
    assert_string_equal(serves(&device, &logits, 0), "alone");
    assert_int_equal(cuda_read_rungs(&device.rungs, "pivots", "f", &error), GUMBEL_OK);
    assert_string_equal(serves(&device, &cut, 0), "hopper bounded");
    assert_int_equal(cuda_read_rungs(&device.rungs, "-naive,-tensor,-hopper", "f", &error),
                     GUMBEL_OK);
    assert_string_equal(serves(&device, &head, 0), "none");
    assert_string_equal(serves(&device, &logits, 0), "draw");
    assert_int_equal(cuda_read_rungs(&device.rungs, "", "f", &error), GUMBEL_OK);
    assert_int_equal(cuda_read_rungs(&device.rungs, NULL, "f", &error), GUMBEL_OK);
    assert_string_equal(serves(&device, &cut, 0), "hopper bounded");
}

/* Logits stored outside the workspace: only those above a bound where that is faster. */
static void stored_logits_are_bounded(void **state)
{
    static const struct {
        int64_t batch;
        const char *names, *rows;
        int by_bounds, by_blocks;
    } stored[] = {
        {4, "", "blocks", 0, 1},          {5, "", "bounded", 1, 1},
        {64, "", "bounded", 1, 1},        {128, "", "bounded", 1, 1},
        {32, "-bounded", "blocks", 0, 1}, {256, "", "blocks", 0, 1},
        {32, "cluster", "cluster", 0, 0},
    };
    cuda_device device = make_device(1), ampere = make_device(0);
    gumbel_error error = {0};
    cuda_plan plan;
    (void)state;
    for (size_t i = 0; i < sizeof stored / sizeof *stored; i++) {
        gumbel_problem p = make_problem(stored[i].batch, 4096, GUMBEL_FEATURE_TRUNCATION);
        p.truncation.top_k.data = (int32_t *)something;
        assert_int_equal(cuda_read_rungs(&device.rungs, stored[i].names, "f", &error), GUMBEL_OK);
        assert_int_equal(cuda_plan_stored(&plan, &device, &p, &error), GUMBEL_OK);
        assert_string_equal(plan.rows->rung.name, stored[i].rows);
        assert_int_equal((plan.product_outputs & CUDA_OUTPUT_SUBTILES) != 0, stored[i].by_bounds);
        assert_true(plan.stores_outside);
        assert_int_equal(cuda_plan_finds_top64(&plan, &p), stored[i].by_blocks);
        assert_int_equal(cuda_plan_stored(&plan, &ampere, &p, &error), GUMBEL_OK);
        assert_false(cuda_plan_finds_top64(&plan, &p));
    }
}

static void bad_names_are_refused(void **state)
{
    static const char *const names[] = {
        ",", "-", "hoper", "cluster,", "cluster, alone", "cluster,,alone"};
    static const char *const good[] = {"cluster,-hopper", "cluster"};
    cuda_rung_choice choice;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        gumbel_error error = {0};
        gumbel_status status = cuda_read_rungs(&choice, names[i], "field", &error);
        assert_int_equal(status, GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, "field");
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(cuda_read_rungs(&choice, good[i], "field", NULL), GUMBEL_OK);
}

/* -------------------------------------------------------------------------- properties ---- */

static gumbel_problem random_problem(uint64_t *random)
{
    static const int64_t batches[] = {1, 4, 7, 32, 64, 200};
    static const uint32_t cuts[] = {0, GUMBEL_FEATURE_TRUNCATION};
    gumbel_problem p =
        make_problem(batches[random_below(random, 6)], random_below(random, 2) ? 64 : 0, 0);
    p.vocab = p.end_token = 1 + random_below(random, 200000);
    p.scale = random_below(random, 5) ? 1.0f : -2.0f;
    p.weight.rows = p.hidden_size ? p.vocab : 0;
    p.sampling.num_samples = 1 + (int32_t)random_below(random, 2);
    p.features = (uint32_t)random_below(random, GUMBEL_FEATURE_END) & GUMBEL_FEATURE_TRANSFORMS;
    p.features |= cuts[random_below(random, 2)];
    if (random_below(random, 2))
        p.features &= GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_PENALTIES | GUMBEL_FEATURE_TRUNCATION;
    if (random_below(random, 4) == 0)
        p.features |= GUMBEL_FEATURE_RANKS;
    if (random_below(random, 8) == 0)
        p.features |= GUMBEL_FEATURE_GIVEN;
    if (random_below(random, 2))
        p.history.prompt = (uint32_t *)something;
    p.truncation.top_p.data = random_below(random, 2) ? (float *)something : NULL;
    p.truncation.top_k.data = random_below(random, 3) == 0 ? (int32_t *)something : NULL;
    p.truncation.min_p.data = random_below(random, 3) == 0 ? (float *)something : NULL;
    p.sampling.noise = random_below(random, 6) == 0 ? (float *)something : NULL;
    p.with_mass = random_below(random, 2) != 0;
    if (p.hidden_size && random_below(random, 8) == 0) { /* plain */
        p.vocab = p.end_token = p.weight.rows = (p.vocab + 15) / 16 * 16;
        p.scale = 1;
        p.features &= random_below(random, 2) ? 0 : GUMBEL_FEATURE_TRUNCATION;
        p.with_mass = 0;
        p.sampling.num_samples = 1;
        p.sampling.noise = NULL;
        p.history.prompt = NULL;
        p.screen = something;
    }
    return p;
}

/* Carving takes the counted bytes, and no rung receives a capability that its row does not list. */
static void plans_match_their_size_and_table(void **state)
{
    static unsigned char base[64];
    uint64_t random = 1;
    int served[CUDA_PRODUCTS + CUDA_ROW_RUNGS] = {0};
    (void)state;
    for (int i = 0; i < 40000; i++) {
        cuda_device device = make_device(i % 2);
        gumbel_problem p = random_problem(&random);
        if (i % 16 == 1 && p.features & GUMBEL_FEATURE_TRUNCATION) /* a device with clusters */
            set_program(&p, K_T);
        gumbel_cursor count = {0}, given = {base, 0};
        gumbel_plan planned;
        cuda_plan plan;
        device.rungs.preferred = i % 4 > 1 ? CUDA_SCREEN_RUNGS : 0;
        assert_int_equal(cuda_plan_backend(&device.base, &p, 0, &planned, NULL), GUMBEL_OK);
        p = cuda_replace_allowed(&p);
        assert_int_equal(cuda_plan_call(&plan, &device, &p, 0, NULL), GUMBEL_OK);
        const cuda_plan returned = cuda_plan_of(&planned);
        assert_ptr_equal(returned.product, plan.product);
        assert_ptr_equal(returned.rows, plan.rows);
        assert_int_equal(returned.required, plan.required);
        assert_int_equal(returned.product_outputs, plan.product_outputs);
        cuda_carve_plan(&plan, &count, &device, &p);
        cuda_carve_plan(&plan, &given, &device, &p); /* does not write to the base */
        assert_int_equal(count.used, planned.workspace_bytes);
        assert_int_equal(given.used, planned.workspace_bytes);
        if (plan.rows) {
            assert_true(
                gumbel_rung_supports(&plan.rows->rung, plan.required & ~GUMBEL_CAPABILITY_BIAS));
            served[CUDA_PRODUCTS + (plan.rows - cuda_row_rungs)]++;
        } else {
            assert_true(gumbel_rung_supports(&plan.product->rung, plan.required));
        }
        if (plan.product)
            served[plan.product - cuda_products]++;
    }
    for (int i = 0; i < CUDA_PRODUCTS + CUDA_ROW_RUNGS; i++)
        if (i != 4 && i != CUDA_PRODUCTS && i != CUDA_PRODUCTS + CUDA_ROW_RUNGS - 1)
            assert_true(served[i] > 10); /* naive, nothing and alone have other tests */
}

static void explanations_are_truncated(void **state)
{
    cuda_device device = make_device(1);
    gumbel_problem p = problem_of(&calls[10]);
    char whole[2048], cut[40];
    gumbel_text text = {whole, sizeof whole, 0}, shorter = {cut, sizeof cut, 0}, none = {0};
    (void)state;
    assert_int_equal(cuda_explain_call(&device.base, &p, &text, NULL), GUMBEL_OK);
    assert_int_equal(strlen(whole), text.length);
    assert_non_null(strstr(whole, "logits: hopper"));
    assert_non_null(strstr(whole, "rows: bounded"));
    assert_non_null(strstr(whole, "not draw: does not support truncation, top_k"));
    assert_int_equal(cuda_explain_call(&device.base, &p, &shorter, NULL), GUMBEL_OK);
    assert_int_equal(shorter.length, text.length);
    assert_int_equal(strlen(cut), sizeof cut - 1);
    assert_memory_equal(cut, whole, sizeof cut - 1);
    assert_int_equal(cuda_explain_call(&device.base, &p, &none, NULL), GUMBEL_OK);
    assert_int_equal(none.length, text.length);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_select_rungs),
        cmocka_unit_test(programs_select_rungs),
        cmocka_unit_test(purposes_select_rungs),
        cmocka_unit_test(stored_logits_are_bounded),
        cmocka_unit_test(screens_are_used_where_faster),
        cmocka_unit_test(screen_limits_are_explained),
        cmocka_unit_test(rungs_can_be_forced),
        cmocka_unit_test(bad_names_are_refused),
        cmocka_unit_test(plans_match_their_size_and_table),
        cmocka_unit_test(explanations_are_truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
