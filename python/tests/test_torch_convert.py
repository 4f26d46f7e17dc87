"""mt.from_torch and mt.to_torch convert what they know exactly, and refuse all else with its path."""

import copy
import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.utils import parametrizations, prune  # noqa: E402

import multihead as mh  # noqa: E402
import multihead.torch as mt  # noqa: E402

torch.set_num_threads(1)
E, H, HIDDEN = 16, 2, 24


def encoder_layer(**options):
    return nn.TransformerEncoderLayer(E, H, HIDDEN, **{"batch_first": True, **options})


def decoder_layer(**options):
    return nn.TransformerDecoderLayer(E, H, HIDDEN, **{"batch_first": True, **options})


KINDS = {
    "Linear": lambda: nn.Linear(E, 7),
    "Embedding": lambda: nn.Embedding(11, E),
    "LayerNorm": lambda: nn.LayerNorm(E, eps=1e-12),
    "RMSNorm": lambda: nn.RMSNorm(E),
    "MultiheadAttention": lambda: nn.MultiheadAttention(E, H, dropout=0.1, add_zero_attn=True),
    "MultiheadAttention of other widths": lambda: nn.MultiheadAttention(E, H, kdim=8, vdim=12, batch_first=True),
    "TransformerEncoderLayer": lambda: encoder_layer(activation=nn.SiLU(), layer_norm_eps=1e-3),
    "TransformerDecoderLayer": lambda: decoder_layer(bias=False, batch_first=False),
    "TransformerEncoder": lambda: nn.TransformerEncoder(encoder_layer(activation=nn.GELU("tanh")), 2, nn.LayerNorm(E)),
    "TransformerDecoder": lambda: nn.TransformerDecoder(decoder_layer(norm_first=True, activation="gelu"), 2),
    "Transformer": lambda: nn.Transformer(E, H, 2, 2, HIDDEN, layer_norm_eps=1e-2),
}


def is_ours_equal(module, ours):
    """Compares outputs in float64 with inputs of another seed than the proof's."""
    dtype = torch.float64 if next(module.parameters()).dtype is torch.float64 else torch.float32  # of the arithmetic
    module = copy.deepcopy(module).double().train()
    for m in module.modules():
        m.p = 0.0 if isinstance(m, nn.Dropout) else None
        if isinstance(m, nn.MultiheadAttention):
            m.dropout = 0.0
    if isinstance(module, nn.RMSNorm):
        module.eps = torch.finfo(dtype).eps
    attention = next((m for m in module.modules() if isinstance(m, nn.MultiheadAttention)), None)
    turn = (lambda x: x.transpose(0, 1)) if attention is not None and not attention.batch_first else (lambda x: x)
    g = torch.Generator().manual_seed(7)
    x, memory = (torch.randn(3, n, E, dtype=torch.float64, generator=g) for n in (4, 5))
    kind, causal = type(module).__name__, torch.ones(4, 4, dtype=torch.bool).triu(1)
    ours = ours.clone().to("float64")
    if kind == "Embedding":
        x = torch.randint(0, 11, (3, 4))
    if kind == "MultiheadAttention":
        inputs = (x, memory[..., : module.kdim], memory[..., : module.vdim])
        want, got = module(*map(turn, inputs))[0], ours(*(i.contiguous().numpy() for i in inputs))
    elif kind == "TransformerDecoderLayer":
        want, got = module(turn(x), turn(memory)), ours(x.numpy(), memory=memory.numpy())
    elif kind == "TransformerDecoder":
        want, got = module(turn(x), turn(memory), tgt_mask=causal), ours(x.numpy(), memory.numpy())
    elif kind == "Transformer":
        want, got = module(turn(memory), turn(x), tgt_mask=causal), ours(memory.numpy(), x.numpy())
    else:
        want, got = module(turn(x)), ours(x.numpy())
    want = turn(want) if want.dim() == 3 and kind != "Embedding" else want
    np.testing.assert_allclose(np.asarray(got), want.detach().numpy(), rtol=1e-9, atol=1e-11)


