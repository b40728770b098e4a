/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Every thread reads 16 bytes at a time; the grid reads contiguous memory.
 * COST   4 loads in flight a thread; at 2048 threads a multiprocessor 128 KiB, more than latency
 *        times bandwidth (0.7 us * 4.8 TB/s / 132 = 25 KiB) of any GPU here.
 * BUILD  PTX, which the driver compiles for its GPU, so that a build of the command needs no nvcc.
 *        A store that random data never reach prevents removal of the loads.
 */
#include "device_reader.h"

#include <math.h>

#include "device_driver.h"
#include "device_graph.h"
#include "device_memory.h"

enum { MULTIPROCESSOR_COUNT = 16 /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */ };

#define MIX(i)                                                                                     \
    "    xor.b32 sum, sum, a" i ";\n"                                                              \
    "    xor.b32 sum, sum, b" i ";\n"                                                              \
    "    xor.b32 sum, sum, c" i ";\n"                                                              \
    "    xor.b32 sum, sum, d" i ";\n"

static const char kernel[] =
    ".version 7.0\n"
    ".target sm_80\n"
    ".address_size 64\n"
    ".visible .entry read_all(.param .u64 from, .param .u64 end, .param .u64 never)\n"
    "{\n"
    "    .reg .pred more;\n"
    "    .reg .b32 a<4>, b<4>, c<4>, d<4>, sum, threads, count;\n"
    "    .reg .b64 at, next, last, step, three, place;\n"
    "    ld.param.u64 at, [from];\n"
    "    ld.param.u64 last, [end];\n"
    "    mov.u32 sum, 0;\n"
    /* at = from + 16 * (block * threads + thread); step = 16 * all threads */
    "    mov.u32 threads, %ntid.x;\n"
    "    mov.u32 count, %ctaid.x;\n"
    "    mul.wide.u32 place, threads, count;\n"
    "    mov.u32 count, %tid.x;\n"
    "    cvt.u64.u32 next, count;\n"
    "    add.s64 place, place, next;\n"
    "    mad.lo.s64 at, place, 16, at;\n"
    "    mov.u32 count, %nctaid.x;\n"
    "    mul.wide.u32 step, threads, count;\n"
    "    shl.b64 step, step, 4;\n"
    "    mul.lo.s64 three, step, 3;\n"
    "four:\n"
    "    add.s64 next, at, three;\n"
    "    setp.lt.u64 more, next, last;\n"
    "    @!more bra one;\n"
    "    ld.global.cs.v4.u32 {a0, b0, c0, d0}, [at];\n"
    "    add.s64 at, at, step;\n"
    "    ld.global.cs.v4.u32 {a1, b1, c1, d1}, [at];\n"
    "    add.s64 at, at, step;\n"
    "    ld.global.cs.v4.u32 {a2, b2, c2, d2}, [at];\n"
    "    ld.global.cs.v4.u32 {a3, b3, c3, d3}, [next];\n"
    "    add.s64 at, next, step;\n" MIX("0") MIX("1") MIX("2")
        MIX("3") "    bra four;\n"
                 "one:\n"
                 "    setp.lt.u64 more, at, last;\n"
                 "    @!more bra done;\n"
                 "    ld.global.cs.v4.u32 {a0, b0, c0, d0}, [at];\n"
                 "    add.s64 at, at, step;\n" MIX("0") "    bra one;\n"
                                                        "done:\n"
                                                        "    setp.eq.u32 more, sum, 74565;\n"
                                                        "    ld.param.u64 at, [never];\n"
                                                        "    @more st.global.u32 [at], sum;\n"
                                                        "    ret;\n"
                                                        "}\n";

struct device_reader device_reader_new(int device)
{
    struct device_reader reader = {.blocks = 1, .threads = 1024};
    void *module = NULL;
    int count = 0;

    require_driver(device_driver.module_load(&module, kernel), "the reading kernel");
    require_driver(device_driver.module_function(&reader.function, module, "read_all"),
                   "the reading kernel");
    require_driver(device_driver.device_attribute(&count, MULTIPROCESSOR_COUNT, device),
                   "the number of multiprocessors");
    reader.multiprocessors = (unsigned)count;
    reader.never = device_memory_new(16);
    return reader;
}

void device_reader_queue(const struct device_reader *reader, const void *from, size_t bytes,
                         void *stream)
{
    device_address begin = (uintptr_t)from;
    device_address end = begin + bytes;
    device_address never = (uintptr_t)reader->never;
    void *arguments[] = {&begin, &end, &never};

    require_driver(device_driver.launch(reader->function, reader->blocks * reader->multiprocessors,
                                        1, 1, reader->threads, 1, 1, 0, stream, arguments, NULL),
                   "reading");
}

struct pass {
    const struct device_reader *reader;
    const void *from;
    size_t bytes;
};

static void queue_pass(void *argument, void *stream)
{
    const struct pass *pass = argument;

    device_reader_queue(pass->reader, pass->from, pass->bytes, stream);
}

double device_reader_measure(struct device_reader *reader, const void *from, size_t bytes)
{
    static const unsigned blocks[] = {2, 4, 8, 16}, threads[] = {256, 512, 1024};
    enum { REPLAYS = 10 };
    struct device_reader tried = *reader;
    struct pass pass = {&tried, from, bytes};
    double best = INFINITY;

    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        for (size_t j = 0; j < sizeof threads / sizeof threads[0]; j++) {
            double seconds = 0;

            tried.blocks = blocks[i];
            tried.threads = threads[j];
            seconds = measure_device_call(queue_pass, &pass, REPLAYS);
            if (seconds < best) {
                best = seconds;
                *reader = tried;
            }
        }
    }
    return (double)bytes / best;
}
