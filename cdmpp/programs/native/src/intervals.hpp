// Intervals and coefficients of index expressions (see tests/programs/reference/intervals.py and
// tests/programs/reference/coefficients.py).
#pragma once

#include "tree.hpp"

namespace cdmpp {

// Bit set of loop variables.
struct Mask {
  static constexpr u32 kBits = 192;
  u64 words[3] = {0, 0, 0};

  static Mask of(u32 bit) {
    Mask mask;
    mask.words[bit / 64] = u64{1} << (bit % 64);
    return mask;
  }
  bool any() const { return (words[0] | words[1] | words[2]) != 0; }
};
inline Mask operator|(const Mask& a, const Mask& b) {
  return {{a.words[0] | b.words[0], a.words[1] | b.words[1], a.words[2] | b.words[2]}};
}
inline Mask operator&(const Mask& a, const Mask& b) {
  return {{a.words[0] & b.words[0], a.words[1] & b.words[1], a.words[2] & b.words[2]}};
}
inline Mask operator~(const Mask& a) { return {{~a.words[0], ~a.words[1], ~a.words[2]}}; }
inline bool operator==(const Mask& a, const Mask& b) {
  return a.words[0] == b.words[0] && a.words[1] == b.words[1] && a.words[2] == b.words[2];
}

struct Span {
  i64 low, high;
};

class IntervalAnalysis {
 public:
  explicit IntervalAnalysis(const Program& program) : p_(program) {}

  void reset() {
    variables_.clear();
    variable_count_ = 0;
    masks_.clear();
    heads_.clear();
    entries_.clear();
    coefficients_.clear();
  }

  // Declares a loop variable over [minimum, minimum + extent) and returns its bit.
  u32 declare(NameId name, const Extent& minimum, const Extent& extent) {
    const Mask inside = mask(minimum) | mask(extent);
    if (variables_.has(name)) throw Declined{"loop variable of a name in use"};
    const u32 bit = new_variable();
    variables_.set(name, {true, bit, minimum, extent, Mask::of(bit) | inside});
    return bit;
  }

  // The minimum of a variable; 0 if unknown.
  i64 lowest(NameId name) {
    const i64 low = variable(name, {}).low;
    return low == kUnbounded.low ? 0 : low;
  }

  // The loop variables in an expression.
  Mask mask(ExprId id) {
    const Node& node = p_.node(id);
    if (node.op == CONST) return {};
    if (node.op == VAR) {
      const NameId name = static_cast<NameId>(node.value);
      if (const Variable* found = variables_.find(name)) return found->mask;
      const u32 bit = new_variable();
      variables_.set(name, {false, bit, {true, 0, kNone}, {true, 1, kNone}, {}});
      return {};
    }
    if (const Mask* found = masks_.find(id)) return *found;
    Mask result;
    for (u32 i = 0; i < node.arg_count; ++i) result = result | mask(p_.arg(id, i));
    masks_.set(id, result);
    return result;
  }

  // Bounds of an expression if the variables in `wide` vary and the others have their minimum.
  Span interval(ExprId id, const Mask& wide) {
    const Node& node = p_.node(id);
    if (node.op == CONST) {
      if (p_.dtype(id).counts_as_float) throw Declined{"float in an index"};
      return {node.value, node.value};
    }
    const Mask key = mask(id) & wide;
    const u32* head = heads_.find(id);
    const u32 first = head ? *head : kNone;
    for (u32 at = first; at != kNone; at = entries_[at].next) {
      if (entries_[at].key == key) return entries_[at].span;
    }
    const Span span = evaluate(id, wide);
    const u32* now = heads_.find(id);
    entries_.push_back({key, span, now ? *now : kNone});
    heads_.set(id, static_cast<u32>(entries_.size() - 1));
    return span;
  }

  // The original's approximation of a variable's coefficient in an index that contains it.
  i64 coefficient(ExprId index, u32 bit) {
    const u64 key = (static_cast<u64>(index) << 8) | bit;
    for (size_t i = 0; i < coefficients_.size(); ++i) {
      if (coefficients_[i].first == key) return coefficients_[i].second;
    }
    multiplied_ = added_ = false;
    value_ = kGuess;
    walk(index, Mask::of(bit));
    const i64 found = !multiplied_ && !added_ ? 1 : value_;
    coefficients_.emplace_back(key, found);
    if (coefficients_.size() > 64) coefficients_.erase(coefficients_.begin());
    return found;
  }

