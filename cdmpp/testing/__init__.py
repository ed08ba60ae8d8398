"""Contract tests for authors of cost models, readers and analytic kernels."""

from cdmpp.testing.analytic_kernel import check_analytic_kernel
from cdmpp.testing.analytic_model import check_analytic_model
from cdmpp.testing.cost_model import check_cost_model
from cdmpp.testing.reader import check_reader
from cdmpp.testing.synthetic import make_samples, split_by_task

__all__ = [
    "check_analytic_kernel",
    "check_analytic_model",
    "check_cost_model",
    "check_reader",
    "make_samples",
    "split_by_task",
]
