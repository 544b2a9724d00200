"""Losses of training steps, and logits with an adapter, by PyTorch, transformers and PEFT.

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 transformers==5.24.0 peft==0.21.2 numpy==2.4.6
    venv/bin/python training.py           compute every case anew and compare with what lies here
    venv/bin/python training.py --write   write the cases
    venv/bin/python training.py MODEL ADAPTER PROMPT
                                          load an adapter of souk with PEFT, answer, print logits

Weights and prompts come from a hash, as in `decoder.py`. The factors A and B of the adapter do too:
B is zero before training, and not in the case of logits.
"""
import json
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as functional
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

from decoder import CASES, TINY, mixed, seed_of, weight

HERE = pathlib.Path(__file__).resolve().parent
FAMILIES = ["llama", "mistral-window", "qwen2", "qwen3"]
RANK, ALPHA, STEPS, BATCH, RATE = 4, 8, 20, 2, 2e-3
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Lengths of the examples, and of their parts that do not count.
LENGTHS, PROMPTS = [12, 7, 9, 12], [5, 1, 3, 8]
IGNORED = -100


def words(name, count, vocabulary):
    return [int(it) for it in mixed(seed_of(name) + np.arange(count, dtype=np.uint64)) % vocabulary]


def build(config):
    """The model with numbers of a hash."""
    settings = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(
        config["model_type"], attn_implementation="eager", **settings
    )
    model = transformers.AutoModelForCausalLM.from_config(settings)
    fill(model, lambda name: True)
    return model.eval()


def fill(model, is_wanted):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_wanted(name):
                numbers = weight(name.replace(".default", ""), *parameter.shape)
                parameter.copy_(torch.from_numpy(numbers))


def adapted(model):
    settings = LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, settings)
    fill(model, lambda name: "lora_A" in name)
    return model


def rows(vocabulary):
    """Tokens, filled up with 0, and at each the next one that counts."""
    length = max(LENGTHS) - 1
    tokens = np.zeros((len(LENGTHS), length), dtype=np.int64)
    labels = np.full((len(LENGTHS), length), IGNORED, dtype=np.int64)
    for row, (count, prompt) in enumerate(zip(LENGTHS, PROMPTS)):
        example = words(f"example {row}", count, vocabulary)
        tokens[row, : count - 1] = example[:-1]
        labels[row, prompt - 1 : count - 1] = example[prompt:]
    return tokens, labels


def losses(config):
    model = adapted(build(config))
    tokens, labels = rows(config["vocab_size"])
    trained = [it for it in model.parameters() if it.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE)
    found = []
    for step in range(STEPS):
        chosen = [(step * BATCH + at) % len(tokens) for at in range(BATCH)]
        batch, targets = torch.from_numpy(tokens[chosen]), torch.from_numpy(labels[chosen])
        logits = model(input_ids=batch).logits
        total = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        loss = total / (targets != IGNORED).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def logits(config):
    model = adapted(build(config))
    fill(model, lambda name: "lora_B" in name)
    prompt = torch.tensor([words("adapted", 9, config["vocab_size"])])
    with torch.no_grad():
        return [float(it) for it in model(input_ids=prompt).logits[0, -1]]


def case(name):
    config = TINY | CASES[name]
    tokens, labels = rows(config["vocab_size"])
    return {
        "config": config, "rank": RANK, "alpha": ALPHA, "targets": TARGETS, "batch": BATCH,
        "learning_rate": RATE, "tokens": tokens.tolist(), "labels": labels.tolist(),
        "losses": losses(config), "prompt": words("adapted", 9, config["vocab_size"]),
        "logits": logits(config),
    }


def answer(folder, adapter, prompt):
    """Answer a prompt of the bundled model's form with the adapter, by PEFT."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
    tokens = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        print([round(float(it), 5) for it in model(input_ids=tokens).logits[0, -1][:8]])
        made = model.generate(input_ids=tokens, max_new_tokens=64, do_sample=False)
    print(tokenizer.decode(made[0]))


def main():
    if len(sys.argv) == 4:
        return answer(*sys.argv[1:])
    for name in FAMILIES:
        path, found = HERE / f"training-{name}.json", case(name)
        if "--write" in sys.argv:
            path.write_text(json.dumps(found) + "\n")
            continue
        known = json.loads(path.read_text())
        for key in ("losses", "logits"):
            np.testing.assert_allclose(found[key], known[key], rtol=1e-5, atol=1e-5, err_msg=name)


if __name__ == "__main__":
    main()
