/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of a bridge: what of a group's work is done on the rank's GPU, and what on its host.
 */
#include "dist/transports/bridge.h"

#include "core/fail.h"
#include "core/workspace.h"
#include "dist/draw.h"
#include "validate/validate.h"

#include <stdlib.h>

/* -------------------------------------------------------------------------------- copies ---- */

dist_copy *dist_bridge_hold(dist_bridge *bridge, size_t bytes, gumbel_error *error)
{
    dist_copy *c = &bridge->of[bridge->copies];
    GUMBEL_ASSERT(bridge->copies < DIST_COPIES);
    if (bytes > c->room || !c->host) {
        const size_t each = GUMBEL_WORKSPACE_ALIGNMENT;
        size_t room = bytes > SIZE_MAX - each ? 0 : (bytes / each + 1) * each;
        unsigned char *more = room ? aligned_alloc(each, room) : NULL;
        if (!more) {
            gumbel_fail(error, GUMBEL_ERROR_MEMORY, "workspace",
                        "there is no host memory for %zu bytes that come from the GPU", bytes);
            return NULL;
        }
        free(c->host);
        c->host = more;
        c->room = room;
    }
    c->bytes = bytes;
    c->there = NULL;
    c->written = 0;
    bridge->copies++;
    return c;
}

const void *dist_bridge_there(const dist_bridge *bridge, const void *data)
{
    uintptr_t at = (uintptr_t)data;
    for (int i = 0; i < bridge->copies && data; i++) {
        const dist_copy *c = &bridge->of[i];
        uintptr_t begin = (uintptr_t)c->host;
        if (c->there && at >= begin && at - begin <= c->bytes)
            return c->there + (at - begin);
    }
    return data;
}

gumbel_status dist_bridge_bring(dist_bridge *bridge, void *to, const void *from, size_t bytes,
                                gumbel_error *error)
{
    const gumbel_rank_calls *calls = bridge->gpu->backend->ranks;
    if (bytes == 0)
        return GUMBEL_OK;
    GUMBEL_FORWARD(calls->bring(bridge->gpu, bridge->stream, to, from, bytes, error));
    return ranks_wait_stream(bridge->group, bridge->gpu, bridge->stream, error);
}

/* ------------------------------------------------------------------------------- the table ---- */

/* What the GPU reads of an array that the host has made: a copy in the workspace. */
static gumbel_status upload(dist_bridge *bridge, const void **data, size_t bytes, size_t *used,
                            gumbel_error *error)
{
    const void *there = dist_bridge_there(bridge, *data);
    gumbel_cursor cursor = {bridge->room, *used};
    if (!*data || there != *data || bytes == 0) {
        *data = there;
        return GUMBEL_OK;
    }
    void *to = gumbel_carve(&cursor, bytes, 1, 1);
    GUMBEL_ASSERT(cursor.used <= bridge->upload_most);
    GUMBEL_FORWARD(
        bridge->gpu->backend->ranks->put(bridge->gpu, bridge->stream, to, *data, bytes, error));
    *used = cursor.used;
    *data = to;
    return GUMBEL_OK;
}

/* What a verification has made of each row. */
static gumbel_status upload_rows(dist_bridge *bridge, gumbel_problem *q, gumbel_error *error)
{
    size_t used = 0, rows = (size_t)(q->first_row + q->batch);
    size_t ids = q->with_path ? (size_t)q->path.offsets[q->batch] : 0;
#define UPLOAD(field, count)                                                                       \
    do {                                                                                           \
        const void *data_ = q->field;                                                              \
        GUMBEL_FORWARD(upload(bridge, &data_, (count) * sizeof *q->field, &used, error));          \
        q->field = data_;                                                                          \
    } while (0)
    UPLOAD(sampling.slots.of_row, rows);
    if (q->position_by_row)
        UPLOAD(sampling.position.data, rows);
    UPLOAD(list_of_row, rows);
    if (!q->with_path)
        return GUMBEL_OK;
    UPLOAD(path.offsets, (size_t)q->batch + 1);
    UPLOAD(path.ids, ids);
#undef UPLOAD
    return GUMBEL_OK;
}

/* A problem as the GPU sees it: its parameters are the caller's own again. */
static gumbel_status on_gpu(dist_bridge *bridge, const gumbel_problem *p, gumbel_problem *q,
                            gumbel_error *error)
{
    gumbel_sampling *s = &q->sampling;
    gumbel_transforms *t = &q->transforms;
    *q = *p;
    q->stream = bridge->stream;
    s->live_rows = NULL;
    GUMBEL_FORWARD(upload_rows(bridge, q, error));
#define MOVE(field) field = dist_bridge_there(bridge, field)
    MOVE(s->temperature.data);
    MOVE(s->seed.data);
    MOVE(s->position.data);
    MOVE(s->first_sample.data);
    MOVE(s->noise);
    MOVE(t->repetition.data);
    MOVE(t->frequency.data);
    MOVE(t->presence.data);
#define MOVE_LISTS(lists)                                                                          \
    MOVE((lists).offsets);                                                                         \
    MOVE((lists).ids);                                                                             \
    MOVE((lists).values)
    MOVE_LISTS(t->allowed);
    MOVE_LISTS(t->banned);
    MOVE_LISTS(t->bias);
    MOVE_LISTS(t->prompt_tokens);
    MOVE_LISTS(t->output_tokens);
#undef MOVE_LISTS
#undef MOVE
    return GUMBEL_OK;
}

