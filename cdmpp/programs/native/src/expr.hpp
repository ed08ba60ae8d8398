// Interned expressions: equal ones have equal numbers (see cdmpp/programs/loops/expr.py).
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "names.hpp"

namespace cdmpp {

using ExprId = u32;
using BufferId = u32;

// In the order of `flatten.OPERATIONS`.
enum Op : u8 {
  CONST, VAR, LOAD, CALL, CAST, SELECT, NOT,
  ADD, SUB, MUL, DIV, MOD, FLOORDIV, FLOORMOD, MIN, MAX,
  EQ, NE, LT, LE, GT, GE, AND, OR, OP_COUNT
};

inline bool is_int_arithmetic(Op op) { return op >= ADD && op <= MAX; }
inline bool is_comparison(Op op) { return op >= EQ && op <= GE; }

struct DType {
  std::string text;
  bool starts_with_int;    // int8, int32, ...
  bool is_int;             // int, uint or bool
  bool starts_with_float;  // float16, float32, ...
  bool counts_as_float;    // float or bfloat
  i64 bytes;
};

struct Buffer {
  NameId name;
  u8 dtype;
  NameId scope;
  u32 first_extent;  // in Program::extents
  u32 rank;
};

struct Node {
  Op op;
  u8 dtype;
  u16 depth;
  u32 arg_count;
  u32 first_arg;
  u32 slot;
  u64 hash;
  // The value of an integer constant, the bits of a float constant, the name of a variable or an
  // intrinsic, or the buffer of a load.
  i64 value;
};

// The operands of a node under construction.
class Args {
 public:
  explicit Args(u32 count) : count_(count) {
    if (count > inline_.size()) heap_.resize(count);
  }
  ExprId& operator[](u32 i) { return count_ > inline_.size() ? heap_[i] : inline_[i]; }
  const ExprId* data() const { return count_ > inline_.size() ? heap_.data() : inline_.data(); }
  u32 size() const { return count_; }

 private:
  u32 count_;
  std::array<ExprId, 8> inline_;
  std::vector<ExprId> heap_;
};

// Names, types, buffers and expressions of a program. `reset` drops everything (except names) that
// was added after `keep`.
class Program {
 public:
  static constexpr u8 kInt32 = 0, kBool = 1;

  Names names;
  std::vector<DType> dtypes;
  std::vector<Buffer> buffers;
  std::vector<i64> extents;
  std::vector<Node> nodes;
  std::vector<ExprId> args;

  Program() {
    dtype_id("int32");
    dtype_id("bool");
    table_.assign(1 << 12, kNone);
    likely = names.intern("tir.likely");
    if_then_else = names.intern("tir.if_then_else");
    reinterpret = names.intern("tir.reinterpret");
  }

  NameId likely, if_then_else, reinterpret;

  u8 dtype_id(const std::string& text) {
    for (size_t i = 0; i < dtypes.size(); ++i) {
      if (dtypes[i].text == text) return static_cast<u8>(i);
    }
    if (dtypes.size() >= 250) throw Declined{"too many element types"};
    const auto starts = [&](const char* prefix) { return text.rfind(prefix, 0) == 0; };
    i64 bits = 0;
    bool digits = false;
    for (const char c : text) {
      if (c < '0' || c > '9') {
        if (digits) break;  // ignores the exponent and mantissa bits of e.g. `float8_e4m3fn`
        continue;
      }
      digits = true;
      bits = std::min<i64>(bits * 10 + (c - '0'), 1 << 20);
    }
    dtypes.push_back({text, starts("int"), starts("int") || starts("uint") || text == "bool",
                      starts("float"), starts("float") || starts("bfloat"),
                      digits ? std::max<i64>(1, bits / 8) : 1});
    return static_cast<u8>(dtypes.size() - 1);
  }

  BufferId add_buffer(NameId name, u8 dtype, NameId scope, const std::vector<i64>& shape) {
    const u32 first = static_cast<u32>(extents.size());
    extents.insert(extents.end(), shape.begin(), shape.end());
    buffers.push_back({name, dtype, scope, first, static_cast<u32>(shape.size())});
    return static_cast<BufferId>(buffers.size() - 1);
  }
  std::vector<i64> shape_of(BufferId id) const {
    const auto first = extents.begin() + buffers[id].first_extent;
    return std::vector<i64>(first, first + buffers[id].rank);
  }
  i64 extent(BufferId id, u32 dimension) const {
    if (dimension >= buffers[id].rank) throw Declined{"more indices than dimensions"};
    return extents[buffers[id].first_extent + dimension];
  }
  i64 element_bytes(BufferId id) const { return dtypes[buffers[id].dtype].bytes; }

