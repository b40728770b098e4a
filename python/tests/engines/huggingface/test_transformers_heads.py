# SPDX-License-Identifier: Apache-2.0
"""Changes of a model's LM head: the next text uses the changed head."""

import gc
import logging
import time
import weakref

import pytest
from transformers_fixtures import gumbel, heads, torch, transformers
from tiny_models import PROMPT, SIZE, VOCAB, greedy, make


def write_in_place(model):
    model.lm_head.weight.normal_()


def write_through_data(model):
    model.lm_head.weight.data.normal_()


def replace_parameter(model):
    model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, SIZE))


def replace_data(model):
    model.lm_head.weight.data = torch.randn(VOCAB, SIZE)


def transpose_data(model):
    model.lm_head.weight.data = torch.randn(SIZE, VOCAB).T


def replace_head(model):
    model.set_output_embeddings(torch.nn.Linear(SIZE, VOCAB, bias=False))


def add_bias(model):
    model.lm_head.bias = torch.nn.Parameter(torch.randn(VOCAB) * 9)


def resize(model):
    model.resize_token_embeddings(VOCAB + 16, mean_resizing=False)
    model.lm_head.weight.normal_()


def tie(model):
    model.lm_head.weight = model.get_input_embeddings().weight


def assign_state(model):
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def load_state(model):
    model.load_state_dict({n: torch.randn_like(v) for n, v in model.state_dict().items()})


def cast(model):
    model.double().lm_head.weight.normal_()


def replace_decoder(model):
    model.model = make(seed=5).model


