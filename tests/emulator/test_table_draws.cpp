// SPDX-License-Identifier: Apache-2.0
//
// Draws from logits over a subset of the vocabulary, through the public call on a device whose
// kernels are fibers: the noise and mask of a table, the draw, and the map from rows to ids,
// against the CPU backend. Rows whose id is out of range are drawn as if their logits were -inf.
// The map of outputs alone, on grids of any size, against plain loops.
#include "draft_device.h"

extern "C" {
#include "token_tables.h"
}

#include <cmath>
#include <cstring>
#include <vector>

namespace
{

gumbel_status store_table_noise(gumbel_device *device, const gumbel_problem *problem, float *noise,
                                int64_t stride, uint32_t *mask, gumbel_error *)
{
    cuda_noise_params p = {};
    uint64_t *random = &device_of(device)->random;
    p.problem = *problem;
    p.noise = noise;
    p.stride = stride;
    p.mask = mask;
    p.tiles = (problem->vocab + CUDA_TABLE_TILE - 1) / CUDA_TABLE_TILE;
    const int64_t items = p.tiles * problem->batch * problem->sampling.num_samples;
    emulate_table_noise(p, 1 + random_below(random, (uint32_t)items), random,
                        device_of(device)->what);
    return GUMBEL_OK;
}

gumbel_status map_token_ids(gumbel_device *device, const gumbel_problem *problem,
                            const gumbel_output *output, gumbel_error *)
{
    cuda_token_ids_params p = {};
    p.ids = problem->sampling.token_ids;
    p.batch = problem->batch;
    p.num_samples = problem->sampling.num_samples;
    p.output = *output;
    uint64_t *random = &device_of(device)->random;
    emulate_map_token_ids(p, 1 + random_below(random, 3), random, device_of(device)->what);
    return GUMBEL_OK;
}

/* The emulated draw takes no workspace. */
size_t size_max_workspace(const gumbel_device *, const gumbel_limits *) { return 0; }

gumbel_status sample_soft_capped(gumbel_device *device, const gumbel_problem *problem,
                                 const gumbel_plan *, const gumbel_output *output, void *,
                                 gumbel_error *)
{
    cuda_truncated_params p = {};
    p.output = *output;
    p.inverse_cap = inverse_cap(*problem);
    serve_rows(device, problem, p);
    return GUMBEL_OK;
}

/* Copies logits, which the tensor then points to. */
std::vector<char> copy_values(gumbel_tensor *logits)
{
    const int64_t stride = logits->stride ? logits->stride : logits->cols;
    const size_t bytes =
        (size_t)((logits->rows - 1) * stride + logits->cols) * dtype_size(logits->dtype);
    std::vector<char> values((const char *)logits->data, (const char *)logits->data + bytes);
    logits->data = values.data();
    return values;
}

/* Stores -inf in column i of all rows. */
void store_infinities(const gumbel_tensor &logits, int64_t i)
{
    const int64_t stride = logits.stride ? logits.stride : logits.cols;
    for (int64_t b = 0; b < logits.rows; b++)
        if (logits.dtype == GUMBEL_FLOAT32)
            ((float *)logits.data)[b * stride + i] = -INFINITY;
        else
            ((uint16_t *)logits.data)[b * stride + i] =
                logits.dtype == GUMBEL_BFLOAT16 ? 0xff80 : 0xfc00;
}

bool is_near(float a, float b)
{
    return (std::isnan(a) && std::isnan(b)) || a == b ||
           std::fabs(a - b) <= 0x1p-22f * std::fmax(1.0f, std::fabs(a));
}

/* Compares values that may differ by two ulps, and makes them equal for outcome_same(). */
bool accept_near(float *ours, const float *theirs, int64_t count, const char *what)
{
    for (int64_t i = 0; i < count && ours; i++) {
        if (!is_near(ours[i], theirs[i])) {
            printf("%s: %a, on the CPU %a\n", what, (double)ours[i], (double)theirs[i]);
            return false;
        }
        ours[i] = theirs[i];
    }
    return true;
}

bool same_outcome(const outcome *host, outcome *ours, const char *what)
{
    const int64_t batch = host->batch, top = batch * host->output.num_top;
    const int64_t kept = batch * host->output.kept_capacity;
    return accept_near(ours->lse, host->lse, batch, what) &&
           accept_near(ours->logprobs, host->logprobs, batch * host->samples, what) &&
           accept_near(ours->top_logprobs, host->top_logprobs, top, what) &&
           accept_near(ours->kept_logprobs, host->kept_logprobs, kept, what) &&
           outcome_same(host, 0, ours, OUTCOME_ALL, what);
}

/* Replaces some ids by invalid ones on the device; on the host their logits are -inf. */
void spoil_ids(request *req, int32_t *ours, uint64_t *random)
{
    static const int32_t invalid[] = {-1, INT32_MIN, INT32_MAX};
    for (int64_t i = 0; i < req->plan.vocab; i++)
        if (one_in(random, 3)) {
            ours[i] = invalid[random_below(random, 3)];
            store_infinities(req->logits.logits, i);
        }
}

bool draws_as_the_host(int index, gumbel_device *cpu, emulated_device *device)
{
    uint64_t random = (uint64_t)index;
    request_plan plan = request_plan_at_random(index, 0);
    table_adapt_plan(&plan);
    plan.vocab += index % 9 == 0 ? 1500 : 0;
    plan.kept_capacity = index % 2 ? 60 : 0;
    const int spoils = index % 3 == 0;
    if (spoils)
        plan.logprobs_of = GUMBEL_PROCESSED; /* raw ones include masked tokens */
    request *req = request_make(&plan, cpu);
    req->logits.scale = std::fabs(req->logits.scale);
    int32_t *ids =
        table_make((table_kind)(index % TABLE_KINDS), plan.vocab, plan.vocab + 3000, &random);
    std::vector<int32_t> there(ids, ids + plan.vocab);
    request ours = *req;
    std::vector<char> values = copy_values(&ours.logits.logits);
    if (spoils)
        spoil_ids(req, there.data(), &random);
    outcome *expected = request_outcome(req), *found = request_outcome(req);
    int32_t live = (int32_t)random_below(&random, (uint32_t)plan.batch + 1);
    if (one_in(&random, 4))
        ours.sampling.live_rows = req->sampling.live_rows = &live;
    req->sampling.token_ids = ids;
    ours.sampling.token_ids = there.data();
    const bool passes = request_draw(cpu, req, expected) == GUMBEL_OK &&
                        request_draw(&device->base, &ours, found) == GUMBEL_OK &&
                        same_outcome(expected, found, device->what);
    outcome_free(expected);
    outcome_free(found);
    free(ids);
    request_free(req);
    return passes;
}

/* Prepared noise of valid and invalid ids. */
bool prepares_noise(int index, gumbel_device *cpu, emulated_device *device)
{
    uint64_t random = 50 + (uint64_t)index;
    const int64_t batch = 1 + random_below(&random, 3), vocab = 1 + random_below(&random, 2300);
    const uint64_t seed = random_bits(&random), position = random_bits(&random);
    int32_t *ids = table_make(TABLE_LARGE, vocab, vocab, &random);
    gumbel_sampling how = {};
    how.struct_size = sizeof how;
    how.seed = {&seed, GUMBEL_SAME};
    how.position = {&position, GUMBEL_SAME};
    how.num_samples = 2;
    how.token_ids = ids;
    std::vector<float> expected((size_t)(2 * batch * vocab)), found(expected);
    bool passes = gumbel_prepare_noise(cpu, nullptr, &how, batch, 0, vocab, expected.data(), 0,
                                       nullptr) == GUMBEL_OK;
    for (int64_t i = 0; i < vocab; i += 3) {
        ids[i] = -(int32_t)i - 1;
        for (int64_t draw = 0; draw < 2 * batch; draw++)
            expected[(size_t)(draw * vocab + i)] = -0x1.fffffep127f;
    }
    passes = passes && gumbel_prepare_noise(&device->base, nullptr, &how, batch, 0, vocab,
                                            found.data(), 0, nullptr) == GUMBEL_OK;
    passes = passes && memcmp(expected.data(), found.data(), found.size() * sizeof(float)) == 0;
    if (!passes)
        printf("%s: prepared noise differs\n", device->what);
    free(ids);
    return passes;
}

/* Random rows, or -1. */
std::vector<int32_t> make_rows(size_t count, uint32_t vocab, uint64_t *random)
{
    std::vector<int32_t> rows(count);
    for (int32_t &row : rows)
        row = one_in(random, 5) ? -1 : (int32_t)random_below(random, vocab);
    return rows;
}

/* Maps a copy by a plain loop. */
std::vector<int32_t> map_rows(std::vector<int32_t> rows, const std::vector<int32_t> &ids)
{
    for (int32_t &row : rows)
        row = row < 0 ? -1 : ids[(size_t)row];
    return rows;
}

bool maps_all_outputs(int index, gumbel_device *, emulated_device *device)
{
    uint64_t random = 7000 + (uint64_t)index, *order = &device->random;
    const uint32_t vocab = 1 + random_below(&random, 500);
    const size_t batch = 1 + random_below(&random, 40), samples = 1 + random_below(&random, 3);
    const size_t top = random_below(&random, 128), best = random_below(&random, 17),
                 room = 1 + random_below(&random, 400);
    std::vector<int32_t> ids(vocab), kept(batch);
    for (int32_t &id : ids)
        id = (int32_t)random_below(&random, 1u << 31);
    for (int32_t &count : kept)
        count = (int32_t)random_below(&random, (uint32_t)room + 20);
    auto tokens = make_rows(batch * samples, vocab, &random);
    auto top_ids = make_rows(batch * top, vocab, &random);
    auto best_ids = make_rows(batch * best, vocab, &random);
    auto kept_ids = make_rows(batch * room, vocab, &random);
    const auto tokens_wanted = map_rows(tokens, ids), top_wanted = map_rows(top_ids, ids),
               best_wanted = map_rows(best_ids, ids);
    auto kept_wanted = map_rows(kept_ids, ids);
    for (size_t i = 0; i < batch * room; i++) /* places that no call writes */
        if (kept[i / room] > (int32_t)room || i % room >= (size_t)kept[i / room])
            kept_wanted[i] = kept_ids[i];
    cuda_token_ids_params p = {};
    p.ids = ids.data();
    p.batch = (int64_t)batch;
    p.num_samples = (int32_t)samples;
    p.output.tokens = tokens.data();
    p.output.top_ids = top ? top_ids.data() : nullptr;
    p.output.num_top = (int32_t)top;
    p.output.best_ids = best ? best_ids.data() : nullptr;
    p.output.num_best = (int32_t)best;
    p.output.kept = kept.data();
    p.output.kept_ids = kept_ids.data();
    p.output.kept_capacity = (int32_t)room;
    emulate_map_token_ids(p, 1 + random_below(&random, 50), order, device->what);
    if (tokens == tokens_wanted && top_ids == top_wanted && best_ids == best_wanted &&
        kept_ids == kept_wanted)
        return true;
    printf("%s: mapped outputs differ\n", device->what);
    return false;
}

} // namespace

/* usage: test_table_draws [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    gumbel_backend backend = make_backend();
    backend.store_table_noise = store_table_noise;
    backend.map_token_ids = map_token_ids;
    backend.sample = sample_soft_capped;
    backend.max_workspace_size = size_max_workspace;
    gumbel_device *cpu = open_device((gumbel_isa)0, 1, 0);
    emulated_device device = make_device(&backend);
    char what[32];
    device.what = what;
    const int failed = run_problems(argc, argv, 50, 4000, [&](int i) {
        snprintf(what, sizeof what, "problem %d", i);
        device.random = (uint64_t)i;
        return draws_as_the_host(i, cpu, &device) && prepares_noise(i, cpu, &device) &&
               maps_all_outputs(i, cpu, &device);
    });
    gumbel_close(cpu);
    return failed != 0;
}
