/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods by which the ranks of a group draw: one table for CPUs and one for GPUs, cheapest method
 * first. The first method that supports all capabilities of a call, and does not refuse it, serves
 * the call. The choice depends only on arguments that the ranks compare, so all ranks choose the
 * same method.
 */
#ifndef GUMBEL_RANKS_RANK_METHODS_H
#define GUMBEL_RANKS_RANK_METHODS_H

#include "ranks/rank_draw.h"

#include "core/rungs/rung.h"

typedef struct ranks_method {
    gumbel_rung rung; /* `kernels` names the data that ranks exchange */
    /* Returns why the method does not serve a call whose capabilities it supports; NULL if it does
     * serve the call. */
    const char *(*refuses)(const gumbel_group *group, const gumbel_problem *problem);
    /* Draws; if draw->output is NULL, only counts the workspace. */
    gumbel_status (*draw)(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);
} ranks_method;

/* The method that serves a call. */
const ranks_method *ranks_choose_method(const gumbel_group *group, const gumbel_problem *problem);

/* The backend table of a group whose rank uses `device`. */
gumbel_backend ranks_backend_of(const gumbel_device *device);

#endif
