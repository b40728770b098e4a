/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds the screen of a head in device memory, and verifies one against the weights.
 */
#define _POSIX_C_SOURCE 199309L

#include "core/fail.h"
#include "core/screen_dither.h"
#include "cuda/fused/screen/screen_params.h"
#include "cuda/run/cuda_calls.h"
#include "cuda/run/cuda_run.h"

#include <inttypes.h>
#include <time.h>

/* Maximum seconds for the work queued on a stream and the verification. */
#define TIMEOUT 60

/* Arguments of the kernels for a screen of problem->screen_format. */
static cuda_screen_build get_build_params(const gumbel_problem *p,
                                          gumbel_screen_certificate certificate, void *screen,
                                          gumbel_screen_offsets *offsets)
{
    char *at = screen;
    const gumbel_screen_layout layout = cuda_screen_layout_of(p->screen_format);
    int known = gumbel_screen_find_offsets_as(layout, p->vocab, p->hidden_size, offsets);
    GUMBEL_ASSERT(known);
    (void)known;
    cuda_screen_build m = {.weight = p->weight,
                           .initial_header = {.magic = GUMBEL_SCREEN_MAGIC,
                                              .version = GUMBEL_SCREEN_VERSION,
                                              .layout = (uint32_t)layout,
                                              .rows = p->vocab,
                                              .columns = p->hidden_size,
                                              .dtype = (uint32_t)p->weight.dtype,
                                              .list_max = GUMBEL_SCREEN_LIST_MAX,
                                              .certificate = (uint32_t)certificate},
                           .header = screen,
                           .bounds = (void *)(at + offsets->bounds),
                           .steps = (void *)(at + offsets->steps),
                           .dither = (void *)(at + offsets->dither),
                           .copy = (void *)(at + offsets->copy),
                           .depths = (int32_t)(offsets->columns / CUDA_SCREEN_TILE)};
    if (!gumbel_screen_is_nested(layout))
        return m;
    m.low_nibbles = m.copy + CUDA_SCREEN_HIGH_BYTES(offsets->blocks, m.depths);
    m.squares = (void *)m.copy;
    m.max_square = (void *)(m.squares + offsets->columns);
    return m;
}

/* Queues launches that store the dither of all columns. The padding has none. */
static gumbel_status store_dither(const cuda_job *job, const cuda_screen_build *m,
                                  const uint64_t *seed)
{
    const int64_t columns = m->weight.cols, padded = (int64_t)m->depths * CUDA_SCREEN_TILE;
    const cuda_shape shape = {1, CUDA_SCREEN_MAKE_THREADS, 0, 0};
    for (int64_t first = 0; first < padded; first += CUDA_SCREEN_DITHER_COUNT) {
        const int64_t known = columns - first, remaining = padded - first;
        const int64_t count =
            remaining < CUDA_SCREEN_DITHER_COUNT ? remaining : CUDA_SCREEN_DITHER_COUNT;
        cuda_screen_dither d = {.to = m->dither + first, .count = (int32_t)count};
        for (int64_t i = 0; i < count && m->low_nibbles; i++)
            d.values[i] = (int32_t)GUMBEL_SCREEN_COLUMN_NONE;
        if (known > 0)
            GUMBEL_FORWARD(gumbel_make_dither((gumbel_screen_layout)m->initial_header.layout, seed,
                                              first, known < count ? known : count, d.values,
                                              job->error));
        GUMBEL_FORWARD(cuda_launch_in_context(job, job->cuda->screen_dither, shape, &d));
    }
    return GUMBEL_OK;
}

/* Queues the launches that set the scales of columns. */
static gumbel_status choose_scales(const cuda_job *job, cuda_screen_build *m)
{
    const cuda_shape columns = {m->depths, CUDA_SCREEN_TILE, 0, 0};
    GUMBEL_FORWARD(cuda_launch_in_context(job, job->cuda->screen_measure, columns, m));
    return cuda_launch_in_context(job, job->cuda->screen_scale, columns, m);
}

