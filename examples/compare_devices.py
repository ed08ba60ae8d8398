"""Which CPU for my network? The same module on two, as torch runs it and as TVM compiles it.

For GPUs, prices and memory there is the command `cdmpp compare` (docs/how-to/compare-devices.md).
"""

import torch

import cdmpp

network = torch.nn.Sequential(
    torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
).eval()
devices = ["epyc-avx512-1c", "xeon-avx512-1c"]
found = cdmpp.load("pretrained").network(
    network, devices, shapes=[(256,)], batches=[8], machine_code=False
)
for way in ("tvm-untuned", "torch-eager"):
    known = [one for one in found if (one.way, one.mode) == (way, "infer") and one.latency_s]
    for one in sorted(known, key=lambda one: one.latency_s or 0.0):
        print(f"{way:12} {one}{' (low confidence)' if one.reasons else ''}")
