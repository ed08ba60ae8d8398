// Parses the steps of measure records as strict JSON; unusual input is declined.
#pragma once

#include <string_view>

#include "common.hpp"

namespace cdmpp {

// A value in a step: a number, a text without escapes, a list of numbers, or something else.
struct Argument {
  enum Kind : u8 { NUMBER, TEXT, LIST, OTHER };
  Kind kind = OTHER;
  i64 number = 0;
  std::string_view text;
  u32 first = 0, count = 0;  // of a list, in Record::numbers
};

struct Step {
  u32 first, count;  // in Record::arguments; argument 0 is the code
};

struct Record {
  std::vector<Step> steps;
  std::vector<Argument> arguments;
  std::vector<i64> numbers;

  void clear() {
    steps.clear();
    arguments.clear();
    numbers.clear();
  }
};

class RecordReader {
 public:
  RecordReader(std::string_view text, Record* record) : text_(text), record_(record) {}

  // `[[code, argument, ...], ...]`.
  void read_steps() {
    record_->clear();
    steps();
    end();
  }

 private:
  void steps() {
    expect('[');
    if (accept(']')) return;
    do {
      const u32 first = static_cast<u32>(record_->arguments.size());
      expect('[');
      do {
        const Argument found = argument();
        record_->arguments.push_back(found);
      } while (comma_or(']'));
      if (record_->arguments[first].kind != Argument::TEXT) throw Declined{"step without code"};
      record_->steps.push_back({first, static_cast<u32>(record_->arguments.size()) - first});
    } while (comma_or(']'));
  }

  Argument argument() {
    Argument result;
    const char c = peek();
    if (c == '"') {
      result.text = skip_text();
      result.kind = plain_ ? Argument::TEXT : Argument::OTHER;
    } else if (c == '[') {
      return list();
    } else if (number(&result.number)) {
      result.kind = Argument::NUMBER;
    } else {
      skip(0);
    }
    return result;
  }

  Argument list() {
    Argument result;
    result.first = static_cast<u32>(record_->numbers.size());
    bool plain = true;
    expect('[');
    if (!accept(']')) {
      do {
        i64 value = 0;
        if (number(&value)) {
          record_->numbers.push_back(value);
        } else {
          plain = false;
          skip(1);
        }
      } while (comma_or(']'));
    }
    result.count = static_cast<u32>(record_->numbers.size()) - result.first;
    result.kind = plain ? Argument::LIST : Argument::OTHER;
    return result;
  }

  // Reads an integer of up to 18 digits; otherwise reads nothing.
  bool number(i64* value) {
    space();
    size_t at = at_;
    const bool negative = at < text_.size() && text_[at] == '-';
    at += negative;
    const size_t first = at;
    i64 result = 0;
    for (; at < text_.size() && text_[at] >= '0' && text_[at] <= '9'; ++at) {
      if (at - first >= 18) return false;
      result = result * 10 + (text_[at] - '0');
    }
    if (at == first || (text_[first] == '0' && at - first > 1)) return false;
    const char after = at < text_.size() ? text_[at] : '\0';
    if (after == '.' || after == 'e' || after == 'E') return false;
    at_ = at;
    *value = negative ? -result : result;
    return true;
  }

  // Skips any value. Python accepts steps of 16 levels, two of which are around this value.
  void skip(int depth) {
    if (depth > 14) throw Declined{"JSON nested deeply"};
    const char c = peek();
    if (c == '"') {
      skip_text();
    } else if (c == '[' || c == '{') {
      const char close = c == '[' ? ']' : '}';
      expect(c);
      if (accept(close)) return;
      do {
        if (c == '{') {
          skip_text();
          expect(':');
        }
        skip(depth + 1);
      } while (comma_or(close));
    } else if (!word("true") && !word("false") && !word("null")) {
      skip_number();
    }
  }

  bool word(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }

  void skip_number() {
    const auto digits = [&] {
      const size_t first = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      if (at_ == first) throw Declined{"not JSON"};
      return first;
    };
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    const size_t first = digits();
    if (text_[first] == '0' && at_ - first > 1) throw Declined{"not JSON"};
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      digits();
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
      const size_t exponent = digits();
      if (at_ - exponent > 2) throw Declined{"number that may be infinite"};
    }
    if (at_ - first > 40) throw Declined{"long number"};
  }

  // Any text in its raw form; `plain_` is set if it has neither escapes nor single quotes.
  std::string_view skip_text() {
    expect('"');
    plain_ = true;
    const size_t first = at_;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') return text_.substr(first, at_++ - first);
      if (static_cast<unsigned char>(c) < 0x20) break;
      if (static_cast<unsigned char>(c) >= 0x7f) throw Declined{"text outside ASCII"};
      if (c == '\'') plain_ = false;
      if (c == '\\') {
        plain_ = false;
        escape();
      }
    }
    throw Declined{"not JSON"};
  }

  void escape() {
    ++at_;
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (c == '\0' || std::string_view("\"\\/bfnrtu").find(c) == std::string_view::npos) {
      throw Declined{"not JSON"};
    }
    if (c != 'u') return;
    for (int i = 0; i < 4; ++i) {
      ++at_;
      const char digit = at_ < text_.size() ? text_[at_] : '\0';
      const bool hex = (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f') ||
                       (digit >= 'A' && digit <= 'F');
      if (!hex) throw Declined{"not JSON"};
      if (i == 1 && (text_[at_ - 1] == 'd' || text_[at_ - 1] == 'D') && digit >= '8') {
        throw Declined{"half a character"};
      }
    }
  }

  void space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r') break;
      ++at_;
    }
  }
  char peek() {
    space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) throw Declined{"not a plain record"};
  }
  // After a value: true if another one follows, false at the closing bracket.
  bool comma_or(char close) {
    if (accept(',')) return true;
    expect(close);
    return false;
  }
  void end() {
    if (peek() != '\0' || at_ < text_.size()) throw Declined{"not JSON"};
  }

  std::string_view text_;
  Record* record_;
  size_t at_ = 0;
  bool plain_ = true;
};

}  // namespace cdmpp
