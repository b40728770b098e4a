/* SPDX-License-Identifier: Apache-2.0
 *
 * A batch with too many rows for a screen but few enough live rows: the draw stays within the
 * workspace of the size that gumbel_workspace_size() reports, and has the bits of a draw without a
 * screen.
 */
#include "gumbel/screen.h"
#include "guard_pages.h"
#include "requests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "screened_draws.h"

enum { VOCAB = 1500, COLUMNS = 96 };

/* Draw into a workspace of just the size that is counted, between pages that end the program. */
static void draw_fenced(gumbel_device *device, const gumbel_head *head,
                        const gumbel_sampling *sampling, outcome *into)
{
    size_t bytes;
    assert_int_equal(
        gumbel_workspace_size(device, head, NULL, sampling, &into->output, &bytes, NULL),
        GUMBEL_OK);
    bytes = (bytes + GUMBEL_WORKSPACE_ALIGNMENT - 1) / GUMBEL_WORKSPACE_ALIGNMENT *
            GUMBEL_WORKSPACE_ALIGNMENT;
    guarded_buffer workspace = make_guarded_buffer(NULL, bytes, 0, 1);
    assert_int_equal(
        gumbel_sample(device, NULL, head, sampling, &into->output, workspace.data, bytes, NULL),
        GUMBEL_OK);
    free_guarded_buffer(&workspace);
}

static void compare_live(gumbel_device *device, const generated_head *generated,
                         gumbel_screen screen, int32_t live, int32_t samples,
                         const gumbel_truncation *truncation)
{
    const int64_t batch = generated->hidden.rows;
    const uint64_t seed = 7;
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = generated->hidden,
                        .weight = generated->weight,
                        .screen = screen};
    const gumbel_sampling how = {.struct_size = sizeof how,
                                 .seed = {&seed, GUMBEL_SAME},
                                 .num_samples = samples,
                                 .truncation = truncation,
                                 .live_rows = &live};
    outcome *screened = plain_outcome(batch, samples), *full = plain_outcome(batch, samples);
    draw_fenced(device, &head, &how, screened);
    head.screen = (gumbel_screen){NULL, 0, 0};
    draw_fenced(device, &head, &how, full);
    assert_true(outcome_same(full, 0, screened, OUTCOME_TOKENS | OUTCOME_SCORES, "live rows"));
    assert_memory_equal(full->status, screened->status, (size_t)batch * sizeof *full->status);
    outcome_free(screened);
    outcome_free(full);
}

/* Batches beyond what any kernel takes by a screen; live rows and samples on both sides of that. */
static void few_live_rows(void **state)
{
    static const int64_t batches[] = {16, 24, 66};
    static const int32_t lives[] = {0, 1, 8, 9, 64}, samples[] = {1, 2, 8};
    const int32_t top_k = 5;
    const float top_p = 0.9f;
    const gumbel_truncation cut = {
        .struct_size = sizeof cut, .top_k = {&top_k, GUMBEL_SAME}, .top_p = {&top_p, GUMBEL_SAME}};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        generated_head generated =
            generate_head((head_kind)0, GUMBEL_FLOAT32, VOCAB, COLUMNS, batches[i], 21);
        gumbel_screen screen = make_screen(*state, &generated.weight);
        for (size_t j = 0; j < 15; j++) {
            const int32_t live = lives[j % 5], most = (int32_t)batches[i];
            compare_live(*state, &generated, screen, live < most ? live : most, samples[j / 5],
                         NULL);
            compare_live(*state, &generated, screen, live < most ? live : most, samples[j / 5],
                         &cut);
        }
        free(screen.data);
        free_generated_head(&generated);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_live_rows)};
    int failures;
    RUN_ON_EVERY_FORMAT(tests, failures);
    return failures;
}
