/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches the fused kernel on Hopper: tensor maps, and one launch for each group of rows. Also
 * launches a draw with a screen: hidden states are split into planes, the screen finds candidates,
 * their scores are computed exactly, and the full pass follows for calls that the screen does not
 * resolve. For truncated rows the full pass stores all logits, and clusters draw the fallback rows.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run_screen.h"

static CUtensorMapDataType map_dtype(gumbel_dtype dtype)
{
    return dtype == GUMBEL_FLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

static gumbel_status encode_map(const cuda_job *job, CUtensorMap *map, const gumbel_tensor *t,
                                int rank, const cuuint64_t *sizes, const cuuint64_t *strides,
                                const cuuint32_t *box)
{
    static const cuuint32_t every[5] = {1, 1, 1, 1, 1};
    CUDA_TRY(&job->cuda->driver, job->error, cuTensorMapEncodeTiled, map, map_dtype(t->dtype),
             (cuuint32_t)rank, (void *)(uintptr_t)t->data, sizes, strides, box, every,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return GUMBEL_OK;
}

/* Weight row 16 d + 4 b + 2 a + c at (d, c, b, a): the order is explained in fused_sm90.cuh. A copy
 * loads a tile, or half of one if CTAs are paired. */
static gumbel_status encode_weight(const cuda_job *job, CUtensorMap *map, int paired)
{
    const gumbel_tensor *t = &job->params.problem.weight;
    cuuint64_t row = (cuuint64_t)t->stride * sizeof(uint16_t);
    cuuint64_t sizes[5] = {(cuuint64_t)t->cols, 2, 4, 2, (cuuint64_t)t->rows / 16};
    cuuint64_t strides[4] = {2 * row, 4 * row, row, 16 * row};
    cuuint32_t box[5] = {64, 2, 4, 2, CUDA_SM90_TILE / 16 / (paired ? 2 : 1)};
    return encode_map(job, map, t, 5, sizes, strides, box);
}

/* The map of hidden states; a copy loads `rows` rows. */
static gumbel_status encode_hidden(const cuda_job *job, CUtensorMap *map, const gumbel_tensor *t,
                                   int rows)
{
    cuuint64_t sizes[2] = {(cuuint64_t)t->cols, (cuuint64_t)t->rows};
    cuuint64_t strides[1] = {(cuuint64_t)t->stride * sizeof(uint16_t)};
    cuuint32_t box[2] = {64, (cuuint32_t)rows};
    return encode_map(job, map, t, 2, sizes, strides, box);
}

/* A launch of the fused kernel and its arguments. */
typedef struct sm90_launch {
    cuda_statistics_params params; /* kernels without statistics read its `call` */
    CUtensorMap weight, hidden;
    int width; /* index in cuda_sm90_widths */
    cuda_sm90_case kind;
    cuda_shape shape;
} sm90_launch;

/* Set up the launch of the rows [first, first + count) of a call. A column draws all samples of its
 * row; with `spread`, hidden states repeated for each sample, each column draws one. */
static gumbel_status prepare_launch(const cuda_job *job, int64_t first, int64_t count,
                                    const gumbel_tensor *spread, sm90_launch *launch)
{
    cuda_device *cuda = job->cuda;
    cuda_params *p = &launch->params.call;
    const int64_t tokens = job->params.problem.end_token - job->params.problem.first_token;
    *p = cuda_select_rows(&job->params, first, count);
    const gumbel_tensor *hidden = spread ? spread : &p->problem.hidden;
    const int samples = p->logits_out || spread ? 1 : p->problem.sampling.num_samples;
    launch->width = cuda_sm90_width_for(hidden->rows);
    const int columns = cuda_sm90_widths[launch->width];
    launch->kind = spread ? CUDA_SM90_PLAIN
                          : cuda_sm90_case_of(&p->problem, p->logits_out != NULL, p->also_draw,
                                              p->multiply_only);
    launch->params.statistics = job->workspace.statistics;
    p->tiles = (int32_t)((tokens + CUDA_SM90_TILE - 1) / CUDA_SM90_TILE);
    p->paired = hidden->rows > CUDA_SM90_WIDEST;
    p->splits =
        cuda_sm90_ctas(columns, p->tiles, cuda_sm90_processors(cuda->multiprocessors), p->paired);
    p->stages = cuda_sm90_stages(columns, samples, p->problem.with_mass, launch->kind);
    GUMBEL_ASSERT(p->tiles > 0 && hidden->rows <= CUDA_SM90_PAIR_ROWS && p->stages >= 1);
    GUMBEL_ASSERT(p->splits >= 1 && p->splits <= cuda->multiprocessors);
    GUMBEL_ASSERT((size_t)p->splits * (size_t)hidden->rows * (size_t)samples <=
                  job->workspace.summaries_max);
    p->tag = cuda_new_tag(cuda);
    launch->shape = (cuda_shape){p->splits, CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES,
                                 CUDA_SM90_OVERLAPS(columns)};
    GUMBEL_FORWARD(encode_weight(job, &launch->weight, p->paired));
    return encode_hidden(job, &launch->hidden, hidden, columns / CUDA_SM90_CLUSTER(columns));
}

/* Statistics of the CTAs of a launch. */
static size_t count_statistics(const cuda_device *cuda, int64_t batch)
{
    const int64_t rows = batch < CUDA_SM90_PAIR_ROWS ? batch : CUDA_SM90_PAIR_ROWS;
    return (size_t)cuda->multiprocessors * (size_t)rows;
}

void cuda_carve_statistics(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                           cuda_workspace *workspace)
{
    workspace->statistics = gumbel_carve_array(cursor, count_statistics(cuda, p->batch), 1,
                                               sizeof *workspace->statistics);
}

/* Merge the statistics of all CTAs, and write the outputs. */
static gumbel_status finish_statistics(const cuda_job *job, cuda_statistics_params *p)
{
    const cuda_shape shape = {p->call.problem.batch, CUDA_FINISH_THREADS, 0, 1};
    void *arguments[] = {p};
    p->call.output.num_top = p->call.problem.num_top; /* 0 without arrays of top tokens */
    GUMBEL_ASSERT(p->statistics && p->call.summaries && p->call.output.tokens);
    GUMBEL_ASSERT(p->call.output.num_top <= CUDA_STATISTICS_TOP_MAX);
    return cuda_launch(job, job->cuda->finish_statistics, shape, arguments);
}

gumbel_status cuda_run_sm90(const cuda_job *job)
{
    const gumbel_problem *whole = &job->params.problem;
    const int64_t max_rows =
        cuda_sm90_max_rows(job->params.logits_out ? 1 : whole->sampling.num_samples);
    sm90_launch launch;
    GUMBEL_ASSERT(max_rows > 0 && whole->weight.rows % 16 == 0);
    GUMBEL_ASSERT(whole->weight.dtype != GUMBEL_FLOAT32);
    GUMBEL_ASSERT(whole->hidden.dtype == whole->weight.dtype);
    for (int64_t first = 0; first < whole->batch; first += max_rows) {
        int64_t rows = whole->batch - first < max_rows ? whole->batch - first : max_rows;
        GUMBEL_FORWARD(prepare_launch(job, first, rows, NULL, &launch));
        void *arguments[] = {&launch.params, &launch.weight, &launch.hidden};
        CUfunction kernel =
            job->cuda->fused_sm90[cuda_dtype_of(whole->weight.dtype)][launch.width][launch.kind];
        GUMBEL_FORWARD(cuda_launch(job, kernel, launch.shape, arguments));
        if (launch.kind == CUDA_SM90_STATISTICS)
            GUMBEL_FORWARD(finish_statistics(job, &launch.params));
        else if (!CUDA_SM90_WRITES_OUTPUT(launch.kind, launch.params.call.partials))
            GUMBEL_FORWARD(cuda_launch_finish(job, &launch.params.call));
    }
    return GUMBEL_OK;
}

/* -------------------------------------------------------------------------- with a screen ---- */

/* Parameters of the kernels on Hopper. */
static cuda_screen_params get_screen_params(const cuda_job *job, int width)
{
    const gumbel_problem *q = &job->params.problem;
    const cuda_screen_workspace *w = &job->workspace.screen;
    cuda_screen_params s = cuda_get_screen_params(job, width);
    GUMBEL_ASSERT(w->coarse_errors && w->coarse_entries);
    GUMBEL_ASSERT(w->spread || s.draws == q->batch);
    s.gamma = CUDA_SCREEN_GAMMA(q->hidden_size);
    s.call.stages = cuda_screen_stages(s.width, cuda_screen_case_of(q) == CUDA_SCREEN_NESTED);
    return s;
}

/* Score listed candidates. */
static gumbel_status score_candidates(const cuda_job *job, cuda_screen_params *s)
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

/* Bound candidates of coarse bounds by both nibbles. */
static gumbel_status refine_candidates(const cuda_job *job, cuda_screen_params *s)
{
    const int ctas = CUDA_SCREEN_REFINE_CTAS * job->cuda->multiprocessors;
    const cuda_shape shape = {ctas > s->draws ? ctas : s->draws, CUDA_SCREEN_REFINE_THREADS,
                              CUDA_SCREEN_REFINE_BYTES(s->depths), 1};
    void *arguments[] = {s};
    return cuda_launch(job, job->cuda->screen_refine, shape, arguments);
}

/* Split hidden states, find candidates and score them; sets the tag of the parameters. */
static gumbel_status find_candidates(const cuda_job *job, int width, cuda_screen_params *s)
{
    cuda_device *cuda = job->cuda;
    const cuda_screen_case kind = cuda_screen_case_of(&s->call.problem);
    const int processors = cuda_sm90_processors(cuda->multiprocessors);
    void *arguments[] = {s};
    const cuda_shape split = {s->width / 2, CUDA_SCREEN_SPLIT_THREADS, CUDA_SCREEN_SPLIT_BYTES, 1};
    const cuda_shape draw = {s->call.tiles < processors ? s->call.tiles : processors,
                             CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES, 1};
    s->call.tag = cuda_new_tag(cuda);
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_split[kind], split, arguments));
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_draw[width][kind], draw, arguments));
    if (kind == CUDA_SCREEN_NESTED)
        GUMBEL_FORWARD(refine_candidates(job, s));
    return score_candidates(job, s);
}

