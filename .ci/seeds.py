"""Writes what a fuzz target begins with: small files of the kind that it reads.

    python3 -B .ci/seeds.py TARGET FOLDER

From nothing, chance finds no header. A target that has no such files begins with nothing."""

import json
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "llm/tests/reference"

SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    {"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"enum": [1, "b", None]}}},
    {"type": "integer", "minimum": -3, "maximum": 99, "multipleOf": 3},
    {"type": "string", "pattern": "^[a-f]{2,5}$", "maxLength": 9},
    {"allOf": [{"type": "object"}, {"properties": {"x": {"format": "date-time"}}}]},
    {"anyOf": [{"type": "null"}, {"type": "number"}], "title": "t"},
    {"type": "object", "patternProperties": {"^x": {"type": "boolean"}}},
    {"type": "object", "additionalProperties": {"oneOf": [{"const": 1}, {"const": "c"}]}},
]


def files(folder, ending):
    return [path.read_bytes() for path in sorted((ROOT / folder).rglob(f"*{ending}"))]


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def gguf():
    """A file of one tensor and a few facts, of each kind one."""
    facts = [
        ("general.architecture", 8, text("llama")),
        ("llama.block_count", 4, struct.pack("<I", 1)),
        ("llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
        ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
        ("tokenizer.ggml.scores", 9, struct.pack("<IQf", 6, 1, 0.5)),
    ]
    for kind, dims in [(0, (4, 2)), (2, (32, 2)), (8, (32, 2)), (12, (256, 1))]:
        head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(facts))
        body = b"".join(text(name) + struct.pack("<I", of) + value for name, of, value in facts)
        tensor = text("token_embd.weight") + struct.pack("<IQQIQ", 2, *dims, kind, 0)
        made = head + body + tensor
        yield made + bytes(-len(made) % 32) + bytes(144)


def safetensors():
    head = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"k": "v"}}
    data = json.dumps(head).encode()
    yield struct.pack("<Q", len(data)) + data + bytes(8)


def npy(kind, shape, data):
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


def tokenizers():
    for path in sorted(REFERENCE.glob("tokeniser-*.json")):
        yield json.dumps(json.loads(path.read_text())["tokenizer"]).encode()


def templates():
    for family in json.loads((REFERENCE / "templates.json").read_text())["families"]:
        yield family["template"].encode()


def grammars():
    for at in range(8):
        yield bytes([at]) + bytes(range(1, 60, 7))


SEEDS = {
    "import": lambda: files("testnet/models", ".onnx") + files("devices/kernels", ".onnx"),
    "safetensors": safetensors,
    "npy": lambda: [npy("<f4", "(2,)", bytes(8)), npy("<U3", "(1,)", "abc".encode("utf-32-le"))],
    "gguf": gguf,
    "tokenizer": tokenizers,
    "template": templates,
    "schema": lambda: [json.dumps(schema).encode() for schema in SCHEMAS],
    "grammar": grammars,
}


def main():
    target, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for at, seed in enumerate(SEEDS.get(target, list)()):
        (folder / f"seed-{at:03}").write_bytes(seed)


if __name__ == "__main__":
    main()
