"""Kernel bundles: the meaning of a kernel.toml, and the errors of a malformed one."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from mltune.device.known import H200
from mltune.errors import BundleError, ExpressionError
from mltune.kernel.bundle import DEVICE_VARIABLES, device_variables
from mltune.kernel.faults import find_faults
from mltune.kernel.launch import Launch, TensorMap
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.problem.gemm import parse_problem
from mltune.problem.kinds import KINDS

DOCUMENT = """
[kernel]
name = "small"
source = "small.cu"
entry = "small"
problem = "gemm"
precisions = ["s", "d"]

[parameters]
BLK = [16, 32, 64]
DIM = [4, 8]
VEC = [0, 1, 2]

[launch.parameters]
GROUP = [1, 2]

[derived]
PER_VEC = "THR // VEC"
THR = "BLK // DIM"
bytes = "BLK * 4 * element_bytes"

[restrictions]
"THR % VEC == 0" = "whole vectors"
"bytes <= shared_bytes_per_block" = "the device's limit"

[resources]
threads = "DIM * DIM"
shared_bytes = "bytes"

[launch]
block = ["DIM", "DIM"]
grid = ["ceil_div(m, BLK)", "ceil_div(n, BLK)", 1]
arguments = ["GROUP"]
"""

VARIABLES = parse_problem("sgemm", trans="NT", m=100, n=200, k=50).variables | device_variables(H200)


def bundle(folder: Path, *changes: tuple[str, str], document: str = DOCUMENT) -> Path:
    """Write a bundle with some of its text replaced."""
    for old, new in changes:
        assert old in document
        document = document.replace(old, new)
    folder.mkdir(exist_ok=True)
    (folder / "kernel.toml").write_text(document)
    (folder / "small.cu").write_text('extern "C" __global__ void small() {}\n')
    return folder


def test_a_bundle_is_read(tmp_path: Path) -> None:
    kernel = load_kernel(bundle(tmp_path))
    assert kernel.name == "small"
    assert kernel.folder == tmp_path
    assert kernel.source.text is not None
    assert kernel.source.text.startswith('extern "C"')
    assert (kernel.source.entry, kernel.problem, kernel.precisions) == ("small", "gemm", ("s", "d"))
    assert kernel.space.parameters == {"BLK": (16, 32, 64), "DIM": (4, 8), "VEC": (0, 1, 2)}
    assert kernel.space.launch_parameters == {"GROUP": (1, 2)}
    assert list(kernel.all_parameters) == ["BLK", "DIM", "VEC", "GROUP"]
    assert list(kernel.space.derived).index("THR") < list(kernel.space.derived).index("PER_VEC")
    first = kernel.space.restrictions[0]
    assert (first.text, first.reason) == (
        "THR % VEC == 0",
        "whole vectors",
    )
    assert kernel.space.parameters_of(["PER_VEC", "m"]) == {"BLK", "DIM", "VEC"}
    assert load_kernel(str(tmp_path)) == kernel
    assert pickle.loads(pickle.dumps(kernel)) == kernel  # noqa: S301


def test_names_are_resolved_over_columns(tmp_path: Path) -> None:
    kernel = load_kernel(bundle(tmp_path))
    columns = {name: np.array(column) for name, column in {"BLK": [16, 64], "DIM": [4, 8], "VEC": [1, 2]}.items()}
    values = kernel.space.evaluate(columns, VARIABLES)
    assert {name: column.tolist() for name, column in values.items()} == {
        "THR": [4, 8],
        "PER_VEC": [4, 4],
        "bytes": [256, 1024],
    }
    assert kernel.space.evaluate(columns, VARIABLES, kernel.resources.estimates)["threads"].tolist() == [16, 64]
    constant = kernel.space.evaluate(columns, VARIABLES, {"words": kernel.launch_rule.grid[2]})["words"]
    assert constant.tolist() == [1, 1]


def test_an_undefined_value_is_refused_by_name(tmp_path: Path) -> None:
    kernel = load_kernel(bundle(tmp_path))
    with pytest.raises(ExpressionError, match="PER_VEC"):
        kernel.space.evaluate(
            {name: np.array([0]) for name in kernel.space.parameters} | {"DIM": np.array([4])}, VARIABLES
        )


def test_a_launch(tmp_path: Path) -> None:
    configuration = {"BLK": 32, "DIM": 8, "VEC": 1, "GROUP": 2}
    expected = Launch(grid=(4, 7, 1), block=(8, 8, 1), shared_bytes=512, arguments=(2,))
    assert load_kernel(bundle(tmp_path)).launch(configuration, VARIABLES) == expected


def test_a_workspace_depends_on_problem_device_and_parameters(tmp_path: Path) -> None:
    text = 'arguments = ["GROUP"]\nworkspace = "%s"'
    path = bundle(tmp_path, ('arguments = ["GROUP"]', text % "min(ceil_div(m, BLK), sm_count) * GROUP * element_bytes"))
    configuration = {"BLK": 32, "DIM": 8, "VEC": 1, "GROUP": 2}
    kernel = load_kernel(path)
    assert kernel.launch(configuration, VARIABLES).workspace_bytes == 4 * 2 * 4
    assert kernel.launch(configuration, VARIABLES | {"sm_count": 3}).workspace_bytes == 3 * 2 * 4
    columns = {name: np.array([value]) for name, value in configuration.items()}
    assert find_faults(kernel, columns, VARIABLES) == []

    lacking = load_kernel(bundle(tmp_path / "a", ('arguments = ["GROUP"]', text % "16 - 4 * DIM")))
    (fault,) = find_faults(lacking, columns, VARIABLES)
    assert "; a workspace has from 0 to" in fault.reason
    with pytest.raises(BundleError, match=r"launch\.workspace"):
        load_kernel(bundle(tmp_path / "b", ('arguments = ["GROUP"]', text % "BLOCK")))


def test_a_launch_is_of_integers(tmp_path: Path) -> None:
    kernel = load_kernel(bundle(tmp_path, ('block = ["DIM", "DIM"]', 'block = ["DIM / 3"]')))
    with pytest.raises(ExpressionError, match="DIM / 3"):
        kernel.launch({"BLK": 32, "DIM": 8, "VEC": 1, "GROUP": 2}, VARIABLES)


def test_a_bundle_without_a_source_describes_a_space(tmp_path: Path) -> None:
    kernel = load_kernel(bundle(tmp_path, ('source = "small.cu"\nentry = "small"\n', "")))
    assert kernel.source.text is None
    assert kernel.source.entry is None


def test_hashes_tell_what_changed(tmp_path: Path) -> None:
    kernel = load_kernel(bundle(tmp_path / "a"))
    comment = load_kernel(bundle(tmp_path / "b", ("[derived]", "# a remark\n[derived]"), ("whole vectors", "vectors")))
    assert (comment.source.sha256, comment.space.sha256) == (kernel.source.sha256, kernel.space.sha256)
    launch = load_kernel(bundle(tmp_path / "c", ('"ceil_div(m, BLK)"', '"ceil_div(m, BLK) * 2"')))
    assert launch.source.sha256 != kernel.source.sha256
    assert launch.space.sha256 == kernel.space.sha256
    values = load_kernel(bundle(tmp_path / "d", ("[16, 32, 64]", "[16, 32, 128]")))
    assert values.source.sha256 == kernel.source.sha256
    assert values.space.sha256 != kernel.space.sha256


def test_fewer_values(tmp_path: Path) -> None:
    kernel = load_kernel(bundle(tmp_path))
    assert kernel.with_values({"BLK": [64, 16], "GROUP": [1]}).all_parameters == {
        **kernel.all_parameters,
        "BLK": (64, 16),
        "GROUP": (1,),
    }
    for wrong in ({"BLK": [17]}, {"BLK": []}, {"BLK": [16, 16]}, {"OTHER": [1]}):
        with pytest.raises(BundleError):
            kernel.with_values(wrong)


def test_tensor_maps_are_computed_with_a_launch_and_change_the_source_of_no_other_kernel(tmp_path: Path) -> None:
    maps = ['tensor_maps.B = ["element_bytes", "n", "k", "ldb", "%s"]', 'tensor_maps.A = ["4", "m", "k", "lda", "8"]']
    text = "\n".join(['arguments = ["GROUP"]', *maps])
    kernel = load_kernel(bundle(tmp_path, ('arguments = ["GROUP"]', text % "min(BLK, 32) // VEC")))
    configuration = {"BLK": 32, "DIM": 8, "VEC": 2, "GROUP": 2}
    variables = VARIABLES | {"lda": 7, "ldb": 9}
    m, n, k = (variables[name] for name in "mnk")
    assert kernel.launch(configuration, variables).tensor_maps == (
        TensorMap(6, variables["element_bytes"], n, k, 9, 16),
        TensorMap(4, 4, m, k, 7, 8),
    )
    other = load_kernel(bundle(tmp_path / "other"))
    assert other.launch_rule.tensor_maps == ()
    assert other.source.sha256 != kernel.source.sha256


@pytest.mark.parametrize(
    ("box", "size", "law"), [("512", "4", "1 to 256 lines"), ("0", "4", "1 to 256"), ("8", "3", "1, 2, 4 or 8")]
)
def test_a_tensor_map_that_no_driver_makes_is_a_fault(tmp_path: Path, box: str, size: str, law: str) -> None:
    text = f'arguments = ["GROUP"]\ntensor_maps.A = ["{size}", "m", "k", "lda", "{box}"]'
    kernel = load_kernel(bundle(tmp_path, ('arguments = ["GROUP"]', text)))
    columns = {name: np.array([values[0]]) for name, values in kernel.all_parameters.items()}
    (fault,) = find_faults(kernel, columns, VARIABLES)
    assert fault.reason.startswith("launch.tensor_maps: ")
    assert law in fault.reason


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[kernel]", "[kernel", ["TOML"]),
        ('name = "small"', 'name = "Small!"', ["kernel.name"]),
        ('name = "small"', "", ["kernel.name is missing"]),
        ('name = "small"', 'name = "small"\ncolour = "red"', ["kernel.colour"]),
        ("[resources]", "[extras]\na = 1\n[resources]", ["extras"]),
        ('problem = "gemm"', 'problem = "fft"', ["kernel.problem", "'fft'"]),
        ('["s", "d"]', '["s", "x"]', ["kernel.precisions"]),
        ('["s", "d"]', '["s", "s"]', ["kernel.precisions", "distinct"]),
        ('["s", "d"]', "[]", ["kernel.precisions"]),
        ("BLK = [16, 32, 64]", "BLK = []", ["parameters.BLK"]),
        ("BLK = [16, 32, 64]", "BLK = [16, 16]", ["parameters.BLK", "distinct"]),
        ("BLK = [16, 32, 64]", "BLK = [4294967296]", ["parameters.BLK"]),
        ("BLK = [16, 32, 64]", "m = [16]", ["parameters.m"]),
        ("BLK = [16, 32, 64]", "int = [16]", ["parameters.int", "keyword of C++"]),
        ("BLK = [16, 32, 64]", "a__b = [16]", ["parameters.a__b", "double _"]),
        ("BLK = [16, 32, 64]", "__x = [16]", ["parameters.__x"]),
        ("BLK = [16, 32, 64]", "threadIdx = [16]", ["parameters.threadIdx", "CUDA"]),
        ("BLK = [16, 32, 64]", "BLK = [16]\nTRANS_A = [1]", ["parameters.TRANS_A", "macro"]),
        ("GROUP = [1, 2]", "GROUP = [1]\nDIM = [1]", ["launch.parameters.DIM", "leave one of them out"]),
        ('arguments = ["GROUP"]', 'arguments = ["DIM"]', ["launch.arguments", "DIM"]),
        ('arguments = ["GROUP"]', 'arguments = ["GROUP", "GROUP"]', ["launch.arguments"]),
        ('arguments = ["GROUP"]', 'tensor_maps.D = ["4", "k", "m", "lda", "8"]', ["tensor_maps.D", "A, lda, B"]),
        ('arguments = ["GROUP"]', 'tensor_maps.A = ["4", "k", "m", "lda"]', ["tensor_maps.A", "5"]),
        ('arguments = ["GROUP"]', 'tensor_maps.A = ["4", "k", "m", "lda", "BLOCK"]', ["tensor_maps.A", "BLOCK"]),
        ('arguments = ["GROUP"]', "tensor_maps = {}", ["tensor_maps"]),
        ('THR = "BLK // DIM"', 'THR = "BLK // DOM"', ["derived.THR", "DOM"]),
        ('THR = "BLK // DIM"', 'THR = "BLK //"', ["derived.THR", "BLK //"]),
        ('THR = "BLK // DIM"', 'THR = "PER_VEC * VEC"', ["derived", "circle", "THR", "PER_VEC"]),
        ('THR = "BLK // DIM"', 'THR = "BLK // DIM"\nDIM = "4"', ["derived.DIM"]),
        ('THR = "BLK // DIM"', 'THR = "BLK // DIM"\nm = "4"', ["derived.m"]),
        ('THR = "BLK // DIM"', 'THR = "BLK // DIM"\nmin = "4"', ["derived.min"]),
        ('"whole vectors"', '""', ["restrictions", "THR % VEC == 0"]),
        ('"THR % VEC == 0"', '"THR % VEK == 0"', ["restrictions", "VEK"]),
        ('threads = "DIM * DIM"', 'threads = "os.system"', ["resources.threads"]),
        ('block = ["DIM", "DIM"]', 'block = ["DIM", "DIM", "1", "1"]', ["launch.block"]),
        ('block = ["DIM", "DIM"]', "", ["launch.block", "missing"]),
        ('source = "small.cu"', "", ["source", "entry"]),
        ('source = "small.cu"', 'source = "../small.cu"', ["kernel.source"]),
        ('source = "small.cu"', 'source = "/etc/passwd"', ["kernel.source"]),
        ('source = "small.cu"', 'source = "other.cu"', ["other.cu"]),
        ('entry = "small"', 'entry = "small; x"', ["kernel.entry"]),
    ],
)
def test_a_malformed_bundle_is_refused(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    with pytest.raises(BundleError) as caught:
        load_kernel(bundle(tmp_path, (old, new)))
    for word in [str(tmp_path), *words]:
        assert word in str(caught.value)


def test_a_source_outside_the_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.cu").write_text("secret")
    folder = bundle(tmp_path / "a", ('source = "small.cu"', 'source = "link.cu"'))
    (folder / "link.cu").symlink_to(tmp_path / "secret.cu")
    with pytest.raises(BundleError, match="must be in its folder"):
        load_kernel(folder)


def test_a_kernel_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="gemm_simt"):
        load_kernel("no_such_kernel")
    with pytest.raises(BundleError, match=r"holds a kernel\.toml"):
        load_kernel(tmp_path)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    bundle(tmp_path)
    (tmp_path / "kernel.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BundleError, match="UTF-8"):
        load_kernel(tmp_path)


def test_variables() -> None:
    assert set(device_variables(H200)) == set(DEVICE_VARIABLES)
    assert device_variables(H200)["compute_capability"] == 90
    problem = parse_problem("sgemm", trans="NT", m=1, n=1, k=1, batch=2, epilogue="relu")
    assert problem.variables.keys() == KINDS["gemm"].variables
    assert problem.macros().keys() == KINDS["gemm"].macros


def test_the_built_in_kernel() -> None:
    kernel = load_kernel("gemm_simt")
    assert kernel.name == kernel.folder.name == "gemm_simt"
    assert kernel.precisions == ("s", "d", "c", "z")
    middle = {name: values[len(values) // 2] for name, values in kernel.all_parameters.items()}
    launch = kernel.launch(middle, VARIABLES)
    assert launch.block[0] == middle["DIM_X"] * middle["DIM_Y"]
    assert len(launch.arguments) == len(kernel.launch_rule.arguments)


ACCESS = """
[access.fragments]
memory = "shared"
count = "THR"
bytes = "4 * element_bytes"
lanes = [["DIM", "bytes"], ["warp_size", 0]]
"""


def test_accesses_are_read(tmp_path: Path) -> None:
    access = load_kernel(bundle(tmp_path, document=DOCUMENT + ACCESS)).resources.accesses["fragments"]
    assert (access.memory, access.count.text, access.bytes.text) == ("shared", "THR", "4 * element_bytes")
    assert [(radix.text, stride.text) for radix, stride in access.lanes] == [("DIM", "bytes"), ("warp_size", "0")]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"shared"', '"texture"', "access.fragments.memory"),
        ('"THR"', '"MISSING"', "access.fragments.count.*MISSING"),
        ('["warp_size", 0]', '["warp_size"]', "access.fragments.lanes"),
    ],
)
def test_malformed_accesses_are_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(BundleError, match=says):
        load_kernel(bundle(tmp_path, document=DOCUMENT + ACCESS.replace(old, new)))


PRESET = """
[presets.old]
values = {VEC = [1], GROUP = [2]}

