"""Featurisers of records that need a TVM, imported on demand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cdmpp.datasets.sources import Featurisers, TvmFeaturiser
from cdmpp.programs.compact_ast import LEAF_EXTRA_SCHEMA_VERSION


def tvm_featurisers(
    prepare: Callable[[], object] | None = None, *, version: int = LEAF_EXTRA_SCHEMA_VERSION
) -> Featurisers:
    """Returns the featurisers that `cdmpp.datasets.sources` needs.

    Args:
        prepare: called before the old TVM is needed; None = an error if that is missing.
        version: version of the extra leaf columns; older versions are for trained models only.
    """

    def featuriser(name: TvmFeaturiser) -> Callable[..., Any]:
        if name == "metaschedule":
            from tvm_helper.tasks.metaschedule import featurise_traces

            is_newest = version == LEAF_EXTRA_SCHEMA_VERSION
            return featurise_traces if is_newest else partial(featurise_traces, version=version)
        from tvm_helper.legacy.environment import find_environment
        from tvm_helper.legacy.fallback import featurise_with_ansor
        from tvm_helper.legacy.featurise import featurise_autotvm
        from tvm_helper.legacy.metaschedule import featurise_older_traces

        (prepare or find_environment)()  # one clear error now instead of one in every worker
        if name == "ansor":
            return featurise_with_ansor
        return featurise_autotvm if name == "autotvm" else featurise_older_traces

    return featuriser
