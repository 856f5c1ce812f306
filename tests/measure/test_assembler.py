"""Assembly with a file of controls. No valid one is at hand: nvJitLink refuses it, or an imitation reads it."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from mltune.kernel.compiler_parameters import APPLY
from mltune.kernel.reader import load_kernel
from mltune.measure import assembler
from mltune.measure.build import NvrtcBuilder, compile_options, with_known_options
from mltune.measure.compiler import CudaSource, make_compiler
from mltune.process.child import Child
from mltune.records.trial import TrialState
from tests.own_bundle import write_bundle

SOURCE = 'extern "C" __global__ void entry(float* out) { out[threadIdx.x] *= 2; }\n'
BY_CONTROLS = (f"{APPLY}fast.acf",)


def test_without_nvjitlink_the_reason_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assembler._nvjitlink.cache_clear()
    cubin, log = assembler.assemble(b"", [])
    assembler._nvjitlink.cache_clear()
    assert cubin == b""
    assert "files of controls need nvJitLink: `pip install 'nvidia-nvjitlink>=13.3,<14'`" in log


def test_options_for_the_assembler_go_to_nvjitlink_and_all_others_to_nvrtc():
    asked = [*("--gpu-architecture=sm_90a", "--fmad=false", "--maxrregcount=64", "-lineinfo"), *BY_CONTROLS]
    asked.append("--ptxas-options=--register-usage-level=8")
    assert assembler.to_ptx(asked) == [
        *("--gpu-architecture=compute_90a", "--fmad=false", "--maxrregcount=64", "-lineinfo")
    ]
    assert assembler.from_ptx(asked) == [
        *("-arch=sm_90a", "-maxrregcount=64", "-lineinfo", "-Xptxas=--apply-controls=fast.acf"),
        "-Xptxas=--register-usage-level=8",
    ]


def bundle(folder: Path, content: bytes) -> Path:
    (folder / "fast.acf").write_bytes(content)
    return write_bundle(folder, SOURCE, 'apply_controls = ["", "fast.acf"]')


@pytest.fixture
def nvjitlink():
    if not assembler.nvjitlink_version():
        pytest.skip("needs nvJitLink")


@pytest.mark.system
@pytest.mark.usefixtures("nvjitlink")
@pytest.mark.parametrize("content", [b"", b"junk", bytes(range(256)) * 4096])
def test_a_file_that_is_none_is_left_out_with_the_reason_and_fails_no_other_build(tmp_path, content):
    kernel = load_kernel(bundle(tmp_path, content))
    known, (notice,) = with_known_options(kernel.with_variants(), "sm_90")
    assert known.compiler.parameters["apply_controls"] == (0,)
    assert notice.startswith("ptxas fatal")
    assert notice.endswith("apply_controls = fast.acf is left out")
    with NvrtcBuilder(kernel, kernel.arrays.problem(), "sm_90", workers=1) as builder:
        refused, built = (builder.submit({"WIDTH": 1, "apply_controls": one}).result(300) for one in (1, 0))
    assert refused.state is TrialState.COMPILE_ERROR
    assert refused.detail in notice
    assert built.state is TrialState.OK


def make_imitating(source: CudaSource, memory_bytes: int):
    """Make a compiler whose nvJitLink reads every file of controls and ignores it.

    A build is returned with what was read, how many more files could be opened meanwhile, and whether one can after it.
    """
    from cuda.bindings import nvjitlink

    create, complete = nvjitlink.create, nvjitlink.complete
    named, seen = [], []

    def create_without(count, options):
        named[:] = [one.partition(APPLY.removeprefix("--ptxas-options="))[2] for one in options if "controls=" in one]
        left = [one for one in options if "controls=" not in one]
        return create(len(left), left)

    def complete_after_reading(linker):
        if named:
            seen.append(Path(named[0]).read_bytes())
            opened = []
            while can_open(opened) and len(opened) < 100:  # and leave them open
                pass
            seen.append(len(opened))
        return complete(linker)

    nvjitlink.create, nvjitlink.complete = create_without, complete_after_reading
    compile_one = make_compiler(source, memory_bytes)

    def compile_and_tell(job):
        seen.clear()
        build = compile_one(job)
        return build, (*seen, can_open([]))

    return compile_and_tell


def can_open(opened: list) -> bool:
    try:
        opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return False
    return True


@pytest.fixture
def imitating(nvjitlink):
    """Return a function that starts a compile process with an imitation of controls, and compiles a text in it."""
    children = []

    def start(text, entry="entry"):
        source = CudaSource(text, entry, compile_options("sm_90"), controls={"fast.acf": b"\x00fast", "b.acf": b"b"})
        child = Child("test_assembler:make_imitating", (source, 4 << 30))
        children.append(child)
        return lambda options: child.call(("", options), 120)

    yield start
    for child in children:
        child.kill()


@pytest.mark.system
def test_the_assembler_reads_the_named_controls_from_memory_and_no_file_can_be_opened_afterwards(imitating):
    compiled = imitating(SOURCE)
    for options, content in ((BY_CONTROLS, b"\x00fast"), ((f"{APPLY}b.acf",), b"b")) * 2:
        build, told = compiled(options)
        assert build.state is TrialState.OK, build.detail
        assert told == (content, assembler.MOST_FILES, False)
        assert build.registers > 0
        assert build.code_bytes > 0
    plain, told = compiled(())
    assert plain.state is TrialState.OK
    assert told == (False,)


@pytest.mark.system
def test_an_instance_of_a_template_has_its_name_and_its_report(imitating):
    text = "__constant__ float by[4];\ntemplate <int N> __global__ void scale(float* out) { out[N] *= by[N]; }\n"
    build, _ = imitating(text, "scale<2>")(BY_CONTROLS)
    assert build.state is TrialState.OK, build.detail
    assert build.entry.startswith("_Z5scaleILi2E")
    assert build.registers > 0
    assert b"by" in build.cubin


@pytest.mark.system
def test_other_options_of_the_assembler_apply_with_controls_too(imitating):
    many = "".join(f"float a{at} = out[{at}]; " for at in range(64))
    stored = "".join(f"out[{at} + 64] = a{at} * a{63 - at}; " for at in range(64))
    compiled = imitating(f'extern "C" __global__ void entry(float* out) {{ {many} __syncthreads(); {stored} }}')
    free, limited = (compiled((*BY_CONTROLS, *options))[0] for options in ((), ("--maxrregcount=32",)))
    assert free.registers > 32
    assert limited.registers <= 32
    assert limited.spill_bytes > 0


@pytest.mark.system
@pytest.mark.parametrize(
    "line",
    [
        '#include "{path}"',
        '#if __has_include("{path}")\n#error FOUND\n#endif',
        'extern "C" __global__ void other() {{ asm volatile("\\n#include \\"{path}\\"\\n"); }}',
        'extern "C" __global__ void other() {{ asm volatile("\\n.include \\"{path}\\"\\n"); }}',
        'extern "C" __global__ void other() {{ asm volatile(".file 9 \\"{path}\\"\\n"); }}',
    ],
)
def test_a_source_finds_no_file_while_controls_are_applied(imitating, tmp_path, line):
    path = tmp_path / "secret.h"
    path.write_text("#error FOUND\n.FOUND\n")
    build, _ = imitating(line.format(path=path) + "\n" + SOURCE)(BY_CONTROLS)
    assert "FOUND" not in build.detail
    assert build.state is (TrialState.OK if "__has_include" in line else TrialState.COMPILE_ERROR)
