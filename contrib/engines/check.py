"""Sell a model from inference engines side by side, buy it, break them, audit them, settle.

    python3 contrib/engines/check.py SOUK FOLDER

SOUK is souk's binary. FOLDER is empty but for `glossary.gguf` and `glossary-q4_0.gguf`, which
llm/models/glossary/write_gguf.py writes. Needs the packages openai, litellm and
llama-cpp-python[server].

On a testnet, four providers sell the model that comes with souk under one name: `llama` by
llama-cpp-python's server, `own` and `spare` by souk's decoder, and `cheat` by that server too, with
weights of 4 bits sold as those of 16. Each line says what was tried, how it went and how long it
took; the first that is not as it should be ends the run.
"""
import argparse
import concurrent.futures
import contextlib
import itertools
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import openai

MODEL = "souk/glossary"
# Credits for a million output and input tokens.
PRICES = {"--out": 0.2, "--in": 0.05}
OUTPUT_US, INPUT_US, PRICE = 1000, 250, 200
# Fields that llama-cpp-python's server wants: it makes repeated tokens less likely by itself.
PLAIN = ["--field", "repeat_penalty=1.0"]
# How long anything may take, in seconds.
PATIENCE = 120
TOKENS = 60
KNOWN = ["What is an endpoint?", "What is a lease?", "What is a receipt?", "What is a quote?"]
FOREIGN = ["租约是什么？", "リースとは何ですか", "Was heißt „Gebühr“? 🙂", "임대란 무엇입니까?"]
# Questions whose answers the model did not learn by heart.
UNSURE = [
    f"{ask} {word}{end}"
    for ask, end in [("Compare escrow with a", "."), ("Explain to a child a", "."),
                     ("When does one end, a", "?"), ("Who pays for a", "?")]
    for word in ["lease", "note", "receipt", "stake", "bid", "slot", "device", "sandbox", "log"]
]


def step(name, act):
    begin = time.monotonic()
    told = act()
    print(f"{time.monotonic() - begin:8.2f} s  {name}: {told}", flush=True)


def until(what, look):
    """Wait for a value that is true, and return it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} does not come to be")


def alike(found, wanted, what):
    assert found == wanted, f"{what}: {found!r} and not {wanted!r}"


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def count_tokens(text):
    """souk's tokens: four bytes each."""
    return math.ceil(len(text.encode()) / 4)


def count_cost(tokens):
    """The price of input and output tokens, in millionths of a credit."""
    return math.ceil((tokens[0] * INPUT_US + tokens[1] * OUTPUT_US) * PRICE / 1_000_000)


@contextlib.contextmanager
def slow(process):
    """Let a process run for a fiftieth of the time only, so that its answers take a while."""
    is_over = threading.Event()

    def hold():
        while not is_over.is_set() and process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            is_over.wait(0.05)
            process.send_signal(signal.SIGCONT)
            is_over.wait(0.001)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield
    finally:
        is_over.set()
        holder.join()


