/* SPDX-License-Identifier: Apache-2.0
 *
 * Determines verdicts by passes over the lower and the upper bounds of a row's values. If the
 * bounds do not determine a verdict, more values are computed exactly: for top_k those of tokens
 * that may come before or after the token in question, for top_p the largest ones, which hold most
 * of the mass.
 */
#include "cpu/rows/cpu_screen_verdict.h"

#include "core/fail.h"
#include "cpu/cpu_policy.h"
#include "cpu/rows/cpu_truncate.h"

static void reload_values(cpu_verdict_state *state)
{
    state->upper = cpu_get_staged_values(&state->screen->upper_job, state->b);
    state->lower = cpu_get_staged_values(&state->screen->lower_job, state->b);
}

/* The staged bounds of a block, which may be overwritten. */
static float *get_bounds(const cpu_job *job, int64_t b, int64_t block)
{
    return (float *)(uintptr_t)cpu_get_staged_block(job, b, block);
}

/* ------------------------------------------------------------------------- exact values ---- */

/* Computes the value of token i of a block and stores it as both of its bounds. A value outside of
 * its bounds shows a stale screen: it is not stored, as all passes rely on ordered, finite bounds,
 * and 0 is returned. */
static int compute_value(cpu_verdict_state *state, int64_t block, int i)
{
    const cpu_screen *screen = state->screen;
    float *upper = get_bounds(&screen->upper_job, state->b, block);
    float *lower = get_bounds(&screen->lower_job, state->b, block);
    int64_t token = screen->upper_job.first_tile + block * GUMBEL_BLOCK + i;
    float value =
        cpu_compute_exact_value(screen, state->thread, state->b, token,
                                cpu_find_staged_temperature(screen->exact_job.problem, state->b));
    if (!(lower[i] <= value && value <= upper[i])) {
        state->stale = 1;
        state->budget = 0;
        return 0;
    }
    upper[i] = lower[i] = value;
    state->budget--;
    return 1;
}

/* Updates the maxima of a block whose bounds have changed. */
static void update_block_maxima(cpu_verdict_state *state, int64_t block)
{
    const cpu_screen *screen = state->screen;
    int64_t at = state->b * screen->upper_stage.maxima_stride + block;
    state->kernels->find_maxima(get_bounds(&screen->upper_job, state->b, block), 1,
                                &screen->upper_stage.block_maxima[at]);
    state->kernels->find_maxima(get_bounds(&screen->lower_job, state->b, block), 1,
                                &screen->lower_stage.block_maxima[at]);
}

/* Computes up to max_count inexact values whose upper bound is at least min_upper and whose lower
 * bound is at most max_lower. Returns their number; 0 if the screen is found stale. */
static int32_t compute_values_between(cpu_verdict_state *state, float min_upper, float max_lower,
                                      int32_t max_count)
{
    const cpu_screen *screen = state->screen;
    const cpu_stage *stage = &screen->upper_stage;
    const float *maxima = stage->block_maxima + state->b * stage->maxima_stride;
    int32_t computed = 0;
    max_count = max_count < state->budget ? max_count : state->budget;
    for (int64_t block = 0; block < stage->blocks && computed < max_count; block++) {
        int32_t before = computed;
        if (maxima[block] < min_upper)
            continue;
        const float *upper = get_bounds(&screen->upper_job, state->b, block);
        const float *lower = get_bounds(&screen->lower_job, state->b, block);
        for (int i = 0; i < GUMBEL_BLOCK && computed < max_count; i++)
            if (upper[i] >= min_upper && lower[i] <= max_lower && lower[i] < upper[i]) {
                if (!compute_value(state, block, i))
                    return 0;
                computed++;
            }
        if (computed > before)
            update_block_maxima(state, block);
    }
    if (computed > 0)
        reload_values(state);
    return computed;
}

int cpu_compute_values_from(cpu_verdict_state *state, float min_upper)
{
    compute_values_between(state, min_upper, INFINITY, INT32_MAX);
    return !state->stale && state->budget > 0;
}

