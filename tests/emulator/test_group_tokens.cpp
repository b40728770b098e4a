// SPDX-License-Identifier: Apache-2.0
//
// The kernels that draw parts with probabilities proportional to exp(log-mass), from source on a
// CPU, against the host's calls: masses of any size, zero, NaN and +inf; many parts and few; slots;
// several samples.
#include "launch_step.h"

#include <gumbel/dist.h>

extern "C" {
#include "outcome.h"
}

#include "problems.h"

#include <cstring>
#include <vector>

namespace
{

struct parts_case {
    int32_t parts, samples;
    int64_t batch;
    std::vector<float> masses;
    std::vector<int32_t> tokens, of_row;
    std::vector<uint64_t> seed, position;
    std::vector<uint32_t> first_sample;
    gumbel_sampling sampling;

    parts_case(uint64_t *random)
        : parts(1 + (int32_t)random_below(random, random_below(random, 3) ? 9 : 120)),
          samples(1 + (int32_t)random_below(random, 4)), batch(1 + random_below(random, 40)),
          masses((size_t)(parts * batch)), tokens((size_t)(parts * batch * samples)),
          of_row((size_t)batch), seed((size_t)batch), position((size_t)batch),
          first_sample((size_t)batch), sampling()
    {
        for (float &mass : masses) {
            const uint32_t kind = random_below(random, 60);
            mass = kind < 12    ? -INFINITY
                   : kind == 12 ? NAN
                   : kind == 13 ? INFINITY
                                : (kind < 30 ? 200.0f : 2.0f) * random_normal(random);
        }
        for (int32_t &token : tokens)
            token = (int32_t)random_below(random, 1u << 30);
        for (size_t b = 0; b < seed.size(); b++) {
            of_row[b] = (int32_t)random_below(random, (uint32_t)batch);
            seed[b] = (uint64_t)random_below(random, 1u << 31) << 30;
            position[b] = (uint64_t)random_below(random, 3) << 32 | random_below(random, 99);
            first_sample[b] = UINT32_MAX - 40503 * random_below(random, 9);
        }
        sampling.struct_size = sizeof sampling;
        sampling.seed = {seed.data(), random_below(random, 2) ? 0 : (int64_t)GUMBEL_SAME};
        sampling.position = {position.data(), 0};
        sampling.num_samples = samples;
        if (random_below(random, 2))
            sampling.first_sample = {first_sample.data(), 0};
        if (random_below(random, 2))
            sampling.slots = {of_row.data(), batch};
    }
};

struct parts_found {
    std::vector<int32_t> drawn, which, status;
    std::vector<float> lse;
    std::vector<gumbel_stream_draw> stream;

    parts_found(const parts_case &c)
        : drawn((size_t)(c.batch * c.samples), -7), which(drawn), status((size_t)c.batch, -7),
          lse((size_t)c.batch, -7.0f), stream(drawn.size())
    {
        gumbel_stream_draw_clear(stream.data(), (int64_t)stream.size());
    }
};

/* Parameters as the backend passes them, with explicit strides. */
cuda_parts_params params_of(const parts_case &c, uint32_t domain)
{
    cuda_parts_params p = {};
    p.problem.batch = c.batch;
    p.problem.sampling = c.sampling;
    p.problem.sampling.domain = domain;
    if (p.problem.sampling.seed.stride != (int64_t)GUMBEL_SAME)
        p.problem.sampling.seed.stride = 1;
    else
        p.problem.sampling.seed.stride = 0;
    p.problem.sampling.position.stride = 1;
    p.problem.sampling.first_sample.stride = p.problem.sampling.first_sample.data != nullptr;
    return p;
}

void emulate_both(const parts_case &c, parts_found *f, uint64_t *random, const char *what)
{
    cuda_parts_params p = params_of(c, GUMBEL_DOMAIN_GROUP);
    p.parts = c.parts;
    p.log_masses = c.masses.data();
    p.tokens = c.tokens.data();
    p.drawn = f->drawn.data();
    p.which = f->which.data();
    p.lse = f->lse.data();
    p.status = f->status.data();
    emulate_parts(p, random, what);
    for (int32_t k = 0; k < c.parts; k++) {
        p = params_of(c, GUMBEL_DOMAIN_STREAM);
        p.parts = k;
        p.log_masses = c.masses.data() + k * c.batch;
        p.tokens = c.tokens.data() + k * c.batch * c.samples;
        p.draws = f->stream.data();
        emulate_parts(p, random, what);
    }
}

bool draw_both(const parts_case &c, parts_found *f)
{
    gumbel_status status = gumbel_draw_group(
        nullptr, nullptr, c.parts, c.batch, c.masses.data(), c.tokens.data(), &c.sampling,
        f->drawn.data(), f->which.data(), f->lse.data(), f->status.data(), nullptr);
    for (int32_t k = 0; k < c.parts && status == GUMBEL_OK; k++)
        status = gumbel_stream_draw_add(nullptr, nullptr, k, c.batch, c.masses.data() + k * c.batch,
                                        c.tokens.data() + k * c.batch * c.samples, &c.sampling,
                                        f->stream.data(), nullptr);
    return status == GUMBEL_OK;
}

template <class T>
bool same(const std::vector<T> &host, const std::vector<T> &ours, const char *name,
          const char *what)
{
    for (size_t i = 0; i < host.size(); i++)
        if (memcmp(&host[i], &ours[i], sizeof(T)) != 0) {
            printf("%s: %s[%d] differs\n", what, name, (int)i);
            return false;
        }
    return true;
}

bool passes(int index)
{
    uint64_t random = (uint64_t)index * 977 + 5;
    char what[100];
    const parts_case c(&random);
    parts_found host(c), ours(c);
    snprintf(what, sizeof what, "problem %d: %d parts, %d rows, %d samples", index, (int)c.parts,
             (int)c.batch, (int)c.samples);
    if (!draw_both(c, &host))
        return false;
    emulate_both(c, &ours, &random, what);
    for (size_t b = 0; b < host.lse.size(); b++) /* all NaNs are equal */
        if (isnan(host.lse[b]) && isnan(ours.lse[b]))
            ours.lse[b] = host.lse[b];
    return same(host.drawn, ours.drawn, "drawn", what) &&
           same(host.which, ours.which, "which", what) &&
           same(host.status, ours.status, "status", what) &&
           same(host.lse, ours.lse, "lse", what) && same(host.stream, ours.stream, "stream", what);
}

} // namespace

/* usage: test_group_tokens [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    return run_problems(argc, argv, 60, 3000, [&](int i) { return passes(i); }) != 0;
}
