/* SPDX-License-Identifier: Apache-2.0
 *
 * The rungs that the CUDA backend plans for a call on an H200 and on an A100, and rungs that are
 * forced.
 */
#include "planned_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* ------------------------------------------------------------------------ calls by name ---- */

enum { K = 1, P = 2, MIN_P = 4, JOINT = 8, EXACT = 16, LAST = 32 };
enum { NUCLEUS = 26 }; /* among the calls */
#define KEPT_SETS (GUMBEL_FEATURE_KEPT | GUMBEL_FEATURE_KEPT_IDS)

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
    {"banned, head", 32, 4096, GUMBEL_FEATURE_BANNED, 0, 0, 1, 0, 0, "hopper-statistics",
     "tensor edit"},
    {"k, head, 32", 32, 4096, 0, K, 0, 1, 0, 0, "hopper bounded", "tensor blocks-grid"},
    {"k and p, head, 5", 5, 4096, 0, K | P, 0, 1, 0, 0, "hopper bounded", "tensor grid"},
    {"k, head, 4", 4, 4096, 0, K, 0, 1, 0, 0, "hopper blocks", "tensor grid"},
    {"k, head, 256", 256, 4096, 0, K, 0, 1, 0, 0, "hopper blocks", "tensor blocks-grid"},
    {"k, logits, 17", 17, 0, 0, K, 0, 1, 0, 0, "blocks", "blocks-grid"},
    {"k, logits, 14", 14, 0, 0, K, 0, 1, 0, 0, "cluster", "blocks-grid"},
    {"k, logits, 13", 13, 0, 0, K, 0, 1, 0, 0, "cluster", "grid"},
    {"min_p, logits", 32, 0, 0, MIN_P, 1, 4, 0, 0, "blocks", "blocks-grid"},
    {"min_p and penalties, head", 32, 4096, GUMBEL_FEATURE_PENALTIES, MIN_P, 1, 1, 0, 1,
     "hopper bounded", "tensor blocks-grid"},
    {"k and min_p, logits", 32, 0, 0, K | MIN_P, 0, 1, 0, 0, "blocks", "blocks-grid"},
    {"joint, logits", 32, 0, 0, K | P | JOINT, 0, 1, 0, 0, "cluster", "grid"},
    {"min_p last, logits", 32, 0, 0, K | P | MIN_P | LAST, 0, 1, 0, 0, "blocks", "blocks-grid"},
    {"min_p last, head", 32, 4096, 0, K | P | MIN_P | LAST, 0, 1, 0, 0, "hopper bounded",
     "tensor blocks-grid"},
    {"p of all, min_p last", 32, 0, 0, P | MIN_P | LAST, 0, 1, 0, 0, "cluster", "grid"},
    {"p, and min_p last", 32, 0, 0, P | LAST, 0, 1, 0, 0, "pivots", "pivots"},
    {"exact ties", 32, 0, 0, K | EXACT, 0, 1, 0, 0, "blocks", "blocks-grid"},
    {"p, logits", 32, 0, 0, P, 0, 1, 0, 0, "pivots", "pivots"},
    {"p, head", 32, 4096, 0, P, 0, 1, 0, 0, "hopper pivots", "tensor pivots"},
    {"p, exact ties", 32, 0, 0, P | EXACT, 0, 1, 0, 0, "cluster", "grid"},
    {"p, two samples", 32, 0, 0, P, 0, 2, 0, 0, "cluster", "grid"},
    {"p, lse", 32, 0, 0, P, 1, 1, 0, 0, "cluster", "grid"},
    {"ranks", 32, 0, GUMBEL_FEATURE_RANKS, 0, 0, 1, 0, 0, "cluster", "grid"},
    {"given, head", 256, 4096, GUMBEL_FEATURE_GIVEN, 0, 1, 1, 0, 0, "hopper cluster",
     "tensor grid"},
    {"given, k, logits", 32, 0, GUMBEL_FEATURE_GIVEN, K, 1, 1, 0, 0, "cluster", "grid"},
    {"allowed, logits", 32, 0, GUMBEL_FEATURE_ALLOWED, 0, 0, 1, 0, 0, "draw-edits", "draw-edits"},
    {"best scores, logits", 32, 0, GUMBEL_FEATURE_BEST, 0, 0, 1, 0, 0, "cluster", "grid"},
    {"best scores, k, head", 8, 4096, GUMBEL_FEATURE_BEST, K, 0, 1, 0, 0, "hopper cluster",
     "tensor grid"},
    {"entropy, logits", 32, 0, GUMBEL_FEATURE_ENTROPY, 0, 1, 1, 0, 0, "draw", "draw"},
    {"entropy, head", 32, 4096, GUMBEL_FEATURE_ENTROPY, 0, 0, 1, 0, 0, "hopper-statistics",
     "tensor draw"},
    {"entropy, k, head", 32, 4096, GUMBEL_FEATURE_ENTROPY, K, 0, 1, 0, 0, "hopper cluster",
     "tensor grid"},
    {"entropy, program", 32, 0, GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_PROGRAM, 0, 0, 1, 0, 0,
     "program", "program-grid"},
    {"entropy, raw logits", 32, 0, GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_RAW, 0, 0, 1, 0, 0,
     "cluster", "grid"},
    {"kept sets, k, head", 32, 4096, KEPT_SETS, K, 1, 1, 0, 0, "hopper bounded",
     "tensor blocks-grid"},
    {"kept sets, p", 32, 0, KEPT_SETS, P, 1, 1, 0, 0, "cluster", "grid"},
    {"kept sets, given", 32, 0, KEPT_SETS | GUMBEL_FEATURE_GIVEN, K, 1, 1, 0, 0, "cluster", "grid"},
    {"kept sets, program", 32, 0, KEPT_SETS | GUMBEL_FEATURE_PROGRAM, 0, 1, 1, 0, 0, "program",
     "program-grid"},
    {"raw, k", 32, 0, GUMBEL_FEATURE_RAW, K, 0, 1, 0, 0, "cluster", "grid"},
    {"program, logits", 32, 0, GUMBEL_FEATURE_PROGRAM, 0, 0, 1, 0, 0, "program-pivots",
     "program-pivots-grid"},
    {"program, lse", 32, 0, GUMBEL_FEATURE_PROGRAM, 0, 1, 1, 0, 0, "program", "program-grid"},
    {"program, head", 32, 4096, GUMBEL_FEATURE_PROGRAM, 0, 1, 2, 1, 0, "hopper program",
     "tensor program-grid"},
    {"late bias, logits", 32, 0, GUMBEL_FEATURE_LATE_BIAS, 0, 0, 1, 0, 0, "edit", "edit"},
    {"banned, samples, head", 32, 4096, GUMBEL_FEATURE_BANNED, 0, 0, 2, 0, 0, "hopper edit",
     "tensor edit"},
    {"entropy, top, banned, head", 2048, 4096,
     GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_TOP | GUMBEL_FEATURE_BANNED, 0, 1, 1, 0, 0,
     "hopper-statistics", "tensor grid"},
    {"raw entropy, head", 32, 4096, GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_RAW, 0, 1, 1, 0, 0,
     "hopper cluster", "tensor grid"},
};

