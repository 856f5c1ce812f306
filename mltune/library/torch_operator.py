"""A library as a custom operator of PyTorch, which ``torch.compile`` and ``torch.export`` keep as one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mltune.errors import LibraryError
from mltune.problem.array_values import STORAGE

_MOST_REMEMBERED = 10_000
_TYPES = {"i": "int", "u": "int", "f": "float", "c": "Scalar", "b": "bool"}


_REGISTERED: dict[str, Any] = {}
"""Libraries of PyTorch with what is registered, by the names of the operators."""


class Operator:
    """A product of a library that is registered in PyTorch, which is called like its function of ``torch.ops``.

    A call of plain tensors on a GPU without gradients, tracing and modes has no use for PyTorch's dispatcher, which
    takes longer than the launch: it goes to the library at once.
    """

    def __init__(self, name: str, run: Callable[..., Any], is_direct: Callable[..., bool]) -> None:
        import torch

        self._name, self._run, self._is_direct = name, run, is_direct
        self._operators, self._is_traced = torch.ops.mltune, torch.compiler.is_compiling

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return the result of the operation."""
        if not self._is_traced() and not options and self._is_direct(*arguments):
            return self._run(*arguments)
        return self._registered(*arguments, **options)

    @property
    def _registered(self) -> Any:
        """The function of ``torch.ops``: of another library, where one has taken the name."""
        return getattr(self._operators, self._name).default

    def __deepcopy__(self, memo: Any) -> Operator:
        """Return itself: copies of a model share the library."""
        return self

    def register_kernel(self, device_type: str) -> Callable[[Any], Any]:
        """Return a decorator that registers a function for tensors on another device."""
        import torch

        own = _REGISTERED[self._name]
        return torch.library.impl(f"mltune::{self._name}", device_type, lib=own)  # type: ignore[no-any-return]


def _directness(torch: Any, count: int) -> Callable[..., bool]:
    """Return the function that says whether a call with so many tensors may go to the library at once."""
    plain, has_gradients, has_modes = {torch.Tensor, torch.nn.Parameter}, torch.is_grad_enabled, _modes(torch)

    def is_direct(*arguments: Any) -> bool:
        needs_gradients = has_gradients()
        for tensor in arguments[:count]:
            if type(tensor) not in plain or not tensor.is_cuda or tensor.is_conj() or tensor.is_neg():
                return False
            if needs_gradients and tensor.requires_grad:
                return False
        return not has_modes()

    return is_direct


def _modes(torch: Any) -> Callable[[], object]:
    """Return the function that says whether modes see calls of tensors; of an unknown PyTorch it says yes."""
    own = torch._C
    try:
        of_dispatch, of_functions = own._len_torch_dispatch_stack, own._len_torch_function_stack
        functorch = own._functorch.maybe_current_level
    except AttributeError:
        return lambda: True
    return lambda: of_dispatch() or of_functions() or functorch() is not None


def torch_operator(library: Any) -> Any:
    """Register a library as an operator; see :meth:`Library.to_torch_operator`."""
    import torch

    described = library.document["parameters"]
    written = [parameter["name"] for parameter in described if parameter["role"] in ("out", "inout")]
    dtype = getattr(torch, next((parameter["dtype"] for parameter in described if parameter["name"] == "C"), ""), None)
    calls: dict[Any, Any] = {}

    def product(a: Any, b: Any, alpha: Any = 1.0) -> Any:
        key = a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device(), alpha
        return result_of(key, a, b, alpha)

    def product_with_bias(a: Any, b: Any, bias: Any, alpha: Any = 1.0) -> Any:
        of_a, of_b = (a.shape, a.stride(), a.dtype, a.get_device()), (b.shape, b.stride(), b.dtype, b.get_device())
        key = of_a, of_b, bias.shape, bias.stride(), bias.dtype, bias.get_device(), alpha
        return result_of(key, a, b, alpha, bias)

    def product_with_vectors(a: Any, b: Any, *rest: Any) -> Any:
        vectors, alpha = rest[: len(library.vectors)], (*rest[len(library.vectors) :], 1.0)[0]
        kinds = [(tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()) for tensor in (a, b, *vectors)]
        return result_of((*kinds, alpha), a, b, alpha, *vectors)

    def result_of(key: Any, a: Any, b: Any, alpha: Any, *bias: Any) -> Any:
        repeat = calls.get(key)
        if repeat is None:
            out = of_product(a, b)
            with torch.no_grad():
                repeat = library.repeated(a, b, out, alpha, *bias)
            if len(calls) >= _MOST_REMEMBERED:
                calls.clear()
            calls[key] = repeat
        else:
            out = a.new_empty((a.shape[0], b.shape[1])) if a.dtype is dtype else of_product(a, b)
        repeat(a, b, out, *bias)
        return out

    def of_product(a: Any, b: Any, *bias: Any, **scalars: Any) -> Any:
        fits = a.dim() == 2 and b.dim() == 2 and a.shape[1] == b.shape[0]
        torch._check(fits, lambda: f"the shapes {[*a.shape]} and {[*b.shape]} do not fit a product.")
        return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype)

    def call(*arguments: Any) -> None:
        with torch.no_grad():
            library(*arguments)

    if library.name in _REGISTERED:
        _REGISTERED.pop(library.name)._destroy()
    if library.is_product:
        run = {0: product, 1: product_with_bias}.get(len(library.vectors), product_with_vectors)
        vectors = "".join(f"Tensor {name}, " for name in library.vectors)
        schema = f"(Tensor a, Tensor b, {vectors}Scalar alpha=1.0) -> Tensor"
        epilogue = str(library.document["problem"].get("epilogue", "")).split("+")
        return _registered(torch, library.name, schema, run, of_product, epilogue, 2 + len(library.vectors))
    parameters = (_declared(parameter, f"x{place}") for place, parameter in enumerate(described))
    schema = f"({', '.join(parameters)}) -> ()"
    name = f"mltune::{library.name}"
    operator = torch.library.custom_op(name, call, mutates_args=written, device_types="cuda", schema=schema)
    operator.register_fake(lambda *arguments: None)
    _REGISTERED[library.name] = operator._lib
    return operator


