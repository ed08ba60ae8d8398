// Bound inference: the range of every iterator (see tests/programs/reference/bounds.py).
#pragma once

#include "simplify.hpp"
#include "steps.hpp"

namespace cdmpp {

struct Range {
  Linear minimum, extent;
};

// Inclusive minimum and maximum.
struct Interval {
  bool bounded = false;
  Linear low, high;
};

inline bool operator==(const Interval& left, const Interval& right) {
  if (left.bounded != right.bounded) return false;
  return !left.bounded || (left.low == right.low && left.high == right.high);
}

class BoundInference {
 public:
  BoundInference(ScheduleState& state, Simplifier& simplifier)
      : s_(state), p_(state.program()), simplifier_(simplifier) {}

  const Range& range(IterId id) const { return ranges_.at(id); }

  // `stages` are in lowering order, without inlined ones.
  void run(const std::vector<StageId>& stages) {
    ranges_.clear();
    paths_.clear();
    stages_ = &stages;
    for (size_t i = 0; i < stages.size(); ++i) paths_.push_back(attach_path(stages[i]));
    for (size_t i = stages.size(); i-- > 0;) {
      const Stage& stage = s_.stage(stages[i]);
      if (!stage.op->is_compute) continue;
      infer_root(i);
      for (const IterId id : stage.root) bind(id);
      pass_down(stage);
    }
  }

  // All iterators: root ones, then derived ones in order of creation.
  static std::vector<IterId> derived_iterators(const Stage& stage) {
    std::vector<IterId> found = stage.root;
    for (const Relation& r : stage.relations) {
      if (r.kind == Relation::SPLIT) {
        found.push_back(r.outer);
        found.push_back(r.inner);
      } else {
        found.push_back(r.kind == Relation::REBASE ? r.outer : r.parent);
      }
    }
    return found;
  }

 private:
  Linear add(const Linear& left, const Linear& right, i64 scale = 1) {
    return simplifier_.add(left, right, scale);
  }
  Linear last_of(const Linear& minimum, const Linear& extent) {
    return add(add(minimum, extent), constant(1), -1);
  }
  void set(IterId id, const Linear& minimum, const Linear& extent) {
    ranges_.set(id, {minimum, extent});
  }
  void set_domain(IterId id) {
    const Iterator& iterator = s_.iterator(id);
    set(id, constant(iterator.minimum), constant(iterator.extent));
  }

  void bind(IterId id) {
    const Range range = ranges_.at(id);
    const double low = simplifier_.bounds_of(range.minimum).low;
    const double high = simplifier_.bounds_of(last_of(range.minimum, range.extent)).high;
    simplifier_.bind(s_.iterator(id).name, low, high);
  }

  std::vector<IterId> attach_path(StageId id) {
    std::vector<IterId> path;
    std::vector<StageId> visited = {id};
    const std::string& name = s_.name_of(s_.stage(id));
    for (StageId current = id; s_.stage(current).attach == Stage::AT;) {
      const StageId target_id = s_.stage(current).attach_stage;
      const Stage& target = s_.stage(target_id);
      const bool circle = std::find(visited.begin(), visited.end(), target_id) != visited.end();
      if (circle || target.attach == Stage::INLINE) {
        throw ReplayFailure{"stages are attached in a circle or to an inlined stage", name};
      }
      visited.push_back(target_id);
      const u32 position = target.position(s_.stage(current).attach_iterator);
      if (position == kNone) throw ReplayFailure{"attach iterator was transformed away", name};
      for (u32 i = position + 1; i-- > 0;) path.push_back(target.leaf[i]);
      current = target_id;
    }
    return path;
  }

