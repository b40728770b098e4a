/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether tokens of a row stay, by passes over both ends of its values, which are as fast as those
 * over values. What they leave open is scored exactly: tokens that may stand on either side of the
 * one in question, or the largest ones, of which most of the mass is.
 */
#include "cpu/rows/cpu_screen_judge.h"

#include "core/fail.h"
#include "cpu/cpu_policy.h"
#include "cpu/rows/cpu_truncate.h"

static void refresh(cpu_judged *j)
{
    j->upper = cpu_stage_values(&j->screen->upper, j->b);
    j->lower = cpu_stage_values(&j->screen->lower, j->b);
}

/* The ends of a block; they may be written. */
static float *block_of(const cpu_job *job, int64_t b, int64_t block)
{
    return (float *)(uintptr_t)cpu_stage_block(job, b, block);
}

/* ------------------------------------------------------------------------- exact values ---- */

/* Score token i of a block, and store its value as both of its bounds. A value outside of them
 * shows stale weights: it is not stored, as all passes rely on ordered, finite bounds, and 0 is
 * returned. */
static int score_at(cpu_judged *j, int64_t block, int i)
{
    const cpu_screen *screen = j->screen;
    float *upper = block_of(&screen->upper, j->b, block);
    float *lower = block_of(&screen->lower, j->b, block);
    int64_t token = screen->upper.first_tile + block * GUMBEL_BLOCK + i;
    float value = cpu_screen_value(screen, j->thread, j->b, token,
                                   cpu_stage_temperature(screen->exact.problem, j->b));
    if (!(lower[i] <= value && value <= upper[i])) {
        j->stale = 1;
        j->left = 0;
        return 0;
    }
    upper[i] = lower[i] = value;
    j->left--;
    return 1;
}

/* The peaks of a block whose ends have changed. */
static void survey_block(cpu_judged *j, int64_t block)
{
    const cpu_screen *screen = j->screen;
    int64_t at = j->b * screen->uppers.peak_room + block;
    j->kernels->survey(block_of(&screen->upper, j->b, block), 1, &screen->uppers.peaks[at]);
    j->kernels->survey(block_of(&screen->lower, j->b, block), 1, &screen->lowers.peaks[at]);
}

/* Score up to `most` tokens that are not exact, with an upper end of at least `least` and a lower
 * one of at most `level`; how many there were. 0 where one of them is found stale. */
static int32_t score_between(cpu_judged *j, float least, float level, int32_t most)
{
    const cpu_screen *screen = j->screen;
    const float *peaks = screen->uppers.peaks + j->b * screen->uppers.peak_room;
    int32_t scored = 0;
    most = most < j->left ? most : j->left;
    for (int64_t block = 0; block < screen->uppers.blocks && scored < most; block++) {
        int32_t before = scored;
        if (peaks[block] < least)
            continue;
        const float *upper = block_of(&screen->upper, j->b, block);
        const float *lower = block_of(&screen->lower, j->b, block);
        for (int i = 0; i < GUMBEL_BLOCK && scored < most; i++)
            if (upper[i] >= least && lower[i] <= level && lower[i] < upper[i]) {
                if (!score_at(j, block, i))
                    return 0;
                scored++;
            }
        if (scored > before)
            survey_block(j, block);
    }
    if (scored > 0)
        refresh(j);
    return scored;
}

/* The n-th largest upper end. */
static float nth_upper(const cpu_judged *j, int64_t n)
{
    cpu_landing nth = cpu_nth_largest(j->kernels, &j->upper, n, -FLT_MAX, j->bins);
    return nth.reached ? nth.value : -FLT_MAX;
}

float cpu_judge_value(cpu_judged *j, int64_t token)
{
    int64_t at = token - j->screen->upper.first_tile, block = at / GUMBEL_BLOCK;
    int i = (int)(at % GUMBEL_BLOCK);
    const float *upper = block_of(&j->screen->upper, j->b, block);
    if (block_of(&j->screen->lower, j->b, block)[i] < upper[i] && score_at(j, block, i)) {
        survey_block(j, block);
        refresh(j);
    }
    return upper[i];
}

/* No value is above the largest lower end that reaches every upper one. */
int cpu_judge_largest(cpu_judged *j)
{
    if (!(j->rules.min_p > 0.0f || j->rules.top_p < 1.0f))
        return 1;
    for (int64_t n = CPU_SCREEN_LARGEST; j->upper.largest > j->lower.largest; n *= 2) {
        float least = fmaxf(nth_upper(j, n), j->lower.largest);
        if (score_between(j, least, INFINITY, INT32_MAX) == 0)
            return 0;
    }
    j->largest = j->upper.largest;
    return 1;
}

