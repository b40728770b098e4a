/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Sums of a screen by tdpbsud (AMX). A tile of the copy, 16 tokens and 64 columns, is the
 *        right operand as stored, the lines of a panel are the left one, and a result tile holds
 *        the sums of a panel and 16 tokens as they are stored.
 * COST   16 cycles a KiB of the copy and 16 lines: memory is the limit up to a panel of 16.
 * MAP    Up to 8 hidden states both planes form one left operand of at most 16 lines, and four
 *        groups of 16 tokens go at a time; up to 16 hidden states each plane is an operand, and two
 *        groups do.
 */
#include "cpu/cpu_screen_kernel.h"
#include "cpu/lanes/cpu_unroll.h"

#include <immintrin.h>

/* Prefetch distance of each stream, in tiles. */
#define AHEAD 4

/* Tile loads do not declare that they read memory: this barrier makes the compiler write pending
 * stores. */
static inline void force_stores(void) { __asm__ volatile("" ::: "memory"); }

typedef struct tile_shapes {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16]; /* bytes of a line */
    uint8_t lines[16];
} tile_shapes;

/* Tiles 0 to 3 are results, 4 and 5 left operands, all of `lines` lines; 6 and 7 right operands. */
static void configure_tiles(int lines)
{
    tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = 64;
        shapes.lines[i] = (uint8_t)(i < 6 ? lines : 16);
    }
    force_stores();
    _tile_loadconfig(&shapes);
}

INLINED void fetch_tile(const uint8_t *tile)
{
    UNROLLED
    for (int i = 0; i < 16; i++)
        _mm_prefetch((const char *)tile + 64 * i, _MM_HINT_T0);
}

/* Prefetch distance of the stream from the tile of column k. Behind the end of a group lies the
 * next one, which another of the `streams` streams reads, so the stream continues behind these. */
static inline int64_t find_prefetch_distance(const cpu_screen_product *p, int64_t k, int streams)
{
    int64_t ends = k + AHEAD * 64 >= p->columns;
    return AHEAD * CPU_SCREEN_TILE + ends * (streams - 1) * 16 * p->columns;
}

/* Four groups of tokens, both planes in one operand. */
static void sum_four_groups(const cpu_screen_product *p)
{
    const int64_t group_bytes = 16 * p->columns;
    const int group = 2 * p->rows * 16;
    const uint8_t *copy = p->copy;
    const int8_t *planes = p->planes;
    configure_tiles(2 * p->rows);
    _tile_loadd(0, p->sums, 64);
    _tile_loadd(1, p->sums + group, 64);
    _tile_loadd(2, p->sums + 2 * group, 64);
    _tile_loadd(3, p->sums + 3 * group, 64);
    for (int64_t k = 0; k < p->columns; k += 64) {
        const int64_t ahead = find_prefetch_distance(p, k, 4);
        _tile_loadd(4, planes, 64);
        fetch_tile(copy + ahead);
        _tile_loadd(6, copy, 64);
        _tile_dpbsud(0, 4, 6);
        fetch_tile(copy + group_bytes + ahead);
        _tile_loadd(7, copy + group_bytes, 64);
        _tile_dpbsud(1, 4, 7);
        fetch_tile(copy + 2 * group_bytes + ahead);
        _tile_loadd(6, copy + 2 * group_bytes, 64);
        _tile_dpbsud(2, 4, 6);
        fetch_tile(copy + 3 * group_bytes + ahead);
        _tile_loadd(7, copy + 3 * group_bytes, 64);
        _tile_dpbsud(3, 4, 7);
        copy += CPU_SCREEN_TILE;
        planes += 128 * p->rows;
    }
    _tile_stored(0, p->sums, 64);
    _tile_stored(1, p->sums + group, 64);
    _tile_stored(2, p->sums + 2 * group, 64);
    _tile_stored(3, p->sums + 3 * group, 64);
}

/* Groups `first` and `first` + 1, each plane an operand. */
static void sum_two_groups(const cpu_screen_product *p, int first)
{
    const int64_t group_bytes = 16 * p->columns;
    const int plane = p->rows * 16;
    const uint8_t *copy = p->copy + first * group_bytes;
    const int8_t *planes = p->planes;
    int32_t *sums = p->sums + first * 2 * plane;
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + plane, 64);
    _tile_loadd(2, sums + 2 * plane, 64);
    _tile_loadd(3, sums + 3 * plane, 64);
    for (int64_t k = 0; k < p->columns; k += 64) {
        const int64_t ahead = find_prefetch_distance(p, k, 2);
        _tile_loadd(4, planes, 64);
        _tile_loadd(5, planes + 64 * p->rows, 64);
        fetch_tile(copy + ahead);
        _tile_loadd(6, copy, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 5, 6);
        fetch_tile(copy + group_bytes + ahead);
        _tile_loadd(7, copy + group_bytes, 64);
        _tile_dpbsud(2, 4, 7);
        _tile_dpbsud(3, 5, 7);
        copy += CPU_SCREEN_TILE;
        planes += 128 * p->rows;
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + plane, 64);
    _tile_stored(2, sums + 2 * plane, 64);
    _tile_stored(3, sums + 3 * plane, 64);
}

/* Stores the start values, with which result tiles are loaded. */
static void store_start_values(const cpu_screen_product *p)
{
    int32_t *out = p->sums;
    for (int group = 0; group < 4; group++)
        for (int line = 0; line < 2 * p->rows; line++)
            for (int i = 0; i < 16; i++)
                *out++ = p->start[line];
    force_stores();
}

static void sum_products(const cpu_screen_product *p)
{
    store_start_values(p);
    if (p->rows <= 8) {
        sum_four_groups(p);
    } else {
        configure_tiles(p->rows);
        sum_two_groups(p, 0);
        sum_two_groups(p, 2);
    }
    _tile_release();
}

const cpu_screen_kernel cpu_screen_amx = {
    .name = "amx", .plane = 256, .panel = 16, .batch_max = 64, .sum_products = sum_products};
