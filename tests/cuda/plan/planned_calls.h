/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices and calls for tests of plans, which need no GPU: planning runs on the host.
 */
#ifndef TESTS_PLANNED_CALLS_H
#define TESTS_PLANNED_CALLS_H

#include "cuda/plan/cuda_plan.h"

/* Stands for pointers that must not be NULL; never read. */
extern char plan_data[64];

/* The attributes of a GPU that plans use: an H200 or an A100. */
cuda_device plan_device(int hopper);

/* A call with these features on a vocabulary of 151936, from logits if `hidden_size` is 0. */
gumbel_problem plan_problem(int64_t batch, int64_t hidden_size, uint32_t request);

/* The rules top_k and temperature. */
extern const uint8_t plan_top_k_program[GUMBEL_PROGRAM_LENGTH];

/* Replaces the order of a problem by one program. */
void plan_program(gumbel_problem *p, const uint8_t *rules);

/* Sets the list of names, or NULL, that forces and excludes rungs. The test fails if the list is
 * invalid. */
void plan_force_rungs(cuda_device *device, const char *names);

/* The names of the planned rungs, or the field of the error, in static storage. */
const char *plan_rungs(const cuda_device *device, const gumbel_problem *p, uint64_t more);

#endif
