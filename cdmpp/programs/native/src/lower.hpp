// Lowers a schedule state to a loop tree (see tests/programs/reference/lower.py).
#pragma once

#include "bounds.hpp"
#include "tree.hpp"

namespace cdmpp {

class Lowering {
 public:
  Lowering(ScheduleState& state, Simplifier& simplifier, Tree& tree)
      : s_(state), p_(state.program()), simplifier_(simplifier), tree_(tree),
        bounds_(state, simplifier) {
    rebased_ = p_.names.intern(".0");
    init_ = p_.names.intern(".init");
    reduce_temp_ = p_.names.intern(".reduce_temp");
  }

  // Returns the top-level nodes, before `finish`.
  std::vector<TreeId> run() {
    simplifier_.reset();
    tree_.reset();
    scopes_.clear();
    inline_stages();
    std::vector<StageId> stages;
    for (const StageId id : s_.lowering_order()) {
      if (s_.stage(id).attach != Stage::INLINE) stages.push_back(id);
    }
    for (const StageId id : stages) rebase(s_.stage(id));
    for (const StageId id : stages) remap_attachment(s_.stage(id));
    bounds_.run(stages);
    return emit(stages);
  }

  // Returns the nodes with simplified expressions, without scope marks and decided conditions.
  std::vector<TreeId> finish(const std::vector<TreeId>& nodes, int depth = 0) {
    if (depth > kMaxTreeDepth) throw Declined{"loops nested deeply"};
    std::vector<TreeId> result;
    for (const TreeId id : nodes) {
      TreeNode& node = tree_[id];
      if (node.type == TreeNode::STORE) {
        for (ExprId& index : node.indices) index = simplifier_.simplify(index);
        node.expr = simplifier_.simplify(node.expr);
        result.push_back(id);
      } else if (node.type == TreeNode::CONDITION) {
        finish_condition(id, depth, &result);
      } else {
        std::vector<TreeId> body = finish(node.body, depth + 1);
        if (node.type == TreeNode::SCOPE) {
          result.insert(result.end(), body.begin(), body.end());
        } else if (!body.empty()) {
          node.body = std::move(body);
          result.push_back(id);
        }
      }
    }
    return result;
  }

 private:
  using Values = std::vector<ExprId>;                // by iterator
  using Levels = std::vector<std::vector<TreeId>>;   // nodes of every leaf iterator

  void finish_condition(TreeId id, int depth, std::vector<TreeId>* result) {
    TreeNode& node = tree_[id];
    const ExprId condition = simplifier_.simplify(node.expr);
    if (p_.is_const(condition)) {
      if (p_.float_value(condition) == 0) return;
      const std::vector<TreeId> body = finish(node.body, depth + 1);
      result->insert(result->end(), body.begin(), body.end());
      return;
    }
    auto before = simplifier_.assume(condition);
    std::vector<TreeId> body = finish(node.body, depth + 1);
    simplifier_.restore(std::move(before));
    if (body.empty()) return;
    node.expr = condition;
    node.body = std::move(body);
    result->push_back(id);
  }

  // Substitutes the bodies of inlined stages into their readers, last stage first.
  void inline_stages() {
    sizes_.clear();
    const std::vector<StageId>& order = s_.lowering_order();
    for (size_t position = order.size(); position-- > 0;) {
      const Stage& stage = s_.stage(order[position]);
      if (stage.attach != Stage::INLINE) continue;
      if (stage.is_output) {
        throw ReplayFailure{"output stage cannot be inlined", s_.name_of(stage)};
      }
      const DagOp& op = *stage.op;
      inlined_buffer_ = op.outputs[0];
      inlined_body_ = op.body[0];
      inlined_axes_ = &op.axes;
      if (op.is_const_matrix) inlined_body_ = p_.number(p_.node(inlined_body_).dtype, 1.0);
      for (size_t i = position + 1; i < order.size(); ++i) {
        Stage& reader = s_.stage(order[i]);
        if (!reader.op->reads(inlined_buffer_)) continue;
        DagOp& changed = s_.change(*reader.op);
        replaced_.clear();
        for (ExprId& body : changed.body) {
          body = replace_loads(body);
          if (size_of(body) > kMostNodes) {
            throw ReplayFailure{"expression too large after inlining", s_.name_of(reader)};
          }
        }
        changed.inputs.erase(
            std::find(changed.inputs.begin(), changed.inputs.end(), inlined_buffer_));
        const size_t before = changed.inputs.size();
        for (const BufferId input : op.inputs) {
          const auto end = changed.inputs.begin() + static_cast<std::ptrdiff_t>(before);
          if (std::find(changed.inputs.begin(), end, input) == end) changed.inputs.push_back(input);
        }
        reader.op = &changed;
      }
    }
  }

