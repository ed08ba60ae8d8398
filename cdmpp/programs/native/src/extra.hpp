// The additional columns of every leaf (see cdmpp/programs/added_columns.py and
// tests/programs/reference/added_values.py).
#pragma once

#include "cache_lines.hpp"
#include "executed.hpp"
#include "kernels.hpp"

namespace cdmpp {

constexpr size_t kLeafExtra = 269;

// Called during the walk that computes the leaf vectors.
class ExtraWalk {
 public:
  static constexpr size_t kSlots = 5;

  // Facts of a store from that walk.
  struct Leaf {
    ExprId value;
    bool is_across_threads;
    const Access* written;
    const Access* slots[kSlots];  // in slot order
    size_t slot_count;
    const AccessAnalysis* accesses;
    i64 element_bytes;  // sum of the element sizes of all accesses
    double iterations;
    i64 float_ops, selects, guards, unroll_max_step;
  };

  ExtraWalk(const Program& program, IntervalAnalysis& intervals)
      : p_(program), lanes_(program, intervals), scopes_(program), shares_(program),
        integers_(program) {}

  // Without `has_sets`, the columns of cache sets are 0, as they are on GPUs.
  void start(bool is_gpu, bool has_sets, std::vector<float>* rows) {
    is_gpu_ = is_gpu;
    has_sets_ = has_sets && !is_gpu;
    rows_ = rows;
    first_ = rows->size();
    lanes_.reset();
    kernels_.reset(is_gpu);
    allocated_.clear();
    inputs_.clear();
    kernel_of_row_.clear();
    extents_at_ = 0;
    depth_ = terms_ = most_loops_ = input_bytes_ = 0;
    float_ops_ = integer_ops_ = 0;
    shares_.reset();
    held_.clear();
  }

  void declare(const TreeNode& loop) { shares_.declare(loop.name, loop.minimum, loop.extent); }

  // A loop that is not a unit loop, or a thread binding.
  void enter_loop(NameId var, i64 extent, LoopKind kind, u32 bit) {
    const NestLoop loop{var, extent, kind, bit, signed_log_(extent)};
    if (is_thread_index(kind)) lanes_.add_thread(var, loop.axis(), bit);
    kernels_.enter(loop);
  }
  void leave_loop() { kernels_.leave(); }

  void enter_condition(ExprId condition) {
    ++depth_;
    terms_ += term_count(condition);
    held_.push_back(shares_.of(condition));
  }
  // Enters the else branch of the innermost condition.
  void otherwise() { held_.back() = Shares::otherwise(held_.back()); }
  void leave_condition(ExprId condition) {
    --depth_;
    terms_ -= term_count(condition);
    held_.pop_back();
  }

  void allocate(const TreeNode& node) {
    i64 elements = 1;
    Allocated made;
    made.first_extent = extents_at_;
    made.rank = static_cast<u32>(node.extents.size());
    if (extents_at_ + made.rank > extents_.size()) extents_.resize(extents_at_ + made.rank);
    for (const Extent& extent : node.extents) {
      extents_[extents_at_++] = extent.is_constant ? extent.value : 1;
      if (extent.is_constant) elements = mul(elements, extent.value);
    }
    const i64 bytes = p_.element_bytes(node.buffer);
    made.log_bytes = signed_log_(mul(elements, bytes));
    made.memory = scopes_.memory_of(node.buffer, kernels_.loops(), is_gpu_);
    allocated_.set(node.buffer, made);
    kernels_.allocate(made.memory, static_cast<double>(elements) * static_cast<double>(bytes));
  }

  void note_input(BufferId buffer) {
    if (inputs_.has(buffer) || allocated_.has(buffer)) return;
    inputs_.set(buffer);
    i64 bytes = p_.element_bytes(buffer);
    for (u32 i = 0; i < p_.buffers[buffer].rank; ++i) bytes = mul(bytes, p_.extent(buffer, i));
    input_bytes_ = add(input_bytes_, bytes);
  }

  void add_row(const Leaf& leaf) {
    rows_->resize(rows_->size() + kLeafExtra, 0.0f);
    float* row = rows_->data() + rows_->size() - kLeafExtra;
    const bool has_lanes = choose_lanes();
    if (has_lanes) row[kStride] = signed_log_(lanes_.count());
    describe(*leaf.written, 0, has_lanes, row);
    for (size_t i = 0; i < leaf.slot_count; ++i) describe(*leaf.slots[i], i + 1, has_lanes, row);
    row[kDType + kSlots + 1] = p_.dtypes[p_.buffers[leaf.written->buffer].dtype].counts_as_float;
    row[kCondition] = signed_log_(depth_);
    row[kCondition + 1] = signed_log_(terms_);
    row[kCondition + 2] = signed_log_(leaf.selects);
    row[kCondition + 3] = signed_log_(leaf.guards);
    nest_columns(leaf, row + kNest);
    footprint_columns(leaf, row + kFootprint);
    line_columns(*leaf.accesses, row + kLines);
    load_columns(row + kSets);
    executed_columns(leaf, row + kExecution);
    const double work = leaf.iterations * static_cast<double>(leaf.float_ops);
    float_ops_ += work;
    most_loops_ = std::max(most_loops_, kernels_.depth());
    kernel_of_row_.push_back(kernels_.add_leaf(work));
  }