/* The n-th largest upper bound. */
static float find_nth_upper(const cpu_verdict_state *state, int64_t n)
{
    cpu_selection nth =
        cpu_select_nth_largest(state->kernels, &state->upper, n, -FLT_MAX, state->bins);
    return nth.reached ? nth.value : -FLT_MAX;
}

float cpu_find_exact_value(cpu_verdict_state *state, int64_t token)
{
    int64_t at = token - state->screen->upper_job.first_tile, block = at / GUMBEL_BLOCK;
    int i = (int)(at % GUMBEL_BLOCK);
    const float *upper = get_bounds(&state->screen->upper_job, state->b, block);
    const float *lower = get_bounds(&state->screen->lower_job, state->b, block);
    if (lower[i] < upper[i] && compute_value(state, block, i)) {
        update_block_maxima(state, block);
        reload_values(state);
    }
    return upper[i];
}

int cpu_find_largest_value(cpu_verdict_state *state)
{
    if (!(state->rules.min_p > 0.0f || state->rules.top_p < 1.0f))
        return 1;
    /* The largest lower bound is the largest value once it reaches every upper bound. */
    for (int64_t n = CPU_SCREEN_LARGEST; state->upper.largest > state->lower.largest; n *= 2) {
        float min_upper = fmaxf(find_nth_upper(state, n), state->lower.largest);
        if (compute_values_between(state, min_upper, INFINITY, INT32_MAX) == 0)
            return 0;
    }
    state->largest = state->upper.largest;
    return 1;
}

int cpu_init_verdict_state(cpu_verdict_state *state, cpu_screen *screen, int64_t b, int32_t thread,
                           cpu_weight *bins)
{
    const gumbel_problem *p = screen->exact_job.problem;
    *state = (cpu_verdict_state){.screen = screen,
                                 .kernels = screen->exact_job.device->kernels,
                                 .b = b,
                                 .thread = thread,
                                 .rules = gumbel_problem_rules(p, b, 0),
                                 .largest = NAN,
                                 .budget = (int32_t)(p->vocab / CPU_SCREEN_TRUNCATION_FRACTION) +
                                           CPU_SCREEN_TRUNCATION_MIN,
                                 .bins = bins};
    reload_values(state);
    return cpu_find_largest_value(state);
}

/* -------------------------------------------------------------------------------- top_k ---- */

/* If ties are broken by id, each token with an equal value may come before this one or not. One of
 * them is the token itself, which max_before excludes. */
static gumbel_token_verdict determine_top_k_verdict(cpu_verdict_state *state, float value)
{
    int exact = state->rules.exact;
    float below = exact ? nextafterf(value, -INFINITY) : value;
    float tied = exact ? value : nextafterf(value, INFINITY);
    for (int32_t count = CPU_SCREEN_CHUNK;; count *= 2) {
        int64_t min_before = cpu_count_row_above(state->kernels, &state->lower, 1.0f, value);
        int64_t max_before =
            cpu_count_row_above(state->kernels, &state->upper, 1.0f, below) - exact;
        gumbel_token_verdict verdict =
            gumbel_determine_top_k_verdict(state->rules.top_k, min_before, max_before);
        if (verdict != GUMBEL_TOKEN_UNDECIDED ||
            compute_values_between(state, tied, value, count) == 0)
            return verdict;
    }
}

/* -------------------------------------------------------------------------------- top_p ---- */

static gumbel_wide sum_masses(const cpu_verdict_state *state, const cpu_values *values, float bound)
{
    gumbel_wide mass;
    cpu_sum_row_masses(state->kernels, values, bound, state->largest, &mass);
    return mass;
}

/* Single values whose masses are summed a block at a time. */
typedef struct mass_buffer {
    float v[GUMBEL_BLOCK], bound;
    int count;
    cpu_weight sum;
} mass_buffer;

