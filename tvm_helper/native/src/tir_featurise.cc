// C interface of the featuriser of TVM modules, scheduled or lowered. Called without the interpreter
// lock. A separate library, because it needs tvm_ffi.
#include <tvm/ffi/function.h>

#include <chrono>
#include <cstdio>
#include <mutex>

#include "allocations.hpp"
#include "batch.hpp"
#include "canonical.hpp"
#include "compaction.hpp"
#include "tir_nests.hpp"
#include "tir_walk.hpp"

namespace cdmpp {
namespace {

namespace ffi = tvm::ffi;

// Objects that all workers share.
struct Compiler {
  TirLayout layout;
  ffi::Function run_pass = ffi::Function::GetGlobalRequired("transform.RunPass");
  ffi::Any pass;  // lowers blocks to plain loops
};

struct Request {
  bool is_gpu;      // whether the target is a GPU
  bool may_lower;   // whether the pass may run
  bool is_complete; // whether to include reductions across threads
  bool has_sets;    // whether to count the lines in cache sets
  bool has_limits;
  GpuLimits limits;
};

const Object* raw(const ffi::Any& any) { return reinterpret_cast<const TVMFFIAny*>(&any)->v_obj; }

const Object* main_function(const TirLayout& l, const Object* module) {
  const auto* functions = reinterpret_cast<const ffi::MapObj*>(l.module_functions(module));
  for (const auto& entry : *functions) {
    if (view(l.global_name(raw(entry.first))) == "main") return raw(entry.second);
  }
  throw Declined{"no function main"};
}

// Whether a function of the module has an attribute `name`.
bool has_attribute(const TirLayout& l, const Object* module, std::string_view name) {
  for (const auto& entry : *reinterpret_cast<const ffi::MapObj*>(l.module_functions(module))) {
    const Object* function = raw(entry.second);
    const Object* attrs = l.kind(function) == PRIM_FUNC ? l.function_attrs(function) : nullptr;
    if (!attrs) continue;
    for (const auto& attr : *reinterpret_cast<const ffi::MapObj*>(l.attrs(attrs))) {
      if (view(*reinterpret_cast<const ffi::String*>(&attr.first)) == name) return true;
    }
  }
  return false;
}

class Worker : public Output {
 public:
  explicit Worker(const Compiler& compiler)
      : compiler_(compiler), simplifier_(program_), walk_(compiler.layout, program_, tree_),
        canonical_(program_, simplifier_, tree_), placement_(program_, tree_),
        compaction_(program_, simplifier_, tree_), leaves_(program_, tree_),
        shared_(program_.names.intern("shared")) {
    program_.keep();
  }

  // Names and memory are only freed together with the worker.
  bool is_worn() const { return program_.names.size() > kMaxNames || program_.is_swollen(); }

  void run(const Object* module, const Request& request, Piece* piece) {
    begin(piece);
    since_ = Clock::now();
    try {
      featurise(module, request, piece);
    } catch (const Declined& declined) {
      undo(piece, DECLINED, declined.why, "");
    } catch (const NeedsLowering&) {
      undo(piece, DECLINED, "not lowered", "");
    } catch (const std::exception& error) {
      undo(piece, DECLINED, error.what(), "");
    }
    end(piece);
  }

 private:
  static constexpr size_t kMaxNames = 1 << 18;
  // In the order of `MODULE_PHASES` in tvm_helper/native/modules.py.
  enum Step : u8 { WALK, PASSES, CANONICAL, COLUMNS };
  using Clock = std::chrono::steady_clock;

  void lap(Step step) {
    const Clock::time_point now = Clock::now();
    nanoseconds[step] +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - since_).count();
    since_ = now;
  }

  void featurise(const Object* module, const Request& request, Piece* piece) {
    ffi::Any lowered;  // keeps the walked module alive
    try {
      walk(main_of(module), request);
      lap(WALK);
    } catch (const NeedsLowering&) {
      if (!request.may_lower) throw;
      lap(WALK);
      lowered = compiler_.run_pass(compiler_.pass, view_of(module));
      lap(PASSES);
      walk(main_of(raw(lowered)), request);
      lap(WALK);
    }
    simplifier_.reset();
    std::vector<TreeId> top = canonical_.run(found_.top);
    placement_.look_at(top, found_.allocated, found_.parameters);
    top = placement_.place_allocations(std::move(top));
    compaction_.run(top);
    top = placement_.place_outputs(std::move(top), found_.parameters);
    lap(CANONICAL);
    const bool is_gpu = request.is_gpu || found_.is_gpu;
    append_compact_ast(tree_, top, is_gpu, request.has_sets, &leaves_, this);
    const Judge judge(tree_, program_, shared_);
    piece->reason = judge.bad_extent(top);
    if (piece->reason.empty() && is_gpu && request.has_limits) {
      piece->reason = judge.violation(top, request.limits);
    }
    piece->status = piece->reason.empty() ? VALID : REJECTED;
    lap(COLUMNS);
  }

