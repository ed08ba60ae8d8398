// Names, buffers and expressions, read from the arrays of `flatten.FlatWriter`.
#pragma once

#include "expr.hpp"

namespace cdmpp {

// Reads an array of integers; reading past its end and invalid indices are errors.
class FlatReader {
 public:
  FlatReader(const i64* data, size_t count) : data_(data), end_(data + count) {}

  i64 next() {
    if (data_ == end_) throw Declined{"flat form: too short"};
    return *data_++;
  }
  u32 index(size_t limit) {
    const i64 value = next();
    if (value < 0 || static_cast<u64>(value) >= limit) throw Declined{"flat form: index"};
    return static_cast<u32>(value);
  }
  u32 count() {
    const i64 value = next();
    if (value < 0 || value > end_ - data_) throw Declined{"flat form: count"};
    return static_cast<u32>(value);
  }
  template <class Item, class Read>
  std::vector<Item> list(Read read) {
    std::vector<Item> items(count());
    for (Item& item : items) item = read();
    return items;
  }
  bool at_end() const { return data_ == end_; }

 private:
  const i64* data_;
  const i64* end_;
};

// Reads the start of every flat form: names, buffers and expressions.
class FlatTables {
 public:
  FlatTables(const i64* data, size_t count, const char* text, size_t text_size)
      : in_(data, count), text_(text, text_size) {}

 protected:
  void read_tables(Program* program) {
    read_names(program);
    read_buffers(program);
    read_exprs(program);
  }

  NameId name() { return names_[in_.index(names_.size())]; }
  BufferId buffer() { return buffers_[in_.index(buffers_.size())]; }
  ExprId expr() { return exprs_[in_.index(exprs_.size())]; }

  FlatReader in_;

 private:
  // Names come first: their lengths in `data`, concatenated in `text`.
  void read_names(Program* program) {
    const u32 count = in_.count();
    size_t at = 0;
    for (u32 i = 0; i < count; ++i) {
      const i64 length = in_.next();
      if (length < 0 || static_cast<u64>(length) > text_.size() - at) {
        throw Declined{"flat form: text"};
      }
      names_.push_back(program->names.intern(std::string_view(text_).substr(at, length)));
      at += static_cast<size_t>(length);
    }
  }

  void read_buffers(Program* program) {
    const u32 count = in_.count();
    for (u32 i = 0; i < count; ++i) {
      const NameId name_id = name();
      const u8 dtype = program->dtype_id(program->names.text(name()));
      const NameId scope = name();
      const std::vector<i64> shape = in_.list<i64>([&] { return in_.next(); });
      buffers_.push_back(program->add_buffer(name_id, dtype, scope, shape));
    }
  }

  void read_exprs(Program* program) {
    const u32 count = in_.count();
    for (u32 i = 0; i < count; ++i) {
      const Op op = static_cast<Op>(in_.index(OP_COUNT));
      const u8 dtype = program->dtype_id(program->names.text(name()));
      i64 value = 0;
      if (op == CONST) value = in_.next();
      if (op == VAR || op == CALL) value = name();
      if (op == LOAD) value = buffer();
      const std::vector<ExprId> args = in_.list<ExprId>([&] { return expr(); });
      const size_t wanted = op >= ADD ? 2 : op == SELECT ? 3 : op == CAST || op == NOT ? 1 : 0;
      if (op == LOAD || op == CALL ? args.size() > 64 : args.size() != wanted) {
        throw Declined{"flat form: operands"};
      }
      if (op == LOAD && args.size() != program->buffers[static_cast<size_t>(value)].rank) {
        throw Declined{"flat form: rank of a read"};
      }
      if (op == CONST && program->dtypes[dtype].counts_as_float) {
        double number;
        std::memcpy(&number, &value, sizeof number);
        exprs_.push_back(program->number(dtype, number));
      } else {
        const u32 arg_count = static_cast<u32>(args.size());
        exprs_.push_back(program->make(op, dtype, args.data(), arg_count, value));
      }
    }
  }

  std::string_view text_;
  std::vector<NameId> names_;
  std::vector<BufferId> buffers_;
  std::vector<ExprId> exprs_;
};

}  // namespace cdmpp