  void infer_root(size_t number) {
    const Stage& stage = s_.stage((*stages_)[number]);
    if (stage.is_output) {
      if (stage.attach != Stage::ROOT) {
        throw ReplayFailure{"output stage is not at the root", s_.name_of(stage)};
      }
      for (const IterId id : stage.root) set_domain(id);
      return;
    }
    const size_t rank = stage.op->axes.size();
    if (found_.size() < rank) found_.resize(rank);
    for (auto& intervals : found_) intervals.clear();
    consumers_.clear();
    for (const BufferId output : stage.op->outputs) {
      for (size_t i = 0; i < stages_->size(); ++i) {
        if (!s_.stage((*stages_)[i]).op->reads(output)) continue;
        if (std::find(consumers_.begin(), consumers_.end(), i) == consumers_.end()) {
          consumers_.push_back(i);
        }
      }
    }
    for (const size_t consumer : consumers_) regions_read(number, consumer);
    for (size_t i = 0; i < stage.root.size(); ++i) {
      const IterId id = stage.root[i];
      if (i < rank) {
        const Range range = cover(found_[i].data(), found_[i].size(), id);
        set(id, range.minimum, range.extent);
      } else {
        set_domain(id);
      }
    }
  }

  // The range that covers all intervals; the whole axis if one is unbounded.
  Range cover(const Interval* intervals, size_t count, IterId id) {
    bool whole = count == 0;
    for (size_t i = 0; i < count; ++i) whole = whole || !intervals[i].bounded;
    if (whole) {
      const Iterator& iterator = s_.iterator(id);
      if (!iterator.has_domain) throw Declined{"root without domain"};
      return {constant(iterator.minimum), constant(iterator.extent)};
    }
    Linear low = intervals[0].low, high = intervals[0].high;
    for (size_t i = 1; i < count; ++i) {
      low = extreme(MIN, low, intervals[i].low);
      high = extreme(MAX, high, intervals[i].high);
    }
    return {low, add(add(high, constant(1)), low, -1)};
  }

  Linear extreme(Op op, const Linear& left, const Linear& right) {
    if (left == right) return left;
    const ExprId first = simplifier_.to_expr(left), second = simplifier_.to_expr(right);
    return simplifier_.linear(p_.binary(op, Program::kInt32, first, second));
  }

  bool needs_relaxing(IterId id, bool attached, int scope_rank) {
    const LoopKind kind = s_.iterator(id).kind;
    if (!is_thread(kind)) return !attached;
    return scope_rank <= (is_block_index(kind) ? 0 : 1);
  }

  int scope_rank(size_t number) {
    const Stage& stage = s_.stage((*stages_)[number]);
    if (stage.scope) {
      const std::string& scope = p_.names.text(stage.scope);
      const std::string first = scope.substr(0, scope.find('.'));
      return first == "shared" ? 1 : first == "warp" ? 2 : first == "local" ? 3 : 0;
    }
    int rank = 0;
    for (const IterId id : paths_[number]) {
      const LoopKind kind = s_.iterator(id).kind;
      if (is_thread(kind)) rank = std::max(rank, is_block_index(kind) ? 1 : 3);
    }
    return rank;
  }

