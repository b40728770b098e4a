/* SPDX-License-Identifier: Apache-2.0
 *
 * Making a screen: threads claim blocks of 64 rows.
 */
#include "cpu/call/screen/cpu_screen.h"

#include "core/fail.h"
#include "cpu/cpu_policy.h"

typedef struct making {
    cpu_device *device;
    const gumbel_problem *problem;
    gumbel_screen_parts parts;
    unsigned char *screen;
    _Atomic int64_t next;
    _Atomic uint32_t error,
        weight; /* the most so far, as the bits of floats that are not negative */
} making;

static void raise_to(_Atomic uint32_t *most, float value)
{
    uint32_t bits = gumbel_bits_of(value), seen = atomic_load(most);
    while (seen < bits && !atomic_compare_exchange_weak(most, &seen, bits))
        ;
}

static void make_block(making *m, int64_t block)
{
    const gumbel_tensor *weight = &m->problem->weight;
    int64_t stride = weight->stride * cpu_element_size(weight->dtype);
    cpu_screen_rows rows = {
        .dtype = weight->dtype, .stride_bytes = stride, .hidden_size = weight->cols};
    for (int64_t first = block * GUMBEL_BLOCK; first < (block + 1) * GUMBEL_BLOCK; first += 16) {
        int64_t left = weight->rows - first;
        rows.count = left < 0 ? 0 : left < 16 ? (int)left : 16;
        rows.weight = (const char *)weight->data + (rows.count ? first * stride : 0);
        rows.steps = (float *)(void *)(m->screen + m->parts.steps) + first;
        rows.copy = m->screen + m->parts.copy + first * m->parts.columns;
        m->device->kernels->screen_rows(&rows);
    }
    ((gumbel_screen_block *)(void *)(m->screen + m->parts.bounds))[block] = rows.bound;
    raise_to(&m->error, rows.bound.error);
    raise_to(&m->weight, rows.weight_most);
}

static void make_share(void *argument, int32_t index)
{
    making *m = argument;
    (void)index;
    for (int64_t block;
         (block = atomic_fetch_add_explicit(&m->next, 1, memory_order_relaxed)) < m->parts.blocks;)
        make_block(m, block);
}

gumbel_status cpu_screen_prepare(gumbel_device *device, const gumbel_problem *p, void *screen,
                                 gumbel_error *error)
{
    making m = {.device = (cpu_device *)device, .problem = p, .screen = screen};
    gumbel_screen_header header = {.magic = GUMBEL_SCREEN_MAGIC,
                                   .version = GUMBEL_SCREEN_VERSION,
                                   .layout = GUMBEL_SCREEN_LAYOUT_CPU,
                                   .rows = p->vocab,
                                   .columns = p->hidden_size,
                                   .dtype = (uint32_t)p->weight.dtype,
                                   .list_most = GUMBEL_SCREEN_LIST_MOST};
    int known = gumbel_screen_find_parts(p->vocab, p->hidden_size, &m.parts);
    (void)error;
    (void)known;
    GUMBEL_ASSERT(known);
    memset(screen, 0, m.parts.steps);
    int worth = p->vocab >= CPU_PARALLEL_PRODUCTS / p->hidden_size;
    cpu_run_task(m.device, worth, make_share, &m);
    header.error = gumbel_float_of(m.error);
    header.weight = gumbel_float_of(m.weight);
    header.check = gumbel_screen_checksum(&header);
    memcpy(screen, &header, sizeof header);
    return GUMBEL_OK;
}
