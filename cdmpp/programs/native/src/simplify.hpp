// Integer simplification with the rules and order of cdmpp/programs/loops/simplify.py.
#pragma once

#include "linear.hpp"

namespace cdmpp {

struct Bounds {
  double low = -kInfinity;
  double high = kInfinity;
};

class Simplifier {
 public:
  explicit Simplifier(Program& program) : p_(program) {}

  // Clears all state for the next program.
  void reset() {
    bounds_.clear();
    read_.clear();
    known_.clear();
    arena_.reset();
    depth_ = 0;
    forget();
  }

  void bind(NameId name, double low, double high) {
    const Bounds* old = bounds_.find(name);
    if (old && old->low == low && old->high == high) return;
    bounds_.set(name, {low, high});
    // Cached results that do not depend on these bounds stay.
    if (read_.has(name)) forget();
  }

  struct Known {
    const Term* terms;
    u32 count;
    Bounds bounds;
  };
  // Assumes `condition` until the returned list is passed to `restore`.
  std::vector<Known> assume(ExprId condition) {
    std::vector<Known> before = known_;
    learn(condition);
    forget();
    return before;
  }
  void restore(std::vector<Known> before) {
    known_ = std::move(before);
    forget();
  }

  Linear add(const Linear& left, const Linear& right, i64 scale = 1) {
    if (scale == 0 || (right.count == 0 && right.constant == 0)) return left;
    const i64 constant = cdmpp::add(left.constant, cdmpp::mul(scale, right.constant));
    if (right.count == 0 && !any_divided(left)) return {left.terms, left.count, constant};
    const size_t room = left.count + right.count;
    Term* terms = arena_.allocate(room);
    std::copy(left.terms, left.terms + left.count, terms);
    u32 count = left.count;
    for (u32 i = 0; i < right.count; ++i) {
      Term term = right.terms[i];
      term.coefficient = cdmpp::mul(scale, term.coefficient);
      u32 at = 0;
      while (at < count && !terms[at].same_place(term)) ++at;
      if (at == count) {
        terms[count++] = term;
        continue;
      }
      terms[at].coefficient = cdmpp::add(terms[at].coefficient, term.coefficient);
      if (terms[at].coefficient == 0) {
        std::copy(terms + at + 1, terms + count, terms + at);
        --count;
      }
    }
    if (any_divided(right) || any_divided(left)) count = merge_divided(terms, count);
    arena_.shrink(room - count);
    return {terms, count, constant};
  }

  Linear scale(const Linear& form, i64 factor) {
    if (factor == 0) return {};
    if (factor == 1) return form;
    Term* terms = arena_.allocate(form.count);
    for (u32 i = 0; i < form.count; ++i) {
      terms[i] = form.terms[i];
      terms[i].coefficient = mul(terms[i].coefficient, factor);
    }
    return {terms, form.count, mul(form.constant, factor)};
  }

  Linear floordiv(const Linear& form, i64 divisor) {
    if (divisor == 1) return form;
    Linear quotient, rest;
    divisible_parts(form, divisor, &quotient, &rest);
    if (rest.is_constant()) return add(quotient, constant(cdmpp::floordiv(rest.constant, divisor)));
    const Bounds bounds = bounds_of(rest);
    if (bounds.low > -kInfinity && bounds.high < kInfinity) {
      const double by = static_cast<double>(divisor);
      const double low = cdmpp::floordiv(bounds.low, by);
      if (low == cdmpp::floordiv(bounds.high, by)) return add(quotient, constant(to_int(low)));
    }
    return add(quotient, divide_term(single(rest), divisor));
  }

  Linear floormod(const Linear& form, i64 divisor) {
    if (divisor == 1) return {};
    Linear quotient, rest;
    divisible_parts(form, divisor, &quotient, &rest);
    if (rest.is_constant()) return constant(cdmpp::floormod(rest.constant, divisor));
    const Bounds bounds = bounds_of(rest);
    const double by = static_cast<double>(divisor);
    if (bounds.low >= 0 && bounds.high < by) return rest;
    if (bounds.low > -kInfinity && bounds.high < kInfinity) {
      const double low = cdmpp::floordiv(bounds.low, by);
      if (low == cdmpp::floordiv(bounds.high, by)) {
        return add(rest, constant(mul(sub(0, to_int(low)), divisor)));
      }
    }
    return mod_term(single(rest), divisor);
  }

