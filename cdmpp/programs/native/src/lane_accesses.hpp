// Addresses accessed by neighbouring lanes: threads of a warp, or iterations of a CPU loop (see
// tests/programs/reference/lane_accesses.py).
#pragma once

#include "accesses.hpp"

namespace cdmpp {

struct LaneAccess {
  i64 stride = 0;
  bool is_irregular = false;
  i64 sectors = 0, bank_conflicts = 0;
};

// Evaluates index expressions for the lanes chosen last and caches every node's value. Most indices
// are affine in the lane and need no value per lane.
class LaneEvaluator {
 public:
  static constexpr u32 kWarpLanes = 32, kCpuLanes = 16;
  static constexpr int kNoSectors = -1;

  LaneEvaluator(const Program& program, IntervalAnalysis& intervals)
      : p_(program), intervals_(intervals) {}

  void reset() {
    axes_.clear();
    thread_mask_ = {};
    forget();
  }
  u32 count() const { return count_; }

  // All thread indices of an axis are the same threads, at any depth.
  void add_thread(NameId name, u32 axis, u32 bit) {
    axes_.set(name, static_cast<u8>(axis));
    thread_mask_ = thread_mask_ | Mask::of(bit);
  }

  // Chooses the first warp of a block of x * y * z threads.
  void choose_warp(i64 x, i64 y, i64 z) {
    mask_ = thread_mask_;
    if (chosen_ == WARP && x == warp_[0] && y == warp_[1] && z == warp_[2]) return;
    forget();
    chosen_ = WARP;
    warp_[0] = x;
    warp_[1] = y;
    warp_[2] = z;
    const i64 plane = least(least(x, kWarpLanes) * least(y, kWarpLanes), kWarpLanes);
    count_ = static_cast<u32>(least(plane * least(z, kWarpLanes), kWarpLanes));
    thread_values_[0] = x >= count_ ? affine(0, 1) : threads([&](i64 i) { return i % x; });
    thread_values_[1] = x >= count_ ? affine(0, 0) : threads([&](i64 i) { return i / x % y; });
    thread_values_[2] = x >= count_ ? affine(0, 0) : threads([&](i64 i) { return i / x / y; });
  }

  // Chooses the first iterations of a loop.
  void choose_loop(NameId name, i64 extent, u32 bit) {
    if (chosen_ == LOOP && name == loop_) return;
    forget();
    chosen_ = LOOP;
    loop_ = name;
    mask_ = Mask::of(bit);
    count_ = static_cast<u32>(least(extent, kCpuLanes));
  }

  // Returns how the lanes access a row-major buffer with these extents.
  // Pieces of 2 to the power of `sector_shift` bytes are counted, unless it is `kNoSectors`.
  LaneAccess access(const Access& access, const i64* extents, int sector_shift, bool in_banks) {
    LaneAccess result;
    const i64 bytes = p_.element_bytes(access.buffer);
    size_t at = 0;
    do {
      const bool is_first = at == 0;
      const Address address = address_of(access, at, extents);
      at += access.rank;
      i64 stride = 0;
      if (address.kind == UNKNOWN) {
        result.is_irregular = true;
      } else {
        const bool is_even = address.kind == AFFINE;
        stride = count_ < 2 ? 0 : is_even ? address.step : sub(lanes_[1], lanes_[0]);
        result.is_irregular = result.is_irregular || (!is_even && !grows_evenly(stride));
        if (sector_shift != kNoSectors) {
          result.sectors = std::max(result.sectors, sectors(address, bytes, sector_shift));
        }
        if (in_banks) {
          result.bank_conflicts = std::max(result.bank_conflicts, bank_conflicts(address, bytes));
        }
      }
      if (is_first || is_less(stride, result.stride)) result.stride = stride;
    } while (at < access.indices.size());
    return result;
  }

 private:
  // UNKNOWN: an operation is not analysed. AFFINE: base + lane * step. LANES: one value per lane.
  enum Kind : u8 { UNKNOWN, AFFINE, LANES };
  struct Value {
    Kind kind;
    u32 lanes;  // in `pool_`
    i64 base, step;
  };
  struct Address {
    Kind kind;  // for LANES, the values are in `lanes_`
    i64 base, step;
  };
  using Lanes = std::array<i64, kWarpLanes>;
  enum Chosen : u8 { NOTHING, WARP, LOOP };
  static constexpr int kBankShift = 2;
  static constexpr i64 kBanks = 32;

  static i64 least(i64 a, i64 b) { return std::min(a, b); }
  static bool is_less(i64 a, i64 b) {
    const u64 size = magnitude(a), other = magnitude(b);
    return size != other ? size < other : a < b;
  }
  static u64 magnitude(i64 a) { return a < 0 ? u64{0} - static_cast<u64>(a) : static_cast<u64>(a); }

  void forget() {
    chosen_ = NOTHING;
    known_.clear();
    pool_.clear();
  }

  static Value affine(i64 base, i64 step) { return {AFFINE, 0, base, step}; }
  static Value unknown() { return {UNKNOWN, 0, 0, 0}; }
  static bool is_uniform(const Value& value) { return value.kind == AFFINE && value.step == 0; }
  i64 last_of(i64 base, i64 step) const { return add(base, mul(step, count_ - 1)); }

