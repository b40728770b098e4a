/* SPDX-License-Identifier: Apache-2.0
 *
 * The fused way on Hopper: tensor maps, and slices of the batch that one launch takes. And the
 * screened draw: hidden states are split into planes, what can win is found by the screen and
 * scored by the full product, and behind that stands the full pass, for calls that a screen does
 * not tell. That of rows which are cut is a product that stores all logits, and clusters.
 */
#include "core/fail.h"
#include "cuda/fused/screen/screen_params.h"
#include "cuda/run/cuda_run.h"

static CUtensorMapDataType map_dtype(gumbel_dtype dtype)
{
    return dtype == GUMBEL_FLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

static gumbel_status encode(const cuda_job *job, CUtensorMap *map, const gumbel_tensor *t, int rank,
                            const cuuint64_t *sizes, const cuuint64_t *strides,
                            const cuuint32_t *box)
{
    static const cuuint32_t every[5] = {1, 1, 1, 1, 1};
    CUDA_TRY(&job->cuda->driver, job->error, cuTensorMapEncodeTiled, map, map_dtype(t->dtype),
             (cuuint32_t)rank, (void *)(uintptr_t)t->data, sizes, strides, box, every,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return GUMBEL_OK;
}

/* Weight row 16 d + 4 b + 2 a + c at (d, c, b, a): the order that the kernel's head explains. */
static gumbel_status encode_weight(const cuda_job *job, CUtensorMap *map)
{
    const gumbel_tensor *t = &job->params.problem.weight;
    cuuint64_t row = (cuuint64_t)t->stride * sizeof(uint16_t);
    cuuint64_t sizes[5] = {(cuuint64_t)t->cols, 2, 4, 2, (cuuint64_t)t->rows / 16};
    cuuint64_t strides[4] = {2 * row, 4 * row, row, 16 * row};
    cuuint32_t box[5] = {64, 2, 4, 2, CUDA_SM90_TILE / 16};
    return encode(job, map, t, 5, sizes, strides, box);
}

/* So many rows a copy. */
static gumbel_status encode_hidden(const cuda_job *job, CUtensorMap *map, const gumbel_tensor *t,
                                   int rows)
{
    cuuint64_t sizes[2] = {(cuuint64_t)t->cols, (cuuint64_t)t->rows};
    cuuint64_t strides[1] = {(cuuint64_t)t->stride * sizeof(uint16_t)};
    cuuint32_t box[2] = {64, (cuuint32_t)rows};
    return encode(job, map, t, 2, sizes, strides, box);
}

/* A launch of the fused kernel, and what it is handed. */
typedef struct sm90_launch {
    cuda_params params;
    CUtensorMap weight, hidden;
    int place; /* of its width */
    cuda_shape shape;
} sm90_launch;

/* That of the rows [first, first + count) of a call, whose samples are drawn beside their columns,
 * or each by a column of `spread`, where that is not NULL. The weights' map is the call's. */
static gumbel_status prepare(const cuda_job *job, int64_t first, int64_t count,
                             const gumbel_tensor *spread, sm90_launch *launch)
{
    cuda_device *cuda = job->cuda;
    cuda_params *p = &launch->params;
    const int64_t tokens = job->params.problem.end_token - job->params.problem.first_token;
    *p = cuda_slice(&job->params, first, count);
    const gumbel_tensor *hidden = spread ? spread : &p->problem.hidden;
    const int samples = p->logits_out || spread ? 1 : p->problem.sampling.num_samples;
    launch->place = cuda_sm90_width_for(hidden->rows);
    const int width = cuda_sm90_widths[launch->place];
    p->tiles = (int32_t)((tokens + CUDA_SM90_TILE - 1) / CUDA_SM90_TILE);
    p->parts = cuda_sm90_ctas(width, p->tiles, cuda_sm90_processors(cuda->multiprocessors));
    p->stages =
        cuda_sm90_stages(width, samples, p->problem.with_mass, p->logits_out && !p->also_draw);
    GUMBEL_ASSERT(p->tiles > 0 && hidden->rows <= width && p->stages >= 1);
    GUMBEL_ASSERT(p->parts >= 1 && p->parts <= cuda->multiprocessors);
    GUMBEL_ASSERT((size_t)p->parts * (size_t)hidden->rows * (size_t)samples <=
                  job->workspace.summaries_most);
    p->tag = cuda_tag(cuda);
    launch->shape = (cuda_shape){p->parts, CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES,
                                 CUDA_SM90_OVERLAPS(width)};
    return encode_hidden(job, &launch->hidden, hidden, width / CUDA_SM90_CLUSTER(width));
}

gumbel_status cuda_run_sm90(const cuda_job *job)
{
    const gumbel_problem *whole = &job->params.problem;
    const int64_t most =
        cuda_sm90_max_rows(job->params.logits_out ? 1 : whole->sampling.num_samples);
    sm90_launch launch;
    GUMBEL_ASSERT(most > 0 && whole->weight.rows % 16 == 0);
    GUMBEL_ASSERT(whole->weight.dtype != GUMBEL_FLOAT32);
    GUMBEL_ASSERT(whole->hidden.dtype == whole->weight.dtype);
    GUMBEL_FORWARD(encode_weight(job, &launch.weight));
    for (int64_t first = 0; first < whole->batch; first += most) {
        int64_t rows = whole->batch - first < most ? whole->batch - first : most;
        GUMBEL_FORWARD(prepare(job, first, rows, NULL, &launch));
        cuda_params *p = &launch.params;
        void *arguments[] = {p, &launch.weight, &launch.hidden};
        cuda_sm90_case kind =
            cuda_sm90_case_of(whole, p->logits_out != NULL, p->also_draw, p->multiply_only);
        CUfunction kernel =
            job->cuda->fused_sm90[cuda_dtype_of(whole->weight.dtype)][launch.place][kind];
        GUMBEL_FORWARD(cuda_launch(job, kernel, launch.shape, arguments));
        if (!CUDA_SM90_WRITES_OUTPUT(kind, p->partials))
            GUMBEL_FORWARD(cuda_finish(job, p));
    }
    return GUMBEL_OK;
}

/* ---------------------------------------------------------------------------- screened ---- */

/* The narrowest product that holds two planes of so many rows, by its place in the table. */
static int width_for(int64_t rows)
{
    int i = 0;
    while (i < CUDA_SCREEN_WIDTHS - 1 && cuda_screen_widths[i] < 2 * rows)
        i++;
    return i;
}

static int64_t depths_of(const gumbel_problem *p)
{
    return (p->hidden_size + CUDA_SCREEN_TILE - 1) / CUDA_SCREEN_TILE;
}

void cuda_carve_screen(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                       cuda_workspace *workspace)
{
    const size_t draws = (size_t)cuda_screen_draws(p);
    const size_t width = (size_t)cuda_screen_widths[width_for((int64_t)draws)];
    const size_t groups = (draws + CUDA_SCREEN_GROUP - 1) / CUDA_SCREEN_GROUP;
    cuda_screen_pieces *pieces = &workspace->screen;
    (void)cuda;
    pieces->planes = gumbel_carve(cursor, (size_t)depths_of(p), width, CUDA_SCREEN_TILE);
    pieces->reaches = gumbel_carve(cursor, width, 1, sizeof *pieces->reaches);
    pieces->state = gumbel_carve(cursor, 1, 1, sizeof *pieces->state);
    pieces->entries =
        gumbel_carve(cursor, groups, CUDA_SCREEN_GROUP_CANDIDATES_MAX, sizeof *pieces->entries);
    pieces->left = gumbel_carve(cursor, width / 2, 1, sizeof *pieces->left);
    if (draws > (size_t)p->batch)
        pieces->spread =
            gumbel_carve(cursor, draws, (size_t)p->hidden_size, sizeof *pieces->spread);
}

void cuda_carve_screen_cut(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                           cuda_workspace *workspace)
{
    cuda_carve_screen(cursor, cuda, p, workspace);
    cuda_carve_blocks(cursor, cuda, p, workspace);
    workspace->screen.peaks = workspace->peaks;
    workspace->screen.exact = gumbel_carve(cursor, (size_t)p->batch, CUDA_SCREEN_EXACT_MAX,
                                           sizeof *workspace->screen.exact);
    workspace->logits = gumbel_carve(cursor, (size_t)p->batch, (size_t)cuda_row_stride(p),
                                     sizeof *workspace->logits);
}

/* What the kernels of a screened draw are handed, but for the launch's own. */
static cuda_screen_params screened(const cuda_job *job, int place)
{
    const gumbel_problem *q = &job->params.problem;
    const cuda_screen_pieces *pieces = &job->workspace.screen;
    const char *screen = q->screen;
    const int64_t tokens = q->end_token - q->first_token;
    const int64_t draws = cuda_screen_draws(q);
    gumbel_screen_parts parts;
    int known =
        gumbel_screen_lay_out_as(GUMBEL_SCREEN_LAYOUT_TILES, q->vocab, q->hidden_size, &parts);
    GUMBEL_ASSERT(known && tokens > 0 && draws <= CUDA_SCREEN_ROWS_MAX);
    GUMBEL_ASSERT(pieces->planes && pieces->reaches && pieces->state && pieces->entries);
    GUMBEL_ASSERT(pieces->spread || draws == q->batch);
    GUMBEL_ASSERT(q->soft_cap == 0.0f && q->scale >= 0.0f && !q->bias.data);
    (void)known;
    cuda_screen_params s = {.call = cuda_slice(&job->params, 0, q->batch),
                            .header = (const void *)screen,
                            .bounds = (const void *)(screen + parts.bounds),
                            .steps = (const void *)(screen + parts.steps),
                            .copy = (const void *)(screen + parts.copy),
                            .depths = (int32_t)depths_of(q),
                            .width = cuda_screen_widths[place],
                            .draws = (int32_t)draws,
                            .gamma = CUDA_SCREEN_GAMMA(q->hidden_size),
                            .planes = pieces->planes,
                            .reaches = pieces->reaches,
                            .state = pieces->state,
                            .entries = pieces->entries,
                            .spread = pieces->spread,
                            .peaks = pieces->peaks,
                            .exact = pieces->exact};
    s.call.tiles = (int32_t)((tokens + CUDA_SCREEN_TILE - 1) / CUDA_SCREEN_TILE);
    s.call.stages = cuda_screen_stages(s.width);
    GUMBEL_ASSERT(s.call.tiles <= parts.blocks * GUMBEL_BLOCK / CUDA_SCREEN_TILE);
    return s;
}

/* Score candidates, behind what lists them or scores others. */
static gumbel_status score(const cuda_job *job, cuda_screen_params *s)
{
    const cuda_device *cuda = job->cuda;
    const cuda_screen_case kind = cuda_screen_case_of(&s->call.problem);
    const cuda_dtype dtype = cuda_dtype_of(s->call.problem.weight.dtype);
    const cuda_shape shape = {cuda->multiprocessors > CUDA_SCREEN_GROUPS ? cuda->multiprocessors
                                                                         : CUDA_SCREEN_GROUPS,
                              CUDA_SCREEN_SCORE_THREADS, CUDA_SCREEN_SCORE_BYTES, 1};
    void *arguments[] = {s};
    return cuda_launch(job, cuda->screen_score[dtype][kind], shape, arguments);
}

/* Split, find candidates and score them, by a screened draw's parameters, which get their tag. */
static gumbel_status find_candidates(const cuda_job *job, int place, cuda_screen_params *s)
{
    cuda_device *cuda = job->cuda;
    const cuda_screen_case kind = cuda_screen_case_of(&s->call.problem);
    const int processors = cuda_sm90_processors(cuda->multiprocessors);
    void *arguments[] = {s};
    const cuda_shape split = {s->width / 2, CUDA_SCREEN_SPLIT_THREADS, CUDA_SCREEN_SPLIT_BYTES, 1};
    const cuda_shape draw = {s->call.tiles < processors ? s->call.tiles : processors,
                             CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES, 1};
    s->call.tag = cuda_tag(cuda);
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_split[kind], split, arguments));
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_draw[place][kind], draw, arguments));
    return score(job, s);
}

