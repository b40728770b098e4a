/* SPDX-License-Identifier: Apache-2.0
 *
 * Grouped draws of the FlashSampling paper (maths/part_draw.h), on the host. A GPU has a kernel for
 * each.
 */
#include "core/backend.h"
#include "core/fail.h"
#include "core/row.h"
#include "maths/part_draw.h"
#include "validate/validate.h"

#include "gumbel/dist.h"

#include <inttypes.h>

#define STREAM_PARTS_MAX (INT32_C(1) << 30)

/* The GPU of a call; NULL: the call is made on the host. */
static gumbel_device *gpu_of(gumbel_device *device)
{
    return device && !device->backend->host_memory ? device : NULL;
}

/* Fills the problem from the checked `sampling`. */
static gumbel_status read_rows(gumbel_problem *p, const gumbel_device *gpu, void *stream,
                               int64_t batch, const gumbel_sampling *sampling, uint32_t domain,
                               gumbel_error *error)
{
    GUMBEL_FORWARD(gumbel_read_noise(p, sampling, batch, 0, 0, error));
    GUMBEL_REFUSE_IF(p->sampling.token_ids, error, "sampling.token_ids",
                     "must be NULL: the call draws parts, not tokens");
    p->stream = stream;
    p->sampling.live_rows = NULL;
    p->sampling.domain = domain;
    if (gpu)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_check_host_stream(stream, error));
    return gumbel_check_host_slots(&p->sampling.slots, batch, "sampling.slots", error);
}

static gumbel_status check_parts(int32_t parts, const gumbel_problem *p, const float *log_masses,
                                 const int32_t *tokens, gumbel_error *error)
{
    int64_t bytes, batch = p->batch, draws = batch * p->sampling.num_samples;
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(draws, parts, &bytes) ||
                         __builtin_mul_overflow(bytes, (int64_t)sizeof *tokens, &bytes),
                     error, "batch", "[%d, %" PRId64 ", %d] tokens are larger than any memory",
                     (int)parts, batch, (int)p->sampling.num_samples);
    GUMBEL_REFUSE_IF(!log_masses && batch > 0, error, "log_masses", "is NULL");
    GUMBEL_REFUSE_IF(!tokens && batch > 0, error, "tokens", "is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(log_masses, sizeof *log_masses, "log_masses", error));
    return gumbel_check_aligned(tokens, sizeof *tokens, "tokens", error);
}

/* Queues a call on a GPU. */
static gumbel_status queue_parts(gumbel_device *gpu, const gumbel_parts_call *call,
                                 gumbel_error *error)
{
    if (!gpu->backend->ranks || !gpu->backend->ranks->draw_group)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "device",
                           "the device does not support grouped draws");
    return call->problem->batch == 0 ? GUMBEL_OK
                                     : gpu->backend->ranks->draw_group(gpu, call, error);
}

/* Sums the masses of a row to *log_mass; the status of their sum. */
static gumbel_row_status sum_row_masses(int32_t parts, int64_t batch, int64_t b,
                                        const float *log_masses, double *log_mass)
{
    gumbel_summary row;
    gumbel_summary_empty(&row);
    *log_mass = -INFINITY;
    for (int32_t k = 0; k < parts; k++)
        row.flags |= gumbel_mass_flags(log_masses[k * batch + b]);
    for (int32_t k = 0; k < parts && !row.flags; k++)
        *log_mass = gumbel_log_add_exp(*log_mass, log_masses[k * batch + b]);
    row.best_id = *log_mass > -INFINITY ? 0 : -1;
    return gumbel_summary_status(&row);
}

static void draw_group_tokens_on_host(const gumbel_parts_call *c)
{
    const gumbel_problem *p = c->problem;
    int32_t samples = p->sampling.num_samples;
    for (int64_t b = 0; b < p->batch; b++) {
        double log_mass;
        gumbel_row_status found = sum_row_masses(c->parts, p->batch, b, c->log_masses, &log_mass);
        gumbel_stream stream = gumbel_problem_row(p, b).stream;
        for (int32_t s = 0; s < samples; s++, stream.sample++) {
            gumbel_summary best;
            gumbel_summary_empty(&best);
            for (int32_t k = 0; k < c->parts && found == GUMBEL_ROW_OK; k++)
                gumbel_summary_offer_part(&best, stream, k, c->log_masses[k * p->batch + b]);
            int64_t at = b * samples + s;
            c->drawn[at] =
                best.best_id < 0 ? -1 : c->tokens[best.best_id * p->batch * samples + at];
            if (c->which)
                c->which[at] = best.best_id;
        }
        if (c->lse)
            c->lse[b] = found == GUMBEL_ROW_OK ? (float)log_mass : NAN;
        if (c->status)
            c->status[b] = (int32_t)found;
    }
}

