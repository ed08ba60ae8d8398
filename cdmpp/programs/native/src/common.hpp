// Number types, errors, and arithmetic with Python's semantics.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace cdmpp {

using i64 = std::int64_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 kNone = 0xffffffffu;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Deeper programs are declined.
constexpr int kMaxExprDepth = 180;
constexpr int kMaxTreeDepth = 200;

// The program contains something without a native form.
struct Declined {
  const char* why;
};

// The record cannot be replayed; the messages equal those of the Python reference.
struct ReplayFailure {
  std::string reason;
  std::string detail;
};

inline i64 add(i64 a, i64 b) {
  i64 result;
  if (__builtin_add_overflow(a, b, &result)) throw Declined{"integer above 64 bits"};
  return result;
}

inline i64 sub(i64 a, i64 b) {
  i64 result;
  if (__builtin_sub_overflow(a, b, &result)) throw Declined{"integer above 64 bits"};
  return result;
}

inline i64 mul(i64 a, i64 b) {
  i64 result;
  if (__builtin_mul_overflow(a, b, &result)) throw Declined{"integer above 64 bits"};
  return result;
}

// Rounds down; the divisor is positive.
inline i64 floordiv(i64 a, i64 b) { return a / b - (a % b < 0); }

inline i64 floormod(i64 a, i64 b) {
  const i64 rest = a % b;
  return rest < 0 ? rest + b : rest;
}

inline i64 ceildiv(i64 a, i64 b) { return a > 0 ? (a - 1) / b + 1 : a / b; }

// Python's float // float for a positive whole divisor.
inline double floordiv(double a, double b) {
  if (std::fabs(a) < 1e15) return std::floor(a / b);
  if (!std::isfinite(a)) throw Declined{"division of an unbounded value"};
  double mod = std::fmod(a, b);
  double quotient = (a - mod) / b;
  if (mod < 0) quotient -= 1.0;
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1.0 : whole;
}

inline double floormod(double a, double b) {
  const double mod = std::fmod(a, b);
  return mod < 0 ? mod + b : mod;
}

inline i64 to_int(double value) {
  if (!(std::fabs(value) < 9e18)) throw Declined{"float above 64 bits"};
  return static_cast<i64>(value);
}

inline u64 mix(u64 hash, u64 value) {
  hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 32);
}

// Marks entries of an array as set until the next `clear`.
class Stamps {
 public:
  void clear() {
    if (++now_ == 0) {
      std::fill(stamps_.begin(), stamps_.end(), 0u);
      now_ = 1;
    }
  }
  bool has(u32 index) const { return index < stamps_.size() && stamps_[index] == now_; }
  void set(u32 index) {
    if (index >= stamps_.size()) stamps_.resize(index + index / 2 + 64, 0u);
    stamps_[index] = now_;
  }

 private:
  std::vector<u32> stamps_;
  u32 now_ = 1;
};

// An array whose entries are all unset after `clear`.
template <class Value>
class StampedMap {
 public:
  void clear() { stamps_.clear(); }
  bool has(u32 index) const { return stamps_.has(index); }
  const Value* find(u32 index) const { return stamps_.has(index) ? &values_[index] : nullptr; }
  const Value& at(u32 index) const {
    if (!stamps_.has(index)) throw Declined{"missing entry"};
    return values_[index];
  }
  void set(u32 index, const Value& value) {
    if (index >= values_.size()) values_.resize(index + index / 2 + 64);
    values_[index] = value;
    stamps_.set(index);
  }

 private:
  std::vector<Value> values_;
  Stamps stamps_;
};

}  // namespace cdmpp
