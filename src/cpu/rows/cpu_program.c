/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass over a row skips the blocks whose maximum is -inf. After the first rule that removes most
 * tokens, a pass therefore takes a microsecond.
 */
#include "cpu/rows/cpu_program.h"

#include "core/fail.h"
#include "core/row_program.h"
#include "cpu/rows/cpu_program_sums.h"
#include "cpu/rows/cpu_truncate.h"

/* The state of a row that runs its program. */
typedef struct program_run {
    cpu_rows_call *call;
    int64_t b;
    gumbel_row_program program;
    cpu_program_row row;
    int has_xtc;     /* XTC found tokens to exclude */
    float xtc_value; /* the smallest value that reached its threshold; changed with the values */
} program_run;

/* The looser one of a rule's cutoff and the cutoff that min_keep allows. */
static gumbel_cutoff apply_min_keep(const program_run *run, gumbel_cutoff cutoff)
{
    const gumbel_row_program *q = &run->program;
    cpu_weight bins[CPU_BINS];
    if (q->min_keep == 1)
        return cutoff;
    cpu_values values = cpu_get_program_values(&run->row);
    cpu_selection nth =
        cpu_select_nth_largest(run->row.kernels, &values, q->min_keep, -FLT_MAX, bins);
    if (!nth.reached)
        return (gumbel_cutoff){-FLT_MAX, GUMBEL_TIES_ALL_KEPT};
    const int64_t tied = q->min_keep - (int64_t)nth.above;
    if (nth.value < cutoff.bound && cutoff.tied == GUMBEL_TIES_ALL_KEPT)
        return (gumbel_cutoff){nth.value, GUMBEL_TIES_ALL_KEPT};
    if (nth.value < cutoff.bound || (nth.value == cutoff.bound && cutoff.tied < tied))
        return (gumbel_cutoff){nth.value, tied};
    return cutoff;
}

static void run_top_k(program_run *run)
{
    const gumbel_row_program *q = &run->program;
    cpu_weight bins[CPU_BINS];
    cpu_values values = cpu_get_program_values(&run->row);
    cpu_selection nth = cpu_select_nth_largest(run->row.kernels, &values, q->top_k, -FLT_MAX, bins);
    if (nth.reached)
        cpu_remove_below(&run->row,
                         (gumbel_cutoff){nth.value, q->exact ? q->top_k - (int64_t)nth.above
                                                             : GUMBEL_TIES_ALL_KEPT});
}

static void run_top_p(program_run *run)
{
    const gumbel_row_program *q = &run->program;
    cpu_weight bins[CPU_BINS];
    cpu_values values = cpu_get_program_values(&run->row);
    const gumbel_rules rules = {.top_p = q->top_p, .exact = q->exact};
    gumbel_cutoff cutoff = cpu_find_truncation(run->row.kernels, &values, &rules, bins);
    cpu_remove_below(&run->row, apply_min_keep(run, cutoff));
}

static void run_typical_p(program_run *run)
{
    const gumbel_row_program *q = &run->program;
    const gumbel_facts facts = cpu_sum_facts(&run->row, GUMBEL_FACT_ENTROPY);
    const float centre = gumbel_log_mass(facts.mass) - gumbel_facts_entropy(&facts);
    float reach = cpu_select_typical_mass(&run->row, centre, q->typical_p, &facts);
    if (q->min_keep > 1)
        reach = fmaxf(reach, cpu_select_typical_count(&run->row, centre, q->min_keep));
    cpu_remove_atypical(&run->row, centre, reach);
}

/* Finds the tokens that XTC may exclude; the end of the program excludes them. */
static void run_xtc(program_run *run)
{
    const gumbel_row_program *q = &run->program;
    const gumbel_facts facts = cpu_sum_facts(&run->row, GUMBEL_FACT_MASS);
    const float bound = gumbel_threshold_below(
        cpu_get_program_values(&run->row).largest,
        -(gumbel_log_mass(facts.mass) + gumbel_log_probability(q->xtc_threshold)));
    run->has_xtc = cpu_find_smallest_from(&run->row, bound, &run->xtc_value) >= 2;
}

