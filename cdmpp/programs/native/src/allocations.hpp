// Placement of buffer allocations in a loop tree that was read from TIR (see
// cdmpp/programs/loops/allocations.py).
#pragma once

#include "tree.hpp"

namespace cdmpp {

class Placement {
 public:
  Placement(const Program& program, Tree& tree) : p_(program), tree_(tree) {}

  // Collects the buffers that the nodes use, for the other functions.
  void look_at(const std::vector<TreeId>& nodes, const std::vector<BufferId>& allocated,
               const std::vector<BufferId>& parameters) {
    role_.clear();
    bits_.clear();
    loads_.clear();
    masks_.clear();
    bit_count_ = 0;
    in_order_.clear();
    written_ = 0;
    for (const BufferId buffer : allocated) role_.set(buffer, ALLOCATED);
    for (const BufferId buffer : parameters) role_.set(buffer, PARAMETER);
    for (const TreeId id : nodes) uses(id);
  }

  // Puts every allocation into the innermost list of statements with all its uses.
  std::vector<TreeId> place_allocations(std::vector<TreeId> nodes) {
    for (const BufferId buffer : in_order_) nodes = place(std::move(nodes), buffer, true);
    return nodes;
  }

  // Puts allocations of all written parameters around the whole program.
  std::vector<TreeId> place_outputs(std::vector<TreeId> nodes,
                                    const std::vector<BufferId>& parameters) {
    for (const BufferId buffer : parameters) {
      const u32* bit = bits_.find(buffer);
      if (bit && (written_ >> *bit & 1)) nodes = place(std::move(nodes), buffer, false);
    }
    return nodes;
  }

 private:
  enum Role : u8 { ALLOCATED, PARAMETER };
  static constexpr u32 kMaxBuffers = 64;

  u64 bit(BufferId buffer) {
    const Role* role = role_.find(buffer);
    if (!role) return 0;
    if (!bits_.has(buffer)) {
      if (bit_count_ == kMaxBuffers) throw Declined{"too many buffers"};
      bits_.set(buffer, bit_count_++);
      if (*role == ALLOCATED) in_order_.push_back(buffer);
    }
    return u64{1} << bits_.at(buffer);
  }

  u64 reads(ExprId id) {
    const Node& node = p_.node(id);
    if (node.arg_count == 0 && node.op != LOAD) return 0;
    if (const u64* found = loads_.find(id)) return *found;
    u64 mask = node.op == LOAD ? bit(static_cast<BufferId>(node.value)) : 0;
    for (u32 i = 0; i < node.arg_count; ++i) mask |= reads(p_.arg(id, i));
    loads_.set(id, mask);
    return mask;
  }

  u64 uses(TreeId id) {
    const TreeNode& node = tree_[id];
    u64 mask = 0;
    if (node.type == TreeNode::STORE) {
      mask = bit(node.buffer);
      written_ |= mask;
      for (const ExprId index : node.indices) mask |= reads(index);
      mask |= reads(node.expr);
    } else if (node.type == TreeNode::CONDITION) {
      mask = reads(node.expr);
    }
    for (const TreeId child : node.body) mask |= uses(child);
    masks_.set(id, mask);
    return mask;
  }

  bool leads_on(TreeId id, bool through_loops) const {
    const TreeNode::Type type = tree_[id].type;
    if (type == TreeNode::ALLOCATION) return true;
    return through_loops && type != TreeNode::CONDITION && type != TreeNode::STORE;
  }

  std::vector<TreeId> place(std::vector<TreeId> nodes, BufferId buffer, bool through_loops) {
    const u64 wanted = u64{1} << bits_.at(buffer);
    size_t first = nodes.size(), count = 0;
    for (size_t i = nodes.size(); i-- > 0;) {
      if (!(masks_.at(nodes[i]) & wanted)) continue;
      first = i;
      ++count;
    }
    if (count == 1 && leads_on(nodes[first], through_loops)) {
      const TreeId only = nodes[first];
      std::vector<TreeId> body = place(std::move(tree_[only].body), buffer, through_loops);
      tree_[only].body = std::move(body);
      return nodes;
    }
    const TreeId id = tree_.make(TreeNode::ALLOCATION);
    TreeNode& node = tree_[id];
    node.buffer = buffer;
    for (const i64 extent : p_.shape_of(buffer)) node.extents.push_back({true, extent, kNone});
    const auto from = nodes.begin() + static_cast<std::ptrdiff_t>(first);
    node.body.assign(from, nodes.end());
    u64 mask = 0;
    for (const TreeId child : node.body) mask |= masks_.at(child);
    masks_.set(id, mask);
    nodes.erase(from, nodes.end());
    nodes.push_back(id);
    return nodes;
  }

  const Program& p_;
  Tree& tree_;
  StampedMap<Role> role_;
  StampedMap<u32> bits_;
  StampedMap<u64> loads_, masks_;
  u32 bit_count_ = 0;
  u64 written_ = 0;
  std::vector<BufferId> in_order_;
};

}  // namespace cdmpp