def _registered(
    torch: Any, name: str, schema: str, run: Any, fake: Any, epilogue: Sequence[str], count: int
) -> Operator:
    """Register a product with so many tensors.

    PyTorch's `custom_op` puts three Python functions between its dispatcher and `run`, which take as long as the
    launch. Here is one, the kernel behind autograd's key: calls of compiled graphs go from it to the library.
    """
    below_autograd, is_direct = torch._C._AutoDispatchBelowAutograd, _directness(torch, count)

    class Product(torch.autograd.Function):  # type: ignore[misc]  # of a package without types
        """The product with its gradients."""

        @staticmethod
        def forward(*arguments: Any) -> Any:
            with below_autograd():
                return registered(*arguments)

        @staticmethod
        def setup_context(context: Any, inputs: Any, output: Any) -> None:
            *operands, context.alpha = inputs
            context.save_for_backward(*operands)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return _gradients(torch, epilogue, context, gradient)

    def dispatched(*arguments: Any) -> Any:
        if is_direct(*arguments):
            return run(*arguments)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in arguments[:count]):
            return Product.apply(*arguments[:count], *(arguments[count:] or (1.0,)))  # a default is not passed on
        with below_autograd():
            return registered(*arguments)

    own = _REGISTERED[name] = torch.library.Library("mltune", "FRAGMENT")
    own.define(name + schema, tags=torch.Tag.pt2_compliant_tag)
    registered = getattr(torch.ops.mltune, name).default
    own.impl(registered, run, "CUDA")
    own.impl(registered, dispatched, "Autograd")
    own.impl(registered, fake, "Meta")  # by `register_fake` one of an operation of before would be meant
    return Operator(name, run, is_direct)


def _gradients(torch: Any, epilogue: Sequence[str], context: Any, gradient: Any) -> tuple[Any, ...]:
    """Return the gradients of a product alpha a b with an epilogue, which are products of PyTorch."""
    a, b, *bias = context.saved_tensors
    if "scales" in epilogue or a.element_size() == 1:
        raise LibraryError("a product of FP8 or with scales has no gradients; call it within torch.no_grad().")
    of_a, of_b, *_ = context.needs_input_grad
    by_rows = "bias_n" in epilogue  # the product is stored by rows, and the library's by columns
    if epilogue[-1] not in ("", "bias_m", "bias_n"):
        sums = sum((vector[:, None] if by_rows else vector for vector in bias), context.alpha * (a @ b))
        gradient = _before(torch, epilogue[-1], gradient.to(sums.dtype), sums)
    alpha = context.alpha.conjugate() if isinstance(context.alpha, complex) else context.alpha
    scaled = (alpha * gradient).to(a.dtype)
    of_bias = (gradient.sum(1 if by_rows else 0).to(vector.dtype) for vector in bias)
    return scaled @ b.mH if of_a else None, a.mH @ scaled if of_b else None, *of_bias, None


def _before(torch: Any, activation: str, gradient: Any, sums: Any) -> Any:
    """Return the gradient of what an activation is applied to."""
    if activation == "relu":
        return gradient * (sums > 0)
    if activation == "silu":
        return torch.ops.aten.silu_backward(gradient, sums)
    form = "tanh" if activation == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(gradient, sums, approximate=form)


def _declared(parameter: dict[str, Any], alias: str) -> str:
    """Return a parameter as PyTorch's schemas have it."""
    if parameter["role"] in ("out", "inout"):
        return f"Tensor({alias}!) {parameter['name']}"
    kind = "f" if parameter["dtype"] == "bfloat16" else STORAGE[parameter["dtype"]].kind
    return f"{'Tensor' if parameter['role'] == 'in' else _TYPES[kind]} {parameter['name']}"
