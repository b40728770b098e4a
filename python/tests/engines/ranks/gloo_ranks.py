# SPDX-License-Identifier: Apache-2.0
"""Two processes of torch.distributed, for tests of their draws.

Each process reports the phase that it has reached, which is also printed on standard error; a
process that takes too long fails the test.
"""

import datetime
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import time

LIMIT = 240  # seconds, of all; spawned processes import torch on a busy machine
PHASE_LIMIT = 120  # seconds until any rank sends a message

_report = None  # in a rank: sends a phase to the test


def reach(phase):
    """Report to the test that this rank is about to begin a phase."""
    if _report:
        _report(phase)


def _run(body, rank, store, results, backend, arguments):
    global _report
    _report = lambda phase: results.put((rank, "reached", phase))  # noqa: E731
    reach("import of torch")
    import torch

    torch.set_num_threads(1)
    reach("process group")
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=PHASE_LIMIT / 2),
    )
    reach("body")
    try:
        found = body(rank, *arguments)
    except Exception as problem:
        found = f"{type(problem).__name__}: {problem}"
    results.put((rank, "found", found))
    results.close()
    results.join_thread()
    # Skips the exit handlers, which would wait for a late or dead rank.
    os._exit(0)


def die():
    """Kills this process, as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)


def _answers(results, count):
    """The first results of `count` ranks, by rank; phases that they reach are reported."""
    found, reached, begun = {}, {}, time.monotonic()
    while len(found) < count:
        spent = time.monotonic() - begun
        try:
            rank, kind, value = results.get(timeout=max(0.1, min(PHASE_LIMIT, LIMIT - spent)))
        except queue.Empty:
            spent = time.monotonic() - begun
            raise AssertionError(
                f"no answer in {spent:.0f} s but of {sorted(found)}; begun: {reached}"
            ) from None
        spent = time.monotonic() - begun
        if kind == "found":
            found[rank] = value
        else:
            reached[rank] = value
        what = value if kind == "reached" else "ended"
        print(f"{spent:6.1f} s: rank {rank}: {what}", file=sys.stderr, flush=True)
    return found


def on_two_ranks(body, *arguments, answers=2, backend="gloo"):
    """Run body(rank, *arguments) in two processes; returns results or errors, by rank."""
    context = multiprocessing.get_context("spawn")
    results, found = context.Queue(), {}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(
                target=_run,
                args=(body, rank, f"{folder}/store", results, backend, arguments),
                daemon=True,
            )
            for rank in (0, 1)
        ]
        for process in ranks:
            process.start()
        try:
            found = _answers(results, answers)
        finally:
            for process in ranks:
                if answers == 2 and len(found) == 2:
                    process.join(30)
                process.kill()
                process.join()
    return found
