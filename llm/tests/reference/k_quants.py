"""Blocks of GGUF's types that souk puts into 8 bits, and what they stand for.

    python3 k_quants.py           compute everything anew and compare with what lies here
    python3 k_quants.py --write   write it

Bytes are drawn from a seed, but for the scales of 16 bits, which are what models have. What they
stand for is what the package `gguf` says, as 32-bit floats. Both are written as hexadecimal bytes.
"""

import json
import pathlib
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

FILE = pathlib.Path(__file__).resolve().parent / "k_quants.json"
BLOCKS = 2
# Where a block of each type has its scales of 16 bits.
SCALES = {
    "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0], "IQ4_XS": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}


def drawn(random, name, places):
    kind = GGMLQuantizationType[name]
    _, size = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (BLOCKS, size), np.uint8)
    for place in places:
        scales = random.uniform(-0.1, 0.1, BLOCKS).astype(np.float16)
        blocks[:, place:place + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
    numbers = quants.dequantize(blocks, kind).astype("<f4")
    return {"number": int(kind), "blocks": blocks.tobytes().hex(),
            "numbers": numbers.tobytes().hex()}


def main():
    random = np.random.default_rng(11)
    made = {name: drawn(random, name, places) for name, places in SCALES.items()}
    text = json.dumps(made, indent=0) + "\n"
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(text)
    elif FILE.read_text() != text:
        sys.exit("k_quants.json is not what the package gguf gives")


main()
