from collections.abc import Callable, Iterator, Mapping, Sequence
import os
from typing import Any, Literal, TypedDict, overload

from typing_extensions import Self

from ._types import ArrayLike, DTypeLike, Function, Index, ShapeLike
from .nn import Attention

import numpy

class DtypeError(TypeError): ...

class FormatError(ValueError): ...

class IoError(OSError): ...

class NumericError(FloatingPointError): ...

class ShapeError(ValueError): ...

class CallOptions(TypedDict, total=False):
    """The keywords of attention() that a model brings to an attention of one's own. A bias is the attention's own."""

    mask: Mask
    softcap: float
    alibi_slopes: Tensor
    relative_bias: Tensor
    relative_key: Tensor
    relative_value: Tensor
    relative_center: int
    sinks: Tensor
    scale: float
    dropout_p: float
    rng: Rng


def git_hash() -> str:
    """Commit the library was built from, or ''."""

def run_program(arguments: Sequence[str | bytes | os.PathLike[str]]) -> int:
    """The command line; the exit code. For python -m multihead."""

def num_threads() -> int:
    """Number of threads of the kernels, the caller included."""

def missing_threads() -> int:
    """
    Threads that the system could not start (a limit on processes or address space); the others do their work. 0 before the first call that needs them; set_num_threads() retries.
    """

def set_num_threads(threads: int) -> None:
    """Sets the number of threads; ValueError unless 1 <= threads <= 1024."""

def set_float32_matmul_precision(precision: str) -> None:
    """
    Precision of f32 matrix products on CPUs with AMX: 'highest' (the default), 'high', 'medium' or 'highest_tiles'. No effect on other CPUs.
    """

def float32_matmul_precision() -> str:
    """The current setting of set_float32_matmul_precision()."""

def has_tiles() -> bool:
    """Whether f32 matrix products can run on AMX tiles here."""

def isa() -> str:
    """
    The instruction set of the kernels: 'baseline', 'avx2', 'avx512' or, on ARM, 'neon'. MULTIHEAD_ISA caps it.
    """

def cpu_name() -> str:
    """The CPU's name."""

def memory_stats() -> dict[str, Any]:
    """Current and peak bytes of tensors, and free bytes kept for reuse."""

def release_cached_memory() -> None:
    """Returns cached memory to the system."""

def is_recording() -> bool: ...

def refuse_while_tracing(x: Tensor) -> None:
    """
    Raises TypeError if the tensor requires a gradient and a function is traced.
    """

def has_tape() -> bool: ...

def set_tracing(tracing: bool) -> bool:
    """
    Whether a function is traced on this thread from now on; returns what was.
    """

class Tensor:
    """
    A handle to typed, strided memory with an optional gradient.

    Create one with multihead.tensor(array); numpy.asarray(tensor) and torch.from_dlpack(tensor) share its memory.
    """

    def __lt__(self, other: Any) -> Tensor: ...

    def __le__(self, other: Any) -> Tensor: ...

    def __gt__(self, other: Any) -> Tensor: ...

    def __ge__(self, other: Any) -> Tensor: ...

    def __eq__(self, other: Any) -> Tensor: ...  # type: ignore[override]

    def __ne__(self, other: Any) -> Tensor: ...  # type: ignore[override]

    def __floordiv__(self, other: Any) -> Tensor: ...

    def __rfloordiv__(self, other: Any) -> Tensor: ...

    def __mod__(self, other: Any) -> Tensor: ...

    def __rmod__(self, other: Any) -> Tensor: ...

    def __and__(self, other: Any) -> Tensor: ...

    def __rand__(self, other: Any) -> Tensor: ...

    def __or__(self, other: Any) -> Tensor: ...

    def __ror__(self, other: Any) -> Tensor: ...

    def __xor__(self, other: Any) -> Tensor: ...

    def __rxor__(self, other: Any) -> Tensor: ...

    def __lshift__(self, other: Any) -> Tensor: ...

    def __rlshift__(self, other: Any) -> Tensor: ...

    def __rshift__(self, other: Any) -> Tensor: ...

    def __rrshift__(self, other: Any) -> Tensor: ...

    def __invert__(self) -> Tensor: ...

    def __pos__(self) -> Tensor: ...

    def __abs__(self) -> Tensor: ...

    def __pow__(self, power: Any) -> Tensor: ...

    def __rpow__(self, base: Any) -> Tensor: ...

    def __bool__(self) -> bool: ...

    def __int__(self) -> int: ...

    def __index__(self) -> int: ...

    def __iter__(self) -> Iterator[Tensor]: ...

    def __contains__(self, value: Any) -> bool: ...

    def __format__(self, spec: str) -> str: ...

    def __repr__(self) -> str: ...

    def __str__(self) -> str: ...

    def __setitem__(self, key: Index, value: ArrayLike) -> None: ...

    def __copy__(self) -> Tensor: ...

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix."""

    @property
    def mT(self) -> Tensor:
        """With the last two axes swapped."""

    @property
    def device(self) -> str: ...

    def sum(self, axis: int | Sequence[int] | None=None, keepdims: bool=False) -> Tensor:
        """Over one axis, several, or all."""

    def mean(self, axis: int | Sequence[int] | None=None, keepdims: bool=False) -> Tensor:
        """Over one axis, several, or all."""

    def max(self, axis: int | Sequence[int] | None=None, keepdims: bool=False) -> Tensor:
        """Over one axis, several, or all; equal elements share the gradient."""

    def min(self, axis: int | Sequence[int] | None=None, keepdims: bool=False) -> Tensor:
        """Over one axis, several, or all; equal elements share the gradient."""

    def var(self, axis: int | Sequence[int] | None=None, keepdims: bool=False, correction: float=0) -> Tensor:
        """Variance; correction=1 divides by one less than the count."""

    def std(self, axis: int | Sequence[int] | None=None, keepdims: bool=False, correction: float=0) -> Tensor:
        """The square root of var(); where all elements are equal, its gradient is 0."""

    def prod(self, axis: int | Sequence[int] | None=None, keepdims: bool=False) -> Tensor:
        """Product, without a gradient."""

    def argmax(self, axis: int | None=None, keepdims: bool=False) -> Tensor:
        """Where the first largest element is, int64: along an axis, or in the flattened tensor."""

    def argmin(self, axis: int | None=None, keepdims: bool=False) -> Tensor:
        """Where the first smallest element is, int64: along an axis, or in the flattened tensor."""

    def all(self, axis: int | Sequence[int] | None=None, keepdims: bool=False) -> Tensor:
        """Whether all elements are true."""

    def any(self, axis: int | Sequence[int] | None=None, keepdims: bool=False) -> Tensor:
        """Whether one element is true."""

    def permute(self, *axes: int) -> Tensor:
        """View whose axis i is axes[i] of this tensor."""

    def squeeze(self, axis: int | Sequence[int] | None=None) -> Tensor:
        """View without these axes of size 1, or without all such."""

    def unsqueeze(self, axis: int) -> Tensor:
        """View with a new axis of size 1."""

    def flatten(self, start: int=0, end: int=-1) -> Tensor:
        """With the axes from start to end, all by default, as one."""

    def copy(self) -> Tensor:
        """A row-major copy. Differentiable."""

    def astype(self, dtype: DTypeLike) -> Tensor:
        """As to()."""

    def exp(self) -> Tensor: ...

    def log(self) -> Tensor: ...

    def sqrt(self) -> Tensor: ...

    def square(self) -> Tensor: ...

    def tanh(self) -> Tensor: ...

    def sigmoid(self) -> Tensor: ...

    def relu(self) -> Tensor: ...

    def softmax(self, axis: int = -1) -> Tensor: ...

    def log_softmax(self, axis: int = -1) -> Tensor: ...


    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""

    @property
    def dtype(self) -> str: ...

    @property
    def ndim(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def is_contiguous(self) -> bool: ...

    @property
    def data_ptr(self) -> int: ...

    def item(self) -> float:
        """The value of a tensor with one element."""

    def __float__(self) -> float: ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: Index, /) -> Tensor: ...

    def numpy(self) -> numpy.ndarray:
        """
        A NumPy array over the same memory (for bfloat16 a copy, which needs the package ml_dtypes).
        """

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Any: ...

    def __dlpack__(self, *, stream: ArrayLike | None = None, max_version: ArrayLike | None = None, dl_device: ArrayLike | None = None, copy: bool | None = None) -> Any:
        """A DLPack capsule that shares the memory, unless copy is true."""

    def __dlpack_device__(self) -> tuple[int, ...]: ...

    def tolist(self) -> Any: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> Tensor:
        """
        A leaf of its own; handles of one tensor in one deepcopy are handles of one copy, views of it are not.
        """

    def __add__(self, other: ArrayLike) -> Tensor: ...

    def __radd__(self, other: ArrayLike) -> Tensor: ...

    def __sub__(self, other: ArrayLike) -> Tensor: ...

    def __rsub__(self, other: ArrayLike) -> Tensor: ...

    def __mul__(self, other: ArrayLike) -> Tensor: ...

    def __rmul__(self, other: ArrayLike) -> Tensor: ...

    def __truediv__(self, other: ArrayLike) -> Tensor: ...

    def __rtruediv__(self, other: ArrayLike) -> Tensor: ...

    def __matmul__(self, other: ArrayLike) -> Tensor: ...

    def __rmatmul__(self, other: ArrayLike) -> Tensor: ...

    def __neg__(self) -> Tensor: ...

    @property
    def is_leaf(self) -> bool:
        """False for a result that a Tape has recorded."""

    @property
    def requires_grad(self) -> bool:
        """
        True for a leaf that accumulates a gradient and for results computed from one under a Tape.
        """

    @requires_grad.setter
    def requires_grad(self, arg: bool, /) -> None: ...

    @property
    def grad(self) -> Tensor | None:
        """None until Tape.backward() has reached this tensor."""

    @grad.setter
    def grad(self, value: Any | None) -> None: ...

    def reshape(self, *args: Any) -> Tensor:
        """
        The same elements in another shape; one size may be -1. A view if the strides allow it.
        """

    def transpose(self, a: int, b: int) -> Tensor:
        """View with two axes swapped."""

    def expand(self, shape: ShapeLike) -> Tensor:
        """View with axes of size 1 repeated."""

    def contiguous(self) -> Tensor: ...

    def clone(self) -> Tensor:
        """A row-major copy. Differentiable."""

    def detach(self) -> Tensor:
        """Same memory, no gradient."""

    def to(self, dtype: DTypeLike) -> Tensor:
        """
        Converted copy, or this tensor if it already has the dtype. Differentiable.
        """

def tensor(data: ArrayLike | None, *, dtype: DTypeLike | None = None, requires_grad: bool = False) -> Tensor:
    """
    A Tensor over the memory of a NumPy array, a PyTorch or JAX CPU tensor, any DLPack or buffer object; a
    copy where sharing is impossible (lists, negative strides, non-native byte order) or dtype differs.
    """

def zeros(shape: ShapeLike, dtype: DTypeLike = 'float32') -> Tensor:
    """A new Tensor filled with one number."""

def ones(shape: ShapeLike, dtype: DTypeLike = 'float32') -> Tensor:
    """A new Tensor filled with one number."""

class Rng:
    """
    Counter-based random numbers (Philox): a seed and the number of streams drawn.
    """

    def __init__(self, seed: int, drawn: int = 0) -> None: ...

    @property
    def seed(self) -> int: ...

    @property
    def drawn(self) -> int: ...

    def __repr__(self) -> str: ...

def rand(shape: ShapeLike, rng: Rng, dtype: DTypeLike = 'float32') -> Tensor:
    """Uniform numbers in [0, 1)."""

def randn(shape: ShapeLike, rng: Rng, dtype: DTypeLike = 'float32') -> Tensor:
    """Normal numbers."""

class Tape:
    """
    Records operations inside its with block, on this thread.

        with Tape() as tape:
            loss = cross_entropy(model(x), y)
            tape.backward(loss)
    """

    def __init__(self) -> None: ...

    def __enter__(self) -> Tape: ...

    def __exit__(self, *args: Any) -> None: ...

    def __len__(self) -> int: ...

    def backward(self, loss: Tensor, seed: ArrayLike | None = None) -> None:
        """
        Accumulates d(sum(seed * loss))/d(leaf) into leaf.grad of every leaf and clears the tape.
        """

class NoTape:
    """Disables recording on this thread inside its with block."""

    def __init__(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *args: Any) -> None: ...

class autocast:
    """
    Mixed precision on this thread inside its with block, by the rules of PyTorch's autocast: linear, matmul and attention in bf16 (dtype "float32": off), norms, softmax and losses in f32. Weights and gradients stay f32.
    """

    def __init__(self, dtype: DTypeLike = 'bfloat16') -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *args: Any) -> None: ...

def custom_op(inputs: Sequence[Tensor], forward: ArrayLike, backward: ArrayLike) -> list[Tensor]:
    """The results of one call of an operation that multihead.custom_op made."""

def relu(x: ArrayLike) -> Tensor:
    """max(x, 0)"""

def gelu(x: ArrayLike) -> Tensor:
    """x * Phi(x)"""

def gelu_tanh(x: ArrayLike) -> Tensor:
    """GELU, tanh approximation"""

def silu(x: ArrayLike) -> Tensor:
    """x * sigmoid(x)"""

def neg(x: ArrayLike) -> Tensor:
    """-x"""

def exp(x: ArrayLike) -> Tensor:
    """e^x"""

def log(x: ArrayLike) -> Tensor:
    """Natural logarithm"""

def sqrt(x: ArrayLike) -> Tensor:
    """Square root"""

def tanh(x: ArrayLike) -> Tensor:
    """Hyperbolic tangent"""

def sigmoid(x: ArrayLike) -> Tensor:
    """1 / (1 + e^-x)"""

def square(x: ArrayLike) -> Tensor:
    """x * x"""

def abs(x: ArrayLike) -> Tensor:
    """|x|; its derivative at 0 is 0"""

def softplus(x: ArrayLike) -> Tensor:
    """log(1 + e^x)"""

def log_sigmoid(x: ArrayLike) -> Tensor:
    """log(1 / (1 + e^-x)), without overflow"""

def add(a: ArrayLike, b: ArrayLike) -> Tensor:
    """a + b; shapes broadcast as in NumPy"""

def sub(a: ArrayLike, b: ArrayLike) -> Tensor:
    """a - b; shapes broadcast as in NumPy"""

def mul(a: ArrayLike, b: ArrayLike) -> Tensor:
    """a * b; shapes broadcast as in NumPy"""

def div(a: ArrayLike, b: ArrayLike) -> Tensor:
    """a / b; shapes broadcast as in NumPy"""

def matmul(a: ArrayLike, b: ArrayLike) -> Tensor:
    """
    a @ b over the last two axes: [..., m, k], [..., k, n] -> [..., m, n].
    A vector is a row on the left, a column on the right, whose axis the result lacks.
    """

def sum(x: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Sum over one axis, several, or all."""

