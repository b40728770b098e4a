/* SPDX-License-Identifier: Apache-2.0
 *
 * The integer product by AMX, compiled with tiles in plain C, against plain sums: tests its
 * addresses, shapes and operands on processors without AMX.
 */
#include <immintrin.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/cpu_screen_kernel.h"
#include "inputs.h"

typedef struct plain_tile {
    int lines, bytes;
    uint8_t data[16][64];
} plain_tile;

static plain_tile tiles[8];

/* Reads the configuration: bytes of lines from offset 16 on, numbers of lines from 48 on. */
static void load_shapes(const void *from)
{
    const uint8_t *shapes = from;
    assert_int_equal(shapes[0], 1);
    for (int i = 0; i < 8; i++) {
        tiles[i].bytes = shapes[16 + 2 * i] | shapes[17 + 2 * i] << 8;
        tiles[i].lines = shapes[48 + i];
        assert_in_range(tiles[i].lines, 1, 16);
        assert_in_range(tiles[i].bytes, 1, 64);
    }
}

static void load_tile(int to, const void *from, int64_t stride)
{
    memset(tiles[to].data, 0, sizeof tiles[to].data);
    for (int i = 0; i < tiles[to].lines; i++)
        memcpy(tiles[to].data[i], (const char *)from + i * stride, (size_t)tiles[to].bytes);
}

static void store_result(int from, void *to, int64_t stride)
{
    for (int i = 0; i < tiles[from].lines; i++)
        memcpy((char *)to + i * stride, tiles[from].data[i], (size_t)tiles[from].bytes);
}

/* to[m][n] += sum over k of signed left[m][4 k + i] * unsigned right[k][4 n + i]. */
static void multiply_tiles(int to, int left, int right)
{
    assert_int_equal(tiles[to].lines, tiles[left].lines);
    assert_int_equal(tiles[left].bytes, 4 * tiles[right].lines);
    for (int m = 0; m < tiles[to].lines; m++)
        for (int n = 0; n < tiles[to].bytes / 4; n++) {
            int32_t sum;
            memcpy(&sum, &tiles[to].data[m][4 * n], sizeof sum);
            for (int k = 0; k < tiles[left].bytes; k++)
                sum += (int8_t)tiles[left].data[m][k] * tiles[right].data[k / 4][4 * n + k % 4];
            memcpy(&tiles[to].data[m][4 * n], &sum, sizeof sum);
        }
}

static void forget_tiles(void) { memset(tiles, 0, sizeof tiles); }

#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig               load_shapes
#define _tile_release                  forget_tiles
#define _tile_loadd(to, from, stride)  load_tile(to, from, stride)
#define _tile_stored(from, to, stride) store_result(from, to, stride)
#define _tile_dpbsud                   multiply_tiles
#define cpu_screen_amx                 amx_of_plain_tiles
#include "cpu/isa/cpu_screen_amx.c"

static void same_sums(void **state)
{
    static int32_t own[CPU_SCREEN_SUMS] __attribute__((aligned(64)));
    static int32_t plain[CPU_SCREEN_SUMS] __attribute__((aligned(64)));
    uint64_t random = 3;
    (void)state;
    for (int rows = 1; rows <= CPU_SCREEN_PANEL_MAX; rows++) {
        const int64_t columns = 192;
        int32_t start[2 * CPU_SCREEN_PANEL_MAX];
        int8_t *planes = make_zeroed((size_t)(2 * rows * columns), 1);
        uint8_t *copy = make_zeroed((size_t)(64 * columns), 1);
        for (int64_t i = 0; i < 64 * columns; i++)
            copy[i] = (uint8_t)random_below(&random, 256);
        for (int64_t i = 0; i < 2 * rows * columns; i++)
            planes[i] = (int8_t)((int)random_below(&random, 256) - 128);
        for (int i = 0; i < 2 * rows; i++)
            start[i] = (int32_t)random_below(&random, 1 << 20) - (1 << 19);
        memset(own, 0xaa, sizeof own);
        memset(plain, 0xaa, sizeof plain);
        cpu_screen_product call = {.copy = copy,
                                   .columns = columns,
                                   .planes = planes,
                                   .rows = rows,
                                   .start = start,
                                   .sums = own};
        amx_of_plain_tiles.sum_products(&call);
        call.sums = plain;
        cpu_screen_plain.sum_products(&call);
        assert_memory_equal(own, plain, sizeof own);
        free(planes);
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_sums)};
    return cmocka_run_group_tests_name("screen_amx", tests, NULL, NULL);
}
