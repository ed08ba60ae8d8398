// Buffer accesses of a store: touched regions, cache lines, strides and reuse (see
// tests/programs/reference/accesses.py).
#pragma once

#include "intervals.hpp"

namespace cdmpp {

// Data touched by the stores so far in one run of a loop.
struct Traffic {
  struct Touched {
    BufferId buffer;
    u32 count;
    i64 first, least;  // elements touched by the first store, and the minimum over stores
  };
  std::vector<Touched> touched;
  i64 total_bytes = 0, read_bytes = 0, element_bytes = 0;

  void clear() {
    touched.clear();
    total_bytes = read_bytes = element_bytes = 0;
  }
  i64 add_access(BufferId buffer, i64 elements, i64 bytes_each, bool only_read) {
    const i64 size = mul(elements, bytes_each);
    bool found = false;
    for (Touched& entry : touched) {
      if (entry.buffer != buffer) continue;
      ++entry.count;
      entry.least = std::min(entry.least, elements);
      found = true;
      break;
    }
    if (!found) touched.push_back({buffer, 1, elements, elements});
    total_bytes = add(total_bytes, size);
    if (only_read) read_bytes = add(read_bytes, size);
    element_bytes = add(element_bytes, bytes_each);
    return size;
  }
  const Touched& of(BufferId buffer) const {
    for (const Touched& entry : touched) {
      if (entry.buffer == buffer) return entry;
    }
    throw Declined{"missing entry"};
  }
};

struct EnclosingLoop {
  u32 bit;
  i64 extent;
  LoopKind kind;
  u32 traffic;
};

// All accesses of one store to one buffer.
struct Access {
  enum Kind : u8 { READ, WRITE, READ_WRITE };
  BufferId buffer;
  Kind kind;
  u32 rank;
  std::vector<ExprId> indices;  // `rank` per access, concatenated
  Mask mask;
};

struct AccessFeatures {
  enum ReuseKind : u8 { LOOP_MULTIPLE_READ, SERIAL_MULTIPLE_READ_WRITE, NO_REUSE };
  Access::Kind kind;
  ReuseKind reuse_kind;
  double bytes, unique_bytes, lines, unique_lines;
  double reuse_iterations, reuse_bytes, reuse_count;
  i64 stride;
};

class AccessAnalysis {
 public:
  AccessAnalysis(const Program& program, const Tree& tree, IntervalAnalysis& intervals,
                 const std::vector<EnclosingLoop>& loops, std::deque<Traffic>& traffic)
      : p_(program), tree_(tree), intervals_(intervals), loops_(loops), traffic_(traffic) {}

  // The accesses of the latest store, the written buffer first, in the order of their features.
  const Access& operator[](size_t number) const { return accesses_[number]; }

  // Bytes that the latest store touches in one run of each loop, innermost first.
  const std::vector<i64>& bytes_by_loop() const { return bytes_by_loop_; }

  size_t count() const { return count_; }

  // Position for `box` of the extents that an access of the latest store touches in one run of a
  // loop (0 = innermost). A box that does not grow with a loop is shared with the inner loop.
  size_t box_of(size_t loop, size_t number) const { return box_of_[loop * count_ + number]; }
  const i64* box(size_t at) const { return boxes_.data() + at; }

  // Finds a store's accesses, adds them to the traffic of its loops and returns their features.
  const std::vector<AccessFeatures>& run(TreeId store, double iterations) {
    find_accesses(tree_[store]);
    touch();
    features_.clear();
    for (size_t i = 0; i < count_; ++i) features_.push_back(features(accesses_[i], iterations));
    return features_;
  }

 private:
  static constexpr i64 kCacheLineBytes = 64;
  static constexpr i64 kUnknownWidth = i64{1} << 31;

  Access& new_access(BufferId buffer, Access::Kind kind) {
    if (count_ == accesses_.size()) accesses_.emplace_back();
    Access& access = accesses_[count_++];
    access.buffer = buffer;
    access.kind = kind;
    access.rank = p_.buffers[buffer].rank;
    access.indices.clear();
    access.mask = {};
    return access;
  }
  void add_indices(Access& access, const ExprId* indices, size_t count) {
    if (count != access.rank) throw Declined{"rank of an access"};
    access.indices.insert(access.indices.end(), indices, indices + count);
    for (size_t i = 0; i < count; ++i) access.mask = access.mask | intervals_.mask(indices[i]);
  }

