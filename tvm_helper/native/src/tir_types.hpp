// Offsets of the fields of TVM's nodes, looked up once by type key and field name in tvm_ffi's
// reflection tables, so that no header of TVM is needed.
#pragma once

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include <stdexcept>

#include "expr.hpp"

namespace cdmpp {

using Object = TVMFFIObject;

// Kind of a node. NOTHING = no equivalent in a loop tree.
enum TirKind : u8 {
  NOTHING, INT_IMM, FLOAT_IMM, VARIABLE, TENSOR_LOAD, CALL_OP, SELECT_VALUE, CAST_VALUE, NOT_VALUE,
  LET_VALUE, BINARY, FOR, BUFFER_STORE, ATTRIBUTE, IF_THEN_ELSE, SEQUENCE, ALLOC_BUFFER, BIND,
  EVALUATE, BLOCK_REALIZE, PRIM_FUNC, OPERATOR, PRIM_TYPE, BUFFER_TYPE
};

// Table of all type keys, which change between versions of TVM.
struct TirType {
  const char* key;
  TirKind kind;
  Op op;  // operator of BINARY
};
constexpr TirType kTirTypes[] = {
    {"ir.IntImm", INT_IMM, CONST},
    {"ir.FloatImm", FLOAT_IMM, CONST},
    {"ir.Var", VARIABLE, CONST},
    {"ir.TensorLoad", TENSOR_LOAD, CONST},
    {"ir.Call", CALL_OP, CONST},
    {"ir.Op", OPERATOR, CONST},
    {"ir.PrimType", PRIM_TYPE, CONST},
    {"tirx.BufferType", BUFFER_TYPE, CONST},
    {"prim.Select", SELECT_VALUE, CONST},
    {"prim.Cast", CAST_VALUE, CONST},
    {"prim.Not", NOT_VALUE, CONST},
    {"prim.Let", LET_VALUE, CONST},
    {"prim.Add", BINARY, ADD},
    {"prim.Sub", BINARY, SUB},
    {"prim.Mul", BINARY, MUL},
    {"prim.Div", BINARY, DIV},
    {"prim.Mod", BINARY, MOD},
    {"prim.FloorDiv", BINARY, FLOORDIV},
    {"prim.FloorMod", BINARY, FLOORMOD},
    {"prim.Min", BINARY, MIN},
    {"prim.Max", BINARY, MAX},
    {"prim.EQ", BINARY, EQ},
    {"prim.NE", BINARY, NE},
    {"prim.LT", BINARY, LT},
    {"prim.LE", BINARY, LE},
    {"prim.GT", BINARY, GT},
    {"prim.GE", BINARY, GE},
    {"prim.And", BINARY, AND},
    {"prim.Or", BINARY, OR},
    {"tirx.For", FOR, CONST},
    {"tirx.BufferStore", BUFFER_STORE, CONST},
    {"tirx.AttrStmt", ATTRIBUTE, CONST},
    {"tirx.IfThenElse", IF_THEN_ELSE, CONST},
    {"tirx.SeqStmt", SEQUENCE, CONST},
    {"tirx.AllocBuffer", ALLOC_BUFFER, CONST},
    {"tirx.Bind", BIND, CONST},
    {"tirx.Evaluate", EVALUATE, CONST},
    {"s_tir.SBlockRealize", BLOCK_REALIZE, CONST},
    {"tirx.PrimFunc", PRIM_FUNC, CONST},
};

// A field of a node: its offset, with a check of its size.
template <class Value>
class Field {
 public:
  Field(const char* key, const char* name) {
    const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(type_index(key));
    if (!find(info, name)) {
      bool found = false;
      for (i64 depth = info->type_depth - 1; depth >= 0 && !found; --depth) {
        found = find(info->type_ancestors[depth], name);
      }
      if (!found) throw std::runtime_error(std::string("no field ") + key + "." + name);
    }
    if (size_ != sizeof(Value)) {
      throw std::runtime_error(std::string("another layout of ") + key + "." + name);
    }
  }
  const Value& operator()(const Object* node) const {
    return *reinterpret_cast<const Value*>(reinterpret_cast<const char*>(node) + offset_);
  }

  static std::int32_t type_index(const char* key) {
    const TVMFFIByteArray text{key, std::strlen(key)};
    std::int32_t index = -1;
    if (TVMFFITypeKeyToIndex(&text, &index) != 0) {
      tvm::ffi::details::MoveFromSafeCallRaised();
      throw std::runtime_error(std::string("no type ") + key);
    }
    return index;
  }

 private:
  bool find(const TVMFFITypeInfo* info, const char* name) {
    for (std::int32_t i = 0; i < info->num_fields; ++i) {
      const TVMFFIFieldInfo& field = info->fields[i];
      if (std::string_view(field.name.data, field.name.size) != name) continue;
      offset_ = field.offset;
      size_ = static_cast<size_t>(field.size);
      return true;
    }
    return false;
  }

  i64 offset_ = 0;
  size_t size_ = 0;
};

// All fields that are read. The constructor throws std::runtime_error for an unsupported TVM.
struct TirLayout {
  using Pointer = const Object*;
  using Text = tvm::ffi::String;
  template <class Value>
  using F = Field<Value>;

