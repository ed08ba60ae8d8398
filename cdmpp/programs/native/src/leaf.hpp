// The 164 values and the additional columns of every store (see tests/programs/reference/leaf.py
// and tests/programs/reference/operations.py).
#pragma once

#include "extra.hpp"

namespace cdmpp {

constexpr size_t kLeafFeatures = 164;

class LeafWalk {
 public:
  LeafWalk(const Program& program, const Tree& tree)
      : p_(program), tree_(tree), intervals_(program),
        accesses_(program, tree, intervals_, loops_, traffic_), extra_(program, intervals_) {}

  // Appends one row per store to both outputs, in program order.
  void run(const std::vector<TreeId>& nodes, bool is_gpu, bool has_sets, std::vector<float>* rows,
           std::vector<float>* extra) {
    is_gpu_ = is_gpu;
    rows_ = rows;
    extra_.start(is_gpu, has_sets, extra);
    intervals_.reset();
    loops_.clear();
    ended_bindings_.clear();
    allocations_.clear();
    used_traffic_ = 0;
    iterations_ = 1;
    unroll_max_step_ = 0;
    visit_all(nodes);
    extra_.finish();
  }

 private:
  static constexpr size_t kSlots = ExtraWalk::kSlots, kSlotColumns = 18;
  static constexpr size_t kSamples = 10, kPositions = 8;
  // Counters in column order: add, mul, div, compare, math and other calls of floats (after the
  // fused multiply-add, which is never counted), the same for integers, then bool and select.
  enum Counter : u8 { FLOAT = 0, INT = 7, ADDSUB = 1, MULTIPLY = 2, DIVMOD = 3, COMPARE = 4,
                      MATH = 5, OTHER = 6, BOOL_OP = 14, SELECT_OP = 15, COUNTERS = 16 };
  struct Allocated {
    double elements, outer;
  };

  static double signed_log(double value) {
    return value < 0 ? -std::log2(1.0 - value) : std::log2(value + 1.0);
  }
  void put(double value) { rows_->push_back(static_cast<float>(value)); }

  void visit_all(const std::vector<TreeId>& nodes) {
    for (const TreeId id : nodes) visit(id);
  }

  void visit(TreeId id) {
    const TreeNode& node = tree_[id];
    switch (node.type) {
      case TreeNode::STORE:
        row(id);
        break;
      case TreeNode::LOOP:
        visit_loop(node);
        break;
      case TreeNode::ALLOCATION: {
        i64 elements = 1;
        for (const Extent& extent : node.extents) {
          if (extent.is_constant) elements = mul(elements, extent.value);
        }
        allocations_.set(node.buffer, {static_cast<double>(elements), iterations_});
        extra_.allocate(node);
        visit_all(node.body);
        break;
      }
      case TreeNode::UNROLL: {
        const i64 outer = unroll_max_step_;
        unroll_max_step_ = node.unroll_max_step;
        visit_all(node.body);
        unroll_max_step_ = outer;
        break;
      }
      case TreeNode::CONDITION:
        extra_.enter_condition(node.expr);
        for (size_t i = 0; i < node.body.size(); ++i) {
          if (i + node.otherwise == node.body.size()) extra_.otherwise();
          visit(node.body[i]);
        }
        extra_.leave_condition(node.expr);
        break;
      default:
        visit_all(node.body);
    }
  }

  void visit_loop(const TreeNode& node) {
    const u32 bit = intervals_.declare(node.name, node.minimum, node.extent);
    extra_.declare(node);
    const i64 extent = node.extent.is_constant ? std::max<i64>(node.extent.value, 1) : 1;
    const bool binds = is_thread(node.kind);
    if (node.extent.is_constant && node.extent.value == 1 && !binds) {
      visit_all(node.body);
      return;
    }
    // A thread binding continues the traffic of the binding that ended last.
    u32 traffic;
    if (binds && !ended_bindings_.empty()) {
      traffic = ended_bindings_.back();
      ended_bindings_.pop_back();
    } else {
      traffic = static_cast<u32>(used_traffic_++);
      if (traffic == traffic_.size()) traffic_.emplace_back();
      traffic_[traffic].clear();
    }
    const double outer = iterations_;
    loops_.push_back({bit, extent, node.kind, traffic});
    iterations_ = outer * static_cast<double>(extent);
    extra_.enter_loop(node.name, extent, node.kind, bit);
    visit_all(node.body);
    extra_.leave_loop();
    iterations_ = outer;
    loops_.pop_back();
    if (binds) ended_bindings_.push_back(traffic);
  }

