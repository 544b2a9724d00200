"""From a trained PyTorch module to a result.

    pip install torch onnx onnxscript && python examples/pytorch.py

The batch has any length, as `dynamic_shapes` says.
"""

import torch

import souk

x = torch.linspace(-3, 3, 600)[:, None]
module = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimiser = torch.optim.Adam(module.parameters(), 0.01)
for _ in range(500):
    optimiser.zero_grad()
    torch.nn.functional.mse_loss(module(x), x.sin()).backward()
    optimiser.step()
batch = torch.export.Dim("batch")
program = torch.onnx.export(module, (x,), input_names=["x"], dynamic_shapes=({0: batch},))
with souk.testnet() as net:
    answer = net.run(program.model_proto, {"x": x}, budget=1)
(y,) = answer.values()
print(f"at most {abs(y - x.sin().numpy()).max():.3f} off, for {answer.cost}")
assert torch.allclose(torch.from_numpy(y), module(x), atol=1e-5), "as the module itself says"
