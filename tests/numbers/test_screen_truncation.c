/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncation decided from bounds of the values (docs/maths.md, section 14). The generated bounds
 * are far wider than a screen's. With any budget of exact values, no verdict contradicts the
 * truncation of the values, and no kept token is below the removal threshold. Another test measures
 * by how much gumbel_exp() decreases while its argument increases; the bounds of masses must cover
 * this error.
 */
#include "cpu/rows/cpu_screen_verdict.h"
#include "cpu/rows/cpu_truncate.h"
#include "inputs.h"
#include "outcome.h"
#include "validate/validate.h"
#include "test_scale.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "every_isa.h"

#define VOCAB_MAX   300
#define ARENA_BYTES (1 << 20)

/* Values of a row, which are weights of one column; bounds of the values, and rules. */
typedef struct generated_row {
    int64_t vocab;
    float value[VOCAB_MAX], lower[VOCAB_MAX], upper[VOCAB_MAX];
    gumbel_rules rules;
    gumbel_cutoff cutoff; /* by truncation of the values */
} generated_row;

static float random_fraction(uint64_t *state)
{
    return (float)random_below(state, 1 << 20) * 0x1p-20f;
}

/* Makes normal values, with ties or without, and bounds around them, one in six exact. */
static void make_row(generated_row *row, uint64_t *state)
{
    float spread = 0.1f + 3.0f * random_fraction(state), width = 2.0f * random_fraction(state);
    int tied = random_below(state, 3) == 0;
    row->vocab = 5 + random_below(state, VOCAB_MAX - 5);
    for (int64_t i = 0; i < row->vocab; i++) {
        float v = spread * random_normal(state);
        row->value[i] = tied ? rintf(v * 3.0f) / 3.0f : v;
        int exact = random_below(state, 6) == 0;
        row->lower[i] = exact ? row->value[i] : row->value[i] - width * random_fraction(state);
        row->upper[i] = exact ? row->value[i] : row->value[i] + width * random_fraction(state);
    }
    uint32_t rule_bits = random_below(state, 7) + 1;
    static const float top_ps[] = {0.1f, 0.3f, 0.5f, 0.8f, 0.95f}, min_ps[] = {0.01f, 0.1f, 0.3f};
    row->rules = (gumbel_rules){
        .min_p = rule_bits & 1 ? min_ps[random_below(state, 3)] : 0.0f,
        .top_k = rule_bits & 2 ? 1 + random_below(state, (uint32_t)row->vocab - 1) : 0,
        .top_p = rule_bits & 4 ? top_ps[random_below(state, 5)] : 1.0f,
        .exact = random_below(state, 2),
    };
    /* As gumbel_problem_rules() derives them from an order. */
    uint32_t order = random_below(state, 3);
    row->rules.joint = order == 2 || (order == 1 && row->rules.top_k == 0);
    row->rules.last =
        order > 0 && !row->rules.joint && row->rules.min_p > 0.0f && row->rules.top_p < 1.0f;
}

/* A screen without a quantized copy: its two stages receive the generated bounds. */
typedef struct screen_fixture {
    gumbel_head head;
    gumbel_problem problem;
    cpu_screen screen;
    float *weight, one[1];
    void *workspace, *stages;
    cpu_weight bins[CPU_BINS];
} screen_fixture;

