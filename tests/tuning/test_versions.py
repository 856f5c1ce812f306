"""What ``mltune gate`` compares: winners, libraries, bundles, sources and bundles in git, and what it answers."""

import functools
import json
import os
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from imaginary_gpu import built
from own_bundle import write_bundle
from winners import PROBLEMS, SMALL, a_winner

import mltune
from mltune.cli import main
from mltune.device import query
from mltune.device.known import H200
from mltune.errors import LibraryError, MltuneError, UsageError
from mltune.kernel.bundle import variables_of
from mltune.library.folder import machine_code, read_document, write_library
from mltune.library.machine_code import READERS, choice
from mltune.measure import runner
from mltune.measure.runner import GpuRunner
from mltune.problem.gemm import parse_problem
from mltune.records.trial import TrialState
from mltune.results.winner_folder import write_winner
from mltune.tuning import gate as gates
from mltune.tuning.finals import Interval
from mltune.tuning.gate import GateResult
from mltune.tuning.versions import two_versions
from tests.library.c_library import content_of, rewrite

SOURCE = 'extern "C" __global__ void entry(float* out) { out[threadIdx.x] = WIDTH * 1.0f; }\n'


def made(old, new, *, kernel=None, problem=None, config=None, **shape):
    with two_versions(str(old), str(new), kernel, problem, shape, READERS) as makings:
        return [one(H200, config or {}) for one in makings]


@pytest.fixture
def bundle(tmp_path):
    """Return the folder of a bundle in a repository of git, whose first revision has another source."""
    folder = tmp_path / "repository" / "kernels" / "own"
    folder.mkdir(parents=True)
    write_bundle(folder, SOURCE.replace("1.0f", "2.0f"), "")
    person = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for command in ("init -q", "add .", "commit -q -m first", "tag before"):
        subprocess.run(["git", *command.split()], cwd=tmp_path / "repository", check=True, env={**os.environ, **person})
    (folder / "own.cu").write_text(SOURCE)
    return folder


@pytest.fixture
def winner(tmp_path):
    write_winner(tmp_path / "winner", a_winner())
    return tmp_path / "winner"


def test_a_bundle_is_compared_in_its_default_configuration_or_one_that_is_given(bundle):
    old, new = made(bundle, bundle)
    assert old.configuration == new.configuration == {"WIDTH": 1}
    assert old.placed.kernel.source.text == SOURCE
    assert made(bundle, bundle, config={"WIDTH": 2})[1].configuration == {"WIDTH": 2}
    with pytest.raises(UsageError, match=r"WIDTH cannot have the values .3."):
        made(bundle, bundle, config={"WIDTH": 3})


def test_a_bundle_without_a_default_needs_its_whole_configuration():
    with pytest.raises(UsageError, match=r"has no \[default\], .*; give the value of every parameter"):
        made("gemm_simt", "gemm_simt", problem="sgemm", size=512)
    old, _ = made("gemm_simt", "gemm_simt", problem="sgemm", size=512, config=SMALL)
    assert old.configuration == SMALL
    assert old.problem.label == "sgemm NT 512"


@pytest.mark.parametrize("inside", [True, False])
def test_a_revision_in_git_is_compared_with_the_working_tree(bundle, monkeypatch, inside):
    monkeypatch.chdir(bundle if inside else bundle.parent.parent)
    old, new = made("before:kernels/own", bundle)
    assert "2.0f" in old.placed.kernel.source.text
    assert "1.0f" in new.placed.kernel.source.text


def test_a_source_takes_the_place_of_that_of_its_bundle(bundle, tmp_path):
    elsewhere = tmp_path / "new one.cu"
    elsewhere.write_text("// new\n" + SOURCE)
    old, new = made(bundle / "own.cu", elsewhere, kernel=bundle)
    assert (old.placed.kernel.source.text, new.placed.kernel.source.text) == (SOURCE, "// new\n" + SOURCE)
    assert new.placed.kernel.label == "own"


def test_what_is_compiled_here_has_facts(bundle):
    """The compiler is real: the versions differ in a constant, and one of them does not compile."""
    pytest.importorskip("cuda.bindings.nvrtc")
    broken = bundle / "broken.cu"
    broken.write_text("this is no CUDA\n")
    old, new = made(bundle, broken)
    builds = [one.built() for one in (old, new)]
    assert [one.state for one in builds] == [TrialState.OK, TrialState.COMPILE_ERROR]
    facts = gates._facts(H200, old, builds[0])
    assert facts["registers"] > 0
    assert facts["threads"] == 32
    assert 0 < facts["occupancy"] <= 1


