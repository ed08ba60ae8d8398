// Batches of programs: threads, their results, and the arrays that are passed to Python.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "compact_ast.hpp"

namespace cdmpp {

enum Status : u8 { VALID, REJECTED, FAILED, DECLINED };
enum Phase : u8 { PARSE, REPLAY, BOUNDS_AND_LOWER, SIMPLIFY, FEATURES, PHASES };

// Position of a record's output in its worker's arrays.
struct Piece {
  u32 worker;
  Status status;
  size_t leaf, leaf_count, tree, tree_size;
  std::string reason, detail;
};

// Concatenated results of a worker's programs.
struct Output : CompactAsts {
  i64 nanoseconds[PHASES] = {};

  void clear() {
    CompactAsts::clear();
    std::fill(std::begin(nanoseconds), std::end(nanoseconds), 0);
  }
  void begin(Piece* piece) const {
    piece->leaf = positions.size();
    piece->tree = tree.size();
  }
  void end(Piece* piece) const {
    piece->leaf_count = positions.size() - piece->leaf;
    piece->tree_size = tree.size() - piece->tree;
  }
  void undo(Piece* piece, Status status, std::string reason, std::string detail) {
    truncate(piece->leaf, piece->tree);
    piece->status = status;
    piece->reason = std::move(reason);
    piece->detail = std::move(detail);
  }
};

// Pool of idle workers, whose arrays are reused by later calls.
template <typename Worker>
class Idle {
 public:
  // Returns an idle worker or a new one.
  template <typename Argument>
  std::unique_ptr<Worker> take(Argument& argument) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return std::make_unique<Worker>(argument);
    std::unique_ptr<Worker> worker = std::move(idle_.back());
    idle_.pop_back();
    return worker;
  }
  void give_back(std::unique_ptr<Worker> worker) {
    if (worker->is_worn()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.size() < kMost) idle_.push_back(std::move(worker));
  }

 private:
  static constexpr size_t kMost = 16;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> idle_;
};

}  // namespace cdmpp

extern "C" {

// Owned by the library until `cdmpp_result_free`. Field order as in `binding.py`.
struct cdmpp_result {
  cdmpp::i64 record_count, leaf_count, tree_size, text_size;
  float* features;          // [leaf, 164]
  float* extra;             // [leaf, kLeafExtra]
  std::int32_t* positions;  // [leaf]
  std::int32_t* tree;
  cdmpp::i64* leaf_offsets;  // [record + 1]
  cdmpp::i64* tree_offsets;  // [record + 1]
  cdmpp::u8* status;         // [record]
  char* text;         // concatenated reason and detail of every record
  cdmpp::i64* text_offsets;  // [2 * record + 1]
  cdmpp::i64 nanoseconds[cdmpp::PHASES];
};

// Exactly one source file of a library includes this.
int cdmpp_interface_version() { return 3; }

void cdmpp_result_free(cdmpp_result* result) {
  if (!result) return;
  delete[] result->features;
  delete[] result->extra;
  delete[] result->positions;
  delete[] result->tree;
  delete[] result->leaf_offsets;
  delete[] result->tree_offsets;
  delete[] result->status;
  delete[] result->text;
  delete[] result->text_offsets;
  delete result;
}
}

namespace cdmpp {

using ResultPointer = std::unique_ptr<cdmpp_result, void (*)(cdmpp_result*)>;

inline void append(const std::string& text, std::string* all, i64* offset) {
  *all += text;
  *offset = static_cast<i64>(all->size());
}

inline ResultPointer assemble(const std::vector<Piece>& pieces,
                       const std::vector<const Output*>& workers) {
  ResultPointer result(new cdmpp_result{}, cdmpp_result_free);
  const size_t count = pieces.size();
  result->record_count = static_cast<i64>(count);
  result->leaf_offsets = new i64[count + 1]();
  result->tree_offsets = new i64[count + 1]();
  result->status = new u8[count + 1]();
  result->text_offsets = new i64[2 * count + 1]();
  size_t leaves = 0, tree = 0;
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    leaves += pieces[i].leaf_count;
    tree += pieces[i].tree_size;
    result->leaf_offsets[i + 1] = static_cast<i64>(leaves);
    result->tree_offsets[i + 1] = static_cast<i64>(tree);
    result->status[i] = pieces[i].status;
    append(pieces[i].reason, &text, &result->text_offsets[2 * i + 1]);
    append(pieces[i].detail, &text, &result->text_offsets[2 * i + 2]);
  }
  result->leaf_count = static_cast<i64>(leaves);
  result->tree_size = static_cast<i64>(tree);
  result->text_size = static_cast<i64>(text.size());
  result->features = new float[leaves * kLeafFeatures + 1];
  result->extra = new float[leaves * kLeafExtra + 1];
  result->positions = new std::int32_t[leaves + 1];
  result->tree = new std::int32_t[tree + 1];
  result->text = new char[text.size() + 1];
  std::copy(text.begin(), text.end(), result->text);
  for (size_t i = 0; i < count; ++i) {
    const Piece& piece = pieces[i];
    const Output& worker = *workers[piece.worker];
    const float* row = worker.features.data() + piece.leaf * kLeafFeatures;
    std::copy(row, row + piece.leaf_count * kLeafFeatures,
              result->features + result->leaf_offsets[i] * static_cast<i64>(kLeafFeatures));
    const float* extra = worker.extra.data() + piece.leaf * kLeafExtra;
    std::copy(extra, extra + piece.leaf_count * kLeafExtra,
              result->extra + result->leaf_offsets[i] * static_cast<i64>(kLeafExtra));
    const std::int32_t* position = worker.positions.data() + piece.leaf;
    std::copy(position, position + piece.leaf_count, result->positions + result->leaf_offsets[i]);
    const std::int32_t* node = worker.tree.data() + piece.tree;
    std::copy(node, node + piece.tree_size, result->tree + result->tree_offsets[i]);
  }
  for (const Output* worker : workers) {
    for (int phase = 0; phase < PHASES; ++phase) {
      result->nanoseconds[phase] += worker->nanoseconds[phase];
    }
  }
  return result;
}

constexpr size_t kShare = 8;  // number of programs that a thread takes at a time

inline size_t useful_threads(size_t wanted, size_t count) {
  return std::max<size_t>(1, std::min(wanted, (count + kShare - 1) / kShare));
}

// Calls `run(thread, program)` for all programs in `thread_count` threads.
template <class Run>
void share_out(size_t count, size_t thread_count, const Run& run) {
  std::atomic<size_t> next{0};
  std::atomic<bool> out_of_memory{false};
  const auto work = [&](u32 number) {
    try {
      for (size_t first = next.fetch_add(kShare); first < count; first = next.fetch_add(kShare)) {
        for (size_t i = first; i < std::min(count, first + kShare); ++i) run(number, i);
      }
    } catch (const std::exception&) {
      out_of_memory = true;
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < thread_count; ++i) {
    try {
      threads.emplace_back(work, static_cast<u32>(i));
    } catch (const std::exception&) {
      break;  // the other threads do its work
    }
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
  if (out_of_memory) throw std::bad_alloc();
}

}  // namespace cdmpp
