/* SPDX-License-Identifier: Apache-2.0
 *
 * Acceptance rates against closed forms: the coupled rule, siblings, greedy drafts; the rank of the
 * residual draw's token among the target's scores; and the distribution of emitted tokens on rows
 * of the bundled models.
 */
#include "fixtures.h"
#include "inputs.h"
#include "model_tensor.h"
#include "requests.h"
#include "statistics.h"
#include "test_scale.h"

#include <gumbel/drafts.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A row of the target and one of the draft, used for up to R requests with one or more drafts. */
enum { R = TEST_SANITIZED ? 500 : 2000, NODES = 5, V_MAX = 8192, BEST = GUMBEL_BEST_MAX };

typedef struct row_pair {
    gumbel_device *device;
    int32_t vocab;
    float target[V_MAX], draft[V_MAX];
    float *targets, *drafts; /* copies, one for each row of a call; NULL before the first call */
    int64_t copies;
    double p[V_MAX], q[V_MAX];
    uint64_t seed[R];
    int32_t requests;
    int32_t nodes; /* nodes of a request: the root and its children */
    int32_t tokens[R * NODES], parents[R * NODES];
    int32_t emitted[R * NODES], counts[R], accepted[R];
    int32_t row_tokens[R * NODES], best_ids[R * NODES * BEST];
    float scores[R * NODES], best_scores[R * NODES * BEST];
    void *workspace;
    size_t bytes;
} row_pair;

static row_pair *make_pair(void **state)
{
    row_pair *generated = make_zeroed(1, sizeof *generated);
    generated->device = *state;
    generated->requests = R;
    return generated;
}

static void drop_copies(row_pair *of)
{
    free(of->targets);
    free(of->drafts);
    of->targets = of->drafts = NULL;
    of->copies = 0;
}

static void free_pair(row_pair *of)
{
    drop_copies(of);
    free(of->workspace);
    free(of);
}

static void set_probabilities(row_pair *of)
{
    double z[V_MAX];
    drop_copies(of);
    for (int32_t i = 0; i < of->vocab; i++)
        z[i] = (double)of->target[i];
    softmax(z, of->vocab, 1, of->p);
    for (int32_t i = 0; i < of->vocab; i++)
        z[i] = (double)of->draft[i];
    softmax(z, of->vocab, 1, of->q);
}

/* Fills in random rows that differ by `apart`. */
static void fill_random_rows(row_pair *of, int32_t vocab, float apart, uint64_t *random)
{
    of->vocab = vocab;
    for (int32_t i = 0; i < vocab; i++) {
        of->target[i] = 1.5f * random_normal(random);
        of->draft[i] = of->target[i] + apart * random_normal(random);
    }
    set_probabilities(of);
}

/* Copies one row to all rows of a call. */
static gumbel_logits copy_rows(row_pair *of, int drafted, int64_t rows)
{
    const size_t width = (size_t)of->vocab;
    if (rows > of->copies) {
        drop_copies(of);
        of->targets = make_zeroed((size_t)rows * width, sizeof *of->targets);
        of->drafts = make_zeroed((size_t)rows * width, sizeof *of->drafts);
        of->copies = rows;
        for (size_t b = 0; b < (size_t)rows; b++) {
            memcpy(of->targets + b * width, of->target, width * sizeof *of->target);
            memcpy(of->drafts + b * width, of->draft, width * sizeof *of->draft);
        }
    }
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = tensor_of(drafted ? of->drafts : of->targets, GUMBEL_FLOAT32,
                                               rows, of->vocab, 0)};
}

static void *grow_workspace(row_pair *of, size_t bytes)
{
    if (bytes > of->bytes) {
        free(of->workspace);
        of->bytes = (bytes + 63) / 64 * 64;
        of->workspace = aligned_alloc(64, of->bytes);
        assert_non_null(of->workspace);
    }
    return of->workspace;
}

