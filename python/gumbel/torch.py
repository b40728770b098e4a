# SPDX-License-Identifier: Apache-2.0
"""The calls as PyTorch operators, torch.ops.gumbel.*, for the CPU and CUDA.

>>> import gumbel.torch
>>> tokens, status = torch.ops.gumbel.sample(hidden, weight, temperature=t, seed=s, position=p,
...                                          logprobs=None)

Row parameters are tensors: 0-d for one value for all rows, or [B]. Their dtypes are float32; int32
for top_k, min_keep and program; int64 for seeds and positions and int32 for first_sample, which
hold the bits of unsigned integers. On CUDA nothing is copied and no call waits, so operators work
under torch.compile(fullgraph=True), in CUDA graphs and on any stream. With a seed they are pure
functions of their arguments, except history_start(), history_update(), advance() and
process_logits_into(), which write to arguments. The last one writes to `out`, which may be the
logits themselves. **Equal seed and position give equal tokens: advance the position by one at every
step**, for example by advance(position) on the device. Without a seed every call draws a fresh one
when it runs, not when it is traced: from the operating system, or, at every replay of a captured
CUDA graph, from torch's generator of the device.

Operators return a list of tensors. sample(), sample_logits(), score() and score_logits() return
tokens, status, and the requested ones of logprobs, lse, ranks, kept, top_ids, top_logprobs,
best_ids, best_scores, entropy, in this order. verify() and verify_logits() return tokens, emitted,
accepted, path, last_row, position, finished, status, and logprobs if requested.

`order` is a string; `orders` is a list of them, and `program` the index of each row's. verify() and
verify_logits() lack xtc_keep, adaptive_target and the parameters of smoothing and of a range of
temperatures.

Lists of tokens are passed as two or three tensors: offsets int64 [B + 1], ids int32, and values
float32 for biases. A history is three tensors: prompt and output int32 [slots, ceil(V / 32)],
counts int16 or int32 [slots, V]. `screen` of sample() and verify() is gumbel.Screen(weight).bytes,
and `screen_format` its format; screens and the rules "rejection" and "block" are unstable: they may
change in a minor release; see docs/compatibility.md. Requires torch 2.9 or later.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

try:
    import torch
except ImportError as missing:
    raise ImportError("gumbel.torch requires PyTorch: pip install 'torch>=2.9'") from missing

OLDEST = (2, 9)  # the oldest version on which the registration of operators is tested

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST:
    raise ImportError(f"gumbel.torch supports PyTorch 2.9 or later, not {torch.__version__}")

from ._calls import (  # noqa: E402
    drafts as _drafts,
    proposals,  # noqa: E402
    sample_calls as _sampling,
)
from ._calls.advance import advance as _advance_positions  # noqa: E402
from ._calls.outputs import SampleOutput  # noqa: E402
from ._calls.screens import Screen, Weights  # noqa: E402
from ._inputs.arguments import TokenTensors  # noqa: E402
from ._inputs.history import History  # noqa: E402

_HEAD = "Tensor hidden, Tensor weight"
_SCREEN = 'Tensor? screen=None, str screen_format="bytes"'
_LOGITS = "Tensor logits"
_SCALED = "float scale=1.0, float softcap=0.0, SymInt? vocab_size=None"
_ROWS = """Tensor? temperature=None, Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None,
    str order="min_p,top_k,top_p", str[]? orders=None, Tensor? program=None, str ties="all",
    Tensor? typical_p=None, Tensor? top_n_sigma=None, Tensor? epsilon=None, Tensor? eta=None,
    Tensor? top_a=None, bool p_less=False, Tensor? surprise=None, Tensor? xtc_probability=None,
    Tensor? xtc_threshold=None, Tensor? min_keep=None, Tensor? mask=None,
    Tensor? bias_offsets=None, Tensor? bias_ids=None, Tensor? bias_values=None,
    Tensor? history_prompt=None, Tensor? history_output=None, Tensor? history_counts=None,
    Tensor? repetition_penalty=None, Tensor? frequency_penalty=None,
    Tensor? presence_penalty=None, Tensor? seed=None, Tensor? position=None,
    Tensor? first_sample=None, int domain=0, Tensor? slots=None, SymInt? num_slots=None,
    Tensor? live_rows=None"""
# Not of verify() and verify_logits(): PyTorch supports 64 arguments.
_MORE_RULES = """Tensor? xtc_keep_offsets=None, Tensor? xtc_keep_ids=None,
    Tensor? smoothing_factor=None, Tensor? smoothing_curve=None, Tensor? temperature_range=None,
    Tensor? temperature_exponent=None, Tensor? adaptive_target=None"""
_TABLE = "Tensor? token_ids=None"
_OUTPUTS = """str? logprobs="processed", int top_logprobs=0, bool ranks=False, bool kept=False,
    int num_best=0, bool entropy=False"""
_DRAFT = """Tensor tokens, *, Tensor? offsets=None, SymInt? max_nodes=None, Tensor? nodes=None,
    Tensor? parents=None, Tensor? limit=None, Tensor? stop_offsets=None, Tensor? stop_ids=None,
    str rule="coupled", Tensor? draft_hidden=None, Tensor? draft_weight=None,
    Tensor? draft_logits=None, Tensor? draft_lse=None, Tensor? draft_logprobs=None,
    Tensor? draft_temperature=None, Tensor? draft_top_k=None, Tensor? draft_top_p=None,
    Tensor? draft_min_p=None, int draft_domain=1"""

library = torch.library.Library("gumbel", "DEF")


def _define_operator(
    schema: str, function: Callable[..., Any], fake: Callable[..., Any], draws: bool = False
) -> None:
    """Register an operator; `draws`: compilers must not merge two equal calls of it."""
    name = schema.partition("(")[0]
    library.define(schema, tags=(torch.Tag.nondeterministic_seeded,) if draws else ())
    for place in ("CPU", "CUDA"):
        library.impl(name, function, place)
    torch.library.register_fake(f"gumbel::{name}", fake, lib=library)


# ------------------------------------------------------------------------------- the arguments


def _combine_lists(common: dict[str, Any], name: str, as_name: str) -> None:
    """Combine the tensors of a list of tokens into one argument."""
    offsets, ids = common.pop(f"{name}_offsets", None), common.pop(f"{name}_ids", None)
    values = common.pop(f"{name}_values", None)
    if (offsets is None) != (ids is None):
        raise ValueError(f"{name}_offsets: pass {name}_offsets and {name}_ids, or neither")
    if offsets is not None:
        common[as_name] = TokenTensors(offsets, ids, values)


# Unsigned parameters: the dtype that may hold their bits, and their own dtype.
_UNSIGNED = (
    ("seed", torch.int64, torch.uint64),
    ("position", torch.int64, torch.uint64),
    ("first_sample", torch.int32, torch.uint32),
)


def _read_common(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operator as keyword arguments of the package.

    PyTorch omits arguments that have their default.
    """
    common = {name: value for name, value in arguments.items() if value is not None}
    if arguments.get("logprobs", "processed") is None:
        common["logprobs"] = None
    for name, bits, dtype in _UNSIGNED:
        if name in common and common[name].dtype == bits:
            common[name] = common[name].view(dtype)
    parts = [common.pop(f"history_{part}", None) for part in ("prompt", "output", "counts")]
    if any(part is not None for part in parts):
        common["history"] = History.of_arrays(*parts)
    if "orders" in common:
        common["order"] = list(common.pop("orders"))
    _combine_lists(common, "xtc_keep", "xtc_keep")
    _combine_lists(common, "bias", "logit_bias")
    _combine_lists(common, "stop", "stop")
    return common


