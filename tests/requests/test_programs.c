/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs on random rows against the oracle (program_oracle.h): the kept set, every value
 * z, and then every output of a draw, computed from z and the noise of gumbel_prepare_noise().
 */
#include "fixtures.h"
#include "program_oracle.h"
#include "requests.h"
#include "statistics.h"
#include "test_scale.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WALKS_MOST 100 /* of a row, one for each combination of borderline results */
#define TOP        128

/* Rows compared with the oracle. */
typedef struct verdicts {
    int64_t rows, faulty, greedy;
    int64_t borderline; /* rows with several possible kept sets; the library's is one of them */
    int64_t undecided;  /* rows that no walk matched, of which one was undecided */
    int64_t removed;    /* tokens */
    double worst;       /* the largest error of a value, divided by its bound */
} verdicts;

/* Whether z [V] is what a walk found. */
static int is_walk_equal(const oracle_tokens *tokens, const float *z, int64_t vocab, double *worst)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < vocab; i++)
        kept += z[i] > -INFINITY;
    for (int64_t i = 0; i < tokens->count; i++) {
        const oracle_token *at = &tokens->list[i];
        const double error = fabs((double)z[at->id] - at->v);
        if (at->v == -INFINITY ? z[at->id] != -INFINITY : !(error <= at->bound))
            return 0;
        if (at->bound > 0)
            *worst = fmax(*worst, error / at->bound);
    }
    return kept == tokens->count;
}

static void print_walk(const oracle_program *p, const oracle_tokens *tokens, const float *y,
                       const float *z, int64_t vocab)
{
    print_message("rules");
    for (int i = 0; p->rules[i]; i++)
        print_message(" %d", p->rules[i]);
    print_message("; T %g range %g ^ %g min_p %g top_k %" PRId64 " top_p %.9g keep %" PRId64
                  " typical %g sigma %g eps %g eta %g top_a %g surprise %g xtc %g %g smooth %g %g"
                  " adaptive %g"
                  " exact %d\n",
                  p->temperature, p->temperature_range, p->temperature_exponent, p->min_p, p->top_k,
                  p->top_p, p->min_keep, p->typical_p, p->top_n_sigma, p->epsilon, p->eta, p->top_a,
                  p->surprise, p->xtc_probability, p->xtc_threshold, p->smoothing_factor,
                  p->smoothing_curve, p->adaptive_target, p->exact);
    print_message("the oracle keeps %" PRId64 " of %" PRId64 " tokens, status %d\n", tokens->count,
                  vocab, (int)tokens->status);
    int shown = 0;
    for (int64_t i = 0; i < vocab && shown < 12; i++) {
        const oracle_token *own = NULL;
        for (int64_t k = 0; k < tokens->count; k++)
            own = tokens->list[k].id == i ? &tokens->list[k] : own;
        const int differs = own ? !(fabs((double)z[i] - own->v) <= own->bound) : z[i] > -INFINITY;
        if (differs && ++shown)
            print_message("token %" PRId64 ": y %a, z %.9g, oracle %.9g +- %g\n", i, (double)y[i],
                          (double)z[i], own ? own->v : -INFINITY, own ? own->bound : 0);
    }
}

/* Compares a row with the walks of the oracle. Returns 1 if z is one of them. */
static int check_row(const oracle_program *p, const float *y, const float *z, int64_t vocab,
                     int64_t first_token, verdicts *seen)
{
    oracle_tokens tokens = {.list = make_zeroed((size_t)vocab, sizeof *tokens.list)};
    oracle_path path = {0};
    int walks = 0, equal = 0, undecided = 0;
    double worst = 0;
    do {
        worst = 0;
        oracle_run_program(p, y, vocab, first_token, &path, &tokens);
        equal = tokens.status == GUMBEL_ROW_OK
                    ? is_walk_equal(&tokens, z, vocab, &worst)
                    : (tokens.status == GUMBEL_ROW_EMPTY ? z[0] == -INFINITY : isnan(z[0]));
        undecided |= path.undecided;
    } while (!equal && ++walks < WALKS_MOST && oracle_next_path(&path));
    if (equal)
        seen->worst = fmax(seen->worst, worst);
    seen->rows++;
    seen->borderline += equal && path.depth > 0;
    seen->undecided += !equal && (undecided || walks == WALKS_MOST);
    seen->faulty += tokens.status != GUMBEL_ROW_OK;
    seen->greedy += p->temperature == 0;
    seen->removed += vocab - tokens.count;
    const int sound = equal || undecided || walks == WALKS_MOST;
    if (!sound) {
        path = (oracle_path){0};
        oracle_run_program(p, y, vocab, first_token, &path, &tokens);
        print_walk(p, &tokens, y, z, vocab);
    }
    free(tokens.list);
    return sound;
}

