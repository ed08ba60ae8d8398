// A loop tree, read from the arrays of `flatten.py`.
#pragma once

#include "flat.hpp"
#include "tree.hpp"

namespace cdmpp {

class TreeReader : private FlatTables {
 public:
  using FlatTables::FlatTables;

  // Returns the top-level nodes; creates nodes in `tree` and expressions in `program`.
  std::vector<TreeId> read(Program* program, Tree* tree) {
    read_tables(program);
    std::vector<TreeId> top = nodes(tree, 0);
    if (!in_.at_end()) throw Declined{"flat form: too long"};
    return top;
  }

 private:
  // In the order of `flatten.NODES`. An annotation other than the unroll pragma has no node.
  enum Type : u8 { LOOP, ALLOCATION, CONDITION, UNROLL, STORE, TYPES };

  std::vector<TreeId> nodes(Tree* tree, int depth) {
    if (depth > kMaxTreeDepth) throw Declined{"loops nested deeply"};
    return in_.list<TreeId>([&] { return node(tree, depth); });
  }

  TreeId node(Tree* tree, int depth) {
    switch (in_.index(TYPES)) {
      case LOOP: {
        const TreeId id = tree->make(TreeNode::LOOP);
        (*tree)[id].name = name();
        (*tree)[id].kind = static_cast<LoopKind>(in_.index(THREAD_Z + 1));
        (*tree)[id].minimum = extent();
        (*tree)[id].extent = extent();
        return with_body(id, tree, depth);
      }
      case ALLOCATION: {
        const TreeId id = tree->make(TreeNode::ALLOCATION);
        (*tree)[id].buffer = buffer();
        (*tree)[id].extents = in_.list<Extent>([&] { return extent(); });
        return with_body(id, tree, depth);
      }
      case CONDITION: {
        const TreeId id = tree->make(TreeNode::CONDITION);
        (*tree)[id].expr = expr();
        (*tree)[id].otherwise = static_cast<u32>(in_.next());
        return with_body(id, tree, depth);
      }
      case UNROLL: {
        const TreeId id = tree->make(TreeNode::UNROLL);
        (*tree)[id].unroll_max_step = in_.next();
        return with_body(id, tree, depth);
      }
      default: {
        const TreeId id = tree->make(TreeNode::STORE);
        (*tree)[id].buffer = buffer();
        (*tree)[id].indices = in_.list<ExprId>([&] { return expr(); });
        (*tree)[id].expr = expr();
        (*tree)[id].is_across_threads = in_.next() != 0;
        return id;
      }
    }
  }

  TreeId with_body(TreeId id, Tree* tree, int depth) {
    std::vector<TreeId> body = nodes(tree, depth + 1);
    (*tree)[id].body = std::move(body);
    return id;
  }

  Extent extent() {
    if (in_.next() != 0) return {true, in_.next(), kNone};
    return {false, 0, expr()};
  }
};

}  // namespace cdmpp
