"""A library as an operator of PyTorch: what it promises without a GPU. Its results are tested on one."""

import shutil

import pytest
from c_library import build_driver, content_of
from test_c import CASES
from test_loaded import run

from mltune.device.gpu_arrays import package_of
from mltune.library.folder import write_library
from mltune.problem.gemm import parse_problem

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
pytest.importorskip("torch")


@pytest.fixture
def product(tmp_path):
    """Return the folder of a library of products of matrices, with a driver beside it."""
    build_driver(tmp_path)
    problem = parse_problem("sgemm", trans="NN", size=99)
    write_library(tmp_path / "lib", content_of("gemm_simt", problem, ("m", "n", "k")))
    return tmp_path / "lib"


def test_a_product_is_kept_by_compile_and_export(product):
    found = run(
        product,
        """
import torch
sgemm = lib.to_torch_operator()
assert lib.to_torch_operator() is not sgemm  # registered again
a, b = torch.empty(30, 70, device="meta"), torch.empty(70, 50, device="meta")
kept = []
def backend(graph, inputs):
    kept.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
    return graph.forward
def model(a, b):
    return torch.relu(torch.ops.mltune.sgemm_nn(a, b, 2.0))
out = torch.compile(model, backend=backend, fullgraph=True)(a, b)
torch.compile(lambda a, b: sgemm(a, b).sum(), backend=backend, fullgraph=True)(a, b)
class Module(torch.nn.Module):
    forward = staticmethod(model)
rows = torch.export.Dim("rows")
exported = torch.export.export(Module(), (a, b), dynamic_shapes=({0: rows}, None))
found = [kept, list(out.shape), list(out.stride()), str(exported.graph)]
for wrong in ((b, b), (a[0], b)):
    try:
        sgemm(*wrong)
    except RuntimeError as error:
        found.append(str(error))
try:
    sgemm(torch.zeros(3, 3), torch.zeros(3, 3))
except NotImplementedError as error:
    found.append(str(error))
found.append(str(torch.ops.mltune.sgemm_nn.default._schema))
""",
    )
    assert len([one for one in found[0] if "sgemm" in one]) == 2
    assert found[1:3] == [[30, 50], [50, 1]]
    assert "torch.ops.mltune.sgemm_nn.default" in found[3]
    assert "the shapes [70, 50] and [70, 50] do not fit a product" in found[4]
    assert "the shapes [70] and [70, 50] do not fit a product" in found[5]
    assert "CPU" in found[6]
    assert found[7] == "mltune::sgemm_nn(Tensor a, Tensor b, Scalar alpha=1.) -> Tensor"


def test_gradients_of_a_product_are_those_of_pytorch(product):
    """A product of PyTorch on the CPU stands in for the library, whose results are tested on a GPU."""
    found = run(
        product,
        """
import torch
sgemm = lib.to_torch_operator()
sgemm.register_kernel("cpu")(lambda a, b, alpha=1.0: alpha * (a @ b))
found = []
for dtype, alpha in ((torch.float64, 1.5), (torch.complex128, 2.0)):
    a, b = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((3, 4), (4, 5)))
    found.append(torch.autograd.gradcheck(lambda a, b: sgemm(a, b, alpha), (a, b)))
    found.append(torch.autograd.gradcheck(lambda b: sgemm(a.detach(), b, alpha), (b,)))
compiled = torch.compile(lambda a, b: sgemm(a, b).sum(), backend="aot_eager", fullgraph=True)
a, b = (torch.empty(shape, device="meta", requires_grad=True) for shape in ((30, 70), (70, 50)))
compiled(a, b).backward()
found += [list(a.grad.shape), list(b.grad.shape)]
""",
    )
    assert found == [True] * 4 + [[30, 70], [70, 50]]


