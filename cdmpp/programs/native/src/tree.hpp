// The loop tree, its serialised form, and checks that reject it (see
// tests/programs/reference/tree.py and tests/programs/reference/rejection.py).
#pragma once

#include "state.hpp"

namespace cdmpp {

using TreeId = u32;

// A number, or an expression if it is not constant.
struct Extent {
  bool is_constant;
  i64 value;
  ExprId expr;
};

struct TreeNode {
  enum Type : u8 { LOOP, ALLOCATION, CONDITION, UNROLL, SCOPE, STORE };
  Type type;
  LoopKind kind;           // of a loop
  NameId name;             // of a loop variable
  Extent minimum, extent;  // of a loop
  BufferId buffer;         // of an allocation or a store
  ExprId expr;             // the condition, or the stored value
  i64 unroll_max_step;     // of an unroll pragma
  u32 otherwise;           // of a condition: number of nodes at the end that are its else branch
  bool is_across_threads;  // of a store: combines values of threads
  std::vector<Extent> extents;   // of an allocation
  std::vector<ExprId> indices;   // of a store
  std::vector<TreeId> body;
};

// Nodes of a program; their memory is reused for the next one.
class Tree {
 public:
  TreeId make(TreeNode::Type type) {
    if (used_ == nodes_.size()) {
      if (used_ >= kMaxNodes) throw Declined{"too many loops"};
      nodes_.emplace_back();
    }
    TreeNode& node = nodes_[used_];
    node.type = type;
    node.minimum = {true, 0, kNone};
    node.otherwise = 0;
    node.is_across_threads = false;
    node.extents.clear();
    node.indices.clear();
    node.body.clear();
    return static_cast<TreeId>(used_++);
  }
  TreeNode& operator[](TreeId id) { return nodes_[id]; }
  const TreeNode& operator[](TreeId id) const { return nodes_[id]; }
  void reset() { used_ = 0; }

 private:
  static constexpr size_t kMaxNodes = 1 << 17;
  std::deque<TreeNode> nodes_;
  size_t used_ = 0;
};

// Appends the serialised tree and the positions of its stores.
class Serialiser {
 public:
  Serialiser(const Tree& tree, std::vector<std::int32_t>* out, std::vector<std::int32_t>* positions)
      : tree_(tree), out_(*out), positions_(*positions), first_(out->size()) {}

  void run(const std::vector<TreeId>& top) {
    out_.push_back(0);
    for (const TreeId id : top) visit(id);
    out_.push_back(kLeave);
  }

 private:
  static constexpr std::int32_t kLeave = -1;

  void visit(TreeId id) {
    const TreeNode& node = tree_[id];
    const bool is_store = node.type == TreeNode::STORE;
    const bool is_unit = node.extent.is_constant && node.extent.value == 1;
    const bool makes_node = is_store || node.type == TreeNode::ALLOCATION ||
                            (node.type == TreeNode::LOOP && !is_unit);
    if (is_store) positions_.push_back(static_cast<std::int32_t>(out_.size() - first_));
    if (makes_node) out_.push_back(count_++);
    for (const TreeId child : node.body) visit(child);
    if (makes_node) out_.push_back(kLeave);
  }

  const Tree& tree_;
  std::vector<std::int32_t>& out_;
  std::vector<std::int32_t>& positions_;
  size_t first_;
  std::int32_t count_ = 1;
};

struct GpuLimits {
  i64 shared_bytes, threads, vthreads;
};

class Judge {
 public:
  Judge(const Tree& tree, const Program& program, NameId shared)
      : tree_(tree), p_(program), shared_(shared) {}

  // Returns why an extent rejects the program; empty = it is accepted.
  std::string bad_extent(const std::vector<TreeId>& nodes) const {
    for (const TreeId id : nodes) {
      const TreeNode& node = tree_[id];
      std::string reason;
      if (node.type == TreeNode::LOOP) reason = bad(node.extent);
      if (node.type == TreeNode::ALLOCATION) {
        for (const Extent& extent : node.extents) {
          if (reason.empty()) reason = bad(extent);
        }
      }
      if (reason.empty()) reason = bad_extent(node.body);
      if (!reason.empty()) return reason;
    }
    return {};
  }

  // Returns the limit that a kernel exceeds; empty = none.
  std::string violation(const std::vector<TreeId>& nodes, const GpuLimits& limits) const {
    for (const TreeId id : nodes) {
      const TreeNode& node = tree_[id];
      const bool is_kernel = node.type == TreeNode::LOOP && is_thread(node.kind);
      const std::string reason =
          is_kernel ? kernel_violation(id, limits) : violation(node.body, limits);
      if (!reason.empty()) return reason;
    }
    return {};
  }

 private:
  std::string bad(const Extent& extent) const {
    if (!extent.is_constant) return "extent is not constant: " + p_.text(extent.expr);
    return extent.value < 1 ? "extent is not positive: " + std::to_string(extent.value) : "";
  }

  struct Usage {
    i64 shared_bytes = 0;
    i64 threads[3] = {1, 1, 1};
    i64 vthreads = 1;
  };

  std::string kernel_violation(TreeId kernel, const GpuLimits& limits) const {
    Usage usage;
    collect(kernel, &usage);
    const i64 threads = mul(mul(usage.threads[0], usage.threads[1]), usage.threads[2]);
    const auto text = [](const char* what, i64 value, const char* is, i64 limit) {
      return what + std::to_string(value) + is + std::to_string(limit) + ")";
    };
    if (usage.shared_bytes > limits.shared_bytes) {
      return text("shared memory per block (", usage.shared_bytes, ") is above the limit (",
                  limits.shared_bytes);
    }
    if (threads > limits.threads) {
      return text("threads per block (", threads, ") are above the limit (", limits.threads);
    }
    if (usage.vthreads > limits.vthreads) {
      return text("virtual threads (", usage.vthreads, ") are above the limit (", limits.vthreads);
    }
    return {};
  }

  void collect(TreeId id, Usage* usage) const {
    static constexpr i64 kUnrolledBelow = 16;
    const TreeNode& node = tree_[id];
    if (node.type == TreeNode::ALLOCATION && p_.buffers[node.buffer].scope == shared_) {
      i64 bytes = p_.element_bytes(node.buffer);
      for (const Extent& extent : node.extents) {
        if (extent.is_constant) bytes = mul(bytes, extent.value);
      }
      usage->shared_bytes = add(usage->shared_bytes, bytes);
    }
    if (node.type == TreeNode::LOOP && is_thread_index(node.kind)) {
      i64& threads = usage->threads[(node.kind - THREAD_X) / 2];
      threads = std::max(threads, node.extent.is_constant ? node.extent.value : 1);
    }
    if (node.type == TreeNode::LOOP && node.kind == VTHREAD && node.extent.is_constant &&
        node.extent.value >= kUnrolledBelow) {
      usage->vthreads = std::max(usage->vthreads, node.extent.value);
    }
    for (const TreeId child : node.body) collect(child, usage);
  }

  const Tree& tree_;
  const Program& p_;
  NameId shared_;
};

}  // namespace cdmpp