  // Fills in the totals of the program and its kernels at the end.
  void finish() {
    const std::vector<Kernel>& kernels = kernels_.kernels();
    const float program[5] = {
        SignedLog::of(float_ops_), signed_log_(static_cast<i64>(kernel_of_row_.size())),
        signed_log_(most_loops_), signed_log_(static_cast<i64>(kernels.size())),
        signed_log_(input_bytes_)};
    columns_.assign(kernels.size() * Kernel::kColumns, 0.0f);
    for (size_t i = 0; i < kernels.size(); ++i) {
      kernels[i].columns(is_gpu_, columns_.data() + i * Kernel::kColumns);
    }
    for (size_t i = 0; i < kernel_of_row_.size(); ++i) {
      float* row = rows_->data() + first_ + i * kLeafExtra;
      if (kernel_of_row_[i] != KernelStack::kNoKernel) {
        const float* kernel = columns_.data() + kernel_of_row_[i] * Kernel::kColumns;
        std::copy(kernel, kernel + Kernel::kColumns, row + kOccupancy);
      }
      std::copy(std::begin(program), std::end(program), row + kProgram);
      row[kSets - 1] = SignedLog::of(integer_ops_);
    }
  }

 private:
  // First column and number of columns of each block.
  static constexpr size_t kMemories = 3, kAllocColumns = 2, kStrideColumns = 7;
  static constexpr size_t kNestLevels = 8, kNestKinds = 7, kNestColumns = kNestKinds + 2;
  static constexpr size_t kScope = 0, kDType = kScope + (kSlots + 1) * kMemories;
  static constexpr size_t kAlloc = kDType + kSlots + 2;
  static constexpr size_t kCondition = kAlloc + (kSlots + 1) * kAllocColumns;
  static constexpr size_t kStride = kCondition + 4;
  static constexpr size_t kOccupancy = kStride + 1 + (kSlots + 1) * kStrideColumns;
  static constexpr size_t kNest = kOccupancy + Kernel::kColumns;
  static constexpr size_t kProgram = kNest + kNestLevels * kNestColumns;
  static constexpr size_t kFootprint = kProgram + 5, kCapacities = 10;
  static constexpr size_t kLines = kFootprint + kNestLevels + kCapacities, kPageTables = 2;
  static constexpr size_t kExecution = kLines + kNestLevels + 2 * kCapacities + kPageTables;
  static constexpr size_t kSets = kExecution + 2 + IntegerOps::kColumns + 1, kSetColumns = 4;
  static_assert(kSets + kNestLevels * kSetColumns == kLeafExtra, "columns of the blocks");
  static constexpr int kLeastCapacityBits = 10;
  static constexpr double kNearCapacity = 1 << 16, kPageEntries[kPageTables] = {64, 2048};
  static constexpr int kSectorShift = 5, kLineShift = 6;

  struct Allocated {
    u32 first_extent, rank;  // in `extents_`
    float log_bytes;
    Memory memory;
  };

  i64 term_count(ExprId condition) const {
    const Node& node = p_.node(condition);
    if (node.op == CALL && node.value == p_.likely && node.arg_count) {
      return term_count(p_.arg(condition, 0));
    }
    if (node.op == AND) {
      return add(term_count(p_.arg(condition, 0)), term_count(p_.arg(condition, 1)));
    }
    return 1;
  }

  // Chooses the lanes around a store; returns whether there are any.
  bool choose_lanes() {
    const std::vector<NestLoop>& loops = kernels_.loops();
    if (is_gpu_) {
      i64 extents[3] = {0, 0, 0};
      for (const NestLoop& loop : loops) {
        if (is_thread_index(loop.kind)) extents[loop.axis()] = loop.extent;
      }
      if (!extents[0] && !extents[1] && !extents[2]) return false;
      for (i64& extent : extents) extent = std::max<i64>(extent, 1);
      lanes_.choose_warp(extents[0], extents[1], extents[2]);
      return true;
    }
    for (size_t level = loops.size(); level-- > 0;) {
      if (loops[level].extent <= 1) continue;
      lanes_.choose_loop(loops[level].var, loops[level].extent, loops[level].bit);
      return true;
    }
    return false;
  }

