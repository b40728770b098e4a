/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/plan/cuda_plan.h"

#include "core/fail.h"

#include <string.h>

/* What of a call's needs concerns a product that only stores its logits; what it is asked for then.
 */
#define NEEDS_OF_A_STORE      GUMBEL_NEED_BIAS
#define NEEDS_OF_STORE(needs) (((needs)&NEEDS_OF_A_STORE) | GUMBEL_NEED_PRODUCT)

/* A rung by its name, as a bit of a choice; 0 where there is none. */
static uint32_t bit_of(const char *name, size_t length)
{
    for (int i = 0; i < CUDA_PRODUCTS + CUDA_ROW_RUNGS; i++) {
        const gumbel_rung *rung =
            i < CUDA_PRODUCTS ? &cuda_products[i].rung : &cuda_row_rungs[i - CUDA_PRODUCTS].rung;
        if (strlen(rung->name) == length && memcmp(rung->name, name, length) == 0)
            return 1u << i;
    }
    return 0;
}

gumbel_status cuda_read_rungs(cuda_rung_choice *choice, const char *names, const char *field,
                              gumbel_error *error)
{
    *choice = (cuda_rung_choice){0};
    if (!names || !*names)
        return GUMBEL_OK;
    do {
        int minus = *names == '-';
        size_t length = strcspn(names + minus, ",");
        uint32_t bit = bit_of(names + minus, length);
        GUMBEL_REFUSE_IF(!bit, error, field, "'%.*s' is the name of no rung",
                         (int)(length < 40 ? length : 40), names + minus);
        *(minus ? &choice->left_out : &choice->preferred) |= bit;
        names += minus + length;
    } while (*names++ == ',');
    return GUMBEL_OK;
}

/* The place of a rung in the ladder of its table: those that are preferred come first. -1 once all
 * `count` have been tried; `turn` starts at 0. */
static int next_rung(const cuda_device *cuda, int first, int count, int *turn)
{
    for (; *turn < 2 * count; ++*turn) {
        uint32_t bit = 1u << (first + *turn % count);
        int preferred = (cuda->rungs.preferred & bit) != 0;
        if (!(cuda->rungs.left_out & bit) && preferred == (*turn < count))
            return (*turn)++ % count;
    }
    return -1;
}

static const cuda_product *choose_product(const cuda_device *cuda, const gumbel_problem *p,
                                          uint32_t needs)
{
    int turn = 0;
    for (int i; (i = next_rung(cuda, 0, CUDA_PRODUCTS, &turn)) >= 0;) {
        const cuda_product *product = &cuda_products[i];
        if (gumbel_rung_serves(&product->rung, needs) &&
            !(product->refuses && product->refuses(cuda, p)))
            return product;
    }
    return NULL;
}

static const cuda_rows *choose_rows(const cuda_device *cuda, const gumbel_problem *p,
                                    uint32_t needs, uint32_t handed)
{
    int turn = 0;
    for (int i; (i = next_rung(cuda, CUDA_PRODUCTS, CUDA_ROW_RUNGS, &turn)) >= 0;) {
        const cuda_rows *rows = &cuda_row_rungs[i];
        if (gumbel_rung_serves(&rows->rung, needs) &&
            !(rows->refuses && rows->refuses(cuda, p, handed)))
            return rows;
    }
    return NULL;
}

static gumbel_status refuse(uint32_t needs, gumbel_error *error)
{
    char names[160] = "a plain draw";
    gumbel_text text = {names, sizeof names, 0};
    gumbel_text_needs(&text, needs);
    return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.rungs",
                       "none of the rungs that are not left out serves this call: %s", names);
}

gumbel_problem cuda_masked(const gumbel_problem *problem)
{
    gumbel_problem p = *problem;
    if (p.request & GUMBEL_REQUEST_ALLOWED) {
        p.request = (p.request & ~(uint32_t)GUMBEL_REQUEST_ALLOWED) | GUMBEL_REQUEST_MASK;
        p.mask_by_row = 1;
        p.transforms.mask = (gumbel_row_i32){NULL, cuda_allowed_words(&p)};
    }
    return p;
}

