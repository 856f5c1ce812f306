"""Compiler parameters: which values there are, what they ask of the compiler, and when they are part of a space."""

import os
from pathlib import Path

import numpy as np
import pytest

from mltune.device.known import H200
from mltune.errors import BundleError, UsageError
from mltune.kernel.bundle import Kernel
from mltune.kernel.compiler_parameters import BUILT_IN, variant_of
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.python_kernel import KernelCall, make_kernel
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import parse_problem

BUNDLE = """
[kernel]
name = "small"
source = "small.cu"
entry = "entry"
problem = "gemm"
precisions = ["s"]
[parameters]
WIDTH = [1, 2, 4]
[launch]
block = [32]
grid = [1]
"""
SOURCE = 'extern "C" __global__ void entry(float* out) { out[0] = WIDTH; }\n'
PROBLEM = parse_problem("sgemm", size=64)


def bundle(folder: Path, compiler: str = "", source: str = SOURCE) -> Kernel:
    (folder / "kernel.toml").write_text(BUNDLE + compiler)
    (folder / "small.cu").write_text(source)
    return load_kernel(folder)


def in_python(folder, compiler=None, source=SOURCE, values=None, **options):
    arguments = [np.ones(4, np.float32)]
    call = KernelCall("entry", source, 4, arguments, values or {"WIDTH": [1, 2]}, compiler=compiler or {}, **options)
    return make_kernel(call, folder)


def test_every_kernel_with_a_source_has_those_that_are_built_in_but_its_space_does_not(tmp_path):
    kernel = bundle(tmp_path)
    assert kernel.compiler.parameters == {"entry_name": (0, 1), "register_usage_level": (5, 8)}
    assert kernel.all_parameters == kernel.space.parameters
    assert kernel.space.labels == {}
    varied = kernel.with_variants()
    assert [*varied.all_parameters] == ["WIDTH", *BUILT_IN]
    assert varied.space.labelled({"WIDTH": 2, "entry_name": 1, "register_usage_level": 8})["entry_name"] == "cutlass"
    assert varied.recorded_with(()) == kernel
    assert load_kernel("convolution").compiler.parameters == {}, "it has no source"


def test_a_bundle_narrows_widens_and_adds(tmp_path):
    table = (
        '[compiler]\nentry_name = [""]\nregister_usage_level = [8, 5, 0]\nmath = ["", "--use_fast_math --fmad=false"]\n'
        'optimization = ["", "--ptxas-options=-O2"]\n'
    )
    kernel = bundle(tmp_path, table)
    built_in = {"entry_name": (0,), "register_usage_level": (8, 5, 0)}
    assert kernel.compiler.parameters == {**built_in, "math": (0, 1), "optimization": (0, 1)}
    assert kernel.compiler.variant({"register_usage_level": 5, "optimization": 1}).options == ("--ptxas-options=-O2",)
    assert kernel.compiler.variant({}).options == ("--ptxas-options=--register-usage-level=8",)
    assert kernel.compiler.variant({"register_usage_level": 5, "math": 1}).options == (
        "--use_fast_math",
        "--fmad=false",
    )
    assert kernel.space.sha256 != bundle(tmp_path).space.sha256
    assert kernel.source.sha256 == bundle(tmp_path).source.sha256


def test_a_changed_name_is_that_of_the_kernel_alone(tmp_path):
    kernel = bundle(tmp_path)
    assert kernel.renaming({"WIDTH": 1}) == kernel.renaming({"entry_name": 0}) == {}
    assert kernel.renaming({"entry_name": 1}) == {"entry": "entry_cutlass"}
    template = in_python(tmp_path, source=SOURCE.replace('extern "C"', "template <int N>"))
    assert template.renaming({"entry_name": 1}) == {"entry": "entry_cutlass"}