  // The written buffer first, then reads in expression order.
  void find_accesses(const TreeNode& store) {
    count_ = 0;
    seen_.clear();
    add_indices(new_access(store.buffer, Access::WRITE), store.indices.data(),
                store.indices.size());
    find_reads(store.expr);
  }
  void find_reads(ExprId id) {
    const Node& node = p_.node(id);
    if (node.arg_count == 0 && node.op != LOAD) return;
    // A repeated read at the same indices has no effect.
    if (seen_.has(id)) return;
    seen_.set(id);
    if (node.op == LOAD) add_read(static_cast<BufferId>(node.value), &p_.args[node.first_arg]);
    for (u32 i = 0; i < node.arg_count; ++i) find_reads(p_.arg(id, i));
  }
  void add_read(BufferId buffer, const ExprId* indices) {
    for (size_t i = 0; i < count_; ++i) {
      Access& access = accesses_[i];
      if (access.buffer != buffer) continue;
      if (access.kind != Access::READ) {
        access.kind = Access::READ_WRITE;
      } else {
        add_indices(access, indices, access.rank);
      }
      return;
    }
    add_indices(new_access(buffer, Access::READ), indices, p_.buffers[buffer].rank);
  }

  // Number of elements of the bounding box of all accesses; stores its extents in `region_`.
  i64 touched_elements(const Access& access, const Mask& wide) {
    region_.clear();
    i64 elements = 1;
    for (u32 dimension = 0; dimension < access.rank; ++dimension) {
      Span span = intervals_.interval(access.indices[dimension], wide);
      for (size_t at = access.rank; at < access.indices.size(); at += access.rank) {
        const Span other = intervals_.interval(access.indices[at + dimension], wide);
        span = {std::min(span.low, other.low), std::max(span.high, other.high)};
      }
      // An index that is read from memory is unknown and covers the whole dimension.
      const i64 width = add(sub(span.high, span.low), 1);
      region_.push_back(width < kUnknownWidth ? width : p_.extent(access.buffer, dimension));
      elements = mul(elements, region_.back());
    }
    return std::max<i64>(0, elements);
  }

  void touch() {
    bytes_by_loop_.clear();
    written_.clear();
    sizes_.assign(count_, 0);
    boxes_.clear();
    box_of_.clear();
    current_.assign(count_, 0);
    Mask wide;
    for (size_t level = 0; level < loops_.size(); ++level) {
      const EnclosingLoop& loop = loops_[loops_.size() - 1 - level];
      const Mask bit = Mask::of(loop.bit);
      wide = wide | bit;
      i64 total = 0;
      for (size_t i = 0; i < count_; ++i) {
        const Access& access = accesses_[i];
        if (level == 0 || (access.mask & bit).any()) {
          sizes_[i] = touched_elements(access, wide);
          if (i == 0) written_ = region_;
          current_[i] = boxes_.size();
          boxes_.insert(boxes_.end(), region_.begin(), region_.end());
        }
        box_of_.push_back(current_[i]);
        total = add(total, traffic_[loop.traffic].add_access(
                               access.buffer, sizes_[i], p_.element_bytes(access.buffer),
                               access.kind == Access::READ));
      }
      bytes_by_loop_.push_back(total);
    }
  }

  i64 stride(const Access& access, const EnclosingLoop& loop) {
    const Mask bit = Mask::of(loop.bit);
    i64 smallest = 0;
    bool found = false;
    for (size_t at = 0; at < access.indices.size(); at += access.rank) {
      i64 row = 1;
      for (u32 dimension = access.rank; dimension-- > 0;) {
        const ExprId index = access.indices[at + dimension];
        if ((intervals_.mask(index) & bit).any()) {
          const i64 coefficient = intervals_.coefficient(index, loop.bit);
          const i64 step = mul(coefficient < 0 ? sub(0, coefficient) : coefficient, row);
          smallest = found ? std::min(smallest, step) : step;
          found = true;
          break;
        }
        row = mul(row, p_.extent(access.buffer, dimension));
      }
      if (access.rank == 0) break;
    }
    return smallest;
  }