static gumbel_problem problem_of(const struct call *c)
{
    gumbel_problem p = plan_problem(c->batch, c->hidden_size, c->request);
    p.features |= c->cuts ? GUMBEL_FEATURE_TRUNCATION : 0;
    p.truncation.top_k.data = c->cuts & K ? (int32_t *)plan_data : NULL;
    p.truncation.top_p.data = c->cuts & P ? (float *)plan_data : NULL;
    p.truncation.min_p.data = c->cuts & MIN_P ? (float *)plan_data : NULL;
    p.truncation.order = c->cuts & JOINT  ? GUMBEL_ORDER_JOINT
                         : c->cuts & LAST ? GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE
                                          : GUMBEL_ORDER_MIN_P_TOP_K_TOP_P;
    p.truncation.ties = c->cuts & EXACT ? GUMBEL_TIES_EXACT : GUMBEL_TIES_ALL;
    p.with_mass = c->mass;
    p.sampling.num_samples = c->samples;
    p.sampling.noise = c->noise ? (float *)plan_data : NULL;
    p.history.prompt = c->history ? (uint32_t *)plan_data : NULL;
    return p;
}

static void calls_select_rungs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const cuda_device hopper = plan_device(1), ampere = plan_device(0);
        gumbel_problem p = problem_of(&calls[i]);
        assert_string_equal(plan_rungs(&hopper, &p, 0), calls[i].hopper);
        assert_string_equal(plan_rungs(&ampere, &p, 0), calls[i].ampere);
    }
}