@pytest.mark.parametrize(
    ("table", "law"),
    [
        ('entry_name = ["a b"]', "at most 40 letters"),
        ('entry_name = ["x\\nint main"]', "at most 40 letters"),
        (f'entry_name = ["{"x" * 41}"]', "at most 40 letters"),
        ("entry_name = [1]", "at most 40 letters"),
        ("register_usage_level = [11]", "from 0 to 10"),
        ("register_usage_level = [-1]", "from 0 to 10"),
        ('register_usage_level = ["8"]', "from 0 to 10"),
        ('own = ["--define-macro=X=1"]', "cannot be an option of the compiler"),
        ('own = ["--include-path=/etc"]', "cannot be an option of the compiler"),
        ('own = ["--use_fast_math  --fmad=true"]', "cannot be an option of the compiler"),
        ('own = ["--use_fast_math\\t--include-path=/"]', "cannot be an option of the compiler"),
        ('own = ["--ptxas-options=--apply-controls=/etc/passwd"]', "cannot be an option of the compiler"),
        ('own = ["--ptxas-options=-O2,--apply-controls=/etc/passwd"]', "cannot be an option of the compiler"),
        ('own = ["--ptxas-options=-O4"]', "cannot be an option of the compiler"),
        ('own = ["--fmad=true --output-file=/tmp/x"]', "cannot be an option of the compiler"),
        ('own = ["-lineinfo\\u0000"]', "cannot be an option of the compiler"),
        (f'own = ["{"x" * 201}"]', "at most 200 characters"),
        ("own = [3]", "at most 200 characters"),
        ('own = ["", ""]', "distinct"),
        ("own = []", "must not be empty"),
        ('apply_controls = ["../fast.acf"]', "is no file of controls"),
        ('apply_controls = ["/etc/fast.acf"]', "is no file of controls"),
        ('apply_controls = ["/etc/passwd"]', "is no file of controls"),
        ('apply_controls = ["sub/fast.acf"]', "is no file of controls"),
        ('apply_controls = ["small.cu"]', "is no file of controls"),
        ('apply_controls = ["-fast.acf"]', "is no file of controls"),
        ('apply_controls = ["a,--output-file=x.acf"]', "is no file of controls"),
        ('apply_controls = ["a b.acf"]', "is no file of controls"),
        ('apply_controls = ["a.acf\\n"]', "is no file of controls"),
        (f'apply_controls = ["{"x" * 102}.acf"]', "is no file of controls"),
        ("apply_controls = [1]", "is no file of controls"),
        ('apply_controls = ["", ""]', "distinct"),
        ('apply_controls = ["", "none.acf"]', "cannot be read: there is no such file"),
        ('own = ["--ptxas-options=--apply-controls=fast.acf"]', "cannot be an option of the compiler"),
        ('WIDTH = ["", "--fmad=false"]', "another parameter has the name"),
        ('width = ["", "--fmad=false"]', "another parameter has the name"),
        ('entry_name = ["", "taken"]', "is in the source, but would name the kernel"),
    ],
)
def test_other_values_are_refused(tmp_path, table, law):
    with pytest.raises(BundleError, match=law) as refused:
        bundle(tmp_path, f"[compiler]\n{table}\n", SOURCE + "__device__ int entry_taken;\n")
    assert "kernel.toml: compiler" in str(refused.value) or "none.acf: this file of the bundle" in str(refused.value)
    assert len(str(refused.value)) < 900


def test_too_many_are_refused(tmp_path):
    with pytest.raises(BundleError, match="at most 8"):
        bundle(tmp_path, "[compiler]\n" + "".join(f'p{at} = [""]\n' for at in range(9)))


def test_without_a_source_there_are_none(tmp_path):
    (tmp_path / "kernel.toml").write_text(
        '[kernel]\nname = "small"\nproblem = "recorded"\n[parameters]\nWIDTH = [1]\n[compiler]\nentry_name = [""]\n'
    )
    with pytest.raises(BundleError, match="there is no source, to which compiler parameters belong"):
        load_kernel(tmp_path)


def test_a_built_in_one_that_clashes_is_left_out(tmp_path):
    assert [*bundle(tmp_path, source=SOURCE + "// entry_cutlass\n").compiler.parameters] == ["register_usage_level"]
    kernel = in_python(tmp_path, values={"Entry_Name": [1, 2]})
    assert [*kernel.compiler.parameters] == ["register_usage_level"]


def test_a_call_has_them_too(tmp_path):
    kernel = in_python(tmp_path, {"math": ["", "--use_fast_math"], "entry_name": [""]})
    assert kernel.compiler.parameters == {"entry_name": (0,), "register_usage_level": (5, 8), "math": (0, 1)}
    with pytest.raises(UsageError, match=r"compiler: math: .* cannot be an option of the compiler"):
        in_python(tmp_path, {"math": ["-o /tmp/x"]})


def test_no_function_of_a_call_sees_them(tmp_path):
    seen = []
    kernel = in_python(tmp_path, shared=lambda values: seen.append(values) or 0).with_variants()
    configuration = {"WIDTH": 1, "entry_name": 1, "register_usage_level": 8}
    kernel.launch(configuration, {})
    assert seen == [{"WIDTH": 1}]
    assert not {"entry_name", "register_usage_level"} & kernel.macros(configuration).keys()


def test_a_space_holds_every_configuration_in_all_variants(tmp_path):
    assert PlacedKernel(bundle(tmp_path), PROBLEM, H200).space.count == 3
    space = PlacedKernel(bundle(tmp_path).with_variants(), PROBLEM, H200).space
    assert (space.count, space.names) == (12, ("WIDTH", "entry_name", "register_usage_level"))
    listed = in_python(tmp_path, restrictions=[lambda WIDTH: WIDTH > 1])
    assert PlacedKernel(listed, PROBLEM, H200).space.count == 1
    space = PlacedKernel(listed.with_variants(), PROBLEM, H200).space
    assert space.count == 4
    assert len(set(zip(*(column.tolist() for column in space.rows(np.arange(4)).values()), strict=True))) == 4


