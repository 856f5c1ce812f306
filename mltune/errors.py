"""The exceptions of mltune.

::

    MltuneWarning               a choice made for the user, such as a replay where there is no GPU
    MltuneError
    ├── UsageError              the request cannot be met as it stands: exit code 2
    │   ├── BundleError         a kernel bundle is malformed
    │   ├── ExpressionError     an expression of a bundle is malformed, or cannot be evaluated
    │   ├── ProblemError        no such problem, or an impossible size
    │   ├── SpaceError          the search space is empty, or a configuration lies outside it
    │   ├── DatasetError        a dataset is malformed, of another kernel, or does not exist
    │   ├── ModelError          a pretrained model is malformed, of another kernel, or does not exist
    │   ├── PlanError           a plan is malformed, or cannot be carried out here
    │   ├── RunDirectoryError   a run directory is in use, belongs to another run, or cannot be written
    │   │   └── DamagedRunError what a run directory holds is damaged, or was not written by mltune
    │   ├── WisdomError         a wisdom is malformed, or cannot be read or written
    │   ├── LibraryError        a library, or what one is built from, is malformed or damaged
    │   └── DeviceError         no such device, or what it needs is not installed
    └── RunError                a run failed: exit code 1, or 130 after Ctrl-C
        ├── WorkerError         a worker process cannot be started or kept alive
        ├── DeviceLostError     the GPU cannot be used now: it is gone, or another process holds it
        └── StoreError          records cannot be written
            ├── DiskFullError   the disk is full or broken
            └── DatabaseLostError   the database does not answer

The failure of one configuration (compile error, crash, wrong result, timeout) is the state of a trial, not an
exception. A message states the mistake, then the rule, then the next step. It is made printable, because it may quote
names and values from files of strangers.
"""

LONGEST_MESSAGE = 10_000
"""Most characters of a message."""


class MltuneError(Exception):
    """Base class of all exceptions that mltune raises."""

    def __init__(self, message: object = "") -> None:
        super().__init__(_printable(message))


class UsageError(MltuneError):
    """The request cannot be met as it stands."""


class BundleError(UsageError):
    """A kernel bundle is malformed."""


class ExpressionError(UsageError):
    """An expression of a bundle is malformed, or cannot be evaluated."""


class ProblemError(UsageError):
    """No such problem, or an impossible size."""


class SpaceError(UsageError):
    """The search space is empty, or a configuration lies outside it."""


class DatasetError(UsageError):
    """A dataset is malformed, of another kernel, or does not exist."""


class ModelError(UsageError):
    """A pretrained model is malformed, of another kernel, or does not exist."""


class PlanError(UsageError):
    """A plan is malformed, or cannot be carried out here."""


class RunDirectoryError(UsageError):
    """A run directory is in use, belongs to another run, or cannot be written."""


class DamagedRunError(RunDirectoryError):
    """What a run directory holds is damaged, or was not written by mltune."""


class WisdomError(UsageError):
    """A wisdom is malformed, or cannot be read or written."""


class LibraryError(UsageError):
    """A library, or what one is built from, is malformed or damaged."""


class DeviceError(UsageError):
    """No such device, or what it needs is not installed."""


class RunError(MltuneError):
    """A run failed; it is ``interrupted`` if it had been asked to stop."""

    interrupted = False


class WorkerError(RunError):
    """A worker process cannot be started or kept alive."""


class DeviceLostError(RunError):
    """The GPU cannot be used now: it is gone, or another process holds it. No trial is recorded."""


class StoreError(RunError):
    """Records cannot be written."""


class DiskFullError(StoreError):
    """Records cannot be written because the disk is full or broken."""


class DatabaseLostError(StoreError):
    """Records cannot be read or written because the database does not answer."""


class MltuneWarning(UserWarning):
    """A choice made for the user, such as a replay where there is no GPU."""

    def __init__(self, message: object = "") -> None:
        super().__init__(_printable(message))


def _printable(message: object) -> str:
    """Return a message without control characters other than the ends of lines; a very long one is cut off."""
    text = str(message)
    text = text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 1]}…"
    lines = ("".join(letter if letter.isprintable() else " " for letter in line) for line in text.splitlines())
    return "\n".join(lines).rstrip("\n")
