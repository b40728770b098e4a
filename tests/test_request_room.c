/* SPDX-License-Identifier: Apache-2.0
 *
 * A request on CUDA takes no more of its workspace than its size was said to be, though that is
 * said before it is known whether log-probabilities are asked for. No GPU is needed.
 */
#include "cuda/plan/cuda_run.h"
#include "inputs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A GPU as far as its requests' memory goes. */
static cuda_device make_device(int has_clusters)
{
    cuda_device made;
    memset(&made, 0, sizeof made);
    made.capability = has_clusters ? 90 : 80;
    made.multiprocessors = has_clusters ? 132 : 108;
    made.shared_bytes = (has_clusters ? 228 : 164) * 1024;
    made.request_team = has_clusters ? (CUfunction)&made : NULL;
    return made;
}

/* What cannot be NULL where it is asked for; nobody looks at it. */
static char something[64];

static gumbel_problem make_problem(uint64_t *random)
{
    static const int64_t batches[] = {1, 4, 7, 32, 64, 200};
    static const uint32_t cuts[] = {0, GUMBEL_REQUEST_TRUNCATION};
    gumbel_problem p = {.batch = batches[random_below(random, 6)],
                        .vocab = 1 + random_below(random, 200000),
                        .scale = 1};
    p.end_token = p.vocab;
    p.sampling.num_samples = 1 + (int32_t)random_below(random, 2);
    p.request = random_below(random, GUMBEL_REQUEST_TRANSFORMS + 1) | cuts[random_below(random, 2)];
    if (random_below(random, 2))
        p.request &= ~(uint32_t)(GUMBEL_REQUEST_BANNED | GUMBEL_REQUEST_BIAS);
    if (random_below(random, 4) == 0)
        p.request |= GUMBEL_REQUEST_RANKS;
    if (random_below(random, 2))
        p.history.prompt = (uint32_t *)something;
    p.truncation.top_p = random_below(random, 2) ? (float *)something : NULL;
    p.truncation.top_k = random_below(random, 3) == 0 ? (int32_t *)something : NULL;
    p.truncation.min_p = random_below(random, 3) == 0 ? (float *)something : NULL;
    p.sampling.noise = random_below(random, 6) == 0 ? (float *)something : NULL;
    if (random_below(random, 2)) {
        p.hidden_size = 64;
        p.weight.rows = p.vocab;
    }
    return p;
}

static void takes_what_it_said(void **state)
{
    uint64_t random = 1;
    int differ = 0;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        const cuda_device device = make_device(i % 2);
        gumbel_problem p = make_problem(&random);
        const size_t size = cuda_request_size(&device.base, &p);
        const size_t elements = p.hidden_size ? (size_t)(p.batch * p.vocab) : 0; /* stored */
        size_t taken[2];
        for (int with_mass = 0; with_mass < 2; with_mass++) {
            gumbel_cursor cursor = {0};
            p.with_mass = with_mass;
            cuda_carve_request(&cursor, &device, &p, p.hidden_size > 0);
            taken[with_mass] = cursor.used;
            assert_true(cursor.used + (p.request ? elements * sizeof(float) : 0) <= size);
        }
        differ += taken[0] != taken[1];
    }
    assert_true(differ > 1000); /* else this shows nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_what_it_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