/* Whether a problem's rows are to be made of what is on the GPU; others are in host memory. */
static int is_of_gpu(const dist_bridge *bridge, const gumbel_problem *p)
{
    const gumbel_tensor *l = &bridge->logits;
    size_t size = l->dtype == GUMBEL_FLOAT32 ? 4 : 2;
    uintptr_t begin = (uintptr_t)l->data, at = (uintptr_t)p->logits.data;
    if (p->hidden_size > 0)
        return 1;
    return l->data && at >= begin && at - begin <= (size_t)(l->rows * l->stride) * size;
}

/* The pieces of the GPU's workspace. */
typedef struct bridge_pieces {
    gumbel_summary *summaries; /* [B, S] */
    float *rows;               /* [B] at `stride` */
    int64_t stride;
    void *local;
} bridge_pieces;

static bridge_pieces carve(gumbel_cursor *cursor, int64_t batch, const gumbel_problem *p)
{
    bridge_pieces made = {.stride = (p->vocab + 3) / 4 * 4};
    size_t rows = (size_t)batch;
    made.summaries =
        gumbel_carve(cursor, rows, (size_t)p->sampling.num_samples, sizeof *made.summaries);
    made.rows = gumbel_carve(cursor, rows, (size_t)made.stride, sizeof *made.rows);
    made.local = cursor->base ? cursor->base + cursor->used : NULL;
    return made;
}

/* Of the call under way. A problem may be one of its slices, or draw one sample of several. */
static bridge_pieces pieces_of(const dist_bridge *bridge, const gumbel_problem *p)
{
    gumbel_cursor cursor = {bridge->room, 0};
    gumbel_carve(&cursor, bridge->upload_most, 1, 1);
    return carve(&cursor, p->batch, p);
}

gumbel_status dist_bridge_room(const dist_bridge *bridge, const gumbel_problem *problem,
                               size_t uploads, size_t *bytes, gumbel_error *error)
{
    gumbel_cursor cursor = {NULL, 0};
    gumbel_problem q = *problem;
    const gumbel_backend *gpu = bridge->gpu->backend;
    size_t part = 0, edit = 0, product = 0, most;
    *bytes = 0;
    if (q.batch == 0)
        return GUMBEL_OK;
    q.request &= GUMBEL_REQUEST_TRANSFORMS;
    q.sampling.given = (gumbel_row_i32){0};
    q.with_mass = 1;
    gumbel_carve(&cursor, uploads, 1, 1);
    carve(&cursor, q.batch, &q);
    GUMBEL_FORWARD(gpu->call_size(bridge->gpu, &q, GUMBEL_NEED_PART, &part, error));
    q.with_mass = 0;
    q.sampling.num_samples = 1;
    q.sampling.noise = NULL;
    GUMBEL_FORWARD(gpu->call_size(bridge->gpu, &q, GUMBEL_NEED_PART, &edit, error));
    q.request = 0;
    q.with_path = 0;
    if (q.hidden_size > 0)
        GUMBEL_FORWARD(gpu->call_size(bridge->gpu, &q, GUMBEL_NEED_PRODUCT, &product, error));
    most = part > edit ? part : edit;
    gumbel_carve(&cursor, most > product ? most : product, 1, 1);
    GUMBEL_REFUSE_IF(cursor.used == SIZE_MAX, error, "batch", "it is larger than any memory");
    *bytes = cursor.used;
    return GUMBEL_OK;
}

/* Host memory that a problem's call takes; what the GPU makes takes none. */
static gumbel_status call_size(const gumbel_device *device, const gumbel_problem *problem,
                               uint32_t more, size_t *bytes, gumbel_error *error)
{
    const dist_bridge *bridge = (const dist_bridge *)device;
    *bytes = 0;
    return problem->hidden_size > 0
               ? GUMBEL_OK
               : bridge->cpu->backend->call_size(bridge->cpu, problem, more, bytes, error);
}

