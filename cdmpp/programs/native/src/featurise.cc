// The C interface: converts records of a task to compact ASTs. Called without the GIL.
#include <chrono>
#include <cstdio>
#include <mutex>

#include "batch.hpp"
#include "flat_tree.hpp"
#include "lower.hpp"

namespace cdmpp {
namespace {

struct Settings {
  bool is_gpu = false;
  bool has_limits = false;
  GpuLimits limits{};
};

void judge(const Judge& judge, const std::vector<TreeId>& top, const Settings& settings,
           Piece* piece) {
  piece->reason = judge.bad_extent(top);
  if (piece->reason.empty() && settings.is_gpu && settings.has_limits) {
    piece->reason = judge.violation(top, settings.limits);
  }
  piece->status = piece->reason.empty() ? VALID : REJECTED;
}

class Worker : public Output {
 public:
  explicit Worker(const Dag& dag)
      : dag_(dag), simplifier_(dag_.program), state_(dag_), lowering_(state_, simplifier_, tree_),
        leaves_(dag_.program, tree_) {}

  // Single names and their memory are never freed.
  bool is_worn() const {
    return dag_.program.names.size() > kMaxNames || dag_.program.is_swollen();
  }

  void run(std::string_view text, const Settings& settings, Piece* piece) {
    begin(piece);
    try {
      featurise(text, settings, piece);
    } catch (const Declined& declined) {
      undo(piece, DECLINED, declined.why, "");
    } catch (const ReplayFailure& failure) {
      undo(piece, FAILED, failure.reason, failure.detail);
    } catch (const std::exception& error) {
      undo(piece, DECLINED, error.what(), "");
    }
    end(piece);
  }

 private:
  static constexpr size_t kMaxNames = 1 << 18;
  using Clock = std::chrono::steady_clock;

  void lap(Phase phase) {
    const Clock::time_point now = Clock::now();
    nanoseconds[phase] +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - since_).count();
    since_ = now;
  }

  void featurise(std::string_view text, const Settings& settings, Piece* piece) {
    since_ = Clock::now();
    RecordReader(text, &record_).read_steps();
    lap(PARSE);
    state_.start();
    state_.apply(record_);
    lap(REPLAY);
    const std::vector<TreeId> raw = lowering_.run();
    lap(BOUNDS_AND_LOWER);
    const std::vector<TreeId> top = lowering_.finish(raw);
    lap(SIMPLIFY);
    append_compact_ast(tree_, top, settings.is_gpu, true, &leaves_, this);
    judge(Judge(tree_, dag_.program, dag_.shared), top, settings, piece);
    lap(FEATURES);
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

// Programs given as loop trees.
class TreeWorker : public Output {
 public:
  TreeWorker() : leaves_(program_, tree_), shared_(program_.names.intern("shared")) {
    program_.keep();
  }

  void run(const i64* data, size_t count, std::string_view text, const Settings& settings,
           Piece* piece) {
    begin(piece);
    program_.reset();
    tree_.reset();
    try {
      const std::vector<TreeId> top =
          TreeReader(data, count, text.data(), text.size()).read(&program_, &tree_);
      append_compact_ast(tree_, top, settings.is_gpu, true, &leaves_, this);
      judge(Judge(tree_, program_, shared_), top, settings, piece);
    } catch (const Declined& declined) {
      undo(piece, DECLINED, declined.why, "");
    } catch (const std::exception& error) {
      undo(piece, DECLINED, error.what(), "");
    }
    end(piece);
  }

 private:
  Program program_;
  Tree tree_;
  LeafWalk leaves_;
  NameId shared_;
};

class Task {
 public:
  Dag dag;
  Idle<Worker> idle;
};

struct Input {
  const char* text;
  const i64* offsets;   // count + 1
  const i64* settings;  // 5 per program, see `settings_at`
};

// `all`: 5 per program: is_gpu, has_limits, shared bytes, threads, vthreads.
Settings settings_at(const i64* all, size_t number) {
  const i64* values = all + number * 5;
  return {values[0] != 0, values[1] != 0, {values[2], values[3], values[4]}};
}

}  // namespace
}  // namespace cdmpp

using namespace cdmpp;

extern "C" {

// Returns null, with the reason in `error`, if the computation cannot be represented.
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

}

namespace {

ResultPointer featurise_all(Task& task, const Input& input, size_t count, size_t thread_count) {
  std::vector<Piece> pieces(count);
  std::vector<std::unique_ptr<Worker>> workers;
  const size_t useful = useful_threads(thread_count, count);
  for (size_t i = 0; i < useful; ++i) {
    workers.push_back(task.idle.take(task.dag));
    workers.back()->clear();
  }
  share_out(count, useful, [&](u32 number, size_t i) {
    const size_t size = static_cast<size_t>(input.offsets[i + 1] - input.offsets[i]);
    pieces[i].worker = number;
    workers[number]->run(std::string_view(input.text + input.offsets[i], size),
                         settings_at(input.settings, i), &pieces[i]);
  });
  std::vector<const Output*> outputs;
  for (const auto& worker : workers) outputs.push_back(worker.get());
  ResultPointer result = assemble(pieces, outputs);
  for (auto& worker : workers) task.idle.give_back(std::move(worker));
  return result;
}

}  // namespace

extern "C" {

// Featurises `count` records of a task: texts of steps, with settings as in `settings_at`.
// Returns null if memory runs out.
cdmpp_result* cdmpp_featurise(void* task, const char* text, const i64* offsets, const i64* settings,
                              size_t count, size_t threads) {
  try {
    const Input input{text, offsets, settings};
    return featurise_all(*static_cast<Task*>(task), input, count, threads).release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Featurises `count` loop trees in flat form (see `flatten.py`), concatenated in `data` and
// `text`. Returns null if memory runs out.
cdmpp_result* cdmpp_featurise_trees(const i64* data, const i64* data_offsets, const char* text,
                                    const i64* text_offsets, const i64* settings,
                                    size_t count) {
  try {
    TreeWorker worker;
    std::vector<Piece> pieces(count);
    for (size_t i = 0; i < count; ++i) {
      const size_t size = static_cast<size_t>(data_offsets[i + 1] - data_offsets[i]);
      const size_t text_size = static_cast<size_t>(text_offsets[i + 1] - text_offsets[i]);
      worker.run(data + data_offsets[i], size,
                 std::string_view(text + text_offsets[i], text_size), settings_at(settings, i),
                 &pieces[i]);
    }
    return assemble(pieces, {&worker}).release();
  } catch (const std::exception&) {
    return nullptr;
  }
}
}