class Market:
    """A testnet in a folder, and the processes of engines, providers and a server of texts."""

    def __init__(self, souk, folder):
        self.souk, self.folder, self.net = str(souk), folder, folder / "net"
        self.processes, self.ports, self.accounts = {}, {}, {}
        # The names of what was killed, as often as it was.
        self.killed = []

    def run(self, *words, home=None, fails=False):
        """Return what a command prints as JSON."""
        command = [self.souk, "--dir", str(home or self.net), "--json", *map(str, words)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE,
                             stdin=subprocess.DEVNULL, cwd=self.folder)
        assert (ran.returncode != 0) == fails, (words, ran.stdout, ran.stderr)
        return json.loads(ran.stdout)

    def start(self, name, command):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder)

    def kill(self, name):
        """End a process as a power cut would."""
        self.processes[name].kill()
        self.processes[name].wait()
        self.killed.append(name)

    def start_engine(self, name, file):
        port = self.ports.setdefault(name, free_port())
        self.start(name, [
            sys.executable, "-m", "llama_cpp.server", "--model", file, "--model_alias", MODEL,
            "--n_ctx", "512", "--n_threads", "1", "--host", "127.0.0.1", "--port", str(port),
            "--interrupt_requests", "false"])

        def answers():
            assert self.processes[name].poll() is None, (self.folder / f"{name}.log").read_text()
            with contextlib.suppress(OSError):
                return not socket.create_connection(("127.0.0.1", port), 1).close()

        until(f"{name} listens", answers)
        return f"http://127.0.0.1:{port}/v1"

    def start_provider(self, name):
        """Start a provider, and wait for its ask: not for one that it left when it was killed."""
        log = self.folder / f"{name}.log"

        def count():
            return log.read_text().count("ready ") if log.exists() else 0

        before = count()
        self.start(name, [self.souk, "--dir", str(self.net / name), "provider", "run"])
        until(f"{name} is ready", lambda: count() > before)
        until(f"{name} sells", lambda: name in self.offers())

    def offers(self):
        ran = subprocess.run(
            [self.souk, "--dir", str(self.net), "--json", "model", "show", MODEL],
            capture_output=True, text=True, stdin=subprocess.DEVNULL)
        listed = json.loads(ran.stdout) if ran.returncode == 0 else []
        return {offer["provider_name"]: offer for offer in listed}

    def sell(self, name, slots, *source):
        """Create a provider and start it. Return what the plan says."""
        prices = itertools.chain(*PRICES.items())
        plan = self.run("provider", "init", "--listen", "/ip4/127.0.0.1/tcp/0", "--model", MODEL,
                        "--slots", slots, *prices, *source, home=self.net / name)
        self.start_provider(name)
        shown = self.run("account", "show", home=self.net / name)
        self.accounts[name] = shown["account"]["account"]
        return plan

    def token_figures(self, name):
        return self.run("provider", "status", home=self.net / name)["tokens"]

    def receipts(self, name):
        """Return the receipts that a provider has, by their files."""
        files = (self.net / name / "receipts").glob("*.json")
        return {file: json.loads(file.read_text())["body"] for file in files}

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        subprocess.run([self.souk, "--dir", str(self.net), "testnet", "down"],
                       capture_output=True, check=False)