  // The columns of the written buffer (slot 0) or an access slot (1 to 5).
  void describe(const Access& access, size_t slot, bool has_lanes, float* row) {
    const Allocated* found = allocated_.find(access.buffer);
    const Memory memory =
        found ? found->memory : scopes_.memory_of(access.buffer, no_loops_, is_gpu_);
    if (memory != OTHER) row[kScope + slot * kMemories + memory] = 1;
    row[kDType + slot] = signed_log_(p_.element_bytes(access.buffer));
    float* alloc = row + kAlloc + slot * kAllocColumns;
    alloc[0] = found ? found->log_bytes : 0;
    alloc[1] = !found;
    if (!has_lanes) return;
    const i64* extents = extents_of(access, found);
    const int shift = !is_gpu_           ? kLineShift
                      : memory == GLOBAL ? kSectorShift
                                         : LaneEvaluator::kNoSectors;
    const LaneAccess lanes = lanes_.access(access, extents, shift, is_gpu_ && memory == SHARED);
    float* columns = row + kStride + 1 + slot * kStrideColumns;
    columns[0] = signed_log_(lanes.stride);
    columns[lanes.is_irregular ? 4 : lanes.stride == 0 ? 1 : lanes.stride == 1 ? 2 : 3] = 1;
    columns[5] = signed_log_(lanes.sectors);
    columns[6] = signed_log_(lanes.bank_conflicts);
  }

  // Columns of the allocated region, or of the whole parameter.
  const i64* extents_of(const Access& access, const Allocated* found) const {
    if (found && found->rank == access.rank) return extents_.data() + found->first_extent;
    return p_.extents.data() + p_.buffers[access.buffer].first_extent;
  }

  static size_t nest_kind(LoopKind kind) {
    switch (kind) {
      case SERIAL: return 0;
      case PARALLEL: return 1;
      case VECTORIZED: return 2;
      case UNROLLED: return 3;
      case VTHREAD: return 4;
      default: return is_block_index(kind) ? 5 : 6;
    }
  }

  // The enclosing loops, innermost first. A serial loop counts as unrolled if the copies of the
  // store are within the pragma's limit and it contains only serial, unrolled and vectorised loops.
  void nest_columns(const Leaf& leaf, float* columns) const {
    const std::vector<NestLoop>& loops = kernels_.loops();
    double copies = 1;
    bool may_unroll = true;
    size_t used = 0;
    for (size_t level = loops.size(); level-- > 0 && used < kNestLevels;) {
      const NestLoop& loop = loops[level];
      if (loop.extent <= 1) continue;
      LoopKind kind = loop.kind;
      if (kind == SERIAL || kind == UNROLLED) {
        copies *= static_cast<double>(loop.extent);
      } else if (kind != VECTORIZED) {
        may_unroll = false;
      }
      if (kind == SERIAL && may_unroll && copies <= static_cast<double>(leaf.unroll_max_step)) {
        kind = UNROLLED;
      }
      columns[0] = loop.log_extent;
      columns[1 + nest_kind(kind)] = 1;
      columns[1 + kNestKinds] = !(leaf.written->mask & Mask::of(loop.bit)).any();
      columns += kNestColumns;
      ++used;
    }
  }

  // Executions of the store under its conditions, and its integer operations.
  void executed_columns(const Leaf& leaf, float* columns) {
    double runs = leaf.iterations;
    for (const double share : held_) runs *= share;
    *columns++ = SignedLog::of(runs);
    *columns++ = leaf.is_across_threads;
    const i64* counts = integers_.count(leaf.value);
    i64 total = 0;
    for (size_t i = 0; i < IntegerOps::kColumns; ++i) {
      if (counts[i]) columns[i] = SignedLog::of(runs * static_cast<double>(counts[i]));
      total += counts[i];
    }
    integer_ops_ += runs * static_cast<double>(total);
  }

  // Capacity that one run of a loop needs, and the amount that it fetches.
  struct Level {
    double extent, room, fetched;
  };

  // Bytes touched in one run of each enclosing loop, innermost first, and bytes fetched by a cache
  // of each capacity.
  void footprint_columns(const Leaf& leaf, float* columns) {
    const std::vector<NestLoop>& loops = kernels_.loops();
    const std::vector<i64>& touched = leaf.accesses->bytes_by_loop();
    levels_.clear();
    for (size_t i = 0; i < touched.size(); ++i) {
      const NestLoop& loop = loops[loops.size() - 1 - i];
      if (loop.extent <= 1) continue;
      if (levels_.size() < kNestLevels) columns[levels_.size()] = signed_log_(touched[i]);
      const double bytes = static_cast<double>(touched[i]);
      levels_.push_back({static_cast<double>(loop.extent), bytes, bytes});
    }
    for (size_t i = 0; i < kCapacities; ++i) {
      columns[kNestLevels + i] = fetched(static_cast<double>(leaf.element_bytes), capacity(i));
    }
  }

