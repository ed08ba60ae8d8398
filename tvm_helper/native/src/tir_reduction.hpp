// Reductions across threads, as TVM's `LowerCrossThreadReduction` finds them. Unusual forms are left
// to that pass.
#pragma once

#include <cfloat>

#include "tir_types.hpp"

namespace cdmpp {

// Thrown if passes of TVM must lower the function first.
struct NeedsLowering {};

// A nest of loops around one block, all of them reduction loops of the block, some bound to threads.
struct SharedReduction {
  std::vector<const Object*> loops;  // outermost first
  const Object* realize = nullptr;
  const Object* block = nullptr;
  const Object* init = nullptr;    // value of the initial store
  const Object* update = nullptr;  // store of a round
  bool has_rounds = false;         // whether a thread reduces more than one value

  // Returns whether a loop is the outermost of such a nest.
  bool find(const TirLayout& l, const Object* loop) {
    loops.clear();
    bool has_thread = false;
    const Object* at = loop;
    for (; l.kind(at) == FOR; at = l.loop_body(at)) {
      loops.push_back(at);
      has_thread |= l.thread_binding(at) != nullptr;
    }
    if (!has_thread || l.kind(at) != BLOCK_REALIZE) return false;
    realize = at;
    block = l.block(at);
    if (!l.block_init(block)) return false;
    const Items iterators(l.block_vars(block)), bindings(l.iter_values(realize));
    std::vector<const Object*> reduced, others;
    for (size_t i = 0; i < bindings.size(); ++i) {
      const bool is_reduced = l.iter_type(iterators[i]) == kReduceAxis;
      variables(l, bindings[i], is_reduced ? &reduced : &others);
    }
    const auto has = [](const std::vector<const Object*>& all, const Object* one) {
      return std::find(all.begin(), all.end(), one) != all.end();
    };
    if (!has(reduced, l.loop_var(loop))) return false;
    size_t threads = 0;
    for (const Object* one : loops) {
      const Object* variable = l.loop_var(one);
      if (!has(reduced, variable) || has(others, variable)) throw NeedsLowering{};
      const Object* binding = l.thread_binding(one);
      if (!binding) continue;
      if (view(l.thread_tag(binding)).substr(0, 10) != "threadIdx.") throw NeedsLowering{};
      ++threads;
    }
    std::sort(reduced.begin(), reduced.end());
    reduced.erase(std::unique(reduced.begin(), reduced.end()), reduced.end());
    if (reduced.size() != loops.size()) throw NeedsLowering{};  // an outer loop is a reduction too
    has_rounds = threads < loops.size();
    read_block(l);
    return true;
  }

 private:
  static constexpr std::int32_t kReduceAxis = 2;

  // Appends the variables of a sum of products; TVM accepts no other bindings in a reduction.
  static void variables(const TirLayout& l, const Object* value, std::vector<const Object*>* all) {
    const TirKind kind = l.kind(value);
    if (kind == VARIABLE) return all->push_back(value);
    if (kind == INT_IMM) return;
    const Op op = l.op(value);
    const bool scales = op == MUL || op == FLOORDIV || op == FLOORMOD;
    if (kind != BINARY || !(op == ADD || scales) ||
        (scales && l.kind(l.right(value)) != INT_IMM)) {
      throw NeedsLowering{};
    }
    variables(l, l.left(value), all);
    variables(l, l.right(value), all);
  }

  // Finds `buffer[i] = start` and `buffer[i] = buffer[i] op value`.
  void read_block(const TirLayout& l) {
    const Object* first = l.block_init(block);
    update = l.block_body(block);
    const Object* predicate = l.predicate(realize);
    if (l.kind(predicate) != INT_IMM || l.int_value(predicate).v_int64 == 0 ||
        Items(l.match_buffers(block)).size() || Items(l.block_buffers(block)).size() ||
        l.kind(first) != BUFFER_STORE || l.kind(update) != BUFFER_STORE ||
        l.store_buffer(first) != l.store_buffer(update)) {
      throw NeedsLowering{};
    }
    init = l.store_value(first);
    const Object* value = l.store_value(update);
    if (l.kind(value) != BINARY || l.kind(l.left(value)) != TENSOR_LOAD ||
        l.load_source(l.left(value)) != l.store_buffer(update) || !is_start(l, l.op(value))) {
      throw NeedsLowering{};
    }
  }

  // Whether the initial value is the identity of the operator.
  bool is_start(const TirLayout& l, Op op) const {
    const bool is_float = l.kind(init) == FLOAT_IMM;
    if (!is_float && l.kind(init) != INT_IMM) return false;
    const double value =
        is_float ? l.float_value(init) : static_cast<double>(l.int_value(init).v_int64);
    if (op == ADD) return value == 0;
    if (op == MUL) return value == 1;
    const bool is_single = is_float && l.type_dtype(l.type(init)).bits == 32;
    return is_single && ((op == MAX && value == -FLT_MAX) || (op == MIN && value == FLT_MAX));
  }
};

}  // namespace cdmpp
