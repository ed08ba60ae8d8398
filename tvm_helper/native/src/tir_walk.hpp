// Conversion of a TIR function to the loop tree, before simplification (see
// tvm_helper/tir/loop_tree.py). Blocks are walked directly, so a scheduled function needs no
// lowering, except for unusual reductions across threads and blocks with `match_buffer`.
#pragma once

#include "pointer_map.hpp"
#include "tir_reduction.hpp"
#include "tree.hpp"

namespace cdmpp {

struct TirProgram {
  std::vector<TreeId> top;
  std::vector<BufferId> parameters, allocated;
  bool is_gpu = false;
};

class TirWalk {
 public:
  TirWalk(const TirLayout& layout, Program& program, Tree& tree)
      : l_(layout), p_(program), tree_(tree), global_(program.names.intern("global")),
        local_(program.names.intern("local")) {}

  // `is_complete`: whether to include reductions across threads.
  void run(const Object* function, bool is_complete, TirProgram* result) {
    if (l_.kind(function) != PRIM_FUNC) throw Declined{"main is no function of TIR"};
    values_.clear();
    names_.clear();
    buffers_.clear();
    registers_.clear();
    shared_.clear();
    written_.clear();
    has_shared_ = false;
    replaced_ = nullptr;
    threads_ = 0;
    is_used_.clear();
    is_thread_.clear();
    thread_count_ = 0;
    out_ = result;
    out_->parameters.clear();
    out_->allocated.clear();
    out_->top.clear();
    out_->is_gpu = false;
    const Object* body = l_.function_body(function);
    is_complete_ = is_complete;
    reducer_ = nullptr;
    // Only lowered functions have registers of reductions across threads.
    if (!is_complete && l_.kind(body) != BLOCK_REALIZE) find_registers(body);
    const Items params(l_.params(function));
    for (size_t i = 0; i < params.size(); ++i) out_->parameters.push_back(buffer(params[i]));
    statement(body, 0, &out_->top);
  }

 private:
  using Nodes = std::vector<TreeId>;
  static constexpr std::int32_t kReduceAxis = 2, kThreadLoop = 4;

  // Statements.

  void statement(const Object* node, int depth, Nodes* out) {
    if (depth > kMaxTreeDepth) throw Declined{"statements nested deeply"};
    switch (l_.kind(node)) {
      case SEQUENCE: {
        const Items items(l_.sequence(node));
        items.prefetch_all();
        for (size_t i = 0; i < items.size(); ++i) statement(items[i], depth + 1, out);
        return;
      }
      case BUFFER_STORE:
        return store(node, out);
      case FOR:
        if (out_->is_gpu && is_complete_ && !replaced_ && reduction_.find(l_, node)) {
          return reduce_together(depth, out);
        }
        return loop(node, out,
                    [&](Nodes* in) { statement(l_.loop_body(node), depth + 1, in); });
      case BLOCK_REALIZE:
        return realize(node, depth, out);
      case ATTRIBUTE:
        return attribute(node, depth, out);
      case IF_THEN_ELSE:
        if (l_.else_case(node)) throw Declined{"condition with two branches"};
        return condition(expr(l_.if_condition(node)), out,
                         [&](Nodes* inside) { statement(l_.then_case(node), depth + 1, inside); });
      case ALLOC_BUFFER:
        return allocate(l_.alloc_buffer(node));
      case BIND:
        values_.set(l_.bind_var(node), expr(l_.bind_value(node)));
        return;
      case EVALUATE:
        if (is_complete_) combine(l_.evaluated(node), out);
        return;
      default:
        throw Declined{"statement without a place in a loop tree"};
    }
  }

  template <class Body>
  void wrap(TreeId id, Nodes* out, const Body& body) {
    Nodes inside;
    body(&inside);
    tree_[id].body = std::move(inside);
    out->push_back(id);
  }
  template <class Body>
  void condition(ExprId test, Nodes* out, const Body& body) {
    const TreeId id = tree_.make(TreeNode::CONDITION);
    tree_[id].expr = test;
    wrap(id, out, body);
  }