  const Node& node(ExprId id) const { return nodes[id]; }
  ExprId arg(ExprId id, u32 number) const { return args[nodes[id].first_arg + number]; }
  const DType& dtype(ExprId id) const { return dtypes[nodes[id].dtype]; }

  // `operands` must not point into `args`.
  ExprId make(Op op, u8 dtype, const ExprId* operands, u32 count, i64 value) {
    u64 hash = mix(static_cast<u64>(op) << 8 | dtype, static_cast<u64>(value));
    u32 depth = 0;
    for (u32 i = 0; i < count; ++i) {
      hash = mix(hash, operands[i]);
      depth = std::max<u32>(depth, nodes[operands[i]].depth);
    }
    u32 slot = static_cast<u32>(hash) & mask();
    for (; table_[slot] != kNone; slot = (slot + 1) & mask()) {
      const Node& other = nodes[table_[slot]];
      if (other.hash == hash && other.op == op && other.dtype == dtype && other.value == value &&
          other.arg_count == count &&
          (count == 0 ||
           std::memcmp(&args[other.first_arg], operands, count * sizeof(ExprId)) == 0)) {
        return table_[slot];
      }
    }
    if (depth >= kMaxExprDepth) throw Declined{"expression nested deeply"};
    if (nodes.size() >= kMaxNodes) throw Declined{"too many expressions"};
    const ExprId id = static_cast<ExprId>(nodes.size());
    nodes.push_back({op, dtype, static_cast<u16>(depth + 1), count,
                     static_cast<u32>(args.size()), slot, hash, value});
    args.insert(args.end(), operands, operands + count);
    table_[slot] = id;
    if (nodes.size() * 2 > table_.size()) grow();
    return id;
  }
  ExprId binary(Op op, u8 dtype, ExprId left, ExprId right) {
    const ExprId operands[2] = {left, right};
    return make(op, dtype, operands, 2, 0);
  }
  ExprId integer(i64 value) { return make(CONST, kInt32, nullptr, 0, value); }
  ExprId boolean(bool value) { return make(CONST, kBool, nullptr, 0, value); }
  ExprId variable(NameId name) { return make(VAR, kInt32, nullptr, 0, name); }
  ExprId number(u8 dtype, double value) {
    if (!dtypes[dtype].counts_as_float) return make(CONST, dtype, nullptr, 0, to_int(value));
    i64 bits;
    if (value == 0) value = 0;  // -0.0 equals 0.0
    std::memcpy(&bits, &value, sizeof bits);
    return make(CONST, dtype, nullptr, 0, bits);
  }
  ExprId load(BufferId buffer, const ExprId* indices, u32 count) {
    return make(LOAD, buffers[buffer].dtype, indices, count, buffer);
  }

  bool is_const(ExprId id) const { return nodes[id].op == CONST; }
  double float_value(ExprId id) const {
    if (!dtype(id).counts_as_float) return static_cast<double>(nodes[id].value);
    double value;
    std::memcpy(&value, &nodes[id].value, sizeof value);
    return value;
  }
  i64 int_value(ExprId id) const {
    return dtype(id).counts_as_float ? to_int(float_value(id)) : nodes[id].value;
  }

  // Rebuilds a node with other operands; the node itself if they are the same.
  ExprId with_args(ExprId id, const Args& operands) {
    const Node node = nodes[id];
    if (std::memcmp(&args[node.first_arg], operands.data(), node.arg_count * sizeof(ExprId)) == 0) {
      return id;
    }
    return make(node.op, node.dtype, operands.data(), node.arg_count, node.value);
  }

  // Variables to be replaced by `substitute`.
  void begin_substitution() {
    values_.clear();
    done_.clear();
  }
  void replace(NameId name, ExprId value) { values_.set(name, value); }
  ExprId substitute(ExprId id) {
    const Node node = nodes[id];
    if (node.op == VAR) {
      const ExprId* value = values_.find(static_cast<u32>(node.value));
      return value ? *value : id;
    }
    if (node.arg_count == 0) return id;
    if (const ExprId* done = done_.find(id)) return *done;
    Args operands(node.arg_count);
    for (u32 i = 0; i < node.arg_count; ++i) operands[i] = substitute(args[node.first_arg + i]);
    const ExprId result = with_args(id, operands);
    done_.set(id, result);
    return result;
  }

