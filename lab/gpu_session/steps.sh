# What first.sh and second.sh share; RESULTS is where steps leave what they measured.
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
SITE=/root/site RESULTS=/root/results
SP=$(python3 -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
export LD_LIBRARY_PATH=$SITE/tvm_ffi/lib:$SP/nvidia/cu13/lib:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
export PYTHONPATH=$SITE:$PWD
mkdir -p $RESULTS

step() { # NAME SECONDS COMMAND...: its output goes to RESULTS/NAME.log, one line about it to the terminal
  local name=$1 seconds=$2 began=$SECONDS
  shift 2
  timeout -k 3 -s INT "$seconds" "$@" >"$RESULTS/$name.log" 2>&1
  echo "$name: exit $? after $((SECONDS - began)) s: $(tail -c 300 "$RESULTS/$name.log" | tr '\n' '|')"
}
