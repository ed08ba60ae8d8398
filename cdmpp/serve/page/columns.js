// Columns of the features (docs/reference/features.md) in words.

const POSITIONS = { None: "nowhere", Mixed: "at several places" };
const RULES = [
  [/^B(\d)\.(.*)$/, (n, rest) => `${ordinal(n)} buffer ${access(rest)}`],
  [/^(float|int)_(\w+)$/, (type, what) => `${type === "float" ? "floating-point" : "index"} ${OPERATIONS[what] ?? what} a run`],
  [/^(vec|unroll|parallel)_(num|prod|len)$/, (what, count) => `${COUNTS[count]} ${ANNOTATIONS[what]} loops`],
  [/^(vec|unroll|parallel)_type\.kPos(\w+)$/, (what, where) => `the ${ANNOTATIONS[what]} loop is ${POSITIONS[where] ?? split(where)}`],
  [/^(blockIdx|threadIdx)_([xyz])_len$/, (what, axis) => `${what === "blockIdx" ? "blocks" : "threads"} along ${axis}`],
  [/^(scope|dtype|alloc)\.(store|B\d)\.(.*)$/, (block, slot, what) => `${place(slot)}: ${SLOT[`${block}.${what}`] ?? split(what)}`],
  [/^thread_stride\.(store|B\d)\.(.*)$/, (slot, what) => `${place(slot)}: ${STRIDE[what] ?? split(what)}`],
  [/^loop_nest\.N(\d)\.(?:is_)?(.*)$/, (n, what) => (what === "extent" ? `iterations of the ${ordinal(n)} loop from inside` : `the ${ordinal(n)} loop from inside is ${KINDS[what] ?? what}`)],
  [/^(footprint|lines)\.N(\d)\.bytes$/, (block, n) => `bytes${block === "lines" ? " of cache lines" : ""} that one run of the ${ordinal(n)} loop touches`],
  [/^(footprint|lines)\.(traffic|conflict)_(\d+)k$/, (block, what, size) => `bytes that a cache of ${size} KiB fetches${what === "conflict" ? ", with conflicts" : ""}`],
  [/^lines\.pages_(\d+)$/, (count) => `pages that a table of ${count} entries fetches`],
  [/^(occupancy|program|condition|execution|integer)\.(.*)$/, (block, what) => `${split(what)} of the ${block === "program" ? "program" : block === "occupancy" ? "kernel" : "store"}`],
  [/^arith_intensity_curve_(\d+)$/, (n) => `operations a byte, point ${Number(n) + 1} of the curve`],
];
const OPERATIONS = { mad: "multiply-adds", addsub: "sums", mul: "products", divmod: "divisions", cmp: "comparisons", mathfunc: "functions", otherfunc: "other calls", math_func: "functions", other_func: "other calls" };
const COUNTS = { num: "number of", prod: "iterations of all", len: "iterations of the innermost of" };
const ANNOTATIONS = { vec: "vectorised", unroll: "unrolled", parallel: "parallel" };
const KINDS = { serial: "serial", parallel: "parallel", vectorized: "vectorised", unrolled: "unrolled", block: "a block index", thread: "a thread index", vthread: "a virtual thread", reduction: "a reduction" };
const ACCESS = {
  "acc_type.kRead": "is read only", "acc_type.kWrite": "is written only", "acc_type.kReadWrite": "is read and written",
  bytes: "bytes moved", unique_bytes: "distinct bytes", lines: "cache lines moved", unique_lines: "distinct cache lines",
  "reuse_type.kLoopMultipleRead": "is read again in a loop", "reuse_type.kSerialMultipleReadWrite": "is used again by a later store",
  "reuse_type.kNoReuse": "is used once", reuse_dis_iter: "iterations until it is used again", reuse_dis_bytes: "bytes until it is used again",
  reuse_ct: "times it is used again", stride: "stride of the innermost loop",
};
const SLOT = {
  "scope.global": "is in device memory", "scope.shared": "is in shared memory", "scope.local": "is in registers", "dtype.bytes": "bytes of an element",
  "dtype.is_float": "holds floats", "alloc.bytes": "allocated bytes", "alloc.is_parameter": "is an input",
};
const STRIDE = {
  stride: "elements from lane to lane", is_broadcast: "all lanes use one element", is_contiguous: "lanes use neighbouring elements",
  is_strided: "lanes use elements at a stride", is_irregular: "lanes use irregular elements", sectors: "pieces of memory that the lanes touch",
  bank_conflicts: "lanes that wait for one bank",
};

/** `B0.acc_type.kRead` as `1st buffer is read only`; a name without a rule stands as it is, with spaces. */
export function columnWords(name) {
  for (const [form, words] of RULES) {
    const found = form.exec(name);
    if (found) return words(...found.slice(1));
  }
  return split(name);
}

function access(name) {
  const known = ACCESS[name.replace(/_d_reuse_ct$/, "")] ?? split(name);
  return name.endsWith("_d_reuse_ct") ? `${known} over its reuses` : known;
}

function place(slot) {
  return slot === "store" ? "what is written" : `${ordinal(slot[1])} buffer`;
}

function ordinal(place) {
  const number = Number(place) + 1;
  return `${number}${{ 1: "st", 2: "nd", 3: "rd" }[number] ?? "th"}`;
}

function split(text) {
  return text.replace(/([a-z])([A-Z])/g, "$1 $2").replaceAll(/[_.]/g, " ").toLowerCase();
}
