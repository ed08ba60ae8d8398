// Cache lines, pages and cache sets covered by a box of a buffer (see
// tests/programs/reference/cache_lines.py).
#pragma once

#include <array>

#include "common.hpp"

namespace cdmpp {

// Coverage of a row-major buffer by a box: bytes of the cache lines; these bytes scaled by the
// usable over the used sets of a near and of a far cache; pages.
struct Cover {
  double line_bytes = 0, near_bytes = 0, far_bytes = 0, pages = 0;

  void add(const Cover& other) {
    line_bytes += other.line_bytes;
    near_bytes += other.near_bytes;
    far_bytes += other.far_bytes;
    pages += other.pages;
  }
};

class CacheLines {
 public:
  static constexpr i64 kLineBytes = 64, kPageBytes = 4096;

  // Coverage of a box of `rank` extents. Rows less than a line (a page) apart are one piece.
  Cover cover(const i64* region, const i64* extents, u32 rank, i64 element_bytes) {
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
    if (steps_.empty()) return result;
    result.near_bytes *= unused<1>(lines, lines_of_piece);
    result.far_bytes *= unused<16>(lines, lines_of_piece);
    return result;
  }

 private:
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

  static i64 units(i64 size, i64 unit) { return size / unit + (size % unit != 0); }
  static i64 whole(i64 size, i64 unit) { return mul(units(size, unit), unit); }

  std::vector<Step> steps_;
};

}  // namespace cdmpp