  F<Pointer> module_functions{"ir.IRModule", "functions"};
  F<Text> global_name{"ir.GlobalVar", "name_hint"};
  F<Pointer> function_attrs{"tirx.PrimFunc", "attrs"}, attrs{"ir.DictAttrs", "__dict__"};
  F<Pointer> params{"tirx.PrimFunc", "params"}, function_body{"tirx.PrimFunc", "body"};
  F<TVMFFIAny> int_value{"ir.IntImm", "value"};
  F<double> float_value{"ir.FloatImm", "value"};
  F<Pointer> type{"prim.Add", "ty"};
  F<DLDataType> type_dtype{"ir.PrimType", "dtype"};
  F<Pointer> buffer_dtype{"tirx.BufferType", "dtype"}, shape{"tirx.BufferType", "shape"};
  F<Text> scope{"tirx.BufferType", "storage_scope"};
  F<Text> var_name{"ir.Var", "name"};
  F<Pointer> load_source{"ir.TensorLoad", "source"}, load_indices{"ir.TensorLoad", "indices"};
  F<Pointer> call_op{"ir.Call", "op"}, call_args{"ir.Call", "args"};
  F<Text> op_name{"ir.Op", "name"};
  F<Pointer> condition{"prim.Select", "condition"}, true_value{"prim.Select", "true_value"},
      false_value{"prim.Select", "false_value"};
  F<Pointer> cast_value{"prim.Cast", "value"}, not_value{"prim.Not", "a"};
  F<Pointer> let_var{"prim.Let", "var"}, let_value{"prim.Let", "value"},
      let_body{"prim.Let", "body"};
  F<Pointer> left{"prim.Add", "a"}, right{"prim.Add", "b"};
  F<Pointer> loop_var{"tirx.For", "loop_var"}, loop_min{"tirx.For", "min"},
      loop_extent{"tirx.For", "extent"}, loop_body{"tirx.For", "body"},
      thread_binding{"tirx.For", "thread_binding"}, loop_annotations{"tirx.For", "annotations"},
      loop_step{"tirx.For", "step"};
  F<std::int32_t> loop_kind{"tirx.For", "kind"};
  F<Text> thread_tag{"tirx.IterVar", "thread_tag"};
  F<Pointer> iter_var{"tirx.IterVar", "var"}, iter_domain{"tirx.IterVar", "dom"};
  F<std::int32_t> iter_type{"tirx.IterVar", "iter_type"};
  F<Pointer> range_min{"ir.Range", "min"};
  F<Pointer> store_buffer{"tirx.BufferStore", "buffer"}, store_value{"tirx.BufferStore", "value"},
      store_indices{"tirx.BufferStore", "indices"};
  F<TVMFFIAny> attr_node{"tirx.AttrStmt", "node"};
  F<Text> attr_key{"tirx.AttrStmt", "attr_key"};
  F<Pointer> attr_value{"tirx.AttrStmt", "value"}, attr_body{"tirx.AttrStmt", "body"};
  F<Pointer> if_condition{"tirx.IfThenElse", "condition"},
      then_case{"tirx.IfThenElse", "then_case"}, else_case{"tirx.IfThenElse", "else_case"};
  F<Pointer> sequence{"tirx.SeqStmt", "seq"};
  F<Pointer> alloc_buffer{"tirx.AllocBuffer", "buffer"};
  F<Pointer> bind_var{"tirx.Bind", "var"}, bind_value{"tirx.Bind", "value"};
  F<Pointer> evaluated{"tirx.Evaluate", "value"};
  F<Pointer> reducer_left{"te.CommReducer", "lhs"}, reducer_right{"te.CommReducer", "rhs"},
      reducer_result{"te.CommReducer", "result"};
  F<Pointer> iter_values{"s_tir.SBlockRealize", "iter_values"},
      predicate{"s_tir.SBlockRealize", "predicate"}, block{"s_tir.SBlockRealize", "block"};
  F<Pointer> block_vars{"s_tir.SBlock", "iter_vars"},
      block_buffers{"s_tir.SBlock", "alloc_buffers"},
      match_buffers{"s_tir.SBlock", "match_buffers"},
      block_annotations{"s_tir.SBlock", "annotations"}, block_init{"s_tir.SBlock", "init"},
      block_body{"s_tir.SBlock", "body"}, block_reads{"s_tir.SBlock", "reads"},
      block_writes{"s_tir.SBlock", "writes"};
  F<Pointer> region_source{"ir.TensorRegion", "source"}, region{"ir.TensorRegion", "region"};

  TirLayout() {
    for (const TirType& type : kTirTypes) {
      const size_t index = static_cast<size_t>(Field<int>::type_index(type.key));
      if (index >= kinds_.size()) kinds_.resize(index + 1, {NOTHING, CONST});
      kinds_[index] = {type.kind, type.op};
    }
  }

  TirKind kind(const Object* node) const { return entry(node).kind; }
  Op op(const Object* node) const { return entry(node).op; }

 private:
  struct Entry {
    TirKind kind;
    Op op;
  };
  Entry entry(const Object* node) const {
    const size_t index = static_cast<size_t>(node->type_index);
    return index < kinds_.size() ? kinds_[index] : Entry{NOTHING, CONST};
  }
  std::vector<Entry> kinds_;
};

inline std::string_view view(const tvm::ffi::String& text) { return {text.data(), text.size()}; }

// Prefetches a node, since nodes are scattered in memory.
inline void prefetch(const Object* node) {
  __builtin_prefetch(node);
  __builtin_prefetch(reinterpret_cast<const char*>(node) + 64);
}

// Items of an array; null counts as empty.
class Items {
 public:
  explicit Items(const Object* array)
      : array_(reinterpret_cast<const tvm::ffi::ArrayObj*>(array)),
        size_(array ? array_->size() : 0) {}
  size_t size() const { return size_; }
  void prefetch_all() const {
    for (size_t i = 0; i < size_; ++i) prefetch((*this)[i]);
  }
  const Object* operator[](size_t i) const {
    return reinterpret_cast<const TVMFFIAny*>(&(*(array_->begin() + static_cast<i64>(i))))->v_obj;
  }

 private:
  const tvm::ffi::ArrayObj* array_;
  size_t size_;
};

}  // namespace cdmpp
