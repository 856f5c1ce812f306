"""The contract of the store of a run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from mltune.errors import RunDirectoryError, StoreError
from mltune.records.header import RunHeader
from mltune.records.store import Store
from mltune.records.trial import Build, Measurement, Skip, TrialRecord, TrialState

HEADER = RunHeader(
    kernel="toy",
    source_hash="ab" * 32,
    parameters={"BLK_M": (16, 32, 64), "STATE": (0, 1)},
    problem={"precision": "s", "m": 4096},
    device={"name": "GPU", "compute_capability": [9, 0]},
    seed=1,
    versions={"mltune": "0.1.0"},
    settings={"batch": 24},
    created_at=5.0,
)
"""The header of the suite's runs."""


def trial(number: int, **changes: object) -> TrialRecord:
    """Return a trial of the suite's runs that ended well, with some fields changed."""
    record = TrialRecord(
        number=number,
        batch=0,
        index=number * 7,
        configuration={"BLK_M": 32, "STATE": 1},
        state=TrialState.OK,
        build=Build(TrialState.OK, registers=40, compile_s=0.02),
        measurement=Measurement(TrialState.OK, samples_s=(0.1, 0.3, 0.2), median_s=0.2, noise=0.01, error=0.5),
    )
    return replace(record, **changes)  # type: ignore[arg-type]


class StoreContract:
    """The laws of a :class:`~mltune.records.store.Store`: what was appended comes back, whole and exact.

    Override :meth:`open`. The suite gives each test an empty directory.
    """

    def open(self, directory: Path, header: RunHeader | None = None) -> Store:
        """Open the store of the run in a directory for writing; with a header, create it where there is none."""
        raise NotImplementedError

    def test_records_come_back_exactly_in_the_order_of_appending(self, tmp_path: Path) -> None:
        """All states, with and without builds and measurements, and numbers in any order."""
        failed = {
            state: trial(10 + i, state=state, detail="why", measurement=None) for i, state in enumerate(TrialState)
        }
        skipped = trial(2, state=TrialState.SKIPPED, skip=Skip("after_compile", -2.0, -1.5), measurement=None)
        records = [trial(3), trial(1, predicted=-0.5, elapsed_s=2.5), skipped, *failed.values()]
        with self.open(tmp_path, HEADER) as store:
            store.append(*records[:2])
            store.append(*records[2:])
            assert store.records() == records
            assert [record.number for record in store.records(after=2)] == [record.number for record in records[2:]]
            assert len(store) == len(records)
        with self.open(tmp_path) as store:
            assert store.records() == records

    def test_a_batch_is_all_or_nothing(self, tmp_path: Path) -> None:
        """A number that exists or a configuration of other parameters refuses the whole batch."""
        import pytest

        with self.open(tmp_path, HEADER) as store:
            store.append(trial(0))
            for refused in (trial(0), trial(2, configuration={"BLK_M": 1}), trial(2**63)):
                with pytest.raises(StoreError):
                    store.append(trial(1), refused)
            store.append(trial(1))
            assert [record.number for record in store.records()] == [0, 1]

    def test_nan_becomes_unknown_and_strange_text_is_kept(self, tmp_path: Path) -> None:
        """A store never holds what another program cannot read."""
        measurement = Measurement(TrialState.WRONG_RESULT, error=math.inf, noise=math.nan)
        with self.open(tmp_path, HEADER) as store:
            store.append(trial(0, detail="\udc80 \0 end", measurement=measurement))
            (record,) = store.records()
        assert record.measurement is not None
        assert record.measurement.error == math.inf
        assert record.measurement.noise is None
        assert record.detail == "\\udc80 \0 end"

    def test_seconds_and_facts_are_replaced_by_name(self, tmp_path: Path) -> None:
        """The last value of a name counts, and what was never written is empty."""
        with self.open(tmp_path, HEADER) as store:
            assert store.seconds() == {}
            assert store.documents() == {}
            store.set_seconds({"search": 1.5, "time": 2.0})
            store.set_seconds({"search": 2.5})
            store.set_fact("limit", {"time_s": 0.5})
            store.set_fact("limit", {"time_s": 0.25})
        with Store.read_only(tmp_path) as store:
            assert store.seconds() == {"search": 2.5, "time": 2.0}
            assert store.documents() == {"limit": {"time_s": 0.25}}

    def test_the_same_header_resumes_and_another_is_refused(self, tmp_path: Path) -> None:
        """The time of creation is that of the first header."""
        import pytest

        with self.open(tmp_path, HEADER) as store:
            store.append(trial(0))
        with self.open(tmp_path, replace(HEADER, created_at=9.0)) as store:
            assert store.header.created_at == 5.0
            assert len(store) == 1
        for changed in (replace(HEADER, seed=2), replace(HEADER, problem={"precision": "s", "m": 64})):
            with pytest.raises(RunDirectoryError, match=r"is .*, not "):
                self.open(tmp_path, changed)
        with self.open(tmp_path) as store:
            assert store.header == HEADER

    def test_there_is_one_writer_and_any_number_of_readers(self, tmp_path: Path) -> None:
        """Readers see what was appended, and cannot append."""
        import pytest

        with self.open(tmp_path, HEADER) as store:
            with pytest.raises(RunDirectoryError, match="in use by process"):
                self.open(tmp_path, HEADER)
            with Store.read_only(tmp_path) as reader:
                store.append(trial(0))
                assert reader.records() == [trial(0)]
                with pytest.raises(StoreError):
                    reader.append(trial(1))

    def test_a_directory_without_a_run_is_refused(self, tmp_path: Path) -> None:
        """Without a header nothing is created."""
        import pytest

        with pytest.raises(RunDirectoryError):
            self.open(tmp_path)
        assert not any(tmp_path.glob("*.sqlite"))