 private:
  struct Variable {
    bool is_declared;
    u32 bit;
    Extent minimum, extent;
    Mask mask;
  };
  struct Entry {
    Mask key;
    Span span;
    u32 next;
  };
  static constexpr i64 kGuess = 2;
  static constexpr Span kUnbounded = {-(i64{1} << 31), (i64{1} << 31) - 1};

  u32 new_variable() {
    if (variable_count_ >= Mask::kBits) throw Declined{"too many variables"};
    return variable_count_++;
  }

  Mask mask(const Extent& value) { return value.is_constant ? Mask{} : mask(value.expr); }

  static Span around(i64 a, i64 b, i64 c, i64 d) {
    return {std::min(std::min(a, b), std::min(c, d)), std::max(std::max(a, b), std::max(c, d))};
  }

  Span evaluate(ExprId id, const Mask& wide) {
    const Node& node = p_.node(id);
    if (node.op == VAR) return variable(static_cast<NameId>(node.value), wide);
    if (node.op == SELECT) {
      const Span one = interval(p_.arg(id, 1), wide), other = interval(p_.arg(id, 2), wide);
      return {std::min(one.low, other.low), std::max(one.high, other.high)};
    }
    if (node.op == CAST && !p_.dtype(p_.arg(id, 0)).starts_with_float) {
      return interval(p_.arg(id, 0), wide);
    }
    if (!is_int_arithmetic(node.op)) return kUnbounded;
    const Span a = interval(p_.arg(id, 0), wide), b = interval(p_.arg(id, 1), wide);
    switch (node.op) {
      case ADD:
        return {add(a.low, b.low), add(a.high, b.high)};
      case SUB:
        return {sub(a.low, b.high), sub(a.high, b.low)};
      case MUL:
        return around(mul(a.low, b.low), mul(a.low, b.high), mul(a.high, b.low),
                      mul(a.high, b.high));
      case MIN:
        return {std::min(a.low, b.low), std::min(a.high, b.high)};
      case MAX:
        return {std::max(a.low, b.low), std::max(a.high, b.high)};
      default:
        return divided(node.op, a, b);
    }
  }

  Span variable(NameId name, const Mask& wide) {
    const Variable* found = variables_.find(name);
    if (!found || !found->is_declared) return kUnbounded;
    const Variable variable = *found;
    Span span = bound(variable.minimum, wide);
    if ((Mask::of(variable.bit) & wide).any()) {
      const i64 count = bound(variable.extent, wide).high;
      span.high = add(span.high, std::max<i64>(count, 1) - 1);
    }
    return span;
  }

  Span bound(const Extent& value, const Mask& wide) {
    return value.is_constant ? Span{value.value, value.value} : interval(value.expr, wide);
  }

  static Span divided(Op op, const Span& value, const Span& by) {
    if (by.low <= 0) return kUnbounded;
    switch (op) {
      case FLOORDIV:
        return around(floordiv(value.low, by.low), floordiv(value.low, by.high),
                      floordiv(value.high, by.low), floordiv(value.high, by.high));
      case FLOORMOD:
        if (value.low < 0) return {0, by.high - 1};
        if (value.high < by.low) return value;
        return {0, std::min(value.high, by.high - 1)};
      case DIV:
        return around(value.low / by.low, value.low / by.high, value.high / by.low,
                      value.high / by.high);
      default:
        if (value.low >= 0) {
          if (value.high < by.low) return value;
          return {0, std::min(value.high, by.high - 1)};
        }
        return {std::max(value.low, 1 - by.high),
                std::min<i64>(std::max<i64>(value.high, 0), by.high - 1)};
    }
  }

  void walk(ExprId id, const Mask& variable) {
    const Node& node = p_.node(id);
    if (node.op == VAR) {
      value_ = kGuess;
      return;
    }
    for (u32 i = 0; i < node.arg_count; ++i) {
      if ((mask(p_.arg(id, i)) & variable).any()) walk(p_.arg(id, i), variable);
    }
    if (node.op == MUL && !added_) {
      for (u32 i = 0; i < node.arg_count; ++i) {
        if (!p_.is_const(p_.arg(id, i))) continue;
        multiplied_ = true;
        value_ = p_.int_value(p_.arg(id, i));
        break;
      }
    } else if (node.op == ADD && !multiplied_) {
      added_ = true;
      value_ = 1;
    }
  }

  const Program& p_;
  StampedMap<Variable> variables_;
  u32 variable_count_ = 0;
  StampedMap<Mask> masks_;
  StampedMap<u32> heads_;
  std::vector<Entry> entries_;
  std::vector<std::pair<u64, i64>> coefficients_;
  bool multiplied_ = false, added_ = false;
  i64 value_ = 0;
};

}  // namespace cdmpp