gumbel_status cuda_run_screen(const cuda_job *job)
{
    const gumbel_problem *q = &job->params.problem;
    const cuda_screen_pieces *pieces = &job->workspace.screen;
    const int place = width_for(cuda_screen_draws(q));
    cuda_screen_params s = screened(job, place);
    const gumbel_tensor spread = {.data = pieces->spread,
                                  .dtype = q->hidden.dtype,
                                  .rows = s.draws,
                                  .cols = q->hidden_size,
                                  .stride = q->hidden_size};
    sm90_launch whole; /* the full pass */
    GUMBEL_FORWARD(encode_weight(job, &whole.weight));
    GUMBEL_FORWARD(prepare(job, 0, q->batch, pieces->spread ? &spread : &q->hidden, &whole));
    const uint32_t *again = &pieces->state->again;
    void *in_full[] = {&whole.params, &whole.weight, &whole.hidden, &again};
    const CUfunction kernel = job->cuda->fused_again[cuda_dtype_of(q->weight.dtype)][whole.place];
    GUMBEL_FORWARD(find_candidates(job, place, &s));
    return cuda_launch(job, kernel, whole.shape, in_full);
}

/* The call of a head as one from the logits that its full pass stores. */
static cuda_job rows_of(const cuda_job *job)
{
    cuda_job rows = *job;
    gumbel_problem *p = &rows.params.problem;
    p->hidden_size = 0;
    p->sampling.math = GUMBEL_MATH_EXACT;
    p->logits = cuda_rows_at(job->workspace.logits, p, cuda_row_stride(p));
    return rows;
}

