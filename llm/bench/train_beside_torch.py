"""Measure a training step of an adapter by PyTorch and PEFT, as `llm/examples/train.rs` does.

    python3 train_beside_torch.py MODEL [ROWS [LENGTH [RANK [STEPS [THREADS]]]]]
"""
import sys
import time

import torch
import torch.nn.functional as functional
import transformers
from peft import LoraConfig, get_peft_model

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main():
    numbers = [int(it) for it in sys.argv[2:]] + [4, 128, 16, 5, 2][len(sys.argv) - 2:]
    rows, length, rank, steps, threads = numbers
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    settings = LoraConfig(r=rank, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = get_peft_model(model, settings)
    optimizer = torch.optim.AdamW([it for it in model.parameters() if it.requires_grad], lr=2e-4)
    ids = torch.arange(rows * length + 1) * 7 % model.config.vocab_size
    tokens, labels = ids[:-1].view(rows, length), ids[1:].view(rows, length)
    for step in range(steps):
        began = time.perf_counter()
        logits = model(input_ids=tokens).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds = time.perf_counter() - began
        pace = rows * length / seconds
        print(f"step {step}: loss {loss:.5f}, {seconds * 1e3:.1f} ms, {pace:.0f} tokens a second")


if __name__ == "__main__":
    main()