@pytest.mark.filterwarnings("default")  # of PyTorch's own checks
def test_the_registration_passes_the_checks_of_pytorch(product):
    """As in docs/programs/library_torch.py; a product of PyTorch on the CPU stands in for the library."""
    found = run(
        product,
        """
import torch
lib.to_torch_operator().register_kernel("cpu")(lambda a, b, alpha=1.0: alpha * (a @ b))
found = []
for needs in (False, True):
    a, b = (torch.randn(shape, requires_grad=needs) for shape in ((3, 4), (4, 5)))
    for operands in ((a, b), (a, b, 2.0)):
        found.append(torch.library.opcheck(torch.ops.mltune.sgemm_nn.default, operands))
""",
    )
    assert [set(checks.values()) for checks in found] == [{"SUCCESS"}] * 4
    assert len(found[0]) == 4


def test_an_operation_takes_the_name_of_another(tmp_path, product):
    """A product and an operation on arrays are registered in two ways, each in place of the other."""
    write_library(tmp_path / "other", content_of("reduction", CASES["reduction"][1], ("n",)))
    found = run(
        product,
        f"""
import torch
other = load_library({str(tmp_path / "other")!r})
first, other.name, found = lib.to_torch_operator(), lib.name, []
for registered in (other, lib, other, lib):
    operator = registered.to_torch_operator()
    found.append(str(torch.ops.mltune.sgemm_nn.default._schema))
found.append([*first(torch.empty(3, 4, device="meta"), torch.empty(4, 5, device="meta")).shape])
""",
    )
    assert ["sum" in schema for schema in found[:4]] == [True, False, True, False]
    assert found[4] == [3, 5], "an operator of before is that of the name"


@pytest.mark.parametrize("epilogue", ["bias_m+gelu", "bias_n+gelu_tanh", "bias_m+silu", "relu", "bias_n"])
def test_gradients_of_an_epilogue_are_those_of_pytorch(tmp_path, epilogue):
    """The functions of PyTorch on the CPU stand in for the library, whose results are tested on a GPU."""
    build_driver(tmp_path)
    problem = parse_problem("hgemm", trans="TN", m=299, n=299, k=4096, epilogue=epilogue)
    write_library(tmp_path / "lib", content_of("gemm_wgmma", problem, ("m", "n", "k")))
    found = run(
        tmp_path / "lib",
        """
import torch
from torch.nn import functional as F
operator, epilogue = lib.to_torch_operator(), lib.document["problem"]["epilogue"]
bias_name, _, name = epilogue.rpartition("+") if "+" in epilogue else (epilogue, "", "")
bias_name, name = ("", epilogue) if epilogue == "relu" else (bias_name, name)
activation = {"": lambda x: x, "relu": F.relu, "silu": F.silu, "gelu": F.gelu,
              "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}[name]
def product(a, b, *others):
    *bias, alpha = (*others, 1.0) if len(others) == bool(bias_name) else others
    sums = alpha * (a @ b)
    return activation(sum((v[:, None] if bias_name == "bias_n" else v for v in bias), sums))
operator.register_kernel("cpu")(product)
def randn(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)
operands = [randn(3, 4), randn(4, 5)] + ([randn(3 if bias_name == "bias_n" else 5)] if bias_name else [])
found = [torch.autograd.gradcheck(lambda *operands: operator(*operands, 1.5), operands)]
compiled = torch.compile(lambda *operands: operator(*operands).sum(), backend="aot_eager", fullgraph=True)
shapes = [(30, 70), (70, 50)] + ([(30 if bias_name == "bias_n" else 50,)] if bias_name else [])
empty = [torch.empty(shape, device="meta", dtype=torch.float16, requires_grad=True) for shape in shapes]
compiled(*empty).backward()
found.append([tuple(operand.grad.shape) for operand in empty] == shapes)
found.append(str(getattr(torch.ops.mltune, lib.name).default._schema))
""",
    )
    assert found[:2] == [True, True]
    assert found[2].endswith(
        f"(Tensor a, Tensor b, {'Tensor bias, ' if 'bias' in epilogue else ''}Scalar alpha=1.) -> Tensor"
    )


