/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   a screen's sums by tdpbsud (AMX). A copy's tile of 16 tokens and 64 columns is its right
 *        operand as it lies, the lines of a panel its left one, and a tile of the result is sums of
 *        a panel and 16 tokens as they are stored.
 * COST   16 cycles a KiB of the copy and 16 lines: memory's time up to a panel of 16, and beyond.
 * MAP    to 8 hidden states both planes are one left operand of up to 16 lines, and four groups of
 *        16 tokens go at a time; to 16 they are two, and two groups do.
 */
#include "cpu/cpu_screen_kernel.h"
#include "cpu/lanes/cpu_unroll.h"

#include <immintrin.h>

/* How many tiles ahead each stream is fetched. */
#define AHEAD 4

/* Tile loads do not tell a compiler that they read memory: what was stored must be there. */
static inline void store_all(void) { __asm__ volatile("" ::: "memory"); }

typedef struct tile_shapes {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16]; /* of a line */
    uint8_t lines[16];
} tile_shapes;

/* Tiles 0 to 3 are results, 4 and 5 left operands, all of `lines`; 6 and 7 right ones. */
static void configure(int lines)
{
    tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = 64;
        shapes.lines[i] = (uint8_t)(i < 6 ? lines : 16);
    }
    store_all();
    _tile_loadconfig(&shapes);
}

static inline __attribute__((always_inline)) void fetch_tile(const uint8_t *tile)
{
    UNROLLED
    for (int i = 0; i < 16; i++)
        _mm_prefetch((const char *)tile + 64 * i, _MM_HINT_T0);
}

/* How far from the tile of column k that lies which its stream fetches now. Behind a group's end
 * lies the next one, which another of the `streams` at a time has read: the stream goes on behind
 * these. */
static inline int64_t ahead_of(const cpu_screen_product *p, int64_t k, int streams)
{
    int64_t ends = k + AHEAD * 64 >= p->columns;
    return AHEAD * CPU_SCREEN_TILE + ends * (streams - 1) * 16 * p->columns;
}

/* Four groups of tokens, both planes in one operand. */
static void sums_whole(const cpu_screen_product *p)
{
    const int64_t apart = 16 * p->columns;
    const int group = 2 * p->rows * 16;
    const uint8_t *copy = p->copy;
    const int8_t *planes = p->planes;
    configure(2 * p->rows);
    _tile_loadd(0, p->sums, 64);
    _tile_loadd(1, p->sums + group, 64);
    _tile_loadd(2, p->sums + 2 * group, 64);
    _tile_loadd(3, p->sums + 3 * group, 64);
    for (int64_t k = 0; k < p->columns; k += 64) {
        const int64_t ahead = ahead_of(p, k, 4);
        _tile_loadd(4, planes, 64);
        fetch_tile(copy + ahead);
        _tile_loadd(6, copy, 64);
        _tile_dpbsud(0, 4, 6);
        fetch_tile(copy + apart + ahead);
        _tile_loadd(7, copy + apart, 64);
        _tile_dpbsud(1, 4, 7);
        fetch_tile(copy + 2 * apart + ahead);
        _tile_loadd(6, copy + 2 * apart, 64);
        _tile_dpbsud(2, 4, 6);
        fetch_tile(copy + 3 * apart + ahead);
        _tile_loadd(7, copy + 3 * apart, 64);
        _tile_dpbsud(3, 4, 7);
        copy += CPU_SCREEN_TILE;
        planes += 128 * p->rows;
    }
    _tile_stored(0, p->sums, 64);
    _tile_stored(1, p->sums + group, 64);
    _tile_stored(2, p->sums + 2 * group, 64);
    _tile_stored(3, p->sums + 3 * group, 64);
}

/* Groups `first` and the next, each plane an operand. */
static void sums_half(const cpu_screen_product *p, int first)
{
    const int64_t apart = 16 * p->columns;
    const int plane = p->rows * 16;
    const uint8_t *copy = p->copy + first * apart;
    const int8_t *planes = p->planes;
    int32_t *sums = p->sums + first * 2 * plane;
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + plane, 64);
    _tile_loadd(2, sums + 2 * plane, 64);
    _tile_loadd(3, sums + 3 * plane, 64);
    for (int64_t k = 0; k < p->columns; k += 64) {
        const int64_t ahead = ahead_of(p, k, 2);
        _tile_loadd(4, planes, 64);
        _tile_loadd(5, planes + 64 * p->rows, 64);
        fetch_tile(copy + ahead);
        _tile_loadd(6, copy, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 5, 6);
        fetch_tile(copy + apart + ahead);
        _tile_loadd(7, copy + apart, 64);
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

/* What tiles of results are loaded with. */
static void start_sums(const cpu_screen_product *p)
{
    int32_t *out = p->sums;
    for (int group = 0; group < 4; group++)
        for (int line = 0; line < 2 * p->rows; line++)
            for (int i = 0; i < 16; i++)
                *out++ = p->start[line];
    store_all();
}

static void sums(const cpu_screen_product *p)
{
    start_sums(p);
    if (p->rows <= 8) {
        sums_whole(p);
    } else {
        configure(p->rows);
        sums_half(p, 0);
        sums_half(p, 2);
    }
    _tile_release();
}

const cpu_screen_sums cpu_screen_amx = {
    .name = "amx", .plane = 256, .panel = 16, .batch_most = 64, .sums = sums};