gumbel_status cuda_run_screen(const cuda_job *job)
{
    const gumbel_problem *q = &job->params.problem;
    const cuda_screen_workspace *w = &job->workspace.screen;
    const int width = cuda_screen_width_for(cuda_screen_draws(q));
    cuda_screen_params s = get_screen_params(job, width);
    const gumbel_tensor spread = {.data = w->spread,
                                  .dtype = q->hidden.dtype,
                                  .rows = s.draws,
                                  .cols = q->hidden_size,
                                  .stride = q->hidden_size};
    sm90_launch full_pass;
    GUMBEL_FORWARD(prepare_launch(job, 0, q->batch, w->spread ? &spread : &q->hidden, &full_pass));
    const uint32_t *again = &w->state->again;
    void *in_full[] = {&full_pass.params, &full_pass.weight, &full_pass.hidden, &again};
    const CUfunction kernel =
        job->cuda->fused_fallback[cuda_dtype_of(q->weight.dtype)][full_pass.width];
    GUMBEL_FORWARD(find_candidates(job, width, &s));
    return cuda_launch(job, kernel, full_pass.shape, in_full);
}

/* The call of a head as a call from the logits that its full pass stores. */
static cuda_job read_stored_rows(const cuda_job *job)
{
    cuda_job rows = *job;
    gumbel_problem *p = &rows.params.problem;
    p->hidden_size = 0;
    p->logits = cuda_rows_at(job->workspace.logits, p, cuda_row_stride(p));
    return rows;
}

