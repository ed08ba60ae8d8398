// The C interface: records of one task in, compact ASTs out. Called without the interpreter lock.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>

#include "leaf.hpp"
#include "lower.hpp"

namespace cdmpp {
namespace {

enum Status : u8 { VALID, REJECTED, FAILED, DECLINED };
enum Phase : u8 { PARSE, REPLAY, BOUNDS_AND_LOWER, SIMPLIFY, FEATURES, PHASES };

struct Settings {
  bool is_gpu = false;
  bool has_limits = false;
  GpuLimits limits{};
};

// Where the output of one record lies in its worker's arrays.
struct Piece {
  u32 worker;
  Status status;
  size_t leaf, leaf_count, tree, tree_size;
  std::string reason, detail;
};

class Worker {
 public:
  explicit Worker(const Dag& dag)
      : dag_(dag), simplifier_(dag_.program), state_(dag_), lowering_(state_, simplifier_, tree_),
        leaves_(dag_.program, tree_) {}

  std::vector<float> features;
  std::vector<std::int32_t> positions, tree;
  i64 nanoseconds[PHASES] = {};

  void clear() {
    features.clear();
    positions.clear();
    tree.clear();
    std::fill(std::begin(nanoseconds), std::end(nanoseconds), 0);
  }
  // Names are never dropped one by one, nor is memory.
  bool is_worn() const {
    return dag_.program.names.size() > kMaxNames || dag_.program.is_swollen();
  }

  void run(std::string_view text, bool is_line, Settings settings, Piece* piece) {
    piece->leaf = positions.size();
    piece->tree = tree.size();
    try {
      featurise(text, is_line, settings, piece);
    } catch (const Declined& declined) {
      undo(piece, DECLINED, declined.why, "");
    } catch (const ReplayFailure& failure) {
      undo(piece, FAILED, failure.reason, failure.detail);
    } catch (const std::exception& error) {
      undo(piece, DECLINED, error.what(), "");
    }
    piece->leaf_count = positions.size() - piece->leaf;
    piece->tree_size = tree.size() - piece->tree;
  }

 private:
  static constexpr size_t kMaxNames = 1 << 18;
  using Clock = std::chrono::steady_clock;

  void undo(Piece* piece, Status status, std::string reason, std::string detail) {
    features.resize(piece->leaf * kLeafFeatures);
    positions.resize(piece->leaf);
    tree.resize(piece->tree);
    piece->status = status;
    piece->reason = std::move(reason);
    piece->detail = std::move(detail);
  }

  void lap(Phase phase) {
    const Clock::time_point now = Clock::now();
    nanoseconds[phase] +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - since_).count();
    since_ = now;
  }

  void featurise(std::string_view text, bool is_line, Settings settings, Piece* piece) {
    since_ = Clock::now();
    RecordReader reader(text, &record_);
    if (is_line) {
      reader.read_line();
      settings = settings_of(record_);
    } else {
      reader.read_steps();
    }
    lap(PARSE);
    state_.start();
    state_.apply(record_);
    lap(REPLAY);
    const std::vector<TreeId> raw = lowering_.run();
    lap(BOUNDS_AND_LOWER);
    const std::vector<TreeId> top = lowering_.finish(raw);
    lap(SIMPLIFY);
    leaves_.run(top, settings.is_gpu, &features);
    Serialiser(tree_, &tree, &positions).run(top);
    const Judge judge(tree_, dag_.program, dag_.shared);
    piece->reason = judge.bad_extent(top);
    if (piece->reason.empty() && settings.is_gpu && settings.has_limits) {
      piece->reason = judge.violation(top, settings.limits);
    }
    piece->status = piece->reason.empty() ? VALID : REJECTED;
    lap(FEATURES);
  }

  static Settings settings_of(const Record& record) {
    const std::string_view target = record.target;
    const size_t first = target.find_first_not_of(' ');
    const std::string_view kind = target.substr(first, target.find(' ', first) - first);
    Settings settings;
    for (const char* gpu : {"cuda", "rocm", "opencl", "vulkan", "metal"}) {
      settings.is_gpu = settings.is_gpu || kind == gpu;
    }
    settings.has_limits = record.hardware.size() == 8;
    if (settings.has_limits) {
      settings.limits = {record.hardware[3], record.hardware[5], record.hardware[6]};
    }
    return settings;
  }

  Dag dag_;
  Simplifier simplifier_;
  Tree tree_;
  ScheduleState state_;
  Lowering lowering_;
  LeafWalk leaves_;
  Record record_;
  Clock::time_point since_;
};

class Task {
 public:
  Dag dag;

  std::unique_ptr<Worker> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return std::make_unique<Worker>(dag);
    std::unique_ptr<Worker> worker = std::move(idle_.back());
    idle_.pop_back();
    return worker;
  }
  void give_back(std::unique_ptr<Worker> worker) {
    if (worker->is_worn()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.size() < kMaxIdle) idle_.push_back(std::move(worker));
  }

 private:
  static constexpr size_t kMaxIdle = 16;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> idle_;
};

struct Input {
  const char* text;
  const i64* offsets;   // count + 1
  const i64* settings;  // 5 a record: is_gpu, has_limits, shared bytes, threads, vthreads
  bool is_line;
};

