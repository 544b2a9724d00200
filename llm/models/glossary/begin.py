"""Begin the training of the glossary model by souk itself: write random weights and the examples.

    python3 llm/models/glossary/begin.py first
    souk testnet up --detach
    souk train first first/data.jsonl --full --in-order --batch 6 --epochs 9 --lr 4e-3 --warmup 50 \
        --decay cosine --clip 1 --weight-decay 0.05 --keep 100 --budget 100 -o glossary
    python3 llm/models/glossary/judge.py souk glossary

`first` has the form of the model's own folder, and its tokeniser. `first/data.jsonl` has two rows of
dialogues for each row of the documents. Needs only Python.
"""
import json
import math
import pathlib
import random
import shutil
import struct
import sys

from texts import dialogues, documents

HERE = pathlib.Path(__file__).resolve().parent
# Bytes of text in a row.
PAGE_BYTES, TALK_BYTES = 420, 520
SPREAD = 0.04


def shapes(config):
    """The sizes of the weights, by the names that Hugging Face's tools give them."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    yield "model.embed_tokens.weight", (config["vocab_size"], width)
    yield "model.norm.weight", (width,)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield f"{at}input_layernorm.weight", (width,)
        yield f"{at}post_attention_layernorm.weight", (width,)
        yield f"{at}self_attn.q_proj.weight", (width, width)
        yield f"{at}self_attn.k_proj.weight", (keys, width)
        yield f"{at}self_attn.v_proj.weight", (keys, width)
        yield f"{at}self_attn.o_proj.weight", (width, width)
        yield f"{at}mlp.gate_proj.weight", (inner, width)
        yield f"{at}mlp.up_proj.weight", (inner, width)
        yield f"{at}mlp.down_proj.weight", (width, inner)


def write_weights(path, config, draw):
    """Write a safetensors file of 16-bit floats: norms are 1, all else is random."""
    header, parts, at = {}, [], 0
    for name, dims in sorted(shapes(config)):
        count = math.prod(dims)
        is_norm = len(dims) == 1
        values = (1.0 if is_norm else draw.gauss(0, SPREAD) for _ in range(count))
        data = struct.pack(f"<{count}e", *values)
        header[name] = {"dtype": "F16", "shape": dims, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(parts))


def cut(text, most):
    """Parts of a text of at most so many bytes, cut at the ends of words."""
    part = ""
    for word in text.split(" "):
        if part and len(f"{part} {word}".encode()) > most:
            yield part
            part = word
        else:
            part = f"{part} {word}" if part else word
    yield part


def talks(draw):
    """Rows of dialogues, one behind the other, in an order of their own."""
    row = ""
    asked = list(dialogues())
    draw.shuffle(asked)
    for dialogue in asked:
        if row and len((row + dialogue).encode()) > TALK_BYTES:
            yield row
            row = ""
        row += dialogue
    yield row


def rows(draw):
    """All rows: after two of dialogues comes one of the documents, until no dialogue is left."""
    pages = [part for page in documents() for part in cut(page, PAGE_BYTES)]
    draw.shuffle(pages)
    for at, row in enumerate(row for _ in range(4) for row in talks(draw)):
        yield row.removesuffix("<|end|>")
        if at % 2 == 1:
            yield pages[at // 2 % len(pages)]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder, draw = pathlib.Path(sys.argv[1]), random.Random(0)
    folder.mkdir(parents=True)
    for name in ["config.json", "tokenizer.json", "chat_template.jinja", "README.md"]:
        shutil.copy(HERE / name, folder)
    config = json.loads((folder / "config.json").read_text())
    write_weights(folder / "model.safetensors", config, draw)
    lines = [json.dumps({"text": row}, ensure_ascii=False) for row in rows(draw)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{folder}: random weights and {len(lines)} rows of examples")


if __name__ == "__main__":
    main()