  // Adds the intervals that the consumer reads of a stage's tensors to `found_` (per dimension).
  void regions_read(size_t number, size_t consumer_number) {
    const Stage& stage = s_.stage((*stages_)[number]);
    const Stage& consumer = s_.stage((*stages_)[consumer_number]);
    const std::vector<IterId>& path = paths_[number];
    const int rank = scope_rank(number);
    bool attached = false;
    up_.clear();
    for (size_t i = consumer.leaf.size(); i-- > 0;) {
      const IterId id = consumer.leaf[i];
      attached = attached || (!path.empty() && id == path[0]);
      const Range& range = ranges_.at(id);
      if (range.extent == constant(1)) {
        up_.set(id, {true, range.minimum, range.minimum});
      } else if (!needs_relaxing(id, attached, rank)) {
        const Linear point = simplifier_.linear(p_.variable(s_.iterator(id).name));
        up_.set(id, {true, point, point});
      } else {
        up_.set(id, interval(id));
      }
    }
    domains_.clear();
    bool relaxes = false;
    for (const IterId id : paths_[consumer_number]) {
      attached = attached || (!path.empty() && id == path[0]);
      if (needs_relaxing(id, attached, rank)) {
        domains_.set(s_.iterator(id).name, interval(id));
        relaxes = true;
      }
    }
    if (!path.empty() && !attached) {
      throw ReplayFailure{"stage is attached where its consumer cannot see it",
                          s_.name_of(stage) + " read by " + s_.name_of(consumer)};
    }
    pass_up_domain(consumer);
    read_.clear();
    for (const IterId id : consumer.root) {
      const Interval above = up_.at(id);
      const Range range = cover(&above, 1, id);
      const Linear high = last_of(range.minimum, range.extent);
      if (!relaxes) {
        read_.push_back({true, range.minimum, high});
        continue;
      }
      const Interval first = evaluate(simplifier_.to_expr(range.minimum));
      const Interval last = evaluate(simplifier_.to_expr(high));
      read_.push_back({first.bounded && last.bounded, first.low, last.high});
    }
    domains_.clear();
    for (size_t i = 0; i < read_.size(); ++i) {
      domains_.set(s_.iterator(consumer.root[i]).name, read_[i]);
    }
    visit_reads(stage, *consumer.op);
  }

  void visit_reads(const Stage& stage, const DagOp& consumer) {
    const std::vector<BufferId>& outputs = stage.op->outputs;
    seen_.clear();
    stack_ = consumer.body;
    if (consumer.has_reduction && consumer.reduce.condition != kNone) {
      stack_.push_back(consumer.reduce.condition);
    }
    while (!stack_.empty()) {
      const ExprId id = stack_.back();
      stack_.pop_back();
      if (seen_.has(id)) continue;
      seen_.set(id);
      const Node node = p_.node(id);
      for (u32 i = 0; i < node.arg_count; ++i) stack_.push_back(p_.arg(id, i));
      const BufferId buffer = static_cast<BufferId>(node.value);
      if (node.op != LOAD || std::find(outputs.begin(), outputs.end(), buffer) == outputs.end()) {
        continue;
      }
      for (u32 i = 0; i < node.arg_count; ++i) {
        if (i >= stage.op->axes.size()) throw Declined{"more indices than dimensions"};
        found_[i].push_back(clip(evaluate(p_.arg(id, i)), p_.extent(buffer, i)));
      }
    }
  }

  // The whole dimension if it is provably inside the interval.
  Interval clip(const Interval& interval, i64 extent) {
    const Interval whole{true, constant(0), constant(sub(extent, 1))};
    if (!interval.bounded) return whole;
    const bool covers = simplifier_.bounds_of(interval.low).high <= 0 &&
                        simplifier_.bounds_of(interval.high).low >= static_cast<double>(extent - 1);
    return covers ? whole : interval;
  }

  Interval interval(IterId id) {
    const Range range = ranges_.at(id);
    return {true, range.minimum, last_of(range.minimum, range.extent)};
  }

  // Propagation of ranges between iterators of one stage.

  void pass_down(const Stage& stage) {
    derive_threads(stage);
    for (const Relation& r : stage.relations) {
      if (r.kind == Relation::SPLIT) {
        const Linear parent = ranges_.at(r.parent).extent;
        const IterId given = r.has_factor ? r.inner : r.outer;
        const IterId other = r.has_factor ? r.outer : r.inner;
        const bool below = simplifier_.bounds_of(parent).high < static_cast<double>(r.length);
        set(given, {}, below && !is_bound_.at(given) ? parent : constant(r.length));
        set(other, {}, ceil_div(parent, r.length));
        bind(r.outer);
        bind(r.inner);
      } else if (r.kind == Relation::FUSE) {
        set(r.parent, {}, product(ranges_.at(r.outer).extent, ranges_.at(r.inner).extent));
        bind(r.parent);
      } else if (r.kind == Relation::REBASE) {
        set(r.outer, {}, ranges_.at(r.parent).extent);
        bind(r.outer);
      } else {
        set(r.parent, {}, constant(1));
        bind(r.parent);
      }
    }
  }

