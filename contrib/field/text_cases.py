"""What goes wrong with language models: tokens, templates, clients' habits, files."""
import json

import talker
from net import Failed, alike, expect
from server import Server

JSON_TOOLS = [{"type": "function", "function": {
    "name": "f", "parameters": {"type": "object", "properties": {}}}}]
MARKET = ("--budget", "20", "--keep-alive", "20")


def here(net, *words):
    """A server on this machine, of the model of the case."""
    return Server(net, net.folder / "model", "--local", *words, home=net.folder / "here")


def token_id_beyond_vocabulary(net):
    """vLLM 9634: a prompt of token ids with one that the model has not ended the engine."""
    model = net.folder / "model"
    talker.make(model, ["Hello", " world"])
    with here(net) as server:
        refused(server)
    net.up()
    with Server(net, model, *MARKET) as server:
        status, _ = server.ask("/completions", prompt=[10], max_tokens=2)
        alike(status, 200, "before")
        before = net.accounts()
        refused(server)
        after = net.accounts()
    alike(after["buyer"]["escrow"], before["buyer"]["escrow"], "what is held afterwards")
    for name, account in after.items():
        score = account["reputation"]
        expect(score >= before[name]["reputation"], f"{name} is blamed: {score}")


def refused(server):
    """A wrong id is the asker's fault, by the name of what is wrong, and the next is answered."""
    status, said = server.ask("/completions", prompt=[999999], max_tokens=2)
    alike(status, 400, f"the status, of {said}")
    error = said["error"]
    alike((error["type"], error["param"]), ("invalid_request_error", "prompt"), "the error")
    alike(server.ask("/completions", prompt=[10], max_tokens=2)[0], 200, "the next question")


def added_token_without_a_row(net):
    """A fine-tune added tokens and never enlarged the matrix: a text that has one."""
    model = net.folder / "model"
    talker.make(model, ["A", "B"], added=("<think>", "</think>"))
    talker.forget_rows(model, 2)
    try:
        with here(net) as server:
            status, said = server.chat_status("a <think> b")
            alike(status, 400, f"the status, of {said}")
    except Failed as failed:
        expect('"kind":"input"' in str(failed), str(failed))
    net.up()
    before = net.accounts()
    net.run("generate", model, "a <think> b", "--budget", "3", "--max-tokens", "4").ended(3)
    after = net.accounts()
    alike({name: (it["escrow"], it["reputation"]) for name, it in after.items()},
          {name: (it["escrow"], it["reputation"]) for name, it in before.items()},
          "escrow and reputation")


def bytes_that_make_no_character(net):
    """Llama 2, Mistral, Phi 3, Gemma: tokens of bytes that are no UTF-8."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}|"
    script = ["<0x73>", "<0xBD>", talker.SPACE + "Hi"]
    talker.make_with_byte_fallback(net.folder / "model", script, template)
    with here(net) as server:
        whole = server.chat("hi")["choices"][0]["message"]["content"]
        pieces = server.streamed("hi")
    expect(whole.endswith(" Hi") and "\ufffd" in whole, f"the text is {whole!r}")
    alike(pieces, whole, "the text in pieces")


def chat_templates(net):
    """What templates of known families use: bytes of the prompt as transformers renders them."""
    message = "{{ messages[0].content }}{{ '\n' }}"
    wanted = {
        "Today is {{ strftime_now('%Y-%m-%d') }}." + message: 23,
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        "{{ '\n' }}": 3,
        "{{ messages[0] | tojson(separators=(',', ':')) }}{{ '\n' }}": 31,
        "{{ messages[0] | tojson(sort_keys=True) }}{{ '\n' }}": 34,
        "{% if tools is not none %}TOOLS{% endif %}" + message: 3,
        "{% if tools is none %}NONE{% endif %}" + message: 7,
        "{{ '%s-%d' % (messages[0].role, 3) }}{{ '\n' }}": 7}
    for template, tokens in wanted.items():
        talker.make(net.folder / "model", ["Ok"], template=template)
        with here(net) as server:
            alike(server.chat("hi")["usage"]["prompt_tokens"], tokens, f"bytes of {template!r}")


def messages_of_clients(net):
    """What clients send beside the document: names of messages, calls without arguments."""
    template = (
        "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}"
        "{{ m.role }}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{{ '\n' }}")
    talker.make(net.folder / "model", ["Ok"], template=template)
    user = {"role": "user", "content": "hi"}
    result = {"role": "tool", "tool_call_id": "c", "content": "42"}

    def call(arguments):
        function = {"name": "f", "arguments": arguments}
        return {"role": "assistant", "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": function}]}

    with here(net) as server:
        for messages in ([user | {"name": "bob"}], [user, call("{}"), result | {"name": "f"}],
                         [user, call(""), result], [user, call(" "), result]):
            server.chat(messages, tools=JSON_TOOLS)


def gguf_tokenisers(net):
    """Names of tokenisers in files of families that are known."""
    talker.make(net.folder / "model", ["Hello"])
    for pre in ("llama-bpe", "llama3", "llama-v3", "deepseek-r1-qwen", "gpt-4o", "dbrx", "tekken"):
        path = talker.save_gguf(net.folder / "model", net.folder / "tiny.gguf", pre)
        with Server(net, path, "--local", home=net.folder / "here") as server:
            server.chat("hi")


def named_chat_templates(net):
    """Hermes 3: with tools the template of the name tool_use is taken, as transformers does."""
    template = (
        "{% if tools %}{{ tools | tojson }} answer in <tool_call></tool_call>{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ '\n' }}")
    named = [{"name": "default", "template": talker.CHATML},
             {"name": "tool_use", "template": template}]
    script = ["<tool_call>", json.dumps({"name": "f", "arguments": {}}), "</tool_call>"]
    talker.make(net.folder / "model", script, settings={"chat_template": named})
    with here(net) as server:
        message = server.chat("hi", tools=JSON_TOOLS)["choices"][0]["message"]
    calls = [call["function"]["name"] for call in message.get("tool_calls") or []]
    alike(calls, ["f"], "the calls")


def json_schema_formats(net):
    """A format that is not known is a remark: pydantic writes password, binary and path."""
    talker.make(net.folder / "model", ["Ok"])
    with here(net) as server:
        for word in ("email", "password", "binary", "path", "regex", "uri-reference"):
            schema = {"type": "object", "required": ["a"],
                      "properties": {"a": {"type": "string", "format": word}}}
            server.chat("x", max_tokens=2, response_format={
                "type": "json_schema", "json_schema": {"name": "s", "schema": schema}})


CASES = [token_id_beyond_vocabulary, added_token_without_a_row, bytes_that_make_no_character,
         chat_templates, messages_of_clients, gguf_tokenisers, named_chat_templates,
         json_schema_formats]
