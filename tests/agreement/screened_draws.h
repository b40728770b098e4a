/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of draws by screens on the CPU share.
 */
#ifndef TESTS_SCREENED_DRAWS_H
#define TESTS_SCREENED_DRAWS_H

#include "every_isa.h"
#include "requests.h"

#include <stdlib.h>
#include <string.h>

static inline int nightly(void)
{
    const char *set = getenv("GUMBEL_NIGHTLY");
    return set && *set && strcmp(set, "0") != 0;
}

/* An outcome of tokens, scores and statuses alone, which a screen serves. */
static inline outcome *plain_outcome(int64_t batch, int32_t samples)
{
    outcome *made = outcome_make(batch, samples);
    made->output.logprobs = NULL;
    made->output.lse = NULL;
    return made;
}

static inline int is_screened(gumbel_device *device, const gumbel_head *head,
                              const gumbel_sampling *sampling, const gumbel_output *output)
{
    char text[4096];
    assert_int_equal(gumbel_explain(device, head, NULL, sampling, output, text, sizeof text, NULL),
                     GUMBEL_OK);
    return strstr(text, "rows: screen:") != NULL;
}

#endif