/* A call from a head whose rows allow few tokens. */
static gumbel_problem few_allowed(int64_t batch, int64_t hidden_size, uint32_t features)
{
    gumbel_problem p = plan_problem(batch, hidden_size, features);
    p.transforms.max_allowed = 1024;
    p.with_mass = 1;
    return p;
}

/* Only the weights of allowed tokens are multiplied if their number is known to be small. */
static void few_allowed_tokens_select_rungs(void **state)
{
    static const struct {
        int64_t batch, hidden_size;
        uint32_t features;
        const char *rungs;
    } cases[] = {
        {1, 4096, GUMBEL_FEATURE_MASK, "allowed-fused"},
        {37, 4096, GUMBEL_FEATURE_ALLOWED, "allowed-fused"},
        {38, 4096, GUMBEL_FEATURE_ALLOWED, "hopper edit"}, /* 38 * 1024 > V / 4 */
        {1, 4097, GUMBEL_FEATURE_MASK, "naive draw-allowed"},
        {1, 4096, GUMBEL_FEATURE_ALLOWED | GUMBEL_FEATURE_BANNED, "allowed edit"},
        {1, 4096, GUMBEL_FEATURE_ALLOWED | GUMBEL_FEATURE_PENALTIES, "allowed edit"},
        {1, 4096, GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_TOP, "allowed cluster"},
        {1, 4096, GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_GIVEN, "allowed cluster"},
        {1, 4096, GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_RAW, "hopper cluster"},
        {1, 0, GUMBEL_FEATURE_MASK, "draw-allowed"},
        {1, 4096, 0, "hopper"},
    };
    cuda_device hopper = plan_device(1);
    const cuda_device ampere = plan_device(0);
    gumbel_problem p = few_allowed(1, 4096, GUMBEL_FEATURE_MASK);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gumbel_problem q = few_allowed(cases[i].batch, cases[i].hidden_size, cases[i].features);
        assert_string_equal(plan_rungs(&hopper, &q, 0), cases[i].rungs);
    }
    assert_string_equal(plan_rungs(&hopper, &p, GUMBEL_CAPABILITY_SUMMARIES), "allowed-fused");
    assert_int_equal(cuda_read_rungs(&hopper.rungs, "-allowed-fused", "rungs", NULL), GUMBEL_OK);
    assert_string_equal(plan_rungs(&hopper, &p, 0), "allowed draw-allowed");
    assert_string_equal(plan_rungs(&ampere, &p, 0), "tensor draw-allowed");
    assert_int_equal(cuda_read_rungs(&hopper.rungs, "-hopper", "rungs", NULL), GUMBEL_OK);
    assert_string_equal(plan_rungs(&hopper, &p, 0), "tensor draw-allowed");
    hopper.rungs = ampere.rungs;
    p.with_mass = 0;
    p.screen = plan_data;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "allowed-fused");
    p.transforms.max_allowed = 0;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "screen");
}

/* Programs. */
static const uint8_t K_T[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_TOP_K,
                                                   GUMBEL_PROGRAM_TEMPERATURE};
static const uint8_t SIGMA_T_MIN_P[GUMBEL_PROGRAM_LENGTH] = {
    GUMBEL_PROGRAM_TOP_N_SIGMA, GUMBEL_PROGRAM_TEMPERATURE, GUMBEL_PROGRAM_MIN_P};
static const uint8_t TYPICAL_T[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_TYPICAL_P,
                                                         GUMBEL_PROGRAM_TEMPERATURE};
static const uint8_t LESS_K_T[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_P_LESS, GUMBEL_PROGRAM_TOP_K,
                                                        GUMBEL_PROGRAM_TEMPERATURE};

