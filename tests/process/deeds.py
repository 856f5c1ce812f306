"""What the children of tests do. They start often, so it imports little."""

import ctypes
import os
import signal
import subprocess
import sys
import time


def make(greeting="hello"):
    """Make the function that the children of these tests serve."""

    def answer(request):
        name, *values = request
        return getattr(Deeds(greeting), name)(*values)

    return answer


class Deeds:
    def __init__(self, greeting):
        self.greeting = greeting

    def greet(self, name):
        return f"{self.greeting} {name}"

    def pid(self):
        return os.getpid()

    def prepared(self):
        return PREPARED

    def signal(self, number):
        os.kill(os.getpid(), number)
        time.sleep(100)

    def large(self, size):
        return b"x" * size

    def length(self, data):
        return len(data)

    def chatter(self):
        print("noise on standard output", flush=True)  # noqa: T201
        os.write(1, b"more noise")
        return "done"

    def sleep(self, seconds):
        time.sleep(seconds)

    def hang_in_native_code(self):
        ctypes.PyDLL(None).sleep(100)  # holds the interpreter lock all the while

    def ignore_signals(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(100)

    def segfault(self):
        ctypes.string_at(0)

    def abort(self):
        os.abort()

    def leave(self, status):
        os._exit(status)

    def fail(self):
        raise ArithmeticError("two and two is five")

    def grandchild(self):
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid


PREPARED = None


def prepare():
    """Note the process from which others are forked."""
    global PREPARED
    PREPARED = os.getpid()


def make_length():
    """Make a function that needs nothing."""
    return len


def make_failing():
    raise ImportError("nothing to serve with")


def make_hanging():
    time.sleep(100)
