/* SPDX-License-Identifier: Apache-2.0
 *
 * Making screens of heads in device memory.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"

gumbel_status cuda_screen_prepare(gumbel_device *device, const gumbel_problem *problem,
                                  void *screen, gumbel_error *error)
{
    const cuda_job job = {.cuda = (cuda_device *)device, .stream = problem->stream, .error = error};
    gumbel_screen_parts parts;
    char *at = screen;
    int known = gumbel_screen_lay_out_as(GUMBEL_SCREEN_LAYOUT_TILES, problem->vocab,
                                         problem->hidden_size, &parts);
    GUMBEL_ASSERT(known);
    (void)known;
    cuda_screen_making m = {.weight = problem->weight,
                            .begun = {.magic = GUMBEL_SCREEN_MAGIC,
                                      .version = GUMBEL_SCREEN_VERSION,
                                      .layout = GUMBEL_SCREEN_LAYOUT_TILES,
                                      .rows = problem->vocab,
                                      .columns = problem->hidden_size,
                                      .dtype = (uint32_t)problem->weight.dtype,
                                      .list_most = GUMBEL_SCREEN_LIST_MOST},
                            .header = screen,
                            .bounds = (void *)(at + parts.bounds),
                            .steps = (void *)(at + parts.steps),
                            .copy = (void *)(at + parts.copy),
                            .depths = (int32_t)(parts.columns / CUDA_SCREEN_TILE)};
    const cuda_shape alone = {1, 32, 0, 0};
    const cuda_shape all = {parts.blocks, CUDA_SCREEN_MAKE_THREADS, CUDA_SCREEN_MAKE_BYTES, 0};
    GUMBEL_FORWARD(cuda_launch_alone(&job, job.cuda->screen_begin, alone, &m));
    GUMBEL_FORWARD(cuda_launch_alone(&job, job.cuda->screen_make, all, &m));
    return cuda_launch_alone(&job, job.cuda->screen_seal, alone, &m);
}

gumbel_status cuda_screen_verify(gumbel_device *device, const gumbel_problem *problem,
                                 gumbel_error *error)
{
    (void)device, (void)problem;
    return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "device",
                       "it does not compute certificates again");
}
