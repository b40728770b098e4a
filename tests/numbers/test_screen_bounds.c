/* SPDX-License-Identifier: Apache-2.0
 *
 * The bounds of a screen (docs/maths.md, section 14): every logit is within its bounds, on
 * adversarial rows and hidden states; the tests detect each omitted term of the bound; sums and
 * bytes are equal on every instruction set.
 */
#include "cpu/cpu_screen_kernel.h"
#include "cpu/host/cpu_dispatch.h"
#include "fixtures.h"
#include "outcome.h"
#include "screen_intervals.h"
#include "screen_sums.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Hidden states: as generated, one dimension alone or 3000 times larger, tiny, large, of one sign,
 * below the planes, or parallel to the quantization error of a row, where Cauchy's inequality is
 * tight. The last two depend on the dither, so that only certain bounds hold. */
static void make_hidden(const screened *s, int kind, uint64_t *state, float *h)
{
    int64_t row = kind - 9;
    for (int64_t i = 0; i < s->head->weight.cols; i++) {
        float x = random_normal(state);
        switch (kind) {
        case 1:
            x *= i == 5 ? 3000 : 1;
            break;
        case 2:
            x = i == 5 ? 1.0f : 0.0f;
            break;
        case 3:
            x *= 1e-20f;
            break;
        case 4:
            x *= 1e10f;
            break;
        case 5:
            x = expf(4 * x);
            break;
        case 6:
            x = 1.0f;
            break;
        case 7:
            x = 0.0f;
            break;
        case 8: /* the planes round all dimensions to 0 except one; along row 6 */
            x = i == 5 ? 1.0f : 0x1p-15f * 0.4f * (float)(byte_of(s, 6, i) < 0 ? -1 : 1);
            break;
        default:
            if (kind > 8)
                x = error_of(s, BOUND_FINE, row, i);
        }
        h[i] = x;
    }
}

#define HIDDEN_KINDS             (9 + 24)
#define HIDDEN_INDEPENDENT_KINDS 8

/* The bounds that are tested: those of bytes and of nibbles. */
typedef struct tested_bounds {
    gumbel_screen_format format;
    bound_kind kind;
    gumbel_screen_certificate certificate;
} tested_bounds;

static const tested_bounds certain_bytes = {GUMBEL_SCREEN_BYTES, BOUND_FINE, GUMBEL_SCREEN_CERTAIN};
static const tested_bounds probable_bytes = {GUMBEL_SCREEN_BYTES, BOUND_FINE,
                                             GUMBEL_SCREEN_PROBABLE};
static const tested_bounds probable_coarse = {GUMBEL_SCREEN_NIBBLES, BOUND_COARSE,
                                              GUMBEL_SCREEN_PROBABLE};
static const tested_bounds probable_refined = {GUMBEL_SCREEN_NIBBLES, BOUND_REFINED,
                                               GUMBEL_SCREEN_PROBABLE};

static seen check_head(gumbel_device *device, head_kind kind, gumbel_dtype dtype, int64_t columns,
                       int plane, const tested_bounds *bounds, mutant m)
{
    const int kinds =
        bounds->certificate == GUMBEL_SCREEN_CERTAIN ? HIDDEN_KINDS : HIDDEN_INDEPENDENT_KINDS;
    seen found = {0};
    uint64_t state = 9;
    generated_head head = generate_head(kind, dtype, 192, columns, 1, 11);
    screened s = make_screened(device, &head, plane, bounds->certificate, bounds->format);
    float *h = make_zeroed((size_t)columns, sizeof *h);
    for (int i = 0; i < kinds; i++) {
        make_hidden(&s, i, &state, h);
        check_logits(&s, h, bounds->kind, m, &found);
    }
    free(h);
    free(s.screen);
    free_generated_head(&head);
    return found;
}

static void add_seen(seen *all, const seen *own)
{
    all->checked += own->checked;
    all->outside += own->outside;
    all->square += own->square;
    all->max_used = own->max_used > all->max_used ? own->max_used : all->max_used;
}