/* Store the logits of all rows, where any is left, of [B]. */
static gumbel_status store_again(const cuda_job *job, const int32_t *left)
{
    const gumbel_problem *q = &job->params.problem;
    sm90_launch launch;
    GUMBEL_ASSERT(left && job->params.logits_out && !job->params.stored_subtiles);
    GUMBEL_ASSERT(!job->params.also_draw && q->batch <= CUDA_SCREEN_ROWS_MAX);
    GUMBEL_FORWARD(encode_weight(job, &launch.weight));
    GUMBEL_FORWARD(prepare(job, 0, q->batch, NULL, &launch));
    void *arguments[] = {&launch.params, &launch.weight, &launch.hidden, &left};
    const CUfunction kernel = job->cuda->store_again[cuda_dtype_of(q->weight.dtype)][launch.place];
    return cuda_launch(job, kernel, launch.shape, arguments);
}

gumbel_status cuda_run_screen_cut(const cuda_job *job)
{
    const gumbel_problem *q = &job->params.problem;
    const cuda_workspace *workspace = &job->workspace;
    const int place = width_for(cuda_screen_draws(q));
    cuda_screen_params s = screened(job, place);
    const cuda_job rows = rows_of(job);
    cuda_job again = *job; /* the full pass */
    cuda_params *p = &again.params;
    p->logits_out = workspace->logits;
    p->logits_out_stride = cuda_row_stride(q);
    p->problem.request = 0;
    p->problem.with_mass = 0;
    GUMBEL_ASSERT(cuda_screen_case_of(q) == CUDA_SCREEN_TRUNCATED && s.peaks && workspace->logits);
    /* The list lies where the full pass would store its logits. */
    s.ends = (cuda_screen_interval *)workspace->logits;
    s.ends_stride = cuda_row_stride(q) / (int64_t)(sizeof *s.ends / sizeof *workspace->logits);
    GUMBEL_FORWARD(find_candidates(job, place, &s));
    s.rest = 1;
    GUMBEL_FORWARD(score(job, &s));
    cuda_screen_rows found = {.request = cuda_request_of(&rows),
                              .state = s.state,
                              .exact = s.exact,
                              .floors = s.call.row_thresholds,
                              .tag = s.call.tag,
                              .left = workspace->screen.left};
    void *arguments[] = {&found};
    const cuda_shape shape = {q->batch, CUDA_REQUEST_THREADS, CUDA_CLUSTER_SHARED_BYTES, 1};
    found.request.row_states = workspace->row_states;
    GUMBEL_FORWARD(cuda_launch(job, job->cuda->screen_cut, shape, arguments));
    GUMBEL_FORWARD(store_again(&again, found.left));
    return cuda_run_left(&rows);
}
