"""Measure records to compact ASTs in Python."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.errors import ReplayError
from cdmpp.programs.ansor.dag import Dag
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import is_gpu_kind
from cdmpp.records import MeasureRecord
from tests.programs.reference.lower import lower_record
from tests.programs.reference.rejection import rejection
from tests.programs.reference.tree import compact_ast


def featurise_record(dag: Dag, record: MeasureRecord) -> CompactAst | ReplayError:
    """Returns the compact AST of a record, or why it could not be replayed."""
    try:
        tree = lower_record(dag, record.steps, is_gpu=is_gpu_kind(record.target_kind))
        ast = compact_ast(tree)
    except ReplayError as error:
        return error
    except RecursionError:
        return ReplayError("expression nested too deeply")
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        # Steps that no Ansor writes can contradict each other in ways that nothing above looks for.
        return ReplayError("steps contradict each other", f"{type(error).__name__}: {error}"[:80])
    reason = rejection(tree, record)
    return replace(ast, valid=reason is None, reject_reason=reason)
