// Converts loop trees of all sources to compact ASTs (see tests/programs/reference/tree.py).
#pragma once

#include "leaf.hpp"

namespace cdmpp {

// Concatenated compact ASTs of programs.
struct CompactAsts {
  std::vector<float> features, extra;
  std::vector<std::int32_t> positions, tree;

  void clear() { truncate(0, 0); }
  // Truncates to the given numbers of leaves and tree entries.
  void truncate(size_t leaves, size_t tree_size) {
    features.resize(leaves * kLeafFeatures);
    extra.resize(leaves * kLeafExtra);
    positions.resize(leaves);
    tree.resize(tree_size);
  }
};

// Appends the compact AST of a program, one leaf per store in program order. `has_sets`: whether to
// count the lines in cache sets, see `ExtraWalk::start`.
inline void append_compact_ast(const Tree& tree, const std::vector<TreeId>& top, bool is_gpu,
                               bool has_sets, LeafWalk* walk, CompactAsts* out) {
  walk->run(top, is_gpu, has_sets, &out->features, &out->extra);
  Serialiser(tree, &out->tree, &out->positions).run(top);
}

}  // namespace cdmpp