def _list_outputs(out: SampleOutput) -> list[torch.Tensor]:
    names = "tokens status logprobs lse ranks kept top_ids top_logprobs best_ids best_scores"
    found = (getattr(out, name) for name in (*names.split(), "entropy"))
    return [tensor for tensor in found if tensor is not None]


# ------------------------------------------------------------------------------ their shapes


def _fake_draw(
    rows: Any,
    samples: Any,
    *,
    logprobs: Optional[str] = "processed",
    top_logprobs: int = 0,
    ranks: bool = False,
    kept: bool = False,
    num_best: int = 0,
    entropy: bool = False,
    **_: Any,
) -> list[torch.Tensor]:
    batch = rows.shape[0]

    def new_tensor(dtype: torch.dtype, *shape: Any) -> torch.Tensor:
        return rows.new_empty(shape, dtype=dtype)

    integers, floats = torch.int32, torch.float32
    found = [new_tensor(integers, batch, samples), new_tensor(integers, batch)]
    if logprobs is not None:
        found += [new_tensor(floats, batch, samples), new_tensor(floats, batch)]
    if ranks:
        found.append(new_tensor(integers, batch, samples))
    if kept:
        found.append(new_tensor(integers, batch))
    if top_logprobs:
        found += [
            new_tensor(integers, batch, top_logprobs),
            new_tensor(floats, batch, top_logprobs),
        ]
    if num_best:
        found += [new_tensor(integers, batch, num_best), new_tensor(floats, batch, num_best)]
    if entropy:
        found.append(new_tensor(floats, batch))
    return found


def _count_samples(tokens: torch.Tensor) -> Any:
    return 1 if tokens.dim() == 1 else tokens.shape[1]


