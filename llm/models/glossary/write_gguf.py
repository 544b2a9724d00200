"""Write the glossary model as one GGUF file, for inference engines such as llama.cpp's.

    python3 -m pip install gguf
    python3 llm/models/glossary/write_gguf.py glossary.gguf
    python3 llm/models/glossary/write_gguf.py glossary-q4_0.gguf --quantize

The file has the model's own numbers (f16), its tokeniser and its chat template, so that an engine
gives the texts that souk's decoder gives. With `--quantize` the matrices have 4 bits (q4_0) and the
table of tokens has 8 (q8_0): a cheaper version of the model, which an audit should tell from it.
"""
import argparse
import json
import math
import pathlib
import struct

import gguf
import numpy

HERE = pathlib.Path(__file__).resolve().parent
ARCHITECTURE = gguf.MODEL_ARCH.LLAMA
# The split of texts that `ByteLevel` with its regular expression means in tokenizer.json.
SPLIT = "gpt-2"


def read_tensors(path):
    """Return the numbers of a safetensors file, by the names that Hugging Face's tools give."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header, begin = json.loads(data[8:8 + size]), 8 + size
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            numbers = numpy.frombuffer(
                data, numpy.float16, math.prod(entry["shape"]), begin + entry["data_offsets"][0])
            tensors[name] = numbers.reshape(entry["shape"])
    return tensors


def order_rows(rows, heads):
    """Put the two numbers of each rotated pair next to each other, as llama.cpp wants them."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def choose_type(name, numbers, is_quantized):
    """Return how the file stores a tensor."""
    if numbers.ndim == 1:
        return gguf.GGMLQuantizationType.F32
    if not is_quantized:
        return gguf.GGMLQuantizationType.F16
    if name.startswith("token_embd"):
        return gguf.GGMLQuantizationType.Q8_0
    return gguf.GGMLQuantizationType.Q4_0


def write_settings(writer, config):
    """Write what an engine must know to compute the model."""
    writer.add_name("glossary")
    writer.add_license("MIT OR Apache-2.0")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def write_tokenizer(writer, end):
    """Write the tokens, how they merge, and the chat template. `end` ends an answer."""
    tokenizer = json.loads((HERE / "tokenizer.json").read_text())
    ids = dict(tokenizer["model"]["vocab"])
    marks = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ids.update(marks)
    words = sorted(ids, key=ids.get)
    assert [ids[word] for word in words] == list(range(len(words))), "each id has one word"
    kinds = [gguf.TokenType.CONTROL if word in marks else gguf.TokenType.NORMAL for word in words]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(SPLIT)
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    # The model has no mark that begins a text. Engines take another id if the file states none.
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template((HERE / "chat_template.jinja").read_text())


def write_weights(writer, config, is_quantized):
    """Write all tensors by llama.cpp's names, with its order of rows in queries and keys."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    names = gguf.get_tensor_name_map(ARCHITECTURE, config["num_hidden_layers"])
    for name, numbers in read_tensors(HERE / "model.safetensors").items():
        for part, count in heads.items():
            if f".{part}." in name:
                numbers = order_rows(numbers, count)
        known = names.get_name(name, try_suffixes=(".weight",))
        kind = choose_type(known, numbers, is_quantized)
        data = gguf.quants.quantize(numbers.astype(numpy.float32), kind)
        writer.add_tensor(known, data, raw_dtype=kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--quantize", action="store_true")
    given = parser.parse_args()
    config = json.loads((HERE / "config.json").read_text())
    writer = gguf.GGUFWriter(given.file, gguf.MODEL_ARCH_NAMES[ARCHITECTURE])
    write_settings(writer, config)
    write_tokenizer(writer, config["eos_token_id"])
    write_weights(writer, config, given.quantize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