/* Drafts the children of each root: the tokens with the best scores of the draft's draw. */
static void draw_children(row_pair *of, uint32_t domain, float temperature)
{
    static int32_t drawn[R], best[R * BEST];
    const int32_t children = of->nodes - 1;
    gumbel_logits logits = copy_rows(of, 1, of->requests);
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {&temperature, GUMBEL_SAME},
                           .seed = {of->seed, 0},
                           .domain = domain};
    gumbel_output out = {
        .struct_size = sizeof out, .tokens = drawn, .num_best = children, .best_ids = best};
    gumbel_error error;
    size_t bytes = 0;
    assert_int_equal(gumbel_workspace_size(of->device, NULL, &logits, &how, &out, &bytes, &error),
                     GUMBEL_OK);
    assert_int_equal(gumbel_sample_logits(of->device, NULL, &logits, &how, &out,
                                          grow_workspace(of, bytes), bytes, &error),
                     GUMBEL_OK);
    for (int r = 0; r < of->requests; r++)
        for (int32_t k = 0; k < of->nodes; k++) {
            of->tokens[r * of->nodes + k] = k ? best[r * children + k - 1] : 0;
            of->parents[r * of->nodes + k] = 0;
        }
}

/* Verifies the drafts; `drew` is the draft's temperature, for rules that require the draft's
 * call. */
static void verify_drafts(row_pair *of, gumbel_rule rule, const float *drew)
{
    const int64_t rows = (int64_t)of->requests * of->nodes;
    gumbel_logits p = copy_rows(of, 0, rows), q = copy_rows(of, 1, rows);
    gumbel_sampling how = {.struct_size = sizeof how, .seed = {of->seed, 0}};
    gumbel_sampling drafted = how;
    gumbel_draft d = {.struct_size = sizeof d,
                      .requests = of->requests,
                      .max_nodes = of->nodes,
                      .rule = rule,
                      .tokens = of->tokens,
                      .parents = rule == GUMBEL_RULE_COUPLED ? of->parents : NULL,
                      .logits = drew ? &q : NULL,
                      .sampling = drew ? &drafted : NULL};
    gumbel_output each = {.struct_size = sizeof each,
                          .tokens = of->row_tokens,
                          .num_best = BEST,
                          .best_ids = of->best_ids,
                          .best_scores = of->best_scores};
    gumbel_verified v = {.struct_size = sizeof v,
                         .tokens = of->emitted,
                         .emitted = of->counts,
                         .accepted = of->accepted,
                         .scores = of->scores,
                         .rows = rule == GUMBEL_RULE_REJECTION ? &each : NULL};
    gumbel_error error;
    size_t bytes = 0;
    drafted.temperature = (gumbel_row_f32){drew, GUMBEL_SAME};
    drafted.domain = GUMBEL_DOMAIN_DRAFT;
    assert_int_equal(
        gumbel_verify_workspace_size(of->device, NULL, &p, &how, &d, &v, &bytes, &error),
        GUMBEL_OK);
    assert_int_equal(gumbel_verify_logits(of->device, NULL, &p, &how, &d, &v,
                                          grow_workspace(of, bytes), bytes, &error),
                     GUMBEL_OK);
}

static void set_new_seeds(row_pair *of, uint64_t *random)
{
    for (int r = 0; r < of->requests; r++)
        of->seed[r] = random_bits(random);
}

/* Drafts and verifies once, with new seeds. The coupled rule drafts with the target's noise. */
static void run_round(row_pair *of, gumbel_rule rule, float temperature, uint64_t *random)
{
    const int coupled = rule == GUMBEL_RULE_COUPLED;
    set_new_seeds(of, random);
    draw_children(of, coupled ? GUMBEL_DOMAIN_TARGET : GUMBEL_DOMAIN_DRAFT, temperature);
    verify_drafts(of, rule, coupled ? NULL : &temperature);
}

/* The number of rounds that make `usual` draws. */
static int64_t count_rounds(const row_pair *of, int64_t usual)
{
    return (draws_of(usual) * nightly_factor() + of->requests - 1) / of->requests;
}

static void assert_rate(const char *what, int64_t hits, int64_t total, double expected)
{
    const double error = sqrt(expected * (1 - expected) / (double)total);
    const double found = (double)hits / (double)total;
    print_message("%s: %.4f, expected %.4f, standard error %.4f\n", what, found, expected, error);
    assert_true(fabs(found - expected) < 4 * error + 1e-9);
}

/* ---------------------------------------------------------------------------- the coupled ---- */

/* Sum over i of 1 / sum over j of max(p_j / p_i, q_j / q_i). */
static double coupled_rate(const row_pair *of)
{
    double rate = 0;
    for (int32_t i = 0; i < of->vocab; i++) {
        double sum = 0;
        for (int32_t j = 0; j < of->vocab; j++)
            sum += fmax(of->p[j] / of->p[i], of->q[j] / of->q[i]);
        rate += 1 / sum;
    }
    return rate;
}

