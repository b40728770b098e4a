/* SPDX-License-Identifier: Apache-2.0
 *
 * What an order of rules means, for every backend. min_p and top_k cut at the same values wherever
 * they stand, so all that an order tells is which of them top_p comes behind, and whether the rules
 * look at y or at z. Another order of these rules is a bit here and nothing elsewhere.
 */
#ifndef GUMBEL_CORE_ORDER_H
#define GUMBEL_CORE_ORDER_H

#include "maths/elementary.h"
#include "gumbel/gumbel.h"

/* Sets of orders, a bit each. A top_p behind neither min_p nor top_k looks at the whole
 * distribution. */
typedef enum gumbel_orders {
    GUMBEL_ORDERS_BEHIND_MIN_P =
        1 << GUMBEL_ORDER_MIN_P_TOP_K_TOP_P | 1 << GUMBEL_ORDER_BEFORE_TEMPERATURE,
    GUMBEL_ORDERS_BEHIND_TOP_K = GUMBEL_ORDERS_BEHIND_MIN_P | 1 << GUMBEL_ORDER_TOP_K_TOP_P_MIN_P |
                                 1 << GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE,
    GUMBEL_ORDERS_OF_Y = 1 << GUMBEL_ORDER_BEFORE_TEMPERATURE |
                         1 << GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE |
                         1 << GUMBEL_ORDER_JOINT_TEMPERATURE,
} gumbel_orders;

GUMBEL_INLINE int gumbel_order_is_of(gumbel_order order, gumbel_orders set)
{
    return (int)set >> order & 1;
}

#endif