  ExprId replace_loads(ExprId id) {
    const Node node = p_.node(id);
    if (node.arg_count == 0 && node.op != LOAD) return id;
    if (const ExprId* done = replaced_.find(id)) return *done;
    Args args(node.arg_count);
    for (u32 i = 0; i < node.arg_count; ++i) args[i] = replace_loads(p_.arg(id, i));
    ExprId result;
    if (node.op == LOAD && node.value == inlined_buffer_) {
      if (node.arg_count != inlined_axes_->size()) throw Declined{"rank of a read"};
      p_.begin_substitution();
      for (u32 i = 0; i < node.arg_count; ++i) p_.replace((*inlined_axes_)[i].name, args[i]);
      result = p_.substitute(inlined_body_);
    } else {
      result = p_.with_args(id, args);
    }
    replaced_.set(id, result);
    return result;
  }

  // Number of nodes of an expression with repetitions, capped at one above the limit.
  u32 size_of(ExprId id) {
    const Node& node = p_.node(id);
    if (node.arg_count == 0) return 1;
    if (const u32* known = sizes_.find(id)) return *known;
    u32 size = 1;
    for (u32 i = 0; i < node.arg_count; ++i) {
      size = std::min(size + size_of(p_.arg(id, i)), kMostNodes + 1);
    }
    sizes_.set(id, size);
    return size;
  }

  // Makes every loop over a root iterator start at 0.
  void rebase(Stage& stage) {
    for (const IterId root : stage.root) {
      const u32 position = stage.position(root);
      if (position == kNone || is_thread(s_.iterator(root).kind)) continue;
      const Iterator old = s_.iterator(root);
      const IterId id = s_.add_iterator(p_.names.joined(old.name, rebased_), old.is_reduction);
      Iterator& rebased = s_.iterator(id);
      rebased.kind = old.kind;
      rebased.has_pragma = old.has_pragma;
      rebased.unroll_max_step = old.unroll_max_step;
      stage.relations.push_back({Relation::REBASE, root, id, kNone, false, 0});
      stage.leaf[position] = id;
    }
  }

  // Moves an attachment to the loop that later steps derived from its loop.
  void remap_attachment(Stage& stage) {
    if (stage.attach != Stage::AT) return;
    const Stage& target = s_.stage(stage.attach_stage);
    for (const Relation& r : target.relations) {
      const IterId current = stage.attach_iterator;
      if (target.position(current) != kNone) break;
      if (r.kind == Relation::FUSE && current == r.inner) stage.attach_iterator = r.parent;
      if (r.kind == Relation::SPLIT && current == r.parent) stage.attach_iterator = r.inner;
      if (r.kind == Relation::REBASE && current == r.parent) stage.attach_iterator = r.outer;
    }
  }

  std::vector<TreeId> emit(const std::vector<StageId>& stages) {
    std::vector<TreeId> body;
    for (size_t i = stages.size(); i-- > 0;) {
      const Stage& stage = s_.stage(stages[i]);
      if (!stage.op->is_compute) continue;
      if (stage.attach != Stage::AT) {
        body = pipeline(stage, body);
        continue;
      }
      const TreeId* scope = scopes_.find(stage.attach_iterator);
      if (!scope) throw ReplayFailure{"attach loop does not exist", s_.name_of(stage)};
      const TreeId id = *scope;
      std::vector<TreeId> inside = pipeline(stage, tree_[id].body);
      tree_[id].body = std::move(inside);
    }
    return body;
  }