static seen check_all_heads(gumbel_device *device, const tested_bounds *bounds)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_BFLOAT16, GUMBEL_FLOAT32, GUMBEL_FLOAT16};
    static const int64_t columns[] = {1, 33, 64, 200, 1024};
    seen all = {0};
    for (int kind = 0; kind < HEAD_KINDS; kind++)
        for (int i = 0; i < 15; i++)
            for (int plane = 128; plane <= 256; plane *= 2) {
                /* float16 cannot represent weights of 1e6 */
                if (kind == HEAD_HOSTILE && dtypes[i / 5] == GUMBEL_FLOAT16)
                    continue;
                if (columns[i % 5] == 1024 && i / 5 != kind % 3 &&
                    (TEST_SANITIZED || bounds->format == GUMBEL_SCREEN_NIBBLES))
                    continue;
                if (plane == 128 && bounds->kind != BOUND_FINE)
                    continue;
                seen own = check_head(device, (head_kind)kind, dtypes[i / 5], columns[i % 5], plane,
                                      bounds, WHOLE);
                if (own.outside)
                    print_error("%s, %s, D %d, planes of %d: %ld outside\n", head_kind_names[kind],
                                dtype_name(dtypes[i / 5]), (int)columns[i % 5], plane, own.outside);
                add_seen(&all, &own);
            }
    print_message("%s, %s, %s: %ld intervals, the worst uses %.3f of its half\n",
                  bounds->format == GUMBEL_SCREEN_NIBBLES ? "nibbles" : "bytes",
                  bounds->certificate == GUMBEL_SCREEN_CERTAIN ? "certain" : "probable",
                  bound_names[bounds->kind], all.checked, all.max_used);
    assert_int_equal(all.outside, 0);
    return all;
}

static void every_logit_is_within(void **state)
{
    seen certain = check_all_heads(*state, &certain_bytes);
    seen probable = check_all_heads(*state, &probable_bytes);
    assert_true(certain.max_used > 0.9 && certain.max_used <= 1.0);
    /* A hidden state of one column uses its half. */
    assert_true(probable.max_used > 0.9 && probable.max_used <= 1.0);
    for (int kind = 0; kind < BOUND_KINDS; kind++)
        for (int certificate = 0; certificate < 2; certificate++) {
            const tested_bounds bounds = {GUMBEL_SCREEN_NIBBLES, (bound_kind)kind,
                                          (gumbel_screen_certificate)certificate};
            seen nibbles = check_all_heads(*state, &bounds);
            assert_true(nibbles.max_used > 0.9 && nibbles.max_used <= 1.0);
        }
}

static void mutants_are_caught(void **state)
{
    for (int m = SMALL_ENTRY; m <= NO_RESIDUAL; m++) {
        seen own =
            check_head(*state, HEAD_HOSTILE, GUMBEL_BFLOAT16, 1024, 256, &certain_bytes, (mutant)m);
        seen other =
            check_head(*state, HEAD_GAUSSIAN, GUMBEL_FLOAT32, 64, 256, &certain_bytes, (mutant)m);
        print_message("%s: %ld and %ld outside\n", mutant_names[m], own.outside, other.outside);
        assert_true(own.outside + other.outside > 0);
    }
    static const struct {
        const tested_bounds *bounds;
        mutant mutant;
    } probable[] = {{&probable_bytes, SMALL_ENTRY},   {&probable_bytes, NO_SHIFT},
                    {&probable_coarse, SMALL_ENTRY},  {&probable_coarse, NO_SHIFT},
                    {&probable_refined, NO_RESIDUAL}, {&probable_refined, SMALL_ENTRY},
                    {&probable_refined, NO_SHIFT}};
    for (size_t i = 0; i < sizeof probable / sizeof *probable; i++) {
        seen own = check_head(*state, HEAD_GAUSSIAN, GUMBEL_FLOAT32, 1024, 256, probable[i].bounds,
                              probable[i].mutant);
        print_message("probable, %s, %s: %ld outside\n", bound_names[probable[i].bounds->kind],
                      mutant_names[probable[i].mutant], own.outside);
        assert_true(own.outside > 0);
    }
}

/* The rounding error of the library's product is small compared with the slack of Cauchy's
 * inequality, unless the quantization errors are parallel to h and each of a lane's sums rounds in
 * their direction. */