  Bounds bounds_of(const Linear& form) {
    double low = 0, high = 0;
    for (u32 i = 0; i < form.count; ++i) {
      const Bounds term = term_bounds(form.terms[i]);
      const double by = static_cast<double>(form.terms[i].coefficient);
      const double one = by * term.low, other = by * term.high;
      low += std::min(one, other);
      high += std::max(one, other);
    }
    if (const Known* known = find_known(form.terms, form.count)) {
      low = std::max(low, known->bounds.low);
      high = std::min(high, known->bounds.high);
    }
    const double shift = static_cast<double>(form.constant);
    return {low + shift, high + shift};
  }

  Bounds expr_bounds(ExprId id) {
    const Op op = p_.node(id).op;
    if (op == CONST) return {p_.float_value(id), p_.float_value(id)};
    if (op == VAR) {
      const NameId name = static_cast<NameId>(p_.node(id).value);
      read_.set(name);
      const Bounds* found = bounds_.find(name);
      Bounds bounds = found ? *found : Bounds{};
      const Term own{id, 1, 0, 1};
      if (const Known* known = find_known(&own, 1)) {
        bounds = {std::max(bounds.low, known->bounds.low),
                  std::min(bounds.high, known->bounds.high)};
      }
      return bounds;
    }
    if (memo(id).bounds_epoch == epoch_) return memo(id).bounds;
    const Nested nested(depth_);
    const Bounds bounds = composite_bounds(id);
    Memo& entry = memo(id);
    entry.bounds = bounds;
    entry.bounds_epoch = epoch_;
    return bounds;
  }

  Linear linear(ExprId id) {
    const Op op = p_.node(id).op;
    if (op == CONST) return constant(p_.int_value(id));
    if (op == VAR) return of_term({id, 1, 0, 1});
    if (memo(id).linear_epoch == epoch_) return memo(id).linear;
    const Nested nested(depth_);
    const Linear form = to_linear(id);
    Memo& entry = memo(id);
    entry.linear = form;
    entry.linear_epoch = epoch_;
    return form;
  }

  ExprId to_expr(const Linear& form) {
    ExprId result = kNone;
    for (u32 i = 0; i < form.count; ++i) {
      const Term& term = form.terms[i];
      if (term.coefficient > 0) result = plus(result, term_expr(term, term.coefficient));
    }
    if (form.constant > 0) result = plus(result, p_.integer(form.constant));
    for (u32 i = 0; i < form.count; ++i) {
      const Term& term = form.terms[i];
      if (term.coefficient < 0) result = minus(result, term_expr(term, sub(0, term.coefficient)));
    }
    if (form.constant < 0) result = minus(result, p_.integer(sub(0, form.constant)));
    return result == kNone ? p_.integer(0) : result;
  }

  ExprId simplify(ExprId id) {
    if (p_.node(id).arg_count == 0) return id;
    if (memo(id).simple_epoch == epoch_) return memo(id).simple;
    const Nested nested(depth_);
    const ExprId simple = simplified(id);
    Memo& entry = memo(id);
    entry.simple = simple;
    entry.simple_epoch = epoch_;
    return simple;
  }

  Linear of_term(const Term& term) {
    if (term.coefficient == 0) return {};
    Term* terms = arena_.allocate(1);
    *terms = term;
    return {terms, 1, 0};
  }

 private:
  struct Memo {
    Linear linear;
    Bounds bounds;
    ExprId simple = kNone;
    u32 linear_epoch = 0, bounds_epoch = 0, simple_epoch = 0;
  };

  // Limits the depth of recursion to what Python supports.
  struct Nested {
    explicit Nested(int& depth) : depth_(depth) {
      if (depth_ >= kMaxExprDepth) throw Declined{"simplification nested deeply"};
      ++depth_;
    }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    int& depth_;
  };

  Memo& memo(ExprId id) {
    if (id >= memos_.size()) memos_.resize(id + id / 2 + 1024);
    return memos_[id];
  }

  void forget() {
    read_.clear();
    if (++epoch_ == 0) {
      memos_.clear();
      epoch_ = 1;
    }
  }

  static bool any_divided(const Linear& form) {
    for (u32 i = 0; i < form.count; ++i) {
      if (form.terms[i].is_divided()) return true;
    }
    return false;
  }