# ------------------------------------------------------------------------ draws and scores


def _use_screen(weight: Any, arguments: dict[str, Any]) -> Weights:
    """The weights of a head, or the Screen of the screen's arguments, which are removed."""
    screen, form = arguments.pop("screen", None), arguments.pop("screen_format", "bytes")
    return weight if screen is None else Screen.of_bytes(weight, screen, format=form)


def _run_sample(hidden: Any, weight: Any, **arguments: Any) -> list[torch.Tensor]:
    weights = _use_screen(weight, arguments)
    return _list_outputs(_sampling.sample(hidden, weights, **_read_common(arguments)))


def _run_sample_logits(logits: Any, **arguments: Any) -> list[torch.Tensor]:
    return _list_outputs(_sampling.sample_logits(logits, **_read_common(arguments)))


def _run_score(hidden: Any, weight: Any, tokens: Any, **arguments: Any) -> list[torch.Tensor]:
    common = _read_common(arguments)
    common.pop("ranks", None)
    return _list_outputs(_sampling.score(hidden, weight, tokens, **common))


def _run_score_logits(logits: Any, tokens: Any, **arguments: Any) -> list[torch.Tensor]:
    common = _read_common(arguments)
    common.pop("ranks", None)
    return _list_outputs(_sampling.score_logits(logits, tokens, **common))


_SAMPLED = f"""{_SCALED}, {_ROWS}, {_MORE_RULES}, SymInt num_samples=1, {_TABLE},
    {_OUTPUTS}) -> Tensor[]"""
_SCORED = f"""{_SCALED}, {_ROWS}, {_MORE_RULES}, str? logprobs="processed", int top_logprobs=0,
    bool kept=False, bool entropy=False) -> Tensor[]"""

_define_operator(
    f"sample({_HEAD}, *, {_SCREEN}, Tensor? bias=None, {_SAMPLED}",
    _run_sample,
    lambda hidden, weight, num_samples=1, **rest: _fake_draw(hidden, num_samples, **rest),
    draws=True,
)
_define_operator(
    f"sample_logits({_LOGITS}, *, {_SAMPLED}",
    _run_sample_logits,
    lambda logits, num_samples=1, **rest: _fake_draw(logits, num_samples, **rest),
    draws=True,
)
_define_operator(
    f"score({_HEAD}, Tensor tokens, *, Tensor? bias=None, {_SCORED}",
    _run_score,
    lambda hidden, weight, tokens, **rest: _fake_draw(
        hidden, _count_samples(tokens), ranks=True, **rest
    ),
)
_define_operator(
    f"score_logits({_LOGITS}, Tensor tokens, *, {_SCORED}",
    _run_score_logits,
    lambda logits, tokens, **rest: _fake_draw(logits, _count_samples(tokens), ranks=True, **rest),
)


# ------------------------------------------------------------------------------------- rows


def _fake_rows(logits: Any, **_: Any) -> torch.Tensor:
    return logits.new_empty(logits.shape, dtype=torch.float32)


