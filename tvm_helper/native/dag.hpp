// A task's computation, read from the arrays that `flatten.py` makes.
#pragma once

#include "expr.hpp"

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

// Everything that the programs of one task share. Copied by every worker.
struct Dag {
  Program program;
  std::vector<DagOp> ops;
  std::vector<u32> outputs;
  std::vector<u32> depth_first_order;
  NameId global, shared, warp, local;
};

// Reads one array of integers; running off its end or a wrong index is an error.
class FlatReader {
 public:
  FlatReader(const i64* data, size_t count) : data_(data), end_(data + count) {}

  i64 next() {
    if (data_ == end_) throw Declined{"flat computation: too short"};
    return *data_++;
  }
  u32 index(size_t limit) {
    const i64 value = next();
    if (value < 0 || static_cast<u64>(value) >= limit) throw Declined{"flat computation: index"};
    return static_cast<u32>(value);
  }
  u32 count() {
    const i64 value = next();
    if (value < 0 || value > end_ - data_) throw Declined{"flat computation: count"};
    return static_cast<u32>(value);
  }
  template <class Item, class Read>
  std::vector<Item> list(Read read) {
    std::vector<Item> items(count());
    for (Item& item : items) item = read();
    return items;
  }
  bool at_end() const { return data_ == end_; }

 private:
  const i64* data_;
  const i64* end_;
};

class DagReader {
 public:
  DagReader(const i64* data, size_t count, const char* text, size_t text_size)
      : in_(data, count), text_(text, text_size) {}

  void read(Dag* dag) {
    Program& program = dag->program;
    read_names(&program);
    read_buffers(&program);
    read_exprs(&program);
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
  // Names come first: their lengths in `data`, one after another in `text`.
  void read_names(Program* program) {
    const u32 count = in_.count();
    size_t at = 0;
    for (u32 i = 0; i < count; ++i) {
      const i64 length = in_.next();
      if (length < 0 || static_cast<u64>(length) > text_.size() - at) {
        throw Declined{"flat computation: text"};
      }
      names_.push_back(program->names.intern(std::string_view(text_).substr(at, length)));
      at += static_cast<size_t>(length);
    }
  }
  NameId name() { return names_[in_.index(names_.size())]; }

  void read_buffers(Program* program) {
    const u32 count = in_.count();
    for (u32 i = 0; i < count; ++i) {
      const NameId name_id = name();
      const u8 dtype = program->dtype_id(program->names.text(name()));
      const NameId scope = name();
      program->add_buffer(name_id, dtype, scope, in_.list<i64>([&] { return in_.next(); }));
    }
    buffer_count_ = count;
  }
  BufferId buffer() { return in_.index(buffer_count_); }

  void read_exprs(Program* program) {
    const u32 count = in_.count();
    for (u32 i = 0; i < count; ++i) {
      const Op op = static_cast<Op>(in_.index(OP_COUNT));
      const u8 dtype = program->dtype_id(program->names.text(name()));
      i64 value = 0;
      if (op == CONST) value = in_.next();
      if (op == VAR || op == CALL) value = name();
      if (op == LOAD) value = buffer();
      const std::vector<ExprId> args = in_.list<ExprId>([&] { return expr(); });
      const size_t wanted = op >= ADD ? 2 : op == SELECT ? 3 : op == CAST || op == NOT ? 1 : 0;
      if (op == LOAD || op == CALL ? args.size() > 64 : args.size() != wanted) {
        throw Declined{"flat computation: operands"};
      }
      if (op == LOAD && args.size() != program->buffers[static_cast<size_t>(value)].rank) {
        throw Declined{"flat computation: rank of a read"};
      }
      if (op == CONST && program->dtypes[dtype].counts_as_float) {
        double number;
        std::memcpy(&number, &value, sizeof number);
        exprs_.push_back(program->number(dtype, number));
      } else {
        const u32 arg_count = static_cast<u32>(args.size());
        exprs_.push_back(program->make(op, dtype, args.data(), arg_count, value));
      }
    }
  }
  ExprId expr() { return exprs_[in_.index(exprs_.size())]; }

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

  FlatReader in_;
  std::string text_;
  std::vector<NameId> names_;
  std::vector<ExprId> exprs_;
  size_t buffer_count_ = 0;
};

}  // namespace cdmpp
