// The steps of a record, one function per kind (see cdmpp/programs/ansor/state.py).
#pragma once

#include "state.hpp"

namespace cdmpp {

inline void ScheduleState::apply_step(u32 number_of_step) {
  const std::string_view code = text(0);
  if (code == "AN") return annotate();
  if (code == "FU") return fuse();
  if (code == "PR") return pragma();
  if (code == "RE") return reorder();
  if (code == "SP") return split(number_of_step);
  if (code == "FSP") return follow_split();
  if (code == "FFSP") return follow_fused_split();
  if (code == "CA") return compute_at();
  if (code == "CI") return compute_inline();
  if (code == "CHR") return cache_read();
  if (code == "CHW") return cache_write();
  if (code == "RF") return rfactor();
  if (code == "CR") {
    Stage& stage = stage_at(number(1));
    stage.attach = Stage::ROOT;
    return;
  }
  if (code == "SA") {  // storage alignment does not affect features
    const Stage& stage = stage_at(number(1));
    number(3);
    number(4);
    iterator_at(stage, number(2));
    return;
  }
  throw ReplayFailure{"unknown step code", "step " + std::to_string(number_of_step) + " is " +
                                               step_text(80)};
}

inline void ScheduleState::annotate() {
  const i64 stage_index = number(1), index = number(2);
  const IterId iterator = iterator_at(stage_at(stage_index), index);
  const i64 annotation = number(3);
  if (annotation == 0) return;
  if (annotation < 0 || annotation > THREAD_Z) {
    throw ReplayFailure{"unsupported annotation",
                        std::to_string(annotation) + " in " + step_text()};
  }
  iterators_[iterator].kind = static_cast<LoopKind>(annotation);
}

inline void ScheduleState::fuse() {
  Stage& stage = stage_at(number(1));
  const std::vector<i64> indices = list(2);
  if (indices.empty()) {
    const IterId single = add_iterator(unique(suffix_.singleton), false);
    stage.relations.push_back({Relation::SINGLETON, single, kNone, kNone, false, 0});
    stage.leaf.insert(stage.leaf.begin(), single);
    return;
  }
  IterId fused = iterator_at(stage, indices[0]);
  for (size_t offset = 1; offset < indices.size(); ++offset) {
    const IterId inner = iterator_at(stage, indices[offset]);
    if (indices[offset] != indices[0] + static_cast<i64>(offset)) {
      throw ReplayFailure{"fused iterators are not neighbours", step_text()};
    }
    NameId name = joined(joined(iterators_[fused].name, suffix_.dot), iterators_[inner].name);
    name = unique(joined(name, suffix_.fused));
    const bool reduction = iterators_[fused].is_reduction && iterators_[inner].is_reduction;
    const IterId result = add_iterator(name, reduction);
    stage.relations.push_back({Relation::FUSE, result, fused, inner, false, 0});
    fused = result;
  }
  const auto first = stage.leaf.begin() + indices.front();
  *first = fused;
  stage.leaf.erase(first + 1, stage.leaf.begin() + indices.back() + 1);
}

inline void ScheduleState::pragma() {
  const i64 stage_index = number(1), index = number(2);
  const IterId iterator = iterator_at(stage_at(stage_index), index);
  const std::string_view pragma = text(3);
  const size_t separator = pragma.find('$');
  if (pragma.substr(0, separator) != "auto_unroll_max_step") {
    throw ReplayFailure{"unsupported pragma", std::string(pragma)};
  }
  const std::string_view value =
      separator == std::string_view::npos ? std::string_view() : pragma.substr(separator + 1);
  if (value.empty() || value.size() > 9 ||
      value.find_first_not_of("0123456789") != std::string_view::npos) {
    throw Declined{"value of a pragma"};
  }
  iterators_[iterator].has_pragma = true;
  iterators_[iterator].unroll_max_step = std::stoll(std::string(value));
}

inline void ScheduleState::reorder() {
  Stage& stage = stage_at(number(1));
  const std::vector<i64> order = list(2);
  std::vector<i64> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  bool permutation = order.size() == stage.leaf.size();
  for (size_t i = 0; i < sorted.size() && permutation; ++i) {
    permutation = sorted[i] == static_cast<i64>(i);
  }
  if (!permutation) throw ReplayFailure{"reorder is not a permutation", step_text(120)};
  const std::vector<IterId> before = stage.leaf;
  for (size_t i = 0; i < order.size(); ++i) stage.leaf[i] = before[static_cast<size_t>(order[i])];
}

inline void ScheduleState::split_by(Stage& stage, i64 index, const std::vector<i64>& lengths,
                                    bool inner_to_outer) {
  IterId current = iterator_at(stage, index);
  if (std::any_of(lengths.begin(), lengths.end(), [](i64 length) { return length < 1; })) {
    throw ReplayFailure{"split length is not a positive number",
                        list_text(lengths.data(), lengths.size())};
  }
  const bool reduction = iterators_[current].is_reduction;
  std::vector<IterId> parts;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const i64 length = inner_to_outer ? lengths[lengths.size() - 1 - i] : lengths[i];
    const NameId name = iterators_[current].name;
    const IterId outer = add_iterator(unique(joined(name, suffix_.outer)), reduction);
    const IterId inner = add_iterator(unique(joined(name, suffix_.inner)), reduction);
    stage.relations.push_back({Relation::SPLIT, current, outer, inner, inner_to_outer, length});
    parts.push_back(inner_to_outer ? inner : outer);
    current = inner_to_outer ? outer : inner;
  }
  parts.push_back(current);
  if (inner_to_outer) std::reverse(parts.begin(), parts.end());
  const auto place = stage.leaf.begin() + index;
  *place = parts.front();
  stage.leaf.insert(place + 1, parts.begin() + 1, parts.end());
}