def _fake_top_k(logits: Any, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (logits.shape[0], k)
    return (
        logits.new_empty(shape, dtype=torch.float32),
        logits.new_empty(shape, dtype=torch.int32),
    )


def _make_row_operator(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    def transform_rows(logits: Any, **arguments: Any) -> torch.Tensor:
        transformed: torch.Tensor = function(logits, **_read_common(arguments))
        return transformed

    return transform_rows


for _name in ("process_logits", "softmax"):
    _define_operator(
        f"{_name}({_LOGITS}, *, {_SCALED}, {_ROWS}, {_MORE_RULES}) -> Tensor",
        _make_row_operator(getattr(_sampling, _name)),
        _fake_rows,
    )


def _run_process_logits_into(logits: Any, out: Any, **arguments: Any) -> None:
    _sampling.process_logits(logits, out=out, **_read_common(arguments))


_define_operator(
    f"process_logits_into({_LOGITS}, Tensor(a!) out, *, {_SCALED}, {_ROWS}, {_MORE_RULES}) -> ()",
    _run_process_logits_into,
    lambda logits, out, **_: None,
)
_define_operator("top_k(Tensor logits, int k) -> (Tensor, Tensor)", _sampling.top_k, _fake_top_k)


# ------------------------------------------------------------------------------------ drafts


def _verify_draft(verify: Callable[..., Any], *inputs: Any, **arguments: Any) -> list[torch.Tensor]:
    draft = {
        name[len("draft_") :]: arguments.pop(name)
        for name in list(arguments)
        if name.startswith("draft_")
    }
    given = {name: value for name, value in draft.items() if value is not None}
    for name in given.keys() & {"lse", "logprobs"}:
        given[f"drawn_{name}"] = given.pop(name)
    hidden, weight, logits = (given.pop(name, None) for name in ("hidden", "weight", "logits"))
    proposal = None
    if (hidden is None) != (weight is None):
        raise ValueError("draft_hidden: pass draft_hidden and draft_weight, or neither")
    if hidden is not None and logits is not None:
        raise ValueError("draft_logits: pass draft_logits or draft_hidden, not both")
    if hidden is not None:
        proposal = proposals.proposal(hidden, weight, **given)
    elif logits is not None:
        proposal = proposals.proposal_logits(logits, **given)
    elif given.keys() & {"drawn_lse", "drawn_logprobs"}:
        raise ValueError("draft_lse: requires draft_logits or draft_hidden")
    out = verify(*inputs, proposal=proposal, **_read_common(arguments))
    found = (value for name, value in vars(out).items() if name != "seed")
    return [tensor for tensor in found if tensor is not None]


def _run_verify(hidden: Any, weight: Any, tokens: Any, **arguments: Any) -> list[torch.Tensor]:
    weights = _use_screen(weight, arguments)
    return _verify_draft(_drafts.verify, hidden, weights, tokens, **arguments)


def _run_verify_logits(logits: Any, tokens: Any, **arguments: Any) -> list[torch.Tensor]:
    return _verify_draft(_drafts.verify_logits, logits, tokens, **arguments)


def _fake_verify(
    rows: Any,
    tokens: Any,
    offsets: Any = None,
    max_nodes: Any = None,
    num_slots: Any = None,
    logprobs: Optional[str] = "processed",
    **_: Any,
) -> list[torch.Tensor]:
    if offsets is not None and max_nodes is None:
        raise ValueError("max_nodes: required with offsets")
    requests = tokens.shape[0] if offsets is None else offsets.shape[0] - 1
    most = tokens.shape[1] if offsets is None else max_nodes

    def new_tensor(*shape: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return rows.new_empty(shape, dtype=dtype)

    found = [new_tensor(requests, most), new_tensor(requests), new_tensor(requests)]
    found += [new_tensor(requests, most), new_tensor(requests)]
    found.append(new_tensor(requests if num_slots is None else num_slots, dtype=torch.int64))
    found += [new_tensor(requests), new_tensor(requests)]
    if logprobs is not None:
        found.append(new_tensor(requests, most, dtype=torch.float32))
    return found


_VERIFIED = f'{_SCALED}, {_ROWS}, str? logprobs="processed") -> Tensor[]'
_define_operator(
    f"verify({_HEAD}, {_DRAFT}, {_SCREEN}, Tensor? bias=None, {_VERIFIED}",
    _run_verify,
    lambda hidden, weight, tokens, **rest: _fake_verify(hidden, tokens, **rest),
    draws=True,
)
_define_operator(
    f"verify_logits({_LOGITS}, {_DRAFT}, {_VERIFIED}",
    _run_verify_logits,
    lambda logits, tokens, **rest: _fake_verify(logits, tokens, **rest),
    draws=True,
)


# ------------------------------------------------------------------------ history, positions


def _run_history_start(prompt: Any, output: Any, counts: Any, slots: Any, **arguments: Any) -> None:
    common = {name: value for name, value in arguments.items() if value is not None}
    _combine_lists(common, "prompt", "prompts")
    _combine_lists(common, "output", "outputs")
    History.of_arrays(prompt, output, counts).start(slots=slots, **common)


def _run_history_update(
    prompt: Any, output: Any, counts: Any, tokens: Any, *, emitted: Any = None, slots: Any = None
) -> None:
    History.of_arrays(prompt, output, counts).update(tokens, counts=emitted, slots=slots)


def _fake_nothing(*_: Any, **__: Any) -> None:
    return None


_HISTORY = "Tensor(a!) prompt, Tensor(b!) output, Tensor(c!) counts"
_define_operator(
    f"""history_start({_HISTORY}, Tensor slots, *, Tensor? prompt_offsets=None,
    Tensor? prompt_ids=None, Tensor? output_offsets=None, Tensor? output_ids=None) -> ()""",
    _run_history_start,
    _fake_nothing,
)
_define_operator(
    f"""history_update({_HISTORY}, Tensor tokens, *, Tensor? emitted=None,
    Tensor? slots=None) -> ()""",
    _run_history_update,
    _fake_nothing,
)


def _run_advance(position: Any, *, slots: Any = None, live_rows: Any = None) -> None:
    _advance_positions(position, slots=slots, live_rows=live_rows)


_define_operator(
    "advance(Tensor(a!) position, *, Tensor? slots=None, Tensor? live_rows=None) -> ()",
    _run_advance,
    _fake_nothing,
)