  template <class Function>
  Value threads(Function function) {
    Lanes& made = pool_.emplace_back();
    for (u32 i = 0; i < count_; ++i) made[i] = function(static_cast<i64>(i));
    return {LANES, static_cast<u32>(pool_.size() - 1), 0, 0};
  }

  // The value per lane; stored in `room` if it is not cached.
  const Lanes& expanded(const Value& value, Lanes* room) const {
    if (value.kind == LANES) return pool_[value.lanes];
    last_of(value.base, value.step);  // checks that the sums below do not overflow
    for (u32 i = 0; i < count_; ++i) (*room)[i] = value.base + static_cast<i64>(i) * value.step;
    return *room;
  }

  template <class Function>
  Value elementwise(const Value& left, const Value& right, Function function) {
    Lanes left_room, right_room, made;
    const Lanes &a = expanded(left, &left_room), &b = expanded(right, &right_room);
    for (u32 i = 0; i < count_; ++i) made[i] = function(a[i], b[i]);
    pool_.push_back(made);
    return {LANES, static_cast<u32>(pool_.size() - 1), 0, 0};
  }

  Value value(ExprId id) {
    const Node& node = p_.node(id);
    if (node.op == CONST) return affine(p_.dtype(id).counts_as_float ? 0 : node.value, 0);
    if (const Value* found = known_.find(id)) return *found;
    const Value made = evaluate(id, node);
    known_.set(id, made);
    return made;
  }

  bool differs(ExprId id) { return (intervals_.mask(id) & mask_).any(); }

  Value evaluate(ExprId id, const Node& node) {
    switch (node.op) {
      case VAR:
        return variable(static_cast<NameId>(node.value));
      case ADD: case SUB: case MUL: case MIN: case MAX:
        return arithmetic(node.op, value(p_.arg(id, 0)), value(p_.arg(id, 1)));
      case FLOORDIV: case FLOORMOD: case DIV: case MOD: {
        const Value divisor = value(p_.arg(id, 1));
        if (!differs(p_.arg(id, 1)) && divisor.kind == AFFINE && divisor.base > 0) {
          return divided(node.op, value(p_.arg(id, 0)), divisor.base);
        }
        break;
      }
      case CAST:
        if (!p_.dtype(p_.arg(id, 0)).starts_with_float) return value(p_.arg(id, 0));
        break;
      default:
        break;
    }
    return differs(id) ? unknown() : affine(0, 0);
  }

  Value variable(NameId name) const {
    if (chosen_ == LOOP && name == loop_) return affine(0, 1);
    const u8* axis = chosen_ == LOOP ? nullptr : axes_.find(name);
    return axis ? thread_values_[*axis] : affine(intervals_.lowest(name), 0);
  }

  Value arithmetic(Op op, const Value& left, const Value& right) {
    if (left.kind == UNKNOWN || right.kind == UNKNOWN) return unknown();
    const bool even = left.kind == AFFINE && right.kind == AFFINE;
    switch (op) {
      case ADD:
        if (even) return affine(add(left.base, right.base), add(left.step, right.step));
        return elementwise(left, right, [](i64 a, i64 b) { return add(a, b); });
      case SUB:
        if (even) return affine(sub(left.base, right.base), sub(left.step, right.step));
        return elementwise(left, right, [](i64 a, i64 b) { return sub(a, b); });
      case MUL:
        if (even && right.step == 0) {
          return affine(mul(left.base, right.base), mul(left.step, right.base));
        }
        if (even && left.step == 0) {
          return affine(mul(left.base, right.base), mul(left.base, right.step));
        }
        return elementwise(left, right, [](i64 a, i64 b) { return mul(a, b); });
      case MIN:
        if (even && left.step == right.step) return left.base <= right.base ? left : right;
        return elementwise(left, right, [](i64 a, i64 b) { return std::min(a, b); });
      default:
        if (even && left.step == right.step) return left.base >= right.base ? left : right;
        return elementwise(left, right, [](i64 a, i64 b) { return std::max(a, b); });
    }
  }

  // The quotient or remainder of a division by a positive number.
  Value divided(Op op, const Value& left, i64 by) {
    if (left.kind == UNKNOWN) return left;
    const bool is_quotient = op == FLOORDIV || op == DIV;
    i64 low, high;
    range_of(left, &low, &high);
    if ((op == DIV || op == MOD) && low < 0) {
      const auto truncated = [by, is_quotient](i64 a, i64) {
        return is_quotient ? a / by : a % by;
      };
      if (is_uniform(left)) return affine(truncated(left.base, 0), 0);
      return elementwise(left, left, truncated);
    }
    const i64 quotient = floordiv(low, by);
    if (quotient == floordiv(high, by)) {
      if (is_quotient) return affine(quotient, 0);
      return arithmetic(SUB, left, affine(mul(quotient, by), 0));
    }
    if (left.kind == AFFINE) return divided_evenly(is_quotient, left, by);
    return elementwise(left, left, [by, is_quotient](i64 a, i64) {
      return is_quotient ? floordiv(a, by) : floormod(a, by);
    });
  }