  void walk(const Object* function, const Request& request) {
    program_.reset();
    tree_.reset();
    walk_.run(function, request.is_complete, &found_);
  }

  const Object* main_of(const Object* module) const {
    return main_function(compiler_.layout, module);
  }
  static ffi::AnyView view_of(const Object* object) {
    TVMFFIAny any{};
    any.type_index = object->type_index;
    any.v_obj = const_cast<Object*>(object);
    return ffi::AnyView::CopyFromTVMFFIAny(any);
  }

  const Compiler& compiler_;
  Program program_;
  Simplifier simplifier_;
  Tree tree_;
  TirWalk walk_;
  Canonical canonical_;
  Placement placement_;
  Compaction compaction_;
  LeafWalk leaves_;
  NameId shared_;
  TirProgram found_;
  Clock::time_point since_;
};

class Featuriser {
 public:
  Compiler compiler;

  ResultPointer run(const Object* const* modules, size_t count, const Request& request,
                    size_t threads) {
    std::vector<Piece> pieces(count);
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<const Output*> outputs;
    const size_t useful = useful_threads(threads, count);
    for (size_t i = 0; i < useful; ++i) {
      workers.push_back(idle_.take(compiler));
      workers.back()->clear();
      outputs.push_back(workers.back().get());
    }
    share_out(count, useful, [&](u32 number, size_t i) {
      pieces[i].worker = number;
      workers[number]->run(modules[i], request, &pieces[i]);
    });
    ResultPointer result = assemble(pieces, outputs);
    for (auto& worker : workers) idle_.give_back(std::move(worker));
    return result;
  }

 private:
  Idle<Worker> idle_;
};

}  // namespace
}  // namespace cdmpp

using namespace cdmpp;

extern "C" {

// `pass` is a pass object of TVM. Returns null, with the reason in `error`, if the nodes of this TVM
// are not supported.
void* cdmpp_modules_new(TVMFFIObject* pass, char* error, size_t error_size) {
  try {
    auto featuriser = std::make_unique<Featuriser>();
    TVMFFIAny any{};
    any.type_index = pass->type_index;
    any.v_obj = pass;
    featuriser->compiler.pass = tvm::ffi::AnyView::CopyFromTVMFFIAny(any);
    return featuriser.release();
  } catch (const std::exception& why) {
    std::snprintf(error, error_size, "%s", why.what());
    return nullptr;
  }
}

void cdmpp_modules_free(void* featuriser) { delete static_cast<Featuriser*>(featuriser); }

// Writes to `found` for each module whether one of its functions has an attribute `name`.
void cdmpp_modules_have(void* featuriser, const TVMFFIObject* const* modules, size_t count,
                        const char* name, bool* found) {
  const TirLayout& layout = static_cast<Featuriser*>(featuriser)->compiler.layout;
  for (size_t i = 0; i < count; ++i) found[i] = has_attribute(layout, modules[i], name);
}

// Featurises modules, which must stay alive. `settings`: target is a GPU, lowering allowed, complete,
// cache sets, has limits, shared bytes, threads, vthreads. Returns null if memory is exhausted.
cdmpp_result* cdmpp_modules_featurise(void* featuriser, const TVMFFIObject* const* modules,
                                      size_t count, const i64* settings, size_t threads) {
  try {
    const Request request{settings[0] != 0, settings[1] != 0, settings[2] != 0, settings[3] != 0,
                          settings[4] != 0, {settings[5], settings[6], settings[7]}};
    return static_cast<Featuriser*>(featuriser)->run(modules, count, request, threads).release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Plans to parallelise and vectorise a block's loops, see `NestPlan`; writes its four numbers to
// `plan`. Returns 0 if only TVM's postprocessor can compute the plan.
int cdmpp_modules_plan_nest(void* featuriser, const TVMFFIObject* module, size_t place,
                            i64 most_parallel, i64 most_vectorized, i64* plan) {
  try {
    const TirLayout& layout = static_cast<Featuriser*>(featuriser)->compiler.layout;
    thread_local std::unique_ptr<Nests> nests;  // keeps its memory
    if (!nests || !nests->is_of(layout)) nests = std::make_unique<Nests>(layout);
    const NestPlan found =
        nests->plan(main_function(layout, module), place, most_parallel, most_vectorized);
    for (const i64 value : {found.loops, found.parallel, found.vectorized, found.is_spatial}) {
      *plan++ = value;
    }
    return 1;
  } catch (const Declined&) {
    return 0;
  } catch (const std::exception&) {
    return 0;
  }
}
}
