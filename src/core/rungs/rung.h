/* SPDX-License-Identifier: Apache-2.0
 *
 * Capabilities are bits for the features that a call requires and a kernel variant supports. Rungs
 * are the rows of a backend's dispatch table, best first: the first rung that supports all required
 * capabilities serves the call. Calls that require a new capability return an error until a rung
 * lists it.
 */
#ifndef GUMBEL_CORE_RUNG_H
#define GUMBEL_CORE_RUNG_H

#include "core/problem.h"

/* Capability bits, 64 of them: first those of gumbel_feature. */
#define GUMBEL_CAPABILITY_BIT(n)     ((uint64_t)GUMBEL_FEATURE_END << (n))
#define GUMBEL_CAPABILITY_LISTS      GUMBEL_CAPABILITY_BIT(0) /* edits by lists of tokens */
#define GUMBEL_CAPABILITY_MIN_P      GUMBEL_CAPABILITY_BIT(1) /* min_p set; rows may disable it */
#define GUMBEL_CAPABILITY_TOP_K      GUMBEL_CAPABILITY_BIT(2) /* top_k set; rows may disable it */
#define GUMBEL_CAPABILITY_TOP_P      GUMBEL_CAPABILITY_BIT(3) /* top_p set; rows may disable it */
#define GUMBEL_CAPABILITY_JOINT      GUMBEL_CAPABILITY_BIT(4) /* top_p not after top_k or min_p */
#define GUMBEL_CAPABILITY_MIN_P_LAST GUMBEL_CAPABILITY_BIT(5) /* min_p after top_k and top_p */
#define GUMBEL_CAPABILITY_EXACT      GUMBEL_CAPABILITY_BIT(6) /* ties at a cutoff broken by id */
#define GUMBEL_CAPABILITY_MASS       GUMBEL_CAPABILITY_BIT(7) /* the log-normaliser */
#define GUMBEL_CAPABILITY_SAMPLES    GUMBEL_CAPABILITY_BIT(8) /* more than one sample a row */
#define GUMBEL_CAPABILITY_NOISE      GUMBEL_CAPABILITY_BIT(9) /* noise read from memory */
#define GUMBEL_CAPABILITY_SOFT_CAP   GUMBEL_CAPABILITY_BIT(10)
#define GUMBEL_CAPABILITY_SCALE      GUMBEL_CAPABILITY_BIT(11) /* a scale <= 0 */
#define GUMBEL_CAPABILITY_BIAS       GUMBEL_CAPABILITY_BIT(12) /* a head's bias */
#define GUMBEL_CAPABILITY_SUMMARIES  GUMBEL_CAPABILITY_BIT(13) /* summaries instead of outputs */
#define GUMBEL_CAPABILITY_ROWS       GUMBEL_CAPABILITY_BIT(14) /* processed rows, no draw */
#define GUMBEL_CAPABILITY_PRODUCT    GUMBEL_CAPABILITY_BIT(15) /* the product alone */
#define GUMBEL_CAPABILITY_EMPTY      GUMBEL_CAPABILITY_BIT(16) /* a range without tokens */
#define GUMBEL_CAPABILITY_END        GUMBEL_CAPABILITY_BIT(17)

/* All capabilities of truncation. */
#define GUMBEL_CAPABILITIES_OF_TRUNCATION                                                          \
    (GUMBEL_FEATURE_TRUNCATION | GUMBEL_CAPABILITY_MIN_P | GUMBEL_CAPABILITY_TOP_K |               \
     GUMBEL_CAPABILITY_TOP_P | GUMBEL_CAPABILITY_JOINT | GUMBEL_CAPABILITY_MIN_P_LAST |            \
     GUMBEL_CAPABILITY_EXACT)

/* A kernel variant: the first member of each row of a backend's dispatch table. */
typedef struct gumbel_rung {
    const char *name;      /* used by gumbel_explain() and options.rungs */
    const char *method;    /* one line */
    const char *kernels;   /* the sources of its kernels */
    uint64_t supports;     /* capabilities */
    uint64_t requires_any; /* serves only calls that require one of these; 0: any call */
} gumbel_rung;

/* The capabilities that a draw of the problem requires. For other purposes callers add SUMMARIES,
 * ROWS or PRODUCT. */
uint64_t gumbel_required_capabilities(const gumbel_problem *problem);

/* Whether the rung supports a call that requires `required`. */
static inline int gumbel_rung_supports(const gumbel_rung *rung, uint64_t required)
{
    return (required & ~rung->supports) == 0 &&
           (rung->requires_any == 0 || (required & rung->requires_any) != 0);
}

/* The plan of a call: the rungs that serve it, and the size of their workspace. A plan is valid for
 * every problem of the same shape and features. */
typedef struct gumbel_plan {
    uint64_t required;          /* capabilities */
    const gumbel_rung *product; /* multiplies by the head; NULL: logits are given, or no tokens */
    const gumbel_rung *rows;    /* draws from logits in memory; NULL: `product` draws */
    uint32_t product_outputs;   /* bits of the backend: outputs of `product` besides logits */
    size_t workspace_bytes;     /* SIZE_MAX: larger than any memory */
} gumbel_plan;

/* -------------------------------------------------------------------------- explanations ---- */

/* Text appended to a caller's buffer, truncated at its end. */
typedef struct gumbel_text {
    char *at;      /* [size], NUL-terminated; NULL if size is 0 */
    size_t size;   /* bytes */
    size_t length; /* bytes of the text before truncation */
} gumbel_text;

void gumbel_text_add(gumbel_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds the names of capabilities, separated by commas. */
void gumbel_text_add_capabilities(gumbel_text *text, uint64_t capabilities);

/* Adds a line that explains why the rung does not serve a call: the capabilities that it lacks, or
 * `refusal` if it lacks none. */
void gumbel_text_add_refusal(gumbel_text *text, const gumbel_rung *rung, uint64_t required,
                             const char *refusal);

#endif
