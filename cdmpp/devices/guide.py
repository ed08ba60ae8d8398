"""The part of `docs/devices.md` on adding the machine at hand."""

from __future__ import annotations

ADD_GUIDE = """
## Add the machine at hand

```
cdmpp device add my-laptop
cdmpp predict --model runs/device-my-laptop --device my-laptop --program kernel.py
cdmpp device show my-laptop --run runs/device-my-laptop
```

`device add NAME` needs no data and ten minutes (`--minutes`), shared out over four steps:

1. **Probe.** What the system tells (`/proc`, `/sys`, affinity, quota; `nvidia-smi` with `--target
   cuda`), and two micro-benchmarks that TVM compiles for the label's target and threads: `c = a +
   b` on arrays beyond the caches, and chains of multiply-adds in registers. Each value gets its
   source; the file is `devices/NAME.yaml` in the run folder.
2. **Choose.** Kernels of every kind (convolutions, matrix products, reductions, pools, ...; as
   `cdmpp measure --list-tasks` has them) at sizes that are drawn; none that the shipped model was
   trained on, on whatever device, so that errors and intervals are honest. Two fifths judge.
3. **Measure** (`docs/measuring.md`), twelve kernels at a time, six programs of each, up to 65 % of
   the time; what is left of that goes to more programs of all. The programs are drawn by
   MetaSchedule, so that they are like what TVM makes of a network, and like what is searched. The
   dataset is `measurements` in the run folder. With `--dataset DIR` programs of records in Tenset's
   layout are measured instead (`data/tenset-cpu`: random schedules of Ansor), those to learn from
   of tasks chosen by k-means (`docs/finetune.md`).
4. **Fit.** The transformer is fine-tuned; the perceptron and the trees take the device for the
   nearest one that they know, times one factor each; shares and intervals come from held-out tasks
   of the budget, and so does what is kept: the model as it was, with one factor, half way to the
   fit, or the fit (`docs/finetune.md`); the last lines of the table say which. On a
   CPU what reads machine code is adapted too (`docs/machine-code.md`). Then the same with
   fewer tasks, from scratch, and one factor alone, as far as the time goes: the error against the
   number of measured tasks. The knee is the least number at which 90 % of what measuring gains in
   median error is reached.

The same command again continues after a kill; the minutes count on. A label that is known is
refused; `--spec` says that this machine is that device, which is checked (`--force` insists). A
machine that is used by others gives a noisy model: `cdmpp doctor runs/device-NAME/measurements`
tells. `cdmpp device curve` prints the table again.

`docs/results/device-add.md` has a real run, on a CPU that the shipped model does not know;
`docs/results/replay-elsewhere.md` what is said there of networks.
"""
