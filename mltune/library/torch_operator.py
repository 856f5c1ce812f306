"""A library as a custom operator of PyTorch, which ``torch.compile`` and ``torch.export`` keep as one call."""

from __future__ import annotations

from typing import Any

from mltune.problem.array_values import STORAGE

_TYPES = {"i": "int", "u": "int", "f": "float", "c": "Scalar", "b": "bool"}


def torch_operator(library: Any) -> Any:
    """Register a library as an operator; see :meth:`Library.torch_operator`."""
    import torch

    described = library.document["parameters"]
    written = [parameter["name"] for parameter in described if parameter["role"] in ("out", "inout")]

    def product(a: Any, b: Any, alpha: Any = 1.0) -> Any:
        out = of_product(a, b, alpha)
        with torch.no_grad():
            library.multiply(a, b, out=out, alpha=alpha)
        return out

    def of_product(a: Any, b: Any, alpha: Any = 1.0) -> Any:
        fits = a.dim() == 2 and b.dim() == 2 and a.shape[1] == b.shape[0]
        torch._check(fits, lambda: f"the shapes of a product must fit, got {[*a.shape]} and {[*b.shape]}.")
        dtype = next(parameter["dtype"] for parameter in described if parameter["name"] == "C")
        return a.new_empty((a.shape[0], b.shape[1]), dtype=getattr(torch, dtype))

    def call(*arguments: Any) -> None:
        with torch.no_grad():
            library(*arguments)

    run: Any
    if library.is_product:
        schema, run, fake, written = "(Tensor a, Tensor b, Scalar alpha=1.0) -> Tensor", product, of_product, []
    else:
        parameters = (_declared(parameter, f"x{place}") for place, parameter in enumerate(described))
        schema, run, fake = f"({', '.join(parameters)}) -> ()", call, lambda *arguments: None
    name = f"mltune::{library.name}"
    operator = torch.library.custom_op(name, run, mutates_args=written, device_types="cuda", schema=schema)
    operator.register_fake(fake)
    if library.is_product:
        operator.register_autograd(_gradients, setup_context=_keep)
    return operator


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    *operands, ctx.alpha = inputs
    ctx.save_for_backward(*operands)


def _gradients(context: Any, gradient: Any) -> tuple[Any, Any, None]:
    """Return the gradients of a product alpha a b, which are products of PyTorch."""
    a, b = context.saved_tensors
    of_a, of_b, *_ = context.needs_input_grad
    alpha = context.alpha.conjugate() if isinstance(context.alpha, complex) else context.alpha
    scaled = (alpha * gradient).to(a.dtype)
    return scaled @ b.mH if of_a else None, a.mH @ scaled if of_b else None, None


def _declared(parameter: dict[str, Any], alias: str) -> str:
    """Return a parameter as PyTorch's schemas have it."""
    if parameter["role"] in ("out", "inout"):
        return f"Tensor({alias}!) {parameter['name']}"
    kind = "f" if parameter["dtype"] == "bfloat16" else STORAGE[parameter["dtype"]].kind
    return f"{'Tensor' if parameter['role'] == 'in' else _TYPES[kind]} {parameter['name']}"
