#!/usr/bin/env bash
# Prepares a session on a machine with a GPU, Python 3.12 and torch that reaches no package registry:
#   bash lab/gpu_session/prepare.sh        # 6 minutes; PYTHON=... with TVM, for drawing
# writes .gpu/ for first.sh and .gpu2/ for second.sh, 48 and 40 MB. TVM's compiler is split over both.
# Ship this checkout without data/, tests/, docs/ and cdmpp/pretrained/default (15 MB), with .gpu or .gpu2.
set -euo pipefail
PYTHON=${PYTHON:-python}
WHEELS="optuna==5.* xgboost-cpu orjson shtab pooch alembic sqlalchemy Mako colorlog platformdirs tornado
  apache-tvm-ffi==0.1.14.post1"
mkdir -p .gpu/whl .gpu2/camp
scratch=$(mktemp -d)
for wheel in $WHEELS apache-tvm==0.27.0.post1; do
  $PYTHON -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d .gpu/whl "$wheel"
done
mv .gpu/whl/apache_tvm-*.whl "$scratch"
(
  cd "$scratch"
  $PYTHON -m zipfile -e apache_tvm-*.whl tvm
  rm -rf tvm/tvm/3rdparty
  mv tvm/tvm/lib/libtvm_compiler.so .
  strip --strip-all libtvm_compiler.so
  xz -9e -T1 --lzma2=dict=256MiB libtvm_compiler.so
  split -n 2 -d libtvm_compiler.so.xz part_
)
tar cJf .gpu/tvm.tar.xz -C "$scratch/tvm" .
mv "$scratch/part_00" .gpu/
mv "$scratch/part_01" .gpu2/
rm -rf "$scratch"
for name in sealed-gpu metaschedule-h200; do
  $PYTHON -m lab.gpu_session.draw configs/measure/$name.yaml .gpu2/camp/$name
done
cp -r data/ansor-gpu .gpu2/
du -sh .gpu .gpu2
