// Numbers of loops around a block that MetaSchedule's postprocessor RewriteParallelVectorizeUnroll
// fuses into a parallel and a vector loop. TVM simplifies every index again for every loop; here
// every index is converted to a linear form once.
#pragma once

#include <algorithm>

#include "pointer_map.hpp"
#include "tir_types.hpp"

namespace cdmpp {

struct NestPlan {
  i64 loops = 0;
  i64 parallel = -1, vectorized = -1;  // outermost and innermost loops; -1 = no such loop
  i64 is_spatial = 0;                  // whether all variables of the block are spatial
};

class Nests {
 public:
  explicit Nests(const TirLayout& layout) : l_(layout) {}

  bool is_of(const TirLayout& layout) const { return &layout == &l_; }

  // The plan of the block with index `place` among those directly below the root, in program order.
  // Throws Declined if only the postprocessor can compute it.
  NestPlan plan(const Object* function, size_t place, i64 most_parallel, i64 most_vectorized) {
    const Object* root = l_.function_body(function);
    if (l_.kind(root) != BLOCK_REALIZE) throw Declined{"function without a root block"};
    uses_.clear();
    loops_.clear();
    path_.clear();
    left_ = place;
    realize_ = nullptr;
    statement(l_.block_body(l_.block(root)), 0);
    if (!realize_) throw Declined{"no such block"};
    NestPlan result;
    const Object* block = l_.block(realize_);
    result.loops = static_cast<i64>(loops_.size());
    result.is_spatial = is_spatial(block);
    if (loops_.empty()) return result;
    const i64 fusible = contiguous_loops(block);
    result.parallel = parallel_loops(most_parallel);
    result.vectorized = vector_loops(most_vectorized, fusible);
    if (result.parallel < 0 || result.vectorized < 0) return result;
    if (all_are_plain() && fusible == result.loops) {
      result.parallel = result.vectorized = result.loops;
    } else {
      result.parallel = std::min(result.parallel, result.loops - result.vectorized);
    }
    return result;
  }

 private:
  static constexpr int kMaxDepth = 256;
  static constexpr std::int32_t kSpatialAxis = 0, kReduceAxis = 2;
  enum Use : u32 { SPATIAL = 1, REDUCTION = 2, OTHER = 4 };

  struct Loop {
    const Object* node;
    i64 extent;
    bool is_bound, has_one_statement;
  };
  // A quotient or remainder of a loop variable or of another part.
  struct Part {
    u32 loop;
    bool is_remainder, is_nested;
    i64 divisor;
  };
  // Sum of a constant, loop variables times factors, and parts times any factor (the postprocessor
  // ignores parts).
  struct Form {
    i64 constant = 0;
    bool has_less = false;  // whether a part is subtracted
    std::vector<i64> factors;
    std::vector<Part> parts;
  };

  // Visits all blocks and marks the kinds of axes that each loop variable is used for.
  void statement(const Object* node, int depth) {
    if (depth > kMaxDepth) throw Declined{"statements nested deeply"};
    switch (l_.kind(node)) {
      case SEQUENCE: {
        const Items items(l_.sequence(node));
        for (size_t i = 0; i < items.size(); ++i) statement(items[i], depth + 1);
        return;
      }
      case FOR:
        path_.push_back(node);
        statement(l_.loop_body(node), depth + 1);
        path_.pop_back();
        return;
      case BLOCK_REALIZE:
        return realize(node);
      default:
        throw Declined{"statement between loops and blocks"};
    }
  }

  void realize(const Object* node) {
    const Items variables(l_.block_vars(l_.block(node))), values(l_.iter_values(node));
    for (size_t i = 0; i < variables.size(); ++i) {
      const std::int32_t type = l_.iter_type(variables[i]);
      mark(values[i], type == kSpatialAxis ? SPATIAL : type == kReduceAxis ? REDUCTION : OTHER, 0);
    }
    if (realize_ || left_-- > 0) return;
    realize_ = node;
    for (const Object* loop : path_) {
      const Object* body = l_.loop_body(loop);
      const Object* annotations = l_.loop_annotations(loop);
      const bool is_annotated =
          annotations && reinterpret_cast<const tvm::ffi::MapObj*>(annotations)->size() > 0;
      loops_.push_back({loop, int_value(l_.loop_extent(loop)),
                        l_.thread_binding(loop) || is_annotated,
                        l_.kind(body) != SEQUENCE || Items(l_.sequence(body)).size() == 1});
    }
  }

