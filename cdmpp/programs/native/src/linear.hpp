// Canonical integer expressions: constant + sum(coefficient * ((base mod upper) div lower)).
#pragma once

#include <memory>

#include "expr.hpp"

namespace cdmpp {

struct Term {
  ExprId base;
  i64 lower;
  i64 upper;  // 0 = no mod
  i64 coefficient;

  bool same_place(const Term& other) const {
    return base == other.base && lower == other.lower && upper == other.upper;
  }
  bool is_divided() const { return lower != 1 || upper != 0; }
};

// The terms keep their order of insertion and are stored in a `TermArena`.
struct Linear {
  const Term* terms = nullptr;
  u32 count = 0;
  i64 constant = 0;

  bool is_constant() const { return count == 0; }
};

inline Linear constant(i64 value) { return {nullptr, 0, value}; }

// Whether both have the same terms with the same coefficients.
inline bool same_terms(const Term* left, u32 left_count, const Term* right, u32 right_count) {
  if (left_count != right_count) return false;
  if (left == right) return true;
  for (u32 i = 0; i < left_count; ++i) {
    bool found = false;
    for (u32 j = 0; j < right_count && !found; ++j) {
      const u32 k = i + j < right_count ? i + j : i + j - right_count;  // usually the same position
      found = left[i].same_place(right[k]) && left[i].coefficient == right[k].coefficient;
    }
    if (!found) return false;
  }
  return true;
}

inline bool operator==(const Linear& left, const Linear& right) {
  return left.constant == right.constant &&
         same_terms(left.terms, left.count, right.terms, right.count);
}
inline bool operator!=(const Linear& left, const Linear& right) { return !(left == right); }

// Arena of terms that is freed as a whole.
class TermArena {
 public:
  Term* allocate(size_t count) {
    if (count > kChunk) throw Declined{"too many terms"};
    if (chunks_.empty() || used_ + count > kChunk) {
      if (!chunks_.empty()) ++current_;
      if (current_ == chunks_.size()) {
        if (chunks_.size() >= kMaxChunks) throw Declined{"too many terms"};
        chunks_.emplace_back(new Term[kChunk]);  // not initialised
      }
      used_ = 0;
    }
    Term* result = chunks_[current_].get() + used_;
    used_ += count;
    return result;
  }
  // Frees the end of the latest allocation.
  void shrink(size_t unused) { used_ -= unused; }
  void reset() {
    current_ = used_ = 0;
    if (chunks_.size() > kKeptChunks) chunks_.resize(kKeptChunks);
  }

 private:
  static constexpr size_t kChunk = 1 << 13;
  static constexpr size_t kKeptChunks = 16;
  static constexpr size_t kMaxChunks = 1 << 9;
  std::vector<std::unique_ptr<Term[]>> chunks_;
  size_t current_ = 0, used_ = 0;
};

}  // namespace cdmpp