/* ------------------------------------------------------------------------------ outputs ---- */

/* ln(sum exp(z - top)), where *top is the largest z. */
static double sum_exponentials(const float *z, int64_t vocab, double *top)
{
    double sum = 0;
    *top = -INFINITY;
    for (int64_t i = 0; i < vocab; i++)
        *top = fmax(*top, (double)z[i]);
    for (int64_t i = 0; i < vocab; i++)
        sum += exp((double)z[i] - *top);
    return log(sum);
}

/* Compares one draw with the argmax of z + noise. */
static void check_draw(const request *req, const outcome *drawn, const float *z, const float *noise,
                       int64_t b, int64_t draw, double lse)
{
    const int64_t vocab = req->plan.vocab, at = b * req->plan.samples + draw;
    const int greedy = row_f32(&req->sampling.temperature, &req->sampling, b, 1) == 0;
    float best = -INFINITY;
    int64_t token = -1;
    int32_t rank = 1;
    for (int64_t i = 0; i < vocab; i++) {
        const float score = greedy ? z[i] : z[i] + noise[i];
        if (score > best) {
            best = score;
            token = i;
        }
    }
    for (int64_t i = 0; i < vocab; i++)
        rank += z[i] > z[token];
    assert_int_equal(drawn->tokens[at], token + req->plan.first_token);
    assert_true(drawn->scores[at] == best);
    assert_int_equal(drawn->ranks[at], rank);
    assert_true(fabs((double)drawn->logprobs[at] - fmin((double)z[token] - lse, 0)) <=
                0x1p-19 * fmax(1, fabs(lse)));
}

static void check_outputs(const request *req, const outcome *drawn, const float *z,
                          const float *noise, const float *probabilities, int64_t b)
{
    const int64_t vocab = req->plan.vocab;
    double top, sum = 0, listed = 0;
    const double log_sum = sum_exponentials(z, vocab, &top), lse = top + log_sum;
    int32_t kept = 0;
    for (int64_t i = 0; i < vocab; i++) {
        kept += z[i] > -INFINITY;
        sum += (double)probabilities[i];
        assert_true(fabs((double)probabilities[i] - exp((double)z[i] - top - log_sum)) <= 0x1p-16);
    }
    assert_int_equal(drawn->kept[b], kept);
    assert_true(fabs((double)drawn->lse[b] - lse) <= 0x1p-19 * fmax(1, fabs(lse)));
    assert_true(fabs(sum - 1) <= 1e-5);
    for (int k = 0; k < TOP; k++) {
        const int32_t id = drawn->top_ids[b * TOP + k];
        assert_int_equal(id >= 0, k < kept);
        if (id >= 0)
            assert_true(z[id - req->plan.first_token] > -INFINITY);
        listed += exp((double)drawn->top_logprobs[b * TOP + k]);
    }
    if (kept <= TOP)
        assert_true(fabs(listed - 1) <= 1e-4 * fmax(1, fabs(lse) * 0x1p-10));
    for (int64_t s = 0; s < req->plan.samples; s++)
        check_draw(req, drawn, z, noise + s * vocab, b, s, lse);
}

/* -------------------------------------------------------------------------------- plans ---- */

/* Rows that a request is compared with: y, z, softmax [B, V] and noise [B, S, V]. */
typedef struct request_rows_of {
    float *y, *z, *probabilities, *noise;
} request_rows_of;

