/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks/rank_methods.h"

#include "core/fail.h"

/* Capabilities of summaries: no output requires more than the best token and the mass of a row. */
#define PLAIN                                                                                      \
    (GUMBEL_FEATURE_TRANSFORMS | GUMBEL_CAPABILITY_LISTS | GUMBEL_CAPABILITY_MASS |                \
     GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_NOISE | GUMBEL_CAPABILITY_SOFT_CAP |            \
     GUMBEL_CAPABILITY_SCALE | GUMBEL_CAPABILITY_BIAS | GUMBEL_CAPABILITY_EMPTY)
#define ALL (GUMBEL_CAPABILITY_END - 1)
/* Capabilities of the kernels that draw from top-64 candidates. */
#define TOP64                                                                                      \
    ((PLAIN & ~GUMBEL_CAPABILITY_NOISE) | GUMBEL_CAPABILITIES_OF_TRUNCATION |                      \
     GUMBEL_FEATURE_RANKS | GUMBEL_FEATURE_KEPT)

/* Least rows of a batch for top-64 candidates if every row may be a fallback row: a host collective
 * of these costs more than whole rows of a smaller batch. */
#define TOP64_ROWS_MIN 8

static const char *refuse_plain(const gumbel_group *group, const gumbel_problem *p)
{
    return p->with_mass && !group->aligned ? "a boundary between shards is not a multiple of 64"
                                           : NULL;
}

static const char *refuse_candidates(const gumbel_group *group, const gumbel_problem *p)
{
    return (p->features & GUMBEL_FEATURE_RAW) && !group->aligned
               ? "a boundary between shards is not a multiple of 64"
               : NULL;
}

static const char *refuse_top64(const gumbel_group *group, const gumbel_problem *p)
{
    int peers = group->peers.ranks > 0;
    int keeps_few = p->truncation.top_k.data || p->truncation.min_p.data;
    for (int32_t r = 0; r < group->transport.ranks; r++)
        if (group->shards[r].rows < GUMBEL_RANK_TOP)
            return "a shard has fewer than 64 tokens";
    if (!peers && !group->worker.has_thread)
        return "there is neither peer memory nor a transport with blocking_all_gather";
    if (!peers && group->transport.ranks > GUMBEL_PEERS_RANKS)
        return "there are more than 16 ranks";
    if (p->batch < (peers && keeps_few ? 1 : TOP64_ROWS_MIN))
        return "fewer than 8 rows without peer memory, or with top_p alone, are faster whole";
    if (p->batch > GUMBEL_PEERS_CHOSEN_ROWS)
        return "there are more than 1024 rows";
    if (p->first_row != 0 || p->position_by_row || p->mask_by_row || p->list_of_row || p->with_path)
        return "drafts are not supported";
    return NULL;
}

static const ranks_method cpu_methods[] = {
    {{"plain", "summaries of the shards, merged on every rank",
      "1 exchange, 48 bytes a row and sample", PLAIN, 0},
     refuse_plain,
     ranks_draw_plain},
    {{"candidates", "leading tokens of each shard, truncated and drawn from on every rank",
      "1 or 2 exchanges, 16 bytes a row and 8 a token; fallback rows whole",
      ALL & ~(GUMBEL_FEATURE_GIVEN | GUMBEL_FEATURE_PROGRAM | GUMBEL_FEATURE_KEPT_IDS |
              GUMBEL_FEATURE_ENTROPY | GUMBEL_CAPABILITY_NOISE),
      0},
     refuse_candidates,
     ranks_draw_candidates},
    {{"whole rows", "rows of all shards, gathered and drawn from on every rank",
      "2 exchanges or more, 4 bytes a row and token", ALL, 0},
     NULL,
     ranks_draw_whole_rows},
};

static const ranks_method gpu_methods[] = {
    {{"plain", "summaries of the shards, merged on every rank",
      "1 exchange, 48 bytes a row and sample", PLAIN, 0},
     refuse_plain,
     ranks_queue_plain},
    {{"top64", "64 leading tokens of each shard, truncated and drawn from on every rank",
      "1 exchange, 516 bytes a row; fallback rows whole", TOP64, GUMBEL_FEATURE_TRUNCATION},
     refuse_top64,
     ranks_queue_top64},
    {{"whole rows", "rows of all shards, gathered and drawn from on every rank",
      "1 exchange or more, 4 bytes a row and token", ALL, 0},
     NULL,
     ranks_queue_whole_rows},
};

/* The last method of each table serves every call, or returns an error that names a field. */
enum { METHODS = 3 };
_Static_assert(sizeof cpu_methods / sizeof *cpu_methods == METHODS, "as many in both tables");
_Static_assert(sizeof gpu_methods / sizeof *gpu_methods == METHODS, "as many in both tables");

