// Map from address to number that is cleared as a whole.
#pragma once

#include "common.hpp"

namespace cdmpp {

class PointerMap {
 public:
  PointerMap() : entries_(kFirstSize) {}

  void clear() {
    used_ = 0;
    if (++now_ != 0) return;
    entries_.assign(entries_.size(), {});
    now_ = 1;
  }
  // Returns kNone if the address has no number.
  u32 find(const void* key) const {
    for (size_t at = place(key);; at = (at + 1) & (entries_.size() - 1)) {
      if (entries_[at].epoch != now_) return kNone;
      if (entries_[at].key == key) return entries_[at].value;
    }
  }
  void set(const void* key, u32 value) {
    size_t at = place(key);
    while (entries_[at].epoch == now_ && entries_[at].key != key) {
      at = (at + 1) & (entries_.size() - 1);
    }
    if (entries_[at].epoch != now_) ++used_;
    entries_[at] = {key, now_, value};
    if (used_ * 2 > entries_.size()) grow();
  }

 private:
  static constexpr size_t kFirstSize = 1 << 8;
  struct Entry {
    const void* key = nullptr;
    u32 epoch = 0;
    u32 value = 0;
  };

  size_t place(const void* key) const {
    const u64 bits = static_cast<u64>(reinterpret_cast<std::uintptr_t>(key));
    return static_cast<size_t>((bits >> 4) * 0x9e3779b97f4a7c15ull >> 32) & (entries_.size() - 1);
  }
  void grow() {
    std::vector<Entry> old(entries_.size() * 2);
    old.swap(entries_);
    const u32 before = now_;
    now_ = 1;
    used_ = 0;
    for (const Entry& entry : old) {
      if (entry.epoch == before) set(entry.key, entry.value);
    }
  }

  std::vector<Entry> entries_;
  size_t used_ = 0;
  u32 now_ = 1;
};

}  // namespace cdmpp