static request_rows_of compute_rows(gumbel_device *device, const request *req)
{
    const request_plan *plan = &req->plan;
    const size_t size = (size_t)(plan->batch * plan->vocab);
    request_rows_of r = {make_zeroed(size, 4), make_zeroed(size, 4), make_zeroed(size, 4),
                         make_zeroed(size * (size_t)plan->samples, 4)};
    gumbel_sampling before = req->sampling;
    size_t bytes;
    before.truncation = NULL;
    before.temperature = (gumbel_row_f32){NULL, 0};
    assert_int_equal(request_process(device, &req->logits, &before, r.y), GUMBEL_OK);
    assert_int_equal(request_process(device, &req->logits, &req->sampling, r.z), GUMBEL_OK);
    void *workspace = call_workspace(device, NULL, &req->logits, &req->sampling, NULL, &bytes);
    assert_int_equal(gumbel_softmax(device, NULL, &req->logits, &req->sampling, r.probabilities, 0,
                                    workspace, bytes, NULL),
                     GUMBEL_OK);
    free(workspace);
    gumbel_sampling own = req->sampling;
    own.noise = NULL;
    own.transforms = NULL;
    own.truncation = NULL;
    assert_int_equal(gumbel_prepare_noise(device, NULL, &own, plan->batch, plan->first_token,
                                          plan->vocab, r.noise, 0, NULL),
                     GUMBEL_OK);
    return r;
}

static void check_plan(gumbel_device *device, const request_plan *plan, verdicts *seen)
{
    request *req = request_make(plan, device);
    request_rows_of rows = compute_rows(device, req);
    outcome *drawn = request_outcome(req);
    assert_int_equal(request_draw(device, req, drawn), GUMBEL_OK);
    for (int64_t b = 0; b < plan->batch; b++) {
        const oracle_program p = oracle_read_program(&req->sampling, b);
        const float *z = rows.z + b * plan->vocab;
        if (!check_row(&p, rows.y + b * plan->vocab, z, plan->vocab, plan->first_token, seen))
            fail_msg("%s: %s: the oracle differs", request_describe(plan),
                     request_describe_row(req, b));
        const int has_token = !isnan(z[0]) && drawn->status[b] != GUMBEL_ROW_EMPTY;
        assert_int_equal(drawn->status[b] == GUMBEL_ROW_OK, has_token);
        if (has_token)
            check_outputs(req, drawn, z, rows.noise + b * plan->samples * plan->vocab,
                          rows.probabilities + b * plan->vocab, b);
    }
    free(rows.y);
    free(rows.z);
    free(rows.probabilities);
    free(rows.noise);
    outcome_free(drawn);
    request_free(req);
}

static request_plan plan_programs(int index, int usual)
{
    request_plan plan = request_plan_at_random(index, 0);
    uint64_t random = plan.seed + 5;
    const uint32_t sizes[] = {8, 64, 300, 300, 1000, 3000};
    plan.batch = 16;
    plan.vocab = 1 + random_below(&random, sizes[random_below(&random, 6)]);
    if (plan.vocab_size)
        plan.vocab_size = plan.first_token + 1 + random_below(&random, (uint32_t)plan.vocab);
    plan.samples = 1 + (int32_t)random_below(&random, 2);
    plan.num_top = TOP;
    plan.logprobs_of = GUMBEL_PROCESSED;
    plan.scale = plan.soft_cap = 0;
    plan.truncation = 1;
    plan.programs = 1 + (int)random_below(&random, GUMBEL_PROGRAMS_MAX);
    plan.usual = usual;
    plan.cuts = usual ? REQUEST_TOP_K | REQUEST_TOP_P | REQUEST_MIN_P : 0;
    return plan;
}

static void check_programs(gumbel_device *device, int usual, int count)
{
    verdicts seen = {0};
    for (int i = 0; i < count; i++) {
        request_plan plan = plan_programs(10000 * usual + i, usual);
        check_plan(device, &plan, &seen);
    }
    print_message("%" PRId64 " rows (%" PRId64 " faulty, %" PRId64 " greedy): %" PRId64
                  " borderline, %" PRId64 " undecided; %" PRId64
                  " tokens removed; largest error %.2f of its bound\n",
                  seen.rows, seen.faulty, seen.greedy, seen.borderline, seen.undecided,
                  seen.removed, seen.worst);
    assert_true(seen.borderline * 30 <= seen.rows);
    assert_true(seen.undecided <= seen.rows / 100 + 10);
}

static void programs_with_usual_parameters(void **state)
{
    check_programs(*state, 1, limit_count(640, 16));
}

static void programs_with_extreme_parameters(void **state)
{
    check_programs(*state, 0, limit_count(640, 16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_with_usual_parameters),
        cmocka_unit_test(programs_with_extreme_parameters),
    };
    const int failed = cmocka_run_group_tests(tests, open_reference, close_device);
    return failed + cmocka_run_group_tests(tests, open_one_thread, close_device);
}