def test_other_operations_write_to_their_outputs(tmp_path):
    build_driver(tmp_path)
    write_library(tmp_path / "lib", content_of("reduction", CASES["reduction"][1], ("n",)))
    found = run(
        tmp_path / "lib",
        """
import torch
operator = lib.to_torch_operator()
schema = getattr(torch.ops.mltune, lib.name).default._schema
given = [torch.empty(64, device="meta") if "Tensor" in str(one.type) else 64 for one in schema.arguments]
found = [str(schema), str(operator(*given)), lib.parameters]
""",
    )
    assert found[:2] == ["mltune::reduction(int n, Tensor(x1!) sum, Tensor input) -> ()", "None"]


def test_tensors_and_parameters_of_modules_are_of_one_package():
    import torch

    assert package_of(torch.Tensor) is package_of(torch.nn.Parameter) is not None


ON_A_GPU = """
import ctypes, torch
torch.Tensor.is_cuda, torch.Tensor.get_device = property(lambda tensor: True), lambda tensor: 0  # stand-ins
torch._C._cuda_getCurrentRawStream = lambda device: 0
zeros = torch.zeros
torch.zeros = lambda *extents, device=None, **options: zeros(*extents, **options)
driver = ctypes.CDLL("libcuda.so.1")
launches = ctypes.c_int64.in_dll(driver, "fake_count")
"""


@pytest.fixture
def linear(tmp_path):
    """Return a function that writes a library of linear layers in half precision."""
    build_driver(tmp_path)

    def written(epilogue="", precision="h", trans="TN"):
        problem = parse_problem(f"{precision}gemm", trans=trans, m=299, n=299, k=4096, epilogue=epilogue)
        write_library(tmp_path / f"lib{epilogue}", content_of("gemm_wgmma", problem, ("m", "n", "k")))
        return tmp_path / f"lib{epilogue}"

    return written


def test_plain_tensors_are_launched_without_the_dispatcher_of_pytorch(linear):
    """Tensors of the host stand in for a GPU's; the function of torch.ops is not called, but where it must be."""
    found = run(
        linear(),
        f"""{ON_A_GPU}
from mltune.library.torch_operator import Operator
operator, found = lib.to_torch_operator(), []
registered = Operator._registered
Operator._registered = property(lambda self: lambda *arguments: found.append("dispatched"))
x, weight = torch.randn(16, 4096).half(), torch.randn(4096, 4096).half()
with torch.no_grad():
    for tokens in (16, 16, 1, 3):
        before = launches.value
        out = operator(x[:tokens], weight.T)
        found.append([launches.value - before, [*out.shape], str(out.dtype)])
weight.requires_grad_()
operator(x, weight.T)
weight.requires_grad_(False)
with torch.overrides.BaseTorchFunctionMode():
    operator(x, weight.T)
operator(torch._neg_view(x), weight.T)  # of which PyTorch negates each element
Operator._registered, wrong = registered, []
for a, b in ((x, x), (x.float(), weight.T.float()), (x, weight)):
    try:
        operator(a, b)
    except Exception as error:
        wrong.append(f"{{type(error).__name__}}: {{error}}")
found.append(wrong)
""",
    )
    assert found[:4] == [[1, [tokens, 4096], "torch.float16"] for tokens in (16, 16, 1, 3)]
    assert found[4:7] == ["dispatched"] * 3
    assert "do not fit a product" in found[7][0]
    assert "A has elements of <f4; they must be of float16" in found[7][1]
    assert "hgemm_tn is for A T and B N stored by columns" in found[7][2]


def test_a_compiled_graph_goes_from_the_dispatcher_to_the_library(linear):
    """The kernel behind autograd's key launches; PyTorch's dispatcher is not entered a second time."""
    found = run(
        linear(),
        f"""{ON_A_GPU}
lib.to_torch_operator().register_kernel("cpu")(lambda *arguments: found.append("a second time"))
registered, found = torch.ops.mltune.hgemm_tn.default, []
x, weight = torch.randn(16, 4096).half(), torch.randn(4096, 4096).half().T
before = launches.value
for _ in range(3):
    found.append([*registered(x, weight).shape])
found.append(launches.value - before)
class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found.append(str(function))
        return function(*arguments)
with Mode():
    registered(x, weight)
""",
    )
    assert found == [[16, 4096]] * 3 + [3, "mltune.hgemm_tn.default", "a second time"]


