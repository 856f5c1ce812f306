"""A library as a custom operator of PyTorch, which ``torch.compile`` and ``torch.export`` keep as one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mltune.problem.array_values import STORAGE

_MOST_REMEMBERED = 10_000
_TYPES = {"i": "int", "u": "int", "f": "float", "c": "Scalar", "b": "bool"}


class Operator:
    """An operation of a library that is registered in PyTorch, which is called like the function of ``torch.ops``.

    A call of plain tensors on a GPU without gradients, tracing and modes has no use for PyTorch's dispatcher, which
    takes longer than the launch: it goes to the library at once.
    """

    def __init__(self, registered: Any, run: Callable[..., Any]) -> None:
        import torch

        self._registered, self._run = registered, run
        self._plain = {torch.Tensor, torch.nn.Parameter}
        self._is_traced, self._has_gradients = torch.compiler.is_compiling, torch.is_grad_enabled
        self._modes = _mode_counters(torch)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return the result of the operation."""
        if not self._is_traced() and not options and self._is_direct(arguments):
            return self._run(*arguments)
        return self._registered(*arguments, **options)

    def __deepcopy__(self, memo: Any) -> Operator:
        """Return itself: copies of a model share the library."""
        return self

    def _is_direct(self, arguments: Sequence[Any]) -> bool:
        tensors = arguments[:-1] if type(arguments[-1]) in (int, float) else arguments
        if not all(type(tensor) in self._plain and tensor.is_cuda for tensor in tensors):
            return False
        if self._has_gradients() and any(tensor.requires_grad for tensor in tensors):
            return False
        return not any(count() for count in self._modes)

    def register_kernel(self, device_type: str) -> Callable[[Any], Any]:
        """Return a decorator that registers a function for tensors on another device."""
        return self._registered.register_kernel(device_type)  # type: ignore[no-any-return]


def _mode_counters(torch: Any) -> list[Callable[[], int]]:
    """Return functions that count modes which see calls of tensors; of an unknown PyTorch one that counts one."""
    own = torch._C
    try:
        functorch = own._functorch.maybe_current_level
        return [own._len_torch_dispatch_stack, own._len_torch_function_stack, lambda: functorch() is not None]
    except AttributeError:
        return [lambda: 1]


def torch_operator(library: Any) -> Any:
    """Register a library as an operator; see :meth:`Library.torch_operator`."""
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
        torch._check(fits, lambda: f"the shapes of a product must fit, got {[*a.shape]} and {[*b.shape]}.")
        return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype)

    def call(*arguments: Any) -> None:
        with torch.no_grad():
            library(*arguments)

    run: Any
    if library.is_product:
        bias, run = ("Tensor bias, ", product_with_bias) if library.has_bias else ("", product)
        schema, fake, written = f"(Tensor a, Tensor b, {bias}Scalar alpha=1.0) -> Tensor", of_product, []
    else:
        parameters = (_declared(parameter, f"x{place}") for place, parameter in enumerate(described))
        schema, run, fake = f"({', '.join(parameters)}) -> ()", call, lambda *arguments: None
    name = f"mltune::{library.name}"
    operator = torch.library.custom_op(name, run, mutates_args=written, device_types="cuda", schema=schema)
    operator.register_fake(fake)
    if not library.is_product:
        return operator
    epilogue = str(library.document["problem"].get("epilogue", "")).split("+")
    operator.register_autograd(partial(_gradients, torch, epilogue), setup_context=_keep)
    return Operator(operator, run)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    *operands, ctx.alpha = inputs
    ctx.save_for_backward(*operands)


def _gradients(torch: Any, epilogue: Sequence[str], context: Any, gradient: Any) -> tuple[Any, ...]:
    """Return the gradients of a product alpha a b with an epilogue, which are products of PyTorch."""
    a, b, *bias = context.saved_tensors
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