gumbel_status cuda_plan_call(cuda_plan *plan, const cuda_device *cuda, const gumbel_problem *p,
                             uint32_t more, gumbel_error *error)
{
    uint32_t needs = gumbel_needs_of(p) | more, offered = 0;
    *plan = (cuda_plan){.needs = needs};
    GUMBEL_ASSERT(p->batch > 0 && !(p->request & GUMBEL_REQUEST_ALLOWED));
    if (p->hidden_size > 0 && !(needs & GUMBEL_NEED_EMPTY)) {
        plan->product = choose_product(cuda, p, needs);
        if (plan->product)
            return GUMBEL_OK;
        plan->product = choose_product(cuda, p, NEEDS_OF_STORE(needs));
        if (!plan->product)
            return refuse(needs, error);
        offered = plan->product->hands ? plan->product->hands(p) : 0;
    }
    plan->rows = choose_rows(cuda, p, needs & ~NEEDS_OF_A_STORE, offered);
    if (!plan->rows)
        return refuse(needs, error);
    plan->handed = offered & plan->rows->takes;
    GUMBEL_ASSERT(!plan->handed || plan->product);
    return GUMBEL_OK;
}

gumbel_status cuda_plan_stored(cuda_plan *plan, const cuda_device *cuda,
                               const gumbel_problem *problem, gumbel_error *error)
{
    GUMBEL_FORWARD(cuda_plan_call(plan, cuda, problem, 0, error));
    plan->stays = 1;
    return GUMBEL_OK;
}

/* Summaries and floors of any plain draw, whatever serves it. */
static void carve_draws(gumbel_cursor *cursor, const cuda_device *cuda, size_t batch,
                        size_t samples, cuda_workspace *workspace)
{
    size_t draws, count = SIZE_MAX, sms = (size_t)cuda->multiprocessors;
    if (!__builtin_mul_overflow(batch, samples, &draws)) {
        size_t side = samples < CUDA_LOGITS_SAMPLES ? samples : CUDA_LOGITS_SAMPLES;
        size_t portable = sms * CUDA_NAIVE_CTAS * side;
        size_t sm80 =
            CUDA_SM80_CTAS_MAX * sms * (draws < CUDA_SM80_STATES ? draws : CUDA_SM80_STATES);
        size_t sm90 = sms * (draws < CUDA_SM90_STATES ? draws : CUDA_SM90_STATES);
        count = draws > portable ? draws : portable;
        count = count > sm80 ? count : sm80;
        count = count > sm90 ? count : sm90;
    }
    workspace->summaries = gumbel_carve(cursor, count, 1, sizeof(gumbel_summary));
    workspace->summaries_most = count;
    workspace->floors =
        gumbel_carve(cursor, batch, samples, CUDA_THRESHOLD_WORDS * sizeof(uint64_t));
}

size_t cuda_most(const gumbel_device *device, const gumbel_limits *limits)
{
    const cuda_device *cuda = (const cuda_device *)device;
    gumbel_cursor cursor = {0};
    cuda_workspace workspace;
    carve_draws(&cursor, cuda, (size_t)limits->batch, (size_t)limits->num_samples, &workspace);
    if (limits->screens) {
        const int64_t most = CUDA_SCREEN_ROWS_MAX, samples = limits->num_samples > 1 ? 2 : 1;
        const int64_t draws =
            limits->batch < most / samples ? limits->batch * limits->num_samples : most;
        gumbel_problem p = {.batch = ((draws < most ? draws : most) + samples - 1) / samples,
                            .hidden_size = limits->hidden_size,
                            .sampling.num_samples = (int32_t)samples};
        cuda_carve_screen(&cursor, cuda, &p, &workspace);
        if (limits->requests)
            gumbel_carve(&cursor, (size_t)most, CUDA_SCREEN_EXACT_MAX,
                         sizeof *workspace.screen.exact);
    }
    if (limits->requests)
        cuda_carve_most(&cursor, cuda, limits);
    return cursor.used;
}

cuda_workspace cuda_plan_carve(const cuda_plan *plan, gumbel_cursor *cursor,
                               const cuda_device *cuda, const gumbel_problem *p)
{
    cuda_workspace workspace = {NULL};
    if (cuda_makes_mask(p))
        workspace.allowed = gumbel_carve(cursor, (size_t)p->batch, (size_t)cuda_allowed_words(p),
                                         sizeof *workspace.allowed);
    carve_draws(cursor, cuda, (size_t)p->batch, (size_t)p->sampling.num_samples, &workspace);
    if (p->hidden_size > 0 && plan->rows && plan->rows->run != cuda_run_nothing && !plan->stays)
        workspace.logits = gumbel_carve(cursor, (size_t)p->batch, (size_t)cuda_row_stride(p),
                                        sizeof *workspace.logits);
    if (plan->product && plan->product->carve)
        plan->product->carve(cursor, cuda, p, &workspace);
    if (plan->rows && plan->rows->carve)
        plan->rows->carve(cursor, cuda, p, &workspace);
    if (plan->needs & GUMBEL_REQUEST_BEST)
        cuda_carve_best(cursor, p, &workspace);
    return workspace;
}

