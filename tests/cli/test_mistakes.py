"""Mistakes that a person makes at the command line: each is answered in one line that says what to do.

The line names the option, key or file, the law and what was found; it has no numbers of the system's errors, no names
of classes, and none of the words of the libraries underneath.
"""

import json
import re
import shlex
import subprocess
import sys

import pytest

from tests.conftest import RunMaker, trial
from tests.environment import ROOT, importing

RUN, PLAN_RUN, FILE, EMPTY = "a_run", "a_campaign", "a_file", "an_empty_folder"
HEADER = '[plan]\ntitle = "x"\nbudget = "20 trials"\nminimum = "5 trials"\n'
PROBLEMS = '[[problems]]\nprecisions = ["s"]\ntrans = ["NT"]\nsizes = [64]\n'
RECORDED = '[[problems]]\ndatasets = ["h200-sgemm-nt-4096-random"]\n'
KERNEL = '[kernel]\nname = "x"\nproblem = "gemm"\nprecisions = ["s"]\nsource = "k.cu"\nentry = "k"\n'
PARAMETERS, LAUNCH = "[parameters]\nA = [1, 2]\n", '[launch]\nblock = ["32"]\ngrid = ["1"]\n'
BUNDLE = KERNEL + PARAMETERS + LAUNCH

MISTAKES = [
    # the command itself
    ("", "Usage: mltune", "tune", "report"),
    ("tunes", "no such command 'tunes'", "'tune'", "mltune --help"),
    ("list", "no such command 'list'", "mltune --help"),
    ("--hlep", "no such option: --hlep", "--help"),
    ("-v", "no such option: -v", "mltune --help"),
    # the problem
    ("tune", "no problem is named", "sgemm", "replay:DATASET"),
    ("tune qgemm", "sgemm, dgemm, cgemm, zgemm", "'qgemm'"),
    ("tune sgem", "'sgem'", "did you mean 'sgemm'?"),
    ("tune ''", "A problem is one of", "''"),
    ("tune convolution", "convolution is only replayed", "--device replay:NAME", "mltune datasets"),
    ("tune sgemm dgemm", "unexpected extra argument", "dgemm", "mltune tune --help"),
    (
        "sweep",
        "missing argument 'PROBLEM'",
        "hsgemm, bsgemm, ebgemm, ehgemm, esgemm, ebfgemm, e45bgemm",
        "e54bfgemm, ddgemm, a built-in kernel",
    ),
    ("sweep qgemm", "sgemm, dgemm, cgemm, zgemm", "'qgemm'"),
    # versions
    ("gate", "missing argument 'OLD'", "mltune gate --help"),
    ("gate reduction", "missing argument 'NEW'"),
    ("gate redaction reduction", "'redaction'", "did you mean 'reduction'?"),
    ("gate sgemm sgemm", "sgemm is a problem, not a kernel", "gemm_simt"),
    ("gate gemm_simt gemm_simt", "no problem is named", "sgemm"),
    ("gate reduction reduction --within 0%", "--within cannot be '0%': it is a percentage from 0.01% to 50%"),
    ("gate reduction reduction --confidence 100%", "--confidence cannot be '100%'", "from 50% to 99.99%"),
    ("gate reduction reduction --device replay:x", "auto or cuda:N", "replay:x"),
    ("gate reduction reduction --time never", "is no positive time", "'never'"),
    ("gate reduction reduction", "NVIDIA driver", "`mltune check` compiles for a known GPU"),
    ("bound sgemm", "no GPU was found", "--gpu h200"),
    ("predict sgemm", "no GPU was found", "--gpu h200"),
    ("train none.parquet --out m", "there is no dataset none", "NAME.parquet with its manifest, NAME.json"),
    ("gate no/where:x reduction", "REVISION:PATH", "no/where:x"),
    ("gate reduction reduction --size m=3", "is no size of reduction", "'m'"),
    # sizes
    ("tune sgemm --size -4", "--size", "at least 1", "-4"),
    ("tune sgemm --size 0", "--size", "at least 1", "be 0"),
    ("tune sgemm --size 4k", "--size", "whole number", "'4k'"),
    ("tune sgemm --size 4096.0", "--size", "whole number", "'4096.0'"),
    ("tune sgemm --size ''", "--size", "whole number", "''"),
    ("tune sgemm --size 99999999999999999999", "size", "2**40", "99999999999999999999"),
    (f"tune sgemm --size {'9' * 5000}", "--size", "whole number", "…"),
    ("tune sgemm --size 4096x4096", "--size", "whole number", "'4096x4096'"),
    ("tune sgemm --size", "option '--size' requires an argument", "mltune tune --help"),
    ("tune sgemm --m -4", "--m", "at least 1", "-4"),
    ("tune sgemm --n x", "--n", "whole number", "'x'"),
    ("tune sgemm --k 99999999999999999999", "k cannot be 9", "2**40"),
    ("tune sgemm --size 512 --size 512", "a size was given twice", "sgemm NT 512, sgemm NT 512"),
    ("tune sgemm --size 512 --size n=8", "--size cannot be '512'", "NAME=N"),
    ("tune sgemm --size 512 --size 1024 --m 8 --k 9", "--m, --k cannot be given beside several sizes"),
    ("tune sgemm --accuracy fp31", "It is one of ieee, fp32", "did you mean 'fp32'?"),
    ("tune sgemm --kernel gemm_simt --kernel gemm_shared --device replay:x", "one kernel", "2 kernels"),
    ("tune sgemm --kernel gemm_simt --kernel transpose", "transpose does not solve sgemm NT 4096", "of kind arrays"),
    ("tune sgemm --size 512 --size 1024 --device replay:x", "a dataset holds one problem", "--device replay"),
    ("tune sgemm --size 512 --size 1024 --device tpu", "auto, cuda:N or replay:NAME", "'tpu'"),
    ("tune sgemm --size 512 --size 1024 --time 9s --trials 9", "both trials and a time were given", "leave one out"),
    ("tune sgemm --size 512 --size 1024 --trials 1", "it is a whole number from 2 to 10000000", "be 1"),
    (
        "tune sgemm --size 512 --size 1024",
        "1 of 2 problems have no recorded timings",
        "sgemm NT 512",
        "mltune datasets",
    ),
    ("tune --size 512 --size 1024", "no problem is named"),
    ("tune transpose --size 512 --size 1024", "--size rows=1024", "512"),
    ("sweep sgemm --size 512 --size 1024", "--size cannot be 512, 1024", "mltune tune"),
    ("predict sgemm --gpu a100 --size 512 --size 1024", "--size cannot be", "mltune tune"),
    ("predict sgemm --gpu mi250x", "did you mean 'mi250x_gcd'?"),
    ("predict sgemm --gpu unknown", "facts of `unknown`", "mltune device --known"),
    (
        "tune sgemm --kernel gemm_simt:astra --trials 20",
        "gemm_simt:astra is a part of the space",
        "tune the part on a GPU",
    ),
    ("tune sgemm --kernel gemm_simt:astar", "is no preset of gemm_simt", "did you mean 'astra'?"),
    ("bound sgemm --gpu unknown", "facts of `unknown`", "`unknown`"),
    ("bound sgemm --gpu h200 --config BLK_M", "NAME=V", "'BLK_M'", "BLK_M=64"),
    ("bound sgemm --gpu h200 --config BLK=64", "is no parameter of gemm_simt", "did you mean 'BLK_M'?"),
    ("bound sgemm --gpu h200 --config VEC_M=3", "VEC_M cannot have the values [3]", "[1, 2, 4]"),
    ("predict sgemm --gpu a100 --prior nosuch", "gemm_simt", "nosuch.json is not there"),
    ("predict sgemm --gpu a100 --prior gem_simt", "did you mean 'gemm_simt'?"),
    ("tune sgemm --size 4095", "sgemm NT 4095", "are recorded for", "no GPU was found"),
    ("space gemm_simt --size -4", "--size", "at least 1", "-4"),
    ("space convolution --size 8", "only replayed", "mltune datasets"),
    # transposition and precision
    ("tune sgemm --trans NX", "trans cannot be 'NX'", "two of the letters N, T, C"),
    ("tune sgemm --trans N", "trans", "such as NT", "'N'"),
    ("tune sgemm --trans ''", "trans", "such as NT", "''"),
    ("space gemm_simt --trans XX", "trans", "'XX'"),
    ("space gemm_simt --precision x", "--precision", "s, d, c, z", "'x'"),
    ("space gemm_simt --precision sd", "--precision", "s, d, c, z", "'sd'"),
    ("space gemm_simt --precision sgemm", "--precision", "s, d, c, z", "'sgemm'"),
    ("space convolution --precision d", "only replayed", "convolution"),
    # budgets, seeds, searches
    ("tune sgemm --trials 0", "--trials", "at least 1", "be 0"),
    ("tune sgemm --trials many", "--trials", "whole number", "'many'"),
    ("tune sgemm --trials 1e3", "--trials", "whole number", "'1e3'"),
    ("tune sgemm --trails 5", "no such option: --trails", "--trials", "mltune tune --help"),
    ("tune sgemm --time 0", "is no positive time", "'0'", "1h30m"),
    ("tune sgemm --time -1s", "is no positive time", "'-1s'"),
    ("tune sgemm --time soon", "is no positive time", "'soon'", "30m"),
    ("tune sgemm --time '20 s'", "is no positive time", "'20 s'", "20s"),
    ("tune sgemm --time ''", "is no positive time", "''"),
    ("tune sgemm --time 1d", "is no positive time", "'1d'"),
    ("tune sgemm --time 99999999999999999999h", "time", "at most 366 days"),
    (f"tune sgemm --time {'9' * 5000}h", "time", "at most 366 days"),
    ("tune sgemm --seed -1", "--seed", "from 0 to", "-1"),
    ("tune sgemm --seed 99999999999999999999", "--seed", "from 0 to 2147483647"),
    ("tune sgemm --seed x", "--seed", "whole number", "'x'"),
    ("tune sgemm --search modle", "--search", "model, tpe, random, astra", "did you mean 'model'?"),
    ("tune sgemm --search ''", "--search", "model, tpe, random, astra", "''"),
    ("tune sgemm --skip=no", "'--skip' does not take a value"),
    ("sweep sgemm --count 0", "--count", "at least 1"),
    ("sweep sgemm --prune", "--complete --prune"),
    ("sweep sgemm --complete --within 2%", "--within", "--complete --prune"),
    ("sweep sgemm --complete --prune --within 60%", "--within", "from 0% to 50%", "'60%'"),
    ("sweep sgemm --complete --prune --within x", "--within", "percentage", "'x'"),
    ("sweep sgemm --complete --prune --confidence 100%", "--confidence", "from 50% to 99.9%"),
    ("sweep sgemm --complete --prune --device replay:h200-sgemm-nt-4096-random", "complete dataset", "of kind random"),
    ("sweep sgemm --complete --prune --prior nosuch --device replay:h200-sgemm-nt-4096-complete", "nosuch"),
    ("sweep sgemm --count x", "--count", "'x'"),
    ("sweep sgemm --only BLK_M", "NAME=V,V", "'BLK_M'", "BLK_M=64,128"),
    ("sweep sgemm --only BLK_M=a", "NAME=V,V", "'BLK_M=a'"),
    ("sweep sgemm --only BLKM=1 --device cuda:0", "is no parameter of gemm_simt", "'BLKM'", "did you mean 'BLK_M'?"),
    # devices and datasets
    ("tune sgemm --device gpu", "auto, cuda:N or replay:NAME", "'gpu'", "mltune device"),
    ("tune sgemm --device cuda", "auto, cuda:N or replay:NAME", "did you mean 'cuda:0'?"),
    ("tune sgemm --device cuda:-1", "auto, cuda:N or replay:NAME", "'cuda:-1'"),
    ("tune sgemm --device replay:", "auto, cuda:N or replay:NAME", "'replay:'"),
    ("tune sgemm --device ''", "auto, cuda:N or replay:NAME", "''"),
    ("tune sgemm --device h200-sgemm-nt-4096-random", "did you mean 'replay:h200-sgemm-nt-4096-random'?"),
    ("tune sgemm --device replay:h200-sgemm-nt-4096-randon", "did you mean 'h200-sgemm-nt-4096-random'?"),
    ("tune sgemm --device replay:nope", "'nope'", "mltune datasets"),
    ("tune sgemm --device replay:nope.parquet", "nope.json", "there is no dataset nope"),
    (f"tune sgemm --device replay:{FILE}/x.parquet", "there is a file where a folder must be"),
    ("tune sgemm --device replay:list.json", "list.json", "this is no manifest"),
    ("tune sgemm --device replay:text.json", "text.json is no manifest of a dataset"),
    ("tune dgemm --device replay:h200-sgemm-nt-4096-random", "holds sgemm NT 4096", "dgemm NT 4096 was requested"),
    ("tune --device replay:convolution_w6600 --trans NT", "another size of convolution", "mltune datasets"),
    ("sweep sgemm --device replay:x", "'x' is no dataset"),
    ("sweep sgemm", "NVIDIA driver", "Without a GPU, `mltune tune` replays recorded timings (`mltune datasets`)"),
    ("tune sgemm --device cuda:0", "NVIDIA driver", "Without a GPU, `mltune tune` replays"),
    ("check gemm_simt --gpu cuda:0", "NVIDIA driver", "`mltune check` compiles for a known GPU"),
    ("predict sgemm --gpu cuda:0", "NVIDIA driver", "`mltune device --known`"),
    ("device --measure", "NVIDIA driver", "Without a GPU"),
    # kernels
    ("tune sgemm --kernel gemm_simd", "'gemm_simd'", "did you mean 'gemm_simt'?"),
    (
        "tune sgemm --kernel nope",
        "gemm_shared, gemm_simt, gemm_split, gemm_strip, gemm_tf32",
        "kernel.toml",
        "'nope'",
    ),
    ("tune sgemm --kernel ''", "is no kernel", "''"),
    (f"tune sgemm --kernel {FILE}", "a folder that holds a kernel.toml", FILE),
    ("tune --device replay:convolution_w6600 --kernel gemm_simt", "is of convolution, not of gemm_simt"),
    ("space", "missing argument 'KERNEL'", "A built-in kernel, or the folder of a bundle"),
    ("space gemm_simd", "did you mean 'gemm_simt'?"),
    (f"space {EMPTY}", "a folder that holds a kernel.toml", EMPTY),
    # bundles
    ("check gemm_simd", "did you mean 'gemm_simt'?"),
    ("check b_value", "parameters.A", "all numbers or all texts", "'2'"),
    ("space b_value", "parameters.A", "all numbers or all texts", "'2'"),
    ("space b_scalar", "parameters.A cannot be 1: it must be a list"),
    ("space b_empty", "parameters.A cannot be []: it must not be empty"),
    ("space b_name", "kernel.name cannot be 'X Y'", "lower-case"),
    ("space b_missing", "kernel.problem is missing"),
    ("space b_extra", "kernel.entyr is not a known key (did you mean 'entry'?)", "kernel-toml.md"),
    ("space b_key", 'parameters."a b" cannot be', "letters, digits and underscores"),
    ("space b_block", "launch.block cannot be ['32', '1', '1', '1']", "at most 3 items"),
    ("space b_problem", "'gem' is no kind of problem", "did you mean 'gemm'?", "gemm, arrays, recorded"),
    ("space b_expression", "`A +` is no valid Python arithmetic"),
    ("space b_unknown", "`AA > 1` uses AA", "did you mean 'A'?"),
    ("space b_source", "nope.cu", "there is no such file or folder"),
    ("space b_syntax", "b_syntax/kernel.toml: this is no valid TOML", "line 1"),
    # plans
    ("plan", "missing argument 'NAME|FILE'", "quick"),
    ("plan nope", "blas_cases, kernels, overnight, quick, rehearsal", "'nope'"),
    ("plan quik", "did you mean 'quick'?"),
    ("run quik", "did you mean 'quick'?"),
    (f"run {RUN}", RUN, "its `mltune tune` command"),
    (f"plan {EMPTY}", "is no plan", EMPTY),
    ("plan trans.toml", "problems 1.trans item 1 cannot be 'NX': it must be two of the letters N, T and C"),
    ("plan text.toml", "problems 1.trans cannot be 'NT': it must be a list or 'all'"),
    (
        "plan sizes.toml",
        "problems 1.sizes item 1 cannot be -4: it must be at least 1",
        "item 2 cannot be '64': it must be a whole number or a list",
    ),
    (
        "plan precision.toml",
        "precisions item 1 cannot be 'q': it must be 's', 'd', 'c', 'z', 'h', 'b', 'hs', 'bs', 'eb', 'eh', 'es'",
    ),
    ("plan twice.toml", "problems 2", "sgemm NT 64 is in problems 1 too"),
    ("plan no_kernel.toml", "problems 1", "'gemm_simd'", "did you mean 'gemm_simt'"),
    ("plan key.toml", "precisions is missing", "there is no key precision"),
    ("plan extra.toml", "plan.budgte is not a known key (did you mean 'budget'?)", "plans.md"),
    ("plan dataset.toml", "problems 1", "did you mean 'h200-sgemm-nt-4096-random'"),
    ("plan budget.toml", "plan.budget", "'soon'", "300 trials"),
    ("plan number.toml", "plan.budget cannot be 20: it must be text"),
    ("plan devices.toml", "plan.devices item 1 cannot be 'gpu': it must be auto, all, replay or cuda:N"),
    ("plan produce.toml", "plan.produce item 1 cannot be 'pdf': it must be 'report', 'winners' or 'datasets'"),
    ("plan no_problems.toml", "problems is missing"),
    ("plan empty.toml", "plan is missing", "problems is missing"),
    ("plan table.toml", "problems cannot be {", "it must be a list"),
    ("plan priority.toml", "problems 1.priority cannot be 0: it must be at least 0.001"),
    ("plan minimum.toml", "plan.minimum", "'20 trials'", "'10s'"),
    ("plan syntax.toml", "syntax.toml: this is no valid TOML", "line 1"),
    ("plan bytes.toml", "the plan is no readable UTF-8 text"),
    # directories
    (f"tune sgemm --trials 5 --run {FILE}", "a_file is a file, but a run directory is a folder"),
    (f"tune sgemm --trials 5 --run {FILE}/run", FILE, "there is a file where a folder must be"),
    ("tune sgemm --run ''", "--run is empty, but it is a path"),
    (f"run good.toml --run {FILE}", "a_file is a file, but a run directory is a folder"),
    ("show --follow", "no run is named, which --follow and --dataset need", "list them: mltune show"),
    ("tune sgemm --on-end 'notify \"'", "--on-end", "No closing quotation"),
    ("run quick --on-end nope", "--on-end cannot be 'nope'", "a program with its arguments"),
    ("show nope", "there is no directory nope", "run.sqlite", "plan.toml"),
    (f"show {EMPTY}", "an_empty_folder is not the directory of a run"),
    ("show ''", "RUN is empty, but it is a path"),
    (f"show {RUN} --top -1", "--top", "at least 0"),
    (f"show {RUN} --top x", "--top", "whole number"),
    (f"show {RUN} {RUN}", "unexpected extra argument"),
    (f"show {RUN} --dataset {FILE}", FILE, "there is a file where a folder must be"),
    (f"show {RUN} --dataset ''", "--dataset is empty, but it is a path"),
    (f"show {RUN} --follow --json", "--json does not go with --follow", "events.jsonl"),
    ("dashboard nope", "there is no directory nope", "run.sqlite"),
    (f"dashboard {FILE}", "a_file is a file, but a run directory is a folder"),
    (f"dashboard {EMPTY}", "an_empty_folder is not the directory of a run"),
    (f"dashboard {RUN} --port 99999", "--port", "from 0 to 65535", "99999"),
    (f"dashboard {RUN} --port x", "--port", "whole number"),
    ("report nope", "there is no directory nope"),
    (f"report {RUN} --out ''", "--out is empty, but it is a path"),
    # comparisons
    ("compare --strategies randm", "'randm'", "did you mean 'random'?"),
    ("compare --strategies random --datasets h200-sgemm-nt-4096-randon", "did you mean 'h200-sgemm-nt-4096-random'?"),
    ("compare --evaluations 1", "--evaluations", "from 2 to 60000", "be 1"),
    ("compare --evaluations x", "--evaluations", "whole number", "'x'"),
    ("compare --seeds 0", "--seeds", "from 1 to 60000"),
    ("compare --jobs 0", "--jobs", "at least 1"),
    ("compare --share 2/1", "the share cannot be 2/1", "2/1"),
    ("compare --table ''", "--table is empty, but it is a path"),
    ("compare --table nope.csv --parameters a --time-column t_ms", "nope.csv", "there is no such file or folder"),
    ("compare --out ''", "--out is empty, but it is a path"),
    # others
    ("device a100 x", "unexpected extra argument", "mltune device --help"),
    ("device rtx_409", "did you mean 'rtx_4090'?"),
    ("device nope.json", "nope.json", "there is no such file"),
    ("datasets import t.csv --kernel k --gpu nope --out d", "is no GPU", "'nope'"),
    ("datasets import t.csv --kernel k --gpu a100", "missing option '--out'"),
    ("datasets import t.csv --kernel k --gpu a100 --out d", "t.csv"),
    ("datasets import t.csv --kernel k --gpu a100 --out d --m 3", "only a GEMM has", "--size NAME=N"),
    ("datasets import t.csv --kernel k --gpu a100 --out d --section x", "--section cannot be x"),
    ("datasets import t.csv --kernel k --gpu a100 --out d --kind all", "--kind cannot be", "'all'"),
    ("datasets import t.csv --kernel a/b --gpu a100 --out d", "'a/b' cannot name a kernel"),
    ("datasets export convolution_w6600 x.json --format csv", "It is one of kernel-tuner, t4", "'csv'"),
    ("datasets export convolution_w6601 x.json --format t4", "did you mean 'convolution_w6600'?"),
    ("datasets merge convolution_w6600 --out d", "1 dataset was named; name two or more"),
    ("datasets merge convolution_w6600 xgemm_titan_rtx --out d", "cannot be merged", "differ in their kernel"),
    ("datasets --name x", "no such option: --name", "mltune datasets --help"),
]