  void store(const Object* node, Nodes* out) {
    const Object* target = l_.store_buffer(node);
    if (registers_.find(target) != kNone) return;
    if (target == replaced_) {
      store(replacement_, nullptr, l_.store_value(node), out);
      return;
    }
    if (has_shared_ && shared_.find(target) != kNone) throw NeedsLowering{};
    const Items items(l_.store_indices(node));
    prefetch(l_.store_value(node));
    items.prefetch_all();
    const TreeId id = tree_.make(TreeNode::STORE);
    for (size_t i = 0; i < items.size(); ++i) tree_[id].indices.push_back(expr(items[i]));
    tree_[id].buffer = buffer(target);
    written_.set(tree_[id].buffer);
    tree_[id].expr = expr(l_.store_value(node));
    out->push_back(id);
  }
  bool is_all_reduce(const Object* call) const {
    return l_.kind(call) == CALL_OP && l_.kind(l_.call_op(call)) == OPERATOR &&
           ends_with(view(l_.op_name(l_.call_op(call))), "tvm_thread_allreduce");
  }
  // Adds the stores of a reduction across threads. Its arguments are a count, values, a condition,
  // registers and threads.
  void combine(const Object* call, Nodes* out) {
    if (!is_all_reduce(call)) return;
    const Items args(l_.call_args(call));
    const size_t count = static_cast<size_t>(int_value(args[0]));
    if (args.size() < 2 + 2 * count) throw Declined{"reduction of another form"};
    const Items left(reducer_ ? l_.reducer_left(reducer_) : nullptr),
        right(reducer_ ? l_.reducer_right(reducer_) : nullptr),
        results(reducer_ ? l_.reducer_result(reducer_) : nullptr);
    const bool is_known = results.size() == count && reducer_;
    for (size_t i = 0; is_known && i < count; ++i) {
      values_.set(left[i], expr(args[2 + count + i]));
      values_.set(right[i], expr(args[1 + i]));
    }
    for (size_t i = 0; i < count; ++i) {
      const Object* at = args[2 + count + i];
      if (l_.kind(at) != TENSOR_LOAD) throw Declined{"reduction of another form"};
      const TreeId id = tree_.make(TreeNode::STORE);
      const Items items(l_.load_indices(at));
      for (size_t j = 0; j < items.size(); ++j) tree_[id].indices.push_back(expr(items[j]));
      tree_[id].buffer = buffer(l_.load_source(at));
      tree_[id].expr = expr(is_known ? results[i] : args[1 + i]);
      tree_[id].is_across_threads = true;
      out->push_back(id);
    }
  }

  template <class Body>
  void loop(const Object* node, Nodes* out, const Body& body) {
    const Object* variable = l_.loop_var(node);
    const Object* binding = l_.thread_binding(node);
    for (const Object* soon : {l_.loop_body(node), l_.loop_min(node), l_.loop_extent(node),
                               variable, l_.loop_annotations(node)}) {
      prefetch(soon);
    }
    const ExprId minimum = expr(l_.loop_min(node)), extent = expr(l_.loop_extent(node));
    const bool is_unit = p_.is_const(extent) && p_.int_value(extent) == 1;
    const Object* annotations = l_.loop_annotations(node);
    if (!binding && is_unit && is_empty(annotations)) {
      values_.set(variable, minimum);
      return body(out);
    }
    if (!p_.is_const(minimum) || p_.int_value(minimum) != 0) {
      throw Declined{"loop does not start at 0"};
    }
    if (l_.loop_step(node)) throw Declined{"loop with a step"};
    pragmas(annotations, out, [&](Nodes* inside) {
      const LoopKind kind = binding ? thread_kind(view(l_.thread_tag(binding)))
                                    : plain_kind(l_.loop_kind(node));
      make_loop(variable, kind, extent, inside, body);
    });
  }