  // The same for cache lines: bytes of the lines, bytes fetched without and with set conflicts; and
  // pages fetched by TLBs of two sizes.
  void line_columns(const AccessAnalysis& accesses, float* columns) {
    find_covers(accesses);
    for (size_t i = 0; i < std::min(covers_.size(), kNestLevels); ++i) {
      columns[i] = SignedLog::of(covers_[i].line_bytes);
    }
    columns += kNestLevels;
    const double count = static_cast<double>(accesses.count());
    const double least = count * static_cast<double>(CacheLines::kLineBytes);
    set_rooms(&Cover::line_bytes, &Cover::line_bytes);
    for (size_t i = 0; i < kCapacities; ++i) *columns++ = fetched(least, capacity(i));
    for (size_t i = 0; i < kCapacities; ++i) {
      const bool is_near = capacity(i) <= kNearCapacity;
      set_rooms(is_near ? &Cover::near_bytes : &Cover::far_bytes, &Cover::line_bytes);
      *columns++ = fetched(least, capacity(i));
    }
    set_rooms(&Cover::pages, &Cover::pages);
    for (const double entries : kPageEntries) *columns++ = fetched(count, entries);
  }

  // Loads of the sets of two caches by one run of each enclosing loop, innermost first.
  void load_columns(float* columns) const {
    for (size_t i = 0; i < std::min(covers_.size(), kNestLevels); ++i) {
      for (const SetLoad& load : {covers_[i].near, covers_[i].far}) {
        *columns++ = SignedLog::of(load.fullest);
        *columns++ = SignedLog::of(load.beyond);
      }
    }
  }

  // Fills `covers_` with the coverage of one run of each loop with iterations, innermost first, in
  // the order of `levels_`.
  void find_covers(const AccessAnalysis& accesses) {
    const std::vector<NestLoop>& loops = kernels_.loops();
    covers_.clear();
    of_access_.assign(accesses.count(), {});
    for (size_t i = 0; i < accesses.bytes_by_loop().size(); ++i) {
      Cover total;
      for (size_t number = 0; number < accesses.count(); ++number) {
        const size_t box = accesses.box_of(i, number);
        if (i == 0 || box != accesses.box_of(i - 1, number)) {
          const Access& access = accesses[number];
          of_access_[number] =
              cache_lines_.cover(accesses.box(box), extents_of(access, allocated_.find(access.buffer)),
                                 access.rank, p_.element_bytes(access.buffer), has_sets_);
        }
        total.add(of_access_[number]);
      }
      if (loops[loops.size() - 1 - i].extent > 1) covers_.push_back(total);
    }
  }

  void set_rooms(double Cover::*room, double Cover::*fetched) {
    for (size_t i = 0; i < levels_.size(); ++i) {
      levels_[i].room = covers_[i].*room;
      levels_[i].fetched = covers_[i].*fetched;
    }
  }

  static double capacity(size_t number) {
    return static_cast<double>(i64{1} << (kLeastCapacityBits + 2 * static_cast<int>(number)));
  }

  // Amount fetched by a cache: it holds the data of the outermost loop of `levels_` that fits, and
  // fetches it again in every iteration of the loops around that loop.
  float fetched(double least, double capacity) const {
    double runs = 1, held = least;
    for (size_t level = levels_.size(); level-- > 0;) {
      if (levels_[level].room <= capacity) {
        held = levels_[level].fetched;
        break;
      }
      runs *= levels_[level].extent;
    }
    return SignedLog::of(runs * held);
  }

  const Program& p_;
  LaneEvaluator lanes_;
  Scopes scopes_;
  KernelStack kernels_;
  SignedLog signed_log_;
  Shares shares_;
  IntegerOps integers_;
  std::vector<double> held_;
  bool is_gpu_ = false, has_sets_ = true;
  std::vector<float>* rows_ = nullptr;
  size_t first_ = 0;
  StampedMap<Allocated> allocated_;
  std::vector<i64> extents_;
  u32 extents_at_ = 0;
  Stamps inputs_;
  const std::vector<NestLoop> no_loops_;
  std::vector<u32> kernel_of_row_;
  std::vector<float> columns_;
  CacheLines cache_lines_;
  std::vector<Level> levels_;
  std::vector<Cover> covers_, of_access_;
  i64 depth_ = 0, terms_ = 0, most_loops_ = 0, input_bytes_ = 0;
  double float_ops_ = 0, integer_ops_ = 0;
};

}  // namespace cdmpp
