/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU architectures that the build compiled the kernels for.
 */
#include "cuda/open/cuda_open.h"

#include <stdlib.h>
#include <string.h>

/* Defined by the build, in nvcc's names: all architectures, and those of each group of kernels. */
const char *cuda_architectures(void) { return CUDA_ARCHITECTURES; }

/* A group of kernels, and the architectures of its images. */
typedef struct kernel_group {
    const char *name, *architectures[16];
} kernel_group;

static const kernel_group groups[] = {
    {"portable", {CUDA_PORTABLE}},
    {"tensor", {CUDA_TENSOR}},
    {"clusters", {CUDA_CLUSTERS}},
    {"hopper", {CUDA_HOPPER}},
};
enum { GROUPS = sizeof groups / sizeof *groups };

/* The driver's order of preference among images; -1 if the GPU cannot run it. Machine code serves
 * its major version from its minor version on, PTX every later capability. A name that ends in 'a'
 * serves its own capability alone. */
static int rank_architecture(const char *name, int capability)
{
    const char *digits = strchr(name, '_') + 1;
    const int compiled = atoi(digits), is_machine_code = name[0] == 's';
    if (compiled > capability || (is_machine_code && compiled / 10 != capability / 10))
        return -1;
    if (name[strlen(name) - 1] == 'a' && compiled != capability)
        return -1;
    return 1000 * is_machine_code + compiled;
}

static const char *choose_architecture(const kernel_group *group, int capability)
{
    const char *best = "";
    int best_rank = -1;
    for (const char *const *name = group->architectures; *name; name++) {
        int rank = rank_architecture(*name, capability);
        if (rank > best_rank) {
            best = *name;
            best_rank = rank;
        }
    }
    return best;
}

const char *cuda_find_architecture(const char *kernels, int32_t capability)
{
    for (int i = 0; i < GROUPS; i++)
        if (strcmp(kernels, groups[i].name) == 0)
            return choose_architecture(&groups[i], capability);
    return "";
}