class Check:
    def __init__(self, market):
        self.market, self.client, self.url = market, None, None
        # The tokens that the client counted in the answers of a provider: input and output.
        self.counted = {}
        self.expected = {}

    def sell(self):
        net, files = self.market, self.market.folder
        net.run("testnet", "up", "--detach", "--validators", 1, "--providers", 1, "--no-http")
        self.before = net.run("account", "show")["account"]["available"]
        url = net.start_engine("engine", "glossary.gguf")
        plans = [net.sell("llama", 2, "--endpoint", url, *PLAIN)]
        url = net.start_engine("cheaper", "glossary-q4_0.gguf")
        plans.append(net.sell("cheat", 2, "--endpoint", url, *PLAIN))
        net.sell("own", 4, "--serve", "bundled")
        net.sell("spare", 4, "--serve", files / "glossary.gguf")
        # The server of llama-cpp-python ignores `continue_final_message`, and souk notices it.
        alike([plan["continues"] for plan in plans], [False, False], "engines that continue")
        alike(set(net.offers()), {"llama", "cheat", "own", "spare"}, "offers")
        return f"{len(net.offers())} offers of {MODEL}"

    def serve(self):
        net = self.market
        net.start("server", [net.souk, "--dir", str(net.net), "openai", "--budget", "20",
                             "--keep-transcripts", "200", "--listen", "127.0.0.1:0"])
        log = net.folder / "server.log"
        ready = until("the server is ready", lambda: [
            line for line in log.read_text().splitlines() if line.startswith("ready ")])
        self.url, self.key = ready[0].split()[1], (net.net / "buyer/openai-key").read_text().strip()
        self.client = openai.OpenAI(
            base_url=self.url, api_key=self.key, timeout=PATIENCE, max_retries=0)
        alike([model.id for model in self.client.models.list()], [MODEL], "models")
        told = self.client.get(f"/models/{MODEL}/endpoints", cast_to=object)["data"]["endpoints"]
        alike({offer["provider_name"]: offer["provider"] for offer in told}, net.accounts, "offers")
        return f"models and {len(told)} endpoints"

    def ask(self, question, provider=None, **more):
        """Ask, at temperature 0, one provider or any. Return the answer as the client has it. Where
        all slots are taken, ask again after the time that the server names."""
        asked = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0}
        rules = {"only": [provider]} if provider else {"ignore": ["cheat"]}
        messages = [{"role": "user", "content": question}]
        body = {"provider": rules} | more.pop("extra", {})
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self.client.chat.completions.with_raw_response.create(
                    messages=messages, extra_body=body, **(asked | more))
            except openai.InternalServerError as error:
                if error.code != "no_free_slot" or time.monotonic() > end:
                    raise
                time.sleep(float(error.response.headers["retry-after"]))

    def name_provider(self, raw):
        account = raw.headers["x-souk-provider"]
        return next(name for name, known in self.market.accounts.items() if known == account)

    def note(self, question, name, text, usage):
        """Hold the server's count and price against those of this client, and note the count."""
        tokens = [count_tokens(question), count_tokens(text)]
        alike([usage.prompt_tokens, usage.completion_tokens], tokens, f"{name}'s count of {text!r}")
        alike(round(usage.cost * 1e6), count_cost(tokens), f"{name}'s price of {tokens}")
        noted = self.counted.setdefault(name, [0, 0])
        self.counted[name] = [old + new for old, new in zip(noted, tokens)]

    def ask_whole(self, question, provider=None):
        raw = self.ask(question, provider)
        answer = raw.parse()
        text = answer.choices[0].message.content
        self.note(question, self.name_provider(raw), text, answer.usage)
        return text

    def ask_streamed(self, question, provider=None):
        raw = self.ask(question, provider, stream=True, stream_options={"include_usage": True})
        text, usage, reason = "", None, None
        for chunk in raw.parse():
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
        assert reason in ("stop", "length"), reason
        self.note(question, self.name_provider(raw), text, usage)
        return text

    def texts(self):
        """Each honest provider gives the text that this machine gives, whole and streamed."""
        for question in KNOWN:
            ran = subprocess.run(
                [self.market.souk, "generate", "bundled", "--local", "--chat", "--temperature", "0",
                 "--max-tokens", str(TOKENS), question],
                capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
            self.expected[question] = ran.stdout.rstrip("\n")
        for name, (question, text) in itertools.product(
                ["llama", "own", "spare"], self.expected.items()):
            alike(self.ask_whole(question, name), text, f"{name} to {question!r}")
            alike(self.ask_streamed(question, name), text, f"{name} to {question!r}, streamed")
        return f"{len(KNOWN)} answers of 3 providers are those of this machine"

    def at_once(self):
        """Many at once, in several scripts: each count is that of the client."""
        questions = (KNOWN + FOREIGN) * 4

        def one(place):
            ask = self.ask_streamed if place % 2 else self.ask_whole
            return ask(questions[place])

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(one, range(len(questions)), timeout=PATIENCE))
        for question, text in zip(questions, texts):
            alike(text, self.expected.get(question, text), question)
            assert text, question
        return f"{len(texts)} answers, {len(FOREIGN) * 4} of them to questions in other scripts"

    def refused(self):
        def refuse(**more):
            try:
                self.ask(KNOWN[0], **more)
            except openai.BadRequestError as error:
                return error.code
            raise AssertionError(f"{more} is not refused")

        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        codes = [refuse(tools=[tool]), refuse(n=2), refuse(extra={"top_k": 4}),
                 refuse(provider="nobody")]
        alike(codes, ["unsupported_parameter"] * 3 + ["no_suitable_offer"], "codes")
        return "tools, n, top_k and an unknown provider, by name"

    def litellm(self):
        """LiteLLM as a client, whole and streamed."""
        question, asked = KNOWN[0], {
            "model": f"openai/{MODEL}", "api_base": self.url, "api_key": self.key, "temperature": 0,
            "messages": [{"role": "user", "content": KNOWN[0]}], "max_tokens": TOKENS,
            "extra_body": {"provider": {"only": ["llama"]}},
        }
        whole = litellm.completion(**asked)
        text = whole.choices[0].message.content
        alike(text, self.expected[question], "whole")
        parts = litellm.completion(
            **asked, stream=True, stream_options={"include_usage": True})
        streamed, usage = "", None
        for part in parts:
            streamed += part.choices[0].delta.content or "" if part.choices else ""
            usage = getattr(part, "usage", None) or usage
        alike(streamed, text, "streamed")
        tokens = [count_tokens(question), count_tokens(text)]
        for told in (whole.usage, usage):
            alike([told.prompt_tokens, told.completion_tokens], tokens, "usage")
            noted = self.counted.setdefault("llama", [0, 0])
            self.counted["llama"] = [old + new for old, new in zip(noted, tokens)]
        return f"{litellm_version()}: {tokens[0]} + {tokens[1]} tokens, twice"

    def sum_receipts(self, name):
        """Return the input and the output tokens that a provider's receipts have."""
        signed = [body["metered"] for body in self.market.receipts(name).values()]
        return [sum(it["input"] + it["cached"] for it in signed),
                sum(it["output"] for it in signed)]

    def settled(self):
        """Once the tabs are closed, the receipts have the tokens that the client counted."""
        net = self.market
        until("no escrow is held", lambda: net.run("account", "show")["account"]["escrow"] == 0)
        told = []
        for name, counted in sorted(self.counted.items()):
            until(f"receipts of {name} with {counted} tokens",
                  lambda: self.sum_receipts(name) == counted)
            told.append(f"{name} {counted[0]} + {counted[1]}")
        return f"tokens of receipts and client agree: {', '.join(told)}"

    def break_stream(self, provider, victim):
        """Kill a process in the middle of a streamed answer. Return the text before the kill, the
        whole text, and the error at its end."""
        net, question = self.market, KNOWN[0]
        self.ask(question, provider)  # Opens a tab.
        text, came, fault = "", None, None
        with slow(net.processes[victim]):
            raw = self.ask(question, stream=True, extra={
                "provider": {"order": [provider], "ignore": ["cheat"]}})
            alike(self.name_provider(raw), provider, "the provider")
            try:
                for chunk in raw.parse():
                    text += "".join(it.delta.content or "" for it in chunk.choices)
                    if text and came is None:
                        came = text
                        net.kill(victim)
            except openai.APIError as error:
                fault = error
        assert came != self.expected[question], "it was whole before the kill"
        return came, text, fault

    def go_on(self, provider, victim):
        """A broken answer comes whole, because another provider continues it."""
        net, others = self.market, [name for name in ("own", "spare") if name != provider]

        def count():
            return sum(net.token_figures(name)["answered"] for name in others)

        answered = count()
        came, text, fault = self.break_stream(provider, victim)
        alike((text, fault), (self.expected[KNOWN[0]], None), f"the answer after {came!r}")
        until("another provider gave the rest", lambda: count() > answered)
        return f"{came!r} + {text.removeprefix(came)!r}"

    def engine_killed(self):
        told = self.go_on("llama", "engine")
        broken = until("the break is counted", lambda: self.market.token_figures("llama")["broken"])
        self.market.start_engine("engine", "glossary.gguf")
        until("it is on sale again", lambda: "llama" in self.market.offers())
        return f"{told}, {broken} broken"

    def provider_killed(self, name):
        told = self.go_on(name, name)
        self.market.start_provider(name)
        return told

    def nobody_continues(self):
        """Where only an engine is left that ignores the request to continue, the answer ends with
        an error, and not with another answer behind it."""
        net = self.market
        net.kill("spare")
        came, text, fault = self.break_stream("own", "own")
        assert fault is not None, f"{came!r} became {text!r}"
        assert self.expected[KNOWN[0]].startswith(text), f"{came!r} became {text!r}"
        # The router asks it once only, here or when an answer was broken before.
        until("llama has refused", lambda: net.token_figures("llama")["refused"])
        for name in ("own", "spare"):
            net.start_provider(name)
        return f"{text!r}, then {fault.message}"

    def audit(self):
        """The cheat is named, and the honest ones fit."""
        net, names = self.market, ["llama", "own", "cheat"]
        for name in names:
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda question: self.ask(question, name), UNSURE, timeout=PATIENCE))
        until("no escrow is held", lambda: net.run("account", "show")["account"]["escrow"] == 0)
        net.run("audit", "run", MODEL, "--reference", "bundled")
        audits = {audit["provider"]: audit for audit in net.run("audit", "list")}
        verdicts, told = {}, []
        for name in names:
            tally = audits[net.accounts[name]]["tally"]
            verdicts[name] = tally["verdict"]
            told.append(f"{name} {tally['tokens']} tokens {tally['verdict']}")
        alike(verdicts, {"llama": "fits", "own": "fits", "cheat": "does_not_fit"}, "verdicts")
        return ", ".join(told)

    def cheat_left(self):
        def is_left():
            try:
                self.ask(KNOWN[0], "cheat")
            except openai.BadRequestError as error:
                return "audit" in error.message and error.message

        return until("the cheat is left", is_left)

    def balance(self):
        """Every lease is closed, every receipt holds offline, and the sums of money agree."""
        net = self.market
        net.processes["server"].send_signal(signal.SIGINT)
        net.processes["server"].wait(PATIENCE)
        until("no escrow is held", lambda: net.run("account", "show")["account"]["escrow"] == 0)
        history = net.run("account", "history")["movements"]
        causes = [cause for move in history for cause in move["causes"]]
        bought = {it["traded"]["lease"] for it in causes if "traded" in it}
        closed = [it["lease_closed"] for it in causes if "lease_closed" in it]
        alike({it["lease"] for it in closed}, bought, "closed leases")
        files = {file: body for name in net.accounts for file, body in net.receipts(name).items()}
        paid = {it["lease"]: it["paid"] for it in closed}
        for file, body in files.items():
            told = net.run("receipt", "verify", file, home=net.folder / "nowhere")
            assert told["valid"], told
            alike(body["amount"], paid[body["lease"]], f"the payment of {file}")
        earned = {name: net.run("account", "show", home=net.net / name)["account"]["earned"]
                  for name in net.accounts}
        spent = self.before - net.run("account", "show")["account"]["available"]
        # Where a lease ended without a receipt, the market keeps a fee that nobody earns.
        fees = sum(it["fee"] for it in closed)
        alike(spent, sum(paid.values()) + fees, "the buyer's expense")
        for name, account in net.accounts.items():
            alike(earned[name], sum(it["paid"] for it in closed if it["provider"] == account),
                  f"earned by {name}")
        without = [it for it in closed if it["lease"] not in {at["lease"] for at in files.values()}]
        # A killed provider has no receipt of its open tab, and an unused tab needs none.
        killed = [it["provider"] for it in without if it["paid"]]
        for name, account in net.accounts.items():
            assert killed.count(account) <= net.killed.count(name), (name, without)
        return (f"{len(closed)} leases, {len(files)} receipts valid offline, {len(killed)} of "
                f"killed providers and {len(without) - len(killed)} unused without one; "
                f"{spent / 1e6} credits spent, {sum(earned.values()) / 1e6} earned")


def litellm_version():
    from importlib.metadata import version
    return f"LiteLLM {version('litellm')}"


def main():
    # Ends in `finally`, which ends what this started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("souk", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    given = parser.parse_args()
    market = Market(given.souk.resolve(), given.folder.resolve())
    check = Check(market)
    try:
        step("sold", check.sell)
        step("served", check.serve)
        step("texts", check.texts)
        step("at once", check.at_once)
        step("refused", check.refused)
        step("LiteLLM", check.litellm)
        step("settled", check.settled)
        step("an engine is killed", check.engine_killed)
        step("its provider is killed", lambda: check.provider_killed("llama"))
        step("a provider with souk's decoder is killed", lambda: check.provider_killed("own"))
        step("nobody can continue", check.nobody_continues)
        step("audit", check.audit)
        step("the cheat is left", check.cheat_left)
        step("balance", check.balance)
    finally:
        market.close()


main()