Settings settings_at(const Input& input, size_t number) {
  if (input.is_line) return {};
  const i64* values = input.settings + number * 5;
  return {values[0] != 0, values[1] != 0, {values[2], values[3], values[4]}};
}

}  // namespace
}  // namespace cdmpp

using namespace cdmpp;

extern "C" {

// All of it belongs to the library until `cdmpp_result_free`. Field order as in `binding.py`.
struct cdmpp_result {
  i64 record_count, leaf_count, tree_size, text_size;
  float* features;          // [leaf, 164]
  std::int32_t* positions;  // [leaf]
  std::int32_t* tree;
  i64* leaf_offsets;  // [record + 1]
  i64* tree_offsets;  // [record + 1]
  u8* status;         // [record]
  char* text;         // reason and detail of every record, one after another
  i64* text_offsets;  // [2 * record + 1]
  i64 nanoseconds[PHASES];
};

int cdmpp_interface_version() { return 1; }

// Returns null, with the reason in `error`, where the computation cannot be represented.
void* cdmpp_task_new(const i64* data, size_t count, const char* text, size_t text_size, char* error,
                     size_t error_size) {
  const char* why = "out of memory";
  try {
    auto task = std::make_unique<Task>();
    DagReader(data, count, text, text_size).read(&task->dag);
    return task.release();
  } catch (const Declined& declined) {
    why = declined.why;
  } catch (const std::exception&) {
  }
  std::snprintf(error, error_size, "%s", why);
  return nullptr;
}

void cdmpp_task_free(void* task) { delete static_cast<Task*>(task); }

void cdmpp_result_free(cdmpp_result* result) {
  if (!result) return;
  delete[] result->features;
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

namespace {

using ResultPointer = std::unique_ptr<cdmpp_result, void (*)(cdmpp_result*)>;

void append(const std::string& text, std::string* all, i64* offset) {
  *all += text;
  *offset = static_cast<i64>(all->size());
}

ResultPointer assemble(const std::vector<Piece>& pieces,
                       const std::vector<std::unique_ptr<Worker>>& workers) {
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
  result->positions = new std::int32_t[leaves + 1];
  result->tree = new std::int32_t[tree + 1];
  result->text = new char[text.size() + 1];
  std::copy(text.begin(), text.end(), result->text);
  for (size_t i = 0; i < count; ++i) {
    const Piece& piece = pieces[i];
    const Worker& worker = *workers[piece.worker];
    const float* row = worker.features.data() + piece.leaf * kLeafFeatures;
    std::copy(row, row + piece.leaf_count * kLeafFeatures,
              result->features + result->leaf_offsets[i] * static_cast<i64>(kLeafFeatures));
    const std::int32_t* position = worker.positions.data() + piece.leaf;
    std::copy(position, position + piece.leaf_count, result->positions + result->leaf_offsets[i]);
    const std::int32_t* node = worker.tree.data() + piece.tree;
    std::copy(node, node + piece.tree_size, result->tree + result->tree_offsets[i]);
  }
  for (const auto& worker : workers) {
    for (int phase = 0; phase < PHASES; ++phase) {
      result->nanoseconds[phase] += worker->nanoseconds[phase];
    }
  }
  return result;
}

ResultPointer featurise_all(Task& task, const Input& input, size_t count, size_t thread_count) {
  constexpr size_t kBatch = 8;  // records a thread takes at once
  std::vector<Piece> pieces(count);
  std::vector<std::unique_ptr<Worker>> workers;
  const size_t useful = std::max<size_t>(1, std::min(thread_count, (count + kBatch - 1) / kBatch));
  for (size_t i = 0; i < useful; ++i) {
    workers.push_back(task.take());
    workers.back()->clear();
  }
  std::atomic<size_t> next{0};
  std::atomic<bool> out_of_memory{false};
  const auto work = [&](u32 number) {
    try {
      for (size_t first = next.fetch_add(kBatch); first < count; first = next.fetch_add(kBatch)) {
        for (size_t i = first; i < std::min(count, first + kBatch); ++i) {
          const size_t size = static_cast<size_t>(input.offsets[i + 1] - input.offsets[i]);
          pieces[i].worker = number;
          workers[number]->run(std::string_view(input.text + input.offsets[i], size),
                               input.is_line, settings_at(input, i), &pieces[i]);
        }
      }
    } catch (const std::exception&) {
      out_of_memory = true;
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < useful; ++i) {
    try {
      threads.emplace_back(work, static_cast<u32>(i));
    } catch (const std::exception&) {
      break;  // the others take its share
    }
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
  if (out_of_memory) throw std::bad_alloc();
  ResultPointer result = assemble(pieces, workers);
  for (auto& worker : workers) task.give_back(std::move(worker));
  return result;
}

}  // namespace

extern "C" {

// Featurises `count` records of a task: texts of steps with `settings`, or whole lines
// (`is_line`). Returns null when there is not enough memory.
cdmpp_result* cdmpp_featurise(void* task, const char* text, const i64* offsets, const i64* settings,
                              size_t count, int is_line, size_t threads) {
  try {
    const Input input{text, offsets, settings, is_line != 0};
    return featurise_all(*static_cast<Task*>(task), input, count, threads).release();
  } catch (const std::exception&) {
    return nullptr;
  }
}
}