  // Redirects reads of one buffer to another.
  void begin_redirection() { done_.clear(); }
  ExprId redirect(ExprId id, BufferId from, BufferId to) {
    const Node node = nodes[id];
    if (node.arg_count == 0 && node.op != LOAD) return id;
    if (const ExprId* done = done_.find(id)) return *done;
    Args operands(node.arg_count);
    for (u32 i = 0; i < node.arg_count; ++i) {
      operands[i] = redirect(args[node.first_arg + i], from, to);
    }
    const bool hit = node.op == LOAD && node.value == from;
    const ExprId result = hit ? make(LOAD, node.dtype, operands.data(), node.arg_count, to)
                              : with_args(id, operands);
    done_.set(id, result);
    return result;
  }

  // Appends the buffers read in an expression, each once, inner reads before outer ones.
  void collect_loads(ExprId id, std::vector<BufferId>& found, Stamps& seen) const {
    if (seen.has(id)) return;
    seen.set(id);
    const Node& node = nodes[id];
    for (u32 i = 0; i < node.arg_count; ++i) collect_loads(args[node.first_arg + i], found, seen);
    const BufferId buffer = static_cast<BufferId>(node.value);
    if (node.op == LOAD && std::find(found.begin(), found.end(), buffer) == found.end()) {
      found.push_back(buffer);
    }
  }

  std::string text(ExprId id) const {
    static constexpr const char* kSymbols[] = {"+", "-", "*", "/", "%"};
    static constexpr const char* kCompare[] = {"==", "!=", "<", "<=", ">", ">=", "&&", "||"};
    static constexpr const char* kFunctions[] = {"floordiv", "floormod", "min", "max"};
    const Node& node = nodes[id];
    if (node.op == CONST) {
      if (!dtype(id).is_int || node.dtype == kBool) throw Declined{"text of a constant"};
      return std::to_string(node.value);
    }
    if (node.op == VAR) return names.text(static_cast<NameId>(node.value));
    std::vector<std::string> texts;
    for (u32 i = 0; i < node.arg_count; ++i) texts.push_back(text(args[node.first_arg + i]));
    if (node.op >= ADD && node.op <= MOD) {
      return "(" + texts[0] + " " + kSymbols[node.op - ADD] + " " + texts[1] + ")";
    }
    if (node.op >= EQ) return "(" + texts[0] + " " + kCompare[node.op - EQ] + " " + texts[1] + ")";
    std::string inside;
    for (size_t i = 0; i < texts.size(); ++i) inside += (i ? ", " : "") + texts[i];
    switch (node.op) {
      case LOAD:
        return names.text(buffers[static_cast<size_t>(node.value)].name) + "[" + inside + "]";
      case CALL:
        return names.text(static_cast<NameId>(node.value)) + "(" + inside + ")";
      case CAST:
        return dtype(id).text + "(" + inside + ")";
      case SELECT:
        return "select(" + inside + ")";
      case NOT:
        return "not(" + inside + ")";
      default:
        return std::string(kFunctions[node.op - FLOORDIV]) + "(" + inside + ")";
    }
  }

  // Whether a program was so large that its memory should be freed.
  bool is_swollen() const { return nodes.capacity() > kMaxNodes / 4; }

  void keep() {
    kept_nodes_ = nodes.size();
    kept_args_ = args.size();
    kept_buffers_ = buffers.size();
    kept_extents_ = extents.size();
  }
  void reset() {
    // Removal in reverse order restores the table to its state before each insertion.
    for (size_t id = nodes.size(); id > kept_nodes_; --id) table_[nodes[id - 1].slot] = kNone;
    nodes.resize(kept_nodes_);
    args.resize(kept_args_);
    buffers.resize(kept_buffers_);
    extents.resize(kept_extents_);
  }

 private:
  static constexpr size_t kMaxNodes = 1u << 20;

  u32 mask() const { return static_cast<u32>(table_.size() - 1); }
  void grow() {
    table_.assign(table_.size() * 2, kNone);
    for (size_t id = 0; id < nodes.size(); ++id) {
      u32 slot = static_cast<u32>(nodes[id].hash) & mask();
      while (table_[slot] != kNone) slot = (slot + 1) & mask();
      table_[slot] = static_cast<u32>(id);
      nodes[id].slot = slot;
    }
  }

  std::vector<u32> table_;
  StampedMap<ExprId> values_, done_;
  size_t kept_nodes_ = 0, kept_args_ = 0, kept_buffers_ = 0, kept_extents_ = 0;
};

}  // namespace cdmpp
