"""Models that are sold by the token: offers, a server for OpenAI's clients, and keys."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

import souk

MODEL = "test/parrot"


class Engine(BaseHTTPRequestHandler):
    """An inference engine that says one sentence."""

    def do_GET(self) -> None:
        """List the only model."""
        self._send("application/json", json.dumps({"data": [{"id": MODEL}]}))

    def do_POST(self) -> None:
        """Answer a conversation."""
        self.rfile.read(int(self.headers["content-length"]))
        chunk = {"choices": [{"delta": {"content": "Strangers trade."}, "finish_reason": "stop"}]}
        self._send("text/event-stream", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def _send(self, kind: str, body: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


def command(folder: Path, *arguments: str) -> list[str]:
    return [str(souk.find_binary()), "--dir", str(folder), "--json", *arguments]


@contextmanager
def running(server: ThreadingHTTPServer) -> Generator[str]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()


@pytest.fixture(scope="module")
def seller(net: souk.Testnet) -> Iterator[Path]:
    """A provider of an engine's model in the testnet."""
    folder = net.folder / "parrot"
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Engine)) as url:
        init = command(folder, "provider", "init", "--endpoint", url, "--model", MODEL)
        terms = ["--out", "0.2", "--slots", "4", "--name", "parrot"]
        listen = ["--listen", "/ip4/127.0.0.1/tcp/0"]
        subprocess.run([*init, *terms, *listen], check=True, capture_output=True)
        provider = subprocess.Popen(
            command(folder, "provider", "run"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while not net.offers(MODEL) and time.monotonic() < deadline:
            time.sleep(0.1)
        yield folder
        provider.terminate()
        provider.wait()


@pytest.mark.usefixtures("seller")
def an_offer_has_its_price_by_the_million_and_its_seller(net: souk.Testnet) -> None:
    (offer,) = net.offers(MODEL)
    assert (offer.model, offer.provider_name, offer.free_slots) == (MODEL, "parrot", 4)
    assert offer.price.output_per_million == souk.Credits.of("0.2")
    assert offer.price.input_per_million == souk.Credits.of("0.05")
    assert offer.price.cached_per_million == souk.Credits.of("0.05")
    assert len(net.offers("test/none")) == 0


@pytest.mark.usefixtures("seller")
def a_server_answers_openais_clients_until_it_is_closed(net: souk.Testnet) -> None:
    with net.text_server(budget=2) as server:
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "What is a market?"}],
        }
        headers = {"Authorization": f"Bearer {server.api_key}"}
        path = f"{server.base_url}/chat/completions"
        answer = httpx.post(path, json=body, headers=headers, timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == "Strangers trade."
        assert answer["usage"]["cost"] > 0
        assert server.api_key not in repr(server)
    assert server.process.returncode == 0


@pytest.mark.usefixtures("seller")
def the_client_of_openai_is_ready_for_use(net: souk.Testnet) -> None:
    pytest.importorskip("openai")
    ai = net.openai(budget=2)
    answer = ai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "What is a market?"}]
    )
    assert answer.choices[0].message.content == "Strangers trade."


def a_key_is_listed_with_its_budget(net: souk.Testnet) -> None:
    add = command(net.folder, "openai", "key", "add", "alice", "--budget", "5/month")
    issued = json.loads(subprocess.run(add, check=True, capture_output=True).stdout)
    assert issued["key"].startswith("sk-souk-")
    (key,) = net.text_keys()
    assert (key.name, key.budget, key.budget_resets) == ("alice", souk.Credits.of(5), "month")
    assert key.left == souk.Credits.of(5)


def what_cannot_start_says_why(net: souk.Testnet) -> None:
    folder = net.folder / "none"
    folder.mkdir()
    with (
        souk.Client(net.url, net.token, folder=folder) as client,
        pytest.raises(souk.TextServerFailed) as failed,
    ):
        client.text_server(budget=0.0000001)
    assert failed.value.hint
