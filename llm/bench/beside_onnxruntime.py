"""How fast souk and ONNX Runtime go through the same ONNX decoder on this machine, in turns.

    pip install onnxruntime numpy
    cargo build --release -p souk-llm --example decode
    souk model import MODEL FOLDER --context 1024
    python3 beside_onnxruntime.py [--threads 2] [--rounds 3] [--prompts 128,512] FOLDER ...

As `beside_llama.py` has it: each round runs both, the medians of rounds are told. ONNX Runtime
keeps the caches where they are from step to step. The logits after each prompt must agree within a
ten-thousandth of the largest, or 2 hundredths where weights are integers: souk makes such rows
bytes too.
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnxruntime

TARGET = pathlib.Path(__file__).resolve().parents[2] / "target"
LOGITS = "logits"


def souk(options, folder, prompt):
    """Tokens a second of the prompt, and after it at the median; the logits."""
    with tempfile.NamedTemporaryFile() as logits:
        counts = [options.threads, prompt, options.tokens, 0]
        command = [options.example, folder, *map(str, counts), logits.name]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        made = np.fromfile(logits.name, np.float32)
    prefill = re.search(r"prefill of \d+: ([\d.]+)", told)
    decode = re.search(r"decode after \d+: ([\d.]+)", told)
    return [float(prefill[1]), float(decode[1])], made


class Decoder:
    """A decoder as ONNX Runtime has it."""

    def __init__(self, options, folder):
        given = onnxruntime.SessionOptions()
        given.intra_op_num_threads, given.inter_op_num_threads = options.threads, 1
        given.log_severity_level = 3
        path = str(pathlib.Path(folder) / "model.onnx")
        self.session = onnxruntime.InferenceSession(path, given, ["CPUExecutionProvider"])
        self.options = options
        states = [it for it in self.session.get_inputs() if it.name.startswith("past_")]
        made = [it.name for it in self.session.get_outputs() if it.name != LOGITS]
        self.states = list(zip((it.name for it in states), made, strict=True))
        self.heads, self.width = states[0].shape[1], states[0].shape[3]

    def empty(self, room):
        sizes = (1, self.heads, room, self.width)
        value = lambda: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(sizes, np.float32))
        return {past: value() for past, _ in self.states}

    def push(self, caches, tokens, after):
        """The logits after tokens, whose rows are written to the caches."""
        count = len(tokens)
        binding = self.session.io_binding()
        for name, values in (
            ("input_ids", [tokens]), ("position_ids", [list(range(after, after + count))]),
            ("write_indices", [after]), ("cache_length", [after + count]),
            ("logit_rows", [count - 1]),
        ):
            binding.bind_cpu_input(name, np.array(values, np.int64))
        binding.bind_output(LOGITS, "cpu")
        for past, present in self.states:
            binding.bind_ortvalue_input(past, caches[past])
            binding.bind_output(present, "cpu")
        self.session.run_with_iobinding(binding)
        logits, *kept = binding.get_outputs()
        caches.update(zip((past for past, _ in self.states), kept, strict=True))
        return logits.numpy().reshape(-1)

    def run(self, prompt):
        caches = self.empty(prompt + self.options.tokens)
        tokens, start = [at * 31 % 200 for at in range(prompt)], time.perf_counter()
        logits = self.push(caches, tokens, 0)
        prefill, times = prompt / (time.perf_counter() - start), []
        for at in range(self.options.tokens):
            start = time.perf_counter()
            self.push(caches, [at % 200], prompt + at)
            times.append(time.perf_counter() - start)
        return [prefill, 1 / statistics.median(times)], logits


def compare(options, folder):
    decoder = Decoder(options, folder)
    for prompt in options.prompts:
        rounds = []
        for _ in range(options.rounds):
            (own, here), (other, there) = souk(options, folder, prompt), decoder.run(prompt)
            apart = np.abs(here - there).max() / np.abs(there).max()
            assert apart <= options.apart, f"logits are {apart} apart"
            rounds.append((own, other))
        own, other = (np.median([it[side] for it in rounds], axis=0) for side in (0, 1))
        ratios = np.median([np.divide(*it) for it in rounds], axis=0)
        print(f"{pathlib.Path(folder).name} after {prompt}, logits {apart:.5f} apart")
        for name, one, two, ratio in zip(("prefill", "decode"), own, other, ratios):
            print(f"  {name:8} {one:8.1f} tokens/s, ONNX Runtime {two:8.1f}, ratio {ratio:.2f}")


def main():
    listed = lambda text: [int(it) for it in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=listed, default=[128, 512])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--apart", type=float, default=1e-4,
                        help="how far logits may be apart, of the largest")
    parser.add_argument("--example", default=str(TARGET / "release/examples/decode"))
    options = parser.parse_args()
    print(f"ONNX Runtime {onnxruntime.__version__}, {options.threads} threads")
    for folder in options.folders:
        compare(options, folder)


main()
