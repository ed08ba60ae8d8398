#!/usr/bin/env bash
# Runs cdmpp's own GPU commands once, each within its seconds: bash lab/gpu_session/product.sh OUT PART...
# Parts: conv operators counters lookups nets watch trace ncu train resume. LABEL is the GPU's label, TYPE where models are trained.
set -u
OUT=$1
shift
LABEL=${LABEL:-h200} TYPE=${TYPE:-cuda}
CDMPP="python3 -m cdmpp"
LIST=lab/gpu_session/conv_layers.txt

run() { # NAME SECONDS COMMAND...: its output goes to OUT/NAME.txt, one line about it to the terminal
  local name=$1 seconds=$2 began=$SECONDS code
  shift 2
  timeout -k 2 "$seconds" "$@" >"$OUT/$name.txt" 2>&1
  code=$?
  echo "$name: exit $code after $((SECONDS - began)) s: $(tail -n 1 "$OUT/$name.txt" | cut -c -200)"
}

conv() {
  run conv_free 20 $CDMPP analytic conv collect --list $LIST --free --gpu "$LABEL" --out "$OUT/conv_free.csv"
  run conv_all 50 $CDMPP analytic conv collect --list $LIST --gpu "$LABEL" --out "$OUT/conv_all.csv"
  run conv_free_tensor 20 $CDMPP analytic conv collect --list $LIST --free --math tensor --gpu "$LABEL" --out "$OUT/conv_free_tensor.csv"
}

operators() {
  local operator
  for operator in conv_grad maxpool data_layout; do
    run "operator_$operator" 20 $CDMPP analytic conv collect --list $LIST --limit 40 --operator $operator --gpu "$LABEL" --out "$OUT/operator_$operator.csv"
  done
}

counters() {
  run counters 40 $CDMPP analytic conv collect --layer 32,64,56,64,3,1,1 --layer 32,256,56,64,1 --layer 8,128,28,128,3,2,1 --free \
    --counters --gpu "$LABEL" --out "$OUT/counters"
}

lookups() { run lookups 50 python3 -m lab.gpu_session.embedding_bag --out "$OUT/lookups" --budget 25; }

nets() {
  local options=(--config configs/networks/published.yaml --device "$LABEL" --out "$OUT/nets" --architectures 20
    --set 'space.batches_per_architecture=[1,1]' --set timing.warm_up_s=0.4 --set timing.budget_s=0.6)
  run nets "${NETS_SECONDS:-75}" $CDMPP networks measure "${options[@]}"
  run nets_tables 15 $CDMPP networks measure "${options[@]}" --tables-only
}

watch() { run watch 30 $CDMPP profile --watch python3 -m lab.gpu_session.profiled_steps --loop 8; }

trace() {
  run trace 30 python3 -m lab.gpu_session.profiled_steps --out "$OUT/trace"
  run trace_read 15 $CDMPP profile "$OUT/trace/steps.pt.trace.json.gz" --device "$LABEL"
  run table_read 15 $CDMPP profile "$OUT/trace/steps.txt" --device "$LABEL"
}

ncu_kernels() {
  local kernels=(python3 -m lab.gpu_session.profiled_steps --kernels) fp32=smsp__sass_thread_inst_executed_op_
  local metrics=gpu__time_duration.sum,dram__bytes.sum,${fp32}ffma_pred_on.sum,${fp32}fadd_pred_on.sum,${fp32}fmul_pred_on.sum
  metrics+=,launch__grid_size,launch__block_size,launch__registers_per_thread
  run ncu_raw 30 ncu --csv --page raw --clock-control none --metrics "$metrics" -c 12 "${kernels[@]}"
  run ncu_details 30 ncu --csv --clock-control none --set basic -c 12 "${kernels[@]}"
  run ncu_read 15 $CDMPP profile "$OUT/ncu_raw.txt" --device "$LABEL"
}

fit() { # NAME SECONDS TYPE STEPS SETTING...: samples a second are in OUT/NAME.jsonl
  local name=$1 seconds=$2 type=$3 steps=$4 setting settings=()
  shift 4
  for setting in "$@"; do settings+=(--set "transformer.loop.$setting"); done
  run "$name" "$seconds" $CDMPP train --dataset data/ansor-gpu --cache /tmp/cdmpp-cache --device v100 --set 'baselines=[]' --device-type "$type" \
    --set "transformer.loop.max_steps=$steps" "${settings[@]}" --out "/tmp/cdmpp-$name"
  cp "/tmp/cdmpp-$name/log.jsonl" "$OUT/$name.jsonl"
  tail -n 1 "$OUT/$name.jsonl" | grep -o '"samples_per_s": [0-9.]*'
}

train() {
  fit train_cpu 40 cpu 100 threads=8
  fit train_gpu 40 "$TYPE" 300
  fit train_cpu_512 40 cpu 20 programs_per_batch=512 threads=8
  fit train_gpu_512 40 "$TYPE" 100 programs_per_batch=512
  fit train_gpu_512_bf16 40 "$TYPE" 100 programs_per_batch=512 precision=bf16
  fit train_gpu_512_compiled 90 "$TYPE" 100 programs_per_batch=512 precision=bf16 compile=true
}

resume() {
  local pid
  python3 -m cdmpp train --dataset data/ansor-gpu --cache /tmp/cdmpp-cache --device v100 --set 'baselines=[]' --device-type "$TYPE" \
    --set transformer.loop.max_steps=400 --set transformer.loop.checkpoint_every=20 --out /tmp/cdmpp-resumed >"$OUT/killed.txt" 2>&1 &
  pid=$!
  for _ in $(seq 400); do
    ls -d /tmp/cdmpp-resumed/checkpoints/step-*[0-9] >/dev/null 2>&1 && break
    sleep 0.1
  done
  sleep 0.5
  kill -9 "$pid"
  wait "$pid" 2>/dev/null
  echo "killed at: $(ls /tmp/cdmpp-resumed/checkpoints | tr '\n' ' ')"
  fit resumed 60 "$TYPE" 400 checkpoint_every=20
}

mkdir -p "$OUT"
for part in "$@"; do
  if [ "$part" = ncu ]; then part=ncu_kernels; fi
  $part
done
