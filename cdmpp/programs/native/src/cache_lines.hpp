// Cache lines, pages and cache sets covered by a box of a buffer (see
// tests/programs/reference/cache_lines.py).
#pragma once

#include <algorithm>
#include <array>

#include "common.hpp"

namespace cdmpp {

// Lines of a box in the sets of a cache: those in the fullest set, and those beyond 8 in any set.
struct SetLoad {
  double fullest = 0, beyond = 0;

  void add(const SetLoad& other) {
    fullest = std::max(fullest, other.fullest);
    beyond += other.beyond;
  }
};

// Coverage of a row-major buffer by a box: bytes of the cache lines; these bytes scaled by the
// usable over the used sets of a near and of a far cache; pages; loads of 64 and of 2,048 sets.
struct Cover {
  double line_bytes = 0, near_bytes = 0, far_bytes = 0, pages = 0;
  SetLoad near, far;

  void add(const Cover& other) {
    line_bytes += other.line_bytes;
    near_bytes += other.near_bytes;
    far_bytes += other.far_bytes;
    pages += other.pages;
    near.add(other.near);
    far.add(other.far);
  }
};

class CacheLines {
 public:
  static constexpr i64 kLineBytes = 64, kPageBytes = 4096;

  // Coverage of a box of `rank` extents. Rows less than a line (a page) apart are one piece.
  // Without `has_loads`, the loads of the sets are 0.
  Cover cover(const i64* region, const i64* extents, u32 rank, i64 element_bytes, bool has_loads) {
    i64 piece = element_bytes, page_piece = element_bytes, step = element_bytes;
    i64 pieces = 1, page_pieces = 1;
    steps_.clear();
    for (u32 dimension = rank; dimension-- > 0;) {
      const i64 width = region[dimension];
      if (width > 1) {
        if (pieces == 1 && step <= whole(piece, kLineBytes)) {
          piece = cdmpp::add(piece, mul(width - 1, step));
        } else {
          pieces = mul(pieces, width);
          steps_.push_back({step, width});
        }
        if (page_pieces == 1 && step <= whole(page_piece, kPageBytes)) {
          page_piece = cdmpp::add(page_piece, mul(width - 1, step));
        } else {
          page_pieces = mul(page_pieces, width);
        }
      }
      step = mul(step, extents[dimension]);
    }
    const i64 lines_of_piece = units(piece, kLineBytes);
    const i64 lines = mul(pieces, lines_of_piece);
    Cover result;
    result.line_bytes = static_cast<double>(mul(lines, kLineBytes));
    result.near_bytes = result.far_bytes = result.line_bytes;
    result.pages = static_cast<double>(mul(page_pieces, units(page_piece, kPageBytes)));
    if (has_loads) count_loads(lines, lines_of_piece, &result);
    if (steps_.empty()) return result;
    result.near_bytes *= unused<1>(lines, lines_of_piece);
    result.far_bytes *= unused<16>(lines, lines_of_piece);
    return result;
  }

 private:
  static constexpr i64 kFarSets = 2048, kNearSets = 64, kWays = 8, kMostCounted = 2048;

  struct Step {
    i64 bytes, count;
  };

  // Bit set of cache sets, 64 per word.
  template <size_t kWords>
  struct Sets {
    static constexpr i64 kCount = 64 * kWords;
    std::array<u64, kWords> words{};

    explicit Sets(i64 used) {
      for (size_t i = 0; i < kWords && used > 0; ++i, used -= 64) {
        words[i] = used < 64 ? (u64{1} << used) - 1 : ~u64{0};
      }
    }
    i64 used() const {
      i64 count = 0;
      for (const u64 word : words) count += __builtin_popcountll(word);
      return count;
    }
    // Adds the same sets shifted by `turn`.
    void spread(i64 turn) {
      const std::array<u64, kWords> before = words;
      const size_t first = static_cast<size_t>(turn) / 64;
      const int bits = static_cast<int>(turn % 64);
      for (size_t i = 0; i < kWords; ++i) {
        words[(i + first) % kWords] |= before[i] << bits;
        if (bits) words[(i + first + 1) % kWords] |= before[i] >> (64 - bits);
      }
    }
  };

  // Ratio of the sets that `lines` could use to those they do use, with pieces of `lines_of_piece`.
  template <size_t kWords>
  double unused(i64 lines, i64 lines_of_piece) const {
    Sets<kWords> sets(lines_of_piece);
    i64 used = sets.used();
    for (const Step& step : steps_) {
      for (i64 done = 1; done < step.count && used < sets.kCount;) {
        const i64 more = std::min(done, step.count - done);
        sets.spread(mul(more, step.bytes) / kLineBytes % sets.kCount);
        used = sets.used();
        done += more;
      }
    }
    return static_cast<double>(std::min(lines, sets.kCount)) / static_cast<double>(used);
  }

  // Loads of the sets by `lines` in pieces of `lines_of_piece`: each line is counted, up to
  // kMostCounted, and the others are in proportion. Long pieces fill all sets alike.
  void count_loads(i64 lines, i64 lines_of_piece, Cover* result) {
    if (steps_.empty() || lines_of_piece > kMostCounted) {
      result->near = even_load(lines, kNearSets);
      result->far = even_load(lines, kFarSets);
      return;
    }
    near_.fill(0);
    far_.fill(0);
    places_.assign(steps_.size(), 0);
    u64 position = 0, counted = 0, near_beyond = 0, far_beyond = 0;
    const u64 piece = static_cast<u64>(lines_of_piece);
    for (bool is_left = true; is_left && counted + piece <= kMostCounted; counted += piece) {
      for (u64 line = position / kLineBytes, end = line + piece; line < end; ++line) {
        near_beyond += near_[line % kNearSets]++ >= kWays;
        far_beyond += far_[line % kFarSets]++ >= kWays;
      }
      is_left = false;
      for (size_t i = 0; i < steps_.size() && !is_left; ++i) {
        const u64 step = static_cast<u64>(steps_[i].bytes);
        is_left = ++places_[i] < steps_[i].count;
        position += is_left ? step : step * (1 - static_cast<u64>(steps_[i].count));
        if (!is_left) places_[i] = 0;
      }
    }
    const double all = static_cast<double>(lines) / static_cast<double>(counted);
    result->near = {all * *std::max_element(near_.begin(), near_.end()),
                    all * static_cast<double>(near_beyond)};
    result->far = {all * *std::max_element(far_.begin(), far_.end()),
                   all * static_cast<double>(far_beyond)};
  }

  static SetLoad even_load(i64 lines, i64 sets) {
    return {static_cast<double>(units(lines, sets)),
            static_cast<double>(std::max<i64>(lines - sets * kWays, 0))};
  }

  static i64 units(i64 size, i64 unit) { return size / unit + (size % unit != 0); }
  static i64 whole(i64 size, i64 unit) { return mul(units(size, unit), unit); }

  std::vector<Step> steps_;
  std::vector<i64> places_;
  std::array<u16, kNearSets> near_;
  std::array<u16, kFarSets> far_;
};

}  // namespace cdmpp
