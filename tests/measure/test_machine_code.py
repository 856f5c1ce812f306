"""Counts of instructions and bank conflicts: in texts, and in the machine code of a kernel."""

import shutil

import pytest

from mltune.device.known import H200
from mltune.errors import DeviceError, UsageError
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.measure import machine_code
from mltune.measure.machine_code import PACKAGE, disassemble, find_disassembler, main_loop
from mltune.problem.kinds import problem_from_name
from mltune.tuning.bound import find_bound, read_code
from tests import needs

NESTED = """
.L_x_1:
        /*0010*/                   IADD3 R1, R1, 0x1, RZ ;
.L_x_2:
        /*0020*/                   LDS.U.128 R4, [R2+0x10] ;
        /*0030*/                   FFMA R8, R4, R7, R8 ;
        /*0040*/              @!P0 BRA `(.L_x_2) ;
        /*0050*/               @P0 BRA `(.L_x_1) ;
        /*0060*/                   FFMA R9, R4, R7, R8 ;
        /*0070*/                   BRA `(.L_x_9) ;
.L_x_9:
"""


def test_a_loop_around_two_others_does_not_count():
    loop = main_loop(
        """
.L_x_1:
        /*0010*/                   FADD R1, R1, R2 ;
.L_x_2:
        /*0020*/                   DFMA R8, R4, R6, R8 ;
        /*0030*/                   DFMA R10, R4, R6, R10 ;
        /*0040*/              @!P0 BRA `(.L_x_2) ;
.L_x_3:
        /*0050*/                   DFMA R8, R4, R6, R8 ;
        /*0060*/              @!P0 BRA `(.L_x_3) ;
        /*0070*/              @!P0 BRA `(.L_x_1) ;
"""
    )
    assert loop.counts == {"DFMA": 2, "BRA": 1}


def test_the_innermost_loop_counts():
    found = main_loop(NESTED)
    assert found is not None
    assert found.counts == {"LDS.128": 1, "FFMA": 1, "BRA": 1}
    assert (found.total, found.arithmetic, found.conflicts) == (3, 1, 0)


@pytest.mark.parametrize(
    ("code", "conflicts"),
    [
        (["FFMA R8, R4, R6, R8"], 1),
        (["FFMA R8, R4, R7, R8"], 0),
        (["FFMA R8, R4, R4, R8"], 0),  # two registers
        (["FFMA R8, R4, 2, R8"], 0),
        (["FFMA R8, -R4, R6, R8", "FFMA R9, R5, R3, R9"], 2),
        (["FFMA R7, R4.reuse, R6, R9", "FFMA R8, R4, R6, R8"], 0),  # R4 is in the cache of its slot
        (["FFMA R7, R6, R4.reuse, R9", "FFMA R8, R4, R6, R8"], 1),  # in that of another slot
        (["DFMA R8, R4, R6, R8"], 0),  # pairs of registers
    ],
)
def test_operands_in_one_bank_are_conflicts_unless_they_are_kept(code, conflicts):
    lines = [".L_x_1:", *(f"        /*00{at:02x}*/                   {line} ;" for at, line in enumerate(code))]
    found = main_loop("\n".join([*lines, "        /*0100*/              @!P0 BRA `(.L_x_1) ;"]))
    assert found is not None
    assert found.conflicts == conflicts


def test_a_constant_that_is_moved_by_a_multiply_add_is_no_arithmetic():
    found = main_loop(NESTED.replace("LDS.U.128 R4, [R2+0x10]", "HFMA2.MMA R4, -RZ, RZ, 0, 0"))
    assert found is not None
    assert found.counts == {"MOV": 1, "FFMA": 1, "BRA": 1}


def test_code_without_a_loop_has_no_main_loop():
    assert main_loop("") is None
    assert main_loop(NESTED.partition(".L_x_2")[0]) is None


def test_operands_in_one_bank_conflict_unless_they_are_reused():
    loop = main_loop("""
.L_x_1:
        /*0010*/                   LDS.128 R4, [R2] ;
        /*0020*/                   FFMA R8, R4.reuse, R6, R8 ;
        /*0030*/                   FFMA R9, R4, R7, R9 ;
        /*0040*/              @!P0 BRA `(.L_x_1) ;
""")
    assert loop.counts == {"LDS.128": 1, "FFMA": 2, "BRA": 1}
    assert (loop.arithmetic, loop.conflicts) == (2, 1)


def test_without_a_disassembler_its_package_is_named(monkeypatch):
    monkeypatch.setattr(machine_code, "files", lambda name: [])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DeviceError, match=f"pip install {PACKAGE}"):
        find_disassembler()


@pytest.mark.system
def test_what_is_no_machine_code_is_refused():
    with pytest.raises(DeviceError, match="nvdisasm cannot read the machine code"):
        disassemble(b"no cubin")


@needs.nvrtc
def test_a_gemm_is_mostly_multiply_adds():
    problem = problem_from_name("sgemm", trans="NT", size=4096)
    wanted = {"BLK_M": 128, "BLK_N": 128, "BLK_K": 8, "DIM_X": 16, "DIM_Y": 16, "VEC_M": 4, "VEC_N": 4, "STAGES": 2}
    bound = find_bound(PlacedKernel(load_kernel("gemm_simt"), problem, H200), configuration=wanted | {"UNROLL_K": 8})
    assert bound.stated is not None
    loop, issue_s = read_code(PlacedKernel(load_kernel("gemm_simt"), problem, H200), bound.stated)
    assert loop.counts["FFMA"] == loop.arithmetic == 8 * 8 * 8
    assert 0.8 < loop.arithmetic / loop.total < 1
    assert bound.stated.limits["issue"] < issue_s < 1.3 * bound.stated.limits["issue"]


def test_a_kernel_without_source_has_no_machine_code():
    problem = problem_from_name("sgemm", trans="NT", size=4096)
    found = find_bound(PlacedKernel(load_kernel("gemm_shared"), problem, H200))
    with pytest.raises(UsageError, match="it needs a source and a CUDA GPU"):
        read_code(PlacedKernel(load_kernel("clblast_xgemm"), problem, H200), found.best)
