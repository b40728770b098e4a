/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncated rows that are drawn with a screen have the bits of the full pass: for every truncation
 * rule, alone and combined, in every order, with ties broken by value and by id, on heads of every
 * kind. Counters in the kernels show how many rows of weights are read, and that few rows need the
 * full pass.
 */
#include "cpu/host/cpu_device.h"
#include "gumbel/screen.h"
#include "requests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "screened_draws.h"
#include "test_scale.h"

#define BATCH 8

/* ------------------------------------------------------------------------------- counting ---- */

static struct {
    const cpu_kernels *kernels;
    _Atomic int64_t rows, tiles; /* products of one row of weights, by a screen, and of several, by
                                    the full pass */
} counted;

static void count_product(const cpu_product *product)
{
    atomic_fetch_add(product->count == 1 ? &counted.rows : &counted.tiles, 1);
    counted.kernels->multiply_tile(product);
}

/* Starts counting the device's products in `counting`; with NULL it stops. */
static void count_products(gumbel_device *device, cpu_kernels *counting)
{
    cpu_device *cpu = (cpu_device *)device;
    if (!counting) {
        cpu->kernels = counted.kernels;
        return;
    }
    counted.kernels = cpu->kernels;
    *counting = *cpu->kernels;
    counting->multiply_tile = count_product;
    cpu->kernels = counting;
}

/* ------------------------------------------------------------------------------ comparing ---- */

/* The rules of a call, for each row. */
typedef struct rules {
    const char *name;
    int32_t top_k[BATCH];
    float top_p[BATCH], min_p[BATCH];
    gumbel_truncation how;
} rules;

static float one_of(const float *values, int count, uint64_t *random)
{
    return values[random_below(random, (uint32_t)count)];
}

/* Rules as users of engines set them, or hostile ones. */
static void make_rules(rules *r, int64_t vocab, int hostile, uint64_t *random)
{
    static const float top_ps[] = {0.95f, 0.9f, 0.5f, 1.0f, 0.99f, 0.3f};
    static const float min_ps[] = {0.05f, 0.1f, 0.02f, 0.0f, 0.3f};
    static const float odd_ps[] = {1e-30f, 1 - 0x1p-24f, 0.999f, 1e-6f, 1.0f, 0.95f};
    const int32_t ks[] = {50, 20, 5, 1, 0, 100}, odd_ks[] = {(int32_t)vocab - 1, 2, 700, 300, 1};
    uint32_t which = random_below(random, 7) + 1;
    r->how =
        (gumbel_truncation){.struct_size = sizeof r->how,
                            .order = (gumbel_order)random_below(random, REQUEST_ORDERS),
                            .ties = random_below(random, 3) ? GUMBEL_TIES_ALL : GUMBEL_TIES_EXACT};
    for (int b = 0; b < BATCH; b++) {
        r->top_k[b] = hostile ? odd_ks[random_below(random, 5)] : ks[random_below(random, 6)];
        r->top_p[b] = hostile ? one_of(odd_ps, 6, random) : one_of(top_ps, 6, random);
        r->min_p[b] = hostile ? one_of(odd_ps, 6, random) : one_of(min_ps, 5, random);
        r->min_p[b] = r->min_p[b] == 1.0f && hostile ? 0.0f : r->min_p[b];
    }
    if (which & 1)
        r->how.top_k = (gumbel_row_i32){r->top_k, 1};
    if (which & 2)
        r->how.top_p = (gumbel_row_f32){r->top_p, 1};
    if (which & 4)
        r->how.min_p = (gumbel_row_f32){r->min_p, 1};
}

/* Draws with the screen, which must serve the call, and without; both must have the same bits. */
static void draws_same(gumbel_device *device, const gumbel_head *head,
                       const gumbel_sampling *sampling, int32_t samples, const char *what)
{
    cpu_kernels counting;
    gumbel_head without = *head;
    outcome *a = plain_outcome(head->hidden.rows, samples);
    outcome *b = plain_outcome(head->hidden.rows, samples);
    without.screen = (gumbel_screen){NULL, 0, 0};
    assert_true(is_screened(device, head, sampling, &b->output));
    assert_int_equal(draw(device, &without, sampling, a), GUMBEL_OK);
    count_products(device, &counting);
    assert_int_equal(draw(device, head, sampling, b), GUMBEL_OK);
    count_products(device, NULL);
    assert_true(outcome_same(a, 0, b, OUTCOME_TOKENS | OUTCOME_SCORES, what));
    assert_memory_equal(a->status, b->status, (size_t)head->hidden.rows * sizeof *a->status);
    outcome_free(a);
    outcome_free(b);
}

/* Draws with all outputs, with the screen and without; all must have the same bits, also in the
 * places of kept sets that are not written. Returns whether the screen has served the call. */