  void mark(const Object* node, u32 use, int depth) {
    if (depth > kMaxDepth) throw Declined{"expression nested deeply"};
    switch (l_.kind(node)) {
      case INT_IMM:
        return;
      case VARIABLE: {
        const u32 before = uses_.find(node);
        return uses_.set(node, before == kNone ? use : before | use);
      }
      case CAST_VALUE:
        return mark(l_.cast_value(node), use, depth + 1);
      case BINARY:
        mark(l_.left(node), use, depth + 1);
        return mark(l_.right(node), use, depth + 1);
      default:
        throw Declined{"binding of another form"};
    }
  }

  bool is_data_parallel(const Loop& loop) const {
    const u32 use = uses_.find(l_.loop_var(loop.node));
    return use == kNone || use == SPATIAL;
  }
  bool is_spatial(const Object* block) const {
    const Items variables(l_.block_vars(block));
    for (size_t i = 0; i < variables.size(); ++i) {
      if (l_.iter_type(variables[i]) != kSpatialAxis) return false;
    }
    return true;
  }
  bool all_are_plain() const {
    return std::all_of(loops_.begin(), loops_.end(), [&](const Loop& loop) {
      return !loop.is_bound && is_data_parallel(loop) && loop.has_one_statement;
    });
  }

  i64 parallel_loops(i64 most) const {
    if (most < 0) return -1;
    i64 count = 0, product = 1;
    for (const Loop& loop : loops_) {
      if (!is_data_parallel(loop) || loop.is_bound) break;
      ++count;
      product *= loop.extent;
      if (product > most || !loop.has_one_statement) break;
    }
    return product == 1 ? -1 : count;
  }
  i64 vector_loops(i64 most, i64 fusible) const {
    if (most < 0) return -1;
    i64 count = 0, product = 1;
    for (auto loop = loops_.rbegin(); loop != loops_.rend() && count < fusible; ++loop) {
      if (!is_data_parallel(*loop) || loop->is_bound || !loop->has_one_statement) break;
      product *= loop->extent;
      if (product > most) break;
      ++count;
    }
    return product == 1 ? -1 : count;
  }

  // Number of innermost loops that access every buffer of the block contiguously.
  i64 contiguous_loops(const Object* block) {
    number_.clear();
    for (size_t i = 0; i < loops_.size(); ++i) {
      number_.set(l_.loop_var(loops_[i].node), static_cast<u32>(i));
    }
    bound_.clear();
    bindings_.clear();
    const Items variables(l_.block_vars(block)), values(l_.iter_values(realize_));
    for (size_t i = 0; i < variables.size(); ++i) {
      bindings_.push_back(form(values[i], 0));
    }
    for (size_t i = 0; i < variables.size(); ++i) {
      bound_.set(l_.iter_var(variables[i]), static_cast<u32>(i));
    }
    i64 fewest = static_cast<i64>(INT32_MAX);
    for (const Object* regions : {l_.block_reads(block), l_.block_writes(block)}) {
      const Items items(regions);
      for (size_t i = 0; i < items.size(); ++i) {
        fewest = std::min(fewest, contiguous_loops_of(items[i]));
      }
    }
    return fewest;
  }

  i64 contiguous_loops_of(const Object* access) {
    const std::vector<i64> strides = strides_of(access);
    i64 count = 0;
    size_t last = kNoLoop;
    for (size_t i = strides.size(); i-- > 0; ++count) {
      if (strides[i] == 0) continue;
      if (last == kNoLoop ? strides[i] != 1 && count != 0
                          : strides[i] != strides[last] * loops_[last].extent) {
        break;
      }
      last = i;
    }
    return count;
  }

  // Stride of the access in elements for every loop variable; 0 = independent.
  std::vector<i64> strides_of(const Object* access) {
    const Items ranges(l_.region(access)), shape(l_.shape(l_.type(l_.region_source(access))));
    std::vector<i64> strides(loops_.size(), 0);
    i64 row = 1;
    for (size_t dimension = ranges.size(); dimension-- > 0;) {
      const Form index = form(l_.range_min(ranges[dimension]), 0);
      // The postprocessor also ignores differences; simplification turns `x + -1` into one.
      const bool is_difference =
          index.has_less || index.constant < 0 ||
          std::any_of(index.factors.begin(), index.factors.end(), [](i64 one) { return one < 0; });
      if (may_join(index)) throw Declined{"index to simplify"};
      for (size_t i = 0; i < strides.size(); ++i) {
        if (strides[i] == 0 && !is_difference) strides[i] = index.factors[i] * row;
      }
      row *= int_value(shape[dimension]);
    }
    return strides;
  }

