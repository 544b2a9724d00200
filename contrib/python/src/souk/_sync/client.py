# Made by sync.py from souk/_async/client.py; not written by hand.
"""The client: plans, jobs, the market and the account of one gateway."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast, overload

from .. import _find
from .._batches import Outputs, cut, joined
from .._contents import Content, Inputs, ModelLike, Prepared, input_contents, model_content
from .._decode import decode, decode_rows
from .._models import (
    Account,
    Amount,
    Earnings,
    JobFacts,
    JobState,
    Limits,
    Map,
    Movement,
    OfferedDevice,
    Provider,
    ProviderDetail,
    Status,
    TextKey,
    TextOffer,
    TrainingFacts,
    TrainingState,
    Validator,
)
from .._plan import Plan, plan_of
from .._table import Table
from .._text_server import TextServer, start_text_server
from .._training_run import PathText, TrainingRun, TrainOptions, arguments
from .._twins import each, in_thread
from .._updates import Parser, Update, update_of
from .._wire import begun, job_path, limited, may_pass, quoted
from ..errors import GatewayUnreachable, InputRefused, NotFound, SoukError, TextServerFailed
from .job import Job
from .market import Leases, Market, Orders
from .texts import Sessions
from .training import Training
from .transport import Transport

if TYPE_CHECKING:
    from openai import OpenAI
    from typing_extensions import Self, Unpack

_SENT_MAX = 4_096


class Client:
    """A gateway of a market, and the account that it trades for.

    Without arguments it takes $SOUK_URL and $SOUK_TOKEN, else the gateway at
    http://127.0.0.1:7800 with the token in the market's folder ($SOUK_DIR, else `souk-testnet`).
    `patience` is for how many seconds it asks again where the gateway is away for a moment.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        folder: str | PathLike[str] | None = None,
        timeout: float = 60.0,
        patience: float = 15.0,
    ) -> None:
        self._transport = Transport(_find.find(url, token, folder), timeout, patience)
        self._sent: dict[str, None] = {}
        self._folder = _find.market_folder(folder)
        self._servers: list[TextServer] = []
        self._trainings: list[Training] = []
        self.market = Market(self._transport)
        """What is on offer, what it costs and what it cost."""
        self.orders = Orders(self._transport)
        """Orders of the account, placed by hand."""
        self.leases = Leases(self._transport)
        """Leases of the account, bought and sold."""
        self.sessions = Sessions(self._transport)
        """Sessions of language models."""

    @property
    def url(self) -> str:
        """Where the gateway answers."""
        return self._transport.found.url

    @property
    def token(self) -> str:
        """What opens it."""
        return self._transport.found.token

    def close(self) -> None:
        """Close all connections, and stop the servers and runs of training that it started."""
        for training in self._trainings:
            training.interrupt()
        while self._trainings:
            self._trainings[-1].stop()
            self._trainings.pop()
        while self._servers:
            in_thread(self._servers[-1].close)
            self._servers.pop()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def plan(self, model: ModelLike, inputs: Inputs, **limits: Unpack[Limits]) -> Plan:
        """What would run where, for how long and at what price. No money moves."""
        prepared = Prepared(model_content(model), input_contents(inputs))
        body: dict[str, Any] = {**prepared.body(), **limited(limits)}
        told = self._bringing(prepared, "/v1/plans", body, {})
        return plan_of(cast("dict[str, Any]", told), body)

    @overload
    def submit(
        self, model: Plan, *, slippage: float | None = None, key: str | None = None
    ) -> Job: ...
    @overload
    def submit(
        self,
        model: ModelLike,
        inputs: Inputs,
        *,
        key: str | None = None,
        **limits: Unpack[Limits],
    ) -> Job: ...
    def submit(
        self,
        model: Plan | ModelLike,
        inputs: Inputs | None = None,
        *,
        slippage: float | None = None,
        key: str | None = None,
        **limits: Unpack[Limits],
    ) -> Job:
        """Buy and run a plan, or a model with its inputs; it returns once that is on disk.

        A plan runs if it costs and takes no more than `slippage` per cent above what it said, else
        `PlanMoved`. Under the same `key` the same job is bought once, however often one asks.
        """
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        if isinstance(model, Plan):
            if inputs is not None or limits:
                raise InputRefused(
                    "a plan has its inputs and limits already", "make another plan with others"
                )
            asked: dict[str, object] = {"plan": model.hash, "job": model.request}
            if slippage is not None:
                asked["slippage"] = slippage
            told = self._transport.post("/v1/jobs", asked, headers)
            return Job(self._transport, begun(told))
        if inputs is None:
            raise InputRefused("a model runs on inputs", "submit(model, {'name': array})")
        prepared = Prepared(model_content(model), input_contents(inputs))
        body = {"job": {**prepared.body(), **limited(limits)}}
        told = self._bringing(prepared, "/v1/jobs", body, headers)
        return Job(self._transport, begun(told))

    def run(self, model: ModelLike, inputs: Inputs, **limits: Unpack[Limits]) -> Outputs:
        """Buy, run, wait: the outputs by name."""
        job = self.submit(model, inputs, **limits)
        return job.result()

    def stream(
        self,
        model: ModelLike,
        batches: Iterable[Inputs],
        *,
        ahead: int = 2,
        **limits: Unpack[Limits],
    ) -> Generator[Outputs]:
        """The outputs of each batch in order, each a job of its own, so many of them at once.

        The budget is each job's own. The model goes up once. Where this ends early the jobs that
        are under way are cancelled.
        """
        content = model_content(model)
        waiting: deque[Job] = deque()
        try:
            for inputs in each(batches):
                if len(waiting) >= max(1, ahead):
                    yield waiting.popleft().result()
                while True:
                    try:
                        waiting.append(self._submit(content, inputs, limits))
                        break
                    except SoukError as error:
                        if not waiting or not may_pass(error):
                            raise
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for job in waiting:
                _end(job)

    def map(
        self,
        model: ModelLike,
        inputs: Inputs,
        *,
        batch: int,
        ahead: int = 2,
        **limits: Unpack[Limits],
    ) -> Outputs:
        """Outputs for inputs of many rows: cut into batches, run by `stream`, put together."""
        answers: list[Outputs] = []
        batches = cut(inputs, batch)
        with closing(self.stream(model, batches, ahead=ahead, **limits)) as stream:
            for outputs in stream:
                answers.append(outputs)
        return joined(answers)

    def job(self, name: str) -> Job:
        """A job by its id or the beginning of it."""
        return Job(
            self._transport, decode(JobFacts, self._transport.get(job_path(name)))
        )

    def jobs(self, most: int | None = None) -> Table[JobState]:
        """All jobs of the account, the newest first, so many at most."""
        return self._transport.table(JobState, "/v1/jobs", most)

    def train(
        self,
        model: PathText,
        data: PathText | None = None,
        *,
        out: PathText,
        inputs: Mapping[str, PathText] | None = None,
        target: tuple[str, PathText] | None = None,
        held_out: PathText | Mapping[str, PathText] | None = None,
        binary: PathText | None = None,
        **options: Unpack[TrainOptions],
    ) -> Training:
        """Train a language model on the lines of `data`, or an ONNX model on arrays in files.

        It is `souk train` for the folder's account, and `options` are those of the command. The
        arrays of an ONNX model are `inputs` and `target`, and those held out are again all of them
        in `held_out`: `{"images": "x.npy", "labels": "y.npy"}`.
        """
        words = [str(model)]
        if data is not None:
            words.append(str(data))
        for name, path in (inputs or {}).items():
            words += ["--input", f"{name}={path}"]
        if target is not None:
            words += ["--target", f"{target[0]}={target[1]}"]
        if isinstance(held_out, Mapping):
            for name, path in held_out.items():
                words += ["--eval", f"{name}={path}"]
        elif held_out is not None:
            words += ["--eval", str(held_out)]
        words += ["--out", str(out), *arguments(options)]
        return self._begin_training(words, out, binary)

    def resume_training(
        self,
        out: PathText,
        *,
        budget: Amount | None = None,
        binary: PathText | None = None,
    ) -> Training:
        """Go on with a run that was stopped or killed, from its last kept step."""
        words = ["resume", str(out), *arguments({"budget": budget})]
        return self._begin_training(words, out, binary)

    def _begin_training(
        self, words: list[str], out: PathText, binary: PathText | None
    ) -> Training:
        run = in_thread(TrainingRun, self._folder, words, binary)
        training = Training(run, Path(out))
        self._trainings.append(training)
        return training

    def trainings(self, most: int | None = None) -> Table[TrainingState]:
        """The runs of training of the folder, the newest first."""
        return self._transport.table(TrainingState, "/v1/trainings", most)

    def training(self, name: str) -> TrainingFacts:
        """A run of training with its losses, of which `name` is the id or its beginning."""
        path = f"/v1/trainings/{quoted(name)}"
        return decode(TrainingFacts, self._transport.get(path))

    def account(self) -> Account:
        """The account: what it may spend, what is held, what it earned."""
        return decode(Account, self._transport.get("/v1/accounts/me"))

    def statement(self, most: int | None = None) -> Table[Movement]:
        """Movements of the account's credits, the newest first, so many at most."""
        return self._transport.table(Movement, "/v1/accounts/me/statement", most)

    def providers(self, most: int | None = None) -> Table[Provider]:
        """Who has something on offer."""
        return self._transport.table(Provider, "/v1/providers", most)

    def provider(self, account: str) -> ProviderDetail:
        """One provider, and what it offers."""
        return decode(ProviderDetail, self._transport.get(f"/v1/providers/{quoted(account)}"))

    def earnings(
        self, account: str = "me", *, step: str | None = None, steps: int | None = None
    ) -> Earnings:
        """What an account got for leases that closed lately, by steps such as `1h`, so many."""
        path = f"/v1/providers/{quoted(account)}/earnings"
        return decode(Earnings, self._transport.get(path, {"step": step, "steps": steps}))

    def devices(
        self, *, kind: str | None = None, real: bool | None = None, most: int | None = None
    ) -> Table[OfferedDevice]:
        """What is on offer, by device: of a kind, only real ones, so many at most."""
        given = {"kind": kind, "real": real}
        return self._transport.table(OfferedDevice, "/v1/devices", most, given)

    def offers(self, model: str | None = None) -> Table[TextOffer]:
        """The models that providers sell by the token: every offer, by model and price.

        A provider whose slots are all taken is not among them.
        """
        told = self._transport.get("/v1/market/texts", {"model": model})
        return decode_rows(TextOffer, told)

    def text_keys(self) -> Table[TextKey]:
        """The keys of `souk openai key`, and what each has spent."""
        return decode_rows(TextKey, self._transport.get("/v1/text-keys"))

    def text_server(
        self, budget: float | None = None, *, binary: str | PathLike[str] | None = None
    ) -> TextServer:
        """Start a server for OpenAI's clients, which buys what `offers` lists.

        It spends at most `budget` credits of the folder's account, and stops with this client.
        """
        server = in_thread(start_text_server, self._folder, budget, binary)
        self._servers.append(server)
        return server

    def openai(
        self, budget: float | None = None, *, binary: str | PathLike[str] | None = None
    ) -> OpenAI:
        """OpenAI's own client, of the package `openai`, for what `offers` lists.

        It starts a server as `text_server` does.
        """
        try:
            from openai import OpenAI
        except ImportError as error:
            hint = "pip install openai, or pass what text_server() returns to another client"
            raise TextServerFailed("the package openai is not installed", hint) from error
        server = self.text_server(budget, binary=binary)
        return OpenAI(base_url=server.base_url, api_key=server.api_key)

    def network(self) -> Map:
        """Who takes part, and the ways between: rate and round trip as they were measured."""
        return decode(Map, self._transport.get("/v1/network/map"))

    def validators(self) -> Table[Validator]:
        """The validators, and how far each is."""
        return decode_rows(Validator, self._transport.get("/v1/validators"))

    def status(self) -> Status:
        """What market this is, and how far it is."""
        return decode(Status, self._transport.get("/v1/status"))

    def follow(self, *topics: str) -> Generator[Update]:
        """What happens under `market`, `account`, `jobs`, `job:ID`, `depth:CLASS`, `trades:CLASS`
        or another topic of the API, for as long as it is wanted.

        It goes on where it broke off. An update whose topic is `reset` says that what came
        between is not known any more.
        """
        last: str | None = None
        while True:
            parser = Parser()
            try:
                with self._transport.stream(",".join(topics), last) as chunks:
                    for chunk in chunks:
                        for message in parser.take(chunk):
                            last = message.id or last
                            yield update_of(message)
            except GatewayUnreachable:
                self.status()

    def _submit(self, model: Content, inputs: Inputs, limits: Limits) -> Job:
        prepared = Prepared(model, input_contents(inputs))
        body = {"job": {**prepared.body(), **limited(limits)}}
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return Job(
            self._transport, begun(self._bringing(prepared, "/v1/jobs", body, headers))
        )

    def _bringing(
        self, prepared: Prepared, path: str, body: object, headers: dict[str, str]
    ) -> object:
        """Asks about contents that are brought first."""
        for content in prepared.contents:
            self._bring(content)
        try:
            return self._transport.post(path, body, headers)
        except NotFound as error:
            if "content" not in error.facts:
                raise
        self._sent.clear()
        for content in prepared.contents:
            self._bring(content)
        return self._transport.post(path, body, headers)

    def _bring(self, content: Content) -> None:
        if content.name in self._sent:
            return
        path = f"/v1/contents/{content.name}"
        try:
            self._transport.ask("HEAD", path)
        except NotFound:
            self._transport.bring(path, content)
        self._sent[content.name] = None
        while len(self._sent) > _SENT_MAX:
            del self._sent[next(iter(self._sent))]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"


def _end(job: Job) -> None:
    """Ends what nobody waits for any more; what cannot be ended ends by its lease."""
    try:
        job.cancel()
    except SoukError:
        return
