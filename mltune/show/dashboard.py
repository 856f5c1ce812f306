"""Server of optuna-dashboard on the studies of a run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from mltune.errors import UsageError
from mltune.files.reading import reason

if TYPE_CHECKING:
    from mltune.show.study import Studies

HOST = "127.0.0.1"
"""The dashboard has no user accounts, so only this machine may connect."""


@contextlib.contextmanager
def served(studies: Studies, port: int) -> Iterator[str]:
    """Serve the dashboard to this machine while the context lasts, and yield its address; port 0 takes a free one.

    Raises
    ------
    UsageError
        The extra ``dashboard`` is not installed, or the port is in use.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError as error:
        raise UsageError(
            "the dashboard needs the extra `dashboard`, but optuna-dashboard is not installed; "
            f"pip install 'mltune-gpu[dashboard]'. The study was written nevertheless: {studies.path}."
        ) from error
    try:
        server = make_server(HOST, port, only_local(wsgi(studies.storage)), _ThreadingServer, _QuietHandler)
    except OSError as error:
        raise UsageError(
            f"a dashboard needs a free port, but {port} cannot be used: {reason(error)}; choose another --port."
        ) from error
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def only_local(application: WSGIApplication) -> WSGIApplication:
    """Return an application that answers only requests for a name of this machine.

    This stops DNS rebinding: a web page whose host name is made to resolve to this machine gets no answer.
    """

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        host = str(environment.get("HTTP_HOST", "")).rpartition(":")[0] or environment.get("HTTP_HOST", "")
        if host in (HOST, "localhost"):
            return application(environment, start)
        start("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"Only under the names of this machine.\n"]

    return answer


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass
