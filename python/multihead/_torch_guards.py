"""Says which PyTorch tensors a kernel may read: plain dense CPU tensors, outside tracing and transforms.

A kernel sees an address, sizes and strides. Anything else about a tensor is in its type (subclasses), its dispatch keys
(a negative bit, a vmap axis, no memory at all …) or its tangent; anything else about an operation, in the thread's state.
"""

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

NOT_DENSE = "not a dense tensor"  # sparse, nested, quantized

_C = torch._C
_TYPES = (torch.Tensor, torch.nn.Parameter)
_keys_of = _C._dispatch_keys
_is_compiling = torch.compiler.is_compiling
_tracing_state = _C._get_tracing_state
_functorch_level = _C._functorch.maybe_current_level
_dispatch_modes = _C._len_torch_dispatch_stack
_function_modes = _C._is_torch_function_mode_enabled


def _keys_of_a_plain_tensor(inference):
    with _C._DisableTorchDispatch(), torch.inference_mode(inference):
        return _keys_of(torch.empty(0, device="cpu"))


_PLAIN, _INFERENCE = _keys_of_a_plain_tensor(False), _keys_of_a_plain_tensor(True)


def _has_tangent(tensor):
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def is_plain(tensor):
    """Whether the tensor is nothing more than memory, sizes and strides."""
    if type(tensor) not in _TYPES:
        return False
    keys = _keys_of(tensor)
    return (keys == _PLAIN or keys == _INFERENCE) and not _has_tangent(tensor)


def are_plain(query, key, value):
    """is_plain() of three tensors, at half the cost."""
    if type(query) not in _TYPES or type(key) not in _TYPES or type(value) not in _TYPES:
        return False
    if forward_ad._current_level < 0 and _PLAIN == _keys_of(query) == _keys_of(key) == _keys_of(value):
        return True
    return is_plain(query) and is_plain(key) and is_plain(value)


def recorder():
    """The tracer that would record a kernel's result as a constant on this thread, or None."""
    if _is_compiling():
        return "torch.compile and torch.export"
    if _tracing_state() is not None:
        return "torch.jit.trace and torch.onnx.export"
    kinds = _C._TorchDispatchModeKey
    if _dispatch_modes() and any(map(_C._get_dispatch_mode, (kinds.FAKE, kinds.PROXY, kinds.FUNCTIONAL))):
        return "make_fx and fake tensors"
    return None


def is_quiet():
    """Fast check that tracer() is None. torch.compile and torch.export run under a dispatch mode."""
    return not (_dispatch_modes() or _tracing_state() is not None or _functorch_level() is not None)


def tracer():
    """recorder(), or an active transform."""
    return recorder() or (None if _functorch_level() is None else "torch.func transforms (vmap, grad, jvp, …)")


def _changes_no_call(mode):
    return isinstance(mode, DeviceContext) and mode.device.type == "cpu"  # torch.set_default_device("cpu")


def observer():
    """tracer(), or a mode that may intercept PyTorch calls, or None."""
    if is_quiet() and not _function_modes():
        return None
    what = tracer()
    if what is None and _dispatch_modes():
        what = "a TorchDispatchMode"
    if what is None and not all(map(_changes_no_call, torch.overrides._get_current_function_mode_stack())):
        what = "a TorchFunctionMode"
    return what


def refuse_tracers(who):
    what = None if is_quiet() else tracer()
    if what is not None:
        raise RuntimeError(f"{who}: {what} need PyTorch's own function; patch() leaves such calls to it")


def why_not(tensor):
    """Why a kernel cannot read the tensor, such as 'a CausalBias'."""
    if not isinstance(tensor, torch.Tensor):
        return "not a tensor"
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        return NOT_DENSE
    if tensor.device.type != "cpu":
        return f"device {tensor.device.type}"
    if type(tensor) not in _TYPES:
        return f"a {type(tensor).__name__}"
    if tensor.is_neg():
        return "a view with the negative bit"
    if _has_tangent(tensor):
        return "a forward-mode dual"
    return None if is_plain(tensor) else f"a tensor with {_keys_of(tensor) - _PLAIN}"


def refuse(who, name, tensor):
    """Raises, with expected and got, if a kernel cannot read the tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{who}: {name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_quantized:
        raise TypeError(f"{who}: {name} is quantized ({tensor.dtype}); dequantize() it first")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{who}: {name} must be a dense tensor, got layout {tensor.layout}; use to_dense()")
    if tensor.is_nested:
        raise TypeError(f"{who}: {name} is a nested tensor; pad it, or use multihead.attention_ragged")
    if tensor.device.type != "cpu":
        raise ValueError(f"{who}: {name} must be on the CPU, got device {tensor.device}; move it with .cpu()")
    why = why_not(tensor)
    if why is not None:
        raise TypeError(f"{who}: {name} must be a plain torch.Tensor, got {why}: only PyTorch knows what that means")


def plain(who, name, tensor):
    """The tensor in a form a kernel can read; raises otherwise."""
    if is_plain(tensor):
        return tensor
    if type(tensor) in _TYPES and tensor.is_neg():
        tensor = tensor.resolve_neg()
    refuse(who, name, tensor)
    return tensor


def written(grad):
    """A gradient of zeros that autograd has without memory, with it."""
    return grad.clone() if type(grad) in _TYPES and grad._is_zerotensor() else grad


def admit(who, name, tensor):
    """plain(), with a check of the thread: the entry for every tensor of the extension."""
    refuse_tracers(who)
    return plain(who, name, tensor)


def untraced(function):
    """torch.compiler.disable() without the seconds of importing torch.compile."""
    frames = _C._dynamo.eval_frame
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "multihead's kernels cannot be part of a graph"
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def unbatch(gradients):
    """Splits a batch of an enclosing vmap, for which autograd.Function has no rule: (rows, join), or None.

    `rows` are the gradients of each sample; join() combines the samples' results for vmap.
    """
    functorch = _C._functorch
    present = [g for g in gradients if isinstance(g, torch.Tensor)]
    if any(map(functorch.is_legacy_batchedtensor, present)):  # torch.autograd.grad(…, is_grads_batched=True)
        level = _C._vmapmode_increment_nesting() - 1
        _C._vmapmode_decrement_nesting()
        is_batched = functorch.is_legacy_batchedtensor
        remove = lambda g: torch._remove_batch_dim(g, level, 1, 0)
        add = lambda x: torch._add_batch_dim(x, 0, level)
    elif any(map(functorch.is_batchedtensor, present)):  # torch.vmap around torch.autograd.grad
        level = max(functorch.maybe_get_level(g) for g in present if functorch.is_batchedtensor(g))
        is_batched = lambda g: functorch.is_batchedtensor(g) and functorch.maybe_get_level(g) == level
        remove = lambda g: functorch.get_unwrapped(g).movedim(functorch.maybe_get_bdim(g), 0)
        add = lambda x: functorch._add_batch_dim(x, 0, level)
    else:
        return None
    columns = [remove(g) if g is not None and is_batched(g) else None for g in gradients]
    size = next(len(c) for c in columns if c is not None)
    rows = zip(*([g] * size if c is None else c.unbind(0) for g, c in zip(gradients, columns)))
    return rows, lambda parts: add(torch.stack(parts))
