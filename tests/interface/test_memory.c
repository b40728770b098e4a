/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of memory: a call allocates nothing and starts no thread; a draw from hidden states stores
 * no [B, V] array and requires a small workspace; offsets beyond 4 GiB and 2^32 elements are
 * correct.
 */
#define _GNU_SOURCE
#include "outcome.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* --------------------------------- allocations, counted by means of the linker's --wrap ---- */

static atomic_int allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
void *__real_mmap(void *at, size_t length, int protection, int flags, int file, off_t offset);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);
void *__wrap_mmap(void *at, size_t length, int protection, int flags, int file, off_t offset);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);

void *__wrap_malloc(size_t size)
{
    allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    allocations++;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    allocations++;
    return __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    allocations++;
    return __real_aligned_alloc(alignment, size);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size)
{
    allocations++;
    return __real_posix_memalign(out, alignment, size);
}

void *__wrap_mmap(void *at, size_t length, int protection, int flags, int file, off_t offset)
{
    allocations++;
    return __real_mmap(at, length, protection, flags, file, offset);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument)
{
    allocations++;
    return __real_pthread_create(thread, attributes, start, argument);
}

static void no_call_allocates(void **state)
{
    (void)state;
    problem_plan plan = {.batch = 16, .vocab = 5000, .hidden_size = 64, .samples = 2, .seed = 71};
    problem *generated = problem_make(&plan);
    outcome *drawn = outcome_make(16, 2);
    gumbel_summary *summaries = make_zeroed(32, sizeof *summaries);
    float noise[100];
    gumbel_isa isas[4];
    int known = list_isas(isas);
    for (int k = 0; k < known; k++) {
        int before = allocations;
        gumbel_device *device = open_device(isas[k], 3, 0);
        size_t bytes;
        void *workspace = make_workspace(device, 5000, 64, 2, &bytes);
        assert_true(allocations >= before + 4); /* counting works: the device has allocated */
        before = allocations;
        assert_int_equal(gumbel_sample(device, NULL, &generated->head, &generated->sampling,
                                       &drawn->output, workspace, bytes, NULL),
                         GUMBEL_OK);
        assert_int_equal(gumbel_partial(device, NULL, &generated->head, &generated->sampling,
                                        summaries, workspace, bytes, NULL),
                         GUMBEL_OK);
        assert_int_equal(gumbel_merge(NULL, NULL, summaries, summaries + 16, 16, NULL), GUMBEL_OK);
        assert_int_equal(gumbel_finish(NULL, NULL, summaries, 1, 16, 2, &drawn->output, NULL),
                         GUMBEL_OK);
        gumbel_logits logits = {.struct_size = sizeof logits, .logits = generated->head.weight};
        logits.logits.rows = 16;
        assert_int_equal(gumbel_sample_logits(device, NULL, &logits, &generated->sampling,
                                              &drawn->output, workspace, bytes, NULL),
                         GUMBEL_OK);
        assert_int_equal(gumbel_noise(1, 2, 3, 4, 0, 100, noise, NULL), GUMBEL_OK);
        assert_int_equal(allocations, before);
        gumbel_close(device);
        free(workspace);
    }
    free(summaries);
    outcome_free(drawn);
    problem_free(generated);
}

/* --------------------------------------------------------------------- no [B, V] array ---- */

/* The maximum resident size of the process, in bytes. */
static int64_t peak_resident_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

static void fused_draw_stores_no_logits(void **state)
{
    (void)state;
    if (SANITIZED) {
        print_message("skipped: the memory of the sanitizer itself grows\n");
        skip();
    }
    problem_plan plan = {.batch = 16, .vocab = 151936, .hidden_size = 64, .seed = 72};
    problem *generated = problem_make(&plan);
    outcome *drawn = outcome_make(16, 1);
    gumbel_isa isas[4];
    int known = list_isas(isas);
    for (int k = 0; k < known; k++) {
        gumbel_device *device = open_device(isas[k], 4, 0);
        int64_t before = peak_resident_bytes();
        assert_int_equal(draw(device, &generated->head, &generated->sampling, drawn), GUMBEL_OK);
        int64_t grown = peak_resident_bytes() - before;
        print_message("%s: peak grew by %lld KiB; [B, V] float32 would be %d KiB\n",
                      gumbel_isa_name(isas[k]), (long long)grown / 1024, 16 * 151936 * 4 / 1024);
        assert_true(grown < 1 << 20);
        gumbel_close(device);
    }
    outcome_free(drawn);
    problem_free(generated);
}

static void workspace_is_smaller_than_the_logits(void **state)
{
    (void)state;
    gumbel_isa isas[4];
    int known = list_isas(isas);
    for (int k = 0; k < known; k++) {
        gumbel_device *device = open_device(isas[k], 4, 0);
        size_t bytes;
        const gumbel_limits limits = {
            .struct_size = sizeof limits, .batch = 16, .hidden_size = 4096};
        assert_int_equal(gumbel_workspace_most(device, &limits, &bytes, NULL), GUMBEL_OK);
        print_message("%s: %zu KiB at B 16, D 4096, 4 threads\n", gumbel_isa_name(isas[k]),
                      bytes / 1024);
        assert_true(bytes < 1 << 20);
        gumbel_close(device);
    }
}

/* ------------------------------------------------------------------------ wide offsets ---- */

