"""A gateway that lies, is cut off or is none."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import numpy as np
import pytest
from blake3 import blake3

import souk

JOB = {
    "id": "abc",
    "state": "done",
    "begun_at": "2026-01-02T03:04:05Z",
    "model": "m",
    "requests_answered": 1,
    "attempts": 1,
    "paid": 0,
    "providers": [],
    "runs_here": False,
    "spent": 0,
    "escrow": 0,
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

    with served_by(Handler) as client:
        yield client


@contextmanager
def served_by(handler: type[BaseHTTPRequestHandler]) -> Generator[souk.Client]:
    """A client of what answers so."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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


class Takes(BaseHTTPRequestHandler):
    """Has no content, takes what is brought and refuses the job."""

    brought: ClassVar[list[bytes]] = []
    refusal: ClassVar[bytes] = b""

    def answer(self, status: int, body: bytes = b"") -> None:
        """Answers."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        """Nothing is there."""
        self.answer(404)

    def do_PUT(self) -> None:
        """Takes what is what it is called."""
        assert self.headers["Authorization"] == "Bearer token"
        came = self.rfile.read(int(self.headers["Content-Length"]))
        if blake3(came).hexdigest() != self.path.rsplit("/", 1)[1]:
            self.answer(400)
        elif self.refusal:
            self.answer(413, self.refusal)
        else:
            self.brought.append(came)
            self.answer(201)

    def do_POST(self) -> None:
        """Runs nothing."""
        problem = {"code": "eclipsed", "detail": "the moon", "hint": "wait", "retryable": False}
        self.answer(409, json.dumps(problem).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.mark.parametrize("count", [0, 1, 700_000])
def a_large_array_is_brought_as_the_file_that_it_is(count: int) -> None:
    class Taking(Takes):
        brought: ClassVar[list[bytes]] = []

    given = np.arange(count, dtype=np.float32)
    with served_by(Taking) as client, pytest.raises(souk.SoukError, match="the moon"):
        client.submit(b"model", {"x": given})
    assert Taking.brought[0] == b"model"
    assert np.array_equal(np.load(io.BytesIO(Taking.brought[1])), given)


def a_content_that_is_refused_says_why() -> None:
    class Refusing(Takes):
        refusal = b'{"code": "too_large", "detail": "too long", "hint": "less", "retryable": false}'

    with served_by(Refusing) as client, pytest.raises(souk.SoukError, match="too long"):
        client.submit(b"model", {"x": np.zeros(700_000)})
