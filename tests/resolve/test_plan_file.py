"""Plan files: their meaning, and the refusal of malformed or hostile ones."""

import json
import os
import re
import shutil
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mltune
from mltune.errors import PlanError
from mltune.files import folders
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import CASES
from mltune.resolve.placement import recorded_for
from mltune.resolve.plan import MAX_TASKS
from mltune.resolve.plan_file import MAX_BYTES, MAX_KERNELS, load_plan, parse_plan
from tests.effort import at_most_cpu_s

REPLAYED = """
[plan]
title = "Recorded"
budget = "300 trials"
minimum = "32 trials"
[[problems]]
datasets = ["convolution_rtx_a4000", "xgemm_titan_rtx"]
"""

CASE = '[[problems]]\nprecisions = ["s"]\ntrans = ["NN"]'


def changed(text, *changes):
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


class TestMeaning:
    def test_precisions_times_ops_times_sizes(self, text):
        plan = parse_plan(text, "few")
        assert [task.slug for task in plan.tasks] == [
            "sgemm-nn-512",
            "sgemm-nt-512",  # C of a real matrix is T
            "zgemm-nn-512",
            "zgemm-nc-512",
            "sgemm-nn-256x512x1024",
            "sgemm-nt-256x512x1024",
            "zgemm-nn-256x512x1024",
            "zgemm-nc-256x512x1024",
        ]
        assert (plan.name, plan.title, plan.unit, plan.budget, plan.text) == ("few", "A few", "s", 3600, text)
        assert {task.minimum for task in plan.tasks} == {60}
        assert {task.target for task in plan.tasks} == {None}

    def test_a_table_without_a_kernel_takes_that_of_each_problem(self, text):
        text = changed(text, ('["s", "z"]', '["d", "dd"]'), ('["NN", "NC"]', '"all"'), ("[512, [", "[["))
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("kernel"))
        kernels = [(task.kernel.name, task.problem.case) for task in parse_plan(text, "both").tasks]
        of = (("dgemm", ("gemm_simt", "gemm_mma64")), ("ddgemm", ("gemm_dd",)))
        ops = ("NN", "NT", "TN", "TT")
        assert kernels == [(kernel, f"{name} {one}") for name, some in of for one in ops for kernel in some]

    def test_all_ops_of_all_precisions_are_the_cases_of_the_blas(self, text):
        text = changed(text, ('["s", "z"]', '["s", "d", "c", "z"]'), ('["NN", "NC"]', '"all"'), ("[512, [", "[["))
        problems = [task.problem for task in parse_plan(text, "all").tasks]
        assert {(one.precision, one.trans_a, one.trans_b) for one in problems} == set(CASES)
        assert len(problems) == 26

    def test_a_preset_and_its_kernel_are_two_problems(self, text):
        head = text.partition("[[problems]]")[0]
        one = 'precisions = ["s"]\ntrans = ["NN"]\nsizes = [4096]\n'
        tables = [f'[[problems]]\nkernel = "{name}"\n{one}' for name in ("gemm_simt", "gemm_simt:astra")]
        plan = parse_plan(head + "".join(tables), "two")
        assert [task.slug for task in plan.tasks] == ["gemm-simt-sgemm-nn-4096", "gemm-simt-astra-sgemm-nn-4096"]
        assert list(recorded_for(plan.tasks)) == ["gemm-simt-sgemm-nn-4096"]
        with pytest.raises(PlanError, match="each problem once"):
            parse_plan(head + 2 * tables[1], "two")

    def test_the_order_is_by_priority_then_as_written(self, text):
        plan = parse_plan(
            text + '[[problems]]\nprecisions = ["d"]\ntrans = ["NN"]\nsizes = [64]\npriority = 2\n', "few"
        )
        slugs = [task.slug for task in plan.tasks]
        assert slugs[:3] == ["gemm-simt-dgemm-nn-64", "gemm-mma64-dgemm-nn-64", "sgemm-nn-512"]

    def test_bounds_of_a_table_come_before_those_of_the_plan(self, text):
        plan = parse_plan(changed(text, ('"1m"', '"1m"\nmaximum = "9m"')) + 'minimum = "90s"\n', "few")
        assert {(task.minimum, task.maximum) for task in plan.tasks} == {(90, 540)}

    def test_recorded_timings_know_their_problem(self):
        plan = parse_plan(REPLAYED, "recorded")
        assert plan.replayed
        assert (plan.unit, plan.budget, plan.capacity) == ("trials", 300, 300)
        assert [task.slug for task in plan.tasks] == ["convolution-rtx-a4000", "xgemm-titan-rtx"]
        assert [str(task.target) for task in plan.tasks] == ["replay:convolution_rtx_a4000", "replay:xgemm_titan_rtx"]
        assert plan.tasks[0].kernel.name == "convolution"

    def test_two_kernels_for_one_problem_have_slugs_of_their_own(self, text, tmp_path):
        for name in ("first", "second"):
            shutil.copytree(folders.assets("kernels") / "gemm_simt", tmp_path / name)
        path = tmp_path / "first" / "kernel.toml"
        path.write_text(path.read_text().replace('name = "gemm_simt"', 'name = "mine"'))
        tables = "".join(
            f'[[problems]]\nkernel = "{kernel}"\nprecisions = ["s"]\ntrans = ["NN"]\nsizes = [64]\n'
            for kernel in ("gemm_simt", tmp_path / "first", tmp_path / "second")
        )
        plan = parse_plan(text.partition("[[problems]]")[0] + tables, "few")
        assert [task.slug for task in plan.tasks] == [
            "gemm-simt-sgemm-nn-64",
            "mine-sgemm-nn-64",
            "gemm-simt-sgemm-nn-64-2",
        ]

    def test_a_plan_of_ours_is_found_by_name(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert load_plan("quick").name == "quick"


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "parts"),
        [
            (("[plan]", "[plan"), ("TOML",)),
            (("budget", "bugdet"), ("plan.budget", "plan.bugdet")),
            (('"1h"', '"soon"'), ("plan.budget", "'soon'", "300 trials")),
            (('"1h"', '"0 trials"'), ("plan.budget", "positive")),
            (('"1h"', '"9999999h"'), ("366 days",)),
            (('"1h"', '"99999999 trials"'), ("10000000 trials",)),
            (('"1m"', '"10 trials"'), ("plan.minimum", "'10 trials'", "'1h'")),
            (('"1m"', '"5m"\nmaximum = "4m"'), ("the minimum '5m' is above the maximum '4m'",)),
            (('"1m"', '"1m"\ndevices = ["tpu"]'), ("plan.devices", "tpu")),
            (('"1m"', '"1m"\ndevices = [" auto"]'), ("plan.devices", "' auto'")),
            (('"1m"', '"1m"\ndevices = ["auto", "cuda:1"]'), ("plan.devices", "some cuda:N")),
            (('"1m"', '"1m"\nproduce = ["gold"]'), ("plan.produce", "gold")),
            (('"1m"', '"1m"\nseed = -1'), ("plan.seed",)),
            (('"A few"', '"A\\u001b[31mfew"'), ("plan.title", "printable")),
            (('["s", "z"]', '["q"]'), ("problems 1.precisions", "'q'")),
            (('["s", "z"]', '["s", "s"]'), ("problems 1.precisions", "distinct")),
            (('"NC"', '"NX"'), ("problems 1.trans", "NX")),
            (("[512,", "[0,"), ("problems 1.sizes item 1 cannot be 0")),
            (("[512,", "[512, 512,"), ("problems 1.sizes", "distinct")),
            (("[512,", "[512, [512, 512, 512],"), ("problems 1", "each problem once", "sgemm NN 512")),
            (("[512,", "[1099511627776,"), ("problems 1", "2**47 bytes")),
            (('"gemm_simt"', '"no_such_kernel"'), ("problems 1", "no_such_kernel")),
            (('"gemm_simt"', '"convolution"'), ("problems 1", "of kind recorded")),
            (("sizes", "# sizes"), ("problems 1", "precisions, trans and sizes")),
            (('precisions = ["s", "z"]', 'datasets = ["convolution_w6600"]'), ("problems 1", "know their problem")),
            (("sizes", "hours = 3\nsizes"), ("problems 1.hours is not a known key",)),
            (("[[problems]]", "priority = nan\n[[problems]]"), ("plan.priority",)),
            (("sizes", "priority = nan\nsizes"), ("problems 1.priority",)),
        ],
    )
    def test_a_message_names_the_place_the_law_and_the_fact(self, text, change, parts):
        with pytest.raises(PlanError) as refused:
            parse_plan(changed(text, change), "few", where="few.toml")
        for part in ("few.toml", *parts, "docs/reference/plans.md"):
            assert part in str(refused.value)

    @pytest.mark.parametrize(
        ("change", "parts"),
        [
            (('"xgemm_titan_rtx"', '"no_such_dataset"'), ("problems 1", "no_such_dataset")),
            (('"xgemm_titan_rtx"', '"convolution_rtx_a4000"'), ("each problem once",)),
            (('"32 trials"', '"32 trials"\ndevices = ["cuda:0"]'), ("replayed as a whole",)),
            (("datasets", 'kernel = "gemm_simt"\ndatasets'), ("its own kernel", "convolution")),
            (("datasets", "hours = 3\ndatasets"), ("problems 1", "hours beside `datasets`")),
        ],
    )
    def test_a_replayed_plan_too(self, change, parts):
        with pytest.raises(PlanError) as refused:
            parse_plan(changed(REPLAYED, change), "recorded")
        assert all(part in str(refused.value) for part in parts)

    def test_recorded_and_measured_problems_are_not_mixed(self, text):
        with pytest.raises(PlanError, match="replayed as a whole"):
            parse_plan(text + '[[problems]]\ndatasets = ["convolution_w6600"]\n', "few")

    def test_a_file_that_is_none(self, tmp_path):
        (tmp_path / "huge.toml").write_bytes(b"#" * (MAX_BYTES + 1))
        (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
        for name, law in (
            ("huge.toml", "at most"),
            ("binary.toml", "UTF-8"),
            ("missing.toml", "is no plan"),
        ):
            with pytest.raises(PlanError, match=law):
                load_plan(tmp_path / name)

    def test_a_plan_that_asks_for_very_much_is_refused_at_once(self, text):
        sizes = ", ".join(map(str, range(1, 1001)))
        with at_most_cpu_s(20.0), pytest.raises(PlanError, match="more than 1000 problems"):
            parse_plan(changed(text, ("512, [256, 512, 1024]", sizes)), "few")

    @pytest.mark.parametrize(
        ("addition", "law"),
        [
            ("a" + ".a" * 20_000 + " = 1", "more than 32 levels"),
            ("a" + ".a" * 500_000 + " = 1", "more than 32 levels"),
            ("\n".join(f"k{number} = 1" for number in range(80_000)), "k0 is not a known key; .* and 79997 more"),
            ("[[problems]]\n" * 70_000, "at most 1000 items"),
            (f"{CASE}\nsizes = {list(range(1, 100_000))}", "at most 1000 items"),
            (f"{CASE}\nsizes = {[10**18]}\n", "must be at most 1099511627776"),
            (f"x = {10**30}", "64 bits"),
        ],
        ids=["deep key", "very deep key", "keys", "tables", "sizes", "a size", "an integer"],
    )
    def test_a_plan_of_very_much_is_refused_at_once(self, text, addition, law):
        with at_most_cpu_s(20.0), pytest.raises(PlanError, match=law) as refused:
            parse_plan(f"{text}\n{addition}", "few")
        assert len(str(refused.value)) < 2000

    def test_kernels_and_datasets_are_read_once(self, text):
        """However they are spelled: a hundred thousand names are refused before any is looked up."""
        names = ", ".join(['"convolution_w6600"'] * 1000)
        recorded = text.partition("[[problems]]")[0].replace('"1h"', '"9 trials"').replace('"1m"', '"1 trials"')
        with at_most_cpu_s(20.0), pytest.raises(PlanError, match="each problem once"):
            parse_plan(f"{recorded}[[problems]]\ndatasets = [{names}]", "few")
        folder = folders.assets("kernels") / "gemm_naive"
        one = 'precisions = ["s"]\ntrans = ["NN"]\nsizes = [64]\n'
        tables = "".join(
            f'[[problems]]\nkernel = "{folder.parent}/{"./" * number}gemm_naive"\n{one}' for number in range(300)
        )
        with at_most_cpu_s(20.0), pytest.raises(PlanError, match=f"more than {MAX_KERNELS} kernels"):
            parse_plan(text.partition("[[problems]]")[0] + tables, "few")

    def test_only_a_regular_file_is_read(self, tmp_path):
        os.mkfifo(tmp_path / "fifo.toml")
        for path in (tmp_path / "fifo.toml", Path("/dev/zero"), tmp_path):
            with pytest.raises(PlanError):
                load_plan(path)

    def test_deep_nesting_is_refused(self, text):
        with pytest.raises(PlanError):
            parse_plan(text + "x = " + "[" * 5000 + "]" * 5000, "few")

    @given(st.text(max_size=200))
    def test_no_text_does_anything_but_be_refused(self, text):
        with pytest.raises(PlanError):
            parse_plan(text, "stranger")


@settings(max_examples=20)
@given(st.lists(st.integers(1, 2**20), min_size=1, max_size=20, unique=True))
def test_slugs_are_unique_names_of_folders(sizes):
    table = f'[[problems]]\nkernel = "gemm_naive"\nprecisions = ["s"]\ntrans = "all"\nsizes = {sizes}\n'
    text = f'[plan]\ntitle = "t"\nbudget = "1h"\nminimum = "1s"\n{table}'
    slugs = [task.slug for task in parse_plan(text, "t").tasks]
    assert len(set(slugs)) == len(slugs) == 4 * len(sizes)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,99}", slug) for slug in slugs)


