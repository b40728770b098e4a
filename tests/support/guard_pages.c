/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "guard_pages.h"

#include "inputs.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

guarded_buffer make_guarded_buffer(const void *content, size_t bytes, int at_front, int writable)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page;
    guarded_buffer g = {.length = inner + 2 * page};
    g.pages = mmap(NULL, g.length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.pages == MAP_FAILED)
        die("no memory for guarded pages");
    g.data = g.pages + page + (at_front ? 0 : inner - bytes);
    if (inner && mprotect(g.pages + page, inner, PROT_READ | PROT_WRITE) != 0)
        die("pages cannot be protected");
    memset(g.pages + page, 0xA7, inner);
    if (content && bytes)
        memcpy(g.data, content, bytes);
    if (inner && !writable && mprotect(g.pages + page, inner, PROT_READ) != 0)
        die("pages cannot be protected");
    return g;
}

void free_guarded_buffer(guarded_buffer *g) { munmap(g->pages, g->length); }

void *guard_copy(guard_set *f, const void *content, size_t bytes, int writable)
{
    if (f->count == (int)(sizeof f->all / sizeof *f->all))
        die("a guard set has too many buffers");
    f->all[f->count] = make_guarded_buffer(content, bytes, f->at_front, writable);
    return f->all[f->count++].data;
}

void free_guard_set(guard_set *f)
{
    for (int i = 0; i < f->count; i++)
        free_guarded_buffer(&f->all[i]);
}

gumbel_tensor guard_tensor(guard_set *f, gumbel_tensor t)
{
    int64_t stride = t.stride ? t.stride : t.cols;
    size_t elements = t.rows > 0 ? (size_t)((t.rows - 1) * stride + t.cols) : 0;
    if (elements)
        t.data = guard_copy(f, t.data, elements * dtype_size(t.dtype), 0);
    return t;
}