  // Assumptions.

  void learn(ExprId condition) {
    const Node node = p_.node(condition);
    if (node.op == AND) {
      learn(p_.arg(condition, 0));
      learn(p_.arg(condition, 1));
    } else if (node.op == CALL && node.value == p_.likely) {
      learn(p_.arg(condition, 0));
    } else if (node.op >= LT && node.op <= GE && p_.dtype(p_.arg(condition, 0)).is_int) {
      ExprId a = p_.arg(condition, 0), b = p_.arg(condition, 1);
      if (node.op == GT || node.op == GE) std::swap(a, b);
      const bool strict = node.op == LT || node.op == GT;
      const Linear left = linear(a), right = linear(b);
      const Linear difference = add(left, right, -1);
      const i64 limit = sub(sub(0, difference.constant), strict ? 1 : 0);
      if (difference.count) {
        narrow(difference.terms, difference.count, -kInfinity, static_cast<double>(limit));
        const Linear negated = scale({difference.terms, difference.count, 0}, -1);
        narrow(negated.terms, negated.count, static_cast<double>(sub(0, limit)), kInfinity);
      }
    }
  }

  void narrow(const Term* terms, u32 count, double low, double high) {
    for (Known& known : known_) {
      if (!same_terms(known.terms, known.count, terms, count)) continue;
      known.bounds = {std::max(low, known.bounds.low), std::min(high, known.bounds.high)};
      return;
    }
    known_.push_back({terms, count, {low, high}});
  }

  const Known* find_known(const Term* terms, u32 count) const {
    for (const Known& known : known_) {
      if (same_terms(known.terms, known.count, terms, count)) return &known;
    }
    return nullptr;
  }

  // Division.

  void divisible_parts(const Linear& form, i64 divisor, Linear* quotient, Linear* rest) {
    Term* divided = arena_.allocate(form.count);
    u32 divided_count = 0;
    for (u32 i = 0; i < form.count; ++i) {
      if (form.terms[i].coefficient % divisor) continue;
      divided[divided_count] = form.terms[i];
      divided[divided_count++].coefficient /= divisor;
    }
    arena_.shrink(form.count - divided_count);
    Term* left = arena_.allocate(form.count - divided_count);
    u32 left_count = 0;
    for (u32 i = 0; i < form.count; ++i) {
      if (form.terms[i].coefficient % divisor) left[left_count++] = form.terms[i];
    }
    const bool exact = form.constant % divisor == 0;
    *quotient = {divided, divided_count, exact ? form.constant / divisor : 0};
    *rest = {left, left_count, exact ? 0 : form.constant};
  }

  // Returns a one-term form; a sum becomes one opaque base.
  Term single(const Linear& form) {
    if (form.count == 1 && form.constant == 0) return form.terms[0];
    return {to_expr(form), 1, 0, 1};
  }

  Linear divide_term(const Term& term, i64 divisor) {
    if (term.coefficient % divisor == 0) {
      return of_term({term.base, term.lower, term.upper, term.coefficient / divisor});
    }
    if (term.coefficient > 0 && divisor % term.coefficient == 0) {
      const i64 lower = mul(term.lower, divisor / term.coefficient);
      if (term.upper == 0 || term.upper % lower == 0) {
        return of_term({term.base, lower, term.upper, 1});
      }
      if (term.upper <= lower) return {};
      const ExprId modulo =
          p_.binary(FLOORMOD, Program::kInt32, term.base, p_.integer(term.upper));
      return of_term({modulo, lower, 0, 1});
    }
    return of_term({to_expr(of_term(term)), divisor, 0, 1});
  }

  Linear mod_term(const Term& term, i64 divisor) {
    if (term.coefficient % divisor == 0) return {};
    if (term.coefficient > 0 && divisor % term.coefficient == 0) {
      const i64 upper = mul(term.lower, divisor / term.coefficient);
      if (term.upper == 0 || term.upper % upper == 0) {
        if (term.upper == 0 || upper >= term.upper) {
          return of_term({term.base, term.lower, upper, term.coefficient});
        }
        const Linear inner = floormod(linear(term.base), upper);
        return scale(floordiv(inner, term.lower), term.coefficient);
      }
      if (upper % term.upper == 0) return of_term(term);
    }
    return of_term({to_expr(of_term(term)), 1, divisor, 1});
  }