def test_the_code_of_a_winner_is_launched_as_its_folder_says_at_other_sizes_too(winner):
    ours = a_winner()
    old, new = made(winner, "gemm_simt", config=SMALL)
    assert old.problem == PROBLEMS["s"]
    assert old.built().cubin == ours.build.cubin
    assert (old.built().entry, old.built().registers) == ("gemm", 64)
    for problem in (old.problem, parse_problem("sgemm", trans="NT", size=1000)):
        assert old.launch(variables_of(problem, H200)) == new.launch(variables_of(problem, H200))
    (of_size, _) = made(winner, winner, size=320)
    assert of_size.problem.label == "sgemm NT 320"


def test_a_winner_is_not_compared_on_a_problem_that_it_is_not_for(winner):
    for shape in ({"trans": "NN"}, {"problem": "dgemm"}):
        with pytest.raises(UsageError, match="machine code is compared on a problem that it is for"):
            made(winner, winner, **shape)


def test_a_winner_of_another_kernel_needs_its_bundle(winner, bundle):
    document = json.loads((winner / "winner.json").read_text())
    array = {"name": "out", "dtype": "float32", "role": "inout", "shape": [32], "initial": 0}
    document["problem"] = {"kind": "arrays", "name": "own", "sizes": {}, "arguments": [array]}
    document["launch"]["sizes_must_satisfy"] = {}
    (winner / "winner.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"no bundle is named, .*; give it: --kernel FOLDER"):
        made(winner, winner)
    old, new, answer = made(winner, winner, kernel=bundle)
    assert (old.placed, new.placed, answer.placed.kernel.label) == (None, None, "own")
    old, new = made(winner, bundle, kernel="reduction")
    assert (old.placed, new.placed.kernel.label) == (None, "own")


def test_kernels_of_two_names_have_the_same_arguments(bundle, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(bundle, other)
    document = (other / "kernel.toml").read_text().replace('name = "own"', 'name = "other"')
    (other / "kernel.toml").write_text(document)
    assert made(bundle, other)[1].problem.name == "other"
    (other / "kernel.toml").write_text(
        document.replace("[parameters]", 'n = {dtype = "int32", value = 1}\n[parameters]')
    )
    with pytest.raises(UsageError, match=r"has other arguments: it is other\(out, n\)"):
        made(bundle, other)


@pytest.fixture(scope="module")
def built_library(tmp_path_factory):
    """Return the folder of a library without a shared object, and what it consists of."""
    content = content_of("gemm_simt", parse_problem("sgemm", trans="NT", size=1000), ("m", "n", "k"), count=4)
    folder = tmp_path_factory.mktemp("built") / "lib"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mltune.library.folder._COMPILERS", ())
        write_library(folder, content)
    return folder, content


@pytest.fixture
def library(built_library, tmp_path):
    return shutil.copytree(built_library[0], tmp_path / "lib")


def test_of_a_library_the_configuration_is_compared_that_serves_the_problem(library, built_library):
    content, document = built_library[1], read_document(library)
    codes = [machine_code(library, document, number) for number in range(4)]
    assert [code.rstrip(b"\0") for code in codes] == [one.cubin.rstrip(b"\0") for one in content.configurations]
    old, _ = made(library, library)
    assert old.built().cubin == codes[choice(document, {**old.problem.variables})]
    assert old.launch(variables_of(old.problem, H200)).grid[0] > 0
    (library / "sgemm_nt.c").write_text("damaged")
    with pytest.raises(LibraryError, match="damaged"):
        machine_code(library, document, 0)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_gate_runs_nothing_of_a_library(library, tmp_path):
    """Hashes that match prove nothing about who wrote the shared object."""
    mark = tmp_path / "was run"
    (tmp_path / "x.c").write_text(
        f'#include <stdio.h>\n__attribute__((constructor)) static void run(void) {{ fclose(fopen("{mark}", "w")); }}\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "x.c", "-o", library / "libsgemm_nt.so"], cwd=tmp_path, check=True)
    rewrite(library, lambda document: document.update(shared_object="libsgemm_nt.so"), "libsgemm_nt.so")
    version = made(library, library)[0]
    version.launch(variables_of(version.problem, H200))
    assert version.built().cubin.startswith(b"\x7fELF")
    assert not mark.exists()
    subprocess.run(
        [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(library / 'libsgemm_nt.so')!r})"], check=True
    )
    assert mark.exists(), "what loads the shared object runs it"


def _all_launches(document, part, value):
    for configuration in document["configurations"]:
        configuration["launch"][part] = value


HOSTILE_DOCUMENTS = [
    (lambda document: _all_launches(document, "grid", None), "grid cannot be None: it must be a list"),
    (lambda document: _all_launches(document, "grid", ["-5", "1", "1"]), "conditions on sizes allow"),
    (lambda document: _all_launches(document, "block", ["1" + "0" * 5000, "1", "1"]), "at most 2000 characters"),
    (lambda document: _all_launches(document, "block", ["10**5000", "1", "1"]), "conditions on sizes allow"),
    (lambda document: _all_launches(document, "block", ["n / 1024", "1", "1"]), "conditions on sizes allow"),
    (lambda document: _all_launches(document, "block", ["2048", "1", "1"]), "conditions on sizes allow"),
    (lambda document: _all_launches(document, "grid", ["m.real", "1", "1"]), "`m.real` is no part of an expression"),
    (lambda document: document["configurations"][0].update(entry="a\ud800"), "it must be the name of a kernel"),
    (lambda document: _all_launches(document, "launched", [2**40]), "must be less than 2147483648"),
    (lambda document: document["configurations"][0].pop("entry"), "configurations 1.entry is missing"),
    (lambda document: [one.update(cubin=77) for one in document["configurations"]], "lacks that of configuration"),
    (lambda document: document["configurations"][0].update(cubin=-1), "cubin cannot be -1: it must be at least 0"),
    (lambda document: document.update(dispatcher={}), "dispatcher.nodes is missing"),
    (lambda document: document["dispatcher"]["nodes"].__setitem__(0, [0, 1.0, 0, 0]), "the trees and coefficients"),
    (lambda document: document["dispatcher"]["waves"].pop(), "the trees and coefficients"),
    (lambda document: document["problem"].update(precision=5), "the precision of its problem is no text"),
    (lambda document: document["problem"].update(m="many"), "m"),
    (lambda document: document.update(problem={}), "problem"),
]


@pytest.mark.parametrize(("change", "words"), HOSTILE_DOCUMENTS)
def test_a_consistent_but_hostile_library_is_refused_in_one_line(library, change, words):
    rewrite(library, change)
    with pytest.raises(MltuneError) as error:
        made(library, library)
    assert words in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("words", ["0xzz", "0x" + "f" * 17, "", "1, 2", "0x1,, 0x2", "٣"])
def test_machine_code_of_strange_words_is_refused(library, words):
    source = (library / "sgemm_nt.c").read_text()
    number, begin = 0, "\nstatic const uint64_t cubin_"
    while f"{begin}{number}[]" in source:
        head, _, rest = source.partition(f"{begin}{number}[] = {{")
        source, number = f"{head}{begin}{number}[] = {{{words}}};{rest.partition('};')[2]}", number + 1
    (library / "sgemm_nt.c").write_text(source)
    rewrite(library, lambda document: None, "sgemm_nt.c")
    with pytest.raises(LibraryError, match="it lacks that of configuration"):
        made(library, library)


HOSTILE_NAMES = [
    ("no/such/folder", "'no/such/folder' is no kernel"),
    ("", "is no kernel"),
    ("--output=x:kernels/own", "Not a valid object name --output=x:kernels/own"),
    ("-h:x", "Not a valid object name -h:x"),
    ("nowhere:kernels/own", "Not a valid object name nowhere:kernels/own"),
    ("before:kernels", "'before:kernels' is no kernel"),
    ("before:kernels/own/own.cu", "REVISION:PATH"),
    ("before:../../etc", "REVISION:PATH"),
    ("a\0b:c", "REVISION:PATH"),
    ("a\x1b[1m\nb:c", "REVISION:PATH"),
    ("missing.cu", "there is no such file or folder"),
]


@pytest.mark.parametrize(("name", "words"), HOSTILE_NAMES)
def test_what_is_no_version_is_refused_in_one_line(bundle, monkeypatch, name, words):
    monkeypatch.chdir(bundle)
    with pytest.raises(MltuneError) as error:
        made(name, bundle)
    assert words in str(error.value)
    assert str(error.value).isprintable()
    assert {path.name for path in bundle.iterdir()} == {"kernel.toml", "own.cu"}


@pytest.mark.parametrize(
    "options", [{"within": 0}, {"within": -1}, {"within": 2}, {"confidence": 1}, {"confidence": 0}]
)
def test_shares_have_limits(options):
    with pytest.raises(UsageError, match=r"within=.* cannot be: 0 < within <= 0\.5 <= confidence <= 0\.9999 must hold"):
        mltune.gate("reduction", "reduction", **options)


def test_links_in_git_lead_nowhere(bundle, monkeypatch):
    (bundle / "own.cu").unlink()
    (bundle / "own.cu").symlink_to("/etc/passwd")
    top = bundle.parent.parent
    person = ["-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run(["git", *person, "commit", "-q", "-a", "-m", "second"], cwd=top, check=True)
    monkeypatch.chdir(top)
    old, _ = made("HEAD:kernels/own", "before:kernels/own")
    assert old.placed.kernel.source.text == "/etc/passwd"


@pytest.mark.parametrize("value", ["1" + "0" * 5000, "-5", "1e999", "null", '"10**5000"'])
def test_a_winner_with_a_strange_block_is_refused_in_words(winner, value):
    document = json.loads((winner / "winner.json").read_text())
    document["launch"]["block"] = ["X", 1, 1]
    (winner / "winner.json").write_text(json.dumps(document).replace('"X"', value))
    with pytest.raises(MltuneError, match=r"launch\.block item 1 cannot be|it may have 64") as error:
        made(winner, winner)
    assert "sys." not in str(error.value)


@pytest.mark.parametrize(
    "content", ["{}", "[]", "\0", '{"launch": {"grid": ["rm -rf /"]}}', '{"problem": {"kind": 3}}']
)
def test_a_damaged_winner_is_refused(winner, content):
    (winner / "winner.json").write_text(content)
    with pytest.raises(MltuneError):
        made(winner, winner)


@pytest.mark.parametrize(
    "formula",
    ["__import__('os')", "m.__class__", "m // 0", "9" * 400, "1.5", "-5", "10**5000", "1" + "0" * 5000, "2**31"],
)
def test_a_winner_with_a_strange_formula_is_refused_or_rejected_by_the_launch(winner, formula):
    document = json.loads((winner / "winner.json").read_text())
    document["launch"]["at_other_sizes"]["grid"][0] = formula
    (winner / "winner.json").write_text(json.dumps(document))
    try:
        launch = made(winner, winner)[0].launch(variables_of(PROBLEMS["s"], H200))
    except MltuneError:
        return
    assert 0 < launch.grid[0] < 2**31


VERDICTS = [("faster", 0), ("equal", 0), ("slower", 3), ("wrong", 4), ("failed", 4), ("undecided", 5)]


@pytest.mark.parametrize(("verdict", "code"), VERDICTS)
def test_the_exit_code_says_the_verdict(bundle, tmp_path, monkeypatch, capsys, verdict, code):
    given = {}

    def decided(old, new, **options):
        given.update(options)
        facts = {"registers": 32}, {"registers": 40}
        detail = "wrong_result: x" if code == 4 else ""
        ratio = None if detail else Interval(1.02, 1.01, 1.03)
        return GateResult(
            verdict, old.name, new.name, "own", "H200", 0.02, 0.95, facts, detail, ratio, (1e-3, 2e-3), 64
        )

    monkeypatch.setattr(gates, "compare_versions", decided)
    monkeypatch.setattr(query, "query_device", lambda index: H200)
    options = ["--within", "2%", "--confidence", "95", "--time", "9s", "--explain", "--junit", str(tmp_path / "x.xml")]
    for further in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["gate", str(bundle), str(bundle), *options, *further])
        assert (ended.value.code or 0) == code
    shown = capsys.readouterr().out
    assert f"{verdict}" in shown
    assert "registers: 32 -> 40" in shown
    assert json.loads(shown[shown.index("{") :])["differences"] == {"registers": [32, 40]}
    rule = given["rule"]
    assert (rule.within, rule.confidence, rule.limit_s, rule.explain) == (0.02, 0.95, 9.0, True)
    (case,) = ElementTree.parse(tmp_path / "x.xml").getroot()  # noqa: S314
    assert len(case) == (code > 0)


def imaginary_runner_of(workers, *arguments, **options):
    return GpuRunner(*arguments, **options | {"worker": "imaginary_worker:make", "pool": workers})


def test_a_command_compares_a_kernel_with_itself_on_an_imaginary_gpu(bundle, monkeypatch, capsys, idle_workers):
    runners = functools.partial(imaginary_runner_of, idle_workers.pool)
    monkeypatch.setattr(runner, "GpuRunner", runners)
    monkeypatch.setattr(query, "query_device", lambda index: H200)
    build = built(time_s=1e-3, noise=0.002).result()
    monkeypatch.setattr(gates.Version, "built", lambda version: build)
    with pytest.raises(SystemExit) as ended:
        main(["gate", str(bundle), str(bundle), "--json"])
    assert not ended.value.code
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["within"], document["confidence"]) == ("equal", 0.01, 0.99)
    assert document["pairs"] >= 32