  template <class Body>
  void make_loop(const Object* variable, LoopKind kind, ExprId extent, Nodes* out,
                 const Body& body) {
    const TreeId id = tree_.make(TreeNode::LOOP);
    tree_[id].name = var_name(variable);
    values_.set(variable, p_.make(VAR, dtype(variable), nullptr, 0, tree_[id].name));
    tree_[id].kind = kind;
    tree_[id].extent = number(extent);
    const bool binds = is_thread_index(kind);
    if (binds) is_thread_.set(tree_[id].name);
    thread_count_ += binds;
    const u32 outer = threads_;
    threads_ |= u32{1} << kind;
    wrap(id, out, body);
    threads_ = outer;
    thread_count_ -= binds;
  }

  // Adds the loops of `reduction_`: thread loops around the reduction of each thread, the reduction
  // across threads and the store of the result by one thread.
  void reduce_together(int depth, Nodes* out) {
    if (depth + static_cast<int>(reduction_.loops.size()) > kMaxTreeDepth) {
      throw Declined{"statements nested deeply"};
    }
    const Object* target = l_.store_buffer(reduction_.update);
    const BufferId result = buffer(target);
    if (written_.has(result) || shared_.find(target) != kNone) throw NeedsLowering{};
    written_.set(result);
    const BufferId together = register_of(result), alone = reduction_.has_rounds
                                                               ? register_of(result)
                                                               : together;
    first_ = kNone;
    const u32 outer = threads_;
    reducing_threads(0, out, [&](Nodes* inside) {
      shared_.set(target, threads_ & ~outer);
      has_shared_ = true;
      const Object* update = l_.store_value(reduction_.update);
      ExprId own = kNone;
      if (reduction_.has_rounds) {
        store(alone, nullptr, reduction_.init, inside);
        replaced_ = target;
        replacement_ = alone;
        rounds(0, inside);
        replaced_ = nullptr;
        own = first_of(alone);
      } else {
        bind_block();
        own = expr(l_.right(update));
      }
      const ExprId both =
          p_.binary(l_.op(update), dtype(update), first_of(together), own);
      tree_[store(together, &both, nullptr, inside)].is_across_threads = true;
      const auto write = [&](Nodes* in) {
        const Items indices(l_.store_indices(reduction_.update));
        const TreeId id = tree_.make(TreeNode::STORE);
        for (size_t i = 0; i < indices.size(); ++i) tree_[id].indices.push_back(expr(indices[i]));
        tree_[id].buffer = result;
        tree_[id].expr = first_of(together);
        in->push_back(id);
      };
      if (p_.buffers[result].scope == local_) return write(inside);
      condition(first_, inside, write);
    });
  }
  template <class Body>
  void reducing_threads(size_t at, Nodes* out, const Body& body) {
    if (at == reduction_.loops.size()) return body(out);
    const Object* node = reduction_.loops[at];
    if (!l_.thread_binding(node)) return reducing_threads(at + 1, out, body);
    loop(node, out, [&](Nodes* inside) {
      const Object* variable = l_.loop_var(node);
      const ExprId zero = p_.make(CONST, dtype(variable), nullptr, 0, 0);
      const ExprId is_first = p_.binary(EQ, Program::kBool, expr(variable), zero);
      first_ = first_ == kNone ? is_first : p_.binary(AND, Program::kBool, first_, is_first);
      reducing_threads(at + 1, inside, body);
    });
  }
  void rounds(size_t at, Nodes* out) {
    if (at == reduction_.loops.size()) {
      bind_block();
      return pragmas(l_.block_annotations(reduction_.block), out,
                     [&](Nodes* inside) { store(reduction_.update, inside); });
    }
    const Object* node = reduction_.loops[at];
    if (l_.thread_binding(node)) return rounds(at + 1, out);
    loop(node, out, [&](Nodes* inside) { rounds(at + 1, inside); });
  }
  void bind_block() {
    const Items variables(l_.block_vars(reduction_.block)),
        bindings(l_.iter_values(reduction_.realize));
    for (size_t i = 0; i < variables.size(); ++i) {
      values_.set(l_.iter_var(variables[i]), expr(bindings[i]));
    }
  }
  BufferId register_of(BufferId result) {
    const Buffer like = p_.buffers[result];
    const BufferId id = p_.add_buffer(like.name, like.dtype, local_, {1});
    out_->allocated.push_back(id);
    return id;
  }
  ExprId first_of(BufferId from) {
    const ExprId zero = p_.integer(0);
    return p_.load(from, &zero, 1);
  }
  // Adds a store of `value`, or of the value of `node`, to the only element of a buffer.
  TreeId store(BufferId to, const ExprId* value, const Object* node, Nodes* out) {
    const TreeId id = tree_.make(TreeNode::STORE);
    tree_[id].indices.push_back(p_.integer(0));
    tree_[id].buffer = to;
    const ExprId found = value ? *value : expr(node);
    tree_[id].expr = found;
    out->push_back(id);
    return id;
  }