  Form form(const Object* node, int depth) {
    if (depth > kMaxDepth) throw Declined{"expression nested deeply"};
    Form result;
    result.factors.assign(loops_.size(), 0);
    switch (l_.kind(node)) {
      case INT_IMM:
        result.constant = int_value(node);
        return result;
      case VARIABLE: {
        const u32 loop = number_.find(node), variable = bound_.find(node);
        if (variable != kNone) return bindings_[variable];
        if (loop == kNone) throw Declined{"index of another variable"};
        result.factors[loop] = 1;
        return result;
      }
      case BINARY: {
        const Op op = l_.op(node);
        if (op == FLOORDIV || op == FLOORMOD) return part(node, depth);
        if (op != ADD && op != SUB && op != MUL) break;
        Form left = form(l_.left(node), depth + 1), right = form(l_.right(node), depth + 1);
        if (op == MUL) {
          if (!is_constant(right)) std::swap(left, right);
          if (!is_constant(right)) break;
        }
        const i64 a = op == MUL ? right.constant : 1, b = op == MUL ? 0 : op == SUB ? -1 : 1;
        result.constant = a * left.constant + b * right.constant;
        result.has_less = left.has_less || right.has_less;
        for (size_t i = 0; i < loops_.size(); ++i) {
          result.factors[i] = a * left.factors[i] + b * right.factors[i];
        }
        result.has_less |= (a < 0 && !left.parts.empty()) || (b < 0 && !right.parts.empty());
        result.parts = std::move(left.parts);
        result.parts.insert(result.parts.end(), right.parts.begin(), right.parts.end());
        return result;
      }
      default:
        break;
    }
    throw Declined{"index that is not linear"};
  }
  static bool is_constant(const Form& form) {
    const auto is_zero = [](i64 one) { return one == 0; };
    return form.parts.empty() && std::all_of(form.factors.begin(), form.factors.end(), is_zero);
  }
  // Quotient or remainder of one variable or one part: TVM would simplify others.
  Form part(const Object* node, int depth) {
    Form inner = form(l_.left(node), depth + 1);
    const i64 divisor = int_value(l_.right(node));
    const size_t count = static_cast<size_t>(std::count_if(
        inner.factors.begin(), inner.factors.end(), [](i64 one) { return one != 0; }));
    if (inner.constant != 0 || inner.has_less || count + inner.parts.size() != 1) {
      throw Declined{"quotient to simplify"};
    }
    const bool is_nested = count == 0;
    const auto found = std::find(inner.factors.begin(), inner.factors.end(), 1);
    if (!is_nested && found == inner.factors.end()) throw Declined{"quotient to simplify"};
    const u32 loop = is_nested ? inner.parts[0].loop
                               : static_cast<u32>(found - inner.factors.begin());
    inner.parts = {{loop, l_.op(node) == FLOORMOD, is_nested, divisor}};
    inner.factors.assign(loops_.size(), 0);
    return inner;
  }
  // Whether TVM might simplify the parts of a variable to the variable, as in `x // 4 * 4 + x % 4`.
  static bool may_join(const Form& form) {
    for (const Part& one : form.parts) {
      if (form.factors[one.loop] != 0) return true;
      for (const Part& other : form.parts) {
        const bool are_two = &one != &other && one.loop == other.loop;
        if (are_two && one.is_remainder && !one.is_nested &&
            (other.is_nested || other.is_remainder || other.divisor == one.divisor)) {
          return true;
        }
      }
    }
    return false;
  }

  i64 int_value(const Object* node) const {
    if (l_.kind(node) != INT_IMM) throw Declined{"extent that is not constant"};
    const TVMFFIAny& value = l_.int_value(node);
    if (value.type_index != kTVMFFIInt) throw Declined{"integer above 64 bits"};
    return value.v_int64;
  }

  static constexpr size_t kNoLoop = ~static_cast<size_t>(0);

  const TirLayout& l_;
  PointerMap uses_, number_, bound_;
  std::vector<Loop> loops_;
  std::vector<Form> bindings_;
  std::vector<const Object*> path_;
  size_t left_ = 0;
  const Object* realize_ = nullptr;
};

}  // namespace cdmpp
