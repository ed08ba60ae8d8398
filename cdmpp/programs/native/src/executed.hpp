// Executions of a store and its integer operations (see tests/programs/reference/executed.py).
#pragma once

#include "tree.hpp"

namespace cdmpp {

// Shares of iterations in which conditions hold, assuming uniformly distributed indices.
class Shares {
 public:
  explicit Shares(const Program& program) : p_(program) {}

  void reset() { ranges_.clear(); }
  void declare(NameId var, const Extent& minimum, const Extent& extent) {
    Range range;
    if (minimum.is_constant && extent.is_constant) {
      range.low = static_cast<double>(minimum.value);
      range.high = range.low + static_cast<double>(std::max<i64>(extent.value, 1)) - 1;
    }
    ranges_.set(var, range);
  }

  // 1 if unknown.
  double of(ExprId condition) const {
    const Node& node = p_.node(condition);
    const auto part = [&](u32 i) { return p_.arg(condition, i); };
    if (node.op == CALL && node.value == p_.likely && node.arg_count) return of(part(0));
    if (node.op == NOT) return otherwise(of(part(0)));
    if (node.op == AND) return of(part(0)) * of(part(1));
    if (!is_comparison(node.op)) return 1;
    Range left = range(part(0)), right = range(part(1));
    Op op = node.op;
    if (left.is_one()) {
      std::swap(left, right);
      op = op == LT ? GT : op == LE ? GE : op == GT ? LT : op == GE ? LE : op;
    }
    if (!right.is_one() || !left.is_known()) return 1;
    const double count = left.high - left.low + 1, place = right.low - left.low;
    const double equal = place >= 0 && place < count ? 1 / count : 0;
    const double share = op == EQ   ? equal
                         : op == NE ? 1 - equal
                         : op == LT ? place / count
                         : op == LE ? (place + 1) / count
                         : op == GT ? (count - 1 - place) / count
                                    : (count - place) / count;
    return std::min(std::max(share, 0.0), 1.0);
  }
  // Share of the else branch.
  static double otherwise(double share) { return share < 1 ? 1 - share : 1; }

 private:
  struct Range {
    double low = 1, high = 0;
    bool is_known() const { return low <= high; }
    bool is_one() const { return low == high; }
  };

  Range range(ExprId id) const {
    const Node& node = p_.node(id);
    if (p_.dtypes[node.dtype].counts_as_float) return {};
    if (node.op == CONST) return {static_cast<double>(node.value), static_cast<double>(node.value)};
    if (node.op == VAR) {
      const Range* found = ranges_.find(static_cast<NameId>(node.value));
      return found ? *found : Range{};
    }
    if (node.op == CAST) return range(p_.arg(id, 0));
    if (node.op < ADD || node.op > FLOORMOD) return {};
    const Range a = range(p_.arg(id, 0)), b = range(p_.arg(id, 1));
    if (!a.is_known() || !b.is_known()) return {};
    if (node.op == ADD) return {a.low + b.low, a.high + b.high};
    if (node.op == SUB) return {a.low - b.high, a.high - b.low};
    if (node.op == MUL) {
      const double ends[4] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
      return {*std::min_element(ends, ends + 4), *std::max_element(ends, ends + 4)};
    }
    if (!b.is_one() || b.low < 1) return {};
    const double low = std::floor(a.low / b.low), high = std::floor(a.high / b.low);
    if (node.op == FLOORDIV) return {low, high};
    if (node.op != FLOORMOD) return {};
    if (low != high) return {0, b.low - 1};
    return {a.low - b.low * low, a.high - b.low * low};
  }

  const Program& p_;
  StampedMap<Range> ranges_;
};

// Calls with side effects or an unknown body; every other intrinsic counts as a math function.
inline bool is_opaque(const std::string& name) {
  for (const char* prefix :
       {"tir.call_extern", "tir.call_packed", "tir.call_llvm", "tir.tvm_", "tir.tvm."}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

// Integer operations on data (without index arithmetic) by the width of the narrowest operand.
class IntegerOps {
 public:
  // For 8, 16, 32 and 64 bits: sums, products and others; then intrinsics of any width.
  static constexpr size_t kWidths = 4, kGroups = 3, kColumns = kWidths * kGroups + 1;

  explicit IntegerOps(const Program& program) : p_(program) {}

  const i64* count(ExprId value) {
    std::fill(std::begin(counts_), std::end(counts_), 0);
    visit(value);
    return counts_;
  }

 private:
  // Type of the data in a value; 0 bits = no data.
  struct Data {
    bool has_load = false, is_float = false;
    i64 bits = 0;
  };

  Data visit(ExprId id) {
    const Node& node = p_.node(id);
    if (node.op == CONST || node.op == VAR) return {};
    const DType& type = p_.dtypes[node.dtype];
    const i64 bits = node.dtype == Program::kBool ? 0 : 8 * type.bytes;
    Data own{node.op == LOAD, !type.is_int, bits}, least;
    if (node.op == LOAD) return own;
    i64 narrowest = own.bits;
    for (u32 i = 0; i < node.arg_count; ++i) {
      const Data one = visit(p_.arg(id, i));
      own.has_load |= one.has_load;
      if (!one.bits) continue;
      const bool is_less =
          one.is_float != least.is_float ? least.is_float : one.bits < least.bits;
      if (!least.bits || is_less) least = one;
      if (one.is_float == own.is_float) narrowest = std::min(narrowest, one.bits);
    }
    if (own.has_load) add(node, own, least);
    if (!own.is_float && node.op != CALL) own.bits = narrowest;
    return own;
  }

  void add(const Node& node, const Data& own, const Data& least) {
    if (node.op == CALL) {
      const NameId name = static_cast<NameId>(node.value);
      const bool has_work =
          name != p_.likely && name != p_.if_then_else && name != p_.reinterpret;
      if (own.is_float || !own.bits || !has_work) return;
      ++counts_[is_opaque(p_.names.text(name)) ? kColumns - 1 : place(own.bits) + 2];
    } else if (node.op >= ADD && node.op <= GE && node.op != EQ && node.op != NE) {
      if (least.is_float || !least.bits) return;
      ++counts_[place(least.bits) + (node.op <= SUB ? 0 : node.op == MUL ? 1 : 2)];
    }
  }
  static size_t place(i64 bits) {
    return kGroups * (bits <= 8 ? 0 : bits <= 16 ? 1 : bits <= 32 ? 2 : 3);
  }

  const Program& p_;
  i64 counts_[kColumns];
};

}  // namespace cdmpp
