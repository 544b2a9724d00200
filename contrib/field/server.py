"""`souk openai` under way, and what it answers."""
import json
import signal
import urllib.error
import urllib.request

from net import Failed, wait_for

# The longest that one answer may take, in seconds.
PATIENCE = 120


class Server:
    """Serves a model: with `--local` on this machine, else through the testnet of the case."""

    def __init__(self, net, model, *words, home=None):
        self.process, log = net.start("--json", "openai", model, "--listen", "127.0.0.1:0",
                                      *words, home=home)
        wait_for(log, "key_file", self.process)
        told = next(line for line in log.read_text().splitlines() if "key_file" in line)
        told = json.loads(told)
        self.url, self.model = told["url"], told["model"]
        self.key = open(told["key_file"]).read().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)

    def post(self, path, body):
        """The status of an answer and its text."""
        body = json.dumps({"model": self.model, "temperature": 0, **body}).encode()
        asked = urllib.request.Request(self.url + path, body, {
            "Authorization": "Bearer " + self.key, "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ask(self, path, **body):
        """The status of an answer and its JSON."""
        status, said = self.post(path, body)
        return status, json.loads(said)

    def chat(self, messages, **more):
        """The answer to messages, or to one of a user; it must be 200."""
        status, said = self.chat_status(messages, **more)
        if status != 200:
            raise Failed(f"{status}: {said['error']['message']}")
        return said

    def chat_status(self, messages, **more):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.ask("/chat/completions", messages=messages, **more)

    def streamed(self, words):
        """The text of an answer that comes in pieces."""
        messages = [{"role": "user", "content": words}]
        status, said = self.post("/chat/completions", {"messages": messages, "stream": True})
        lines = [line[6:] for line in said.split("\n") if line.startswith("data: ")]
        if status != 200 or lines[-1:] != ["[DONE]"]:
            raise Failed(f"the stream breaks off, {status}: {said[-200:]}")
        choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)