  // Sets `is_bound_`: whether an iterator is part of a thread binding.
  void derive_threads(const Stage& stage) {
    is_bound_.clear();
    for (const IterId id : stage.leaf) is_bound_.set(id, is_thread(s_.iterator(id).kind));
    for (auto r = stage.relations.rbegin(); r != stage.relations.rend(); ++r) {
      if (r->kind == Relation::SPLIT) {
        is_bound_.set(r->parent, is_bound_.at(r->inner) || is_bound_.at(r->outer));
      } else if (r->kind == Relation::FUSE) {
        const char fused = is_bound_.at(r->parent);
        is_bound_.set(r->inner, fused);
        is_bound_.set(r->outer, fused);
      } else if (r->kind == Relation::REBASE) {
        is_bound_.set(r->parent, is_bound_.at(r->outer));
      }
    }
  }

  Linear ceil_div(const Linear& extent, i64 length) {
    if (simplifier_.floormod(extent, length) == constant(0)) {
      return simplifier_.floordiv(extent, length);
    }
    return simplifier_.floordiv(add(extent, constant(length - 1)), length);
  }

  Linear product(const Linear& left, const Linear& right) {
    if (left.is_constant()) return simplifier_.scale(right, left.constant);
    if (right.is_constant()) return simplifier_.scale(left, right.constant);
    const ExprId first = simplifier_.to_expr(left), second = simplifier_.to_expr(right);
    return simplifier_.linear(p_.binary(MUL, Program::kInt32, first, second));
  }

  void pass_up_domain(const Stage& stage) {
    for (auto r = stage.relations.rbegin(); r != stage.relations.rend(); ++r) {
      if (r->kind == Relation::SPLIT) up_.set(r->parent, split_domain(*r));
      if (r->kind == Relation::FUSE) fuse_domain(*r);
      if (r->kind == Relation::REBASE) {
        up_.set(r->parent, shift(up_.at(r->outer), ranges_.at(r->parent).minimum));
      }
    }
  }

  Interval shift(const Interval& interval, const Linear& offset) {
    if (!interval.bounded) return {};
    return {true, add(interval.low, offset), add(interval.high, offset)};
  }
  bool is_whole(const Interval& found, IterId id) { return found == interval(id); }

  Interval split_domain(const Relation& split) {
    const Interval outer = up_.at(split.outer), inner = up_.at(split.inner);
    if (is_whole(outer, split.outer) && is_whole(inner, split.inner)) return interval(split.parent);
    if (!outer.bounded || !inner.bounded) return {};
    const Linear factor = ranges_.at(split.inner).extent;
    const Linear offset = ranges_.at(split.parent).minimum;
    const Linear low = add(add(product(outer.low, factor), inner.low), offset);
    const Linear high = add(add(product(outer.high, factor), inner.high), offset);
    return {true, low, high};
  }

  void fuse_domain(const Relation& fuse) {
    const Interval fused = up_.at(fuse.parent);
    if (is_whole(fused, fuse.parent)) {
      up_.set(fuse.outer, interval(fuse.outer));
      up_.set(fuse.inner, interval(fuse.inner));
      return;
    }
    const Linear outer_min = ranges_.at(fuse.outer).minimum;
    const Linear inner_min = ranges_.at(fuse.inner).minimum;
    const Linear extent = ranges_.at(fuse.inner).extent;
    if (!fused.bounded || !extent.is_constant()) {
      up_.set(fuse.outer, {});
      up_.set(fuse.inner, {});
      return;
    }
    const i64 width = extent.constant;
    if (width < 1) throw Declined{"empty axis"};
    const Linear first = simplifier_.floordiv(fused.low, width);
    const Linear last = simplifier_.floordiv(fused.high, width);
    up_.set(fuse.outer, shift({true, first, last}, outer_min));
    if (fused.low == fused.high) {
      const Linear inside = simplifier_.floormod(fused.low, width);
      up_.set(fuse.inner, shift({true, inside, inside}, inner_min));
      return;
    }
    const Linear count = add(add(fused.high, fused.low, -1), constant(1));
    if (count.is_constant() && count.constant < 1) throw Declined{"empty range"};
    if (count.is_constant() && width % count.constant == 0 &&
        simplifier_.floormod(fused.low, count.constant) == constant(0)) {
      const Linear low = simplifier_.floormod(fused.low, width);
      const Linear high = simplifier_.floormod(fused.high, width);
      up_.set(fuse.inner, shift({true, low, high}, inner_min));
    } else {
      up_.set(fuse.inner, interval(fuse.inner));
    }
  }