def mean(x: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Mean over one axis, several, or all; 0 of no elements."""

def max(x: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """
    Largest element over one axis, several, or all; equal ones share the gradient.
    """

def min(x: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """
    Smallest element over one axis, several, or all; equal ones share the gradient.
    """

def argmax(x: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """
    Where the first largest element is: along an axis, or in the flattened tensor.
    """

def argmin(x: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """
    Where the first smallest element is: along an axis, or in the flattened tensor.
    """

def where(mask: ArrayLike, a: ArrayLike, b: ArrayLike) -> Tensor:
    """mask ? a : b; mask is bool, all three broadcast together."""

def concat(parts: Sequence[Any], axis: int) -> Tensor:
    """Copy of the parts, concatenated."""

def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, *, activation: str = 'none', residual: ArrayLike | None = None) -> Tensor:
    """
    activation(x @ weight.T + bias) + residual: x [..., in], weight [out, in] -> [..., out].
    """

def softmax(x: ArrayLike, axis: int = -1) -> Tensor:
    """Softmax along one axis; rows of -inf give zeros."""

def log_softmax(x: ArrayLike, axis: int = -1) -> Tensor:
    """Logarithm of the softmax."""

def layer_norm(x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, eps: float = 1e-05) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis."""

def rms_norm(x: ArrayLike, weight: ArrayLike | None = None, eps: float = 1e-06) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""

def embedding(weight: ArrayLike, ids: Sequence[int] | ArrayLike) -> Tensor:
    """Looks up rows of weight [V, E]: ids [...] -> [..., E]."""

def dropout(x: ArrayLike, p: float, rng: Rng | None = None) -> Tensor:
    """Active if and only if rng is given."""

def cross_entropy(logits: ArrayLike, targets: ArrayLike, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = 'mean') -> Tensor:
    """
    Cross-entropy from logits [..., V] and targets [...]. The mean is over targets that are not ignored, 0 if there are none.
    """

class RotaryScaling:
    """
    Scaling of rotary frequencies for texts longer than in pre-training.
    kind: 'none', 'linear', 'llama3' or 'yarn'. Fields are keyword arguments.
    """

    def __init__(self, *, factor: float = 1.0, original_context: int = 0, low_freq_factor: float = 1.0, high_freq_factor: float = 4.0, beta_fast: float = 32.0, beta_slow: float = 1.0, attention_factor: float = 0.0, truncate: bool = True, kind: str = 'none') -> None: ...

    factor: float
    original_context: int
    low_freq_factor: float
    high_freq_factor: float
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool
    kind: str

    def __eq__(self, arg: RotaryScaling, /) -> bool: ...

class RotaryTable:
    """
    Cosines and sines of rotary angles, float32: those of float64 queries are good to 6e-8, too.
    """

    def __init__(self, cos: ArrayLike, sin: ArrayLike, layout: str = 'halves') -> None: ...

    @property
    def cos(self) -> Tensor: ...

    @property
    def sin(self) -> Tensor: ...

    @property
    def layout(self) -> str: ...

def rotary_table(length: int, rotary_dim: int, starts: ArrayLike = 0, base: float = 10000.0, layout: str = 'halves', scaling: RotaryScaling | None = None) -> RotaryTable:
    """
    Angles position * base^(-2k/R), scaled, for positions start, start + 1, ...
    """

def rotary(x: ArrayLike, table: RotaryTable, heads: int = -1) -> Tensor:
    """Rotates the first R dimensions of x [B, T, N, D]."""

def equal(a: ArrayLike, b: ArrayLike) -> Tensor:
    """a == b, element by element; shapes broadcast."""

def not_equal(a: ArrayLike, b: ArrayLike) -> Tensor:
    """a != b, element by element; shapes broadcast."""

def less(a: ArrayLike, b: ArrayLike) -> Tensor:
    """a < b, element by element; shapes broadcast."""

def less_equal(a: ArrayLike, b: ArrayLike) -> Tensor:
    """a <= b, element by element; shapes broadcast."""

def greater(a: ArrayLike, b: ArrayLike) -> Tensor:
    """a > b, element by element; shapes broadcast."""

def greater_equal(a: ArrayLike, b: ArrayLike) -> Tensor:
    """a >= b, element by element; shapes broadcast."""

def maximum(a: ArrayLike, b: ArrayLike) -> Tensor:
    """
    The larger of a and b; NaN if one is. Equal ones get half of the gradient each.
    """

def minimum(a: ArrayLike, b: ArrayLike) -> Tensor:
    """
    The smaller of a and b; NaN if one is. Equal ones get half of the gradient each.
    """

def pow(a: ArrayLike, b: ArrayLike) -> Tensor:
    """a to the power b; shapes broadcast."""

def clamp(x: ArrayLike, low: float | None = None, high: float | None = None) -> Tensor:
    """
    x, but not below low nor above high; the gradient passes where x is within.
    """

def sort(x: ArrayLike, axis: int = -1, *, descending: bool = False) -> Tensor:
    """In order along an axis; NaN counts as the largest number."""

def argsort(x: ArrayLike, axis: int = -1, *, descending: bool = False) -> Tensor:
    """The places of the elements in order; equal ones keep theirs."""

def topk(x: ArrayLike, count: int, axis: int = -1, *, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The largest elements along an axis, in order, and their places."""

def take(x: ArrayLike, indices: ArrayLike, axis: int) -> Tensor:
    """x[..., indices, ...]: the axis is replaced by those of indices."""

def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int) -> Tensor:
    """
    y[..., j, ...] = x[..., indices[..., j, ...], ...] along the axis; the others broadcast.
    """

def nonzero(mask: ArrayLike) -> tuple[Any, ...]:
    """The places of the true elements of a bool tensor: one tensor per axis."""

def cumsum(x: ArrayLike, axis: int, *, reverse: bool = False) -> Tensor:
    """
    Running sums along an axis, from its beginning or, reversed, from its end.
    """

def pad(x: ArrayLike, axis: int, before: int = 0, after: int = 0, *, value: float = 0.0) -> Tensor:
    """Elements of a value at the ends of an axis."""

def shift(x: ArrayLike, count: int, axis: int, *, value: float = 0.0) -> Tensor:
    """
    y[i + count] = x[i] along an axis; what leaves is lost, the value comes in.
    """

def roll(x: ArrayLike, count: int, axis: int) -> Tensor:
    """
    y[i + count] = x[i] along an axis; what leaves comes in at the other end.
    """

def conv1d(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, *, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> Tensor:
    """
    Cross-correlation of x [B, C, T] with weight [O, C / groups, K] -> [B, O, T'].
    """

def solve_triangular(a: ArrayLike, b: ArrayLike, *, lower: bool = True, transposed: bool = False, unit: bool = False) -> Tensor:
    """
    x with a @ x = b, of which one triangle is read: a [..., n, n], b [..., n, m]. transposed: of its transpose; unit: the
    diagonal counts as 1.
    """

def linear_attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, *, log_decay: ArrayLike | None = None, beta: ArrayLike | None = None, rule: str = 'retention', scale: float | None = None, chunk: int = 64, state: ArrayLike | None = None, lengths: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
    """
    (out, state) of linear attention with a state S [D, Dv] per head, causal: out_t = scale * S_t^T q_t, where for a token's
    key k and value v

      rule='retention'    S = exp(log_decay) S + k v^T; without log_decay plain linear attention
      rule='delta'        S = S + beta k (v - S^T k)^T
      rule='gated_delta'  the delta rule on exp(log_decay) S

    Shapes    q [B, H, T, D], k [B, Hkv, T, D], v [B, Hkv, T, Dv] -> [B, H, T, Dv]; log_decay [B, Hkv, T], or
              [B, Hkv, T, D] for each row of S; beta [B, Hkv, T], default 1; state [B, Hkv, D, Dv]
    state     that after the tokens before, which the call before returned
    lengths   [B] tokens per sequence: outputs past them are 0, the state is that after them
    chunk     tokens from one state that the backward keeps to the next

    The bits are the same for any chunk, batch, number of threads, and split of a sequence into calls.
    """

def activate(x: ArrayLike, activation: str) -> Tensor:
    """Elementwise 'none', 'relu', 'gelu', 'gelu_tanh' or 'silu'."""

def gated(gate: ArrayLike, up: ArrayLike, activation: str) -> Tensor:
    """activation(gate) * up, both of one shape: SwiGLU with 'silu'."""

def glu(x: ArrayLike, activation: str) -> Tensor:
    """
    activation(gate) * up, the halves of the last axis: x [..., 2F] -> [..., F].
    """

def activate_dropout(x: ArrayLike, activation: str, p: float, rng: Rng | None = None) -> Tensor:
    """dropout(activate(x)) in one pass; active if and only if rng is given."""

def add_dropout(residual: ArrayLike, x: ArrayLike, p: float, rng: Rng | None = None) -> Tensor:
    """
    residual + dropout(x) in one pass, both of one shape; active if and only if rng is given.
    """

def add_layer_norm(x: ArrayLike, residual: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, eps: float = 1e-05) -> tuple[Tensor, Tensor]:
    """
    (x + residual, layer_norm(x + residual)) in one pass: x, residual [..., D], weight, bias [D].
    """

def add_rms_norm(x: ArrayLike, residual: ArrayLike, weight: ArrayLike | None = None, eps: float = 1e-06) -> tuple[Tensor, Tensor]:
    """
    (x + residual, rms_norm(x + residual)) in one pass: x, residual [..., D], weight [D].
    """

def linear_cross_entropy(x: ArrayLike, weight: ArrayLike, targets: ArrayLike, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = 'mean') -> Tensor:
    """
    cross_entropy(x @ weight.T, targets) without storing all logits: x [..., E], weight [V, E],
    targets [...]; reduction 'mean' or 'sum'.
    """

def rotary_frequencies(rotary_dim: int, base: float = 10000.0, scaling: RotaryScaling | None = None) -> list[float]:
    """base^(-2k / rotary_dim) for k < rotary_dim / 2, scaled."""

def rotary_amplitude(scaling: RotaryScaling) -> float:
    """The factor of sines and cosines under a scaling."""

def scale(x: ArrayLike, factor: float) -> Tensor:
    """x * factor"""

def add_scalar(x: ArrayLike, value: float) -> Tensor:
    """x + value"""

def reshape(x: ArrayLike, shape: ShapeLike) -> Tensor:
    """The same elements in another shape; one size may be -1."""

def transpose(x: ArrayLike, a: int, b: int) -> Tensor:
    """View with two axes swapped."""

def permute(x: ArrayLike, axes: Sequence[int]) -> Tensor:
    """View whose axis i is x's axis axes[i]."""

def slice(x: ArrayLike, axis: int, begin: int, end: int) -> Tensor:
    """View of the elements [begin, end) of one axis."""

def split(x: ArrayLike, sizes: Sequence[int], axis: int) -> list[Tensor]:
    """Consecutive views of these sizes along one axis."""

def expand(x: ArrayLike, shape: ShapeLike) -> Tensor:
    """View with axes of size 1 repeated."""

def contiguous(x: ArrayLike) -> Tensor:
    """Row-major: x itself or a copy."""

def cast(x: ArrayLike, dtype: DTypeLike) -> Tensor:
    """x in another dtype, with a gradient."""

def masked_scores(scores: ArrayLike, valid_lens: ArrayLike, value: float = -1000000.0) -> Tensor:
    """
    scores [B, Tq, Tk] with `value` at keys from valid_lens [B] or [B, Tq] on, in a new tensor. Not needed for attention:
    mask=mh.lengths(valid_lens) excludes them. A length below 0 or above Tk is refused.
    """

def masked_softmax(scores: ArrayLike, valid_lens: ArrayLike) -> Tensor:
    """
    Softmax of scores [B, Tq, Tk] over the keys before valid_lens [B] or [B, Tq]; 0 beyond them, and everywhere if the
    length is 0.
    """

class Mask:
    """A set of allowed (query, key) pairs; parts are combined with &."""

    def __init__(self) -> None: ...

    def __and__(self, arg: Mask, /) -> Mask: ...

    def __repr__(self) -> str: ...

    def __bool__(self) -> bool: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

def mask_of(recipes: Sequence[Any]) -> Mask:
    """
    The Mask of (function of this module, its arguments, number of the part) for each part.
    """

def program_mask(program: ScoreProgram, align: str | int | Sequence[int] = 'end') -> Mask:
    """
    The Mask of pairs for which the function is true. align: of the positions, as in causal().
    """

def keep(flags: ArrayLike) -> Mask:
    """True = may attend; bool, broadcast right-aligned to [B, H, Tq, Tk]."""

def drop(flags: ArrayLike) -> Mask:
    """
    True = may not attend; bool, broadcast right-aligned to [B, H, Tq, Tk].
    """

def lengths(valid_lens: ArrayLike) -> Mask:
    """Keys j < valid_lens: integers [B] per sample or [B, Tq] per query."""

def query_lengths(valid_lens: ArrayLike) -> Mask:
    """Queries i < valid_lens [B]; later rows are empty."""

def from_labml_mask(mask: ArrayLike) -> Mask:
    """[Tq or 1, Tk, B or 1], every non-zero element may attend."""

def from_torch_mha_mask(mask: ArrayLike) -> Mask:
    """attn_mask of torch.nn.MultiheadAttention: True may NOT attend."""

def from_torch_key_padding_mask(mask: ArrayLike) -> Mask:
    """bool [B, Tk]: True is padding."""

def from_torch_sdpa_mask(mask: ArrayLike) -> Mask:
    """attn_mask of scaled_dot_product_attention: True may attend."""

def causal(align: str | int | Sequence[int] = 'end') -> Mask:
    """
    Query i sees keys j <= i + offset. align: 'end' (the last query sees the last key), 'start', an offset, or
    one offset per sample.
    """

def window(left: ArrayLike, right: ArrayLike, align: str | int | Sequence[int] = 'end') -> Mask:
    """
    Keys from left before to right after the diagonal; -1 leaves a side open.
    """

def prefix(length: ArrayLike, align: str | int | Sequence[int] = 'end') -> Mask:
    """Causal, except that everybody sees the first keys."""

def documents(query_ids: ArrayLike, key_ids: ArrayLike | None = None) -> Mask:
    """Query and key of the same document: integer ids [T] or [B, T]."""

def blocks(flags: ArrayLike, query_block: int, key_block: int) -> Mask:
    """Block-sparse: bool flags select the allowed blocks."""

def alibi_slopes(num_heads: int) -> Tensor:
    """Slopes [H] of attention with linear biases."""

class AttentionCapture:
    """
    What to look at inside attention; pass it as capture= and read it after the call.
    """

    def __init__(self, *, weights: bool = True, stage: str = 'probabilities', heads: Sequence[int] = [], query_rows: Sequence[int] = [], key_mass: bool = False, entropy: bool = False, top_k: int = 0) -> None: ...

    @property
    def weights(self) -> Tensor | None:
        """[B, heads, query_rows, Tk]"""

    @property
    def key_mass(self) -> Tensor | None:
        """[B, H, Tk]"""

    @property
    def entropy(self) -> Tensor | None:
        """[B, H, Tq], in nats: of all probabilities, that of a sink among them"""

    @property
    def top_weights(self) -> Tensor | None:
        """[B, H, Tq, top_k]"""

    @property
    def top_keys(self) -> Tensor | None:
        """int64, -1 where there are fewer keys"""

    @property
    def heads(self) -> list[int]: ...

    @property
    def query_rows(self) -> list[int]: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

def capture_of(wanted: dict[Any, Any], captured: dict[Any, Any]) -> Any:
    """An AttentionCapture by its keyword arguments, with what it captured."""

def attention_profile(name: str, embed_dim: int = 0) -> str:
    """
    The rule of 'labml', 'blog', 'lecture', 'd2l', 'torch_mha', 'torch_sdpa' or 'onnx' as text.
    """

@overload
def attention(query: ArrayLike | None, key: ArrayLike | None, value: ArrayLike | None, *, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, scale: float | None = None, dropout_p: float = 0.0, rng: Rng | None = None, layout: str = 'bhtd', return_lse: Literal[False] = False, allow_binary_bias: bool = False) -> Tensor: ...
@overload
def attention(query: ArrayLike | None, key: ArrayLike | None, value: ArrayLike | None, *, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, scale: float | None = None, dropout_p: float = 0.0, rng: Rng | None = None, layout: str = 'bhtd', return_lse: Literal[True], allow_binary_bias: bool = False) -> tuple[Tensor, Tensor]:
    """
    softmax(softcap(scale * query @ (key + relative_key).T) + biases, over the keys the mask allows) @ (value +
    relative_value).

    Shapes    query [B, H, Tq, D], key [B, Hkv, Tk, D], value [B, Hkv, Tk, Dv] -> [B, H, Tq, Dv];
              layout='bthd' swaps H and T in all of them. H % Hkv == 0.
    Dtypes    float32, float64, bfloat16, float16, the same for all three; of biases, tables and sinks
              float64 with float64, else float32 or the type of 16-bit inputs
    Gradient  query, key, value, biases, slopes, tables and sinks, from the output, the log-sum-exp
              (return_lse) and what capture receives
    Memory    O(Tq + Tk) per head beyond inputs and output
    Rows      without any allowed key give 0, see empty_row
    dropout_p of the weights; it acts only in a call with an rng
    relative_bias, relative_key, relative_value
              [H or 1, span], [H or 1, span, D] and [H or 1, span, Dv]: a number and vectors per distance, that of query i and key
              j at clamp(j - i - offset + relative_center, 0, span - 1);
              offset: that of the mask's first part which aligns queries with keys
    sinks     [H]: one more score in every row's softmax, of no key; the log-sum-exp counts it, and is the sink
              in a row without any key
    normalise, weight
              'sum', 'abs_sum', 'none': the weights are weight(score with all terms), a score_mod(), or the
              scores, over their sum, that of their absolute values, or nothing, instead of a softmax;
              return_lse then returns what a row was divided by, 0 for rows without keys
    Raises    ShapeError, DtypeError, ValueError
    """

def attention_packed(qkv: ArrayLike, num_heads: int, num_kv_heads: int = 0, *, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, scale: float | None = None, dropout_p: float = 0.0, rng: Rng | None = None, layout: str = 'bhtd', return_lse: bool = False, allow_binary_bias: bool = False) -> Tensor:
    """
    Self-attention on the output of one projection: qkv [B, T, (H + 2*Hkv)*D] -> [B, T, H*D], without copies;
    otherwise as attention(). num_kv_heads 0 is num_heads.
    """

def attention_ragged(query: ArrayLike | None, key: ArrayLike | None, value: ArrayLike | None, cu_seqlens_q: ArrayLike, cu_seqlens_k: ArrayLike, *, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, scale: float | None = None, dropout_p: float = 0.0, rng: Rng | None = None, layout: str = 'bhtd', return_lse: bool = False, allow_binary_bias: bool = False) -> Tensor:
    """
    Sequences packed without padding: query [N, H, D], key [M, Hkv, D], value [M, Hkv, Dv] -> [N, H, Dv].
    Sequence s has the query rows cu_seqlens_q[s] to cu_seqlens_q[s + 1], the keys likewise, and sees nothing of
    the others. The log-sum-exp is [H, N]; otherwise as attention().
    """

def attention_composed(query: ArrayLike | None, key: ArrayLike | None, value: ArrayLike | None, *, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, scale: float | None = None, dropout_p: float = 0.0, rng: Rng | None = None, layout: str = 'bhtd', return_lse: bool = False, allow_binary_bias: bool = False) -> Tensor:
    """
    attention() composed of plain ops in f64 over the whole [Tq, Tk] matrix, slow and easy to trust.
    Same arguments, shapes and gradients; layout 'bhtd' only, neither sparsemax nor entmax15, and of a capture all
    weights alone.
    """

def merge_attention(a_out: ArrayLike, a_lse: ArrayLike, b_out: ArrayLike, b_lse: ArrayLike) -> tuple[Tensor, Tensor]:
    """
    (out [..., Dv], lse [...]) of attention over the union of two disjoint key sets, from those of each (return_lse).
    float32 or float64; a sink counts in one of the two. Gradient: all four.
    """

def explain(query: ArrayLike | None, key: ArrayLike | None, value: ArrayLike | None, *, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, scale: float | None = None, dropout_p: float = 0.0, rng: Rng | None = None, layout: str = 'bhtd', return_lse: bool = False, allow_binary_bias: bool = False) -> Any:
    """
    Which rule attention() follows and how it would run, as text; runs nothing.
    """

def plan(queries: int, head_dim: int, batch: int = 1, heads: int = 1, kv_heads: int = 0, keys: int = 0, value_dim: int = 0, dtype: DTypeLike = 'float32', *, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, scale: float | None = None, dropout_p: float = 0.0, rng: Rng | None = None, layout: str = 'bhtd', return_lse: bool = False, allow_binary_bias: bool = False) -> Any:
    """
    explain() from sizes, before any memory is taken: query [batch, heads, queries, head_dim], key [batch, kv_heads,
    keys, head_dim], value [batch, kv_heads, keys, value_dim]; 0 is the query's number.
    """

def attention_rows(query: ArrayLike, key: ArrayLike, value: ArrayLike, weights: ArrayLike, mask: Mask | None, scale: float | None, inputs: Sequence[Tensor]) -> Tensor:
    """multihead.attention_rows, with the parts of ScoreRows one by one."""

class ScoreProgram:
    """A traced score or mask function."""

    @property
    def is_mask(self) -> bool: ...

    def raise_faults(self, who: str) -> None:
        """
        Raises errors since the last call: an index outside a captured tensor, a division by zero, an
        integer beyond 32 bits.
        """

    def differentiate(self, scores: ArrayLike, d_results: ArrayLike) -> tuple[Any, ...]:
        """
        (results, gradients of scores, those of captured tensors one after another) of scores [B, H, Tk, Tq].
        """

    @property
    def fingerprint(self) -> int: ...

    def block_classes(self, batch: int, heads: int, queries: int, keys: int, rows: int, columns: int) -> Tensor:
        """
        0 empty, 1 full, 2 partial per block of rows x columns, int32 [B or 1, H or 1, blocks, blocks].
        """

    def __len__(self) -> int: ...

    def mask(self) -> Mask:
        """program_mask() of this program."""

    @property
    def instructions(self) -> list[Any]:
        """As score_program() takes them."""

    @property
    def tables(self) -> list[Tensor]:
        """The captured tensors; those that learn as they are."""

    @property
    def learnt(self) -> list[Any]: ...

def score_program(code: Sequence[Any], tables: Sequence[Any], learnt: Sequence[Any]) -> ScoreProgram: ...

def random_numbers(key: int, indices: ArrayLike) -> Tensor:
    """random() of every column of indices, int32 [1 to 4, count]."""

class TorchCall:
    """State saved by a forward for its backward."""

def torch_forward(query: ArrayLike, key: ArrayLike, value: Any, keep: ArrayLike | None = None, bias: ArrayLike | None = None, causal: bool = False, scale: float | None = None, dropout_p: float = 0.0, seed: int = 0, needs_grad: bool = False, threads: int = 1, return_lse: bool = False, mask: ArrayLike | None = None, score_mod: ScoreProgram | None = None, who: str = 'scaled_dot_product_attention', softcap: float = 0.0) -> tuple[Any, ...]: ...

def use_exchange_of(tensor_type: Callable[..., Any]) -> None: ...

def use_openmp_of(library: str) -> bool: ...

def torch_backward(call: TorchCall, d_out: ArrayLike, d_lse: ArrayLike | None, query: ArrayLike, key: ArrayLike, value: Any, out: ArrayLike, want_query: bool, want_key: bool, want_value: bool, want_bias: bool, want_captured: bool = False) -> tuple[Any, ...]: ...

def manual_seed(seed: int) -> None:
    """Restarts the generator of modules that are made without rng."""

class Linear:
    """y = x @ weight.T + bias; initialised as PyTorch's."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, rng: Rng | None = None) -> None: ...

    def __call__(self, x: ArrayLike) -> Tensor: ...

    @property
    def in_features(self) -> int: ...

    @property
    def out_features(self) -> int: ...

    @property
    def weight(self) -> Tensor | None: ...

    @property
    def bias(self) -> Tensor | None: ...

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> Linear:
        """A copy with its own parameters."""

    def __copy__(self) -> Linear: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> Linear: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

class Embedding:
    """Rows of a table by number; initialised N(0, 1)."""

    def __init__(self, count: int, embed_dim: int, *, rng: Rng | None = None) -> None: ...

    def __call__(self, ids: Sequence[int] | ArrayLike) -> Tensor: ...

    @property
    def weight(self) -> Tensor | None: ...

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> Embedding:
        """A copy with its own parameters."""

    def __copy__(self) -> Embedding: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> Embedding: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

class Norm:
    """Layer norm or RMS norm over the last axis."""

    def __init__(self, size: int, *, kind: str = 'layer', eps: float = 1e-05, bias: bool = True) -> None: ...

    def __call__(self, x: ArrayLike) -> Tensor: ...

    @property
    def weight(self) -> Tensor | None: ...

    @property
    def bias(self) -> Tensor | None: ...

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> Norm:
        """A copy with its own parameters."""

    def __copy__(self) -> Norm: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> Norm: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

class FeedForward:
    """fc2(activation(fc1(x)))"""

    def __init__(self, embed_dim: int, hidden_dim: int, *, activation: str = 'gelu', gated: bool = False, bias: bool = True, dropout_p: float = 0.0, rng: Rng | None = None) -> None: ...

    def __call__(self, x: ArrayLike, *, rng: Rng | None = None) -> Tensor: ...

    @property
    def fc1(self) -> Linear: ...

    @property
    def fc2(self) -> Linear: ...

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> FeedForward:
        """A copy with its own parameters."""

    def __copy__(self) -> FeedForward: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> FeedForward: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

class SinusoidalPositionalEncoding:
    """
    x + sinusoids, then dropout: x [B, T, embed_dim] of any length. Nothing to train.
    """

    def __init__(self, embed_dim: int, *, dropout_p: float = 0.0, layout: str = 'interleaved') -> None: ...

    def __call__(self, x: ArrayLike, starts: ArrayLike = 0, rng: Rng | None = None) -> Tensor:
        """
        starts: position of the first token, one for all or one per row. Dropout acts exactly when rng is given.
        """

    def __getstate__(self) -> tuple[Any, ...]: ...

    def __setstate__(self, arg: tuple[int, float, str], /) -> None: ...

    def __repr__(self) -> str: ...

class RelativeBias:
    """
    A bias of the scores for each head and bucket of distances (T5), for attention's relative_bias.
    """

    def __init__(self, num_heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True, rng: Rng | None = None) -> None: ...

    def __call__(self) -> Tensor:
        """[num_heads, 2 * max_distance + 1]"""

    @property
    def weight(self) -> Tensor | None: ...

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> RelativeBias:
        """A copy with its own parameters."""

    def __copy__(self) -> RelativeBias: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> RelativeBias: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

def relative_buckets(count: int = 32, *, max_distance: int = 128, bidirectional: bool = True) -> Tensor:
    """
    T5's bucket of key position - query position from -max_distance to max_distance: int64.
    """

def position_ids(batch: int, length: int, starts: ArrayLike = 0, limit: int | None = None) -> Tensor:
    """[B, T] position ids: row b counts from starts[b], up to `limit`."""

def sinusoidal_positions(length: int, embed_dim: int, start: int = 0, layout: str = 'interleaved', base: float = 10000.0) -> Tensor:
    """
    Positions start, start + 1, … as rows of sines and cosines: [length, embed_dim], float32.
    """

class MultiHeadAttention:
    """
    Project, attend per head, concatenate, project.

    Shapes    query [B, Tq, query_dim], key [B, Tk, key_dim], value [B, Tk, value_dim] -> [B, Tq, embed_dim]
    Weights   in_proj_weight, in_proj_bias, as torch.nn.MultiheadAttention, or q_proj, k_proj, v_proj where sizes or biases differ (torch's go through multihead.torch.from_torch); out_proj
    """

    def __init__(self, embed_dim: int, num_heads: int, *, num_kv_heads: int = 0, head_dim: int = 0, value_head_dim: int = 0, query_dim: int = 0, key_dim: int = 0, value_dim: int = 0, query_bias: bool = True, key_bias: bool = True, value_bias: bool = True, out_bias: bool = True, scale: float | None = None, dropout_p: float = 0.0, qk_norm: bool = False, qk_norm_eps: float = 1e-06, zero_attn: bool = False, rng: Rng | None = None) -> None: ...

    def __call__(self, query: ArrayLike, key: ArrayLike | None = None, value: Any | None = None, *, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, rng: Rng | None = None, rotary: RotaryTable | None = None, residual: ArrayLike | None = None) -> Tensor:
        """
        key and value default to query and key. Dropout acts exactly when rng is given.
        """

    @property
    def in_proj_weight(self) -> Tensor | None: ...

    @property
    def in_proj_bias(self) -> Tensor | None: ...

    @property
    def q_proj(self) -> Linear: ...

    @property
    def k_proj(self) -> Linear: ...

    @property
    def v_proj(self) -> Linear: ...

    @property
    def out_proj(self) -> Linear: ...

    @property
    def q_norm(self) -> Norm: ...

    @property
    def k_norm(self) -> Norm: ...

    @property
    def embed_dim(self) -> int: ...

    @property
    def num_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def value_head_dim(self) -> int: ...

    @property
    def query_dim(self) -> int: ...

    @property
    def key_dim(self) -> int: ...

    @property
    def value_dim(self) -> int: ...

    @property
    def dropout_p(self) -> float: ...

    @property
    def qk_norm(self) -> bool: ...

    @property
    def zero_attn(self) -> bool: ...

    @property
    def scale(self) -> float:
        """What scores are multiplied by, 1/sqrt(head_dim) unless given."""

    def make_state(self, batch: int, capacity: int, *, window: int = 0, dtype: DTypeLike | None = None) -> DecodeState:
        """
        A DecodeState of one layer with room for `capacity` tokens per row. window > 0: a ring for tokens that see that
        many keys.
        """

    def decode(self, x: ArrayLike, state: DecodeState, *, counts: ArrayLike | None = None, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, rotary: RotaryTable | None = None) -> Tensor:
        """
        Self-attention of the next tokens x [B, T, embed_dim] to those of the state and, causally, to themselves; then they
        join it: counts[b] of row b, all by default. Nothing is recorded.
        """

    def project_memory(self, key: ArrayLike, value: Any | None = None) -> tuple[Tensor, Tensor]:
        """
        (keys, values) of a memory [B, Tk, dim], [B, Hkv, Tk, D] each: for attend(), as often as wanted.
        """

    def attend(self, query: ArrayLike, memory: tuple[Tensor, Tensor], *, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, rng: Rng | None = None) -> Tensor:
        """
        Attention of query [B, Tq, query_dim] to a memory from project_memory(); each of its rows may be used by several
        consecutive rows of queries.
        """

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> MultiHeadAttention:
        """A copy with its own parameters."""

    def __copy__(self) -> MultiHeadAttention: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> MultiHeadAttention: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

class TransformerLayer:
    """
    An encoder layer, a decoder layer (cross_attention=True), or a language model's.

    Options   query_bias, key_bias and value_bias are attention_bias unless given; hidden_dim is 4 * embed_dim,
              scale 1 / sqrt(head_dim), head_dim embed_dim / num_heads; norm 'layer' or 'rms'
    Shapes    x [B, T, embed_dim] -> the same
    Weights   as torch.nn.TransformerEncoderLayer and TransformerDecoderLayer; submodules by the same names
    """

    def __init__(self, *, embed_dim: int, num_heads: int, num_kv_heads: int = 0, head_dim: int = 0, value_head_dim: int = 0, attention_bias: bool = True, query_bias: bool | None = None, key_bias: bool | None = None, value_bias: bool | None = None, out_bias: bool = True, scale: float | None = None, attention_dropout_p: float = 0.0, qk_norm: bool = False, qk_norm_eps: float = 1e-06, zero_attn: bool = False, hidden_dim: int | None = None, activation: str = 'gelu', gated: bool = False, ffn_bias: bool = True, ffn_dropout_p: float = 0.0, norm: str = 'layer', norm_eps: float = 1e-05, norm_bias: bool = True, norm_first: bool = False, cross_attention: bool = False, dropout_p: float = 0.0, rng: Rng | None = None) -> None: ...

    def __call__(self, x: ArrayLike, *, memory: ArrayLike | None = None, memory_mask: Mask | None = None, cross_capture: AttentionCapture | None = None, state: DecodeState | None = None, counts: ArrayLike | None = None, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, rng: Rng | None = None, rotary: RotaryTable | None = None) -> Tensor:
        """
        The options of attention are the self-attention's. With a state, x attends to the state and, causally, to itself,
        and is appended to it: counts[b] tokens of row b, all by default.
        """

    @property
    def self_attn(self) -> MultiHeadAttention: ...

    @property
    def multihead_attn(self) -> MultiHeadAttention: ...

    @property
    def feed_forward(self) -> FeedForward: ...

    @property
    def norm1(self) -> Norm: ...

    @property
    def norm2(self) -> Norm: ...

    @property
    def norm3(self) -> Norm: ...

    @property
    def post_norm1(self) -> Norm: ...

    @property
    def post_norm2(self) -> Norm: ...

    @property
    def linear1(self) -> Linear: ...

    @property
    def linear2(self) -> Linear: ...

    def make_state(self, batch: int, capacity: int, *, window: int = 0, dtype: DTypeLike | None = None) -> DecodeState:
        """
        A DecodeState of this layer with room for `capacity` tokens per row. window > 0: a ring for a sliding window of that many
        keys. With cross_attention use start().
        """

    def start(self, memory: ArrayLike, memory_lengths: ArrayLike | None = None, *, capacity: int, dtype: DTypeLike | None = None) -> DecodeState:
        """
        A DecodeState with room for `capacity` target tokens per row. The keys and values of memory [B, Ts, embed_dim] are
        computed once, here; row b has memory_lengths[b] valid tokens, all by default. dtype: the memory's, or 'bfloat16'.
        """

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> TransformerLayer:
        """A copy with its own parameters."""

    def __copy__(self) -> TransformerLayer: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> TransformerLayer: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

class TransformerEncoder:
    """
    A stack of layers, then an optional norm; options as those of TransformerLayer.
    """

    def __init__(self, *, embed_dim: int, num_heads: int, num_kv_heads: int = 0, head_dim: int = 0, value_head_dim: int = 0, attention_bias: bool = True, query_bias: bool | None = None, key_bias: bool | None = None, value_bias: bool | None = None, out_bias: bool = True, scale: float | None = None, attention_dropout_p: float = 0.0, qk_norm: bool = False, qk_norm_eps: float = 1e-06, zero_attn: bool = False, hidden_dim: int | None = None, activation: str = 'gelu', gated: bool = False, ffn_bias: bool = True, ffn_dropout_p: float = 0.0, norm: str = 'layer', norm_eps: float = 1e-05, norm_bias: bool = True, norm_first: bool = False, cross_attention: bool = False, dropout_p: float = 0.0, num_layers: int = 6, final_norm: bool = False, rng: Rng | None = None) -> None: ...

    def __call__(self, x: ArrayLike, *, mask: Mask | None = None, rng: Rng | None = None, rotary: RotaryTable | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, empty_row: str = 'zero', capture: bool = False) -> Any:
        """capture: (result, [weights of every layer, before dropout])."""

    @property
    def layers(self) -> list[TransformerLayer]: ...

    @property
    def norm(self) -> Norm: ...

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> TransformerEncoder:
        """A copy with its own parameters."""

    def __copy__(self) -> TransformerEncoder: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> TransformerEncoder: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

class TransformerDecoder:
    """
    A stack of layers, then an optional norm; options as those of TransformerLayer.
    """

    def __init__(self, *, embed_dim: int, num_heads: int, num_kv_heads: int = 0, head_dim: int = 0, value_head_dim: int = 0, attention_bias: bool = True, query_bias: bool | None = None, key_bias: bool | None = None, value_bias: bool | None = None, out_bias: bool = True, scale: float | None = None, attention_dropout_p: float = 0.0, qk_norm: bool = False, qk_norm_eps: float = 1e-06, zero_attn: bool = False, hidden_dim: int | None = None, activation: str = 'gelu', gated: bool = False, ffn_bias: bool = True, ffn_dropout_p: float = 0.0, norm: str = 'layer', norm_eps: float = 1e-05, norm_bias: bool = True, norm_first: bool = False, cross_attention: bool = False, dropout_p: float = 0.0, num_layers: int = 6, final_norm: bool = False, rng: Rng | None = None) -> None: ...

    def __call__(self, x: ArrayLike, memory: ArrayLike | None = None, *, mask: Mask | None = None, memory_mask: Mask | None = None, rng: Rng | None = None, rotary: RotaryTable | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, empty_row: str = 'zero', capture: bool = False, cross_capture: bool = False, state: DecodeState | None = None, counts: ArrayLike | None = None) -> Any:
        """
        causal() is always part of the mask. With a state from start() instead of a memory, x attends to it and
        is appended to it: counts[b] tokens of row b, all by default; the result is bitwise equal to one call on everything.
        capture, cross_capture: (result, [weights of every layer], ...).
        """

    def start(self, memory: ArrayLike, memory_lengths: ArrayLike | None = None, *, capacity: int, dtype: DTypeLike | None = None) -> DecodeState:
        """
        A DecodeState with room for `capacity` target tokens per row. The keys and values of memory [B, Ts, embed_dim] are
        computed once, here; row b has memory_lengths[b] valid tokens, all by default. dtype: the memory's, or 'bfloat16'.
        """

    @property
    def layers(self) -> list[TransformerLayer]: ...

    @property
    def norm(self) -> Norm: ...

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> TransformerDecoder:
        """A copy with its own parameters."""

    def __copy__(self) -> TransformerDecoder: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> TransformerDecoder: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

class Transformer:
    """decoder(target, encoder(source)); options as two dicts."""

    def __init__(self, *, encoder: dict[Any, Any], decoder: dict[Any, Any], rng: Rng | None = None) -> None: ...

    def __call__(self, source: ArrayLike, target: ArrayLike, *, source_mask: Mask | None = None, target_mask: Mask | None = None, rng: Rng | None = None) -> Tensor:
        """source_mask also applies to cross-attention."""

    @property
    def encoder(self) -> TransformerEncoder: ...

    @property
    def decoder(self) -> TransformerDecoder: ...

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> Transformer:
        """A copy with its own parameters."""

    def __copy__(self) -> Transformer: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> Transformer: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

class DecodeState:
    """
    Keys and values of every layer and the number of tokens in each row; created by LanguageModel.make_state(),
    TransformerDecoder.start(), Seq2Seq.start(), and make_state() of layers and attention.
    Copies share memory until one of them is written to.
    """

    @property
    def lengths(self) -> list[int]:
        """Tokens per row; the position of the next one."""

    @property
    def starts(self) -> list[int]:
        """Ring: tokens dropped per row."""

    @property
    def capacity(self) -> int: ...

    @property
    def window(self) -> int: ...

    @property
    def batch(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def room(self) -> int:
        """Tokens a call may add to a row."""

    def layers(self) -> list[Any]:
        """
        (key, value) of each layer, [B, Hkv, capacity, D] each; row b holds lengths[b] tokens.
        """

    def cross(self) -> list[Any]:
        """
        (key, value) of the memory, per layer: [rows, Hkv, Ts, D] each, projected once; none in a decoder-only model.
        """

    @property
    def cross_lengths(self) -> list[int]:
        """Valid tokens of each row of the memory."""

    @property
    def group(self) -> int:
        """Rows of the state per row of the memory (1 without)."""

    @property
    def held(self) -> list[int]:
        """Tokens held per row: lengths - starts."""

    def reorder(self, rows: ArrayLike) -> None:
        """
        Replaces row i by the former row rows[i]: for beam search, and batches that shrink or grow. The memory's rows follow.
        """

    def repeat(self, times: int) -> None:
        """Repeats every row `times` times."""

    @overload
    def truncate(self, length: int) -> None:
        """Drops the tokens of every row beyond `length`."""

    @overload
    def truncate(self, row: int, length: int) -> None:
        """Drops the tokens of one row beyond `length`."""

    def put(self, to: int, other: DecodeState, row: int, tokens: int) -> None:
        """
        The first `tokens` tokens of a row of another state of the same model become row `to`.
        """

    def clear(self, row: int) -> None:
        """Empties the row."""

    def fork(self) -> DecodeState:
        """A copy; shared memory is copied on write."""

    def __copy__(self) -> DecodeState: ...

    def __deepcopy__(self, arg: Any, /) -> DecodeState: ...

@overload
def save_state(path: str | bytes | os.PathLike[str], state: DecodeState, model: LanguageModel) -> None: ...

@overload
def save_state(path: str | bytes | os.PathLike[str], state: DecodeState, model: Seq2Seq) -> None:
    """Writes a decoding state with a checksum of the model's weights."""

@overload
def load_state(path: str | bytes | os.PathLike[str], model: LanguageModel, capacity: int = 0) -> DecodeState: ...

@overload
def load_state(path: str | bytes | os.PathLike[str], model: Seq2Seq, capacity: int = 0) -> DecodeState:
    """
    Loads a decoding state; FormatError if it belongs to another model. capacity 0: as saved.
    """

class Points:
    """
    What to keep, replace or cut off at which named points of a model; acts in a with block.

    Names are those of the parameters: layers.0.resid_pre, .resid_mid, .resid_post, .attn_out, .mlp_out, .mlp_pre,
    .mlp_post, .norm1.scale, .norm1.normalized, .self_attn.q, .k, .v, .rot_q, .rot_k, .scores, .pattern, .z, .result;
    embed, pos_embed, final_norm.scale, final_norm.normalized. They may be shell patterns ('layers.*.self_attn.z')
    and TransformerLens's names ('blocks.0.attn.hook_z').
    """

    def __init__(self) -> None: ...

    def __enter__(self) -> Points: ...

    def __exit__(self, type: Any | None, value: Any | None, traceback: Any | None) -> None: ...

    def keep(self, pattern: str, *, heads: ArrayLike | None = None, rows: ArrayLike | None = None) -> Self:
        """
        Keeps the tensors at the points, or those heads and rows (tokens; queries of scores and patterns) of them.
        """

    def keep_gradient(self, pattern: str) -> Self:
        """
        Keeps the gradients with respect to the tensors there, when a Tape runs backward.
        """

    def edit(self, pattern: str, function: Function, *, heads: ArrayLike | None = None, rows: ArrayLike | None = None) -> Self:
        """
        Replaces the tensors at the points by function(x, name); None leaves them.
        """

    def exclude(self, pattern: str, mask: Mask) -> Self:
        """One more mask for the attentions of that name ('layers.3.self_attn')."""

    def check(self) -> None:
        """
        Raises ValueError for a pattern that met no point; the end of the with block does it, too.
        """

    @property
    def kept(self) -> dict[str, Tensor]:
        """Tensors by name."""

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Gradients by name."""

    @property
    def seen(self) -> set[str]:
        """The names of all points passed."""

    @staticmethod
    def name_of(name: str) -> str:
        """Our name for one of TransformerLens's."""

@overload
def attention_page(model: LanguageModel, tokenizer: Tokenizer, title: str, texts: Sequence[str], layers: Sequence[int], heads: Sequence[int], rows: Sequence[int], measures: bool | None, off: Sequence[Sequence[int]], cut: Sequence[Sequence[int]]) -> str: ...

@overload
def attention_page(model: Encoder, tokenizer: Tokenizer, title: str, texts: Sequence[str], layers: Sequence[int], heads: Sequence[int], rows: Sequence[int], measures: bool | None, off: Sequence[Sequence[int]], cut: Sequence[Sequence[int]]) -> str: ...

@overload
def attention_page(model: Seq2Seq, source_tokenizer: Tokenizer, tokenizer: Tokenizer, title: str, texts: Sequence[str], target: str, layers: Sequence[int], heads: Sequence[int]) -> str: ...

class AttentionSizes:
    """What a model asks of the attention of a layer."""

    @property
    def embed_dim(self) -> int: ...

    @property
    def num_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def bias(self) -> bool: ...

    @property
    def out_bias(self) -> bool: ...

class OwnAttentionCall:
    """
    What an own attention knows of a call: options, the keywords for multihead.attention (mask, dropout ...); rotary, a
    RotaryTable or None; positions, i64 [B or 1, T]; counts, the new tokens of each row, None if all are; is_cached.
    """

    @property
    def options(self) -> CallOptions: ...

    @property
    def rotary(self) -> RotaryTable | None: ...

    @property
    def positions(self) -> Tensor: ...

    @property
    def counts(self) -> Tensor | None: ...

    @property
    def is_cached(self) -> bool: ...

    def grown(self, name: str, x: Tensor) -> Tensor:
        """
        x [B, heads, T, dim] joined to the former tokens' under this name; x itself without a cache.
        """

    def carried(self, name: str) -> Tensor | None:
        """What carry() kept last, 0 at first; None without a cache."""

    def carry(self, name: str, x: Tensor) -> None:
        """Keeps a tensor that caches() names with three sizes for the next call."""

def register_attention(name: str, make: Callable[..., Any]) -> None:
    """Registers make(sizes, rng), which makes the attention of a layer."""

class LanguageModelConfig:
    """
    The configuration of a language model: sizes, positions ('none', 'learned', 'sinusoidal', 'rotary', 'alibi'),
    norm ('layer', 'rms'), activation, gated, biases, dropout. Fields are keyword arguments.
    """

    def __init__(self, *, rotary_scaling: RotaryScaling = ..., vocab_size: int = 0, context: int = 256, window: int = 0, global_every: int = 0, global_first: bool = False, causal: bool = True, num_layers: int = 4, num_heads: int = 4, num_kv_heads: int = 0, head_dim: int = 0, embed_dim: int = 128, ffn_dim: int = 0, pruned_heads: Sequence[Any] = ..., positions: str = 'learned', position_offset: int = 0, rotary_base: float = 10000.0, local_rotary_base: float = 0.0, rotary_fraction: float = 1.0, rotary_layout: str = 'halves', unrotated_every: int = 0, norm: str = 'layer', norm_eps: float = 1e-05, norm_first: bool = True, block: str = 'sequential', final_norm: bool = True, activation: str = 'gelu_tanh', gated: bool = False, attention_bias: bool = True, qk_norm: bool = False, qk_norm_joint: bool = False, scale_dim: int = 0, attention_scale: float = 0.0, attention_softcap: float = 0.0, logit_softcap: float = 0.0, logit_divisor: float = 1.0, residual_factor: float = 1.0, out_bias: bool = True, ffn_bias: bool = True, head: bool = True, head_bias: bool = False, tie_embeddings: bool = True, scale_embeddings: bool = False, embedding_factor: float = 1.0, embedding_norm: bool = False, dropout_p: float = 0.0, attention_dropout_p: float = 0.0, ffn_dropout_p: float = 0.0, init_std: float = 0.02, scaled_residual_init: bool = True, default_linear_init: bool = False, attention: str = '', latent_dim: int = 0, query_latent_dim: int = 0, value_head_dim: int = 0) -> None: ...

    rotary_scaling: RotaryScaling
    vocab_size: int
    context: int
    window: int
    global_every: int
    global_first: bool
    causal: bool
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    embed_dim: int
    ffn_dim: int

    @property
    def pruned_heads(self) -> list[list[int]]: ...

    @pruned_heads.setter
    def pruned_heads(self, arg: Sequence[Sequence[int]], /) -> None: ...

    positions: str
    position_offset: int
    rotary_base: float
    local_rotary_base: float
    rotary_fraction: float
    rotary_layout: str
    unrotated_every: int
    norm: str
    norm_eps: float
    norm_first: bool
    block: str
    final_norm: bool
    activation: str
    gated: bool
    attention_bias: bool
    qk_norm: bool
    qk_norm_joint: bool
    scale_dim: int
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    logit_divisor: float
    residual_factor: float
    out_bias: bool
    ffn_bias: bool
    head: bool
    head_bias: bool
    tie_embeddings: bool
    scale_embeddings: bool
    embedding_factor: float
    embedding_norm: bool
    dropout_p: float
    attention_dropout_p: float
    ffn_dropout_p: float
    init_std: float
    scaled_residual_init: bool
    default_linear_init: bool
    attention: str
    latent_dim: int
    query_latent_dim: int
    value_head_dim: int

    def __eq__(self, arg: LanguageModelConfig, /) -> bool: ...

def language_model_preset(name: str) -> LanguageModelConfig:
    """'tiny', 'small' or 'tutorial'."""

class LanguageModel:
    """
    A decoder-only Transformer: tokens [B, T] -> logits [B, T, vocab_size].
    """

    def __init__(self, config: LanguageModelConfig, *, attention: type[Attention] | None = None, rng: Rng | None = None) -> None:
        """
        attention: a subclass of multihead.nn.Attention in place of multi-head attention.
        """

    @property
    def config(self) -> LanguageModelConfig: ...

    def __call__(self, tokens: ArrayLike, *, mask: Mask | None = None, rng: Rng | None = None, state: DecodeState | None = None, counts: ArrayLike | None = None) -> Tensor:
        """
        Logits; causal() is always in the mask. With a state, tokens attend to it and are appended to it: counts[b] of row
        b, all by default.
        """

    def features(self, tokens: ArrayLike, *, mask: Mask | None = None, rng: Rng | None = None, state: DecodeState | None = None, counts: ArrayLike | None = None) -> Tensor:
        """The last hidden states [B, T, E]."""

    def sequence_features(self, sequences: Sequence[Sequence[int]], *, rng: Rng | None = None) -> Tensor:
        """
        The last hidden states [N, E] of lists of token ids of any lengths, concatenated without padding.
        """

    def features_from(self, layer: int, resid: ArrayLike, *, mask: Mask | None = None, rng: Rng | None = None) -> Tensor:
        """
        features() starting at a layer, from its resid_pre [B, T, E] (with post-norm not the resid_post of the layer
        before, which is not normed yet); num_layers: only the final norm.
        """

    def logits(self, features: ArrayLike) -> Tensor:
        """Only the output layer: [..., E] -> [..., vocab_size]."""

    @property
    def longest(self) -> int:
        """Longest supported sequence."""

    def make_state(self, batch: int = 1, capacity: int = 0, *, ring: bool = False, chunk: int = 256, dtype: DTypeLike | None = None) -> DecodeState:
        """
        A DecodeState with room for `capacity` tokens per row (0: the model's context). ring: memory for the window
        only, calls of up to `chunk` tokens. dtype: the model's, 'bfloat16' or 'int8' (8 bits and a scale
        per head and token).
        """

    def explain(self, state: DecodeState, tokens: int = 1) -> str:
        """
        Whether a call with this many new tokens per row of the state runs as kernel calls alone or through the
        modules, and why; the bits are the same.
        """

    def state_bytes(self, batch: int = 1, capacity: int = 0, *, ring: bool = False, chunk: int = 256, dtype: DTypeLike | None = None) -> int:
        """The size in bytes of make_state()."""

    def loss(self, tokens: ArrayLike, targets: ArrayLike, *, rng: Rng | None = None, label_smoothing: float = 0.0) -> Tensor:
        """Mean next-token cross-entropy in nats; targets -100 are ignored."""

    def attention_weights(self, tokens: ArrayLike) -> list[Tensor]:
        """The attention weights [B, H, T, T] of every layer."""

    @overload
    def generate(self, prompts: Sequence[int], *, cache_dtype: DTypeLike | None = None, max_new_tokens: int = 100, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int = 0, stop_tokens: Sequence[int] = [], overflow: str = 'slide', draft: LanguageModel | str | None = None, draft_tokens: int = 4, on_token: Callable[[int, int], Any] | None = None, no_repeat_ngram: int = 0, min_new_tokens: int = 0, suppress: Sequence[Sequence[int]] = [], first_token: int | None = None, last_token: int | None = None, stop_strings: Sequence[str] = [], tokenizer: Tokenizer | None = None, json_schema: Mapping[str, Any] | bool | str | None = None, regex: str | None = None, grammar: str | None = None, logit_bias: Mapping[int, float] = {}) -> list[int]: ...
    @overload
    def generate(self, prompts: Sequence[Sequence[int]], *, cache_dtype: DTypeLike | None = None, max_new_tokens: int = 100, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int = 0, stop_tokens: Sequence[int] = [], overflow: str = 'slide', draft: LanguageModel | str | None = None, draft_tokens: int = 4, on_token: Callable[[int, int], Any] | None = None, no_repeat_ngram: int = 0, min_new_tokens: int = 0, suppress: Sequence[Sequence[int]] = [], first_token: int | None = None, last_token: int | None = None, stop_strings: Sequence[str] = [], tokenizer: Tokenizer | None = None, json_schema: Mapping[str, Any] | bool | str | None = None, regex: str | None = None, grammar: str | None = None, logit_bias: Mapping[int, float] = {}) -> list[list[int]]: ...
    @overload
    def generate(self, prompts: Sequence[int] | Sequence[Sequence[int]] | ArrayLike, *, cache_dtype: DTypeLike | None = None, max_new_tokens: int = 100, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int = 0, stop_tokens: Sequence[int] = [], overflow: str = 'slide', draft: LanguageModel | str | None = None, draft_tokens: int = 4, on_token: Callable[[int, int], Any] | None = None, no_repeat_ngram: int = 0, min_new_tokens: int = 0, suppress: Sequence[Sequence[int]] = [], first_token: int | None = None, last_token: int | None = None, stop_strings: Sequence[str] = [], tokenizer: Tokenizer | None = None, json_schema: Mapping[str, Any] | bool | str | None = None, regex: str | None = None, grammar: str | None = None, logit_bias: Mapping[int, float] = {}) -> Any:
        """
        The new tokens of one prompt (a list of ints) or of several. on_token(row, token) sees each as it comes and
        may return False to end its row. draft, a smaller model or 'lookup' (for texts that repeat themselves),
        guesses up to draft_tokens tokens, which are checked in one step: the result is the same, sooner.
        cache_dtype, of keys and values: the model's, 'bfloat16' for half the memory or 'int8' for a quarter.
        no_repeat_ngram=n: no n-gram of prompt and new tokens comes twice. min_new_tokens: before them, no stop token. suppress:
        sequences of tokens that never come. first_token, last_token: the first new token and that at max_new_tokens.
        stop_strings: a row ends with the token that completes one of them in its new text, by the `tokenizer`.
        json_schema (a dict or JSON text), regex or grammar (GBNF): tokens of the `tokenizer` by which the text would not
        fit never come, and stop_tokens only where it may end. logit_bias: {token: number}, added to the logits.
        overflow: what the context does not hold goes on from the last half of it ('slide') or is a ValueError ('error').
        """

    def logprobs(self, prompts: Sequence[int] | Sequence[Sequence[int]] | ArrayLike, *, top: int = 0) -> Any:
        """
        The log-probability of every token but the first by those before it, of one text (a list of ints) or of several.
        With top > 0 also the likeliest ones in its place: lists of (token, logprob), most probable first.
        """

    def save(self, folder: str | bytes | os.PathLike[str], *, tokenizer: Tokenizer | None = None, overwrite: bool = False) -> None:
        """
        Writes config.json and model.safetensors as Hugging Face's GPT-2 or Llama, if they can express it; with a tokenizer
        its files, too, and generation_config.json, by which others stop where texts end. A folder that holds another
        model is refused, unless overwrite: its tokenizer goes with it.
        """

    def save_gguf(self, path: str | bytes | os.PathLike[str], tokenizer: Tokenizer, *, type: str = 'f16') -> None:
        """
        Writes a GGUF file for llama.cpp; type is f32, f16, bf16, q8_0, q4_1 or q4_0.
        """

    @staticmethod
    def load(folder: str | bytes | os.PathLike[str], weights: str | None = None, *, head: bool = True, packed: bool = False) -> LanguageModel:
        """
        Loads a model from a Hugging Face folder (GPT-2, Llama families) or one of ours. weights: 'f32', or packed for
        inference as pack_weights() does. head=False: without the output layer, for embeddings. packed=True: f32
        weights are packed too, while they are read.
        """

    @property
    def weight_dtype(self) -> str:
        """Of the layers' matrices."""

    def pack_weights(self, weights: str = 'f32') -> None:
        """
        Replaces the matrices by packed ones: 'f32' (every bit kept, products of few rows a quarter faster), 'bf16', 'f16',
        'int8' (a scale per row), 'q8', 'q5' or 'q4' (8, 5 or 4 bits, scales per group of 32). With these and int8 a language model's
        embedding and output layer become q8. The model can no longer be trained, nor saved unless it is a language model packed
        as other than 'f32'.
        """

    @property
    def packed_dtype(self) -> str | None:
        """What the matrices were packed as, or None."""

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights."""

    @property
    def token_embedding(self) -> Embedding: ...

    @property
    def position_embedding(self) -> Embedding: ...

    @property
    def layers(self) -> list[TransformerLayer]: ...

    @property
    def final_norm(self) -> Norm: ...

    @property
    def head_weight(self) -> Tensor | None: ...

    @property
    def head_bias(self) -> Tensor | None: ...

    def load_adapter(self, folder: str | bytes | os.PathLike[str]) -> None:
        """
        Merges a LoRA adapter, a folder as PEFT or train(..., lora_rank=...) writes it, into the weights.
        """

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> LanguageModel:
        """A copy with its own parameters."""

    def __copy__(self) -> LanguageModel: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> LanguageModel: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

@overload
def prune(model: LanguageModel, *, heads: Sequence[Sequence[int]] | None = None, units: Sequence[Sequence[int]] | None = None) -> LanguageModel:
    """
    A smaller model, equal to this one with the outputs of these heads and feed-forward units at zero: for each layer a
    list of heads, of units as many everywhere. Heads keep their numbers when some are pruned already. With grouped-query
    attention whole groups go, or as many heads of each that stays. Where all layers lose as many heads, and the family has
    a head_dim of its own (Llama, Mistral, Qwen 3, Gemma), the saved folder loads in transformers; else it is one of ours.
    """

@overload
def prune(model: Seq2Seq, *, encoder_heads: Sequence[Sequence[int]] | None = None, decoder_heads: Sequence[Sequence[int]] | None = None, cross_heads: Sequence[Sequence[int]] | None = None, encoder_units: Sequence[Sequence[int]] | None = None, decoder_units: Sequence[Sequence[int]] | None = None) -> Seq2Seq:
    """
    The same of an encoder-decoder model; encoder and decoder keep as many units.
    """

def pool_kv_heads(model: LanguageModel, num_kv_heads: int) -> LanguageModel:
    """
    Grouped-query attention from a model with more heads of keys and values, which are averaged; some training repairs it
    (Ainslie et al. 2023).
    """

def least_important(importance: Sequence[Sequence[float]], keep_ratio: float, group: int = 1) -> list[list[int]]:
    """
    For each row of importance what to remove so that the share keep_ratio of all stays, the least important first; each
    row is divided by its length and keeps one; `group` neighbours stay or go together.
    """

def generation_defaults(folder: str | bytes | os.PathLike[str]) -> dict[str, Any]:
    """
    What the folder's generation_config.json asks of generate(), as keyword arguments. stop_strings want a tokenizer beside them.
    """

def load_with_tokenizer(path: str | bytes | os.PathLike[str], weights: str | None = None) -> tuple[LanguageModel, Tokenizer]:
    """
    A folder's or GGUF file's LanguageModel and its Tokenizer; FormatError if they do not match.
    """

class TextStream:
    """Calls back with whole characters as tokens complete them."""

    def __init__(self, on_text: Callable[..., Any], tokenizer: Tokenizer) -> None: ...

    def write(self, token: int) -> bool: ...

    def finish(self) -> None:
        """Shows what was held back."""

def turn_ends(tokenizer: Tokenizer) -> list[int]:
    """
    Tokens that end an answer where the chat template writes them, besides the end of the text.
    """

class Generator:
    """
    Sequences decoded together, each with the tokens that generate() gives it alone: submit() at any time,
    step() until it returns False. Up to max_batch run at a time. `cached_prompts` prompts keep their keys and values for prompts with a common prefix,
    in prompt_cache_bytes at most (0: no limit); in prefix_folder they outlive the process.
    """

    def __init__(self, model: LanguageModel, *, max_batch: int = 8, capacity: int = 0, cache_dtype: DTypeLike | None = None, cached_prompts: int = 0, prompt_cache_bytes: int = 0, prefix_folder: str | bytes | os.PathLike[str] = '') -> None: ...

    def submit(self, prompt: Sequence[int] | ArrayLike, *, max_new_tokens: int = 100, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int = 0, stop_tokens: Sequence[int] = [], overflow: str = 'slide', draft: LanguageModel | str | None = None, draft_tokens: int = 4, on_token: Callable[[int, int], Any] | None = None, no_repeat_ngram: int = 0, min_new_tokens: int = 0, suppress: Sequence[Sequence[int]] = [], first_token: int | None = None, last_token: int | None = None, stop_strings: Sequence[str] = [], tokenizer: Tokenizer | None = None, json_schema: Mapping[str, Any] | bool | str | None = None, regex: str | None = None, grammar: str | None = None, logit_bias: Mapping[int, float] = {}) -> int:
        """
        Queues a prompt; returns the number of its sequence. on_token(number, token) may return False to end it.
        """

    def step(self) -> bool:
        """
        One token for every running sequence, those that wait let in; False if none is left.
        """

    def cancel(self, sequence: int) -> None: ...

    def finished(self, sequence: int) -> bool: ...

    def tokens(self, sequence: int) -> list[int]:
        """The new tokens so far."""

    def take(self, sequence: int) -> list[int]:
        """
        The new tokens of a sequence that has ended, which is forgotten. ValueError if it ended because no token was left to it;
        tokens() has those before.
        """

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Memory of keys and values."""

class Seq2SeqConfig:
    """
    The configuration of an encoder-decoder model: sizes, positions ('sinusoidal', 'learned'), norm ('layer', 'rms'),
    activation, biases, shared embeddings, dropout. Fields are keyword arguments.
    """

    def __init__(self, *, source_vocab_size: int = 0, target_vocab_size: int = 0, max_positions: int = 512, encoder_layers: int = 4, decoder_layers: int = 4, num_heads: int = 4, embed_dim: int = 256, head_dim: int = 0, ffn_dim: int = 0, encoder_pruned_heads: Sequence[Any] = ..., decoder_pruned_heads: Sequence[Any] = ..., cross_pruned_heads: Sequence[Any] = ..., positions: str = 'sinusoidal', sinusoid_layout: str = 'halves', position_offset: int = 0, relative_buckets: int = 0, relative_distance: int = 128, norm: str = 'layer', norm_eps: float = 1e-05, norm_first: bool = False, final_norm: bool = False, activation: str = 'silu', gated: bool = False, bias: bool = True, output_bias: bool = True, share_embeddings: bool = True, tie_output: bool = True, scale_embeddings: bool = True, embedding_norm: bool = False, scale_scores: bool = True, scale_output: bool = False, dropout_p: float = 0.1, attention_dropout_p: float = 0.0, ffn_dropout_p: float = 0.0, init_std: float = 0.02, pad_id: int = 0, eos_id: int = 0, decoder_start_id: int = 0) -> None: ...

    source_vocab_size: int
    target_vocab_size: int
    max_positions: int
    encoder_layers: int
    decoder_layers: int
    num_heads: int
    embed_dim: int
    head_dim: int
    ffn_dim: int

    @property
    def encoder_pruned_heads(self) -> list[list[int]]: ...

    @encoder_pruned_heads.setter
    def encoder_pruned_heads(self, arg: Sequence[Sequence[int]], /) -> None: ...

    @property
    def decoder_pruned_heads(self) -> list[list[int]]: ...

    @decoder_pruned_heads.setter
    def decoder_pruned_heads(self, arg: Sequence[Sequence[int]], /) -> None: ...

    @property
    def cross_pruned_heads(self) -> list[list[int]]: ...

    @cross_pruned_heads.setter
    def cross_pruned_heads(self, arg: Sequence[Sequence[int]], /) -> None: ...

    positions: str
    sinusoid_layout: str
    position_offset: int
    relative_buckets: int
    relative_distance: int
    norm: str
    norm_eps: float
    norm_first: bool
    final_norm: bool
    activation: str
    gated: bool
    bias: bool
    output_bias: bool
    share_embeddings: bool
    tie_output: bool
    scale_embeddings: bool
    embedding_norm: bool
    scale_scores: bool
    scale_output: bool
    dropout_p: float
    attention_dropout_p: float
    ffn_dropout_p: float
    init_std: float
    pad_id: int
    eos_id: int
    decoder_start_id: int

    def __eq__(self, arg: Seq2SeqConfig, /) -> bool: ...

class Seq2Seq:
    """
    An encoder-decoder Transformer: source [B, Ts], target [B, Tt] -> logits [B, Tt, V].
    """

    def __init__(self, config: Seq2SeqConfig, *, rng: Rng | None = None) -> None: ...

    @property
    def config(self) -> Seq2SeqConfig: ...

    def __call__(self, source: ArrayLike, target: ArrayLike, *, source_lengths: ArrayLike | None = None, rng: Rng | None = None) -> Tensor:
        """
        Logits; `target` is the decoder's input, decoder_start_id first. Source padding is never attended to.
        """

    def loss(self, source: ArrayLike, target: ArrayLike, labels: ArrayLike, *, source_lengths: ArrayLike | None = None, rng: Rng | None = None, label_smoothing: float = 0.0) -> Tensor:
        """
        Mean cross-entropy in nats of `labels` [B, Tt]; labels -100 are ignored.
        """

    def beam_search(self, sources: Sequence[int] | Sequence[Sequence[int]] | ArrayLike, *, beam_size: int | None = None, num_hypotheses: int = 1, patience: float = 1.0, length_penalty: float | None = None, repetition_penalty: float | None = None, no_repeat_ngram: int | None = None, min_length: int | None = None, max_length: int | None = None, suppress: Sequence[Sequence[int]] | None = None, prefixes: Sequence[Sequence[int]] = [], alternatives: bool = False, sample: bool | None = None, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None, seed: int = 0, stop_early: bool | None = None, first_token: int | None = None, weight_dtype: str = 'f32') -> list[Any]:
        """
        Per source (a list of token ids, the end token included), [(tokens, score), ...], best first. None stands for
        beam_size 4, max_length 256, both penalties 1 and otherwise for off. suppress: forbidden
        token sequences; prefixes: per source, the first tokens of the target; first_token: of every target, at no
        cost (forced_bos_token_id); stop_early: early_stopping of transformers. sample samples num_hypotheses
        instead of searching (beam_size 1), with temperature, top_k, top_p, min_p and seed.
        """

    def save(self, folder: str | bytes | os.PathLike[str], *, overwrite: bool = False) -> None:
        """
        Writes config.json, model.safetensors and generation_config.json as a Hugging Face family (Marian, BART, mBART, T5)
        if one can express the model.
        """

    @staticmethod
    def load(folder: str | bytes | os.PathLike[str]) -> Seq2Seq: ...

    def encode(self, source: ArrayLike, *, source_lengths: ArrayLike | None = None, rng: Rng | None = None) -> Tensor:
        """The encoder's output [B, Ts, embed_dim]."""

    def start(self, source: ArrayLike, *, source_lengths: ArrayLike | None = None, capacity: int, dtype: DTypeLike | None = None) -> DecodeState:
        """
        A DecodeState for `capacity` target tokens per row; encodes and projects the source once.
        """

    def step(self, tokens: ArrayLike, state: DecodeState, *, counts: ArrayLike | None = None) -> Tensor:
        """
        Logits [B, T, V] of the next target tokens [B, T] (decoder_start_id first), which are appended to the
        state: counts[b] of row b, all by default.
        """

    @property
    def source_embedding(self) -> Embedding: ...

    @property
    def target_embedding(self) -> Embedding: ...

    @property
    def source_positions(self) -> Embedding: ...

    @property
    def target_positions(self) -> Embedding: ...

    @property
    def encoder_bias(self) -> RelativeBias: ...

    @property
    def decoder_bias(self) -> RelativeBias: ...

    @property
    def source_norm(self) -> Norm: ...

    @property
    def target_norm(self) -> Norm: ...

    @property
    def transformer(self) -> Transformer: ...

    @property
    def output_weight(self) -> Tensor | None: ...

    @property
    def output_bias(self) -> Tensor | None: ...

    def load_adapter(self, folder: str | bytes | os.PathLike[str]) -> None:
        """
        Merges a LoRA adapter, a folder as PEFT or train(..., lora_rank=...) writes it, into the weights.
        """

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> Seq2Seq:
        """A copy with its own parameters."""

    def __copy__(self) -> Seq2Seq: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> Seq2Seq: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

def is_seq2seq_folder(folder: str | bytes | os.PathLike[str]) -> bool:
    """Whether config.json is a Seq2Seq's."""

class Translator:
    """An encoder-decoder model with its tokenizers."""

    @staticmethod
    def load(folder: str | bytes | os.PathLike[str]) -> Translator:
        """
        Loads a folder of Marian, BART, mBART or T5: config.json, model.safetensors, tokenizers and
        generation_config.json.
        """

    @property
    def model(self) -> Seq2Seq: ...

    @property
    def source_tokenizer(self) -> Tokenizer: ...

    @property
    def target_tokenizer(self) -> Tokenizer: ...

    def translate(self, texts: str | Sequence[str], *, beam_size: int | None = None, num_hypotheses: int = 1, patience: float = 1.0, length_penalty: float | None = None, repetition_penalty: float | None = None, no_repeat_ngram: int | None = None, min_length: int | None = None, max_length: int | None = None, suppress: Sequence[Sequence[int]] | None = None, prefixes: Sequence[Sequence[int]] = [], alternatives: bool = False, sample: bool | None = None, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None, seed: int = 0, stop_early: bool | None = None, first_token: int | None = None, weight_dtype: str = 'f32', source_lang: str = '', target_lang: str = '') -> Any:
        """
        The translation of one str, or of each in a list; lists of them, best first, if num_hypotheses > 1.
        What is None is as the folder's generation_config.json says, else as for Seq2Seq.beam_search.
        weight_dtype 'int8' quantises weights and their inputs: faster, nearly the same translations.
        sample samples num_hypotheses translations (beam_size 1) with temperature, top_k, top_p, min_p and seed. source_lang and
        target_lang: the tokens of languages ("eng_Latn"), for models of many (NLLB, M2M100, mBART).
        """

class Encoding:
    """What the ids of a text, or of two in one sequence, stand for."""

    @property
    def ids(self) -> list[int]: ...

    @property
    def type_ids(self) -> list[int]: ...

    @property
    def tokens(self) -> list[str]:
        """
        As in tokenizer.json; of an added token the text, with white space that it swallows, and of what unigram does
        not know too.
        """

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """
        (begin, end) of each token in its text: characters of str, bytes of bytes; (0, 0) for the template's.
        """

    @property
    def sequence_ids(self) -> list[int | None]:
        """The text that each token's offsets are of: 0, 1, or None."""

    @property
    def attention_mask(self) -> list[int]:
        """1, and 0 for padding."""

    def __len__(self) -> int: ...

class Tokenizer:
    """
    A tokenizer: characters, byte-level BPE, WordPiece or SentencePiece, stored as tokenizer.json.
    """

    @staticmethod
    def train_bpe(texts: str | Sequence[str], *, vocab_size: int = 4096, min_frequency: int = 2, eos: str = '<|endoftext|>') -> Tokenizer:
        """Byte-level BPE as in GPT-2; texts: str, bytes, or a list of them."""

    @staticmethod
    def train_wordpiece(texts: str | Sequence[str], *, vocab_size: int = 30522, min_frequency: int = 2, lowercase: bool = True) -> Tokenizer:
        """WordPiece as in BERT."""

    @staticmethod
    def train_unigram(texts: str | Sequence[str], *, vocab_size: int = 8000, max_piece_length: int = 16) -> Tokenizer:
        """Unigram as in SentencePiece (Kudo 2018)."""

    @staticmethod
    def train_characters(texts: str | Sequence[str], *, unk: str = '') -> Tokenizer:
        """One token per distinct character."""

    @staticmethod
    def load(path: str | bytes | os.PathLike[str]) -> Tokenizer:
        """Loads a tokenizer.json or a folder with one."""

    @staticmethod
    def from_json(json: str) -> Tokenizer: ...

    def save(self, path: str | bytes | os.PathLike[str]) -> None: ...

    def to_json(self) -> str: ...

    def encode(self, text: str | bytes, *, parse_special: bool = False, add_template: bool = True, max_length: int = 0, as_file: bool = False) -> list[int]:
        """
        Token ids. max_length: maximum number, including the template's; 0: no limit. as_file: truncate and pad
        as set in tokenizer.json, as Hugging Face's tokenizers always do.
        """

    def encoding(self, text: str | bytes, pair: str | bytes | None = None, *, parse_special: bool = False, add_template: bool = True, max_length: int = 0, as_file: bool = False) -> Encoding:
        """
        Ids with tokens and offsets, equal to those of Hugging Face's tokenizers. pair: a second text, joined by the
        file's template.
        """

    def pad(self, encodings: Sequence[Encoding]) -> list[Encoding]:
        """
        Copies of encodings, padded to the longest of them or as set in tokenizer.json.
        """

    def encode_pair(self, first: str | bytes, second: str | bytes, *, max_length: int = 0) -> tuple[list[int], list[int]]:
        """
        (ids, type_ids) of two texts joined by the file's template, for models that compare them.
        """

    def decode(self, ids: Sequence[int] | ArrayLike, *, skip_special: bool = False, continued: bool = False) -> str:
        """
        The text; bytes that are not UTF-8 are replaced. continued: the ids follow others, so that SentencePiece and
        WordPiece keep the space before the first.
        """

    def decode_bytes(self, ids: Sequence[int] | ArrayLike, *, skip_special: bool = False, continued: bool = False) -> bytes: ...

    @overload
    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False, tokenize: Literal[True] = True, chat_template: str | None = None, **variables: Any) -> list[int]: ...
    @overload
    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False, tokenize: Literal[False], chat_template: str | None = None, **variables: Any) -> str:
        """
        The prompt of a conversation, a list of {"role": ..., "content": ...}, by the model's chat template: token ids,
        or with tokenize=False the text. add_generation_prompt: up to where the answer begins. chat_template: another one.
        Other keywords are variables of the template: tools (a list of JSON schemas), documents, enable_thinking, ...
        """

    @property
    def chat_template(self) -> str:
        """The source of the chat template; empty: none."""

    @property
    def vocab_size(self) -> int: ...

    def __len__(self) -> int: ...

    def token(self, id: int) -> str: ...

    def id(self, token: str) -> int | None: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_id(self) -> int | None: ...

    @property
    def pad_id(self) -> int | None: ...

    @property
    def unk_id(self) -> int | None: ...

    @property
    def fingerprint(self) -> int: ...

    def __getstate__(self) -> tuple[Any, ...]: ...

    def __setstate__(self, arg: tuple[str, str], /) -> None: ...

    def __repr__(self) -> str: ...

def token_labels(tokenizer: Tokenizer, ids: Sequence[int] | ArrayLike) -> list[str]:
    """
    A label per token, for AttentionView and tables: its text; of a token that is a part of a character, the character and
    which part of how many ("é¹⁄₂"); "<0xE2>" for bytes of no character.
    """

class EncoderConfig:
    """
    The configuration of an encoder: sizes, positions, head ('none', 'masked_lm', 'classification', 'tokens').
    """

    def __init__(self, *, labels: Sequence[Any] = ..., vocab_size: int = 0, context: int = 512, num_layers: int = 12, num_heads: int = 12, embed_dim: int = 768, head_dim: int = 0, ffn_dim: int = 0, shared_layers: bool = False, word_dim: int = 0, token_types: int = 2, alibi: bool = False, learned_positions: bool = True, position_offset: int = 0, pad_id: int = 0, relative_buckets: int = 0, relative_distance: int = 128, distance_span: int = 0, rotary_base: float = 0.0, rotary_factor: float = 1.0, rotary_digits: int = 0, local_rotary_base: float = 0.0, window: int = 0, global_every: int = 0, norm: str = 'layer', token_dropout: bool = False, mask_id: int = 0, embedding_norm: bool = True, norm_first: bool = False, scale_scores: bool = True, gated: bool = False, bias: bool = True, layer_bias: bool = True, ffn_in_bias: bool = True, experts: int = 0, experts_used: int = 2, experts_every: int = 2, norm_eps: float = 1e-12, activation: str = 'gelu', pooler: bool = True, pooler_activation: str = 'tanh', head: str = 'none', head_activation: str = 'gelu', transforms_labels: bool = False, mean_pooling: bool = False, num_labels: int = 0, problem_type: str = 'unstated', dropout_p: float = 0.0, attention_dropout_p: float = 0.0, ffn_dropout_p: float = 0.0, init_std: float = 0.02) -> None: ...

    @property
    def labels(self) -> list[str]: ...

    @labels.setter
    def labels(self, arg: Sequence[str], /) -> None: ...

    vocab_size: int
    context: int
    num_layers: int
    num_heads: int
    embed_dim: int
    head_dim: int
    ffn_dim: int
    shared_layers: bool
    word_dim: int
    token_types: int
    alibi: bool
    learned_positions: bool
    position_offset: int
    pad_id: int
    relative_buckets: int
    relative_distance: int
    distance_span: int
    rotary_base: float
    rotary_factor: float
    rotary_digits: int
    local_rotary_base: float
    window: int
    global_every: int
    norm: str
    token_dropout: bool
    mask_id: int
    embedding_norm: bool
    norm_first: bool
    scale_scores: bool
    gated: bool
    bias: bool
    layer_bias: bool
    ffn_in_bias: bool
    experts: int
    experts_used: int
    experts_every: int
    norm_eps: float
    activation: str
    pooler: bool
    pooler_activation: str
    head: str
    head_activation: str
    transforms_labels: bool
    mean_pooling: bool
    num_labels: int
    problem_type: str
    dropout_p: float
    attention_dropout_p: float
    ffn_dropout_p: float
    init_std: float

    def __eq__(self, arg: EncoderConfig, /) -> bool: ...

class Encoder:
    """
    An encoder such as BERT. Sequences are lists of token ids of any lengths; nothing is padded, and a sequence's
    results have the same bits in any batch.
    """

    def __init__(self, config: EncoderConfig, *, rng: Rng | None = None) -> None: ...

    @property
    def config(self) -> EncoderConfig: ...

    def features(self, sequences: Sequence[Sequence[int]], types: Sequence[Sequence[int]] = [], *, rng: Rng | None = None) -> Tensor:
        """
        The last hidden states [N, E], sequences concatenated. With an rng, dropout is active.
        """

    def pooled(self, sequences: Sequence[Sequence[int]], types: Sequence[Sequence[int]] = []) -> Tensor:
        """The pooler's output [S, E]."""

    def logits(self, sequences: Sequence[Sequence[int]], types: Sequence[Sequence[int]] = [], *, rng: Rng | None = None) -> Tensor:
        """The head's output: [N, vocab_size], [S, labels] or [N, labels]."""

    def save(self, folder: str | bytes | os.PathLike[str], *, overwrite: bool = False) -> None:
        """
        Writes config.json and model.safetensors as Hugging Face's family has them.
        """

    @staticmethod
    def load(folder: str | bytes | os.PathLike[str], weights: str | None = None, *, packed: bool = False, task: str | None = None) -> Encoder:
        """
        Loads a Hugging Face folder (BERT, RoBERTa, XLM-R, CamemBERT, MPNet, DistilBERT, ELECTRA, ModernBERT, ALBERT,
        Nomic BERT, GTE, T5's encoder) or a GGUF file, whose quantised matrices stay so. weights: 'f32', or packed for
        inference as pack_weights() does. packed=True: f32 weights are packed, too.
        task: with the adapter of this task merged (Jina Embeddings v3).
        """

    def pack_weights(self, weights: str = 'f32') -> None:
        """
        Replaces the matrices by packed ones: 'f32' (every bit kept, products of few rows a quarter faster), 'bf16', 'f16',
        'int8' (a scale per row), 'q8', 'q5' or 'q4' (8, 5 or 4 bits, scales per group of 32). With these and int8 a language model's
        embedding and output layer become q8. The model can no longer be trained, nor saved unless it is a language model packed
        as other than 'f32'.
        """

    @property
    def packed_dtype(self) -> str | None:
        """What the matrices were packed as, or None."""

    @property
    def token_embedding(self) -> Embedding: ...

    @property
    def position_embedding(self) -> Embedding: ...

    @property
    def type_embedding(self) -> Embedding: ...

    @property
    def embedding_norm(self) -> Norm: ...

    @property
    def final_norm(self) -> Norm: ...

    @property
    def embedding_projection(self) -> Linear: ...

    @property
    def relative_bias(self) -> RelativeBias: ...

    @property
    def distance_embedding(self) -> Embedding: ...

    @property
    def distance_norm(self) -> Norm: ...

    @property
    def layers(self) -> list[TransformerLayer]: ...

    @property
    def pooler(self) -> Linear: ...

    @property
    def head_dense(self) -> Linear: ...

    @property
    def head_norm(self) -> Norm: ...

    @property
    def head_bias(self) -> Tensor | None: ...

    @property
    def classifier(self) -> Linear: ...

    def load_adapter(self, folder: str | bytes | os.PathLike[str]) -> None:
        """
        Merges a LoRA adapter, a folder as PEFT or train(..., lora_rank=...) writes it, into the weights.
        """

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> Encoder:
        """A copy with its own parameters."""

    def __copy__(self) -> Encoder: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> Encoder: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

def is_encoder_folder(folder: str | bytes | os.PathLike[str]) -> bool:
    """Whether config.json is an Encoder's."""

class TextEncoder:
    """What multihead.SentenceEncoder is made of."""

    @staticmethod
    def load(folder: str | bytes | os.PathLike[str], weights: str | None = None, pooling: str | None = None) -> TextEncoder: ...

    def route(self, task: str) -> TextEncoder: ...

    @staticmethod
    def has_routes(folder: str | bytes | os.PathLike[str]) -> bool: ...

    def encode(self, texts: Sequence[str], *, prompt: str | None = None, prompt_name: str = '', normalize: bool | None = None, truncate_dim: int = 0, batch_tokens: int = 1024, precision: ArrayLike = 'float32', progress: Callable[..., Any] | None = None) -> Tensor: ...

    @property
    def dim(self) -> int: ...

    @property
    def max_length(self) -> int: ...

    @property
    def prompts(self) -> dict[str, str]: ...

    @property
    def default_prompt_name(self) -> str: ...

    @property
    def truncate_dim(self) -> int: ...

    @property
    def similarity_fn_name(self) -> str: ...

    @property
    def model(self) -> Any: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

class TextClassifier:
    """
    An encoder with a head for sequences and its tokenizer: labels of texts and of pairs of texts.
    """

    @staticmethod
    def load(folder: str | bytes | os.PathLike[str], weights: str = 'f32') -> TextClassifier:
        """weights: 'f32' or what pack_weights() takes."""

    @property
    def labels(self) -> list[str]: ...

    @property
    def encoder(self) -> Encoder: ...

    @overload
    def logits(self, texts: Sequence[str], *, max_length: int = 0, batch_tokens: int = 1024, progress: Callable[..., Any] | None = None) -> Tensor:
        """[n, labels] for a list of str; max_length 0: the model's limit."""

    @overload
    def logits(self, texts: Sequence[tuple[str, str]], *, max_length: int = 0, batch_tokens: int = 1024, progress: Callable[..., Any] | None = None) -> Tensor:
        """
        [n, labels] for a list of pairs of str, each in one sequence; max_length 0: the folder's limit.
        """

    @property
    def max_length(self) -> int: ...

    def scores(self, logits: ArrayLike) -> Tensor:
        """
        What transformers' text-classification makes of logits [n, labels], by the folder's problem_type: their softmax,
        the logistic function of each (multi_label, and of a single label), or themselves (regression).
        """

    @property
    def has_sigmoid(self) -> bool: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

def label_probabilities(logits: ArrayLike) -> Tensor:
    """
    Softmax of logits [n, labels]; of a single label the logistic function.
    """

def fill_mask(encoder: Encoder, tokenizer: Tokenizer, text: str, count: int = 5) -> list[Any]:
    """
    For each mask of the text the most probable tokens: dicts with score, token, token_str and sequence.
    """

class ImageEncoderConfig:
    """
    The configuration of an encoder of images: sizes, head ('none', 'classification').
    """

    def __init__(self, *, labels: Sequence[Any] = ..., image_size: int = 224, patch_size: int = 16, channels: int = 3, num_layers: int = 12, num_heads: int = 12, embed_dim: int = 768, ffn_dim: int = 0, qkv_bias: bool = True, norm_eps: float = 1e-12, activation: str = 'gelu', pooler: bool = True, pooler_activation: str = 'tanh', head: str = 'none', num_labels: int = 0, problem_type: str = 'unstated', dropout_p: float = 0.0, attention_dropout_p: float = 0.0, init_std: float = 0.02) -> None: ...

    @property
    def labels(self) -> list[str]: ...

    @labels.setter
    def labels(self, arg: Sequence[str], /) -> None: ...

    image_size: int
    patch_size: int
    channels: int
    num_layers: int
    num_heads: int
    embed_dim: int
    ffn_dim: int
    qkv_bias: bool
    norm_eps: float
    activation: str
    pooler: bool
    pooler_activation: str
    head: str
    num_labels: int
    problem_type: str
    dropout_p: float
    attention_dropout_p: float
    init_std: float

    def __eq__(self, arg: ImageEncoderConfig, /) -> bool: ...

class ImageEncoder:
    """
    A vision Transformer (ViT). pixels: [N, channels, image_size, image_size], scaled as the model
    expects; an image's results have the same bits in any batch.
    """

    def __init__(self, config: ImageEncoderConfig, *, rng: Rng | None = None) -> None: ...

    @property
    def config(self) -> ImageEncoderConfig: ...

    def features(self, pixels: ArrayLike, *, rng: Rng | None = None) -> Tensor:
        """
        The last hidden states [N, 1 + patches, E]. With an rng, dropout is active.
        """

    def pooled(self, pixels: ArrayLike) -> Tensor:
        """The pooler's output [N, E]."""

    def logits(self, pixels: ArrayLike, *, rng: Rng | None = None) -> Tensor:
        """[N, labels]."""

    def save(self, folder: str | bytes | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes config.json and model.safetensors as transformers has them."""

    @staticmethod
    def load(folder: str | bytes | os.PathLike[str]) -> ImageEncoder:
        """Loads a Hugging Face folder: ViT."""

    def pack_weights(self, weights: str = 'f32') -> None:
        """
        Replaces the matrices by packed ones: 'f32' (every bit kept, products of few rows a quarter faster), 'bf16', 'f16',
        'int8' (a scale per row), 'q8', 'q5' or 'q4' (8, 5 or 4 bits, scales per group of 32). With these and int8 a language model's
        embedding and output layer become q8. The model can no longer be trained, nor saved unless it is a language model packed
        as other than 'f32'.
        """

    @property
    def packed_dtype(self) -> str | None:
        """What the matrices were packed as, or None."""

    @property
    def class_token(self) -> Tensor | None: ...

    @property
    def position_embedding(self) -> Tensor | None: ...

    @property
    def patch_weight(self) -> Tensor | None: ...

    @property
    def patch_bias(self) -> Tensor | None: ...

    @property
    def layers(self) -> list[TransformerLayer]: ...

    @property
    def final_norm(self) -> Norm: ...

    @property
    def pooler(self) -> Linear: ...

    @property
    def classifier(self) -> Linear: ...

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """(name, Tensor) of every parameter; a shared one is listed once."""

    def parameters(self) -> list[Tensor]: ...

    def parameter_count(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """
        Parameters by name, sharing memory; for save_safetensors() and load_state_dict().
        """

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """
        Copies tensors into the parameters of the same name. Missing, unexpected and mis-shaped names are listed in
        one FormatError; nothing is changed then.
        """

    def to(self, dtype: DTypeLike) -> Self:
        """Converts every parameter."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def clone(self) -> ImageEncoder:
        """A copy with its own parameters."""

    def __copy__(self) -> ImageEncoder: ...

    def __deepcopy__(self, arg: dict[Any, Any], /) -> ImageEncoder: ...

    def __reduce_ex__(self, arg: int, /) -> Any: ...

    def __repr__(self) -> str: ...

def is_image_folder(folder: str | bytes | os.PathLike[str]) -> bool:
    """Whether config.json is an ImageEncoder's."""

class ImageClassifier:
    """
    An encoder of images with a head, and its folder's preprocessor_config.json; nothing is resized.
    """

    def __init__(self, encoder: ImageEncoder, *, image_mean: Sequence[float] = [], image_std: Sequence[float] = [], rescale_factor: float = 0.00392156862745098) -> None:
        """
        An encoder with a classification head that was trained on (pixel * rescale_factor - image_mean) / image_std, a number for each channel; empty: .5.
        """

    @staticmethod
    def load(folder: str | bytes | os.PathLike[str], weights: str = 'f32') -> ImageClassifier:
        """weights: 'f32' or what pack_weights() takes."""

    @property
    def labels(self) -> list[str]: ...

    @property
    def encoder(self) -> ImageEncoder: ...

    def save(self, folder: str | bytes | os.PathLike[str], *, overwrite: bool = False) -> None:
        """
        Writes what load() and transformers read: the model, and preprocessor_config.json.
        """

    def read(self, files: Sequence[str | bytes | os.PathLike[str]]) -> Tensor:
        """
        PNG or PPM files as pixels() and logits() take them: [n, channels, size, size] of 0 to 255, resized.
        """

    def pixels(self, images: Any) -> Tensor:
        """
        What the model reads: images [n, channels, size, size] of 0 to 255, rescaled and normalised.
        """

    def logits(self, images: Any) -> Tensor:
        """[n, labels] of images [n, channels, size, size] of 0 to 255."""

    def scores(self, logits: ArrayLike) -> Tensor:
        """As TextClassifier.scores()."""

class TokenClassifier:
    """
    An encoder with a head for tokens and its tokenizer: names, places ... in texts.
    """

    @staticmethod
    def load(folder: str | bytes | os.PathLike[str], weights: str = 'f32') -> TokenClassifier:
        """weights: 'f32' or what pack_weights() takes."""

    @property
    def labels(self) -> list[str]: ...

    @property
    def encoder(self) -> Encoder: ...

    def entities(self, texts: Sequence[str], *, aggregation_strategy: str = 'simple', ignore_labels: Sequence[str] = ['O'], max_length: int = 0, batch_tokens: int = 1024, progress: Callable[..., Any] | None = None, stride: int = 0) -> list[Any]:
        """
        For each text its entities, as transformers' token-classification pipeline finds them: dicts with entity_group,
        score, start and end (characters), and word, the text there. aggregation_strategy: 'none' (every token, as
        entity), 'simple', or by words 'first', 'average', 'max'. stride: long texts are read in windows with this many
        tokens in common; 0: cut.
        """

    @property
    def tokenizer(self) -> Tokenizer: ...

class SparseTextEncoder:
    """What multihead.SparseEncoder is made of."""

    @staticmethod
    def load(folder: str | bytes | os.PathLike[str], weights: str = 'f32') -> SparseTextEncoder: ...

    @property
    def dim(self) -> int: ...

    @property
    def max_length(self) -> int: ...

    @property
    def prompts(self) -> dict[str, str]: ...

    @property
    def default_prompt_name(self) -> str: ...

    @property
    def similarity_fn_name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def encode(self, texts: Sequence[str], *, prompt: str = '', max_active: int = 0, batch_tokens: int = 1024, precision: ArrayLike = 'float32', progress: Callable[..., Any] | None = None) -> tuple[Tensor, Tensor, Tensor]: ...

    @property
    def max_active(self) -> int: ...

    @property
    def model(self) -> Encoder: ...

def nearest_sparse(query_ends: Tensor, query_columns: Tensor, query_values: Tensor, ends: Tensor, columns: Tensor, values: Tensor, width: int, count: int, similarity: str = 'dot') -> list[list[tuple[int, float]]]: ...

class MultiVectorTextEncoder:
    """What multihead.MultiVectorEncoder is made of."""

    @staticmethod
    def load(folder: str | bytes | os.PathLike[str], weights: str = 'f32') -> MultiVectorTextEncoder: ...

    @property
    def dim(self) -> int: ...

    @property
    def max_length(self) -> int: ...

    @property
    def prompts(self) -> dict[str, str]: ...

    @property
    def default_prompt_name(self) -> str: ...

    @property
    def similarity_fn_name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def encode(self, texts: Sequence[str], *, task: str = 'none', prompt: str | None = None, normalize: bool | None = None, batch_tokens: int = 1024, precision: ArrayLike = 'float32', progress: Callable[..., Any] | None = None) -> tuple[Tensor, Tensor]: ...

    @property
    def model(self) -> Any: ...

def nearest_multi_vector(queries: Tensor, query_ends: Tensor, vectors: Tensor, ends: Tensor, count: int) -> list[list[tuple[int, float]]]: ...

def nearest_dense(queries: Tensor, corpus: Tensor, count: int, similarity: str = 'dot') -> list[list[tuple[int, float]]]: ...

class VectorIndex:
    """
    Vectors in a byte for each number, to search more of them than fit as f32. kind 'int8' compares bytes,
    'binary' signs; the best are ordered by the similarity of the query and the bytes.
    """

    def __init__(self, vectors: ArrayLike, kind: str = 'int8') -> None: ...

    def nearest(self, queries: ArrayLike, count: int = 10, *, rescored: int = 4, similarity: str = 'dot') -> list[list[tuple[int, float]]]:
        """
        For each query [q, dim] the (row, score) of the nearest rows, nearest first; of `rescored` times as many the
        scores are computed. similarity: 'dot', 'cosine' or the distance 'euclidean', negated.
        """

    def __len__(self) -> int: ...

    @property
    def dim(self) -> int: ...

    @property
    def kind(self) -> str: ...

class HttpServer:
    """What multihead.Server is made of."""

    def __init__(self, sockets: str | bytes | os.PathLike[str], models: list, *, host: str, port: int, weights: str | None, parallel: int, context: int, cache_dtype: DTypeLike | None, cache_bytes: int, prompt_chunk: int, timeout: float, max_queue: int, max_body_bytes: int, max_inputs: int, max_tokens: int, max_connections: int, api_keys: Sequence[str], allow_hosts: Sequence[str]) -> None: ...

    @property
    def port(self) -> int: ...

    @property
    def is_running(self) -> bool: ...

    def stop(self, seconds: float) -> None: ...

def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """
    Corpus BLEU with sacrebleu's defaults: a dict with 'score' in [0, 100], 'precisions', 'correct', 'total',
    'brevity_penalty', 'hypothesis_words', 'reference_words', 'signature'.
    """

def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus chrF2 in [0, 100] with sacrebleu's defaults."""

def bleu_signature() -> str:
    """The signature of bleu(), in sacrebleu's notation."""

def chrf_signature() -> str:
    """The signature of chrf(), in sacrebleu's notation."""

def tokenize_13a(line: str) -> list[str]:
    """The tokens that bleu() counts."""

def read_text(path: str | bytes | os.PathLike[str], *, require_utf8: bool = True) -> str:
    """
    The text of a file, without a byte order mark. FormatError names the line that is not UTF-8.
    """

def read_pairs(path: str | bytes | os.PathLike[str]) -> tuple[Any, ...]:
    """
    (sources, targets) of a two-column file: source TAB target on every line.
    """

def split_corpus(text: str, *, validation: float = 0.1, blocks: int = 1) -> tuple[Any, ...]:
    """
    (training, validation) texts, lists of contiguous pieces: the end of each of `blocks` equal blocks is held out.
    """

class Group:
    """The ranks of a job: see multihead.distributed."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent to others."""

    def barrier(self) -> None:
        """Returns once every rank has called it."""

    def send(self, to: int, data: bytes) -> None:
        """Sends bytes to a rank."""

    def recv(self, source: int, size: int) -> bytes:
        """Receives this many bytes from a rank."""

    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        """The root's bytes, on every rank."""

    def gather(self, data: bytes, root: int = 0) -> list[Tensor]:
        """
        Every rank's bytes at the root, in order of ranks; elsewhere an empty list.
        """

def join_world() -> Group:
    """The job's group; see multihead.distributed.group()."""

def leave_world() -> None:
    """Leaves the job, once all ranks do."""

def abort_world(code: int) -> None:
    """Ends all processes of the job."""

class SequenceShards:
    """
    A sequence of `length` rows cut into chunks that are dealt to the ranks in zigzag order, which balances work under a
    causal mask. Chunks begin at multiples of 256; a rank's rows are its chunks in order.
    """

    def __init__(self, length: int, ranks: int, chunks_per_rank: int = 4) -> None: ...

    @property
    def length(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def chunks(self) -> int: ...

    def rows(self, rank: int) -> int:
        """How many rows a rank has."""

    def positions(self, rank: int) -> Tensor:
        """Positions of a rank's rows: int64 [rows]."""

    def chunk(self, number: int) -> tuple[Any, ...]:
        """(begin, end) of a chunk in the sequence."""

    def chunks_of(self, rank: int) -> list[int]:
        """The chunks of a rank."""

    def owner(self, chunk: int) -> int:
        """The rank that has a chunk."""

    def take(self, whole: ArrayLike, axis: int, rank: int) -> Tensor:
        """
        A copy of a rank's rows along this axis: of tokens, targets, a rotary table … No gradient.
        """

def ring_attention(group: Group, shards: SequenceShards, query: ArrayLike, key: ArrayLike, value: ArrayLike, *, mask: Mask | None = None, softcap: float = 0.0, bias: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, relative_bias: ArrayLike | None = None, relative_key: ArrayLike | None = None, relative_value: ArrayLike | None = None, relative_center: int = -1, sinks: ArrayLike | None = None, score_mod: ScoreProgram | None = None, weight: ScoreProgram | None = None, normalise: str = 'softmax', empty_row: str = 'zero', capture: AttentionCapture | None = None, scale: float | None = None, dropout_p: float = 0.0, rng: Rng | None = None, layout: str = 'bhtd', return_lse: bool = False, allow_binary_bias: bool = False) -> Any:
    """
    attention() of a sequence of which each rank of the group has its shards.rows(rank): the rows of the whole and
    their gradients, bit for bit, in O(T / ranks) memory. All ranks call it, and run the backward, at the same time.
    Masks, biases and lengths are those of the whole sequence, and rng is in the same state everywhere.
    Gradient: query, key, value. Raises GroupError if a rank is lost.
    """

def gather_rows(group: Group, shards: SequenceShards, own: ArrayLike, axis: int) -> Tensor:
    """
    Every rank's rows along an axis, from each rank's own. Gradient: the rank's rows of it.
    """

def own_rows(group: Group, shards: SequenceShards, whole: ArrayLike, axis: int) -> Tensor:
    """The rank's own rows along an axis. Gradient: gathered from the ranks."""

def run_local_group(size: int, body: Callable[..., Any]) -> None:
    """
    Runs body(group) on `size` threads of this process, as ranks 0 to size - 1 that take turns: for trying out
    code for mpirun without it. The first exception is raised here; the group ends with the call.
    """

class Optimizer:
    """Base class of optimisers."""

    def step(self) -> None:
        """Updates every parameter that has a gradient; gradients are kept."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def grad_norm(self) -> float:
        """Norm of all gradients; NumericError names one with NaN or Inf."""

    def clip_grad_norm(self, max_norm: float) -> float:
        """
        Makes the next step() use gradients * min(1, max_norm / norm) and returns the norm.
        """

    lr: float

    @property
    def steps(self) -> int: ...

    def state_dict(self) -> dict[str, Tensor]:
        """Moments by name, sharing memory."""

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None: ...

class Adam(Optimizer):
    """
    As torch.optim.Adam, but with one count of steps for all parameters: one that gets its first gradient late
    is corrected as one of that many steps.
    """

    def __init__(self, parameters: Any, *, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-08, weight_decay: float = 0.0, decay_vectors: bool = True, eps_hat: bool = False) -> None: ...

class AdamW(Optimizer):
    """
    As torch.optim.AdamW, but with one count of steps for all parameters, as Adam.
    """

    def __init__(self, parameters: Any, *, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-08, weight_decay: float = 0.01, decay_vectors: bool = True, eps_hat: bool = False) -> None: ...

class SGD(Optimizer):
    """As torch.optim.SGD."""

    def __init__(self, parameters: Any, *, lr: float = 0.01, momentum: float = 0.0, weight_decay: float = 0.0, decay_vectors: bool = True, nesterov: bool = False) -> None: ...

def learning_rate(step: int, *, kind: str = 'constant', lr: float = 0.001, warmup_steps: int = 0, total_steps: int = 0, final_ratio: float = 0.0, embed_dim: int = 0, decay_share: float = 0.2) -> float:
    """
    The learning rate of a step (from 0) of a 'constant', 'linear', 'cosine', 'noam' or 'wsd' schedule with linear warm-up.
    """

def load_safetensors(path: str | bytes | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, an index or a folder, by name."""

def load_gguf(path: str | bytes | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a GGUF file by name, decoded to f32."""

def save_safetensors(path: str | bytes | os.PathLike[str], tensors: Mapping[str, ArrayLike], metadata: Mapping[str, str] = {}) -> None:
    """Writes named tensors atomically."""

def save_checkpoint(folder: str | bytes | os.PathLike[str], step: int, tensors: dict[Any, Any], files: dict[Any, Any] = {}) -> str | bytes | os.PathLike[str]:
    """
    Atomically writes folder/checkpoint-<step> and returns its path. tensors: {'model.safetensors': state_dict,
    …}; files: {'state.json': str or bytes, …}.
    """

def load_checkpoint(path: str | bytes | os.PathLike[str]) -> tuple[Any, ...]:
    """
    (tensors, files) as given to save_checkpoint(), every byte verified; files are bytes.
    """

def list_checkpoints(folder: str | bytes | os.PathLike[str]) -> list[Any]:
    """
    Dicts 'step', 'path', 'problem' by ascending step; 'problem' is empty for complete checkpoints.
    """

def newest_checkpoint(folder: str | bytes | os.PathLike[str], damage: str = 'fail') -> Any:
    """
    The checkpoint to resume from, or None. damage: 'fail' raises FormatError if the newest is corrupt, 'fall_back'
    takes the newest intact one.
    """

def verify_checkpoint(path: str | bytes | os.PathLike[str]) -> None:
    """Reads every byte; FormatError names the corrupt file."""

def prune_checkpoints(folder: str | bytes | os.PathLike[str], *, keep_newest: int = 2, steps: Sequence[int] = []) -> list[int]:
    """
    Deletes the other complete checkpoints; `steps` are kept as well as the newest. Returns the deleted steps.
    """

def train(kind: str, data: str | bytes | os.PathLike[str], folder: str | bytes | os.PathLike[str], settings: dict[Any, Any], preset: str, valid: str | bytes | os.PathLike[str], tokenizer: str | bytes | os.PathLike[str], init: str | bytes | os.PathLike[str], resume: bool, overwrite: bool, callback: ArrayLike | None) -> Any: ...

def settings(kind: str, preset: str) -> Any: ...

def fit_linear_head(vectors: ArrayLike, targets: ArrayLike, labels: int, *, problem: str = 'single_label', c: float = 0.0, seed: int = 0, balanced: bool = False) -> dict[str, Any]:
    """
    Logistic or ridge regression of vectors [n, dim], to convergence: a dict with weight [labels, dim], bias [labels],
    c, loss, steps and converged. targets: a label [n] (problem 'single_label'), 0 and 1 [n, labels] ('multi_label')
    or numbers [n, labels] ('regression'). c as in scikit-learn's LogisticRegression; 0: the best of .01, .1, 1, 10,
    100 and 1000 in five-fold cross-validation. balanced: labels count alike, as class_weight="balanced".
    """

def evaluate(model: LanguageModel, tokens: ArrayLike, *, context: int = 0, batch: int = 16, windows: int = 0, tokenizer: Tokenizer | None = None, stride: int = 0) -> dict[str, Any]:
    """
    Evaluates a LanguageModel on token ids: a dict with 'loss' in nats per token, 'perplexity',
    'nats', 'tokens' and, with a tokenizer, 'bits_per_byte', 'nats_per_character', 'bytes', 'characters'.
    context: tokens per window (0: the model's); windows: this many, evenly spaced (0: all).
    stride: tokens from one window to the next (0: context, no overlap); each token is predicted once.
    """

def check_language_model(model: LanguageModel, *, length: int = 24, seed: int = 1, on_result: Callable[..., Any] | None = None) -> list[Any]:
    """
    Checks finiteness, causality, padding, cache, threads, gradients and overfitting.
    A list of dicts 'name', 'passed', 'detail', 'seconds'; on_result is called with each.
    """

def check_translator(model: Seq2Seq, *, length: int = 24, seed: int = 1, on_result: Callable[..., Any] | None = None) -> list[Any]:
    """The same for a Seq2Seq."""

def check_encoder(model: Encoder, *, length: int = 24, seed: int = 1, on_result: Callable[..., Any] | None = None) -> list[Any]:
    """Checks an Encoder: finiteness, context, batch independence, threads."""
