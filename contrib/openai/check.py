"""Ask a server of `souk openai` what OpenAI's own Python client asks, and see that nothing hangs.

    pip install openai
    souk openai MODEL --local &
    python3 contrib/openai/check.py http://127.0.0.1:8080/v1 FOLDER/buyer/openai-key

Each line says what was asked, how it went and how long it took; it fails at the first that is
not as it should be. `--text TEXT` is what the model is told: words it knows. `--kills NET` asks a
thousand times, and kills a provider of the testnet in NET after each fifty answers. `--tools` is
for a model whose chat template knows tools: without it they are to be refused. `--embeddings` asks
a server that was started with it for vectors, and for nothing else.
"""
import argparse
import concurrent.futures
import itertools
import json
import math
import os
import pathlib
import random
import signal
import statistics
import time
import typing

import openai
import pydantic

# How long one question may take, and how many are asked at once.
PATIENCE = 300
AT_ONCE = 32
# Tokens of an answer that is JSON.
JSON_TOKENS = 120
# Questions that are asked while providers are killed, and answers from one kill to the next.
MANY = 1000
KILL_EACH = 50


class Offer(pydantic.BaseModel, extra="forbid"):
    """What an answer is to be."""
    word: typing.Literal["lease", "bid", "Gebühr"]
    is_sold: bool
    price: typing.Annotated[int, pydantic.Field(ge=0, le=99)]


class Lookup(pydantic.BaseModel):
    """Says what a word means."""
    word: typing.Literal["lease", "bid"]
    is_short: bool


def step(name, ask):
    begin = time.monotonic()
    told = ask()
    print(f"{time.monotonic() - begin:8.2f} s  {name}: {told}", flush=True)


