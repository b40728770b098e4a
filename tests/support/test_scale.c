/* SPDX-License-Identifier: Apache-2.0 */
#include "test_scale.h"

#include <stdlib.h>
#include <string.h>

int is_nightly(void)
{
    const char *set = getenv("GUMBEL_NIGHTLY");
    return set && *set && strcmp(set, "0") != 0;
}

int nightly_factor(void) { return is_nightly() ? 20 : 1; }

int scale_count(int usual, int divisor)
{
    const int many = usual * nightly_factor();
    return TEST_SANITIZED ? (many + divisor - 1) / divisor : many;
}

int limit_count(int usual, int divisor)
{
    return TEST_SANITIZED ? (usual + divisor - 1) / divisor : usual * nightly_factor();
}

int64_t draws_of(int64_t usual) { return TEST_SANITIZED ? usual / 16 : usual; }