  void row(TreeId store) {
    const size_t first = rows_->size();
    count_operations(tree_[store].expr);
    const std::vector<AccessFeatures>& slots = accesses_.run(store, iterations_);
    for (const i64 count : counts_) put(signed_log(iterations_ * static_cast<double>(count)));
    for (const LoopKind kind : {VECTORIZED, UNROLLED, PARALLEL}) annotation_columns(kind);
    thread_columns();
    access_columns(slots);
    i64 float_ops = 0;
    for (int i = FLOAT; i < INT; ++i) float_ops += counts_[i];
    intensity_columns(static_cast<double>(float_ops));
    allocation_columns(tree_[store].buffer);
    put(signed_log(iterations_));
    put(signed_log(static_cast<double>(loops_.size())));
    put(signed_log(static_cast<double>(unroll_max_step_)));
    if (rows_->size() - first != kLeafFeatures) throw Declined{"wrong number of columns"};
    extra_row(tree_[store], slots, float_ops);
  }

  void extra_row(const TreeNode& store, const std::vector<AccessFeatures>& slots, i64 float_ops) {
    for (size_t i = 0; i < slots.size(); ++i) extra_.note_input(accesses_[i].buffer);
    ExtraWalk::Leaf leaf;
    leaf.value = store.expr;
    leaf.is_across_threads = store.is_across_threads;
    leaf.written = &accesses_[0];
    leaf.slot_count = kept_.size();
    leaf.element_bytes = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      leaf.element_bytes += p_.element_bytes(accesses_[i].buffer);
    }
    leaf.accesses = &accesses_;
    for (size_t i = 0; i < kept_.size(); ++i) {
      leaf.slots[i] = &accesses_[static_cast<size_t>(kept_[i] - slots.data())];
    }
    leaf.iterations = iterations_;
    leaf.float_ops = float_ops;
    leaf.selects = counts_[SELECT_OP];
    leaf.guards = guards_;
    leaf.unroll_max_step = unroll_max_step_;
    extra_.add_row(leaf);
  }

  void count_operations(ExprId value) {
    std::fill(std::begin(counts_), std::end(counts_), 0);
    guards_ = 0;
    pending_.assign(1, value);
    size_t steps = 0;
    while (!pending_.empty()) {
      const ExprId id = pending_.back();
      pending_.pop_back();
      if (++steps > kMaxSteps) throw Declined{"expression too large"};
      const Node& node = p_.node(id);
      const ExprId* args = p_.args.data() + node.first_arg;
      for (u32 i = 0; i < node.arg_count; ++i) {
        if (p_.node(args[i]).arg_count || p_.node(args[i]).op == CALL) pending_.push_back(args[i]);
      }
      count(node);
    }
  }

  void count(const Node& node) {
    if (node.op == CALL) {
      guards_ += node.value == p_.if_then_else;
      const std::string& name = p_.names.text(static_cast<NameId>(node.value));
      ++counts_[domain(p_.dtypes[node.dtype]) + (is_opaque(name) ? OTHER : MATH)];
    } else if (node.op == AND || node.op == OR || node.op == NOT) {
      ++counts_[BOOL_OP];
    } else if (node.op == SELECT) {
      ++counts_[SELECT_OP];
    } else if (node.op >= ADD) {
      const int group = node.op <= SUB        ? ADDSUB
                        : node.op == MUL      ? MULTIPLY
                        : node.op <= FLOORMOD ? DIVMOD
                                              : COMPARE;
      ++counts_[domain(p_.dtype(p_.args[node.first_arg])) + group];
    }
  }

  static int domain(const DType& dtype) { return dtype.counts_as_float ? FLOAT : INT; }

  void annotation_columns(LoopKind kind) {
    double number = 0, product = 1, last = 0;
    for (const EnclosingLoop& loop : loops_) {
      if (loop.kind != kind) continue;
      number += 1;
      product *= static_cast<double>(loop.extent);
      last = static_cast<double>(loop.extent);
    }
    const bool any = number > 0;
    put(any ? signed_log(number) : 0);
    put(any ? signed_log(product) : 0);
    put(any ? signed_log(last) : 0);
    for (size_t i = 0; i < kPositions; ++i) put(i == (any ? kPositions - 1 : 0) ? 1 : 0);
  }

  void thread_columns() {
    put(is_gpu_ ? 1 : 0);
    double extents[THREAD_Z + 1], vthreads = 1;
    std::fill(std::begin(extents), std::end(extents), 1.0);
    for (const EnclosingLoop& loop : loops_) {
      extents[loop.kind] = static_cast<double>(loop.extent);
      if (loop.kind == VTHREAD) vthreads *= static_cast<double>(loop.extent);
    }
    for (const LoopKind kind : {BLOCK_X, BLOCK_Y, BLOCK_Z, THREAD_X, THREAD_Y, THREAD_Z}) {
      put(signed_log(extents[kind]));
    }
    put(signed_log(vthreads));
  }

