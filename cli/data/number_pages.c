/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "number_pages.h"

#include <sys/mman.h>

#include "options.h"
#include "source.h"
#include "thread_ranges.h"

void *map_pages(const char *what, size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (pages == MAP_FAILED) {
        fail(what, "not enough memory for %zu bytes", bytes);
    }
    madvise(pages, bytes, MADV_HUGEPAGE);
    return pages;
}

void unmap_pages(void *pages, size_t bytes) { munmap(pages, bytes); }

size_t matrix_bytes(int64_t rows, int64_t cols, gumbel_dtype dtype)
{
    return ((size_t)rows * (size_t)cols * dtype_size(dtype) + 63) / 64 * 64;
}

uint64_t random_word(uint64_t index)
{
    uint64_t x = (index + 1) * UINT64_C(0x9E3779B97F4A7C15);

    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

struct fill_work {
    void *into;
    int64_t count;
    uint64_t first;  /* random word of item 0 */
    uint64_t keep;   /* sign and mantissa bits of each number */
    uint64_t set;    /* exponent bits of each number */
    float deviation; /* of normal numbers */
};

static void fill_words(void *argument, int32_t index, int32_t threads)
{
    const struct fill_work *work = argument;
    const struct item_range range = find_thread_range(work->count, 4096, index, threads);
    uint64_t *words = work->into;

    for (int64_t i = range.begin; i < range.end; i++) {
        words[i] = (random_word(work->first + (uint64_t)i) & work->keep) | work->set;
    }
}

void fill_numbers(void *pages, size_t bytes, gumbel_dtype dtype, int exponent, uint64_t stream,
                  int32_t threads)
{
    const uint64_t every16 = UINT64_C(0x0001000100010001);
    const uint64_t every32 = UINT64_C(0x0000000100000001);
    struct fill_work work = {.into = pages, .count = (int64_t)(bytes / 8), .first = stream << 48};

    switch (dtype) {
    case GUMBEL_FLOAT16:
        work.keep = 0x83FF * every16;
        work.set = (uint64_t)((exponent + 15) << 10) * every16;
        break;
    case GUMBEL_BFLOAT16:
        work.keep = 0x807F * every16;
        work.set = (uint64_t)((exponent + 127) << 7) * every16;
        break;
    default:
        work.keep = 0x807FFFFF * every32;
        work.set = (uint64_t)((exponent + 127) << 23) * every32;
    }
    run_on_threads(threads, fill_words, &work);
}

static void fill_floats(void *argument, int32_t index, int32_t threads)
{
    const struct fill_work *work = argument;
    const struct item_range range = find_thread_range(work->count, 4096, index, threads);
    float *numbers = work->into;

    for (int64_t i = range.begin; i < range.end; i++) {
        const uint64_t x = random_word(work->first + (uint64_t)i);
        const uint64_t sum = (x & 65535) + (x >> 16 & 65535) + (x >> 32 & 65535) + (x >> 48);

        /* The mean is 2, the variance 4 / 12. */
        numbers[i] = ((float)sum * 0x1p-16f - 2) * 1.7320508f * work->deviation;
    }
}

void fill_normal(float *numbers, int64_t count, float deviation, uint64_t stream, int32_t threads)
{
    struct fill_work work = {
        .into = numbers, .count = count, .first = stream << 48, .deviation = deviation};

    run_on_threads(threads, fill_floats, &work);
}
