/* SPDX-License-Identifier: Apache-2.0 */
#include "device_graph.h"

#include <stdlib.h>

#include "device_driver.h"
#include "options.h"

enum {
    CALLS = 5,               /* of a graph, to divide the cost of its launch */
    STREAM_NON_BLOCKING = 1, /* CU_STREAM_NON_BLOCKING */
    CAPTURE_THREAD_LOCAL = 1 /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */
};

struct device_graph {
    void *stream, *executable, *begin, *end;
};

struct device_graph *device_graph_new(device_call call, void *argument)
{
    struct device_graph *result = require_memory("graph", 1, sizeof *result);
    void *graph = NULL;

    require_driver(device_driver.stream_new(&result->stream, STREAM_NON_BLOCKING), "stream");
    call(argument, result->stream);
    require_driver(device_driver.stream_wait(result->stream), "a first call");
    require_driver(device_driver.capture_begin(result->stream, CAPTURE_THREAD_LOCAL), "capture");
    for (int i = 0; i < CALLS; i++) {
        call(argument, result->stream);
    }
    require_driver(device_driver.capture_end(result->stream, &graph), "capture");
    require_driver(device_driver.graph_instantiate(&result->executable, graph, 0), "graph");
    device_driver.graph_free(graph);
    require_driver(device_driver.event_new(&result->begin, 0), "event");
    require_driver(device_driver.event_new(&result->end, 0), "event");
    return result;
}

void device_graph_free(struct device_graph *graph)
{
    if (graph) {
        device_driver.event_free(graph->begin);
        device_driver.event_free(graph->end);
        device_driver.executable_free(graph->executable);
        device_driver.stream_free(graph->stream);
        free(graph);
    }
}

double device_graph_time(struct device_graph *graph)
{
    float milliseconds = 0;

    require_driver(device_driver.event_record(graph->begin, graph->stream), "timing");
    require_driver(device_driver.graph_launch(graph->executable, graph->stream), "timing");
    require_driver(device_driver.event_record(graph->end, graph->stream), "timing");
    require_driver(device_driver.event_wait(graph->end), "timing");
    require_driver(device_driver.event_elapsed(&milliseconds, graph->begin, graph->end), "timing");
    return (double)milliseconds * 1e-3 / CALLS;
}

double measure_device_call(device_call call, void *argument, int replays)
{
    struct device_graph *graph = device_graph_new(call, argument);
    double best = device_graph_time(graph);

    for (int replay = 1; replay < replays; replay++) {
        const double seconds = device_graph_time(graph);

        best = seconds < best ? seconds : best;
    }
    device_graph_free(graph);
    return best;
}
