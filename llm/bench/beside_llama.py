"""How fast souk and llama.cpp go through the same models on this machine, in turns.

    pip install llama-cpp-python numpy        # builds llama.cpp for the machine that it is built on
    cargo build --release -p souk-llm --example decode
    python3 beside_llama.py [--threads 2] [--rounds 3] [--prompts 128,512] [--tokens 64] FILE.gguf ...

Each round runs both, one after the other, and the medians of rounds are told: so what else the
machine does falls on both. llama.cpp is called through its own functions, without sampling. The
logits after each prompt must agree within 2 hundredths of the largest.
"""

import argparse
import ctypes
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import llama_cpp
import numpy as np

TARGET = pathlib.Path(__file__).resolve().parents[2] / "target"
APART = 2e-2
# What llama.cpp takes at once of a prompt: its own default.
BATCH = 512


def prompt_of(length):
    """The tokens that the example takes as well."""
    return [at * 31 % 200 for at in range(length)]


def souk(options, path, prompt):
    """Tokens a second of the prompt, and after it at the median and the best; the logits."""
    with tempfile.NamedTemporaryFile() as logits:
        counts = [options.threads, prompt, options.tokens, 0]
        command = [options.example, path, *map(str, counts), logits.name]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        made = np.fromfile(logits.name, np.float32)
    prefill = re.search(r"prefill of \d+: ([\d.]+)", told)
    decode = re.search(r"decode after \d+: ([\d.]+) .* median, ([\d.]+)", told)
    return [float(it) for it in (prefill[1], decode[1], decode[2])], made


class Llama:
    """A model as llama.cpp has it."""

    def __init__(self, options, path):
        given = llama_cpp.llama_model_default_params()
        given.use_mmap = False
        self.model = llama_cpp.llama_load_model_from_file(path.encode(), given)
        self.options = options
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def push(self, context, tokens):
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        failed = llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens)))
        assert failed == 0, failed
        return llama_cpp.llama_get_logits_ith(context, -1)

    def run(self, prompt):
        given = llama_cpp.llama_context_default_params()
        given.n_ctx = -(-(prompt + self.options.tokens) // 256) * 256
        given.n_batch = given.n_ubatch = BATCH
        given.n_threads = given.n_threads_batch = self.options.threads
        given.no_perf = True
        context = llama_cpp.llama_new_context_with_model(self.model, given)
        tokens, start = prompt_of(prompt), time.perf_counter()
        for first in range(0, prompt, BATCH):
            logits = self.push(context, tokens[first:first + BATCH])
        prefill = prompt / (time.perf_counter() - start)
        logits = np.ctypeslib.as_array(logits, (self.vocabulary,)).copy()
        times = []
        for at in range(self.options.tokens):
            start = time.perf_counter()
            self.push(context, [at % 200])
            times.append(time.perf_counter() - start)
        llama_cpp.llama_free(context)
        return [prefill, 1 / statistics.median(times), 1 / min(times)], logits


def compare(options, path):
    llama = Llama(options, path)
    for prompt in options.prompts:
        rounds = []
        for _ in range(options.rounds):
            (own, here), (other, there) = souk(options, path, prompt), llama.run(prompt)
            apart = np.abs(here - there).max() / np.abs(there).max()
            assert apart <= options.apart, f"logits are {apart} apart"
            rounds.append((own, other))
        own, other = (np.median([it[side] for it in rounds], axis=0) for side in (0, 1))
        ratios = np.median([np.divide(*it) for it in rounds], axis=0)
        print(f"{pathlib.Path(path).stem} after {prompt}, logits {apart:.4f} apart")
        names = ("prefill", "decode, median", "decode, best")
        for name, one, two, ratio in zip(names, own, other, ratios):
            print(f"  {name:15} {one:8.1f} tokens/s, llama.cpp {two:8.1f}, ratio {ratio:.2f}")
    llama_cpp.llama_free_model(llama.model)


def main():
    listed = lambda text: [int(it) for it in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=listed, default=[128, 512])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--apart", type=float, default=APART,
                        help="how far logits may be apart, of the largest")
    parser.add_argument("--example", default=str(TARGET / "release/examples/decode"))
    options = parser.parse_args()
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    for path in options.files:
        compare(options, path)


main()
