"""Sessions of language models: texts from providers that the gateway leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._decode import decode, decode_rows
from .._models import SessionFacts, SessionTerms
from .._table import Table
from .._wire import limited, quoted
from .transport import AsyncTransport

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

_SESSIONS = "/v1/sessions"


class AsyncSessions:
    """Sessions of language models. An open session costs nothing before its first request."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def models(self) -> tuple[str, ...]:
        """The names of the models of which the gateway opens sessions."""
        return tuple((await self._transport.get("/v1/models"))["models"])

    async def open(self, model: str = "bundled", **terms: Unpack[SessionTerms]) -> AsyncSession:
        """Open a session; use it in a `with` block, or call `close`."""
        body: dict[str, object] = {"model": model, **limited(terms)}
        told = await self._transport.post(_SESSIONS, body)
        return AsyncSession(self._transport, decode(SessionFacts, told))

    async def list(self) -> Table[SessionFacts]:
        """The open sessions, the oldest first."""
        return decode_rows(SessionFacts, (await self._transport.get(_SESSIONS))["sessions"])


class AsyncSession:
    """An open session of a language model.

    `base_url` and the client's token are what OpenAI's client takes as `base_url` and `api_key`.
    """

    def __init__(self, transport: AsyncTransport, facts: SessionFacts) -> None:
        self._transport = transport
        self._facts = facts

    @property
    def id(self) -> str:
        """The session's id."""
        return self._facts.id

    @property
    def model(self) -> str:
        """The name of its model."""
        return self._facts.model

    @property
    def base_url(self) -> str:
        """The base address for OpenAI's client."""
        return self._facts.base_url

    async def chat(self, messages: str | Sequence[Mapping[str, object]], **fields: object) -> str:
        """The model's answer to a message, or to a conversation in OpenAI's form.

        `fields` are those of OpenAI's API, such as `max_tokens` and `temperature`.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        told = await self._request("chat/completions", {"messages": messages, **fields})
        return told["choices"][0]["message"]["content"] or ""

    async def complete(self, prompt: str, **fields: object) -> str:
        """The continuation of a text. `fields` are those of OpenAI's API, such as `max_tokens`."""
        told = await self._request("completions", {"prompt": prompt, **fields})
        return told["choices"][0]["text"]

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of texts, from a session that was opened with `embeddings=True`."""
        told = await self._request("embeddings", {"input": list(texts)})
        return [one["embedding"] for one in told["data"]]

    async def facts(self) -> SessionFacts:
        """What the session did and what it paid so far."""
        return decode(SessionFacts, await self._transport.get(self._path()))

    async def aclose(self) -> SessionFacts:
        """End the session: its leases end, and what they held returns. The answer has its cost."""
        response = await self._transport.ask("DELETE", self._path())
        self._facts = decode(SessionFacts, response.json())
        return self._facts

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _path(self) -> str:
        return f"{_SESSIONS}/{quoted(self.id)}"

    async def _request(self, path: str, body: dict[str, object]) -> Any:
        body = {"model": self.model, **body}
        return await self._transport.post(f"{self._path()}/{path}", body)