gumbel_status cuda_call_size(const gumbel_device *device, const gumbel_problem *problem,
                             uint32_t more, size_t *bytes, gumbel_error *error)
{
    gumbel_cursor cursor = {0};
    cuda_plan plan;
    gumbel_problem p = cuda_masked(problem);
    GUMBEL_FORWARD(cuda_plan_call(&plan, (const cuda_device *)device, &p, more, error));
    cuda_plan_carve(&plan, &cursor, (const cuda_device *)device, &p);
    *bytes = cursor.used;
    return GUMBEL_OK;
}

int cuda_lists_blocks(const gumbel_device *device, const gumbel_problem *listing)
{
    cuda_plan plan;
    return listing->hidden_size > 0 &&
           cuda_plan_stored(&plan, (const cuda_device *)device, listing, NULL) == GUMBEL_OK &&
           plan.rows && plan.rows->run == cuda_run_blocks && (plan.handed & CUDA_HANDS_PEAKS) &&
           CUDA_TOP64_BYTES_OF(cuda_blocks_of(listing)) <= CUDA_TOP64_BYTES_MAX;
}

gumbel_status cuda_stored_size(const gumbel_device *device, const gumbel_problem *problem,
                               size_t *bytes, gumbel_error *error)
{
    gumbel_cursor cursor = {0};
    cuda_plan plan;
    GUMBEL_FORWARD(cuda_plan_stored(&plan, (const cuda_device *)device, problem, error));
    cuda_plan_carve(&plan, &cursor, (const cuda_device *)device, problem);
    *bytes = cursor.used;
    return GUMBEL_OK;
}

/* ------------------------------------------------------------------------------- in words ---- */

/* The line of what serves, behind `head`. */
static void tell_choice(gumbel_text *text, const char *head, const gumbel_rung *rung)
{
    gumbel_text_add(text, "%s: %s: %s (%s)\n", head, rung->name, rung->what, rung->kernels);
}

static void tell_products(gumbel_text *text, const cuda_device *cuda, const gumbel_problem *p,
                          const cuda_plan *plan)
{
    uint32_t needs = plan->rows ? NEEDS_OF_STORE(plan->needs) : plan->needs;
    int turn = 0;
    tell_choice(text, plan->rows ? "logits" : "draw", &plan->product->rung);
    for (int i; (i = next_rung(cuda, 0, CUDA_PRODUCTS, &turn)) >= 0;) {
        const cuda_product *other = &cuda_products[i];
        if (other == plan->product)
            break;
        gumbel_text_refusal(text, &other->rung, needs,
                            other->refuses ? other->refuses(cuda, p) : "");
    }
    if (plan->rows) {
        gumbel_text_add(text, "  stored, as a draw between tiles does not serve ");
        gumbel_text_needs(text, plan->needs & ~plan->product->rung.serves);
        gumbel_text_add(text, "\n");
    }
}

static void tell_rows(gumbel_text *text, const cuda_device *cuda, const gumbel_problem *p,
                      const cuda_plan *plan)
{
    uint32_t needs = plan->needs & ~NEEDS_OF_A_STORE;
    uint32_t offered = plan->product && plan->product->hands ? plan->product->hands(p) : 0;
    int turn = 0;
    tell_choice(text, "rows", &plan->rows->rung);
    for (int i; (i = next_rung(cuda, CUDA_PRODUCTS, CUDA_ROW_RUNGS, &turn)) >= 0;) {
        const cuda_rows *other = &cuda_row_rungs[i];
        if (other == plan->rows)
            break;
        gumbel_text_refusal(text, &other->rung, needs,
                            other->refuses ? other->refuses(cuda, p, offered) : "");
    }
}

gumbel_status cuda_explain(const gumbel_device *device, const gumbel_problem *problem,
                           gumbel_text *text, gumbel_error *error)
{
    const cuda_device *cuda = (const cuda_device *)device;
    gumbel_problem p = cuda_masked(problem);
    gumbel_cursor cursor = {0};
    cuda_plan plan;
    GUMBEL_FORWARD(cuda_plan_call(&plan, cuda, &p, 0, error));
    cuda_plan_carve(&plan, &cursor, cuda, &p);
    if (plan.product)
        tell_products(text, cuda, &p, &plan);
    if (plan.rows)
        tell_rows(text, cuda, &p, &plan);
    gumbel_text_add(text, "workspace: %zu bytes\n", cursor.used);
    return GUMBEL_OK;
}