def put_adapter(model):
    class Adapted(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.weight, self.more = base, base.weight, torch.randn(SIZE, VOCAB)

        def forward(self, x):
            return self.base(x) + x @ self.more

    model.lm_head = Adapted(model.lm_head)


def parametrize(model):
    class Flip(torch.nn.Module):
        def forward(self, weight):
            return weight.flip(0)

    torch.nn.utils.parametrize.register_parametrization(model.lm_head, "weight", Flip())


def hook_head(model):
    model.lm_head.register_forward_hook(lambda module, given, out: out.flip(-1))


def hook_input_of_head(model):
    model.lm_head.register_forward_pre_hook(lambda module, given: (given[0].flip(-1),))


def hook_model(model):
    def flip(module, given, out):
        out.logits = out.logits.flip(-1)

    model.register_forward_hook(flip)


def hook_decoder(model):
    def flip(module, given, out):
        out.last_hidden_state = out.last_hidden_state.flip(-1)

    model.model.register_forward_hook(flip)


def replace_forward(model):
    own = model.lm_head.forward
    model.lm_head.forward = lambda x: own(x).flip(-1)


def replace_forward_of_model(model):
    own = model.forward

    def forward(*given, **named):
        out = own(*given, **named)
        out.logits = out.logits.flip(-1)
        return out

    model.forward = forward


IN_PLACE = [write_in_place, write_through_data, load_state]
FUSED = [
    replace_parameter,
    replace_data,
    replace_head,
    add_bias,
    resize,
    tie,
    assign_state,
    replace_decoder,
    hook_decoder,
]
OTHERS = [
    cast,
    put_adapter,
    parametrize,
    hook_head,
    hook_input_of_head,
    hook_model,
    replace_forward,
    replace_forward_of_model,
    transpose_data,
]


@pytest.mark.parametrize("screen", [False, True])
@pytest.mark.parametrize("change", IN_PLACE + FUSED + OTHERS, ids=lambda change: change.__name__)
def test_texts_come_from_the_head_as_it_is(change, screen):
    model = make()
    before = greedy(model, True, screen=screen)
    assert greedy(model, False) == before
    with torch.no_grad():
        change(model)
    wanted = greedy(model, False)
    assert greedy(model, True, screen=screen) == wanted != before
    assert greedy(model, True, screen=screen) == wanted
    assert (heads.get_head(model) is not None) == (change not in OTHERS)


def test_every_change_of_a_row_is_seen_but_a_few_through_data():
    """With a screen: changes that increment the version counter are detected, and changes through
    .data of a sampled row."""
    model = make(vocab_size=4096)
    weight = model.lm_head.weight
    greedy(model, True, screen=True)
    screen = heads.get_head(model)._screens[0].screen
    states = torch.randn(8, SIZE)

    def drawn(by):
        return gumbel.sample(states, by, logprobs=None, temperature=0).tokens[:, 0].tolist()

    with torch.no_grad():
        weight[77] = weight[77] + 100 * states[3]  # a row that the package does not sample
        assert heads.get_head(model).weights(True) is screen
        assert drawn(screen) == drawn(weight.detach())
        weight.data[64 * 9] += 1000 * states[4]
        heads.get_head(model).weights(True)
        assert drawn(screen) == drawn(weight.detach()) and drawn(screen)[4] == 64 * 9
        weight.data[78] += 100000 * states[5]  # neither the counter nor the sample changes
        heads.get_head(model).weights(True)
        stale = drawn(screen) != drawn(weight.detach())
    gumbel.transformers.forget(model)
    assert stale and drawn(heads.get_head(model).weights(True)) == drawn(weight.detach())


def test_a_rebuilt_screen_serves_prepared_calls():
    weight, states = torch.randn(512, SIZE), torch.randn(4, SIZE)
    screen = gumbel.Screen(weight)
    call = gumbel.prepare_sample(states, screen, logprobs=None, temperature=0.0)
    weight.normal_()
    place = screen.bytes.data_ptr()
    screen.update()
    screen.verify()
    wanted = gumbel.sample(states, weight, logprobs=None, temperature=0).tokens
    assert torch.equal(call().tokens, wanted) and screen.bytes.data_ptr() == place


def test_drafts_come_from_the_head_as_it_is():
    model, draft = make(), make(seed=3)
    greedy(model, True, draft_model=draft)
    with torch.no_grad():
        replace_parameter(model)
        hook_head(draft)
    assert greedy(model, True, draft_model=draft) == greedy(model, False)


def everywhere():
    state = transformers.CompileConfig(backend="eager", mode=None)
    state._compile_all_devices = True
    return state


def hook_layer(model):
    model.model.layers[0].mlp.register_forward_hook(lambda module, given, out: out * 5 + 1)


def replace_parameter_of_layer(model):
    layer = model.model.layers[0].mlp.down_proj
    layer.weight = torch.nn.Parameter(torch.randn_like(layer.weight))


def replace_data_of_layer(model):
    layer = model.model.layers[0].mlp.down_proj
    layer.weight.data = torch.randn_like(layer.weight)


@pytest.mark.parametrize(
    "change",
    [
        hook_layer,
        replace_parameter_of_layer,
        replace_data_of_layer,
        replace_data,
        replace_decoder,
        hook_decoder,
    ],
    ids=lambda change: change.__name__,
)
def test_compiled_steps_are_those_of_the_model_as_it_is(change):
    torch._dynamo.reset()
    model = make()
    given = {"cache_implementation": "static", "compile_config": everywhere()}
    before = greedy(model, True, **given)
    assert greedy(model, False) == before
    with torch.no_grad():
        change(model)
    wanted = greedy(model, False)
    assert greedy(model, True, **given) == wanted != before
    gumbel.transformers.forget(model)
    assert greedy(model, True, **given) == wanted


def test_a_compiled_forward_of_a_model_is_its_own():
    model = make()
    wanted = greedy(model, False)
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    assert greedy(model, True) == wanted and heads.get_head(model) is not None


def test_a_forward_that_moves_its_inputs_is_its_own():
    """As accelerate does for models on several devices."""

    class AlignDevicesHook:
        offload = False

    model = make()
    wanted = greedy(model, False)
    for module in (model, model.lm_head):
        module._hf_hook, module.forward = AlignDevicesHook(), module.forward
    assert greedy(model, True) == wanted and heads.get_head(model) is not None
    model.lm_head._hf_hook.offload = True
    assert greedy(model, True) == wanted and heads.get_head(model) is None


def test_cached_state_is_freed_with_the_model():
    model = make()
    greedy(model, True, screen=True)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_reading_the_head_takes_less_than_a_millisecond():
    model = make(num_hidden_layers=8)
    greedy(model, True)
    times = []
    for _ in range(200):
        start = time.perf_counter()
        heads.get_head(model)
        times.append(time.perf_counter() - start)
    assert sorted(times)[20] < 1e-3


# ------------------------------------------------------------------- scales, soft-caps and more

SCALED = [
    ("qwen3", {}),
    ("gemma2", {"final_logit_softcapping": 3.0}),
    ("gemma2", {"final_logit_softcapping": None}),
    ("cohere", {"logit_scale": 0.3}),
    ("granite", {"logits_scaling": 7.0}),
    ("hyperclovax", {"logits_scaling": 7.0}),
    ("nanochat", {"final_logit_softcapping": 2.5}),
    (
        "recurrent_gemma",
        {
            "logits_soft_cap": 2.0,
            "lru_width": 64,
            "attention_window_size": 16,
            "num_hidden_layers": 3,
        },
    ),
    ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 64}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind, more", SCALED, ids=str)
def test_factors_are_found_by_every_name(kind, more, dtype):
    """The library's logits, from the model's hidden states, equal the model's own."""
    model = make(kind, dtype, spread=0.5, **more)
    head = heads.get_head(model)
    assert head is not None
    with torch.no_grad():
        wanted = model(input_ids=PROMPT).logits[0].float()
        hidden = head.decoder(input_ids=PROMPT).last_hidden_state[0]
        found = gumbel.process_logits(
            torch.nn.functional.linear(hidden, head.weight, head.bias).float(),
            scale=head.scale,
            softcap=head.softcap,
        )
    room = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    assert torch.allclose(found, wanted, rtol=0, atol=room * float(wanted.abs().max()))
    assert (head.scale, head.softcap) != (1, 0) or set(more.values()) in ({None}, {64}, set())


class Odd(transformers.Qwen3ForCausalLM):
    """A model that changes its logits by an operation that its config does not name."""

    def forward(self, *given, **named):
        out = super().forward(*given, **named)
        out.logits = self.change(out.logits)
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "change",
    [
        lambda logits: 40 * torch.tanh(logits / 40),
        lambda logits: logits.clamp(max=500),
        lambda logits: logits * 1.01,
        lambda logits: logits / logits.norm(dim=-1, keepdim=True).clamp(min=50) * 50,
        lambda logits: logits.index_fill(-1, torch.tensor([5]), -1e4),
        lambda logits: logits + 0.25 * (torch.arange(VOCAB) == 7),
        lambda logits: logits[..., :-1].cumsum(-1),
    ],
    ids=["cap", "clamp", "multiplier", "norm", "token", "bias", "sum"],
)
def test_heads_that_do_more_are_called_and_logged_once(change, dtype, caplog):
    model = make(dtype=dtype, spread=0.02)
    model.__class__, model.change = Odd, change
    with caplog.at_level(logging.WARNING, "gumbel.transformers"):
        assert greedy(model, True) == greedy(model, False)
        greedy(model, True)
        assert heads.get_head(model) is None
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("Odd: tokens are drawn from its logits, as its logits are not products")