  void realize(const Object* node, int depth, Nodes* out) {
    const Object* block = l_.block(node);
    for (const Object* soon : {block, l_.iter_values(node), l_.predicate(node)}) prefetch(soon);
    for (const Object* soon : {l_.block_vars(block), l_.match_buffers(block),
                               l_.block_buffers(block), l_.block_annotations(block),
                               l_.block_body(block)}) {
      prefetch(soon);
    }
    if (Items(l_.match_buffers(block)).size()) throw NeedsLowering{};
    const Items reads(has_shared_ ? l_.block_reads(block) : nullptr);
    for (size_t i = 0; i < reads.size(); ++i) {  // readers of a shared result need its threads
      const u32 threads = shared_.find(l_.region_source(reads[i]));
      if (threads != kNone && (threads & ~threads_)) throw NeedsLowering{};
    }
    const Items variables(l_.block_vars(block)), bindings(l_.iter_values(node));
    variables.prefetch_all();
    bindings.prefetch_all();
    const Object* init = l_.block_init(block);
    ExprId first_round = kNone;
    for (size_t i = 0; i < variables.size(); ++i) {
      const ExprId value = expr(bindings[i]);
      values_.set(l_.iter_var(variables[i]), value);
      if (l_.iter_type(variables[i]) != kReduceAxis) continue;
      if (thread_count_ && mentions_thread(value)) throw NeedsLowering{};
      if (!init) continue;
      const ExprId low = expr(l_.range_min(l_.iter_domain(variables[i])));
      const ExprId at_low = p_.binary(EQ, Program::kBool, value, low);
      first_round = first_round == kNone
                        ? at_low
                        : p_.binary(AND, Program::kBool, first_round, at_low);
    }
    const Items buffers(l_.block_buffers(block));
    for (size_t i = 0; i < buffers.size(); ++i) allocate(buffers[i]);
    const auto body = [&](Nodes* inside) {
      if (init && first_round != kNone) {
        condition(first_round, inside, [&](Nodes* more) { statement(init, depth + 1, more); });
      } else if (init) {
        statement(init, depth + 1, inside);
      }
      statement(l_.block_body(block), depth + 1, inside);
    };
    pragmas(l_.block_annotations(block), out, [&](Nodes* inside) {
      const ExprId predicate = expr(l_.predicate(node));
      if (p_.is_const(predicate) && p_.int_value(predicate) != 0) return body(inside);
      condition(predicate, inside, body);
    });
  }

  void attribute(const Object* node, int depth, Nodes* out) {
    const std::string_view key = view(l_.attr_key(node));
    const Object* body = l_.attr_body(node);
    if (key == "thread_extent" || key == "virtual_thread") {
      const Object* binding = l_.attr_node(node).v_obj;
      const LoopKind kind = thread_kind(view(l_.thread_tag(binding)));
      return make_loop(l_.iter_var(binding), kind, expr(l_.attr_value(node)), out,
                       [&](Nodes* in) { statement(body, depth + 1, in); });
    }
    if (key == "reduce_scope") reducer_ = l_.attr_node(node).v_obj;
    const auto inside = [&](Nodes* nodes) { statement(body, depth + 1, nodes); };
    if (!starts_with(key, "pragma_")) return inside(out);
    const Object* value = l_.attr_value(node);
    pragma(key, l_.kind(value) == INT_IMM ? l_.int_value(value) : TVMFFIAny{}, out, inside);
  }

