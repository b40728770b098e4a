/* SPDX-License-Identifier: Apache-2.0
 *
 * The paper's grouped draws. A part's Gumbel is that of a token whose id is the part's number, in
 * the domain of parts. In a stream the choice between what is there and a part has two Gumbels: L +
 * g > l + g' has the chance e^L / (e^L + e^l), and both ends of it are as fine as noise is.
 */
#include "core/fail.h"
#include "core/row.h"
#include "validate/validate.h"

#include "gumbel/dist.h"

#include <inttypes.h>

#define STREAM_PARTS_MOST (INT32_C(1) << 30)

/* Where rows are drawn: the checked part of `sampling`. */
static gumbel_status read_rows(gumbel_problem *p, int64_t batch, const gumbel_sampling *sampling,
                               uint32_t domain, gumbel_error *error)
{
    GUMBEL_FORWARD(gumbel_read_noise(p, sampling, batch, 0, 0, error));
    p->sampling.live_rows = NULL;
    p->sampling.domain = domain;
    return gumbel_check_host_slots(&p->sampling.slots, batch, "sampling.slots", error);
}

static gumbel_status check_parts(int64_t batch, const float *log_masses, const int32_t *tokens,
                                 gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!log_masses && batch > 0, error, "log_masses", "log_masses is NULL");
    GUMBEL_REFUSE_IF(!tokens && batch > 0, error, "tokens", "tokens is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(log_masses, sizeof *log_masses, "log_masses", error));
    return gumbel_check_aligned(tokens, sizeof *tokens, "tokens", error);
}

static uint32_t flags_of(float log_mass)
{
    return log_mass != log_mass ? GUMBEL_FLAG_NAN : log_mass == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
}

/* ln(e^a + e^b), of which a is finite or both are -inf. */
static double log_sum(double a, double b)
{
    double high = a > b ? a : b, low = a > b ? b : a;
    return low > -INFINITY ? high + log1p(exp(low - high)) : high;
}

/* What all masses of a row come to, as a summary without a token. */
static gumbel_row_status weigh_row(int32_t parts, int64_t batch, int64_t b, const float *log_masses,
                                   double *log_mass)
{
    gumbel_summary row;
    gumbel_summary_empty(&row);
    *log_mass = -INFINITY;
    for (int32_t k = 0; k < parts; k++)
        row.flags |= flags_of(log_masses[k * batch + b]);
    for (int32_t k = 0; k < parts && !row.flags; k++)
        *log_mass = log_sum(*log_mass, log_masses[k * batch + b]);
    row.best_id = *log_mass > -INFINITY ? 0 : -1;
    return gumbel_summary_status(&row);
}

gumbel_status gumbel_draw_group(int32_t parts, int64_t batch, const float *log_masses,
                                const int32_t *tokens, const gumbel_sampling *sampling,
                                int32_t *drawn, int32_t *which, float *lse, int32_t *status,
                                gumbel_error *error)
{
    gumbel_problem p;
    GUMBEL_REFUSE_IF(parts < 1 || parts > GUMBEL_PARTS_MOST, error, "parts",
                     "parts is %d; it must be in 1..%d", (int)parts, GUMBEL_PARTS_MOST);
    GUMBEL_FORWARD(read_rows(&p, batch, sampling, GUMBEL_DOMAIN_GROUP, error));
    GUMBEL_FORWARD(check_parts(batch, log_masses, tokens, error));
    GUMBEL_REFUSE_IF(!drawn && batch > 0, error, "drawn", "drawn is NULL");
    int32_t samples = p.sampling.num_samples;
    for (int64_t b = 0; b < batch; b++) {
        double log_mass;
        gumbel_row_status found = weigh_row(parts, batch, b, log_masses, &log_mass);
        gumbel_stream stream = gumbel_problem_row(&p, b).stream;
        for (int32_t s = 0; s < samples; s++, stream.sample++) {
            gumbel_summary best;
            gumbel_summary_empty(&best);
            for (int32_t k = 0; k < parts && found == GUMBEL_ROW_OK; k++) {
                float l = log_masses[k * batch + b];
                gumbel_summary_offer(&best, l + gumbel_of_token(stream, (uint32_t)k), l, k);
            }
            int64_t at = b * samples + s;
            drawn[at] = best.best_id < 0 ? -1 : tokens[best.best_id * batch * samples + at];
            if (which)
                which[at] = best.best_id;
        }
        if (lse)
            lse[b] = found == GUMBEL_ROW_OK ? (float)log_mass : NAN;
        if (status)
            status[b] = (int32_t)found;
    }
    return GUMBEL_OK;
}

void gumbel_stream_draw_clear(gumbel_stream_draw *draws, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        draws[i] = (gumbel_stream_draw){.log_mass = -INFINITY, .token = -1};
}

gumbel_status gumbel_stream_draw_add(int32_t part, int64_t batch, const float *log_masses,
                                     const int32_t *tokens, const gumbel_sampling *sampling,
                                     gumbel_stream_draw *draws, gumbel_error *error)
{
    gumbel_problem p;
    GUMBEL_REFUSE_IF(part < 0 || part >= STREAM_PARTS_MOST, error, "part",
                     "part is %d; it must be in 0..2^30 - 1", (int)part);
    GUMBEL_FORWARD(read_rows(&p, batch, sampling, GUMBEL_DOMAIN_STREAM, error));
    GUMBEL_FORWARD(check_parts(batch, log_masses, tokens, error));
    GUMBEL_REFUSE_IF(!draws && batch > 0, error, "draws", "draws is NULL");
    int32_t samples = p.sampling.num_samples;
    for (int64_t b = 0; b < batch; b++) {
        gumbel_stream stream = gumbel_problem_row(&p, b).stream;
        float l = log_masses[b];
        for (int32_t s = 0; s < samples; s++, stream.sample++) {
            gumbel_stream_draw *d = &draws[b * samples + s];
            d->flags |= flags_of(l);
            if (d->flags || !(l > -INFINITY)) {
                d->token = d->flags ? -1 : d->token;
                continue;
            }
            double g = gumbel_of_token(stream, 2 * (uint32_t)part);
            double other = gumbel_of_token(stream, 2 * (uint32_t)part + 1);
            if (d->token < 0 || l + g > d->log_mass + other)
                d->token = tokens[b * samples + s];
            d->log_mass = log_sum(d->log_mass, l);
        }
    }
    return GUMBEL_OK;
}