gumbel_status cuda_prepare_screen(gumbel_device *device, const gumbel_problem *problem,
                                  const gumbel_screen_options *options, void *screen,
                                  gumbel_error *error)
{
    const cuda_job job = {.cuda = (cuda_device *)device, .stream = problem->stream, .error = error};
    gumbel_screen_offsets offsets;
    if (options->format == GUMBEL_SCREEN_NIBBLES && options->certificate == GUMBEL_SCREEN_CERTAIN)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.certificate",
                           "certain bounds of nibbles are too wide for a draw on CUDA; use "
                           "GUMBEL_SCREEN_BYTES or GUMBEL_SCREEN_PROBABLE");
    cuda_screen_build m = get_build_params(problem, (gumbel_screen_certificate)options->certificate,
                                           screen, &offsets);
    const cuda_shape one_warp = {1, 32, 0, 0};
    const cuda_shape blocks = {offsets.blocks, CUDA_SCREEN_MAKE_THREADS, CUDA_SCREEN_MAKE_BYTES, 0};
    GUMBEL_FORWARD(cuda_launch_in_context(&job, job.cuda->screen_begin, one_warp, &m));
    GUMBEL_FORWARD(store_dither(&job, &m, options->seed));
    if (m.low_nibbles)
        GUMBEL_FORWARD(choose_scales(&job, &m));
    GUMBEL_FORWARD(cuda_launch_in_context(&job, job.cuda->screen_make, blocks, &m));
    return cuda_launch_in_context(&job, job.cuda->screen_seal, one_warp, &m);
}

static double read_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Wait for the stream, with the context current. */
static gumbel_status wait_for_stream(const cuda_job *job)
{
    const double start = read_clock();
    const struct timespec interval = {.tv_nsec = 100000};
    CUresult result;
    while ((result = job->cuda->driver.cuStreamQuery(job->stream)) == CUDA_ERROR_NOT_READY) {
        if (read_clock() - start > TIMEOUT)
            return gumbel_fail(job->error, GUMBEL_ERROR_DEVICE, "stream",
                               "the stream's work did not end within %d seconds", TIMEOUT);
        nanosleep(&interval, NULL);
    }
    return result == CUDA_SUCCESS
               ? GUMBEL_OK
               : cuda_driver_fail(&job->cuda->driver, result, "cuStreamQuery", job->error);
}

/* Copy the first row that fails to `word` in pinned memory, with the context current. */
static gumbel_status find_failing_row(const cuda_job *job, cuda_screen_build *m, cuda_shape shape,
                                      unsigned long long *word)
{
    const cuda_driver *driver = &job->cuda->driver;
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)m->fault;
    void *arguments[] = {m};
    *word = CUDA_SCREEN_HOLDS;
    CUDA_TRY(driver, job->error, cuMemcpyHtoDAsync, at, word, sizeof *word, job->stream);
    GUMBEL_FORWARD(cuda_launch(job, job->cuda->screen_verify, shape, arguments));
    CUDA_TRY(driver, job->error, cuMemcpyDtoHAsync, word, at, sizeof *word, job->stream);
    return wait_for_stream(job);
}

/* Allocate memory and find the first row that fails. After a timeout the memory is leaked, as the
 * kernel may still write it. */
static gumbel_status allocate_and_find(const cuda_job *job, cuda_screen_build *m, cuda_shape shape,
                                       unsigned long long *fault)
{
    const cuda_driver *driver = &job->cuda->driver;
    CUdeviceptr at;
    void *word;
    CUDA_TRY(driver, job->error, cuMemAlloc, &at, sizeof *fault);
    CUresult result = driver->cuMemHostAlloc(&word, sizeof *fault, CU_MEMHOSTALLOC_PORTABLE);
    if (result != CUDA_SUCCESS) {
        driver->cuMemFree(at);
        return cuda_driver_fail(driver, result, "cuMemHostAlloc", job->error);
    }
    m->fault = (unsigned long long *)(uintptr_t)at;
    GUMBEL_FORWARD(find_failing_row(job, m, shape, word));
    *fault = *(unsigned long long *)word;
    driver->cuMemFreeHost(word);
    driver->cuMemFree(at);
    return GUMBEL_OK;
}

gumbel_status cuda_verify_screen(gumbel_device *device, const gumbel_problem *problem,
                                 gumbel_error *error)
{
    const cuda_job job = {.cuda = (cuda_device *)device, .stream = problem->stream, .error = error};
    gumbel_screen_offsets offsets;
    cuda_screen_build m = get_build_params(problem, GUMBEL_SCREEN_PROBABLE,
                                           (void *)(uintptr_t)problem->screen, &offsets);
    const cuda_shape blocks = {offsets.blocks, CUDA_SCREEN_MAKE_THREADS, 0, 0};
    unsigned long long fault = CUDA_SCREEN_HOLDS;
    GUMBEL_FORWARD(cuda_push_context(job.cuda, error));
    gumbel_status status = allocate_and_find(&job, &m, blocks, &fault);
    cuda_pop_context(job.cuda);
    GUMBEL_FORWARD(status);
    GUMBEL_REFUSE_IF(fault == CUDA_SCREEN_IS_OTHER, error, "screen",
                     "the screen was not made for weights of this shape and dtype");
    GUMBEL_REFUSE_IF(fault != CUDA_SCREEN_HOLDS, error, "screen",
                     "row %" PRIu64 " of the weights has changed since the screen was prepared",
                     (uint64_t)fault);
    return GUMBEL_OK;
}
