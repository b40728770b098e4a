/* SPDX-License-Identifier: Apache-2.0
 *
 * How much a test draws: more at night, less under sanitizers.
 */
#ifndef TESTS_TEST_SCALE_H
#define TESTS_TEST_SCALE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether GUMBEL_NIGHTLY is set, neither empty nor "0". */
int is_nightly(void);

/* The factor of draws of the nightly run: 20 at night, else 1. */
int nightly_factor(void);

/* `usual` times the nightly factor. Under sanitizers a `divisor`-th of that, rounded up. */
int scale_count(int usual, int divisor);

/* As scale_count(), but under sanitizers no more at night. */
int limit_count(int usual, int divisor);

/* The number of draws of a test: `usual`, or a sixteenth of it under sanitizers, which is too few
 * to detect a wrong distribution (TEST_SANITIZED). */
int64_t draws_of(int64_t usual);

#ifdef __cplusplus
}
#endif

#endif
