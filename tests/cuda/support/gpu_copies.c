/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_copies.h"

#include "cuda_support.h"

void *gpu_copies_add(gpu_copies *copies, const void *from, size_t bytes)
{
    void *to = gpu_copy(from, bytes);
    if (to) {
        if (copies->count == GPU_COPIES_MAX)
            die("a call owns too many copies");
        copies->owned[copies->count++] = to;
    }
    return to;
}

void gpu_copies_add_lists(gpu_copies *copies, gumbel_token_lists *lists, size_t rows)
{
    if (!lists->offsets)
        return;
    const size_t ids = (size_t)lists->offsets[rows];
    lists->offsets = gpu_copies_add(copies, lists->offsets, (rows + 1) * sizeof *lists->offsets);
    lists->ids = gpu_copies_add(copies, lists->ids, ids * sizeof *lists->ids);
    lists->values = gpu_copies_add(copies, lists->values, ids * sizeof *lists->values);
}

void gpu_copies_add_all_lists(gpu_copies *copies, gumbel_transforms *transforms, size_t rows)
{
    gumbel_token_lists *const all[] = {&transforms->allowed,       &transforms->banned,
                                       &transforms->bias,          &transforms->prompt_tokens,
                                       &transforms->output_tokens, &transforms->late_bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gpu_copies_add_lists(copies, all[i], rows);
}

void gpu_copies_free(gpu_copies *copies)
{
    for (int i = 0; i < copies->count; i++)
        gpu_free(copies->owned[i]);
    copies->count = 0;
}
