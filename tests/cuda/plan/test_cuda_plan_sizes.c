/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of random calls: the workspace is as large as counted, and rungs have the capabilities that
 * they require. Explanations are cut at the end of their buffer.
 */
#include "planned_calls.h"

#include "inputs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static gumbel_problem random_problem(uint64_t *random)
{
    static const int64_t batches[] = {1, 4, 7, 32, 64, 200};
    static const uint32_t cuts[] = {0, GUMBEL_FEATURE_TRUNCATION};
    static const uint32_t plain[] = {0, GUMBEL_FEATURE_TRUNCATION, GUMBEL_FEATURE_MASK};
    gumbel_problem p =
        plan_problem(batches[random_below(random, 6)], random_below(random, 2) ? 64 : 0, 0);
    p.vocab = p.end_token = 1 + random_below(random, 200000);
    p.scale = random_below(random, 5) ? 1.0f : -2.0f;
    p.weight.rows = p.hidden_size ? p.vocab : 0;
    p.sampling.num_samples = 1 + (int32_t)random_below(random, 2);
    p.features = (uint32_t)random_below(random, GUMBEL_FEATURE_END) & GUMBEL_FEATURE_TRANSFORMS;
    p.features |= cuts[random_below(random, 2)];
    if (random_below(random, 2))
        p.features &= GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_PENALTIES | GUMBEL_FEATURE_TRUNCATION;
    if (random_below(random, 4) == 0)
        p.features |= GUMBEL_FEATURE_RANKS;
    if (random_below(random, 8) == 0)
        p.features |= GUMBEL_FEATURE_GIVEN;
    if (random_below(random, 6) == 0)
        p.features |= GUMBEL_FEATURE_ENTROPY | (random_below(random, 2) ? GUMBEL_FEATURE_RAW : 0);
    if (random_below(random, 2))
        p.history.prompt = (uint32_t *)plan_data;
    p.truncation.top_p.data = random_below(random, 2) ? (float *)plan_data : NULL;
    p.truncation.top_k.data = random_below(random, 3) == 0 ? (int32_t *)plan_data : NULL;
    p.truncation.min_p.data = random_below(random, 3) == 0 ? (float *)plan_data : NULL;
    p.sampling.noise = random_below(random, 6) == 0 ? (float *)plan_data : NULL;
    p.with_mass = random_below(random, 2) != 0;
    if (p.features & (GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_ALLOWED))
        p.transforms.max_allowed = random_below(random, 3) ? 0 : 1 + random_below(random, 9000);
    if (p.hidden_size && random_below(random, 8) == 0) { /* plain */
        p.vocab = p.end_token = p.weight.rows = (p.vocab + 15) / 16 * 16;
        p.scale = 1;
        p.features &= plain[random_below(random, 3)];
        if (random_below(random, 4) == 0)
            p.features = GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_BANNED;
        p.with_mass = 0;
        p.sampling.num_samples = 1;
        p.sampling.noise = NULL;
        p.history.prompt = NULL;
        p.screen = plan_data;
    }
    return p;
}

/* Carving takes the counted bytes, and no rung receives a capability that its row does not list. */
static void plans_match_their_size_and_table(void **state)
{
    static unsigned char base[64];
    uint64_t random = 1;
    int served[CUDA_PRODUCTS + CUDA_ROW_RUNGS] = {0};
    (void)state;
    for (int i = 0; i < 40000; i++) {
        cuda_device device = plan_device(i % 2);
        gumbel_problem p = random_problem(&random);
        if (i % 16 < 2 && p.features & GUMBEL_FEATURE_TRUNCATION)
            plan_program(&p, plan_top_k_program);
        gumbel_cursor count = {0}, given = {base, 0};
        gumbel_plan planned;
        cuda_plan plan;
        device.rungs.preferred = i % 4 > 1 ? CUDA_SCREEN_RUNGS : 0;
        if (i % 16 == 14)
            device.truncated_grid = NULL; /* no cooperative launches */
        assert_int_equal(cuda_plan_backend(&device.base, &p, 0, &planned, NULL), GUMBEL_OK);
        const gumbel_limits limits = {.batch = p.batch,
                                      .vocab_size = p.vocab,
                                      .hidden_size = p.hidden_size,
                                      .num_samples = p.sampling.num_samples,
                                      .requests = 1,
                                      .screens = 1};
        assert_true(planned.workspace_bytes <= cuda_max_workspace_size(&device.base, &limits));
        p = cuda_replace_allowed(&p);
        assert_int_equal(cuda_plan_call(&plan, &device, &p, 0, NULL), GUMBEL_OK);
        const cuda_plan returned = cuda_plan_of(&planned);
        assert_ptr_equal(returned.product, plan.product);
        assert_ptr_equal(returned.rows, plan.rows);
        assert_int_equal(returned.required, plan.required);
        assert_int_equal(returned.product_outputs, plan.product_outputs);
        cuda_carve_plan(&plan, &count, &device, &p);
        cuda_carve_plan(&plan, &given, &device, &p); /* does not write to the base */
        assert_int_equal(count.used, planned.workspace_bytes);
        assert_int_equal(given.used, planned.workspace_bytes);
        if (plan.rows) {
            assert_true(
                gumbel_rung_supports(&plan.rows->rung, plan.required & ~GUMBEL_CAPABILITY_BIAS));
            served[CUDA_PRODUCTS + (plan.rows - cuda_row_rungs)]++;
        } else {
            assert_true(gumbel_rung_supports(&plan.product->rung, plan.required));
        }
        if (plan.product)
            served[plan.product - cuda_products]++;
    }
    for (int i = 0; i < CUDA_PRODUCTS + CUDA_ROW_RUNGS; i++)
        if (i != CUDA_PRODUCTS - 1 && i != CUDA_PRODUCTS && i != CUDA_PRODUCTS + CUDA_ROW_RUNGS - 1)
            assert_true(served[i] > 10); /* naive, nothing and alone have other tests */
}

static void explanations_are_truncated(void **state)
{
    cuda_device device = plan_device(1);
    gumbel_problem p = plan_problem(32, 4096, GUMBEL_FEATURE_TRUNCATION);
    char whole[2048], cut[40];
    gumbel_text text = {whole, sizeof whole, 0}, shorter = {cut, sizeof cut, 0}, none = {0};
    (void)state;
    p.truncation.top_k.data = (int32_t *)plan_data;
    assert_int_equal(cuda_explain_call(&device.base, &p, &text, NULL), GUMBEL_OK);
    assert_int_equal(strlen(whole), text.length);
    assert_non_null(strstr(whole, "logits: hopper"));
    assert_non_null(strstr(whole, "rows: bounded"));
    assert_non_null(strstr(whole, "not draw: does not support truncation, top_k"));
    assert_int_equal(cuda_explain_call(&device.base, &p, &shorter, NULL), GUMBEL_OK);
    assert_int_equal(shorter.length, text.length);
    assert_int_equal(strlen(cut), sizeof cut - 1);
    assert_memory_equal(cut, whole, sizeof cut - 1);
    assert_int_equal(cuda_explain_call(&device.base, &p, &none, NULL), GUMBEL_OK);
    assert_int_equal(none.length, text.length);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_match_their_size_and_table),
        cmocka_unit_test(explanations_are_truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