static void open_screen(screen_fixture *s, gumbel_device *device, generated_row *row)
{
    gumbel_error error;
    cpu_device *cpu = (cpu_device *)device;
    s->one[0] = 1.0f;
    s->head = (gumbel_head){.struct_size = sizeof s->head,
                            .hidden = {s->one, GUMBEL_FLOAT32, 1, 1, 0, {0}},
                            .weight = {row->value, GUMBEL_FLOAT32, row->vocab, 1, 0, {0}}};
    gumbel_sampling sampling = {.struct_size = sizeof sampling};
    assert_int_equal(
        gumbel_read_head(&s->problem, GUMBEL_SCREEN_LAYOUT_CPU, &s->head, &sampling, &error),
        GUMBEL_OK);
    memset(&s->screen, 0, sizeof s->screen);
    cpu_screen *screen = &s->screen;
    cpu_prepare_job(&screen->exact_job, cpu, &s->problem, s->workspace);
    float *hidden = s->stages;
    cpu_unpack_hidden_row(&screen->exact_job, 0, hidden);
    screen->hidden = hidden;
    screen->upper_job = screen->lower_job = screen->exact_job;
    screen->upper_job.stage = &screen->upper_stage;
    screen->lower_job.stage = &screen->lower_stage;
    gumbel_cursor cursor = {s->stages, 4096};
    cpu_carve_stage(&screen->upper_stage, &cursor, &s->problem, 1, 1);
    cpu_carve_stage(&screen->lower_stage, &cursor, &s->problem, 1, 1);
    assert_true(cursor.used <= ARENA_BYTES);
}

/* Writes a row of values into the job's stage, -inf after the last, and their block maxima. */
static void stage_values(const cpu_job *job, const float *values, int64_t count)
{
    const cpu_stage *stage = job->stage;
    for (int64_t block = 0; block < stage->blocks; block++) {
        float *to = (float *)(uintptr_t)cpu_get_staged_block(job, 0, block);
        for (int64_t i = 0; i < GUMBEL_BLOCK; i++)
            if (block * GUMBEL_BLOCK + i < count || block == stage->blocks - 1)
                to[i] =
                    block * GUMBEL_BLOCK + i < count ? values[block * GUMBEL_BLOCK + i] : -INFINITY;
        job->device->kernels->find_maxima(to, 1, &stage->block_maxima[block]);
    }
}

static int is_kept(const generated_row *row, int64_t token)
{
    float v = row->value[token];
    int64_t ties_before = 0;
    for (int64_t i = 0; i < token; i++)
        ties_before += row->value[i] == v;
    return v > row->cutoff.bound || (v == row->cutoff.bound && ties_before < row->cutoff.tied);
}

typedef struct verdict_counts {
    long tokens, undecided, kept, removed;
} verdict_counts;

/* Checks the verdict on a token, for which `budget` other values may be computed exactly. */
static void check_verdict(screen_fixture *s, generated_row *row, int64_t token, int32_t budget,
                          verdict_counts *counts)
{
    cpu_verdict_state state;
    stage_values(&s->screen.upper_job, row->upper, row->vocab);
    stage_values(&s->screen.lower_job, row->lower, row->vocab);
    assert_true(cpu_init_verdict_state(&state, &s->screen, 0, 0, s->bins));
    /* The problem has no rules, so that cpu_init_verdict_state() found no largest value. */
    state.rules = row->rules;
    assert_true(cpu_find_largest_value(&state));
    float value = cpu_find_exact_value(&state, token);
    assert_true(value == row->value[token]);
    state.budget = budget;
    gumbel_token_verdict verdict = cpu_determine_verdict(&state, token, value);
    counts->tokens++;
    counts->undecided += verdict == GUMBEL_TOKEN_UNDECIDED;
    counts->kept += verdict == GUMBEL_TOKEN_KEPT;
    counts->removed += verdict == GUMBEL_TOKEN_TRUNCATED;
    if (verdict != GUMBEL_TOKEN_UNDECIDED)
        assert_int_equal(verdict == GUMBEL_TOKEN_KEPT, is_kept(row, token));
    float threshold = cpu_find_removal_threshold(&state);
    for (int64_t i = 0; i < row->vocab; i++)
        assert_true(row->value[i] >= threshold || !is_kept(row, i));
}

