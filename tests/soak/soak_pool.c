/* SPDX-License-Identifier: Apache-2.0 */
#include "soak_pool.h"

#include "cuda_support.h"

#include <math.h>
#include <stdlib.h>

/* A region's numbers are those of a block, rotated by another measure in each copy, so that rows of
 * a matrix rarely repeat. */
#define BLOCK_BYTES  ((size_t)4 << 20)
#define REGION_BYTES (POOL_PIECE_MAX + ((size_t)64 << 20))

static char *regions[POOL_KINDS][3]; /* by kind and dtype */

static float number(pool_kind kind, uint64_t *state)
{
    switch (kind) {
    case POOL_QUARTERS:
        return 0.25f * ((float)random_below(state, 9) - 4);
    case POOL_SIXTEENTHS:
        return 0.0625f * ((float)random_below(state, 9) - 4);
    case POOL_BIAS:
        return 0x1p-12f * ((float)random_below(state, 16385) - 8192);
    case POOL_NORMAL_4:
        return 0.25f * random_normal(state);
    case POOL_NORMAL_16:
        return 0.0625f * random_normal(state);
    case POOL_LOGITS:
        return 3 * random_normal(state);
    case POOL_PEAKED:
        return 2 * random_normal(state) + (random_below(state, 400) == 0 ? 9 : -9);
    default:
        return random_normal(state);
    }
}

static void *make_block(pool_kind kind, gumbel_dtype dtype)
{
    int64_t count = (int64_t)(BLOCK_BYTES / dtype_size(dtype));
    uint64_t state = 100 * (uint64_t)kind + (uint64_t)dtype;
    void *block = make_zeroed((size_t)count, dtype_size(dtype));
    for (int64_t i = 0; i < count; i++)
        if (kind == POOL_PEAKED && random_below(&state, 50) == 0)
            dtype_store_infinite(block, dtype, i, -1);
        else
            dtype_store(block, dtype, i, number(kind, &state));
    return block;
}

static char *make_region(pool_kind kind, gumbel_dtype dtype)
{
    uint64_t state = 7 + 10 * (uint64_t)kind + (uint64_t)dtype;
    void *block = make_block(kind, dtype);
    char *region = gpu_make(REGION_BYTES);
    gpu_put(region, block, BLOCK_BYTES);
    free(block);
    CUdeviceptr first = (CUdeviceptr)(uintptr_t)region;
    for (size_t at = BLOCK_BYTES; at < REGION_BYTES; at += BLOCK_BYTES) {
        size_t turn = 16 * (size_t)(1 + random_below(&state, BLOCK_BYTES / 16 - 1));
        GPU(cuMemcpyDtoDAsync, first + at, first + turn, BLOCK_BYTES - turn, NULL);
        GPU(cuMemcpyDtoDAsync, first + at + BLOCK_BYTES - turn, first, turn, NULL);
    }
    GPU(cuStreamSynchronize, NULL);
    return region;
}

void pool_open(void)
{
    for (int kind = 0; kind < POOL_KINDS; kind++)
        for (int dtype = 0; dtype < 3; dtype++)
            regions[kind][dtype] = make_region((pool_kind)kind, (gumbel_dtype)(1 + dtype));
}

void pool_close(void)
{
    for (int kind = 0; kind < POOL_KINDS; kind++)
        for (int dtype = 0; dtype < 3; dtype++)
            gpu_free(regions[kind][dtype]);
}

const void *pool_piece(pool_kind kind, gumbel_dtype dtype, size_t bytes, size_t alignment,
                       uint64_t *random)
{
    if (bytes > POOL_PIECE_MAX)
        die("the pool has no %zu bytes", bytes);
    uint32_t places = (uint32_t)((REGION_BYTES - bytes) / alignment);
    return regions[kind][dtype - 1] + alignment * random_below(random, places);
}