  std::vector<TreeId> pipeline(const Stage& stage, const std::vector<TreeId>& consumer) {
    std::vector<TreeId> inside = provide(stage);
    inside.insert(inside.end(), consumer.begin(), consumer.end());
    std::vector<Extent> extents;
    for (size_t i = 0; i < stage.op->axes.size(); ++i) {
      extents.push_back(number(bounds_.range(stage.root[i]).extent));
    }
    for (size_t i = stage.op->outputs.size(); i-- > 0;) {
      BufferId placed = stage.op->outputs[i];
      const Buffer buffer = p_.buffers[placed];
      if (stage.scope && buffer.scope != stage.scope) {
        placed = p_.add_buffer(buffer.name, buffer.dtype, stage.scope, p_.shape_of(placed));
      }
      const TreeId id = tree_.make(TreeNode::ALLOCATION);
      tree_[id].buffer = placed;
      tree_[id].extents = extents;
      tree_[id].body = std::move(inside);
      inside = {id};
    }
    return inside;
  }

  Extent number(const Linear& form) {
    if (form.is_constant()) return {true, form.constant, kNone};
    return {false, 0, simplifier_.to_expr(form)};
  }

  static ExprId value_of(const Values& values, IterId id) {
    if (id >= values.size() || values[id] == kNone) throw Declined{"missing entry"};
    return values[id];
  }

  std::vector<ExprId> indices_of(const Stage& stage, const Values& values) {
    std::vector<ExprId> indices;
    for (size_t i = 0; i < stage.op->axes.size(); ++i) {
      indices.push_back(value_of(values, stage.root[i]));
    }
    return indices;
  }

  TreeId store(BufferId buffer, const std::vector<ExprId>& indices, ExprId value) {
    const TreeId id = tree_.make(TreeNode::STORE);
    tree_[id].buffer = buffer;
    tree_[id].indices = indices;
    tree_[id].expr = value;
    return id;
  }

  std::vector<TreeId> provide(const Stage& stage) {
    Values values(s_.iterator_count(), kNone);
    no_skip_.assign(s_.iterator_count(), 0);
    const Levels levels = loop_nest(stage, 0, no_skip_, false, &values);
    const std::vector<ExprId> predicates = bound_checks(stage, values, no_skip_);
    const std::vector<ExprId> indices = indices_of(stage, values);
    const DagOp& op = *stage.op;
    if (!op.has_reduction) {
      std::vector<TreeId> stores;
      substitute_roots(stage, values);
      for (size_t i = 0; i < op.outputs.size(); ++i) {
        stores.push_back(store(op.outputs[i], indices, p_.substitute(op.body[i])));
      }
      return wrap(levels, 0, levels.size(), guard(predicates, std::move(stores)));
    }
    for (const IterId id : stage.leaf) {
      const Iterator& iterator = s_.iterator(id);
      if (iterator.is_reduction && is_thread(iterator.kind)) {
        return cross_thread(stage, levels, indices);
      }
    }
    std::vector<TreeId> update = update_stores(stage, indices, values);
    const std::vector<u8> flags = reduction_flags(stage);
    size_t first = 0;
    while (first < stage.leaf.size() && !(flags[stage.leaf[first]] & 2)) ++first;
    std::vector<TreeId> inside = init_stores(stage, values, first, flags);
    const std::vector<TreeId> inner =
        wrap(levels, first, levels.size(), guard(predicates, std::move(update)));
    inside.insert(inside.end(), inner.begin(), inner.end());
    return wrap(levels, 0, first, std::move(inside));
  }

  void substitute_roots(const Stage& stage, const Values& values) {
    p_.begin_substitution();
    for (const IterId id : stage.root) p_.replace(s_.iterator(id).name, value_of(values, id));
  }