  // Adds a node for an annotation; only the unroll step has a meaning.
  template <class Body>
  void pragma(std::string_view key, const TVMFFIAny& value, Nodes* out, const Body& body) {
    const bool unrolls = key == "pragma_auto_unroll_max_step";
    const TreeId id = tree_.make(unrolls ? TreeNode::UNROLL : TreeNode::SCOPE);
    if (unrolls) {
      if (value.type_index != kTVMFFIInt) throw Declined{"unroll step is no number"};
      tree_[id].unroll_max_step = value.v_int64;
    }
    wrap(id, out, body);
  }
  template <class Body>
  void pragmas(const Object* annotations, Nodes* out, const Body& body) {
    if (is_empty(annotations)) return body(out);
    const auto* map = reinterpret_cast<const tvm::ffi::MapObj*>(annotations);
    auto next = map->begin();
    pragmas_from(next, map->end(), out, body);
  }
  template <class Iterator, class Body>
  void pragmas_from(Iterator at, const Iterator& end, Nodes* out, const Body& body) {
    for (; at != end; ++at) {
      const auto* key = reinterpret_cast<const tvm::ffi::String*>(&(*at).first);
      if (!starts_with(view(*key), "pragma_")) continue;
      TVMFFIAny value = *reinterpret_cast<const TVMFFIAny*>(&(*at).second);
      if (value.type_index >= kTVMFFIStaticObjectBegin && l_.kind(value.v_obj) == INT_IMM) {
        value = l_.int_value(value.v_obj);
      }
      const std::string_view name = view(*key);
      ++at;
      return pragma(name, value, out, [&](Nodes* inside) { pragmas_from(at, end, inside, body); });
    }
    body(out);
  }

  void allocate(const Object* variable) {
    if (registers_.find(variable) == kNone) out_->allocated.push_back(buffer(variable));
  }

  // Finds the one-element buffers in which threads combine their partial reductions. The original
  // cdmpp treats them as registers, whose stores do not count.
  void find_registers(const Object* node) {
    switch (l_.kind(node)) {
      case SEQUENCE: {
        const Items items(l_.sequence(node));
        for (size_t i = 0; i < items.size(); ++i) find_registers(items[i]);
        return;
      }
      case FOR:
        return find_registers(l_.loop_body(node));
      case ATTRIBUTE:
        return find_registers(l_.attr_body(node));
      case BLOCK_REALIZE:
        return find_registers(l_.block_body(l_.block(node)));
      case IF_THEN_ELSE:
        return find_registers(l_.then_case(node));
      case EVALUATE: {
        const Object* call = l_.evaluated(node);
        if (!is_all_reduce(call)) return;
        const Items args(l_.call_args(call));
        for (size_t i = 0; i < args.size(); ++i) {
          if (l_.kind(args[i]) != TENSOR_LOAD) continue;
          const Object* source = l_.load_source(args[i]);
          if (view(l_.scope(buffer_type(source))) == "local") registers_.set(source, 1);
        }
        return;
      }
      default:
        return;
    }
  }

  // Expressions.

