"""The laboratory: suites and leaderboards, experiments, result pages, pre-training.

It uses the product but is not part of it: no wheel includes it, and `cdmpp` and `tvm_helper` never
import it. Entry point: `__main__` (`python -m lab --help`).
"""
