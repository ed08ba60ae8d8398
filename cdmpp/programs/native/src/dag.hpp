// A task's computation, read from the arrays of `flatten.py`.
#pragma once

#include "flat.hpp"

namespace cdmpp {

struct Axis {
  NameId name;
  i64 extent;
  i64 minimum;
};

struct Reduction {
  std::vector<NameId> left, right;
  std::vector<ExprId> results, identities, init;
  ExprId condition = kNone;
};

struct DagOp {
  NameId name = 0;
  bool is_compute = false;
  bool is_const_matrix = false;
  bool has_reduction = false;
  std::vector<Axis> axes, reduce_axes;
  std::vector<ExprId> body;
  Reduction reduce;
  std::vector<BufferId> outputs, inputs;

  bool reads(BufferId buffer) const {
    return std::find(inputs.begin(), inputs.end(), buffer) != inputs.end();
  }
};

// State shared by all programs of a task; copied by every worker.
struct Dag {
  Program program;
  std::vector<DagOp> ops;
  std::vector<u32> outputs;
  std::vector<u32> depth_first_order;
  NameId global, shared, warp, local;
};

class DagReader : private FlatTables {
 public:
  using FlatTables::FlatTables;

  void read(Dag* dag) {
    Program& program = dag->program;
    read_tables(&program);
    const u32 op_count = in_.count();
    for (u32 i = 0; i < op_count; ++i) dag->ops.push_back(read_op(program));
    dag->outputs = in_.list<u32>([&] { return in_.index(op_count); });
    dag->depth_first_order = in_.list<u32>([&] { return in_.index(op_count); });
    if (!in_.at_end()) throw Declined{"flat computation: too long"};
    dag->global = program.names.intern("global");
    dag->shared = program.names.intern("shared");
    dag->warp = program.names.intern("warp");
    dag->local = program.names.intern("local");
    program.keep();
  }

 private:
  Axis axis() {
    const NameId name_id = name();
    const i64 extent = in_.next();
    return {name_id, extent, in_.next()};
  }

  DagOp read_op(const Program& program) {
    DagOp op;
    op.name = name();
    op.is_compute = in_.next() != 0;
    op.is_const_matrix = in_.next() != 0;
    op.axes = in_.list<Axis>([&] { return axis(); });
    op.reduce_axes = in_.list<Axis>([&] { return axis(); });
    op.body = in_.list<ExprId>([&] { return expr(); });
    op.outputs = in_.list<BufferId>([&] { return buffer(); });
    op.inputs = in_.list<BufferId>([&] { return buffer(); });
    op.has_reduction = in_.next() != 0;
    if (op.has_reduction) {
      op.reduce.left = in_.list<NameId>([&] { return name(); });
      op.reduce.right = in_.list<NameId>([&] { return name(); });
      op.reduce.results = in_.list<ExprId>([&] { return expr(); });
      op.reduce.identities = in_.list<ExprId>([&] { return expr(); });
      op.reduce.init = in_.list<ExprId>([&] { return expr(); });
      if (in_.next() != 0) op.reduce.condition = expr();
    }
    check(op, program);
    return op;
  }

  static void check(const DagOp& op, const Program& program) {
    const size_t outputs = op.outputs.size();
    bool sound = outputs > 0 && (!op.is_compute || op.body.size() == outputs);
    for (const BufferId output : op.outputs) {
      sound = sound && (!op.is_compute || program.buffers[output].rank == op.axes.size());
    }
    if (op.has_reduction) {
      const Reduction& reduce = op.reduce;
      const size_t starts = reduce.init.empty() ? reduce.identities.size() : reduce.init.size();
      sound = sound && op.is_compute && reduce.left.size() == outputs &&
              reduce.right.size() == outputs && reduce.results.size() == outputs &&
              starts == outputs;
    }
    if (!sound) throw Declined{"flat computation: inconsistent operation"};
  }
};

}  // namespace cdmpp
