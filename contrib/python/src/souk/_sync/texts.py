# Made by sync.py from souk/_async/texts.py; not written by hand.
"""Sessions of language models: texts from providers that the gateway leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._decode import decode, decode_rows
from .._models import SessionFacts, SessionTerms
from .._table import Table
from .._wire import limited, quoted
from .transport import Transport

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

_SESSIONS = "/v1/sessions"


class Sessions:
    """Sessions of language models. An open session costs nothing before its first request."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def models(self) -> tuple[str, ...]:
        """The names of the models of which the gateway opens sessions."""
        return tuple((self._transport.get("/v1/models"))["models"])

    def open(self, model: str = "bundled", **terms: Unpack[SessionTerms]) -> Session:
        """Open a session; use it in a `with` block, or call `close`."""
        body: dict[str, object] = {"model": model, **limited(terms)}
        told = self._transport.post(_SESSIONS, body)
        return Session(self._transport, decode(SessionFacts, told))

    def list(self) -> Table[SessionFacts]:
        """The open sessions, the oldest first."""
        return decode_rows(SessionFacts, (self._transport.get(_SESSIONS))["sessions"])


class Session:
    """An open session of a language model.

    `base_url` and the client's token are what OpenAI's client takes as `base_url` and `api_key`.
    """

    def __init__(self, transport: Transport, facts: SessionFacts) -> None:
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

    def chat(self, messages: str | Sequence[Mapping[str, object]], **fields: object) -> str:
        """The model's answer to a message, or to a conversation in OpenAI's form.

        `fields` are those of OpenAI's API, such as `max_tokens` and `temperature`.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        told = self._request("chat/completions", {"messages": messages, **fields})
        return told["choices"][0]["message"]["content"] or ""

    def complete(self, prompt: str, **fields: object) -> str:
        """The continuation of a text. `fields` are those of OpenAI's API, such as `max_tokens`."""
        told = self._request("completions", {"prompt": prompt, **fields})
        return told["choices"][0]["text"]

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of texts, from a session that was opened with `embeddings=True`."""
        told = self._request("embeddings", {"input": list(texts)})
        return [one["embedding"] for one in told["data"]]

    def facts(self) -> SessionFacts:
        """What the session did and what it paid so far."""
        return decode(SessionFacts, self._transport.get(self._path()))

    def close(self) -> SessionFacts:
        """End the session: its leases end, and what they held returns. The answer has its cost."""
        response = self._transport.ask("DELETE", self._path())
        self._facts = decode(SessionFacts, response.json())
        return self._facts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _path(self) -> str:
        return f"{_SESSIONS}/{quoted(self.id)}"

    def _request(self, path: str, body: dict[str, object]) -> Any:
        body = {"model": self.model, **body}
        return self._transport.post(f"{self._path()}/{path}", body)