/* Reserves address space, `stride` bytes for each row, and copies each row to pages of its own. A
 * read between rows faults. Returns NULL if the space cannot be reserved. */
static char *reserve_spread_rows(const void *rows, int64_t count, size_t row_bytes, size_t stride,
                                 size_t *length)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t held = (row_bytes + page - 1) / page * page;
    *length = (size_t)(count - 1) * stride + held;
    char *space =
        mmap(NULL, *length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return NULL;
    for (int64_t i = 0; i < count; i++) {
        char *row = space + (size_t)i * stride;
        if (mprotect(row, held, PROT_READ | PROT_WRITE) != 0)
            die("pages cannot be protected");
        memcpy(row, (const char *)rows + (size_t)i * row_bytes, row_bytes);
    }
    return space;
}

static void skip_without_space(const void *space)
{
    if (space)
        return;
    print_message("skipped: the address space cannot be reserved\n");
    skip();
}

/* Weights that span more than 8 GiB and 2^32 elements of two bytes. */
static void offsets_of_weights_beyond_4_gib(void **state)
{
    (void)state;
    if (SANITIZED) {
        print_message("skipped: a sanitizer's shadow of so much address space is too slow\n");
        skip();
    }
    problem_plan plan = {.batch = 3, .vocab = 1100, .hidden_size = 40, .samples = 2, .seed = 73};
    const int64_t stride = INT64_C(1) << 22; /* elements: row 1024 starts at 2^32 */
    problem *generated = problem_make(&plan);
    size_t length;
    char *space =
        reserve_spread_rows(generated->weight, plan.vocab, 80, (size_t)stride * 2, &length);
    skip_without_space(space);
    assert_true(length > INT64_C(1) << 33);
    gumbel_isa isas[4];
    int known = list_isas(isas);
    outcome *compact = outcome_make(3, 2), *wide = outcome_make(3, 2);
    for (int k = 0; k < 2 * known; k++) {
        /* A tile of 4096 holds all rows, so that offsets within a tile exceed 32 bits, too. */
        gumbel_isa isa = isas[k / 2];
        gumbel_device *device = open_device(isa, 2, k % 2 ? 4096 : 64);
        gumbel_head head = generated->head;
        assert_int_equal(draw(device, &head, &generated->sampling, compact), GUMBEL_OK);
        head.weight.data = space;
        head.weight.stride = stride;
        assert_int_equal(draw(device, &head, &generated->sampling, wide), GUMBEL_OK);
        assert_true(outcome_same(compact, 0, wide, OUTCOME_ALL, gumbel_isa_name(isa)));
        /* A shard that has only rows beyond 2^32 elements, so that one of them is drawn. */
        gumbel_head last = problem_shard(&head, 1030, 70),
                    near = problem_shard(&generated->head, 1030, 70);
        assert_int_equal(draw(device, &near, &generated->sampling, compact), GUMBEL_OK);
        assert_int_equal(draw(device, &last, &generated->sampling, wide), GUMBEL_OK);
        assert_true(outcome_same(compact, 0, wide, OUTCOME_ALL, gumbel_isa_name(isa)));
        gumbel_close(device);
    }
    munmap(space, length);
    outcome_free(compact);
    outcome_free(wide);
    problem_free(generated);
}

/* Row 2 of the hidden states, and of the logits, starts at element 2^32. */
static void offsets_of_hidden_states_and_logits_beyond_2_32(void **state)
{
    (void)state;
    if (SANITIZED) {
        print_message("skipped: a sanitizer's shadow of so much address space is too slow\n");
        skip();
    }
    const int64_t stride = INT64_C(1) << 31;
    problem_plan plan = {.batch = 4, .vocab = 300, .hidden_size = 64, .seed = 74};
    problem *generated = problem_make(&plan);
    size_t length;
    char *space = reserve_spread_rows(generated->hidden, 4, 64 * 4, (size_t)stride * 4, &length);
    skip_without_space(space);
    outcome *compact = outcome_make(4, 1), *wide = outcome_make(4, 1);
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, 2, 0);
    gumbel_head head = generated->head;
    assert_int_equal(draw(device, &head, &generated->sampling, compact), GUMBEL_OK);
    head.hidden.data = space;
    head.hidden.stride = stride;
    assert_int_equal(draw(device, &head, &generated->sampling, wide), GUMBEL_OK);
    assert_true(outcome_same(compact, 0, wide, OUTCOME_ALL, "hidden states"));
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = tensor_of(generated->hidden, GUMBEL_FLOAT32, 4, 64, 0)};
    assert_int_equal(draw_logits(device, &logits, &generated->sampling, compact), GUMBEL_OK);
    logits.logits.data = space;
    logits.logits.stride = stride;
    assert_int_equal(draw_logits(device, &logits, &generated->sampling, wide), GUMBEL_OK);
    assert_true(outcome_same(compact, 0, wide, OUTCOME_ALL, "logits"));
    gumbel_close(device);
    munmap(space, length);
    outcome_free(compact);
    outcome_free(wide);
    problem_free(generated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_call_allocates),
        cmocka_unit_test(fused_draw_stores_no_logits),
        cmocka_unit_test(workspace_is_smaller_than_the_logits),
        cmocka_unit_test(offsets_of_weights_beyond_4_gib),
        cmocka_unit_test(offsets_of_hidden_states_and_logits_beyond_2_32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