static void flush_masses(const cpu_verdict_state *state, mass_buffer *m)
{
    float largest = INFINITY;
    cpu_span one = {m->v, &largest, 1, 1};
    for (int i = m->count; i < GUMBEL_BLOCK; i++)
        m->v[i] = -INFINITY;
    state->kernels->sum_masses(&one, m->bound, state->largest, &m->sum);
    m->count = 0;
}

static void add_mass_of(const cpu_verdict_state *state, mass_buffer *m, float v)
{
    m->v[m->count++] = v;
    if (m->count == GUMBEL_BLOCK)
        flush_masses(state, m);
}

/* The other tokens that may come before or after a token: their number, and the masses of their
 * lower bounds. */
typedef struct undecided_tokens {
    int64_t count;
    mass_buffer lower;
} undecided_tokens;

static void find_undecided(const cpu_verdict_state *state, int64_t token, float value, float bound,
                           undecided_tokens *undecided)
{
    const cpu_screen *screen = state->screen;
    const cpu_stage *stage = &screen->upper_stage;
    const float *maxima = stage->block_maxima + state->b * stage->maxima_stride;
    float min_upper = state->rules.exact ? value : nextafterf(value, INFINITY);
    undecided->count = 0;
    undecided->lower = (mass_buffer){.bound = bound};
    for (int64_t block = 0; block < stage->blocks; block++) {
        int64_t own = token - screen->upper_job.first_tile - block * GUMBEL_BLOCK;
        if (maxima[block] < min_upper)
            continue;
        const float *upper = get_bounds(&screen->upper_job, state->b, block);
        const float *lower = get_bounds(&screen->lower_job, state->b, block);
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            if (upper[i] >= min_upper && lower[i] <= value && i != own) {
                undecided->count++;
                add_mass_of(state, &undecided->lower, lower[i]);
            }
    }
    flush_masses(state, &undecided->lower);
}

/* Bounds of the base of top_p, the tokens whose mass top_p takes a fraction of. */
typedef struct top_p_base {
    float certain;  /* all values of at least this one are in the base */
    float possible; /* no value below this one is in the base */
    gumbel_wide
        removed; /* mass of tied tokens that are not in the base, although their values are */
} top_p_base;

/* Bounds the base of top_p. A token is certainly among the top_k if fewer than k upper bounds reach
 * its lower bound, and certainly not if k lower bounds exceed its upper bound. With `known`, all
 * values that may be among the top_k are exact, and so is the base. */
static top_p_base find_top_p_base(const cpu_verdict_state *state, int known)
{
    gumbel_cutoff first = gumbel_cutoff_before_top_k(&state->rules, state->largest);
    gumbel_cutoff all = gumbel_cutoff_before_top_p(&state->rules, first);
    top_p_base base = {all.bound, all.bound, 0};
    if (state->rules.joint || state->rules.top_k == 0)
        return base;
    cpu_selection lower = cpu_select_nth_largest(state->kernels, &state->lower, state->rules.top_k,
                                                 first.bound, state->bins);
    cpu_selection upper = cpu_select_nth_largest(state->kernels, &state->upper, state->rules.top_k,
                                                 first.bound, state->bins);
    base.possible = lower.reached ? lower.value : first.bound;
    base.certain = upper.reached ? nextafterf(upper.value, INFINITY) : first.bound;
    if (!known)
        return base;
    base.certain = base.possible;
    if (lower.reached && state->rules.exact) {
        gumbel_cutoff cutoff =
            gumbel_cutoff_by_top_k(&state->rules, lower.value, (int64_t)lower.above);
        uint64_t each = gumbel_token_mass(gumbel_exp(cutoff.bound - state->largest));
        base.removed = (gumbel_wide)((int64_t)lower.at - cutoff.tied) * each;
    }
    return base;
}

/* The verdict of top_p from bounds of two masses: of the tokens before this one, and of the
 * remaining tokens of the base. */