  ExprId expr(const Object* node, int depth = 0) {
    if (depth > kMaxExprDepth) throw Declined{"expression nested deeply"};
    // Looked up before the node is read, which may not be in the cache.
    const u32 known = values_.find(node);
    if (known != kNone) return known;
    const auto inner = [&](const Object* part) { return expr(part, depth + 1); };
    switch (l_.kind(node)) {
      case INT_IMM:
        return p_.make(CONST, dtype(node), nullptr, 0, int_value(node));
      case FLOAT_IMM:
        return p_.number(dtype(node), l_.float_value(node));
      case VARIABLE:
        return free_variable(node);
      case TENSOR_LOAD: {
        const Object* source = l_.load_source(node);
        prefetch(l_.load_indices(node));
        if (registers_.find(source) != kNone) {
          return p_.make(VAR, dtype(node), nullptr, 0, var_name(source));
        }
        if (source == replaced_) return first_of(replacement_);
        const BufferId from = buffer(source);
        Args args = operands(l_.load_indices(node), depth);
        return p_.load(from, args.data(), args.size());
      }
      case CALL_OP: {
        const NameId name = op_name(l_.call_op(node));
        Args args = operands(l_.call_args(node), depth);
        return p_.make(CALL, dtype(node), args.data(), args.size(), name);
      }
      case SELECT_VALUE: {
        const ExprId test = inner(l_.condition(node)), first = inner(l_.true_value(node));
        const ExprId args[3] = {test, first, inner(l_.false_value(node))};
        return p_.make(SELECT, dtype(node), args, 3, 0);
      }
      case CAST_VALUE: {
        const ExprId value = inner(l_.cast_value(node));
        return p_.make(CAST, dtype(node), &value, 1, 0);
      }
      case NOT_VALUE: {
        const ExprId value = inner(l_.not_value(node));
        return p_.make(NOT, Program::kBool, &value, 1, 0);
      }
      case LET_VALUE:
        values_.set(l_.let_var(node), inner(l_.let_value(node)));
        return inner(l_.let_body(node));
      case BINARY: {
        prefetch(l_.right(node));
        const ExprId left = inner(l_.left(node));
        return p_.binary(l_.op(node), dtype(node), left, inner(l_.right(node)));
      }
      default:
        throw Declined{"expression without a place in a loop tree"};
    }
  }

  Args operands(const Object* array, int depth) {
    const Items items(array);
    items.prefetch_all();
    Args args(static_cast<u32>(items.size()));
    for (u32 i = 0; i < args.size(); ++i) args[i] = expr(items[i], depth + 1);
    return args;
  }

  Extent number(ExprId id) {
    if (p_.is_const(id)) return {true, p_.int_value(id), kNone};
    return {false, 0, id};
  }
  i64 int_value(const Object* node) const {
    const TVMFFIAny& value = l_.int_value(node);
    if (value.type_index != kTVMFFIInt && value.type_index != kTVMFFIBool) {
      throw Declined{"integer above 64 bits"};
    }
    return value.v_int64;
  }

  // Whether an expression contains a thread variable.
  bool mentions_thread(ExprId id) const {
    const Node& node = p_.node(id);
    if (node.op == VAR) return is_thread_.has(static_cast<u32>(node.value));
    for (u32 i = 0; i < node.arg_count; ++i) {
      if (mentions_thread(p_.arg(id, i))) return true;
    }
    return false;
  }

  // Names, types and buffers.

  ExprId free_variable(const Object* variable) {
    const ExprId id = p_.make(VAR, dtype(variable), nullptr, 0, var_name(variable));
    values_.set(variable, id);
    return id;
  }
  // Name of a variable, unique in the program.
  NameId var_name(const Object* variable) {
    const u32 known = names_.find(variable);
    if (known != kNone) return known;
    const NameId plain = p_.names.intern(view(l_.var_name(variable)));
    NameId name = plain;
    for (u32 count = 1; is_used_.has(name); ++count) name = p_.names.numbered(plain, count);
    is_used_.set(name);
    names_.set(variable, name);
    return name;
  }

  const Object* buffer_type(const Object* variable) const {
    const Object* type = l_.type(variable);
    if (l_.kind(variable) != VARIABLE || !type || l_.kind(type) != BUFFER_TYPE) {
      throw Declined{"parameter is no buffer"};
    }
    return type;
  }
  BufferId buffer(const Object* variable) {
    const u32 known = buffers_.find(variable);
    if (known != kNone) return known;
    const Object* type = buffer_type(variable);
    shape_.clear();
    const Items extents(l_.shape(type));
    for (size_t i = 0; i < extents.size(); ++i) {
      if (l_.kind(extents[i]) != INT_IMM) throw Declined{"shape is not constant"};
      shape_.push_back(int_value(extents[i]));
    }
    const std::string_view scope = view(l_.scope(type));
    const BufferId id = p_.add_buffer(p_.names.intern(view(l_.var_name(variable))),
                                      dtype_of(l_.buffer_dtype(type)),
                                      scope.empty() ? global_ : p_.names.intern(scope), shape_);
    buffers_.set(variable, id);
    return id;
  }

