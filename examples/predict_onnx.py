"""How long does my network take? A torch network becomes an ONNX file, which is predicted.

A network has a row for each way of running it; an ONNX file only runs as TVM compiles it. A `.pt2`
file of `torch.export.save` and a torch module (`model.network(module, shapes=...)`) are also
predicted as torch runs them.
"""

import warnings

import torch

import cdmpp

network = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(),
    torch.nn.Linear(8 * 15 * 15, 10),
).eval()  # fmt: skip
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch prefers its newer exporter, which needs onnxscript
    image = torch.zeros(1, 3, 32, 32)
    torch.onnx.export(network, (image,), "small.onnx", input_names=["image"], dynamo=False)

found = cdmpp.load("pretrained").predict("small.onnx", device="epyc-avx512-1c")
print(found)
for kernel in found[0].to_json()["kernels"]:
    print(f"{kernel['in_network_s'] * kernel['calls']:.2e} s  {kernel['name']}")