int cpu_judge_begin(cpu_judged *j, cpu_screen *screen, int64_t b, int32_t thread, cpu_weight *bins)
{
    const gumbel_problem *p = screen->exact.problem;
    *j = (cpu_judged){.screen = screen,
                      .kernels = screen->exact.device->kernels,
                      .b = b,
                      .thread = thread,
                      .rules = gumbel_problem_rules(p, b, 0),
                      .largest = NAN,
                      .left = (int32_t)(p->vocab / CPU_SCREEN_CUT_SHARE) + CPU_SCREEN_CUT_LEAST,
                      .bins = bins};
    refresh(j);
    return cpu_judge_largest(j);
}

/* ---------------------------------------------------------------------------------- top_k ---- */

static int64_t count_above(const cpu_judged *j, const cpu_values *values, float bound)
{
    int64_t count = 0;
    for (int i = 0; i < values->stretches; i++)
        count += j->kernels->count_above(&values->stretch[i], 1.0f, bound);
    return count;
}

/* Where ties are broken by id, tokens that tie may come before this one or not; it itself is among
 * them. */
static gumbel_token_verdict judge_top_k(cpu_judged *j, float value)
{
    int exact = j->rules.exact;
    float below = exact ? nextafterf(value, -INFINITY) : value;
    float beside = exact ? value : nextafterf(value, INFINITY);
    for (int32_t most_scored = CPU_SCREEN_CHUNK;; most_scored *= 2) {
        int64_t least = count_above(j, &j->lower, value);
        int64_t most = count_above(j, &j->upper, below) - exact;
        gumbel_token_verdict verdict = gumbel_judge_top_k(j->rules.top_k, least, most);
        if (verdict != GUMBEL_TOKEN_UNDECIDED || score_between(j, beside, value, most_scored) == 0)
            return verdict;
    }
}

/* ---------------------------------------------------------------------------------- top_p ---- */

static gumbel_wide weigh(const cpu_judged *j, const cpu_values *values, float bound)
{
    cpu_weight sum = {0};
    for (int i = 0; i < values->stretches; i++)
        j->kernels->weigh(&values->stretch[i], bound, j->largest, &sum);
    return cpu_weight_of(sum);
}

/* Values that are weighed by blocks. */
typedef struct pile {
    float v[GUMBEL_BLOCK], bound;
    int count;
    cpu_weight sum;
} pile;

static void weigh_pile(const cpu_judged *j, pile *p)
{
    float largest = INFINITY;
    cpu_stretch one = {p->v, &largest, 1, 1};
    for (int i = p->count; i < GUMBEL_BLOCK; i++)
        p->v[i] = -INFINITY;
    j->kernels->weigh(&one, p->bound, j->largest, &p->sum);
    p->count = 0;
}

static void add_to_pile(const cpu_judged *j, pile *p, float v)
{
    p->v[p->count++] = v;
    if (p->count == GUMBEL_BLOCK)
        weigh_pile(j, p);
}

/* Tokens but one that may stand on either side of it: how many, and their lower ends. */
typedef struct straddlers {
    int64_t count;
    pile lower;
} straddlers;

static void find_straddlers(const cpu_judged *j, int64_t token, float value, float bound,
                            straddlers *s)
{
    const cpu_screen *screen = j->screen;
    const float *peaks = screen->uppers.peaks + j->b * screen->uppers.peak_room;
    float least = j->rules.exact ? value : nextafterf(value, INFINITY);
    s->count = 0;
    s->lower = (pile){.bound = bound};
    for (int64_t block = 0; block < screen->uppers.blocks; block++) {
        int64_t own = token - screen->upper.first_tile - block * GUMBEL_BLOCK;
        if (peaks[block] < least)
            continue;
        const float *upper = block_of(&screen->upper, j->b, block);
        const float *lower = block_of(&screen->lower, j->b, block);
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            if (upper[i] >= least && lower[i] <= value && i != own) {
                s->count++;
                add_to_pile(j, &s->lower, lower[i]);
            }
    }
    weigh_pile(j, &s->lower);
}

/* What top_p weighs: surely what is not below `least`, and nothing below `most`, of which tokens
 * with the mass `gone` are none. */
typedef struct weighed {
    float least, most;
    gumbel_wide gone;
} weighed;

/* The weighed by the ends as they are. A token is among the top_k for sure where fewer than k upper
 * ends reach its lower one, and is not where k lower ends are above its upper one. Where none of
 * the latter kind is inexact, `known` says so, and the cut is exact. */
