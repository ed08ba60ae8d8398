// Numbers names. The table only grows, because the next program has many of the same names.
#pragma once

#include <string_view>
#include <unordered_map>

#include "common.hpp"

namespace cdmpp {

using NameId = u32;

class Names {
 public:
  Names() { intern(""); }

  NameId intern(std::string_view text) {
    const auto found = ids_.find(std::string(text));
    if (found != ids_.end()) return found->second;
    const NameId id = static_cast<NameId>(texts_.size());
    texts_.emplace_back(text);
    ids_.emplace(texts_.back(), id);
    return id;
  }

  const std::string& text(NameId id) const { return texts_[id]; }
  size_t size() const { return texts_.size(); }

  // The concatenation of the names `left` and `right`.
  NameId joined(NameId left, NameId right) {
    const u64 key = (static_cast<u64>(left) << 32) | right;
    const auto found = joined_.find(key);
    if (found != joined_.end()) return found->second;
    const NameId id = intern(texts_[left] + texts_[right]);
    joined_.emplace(key, id);
    return id;
  }

  // The name with the suffix `_count`.
  NameId numbered(NameId name, u32 count) {
    while (numbers_.size() <= count) {
      numbers_.push_back(intern("_" + std::to_string(numbers_.size())));
    }
    return joined(name, numbers_[count]);
  }

 private:
  std::vector<std::string> texts_;
  std::unordered_map<std::string, NameId> ids_;
  std::unordered_map<u64, NameId> joined_;
  std::vector<NameId> numbers_;
};

}  // namespace cdmpp