/* Checks the rungs that serve a call on an H200 and on an A100. */
static void check_rungs(const gumbel_problem *p, uint64_t purpose, const char *hopper,
                        const char *ampere)
{
    const cuda_device h200 = plan_device(1), a100 = plan_device(0);
    assert_string_equal(plan_rungs(&h200, p, purpose), hopper);
    assert_string_equal(plan_rungs(&a100, p, purpose), ampere);
}

/* The first rule that can remove tokens decides; a rule without parameters is off. */
static void programs_select_rungs(void **state)
{
    gumbel_problem k = plan_problem(17, 0, 0), min_p = k, less = k, single = k;
    gumbel_problem head = plan_problem(4, 4096, 0);
    float *const parameters = (float *)plan_data;
    (void)state;
    plan_program(&k, K_T);
    check_rungs(&k, 0, "program-pivots", "program-pivots-grid"); /* no top_k */
    k.truncation.top_k.data = (int32_t *)plan_data;
    check_rungs(&k, 0, "program-blocks", "program-blocks-grid");
    k.programs.top_n_sigma.data = parameters;
    check_rungs(&k, 0, "program-blocks", "program-blocks-grid");
    check_rungs(&k, GUMBEL_CAPABILITY_ROWS, "program", "program-grid");
    k.batch = 16;
    check_rungs(&k, 0, "program", "program-blocks-grid");
    k.batch = 13;
    check_rungs(&k, 0, "program", "program-grid");
    plan_program(&min_p, SIGMA_T_MIN_P);
    min_p.truncation.min_p.data = parameters;
    check_rungs(&min_p, 0, "program-blocks", "program-blocks-grid");
    min_p.programs.temperature_range.data = parameters;
    check_rungs(&min_p, 0, "program", "program-grid");
    min_p.programs.temperature_range.data = NULL;
    min_p.programs.top_n_sigma.data = parameters;
    check_rungs(&min_p, 0, "program", "program-grid");
    plan_program(&less, LESS_K_T);
    less.truncation.top_k.data = (int32_t *)plan_data;
    check_rungs(&less, 0, "program", "program-grid");
    plan_program(&single, TYPICAL_T);
    single.programs.typical_p.data = parameters;
    check_rungs(&single, 0, "program-pivots", "program-pivots-grid");
    single.programs.min_keep.data = (int32_t *)plan_data;
    check_rungs(&single, 0, "program", "program-grid");
    single.programs.min_keep.data = NULL;
    single.batch = 7;
    check_rungs(&single, 0, "program", "program-grid");
    plan_program(&head, TYPICAL_T);
    head.programs.typical_p.data = parameters;
    check_rungs(&head, 0, "hopper program-pivots", "tensor program-grid");
    plan_program(&head, K_T);
    head.programs.typical_p.data = NULL;
    head.truncation.top_k.data = (int32_t *)plan_data;
    check_rungs(&head, 0, "hopper program-blocks", "tensor program-grid");
}