static double sum_of_minima(const row_pair *of)
{
    double sum = 0;
    for (int32_t i = 0; i < of->vocab; i++)
        sum += fmin(of->p[i], of->q[i]);
    return sum;
}

static void coupled_acceptance_rate(void **state)
{
    static const int32_t vocabs[] = {2, 2, 5, 40, 300};
    uint64_t random = 3;
    row_pair *of = make_pair(state);
    const int64_t rounds = count_rounds(of, 40000);
    of->nodes = 2;
    for (int i = 0; i < 5; i++) {
        fill_random_rows(of, vocabs[i], 0.3f + 0.4f * (float)i, &random);
        const double rate = coupled_rate(of), most = sum_of_minima(of);
        int64_t hits = 0;
        assert_true(rate <= most + 1e-12 && rate >= most / (2 - most) - 1e-12);
        assert_true(vocabs[i] > 2 || fabs(rate - most) < 1e-12);
        for (int64_t round = 0; round < rounds; round++) {
            run_round(of, GUMBEL_RULE_COUPLED, 1, &random);
            for (int r = 0; r < of->requests; r++)
                hits += of->accepted[r];
        }
        assert_rate("coupled", hits, rounds * of->requests, rate);
    }
    free_pair(of);
}

/* A request accepts a draft exactly if the target's token is among the draft's best scores with the
 * same noise. One sibling raises the acceptance rate. */
static void sibling_acceptance_matches_best_scores(void **state)
{
    uint64_t random = 8;
    row_pair *of = make_pair(state);
    int64_t hits[NODES] = {0};
    fill_random_rows(of, 60, 0.8f, &random);
    set_new_seeds(of, &random);
    for (of->nodes = 2; of->nodes <= NODES; of->nodes++) {
        draw_children(of, GUMBEL_DOMAIN_TARGET, 1);
        verify_drafts(of, GUMBEL_RULE_COUPLED, NULL);
        for (int r = 0; r < of->requests; r++) {
            int among = 0;
            for (int32_t k = 1; k < of->nodes; k++)
                among |= of->tokens[r * of->nodes + k] == of->emitted[r * of->nodes];
            assert_int_equal(among, of->accepted[r]);
            assert_int_equal(of->counts[r], 1 + among);
            hits[of->nodes - 1] += among;
        }
    }
    for (int k = 2; k < NODES; k++)
        assert_true(hits[k] > hits[k - 1]);
    assert_true(hits[2] - hits[1] > of->requests / 20);
    free_pair(of);
}

/* ----------------------------------------------------------------------------- rejection ---- */

/* A greedy draft is accepted with probability p, and its replacement is drawn from p. */
static void greedy_draft_acceptance_rate(void **state)
{
    uint64_t random = 12;
    row_pair *of = make_pair(state);
    const int64_t rounds = count_rounds(of, 40000);
    of->nodes = 2;
    for (int i = 0; i < 3; i++) {
        int64_t counts[40] = {0}, hits = 0;
        chi_squared law = {0};
        int32_t best = 0;
        fill_random_rows(of, 40, 0.5f * (float)i, &random);
        for (int32_t j = 1; j < of->vocab; j++)
            best = of->q[j] > of->q[best] ? j : best;
        for (int64_t round = 0; round < rounds; round++) {
            run_round(of, i == 2 ? GUMBEL_RULE_BLOCK : GUMBEL_RULE_REJECTION, 0, &random);
            for (int r = 0; r < of->requests; r++) {
                assert_int_equal(of->tokens[2 * r + 1], best);
                hits += of->accepted[r];
                counts[of->emitted[2 * r]]++;
            }
        }
        assert_rate("greedy drafts", hits, rounds * of->requests, of->p[best]);
        chi_squared_add(&law, counts, of->p, of->vocab, rounds * of->requests);
        assert_true(chi_squared_p(law.statistic, law.degrees) > 1e-4);
    }
    free_pair(of);
}

/* After a rejection, the residual draw is determined by the target's scores that are not below the
 * score of its token. Token j is among these with probability p_j / (p_j + d - max(p_j - q_j, 0)),
 * so their mean number is at most 1 / d. With few tokens all scores are listed. */
