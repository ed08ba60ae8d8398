#!/usr/bin/env bash
# The first six minutes on a machine with a GPU (prepare.sh): reference kernels, steps of timm's networks,
# convolutions, lookups, random networks. Results: OUT/first.tgz.
. lab/gpu_session/steps.sh
date +%s >/root/start
mkdir -p /root/tvm
mv .gpu/part_00 /root/tvm/
# Libraries are read from a slow disk the first time: 8 s for TVM, 20 s for triton.
(find $SP/{torch,nvidia,triton,timm,torchvision,scipy,sklearn,pyarrow} -name '*.so*' -o -name '*.py' |
  timeout 40 xargs -P10 -n40 cat >/dev/null 2>&1) &
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target $SITE .gpu/whl/*.whl
tar xf .gpu/tvm.tar.xz -C $SITE
nvidia-smi -q -d CLOCK,POWER >$RESULTS/smi.txt
step sweep 125 python3 -m cdmpp device add h200 --spec --sweep --minutes 2 --out $RESULTS/sweep
step timm 100 python3 lab/gpu_session/timm_steps.py --out $RESULTS/timm_eager.jsonl --part eager,train,fp32 --seconds 82
NETS_SECONDS=50 bash lab/gpu_session/product.sh $RESULTS/product conv lookups nets
nvidia-smi -q -d CLOCK,POWER,TEMPERATURE >>$RESULTS/smi.txt
tar czf "$OUT/first.tgz" -C $RESULTS .