def test_the_most_problems_read_no_file_for_each_of_them(tmp_path, monkeypatch):
    """Each table may choose among all built-in kernels, of which this process knows none."""
    from mltune.dataset import manifest
    from mltune.kernel import reader

    for known in (manifest._validated, reader._validated):
        known.cache_clear()
    read = Counter()
    for module in (json, tomllib):
        loads = module.loads
        monkeypatch.setattr(
            module, "loads", lambda text, loads=loads, **how: (read.update([text]), loads(text, **how))[1]
        )
    table = '[[problems]]\nprecisions = ["c"]\ntrans = ["NN"]\nsizes = [{}]\n'
    head = '[plan]\ntitle = "t"\nbudget = "300h"\nminimum = "1s"\ndevices = ["cuda:0"]\n'
    (tmp_path / "plan.toml").write_text(head + "".join(map(table.format, range(1, MAX_TASKS + 1))))
    assert len(mltune.plan(tmp_path / "plan.toml")["problems"]) == MAX_TASKS
    assert len(read) > 20
    assert max(read.values()) < 5


class TestChoice:
    def test_kernels_that_are_named_compete_and_share_the_minimum(self, text):
        plan = parse_plan(text.replace('"gemm_simt"', '["gemm_simt", "gemm_shared"]'), "p")
        assert [(one.kernel.name, one.minimum) for one in plan.tasks[:2]] == [
            ("gemm_simt", 30.0),
            ("gemm_shared", 30.0),
        ]
        assert plan.tasks[0].choice == plan.tasks[1].choice != plan.tasks[2].choice
        assert [one.slug for one in plan.tasks[:2]] == ["gemm-simt-sgemm-nn-512", "gemm-shared-sgemm-nn-512"]

    def test_one_kernel_competes_with_nobody(self, text):
        assert {one.choice for one in parse_plan(text, "p").tasks} == {""}

    def test_without_a_kernel_the_candidates_compete(self, text, monkeypatch):
        from mltune.resolve import plan_file as reader

        kernels = [load_kernel("gemm_simt"), load_kernel("gemm_shared")]
        monkeypatch.setattr(reader, "candidates", lambda problem, accuracy, among: kernels)
        plan = parse_plan(text.replace('kernel = "gemm_simt"\n', ""), "p")
        assert {one.kernel.name for one in plan.tasks} == {"gemm_simt", "gemm_shared"}

    def test_a_named_kernel_is_of_the_accuracy(self, text, tmp_path):
        folder = tmp_path / "split"
        shutil.copytree(load_kernel("gemm_simt").folder, folder)
        toml = folder / "kernel.toml"
        toml.write_text(toml.read_text().replace("\nprecisions", '\naccuracy = "fp32"\nprecisions', 1))
        changed = text.replace('"gemm_simt"', f'["gemm_simt", "{folder}"]\naccuracy = "fp32"')
        assert len(parse_plan(changed, "p").tasks) == 2 * len(parse_plan(text, "p").tasks)
        with pytest.raises(PlanError, match="of accuracy fp32, but ieee"):
            parse_plan(changed.replace('accuracy = "fp32"', 'accuracy = "ieee"'), "p")
        with pytest.raises(PlanError, match="accuracy"):
            parse_plan(changed.replace('accuracy = "fp32"', 'accuracy = "fp31"'), "p")


class TestOptions:
    def test_they_are_those_of_every_run(self, text):
        plan = parse_plan(f'{text}\n[options]\nsearch = "random"\nenough = 0.9\n', "p")
        assert plan.options == {"search": "random", "enough": 0.9}

    @pytest.mark.parametrize("line", ['search = "luck"', "enough = 2", 'colour = "red"', "compilers = 0"])
    def test_wrong_ones_are_refused(self, text, line):
        with pytest.raises(PlanError, match="options"):
            parse_plan(f"{text}\n[options]\n{line}\n", "p")


def test_scalars_and_leading_dimensions_of_a_gemm(text):
    changed = text.replace('["s", "z"]', '["s"]').replace('["NN", "NC"]', '["NN"]\nbeta = 1\nldc = 2000')
    assert {(one.problem.beta, one.problem.ldc) for one in parse_plan(changed, "p").tasks} == {(1.0, 2000)}
