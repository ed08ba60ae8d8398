// Replays transform steps on a computation (see cdmpp/programs/ansor/state.py).
#pragma once

#include <deque>

#include "dag.hpp"
#include "record.hpp"

namespace cdmpp {

using IterId = u32;
using StageId = u32;

enum LoopKind : u8 {
  SERIAL, UNROLLED, VECTORIZED, PARALLEL, VTHREAD,
  BLOCK_X, THREAD_X, BLOCK_Y, THREAD_Y, BLOCK_Z, THREAD_Z
};  // values are the annotation numbers of AN steps

inline bool is_thread(LoopKind kind) { return kind >= VTHREAD; }
inline bool is_block_index(LoopKind kind) {
  return kind == BLOCK_X || kind == BLOCK_Y || kind == BLOCK_Z;
}
inline bool is_thread_index(LoopKind kind) { return kind > VTHREAD && !is_block_index(kind); }

struct Iterator {
  NameId name;
  bool is_reduction;
  bool has_domain;
  i64 minimum, extent;  // of a root iterator
  LoopKind kind;
  bool has_pragma;
  i64 unroll_max_step;
};

struct Relation {
  enum Kind : u8 { SPLIT, FUSE, REBASE, SINGLETON };
  Kind kind;
  // split: parent, outer, inner; fuse: fused, outer, inner; rebase: parent, rebased;
  // singleton: iterator.
  IterId parent, outer, inner;
  bool has_factor;  // of a split: `length` is that of inner, otherwise that of outer
  i64 length;
};

struct Stage {
  enum Attach : u8 { ROOT, INLINE, AT };
  const DagOp* op = nullptr;
  std::vector<IterId> root, leaf;
  std::vector<Relation> relations;
  bool is_output = false;
  NameId scope = 0;
  Attach attach = ROOT;
  StageId attach_stage = kNone;
  IterId attach_iterator = kNone;

  u32 position(IterId iterator) const {
    const auto found = std::find(leaf.begin(), leaf.end(), iterator);
    return found == leaf.end() ? kNone : static_cast<u32>(found - leaf.begin());
  }
};

class ScheduleState {
 public:
  explicit ScheduleState(Dag& dag) : dag_(dag), p_(dag.program) {
    Names& names = p_.names;
    suffix_.outer = names.intern(".outer");
    suffix_.inner = names.intern(".inner");
    suffix_.dot = names.intern(".");
    suffix_.fused = names.intern(".fused");
    suffix_.cached = names.intern(".c");
    suffix_.again = names.intern(".d");
    suffix_.factored = names.intern(".rf");
    suffix_.partial = names.intern(".v");
    suffix_.final = names.intern(".repl");
    suffix_.axis = names.intern(".ax");
    suffix_.singleton = names.intern("singleton");
  }

  Program& program() { return p_; }
  Dag& dag() { return dag_; }
  Stage& stage(StageId id) { return stages_[id]; }
  Iterator& iterator(IterId id) { return iterators_[id]; }
  size_t iterator_count() const { return iterators_.size(); }
  std::vector<StageId>& lowering_order() { return lowering_order_; }
  const std::string& name_of(const Stage& stage) const { return p_.names.text(stage.op->name); }

  IterId add_iterator(NameId name, bool is_reduction) {
    if (iterators_.size() >= kMostIterators) {
      throw ReplayFailure{"too many iterators", "at most " + std::to_string(kMostIterators)};
    }
    iterators_.push_back({name, is_reduction, false, 0, 0, SERIAL, false, 0});
    return static_cast<IterId>(iterators_.size() - 1);
  }
  // A copy of an operation to be modified; it lives as long as the program.
  DagOp& change(const DagOp& op) {
    changed_ops_.push_back(op);
    return changed_ops_.back();
  }

  void start() {
    p_.reset();
    iterators_.clear();
    changed_ops_.clear();
    split_lengths_.clear();
    order_.clear();
    lowering_order_.clear();
    used_stages_ = 0;
    name_counts_.clear();
    for (size_t i = 0; i < dag_.ops.size(); ++i) {
      const bool is_output =
          std::find(dag_.outputs.begin(), dag_.outputs.end(), i) != dag_.outputs.end();
      order_.push_back(new_stage(&dag_.ops[i], is_output, 0));
    }
    for (const u32 index : dag_.depth_first_order) lowering_order_.push_back(order_[index]);
  }

  void apply(const Record& record) {
    record_ = &record;
    for (u32 i = 0; i < record.steps.size(); ++i) {
      if (i == kMostSteps) {
        throw ReplayFailure{"too many steps", std::to_string(record.steps.size()) + ", at most " +
                                                  std::to_string(kMostSteps)};
      }
      step_ = record.steps[i];
      apply_step(i);
    }
  }

 private:
  static constexpr size_t kMostIterators = 4096, kMostStages = 256, kMostNameBytes = 4096;
  static constexpr u32 kMostSteps = 4096;

  struct {
    NameId outer, inner, dot, fused, cached, again, factored, partial, final, axis, singleton;
  } suffix_;

  // Arguments of the current step; a wrong type is declined, and Python reports the error.

  const Argument& argument(u32 number, Argument::Kind kind) const {
    if (number >= step_.count) throw Declined{"step too short"};
    const Argument& found = record_->arguments[step_.first + number];
    if (found.kind != kind) throw Declined{"argument of a step"};
    return found;
  }
  i64 number(u32 position) const { return argument(position, Argument::NUMBER).number; }
  std::string_view text(u32 position) const { return argument(position, Argument::TEXT).text; }
  std::vector<i64> list(u32 position) const {
    const Argument& found = argument(position, Argument::LIST);
    const auto first = record_->numbers.begin() + found.first;
    return std::vector<i64>(first, first + found.count);
  }