  // Merges adjacent parts, (x div l) * l + x mod l = x. Returns the new number of terms.
  static u32 merge_divided(Term* terms, u32 count) {
    while (merge_one(terms, &count)) {
    }
    return count;
  }

  static bool merge_one(Term* terms, u32* count) {
    for (u32 first = 0; first < *count; ++first) {
      const ExprId base = terms[first].base;
      bool seen = false;
      for (u32 i = 0; i < first && !seen; ++i) seen = terms[i].base == base;
      if (seen) continue;
      for (u32 i = first; i < *count; ++i) {
        if (terms[i].base != base || terms[i].upper == 0) continue;
        for (u32 j = first; j < *count; ++j) {
          if (i == j || terms[j].base != base || terms[i].upper != terms[j].lower) continue;
          const i64 ratio = terms[i].upper / terms[i].lower;
          if (terms[j].coefficient != mul(terms[i].coefficient, ratio)) continue;
          Term joined{base, terms[i].lower, terms[j].upper, terms[i].coefficient};
          erase(terms, count, std::max(i, j));
          erase(terms, count, std::min(i, j));
          for (u32 k = 0; k < *count; ++k) {
            if (!terms[k].same_place(joined)) continue;
            joined.coefficient = cdmpp::add(joined.coefficient, terms[k].coefficient);
            erase(terms, count, k);
            break;
          }
          if (joined.coefficient) terms[(*count)++] = joined;
          return true;
        }
      }
    }
    return false;
  }

  static void erase(Term* terms, u32* count, u32 at) {
    std::copy(terms + at + 1, terms + *count, terms + at);
    --*count;
  }

  // Bounds.

  Bounds term_bounds(const Term& term) {
    Bounds bounds = expr_bounds(term.base);
    if (term.upper) {
      const double upper = static_cast<double>(term.upper);
      if (bounds.low > -kInfinity && bounds.high < kInfinity &&
          cdmpp::floordiv(bounds.low, upper) == cdmpp::floordiv(bounds.high, upper)) {
        bounds = {cdmpp::floormod(bounds.low, upper), cdmpp::floormod(bounds.high, upper)};
      } else {
        bounds = {0, upper - 1};
      }
    }
    if (term.lower != 1) {
      const double lower = static_cast<double>(term.lower);
      if (bounds.low > -kInfinity) bounds.low = cdmpp::floordiv(bounds.low, lower);
      if (bounds.high < kInfinity) bounds.high = cdmpp::floordiv(bounds.high, lower);
    }
    return bounds;
  }

  Bounds composite_bounds(ExprId id) {
    const Node node = p_.node(id);
    if (node.op == MIN || node.op == MAX || node.op == SELECT) {
      const u32 first = node.op == SELECT ? 1 : 0;
      const Bounds left = expr_bounds(p_.arg(id, first));
      const Bounds right = expr_bounds(p_.arg(id, first + 1));
      if (node.op == MIN) return {std::min(left.low, right.low), std::min(left.high, right.high)};
      if (node.op == MAX) return {std::max(left.low, right.low), std::max(left.high, right.high)};
      return {std::min(left.low, right.low), std::max(left.high, right.high)};
    }
    if (node.op == CAST && p_.dtype(id).starts_with_int) return expr_bounds(p_.arg(id, 0));
    if (node.op == ADD || node.op == SUB || node.op == MUL || node.op == FLOORDIV ||
        node.op == FLOORMOD) {
      const Linear form = linear(id);
      const Term own{id, 1, 0, 1};
      if (form.constant == 0 && same_terms(form.terms, form.count, &own, 1)) return {};
      return bounds_of(form);
    }
    return {};
  }

  // Expressions.

