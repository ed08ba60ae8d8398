"""A faster schedule for my operator: TVM's MetaSchedule searches, our model ranks them.

Four programs are measured on this machine; a real search takes some hundreds, and `cdmpp search`
keeps them in a folder that survives a stop (docs/how-to/search.md).
"""

from tvm import te
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch

from tvm_helper import tune_tir

a = te.placeholder((64, 128), name="A")
b = te.placeholder((128, 32), name="B")
k = te.reduce_axis((0, 128), name="k")
c = te.compute((64, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
operator = te.create_prim_func([a, b, c])

database = tune_tir(
    operator,
    {"kind": "llvm", "num-cores": 1},
    "tuning",
    4,
    model="pretrained",
    device="epyc-avx2-1c",
    cost_model_options={"safety_net": False},
    # A search in earnest leaves this out: populations of 512 then.
    strategy=EvolutionarySearch(population_size=16, init_min_unmeasured=8, genetic_num_iters=1),
    num_trials_per_iter=4,
)
times = [record.run_secs for record in database.get_all_tuning_records()]
seconds = sorted(float(run[0]) for run in times if run)
print(len(seconds), "programs measured, the best takes", seconds[0], "s, the worst", seconds[-1])