inline void ScheduleState::split(u32 number_of_step) {
  const std::vector<i64> lengths = list(4);
  split_lengths_.emplace_back(number_of_step, lengths);
  Stage& stage = stage_at(number(1));
  const i64 index = number(2);
  split_by(stage, index, lengths, number(5) != 0);
}

inline const std::vector<i64>& ScheduleState::source_lengths(i64 source) const {
  for (const auto& [step, lengths] : split_lengths_) {
    if (step == source) return lengths;
  }
  throw ReplayFailure{"followed step is not a split", "step " + std::to_string(source)};
}

inline void ScheduleState::follow_split() {
  const i64 source_step = number(3), count = number(4);
  const std::vector<i64> source = source_lengths(source_step);
  if (count < 1 || count > static_cast<i64>(source.size())) {
    throw ReplayFailure{"follow split has too many parts", step_text()};
  }
  const auto rest = source.begin() + (count - 1);
  std::vector<i64> lengths(source.begin(), rest);
  i64 last = 1;
  for (auto length = rest; length != source.end(); ++length) last = mul(last, *length);
  lengths.push_back(last);
  Stage& stage = stage_at(number(1));
  split_by(stage, number(2), lengths, true);
}

inline void ScheduleState::follow_fused_split() {
  i64 length = 1;
  for (const i64 source : list(3)) {
    const std::vector<i64>& lengths = source_lengths(source);
    const i64 level = number(4);
    if (level < 0 || level >= static_cast<i64>(lengths.size())) {
      throw ReplayFailure{"follow split level out of range", step_text()};
    }
    length = mul(length, lengths[static_cast<size_t>(level)]);
  }
  Stage& stage = stage_at(number(1));
  const i64 index = number(2);
  split_by(stage, index, {length}, number(5) != 0);
}

inline void ScheduleState::compute_at() {
  const i64 index = number(1), target_index = number(2);
  Stage& stage = stage_at(index);
  const Stage& target = stage_at(target_index);
  if (&stage == &target) throw ReplayFailure{"stage attached to itself", step_text()};
  stage.attach_iterator = iterator_at(target, number(3));
  stage.attach = Stage::AT;
  stage.attach_stage = order_[static_cast<size_t>(target_index)];
}

inline void ScheduleState::compute_inline() {
  Stage& stage = stage_at(number(1));
  if (!stage.op->is_compute || stage.op->has_reduction || stage.op->body.size() != 1) {
    throw ReplayFailure{"stage cannot be inlined", name_of(stage)};
  }
  stage.attach = Stage::INLINE;
}

inline void ScheduleState::cache_read() {
  const i64 index = number(1);
  Stage& stage = stage_at(index);
  const NameId scope = p_.names.intern(text(2));
  std::vector<StageId> readers;
  for (const i64 reader : list(3)) {
    stage_at(reader);
    readers.push_back(order_[static_cast<size_t>(reader)]);
  }
  const BufferId source = stage.op->outputs[0];
  const NameId suffix = joined(suffix_.dot, scope);
  NameId base = stage.op->name;
  const auto taken = [&](NameId name) {
    return std::any_of(order_.begin(), order_.end(),
                       [&](StageId id) { return stages_[id].op->name == name; });
  };
  while (taken(joined(base, suffix))) base = joined(base, suffix_.again);
  const NameId name = checked(joined(base, suffix));
  const std::vector<i64> shape = p_.shape_of(source);
  const BufferId cache = p_.add_buffer(name, p_.buffers[source].dtype, scope, shape);
  changed_ops_.emplace_back();
  DagOp& op = changed_ops_.back();
  op.name = name;
  op.is_compute = true;
  op.outputs = {cache};
  op.inputs = {source};
  Args indices(static_cast<u32>(shape.size()));
  for (u32 i = 0; i < shape.size(); ++i) {
    const NameId axis = joined(joined(name, suffix_.axis), p_.names.intern(std::to_string(i)));
    op.axes.push_back({unique(axis), shape[i], 0});
    indices[i] = p_.variable(op.axes.back().name);
  }
  op.body = {p_.load(source, indices.data(), indices.size())};
  for (const StageId id : readers) {
    Stage& reader = stages_[id];
    if (!reader.op->is_compute || !reader.op->reads(source)) continue;
    DagOp& changed = change(*reader.op);
    p_.begin_redirection();
    for (ExprId& body : changed.body) body = p_.redirect(body, source, cache);
    set_inputs(&changed);
    reader.op = &changed;
  }
  const StageId before = order_[static_cast<size_t>(index)];
  insert(index + 1, new_stage(&op, false, scope), before, true);
}

