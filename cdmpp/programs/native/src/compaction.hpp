// Computes the region of every allocation (see cdmpp/programs/loops/compaction.py).
#pragma once

#include "intervals.hpp"
#include "simplify.hpp"

namespace cdmpp {

class Compaction {
 public:
  Compaction(Program& program, Simplifier& simplifier, Tree& tree)
      : p_(program), simplifier_(simplifier), tree_(tree),
        global_(program.names.intern("global")) {}

  // Sets the extents of all allocations. The bounds of the loop variables are known to the
  // simplifier.
  void run(const std::vector<TreeId>& nodes) {
    places_.clear();
    masks_.clear();
    boxes_.clear();
    loops_.clear();
    origins_.reset();
    box_count_ = 0;
    visit(nodes);
  }

 private:
  // Bit of variables without an open loop, and of values read from memory.
  static constexpr u32 kUnknown = Mask::kBits - 1;

  struct Side {
    Linear origin;
    double low, high;
  };
  struct Box {
    Mask still;  // variables that the region does not move with
    bool is_touched;
    std::vector<Side> sides;
  };

  void visit(const std::vector<TreeId>& nodes) {
    for (const TreeId id : nodes) {
      TreeNode& node = tree_[id];
      switch (node.type) {
        case TreeNode::STORE:
          seen_.clear();
          touch(node.buffer, node.indices.data());
          for (const ExprId index : node.indices) reads(index);
          reads(node.expr);
          break;
        case TreeNode::LOOP:
          if (loops_.size() >= kUnknown) throw Declined{"too many loops"};
          places_.set(node.name, static_cast<u32>(loops_.size()));
          loops_.push_back(node.kind);
          visit(node.body);
          loops_.pop_back();
          break;
        case TreeNode::ALLOCATION: {
          const u32 box = open(node.buffer);
          visit(node.body);
          close(box, node);
          break;
        }
        case TreeNode::CONDITION: {
          seen_.clear();
          reads(node.expr);
          auto before = simplifier_.assume(node.expr);
          visit(node.body);
          simplifier_.restore(std::move(before));
          break;
        }
        default:
          visit(node.body);
      }
    }
  }

  u32 open(BufferId buffer) {
    const u32 number = box_count_++;
    if (number == pool_.size()) pool_.emplace_back();
    Box& box = pool_[number];
    box.is_touched = false;
    box.sides.clear();
    const NameId scope = p_.buffers[buffer].scope;
    Mask moving;
    for (u32 place = 0; place < loops_.size(); ++place) {
      if (!shares_memory(loops_[place], scope)) moving = moving | Mask::of(place);
    }
    box.still = ~moving;
    boxes_.set(buffer, number);
    return number;
  }

  void close(u32 number, TreeNode& node) {
    const Box& box = pool_[number];
    if (!box.is_touched) return;
    for (u32 i = 0; i < box.sides.size(); ++i) {
      node.extents[i] = {true, extent(box.sides[i], p_.extent(node.buffer, i)), kNone};
    }
  }

  static i64 extent(const Side& side, i64 size) {
    double low = side.low, high = side.high;
    if (side.origin.is_constant()) {  // the index itself, which is inside the buffer
      low = std::max(low, 0.0);
      high = std::min(high, static_cast<double>(size - 1));
    }
    const double width = high - low + 1;
    if (!std::isfinite(width) || width >= static_cast<double>(size)) return size;
    return std::max<i64>(1, static_cast<i64>(width));
  }

  void reads(ExprId id) {
    const Node& node = p_.node(id);
    if (node.arg_count == 0 && node.op != LOAD) return;
    if (seen_.has(id)) return;
    seen_.set(id);
    if (node.op == LOAD) touch(static_cast<BufferId>(node.value), &p_.args[node.first_arg]);
    // The simplifier created nodes, which invalidates the reference.
    const u32 count = p_.node(id).arg_count;
    for (u32 i = 0; i < count; ++i) reads(p_.arg(id, i));
  }

  void touch(BufferId buffer, const ExprId* indices) {
    const u32* number = boxes_.find(buffer);
    if (!number) return;
    Box& box = pool_[*number];
    const u32 rank = p_.buffers[buffer].rank;
    indices_.assign(indices, indices + rank);
    const bool is_first = !box.is_touched;
    box.is_touched = true;
    for (u32 i = 0; i < rank; ++i) {
      const Linear form = simplifier_.linear(indices_[i]);
      if (is_first) box.sides.push_back({origin(form, box.still), kInfinity, -kInfinity});
      Side& side = box.sides[i];
      const Bounds bounds = simplifier_.bounds_of(simplifier_.add(form, side.origin, -1));
      side.low = std::min(side.low, bounds.low);
      side.high = std::max(side.high, bounds.high);
    }
  }

  // The terms of an index that depend only on loops around the allocation.
  Linear origin(const Linear& form, const Mask& still) {
    Term* terms = origins_.allocate(form.count);
    u32 count = 0;
    for (u32 i = 0; i < form.count; ++i) {
      if (!(mask(form.terms[i].base) & still).any()) terms[count++] = form.terms[i];
    }
    return {terms, count, 0};
  }

  Mask mask(ExprId id) {
    const Node& node = p_.node(id);
    if (node.op == LOAD) return Mask::of(kUnknown);
    if (node.op == VAR) {
      const u32* place = places_.find(static_cast<u32>(node.value));
      return Mask::of(place ? *place : kUnknown);
    }
    if (node.arg_count == 0) return {};
    if (const Mask* found = masks_.find(id)) return *found;
    Mask result;
    for (u32 i = 0; i < node.arg_count; ++i) result = result | mask(p_.arg(id, i));
    masks_.set(id, result);
    return result;
  }

  // Whether all iterations of a loop share one copy of a buffer.
  bool shares_memory(LoopKind kind, NameId scope) const {
    if (is_block_index(kind)) return scope == global_;
    if (!is_thread(kind)) return false;
    return scope == global_ || p_.names.text(scope).rfind("shared", 0) == 0;
  }

  Program& p_;
  Simplifier& simplifier_;
  Tree& tree_;
  NameId global_;
  StampedMap<u32> places_, boxes_;
  StampedMap<Mask> masks_;
  std::vector<LoopKind> loops_;
  std::deque<Box> pool_;
  u32 box_count_ = 0;
  TermArena origins_;
  Stamps seen_;
  std::vector<ExprId> indices_;
};

}  // namespace cdmpp