  u8 dtype(const Object* node) { return dtype_of(l_.type(node)); }
  u8 dtype_of(const Object* type) {
    if (!type || l_.kind(type) != PRIM_TYPE) throw Declined{"value without an element type"};
    const DLDataType& d = l_.type_dtype(type);
    const u32 key = static_cast<u32>(d.code) << 24 | static_cast<u32>(d.bits) << 16 | d.lanes;
    for (const auto& [known, id] : dtypes_) {
      if (known == key) return id;
    }
    const u8 id = p_.dtype_id(dtype_text(d));
    dtypes_.emplace_back(key, id);
    return id;
  }
  static std::string dtype_text(const DLDataType& d) {
    if (d.lanes != 1) throw Declined{"vector type"};
    const std::string bits = std::to_string(d.bits);
    switch (d.code) {
      case kDLBool:
        return "bool";
      case kDLInt:
        return "int" + bits;
      case kDLUInt:
        return d.bits == 1 ? "bool" : "uint" + bits;
      case kDLFloat:
        return "float" + bits;
      case kDLBfloat:
        return "bfloat" + bits;
      default:
        throw Declined{"element type"};
    }
  }

  NameId op_name(const Object* op) {
    if (l_.kind(op) != OPERATOR) throw Declined{"call of a function"};
    const u32 known = op_names_.find(op);
    if (known != kNone) return known;
    const std::string name(view(l_.op_name(op)));
    const size_t dot = name.rfind('.');
    const std::string last = dot == std::string::npos ? name : name.substr(dot + 1);
    const NameId id = p_.names.intern("tir." + last);
    op_names_.set(op, id);
    return id;
  }

  LoopKind thread_kind(std::string_view tag) {
    out_->is_gpu = true;
    if (starts_with(tag, "vthread")) return VTHREAD;
    static constexpr std::pair<const char*, LoopKind> kTags[] = {
        {"blockIdx.x", BLOCK_X},   {"blockIdx.y", BLOCK_Y},   {"blockIdx.z", BLOCK_Z},
        {"threadIdx.x", THREAD_X}, {"threadIdx.y", THREAD_Y}, {"threadIdx.z", THREAD_Z}};
    for (const auto& [name, kind] : kTags) {
      if (tag == name) return kind;
    }
    throw Declined{"thread of another kind"};
  }
  static LoopKind plain_kind(std::int32_t kind) {
    static constexpr LoopKind kKinds[] = {SERIAL, PARALLEL, VECTORIZED, UNROLLED};
    if (kind < 0 || kind >= kThreadLoop) throw Declined{"loop of another kind"};
    return kKinds[kind];
  }

  static bool is_empty(const Object* map) {
    return !map || reinterpret_cast<const tvm::ffi::MapObj*>(map)->size() == 0;
  }
  static bool starts_with(std::string_view text, std::string_view start) {
    return text.substr(0, start.size()) == start;
  }
  static bool ends_with(std::string_view text, std::string_view end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
  }

  const TirLayout& l_;
  Program& p_;
  Tree& tree_;
  NameId global_, local_;
  TirProgram* out_ = nullptr;
  PointerMap values_, buffers_, registers_, names_, op_names_;
  // Result of a reduction across threads -> kinds of its threads.
  PointerMap shared_;
  bool has_shared_ = false;
  SharedReduction reduction_;
  const Object* replaced_ = nullptr;  // result that is currently reduced in a register
  BufferId replacement_ = 0;
  ExprId first_ = kNone;
  u32 threads_ = 0;
  Stamps written_;
  Stamps is_used_, is_thread_;
  int thread_count_ = 0;
  bool is_complete_ = true;
  const Object* reducer_ = nullptr;
  std::vector<i64> shape_;
  std::vector<std::pair<u32, u8>> dtypes_;
};

}  // namespace cdmpp