  // The interval of an index over the variables in `domains_`.
  Interval evaluate(ExprId id) {
    const Node node = p_.node(id);
    if (node.op == VAR) {
      if (const Interval* domain = domains_.find(static_cast<u32>(node.value))) return *domain;
    }
    if (node.op == VAR || node.op == CONST) {
      const Linear point = simplifier_.linear(id);
      return {true, point, point};
    }
    if (node.op == CAST && p_.dtype(p_.arg(id, 0)).starts_with_int) return evaluate(p_.arg(id, 0));
    if (node.op == SELECT) {
      const Interval a = evaluate(p_.arg(id, 1)), b = evaluate(p_.arg(id, 2));
      if (!a.bounded || !b.bounded) return {};
      const Linear low = extreme(MIN, a.low, b.low);
      return {true, low, extreme(MAX, a.high, b.high)};
    }
    if (!is_int_arithmetic(node.op)) return {};
    const Interval a = evaluate(p_.arg(id, 0)), b = evaluate(p_.arg(id, 1));
    if (!a.bounded || !b.bounded) return {};
    return combine(node.op, a, b);
  }

  Interval combine(Op op, Interval a, Interval b) {
    if (op == ADD) return {true, add(a.low, b.low), add(a.high, b.high)};
    if (op == SUB) return {true, add(a.low, b.high, -1), add(a.high, b.low, -1)};
    if (op == MIN || op == MAX) {
      const Linear low = extreme(op, a.low, b.low);
      return {true, low, extreme(op, a.high, b.high)};
    }
    if (op == MUL && a.low == a.high && a.low.is_constant()) std::swap(a, b);
    if (b.low != b.high || !b.low.is_constant()) {
      if (op != MUL || a.low != a.high || b.low != b.high) return {};
      const Linear point = product(a.low, b.low);
      return {true, point, point};
    }
    const i64 value = b.low.constant;
    if (op == MUL) {
      const Linear low = simplifier_.scale(a.low, value), high = simplifier_.scale(a.high, value);
      return value >= 0 ? Interval{true, low, high} : Interval{true, high, low};
    }
    if (value <= 0) return {};
    if (op == FLOORDIV || op == DIV) {
      const Linear low = simplifier_.floordiv(a.low, value);
      return {true, low, simplifier_.floordiv(a.high, value)};
    }
    if (a.low == a.high) {
      const Linear point = simplifier_.floormod(a.low, value);
      return {true, point, point};
    }
    const Linear first = simplifier_.floordiv(a.low, value);
    const Linear last = simplifier_.floordiv(a.high, value);
    if (first == last) {
      const Linear base = simplifier_.scale(first, value);
      return {true, add(a.low, base, -1), add(a.high, base, -1)};
    }
    return {true, constant(0), constant(value - 1)};
  }

  ScheduleState& s_;
  Program& p_;
  Simplifier& simplifier_;
  const std::vector<StageId>* stages_ = nullptr;
  StampedMap<Range> ranges_;
  std::vector<std::vector<IterId>> paths_;
  std::vector<std::vector<Interval>> found_;
  std::vector<size_t> consumers_;
  StampedMap<Interval> up_, domains_;
  StampedMap<char> is_bound_;
  std::vector<Interval> read_;
  Stamps seen_;
  std::vector<ExprId> stack_;
};

}  // namespace cdmpp