  Linear to_linear(ExprId id) {
    const Node node = p_.node(id);
    if (!is_int_arithmetic(node.op)) {
      const ExprId simple = simplified(id);
      const Op op = p_.node(simple).op;
      if (is_int_arithmetic(op) || op == CONST || op == VAR) return linear(simple);
      return of_term({simple, 1, 0, 1});
    }
    Linear left = linear(p_.arg(id, 0)), right = linear(p_.arg(id, 1));
    if (node.op == ADD || node.op == SUB) return add(left, right, node.op == ADD ? 1 : -1);
    if (node.op == MUL && (left.is_constant() || right.is_constant())) {
      if (left.is_constant()) std::swap(left, right);
      return scale(left, right.constant);
    }
    if (right.is_constant() && right.constant > 0) {
      if (node.op == FLOORDIV || (node.op == DIV && bounds_of(left).low >= 0)) {
        return floordiv(left, right.constant);
      }
      if (node.op == FLOORMOD || (node.op == MOD && bounds_of(left).low >= 0)) {
        return floormod(left, right.constant);
      }
    }
    if (node.op == MIN || node.op == MAX) {
      const Bounds bounds = bounds_of(add(left, right, -1));
      if (bounds.low >= 0 || bounds.high <= 0) {
        return (bounds.low >= 0) == (node.op == MAX) ? left : right;
      }
    }
    const ExprId first = to_expr(left), second = to_expr(right);
    return of_term({p_.binary(node.op, node.dtype, first, second), 1, 0, 1});
  }

  ExprId term_expr(const Term& term, i64 coefficient) {
    ExprId expr = term.base;
    if (term.upper) expr = p_.binary(FLOORMOD, Program::kInt32, expr, p_.integer(term.upper));
    if (term.lower != 1) expr = p_.binary(FLOORDIV, Program::kInt32, expr, p_.integer(term.lower));
    if (coefficient != 1) expr = p_.binary(MUL, Program::kInt32, expr, p_.integer(coefficient));
    return expr;
  }
  ExprId plus(ExprId left, ExprId right) {
    return left == kNone ? right : p_.binary(ADD, Program::kInt32, left, right);
  }
  ExprId minus(ExprId left, ExprId right) {
    return p_.binary(SUB, Program::kInt32, left == kNone ? p_.integer(0) : left, right);
  }

  ExprId simplified(ExprId id) {
    const Node node = p_.node(id);
    if (is_int_arithmetic(node.op) && p_.dtype(id).starts_with_int) return to_expr(linear(id));
    if (is_comparison(node.op) && p_.dtype(p_.arg(id, 0)).starts_with_int) return comparison(id);
    if (node.op == AND || node.op == OR) return connective(id);
    if (node.op == NOT) {
      const ExprId inner = simplify(p_.arg(id, 0));
      if (p_.is_const(inner)) return p_.boolean(p_.float_value(inner) == 0);
      return p_.make(NOT, Program::kBool, &inner, 1, 0);
    }
    const bool is_call = node.op == CALL;
    if (node.op == SELECT || (is_call && node.value == p_.if_then_else && node.arg_count == 3)) {
      const ExprId condition = simplify(p_.arg(id, 0));
      if (p_.is_const(condition)) {
        return simplify(p_.arg(id, p_.float_value(condition) != 0 ? 1 : 2));
      }
      const ExprId first = simplify(p_.arg(id, 1));
      const ExprId args[3] = {condition, first, simplify(p_.arg(id, 2))};
      if (node.op == SELECT && args[1] == args[2]) return args[1];
      return p_.make(node.op, node.dtype, args, 3, node.value);
    }
    if (is_call && node.value == p_.likely && node.arg_count >= 1) {
      const ExprId inner = simplify(p_.arg(id, 0));
      return p_.is_const(inner) ? inner : p_.make(CALL, Program::kBool, &inner, 1, node.value);
    }
    Args args(node.arg_count);
    for (u32 i = 0; i < node.arg_count; ++i) args[i] = simplify(p_.arg(id, i));
    return fold_constants(p_.with_args(id, args));
  }

  ExprId connective(ExprId id) {
    const Op op = p_.node(id).op;
    const ExprId left = simplify(p_.arg(id, 0)), right = simplify(p_.arg(id, 1));
    const ExprId ends = p_.boolean(op == OR), passes = p_.boolean(op == AND);
    if (left == ends || right == ends) return ends;
    if (left == passes || left == right) return right;
    return right == passes ? left : p_.binary(op, Program::kBool, left, right);
  }