def each(m, change):
    for part in m.modules():
        change(part)
    return m


def by_columns(m):
    for p in m.parameters(recurse=False):
        p.data = p.data.t().contiguous().t() if p.dim() == 2 else p.data


SAME = {  # changes after which a module computes what its class says
    "nothing": lambda m: m,
    "eval mode": lambda m: m.eval(),
    "bfloat16": lambda m: m.bfloat16(),
    "attributes that nobody reads": lambda m: each(m, lambda x: setattr(x, "note", 1)),
    "removed hooks": lambda m: each(m, lambda x: x.register_forward_hook(print).remove()),
    "weights by columns": lambda m: each(m, by_columns),
    "inference tensors": lambda m: torch.inference_mode()(copy.deepcopy)(m),
}


@pytest.mark.parametrize("change", SAME)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_understood_is_converted(kind, change):
    torch.manual_seed(1)
    module = SAME[change](KINDS[kind]())
    state, weights = torch.get_rng_state(), copy.deepcopy(module.state_dict())
    ours = mt.from_torch(module)
    assert torch.equal(torch.get_rng_state(), state)
    is_ours_equal(module, ours)
    if change == "inference tensors":
        return
    with torch.no_grad():
        [p.zero_() for p in module.parameters()]
    mt.to_torch(ours, module)
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())


def test_a_decoder_layer_keeps_its_activation_module():
    """PyTorch's own copy of such a layer computes relu, and the proof is made on a copy."""
    module = decoder_layer(activation=nn.GELU(), dropout=0.0)
    x, memory = torch.randn(2, 3, E), torch.randn(2, 5, E)
    got = mt.from_torch(module)(x.numpy(), memory=memory.numpy())
    np.testing.assert_allclose(np.asarray(got), module(x, memory).detach().numpy(), atol=1e-5)


def weighted(m):
    """(module, name) of its last matrix."""
    return [(x, n) for x in m.modules() for n, p in x._parameters.items() if p is not None and p.dim() == 2][-1]


def replaced(m, old, new, index=-1):
    """The index-th part of this type replaced."""
    found = [(x, n) for x in m.modules() for n, c in x._modules.items() if type(c) is old]
    found[index][0]._modules[found[index][1]] = new
    return m


def with_attribute(kind, name, value, index=-1):
    def change(m):
        setattr([x for x in m.modules() if type(x) is kind][index], name, value)
        return m

    return change


def part(m, path, **values):
    for name, value in values.items():
        setattr(m.get_submodule(path), name, value)
    return m


def cast(m, path, dtype):
    m.get_submodule(path).to(dtype)
    return m


def hooked(register):
    def change(m):
        getattr(list(m.modules())[-1], register)(lambda *args: None)
        return m

    return change


def subclassed(m):
    last = list(m.modules())[-1]
    last.__class__ = type("Mine", (type(last),), {})
    return m


def pruned(m):
    prune.l1_unstructured(*weighted(m), 0.5)
    return m


def tied(m):
    m.get_submodule("layers.1.linear1").weight = m.get_submodule("layers.0.linear1").weight
    return m


def gelu(x):
    return x * torch.sigmoid(1.702 * x)


class ReLU(nn.ReLU):
    def forward(self, x):
        return F.leaky_relu(x, 0.1)


