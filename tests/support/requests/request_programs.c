/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs of a plan: rules in any valid order, with parameters of each row, of all rows or
 * none, usual or extreme. prefixed_programs.h makes those for kernels that begin with the largest
 * tokens.
 */
#include "requests.h"

#include <float.h>
#include <math.h>

/* Values of a parameter: the first `usual` are usual ones, the others are extreme. */
typedef struct value_table {
    int usual, all;
    float values[12];
} value_table;

static const value_table typical_ps = {
    6, 8, {1, 0.95f, 0.5f, 0.2f, 0.9f, 0.1f, 0x1p-149f, 1 - 0x1p-24f}};
static const value_table sigmas = {5, 8, {0, 1, 2, 0.5f, 3, 1e-3f, 0x1p-149f, FLT_MAX}};
static const value_table epsilons = {
    6, 8, {0, 3e-4f, 9e-4f, 0.01f, 0.1f, 0.5f, 0x1p-149f, 1 - 0x1p-24f}};
static const value_table etas = {5, 7, {0, 2e-3f, 3e-4f, 0.1f, 0.5f, 0x1p-149f, 1 - 0x1p-24f}};
static const value_table top_as = {5, 6, {0, 0.2f, 0.1f, 0.5f, 1, 0x1p-149f}};
static const value_table surprises = {6, 9, {INFINITY, 5, 10, 3, 1, 0.5f, 0, 1e-30f, FLT_MAX}};
static const value_table xtc_ps = {6, 8, {0, 0.5f, 0.5f, 1, 0.1f, 0.9f, 0x1p-149f, 1 - 0x1p-24f}};
static const value_table xtc_ts = {
    7, 10, {0.1f, 0.1f, 0.05f, 0.2f, 0.01f, 0.5f, 0.02f, 1, 0.6f, 0x1p-149f}};
static const value_table factors = {5, 7, {0, 0.2f, 0.5f, 1, 0.05f, 1e-3f, 10}};
static const value_table curves = {5, 5, {1, 1, 2, 3, 1.5f}};
static const value_table targets = {
    5, 10, {0.5f, 0.3f, 0.1f, 0.9f, -1, 0, 1, 0x1p-149f, 1e-4f, -0.5f}};
static const value_table ranges = {5, 6, {0, 0.3f, 0.5f, 1, 0.1f, 5}};
static const value_table exponents = {5, 7, {1, 1, 2, 0.5f, 0, 1e-3f, 30}};

/* A parameter of each row, of every slot of the table; or none, or one for all rows. */
static gumbel_row_f32 choose_rows(request *generated, const value_table *table, uint64_t *random)
{
    const int64_t batch = generated->plan.batch;
    const uint32_t choice = random_below(random, 8);
    const uint32_t count = (uint32_t)(generated->plan.usual ? table->usual : table->all);
    float *data = request_allocate(generated, (size_t)batch, sizeof *data);
    for (int64_t b = 0; b < batch; b++)
        data[b] = table->values[random_below(random, count)];
    return choice == 0   ? (gumbel_row_f32){NULL, 0}
           : choice == 1 ? (gumbel_row_f32){data, GUMBEL_SAME}
                         : (gumbel_row_f32){data, choice % 2};
}

static gumbel_row_i32 choose_integers(request *generated, const int32_t *values, uint32_t count,
                                      uint64_t *random)
{
    int32_t *data = request_allocate(generated, (size_t)generated->plan.batch, sizeof *data);
    for (int64_t b = 0; b < generated->plan.batch; b++)
        data[b] = values[random_below(random, count)];
    return (gumbel_row_i32){data, random_below(random, 4) ? 0 : GUMBEL_SAME};
}

/* A program of 1 to 6 rules. XTC is last, or TEMPERATURE follows if it does not depend on the
 * entropy. ADAPTIVE_P follows a fourth of the programs without XTC. */
static void make_program(uint8_t *rules, int has_range, uint64_t *random)
{
    uint8_t all[GUMBEL_PROGRAM_LENGTH];
    int count = 1 + (int)random_below(random, 6), xtc = -1, temperature = -1, last = count - 1;
    for (uint32_t i = 0; i < GUMBEL_PROGRAM_SMOOTHING; i++) {
        const uint32_t at = random_below(random, i + 1);
        all[i] = all[at];
        all[at] = (uint8_t)(i + 1);
    }
    for (int i = 0; i < count; i++) {
        temperature = all[i] == GUMBEL_PROGRAM_TEMPERATURE ? i : temperature;
        xtc = all[i] == GUMBEL_PROGRAM_XTC ? i : xtc;
    }
    if (temperature < 0) {
        temperature = (int)random_below(random, (uint32_t)count);
        xtc = temperature == xtc ? -1 : xtc;
        all[temperature] = GUMBEL_PROGRAM_TEMPERATURE;
    }
    if (xtc >= 0) {
        const int follows = !has_range && count > 1 && random_below(random, 2);
        all[xtc] = all[last];
        all[last] = GUMBEL_PROGRAM_XTC;
        for (int i = 0; i < last && follows; i++)
            if (all[i] == GUMBEL_PROGRAM_TEMPERATURE) {
                all[i] = all[last - 1];
                all[last - 1] = GUMBEL_PROGRAM_XTC;
                all[last] = GUMBEL_PROGRAM_TEMPERATURE;
                break;
            }
    }
    if (xtc < 0 && random_below(random, 4) == 0)
        all[count++] = GUMBEL_PROGRAM_ADAPTIVE_P;
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH; i++)
        rules[i] = i < count ? all[i] : GUMBEL_PROGRAM_END;
}