def test_a_value_of_one_makes_it_part_of_the_space(tmp_path):
    kernel = bundle(tmp_path).with_values({"entry_name": [1]})
    assert kernel.all_parameters == {"WIDTH": (1, 2, 4), "entry_name": (1,)}
    assert kernel.compiler.variant({"entry_name": 1}).name == "cutlass"


def test_a_record_without_them_was_made_with_their_defaults(tmp_path):
    kernel = bundle(tmp_path).with_variants()
    assert kernel.has_parameters(["WIDTH"])
    assert kernel.has_parameters(["WIDTH", "register_usage_level"])
    assert not kernel.has_parameters(["WIDTH", "math"])
    assert kernel.compiler.completed({"WIDTH": 2, "register_usage_level": 8}) == {
        "WIDTH": 2,
        "register_usage_level": 8,
        "entry_name": 0,
    }


def test_a_variant_of_nothing_asks_for_nothing():
    assert variant_of({}) == variant_of({"entry_name": "", "register_usage_level": 5, "own": ""})


CONTROLS = '[compiler]\napply_controls = ["", "fast.acf"]\n'


def test_a_file_of_controls_is_read_with_its_kernel(tmp_path):
    (tmp_path / "fast.acf").write_bytes(b"\x00\xff")
    kernel = bundle(tmp_path, CONTROLS)
    assert kernel.compiler.controls == {"fast.acf": b"\x00\xff"}
    assert kernel.compiler.variant({}).options == ()
    assert kernel.compiler.variant({"apply_controls": 1}).options == ("--ptxas-options=--apply-controls=fast.acf",)
    assert kernel.with_variants().space.labelled({"apply_controls": 1}) == {"apply_controls": "fast.acf"}
    (tmp_path / "fast.acf").write_bytes(b"other")
    changed = bundle(tmp_path, CONTROLS)
    assert len({kernel.source.sha256, changed.source.sha256, bundle(tmp_path).source.sha256}) == 3
    assert bundle(tmp_path, CONTROLS) == changed


def linked_out(path: Path) -> None:
    outside = path.parent.parent / "outside.acf"
    outside.write_text("secret")
    path.symlink_to(outside)


def linked_round(path: Path) -> None:
    path.symlink_to(path)


HOSTILE = [
    (linked_out, "a link that leads out"),
    (lambda path: path.symlink_to("/dev/zero"), "a link that leads out"),
    (linked_round, "this file of the bundle cannot be read"),
    (os.mkfifo, "is a FIFO, and only regular files are opened"),
    (Path.mkdir, "is a directory, and only regular files are opened"),
    (lambda path: path.write_bytes(bytes(1 + (1 << 20))), "of which at most 1048576 are read"),
]


@pytest.mark.parametrize(("make", "law"), HOSTILE)
def test_no_other_file_is_read_as_controls(tmp_path, make, law):
    folder = tmp_path / "bundle"
    folder.mkdir()
    make(folder / "fast.acf")
    with pytest.raises(BundleError, match=law) as refused:
        bundle(folder, CONTROLS)
    assert "fast.acf: " in str(refused.value)


def test_a_call_names_the_path_of_a_file_of_controls(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "fast.acf"
    path.write_bytes(b"\x00one")
    kernel = in_python(tmp_path, {"apply_controls": ["", path]})
    assert kernel.compiler.controls == {"fast.acf": b"\x00one"}
    assert kernel.compiler.labels["apply_controls"] == ("", "fast.acf")
    assert in_python(tmp_path, {"apply_controls": ["", str(path)]}).source.sha256 == kernel.source.sha256
    path.write_bytes(b"two")
    assert in_python(tmp_path, {"apply_controls": ["", path]}).source.sha256 != kernel.source.sha256
    without = in_python(tmp_path, {"apply_controls": [""]})
    assert without.compiler.controls == {}
    assert without.source.sha256 == in_python(tmp_path).source.sha256


@pytest.mark.parametrize(
    ("values", "law"),
    [
        (["", "fast.acf", "sub/fast.acf"], "distinct"),
        (["", "fast.bin"], "is no file of controls"),
        (["", 3], "is no file of controls"),
        (["", "none.acf"], "a file of controls cannot be read: .*none.acf"),
        (["", "fifo.acf"], "is a FIFO"),
        (["", "huge.acf"], "of which at most 1048576 are read"),
        (["", "sub"], "is no file of controls"),
    ],
)
def test_a_call_with_other_controls_is_refused(tmp_path, monkeypatch, values, law):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("fast.acf", "fast.bin", "sub/fast.acf"):
        Path(name).write_bytes(b"one")
    Path("huge.acf").write_bytes(bytes(1 + (1 << 20)))
    os.mkfifo("fifo.acf")
    with pytest.raises(UsageError, match=f"compiler: .*{law}"):
        in_python(tmp_path, {"apply_controls": values})