static void rounding_term_is_needed(void **state)
{
    enum { COLUMNS = 8192 };
    seen whole = {0}, without = {0};
    static float h[COLUMNS];
    /* A lane adds 512 equal terms: from 2^8 to 2^9 all of them lose almost half an ulp, which is
     * 2^-15 there. */
    generated_head head = generate_half_steps(COLUMNS, 1.0f - 20 * 0x1p-15f + 0.49f * 0x1p-15f);
    screened s = make_screened(*state, &head, 256, GUMBEL_SCREEN_CERTAIN, GUMBEL_SCREEN_BYTES);
    memset(dither_of(&s), 0, COLUMNS * sizeof(int32_t));
    requantize(&s);
    fill_ones(h, COLUMNS);
    check_logits(&s, h, BOUND_FINE, WHOLE, &whole);
    check_logits(&s, h, BOUND_FINE, NO_ROUNDING, &without);
    print_message("%s: %ld outside\n", mutant_names[NO_ROUNDING], without.outside);
    assert_int_equal(whole.outside, 0);
    assert_true(without.outside > 0);
    free(s.screen);
    free((void *)(uintptr_t)head.weight.data);
}

/* With hidden states of a few units of the smallest float, terms of the bound are subnormal, and
 * large weights magnify their rounding. With weights as small, the header still bounds the largest
 * norm of a row, which gumbel_screen_verify() checks. */
static void subnormal_terms_are_covered(void **state)
{
    enum { COLUMNS = 5, ROWS = 192 };
    uint64_t random = 23;
    seen all = {0};
    float h[COLUMNS];
    for (int round = 0; round < (TEST_SANITIZED ? 100 : 1000); round++) {
        float *weight = make_zeroed(ROWS * COLUMNS, sizeof *weight);
        int exponent = round % 4 ? 108 + (int)random_below(&random, 19) : -140;
        uint32_t units = 1u << random_below(&random, 11);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            float size = 1.0f - (float)random_below(&random, 1 << 16) * 0x1p-22f;
            weight[i] = ldexpf(random_below(&random, 2) ? size : -size, exponent);
        }
        for (int i = 0; i < COLUMNS; i++)
            h[i] = (float)(1 + random_below(&random, units)) *
                   (random_below(&random, 2) ? 0x1p-149f : -0x1p-149f);
        generated_head head = {{weight, GUMBEL_FLOAT32, ROWS, COLUMNS, 0, {0}}, {0}};
        gumbel_screen_certificate certificate =
            round % 2 ? GUMBEL_SCREEN_CERTAIN : GUMBEL_SCREEN_PROBABLE;
        gumbel_screen_format format = round % 3 ? GUMBEL_SCREEN_BYTES : GUMBEL_SCREEN_NIBBLES;
        screened s = make_screened(*state, &head, 256, certificate, format);
        const gumbel_screen screen = {s.screen, s.offsets.bytes, 0};
        assert_int_equal(gumbel_screen_verify(*state, NULL, &head.weight, &screen, NULL),
                         GUMBEL_OK);
        for (int kind = 0; kind < (format == GUMBEL_SCREEN_NIBBLES ? BOUND_KINDS : 1); kind++)
            check_logits(&s, h, (bound_kind)kind, WHOLE, &all);
        free(s.screen);
        free(weight);
    }
    print_message("%ld of %ld logits are outside of their bounds\n", all.outside, all.checked);
    assert_int_equal(all.outside, 0);
}

/* The rounding error of computing a bound is below 2^-21 of step * unit * size * steps. No logit
 * reveals this part of `residual`, as the bound of the product's rounding leaves room for it; here
 * a twentieth of it is not enough. */