/* A program of TEMPERATURE and a rule that keeps an interval of values, in either order. */
static void make_single_program(uint8_t *rules, uint64_t *random)
{
    static const uint8_t intervals[] = {GUMBEL_PROGRAM_TYPICAL_P, GUMBEL_PROGRAM_TOP_P,
                                        GUMBEL_PROGRAM_EPSILON,   GUMBEL_PROGRAM_ETA,
                                        GUMBEL_PROGRAM_TOP_A,     GUMBEL_PROGRAM_P_LESS,
                                        GUMBEL_PROGRAM_SURPRISE,  GUMBEL_PROGRAM_TOP_N_SIGMA};
    const uint32_t at = random_below(random, 2);
    rules[at] = intervals[random_below(random, sizeof intervals)];
    rules[1 - at] = GUMBEL_PROGRAM_TEMPERATURE;
}

void request_make_programs(request *generated, uint64_t *random)
{
    const int single = generated->plan.single_rule;
    const int32_t v = (int32_t)generated->plan.vocab, count = generated->plan.programs;
    const int32_t keeps[] = {1, 1, 1, 2, 3, 5, v, v + 7, INT32_MAX};
    gumbel_programs *q = &generated->programs;
    uint8_t *rules = request_allocate(generated, (size_t)count, GUMBEL_PROGRAM_LENGTH);
    int32_t *indices = request_allocate(generated, (size_t)count, sizeof *indices);
    *q = (gumbel_programs){.struct_size = sizeof *q, .rules = rules, .count = count};
    if (!single && random_below(random, 3) == 0) {
        q->temperature_range = choose_rows(generated, &ranges, random);
        q->temperature_exponent = choose_rows(generated, &exponents, random);
    }
    for (int32_t i = 0; i < count; i++) {
        uint8_t *own = rules + i * GUMBEL_PROGRAM_LENGTH;
        if (single)
            make_single_program(own, random);
        else
            make_program(own, q->temperature_range.data != NULL, random);
        indices[i] = i;
    }
    if (count > 1)
        q->program = choose_integers(generated, indices, (uint32_t)count, random);
    if (!single && random_below(random, 3) == 0)
        q->min_keep = choose_integers(generated, keeps, generated->plan.usual ? 6 : 9, random);
    q->typical_p = choose_rows(generated, &typical_ps, random);
    q->top_n_sigma = choose_rows(generated, &sigmas, random);
    q->epsilon = choose_rows(generated, &epsilons, random);
    q->eta = choose_rows(generated, &etas, random);
    q->top_a = choose_rows(generated, &top_as, random);
    q->surprise = choose_rows(generated, &surprises, random);
    q->xtc_probability = choose_rows(generated, &xtc_ps, random);
    q->xtc_threshold = choose_rows(generated, &xtc_ts, random);
    q->smoothing_factor = choose_rows(generated, &factors, random);
    q->smoothing_curve = choose_rows(generated, &curves, random);
    q->adaptive_target = choose_rows(generated, &targets, random);
    if (random_below(random, 4) == 0)
        q->xtc_keep = request_make_lists(generated, 3, NULL, 0, random);
    generated->truncation.programs = q;
}

int request_set_order_program(request *req)
{
    enum {
        T = GUMBEL_PROGRAM_TEMPERATURE,
        MIN_P = GUMBEL_PROGRAM_MIN_P,
        TOP_K = GUMBEL_PROGRAM_TOP_K,
        TOP_P = GUMBEL_PROGRAM_TOP_P,
    };
    static const uint8_t rules[REQUEST_ORDERS][GUMBEL_PROGRAM_LENGTH] = {
        [GUMBEL_ORDER_MIN_P_TOP_K_TOP_P] = {T, MIN_P, TOP_K, TOP_P},
        [GUMBEL_ORDER_BEFORE_TEMPERATURE] = {MIN_P, TOP_K, TOP_P, T},
        [GUMBEL_ORDER_TOP_K_TOP_P_MIN_P] = {T, TOP_K, TOP_P, MIN_P},
        [GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE] = {TOP_K, TOP_P, MIN_P, T},
    };
    const uint8_t *own = rules[req->plan.order];
    if (own[0] == GUMBEL_PROGRAM_END)
        return 0;
    req->programs =
        (gumbel_programs){.struct_size = sizeof req->programs, .rules = own, .count = 1};
    req->truncation.programs = &req->programs;
    return 1;
}

void request_skip_programs(gumbel_programs *q, int64_t first)
{
    gumbel_row_f32 *floats[] = {&q->temperature_range,
                                &q->temperature_exponent,
                                &q->typical_p,
                                &q->top_n_sigma,
                                &q->epsilon,
                                &q->eta,
                                &q->top_a,
                                &q->surprise,
                                &q->xtc_probability,
                                &q->xtc_threshold,
                                &q->smoothing_factor,
                                &q->smoothing_curve,
                                &q->adaptive_target};
    gumbel_row_i32 *integers[] = {&q->program, &q->min_keep};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        if (floats[i]->data && floats[i]->stride != GUMBEL_SAME)
            floats[i]->data += first * (floats[i]->stride ? floats[i]->stride : 1);
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        if (integers[i]->data && integers[i]->stride != GUMBEL_SAME)
            integers[i]->data += first * (integers[i]->stride ? integers[i]->stride : 1);
}
