"""A gateway that lies, is cut off or is none."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

import souk

JOB = {
    "id": "abc",
    "state": "done",
    "begun_at": "2026-01-02T03:04:05Z",
    "model": "m",
    "answered": 1,
    "attempts": 1,
    "paid": 0,
    "providers": [],
    "here": False,
    "spent": 0,
    "held": 0,
    "leases": [],
    "outputs": [{"name": "y", "dtype": "f32", "shape": [2], "blake3": "0" * 64, "bytes": 8}],
}


@contextmanager
def answering(*answers: tuple[int, bytes], length: int | None = None) -> Generator[souk.Client]:
    """A client of something that gives these answers, the last again and again."""
    rest = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = rest.pop(0) if len(rest) > 1 else rest[0]
            self.send_response(status)
            self.send_header("Content-Length", str(length or len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with souk.Client(url, "token", timeout=5, patience=0) as client:
            yield client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"\xff\xfe", b"null", b"[]", b"7", b'{"market": 7}', b'"' * 9]
)
def what_is_no_answer_is_unexpected(body: bytes) -> None:
    with answering((200, body)) as client, pytest.raises(souk.Unexpected):
        client.status()


@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b"[]", b"{}", b'{"code": 7}'])
def what_is_no_problem_is_unexpected(body: bytes) -> None:
    with answering((500, body)) as client, pytest.raises(souk.Unexpected):
        client.status()


def a_code_of_a_newer_gateway_is_told_as_it_came() -> None:
    problem = {"code": "eclipsed", "detail": "the moon", "hint": "wait", "retryable": True}
    with answering((409, json.dumps(problem).encode())) as client:
        with pytest.raises(souk.SoukError) as raised:
            client.status()
        assert raised.value.code == "eclipsed"
        assert raised.value.retryable
        assert raised.value.hint == "wait"


def an_answer_that_is_cut_off_is_no_answer() -> None:
    with answering((200, b'{"mar'), length=100) as client, pytest.raises(souk.GatewayUnreachable):
        client.status()


def an_output_that_is_another_is_refused() -> None:
    import io

    file = io.BytesIO()
    np.save(file, np.ones(2, np.float32))
    told = json.dumps(JOB).encode()
    with answering((200, told), (200, told), (200, b"[]"), (200, file.getvalue())) as client:
        job = client.job("abc")
        with pytest.raises(souk.VerificationFailed, match="its receipt says 0000"):
            job.result()


def an_output_that_is_no_file_is_refused() -> None:
    told = json.dumps(JOB).encode()
    for body in (b"", b"\x93NUMPY\x01\x00\xff\xff{", b"x" * 5000):
        with answering((200, told), (200, told), (200, b"[]"), (200, body)) as client:
            job = client.job("abc")
            with pytest.raises(souk.Unexpected, match="NumPy"):
                job.result()