PLANS = {
    "good": HEADER + RECORDED,
    "trans": HEADER + PROBLEMS.replace('"NT"', '"NX"'),
    "text": HEADER + PROBLEMS.replace('["NT"]', '"NT"'),
    "sizes": HEADER + PROBLEMS.replace("64", '-4, "64"'),
    "precision": HEADER + PROBLEMS.replace('"s"', '"q"'),
    "twice": HEADER + PROBLEMS + PROBLEMS,
    "no_kernel": HEADER + PROBLEMS + 'kernel = "gemm_simd"\n',
    "key": HEADER + PROBLEMS.replace("precisions", "precision"),
    "extra": HEADER + 'budgte = "1h"\n' + RECORDED,
    "dataset": HEADER + RECORDED.replace("random", "randon"),
    "budget": HEADER.replace("20 trials", "soon") + RECORDED,
    "number": HEADER.replace('"20 trials"', "20") + RECORDED,
    "devices": HEADER + 'devices = ["gpu"]\n' + RECORDED,
    "produce": HEADER + 'produce = ["pdf"]\n' + RECORDED,
    "no_problems": HEADER,
    "empty": "",
    "table": HEADER + RECORDED.replace("[[problems]]", "[problems]"),
    "priority": HEADER + RECORDED + "priority = 0\n",
    "minimum": HEADER.replace("5 trials", "10s") + RECORDED,
    "syntax": "[plan\n",
    "bytes": "\udcff",
}
BUNDLES = {
    "b_value": BUNDLE.replace("[1, 2]", '[1, "2"]'),
    "b_scalar": BUNDLE.replace("[1, 2]", "1"),
    "b_empty": BUNDLE.replace("[1, 2]", "[]"),
    "b_name": BUNDLE.replace('"x"', '"X Y"'),
    "b_missing": '[kernel]\nname = "x"\n' + PARAMETERS,
    "b_extra": BUNDLE.replace("entry", "entyr"),
    "b_key": BUNDLE.replace("A = ", '"a b" = '),
    "b_block": BUNDLE.replace('["32"]', '["32", "1", "1", "1"]'),
    "b_problem": BUNDLE.replace('"gemm"', '"gem"'),
    "b_expression": BUNDLE + '[restrictions]\n"A +" = "x"\n',
    "b_unknown": BUNDLE + '[restrictions]\n"AA > 1" = "x"\n',
    "b_source": BUNDLE.replace("k.cu", "nope.cu"),
    "b_syntax": "[kernel\n",
}
TEXTS = {f"{name}.toml": text for name, text in PLANS.items()} | {FILE: "mine", "list.json": "[]", "text.json": "hello"}

ANSWERS = json.loads((ROOT / "benchmarks/results/mistakes.json").read_text())["mistakes"]
ANSWER = {row["typed"]: row["now"].splitlines()[-1] for row in ANSWERS}

INTERNAL = re.compile(r"\w(Error|Exception)\b|Errno|Traceback|Input should|String should|constrained|<unknown>")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder that holds the files of the mistakes, which change nothing."""
    folder = tmp_path_factory.mktemp("mistakes")
    make_files(folder)
    return folder


def make_files(folder):
    for name, text in TEXTS.items():
        (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    for name, text in BUNDLES.items():
        (folder / name).mkdir()
        (folder / name / "kernel.toml").write_text(text)
        (folder / name / "k.cu").write_text('extern "C" __global__ void k() {}\n')
    (folder / EMPTY).mkdir()
    RunMaker()(folder / RUN, trial(0))


@pytest.fixture
def place(files, monkeypatch):
    """Change to that folder."""
    monkeypatch.chdir(files)
    return files


@pytest.mark.parametrize(("command", "words"), [(command, words) for command, *words in MISTAKES])
@pytest.mark.filterwarnings("ignore::mltune.MltuneWarning")
def test_a_mistake_is_answered_with_the_option_the_law_and_the_fact(mltune, place, command, words):
    code, out, err = mltune(*shlex.split(command))
    assert (code, out) == (2, "")
    for word in words:
        assert word in err
    if command:
        (line,) = [line for line in err.splitlines() if not line.startswith("run directory: ")]
        assert line.startswith("mltune: ")
        assert ", got " not in line  # the mistake comes before the law
        assert len(line) < 500
        assert line.isprintable()
        assert not INTERNAL.search(line.replace(command, ""))
        if "no driver" not in line:  # a GPU that is not found has other reasons on other machines
            assert line.replace(f"{place}/", "").replace(f"{ROOT}/", "") == ANSWER[f"mltune {command}"], (
                "record the answers again: python benchmarks/mistakes.py"
            )


def test_a_folder_that_cannot_be_written_is_a_failure_that_names_it(mltune, place):
    code, out, err = mltune("report", RUN, "--out", FILE)
    assert (code, out) == (1, "")
    assert err.startswith("mltune: the folder of the report,")
    assert "a_file, cannot be written: there is a file where a folder must be" in err
    code, out, err = mltune("plan", "x" * 5000)
    assert (code, out) == (1, "")
    assert err.endswith("cannot be used: its name is too long.\n")


def test_a_full_disk_behind_the_output_is_told():
    """What is written elsewhere is named by the error of its file."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mltune", "device", "h200"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=importing(),
        )
    assert (done.returncode, done.stderr) == (1, "mltune: standard output cannot be used: no space left on device.\n")


