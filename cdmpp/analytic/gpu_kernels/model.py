"""The kernel models of today's GPUs, one a family.

`GpuKernels.packaged()` is the model that comes with the package. `.times(calls, device)` takes a
sequence of `cdmpp.analytic.gpu_kernels.calls` and a `DeviceSpec`, and returns `GpuKernelTimes`:
`latency_s`, `low_s` and `high_s`, float64 [N]; `bound`, what limits each call (`compute`, `memory`,
`cache`, `link`, `launch`); and `is_seen_device`, whether the model was fitted on that device.
"""
