"""Large files up and down: read straight into the memory of an array, sent straight from it.

By Python's own HTTP client: httpx hands on what came in pieces of 64 KiB, each copied several
times, and took three times the processor time for 100 MB. Up it took twice the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from ._contents import Content

# What is read or sent at a time.
_CHUNK_BYTES = 1 << 20


class Cut(Exception):
    """No answer came, or not the whole of it."""


def download(
    url: str, path: str, headers: Mapping[str, str], timeout: float
) -> tuple[int, NDArray[np.uint8]]:
    """The status and the body of an answer to GET; `Cut` where there is none."""
    connection, above = _connection(url, timeout)
    try:
        connection.request("GET", above + path, headers=dict(headers))
        response = connection.getresponse()
        return response.status, _body(response)
    except (OSError, HTTPException, ValueError) as error:
        raise Cut(str(error) or type(error).__name__) from error
    finally:
        connection.close()


def upload(
    url: str, path: str, headers: Mapping[str, str], timeout: float, content: Content
) -> tuple[int, bytes]:
    """The status and the body of an answer to PUT; `Cut` where there is none."""
    connection, above = _connection(url, timeout)
    try:
        connection.putrequest("PUT", above + path)
        for name, value in {**headers, "Content-Length": str(content.length)}.items():
            connection.putheader(name, value)
        connection.endheaders()
        # Who refuses it may not wait for the rest, and has answered.
        with suppress(BrokenPipeError, ConnectionResetError):
            for chunk in content.chunks(_CHUNK_BYTES):
                connection.send(chunk)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, HTTPException, ValueError) as error:
        raise Cut(str(error) or type(error).__name__) from error
    finally:
        connection.close()


def _connection(url: str, timeout: float) -> tuple[HTTPConnection, str]:
    """One to a gateway, and what comes before each path there."""
    place = urlsplit(url)
    kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
    return kind(place.netloc, timeout=timeout), place.path.rstrip("/")


def _body(response: HTTPResponse) -> NDArray[np.uint8]:
    if response.length is None:
        return np.frombuffer(response.read(), np.uint8)
    body = np.empty(response.length, np.uint8)
    at = 0
    while at < len(body):
        came = response.readinto(body.data[at : at + _CHUNK_BYTES])
        if not came:
            raise HTTPException(f"{at} of {len(body)} bytes came")
        at += came
    return body
