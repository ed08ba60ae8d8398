// Simplifies indices and removes decided conditions of a program lowered by a compiler (see
// cdmpp/programs/loops/canonical.py).
#pragma once

#include "simplify.hpp"
#include "tree.hpp"

namespace cdmpp {

class Canonical {
 public:
  Canonical(Program& program, Simplifier& simplifier, Tree& tree)
      : p_(program), simplifier_(simplifier), tree_(tree) {}

  std::vector<TreeId> run(const std::vector<TreeId>& nodes) {
    unit_loops_.clear();
    return simplified(nodes);
  }

 private:
  using Nodes = std::vector<TreeId>;

  Nodes simplified(const Nodes& nodes) {
    Nodes result;
    result.reserve(nodes.size());
    for (const TreeId id : nodes) {
      TreeNode& node = tree_[id];
      switch (node.type) {
        case TreeNode::STORE:
          for (ExprId& index : node.indices) index = expr(index);
          node.expr = expr(node.expr);
          result.push_back(id);
          break;
        case TreeNode::CONDITION:
          condition(id, &result);
          break;
        case TreeNode::LOOP:
          loop(id, &result);
          break;
        default:
          keep(id, simplified(node.body), &result);
      }
    }
    return result;
  }

  void keep(TreeId id, Nodes body, Nodes* result) {
    if (body.empty()) return;
    tree_[id].body = std::move(body);
    result->push_back(id);
  }

  void loop(TreeId id, Nodes* result) {
    TreeNode& node = tree_[id];
    Bounds bounds;
    if (node.extent.is_constant) {
      bounds = {0, static_cast<double>(node.extent.value) - 1};
    } else {
      node.extent.expr = expr(node.extent.expr);
      if (p_.is_const(node.extent.expr)) throw Declined{"extent that only looks variable"};
      bounds = {0, simplifier_.expr_bounds(node.extent.expr).high - 1};
    }
    simplifier_.bind(node.name, bounds.low, bounds.high);
    const bool is_unit = node.extent.is_constant && node.extent.value == 1;
    if (is_unit) enter_unit_loop(node.name);
    keep(id, simplified(node.body), result);
    if (is_unit) unit_loops_.pop_back();
  }

  void condition(TreeId id, Nodes* result) {
    TreeNode& node = tree_[id];
    const ExprId test = expr(node.expr);
    if (p_.is_const(test)) {
      if (p_.float_value(test) == 0) return;
      const Nodes body = simplified(node.body);
      result->insert(result->end(), body.begin(), body.end());
      return;
    }
    node.expr = test;
    auto before = simplifier_.assume(test);
    Nodes body = simplified(node.body);
    simplifier_.restore(std::move(before));
    keep(id, std::move(body), result);
  }

  // Replaces a variable by 0.
  void enter_unit_loop(NameId name) {
    unit_loops_.push_back(name);
    p_.begin_substitution();
    for (const NameId one : unit_loops_) p_.replace(one, p_.integer(0));
  }

  ExprId expr(ExprId id) {
    return simplifier_.simplify(unit_loops_.empty() ? id : p_.substitute(id));
  }

  Program& p_;
  Simplifier& simplifier_;
  Tree& tree_;
  std::vector<NameId> unit_loops_;
};

}  // namespace cdmpp