static int outputs_same(gumbel_device *device, const gumbel_head *head,
                        const gumbel_sampling *sampling, int32_t samples, int32_t num_top,
                        int32_t capacity, const char *what)
{
    gumbel_head without = *head;
    outcome *a = outcome_make(head->hidden.rows, samples);
    outcome *b = outcome_make(head->hidden.rows, samples);
    outcome_widen(a, num_top, GUMBEL_PROCESSED);
    outcome_widen(b, num_top, GUMBEL_PROCESSED);
    outcome_list_kept(a, capacity);
    outcome_list_kept(b, capacity);
    without.screen = (gumbel_screen){NULL, 0, 0};
    const int served = is_served_by("screen-survivors", device, head, sampling, &b->output);
    assert_int_equal(draw(device, &without, sampling, a), GUMBEL_OK);
    assert_int_equal(draw(device, head, sampling, b), GUMBEL_OK);
    assert_true(outcome_same(a, 0, b, OUTCOME_ALL, what));
    outcome_free(a);
    outcome_free(b);
    return served;
}

static const float temperatures[] = {1.0f, 0.7f, 0.0f, 1.3f, 0.3f, 3.0f, 100.0f, 1.0f};

/* Draws `calls` batches; the rules change with each call. All outputs are requested with greedy
 * rows, which take the full pass, and without. */
static void draw_many(gumbel_device *device, const generated_head *generated, gumbel_screen screen,
                      int32_t samples, int64_t calls, int hostile, const char *name)
{
    uint64_t seed = 11, position = 0, random = (uint64_t)samples * 1000 + (uint64_t)hostile;
    float temperature[BATCH], warm[BATCH];
    int served = 0;
    rules r;
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = generated->hidden,
                        .weight = generated->weight,
                        .screen = screen};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {temperature, 1},
                           .seed = {&seed, GUMBEL_SAME},
                           .position = {&position, GUMBEL_SAME},
                           .truncation = &r.how,
                           .num_samples = samples};
    for (; position < (uint64_t)calls; position++) {
        const int32_t capacities[] = {60, 1, (int32_t)generated->weight.rows};
        for (uint64_t b = 0; b < BATCH; b++) {
            temperature[b] = temperatures[(b + position) % BATCH];
            warm[b] = fmaxf(temperature[b], 0.3f);
        }
        make_rules(&r, generated->weight.rows, hostile, &random);
        draws_same(device, &head, &how, samples, name);
        gumbel_sampling all = how;
        if (position % 4)
            all.temperature = (gumbel_row_f32){warm, 1};
        served += outputs_same(device, &head, &all, samples, 1 + (int32_t)(position % 7),
                               capacities[position % 3], name);
    }
    print_message("%s: all outputs of %d of %d calls by the screen\n", name, served, (int)calls);
    assert_true(calls < 24 || served * 12 >= (int)calls); /* sanitizers run few calls */
}

static int64_t calls_of(gumbel_device *device, int64_t calls)
{
    gumbel_device_info info = {.struct_size = sizeof info};
    assert_int_equal(gumbel_describe(device, &info), GUMBEL_OK);
    calls *= is_nightly() ? 75 : 1;
    return info.isa == GUMBEL_ISA_REFERENCE || TEST_SANITIZED ? calls / 16 : calls;
}

static void truncation_of_every_kind(void **state)
{
    for (int kind = 0; kind < HEAD_KINDS; kind++) {
        generated_head generated = generate_head(
            (head_kind)kind, kind % 2 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT32, 3000, 96, BATCH, 33);
        gumbel_screen screen = make_screen(*state, &generated.weight);
        draw_many(*state, &generated, screen, 1, calls_of(*state, 160), 0, head_kind_names[kind]);
        draw_many(*state, &generated, screen, 4, calls_of(*state, 32), 0, "several samples");
        draw_many(*state, &generated, screen, 1, calls_of(*state, 56), 1, "hostile rules");
        free(screen.data);
        free_generated_head(&generated);
    }
}

/* Values that tie, at cuts and elsewhere: every row of weights is there twice or more. */
static void ties_at_cutoffs(void **state)
{
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 2000, 64, BATCH, 8);
    char *weight = (char *)(uintptr_t)generated.weight.data;
    for (int distinct = 40; distinct <= 1000; distinct *= 5) {
        for (int64_t row = distinct; row < 2000; row++)
            memcpy(weight + row * 128, weight + row % distinct * 128, 128);
        gumbel_screen screen = make_screen(*state, &generated.weight);
        draw_many(*state, &generated, screen, 1, calls_of(*state, 24), 0, "ties");
        draw_many(*state, &generated, screen, 3, calls_of(*state, 16), 1, "ties, hostile rules");
        free(screen.data);
    }
    free_generated_head(&generated);
}

