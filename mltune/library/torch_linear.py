"""Linear layers of a PyTorch model that run a library's product."""

from __future__ import annotations

import functools
from typing import Any

from mltune.errors import LibraryError

_EPILOGUES = ("", "bias_m")
"""What a library may do with a product so that it is a linear layer without, or with, a bias."""


def replace_linears(library: Any, model: Any) -> int:
    """Replace the linear layers of a model; see :meth:`Library.replace_linears`."""
    import torch

    problem, parameters = library.document["problem"], library.document["parameters"]
    dtypes = {parameter["name"]: parameter["dtype"] for parameter in parameters if parameter["name"] in "ABC"}
    epilogue = str(problem.get("epilogue", ""))
    case = f"{problem.get('trans_a')}{problem.get('trans_b')}"
    if not library.is_product or case != "TN" or len({*dtypes.values()}) > 1 or epilogue not in _EPILOGUES:
        raise LibraryError(
            f"{library.name} computes {library.document['formula']}; a library for linear layers is a product TN with "
            "results of the type of its operands, such as hgemm, and without an epilogue or with bias_m."
        )
    dtype, operator, count = getattr(torch, dtypes["C"]), library.to_torch_operator(), 0
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            is_layer = type(child) is torch.nn.Linear and child.weight.dtype is dtype
            if is_layer and (child.bias is not None) is library.has_bias:
                setattr(module, name, _linear()(operator, child.weight, child.bias))
                count += 1
    return count


@functools.cache
def _linear() -> Any:
    import torch

    class LibraryLinear(torch.nn.Module):  # type: ignore[misc]  # of a package without types
        """A linear layer with the parameters of the one that it replaces."""

        def __init__(self, operator: Any, weight: Any, bias: Any) -> None:
            super().__init__()
            self.operator, self.weight, self.bias = operator, weight, bias

        def extra_repr(self) -> str:
            """Return what the layer computes."""
            return f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}"

        def forward(self, x: Any) -> Any:
            """Return x W^T, and the bias added where there is one; x has a row for each token."""
            rows = x.reshape(-1, x.shape[-1])
            operands = (self.weight.t(),) if self.bias is None else (self.weight.t(), self.bias)
            return self.operator(rows, *operands).view(*x.shape[:-1], self.weight.shape[0])

    return LibraryLinear