static void purposes_select_rungs(void **state)
{
    const cuda_device hopper = plan_device(1), ampere = plan_device(0);
    gumbel_problem head = plan_problem(8, 4096, 0), logits = plan_problem(8, 0, 0);
    gumbel_problem empty = logits, huge = plan_problem(8, 0, GUMBEL_FEATURE_RANKS);
    gumbel_problem nucleus = problem_of(&calls[NUCLEUS]);
    assert_string_equal(calls[NUCLEUS].what, "p, logits");
    (void)state;
    empty.end_token = 0;
    huge.vocab = huge.end_token = 450000;
    nucleus.scale = -2;
    assert_string_equal(plan_rungs(&hopper, &head, GUMBEL_CAPABILITY_SUMMARIES), "hopper");
    assert_string_equal(plan_rungs(&hopper, &head, GUMBEL_CAPABILITY_PRODUCT), "hopper");
    assert_string_equal(plan_rungs(&hopper, &logits, GUMBEL_CAPABILITY_SUMMARIES), "draw");
    assert_string_equal(plan_rungs(&hopper, &logits, GUMBEL_CAPABILITY_ROWS), "cluster");
    assert_string_equal(plan_rungs(&ampere, &logits, GUMBEL_CAPABILITY_ROWS), "grid");
    /* As in verification by rules: rows of a head, edited by lists and paths, and truncated. */
    gumbel_problem verified = plan_problem(32, 4096, GUMBEL_FEATURE_PENALTIES);
    verified.features |= GUMBEL_FEATURE_TRUNCATION;
    verified.with_path = 1;
    assert_string_equal(plan_rungs(&hopper, &verified, GUMBEL_CAPABILITY_ROWS), "hopper cluster");
    assert_string_equal(plan_rungs(&ampere, &verified, GUMBEL_CAPABILITY_ROWS), "tensor grid");
    assert_string_equal(plan_rungs(&hopper, &empty, 0), "nothing");
    assert_string_equal(plan_rungs(&hopper, &huge, 0), "grid");
    assert_string_equal(plan_rungs(&hopper, &nucleus, 0), "cluster");
    assert_string_equal(plan_rungs(&ampere, &nucleus, 0), "grid");
    empty.features = GUMBEL_FEATURE_MASK;
    assert_string_equal(plan_rungs(&hopper, &empty, GUMBEL_CAPABILITY_SUMMARIES), "cluster");
    assert_string_equal(plan_rungs(&ampere, &empty, GUMBEL_CAPABILITY_SUMMARIES), "grid");
}

/* GPUs without clusters that cannot run all CTAs of a row at the same time, and rows that do not
 * fit: as before there were cooperative launches. */
