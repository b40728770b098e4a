/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides truncation from bounds of the values (docs/maths.md, section 14). On rows with generated
 * bounds, far wider than a screen's, no decision contradicts the truncation of the values, however
 * many exact values may be computed, and no kept token is below the removal threshold. Another test
 * measures by how much gumbel_exp() can decrease while its argument increases; bounds of masses
 * must cover this error.
 */
#include "cpu/rows/cpu_screen_judge.h"
#include "cpu/rows/cpu_truncate.h"
#include "inputs.h"
#include "outcome.h"
#include "validate/validate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "every_isa.h"

#define VOCAB_MAX 300
#define ROOM      (1 << 20)

/* A row whose values are the products of one column with 1, its bounds, and its rules. */
typedef struct generated_row {
    int64_t vocab;
    float value[VOCAB_MAX], lower[VOCAB_MAX], upper[VOCAB_MAX];
    gumbel_rules rules;
    gumbel_cutoff cut; /* of the values */
} generated_row;

static float random_part(uint64_t *state) { return (float)random_below(state, 1 << 20) * 0x1p-20f; }

/* Makes values of some nats, with ties or without, and bounds around them, some of them exact. */
static void make_row(generated_row *row, uint64_t *state)
{
    float spread = 0.1f + 3.0f * random_part(state), wide = 2.0f * random_part(state);
    int tied = random_below(state, 3) == 0;
    row->vocab = 5 + random_below(state, VOCAB_MAX - 5);
    for (int64_t i = 0; i < row->vocab; i++) {
        float v = spread * random_normal(state);
        row->value[i] = tied ? rintf(v * 3.0f) / 3.0f : v;
        int exact = random_below(state, 6) == 0;
        row->lower[i] = exact ? row->value[i] : row->value[i] - wide * random_part(state);
        row->upper[i] = exact ? row->value[i] : row->value[i] + wide * random_part(state);
    }
    uint32_t which = random_below(state, 7) + 1;
    static const float ps[] = {0.1f, 0.3f, 0.5f, 0.8f, 0.95f}, ms[] = {0.01f, 0.1f, 0.3f};
    row->rules = (gumbel_rules){
        .min_p = which & 1 ? ms[random_below(state, 3)] : 0.0f,
        .top_k = which & 2 ? 1 + random_below(state, (uint32_t)row->vocab - 1) : 0,
        .top_p = which & 4 ? ps[random_below(state, 5)] : 1.0f,
        .exact = random_below(state, 2),
    };
    /* As gumbel_problem_rules() derives them. */
    uint32_t order = random_below(state, 3);
    row->rules.joint = order == 2 || (order == 1 && row->rules.top_k == 0);
    row->rules.last =
        order > 0 && !row->rules.joint && row->rules.min_p > 0.0f && row->rules.top_p < 1.0f;
}

/* A screen without a copy: its jobs, and stages for generated bounds. */
typedef struct stand {
    gumbel_head head;
    gumbel_problem problem;
    cpu_screen screen;
    float *weight, one[1];
    void *workspace, *stages;
    cpu_weight bins[CPU_BINS];
} stand;

static void open_stand(stand *s, gumbel_device *device, generated_row *row)
{
    gumbel_error error;
    cpu_device *cpu = (cpu_device *)device;
    s->one[0] = 1.0f;
    s->head = (gumbel_head){.struct_size = sizeof s->head,
                            .hidden = {s->one, GUMBEL_FLOAT32, 1, 1, 0, {0}},
                            .weight = {row->value, GUMBEL_FLOAT32, row->vocab, 1, 0, {0}}};
    gumbel_sampling how = {.struct_size = sizeof how};
    assert_int_equal(
        gumbel_read_head(&s->problem, GUMBEL_SCREEN_LAYOUT_CPU, &s->head, &how, &error), GUMBEL_OK);
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
    assert_true(cursor.used <= ROOM);
}

/* Stage a row of values. */
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

static int stays(const generated_row *row, int64_t token)
{
    float v = row->value[token];
    int64_t before = 0;
    for (int64_t i = 0; i < token; i++)
        before += row->value[i] == v;
    return v > row->cut.bound || (v == row->cut.bound && before < row->cut.tied);
}

typedef struct counts {
    long judged, open, kept, removed;
} counts;