static gumbel_token_verdict compare_masses(const cpu_verdict_state *state, int64_t token,
                                           float value, top_p_base base)
{
    float next = nextafterf(value, INFINITY);
    gumbel_wide own = gumbel_token_mass(gumbel_exp(value - state->largest));
    undecided_tokens undecided;
    find_undecided(state, token, value, base.certain, &undecided);
    gumbel_wide min_before = sum_masses(state, &state->lower, next);
    gumbel_wide max_before = state->rules.exact ? sum_masses(state, &state->upper, value) - own
                                                : sum_masses(state, &state->upper, next);
    /* An undecided token is before this one, or it adds at most this token's mass to the remaining
     * mass. */
    gumbel_wide min_remaining = sum_masses(state, &state->lower, base.certain) -
                                sum_masses(state, &state->lower, fmaxf(base.certain, next)) -
                                cpu_join_weight(undecided.lower.sum) +
                                (value < base.certain ? own : 0);
    gumbel_wide max_remaining = sum_masses(state, &state->upper, base.possible) - max_before +
                                (gumbel_wide)undecided.count * own;
    int64_t tokens = state->screen->exact_job.problem->vocab;
    if (max_remaining < base.removed || min_remaining > max_remaining)
        return GUMBEL_TOKEN_UNDECIDED;
    min_remaining = min_remaining > base.removed ? min_remaining - base.removed : 0;
    return gumbel_determine_top_p_verdict(
        state->rules.top_p, gumbel_bound_mass_sum(min_before, max_before, tokens),
        gumbel_bound_mass_sum(min_remaining, max_remaining - base.removed, tokens));
}

/* Compares masses with more and more exact values, the largest first, until the verdict is
 * known. */
static gumbel_token_verdict determine_top_p_verdict(cpu_verdict_state *state, int64_t token,
                                                    float value)
{
    int known = 0;
    for (int64_t n = CPU_SCREEN_CHUNK;; n *= 2) {
        top_p_base base = find_top_p_base(state, known);
        gumbel_token_verdict verdict = compare_masses(state, token, value, base);
        if (verdict != GUMBEL_TOKEN_UNDECIDED || known || state->budget <= 0)
            return verdict;
        float min_upper = fmaxf(find_nth_upper(state, n), base.possible);
        known = compute_values_between(state, min_upper, INFINITY, INT32_MAX) == 0 &&
                min_upper <= base.possible;
    }
}

/* ----------------------------------------------------------------------------- verdicts ---- */

float cpu_find_min_p_bound(const cpu_verdict_state *state)
{
    if (!(state->rules.min_p > 0.0f))
        return -FLT_MAX;
    return gumbel_min_p_bound(state->largest, gumbel_log_min_p(state->rules.min_p));
}

gumbel_token_verdict cpu_determine_verdict(cpu_verdict_state *state, int64_t token, float value)
{
    gumbel_token_verdict verdict = GUMBEL_TOKEN_KEPT;
    if (state->rules.min_p > 0.0f && value < cpu_find_min_p_bound(state))
        return GUMBEL_TOKEN_TRUNCATED;
    if (state->rules.top_k > 0)
        verdict = determine_top_k_verdict(state, value);
    if (verdict == GUMBEL_TOKEN_KEPT && state->rules.top_p < 1.0f)
        verdict = determine_top_p_verdict(state, token, value);
    return state->stale ? GUMBEL_TOKEN_UNDECIDED : verdict;
}

float cpu_find_nth_lower(const cpu_verdict_state *state, int64_t n)
{
    cpu_selection nth =
        cpu_select_nth_largest(state->kernels, &state->lower, n, -FLT_MAX, state->bins);
    return nth.reached ? nth.value : -FLT_MAX;
}

float cpu_find_removal_threshold(const cpu_verdict_state *state)
{
    float bound = cpu_find_min_p_bound(state);
    if (state->rules.top_k == 0)
        return bound;
    return fmaxf(cpu_find_nth_lower(state, state->rules.top_k), bound);
}
