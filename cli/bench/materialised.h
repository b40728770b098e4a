/* SPDX-License-Identifier: Apache-2.0
 *
 * The route that the fused draw is measured against: logits written to a [B, V] array, softmax,
 * inverse CDF. Plain vector code, no slower than it need be, so that the comparison is fair.
 */
#ifndef GUMBEL_CLI_MATERIALISED_H
#define GUMBEL_CLI_MATERIALISED_H

#include <stdint.h>

#include "gumbel/gumbel.h"

/* One batch on the materialised route. Arrays are the caller's. */
struct materialised {
    int64_t batch;          /* B */
    int64_t vocab;          /* V */
    const float *logits;    /* [B, V] */
    float *stored;          /* [B, V] receives what the product would store */
    float *probabilities;   /* [B, V] receives exp(z - max z) */
    const double *uniforms; /* [B] in [0, 1): picks the token */
    float inverse_temperature;
    int32_t *tokens; /* [B] */
    int32_t threads; /* rows are shared among them, a row is one thread's work */
    gumbel_isa isa;  /* widest registers to use */
};

/* Everything but the product: the stores of [B, V] logits, one read for the maximum, one read and
 * one write for exp and its sum, half a read to find the token. The products's time is to be added;
 * it is that of gumbel_multiply(), the fastest product at hand. */
void materialised_draw(const struct materialised *work);

#endif
