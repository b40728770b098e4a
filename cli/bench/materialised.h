/* SPDX-License-Identifier: Apache-2.0
 *
 * The baseline of the fused draw: logits written to a [B, V] array, softmax, inverse CDF, in
 * vector code, so that the comparison is fair.
 */
#ifndef GUMBEL_CLI_MATERIALISED_H
#define GUMBEL_CLI_MATERIALISED_H

#include <stdint.h>

#include "gumbel/gumbel.h"

/* One batch of the baseline. The caller owns the arrays. */
struct materialised {
    int64_t batch;          /* B */
    int64_t vocab;          /* V */
    const float *logits;    /* [B, V] */
    float *stored;          /* [B, V] receives a copy of `logits`, as a product would store them */
    float *probabilities;   /* [B, V] receives exp(z - max z) */
    const double *uniforms; /* [B] in [0, 1): picks the token */
    float inverse_temperature;
    int32_t *tokens; /* [B] */
    int32_t threads; /* each row is processed by one thread */
    gumbel_isa isa;  /* widest registers to use */
};

/* All of the baseline except the product: the stores of [B, V] logits, one read for the maximum,
 * one read and one write for exp and its sum, half a read to find the token. The caller adds the
 * time of gumbel_multiply() for the product. */
void materialised_draw(const struct materialised *work);

#endif
