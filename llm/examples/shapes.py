"""Write a GGUF file of random weights in the shape of a model that people run.

    python3 shapes.py 135m|0.5b|1b q8_0|q4_0|f16|f32 FILE

What it says is noise; what it takes is what the model takes, in any engine that reads GGUF. The
numbers come from a seed. numpy is all it needs.
"""

import struct
import sys

import numpy as np

BLOCK = 32
# hidden, layers, heads, key heads, feed-forward, vocabulary, base of the angles
SHAPES = {
    "135m": (576, 30, 9, 3, 1536, 49152, 10000.0),
    "0.5b": (896, 24, 14, 2, 4864, 151936, 1000000.0),
    "1b": (2048, 16, 32, 8, 8192, 128256, 500000.0),
}
KINDS = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
POSITIONS = 8192


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def metadata(hidden, layers, heads, groups, wide, vocabulary, base):
    numbers = {
        "block_count": layers, "context_length": POSITIONS, "embedding_length": hidden,
        "feed_forward_length": wide, "attention.head_count": heads,
        "attention.head_count_kv": groups, "rope.dimension_count": hidden // heads,
        "vocab_size": vocabulary,
    }
    entries = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    entries += [text(f"llama.{key}") + struct.pack("<II", 4, it) for key, it in numbers.items()]
    for key, value in (("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", base)):
        entries.append(text(f"llama.{key}") + struct.pack("<If", 6, value))
    for key, value in (("model", "gpt2"), ("pre", "smollm")):
        entries.append(text(f"tokenizer.ggml.{key}") + struct.pack("<I", 8) + text(value))
    tokens = [chr(it) for it in bytes_as_characters()]
    tokens.append("ab")
    tokens += [f"<{it}>" for it in range(len(tokens), vocabulary)]
    listed = b"".join(text(token) for token in tokens)
    kinds = b"".join(struct.pack("<i", 1) for _ in tokens)
    array = struct.pack("<IIQ", 9, 8, vocabulary) + listed
    entries.append(text("tokenizer.ggml.tokens") + array)
    entries.append(text("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, vocabulary) + kinds)
    entries.append(text("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 1) + text("a b"))
    entries.append(text("tokenizer.ggml.eos_token_id") + struct.pack("<II", 4, 0))
    return entries


def bytes_as_characters():
    """The 256 characters that byte-level vocabularies write bytes with."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return shown + [256 + at for at in range(256 - len(shown))]


def tensors(hidden, layers, heads, groups, wide, vocabulary, _):
    """Names and sizes, the innermost last; those of norms have one."""
    width = hidden // heads
    yield "token_embd.weight", (vocabulary, hidden)
    yield "output_norm.weight", (hidden,)
    for layer in range(layers):
        name = f"blk.{layer}."
        yield name + "attn_norm.weight", (hidden,)
        yield name + "attn_q.weight", (hidden, hidden)
        yield name + "attn_k.weight", (groups * width, hidden)
        yield name + "attn_v.weight", (groups * width, hidden)
        yield name + "attn_output.weight", (hidden, hidden)
        yield name + "ffn_norm.weight", (hidden,)
        yield name + "ffn_gate.weight", (wide, hidden)
        yield name + "ffn_up.weight", (wide, hidden)
        yield name + "ffn_down.weight", (hidden, wide)


def values(random, sizes, kind):
    count = int(np.prod(sizes))
    if len(sizes) == 1:
        return np.ones(count, np.float32).tobytes()
    if kind in ("f32", "f16"):
        numbers = random.standard_normal(count, np.float32) * sizes[-1] ** -0.5
        return numbers.astype(np.float16 if kind == "f16" else np.float32).tobytes()
    blocks = count // BLOCK
    size = BLOCK if kind == "q8_0" else BLOCK // 2
    largest = 127 if kind == "q8_0" else 8
    block = np.empty((blocks, 2 + size), np.uint8)
    scale = np.float16(3 * sizes[-1] ** -0.5 / largest)
    block[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    if kind == "q8_0":
        block[:, 2:] = random.integers(-127, 128, (blocks, size), np.int8).view(np.uint8)
    else:
        block[:, 2:] = random.integers(0, 256, (blocks, size), np.uint8)
    return block.tobytes()


def main():
    shape, kind, path = SHAPES[sys.argv[1]], sys.argv[2], sys.argv[3]
    random = np.random.default_rng(7)
    entries, listed = metadata(*shape), list(tensors(*shape))
    places, at = [], 0
    for name, sizes in listed:
        own = "f32" if len(sizes) == 1 else kind
        places.append(text(name) + struct.pack("<I", len(sizes))
                      + b"".join(struct.pack("<Q", size) for size in reversed(sizes))
                      + struct.pack("<IQ", KINDS[own], at))
        elements = int(np.prod(sizes))
        length = {"f32": elements * 4, "f16": elements * 2, "q8_0": elements // BLOCK * 34,
                  "q4_0": elements // BLOCK * 18}[own]
        at += -(-length // 32) * 32
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(entries)))
        file.write(b"".join(entries) + b"".join(places))
        file.write(bytes(-file.tell() % 32))
        for _, sizes in listed:
            file.write(values(random, sizes, kind))
            file.write(bytes(-file.tell() % 32))


main()