static void run_temperature(program_run *run)
{
    const gumbel_row_program *q = &run->program;
    float temperature = q->temperature;
    if (q->temperature_range > 0.0f) {
        const gumbel_facts facts = cpu_sum_facts(&run->row, GUMBEL_FACT_ENTROPY);
        temperature = gumbel_dynamic_temperature(&facts, temperature, q->temperature_range,
                                                 q->temperature_exponent);
    }
    const float factor = fminf(1.0f / temperature, GUMBEL_INVERSE_TEMPERATURE_HIGHEST);
    cpu_scale_program_row(&run->row, factor);
    run->xtc_value *= factor;
}

static int is_token_kept_by_list(const program_run *run)
{
    const gumbel_problem *p = &run->call->problem;
    const gumbel_token_lists *lists = &p->programs.xtc_keep;
    if (!lists->offsets)
        return 0;
    const int64_t list = gumbel_problem_list_of_row(p, run->b);
    for (int64_t i = lists->offsets[list]; i < lists->offsets[list + 1]; i++)
        if (lists->ids[i] >= p->first_token && lists->ids[i] < p->end_token &&
            cpu_is_excluded(&run->row, lists->ids[i]))
            return 1;
    return 0;
}

/* Excludes the tokens that XTC has found: adds a constant to their values, or removes them. */
static void exclude_top_choices(program_run *run)
{
    const gumbel_row_program *q = &run->program;
    cpu_program_row *row = &run->row;
    cpu_set_exclusion(row, run->xtc_value, q->exact);
    const cpu_exclusion sums = cpu_sum_exclusion(row);
    if (sums.excluded_count == 0 || sums.remaining_count < q->min_keep ||
        is_token_kept_by_list(run))
        return;
    const float distance = cpu_get_program_values(row).largest - run->xtc_value;
    cpu_shift_excluded(
        row, gumbel_xtc_shift(q->xtc_probability, sums.excluded, sums.remaining, distance));
}

/* Runs a rule that removes all values below a threshold of its own. */
static void run_threshold(program_run *run, gumbel_program_rule rule)
{
    const int required = gumbel_threshold_facts(rule);
    const gumbel_facts facts = required ? cpu_sum_facts(&run->row, required) : (gumbel_facts){0};
    const float distance = gumbel_threshold_distance(&run->program, rule, &facts);
    const float largest = cpu_get_program_values(&run->row).largest;
    const gumbel_cutoff cutoff = {gumbel_threshold_below(largest, distance), GUMBEL_TIES_ALL_KEPT};
    cpu_remove_below(&run->row, apply_min_keep(run, cutoff));
}

static void run_rule(program_run *run, gumbel_program_rule rule)
{
    switch (rule) {
    case GUMBEL_PROGRAM_TEMPERATURE:
        run_temperature(run);
        break;
    case GUMBEL_PROGRAM_SMOOTHING:
        cpu_smooth_program_row(&run->row, run->program.smoothing_factor,
                               run->program.smoothing_curve);
        break;
    case GUMBEL_PROGRAM_ADAPTIVE_P:
        cpu_adapt_program_row(&run->row, run->program.adaptive_target);
        break;
    case GUMBEL_PROGRAM_TOP_K:
        run_top_k(run);
        break;
    case GUMBEL_PROGRAM_TOP_P:
        run_top_p(run);
        break;
    case GUMBEL_PROGRAM_TYPICAL_P:
        run_typical_p(run);
        break;
    case GUMBEL_PROGRAM_XTC:
        run_xtc(run);
        break;
    default:
        run_threshold(run, rule);
    }
}

void cpu_run_program(cpu_rows_call *r, int64_t b, int first_rule)
{
    program_run run = {.call = r,
                       .b = b,
                       .program = gumbel_problem_program(&r->problem, b),
                       .row = cpu_make_program_row(&r->job, b)};
    for (int i = first_rule; i < GUMBEL_PROGRAM_LENGTH; i++) {
        const gumbel_program_rule rule = (gumbel_program_rule)run.program.rules[i];
        if (!gumbel_rule_is_on(&run.program, rule))
            continue;
        run_rule(&run, rule);
        if (!isfinite(cpu_get_program_values(&run.row).largest))
            return; /* a temperature made the values infinite */
    }
    if (run.has_xtc)
        exclude_top_choices(&run);
}