inline void ScheduleState::cache_write() {
  const i64 index = number(1);
  Stage& stage = stage_at(index);
  const NameId scope = p_.names.intern(text(2));
  const DagOp& op = *stage.op;
  if (!op.is_compute || !stage.relations.empty()) {
    throw ReplayFailure{"cache write of a placeholder or a transformed stage", name_of(stage)};
  }
  const NameId suffix = joined(suffix_.dot, scope);
  DagOp& cached = change(op);
  DagOp& copy = change(op);
  cached.name = checked(joined(op.name, suffix));
  for (BufferId& output : cached.outputs) {
    const Buffer buffer = p_.buffers[output];
    output = p_.add_buffer(joined(buffer.name, suffix), buffer.dtype, scope, p_.shape_of(output));
  }
  p_.begin_substitution();
  for (Axis& axis : cached.axes) {
    const NameId old = axis.name;
    axis.name = unique(joined(old, suffix_.cached));
    p_.replace(old, p_.variable(axis.name));
  }
  for (ExprId& body : cached.body) body = p_.substitute(body);
  Args indices(static_cast<u32>(op.axes.size()));
  for (u32 i = 0; i < op.axes.size(); ++i) indices[i] = p_.variable(op.axes[i].name);
  copy.reduce_axes.clear();
  copy.has_reduction = false;
  copy.reduce = {};
  copy.inputs = cached.outputs;
  copy.body.clear();
  for (const BufferId output : cached.outputs) {
    copy.body.push_back(p_.load(output, indices.data(), indices.size()));
  }
  stage.op = &copy;
  stage.root.erase(std::remove_if(stage.root.begin(), stage.root.end(),
                                  [&](IterId id) { return iterators_[id].is_reduction; }),
                   stage.root.end());
  stage.leaf = stage.root;
  const StageId before = order_[static_cast<size_t>(index)];
  insert(index, new_stage(&cached, false, scope), before, false);
}

inline void ScheduleState::rfactor() {
  const i64 index = number(1);
  Stage& stage = stage_at(index);
  const IterId factored = iterator_at(stage, number(2));
  if (!iterators_[factored].is_reduction || !stage.op->has_reduction) {
    throw ReplayFailure{"rfactor of an iterator that is no reduction", step_text()};
  }
  const i64 position = number(3);
  if (position < 0 || position > static_cast<i64>(stage.op->axes.size())) {
    throw ReplayFailure{"rfactor axis out of range", step_text()};
  }
  DagOp& partial = change(*stage.op);
  DagOp& final = change(*stage.op);
  factor_reduction(stage, factored, static_cast<size_t>(position), &partial, &final);
  stage.op = &final;
  set_iterators(&stage);
  const StageId before = order_[static_cast<size_t>(index)];
  insert(index, new_stage(&partial, false, 0), before, false);
}

// All root and derived iterators that share a root with `iterator`.
inline std::vector<bool> ScheduleState::related(const Stage& stage, IterId iterator) const {
  std::vector<bool> found(iterators_.size(), false);
  found[iterator] = true;
  for (auto r = stage.relations.rbegin(); r != stage.relations.rend(); ++r) {
    if (r->kind == Relation::SPLIT && (found[r->outer] || found[r->inner])) found[r->parent] = true;
    if (r->kind == Relation::FUSE && found[r->parent]) found[r->outer] = found[r->inner] = true;
  }
  for (const Relation& r : stage.relations) {
    if (r.kind == Relation::SPLIT && found[r.parent]) found[r.outer] = found[r.inner] = true;
    if (r.kind == Relation::FUSE && (found[r.outer] || found[r.inner])) found[r.parent] = true;
  }
  return found;
}