  void access_columns(const std::vector<AccessFeatures>& slots) {
    kept_.clear();
    for (const AccessFeatures& slot : slots) kept_.push_back(&slot);
    std::stable_sort(kept_.begin(), kept_.end(), [](const auto* a, const auto* b) {
      return a->lines != b->lines ? a->lines > b->lines : a->bytes > b->bytes;
    });
    if (kept_.size() > kSlots) kept_.resize(kSlots);
    std::stable_sort(kept_.begin(), kept_.end(), [](const auto* a, const auto* b) {
      if (a->reuse_bytes != b->reuse_bytes) return a->reuse_bytes < b->reuse_bytes;
      if (a->unique_bytes != b->unique_bytes) return a->unique_bytes < b->unique_bytes;
      if (a->unique_lines != b->unique_lines) return a->unique_lines < b->unique_lines;
      return a->kind < b->kind;
    });
    for (const AccessFeatures* slot : kept_) {
      const double shared = slot->reuse_count > 0.5 ? slot->reuse_count : 0.5;
      const double sizes[4] = {slot->bytes, slot->unique_bytes, slot->lines, slot->unique_lines};
      for (int kind = 0; kind < 3; ++kind) put(kind == slot->kind ? 1 : 0);
      for (const double size : sizes) put(signed_log(size));
      for (int kind = 0; kind < 3; ++kind) put(kind == slot->reuse_kind ? 1 : 0);
      put(signed_log(slot->reuse_iterations));
      put(signed_log(slot->reuse_bytes));
      put(signed_log(slot->reuse_count));
      for (const double size : sizes) put(signed_log(size / shared));
      put(signed_log(static_cast<double>(slot->stride)));
    }
    rows_->resize(rows_->size() + (kSlots - kept_.size()) * kSlotColumns, 0.0f);
  }

  // log2(operations) / log2(bytes) at ten points, interpolated between loops, innermost first.
  void intensity_columns(double float_ops) {
    if (float_ops == 0 || loops_.empty()) {
      rows_->resize(rows_->size() + kSamples, 0.0f);
      return;
    }
    operations_.clear();
    intensity_.clear();
    double total = float_ops;
    const std::vector<i64>& bytes = accesses_.bytes_by_loop();
    for (size_t i = 0; i < loops_.size(); ++i) {
      total *= static_cast<double>(loops_[loops_.size() - 1 - i].extent);
      operations_.push_back(std::log2(total));
      const double size = static_cast<double>(std::max<i64>(bytes[i], 2));
      intensity_.push_back(operations_.back() / std::log2(size));
    }
    size_t point = 0;
    for (size_t sample = 1; sample <= kSamples; ++sample) {
      const double wanted =
          operations_.back() * static_cast<double>(sample) / static_cast<double>(kSamples);
      while (point + 1 < operations_.size() && operations_[point] < wanted - 1e-4) ++point;
      if (point == 0) {
        put(intensity_[0]);
        continue;
      }
      const double step = operations_[point] - operations_[point - 1];
      const double slope = (intensity_[point] - intensity_[point - 1]) / step;
      put(intensity_[point - 1] + slope * (wanted - operations_[point - 1]));
    }
  }

  void allocation_columns(BufferId buffer) {
    const Allocated* found = allocations_.find(buffer);
    if (!found) {
      rows_->resize(rows_->size() + 4, 0.0f);
      return;
    }
    put(signed_log(found->elements * static_cast<double>(p_.element_bytes(buffer))));
    put(signed_log(found->elements * found->outer));
    put(signed_log(found->outer));
    put(signed_log(iterations_ / found->outer));
  }

  static constexpr size_t kMaxSteps = 20u << 20;

  const Program& p_;
  const Tree& tree_;
  std::vector<EnclosingLoop> loops_;
  std::deque<Traffic> traffic_;
  IntervalAnalysis intervals_;
  AccessAnalysis accesses_;
  ExtraWalk extra_;
  size_t used_traffic_ = 0;
  std::vector<u32> ended_bindings_;
  StampedMap<Allocated> allocations_;
  double iterations_ = 1;
  i64 unroll_max_step_ = 0;
  bool is_gpu_ = false;
  std::vector<float>* rows_ = nullptr;
  i64 counts_[COUNTERS], guards_ = 0;
  std::vector<ExprId> pending_;
  std::vector<const AccessFeatures*> kept_;
  std::vector<double> operations_, intensity_;
};

}  // namespace cdmpp