  static std::string list_text(const i64* values, size_t count) {
    std::string result = "[";
    for (size_t i = 0; i < count; ++i) result += (i ? ", " : "") + std::to_string(values[i]);
    return result + "]";
  }
  // The current step as printed by Python.
  std::string step_text(size_t limit = std::string::npos) const {
    std::string result = "[";
    for (u32 i = 0; i < step_.count; ++i) {
      const Argument& item = record_->arguments[step_.first + i];
      if (i) result += ", ";
      if (item.kind == Argument::OTHER) throw Declined{"argument of a step"};
      if (item.kind == Argument::NUMBER) result += std::to_string(item.number);
      if (item.kind == Argument::TEXT) result += "'" + std::string(item.text) + "'";
      if (item.kind == Argument::LIST) {
        result += list_text(record_->numbers.data() + item.first, item.count);
      }
    }
    return (result + "]").substr(0, limit);
  }

  Stage& stage_at(i64 index) {
    if (index < 0 || static_cast<u64>(index) >= order_.size()) {
      const std::string count = std::to_string(order_.size());
      throw ReplayFailure{"stage index out of range",
                          std::to_string(index) + " of " + count + " stages"};
    }
    return stages_[order_[static_cast<size_t>(index)]];
  }
  IterId iterator_at(const Stage& stage, i64 index) const {
    if (index < 0 || static_cast<u64>(index) >= stage.leaf.size()) {
      throw ReplayFailure{"iterator index out of range",
                          std::to_string(index) + " of " + std::to_string(stage.leaf.size()) +
                              " iterators of " + name_of(stage)};
    }
    return stage.leaf[static_cast<size_t>(index)];
  }

  NameId joined(NameId left, NameId right) { return p_.names.joined(left, right); }
  NameId checked(NameId name) const {
    if (p_.names.text(name).size() > kMostNameBytes) {
      throw ReplayFailure{"name is too long",
                          "at most " + std::to_string(kMostNameBytes) + " bytes"};
    }
    return name;
  }
  NameId unique(NameId name) {
    checked(name);
    const u32* found = name_counts_.find(name);
    const u32 count = found ? *found : 0;
    name_counts_.set(name, count + 1);
    return count == 0 ? name : p_.names.numbered(name, count);
  }

  void set_iterators(Stage* stage) {
    stage->root.clear();
    for (const bool reduction : {false, true}) {
      for (const Axis& axis : reduction ? stage->op->reduce_axes : stage->op->axes) {
        const IterId id = add_iterator(axis.name, reduction);
        iterators_[id].has_domain = true;
        iterators_[id].minimum = axis.minimum;
        iterators_[id].extent = axis.extent;
        stage->root.push_back(id);
      }
    }
    stage->leaf = stage->root;
    stage->relations.clear();
  }

  StageId new_stage(const DagOp* op, bool is_output, NameId scope) {
    const StageId id = static_cast<StageId>(used_stages_++);
    if (used_stages_ > kMostStages) {
      throw ReplayFailure{"too many stages", "at most " + std::to_string(kMostStages)};
    }
    if (id >= stages_.size()) stages_.emplace_back();
    Stage& stage = stages_[id];
    stage.op = op;
    stage.is_output = is_output;
    stage.scope = scope;
    stage.attach = Stage::ROOT;
    stage.attach_stage = stage.attach_iterator = kNone;
    set_iterators(&stage);
    return id;
  }

  void insert(i64 index, StageId id, StageId neighbour, bool after) {
    order_.insert(order_.begin() + index, id);
    auto place = std::find(lowering_order_.begin(), lowering_order_.end(), neighbour);
    if (place == lowering_order_.end()) throw Declined{"stage outside the lowering order"};
    lowering_order_.insert(place + (after ? 1 : 0), id);
  }

  void set_inputs(DagOp* op) {
    op->inputs.clear();
    seen_.clear();
    for (const ExprId body : op->body) p_.collect_loads(body, op->inputs, seen_);
  }

  void apply_step(u32 number_of_step);
  void annotate();
  void fuse();
  void pragma();
  void reorder();
  void split_by(Stage& stage, i64 index, const std::vector<i64>& lengths, bool inner_to_outer);
  void split(u32 number_of_step);
  const std::vector<i64>& source_lengths(i64 source) const;
  void follow_split();
  void follow_fused_split();
  void compute_at();
  void compute_inline();
  void cache_read();
  void cache_write();
  void rfactor();
  void factor_reduction(const Stage& stage, IterId factored, size_t position, DagOp* partial,
                        DagOp* final);
  std::vector<bool> related(const Stage& stage, IterId iterator) const;

  Dag& dag_;
  Program& p_;
  std::deque<Stage> stages_;
  size_t used_stages_ = 0;
  std::vector<StageId> order_, lowering_order_;
  std::vector<Iterator> iterators_;
  std::deque<DagOp> changed_ops_;
  StampedMap<u32> name_counts_;
  std::vector<std::pair<u32, std::vector<i64>>> split_lengths_;
  Stamps seen_;
  const Record* record_ = nullptr;
  Step step_{0, 0};
};

}  // namespace cdmpp