static void verdicts_agree_with_values(void **state)
{
    uint64_t random = 5;
    screen_fixture *s = make_zeroed(1, sizeof *s);
    generated_row *row = make_zeroed(1, sizeof *row);
    gumbel_device *device = *state;
    s->workspace = aligned_alloc(64, ARENA_BYTES);
    s->stages = aligned_alloc(64, ARENA_BYTES);
    gumbel_device_info info = {.struct_size = sizeof info};
    assert_int_equal(gumbel_describe(device, &info), GUMBEL_OK);
    int rows = info.isa == GUMBEL_ISA_REFERENCE || TEST_SANITIZED ? 600 : 6000;
    verdict_counts none = {0}, some = {0}, all = {0};
    for (int i = 0; i < rows; i++) {
        make_row(row, &random);
        open_screen(s, device, row);
        stage_values(&s->screen.upper_job, row->value, row->vocab);
        cpu_values values = cpu_get_staged_values(&s->screen.upper_job, 0);
        row->cutoff =
            cpu_find_truncation(((cpu_device *)device)->kernels, &values, &row->rules, s->bins);
        for (int j = 0; j < 6; j++) {
            int64_t token = random_below(&random, (uint32_t)row->vocab);
            check_verdict(s, row, token, 0, &none);
            check_verdict(s, row, token, 8, &some);
            check_verdict(s, row, token, VOCAB_MAX, &all);
        }
    }
    print_message("undecided: %ld of %ld without exact values, %ld with 8, %ld with all\n",
                  none.undecided, none.tokens, some.undecided, all.undecided);
    assert_true(none.undecided > none.tokens / 10 && none.kept > 100 && none.removed > 100);
    assert_true(some.undecided < none.undecided && all.undecided < all.tokens / 20);
    free(s->workspace);
    free(s->stages);
    free(s);
    free(row);
}

static void equal_bounds_decide(void **state)
{
    (void)state;
    assert_int_equal(gumbel_determine_top_k_verdict(5, 5, 5), GUMBEL_TOKEN_TRUNCATED);
    assert_int_equal(gumbel_determine_top_k_verdict(5, 4, 4), GUMBEL_TOKEN_KEPT);
    assert_int_equal(gumbel_determine_top_k_verdict(5, 4, 5), GUMBEL_TOKEN_UNDECIDED);
    const gumbel_mass_bounds one = {100, 100}, two = {101, 101};
    assert_int_equal(gumbel_determine_top_p_verdict(0.5f, one, two), GUMBEL_TOKEN_KEPT);
    assert_int_equal(gumbel_determine_top_p_verdict(0.5f, one, one), GUMBEL_TOKEN_TRUNCATED);
    assert_int_equal(gumbel_determine_top_p_verdict(0.5f, (gumbel_mass_bounds){99, 101}, one),
                     GUMBEL_TOKEN_UNDECIDED);
}

/* Where gumbel_exp() decreases while its argument increases, it does so by far less than the margin
 * of mass bounds. Checks every float from -42.5 to -2^-20 in nightly tests, else one in 64. */
static void exponential_decreases_little(void **state)
{
    uint32_t step = is_nightly() ? 1 : 64;
    double largest = 0, decrease = 0;
    (void)state;
    for (uint32_t bits = gumbel_bits_of(-42.5f); bits > gumbel_bits_of(-0x1p-20f); bits -= step) {
        double e = (double)gumbel_exp(gumbel_float_of(bits));
        if (e < largest)
            decrease = fmax(decrease, 1 - e / largest);
        largest = fmax(largest, e);
    }
    print_message("the exponential decreases by at most %.3g of its value\n", decrease);
    assert_true(decrease < 0x1p-20);
    gumbel_mass_bounds bounds =
        gumbel_bound_mass_sum((gumbel_wide)1 << 61, (gumbel_wide)1 << 61, 3);
    assert_true(bounds.min <= ((gumbel_wide)1 << 61) - ((gumbel_wide)1 << 44));
    assert_true(bounds.max >= ((gumbel_wide)1 << 61) + ((gumbel_wide)1 << 44));
    bounds = gumbel_bound_mass_sum(2, 2, 3);
    assert_true(bounds.min == 0 && bounds.max >= 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts_agree_with_values),
        cmocka_unit_test(equal_bounds_decide),
        cmocka_unit_test(exponential_decreases_little),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
