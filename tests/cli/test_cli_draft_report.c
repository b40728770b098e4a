/* SPDX-License-Identifier: Apache-2.0
 *
 * The report on drafts, computed from fixed times: speed-up, break-even, advice.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "draft_report.h"

/* Statistics of 100 cycles with two drafts each, of which `first` first and `second` second drafts
 * are accepted. A step takes 1 ms, drafting a token `draft` ms, each additional row of the target
 * `row` ms. */
static draft_stats make_stats(int64_t first, int64_t second, double draft, double row)
{
    return (draft_stats){.cycles = 100,
                         .proposed = {100, 100},
                         .accepted = {first, second},
                         .emitted = 100 + first + second,
                         .drafting = 200 * draft * 1e-3,
                         .verifying = 100 * (1 + 2 * row) * 1e-3,
                         .plain = 1e-3,
                         .rows = 300};
}

static void drafts_that_save_time_get_no_advice(void **state)
{
    (void)state;
    const draft_stats stats = make_stats(80, 60, 0.1, 0.1);
    const struct draft_report r = make_draft_report(&stats, 2);
    char text[ADVICE_BYTES];

    assert_null(draft_advice(&r, text));
    assert_true(r.measured > 1.7 && r.measured < 1.72); /* 2.4 tokens in 1.4 ms */
    assert_true(r.accept_rate > 0.699 && r.accept_rate < 0.701);
    assert_true(r.break_even > 0.199 && r.break_even < 0.201);
}

/* The numbers of the advice are those of the stats. */
static void drafts_that_save_no_time_get_advice(void **state)
{
    (void)state;
    const struct {
        draft_stats stats;
        const char *words[3];
    } cases[] = {
        {{.cycles = 100, .emitted = 100, .verifying = 0.1, .plain = 1e-3},
         {"none was found", "n-grams", "save no time"}},
        {make_stats(30, 30, 0.2, 0.2),
         {"30% of", "costs 0.40 of a step without drafts (drafting 0.20 ms, verifying 0.20 ms)",
          "they save time above an accept rate of 40%"}},
        {make_stats(30, 30, 0.9, 0.3),
         {"costs 1.20 of a step", "no accept rate saves time", "smaller draft model"}},
        {make_stats(60, 10, 0.4, 0.15),
         {"35% of", "drafts of 2 tokens save no time", "try --draft-tokens 1"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct draft_report r = make_draft_report(&cases[i].stats, 2);
        char text[ADVICE_BYTES] = "";

        assert_non_null(draft_advice(&r, text));
        for (size_t k = 0; k < 3; k++) {
            if (!strstr(text, cases[i].words[k])) {
                fail_msg("case %zu lacks '%s': %s", i, cases[i].words[k], text);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_that_save_time_get_no_advice),
        cmocka_unit_test(drafts_that_save_no_time_get_advice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
