/* SPDX-License-Identifier: Apache-2.0
 *
 * The plans that agreement is tested on: a fixed list by number, so that a test, the digest program
 * and a reader who looks at a failure all mean the same problem.
 */
#ifndef TESTS_PLANS_H
#define TESTS_PLANS_H

#include "inputs.h"

/* Every pair of dtypes (weights and hidden states; bias in turn) at every hidden size where the
 * loop of a dot product changes its shape, V = 131. */
#define PLANS_BY_SIZE 135
problem_plan plan_by_size(int index);

/* V from 1 on: every residue of a block of 64 twice, with padding rows, shard offsets and greedy
 * rows. */
#define PLANS_BY_VOCAB 130
problem_plan plan_by_vocab(int index);

/* Everything mixed at random: sizes, strides, dtypes, offsets, transforms. Any index >= 0. */
problem_plan plan_at_random(int index);

#endif
