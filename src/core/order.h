/* SPDX-License-Identifier: Apache-2.0
 *
 * What an order of rules means, for every backend. min_p and top_k cut at the same values wherever
 * they stand, so all that an order tells is which of them top_p comes behind, and whether values
 * are y or z. Another order of these rules is a line here and nothing elsewhere.
 */
#ifndef GUMBEL_CORE_ORDER_H
#define GUMBEL_CORE_ORDER_H

#include "maths/elementary.h"
#include "gumbel/gumbel.h"

typedef enum gumbel_order_bit {
    GUMBEL_TOP_P_BEHIND_MIN_P = 1 << 0,
    GUMBEL_TOP_P_BEHIND_TOP_K = 1 << 1,
    GUMBEL_TEMPERATURE_LAST = 1 << 2,
} gumbel_order_bit;

/* gumbel_order_bit bits of an order; top_p behind neither looks at the whole distribution. */
GUMBEL_INLINE uint32_t gumbel_order_bits(gumbel_order order)
{
    switch (order) {
    case GUMBEL_ORDER_MIN_P_TOP_K_TOP_P:
        return GUMBEL_TOP_P_BEHIND_MIN_P | GUMBEL_TOP_P_BEHIND_TOP_K;
    case GUMBEL_ORDER_JOINT:
        return 0;
    case GUMBEL_ORDER_BEFORE_TEMPERATURE:
        return GUMBEL_TOP_P_BEHIND_MIN_P | GUMBEL_TOP_P_BEHIND_TOP_K | GUMBEL_TEMPERATURE_LAST;
    case GUMBEL_ORDER_TOP_K_TOP_P_MIN_P:
        return GUMBEL_TOP_P_BEHIND_TOP_K;
    case GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE:
        return GUMBEL_TOP_P_BEHIND_TOP_K | GUMBEL_TEMPERATURE_LAST;
    case GUMBEL_ORDER_JOINT_TEMPERATURE:
        return GUMBEL_TEMPERATURE_LAST;
    }
    return 0;
}

#endif