static void residual_token_rank_matches_formula(void **state)
{
    uint64_t random = 17;
    row_pair *of = make_pair(state);
    const int64_t rounds = count_rounds(of, 40000);
    of->nodes = 2;
    for (int i = 0; i < 4; i++) {
        fill_random_rows(of, BEST, 0.3f + 0.5f * (float)i, &random);
        double d = 1 - sum_of_minima(of), expected = 0, sum = 0, squares = 0;
        int64_t rejected = 0;
        for (int32_t j = 0; j < of->vocab; j++)
            expected += of->p[j] / (of->p[j] + d - fmax(of->p[j] - of->q[j], 0));
        for (int64_t round = 0; round < rounds; round++) {
            run_round(of, GUMBEL_RULE_REJECTION, 1, &random);
            for (int r = 0; r < of->requests; r++) {
                const float *list = of->best_scores + (int64_t)2 * r * BEST;
                int m = 0;
                if (of->accepted[r])
                    continue;
                while (m < BEST && list[m] >= of->scores[2 * r])
                    m++;
                assert_true(m >= 1);
                rejected++;
                sum += m;
                squares += m * m;
            }
        }
        const double mean = sum / (double)rejected;
        const double error = sqrt((squares / (double)rejected - mean * mean) / (double)rejected);
        print_message("rank %.4f, expected %.4f, standard error %.4f, at most %.3f\n", mean,
                      expected, error, 1 / d);
        assert_true(fabs(mean - expected) < 4 * error && expected <= 1 / d + 1e-9);
    }
    free_pair(of);
}

/* --------------------------------------------------------------------- the bundled models ---- */

/* Emitted tokens have the target's distribution, for rows of both bundled models, V = 8192. */
static void emitted_tokens_have_the_target_distribution(void **state)
{
    static const gumbel_rule rules[] = {GUMBEL_RULE_REJECTION, GUMBEL_RULE_BLOCK};
    gumbel_tensor tensors[4] = {
        model_tensor("golden.safetensors", "target.hidden"),
        model_tensor("kjv-target/model.safetensors", "model.embed_tokens.weight"),
        model_tensor("golden.safetensors", "draft.hidden"),
        model_tensor("kjv-draft/model.safetensors", "model.embed_tokens.weight"),
    };
    gumbel_head heads[2] = {
        {.struct_size = sizeof *heads, .hidden = tensors[0], .weight = tensors[1]},
        {.struct_size = sizeof *heads, .hidden = tensors[2], .weight = tensors[3]}};
    float *target = product_logits(*state, &heads[0]), *draft = product_logits(*state, &heads[1]);
    uint64_t random = 23;
    row_pair *of = make_pair(state);
    int64_t *counts = make_zeroed(V_MAX, sizeof *counts);
    of->nodes = 2;
    of->vocab = (int32_t)tensors[1].rows;
    of->requests = 250;
    const int64_t rounds = count_rounds(of, 20000);
    assert_int_equal(of->vocab, V_MAX);
    for (int i = 0; i < 2; i++) {
        const int64_t place = 5 + 4 * i;
        chi_squared law = {0};
        int64_t hits = 0;
        memcpy(of->target, target + place * V_MAX, sizeof of->target);
        memcpy(of->draft, draft + place * V_MAX, sizeof of->draft);
        set_probabilities(of);
        memset(counts, 0, V_MAX * sizeof *counts);
        for (int64_t round = 0; round < rounds; round++) {
            run_round(of, rules[i], 1, &random);
            for (int r = 0; r < of->requests; r++) {
                counts[of->emitted[2 * r]]++;
                hits += of->accepted[r];
            }
        }
        assert_rate("the bundled pair", hits, rounds * of->requests, sum_of_minima(of));
        chi_squared_add(&law, counts, of->p, V_MAX, rounds * of->requests);
        print_message("rule %d: p %.3g\n", (int)rules[i],
                      chi_squared_p(law.statistic, law.degrees));
        assert_true(law.degrees > 3 && chi_squared_p(law.statistic, law.degrees) > 1e-4);
    }
    free(counts);
    free(target);
    free(draft);
    for (int i = 0; i < 4; i++)
        free((void *)tensors[i].data);
    free_pair(of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coupled_acceptance_rate),
        cmocka_unit_test(sibling_acceptance_matches_best_scores),
        cmocka_unit_test(greedy_draft_acceptance_rate),
        cmocka_unit_test(residual_token_rank_matches_formula),
        cmocka_unit_test(emitted_tokens_have_the_target_distribution),
    };
    return cmocka_run_group_tests(tests, open_one_thread, close_device);
}
