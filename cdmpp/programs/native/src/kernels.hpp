// Kernels, the sequential parts of a program, and their resources (see
// tests/programs/reference/parts_of_program.py).
#pragma once

#include "lane_accesses.hpp"

namespace cdmpp {

// The scale of all leaf columns (see tests/programs/reference/signed_log.py); small numbers are
// looked up.
class SignedLog {
 public:
  SignedLog() {
    for (size_t i = 0; i < table_.size(); ++i) table_[i] = of(static_cast<double>(i));
  }
  static float of(double value) {
    return static_cast<float>(value < 0 ? -std::log2(1.0 - value) : std::log2(value + 1.0));
  }
  float operator()(i64 value) const {
    if (value >= 0 && value < static_cast<i64>(table_.size())) {
      return table_[static_cast<size_t>(value)];
    }
    return of(static_cast<double>(value));
  }

 private:
  std::array<float, 2048> table_;
};

// Kinds of memory, in the order of their columns; OTHER has none.
enum Memory : u8 { GLOBAL, SHARED, LOCAL, OTHER };

// An enclosing loop or thread binding.
struct NestLoop {
  NameId var;
  i64 extent;
  LoopKind kind;
  u32 bit;
  float log_extent;

  // Axis (0 to 2) of a thread or block index.
  u32 axis() const { return static_cast<u32>((kind - BLOCK_X) / 2); }
};

// Meaning of memory scopes, by the number of their names.
class Scopes {
 public:
  explicit Scopes(const Program& program) : p_(program) {}

  // The memory of a buffer allocated inside these loops, outermost first; empty for a buffer that
  // is not allocated.
  Memory memory_of(BufferId buffer, const std::vector<NestLoop>& loops, bool is_gpu) {
    const Meaning meaning = meaning_of(p_.buffers[buffer].scope);
    if (meaning != OPEN) return static_cast<Memory>(meaning);
    if (!is_gpu) return loops.empty() ? GLOBAL : LOCAL;
    for (size_t level = loops.size(); level-- > 0;) {
      const LoopKind kind = loops[level].kind;
      if (kind == VTHREAD || is_thread_index(kind)) return LOCAL;
      if (is_block_index(kind)) return SHARED;
    }
    return GLOBAL;
  }

 private:
  enum Meaning : u8 { IS_GLOBAL = GLOBAL, IS_SHARED, IS_LOCAL, IS_OTHER, OPEN, NOT_KNOWN };

  Meaning meaning_of(NameId scope) {
    if (scope >= known_.size()) known_.resize(scope + 16, NOT_KNOWN);
    if (known_[scope] == NOT_KNOWN) known_[scope] = look_up(p_.names.text(scope));
    return known_[scope];
  }
  static Meaning look_up(const std::string& scope) {
    const auto starts = [&](const char* prefix) { return scope.rfind(prefix, 0) == 0; };
    if (starts("shared")) return IS_SHARED;
    if (starts("local") || starts("warp") || starts("wmma")) return IS_LOCAL;
    if (scope.empty() || scope == "global") return OPEN;
    return starts("global") ? IS_GLOBAL : IS_OTHER;
  }

  const Program& p_;
  std::vector<Meaning> known_;
};

// Totals of one kernel.
struct Kernel {
  static constexpr size_t kColumns = 12;
  double threads[3] = {1, 1, 1}, blocks[3] = {1, 1, 1};
  double vthreads = 1, shared_bytes = 0, local_bytes = 0, parallel_iterations = 1, float_ops = 0;
  i64 leaves = 0;

  void columns(bool is_gpu, float* out) const {
    const double block = threads[0] * threads[1] * threads[2];
    const double grid = blocks[0] * blocks[1] * blocks[2];
    out[7] = SignedLog::of(local_bytes);
    out[8] = SignedLog::of(parallel_iterations);
    out[9] = SignedLog::of(float_ops);
    out[11] = SignedLog::of(static_cast<double>(leaves));
    if (!is_gpu) return;
    const double warps = std::ceil(block / LaneEvaluator::kWarpLanes);
    out[0] = SignedLog::of(block);
    out[1] = SignedLog::of(warps);
    out[2] = static_cast<float>(block / (warps * LaneEvaluator::kWarpLanes));
    out[3] = SignedLog::of(grid);
    out[4] = SignedLog::of(grid * block);
    out[5] = SignedLog::of(vthreads);
    out[6] = SignedLog::of(shared_bytes);
    out[10] = SignedLog::of(float_ops / (grid * block));
  }
};

// The loops around the current node, and their kernel.
class KernelStack {
 public:
  static constexpr u32 kNoKernel = kNone;

  void reset(bool is_gpu) {
    is_gpu_ = is_gpu;
    current_ = kNoKernel;
    depth_ = 0;
    levels_.assign(1, {1.0, 1.0});
    loops_.clear();
    kernels_.clear();
  }

  const std::vector<NestLoop>& loops() const { return loops_; }
  const std::vector<Kernel>& kernels() const { return kernels_; }
  // Number of enclosing loops with more than one iteration.
  i64 depth() const { return depth_; }

  void enter(const NestLoop& loop) {
    if (current_ == kNoKernel && (!is_gpu_ || is_thread(loop.kind))) {
      current_ = new_kernel();
      root_level_ = loops_.size();
    }
    const double extent = static_cast<double>(loop.extent);
    Level level = levels_.back();
    if (loop.kind == VTHREAD) level.vthreads *= extent;
    if (loop.kind == PARALLEL) level.parallel *= extent;
    levels_.push_back(level);
    loops_.push_back(loop);
    depth_ += loop.extent > 1;
    if (current_ == kNoKernel) return;
    Kernel& kernel = kernels_[current_];
    if (loop.kind > VTHREAD) {
      double& largest = (is_block_index(loop.kind) ? kernel.blocks : kernel.threads)[loop.axis()];
      largest = std::max(largest, extent);
    }
    kernel.vthreads = std::max(kernel.vthreads, level.vthreads);
    kernel.parallel_iterations = std::max(kernel.parallel_iterations, level.parallel);
  }

  void leave() {
    depth_ -= loops_.back().extent > 1;
    loops_.pop_back();
    levels_.pop_back();
    if (loops_.size() == root_level_) current_ = kNoKernel;
  }

  // Every virtual thread has its own local memory.
  void allocate(Memory memory, double bytes) {
    if (current_ == kNoKernel) return;
    Kernel& kernel = kernels_[current_];
    if (memory == SHARED) kernel.shared_bytes += bytes;
    if (memory == LOCAL) kernel.local_bytes += bytes * levels_.back().vthreads;
  }

  // Adds a store and returns the number of its kernel.
  u32 add_leaf(double float_ops) {
    if (current_ == kNoKernel && is_gpu_) return kNoKernel;
    const u32 number = current_ == kNoKernel ? new_kernel() : current_;
    kernels_[number].float_ops += float_ops;
    ++kernels_[number].leaves;
    return number;
  }

 private:
  struct Level {
    double vthreads, parallel;
  };

  u32 new_kernel() {
    kernels_.emplace_back();
    return static_cast<u32>(kernels_.size() - 1);
  }

  bool is_gpu_ = false;
  u32 current_ = kNoKernel;
  size_t root_level_ = 0;
  i64 depth_ = 0;
  std::vector<Level> levels_;
  std::vector<NestLoop> loops_;
  std::vector<Kernel> kernels_;
};

}  // namespace cdmpp