/* Store the logits of all rows if one of fallback_rows [B] is set. */
static gumbel_status store_fallback(const cuda_job *job, const int32_t *fallback_rows)
{
    const gumbel_problem *q = &job->params.problem;
    sm90_launch launch;
    GUMBEL_ASSERT(fallback_rows && job->params.logits_out && !job->params.stored_subtiles);
    GUMBEL_ASSERT(!job->params.also_draw && q->batch <= CUDA_SCREEN_ROWS_MAX);
    GUMBEL_FORWARD(prepare_launch(job, 0, q->batch, NULL, &launch));
    void *arguments[] = {&launch.params, &launch.weight, &launch.hidden, &fallback_rows};
    const CUfunction kernel =
        job->cuda->store_fallback[cuda_dtype_of(q->weight.dtype)][launch.width];
    return cuda_launch(job, kernel, launch.shape, arguments);
}

gumbel_status cuda_run_screen_truncated(const cuda_job *job)
{
    const gumbel_problem *q = &job->params.problem;
    const cuda_workspace *workspace = &job->workspace;
    const int width = cuda_screen_width_for(cuda_screen_draws(q));
    cuda_screen_params s = get_screen_params(job, width);
    const cuda_job rows = read_stored_rows(job);
    cuda_job full_pass = *job;
    cuda_params *p = &full_pass.params;
    p->logits_out = workspace->logits;
    p->logits_out_stride = cuda_row_stride(q);
    p->problem.features = 0;
    p->problem.with_mass = 0;
    GUMBEL_ASSERT(cuda_screen_truncates(cuda_screen_case_of(q)) && s.maxima && workspace->logits);
    /* Intervals are recorded in the array of logits, which only the full pass writes. */
    s.listed = (cuda_screen_interval *)workspace->logits;
    s.listed_stride = cuda_row_stride(q) / (int64_t)(sizeof *s.listed / sizeof *workspace->logits);
    GUMBEL_FORWARD(find_candidates(job, width, &s));
    s.second_pass = 1;
    GUMBEL_FORWARD(score_candidates(job, &s));
    cuda_screen_rows found = {.request = cuda_get_truncated_params(&rows),
                              .state = s.state,
                              .exact = s.exact,
                              .row_thresholds = s.call.row_thresholds,
                              .tag = s.call.tag,
                              .fallback_rows = workspace->screen.fallback_rows};
    void *arguments[] = {&found};
    const cuda_shape shape = {q->batch, CUDA_TRUNCATED_THREADS, CUDA_CLUSTER_SHARED_BYTES, 1};
    found.request.row_states = workspace->row_states;
    GUMBEL_FORWARD(cuda_launch(job, job->cuda->screen_truncate, shape, arguments));
    GUMBEL_FORWARD(store_fallback(&full_pass, found.fallback_rows));
    return cuda_run_fallback_rows(&rows);
}
