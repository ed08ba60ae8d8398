"""The laboratory: suites and leaderboards, experiments, result pages, pre-training.

It uses the product and is no part of it: no wheel holds it, and `cdmpp` and `tvm_helper` never
import it. Begin with `__main__` (`python -m lab --help`).
"""
