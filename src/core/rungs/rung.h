/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call needs of the kernels that serve it, and rungs: the ways to serve calls, as rows of a
 * backend's table.
 *
 * The first rung of a table that serves all needs of a call serves it. A rung never sees a need
 * that its row does not list, so that a new need is refused until somebody lists it.
 */
#ifndef GUMBEL_CORE_RUNG_H
#define GUMBEL_CORE_RUNG_H

#include "core/problem.h"

/* Bits of a call's needs: those of gumbel_request, and these behind them. */
typedef enum gumbel_capability {
    GUMBEL_CAPABILITY_LISTS = GUMBEL_REQUEST_END << 0, /* edits by lists of tokens */
    GUMBEL_CAPABILITY_MIN_P = GUMBEL_REQUEST_END << 1, /* as the host knows: rows may turn it off */
    GUMBEL_CAPABILITY_TOP_K = GUMBEL_REQUEST_END << 2, /* likewise */
    GUMBEL_CAPABILITY_TOP_P = GUMBEL_REQUEST_END << 3, /* likewise */
    GUMBEL_CAPABILITY_JOINT = GUMBEL_REQUEST_END << 4, /* a top_p of the whole, beside other cuts */
    /* min_p behind a top_p of what a top_k left; rows that turn this off have one of the whole */
    GUMBEL_CAPABILITY_MIN_P_LAST = GUMBEL_REQUEST_END << 5,
    GUMBEL_CAPABILITY_EXACT = GUMBEL_REQUEST_END << 6,     /* ties at a cut are broken by id */
    GUMBEL_CAPABILITY_MASS = GUMBEL_REQUEST_END << 7,      /* the log-normaliser */
    GUMBEL_CAPABILITY_SAMPLES = GUMBEL_REQUEST_END << 8,   /* more than one */
    GUMBEL_CAPABILITY_NOISE = GUMBEL_REQUEST_END << 9,     /* noise is given */
    GUMBEL_CAPABILITY_SOFT_CAP = GUMBEL_REQUEST_END << 10, /* of logits */
    GUMBEL_CAPABILITY_SCALE = GUMBEL_REQUEST_END << 11,    /* a factor that is not above 0 */
    GUMBEL_CAPABILITY_BIAS = GUMBEL_REQUEST_END << 12,     /* of a head's tokens */
    GUMBEL_CAPABILITY_PART = GUMBEL_REQUEST_END << 13,     /* summaries instead of outputs */
    GUMBEL_CAPABILITY_ROWS = GUMBEL_REQUEST_END << 14,     /* processed rows, and no draw */
    GUMBEL_CAPABILITY_PRODUCT = GUMBEL_REQUEST_END << 15,  /* the product alone */
    GUMBEL_CAPABILITY_EMPTY = GUMBEL_REQUEST_END << 16,    /* no token counts */
} gumbel_capability;
#define GUMBEL_CAPABILITY_END ((uint32_t)GUMBEL_REQUEST_END << 17)

/* The cuts of a request. */
#define GUMBEL_CAPABILITIES_OF_TRUNCATION                                                          \
    (GUMBEL_REQUEST_TRUNCATION | GUMBEL_CAPABILITY_MIN_P | GUMBEL_CAPABILITY_TOP_K |               \
     GUMBEL_CAPABILITY_TOP_P | GUMBEL_CAPABILITY_JOINT | GUMBEL_CAPABILITY_MIN_P_LAST |            \
     GUMBEL_CAPABILITY_EXACT)

/* One way to serve calls. A backend's row begins with it. */
typedef struct gumbel_rung {
    const char *name;    /* by which it is explained and forced */
    const char *what;    /* how it serves, in a line */
    const char *kernels; /* what it launches */
    uint32_t serves;     /* needs */
    uint32_t wants;      /* it serves no call without one of these; 0: any */
} gumbel_rung;

/* The needs of a problem that is to be drawn; those of another purpose are the caller's to add. */
uint32_t gumbel_required_capabilities(const gumbel_problem *problem);

/* Whether needs alone let the rung serve. */
static inline int gumbel_rung_supports(const gumbel_rung *rung, uint32_t needs)
{
    return (needs & ~rung->serves) == 0 && (rung->wants == 0 || (needs & rung->wants) != 0);
}

/* -------------------------------------------------------------------------- explanations ---- */

/* Text that grows in a caller's memory, cut where that ends. */
typedef struct gumbel_text {
    char *at;      /* [size], terminated; NULL where size is 0 */
    size_t size;   /* bytes */
    size_t length; /* of the whole text, which may be more */
} gumbel_text;

void gumbel_text_add(gumbel_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The names of needs, by commas. */
void gumbel_text_add_capabilities(gumbel_text *text, uint32_t needs);

/* A line: why the rung does not serve the needs; `refusal` where these are no reason. */
void gumbel_text_add_refusal(gumbel_text *text, const gumbel_rung *rung, uint32_t needs,
                             const char *refusal);

#endif