static weighed find_weighed(const cpu_judged *j, int known)
{
    gumbel_cutoff first = gumbel_cutoff_before_top_k(&j->rules, j->largest);
    gumbel_cutoff all = gumbel_cutoff_before_top_p(&j->rules, first);
    weighed w = {all.bound, all.bound, 0};
    if (j->rules.joint || j->rules.top_k == 0)
        return w;
    cpu_landing lower =
        cpu_nth_largest(j->kernels, &j->lower, j->rules.top_k, first.bound, j->bins);
    cpu_landing upper =
        cpu_nth_largest(j->kernels, &j->upper, j->rules.top_k, first.bound, j->bins);
    w.most = lower.reached ? lower.value : first.bound;
    w.least = upper.reached ? nextafterf(upper.value, INFINITY) : first.bound;
    if (!known)
        return w;
    w.least = w.most;
    if (lower.reached && j->rules.exact) {
        gumbel_cutoff cut = gumbel_cutoff_by_top_k(&j->rules, lower.value, (int64_t)lower.above);
        uint64_t each = gumbel_token_mass(gumbel_exp(cut.bound - j->largest));
        w.gone = (gumbel_wide)((int64_t)lower.at - cut.tied) * each;
    }
    return w;
}

static gumbel_token_verdict weigh_token(const cpu_judged *j, int64_t token, float value, weighed w)
{
    float next = nextafterf(value, INFINITY);
    gumbel_wide own = gumbel_token_mass(gumbel_exp(value - j->largest));
    straddlers s;
    find_straddlers(j, token, value, w.least, &s);
    gumbel_wide before_least = weigh(j, &j->lower, next);
    gumbel_wide before_most =
        j->rules.exact ? weigh(j, &j->upper, value) - own : weigh(j, &j->upper, next);
    /* One that may come before the token weighs nothing behind it, or no more than it. */
    gumbel_wide rest_least = weigh(j, &j->lower, w.least) -
                             weigh(j, &j->lower, fmaxf(w.least, next)) -
                             cpu_weight_of(s.lower.sum) + (value < w.least ? own : 0);
    gumbel_wide rest_most = weigh(j, &j->upper, w.most) - before_most + (gumbel_wide)s.count * own;
    int64_t tokens = j->screen->exact.problem->vocab;
    if (rest_most < w.gone || rest_least > rest_most)
        return GUMBEL_TOKEN_UNDECIDED;
    rest_least = rest_least > w.gone ? rest_least - w.gone : 0;
    return gumbel_judge_top_p(j->rules.top_p,
                              gumbel_bound_mass_sum(before_least, before_most, tokens),
                              gumbel_bound_mass_sum(rest_least, rest_most - w.gone, tokens));
}

/* By the ends, and by more exact values, the largest first, until they tell. */
static gumbel_token_verdict judge_top_p(cpu_judged *j, int64_t token, float value)
{
    int known = 0;
    for (int64_t n = CPU_SCREEN_CHUNK;; n *= 2) {
        weighed w = find_weighed(j, known);
        gumbel_token_verdict verdict = weigh_token(j, token, value, w);
        if (verdict != GUMBEL_TOKEN_UNDECIDED || known || j->left <= 0)
            return verdict;
        float least = fmaxf(nth_upper(j, n), w.most);
        known = score_between(j, least, INFINITY, INT32_MAX) == 0 && least <= w.most;
    }
}

/* ------------------------------------------------------------------------------- verdicts ---- */

gumbel_token_verdict cpu_judge(cpu_judged *j, int64_t token, float value)
{
    gumbel_token_verdict verdict = GUMBEL_TOKEN_KEPT;
    if (j->rules.min_p > 0.0f &&
        value < gumbel_min_p_bound(j->largest, gumbel_log_min_p(j->rules.min_p)))
        return GUMBEL_TOKEN_TRUNCATED;
    if (j->rules.top_k > 0)
        verdict = judge_top_k(j, value);
    if (verdict == GUMBEL_TOKEN_KEPT && j->rules.top_p < 1.0f)
        verdict = judge_top_p(j, token, value);
    return j->stale ? GUMBEL_TOKEN_UNDECIDED : verdict;
}

float cpu_judge_floor(const cpu_judged *j)
{
    float floor = -FLT_MAX;
    if (j->rules.min_p > 0.0f)
        floor = gumbel_min_p_bound(j->largest, gumbel_log_min_p(j->rules.min_p));
    if (j->rules.top_k == 0)
        return floor;
    cpu_landing k = cpu_nth_largest(j->kernels, &j->lower, j->rules.top_k, floor, j->bins);
    return k.reached ? k.value : floor;
}
