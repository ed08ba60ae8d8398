"""Train on measurements of your own: a folder in Tenset's layout becomes a model.

`python examples/own_logs.py DIR` reads DIR/network_info and DIR/measure_records/DEVICE; without DIR
it takes the measurements that come with cdmpp. AutoTVM logs and MetaSchedule databases are read
alike. Two epochs only show how it goes: leave `settings` out for a model to use.
"""

import json
import sys

import numpy as np

import cdmpp

data = cdmpp.Dataset.read(sys.argv[1] if len(sys.argv) > 1 else None, device="epyc-avx2-1c")
print(len(data), "measured programs on", *data.devices)
model = cdmpp.train(
    data,
    out="my-run",
    settings={
        "transformer": {"network": {"hidden": 32, "layers": 1}, "loop": {"epochs": 2}},
        "baselines": ["constant"],
    },
)
metrics = json.loads((model.folder / "metrics.json").read_text())
for name, line in metrics["test"].items():
    print(f"{name:12} median error {line['median_ape']:.0%} on tasks it has not seen")
_, _, test = data.split(seed=0)
print(model.predict(test.take(np.arange(3))))