class Check:
    def __init__(self, url, key, text, tokens):
        self.client = openai.OpenAI(base_url=url, api_key=key, timeout=PATIENCE, max_retries=0)
        self.url, self.text, self.tokens = url, text, tokens
        self.model = None

    def ask(self, **more):
        asked = {"model": self.model, "max_tokens": self.tokens, "temperature": 0, "seed": 4}
        messages = [{"role": "user", "content": self.text}]
        return self.client.chat.completions.create(messages=messages, **(asked | more))

    def models(self):
        self.model = self.client.models.list().data[0].id
        assert self.client.models.retrieve(self.model).id == self.model
        return self.model

    def whole_and_streamed(self):
        whole = self.ask()
        text = whole.choices[0].message.content
        assert whole.usage.completion_tokens <= self.tokens, whole.usage
        pieces, usage, reason = [], None, None
        for chunk in self.ask(stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                reason = choice.finish_reason or reason
        assert "".join(pieces) == text, ("".join(pieces), text)
        assert usage.completion_tokens == whole.usage.completion_tokens
        assert reason == whole.choices[0].finish_reason
        return f"{usage.prompt_tokens} + {usage.completion_tokens} tokens, {reason}"

    def vectors(self):
        """As the client asks, by base64, and as floats; of length 1, and alike for texts alike."""
        def ask(texts, **more):
            made = self.client.embeddings.create(model=self.model, input=texts, **more)
            vectors = [one.embedding for one in made.data]
            assert [one.index for one in made.data] == list(range(len(vectors)))
            for vector in vectors:
                assert abs(math.hypot(*vector) - 1) < 1e-4, math.hypot(*vector)
            return vectors

        texts = [self.text, f"{self.text} {self.text}", self.text]
        first, other, again = ask(texts)
        alone, = ask(self.text, encoding_format="float")
        for same in (again, alone):
            assert max(abs(a - b) for a, b in zip(first, same)) < 1e-4
        short, = ask(self.text, dimensions=8)
        assert len(short) == 8 < len(first) == len(other)
        apart = sum(a * b for a, b in zip(first, other))
        try:
            self.ask()
        except openai.NotFoundError as refused:
            return f"{len(first)} numbers, {apart:.3f} of another; a text: {refused.code}"
        raise AssertionError("a server of vectors goes on with texts")

    def completion(self):
        made = self.client.completions.create(
            model=self.model, prompt=self.text, max_tokens=4, temperature=0
        )
        assert made.usage.completion_tokens <= 4
        return repr(made.choices[0].text)

    def probabilities(self):
        """Told alike whole and streamed, and of greedy tokens none is likelier."""
        asked = {"logprobs": True, "top_logprobs": 3}
        whole = self.ask(**asked).choices[0].logprobs.content
        streamed = [token for chunk in self.ask(stream=True, **asked) for choice in chunk.choices
                    if choice.logprobs for token in choice.logprobs.content]
        assert streamed == whole[:len(streamed)] and streamed, (streamed, whole)
        for token in whole:
            assert token.logprob == token.top_logprobs[0].logprob, token
            assert sum(math.exp(it.logprob) for it in token.top_logprobs) < 1 + 1e-9, token
        text = self.client.completions.create(
            model=self.model, prompt=self.text, max_tokens=4, temperature=0, logprobs=2
        ).choices[0].logprobs
        assert len(text.tokens) == len(text.token_logprobs) == len(text.top_logprobs), text
        return ", ".join(f"{token.token!r} {math.exp(token.logprob):.3f}" for token in whole[:3])

    def choices(self):
        """Several answers are told apart, whole and streamed; a prompt is echoed and weighed."""
        one = self.ask().choices[0].message.content
        both = self.ask(n=2).choices
        assert [choice.index for choice in both] == [0, 1], both
        assert [choice.message.content for choice in both] == [one, one], both
        told = ["", ""]
        for chunk in self.ask(n=2, stream=True):
            for choice in chunk.choices:
                told[choice.index] += choice.delta.content or ""
        assert told == [one, one], told
        texts = self.client.completions.create(
            model=self.model, prompt=[self.text, "A bid"], max_tokens=2, n=2, echo=True,
            temperature=0).choices
        begins = [text.text.startswith(begin) for text, begin in
                  zip(texts, [self.text, self.text, "A bid", "A bid"])]
        assert begins == [True] * 4, texts
        weighed = self.client.completions.create(
            model=self.model, prompt=self.text, max_tokens=0, echo=True, logprobs=1).choices[0]
        first, *rest = weighed.logprobs.token_logprobs
        assert first is None and rest and max(rest) <= 0, weighed
        return f"{len(rest) + 1} tokens of the prompt, {sum(rest):.1f} in all"

    def refused(self):
        tried = [
            (openai.AuthenticationError, lambda: openai.OpenAI(
                base_url=self.url, api_key="none", max_retries=0).models.list()),
            (openai.NotFoundError, lambda: self.ask(model="another")),
            (openai.BadRequestError, lambda: self.ask(n=33)),
            (openai.BadRequestError, lambda: self.client.completions.create(
                model=self.model, prompt=[4_000_000_000])),
            (openai.BadRequestError, lambda: self.ask(response_format=form({"type": "objekt"}))),
            (openai.BadRequestError, lambda: self.ask(functions=[{"name": "f"}])),
            (openai.NotFoundError, lambda: self.client.embeddings.create(
                model=self.model, input="a")),
        ]
        said = []
        for error, ask in tried:
            try:
                ask()
            except error as refused:
                said.append(f"{refused.status_code} {refused.code}")
            else:
                raise AssertionError(f"{error} is expected")
        return ", ".join(said)

    def json(self):
        """Of a schema and of none, parsed by the client, whole and streamed."""
        asked = {"response_format": Offer, "max_tokens": JSON_TOKENS}
        messages = [{"role": "user", "content": self.text}]
        parsed = self.client.chat.completions.parse(
            model=self.model, messages=messages, temperature=0, seed=4, **asked).choices[0]
        assert parsed.finish_reason == "stop", parsed
        asked["response_format"] = form(Offer.model_json_schema())
        parts = self.ask(stream=True, **asked)
        text = "".join(c.choices[0].delta.content or "" for c in parts if c.choices)
        assert Offer.model_validate_json(text), text
        cut = self.ask(response_format=asked["response_format"], max_tokens=2).choices[0]
        assert cut.finish_reason == "length", cut
        any_object = self.ask(
            response_format={"type": "json_object"}, max_tokens=JSON_TOKENS).choices[0]
        assert any_object.message.content.lstrip().startswith("{"), any_object
        if any_object.finish_reason == "stop":
            assert isinstance(json.loads(any_object.message.content), dict), any_object
        return parsed.message.parsed

    def tools(self, is_known):
        """A call that is forced, whole and streamed, and its answer told to the model."""
        asked = {"tools": [openai.pydantic_function_tool(Lookup)], "max_tokens": JSON_TOKENS}
        if not is_known:
            try:
                return self.ask(**asked)
            except openai.BadRequestError as refused:
                return refused.message
        by_name = {"type": "function", "function": {"name": "Lookup"}}
        for choice in ["required", by_name]:
            whole = self.ask(tool_choice=choice, **asked).choices[0]
            assert whole.finish_reason == "tool_calls", whole
            (call,) = whole.message.tool_calls
            assert call.function.name == "Lookup", call
            Lookup.model_validate_json(call.function.arguments)
        told, reason = "", None
        for chunk in self.ask(tool_choice="required", stream=True, **asked):
            for part in chunk.choices:
                told += "".join(it.function.arguments for it in part.delta.tool_calls or [])
                reason = part.finish_reason or reason
        assert (told, reason) == (call.function.arguments, "tool_calls"), (told, reason)
        messages = [
            {"role": "user", "content": self.text}, whole.message,
            {"role": "tool", "tool_call_id": call.id, "content": "a right to use"},
        ]
        self.client.chat.completions.create(
            model=self.model, messages=messages, max_tokens=4, tools=asked["tools"])
        self.ask(tool_choice="auto", **asked)
        return f"{call.function.name}({call.function.arguments})"

    def cancelled(self):
        """A long text that is closed at its first piece holds nobody up."""
        stream = self.ask(stream=True, max_tokens=900)
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        stream.close()
        begin = time.monotonic()
        self.ask(max_tokens=1)
        return f"the next was answered after {time.monotonic() - begin:.2f} s"

    def at_once(self):
        def one(place):
            if place % 2:
                return self.ask(max_tokens=4).choices[0].message.content
            parts = self.ask(max_tokens=4, stream=True)
            return "".join(c.choices[0].delta.content or "" for c in parts if c.choices)

        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            texts = list(pool.map(one, range(AT_ONCE), timeout=PATIENCE))
        assert len(set(texts)) == 1, set(texts)
        return f"{AT_ONCE} answers alike"


    def killed(self, net):
        """Answers while providers die: none hangs, and all are the same text."""
        expected = self.ask().choices[0].message.content
        answered, kills = itertools.count(1), []

        def one(_):
            begin = time.monotonic()
            try:
                text = self.ask().choices[0].message.content
            except openai.APIStatusError as error:
                text = error
            if next(answered) % KILL_EACH == 0:
                kills.append(kill_one(net))
            return text, time.monotonic() - begin

        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            told = list(pool.map(one, range(MANY), timeout=MANY * PATIENCE))
        alike = sum(text == expected for text, _ in told)
        refused = [str(text) for text, _ in told if isinstance(text, Exception)]
        assert alike + len(refused) == MANY, [text for text, _ in told if text != expected][:3]
        took = sorted(seconds for _, seconds in told)
        return (f"{alike} of {MANY} answered alike, {len(refused)} refused {set(refused)}, "
                f"{len(kills)} kills of {len(set(kills))} providers, "
                f"median {statistics.median(took):.2f} s, longest {took[-1]:.2f} s")


def form(schema):
    """A schema as an answer's form."""
    return {"type": "json_schema", "json_schema": {"name": "offer", "schema": schema}}


def kill_one(net):
    """Ends a provider of a testnet as a power cut would; its testnet starts it again."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        of_net = [word for word in words if word.startswith(f"{net}/provider-".encode())]
        if of_net:
            found[int(process.name)] = (of_net[0].decode(), parent)
    # Jobs' processes are children of the provider's own.
    own = [pid for pid, (_, parent) in found.items() if parent not in found]
    victim = random.choice(own)
    os.kill(victim, signal.SIGKILL)
    return found[victim][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("key_file", type=pathlib.Path)
    parser.add_argument("--text", default="Why is the sky blue?")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--tools", action="store_true")
    parser.add_argument("--embeddings", action="store_true")
    parser.add_argument("--kills", metavar="NET", type=pathlib.Path)
    given = parser.parse_args()
    check = Check(given.url, given.key_file.read_text().strip(), given.text, given.tokens)
    step("models", check.models)
    if given.embeddings:
        step("vectors", check.vectors)
        return
    step("whole and streamed", check.whole_and_streamed)
    step("completion", check.completion)
    step("probabilities", check.probabilities)
    step("several answers, and an echo", check.choices)
    step("refused", check.refused)
    step("JSON", check.json)
    step("tools", lambda: check.tools(given.tools))
    step("cancelled", check.cancelled)
    step("at once", check.at_once)
    if given.kills:
        step("kills", lambda: check.killed(given.kills.resolve()))


main()
