"""Large files, read straight into the memory of an array.

By Python's own HTTP client: httpx hands on what came in pieces of 64 KiB, each copied several
times, and took three times the processor time for 100 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

# What is read at a time.
_CHUNK_BYTES = 1 << 20


class Cut(Exception):
    """No answer came, or not the whole of it."""


def download(
    url: str, path: str, headers: Mapping[str, str], timeout: float
) -> tuple[int, NDArray[np.uint8]]:
    """The status and the body of an answer to GET; `Cut` where there is none."""
    place = urlsplit(url)
    kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
    connection = kind(place.netloc, timeout=timeout)
    try:
        connection.request("GET", place.path.rstrip("/") + path, headers=dict(headers))
        response = connection.getresponse()
        return response.status, _body(response)
    except (OSError, HTTPException, ValueError) as error:
        raise Cut(str(error) or type(error).__name__) from error
    finally:
        connection.close()


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
