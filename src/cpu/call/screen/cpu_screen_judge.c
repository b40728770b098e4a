/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether tokens of a row stay, by passes over both ends of its values, which are as fast as those
 * over values. What they leave open is scored exactly: tokens that may stand on either side of the
 * one in question, or the largest ones, of which most of the mass is.
 */
#include "cpu/call/screen/cpu_screen_judge.h"

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

/* Score token i of a block, and have its value for both ends. */
static void score_at(cpu_judged *j, int64_t block, int i)
{
    const cpu_screen *screen = j->screen;
    float *upper = block_of(&screen->upper, j->b, block);
    float *lower = block_of(&screen->lower, j->b, block);
    int64_t token = screen->upper.first_tile + block * GUMBEL_BLOCK + i;
    float value = cpu_screen_value(screen, j->thread, j->b, token,
                                   cpu_stage_temperature(screen->exact.problem, j->b));
    GUMBEL_ASSERT(lower[i] <= value && value <= upper[i]);
    upper[i] = lower[i] = value;
    j->left--;
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
 * one of at most `level`; how many there were. */
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
                score_at(j, block, i);
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
    if (block_of(&j->screen->lower, j->b, block)[i] < upper[i]) {
        score_at(j, block, i);
        survey_block(j, block);
        refresh(j);
    }
    return upper[i];
}

/* No value is above the largest lower end that reaches every upper one. */
static int find_largest(cpu_judged *j)
{
    while (j->upper.largest > j->lower.largest) {
        float least = fmaxf(nth_upper(j, CPU_SCREEN_LARGEST), j->lower.largest);
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
    return !(j->rules.min_p > 0.0f || j->rules.top_p < 1.0f) || find_largest(j);
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
static gumbel_verdict judge_top_k(cpu_judged *j, float value)
{
    int exact = j->rules.exact;
    float below = exact ? nextafterf(value, -INFINITY) : value;
    float beside = exact ? value : nextafterf(value, INFINITY);
    for (;;) {
        int64_t least = count_above(j, &j->lower, value);
        int64_t most = count_above(j, &j->upper, below) - exact;
        gumbel_verdict verdict = gumbel_judge_top_k(j->rules.top_k, least, most);
        if (verdict != GUMBEL_VERDICT_OPEN ||
            score_between(j, beside, value, CPU_SCREEN_CHUNK) == 0)
            return verdict;
    }
}

/* Score all that may be among the top_k, the largest first, so that a top_p behind it knows what it
 * weighs. */
static int resolve_top_k(cpu_judged *j, gumbel_cut first)
{
    for (int64_t n = j->rules.top_k;; n += n / 4 + CPU_SCREEN_CHUNK) {
        cpu_landing k =
            cpu_nth_largest(j->kernels, &j->lower, j->rules.top_k, first.bound, j->bins);
        float needed = k.reached ? k.value : first.bound, least = fmaxf(nth_upper(j, n), needed);
        if (score_between(j, least, INFINITY, INT32_MAX) > 0 || least > needed) {
            if (j->left <= 0)
                return 0;
            continue;
        }
        j->behind = k.reached ? gumbel_cut_top_k(&j->rules, k.value, (int64_t)k.above) : first;
        j->excess = k.reached && j->rules.exact ? (int64_t)k.at - j->behind.tied : 0;
        return 1;
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

/* By the ends as they are. What top_p weighs is not below behind.bound, nor is the token. */
static gumbel_verdict weigh_token(const cpu_judged *j, int64_t token, float value,
                                  gumbel_cut behind)
{
    float bound = behind.bound, next = nextafterf(value, INFINITY);
    gumbel_wide own = gumbel_token_mass(gumbel_exp(value - j->largest));
    gumbel_wide gone =
        (gumbel_wide)j->excess * gumbel_token_mass(gumbel_exp(bound - j->largest));
    straddlers s;
    find_straddlers(j, token, value, bound, &s);
    gumbel_wide before_least = weigh(j, &j->lower, next);
    gumbel_wide before_most =
        j->rules.exact ? weigh(j, &j->upper, value) - own : weigh(j, &j->upper, next);
    gumbel_wide all_least = weigh(j, &j->lower, bound), all_most = weigh(j, &j->upper, bound);
    gumbel_wide beside = cpu_weight_of(s.lower.sum);
    GUMBEL_ASSERT(all_least >= before_least + beside && all_most >= before_most);
    /* One that may come before the token weighs nothing behind it, or no more than it. */
    gumbel_wide rest_least = all_least - before_least - beside;
    gumbel_wide rest_most = all_most - before_most + (gumbel_wide)s.count * own;
    int64_t tokens = j->screen->exact.problem->vocab;
    GUMBEL_ASSERT(rest_most >= gone);
    return gumbel_judge_top_p(
        j->rules.top_p, gumbel_mass_between(before_least, before_most, tokens),
        gumbel_mass_between(rest_least > gone ? rest_least - gone : 0, rest_most - gone, tokens));
}

static gumbel_verdict judge_top_p(cpu_judged *j, int64_t token, float value)
{
    gumbel_cut first = gumbel_cut_first(&j->rules, j->largest);
    if (!j->resolved && !j->rules.joint && j->rules.top_k > 0 && !resolve_top_k(j, first))
        return GUMBEL_VERDICT_OPEN;
    if (!j->resolved && (j->rules.joint || j->rules.top_k == 0))
        j->behind = gumbel_cut_weighed(&j->rules, first);
    j->resolved = 1;
    for (int64_t n = CPU_SCREEN_CHUNK;; n *= 2) {
        gumbel_verdict verdict = weigh_token(j, token, value, j->behind);
        if (verdict != GUMBEL_VERDICT_OPEN || j->left <= 0)
            return verdict;
        float least = fmaxf(nth_upper(j, n), j->behind.bound);
        if (score_between(j, least, INFINITY, INT32_MAX) == 0 && least <= j->behind.bound)
            return verdict;
    }
}

/* --------------------------------------------------------------------------------- verdicts ---- */

gumbel_verdict cpu_judge(cpu_judged *j, int64_t token, float value)
{
    gumbel_verdict verdict = GUMBEL_VERDICT_KEPT;
    if (j->rules.min_p > 0.0f &&
        value < gumbel_min_p_bound(j->largest, gumbel_log_min_p(j->rules.min_p)))
        return GUMBEL_VERDICT_CUT;
    if (j->rules.top_k > 0)
        verdict = judge_top_k(j, value);
    if (verdict == GUMBEL_VERDICT_KEPT && j->rules.top_p < 1.0f)
        verdict = judge_top_p(j, token, value);
    return verdict;
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
