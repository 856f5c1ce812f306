"""A library as a custom operator of PyTorch, which ``torch.compile`` and ``torch.export`` keep as one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mltune.problem.array_values import STORAGE

_TYPES = {"i": "int", "u": "int", "f": "float", "c": "Scalar", "b": "bool"}


def torch_operator(library: Any) -> Any:
    """Register a library as an operator; see :meth:`Library.torch_operator`."""
    import torch

    described = library.document["parameters"]
    written = [parameter["name"] for parameter in described if parameter["role"] in ("out", "inout")]

    def product(a: Any, b: Any, alpha: Any = 1.0) -> Any:
        return product_with_bias(a, b, None, alpha)

    def product_with_bias(a: Any, b: Any, bias: Any, alpha: Any = 1.0) -> Any:
        out = of_product(a, b)
        with torch.no_grad():
            library.multiply(a, b, out=out, bias=bias, alpha=alpha)
        return out

    def of_product(a: Any, b: Any, *others: Any, **scalars: Any) -> Any:
        fits = a.dim() == 2 and b.dim() == 2 and a.shape[1] == b.shape[0]
        torch._check(fits, lambda: f"the shapes of a product must fit, got {[*a.shape]} and {[*b.shape]}.")
        dtype = next(parameter["dtype"] for parameter in described if parameter["name"] == "C")
        return a.new_empty((a.shape[0], b.shape[1]), dtype=getattr(torch, dtype))

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
    if library.is_product:
        epilogue = str(library.document["problem"].get("epilogue", "")).split("+")
        operator.register_autograd(partial(_gradients, torch, epilogue), setup_context=_keep)
    return operator


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
