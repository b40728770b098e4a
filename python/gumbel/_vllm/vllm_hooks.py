# SPDX-License-Identifier: Apache-2.0
"""Installs the hooks: of the front end and the scheduler when vLLM loads the plugin, of the runners
with a worker."""

from __future__ import annotations

import functools
import importlib
import multiprocessing.util
from typing import Any

import vllm

from .counts import log_counts, logger
from .support import refusal
from .vllm_versions import check_hooks, checks_needed, unknown_version


def _install(hooks: Any) -> None:
    """Replace functions of vLLM, after the checks that a newer version needs."""
    if checks_needed():
        check_hooks(hooks)
    for owner, name, hook in hooks:
        setattr(owner, name, hook)


@functools.cache
def _hook_runners() -> dict[str, str]:
    """Replace the functions that draw in this process; once.

    Returns why runners ("V1", "V2") keep vLLM's draws, if their code has changed.
    """
    from vllm.v1.worker import gpu_model_runner  # noqa: F401, which both runners need

    from . import lazy, weights

    _install((*weights.HOOKS, *lazy.HOOKS))
    refused = {}
    for kind in ("V1", "V2"):
        try:
            runner = importlib.import_module(f".runner_{kind.lower()}", __package__)
            if checks_needed():
                runner.check_calls()
            _install(runner.HOOKS)
        except (ImportError, AttributeError) as changed:
            refused[kind] = f"the code of the {kind} runner has changed: {changed}"
    _log_counts_at_end()
    return refused


def _log_counts_at_end() -> None:
    """Log the counts when a worker shuts down, and when the process ends without that.

    vLLM's engines and workers are children of multiprocessing, which do not run atexit functions.
    An engine that does not end in time is killed, but its workers have shut down by then.
    """
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    stock = WorkerWrapperBase.shutdown

    @functools.wraps(stock)
    def shutdown(self: Any) -> None:
        log_counts()
        stock(self)

    WorkerWrapperBase.shutdown = shutdown
    multiprocessing.util.Finalize(None, log_counts, exitpriority=100)


def _hook_worker(config: Any) -> None:
    """Hook the runners for a worker of this configuration, or log why it is not supported."""
    reason = refusal(config)
    if reason is None:
        try:
            from .head_screens import configure

            configure(config)
            reason = _hook_runners().get("V2" if config.use_v2_model_runner else "V1")
        except (ImportError, AttributeError) as missing:
            reason = f"its code has changed: {missing}"
    if reason is not None:
        logger.warning("gumbel: draws are vLLM's own, as %s", reason)


def _hook_front_end() -> None:
    """Have requests with rules be checked where they arrive."""
    try:
        from .request_rules import HOOKS

        _install(HOOKS)
    except (ImportError, AttributeError) as missing:
        logger.warning(
            "gumbel: extra_args['gumbel'] is ignored, as vLLM's front end has changed: %s", missing
        )


def _hook_scheduler() -> None:
    """Have the scheduler, which may be in another process than the workers, end failed requests."""
    try:
        from .faults import HOOKS

        _install(HOOKS)
    except (ImportError, AttributeError) as missing:
        logger.warning(
            "gumbel: requests without a token to draw continue with token 0, as vLLM's scheduler "
            "has changed: %s",
            missing,
        )


@functools.cache
def register() -> None:
    """Have workers of vLLM in this process draw by libgumbel: the entry point of the plugin.

    Cheap and safe to call again: engines, front ends and workers all load plugins. The scheduler's
    update is replaced at once. The runners' functions are replaced when a worker is constructed,
    which front ends of `vllm serve` never do.
    """
    reason = unknown_version(vllm.__version__)
    if reason is not None:
        logger.warning("gumbel: draws are vLLM's own, as %s", reason)
        return
    from vllm.v1.worker.worker_base import WorkerBase

    _hook_scheduler()
    _hook_front_end()
    stock = WorkerBase.__init__

    @functools.wraps(stock)
    def init(self: Any, vllm_config: Any, *rest: Any, **named: Any) -> None:
        stock(self, vllm_config, *rest, **named)
        _hook_worker(vllm_config)

    WorkerBase.__init__ = init