  // A cross-thread reduction in the form of the original's features: only the store of the combined
  // value is a store to a buffer.
  std::vector<TreeId> cross_thread(const Stage& stage, const Levels& levels,
                                   const std::vector<ExprId>& indices) {
    Levels common;
    for (size_t i = 0; i < levels.size(); ++i) {
      const Iterator& iterator = s_.iterator(stage.leaf[i]);
      if (!iterator.is_reduction || is_thread(iterator.kind)) common.push_back(levels[i]);
    }
    std::vector<TreeId> stores;
    for (const BufferId output : stage.op->outputs) {
      const Buffer& buffer = p_.buffers[output];
      const NameId name = p_.names.joined(buffer.name, reduce_temp_);
      stores.push_back(store(output, indices, p_.make(VAR, buffer.dtype, nullptr, 0, name)));
    }
    return wrap(common, 0, common.size(), std::move(stores));
  }

  std::vector<TreeId> update_stores(const Stage& stage, const std::vector<ExprId>& indices,
                                    const Values& values) {
    const DagOp& op = *stage.op;
    const Reduction& reduce = op.reduce;
    std::vector<ExprId> left, right;
    substitute_roots(stage, values);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      left.push_back(p_.load(op.outputs[i], indices.data(), static_cast<u32>(indices.size())));
      right.push_back(p_.substitute(op.body[i]));
    }
    const ExprId condition =
        reduce.condition == kNone ? kNone : p_.substitute(reduce.condition);
    p_.begin_substitution();
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      p_.replace(reduce.left[i], left[i]);
      p_.replace(reduce.right[i], right[i]);
    }
    std::vector<TreeId> stores;
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      stores.push_back(store(op.outputs[i], indices, p_.substitute(reduce.results[i])));
    }
    if (condition == kNone) return stores;
    return guard_one(condition, std::move(stores));
  }

  // The loops that initialise the accumulators.
  std::vector<TreeId> init_stores(const Stage& stage, const Values& main, size_t first,
                                  const std::vector<u8>& flags) {
    std::vector<u8> only_reduction(flags.size(), 0);
    for (size_t i = 0; i < flags.size(); ++i) only_reduction[i] = flags[i] == 2;
    Values values(s_.iterator_count(), kNone);
    for (size_t i = 0; i < first; ++i) values[stage.leaf[i]] = main[stage.leaf[i]];
    const Levels levels = loop_nest(stage, first, only_reduction, true, &values);
    const std::vector<ExprId> predicates = bound_checks(stage, values, only_reduction);
    const std::vector<ExprId> indices = indices_of(stage, values);
    const DagOp& op = *stage.op;
    const std::vector<ExprId>& starts =
        op.reduce.init.empty() ? op.reduce.identities : op.reduce.init;
    p_.begin_substitution();
    for (const IterId id : stage.root) {
      if (values[id] != kNone) p_.replace(s_.iterator(id).name, values[id]);
    }
    std::vector<TreeId> stores;
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      stores.push_back(store(op.outputs[i], indices, p_.substitute(starts[i])));
    }
    return wrap(levels, first, levels.size(), guard(predicates, std::move(stores)));
  }

  Levels loop_nest(const Stage& stage, size_t begin, const std::vector<u8>& skip, bool is_init,
                   Values* values) {
    Levels levels(stage.leaf.size());
    for (size_t i = begin; i < stage.leaf.size(); ++i) {
      const IterId id = stage.leaf[i];
      const Iterator iterator = s_.iterator(id);
      const ExprId variable = p_.variable(iterator.name);
      if (skip[id]) {
        (*values)[id] = variable;
        continue;
      }
      const Linear extent = bounds_.range(id).extent;
      const bool is_one = extent == constant(1), binds = is_thread(iterator.kind);
      if (!binds && iterator.has_pragma) {
        const TreeId pragma = tree_.make(TreeNode::UNROLL);
        tree_[pragma].unroll_max_step = iterator.unroll_max_step;
        levels[i].push_back(pragma);
      }
      if (!binds && is_one) {
        (*values)[id] = p_.integer(0);
      } else {
        const NameId name =
            is_init && !binds ? p_.names.joined(iterator.name, init_) : iterator.name;
        const TreeId loop = tree_.make(TreeNode::LOOP);
        tree_[loop].name = name;
        tree_[loop].kind = iterator.kind;
        tree_[loop].extent = number(extent);
        levels[i].push_back(loop);
        const Bounds bounds = simplifier_.expr_bounds(variable);
        simplifier_.bind(name, bounds.low, bounds.high);
        (*values)[id] = is_one ? p_.integer(0) : p_.variable(name);
      }
      if (!is_init) {
        const TreeId scope = tree_.make(TreeNode::SCOPE);
        levels[i].push_back(scope);
        scopes_.set(id, scope);
      }
    }
    pass_up_index(stage, values);
    return levels;
  }

  void pass_up_index(const Stage& stage, Values* values) {
    Values& v = *values;
    for (auto r = stage.relations.rbegin(); r != stage.relations.rend(); ++r) {
      if (r->kind == Relation::SPLIT) {
        const ExprId factor = simplifier_.to_expr(bounds_.range(r->inner).extent);
        const ExprId outer = p_.binary(MUL, Program::kInt32, value_of(v, r->outer), factor);
        const ExprId value = p_.binary(ADD, Program::kInt32, value_of(v, r->inner), outer);
        v[r->parent] = with_minimum(r->parent, value);
      } else if (r->kind == Relation::FUSE) {
        const ExprId factor = simplifier_.to_expr(bounds_.range(r->inner).extent);
        const ExprId fused = value_of(v, r->parent);
        const ExprId outer = p_.binary(FLOORDIV, Program::kInt32, fused, factor);
        const ExprId inner = p_.binary(FLOORMOD, Program::kInt32, fused, factor);
        v[r->outer] = with_minimum(r->outer, outer);
        v[r->inner] = with_minimum(r->inner, inner);
      } else if (r->kind == Relation::REBASE) {
        v[r->parent] = with_minimum(r->parent, value_of(v, r->outer));
      }
    }
  }

  ExprId with_minimum(IterId id, ExprId value) {
    const Linear minimum = bounds_.range(id).minimum;
    if (minimum == constant(0)) return value;
    return p_.binary(ADD, Program::kInt32, value, simplifier_.to_expr(minimum));
  }

  ExprId less(ExprId left, ExprId right) { return p_.binary(LT, Program::kBool, left, right); }

  // The conditions that keep iterators in their ranges if splits have a remainder.
  std::vector<ExprId> bound_checks(const Stage& stage, const Values& values,
                                   const std::vector<u8>& skip) {
    find_overshooting(stage);
    std::vector<ExprId> checks;
    for (const IterId id : BoundInference::derived_iterators(stage)) {
      if (skip[id] || !overshoots_.has(id) || !overshoots_.at(id)) continue;
      const Range range = bounds_.range(id);
      const Linear value =
          simplifier_.add(simplifier_.linear(value_of(values, id)), range.minimum, -1);
      if (simplifier_.bounds_of(simplifier_.add(value, range.extent, -1)).high >= 0) {
        const ExprId left = simplifier_.to_expr(value);
        checks.push_back(less(left, simplifier_.to_expr(range.extent)));
      }
    }
    for (const IterId id : stage.root) {
      const Iterator& iterator = s_.iterator(id);
      if (skip[id] || !iterator.has_domain) continue;
      const Range range = bounds_.range(id);
      const Linear low = constant(iterator.minimum), extent = constant(iterator.extent);
      if (range.minimum == low && range.extent == extent) continue;
      const Linear value = simplifier_.add(simplifier_.linear(value_of(values, id)),
                                           constant(iterator.minimum), -1);
      const Bounds bounds = simplifier_.bounds_of(value);
      const ExprId expr = simplifier_.to_expr(value);
      if (bounds.low < 0) checks.push_back(p_.binary(GE, Program::kBool, expr, p_.integer(0)));
      if (bounds.high >= static_cast<double>(iterator.extent)) {
        checks.push_back(less(expr, p_.integer(iterator.extent)));
      }
    }
    for (ExprId& check : checks) check = p_.make(CALL, Program::kBool, &check, 1, p_.likely);
    return checks;
  }

  void find_overshooting(const Stage& stage) {
    overshoots_.clear();
    for (const IterId id : stage.leaf) overshoots_.set(id, 0);
    for (auto r = stage.relations.rbegin(); r != stage.relations.rend(); ++r) {
      if (r->kind == Relation::SPLIT) {
        const Linear outer = bounds_.range(r->outer).extent, inner = bounds_.range(r->inner).extent;
        const Linear parent = bounds_.range(r->parent).extent;
        bool exact = false;
        if (inner.is_constant()) {
          exact = simplifier_.scale(outer, inner.constant) == parent;
        } else if (outer.is_constant()) {
          exact = simplifier_.scale(inner, outer.constant) == parent;
        }
        overshoots_.set(r->parent,
                        overshoots_.at(r->outer) || overshoots_.at(r->inner) || !exact);
      } else if (r->kind == Relation::FUSE) {
        const char fused = overshoots_.at(r->parent);
        overshoots_.set(r->inner, fused);
        overshoots_.set(r->outer, fused);
      } else if (r->kind == Relation::REBASE) {
        overshoots_.set(r->parent, overshoots_.at(r->outer));
      }
    }
  }

  std::vector<TreeId> guard_one(ExprId condition, std::vector<TreeId> body) {
    const TreeId id = tree_.make(TreeNode::CONDITION);
    tree_[id].expr = condition;
    tree_[id].body = std::move(body);
    return {id};
  }
  std::vector<TreeId> guard(const std::vector<ExprId>& predicates, std::vector<TreeId> body) {
    for (size_t i = predicates.size(); i-- > 0;) body = guard_one(predicates[i], std::move(body));
    return body;
  }

  // Returns `body` inside the nodes of some levels (outermost first).
  std::vector<TreeId> wrap(const Levels& levels, size_t first, size_t last,
                           std::vector<TreeId> body) {
    for (size_t level = last; level-- > first;) {
      for (size_t i = levels[level].size(); i-- > 0;) {
        tree_[levels[level][i]].body = std::move(body);
        body = {levels[level][i]};
      }
    }
    return body;
  }

  // For every iterator: 1 = derived from spatial axes, 2 = from reduction axes, 3 = from both.
  std::vector<u8> reduction_flags(const Stage& stage) {
    std::vector<u8> flags(s_.iterator_count(), 0);
    for (const IterId id : stage.root) flags[id] = s_.iterator(id).is_reduction ? 2 : 1;
    for (const Relation& r : stage.relations) {
      if (r.kind == Relation::SPLIT) {
        flags[r.outer] |= flags[r.parent];
        flags[r.inner] |= flags[r.parent];
      } else if (r.kind == Relation::FUSE) {
        flags[r.parent] = flags[r.outer] | flags[r.inner];
      } else if (r.kind == Relation::REBASE) {
        flags[r.outer] = flags[r.parent];
      }
    }
    return flags;
  }

  ScheduleState& s_;
  Program& p_;
  Simplifier& simplifier_;
  Tree& tree_;
  BoundInference bounds_;
  NameId rebased_, init_, reduce_temp_;
  StampedMap<TreeId> scopes_;
  StampedMap<char> overshoots_;
  StampedMap<ExprId> replaced_;
  std::vector<u8> no_skip_;
  BufferId inlined_buffer_ = kNone;
  ExprId inlined_body_ = kNone;
  static constexpr u32 kMostNodes = 1u << 12;
  StampedMap<u32> sizes_;
  const std::vector<Axis>* inlined_axes_ = nullptr;
};

}  // namespace cdmpp