static void rows_select_grids(void **state)
{
    static const struct {
        int multiprocessors, shared_kib, cooperative;
        int64_t vocab;
        const char *request, *program;
    } cases[] = {
        {108, 164, 1, 151936, "grid", "program-grid"},
        {108, 164, 1, 532480, "grid", "program-grid"},
        {108, 164, 1, 532481, "two-pass", "none"},
        {128, 100, 1, 270336, "grid", "program-grid"},
        {128, 100, 1, 270337, "two-pass", "none"},
        {16, 100, 1, 151936, "grid", "program-grid"},
        {15, 100, 1, 151936, "two-pass", "none"}, /* one CTA a multiprocessor */
        {8, 164, 1, 151936, "grid", "program-grid"},
        {7, 164, 1, 151936, "two-pass", "none"}, /* two */
        {108, 164, 0, 151936, "two-pass", "sampling.truncation.programs"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_device device = plan_device(0);
        gumbel_problem request = plan_problem(3, 0, GUMBEL_FEATURE_RANKS), program;
        gumbel_cursor cursor = {0};
        cuda_plan plan;
        device.multiprocessors = cases[i].multiprocessors;
        device.shared_bytes = cases[i].shared_kib * 1024;
        device.truncated_grid = cases[i].cooperative ? device.truncated_grid : NULL;
        request.vocab = request.end_token = cases[i].vocab;
        program = request;
        plan_program(&program, K_T);
        assert_string_equal(plan_rungs(&device, &request, 0), cases[i].request);
        assert_string_equal(plan_rungs(&device, &program, 0), cases[i].program);
        if (cases[i].program[0] != 'p')
            continue;
        assert_int_equal(cuda_plan_call(&plan, &device, &program, 0, NULL), GUMBEL_OK);
        const cuda_workspace workspace = cuda_carve_plan(&plan, &cursor, &device, &program);
        assert_null(workspace.logits);
        assert_true(cursor.used > sizeof(uint64_t) * CUDA_GRID_MEMORY_WORDS);
    }
}

/* Block maxima beyond the default shared memory require a CTA of CUDA_BLOCKS_BYTES_MAX. */
static void blocks_fit_shared_memory(void **state)
{
    static const struct {
        int shared_kib;
        int64_t vocab;
        const char *rows;
    } cases[] = {
        {64, 120000, "blocks-grid"},  {64, 122880, "blocks-grid"},  {64, 122881, "alone"},
        {100, 151936, "blocks-grid"}, {100, 270336, "blocks-grid"}, {100, 270337, "two-pass"},
        {164, 532480, "blocks-grid"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_device device = plan_device(0);
        gumbel_problem request = plan_problem(64, 0, GUMBEL_FEATURE_TRUNCATION);
        request.truncation.top_k.data = (int32_t *)plan_data;
        device.shared_bytes = cases[i].shared_kib * 1024;
        request.vocab = request.end_token = cases[i].vocab;
        assert_string_equal(plan_rungs(&device, &request, 0), cases[i].rows);
    }
}

/* ------------------------------------------------------------------------ forced rungs ---- */

static void rungs_can_be_forced(void **state)
{
    cuda_device device = plan_device(1);
    gumbel_problem head = plan_problem(32, 4096, 0), logits = plan_problem(32, 0, 0);
    gumbel_problem cut = problem_of(&calls[10]);
    gumbel_error error = {0};
    (void)state;
    assert_int_equal(
        cuda_read_rungs(&device.rungs, "-hopper,-bounded,-blocks,-cluster", "f", &error),
        GUMBEL_OK);
    assert_string_equal(plan_rungs(&device, &head, 0), "tensor");
    assert_string_equal(plan_rungs(&device, &cut, 0), "tensor blocks-grid");
    gumbel_problem few = cut;
    few.truncation.top_k.data = NULL;
    few.truncation.min_p.data = (float *)plan_data;
    assert_string_equal(plan_rungs(&device, &few, 0), "tensor blocks-grid");
    assert_int_equal(cuda_read_rungs(&device.rungs, "grid", "f", &error), GUMBEL_OK);
    assert_string_equal(plan_rungs(&device, &few, 0), "hopper grid");
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper grid");
    assert_int_equal(cuda_read_rungs(&device.rungs, "two-pass", "f", &error), GUMBEL_OK);
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper two-pass");
    assert_int_equal(
        cuda_read_rungs(&device.rungs, "-bounded,-blocks,-cluster,-blocks-grid", "f", &error),
        GUMBEL_OK);
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper grid");
    assert_int_equal(
        cuda_read_rungs(&device.rungs, "-bounded,-blocks,-cluster,-blocks-grid,-grid", "f", &error),
        GUMBEL_OK);
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper two-pass");
    assert_int_equal(cuda_read_rungs(&device.rungs, "naive,alone", "f", &error), GUMBEL_OK);
    assert_string_equal(plan_rungs(&device, &head, 0), "naive");
    assert_string_equal(plan_rungs(&device, &cut, 0), "naive alone");
    assert_string_equal(plan_rungs(&device, &logits, 0), "alone");
    assert_int_equal(cuda_read_rungs(&device.rungs, "pivots", "f", &error), GUMBEL_OK);
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper bounded");
    assert_int_equal(cuda_read_rungs(&device.rungs, "-naive,-tensor,-hopper", "f", &error),
                     GUMBEL_OK);
    assert_string_equal(plan_rungs(&device, &head, 0), "none");
    assert_string_equal(plan_rungs(&device, &logits, 0), "draw");
    assert_int_equal(cuda_read_rungs(&device.rungs, "", "f", &error), GUMBEL_OK);
    assert_int_equal(cuda_read_rungs(&device.rungs, NULL, "f", &error), GUMBEL_OK);
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper bounded");
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
    cuda_device device = plan_device(1), ampere = plan_device(0);
    gumbel_error error = {0};
    cuda_plan plan;
    (void)state;
    for (size_t i = 0; i < sizeof stored / sizeof *stored; i++) {
        gumbel_problem p = plan_problem(stored[i].batch, 4096, GUMBEL_FEATURE_TRUNCATION);
        p.truncation.top_k.data = (int32_t *)plan_data;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_select_rungs),
        cmocka_unit_test(few_allowed_tokens_select_rungs),
        cmocka_unit_test(programs_select_rungs),
        cmocka_unit_test(purposes_select_rungs),
        cmocka_unit_test(rows_select_grids),
        cmocka_unit_test(blocks_fit_shared_memory),
        cmocka_unit_test(stored_logits_are_bounded),
        cmocka_unit_test(rungs_can_be_forced),
        cmocka_unit_test(bad_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
