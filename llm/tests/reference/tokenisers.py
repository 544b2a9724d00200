"""Tokenisers trained on this repository's documents, and what Python's `tokenizers` makes with them.

    python3 tokenisers.py           compute every digest anew and compare with what lies here
    python3 tokenisers.py --write   train, and write vocabularies and digests

Ten thousand strings are put together from pieces by a hash, so that the tests make the same ones.
It needs `tokenizers` and nothing else.
"""

import json
import pathlib
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers

HERE = pathlib.Path(__file__).resolve().parent
DOCUMENTS = sorted((HERE.parents[2] / "docs").glob("*.md"))
STRINGS = 10_000
WORDS = 600
MASK = 2**64 - 1

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PIECES = [
    "the", " market", "provider", "Lease", "'s", "'LL", " ", "  ", "\n", "\r\n", "\t", "1", "23",
    "4567", "3.14", "e", "é", "e\u0301", "ñ", "ß", "你好", "世界", "日本", "한국", "مرحبا", "שלום",
    "🙂", "👩\u200d🚀", "\u00a0", "\u2003", "\u200b", ",", ".", "!?", "...", "->", "::", "{}", "<s>",
    "</s>", "_", "CamelCase", "snake_case", "0x7f", "%", "—", "\u2581", "\x00", "\x7f",
]


def mixed(word):
    """SplitMix64's finaliser."""
    word = (word + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def string(number):
    count = mixed(number) % 12
    return "".join(PIECES[mixed(number * 64 + at + 1) % len(PIECES)] for at in range(count))


def digest(tokenizer):
    """FNV-1a over the ids of all strings, each string ended by a number that no id is."""
    seed = 0xCBF29CE484222325
    for number in range(STRINGS):
        for token in [*tokenizer.encode(string(number)).ids, 0xFFFFFFFF]:
            for byte in token.to_bytes(4, "little"):
                seed = ((seed ^ byte) * 0x100000001B3) & MASK
    return f"{seed:016x}"


def byte_level():
    """Bytes merged, cut as Llama 3 cuts."""
    made = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA_3), behavior="isolated")
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_alone])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet,
        show_progress=False,
    )
    made.train([str(path) for path in DOCUMENTS], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    return made


def pieces():
    """Pieces with a mark for a space, and bytes where there is none, as Llama 2 has them."""
    made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])
    byte_words = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS + 256, special_tokens=["<unk>", "<s>", "</s>", *byte_words],
        show_progress=False, limit_alphabet=80, max_token_length=12,
    )
    made.train([str(path) for path in DOCUMENTS], trainer)
    whole = json.loads(made.to_str())
    whole["added_tokens"] = whole["added_tokens"][:3]
    made = Tokenizer.from_str(json.dumps(whole))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return made


def unigram():
    """Pieces by their probabilities."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=WORDS, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>",
        show_progress=False,
    )
    made.train([str(path) for path in DOCUMENTS], trainer)
    return made


def main():
    for make in (byte_level, pieces, unigram):
        path = HERE / f"tokeniser-{make.__name__.replace('_', '-')}.json"
        if "--write" in sys.argv:
            made = make()
            kept = {"tokenizer": json.loads(made.to_str()), "digest": digest(made)}
            path.write_text(json.dumps(kept, ensure_ascii=False) + "\n")
            continue
        kept = json.loads(path.read_text())
        same = digest(Tokenizer.from_str(json.dumps(kept["tokenizer"]))) == kept["digest"]
        print(f"{path.stem}: {'as kept' if same else 'DIFFERS'}")
        if not same:
            sys.exit(1)


main()