// Fills in the partial reduction, with `factored` as a spatial axis, and the final reduction; both
// are passed as copies of the stage's operation.
inline void ScheduleState::factor_reduction(const Stage& stage, IterId factored, size_t position,
                                            DagOp* partial, DagOp* final) {
  const DagOp& op = *stage.op;
  const std::string& name = name_of(stage);
  std::vector<i64> extent(iterators_.size(), 0);
  for (const IterId id : stage.root) extent[id] = iterators_[id].extent;
  const std::vector<bool> touched = related(stage, factored);
  for (const Relation& r : stage.relations) {
    if (r.kind == Relation::SPLIT) {
      const i64 whole = extent[r.parent];
      const i64 length = r.has_factor ? r.length : ceildiv(whole, r.length);
      if (length < 1) throw Declined{"empty axis"};
      if (whole % length && touched[r.parent]) {
        throw ReplayFailure{"rfactor of a split with a remainder", name};
      }
      extent[r.inner] = length;
      extent[r.outer] = ceildiv(whole, length);
    } else if (r.kind == Relation::FUSE) {
      extent[r.parent] = mul(extent[r.outer], extent[r.inner]);
    } else {
      throw ReplayFailure{"rfactor after an empty fusion", name};
    }
  }
  std::vector<ExprId> value(iterators_.size(), kNone);
  for (const IterId id : stage.leaf) value[id] = p_.variable(iterators_[id].name);
  for (auto r = stage.relations.rbegin(); r != stage.relations.rend(); ++r) {
    const ExprId factor = p_.integer(extent[r->inner]);
    if (r->kind == Relation::SPLIT) {
      if (value[r->outer] == kNone || value[r->inner] == kNone) throw Declined{"missing entry"};
      const ExprId scaled = p_.binary(MUL, Program::kInt32, value[r->outer], factor);
      value[r->parent] = p_.binary(ADD, Program::kInt32, value[r->inner], scaled);
    } else {
      if (value[r->parent] == kNone) throw Declined{"missing entry"};
      value[r->outer] = p_.binary(FLOORDIV, Program::kInt32, value[r->parent], factor);
      value[r->inner] = p_.binary(FLOORMOD, Program::kInt32, value[r->parent], factor);
    }
  }
  const auto root_of = [&](NameId axis) {
    IterId found = kNone;
    for (const IterId id : stage.root) {
      if (iterators_[id].name == axis) found = id;
    }
    if (found == kNone) throw Declined{"missing entry"};
    return found;
  };
  for (const Axis& axis : op.axes) {
    if (touched[root_of(axis.name)]) {
      throw ReplayFailure{"rfactor touches a spatial axis", name};
    }
  }
  partial->reduce_axes.clear();
  p_.begin_substitution();
  for (const Axis& axis : op.reduce_axes) {
    const IterId root = root_of(axis.name);
    if (touched[root]) {
      if (value[root] == kNone) throw Declined{"missing entry"};
      p_.replace(axis.name, value[root]);
    } else {
      partial->reduce_axes.push_back(axis);
    }
  }
  for (const IterId id : stage.leaf) {
    if (touched[id] && id != factored) {
      partial->reduce_axes.push_back({iterators_[id].name, extent[id], 0});
    }
  }
  for (ExprId& body : partial->body) body = p_.substitute(body);
  const NameId factored_name = iterators_[factored].name;
  const i64 factored_extent = extent[factored];
  partial->axes.insert(partial->axes.begin() + static_cast<std::ptrdiff_t>(position),
                       {factored_name, factored_extent, 0});
  std::vector<i64> shape;
  for (const Axis& axis : partial->axes) shape.push_back(axis.extent);
  for (BufferId& output : partial->outputs) {
    const Buffer buffer = p_.buffers[output];
    output = p_.add_buffer(joined(buffer.name, suffix_.factored), buffer.dtype, dag_.global, shape);
  }
  p_.begin_substitution();
  for (Axis& axis : partial->axes) {
    const NameId old = axis.name;
    axis.name = unique(joined(old, suffix_.factored));
    p_.replace(old, p_.variable(axis.name));
  }
  for (ExprId& body : partial->body) body = p_.substitute(body);
  partial->name = joined(op.name, suffix_.factored);
  set_inputs(partial);
  const NameId final_axis = unique(joined(factored_name, suffix_.partial));
  std::vector<ExprId> indices;
  for (const Axis& axis : op.axes) indices.push_back(p_.variable(axis.name));
  indices.insert(indices.begin() + static_cast<std::ptrdiff_t>(position), p_.variable(final_axis));
  final->name = joined(op.name, suffix_.final);
  final->reduce_axes = {{final_axis, factored_extent, 0}};
  final->reduce.condition = kNone;
  final->inputs = partial->outputs;
  final->body.clear();
  for (const BufferId output : partial->outputs) {
    final->body.push_back(p_.load(output, indices.data(), static_cast<u32>(indices.size())));
  }
}

}  // namespace cdmpp