/* Judges a token, with a budget of other values to compute. */
static void judge_token(stand *s, generated_row *row, int64_t token, int32_t budget, counts *seen)
{
    cpu_judge_state state;
    stage_values(&s->screen.upper_job, row->upper, row->vocab);
    stage_values(&s->screen.lower_job, row->lower, row->vocab);
    assert_true(cpu_begin_judging(&state, &s->screen, 0, 0, s->bins));
    state.rules = row->rules; /* the problem has no rules, so no largest value was found */
    assert_true(cpu_find_largest_value(&state));
    float value = cpu_find_exact_value(&state, token);
    assert_true(value == row->value[token]);
    state.budget = budget;
    gumbel_token_verdict verdict = cpu_judge_token(&state, token, value);
    seen->judged++;
    seen->open += verdict == GUMBEL_TOKEN_UNDECIDED;
    seen->kept += verdict == GUMBEL_TOKEN_KEPT;
    seen->removed += verdict == GUMBEL_TOKEN_TRUNCATED;
    if (verdict != GUMBEL_TOKEN_UNDECIDED)
        assert_int_equal(verdict == GUMBEL_TOKEN_KEPT, stays(row, token));
    float threshold = cpu_find_removal_threshold(&state);
    for (int64_t i = 0; i < row->vocab; i++)
        assert_true(row->value[i] >= threshold || !stays(row, i));
}

static void verdicts(void **state)
{
    uint64_t random = 5;
    stand *s = make_zeroed(1, sizeof *s);
    generated_row *row = make_zeroed(1, sizeof *row);
    gumbel_device *device = *state;
    s->workspace = aligned_alloc(64, ROOM);
    s->stages = aligned_alloc(64, ROOM);
    gumbel_device_info info = {.struct_size = sizeof info};
    assert_int_equal(gumbel_describe(device, &info), GUMBEL_OK);
    int rows = info.isa == GUMBEL_ISA_REFERENCE || TEST_SANITIZED ? 600 : 6000;
    counts none = {0}, some = {0}, all = {0};
    for (int i = 0; i < rows; i++) {
        make_row(row, &random);
        open_stand(s, device, row);
        stage_values(&s->screen.upper_job, row->value, row->vocab);
        cpu_values values = cpu_get_staged_values(&s->screen.upper_job, 0);
        row->cut =
            cpu_find_truncation(((cpu_device *)device)->kernels, &values, &row->rules, s->bins);
        for (int j = 0; j < 6; j++) {
            int64_t token = random_below(&random, (uint32_t)row->vocab);
            judge_token(s, row, token, 0, &none);
            judge_token(s, row, token, 8, &some);
            judge_token(s, row, token, VOCAB_MAX, &all);
        }
    }
    print_message("open: %ld of %ld without scores, %ld with 8, %ld with all\n", none.open,
                  none.judged, some.open, all.open);
    assert_true(none.open > none.judged / 10 && none.kept > 100 && none.removed > 100);
    assert_true(some.open < none.open && all.open < all.judged / 20);
    free(s->workspace);
    free(s->stages);
    free(s);
    free(row);
}

/* Equal bounds give a verdict. */
static void bounds_that_meet(void **state)
{
    (void)state;
    assert_int_equal(gumbel_judge_top_k(5, 5, 5), GUMBEL_TOKEN_TRUNCATED);
    assert_int_equal(gumbel_judge_top_k(5, 4, 4), GUMBEL_TOKEN_KEPT);
    assert_int_equal(gumbel_judge_top_k(5, 4, 5), GUMBEL_TOKEN_UNDECIDED);
    const gumbel_mass_bounds one = {100, 100}, two = {101, 101};
    assert_int_equal(gumbel_judge_top_p(0.5f, one, two), GUMBEL_TOKEN_KEPT);
    assert_int_equal(gumbel_judge_top_p(0.5f, one, one), GUMBEL_TOKEN_TRUNCATED);
    assert_int_equal(gumbel_judge_top_p(0.5f, (gumbel_mass_bounds){99, 101}, one),
                     GUMBEL_TOKEN_UNDECIDED);
}

/* The exponential falls where its argument grows, if at all, by far less than the margin of masses:
 * every float from -42.5 to -2^-20, or one of 64 of them. */
static void exponentials_hardly_fall(void **state)
{
    const char *set = getenv("GUMBEL_NIGHTLY");
    uint32_t step = set && *set && *set != '0' ? 1 : 64;
    double largest = 0, fall = 0;
    (void)state;
    for (uint32_t bits = gumbel_bits_of(-42.5f); bits > gumbel_bits_of(-0x1p-20f); bits -= step) {
        double e = (double)gumbel_exp(gumbel_float_of(bits));
        if (e < largest)
            fall = fmax(fall, 1 - e / largest);
        largest = fmax(largest, e);
    }
    print_message("the exponential falls by up to %.3g of itself\n", fall);
    assert_true(fall < 0x1p-20);
    gumbel_mass_bounds wide = gumbel_bound_mass_sum((gumbel_wide)1 << 61, (gumbel_wide)1 << 61, 3);
    assert_true(wide.min <= ((gumbel_wide)1 << 61) - ((gumbel_wide)1 << 44));
    assert_true(wide.max >= ((gumbel_wide)1 << 61) + ((gumbel_wide)1 << 44));
    wide = gumbel_bound_mass_sum(2, 2, 3);
    assert_true(wide.min == 0 && wide.max >= 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts),
        cmocka_unit_test(bounds_that_meet),
        cmocka_unit_test(exponentials_hardly_fall),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
