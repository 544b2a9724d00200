"""A tiny Llama that says a script: each piece of text is a token, and one other follows each."""
import json
import struct

import numpy as np

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# How SentencePiece writes a space.
SPACE = "\u2581"


def byte_letters():
    """The letter that stands for each byte in a vocabulary of bytes, as GPT-2 has it."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + place) for place, byte in enumerate(others)}


LETTERS = byte_letters()


def spell(text):
    return "".join(LETTERS[byte] for byte in text.encode())


def make(folder, script, *, template=CHATML, settings=None, added=()):
    """Writes a model that says `script`. `added` are tokens that belong to no word."""
    words = [*(LETTERS[byte] for byte in range(256)), "qz"]
    words += [spell(piece) for piece in script if piece not in SPECIALS]
    ids = {word: place for place, word in enumerate(dict.fromkeys(words))}
    vocabulary = dict(ids)
    tokens = []
    for piece in (*SPECIALS, *added):
        ids[piece] = len(ids)
        tokens.append({"id": ids[piece], "content": piece, "single_word": False, "lstrip": False,
                       "rstrip": False, "normalized": False, "special": piece in SPECIALS})
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
        "normalizer": None, "pre_tokenizer": bytes_, "post_processor": None,
        "decoder": bytes_ | {"add_prefix_space": True, "use_regex": True},
        "model": bpe(vocabulary)}
    chain = [ids[piece if piece in SPECIALS else spell(piece)] for piece in script]
    end = "<|im_end|>"
    write(folder, tokenizer, (len(ids), ids[spell("\n")], chain, ids[end]),
          {"eos_token": end, "bos_token": None, "chat_template": template} | (settings or {}))


def make_with_byte_fallback(folder, script, template):
    """The same with a vocabulary as SentencePiece makes them: `<0xBD>` is a byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *script, "|"]
    ids = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    tokens = [{"id": ids[piece], "content": piece, "single_word": False, "lstrip": False,
               "rstrip": False, "normalized": False, "special": True} for piece in pieces[:3]]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": bpe(ids) | {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}}
    chain = [ids[piece] for piece in script]
    write(folder, tokenizer, (len(ids), ids["|"], chain, ids["</s>"]),
          {"eos_token": "</s>", "bos_token": "<s>", "chat_template": template})


def bpe(vocabulary):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": vocabulary, "merges": []}


def write(folder, tokenizer, script, settings):
    size, start, chain, end = script
    width = -(-size // 64) * 64
    after = dict(zip([start, *chain], [*chain, end]))
    head = np.zeros((size, width), np.float32)
    for token in range(size):
        head[after.get(token, end), token] = 2
    folder.mkdir(exist_ok=True)
    save_tensors(folder, weights(size, width) | {"lm_head.weight": head})
    save_json(folder / "tokenizer.json", tokenizer)
    save_json(folder / "tokenizer_config.json",
              {name: it for name, it in settings.items() if it is not None})
    save_json(folder / "config.json", {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": width,
        "num_hidden_layers": 1, "num_attention_heads": width // 64, "num_key_value_heads": 1,
        "head_dim": 64, "intermediate_size": 64, "vocab_size": size, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "eos_token_id": end})


def weights(size, width):
    """Layers that change nothing, so that the head alone says what follows."""
    embedding = np.zeros((size, width), np.float32)
    embedding[np.arange(size), np.arange(size)] = 1
    layer = "model.layers.0."
    shapes = {"self_attn.q_proj": (width, width), "self_attn.k_proj": (64, width),
              "self_attn.v_proj": (64, width), "self_attn.o_proj": (width, width),
              "mlp.gate_proj": (64, width), "mlp.up_proj": (64, width),
              "mlp.down_proj": (width, 64)}
    ones = np.ones(width, np.float32)
    return ({f"{layer}{name}.weight": np.zeros(it, np.float32) for name, it in shapes.items()}
            | {f"{layer}{name}.weight": ones
               for name in ("input_layernorm", "post_attention_layernorm")}
            | {"model.embed_tokens.weight": embedding, "model.norm.weight": ones})


def save_json(path, it):
    path.write_text(json.dumps(it))


def save_tensors(folder, tensors):
    """Writes model.safetensors: the length of a head of JSON, it, and all numbers."""
    head, place = {}, 0
    for name, tensor in tensors.items():
        head[name] = {"dtype": "F32", "shape": list(tensor.shape),
                      "data_offsets": [place, place + tensor.nbytes]}
        place += tensor.nbytes
    words = json.dumps(head).encode()
    with open(folder / "model.safetensors", "wb") as to:
        to.write(struct.pack("<Q", len(words)) + words)
        for tensor in tensors.values():
            to.write(tensor.tobytes())


def load_tensors(folder):
    data = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    head, first = json.loads(data[8:8 + size]), 8 + size
    return {name: np.frombuffer(data[first + it["data_offsets"][0]:first + it["data_offsets"][1]],
                                np.float32).reshape(it["shape"])
            for name, it in head.items()}


def forget_rows(folder, count):
    """Takes the last rows of a model's matrices away: its tokeniser knows more tokens than it."""
    tensors = load_tensors(folder)
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] -= count
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = np.ascontiguousarray(tensors[name][:-count])
    save_tensors(folder, tensors)
    save_json(folder / "config.json", config)


def save_gguf(folder, path, pre):
    """Writes the model of a folder as one file of GGUF, whose tokeniser is of the kind `pre`."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"] | {
        it["content"]: it["id"] for it in tokenizer["added_tokens"]}
    words = sorted(ids, key=ids.get)
    special = {it["content"] for it in tokenizer["added_tokens"]}
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    head = {
        "general.architecture": "llama", "general.name": "tiny",
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"], "llama.block_count": 1,
        "llama.feed_forward_length": 64, "llama.attention.head_count_kv": 1,
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": 64,
        "llama.attention.key_length": 64, "llama.vocab_size": config["vocab_size"],
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [3 if word in special else 1 for word in words],
        "tokenizer.ggml.merges": ["q z"], "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": template}
    tensors = {gguf_name(name): it for name, it in load_tensors(folder).items()}
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(head))
    data += b"".join(text(name) + typed(it) for name, it in head.items())
    place = 0
    for name, tensor in tensors.items():
        sizes = tensor.shape[::-1]
        data += text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        data += struct.pack("<IQ", 0, place)
        place += -(-tensor.nbytes // 32) * 32
    blobs = [padded(it.tobytes()) for it in tensors.values()]
    path.write_bytes(padded(data) + b"".join(blobs))
    return path


def gguf_name(name):
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    name = name.removesuffix(".weight")
    layer = name.removeprefix("model.layers.0.")
    return ("" if layer == name else "blk.0.") + names[layer] + ".weight"


def padded(data):
    return data + bytes(-len(data) % 32)


def text(words):
    return struct.pack("<Q", len(words.encode())) + words.encode()


def typed(it):
    """A value of a file's head, after the number of its type."""
    if isinstance(it, bool):
        return struct.pack("<I?", 7, it)
    if isinstance(it, int):
        return struct.pack("<II", 4, it)
    if isinstance(it, float):
        return struct.pack("<If", 6, it)
    if isinstance(it, str):
        return struct.pack("<I", 8) + text(it)
    kind = 8 if isinstance(it[0], str) else 5
    items = (text(item) if kind == 8 else struct.pack("<i", item) for item in it)
    return struct.pack("<IIQ", 9, kind, len(it)) + b"".join(items)
