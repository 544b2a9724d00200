# Made by sync.py from souk/_async/transport.py; not written by hand.
"""Questions to a gateway: asked again where that is safe, and told apart where it refuses."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

import httpx
import numpy as np
from numpy.typing import NDArray

from .._bulk import Cut, download, upload
from .._contents import Content
from .._decode import Kind, decode
from .._find import Found
from .._table import Table
from .._twins import in_thread, sleep
from .._wire import Json, Pauses, parameters, read_json, refusal, refused
from ..errors import GatewayUnreachable, SoukError

_CONNECT_SECONDS = 5.0

_PAGE_MAX = 1_000

_STREAM_SILENCE_SECONDS = 45.0


class Transport:
    """One gateway, over connections that stay."""

    def __init__(self, found: Found, timeout: float, patience: float) -> None:
        self.found = found
        self.patience = patience
        self._has_answered = False
        self._timeout = timeout
        self._own = {"Authorization": f"Bearer {found.token}"}
        self._http = httpx.Client(
            base_url=found.url,
            headers=self._own,
            timeout=httpx.Timeout(timeout, connect=_CONNECT_SECONDS),
            trust_env=False,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def get(self, path: str, params: Mapping[str, object] | None = None) -> Json:
        """What is there; parameters that are None are left out."""
        return read_json(self.ask("GET", path, params=params))

    def table(
        self,
        kind: type[Kind],
        path: str,
        most: int | None = None,
        params: Mapping[str, object] | None = None,
    ) -> Table[Kind]:
        """A long list, page by page: the first entries, or all."""
        rows: list[Kind] = []
        cursor: str | None = None
        limit = _PAGE_MAX if most is None else max(1, min(most, _PAGE_MAX))
        while True:
            page = self.get(path, {**(params or {}), "limit": limit, "cursor": cursor})
            rows += (decode(kind, one) for one in page["items"])
            cursor = page["next"]
            if cursor is None or (most is not None and len(rows) >= most):
                return Table(kind, rows[:most])

    def post(
        self,
        path: str,
        body: object,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """What comes of a question that may be asked twice."""
        return read_json(self.ask("POST", path, body=body, headers=headers))

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Asks until there is an answer, or a refusal that a moment will not mend."""
        pauses = Pauses(self.patience)
        while True:
            try:
                return self._once(method, path, params, body, headers)
            except SoukError as error:
                pause = pauses.after(error, self._has_answered)
                if pause is None:
                    raise
            sleep(pause)

    def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, object] | None,
        body: object,
        headers: Mapping[str, str] | None,
    ) -> httpx.Response:
        try:
            response = self._http.request(
                method,
                path,
                params=parameters(params),
                json=body,
                headers=dict(headers or {}),
            )
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        self._has_answered = True
        if response.is_success:
            return response
        raise refused(response)

    def bring(self, path: str, content: Content) -> None:
        """A file, from the memory it lies in."""
        pauses = Pauses(self.patience)
        while True:
            try:
                return self._bring(path, content)
            except SoukError as error:
                pause = pauses.after(error, self._has_answered)
                if pause is None:
                    raise
            sleep(pause)

    def _bring(self, path: str, content: Content) -> None:
        try:
            status, body = in_thread(
                upload, self.found.url, path, self._own, self._timeout, content
            )
        except Cut as error:
            raise self._unreachable(error) from error
        self._has_answered = True
        if status not in (200, 201):
            raise refusal("PUT", path, status, body)

    def fetch(self, path: str, accept: str) -> NDArray[np.uint8]:
        """A file, into memory that is taken once."""
        pauses = Pauses(self.patience)
        while True:
            try:
                return self._fetch(path, accept)
            except SoukError as error:
                pause = pauses.after(error, self._has_answered)
                if pause is None:
                    raise
            sleep(pause)

    def _fetch(self, path: str, accept: str) -> NDArray[np.uint8]:
        headers = {**self._own, "Accept": accept}
        try:
            status, body = in_thread(
                download, self.found.url, path, headers, self._timeout
            )
        except Cut as error:
            raise self._unreachable(error) from error
        self._has_answered = True
        if status == 200:
            return body
        raise refusal("GET", path, status, bytes(body))

    @contextmanager
    def stream(self, topics: str, last: str | None) -> Generator[Iterator[bytes]]:
        """The stream of events of these topics, from behind the event told last."""
        headers = {"Accept": "text/event-stream"}
        if last:
            headers["Last-Event-ID"] = last
        timeout = httpx.Timeout(_STREAM_SILENCE_SECONDS, connect=_CONNECT_SECONDS)
        try:
            with self._http.stream(
                "GET", "/v1/events", params={"topics": topics}, headers=headers, timeout=timeout
            ) as response:
                if not response.is_success:
                    response.read()
                    raise refused(response)
                self._has_answered = True
                yield response.iter_raw()
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> GatewayUnreachable:
        told = str(error) or type(error).__name__
        return GatewayUnreachable(
            f"no gateway answers at {self.found.url}: {told}",
            "start one: `souk serve`, `souk testnet up`, or souk.testnet() from here",
        )

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
