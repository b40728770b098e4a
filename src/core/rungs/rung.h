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
typedef enum gumbel_need {
    GUMBEL_NEED_LISTS = GUMBEL_REQUEST_END << 0, /* edits by lists of tokens */
    GUMBEL_NEED_MIN_P = GUMBEL_REQUEST_END << 1, /* as the host knows: rows may turn it off */
    GUMBEL_NEED_TOP_K = GUMBEL_REQUEST_END << 2, /* likewise */
    GUMBEL_NEED_TOP_P = GUMBEL_REQUEST_END << 3, /* likewise */
    GUMBEL_NEED_JOINT = GUMBEL_REQUEST_END << 4, /* a top_p of the whole, beside other cuts */
    /* min_p behind a top_p of what a top_k left; rows that turn this off have one of the whole */
    GUMBEL_NEED_MIN_P_LAST = GUMBEL_REQUEST_END << 5,
    GUMBEL_NEED_EXACT = GUMBEL_REQUEST_END << 6,     /* ties at a cut are broken by id */
    GUMBEL_NEED_MASS = GUMBEL_REQUEST_END << 7,      /* the log-normaliser */
    GUMBEL_NEED_SAMPLES = GUMBEL_REQUEST_END << 8,   /* more than one */
    GUMBEL_NEED_NOISE = GUMBEL_REQUEST_END << 9,     /* noise is given */
    GUMBEL_NEED_SOFT_CAP = GUMBEL_REQUEST_END << 10, /* of logits */
    GUMBEL_NEED_SCALE = GUMBEL_REQUEST_END << 11,    /* a factor that is not above 0 */
    GUMBEL_NEED_BIAS = GUMBEL_REQUEST_END << 12,     /* of a head's tokens */
    GUMBEL_NEED_PART = GUMBEL_REQUEST_END << 13,     /* summaries instead of outputs */
    GUMBEL_NEED_ROWS = GUMBEL_REQUEST_END << 14,     /* processed rows, and no draw */
    GUMBEL_NEED_PRODUCT = GUMBEL_REQUEST_END << 15,  /* the product alone */
    GUMBEL_NEED_EMPTY = GUMBEL_REQUEST_END << 16,    /* no token counts */
} gumbel_need;
#define GUMBEL_NEED_END ((uint32_t)GUMBEL_REQUEST_END << 17)

/* The cuts of a request. */
#define GUMBEL_NEEDS_OF_CUTS                                                                       \
    (GUMBEL_REQUEST_TRUNCATION | GUMBEL_NEED_MIN_P | GUMBEL_NEED_TOP_K | GUMBEL_NEED_TOP_P |       \
     GUMBEL_NEED_JOINT | GUMBEL_NEED_MIN_P_LAST | GUMBEL_NEED_EXACT)

/* One way to serve calls. A backend's row begins with it. */
typedef struct gumbel_rung {
    const char *name;    /* by which it is explained and forced */
    const char *what;    /* how it serves, in a line */
    const char *kernels; /* what it launches */
    uint32_t serves;     /* needs */
    uint32_t wants;      /* it serves no call without one of these; 0: any */
} gumbel_rung;

/* The needs of a problem that is to be drawn; those of another purpose are the caller's to add. */
uint32_t gumbel_needs_of(const gumbel_problem *problem);

/* Whether needs alone let the rung serve. */
static inline int gumbel_rung_serves(const gumbel_rung *rung, uint32_t needs)
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
void gumbel_text_needs(gumbel_text *text, uint32_t needs);

/* A line: why the rung does not serve the needs; `refusal` where these are no reason. */
void gumbel_text_refusal(gumbel_text *text, const gumbel_rung *rung, uint32_t needs,
                         const char *refusal);

#endif