static gumbel_status partial(gumbel_device *device, const gumbel_problem *problem,
                             gumbel_summary *summaries, void *workspace, gumbel_error *error)
{
    dist_bridge *bridge = (dist_bridge *)device;
    gumbel_device *gpu = bridge->gpu, *cpu = bridge->cpu;
    if (!is_of_gpu(bridge, problem))
        return cpu->backend->partial(cpu, problem, summaries, workspace, error);
    gumbel_problem q;
    GUMBEL_FORWARD(on_gpu(bridge, problem, &q, error));
    bridge_pieces at = pieces_of(bridge, problem);
    size_t bytes = (size_t)(q.batch * q.sampling.num_samples) * sizeof *summaries;
    GUMBEL_FORWARD(gpu->backend->partial(gpu, &q, at.summaries, at.local, error));
    GUMBEL_FORWARD(ranks_wait_stream(bridge->group, gpu, bridge->stream, error));
    return dist_bridge_bring(bridge, summaries, at.summaries, bytes, error);
}

/* Rows of y, or of logits, made on the GPU and brought over; -inf where no token counts. */
static gumbel_status bring_rows(dist_bridge *bridge, const gumbel_problem *problem, float *rows,
                                int64_t stride, gumbel_error *error)
{
    gumbel_problem q;
    GUMBEL_FORWARD(on_gpu(bridge, problem, &q, error));
    bridge_pieces at = pieces_of(bridge, problem);
    int64_t end = q.end_token - q.first_token, counts = end < 0 ? 0 : end;
    GUMBEL_ASSERT(is_of_gpu(bridge, problem));
    if (counts > 0)
        GUMBEL_FORWARD(bridge->gpu->backend->ranks->edit(bridge->gpu, &q, at.rows, at.stride,
                                                         at.local, error));
    GUMBEL_FORWARD(ranks_wait_stream(bridge->group, bridge->gpu, bridge->stream, error));
    for (int64_t b = 0; b < q.batch; b++) {
        float *row = rows + b * stride;
        GUMBEL_FORWARD(dist_bridge_bring(bridge, row, at.rows + b * at.stride,
                                         (size_t)counts * sizeof *row, error));
        for (int64_t i = counts; i < q.vocab; i++)
            row[i] = -INFINITY;
    }
    return GUMBEL_OK;
}

/* A row that something spoils is NaN in all of it, as on a CPU. */
static gumbel_status process(gumbel_device *device, const gumbel_problem *problem, float *processed,
                             int64_t stride, void *workspace, gumbel_error *error)
{
    (void)workspace;
    GUMBEL_FORWARD(bring_rows((dist_bridge *)device, problem, processed, stride, error));
    for (int64_t b = 0; b < problem->batch; b++) {
        float *row = processed + b * stride;
        int sound = 1;
        for (int64_t i = 0; i < problem->vocab; i++)
            sound &= row[i] < INFINITY;
        for (int64_t i = 0; i < problem->vocab && !sound; i++)
            row[i] = NAN;
    }
    return GUMBEL_OK;
}

static gumbel_status store(gumbel_device *device, const gumbel_problem *problem, float *rows,
                           int64_t stride, void *workspace, gumbel_error *error)
{
    (void)workspace;
    return bring_rows((dist_bridge *)device, problem, rows, stride, error);
}

/* Rows of all ranks, in host memory. */
static gumbel_status sample(gumbel_device *device, const gumbel_problem *problem,
                            const gumbel_output *output, void *workspace, gumbel_error *error)
{
    gumbel_device *cpu = ((dist_bridge *)device)->cpu;
    GUMBEL_ASSERT(!is_of_gpu((dist_bridge *)device, problem));
    return cpu->backend->sample(cpu, problem, output, workspace, error);
}

gumbel_backend dist_bridge_table(const gumbel_device *gpu, const gumbel_device *cpu)
{
    const uint32_t transforms = GUMBEL_REQUEST_TRANSFORMS;
    return (gumbel_backend){.serves = cpu->backend->serves & (gpu->backend->serves | ~transforms),
                            .host_memory = 1,
                            .call_size = call_size,
                            .partial = partial,
                            .process = process,
                            .store = store,
                            .sample = sample};
}

gumbel_status dist_bridge_open(dist_bridge **bridge, gumbel_group *group, gumbel_device *gpu,
                               gumbel_error *error)
{
    *bridge = NULL;
    if (!gpu->backend->ranks)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "device",
                           "nothing brings its memory to the host");
    dist_bridge *made = calloc(1, sizeof *made);
    if (!made)
        return gumbel_fail(error, GUMBEL_ERROR_MEMORY, "group", "out of memory");
    gumbel_status status = gumbel_open(NULL, &made->cpu, error);
    if (status != GUMBEL_OK) {
        free(made);
        return status;
    }
    made->group = group;
    made->gpu = gpu;
    made->table = dist_bridge_table(gpu, made->cpu);
    made->base.backend = &made->table;
    *bridge = made;
    return GUMBEL_OK;
}

void dist_bridge_close(dist_bridge *bridge)
{
    if (!bridge)
        return;
    for (int i = 0; i < DIST_COPIES; i++)
        free(bridge->of[i].host);
    gumbel_close(bridge->cpu);
    free(bridge);
}