static void bounds_round_outward(void **state)
{
    (void)state;
    uint64_t random = 17;
    long beyond = 0, tight = 0;
    for (int i = 0; i < (TEST_SANITIZED ? 100000 : 1000000); i++) {
        /* Sums near what their norms allow, of either sign, or cancelling. */
        int32_t high = (int32_t)random_below(&random, 1 << 30) - (1 << 29);
        int32_t low = i % 3 ? (int32_t)random_below(&random, 1 << 30) - (1 << 29)
                            : -(int32_t)((int64_t)high * 256 % (1 << 30));
        float unit = 0x1p-15f * (1 + (float)random_below(&random, 1 << 20) * 0x1p-20f);
        float step = 0x1p-9f * (1 + (float)random_below(&random, 1 << 20) * 0x1p-20f);
        float end = gumbel_screen_bound_logit(step, unit, 256.0f, 0.0f, 0.0f, high, low);
        double t = 256.0 * high + low, room = (256.0 * abs(high) + abs(low)) * (double)unit;
        double off = fabs((double)end - (double)step * ((double)unit * t)) / (double)step;
        beyond += off > 0x1p-21 * room;
        tight += off > 0x1p-21 / 20 * room;
    }
    assert_int_equal(beyond, 0);
    assert_true(tight > 0);
}

/* The computed tanh may decrease, by less than the 2^-20 of the cap that is added to bounds. */
static void caps_are_lifted_enough(void **state)
{
    /* Some floats from 2^-31 to 16, and all around the boundary at 0.625. */
    static const uint32_t ranges[2][3] = {{0x30000000u, 0x41800000u, TEST_SANITIZED ? 377 : 37},
                                          {0x3f1e0000u, 0x3f220000u, 1}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        float most = 0.0f, fall = 0.0f;
        for (uint32_t bits = ranges[i][0]; bits < ranges[i][1]; bits += ranges[i][2]) {
            float y = gumbel_tanh(gumbel_float_of(bits));
            fall = most - y > fall ? most - y : fall;
            most = y > most ? y : most;
        }
        print_message("tanh falls by %.3g at most\n", (double)fall);
        assert_true(fall < 0x1p-21f);
    }
}

/* ------------------------------------------------------------------- instruction sets ---- */

static void same_bytes_everywhere(void **state)
{
    gumbel_isa isas[4];
    int count = list_isas(isas);
    (void)state;
    for (int kind = 0; kind < HEAD_KINDS; kind++)
        for (int i = 1; i < count; i++) {
            gumbel_device *first = open_device(isas[0], 1, 0), *other = open_device(isas[i], 3, 0);
            generated_head head = generate_head((head_kind)kind, GUMBEL_BFLOAT16, 1000, 199, 1, 5);
            for (int format = 0; format < 2; format++) {
                format_under_test = (gumbel_screen_format)format;
                gumbel_screen a = make_screen(first, &head.weight);
                gumbel_screen b = make_screen(other, &head.weight);
                assert_int_equal(a.bytes, b.bytes);
                assert_memory_equal(a.data, b.data, a.bytes);
                assert_int_equal(gumbel_screen_verify(other, NULL, &head.weight, &a, NULL),
                                 GUMBEL_OK);
                free(a.data);
                free(b.data);
            }
            free_generated_head(&head);
            gumbel_close(first);
            gumbel_close(other);
        }
}

/* A product against plain sums, at the largest bytes, too. */
static void check_product(const cpu_screen_kernel *product, const cpu_screen_kernel *plain)
{
    for (int rows = 1; rows <= product->panel; rows++) {
        assert_true(is_product_equal(product, plain, rows, 64, 0));
        assert_true(is_product_equal(product, plain, rows, 320, 0));
        assert_true(is_product_equal(product, plain, rows, 65536, 1));
    }
}

static void same_sums_everywhere(void **state)
{
    gumbel_isa isas[4];
    int count = list_isas(isas);
    (void)state;
    for (int i = 1; i < count; i++)
        check_product(cpu_find_screen_kernel(isas[i]), &cpu_screen_plain);
    for (int i = 0; i < count; i++)
        check_product(cpu_find_nibble_kernel(isas[i]), &cpu_nibbles_plain);
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512vnni")) /* which draws do not use on processors with AMX */
        check_product(&cpu_screen_vnni, &cpu_screen_plain);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_logit_is_within),   cmocka_unit_test(mutants_are_caught),
        cmocka_unit_test(rounding_term_is_needed), cmocka_unit_test(subnormal_terms_are_covered),
        cmocka_unit_test(bounds_round_outward),    cmocka_unit_test(caps_are_lifted_enough),
        cmocka_unit_test(same_bytes_everywhere),   cmocka_unit_test(same_sums_everywhere),
    };
    return cmocka_run_group_tests_name("screen_bounds", tests, open_two_threads, close_device);
}