  ExprId comparison(ExprId id) {
    Op op = p_.node(id).op;
    ExprId a = p_.arg(id, 0), b = p_.arg(id, 1);
    if (op == GT || op == GE) {
      op = op == GT ? LT : LE;
      std::swap(a, b);
    }
    const Linear left = linear(a), right = linear(b);
    const Linear difference = add(left, right, -1);
    const Bounds bounds = bounds_of(difference);
    if (op == LT || op == LE) {
      const double edge = op == LT ? -1 : 0;
      if (bounds.high <= edge) return p_.boolean(true);
      if (bounds.low > edge) return p_.boolean(false);
    } else {
      const bool equal = bounds.low == 0 && bounds.high == 0;
      if (bounds.low > 0 || bounds.high < 0 || equal) return p_.boolean(equal == (op == EQ));
    }
    if ((op == LT || op == LE) && (left.is_constant() || right.is_constant())) {
      return balanced(op, difference, right.is_constant());
    }
    const ExprId first = to_expr(left);
    return p_.binary(op, Program::kBool, first, to_expr(right));
  }

  // The comparison with its constant terms combined on the side that was constant.
  ExprId balanced(Op op, const Linear& difference, bool constant_is_right) {
    const i64 edge = op == LE ? 0 : 1;
    i64 limit = sub(sub(0, difference.constant), edge);
    const Linear variable = divide_limit({difference.terms, difference.count, 0}, &limit);
    if (constant_is_right) {
      const ExprId first = to_expr(variable);
      return p_.binary(op, Program::kBool, first, p_.integer(cdmpp::add(limit, edge)));
    }
    const ExprId first = p_.integer(sub(sub(0, limit), edge));
    return p_.binary(op, Program::kBool, first, to_expr(scale(variable, -1)));
  }

  // Removes the coefficient and the division of a single term from `variable <= limit`.
  Linear divide_limit(const Linear& variable, i64* limit) {
    if (variable.count != 1) return variable;
    const Term term = variable.terms[0];
    const i64 size = term.coefficient < 0 ? sub(0, term.coefficient) : term.coefficient;
    *limit = cdmpp::floordiv(*limit, size);
    if (term.coefficient > 0) {
      *limit = sub(mul(cdmpp::add(*limit, 1), term.lower), 1);
      return of_term({term.base, 1, term.upper, 1});
    }
    *limit = mul(*limit, term.lower);
    return of_term({term.base, 1, term.upper, -1});
  }

  // Folds constant, neutral and zero operands of a cast or float operation.
  ExprId fold_constants(ExprId id) {
    const Node node = p_.node(id);
    const DType& dtype = p_.dtype(id);
    if (node.op == CAST && p_.is_const(p_.arg(id, 0))) {
      const ExprId inner = p_.arg(id, 0);
      if (dtype.is_int) return p_.make(CONST, node.dtype, nullptr, 0, p_.int_value(inner));
      return p_.number(node.dtype, p_.float_value(inner));
    }
    if ((node.op != ADD && node.op != SUB && node.op != MUL && node.op != DIV) ||
        !dtype.starts_with_float) {
      return id;
    }
    const ExprId left = p_.arg(id, 0), right = p_.arg(id, 1);
    const bool has_a = p_.is_const(left), has_b = p_.is_const(right);
    const double a = has_a ? p_.float_value(left) : 0, b = has_b ? p_.float_value(right) : 0;
    if (has_a && has_b && !(node.op == DIV && b == 0)) {
      const double value = node.op == ADD   ? a + b
                           : node.op == SUB ? a - b
                           : node.op == MUL ? a * b
                                            : a / b;
      return p_.number(node.dtype, value);
    }
    if ((node.op == ADD || node.op == SUB) && has_b && b == 0) return left;
    if (node.op == ADD && has_a && a == 0) return right;
    if (node.op == MUL && ((has_a && a == 0) || (has_b && b == 0))) return p_.number(node.dtype, 0);
    if ((node.op == MUL || node.op == DIV) && has_b && b == 1) return left;
    if (node.op == MUL && has_a && a == 1) return right;
    if (node.op == DIV && has_b && b != 0) {
      return p_.binary(MUL, node.dtype, left, p_.number(node.dtype, 1.0 / b));
    }
    return id;
  }

  Program& p_;
  TermArena arena_;
  StampedMap<Bounds> bounds_;
  Stamps read_;
  std::vector<Known> known_;
  std::vector<Memo> memos_;
  u32 epoch_ = 1;
  int depth_ = 0;
};

}  // namespace cdmpp