static void bundled_model(void **state)
{
    generated_head generated = bundled_head(BATCH);
    gumbel_screen screen = make_screen(*state, &generated.weight);
    draw_many(*state, &generated, screen, 1, calls_of(*state, 24), 0, "bundled model");
    free(screen.data);
    free((void *)(uintptr_t)generated.weight.data);
}

/* ------------------------------------------------------------------------- what it reads ---- */

/* Measures the weights that one rule reads: all rows have the rule, at temperatures with entropies
 * of some nats. */
static void reads_little(gumbel_device *device, const gumbel_head *head, const rules *r,
                         const char *name)
{
    static const float usual[] = {0.2f, 0.25f, 0.3f, 0.2f, 0.25f, 0.3f, 0.2f, 0.35f};
    uint64_t seed = 3, position = 0;
    int64_t calls = calls_of(device, 16), draws = calls * BATCH;
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {usual, 1},
                           .seed = {&seed, GUMBEL_SAME},
                           .position = {&position, GUMBEL_SAME},
                           .truncation = &r->how};
    atomic_store(&counted.rows, 0);
    atomic_store(&counted.tiles, 0);
    for (; position < (uint64_t)calls; position++)
        draws_same(device, head, &how, 1, r->name);
    /* A full pass is a product of tiles of 128 tokens, of at least one row of the batch. */
    double passes = (double)counted.tiles / ((double)head->weight.rows / 128);
    print_message("%s, %s: %.1f rows of weights a draw, %.2f full passes a call\n", name, r->name,
                  (double)counted.rows / (double)draws, passes / (double)calls);
    assert_true(counted.rows < draws * head->weight.rows / 16);
    assert_true(passes < 0.1 * (double)calls);
}

/* Bounds determine the usual rules, and few rows of weights are read. */
static void few_rows_are_read(void **state)
{
    static const rules each[] = {
        {.name = "top_k 50", .top_k = {50}},
        {.name = "min_p 0.05", .min_p = {0.05f}},
        {.name = "top_p 0.95", .top_p = {0.95f}},
        {.name = "top_k 50, top_p 0.95", .top_k = {50}, .top_p = {0.95f}},
        {.name = "all three", .top_k = {50}, .top_p = {0.95f}, .min_p = {0.05f}},
    };
    for (int kind = 0; kind < 3; kind++) {
        generated_head generated = generate_head((head_kind)kind, GUMBEL_BFLOAT16,
                                                 TEST_SANITIZED ? 6000 : 20000, 128, BATCH, 5);
        gumbel_screen screen = make_screen(*state, &generated.weight);
        gumbel_head head = {.struct_size = sizeof head,
                            .hidden = generated.hidden,
                            .weight = generated.weight,
                            .screen = screen};
        for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
            rules r = each[i];
            r.how.struct_size = sizeof r.how;
            if (r.top_k[0] > 0)
                r.how.top_k = (gumbel_row_i32){r.top_k, GUMBEL_SAME};
            if (r.top_p[0] > 0.0f)
                r.how.top_p = (gumbel_row_f32){r.top_p, GUMBEL_SAME};
            if (r.min_p[0] > 0.0f)
                r.how.min_p = (gumbel_row_f32){r.min_p, GUMBEL_SAME};
            reads_little(*state, &head, &r, head_kind_names[kind]);
        }
        free(screen.data);
        free_generated_head(&generated);
    }
}

/* Log-probabilities and other outputs of rows that top_k or min_p truncates read few rows of
 * weights, too; those of top_p alone take the full pass. */
