#!/usr/bin/env bash
# The next six minutes on the same machine: TVM's programs, compiled networks, profiles, training.
# Results: OUT/second.txz. All of it ends SECONDS_IN_ALL after first.sh began.
. lab/gpu_session/steps.sh
if [ ! -f /root/start ]; then
  echo "first.sh has not run on this machine; run it first"
  exit 2
fi
cat /root/tvm/part_00 .gpu2/part_01 | xz -dc >$SITE/tvm/lib/libtvm_compiler.so
cp -r .gpu2/camp $RESULTS/
python3 -m lab.gpu_session.draw --here $RESULTS/camp/*
mkdir -p data
cp -r .gpu2/ansor-gpu data/

measure() { # NAME SECONDS
  step "$1" "$2" python3 -m cdmpp measure --config "configs/measure/$1.yaml" --out "$RESULTS/camp/$1" --profile
}

measure sealed-gpu 85
step compiled 135 python3 lab/gpu_session/timm_steps.py --out $RESULTS/timm_compiled.jsonl --part compiled --workers 12 --seconds 118 &
compiled=$!
# While networks compile, nothing else is timed: these only show that the commands work.
timeout 62 bash lab/gpu_session/product.sh $RESULTS/product2 watch trace ncu operators train
wait $compiled
left=$((${SECONDS_IN_ALL:-650} - $(date +%s) + $(cat /root/start)))
if [ $left -gt 15 ]; then measure metaschedule-h200 $left; fi
rm -rf $RESULTS/camp/*/*.tmp
tar cJf "$OUT/second.txz" -C $RESULTS camp product2 timm_compiled.jsonl sealed-gpu.log metaschedule-h200.log compiled.log