def test_a_sign_that_pytorch_has_not_applied_is_seen_in_a_repeated_call(linear):
    """Its memory holds other numbers than those of the same call before."""
    found = run(
        linear(),
        f"""{ON_A_GPU}
x, weight, out = torch.randn(16, 4096).half(), torch.randn(4096, 4096).half(), torch.empty(16, 4096).half()
found = []
for a in (x, torch._neg_view(x)):
    try:
        found.append(lib.hgemm(a, weight.T, out=out) is out)
    except Exception as error:
        found.append(f"{{type(error).__name__}}: {{error}}")
""",
    )
    assert found == [True, "LibraryError: A is a Tensor; it must be an array on a GPU."]


def test_one_token_is_a_product_of_as_many_rows_as_outputs(linear):
    """A vector is stored by rows and by columns; the library was built for m outputs and one token."""
    found = run(
        linear(),
        f"""{ON_A_GPU}
operator, seen = lib.to_torch_operator(), []
product = type(lib)._product
type(lib)._product = lambda self, *arguments: seen.append(product(self, *arguments)) or seen[-1]
with torch.no_grad():
    operator(torch.randn(1, 512).half(), torch.randn(256, 512).half().T)
names = [lib.parameters[place] for place in lib._scalars]
values = dict(zip(names, lib._values.unpack(seen[0].values)))
found = [values[name] for name in "mnk"]
""",
    )
    assert found == [256, 1, 512]


@pytest.mark.parametrize("epilogue", ["", "bias_m"])
def test_the_linear_layers_of_a_model_are_replaced_in_one_line(linear, epilogue):
    """Layers of another type, with or without a bias, and subclasses stay; the state and the results are the same."""
    found = run(
        linear(epilogue),
        """
import copy, torch
from torch import nn
class Other(nn.Linear):
    pass
has_bias = lib.has_bias
def product(a, b, *others):
    return torch.nn.functional.linear(a, b.T, *(others if lib.has_bias else ()))
model = nn.Sequential(nn.Linear(8, 16, bias=has_bias), nn.ReLU(), nn.Sequential(nn.Linear(16, 8, bias=has_bias)),
                      nn.Linear(8, 8, bias=not has_bias), Other(8, 8, bias=has_bias)).half()
model.append(nn.Linear(8, 4, bias=has_bias))
before, x = copy.deepcopy(model[:5]), torch.randn(2, 3, 8).half()
right, names = before(x), [*model.state_dict()]
found = [lib.replace_linears(model), [type(module).__name__ for module in model], names == [*model.state_dict()]]
operator = model[0].operator
operator.register_kernel("cpu")(product)
found.append(bool((model[:5](x) == right).all()))
copied = copy.deepcopy(model)
found.append(copied[0].operator is operator and copied[0].weight is not model[0].weight)
kept = []
def backend(graph, inputs):
    kept.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
    return graph.forward
torch.compile(model[:5], backend=backend, fullgraph=True)(x)
found.append(len([name for name in kept if "gemm" in name]))
model[:5](x.requires_grad_()).sum().backward()
found.append(x.grad is not None and model[0].weight.grad is not None)
""",
    )
    other = "LibraryLinear"
    assert found[:3] == [2, [other, "ReLU", "Sequential", "Linear", "Other", "Linear"], True]
    assert found[3:] == [True, True, 2, True]


@pytest.mark.parametrize(("epilogue", "precision", "trans"), [("relu", "h", "TN"), ("", "hs", "TN"), ("", "h", "NN")])
def test_a_library_of_another_operation_replaces_no_layer(linear, epilogue, precision, trans):
    found = run(
        linear(epilogue, precision, trans),
        """
import torch
try:
    lib.replace_linears(torch.nn.Linear(8, 8))
except Exception as error:
    found = [type(error).__name__, str(error)]
""",
    )
    assert found[0] == "LibraryError"
    assert "a library for linear layers is a product TN" in found[1]