static const ranks_method *methods_of(const gumbel_group *group)
{
    return group->table.host_memory ? cpu_methods : gpu_methods;
}

const ranks_method *ranks_choose_method(const gumbel_group *group, const gumbel_problem *problem)
{
    const ranks_method *method = methods_of(group);
    const ranks_method *last = method + METHODS - 1;
    uint64_t required = gumbel_required_capabilities(problem);
    while (method < last && (!gumbel_rung_supports(&method->rung, required) ||
                             (method->refuses && method->refuses(group, problem))))
        method++;
    return method;
}

/* -------------------------------------------------------------------- the group's device ---- */

static gumbel_status plan_group_call(const gumbel_device *device, const gumbel_problem *problem,
                                     uint64_t purpose, gumbel_plan *plan, gumbel_error *error)
{
    gumbel_cursor cursor = {NULL, 0};
    /* Counting changes nothing in the group. */
    ranks_draw draw = {.group = (gumbel_group *)(uintptr_t)device, .p = problem};
    const ranks_method *method = ranks_choose_method(draw.group, problem);
    GUMBEL_FORWARD(method->draw(&draw, &cursor, error));
    *plan = (gumbel_plan){.required = gumbel_required_capabilities(problem) | purpose,
                          .rows = &method->rung,
                          .workspace_bytes = cursor.used};
    return GUMBEL_OK;
}

static gumbel_status sample_group(gumbel_device *device, const gumbel_problem *problem,
                                  const gumbel_plan *plan, const gumbel_output *output,
                                  void *workspace, gumbel_error *error)
{
    gumbel_cursor cursor = {workspace, 0};
    ranks_draw draw = {.group = (gumbel_group *)device, .p = problem, .output = output};
    if (draw.group->broken)
        return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group", "an earlier exchange failed");
    if (!draw.group->table.host_memory)
        GUMBEL_FORWARD(ranks_compare_device_call(&draw, error));
    const ranks_method *method =
        plan ? (const ranks_method *)plan->rows : ranks_choose_method(draw.group, problem);
    return method->draw(&draw, &cursor, error);
}

static gumbel_status explain_group(const gumbel_device *device, const gumbel_problem *problem,
                                   gumbel_text *text, gumbel_error *error)
{
    const gumbel_group *group = (const gumbel_group *)device;
    gumbel_plan plan;
    GUMBEL_FORWARD(plan_group_call(device, problem, 0, &plan, error));
    const ranks_method *chosen = (const ranks_method *)plan.rows;
    gumbel_text_add(text, "ranks: %s: %s (%s)\n", chosen->rung.name, chosen->rung.method,
                    chosen->rung.kernels);
    for (const ranks_method *other = methods_of(group); other < chosen; other++)
        gumbel_text_add_refusal(text, &other->rung, plan.required,
                                other->refuses ? other->refuses(group, problem) : "");
    gumbel_text_add(text, "exchange: %s\n",
                    group->table.host_memory ? "host memory, by the transport"
                    : group->peers.ranks     ? "peer memory"
                                             : "device memory, by the transport");
    gumbel_text_add(text, "workspace: %zu bytes\n", plan.workspace_bytes);
    return GUMBEL_OK;
}

static int64_t end_of_whole(const gumbel_device *device, const gumbel_problem *problem)
{
    const gumbel_group *group = (const gumbel_group *)device;
    (void)problem;
    return group->vocab_size && group->vocab_size < group->end_token ? group->vocab_size
                                                                     : group->end_token;
}

/* The rank's own device expands drafts, and accepts what was drawn. */
static gumbel_status expand_drafts(gumbel_device *device, void *stream,
                                   const gumbel_verification *verification,
                                   const gumbel_proposal *by, gumbel_error *error)
{
    gumbel_device *own = ((gumbel_group *)device)->device;
    return own->backend->expand_drafts(own, stream, verification, by, error);
}

static gumbel_status accept_drafts(gumbel_device *device, void *stream,
                                   const gumbel_verification *verification,
                                   const gumbel_proposal *by, gumbel_error *error)
{
    gumbel_device *own = ((gumbel_group *)device)->device;
    return own->backend->accept_drafts(own, stream, verification, by, error);
}

gumbel_backend ranks_backend_of(const gumbel_device *device)
{
    gumbel_backend table = {.supports = device->backend->supports,
                            .host_memory = device->backend->host_memory,
                            .plan = plan_group_call,
                            .explain = explain_group,
                            .sample = sample_group,
                            .vocabulary_end = end_of_whole};
    if (!table.host_memory) {
        table.expand_drafts = expand_drafts;
        table.accept_drafts = accept_drafts;
    }
    return table;
}