EVERY = [  # changes of any module with a matrix, and a part of the error
    (subclassed, "Mine"),
    (hooked("register_forward_hook"), "forward hooks"),
    (hooked("register_forward_pre_hook"), "forward pre hooks"),
    (hooked("register_full_backward_hook"), "backward hooks"),
    (pruned, "prune.remove"),
    (lambda m: parametrizations.weight_norm(*weighted(m)) and m, "remove_parametrizations"),
    (lambda m: setattr(m, "forward", functools.partial(m.forward)) or m, "replaces"),
    (lambda m: weighted(m)[0].register_buffer("more", torch.ones(1)) or m, "more' of the .* is not part"),
    (lambda m: vars(weighted(m)[0]).update({weighted(m)[1]: torch.ones(1)}) or m, "set twice"),
    (lambda m: next(m.parameters()).register_hook(print) and m, "gradient hooks"),
    (lambda m: m.to("meta"), "device meta"),
    (lambda m: m.to(torch.complex64), "complex64"),
]  # fmt: skip
LAYER, STACK, ATTENTION = "TransformerEncoderLayer", "TransformerEncoder", "MultiheadAttention"
SOME = [  # (kind, change, part of the error)
    ("Linear", lambda m: cast(m, "", "meta"), "device meta"),
    ("Embedding", with_attribute(nn.Embedding, "padding_idx", 0), "'padding_idx'"),
    ("Embedding", with_attribute(nn.Embedding, "max_norm", 1.0), "'max_norm'"),
    ("Embedding", with_attribute(nn.Embedding, "scale_grad_by_freq", True), "'scale_grad_by_freq'"),
    ("LayerNorm", lambda m: nn.LayerNorm((3, E)), "last axis"),
    ("LayerNorm", lambda m: nn.LayerNorm(E, elementwise_affine=False), "last axis"),
    ("LayerNorm", with_attribute(nn.LayerNorm, "eps", torch.tensor(1e-5, requires_grad=True)), "'eps'.*finite float"),
    (ATTENTION, lambda m: nn.MultiheadAttention(E, H, add_bias_kv=True), "add_bias_kv"),
    (ATTENTION, with_attribute(nn.MultiheadAttention, "head_dim", 4), "'head_dim'"),
    (ATTENTION, with_attribute(nn.MultiheadAttention, "in_proj_bias", None), "'out_proj.bias'"),
    (LAYER, with_attribute(nn.LayerNorm, "eps", 1e-12), "'norm2.eps'"),
    (LAYER, with_attribute(nn.LayerNorm, "eps", 1e-12, 0), "'norm2.eps'"),
    (LAYER, with_attribute(nn.Dropout, "p", 0.7), "'dropout2.p'"),
    (LAYER, with_attribute(nn.MultiheadAttention, "add_zero_attn", True), "'self_attn.add_zero_attn'"),
    (LAYER, with_attribute(nn.TransformerEncoderLayer, "norm_first", "no"), "'norm_first'"),
    (LAYER, with_attribute(nn.TransformerEncoderLayer, "_ff_block", abs), "'_ff_block'"),
    (LAYER, lambda m: replaced(m, nn.LayerNorm, nn.RMSNorm(E)), "'norm2'"),
    (LAYER, lambda m: replaced(m, nn.Dropout, nn.AlphaDropout(0.1)), "'dropout2'"),
    (LAYER, lambda m: replaced(m, nn.Linear, nn.Sequential(nn.Linear(HIDDEN, E))), "'linear2'"),
    (LAYER, lambda m: encoder_layer(activation=gelu), "'activation'"),
    (LAYER, lambda m: encoder_layer(activation=ReLU()), "'activation'"),
    (LAYER, lambda m: encoder_layer(activation=F.leaky_relu), "'activation'"),
    (LAYER, lambda m: hooked("register_forward_hook")(encoder_layer(activation=nn.ReLU())), "forward hooks"),
    (LAYER, lambda m: cast(m, "norm1", torch.float64), "one dtype"),
    (LAYER, lambda m: part(m, "norm1", training=False), "mode"),
    ("TransformerDecoderLayer", with_attribute(nn.MultiheadAttention, "num_heads", 4), "'multihead_attn.num_heads'"),
    ("TransformerDecoderLayer", with_attribute(nn.MultiheadAttention, "dropout", 0.7), "'multihead_attn.dropout'"),
    (STACK, lambda m: part(m, "norm", eps=1e-12), "'norm.eps'"),
    (STACK, lambda m: replaced(m, nn.TransformerEncoderLayer, decoder_layer()), "'layers.1'"),
    (STACK, lambda m: part(m, "layers.1", norm_first=True), "'layers.1.norm_first'"),
    (STACK, lambda m: part(m, "layers.1.self_attn", num_heads=4, head_dim=4), "'layers.1.self_attn"),
    (STACK, lambda m: part(m, "layers.1", activation=nn.GELU()), "'layers.1.activation'"),
    (STACK, lambda m: part(m, "", layers=nn.ModuleList([m.layers[0]] * 2)), "shares its memory"),
    (STACK, lambda m: part(m, "", layers=nn.ModuleList()), "'layers'"),
    (STACK, tied, "'layers.1.linear1.weight'.*shares"),
    ("Transformer", lambda m: part(m, "", encoder=nn.Linear(E, E)), "'encoder'"),
    ("Transformer", lambda m: part(m, "", batch_first=True), "'batch_first'"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_what_any_module_may_have_is_refused(kind):
    for change, text in EVERY:
        if "Norm" in kind and change not in (subclassed, EVERY[1][0], EVERY[6][0]):
            continue  # no matrix
        with pytest.raises((TypeError, ValueError), match=text):
            mt.from_torch(change(KINDS[kind]()))


@pytest.mark.parametrize("at", range(len(SOME)))
def test_what_one_kind_may_have_is_refused_with_its_path(at):
    kind, change, text = SOME[at]
    module, ours = KINDS[kind](), mt.from_torch(KINDS[kind]())
    module = change(module)
    with pytest.raises((TypeError, ValueError), match=text):
        mt.from_torch(module)
    with pytest.raises((TypeError, ValueError), match=f"to_torch.*{text}"):
        mt.to_torch(ours, module)


def test_a_class_that_was_changed_fails_the_proof(monkeypatch):
    module = encoder_layer()
    ours = mt.from_torch(module)
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: 1.001 * F.layer_norm(x, (E,), self.weight, self.bias))
    with pytest.raises(ValueError, match="from_torch.*other outputs"):
        mt.from_torch(module)
    with pytest.raises(ValueError, match="to_torch.*other outputs"):
        mt.to_torch(ours, module)


def test_to_torch_changes_nothing_unless_the_module_then_gives_the_same():
    ours = mt.from_torch(encoder_layer())
    for module, text in [
        (nn.TransformerEncoderLayer(E, 4, HIDDEN), "other outputs"),
        (encoder_layer(layer_norm_eps=1e-12), "other outputs"),
        (encoder_layer(activation="gelu"), "other outputs"),
        (encoder_layer(norm_first=True), "other outputs"),
        (encoder_layer(bias=False), "module lacks"),
        (nn.TransformerEncoderLayer(E, H, 32), "must be"),
        (encoder_layer().double(), "float64"),
        (decoder_layer(), "source lacks"),
        (nn.Linear(E, E), "must be a Linear"),
    ]:
        before = copy.deepcopy(module.state_dict())
        with pytest.raises((TypeError, ValueError), match=text):
            mt.to_torch(ours, module)
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    with pytest.raises(TypeError, match="source must be"):
        mt.to_torch(ours)


def test_rates_of_dropout_and_frozen_parameters_are_the_originals():
    layer = encoder_layer(dropout=0.0)
    layer.dropout.p = 0.5
    layer.linear1.requires_grad_(False)
    ours, x = mt.from_torch(layer), np.ones((1, 4, E), "f4")
    flags = {name: p.requires_grad for name, p in layer.named_parameters()}
    assert {name: p.requires_grad for name, p in ours.named_parameters()} == flags
    assert not np.array_equal(np.asarray(ours(x, rng=mh.Rng(1))), np.asarray(ours(x)))
    layer.dropout.p = 0.0
    assert np.array_equal(np.asarray(mt.from_torch(layer)(x, rng=mh.Rng(1))), np.asarray(mt.from_torch(layer)(x)))
