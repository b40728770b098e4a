/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of a call's arguments in device memory, which are freed together.
 */
#ifndef TESTS_GPU_COPIES_H
#define TESTS_GPU_COPIES_H

#include <gumbel/gumbel.h>

#include <stddef.h>

enum { GPU_COPIES_MAX = 64 };

typedef struct gpu_copies {
    void *owned[GPU_COPIES_MAX];
    int count;
} gpu_copies;

/* A copy in device memory; NULL for NULL. Ends the program if there are too many. */
void *gpu_copies_add(gpu_copies *copies, const void *from, size_t bytes);

/* Replace the arrays of token lists of `rows` rows, or of all lists of transforms, by copies.
 * Absent lists stay absent. */
void gpu_copies_add_lists(gpu_copies *copies, gumbel_token_lists *lists, size_t rows);
void gpu_copies_add_all_lists(gpu_copies *copies, gumbel_transforms *transforms, size_t rows);

/* Frees the copies; others may then be added. */
void gpu_copies_free(gpu_copies *copies);

#endif