  void range_of(const Value& value, i64* low, i64* high) const {
    if (value.kind == AFFINE) {
      const i64 last = last_of(value.base, value.step);
      *low = std::min(value.base, last);
      *high = std::max(value.base, last);
      return;
    }
    const Lanes& lanes = pool_[value.lanes];
    *low = *std::min_element(lanes.begin(), lanes.begin() + count_);
    *high = *std::max_element(lanes.begin(), lanes.begin() + count_);
  }

  // The same for base + lane * step, with additions instead of divisions.
  Value divided_evenly(bool is_quotient, const Value& left, i64 by) {
    i64 quotient = floordiv(left.base, by), rest = floormod(left.base, by);
    const i64 step = floordiv(left.step, by), rest_step = floormod(left.step, by);
    if (rest_step == 0) return is_quotient ? affine(quotient, step) : affine(rest, 0);
    Lanes& made = pool_.emplace_back();
    for (u32 i = 0; i < count_; ++i) {
      made[i] = is_quotient ? quotient : rest;
      quotient = add(quotient, step);
      rest = add(rest, rest_step);
      if (rest >= by) {
        rest -= by;
        quotient = add(quotient, 1);
      }
    }
    return {LANES, static_cast<u32>(pool_.size() - 1), 0, 0};
  }

  Address address_of(const Access& access, size_t at, const i64* extents) {
    Address address{AFFINE, 0, 0};
    i64 row = 1;
    for (u32 dimension = access.rank; dimension-- > 0;) {
      const Value index = value(access.indices[at + dimension]);
      if (index.kind == UNKNOWN) {
        address.kind = UNKNOWN;
      } else if (index.kind == AFFINE) {
        address.base = add(address.base, mul(index.base, row));
        address.step = add(address.step, mul(index.step, row));
      } else if (address.kind != UNKNOWN) {
        if (address.kind == AFFINE) lanes_.fill(0);
        address.kind = LANES;
        const Lanes& lanes = pool_[index.lanes];
        for (u32 i = 0; i < count_; ++i) lanes_[i] = add(lanes_[i], mul(lanes[i], row));
      }
      if (dimension) row = mul(row, extents[dimension]);
    }
    if (address.kind == LANES) {
      i64 even = address.base;
      for (u32 i = 0; i < count_; ++i) {
        lanes_[i] = add(lanes_[i], even);
        if (i + 1 < count_) even = add(even, address.step);
      }
    }
    return address;
  }

  bool grows_evenly(i64 stride) const {
    for (u32 i = 2; i < count_; ++i) {
      if (sub(lanes_[i], lanes_[i - 1]) != stride) return false;
    }
    return true;
  }

  i64 sectors(const Address& address, i64 bytes, int shift) {
    if (address.kind == AFFINE) {
      const i64 first = mul(address.base, bytes);
      const i64 last = mul(last_of(address.base, address.step), bytes);
      // Steps smaller than a sector touch every sector in between.
      if (magnitude(mul(address.step, bytes)) >> shift != 0) return count_;
      const i64 between = (last >> shift) - (first >> shift);
      return (between < 0 ? -between : between) + 1;
    }
    for (u32 i = 0; i < count_; ++i) pieces_[i] = mul(lanes_[i], bytes) >> shift;
    return distinct();
  }

  // Sorts `pieces_`, moves distinct ones to the front and returns their number.
  i64 distinct() {
    const auto end = pieces_.begin() + count_;
    if (!std::is_sorted(pieces_.begin(), end)) std::sort(pieces_.begin(), end);
    return std::unique(pieces_.begin(), end) - pieces_.begin();
  }

  i64 bank_conflicts(const Address& address, i64 bytes) {
    i64 low = 0;
    if (address.kind == LANES) low = *std::min_element(lanes_.begin(), lanes_.begin() + count_);
    const i64 step = address.step < 0 ? sub(0, address.step) : address.step;
    for (u32 i = 0; i < count_; ++i) {
      const i64 offset = address.kind == LANES ? sub(lanes_[i], low) : mul(i, step);
      pieces_[i] = mul(offset, bytes) >> kBankShift;
    }
    const i64 words = distinct();
    std::array<u8, kBanks> busy{};
    i64 most = 0;
    for (i64 i = 0; i < words; ++i) {
      const i64 now = ++busy[static_cast<size_t>(pieces_[static_cast<size_t>(i)] & (kBanks - 1))];
      most = std::max(most, now);
    }
    return most;
  }

  const Program& p_;
  IntervalAnalysis& intervals_;
  StampedMap<u8> axes_;
  StampedMap<Value> known_;
  std::vector<Lanes> pool_;
  Mask thread_mask_, mask_;
  Chosen chosen_ = NOTHING;
  u32 count_ = 1;
  NameId loop_ = 0;
  i64 warp_[3] = {0, 0, 0};
  Value thread_values_[3];
  Lanes lanes_, pieces_;
};

}  // namespace cdmpp