static void outputs_of_survivors_read_few_rows(void **state)
{
    static const struct {
        int32_t top_k;
        float min_p, top_p;
        gumbel_order order;
    } each[] = {{50, 0, 1, GUMBEL_ORDER_TOP_K_TOP_P_MIN_P},
                {50, 0, 0.95f, GUMBEL_ORDER_TOP_K_TOP_P_MIN_P},
                {50, 0.05f, 0.95f, GUMBEL_ORDER_TOP_K_TOP_P_MIN_P},
                {0, 0.05f, 1, GUMBEL_ORDER_TOP_K_TOP_P_MIN_P},
                {0, 0.05f, 0.9f, GUMBEL_ORDER_MIN_P_TOP_K_TOP_P},
                {0, 0, 0.9f, GUMBEL_ORDER_TOP_K_TOP_P_MIN_P}};
    const int alone = (int)(sizeof each / sizeof *each) - 1;
    generated_head generated =
        generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, TEST_SANITIZED ? 6000 : 20000, 128, BATCH, 5);
    gumbel_screen screen = make_screen(*state, &generated.weight);
    const gumbel_head head = {.struct_size = sizeof head,
                              .hidden = generated.hidden,
                              .weight = generated.weight,
                              .screen = screen};
    for (int i = 0; i <= alone; i++) {
        const float temperature = 0.3f;
        gumbel_truncation truncation = {.struct_size = sizeof truncation,
                                        .order = each[i].order,
                                        .top_k = {&each[i].top_k, GUMBEL_SAME},
                                        .min_p = {&each[i].min_p, GUMBEL_SAME},
                                        .top_p = {&each[i].top_p, GUMBEL_SAME}};
        if (each[i].top_k == 0)
            truncation.top_k = (gumbel_row_i32){NULL, 0};
        if (!(each[i].min_p > 0))
            truncation.min_p = (gumbel_row_f32){NULL, 0};
        if (!(each[i].top_p < 1))
            truncation.top_p = (gumbel_row_f32){NULL, 0};
        gumbel_sampling how = {.struct_size = sizeof how,
                               .temperature = {&temperature, GUMBEL_SAME},
                               .truncation = &truncation};
        outcome *drawn = outcome_make(BATCH, 1);
        outcome_widen(drawn, 5, GUMBEL_PROCESSED);
        outcome_list_kept(drawn, 50);
        assert_int_equal(is_served_by("screen-survivors", *state, &head, &how, &drawn->output),
                         i < alone);
        cpu_kernels counting;
        atomic_store(&counted.rows, 0);
        atomic_store(&counted.tiles, 0);
        count_products(*state, &counting);
        assert_int_equal(draw(*state, &head, &how, drawn), GUMBEL_OK);
        count_products(*state, NULL);
        assert_int_equal(counted.tiles > 0, i == alone);
        print_message("rules %d: %.1f rows of weights a row\n", i, (double)counted.rows / BATCH);
        assert_true(i == alone || counted.rows < BATCH * head.weight.rows / 16);
        outcome_free(drawn);
        outputs_same(*state, &head, &how, 1, 5, 50, "rules of outputs");
    }
    free(screen.data);
    free_generated_head(&generated);
}

/* Calls for outputs that bounds do not determine take the full pass; explain() reports it. */
static void other_outputs_take_the_full_pass(void **state)
{
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 300, 64, BATCH, 8);
    gumbel_screen screen = make_screen(*state, &generated.weight);
    char text[4096];
    int32_t tokens[BATCH], kept[BATCH], top_k = 5;
    float lse[BATCH], top_p = 0.9f;
    gumbel_truncation truncation = {.struct_size = sizeof truncation,
                                    .top_k = {&top_k, GUMBEL_SAME}};
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = generated.hidden,
                        .weight = generated.weight,
                        .screen = screen};
    gumbel_sampling how = {.struct_size = sizeof how, .truncation = &truncation};
    gumbel_output output = {.struct_size = sizeof output,
                            .tokens = tokens,
                            .lse = lse,
                            .kept = kept,
                            .logprobs_of = GUMBEL_RAW};
    assert_int_equal(gumbel_explain(*state, &head, NULL, &how, &output, text, sizeof text, NULL),
                     GUMBEL_OK);
    assert_non_null(strstr(text, "not screen: does not support kept, raw"));
    assert_non_null(strstr(text, "not screen-survivors: does not support raw"));
    output.lse = NULL;
    assert_true(is_served_by("screen-survivors", *state, &head, &how, &output));
    float temperatures_of_rows[BATCH] = {1, 1, 0.7f, 0, 1, 1, 1, 1}; /* one row is greedy */
    how.temperature = (gumbel_row_f32){temperatures_of_rows, 1};
    assert_false(is_served_by("screen-survivors", *state, &head, &how, &output));
    assert_int_equal(gumbel_explain(*state, &head, NULL, &how, &output, text, sizeof text, NULL),
                     GUMBEL_OK);
    assert_non_null(strstr(text, "not screen-survivors: a row is greedy, or has neither"));
    how.temperature = (gumbel_row_f32){NULL, 0};
    truncation.order = GUMBEL_ORDER_JOINT;
    truncation.top_p = (gumbel_row_f32){&top_p, GUMBEL_SAME};
    assert_false(is_served_by("screen-survivors", *state, &head, &how, &output));
    output.kept = NULL;
    assert_true(is_screened(*state, &head, &how, &output));
    free(screen.data);
    free_generated_head(&generated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncation_of_every_kind),
        cmocka_unit_test(ties_at_cutoffs),
        cmocka_unit_test(bundled_model),
        cmocka_unit_test(few_rows_are_read),
        cmocka_unit_test(outputs_of_survivors_read_few_rows),
        cmocka_unit_test(other_outputs_take_the_full_pass),
    };
    int failures;
    RUN_ON_EVERY_FORMAT(tests, failures);
    return failures;
}