COMMANDS = [
    "init",
    "tune",
    "sweep",
    "show",
    "dashboard",
    "report",
    "run",
    "plan",
    "compare",
    "space",
    "check",
    "device",
    "datasets",
]


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_every_command_has_help_under_both_names(mltune, command):
    code, out, err = mltune(*command, "-h")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: {' '.join(('mltune', *command))}")
    assert mltune(*command, "--help") == (code, out, err)


def test_names_from_files_do_not_reach_the_terminal_as_escape_sequences(mltune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.toml").write_text(HEADER + '"\\u001b[2J" = 1\n' + RECORDED)
    assert mltune("plan", "b.toml")[2].startswith('mltune: b.toml: plan." [2J" is not a known key')
    (tmp_path / "b\x1b[2J.toml").write_text("[")
    assert "\x1b" not in mltune("plan", "b\x1b[2J.toml")[2]
    assert "\x1b" not in mltune("tune", "sgemm", "--kernel", "\x1b]0;x\x07")[2]
    assert "\x1b" not in mltune("tune", "sgemm", "\x1b]0;x\x07")[2]


def test_a_plan_file_is_no_run_directory(mltune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = '[options]\nsearch = "random"\nskip = false\nstop = false\n'
    (tmp_path / "simple.toml").write_text(f"{HEADER}produce = []\n{RECORDED}{options}")
    code, out, err = mltune("run", "simple.toml", "--run", "new")
    assert code == 0, err
    assert "1 of 1 problem has a winner" in out


@pytest.mark.parametrize(("command", "old", "new"), [("bound sgemm --device h200", "--device", "--gpu")])
def test_an_option_of_the_version_before_is_taken_with_a_notice(mltune, command, old, new):
    code, out, err = mltune(*shlex.split(command))
    assert (code, err.splitlines()[0]) == (0, f"{old} is called {new} now; the old name is taken until 0.4")
    assert "limited by" in out
    assert old not in mltune(command.split()[0], "--help")[1].replace("--device auto", "")


def test_the_column_of_the_times_has_a_name_of_its_own(mltune, tmp_path, monkeypatch):
    """--time is a limit everywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a,time_ms\n1,2\n2,3\n")
    notices = []
    for option in ("--time", "--time-column"):
        words = (
            "--kernel",
            "mine",
            "--gpu",
            "a100",
            "--parameters",
            "a",
            option,
            "time_ms",
            "--out",
            option.strip("-"),
        )
        code, _, err = mltune("datasets", "import", "t.csv", *words)
        assert code == 0, err
        notices.append("--time is called --time-column now; the old name is taken until 0.4" in err)
    assert notices == [True, False]