[presets.old.restrictions]
"THR == 8" = "as it was"
"""


def test_a_preset_is_a_part_of_the_space_of_the_same_kernel(tmp_path):
    path = bundle(tmp_path, document=DOCUMENT + PRESET)
    whole, part = load_kernel(path), load_kernel(f"{path}:old")
    assert (part.name, part.source.sha256) == (whole.name, whole.source.sha256)
    assert part.space.sha256 != whole.space.sha256
    assert part.all_parameters == whole.all_parameters | {"VEC": (1,), "GROUP": (2,)}
    assert [one.text for one in part.space.restrictions] == [
        *(one.text for one in whole.space.restrictions),
        "THR == 8",
    ]
    blocks = [row["BLK"] for row in rows_of(ConstrainedSpace(part, VARIABLES))]
    assert sorted(blocks) == [32, 64]


def test_what_does_the_same_as_another_is_in_no_search_but_runs(tmp_path):
    distinct = '[distinct]\n"GROUP == 1 or m > 64" = "a column of tiles"\n\n[resources]'
    kernel = load_kernel(bundle(tmp_path, ("[resources]", distinct)))
    assert [one.text for one in kernel.space.restrictions] == [
        *(one.text for one in kernel.space.needed),
        "GROUP == 1 or m > 64",
    ]
    assert len(kernel.space.needed) == 2
    for m, values in ((64, {1}), (65, {1, 2})):
        space = ConstrainedSpace(kernel, {**VARIABLES, "m": m})
        assert {*space.rows(np.arange(space.count))["GROUP"].tolist()} == values


def test_presets_change_nothing_in_the_kernel_itself(tmp_path):
    assert (
        load_kernel(bundle(tmp_path / "a")).space.sha256
        == load_kernel(bundle(tmp_path / "b", document=DOCUMENT + PRESET)).space.sha256
    )


def rows_of(space):
    columns = space.rows(np.arange(space.count))
    return [{name: int(column[at]) for name, column in columns.items()} for at in range(space.count)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("VEC = [1], GROUP", "VEX = [1], GROUP")], r"presets\.old\.values.*did you mean 'VEC'"),
        ([("VEC = [1], GROUP", "VEC = [3], GROUP")], r"presets\.old\.values.*cannot be 3"),
        ([("VEC = [1], GROUP", "VEC = [1.5], GROUP")], r"presets\.old\.values.*cannot be 1\.5: it is one of"),
        ([("VEC = [1], GROUP", "VEC = [], GROUP")], r"presets\.old\.values\.VEC"),
        ([("THR == 8", "TRH == 8")], r"presets\.old\.restrictions.*TRH"),
        ([("[presets.old]", "[presets.old]\ncolour = 3")], r"presets\.old\.colour"),
    ],
)
def test_a_malformed_preset_is_refused_whichever_is_asked_for(tmp_path, changes, message):
    path = bundle(tmp_path, *changes, document=DOCUMENT + PRESET)
    for name in (path, f"{path}:old"):
        with pytest.raises(BundleError, match=message):
            load_kernel(name)


def test_a_preset_has_labels_as_the_kernel_has(tmp_path):
    labelled = DOCUMENT.replace("[launch.parameters]", 'MODE = ["slow", "fast"]\n\n[launch.parameters]')
    text = PRESET.replace("VEC = [1]", 'MODE = ["fast"]')
    assert load_kernel(f"{bundle(tmp_path, document=labelled + text)}:old").space.parameters["MODE"] == (1,)
    path = bundle(tmp_path, document=labelled + text.replace('"fast"', '"fas"'))
    with pytest.raises(BundleError, match=r"one of .*slow.*fast"):
        load_kernel(path)


def test_a_preset_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BundleError, match=r"'astar' is no preset of gemm_simt; did you mean 'astra'"):
        load_kernel("gemm_simt:astar")
    with pytest.raises(BundleError, match="It has none"):
        load_kernel(f"{bundle(tmp_path)}:old")
    with pytest.raises(BundleError, match="is no kernel"):
        load_kernel("nothing:old")


def test_astra_as_published_is_a_small_part_of_gemm_simt():
    part = load_kernel("gemm_simt:astra")
    rows = ConstrainedSpace(part, VARIABLES)
    assert 10_000 < rows.count < 100_000
    columns = rows.rows(np.arange(rows.count))
    assert (columns["UNROLL_K"] == columns["BLK_K"]).all()
    assert (columns["LANE_X"] == np.minimum(columns["DIM_X"], 32)).all()