  AccessFeatures features(const Access& access, double iterations) {
    const i64 element_bytes = p_.element_bytes(access.buffer);
    AccessFeatures result{};
    result.kind = access.kind;
    result.bytes = iterations * static_cast<double>(element_bytes);
    result.unique_bytes = static_cast<double>(element_bytes);
    result.lines = result.unique_lines = 1.0;
    if (!loops_.empty()) {
      const Traffic& outermost = traffic_[loops_[0].traffic];
      result.unique_bytes *= static_cast<double>(outermost.of(access.buffer).first);
      double ratio = 1;
      i64 moving = 0;
      for (size_t level = loops_.size(); level-- > 0;) {
        moving = stride(access, loops_[level]);
        if (moving) {
          result.stride = level + 1 == loops_.size() ? moving : 0;
          break;
        }
        ratio *= static_cast<double>(loops_.back().extent);
      }
      const double moved = static_cast<double>(mul(moving, element_bytes));
      const double share = std::min(1.0, moved / static_cast<double>(kCacheLineBytes));
      result.lines = std::max(iterations / ratio * share, 1.0);
      result.unique_lines = std::max(result.unique_bytes / contiguous_bytes(access.buffer), 1.0);
    }
    find_reuse(access, &result);
    return result;
  }

  // Bytes of the innermost full dimension, at most a cache line.
  double contiguous_bytes(BufferId buffer) const {
    i64 width = p_.element_bytes(buffer);
    const u32 rank = std::min<u32>(static_cast<u32>(written_.size()), p_.buffers[buffer].rank);
    for (u32 dimension = rank; dimension-- > 0;) {
      if (written_[dimension] != p_.extent(buffer, dimension)) continue;
      width = mul(width, written_[dimension]);
      break;
    }
    return static_cast<double>(std::min(width, kCacheLineBytes));
  }

  void find_reuse(const Access& access, AccessFeatures* result) {
    double iterations = 1, distance = 1, repeats = 0;
    for (size_t level = loops_.size(); level-- > 0;) {
      const EnclosingLoop& loop = loops_[level];
      const Traffic& traffic = traffic_[loop.traffic];
      const double extent = static_cast<double>(loop.extent);
      const bool repeated = !(access.mask & Mask::of(loop.bit)).any();
      if (repeats > 0 && !repeated) break;
      const Traffic::Touched& touched = traffic.of(access.buffer);
      if (touched.count > 1) {
        double count = 1;
        for (size_t i = 0; i <= level; ++i) count *= static_cast<double>(loops_[i].extent);
        result->reuse_kind = AccessFeatures::SERIAL_MULTIPLE_READ_WRITE;
        result->reuse_iterations = static_cast<double>(touched.least) / extent;
        result->reuse_bytes = static_cast<double>(traffic.read_bytes) / extent;
        result->reuse_count = count;
        return;
      }
      if (repeated) {
        if (level + 1 == loops_.size()) distance = static_cast<double>(traffic.element_bytes);
        repeats = std::max(repeats, 1.0) * extent;
      } else {
        iterations *= extent;
        distance = static_cast<double>(traffic.total_bytes);
      }
    }
    result->reuse_kind = AccessFeatures::NO_REUSE;
    if (repeats == 0) return;
    result->reuse_kind = AccessFeatures::LOOP_MULTIPLE_READ;
    result->reuse_iterations = iterations;
    result->reuse_bytes = distance;
    result->reuse_count = repeats;
  }

  const Program& p_;
  const Tree& tree_;
  IntervalAnalysis& intervals_;
  const std::vector<EnclosingLoop>& loops_;
  std::deque<Traffic>& traffic_;
  std::deque<Access> accesses_;
  size_t count_ = 0;
  Stamps seen_;
  std::vector<i64> region_, written_, sizes_, bytes_by_loop_, boxes_;
  std::vector<size_t> box_of_, current_;
  std::vector<AccessFeatures> features_;
};

}  // namespace cdmpp