gumbel_status gumbel_draw_group(gumbel_device *device, void *stream, int32_t parts, int64_t batch,
                                const float *log_masses, const int32_t *tokens,
                                const gumbel_sampling *sampling, int32_t *drawn, int32_t *which,
                                float *lse, int32_t *status, gumbel_error *error)
{
    gumbel_problem p;
    gumbel_device *gpu = gpu_of(device);
    GUMBEL_REFUSE_IF(parts < 1 || parts > GUMBEL_PARTS_MAX, error, "parts",
                     "is %d; it must be in 1..%d", (int)parts, GUMBEL_PARTS_MAX);
    GUMBEL_FORWARD(read_rows(&p, gpu, stream, batch, sampling, GUMBEL_DOMAIN_GROUP, error));
    GUMBEL_FORWARD(check_parts(parts, &p, log_masses, tokens, error));
    GUMBEL_REFUSE_IF(!drawn && batch > 0, error, "drawn", "is NULL");
    const gumbel_parts_call call = {.problem = &p,
                                    .parts = parts,
                                    .log_masses = log_masses,
                                    .tokens = tokens,
                                    .drawn = drawn,
                                    .which = which,
                                    .lse = lse,
                                    .status = status};
    if (gpu)
        return queue_parts(gpu, &call, error);
    draw_group_tokens_on_host(&call);
    return GUMBEL_OK;
}

void gumbel_stream_draw_clear(gumbel_stream_draw *draws, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        draws[i] = (gumbel_stream_draw){.log_mass = -INFINITY, .token = -1};
}

/* Adds a part to a streaming draw of one row and sample. */
static void update_stream_draw(gumbel_stream_draw *d, gumbel_stream stream, int32_t part,
                               float log_mass, int32_t token)
{
    d->flags |= gumbel_mass_flags(log_mass);
    if (d->flags) {
        d->token = -1;
    } else if (log_mass > -INFINITY) {
        if (d->token < 0 || gumbel_stream_chooses_part(stream, part, log_mass, d->log_mass))
            d->token = token;
        d->log_mass = gumbel_log_add_exp(d->log_mass, log_mass);
    }
}

gumbel_status gumbel_stream_draw_add(gumbel_device *device, void *stream, int32_t part,
                                     int64_t batch, const float *log_masses, const int32_t *tokens,
                                     const gumbel_sampling *sampling, gumbel_stream_draw *draws,
                                     gumbel_error *error)
{
    gumbel_problem p;
    gumbel_device *gpu = gpu_of(device);
    GUMBEL_REFUSE_IF(part < 0 || part >= STREAM_PARTS_MAX, error, "part",
                     "is %d; it must be in 0..2^30 - 1", (int)part);
    GUMBEL_FORWARD(read_rows(&p, gpu, stream, batch, sampling, GUMBEL_DOMAIN_STREAM, error));
    GUMBEL_FORWARD(check_parts(1, &p, log_masses, tokens, error));
    GUMBEL_REFUSE_IF(!draws && batch > 0, error, "draws", "is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(draws, _Alignof(gumbel_stream_draw), "draws", error));
    if (gpu) {
        const gumbel_parts_call call = {.problem = &p,
                                        .parts = part,
                                        .log_masses = log_masses,
                                        .tokens = tokens,
                                        .draws = draws};
        return queue_parts(gpu, &call, error);
    }
    int32_t samples = p.sampling.num_samples;
    for (int64_t b = 0; b < batch; b++) {
        gumbel_stream at = gumbel_problem_row(&p, b).stream;
        for (int32_t s = 0; s < samples; s++, at.sample++)
            update_stream_draw(&draws[b * samples + s], at, part, log_masses[b],
                               tokens[b * samples + s]);
    }
    return GUMBEL_OK;
}