def test_a_vocabulary_with_padding_has_fewer_logits():
    model = make(spread=1.0)
    model.__class__, model.change = Odd, lambda logits: logits[..., : VOCAB - 9]
    assert greedy(model, True) == greedy(model, False)
    assert len(heads.get_head(model).weight) == VOCAB - 9


@pytest.mark.parametrize("name, value", [("final_logit_softcapping", 2.0), ("logit_scale", 0.2)])
def test_a_config_that_changes_is_read_anew(name, value):
    kind = "gemma2" if "cap" in name else "cohere"
    model = make(kind, spread=0.5)
    first = heads.get_head(model)
    setattr(model.config if "cap" in name else model, name, value)
    second = heads.get_head(model)
    assert value in (second.scale, second.softcap) and value not in (first.scale, first.softcap)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_softcap_of_another_name_is_drawn_with(dtype):
    """With logits above the cap, tokens have the distribution of the model's own logits."""
    rows, cap = 4096, 8.0
    model = make(
        "recurrent_gemma",
        dtype,
        spread=0.5,
        logits_soft_cap=cap,
        lru_width=64,
        attention_window_size=16,
        num_hidden_layers=3,
    )
    prompt = torch.tensor([[50, 51, 52, 53]])
    with torch.no_grad():
        probs = torch.softmax(model(prompt).logits[0, -1].double(), -1)
    drawn = model.generate(
        prompt.repeat(rows, 1),
        attention_mask=torch.ones(rows, 4, dtype=torch.long),
        pad_token_id=0,
        max_new_tokens=1,
        do_sample=True,
        top_k=0,
        seed=list(range(rows)),
        custom_generate=gumbel.transformers.generate,
    )[:, -1]
    found = torch.bincount(drawn, minlength=VOCAB) / rows
    away = (found - probs).abs() / (probs * (1 - probs) / rows).sqrt()
    assert heads.get_head(model).softcap == cap
    assert float(away[probs > 0.002].max()) < (5 if dtype == torch.float32 else 6)
