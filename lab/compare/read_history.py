#!/usr/bin/env python3
"""Reads a validator's replica/history without souk, as another program would: checks each
cosignature of its certified head, and computes the root from its tiles.

    read_history.py FOLDER MARKET_JSON

Needs `cryptography` from the Python registry. Written from C2SP's pages and RFC 6962 alone."""

import base64
import hashlib
import json
import os
import struct
import sys

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def digest(content):
    return hashlib.sha256(content).digest()


def compute_root(hashes):
    if len(hashes) < 2:
        return hashes[0] if hashes else digest(b"")
    split = 1 << (len(hashes) - 1).bit_length() - 1
    return digest(b"\x01" + compute_root(hashes[:split]) + compute_root(hashes[split:]))


def read_tile(folder, index, width):
    name = "".join(f"x{index // 1000**power % 1000:03}/" for power in (2, 1) if index >= 1000**power)
    path = f"{folder}/tile/0/{name}{index % 1000:03}"
    path = path if os.path.exists(path) else f"{path}.p/{width}"
    with open(path, "rb") as file:
        content = file.read()
    return [content[at : at + 32] for at in range(0, 32 * width, 32)]


def main():
    folder, market = sys.argv[1:]
    with open(market, encoding="utf8") as file:
        founders = json.load(file)["genesis"]["validators"]
    keys = {str(founder["raft_id"]): bytes.fromhex(founder["account"]) for founder in founders}
    with open(f"{folder}/checkpoint", encoding="utf8") as file:
        body, signatures = file.read().split("\n\n", 1)
    body += "\n"
    size, root = int(body.split("\n")[1]), base64.b64decode(body.split("\n")[2])
    for line in signatures.strip().split("\n"):
        _, name, blob = line.split(" ")
        blob = base64.b64decode(blob)
        key = keys[name.split("/")[-1]]
        assert blob[:4] == digest(name.encode() + b"\n\x04" + key)[:4], name
        (time,) = struct.unpack(">Q", blob[4:12])
        signed = f"cosignature/v1\ntime {time}\n{body}".encode()
        Ed25519PublicKey.from_public_bytes(key).verify(blob[12:], signed)
        print(f"cosigned by {name.split('/')[-1]} at {time}")
    leaves = []
    for index in range((size + 255) // 256):
        leaves += read_tile(folder, index, min(256, size - 256 * index))
    assert compute_root(leaves) == root, "the tiles have another root"
    print(f"{size} leaves have the signed root")


if __name__ == "__main__":
    main()
