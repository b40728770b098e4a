/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbered plans of problems for tests of agreement, shared by the tests and the digest program.
 */
#ifndef TESTS_PLANS_H
#define TESTS_PLANS_H

#include "inputs.h"

/* Every pair of dtypes of weights and hidden states, with alternating bias, at every hidden size
 * for which the loop of a dot product takes another form; V = 131. */
#define PLANS_BY_SIZE 135
problem_plan plan_by_size(int index);

/* V = 1, 2, ...: every residue modulo 64 twice, with padding rows, shard offsets and greedy
 * rows. */
#define PLANS_BY_VOCAB 130
problem_plan plan_by_vocab(int index);

/* Random sizes, strides, dtypes, offsets and transforms; any index >= 0. */
problem_plan plan_at_random(int index);

/* The plan with another dtype and another gap behind each row, of weights and of hidden states:
 * the index-th of all combinations of three dtypes and five gaps. The dtype of the bias changes,
 * too. */
enum { STRIDED_PLANS = 3 * 3 * 5 * 5 };
problem_plan plan_strided(problem_plan plan, const gumbel_dtype types[3], const int64_t gaps[5],
                          int index);

#endif
