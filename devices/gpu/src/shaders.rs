//! Builds the WGSL of kernels that do not compute each element on its own, such as reductions,
//! softmax, sorting and copies. The operators compile and record these kernels, and give them their
//! sizes when they run.
//!
//! Binding 0 holds a kernel's sizes as 32-bit words, the next ones its arrays, results last. The
//! array of sizes is called `p`; `p[0]` is the number of threads or groups that have work. naga
//! bounds-checks every array access.

pub(crate) mod doubles;
pub(crate) mod functions;

/// The first lines of every kernel.
pub(crate) const PRELUDE: &str = r"
@group(0) @binding(0) var<storage, read> p: array<u32>;
fn f(i: u32) -> f32 { return bitcast<f32>(p[i]); }
fn is_nan(a: f32) -> bool { return (bitcast<u32>(a) & 0x7fffffffu) > 0x7f800000u; }
fn is_inf(a: f32) -> bool { return (bitcast<u32>(a) & 0x7fffffffu) == 0x7f800000u; }
fn infinity() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }
fn not_a_number() -> f32 { var bits = 0x7fc00000u; return bitcast<f32>(bits); }
fn larger(a: f32, b: f32) -> f32 { return select(b, a, a > b || is_nan(a)); }
fn smaller(a: f32, b: f32) -> f32 { return select(b, a, a < b || is_nan(a)); }
";

/// Returns the first lines of a kernel with these bindings. They enable halves where an array holds
/// halves, and define the functions of 64-bit floats where an array holds those.
pub(crate) fn prelude(arrays: &str) -> String {
    match arrays {
        _ if arrays.contains("array<f64>") => doubles::PRELUDE.to_owned(),
        _ if arrays.contains("array<f16>") => format!("enable f16;\n{PRELUDE}"),
        _ => PRELUDE.to_owned(),
    }
}

/// The type that a kernel computes with, and the element types of the arrays it reads and writes.
#[derive(Clone, Copy)]
pub(crate) struct KernelTypes {
    pub number: &'static str,
    pub read: &'static str,
    pub written: &'static str,
}

impl KernelTypes {
    /// Returns the types of a kernel that reads one array and writes another.
    pub fn from_types(read: &'static str, written: &'static str) -> Self {
        let number = if read == "f16" { "f32" } else { read };
        Self {
            number,
            read,
            written,
        }
    }

    /// Returns an expression that converts an element read to the type of the computation.
    pub fn read(self, value: &str) -> String {
        convert_expression(self.read, self.number, value)
    }

    /// Returns an expression that converts a result to the type of the array written.
    pub fn store_expression(self, value: &str) -> String {
        convert_expression(self.number, self.written, value)
    }

    /// Returns the bindings of the array `x` to read and `y` to write.
    fn array_bindings(self) -> String {
        bindings(&[("x", self.read), ("y", self.written)], 1)
    }
}

fn convert_expression(from: &str, to: &str, value: &str) -> String {
    match from == to {
        true => value.to_owned(),
        false => format!("{to}({value})"),
    }
}

/// The entry of a kernel with one thread for each `i` below `p[0]`.
pub(crate) const BY_THREAD: &str = r"
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) all: vec3<u32>,
        @builtin(local_invocation_index) l: u32) {
  let i = (w.y * all.x + w.x) * 64u + l;
  if (i >= p[0]) { return; }
";

/// Returns the entry of a kernel with one workgroup for each `g` below `p[0]`, whose threads share
/// an array `t` with a number of each.
pub(crate) fn by_group(number: &str) -> String {
    format!("\nvar<workgroup> t: array<{number}, 64>;{BY_GROUP}")
}

/// The entry of a kernel with one workgroup of 64 threads for each `g` below `p[0]`.
const BY_GROUP: &str = r"
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) all: vec3<u32>,
        @builtin(local_invocation_index) l: u32) {
  let g = w.y * all.x + w.x;
  if (g >= p[0]) { return; }
";

/// Returns arrays as bindings from 1 on: name and element type, the last `written` of them
/// writable.
pub(crate) fn bindings(arrays: &[(&str, &str)], written: usize) -> String {
    let last = arrays.len() - written;
    let line = |(index, (name, element)): (usize, &(&str, &str))| {
        let access = if index < last { "read" } else { "read_write" };
        let binding = index + 1;
        format!("@group(0) @binding({binding}) var<storage, {access}> {name}: array<{element}>;\n")
    };
    arrays.iter().enumerate().map(line).collect()
}

/// Returns the WGSL by which the threads of a group reduce the array `t` to `t[0]`. `combine` is an
/// expression of `a` and `b`.
pub(crate) fn group_reduction(combine: &str) -> String {
    format!(
        r"
  workgroupBarrier();
  for (var half = 32u; half > 0u; half = half / 2u) {{
    if (l < half) {{ let a = t[l]; let b = t[l + half]; t[l] = {combine}; }}
    workgroupBarrier();
  }}
"
    )
}

/// Returns the kernel that copies words, for transposes, slices, tiles, pads and joins.
///
/// Sizes: count, dimensions, first place read, first place written, fill; then for each dimension
/// size, step read, step written, start, stride, size of the source, and the values outside it (0
/// none, 1 the fill, 2 reflected, 3 the edge, 4 wrapped). The fill is a word of the sizes, or the
/// first one of an array of its own.
pub(crate) fn copy_kernel(word: CopyUnit, has_fill: bool) -> String {
    let name = word.name();
    let (names, fill): (&[_], _) = match has_fill {
        true => (
            &[("x", name), ("fill", name), ("y", name)],
            "fill[0]".into(),
        ),
        false => (&[("x", name), ("y", name)], format!("{name}(p[4])")),
    };
    let arrays = bindings(names, 1);
    let prelude = prelude(&arrays);
    format!(
        r"{prelude}{arrays}{BY_THREAD}
  var rest = i;
  var from_place = p[2];
  var to_place = p[3];
  var inside = true;
  for (var k = p[1]; k > 0u; k--) {{
    let b = 5u + (k - 1u) * 7u;
    let c = rest % p[b];
    rest = rest / p[b];
    var s = bitcast<i32>(p[b + 3u]) + i32(c) * bitcast<i32>(p[b + 4u]);
    let size = i32(p[b + 5u]);
    switch p[b + 6u] {{
      case 1u: {{ if (s < 0 || s >= size) {{ inside = false; s = 0; }} }}
      case 2u: {{
        let period = max(2 * (size - 1), 1);
        s = ((s % period) + period) % period;
        if (s >= size) {{ s = period - s; }}
      }}
      case 3u: {{ s = clamp(s, 0, size - 1); }}
      case 4u: {{ s = ((s % size) + size) % size; }}
      default: {{}}
    }}
    from_place += u32(s) * p[b + 1u];
    to_place += c * p[b + 2u];
  }}
  if (inside) {{ y[to_place] = x[from_place]; }} else {{ y[to_place] = {fill}; }}
}}"
    )
}

/// The unit of a copy that does not interpret its elements.
#[derive(Clone, Copy)]
pub(crate) enum CopyUnit {
    /// 32 bits.
    Single,
    /// 64 bits.
    Double,
    /// A half that is the device's own.
    Half,
}

impl CopyUnit {
    fn name(self) -> &'static str {
        match self {
            Self::Single => "u32",
            Self::Double => "vec2<u32>",
            Self::Half => "f16",
        }
    }
}

/// `y[i] = x[places[i]]` in runs of `p[1]` words; a place below 0 gives the fill `p[2]`.
pub(crate) fn take_kernel(word: CopyUnit) -> String {
    let name = word.name();
    let arrays = bindings(&[("x", name), ("places", "i32"), ("y", name)], 1);
    let prelude = prelude(&arrays);
    format!(
        r"{prelude}{arrays}{BY_THREAD}
  let place = places[i / p[1]];
  if (place < 0) {{ y[i] = {name}(p[2]); }} else {{ y[i] = x[u32(place) * p[1] + i % p[1]]; }}
}}"
    )
}

/// Copies runs of `p[1]` words from `x` to `y`. `places` has the offset of each run in `y`, in
/// multiples of `p[1]`; the kernel skips a run whose offset is negative.
pub(crate) fn put_kernel(word: CopyUnit) -> String {
    let name = word.name();
    let arrays = bindings(&[("x", name), ("places", "i32"), ("y", name)], 1);
    let prelude = prelude(&arrays);
    format!(
        r"{prelude}{arrays}{BY_THREAD}
  let place = places[i / p[1]];
  if (place >= 0) {{ y[u32(place) * p[1] + i % p[1]] = x[i]; }}
}}"
    )
}

/// Combines updates with elements: one thread for each element that has updates applies them in
/// their order.
///
/// Sizes: count, words of an update. `places` has the offsets that have updates, in multiples of
/// `p[1]`. The updates of offset `k` are `order[starts[k]..starts[k + 1]]`.
pub(crate) fn combine_kernel(element: &str, combine: &str) -> String {
    let arrays = bindings(
        &[
            ("x", element),
            ("places", "i32"),
            ("starts", "i32"),
            ("order", "i32"),
            ("y", element),
        ],
        1,
    );
    let prelude = prelude(&arrays);
    format!(
        r"{prelude}{arrays}{BY_THREAD}
  let own = i / p[1];
  let at = u32(places[own]) * p[1] + i % p[1];
  var a = y[at];
  for (var k = starts[own]; k < starts[own + 1u]; k++) {{
    let b = x[u32(order[k]) * p[1] + i % p[1]];
    a = {combine};
  }}
  y[at] = a;
}}"
    )
}

/// Reduces the middle one of three dimensions. Sizes: count, the middle dimension, the last one.
/// The expressions are the initial value, `pre` of `v`, `combine` of `a` and `b`, and `post` of `a`
/// and `n`. A group or a thread computes each result.
pub(crate) fn reduce(numbers: KernelTypes, expressions: [&str; 4], grouped: bool) -> String {
    let arrays = numbers.array_bindings();
    let prelude = prelude(&arrays);
    let [init, pre, combine, post] = expressions;
    let number = numbers.number;
    let each = numbers.read("x[start + r * p[2]]");
    let functions = format!(
        r"
fn pre(v: {number}) -> {number} {{ return {pre}; }}
fn combine(a: {number}, b: {number}) -> {number} {{ return {combine}; }}
fn post(a: {number}, n: {number}) -> {number} {{ return {post}; }}
"
    );
    if grouped {
        let (entry, gather) = (by_group(number), group_reduction("combine(a, b)"));
        let made = numbers.store_expression(&format!("post(t[0], {number}(p[1]))"));
        return format!(
            r"{prelude}{arrays}{functions}{entry}
  let start = (g / p[2]) * p[1] * p[2] + g % p[2];
  var sum = {number}({init});
  for (var r = l; r < p[1]; r += 64u) {{ sum = combine(sum, pre({each})); }}
  t[l] = sum;
  {gather}
  if (l == 0u) {{ y[g] = {made}; }}
}}"
        );
    }
    let made = numbers.store_expression(&format!("post(sum, {number}(p[1]))"));
    format!(
        r"{prelude}{arrays}{functions}{BY_THREAD}
  let start = (i / p[2]) * p[1] * p[2] + i % p[2];
  var sum = {number}({init});
  for (var r = 0u; r < p[1]; r++) {{ sum = combine(sum, pre({each})); }}
  y[i] = {made};
}}"
    )
}

/// Returns the kernel that computes softmax over the middle dimension, its logarithm, or only the
/// logarithm of the sum.
pub(crate) fn softmax_kernel(numbers: KernelTypes, kind: Softmax) -> String {
    let arrays = numbers.array_bindings();
    let (prelude, entry) = (prelude(&arrays), by_group(numbers.number));
    let (largest, sum) = (group_reduction("larger(a, b)"), group_reduction("a + b"));
    let (x, number) = (numbers.read("x[start + r * p[2]]"), numbers.number);
    let made = |expression: &str| numbers.store_expression(expression);
    let each = match kind {
        Softmax::Plain => made(&format!("exp({x} - top) / sum")),
        Softmax::Log => made(&format!("({x} - top) - log(sum)")),
        Softmax::LogSum => String::new(),
    };
    let last = match kind {
        Softmax::LogSum => {
            format!("if (l == 0u) {{ y[g] = {}; }}", made("top + log(sum)"))
        }
        _ => format!("for (var r = l; r < p[1]; r += 64u) {{ y[start + r * p[2]] = {each}; }}"),
    };
    // The largest can be infinite: then it is not taken off, as the definition has it.
    let guard = match kind {
        Softmax::LogSum => "if (is_inf(top)) { top = 0.0; }",
        _ => "",
    };
    format!(
        r"{prelude}{arrays}{entry}
  let start = (g / p[2]) * p[1] * p[2] + g % p[2];
  var v = -infinity();
  for (var r = l; r < p[1]; r += 64u) {{ v = larger(v, {x}); }}
  t[l] = v;
  {largest}
  var top = t[0];
  workgroupBarrier();
  {guard}
  v = {number}(0.0);
  for (var r = l; r < p[1]; r += 64u) {{ v += exp({x} - top); }}
  t[l] = v;
  {sum}
  let sum = t[0];
  {last}
}}"
    )
}

/// The function of the exponentials of a row.
#[derive(Clone, Copy)]
pub(crate) enum Softmax {
    Plain,
    Log,
    LogSum,
}

/// Returns the kernel that normalises rows to mean 0 (if `p[3]` is set) and variance 1, then scales
/// and shifts them.
///
/// Sizes: rows, row length, epsilon, whether to subtract the mean, then for scale and shift how
/// many elements share one and how many there are. The kernel stores the mean and the inverse
/// deviation.
pub(crate) fn normalise_kernel(numbers: KernelTypes) -> String {
    let arrays = bindings(
        &[
            ("x", numbers.read),
            ("scale", "f32"),
            ("shift", "f32"),
            ("y", numbers.written),
            ("means", "f32"),
            ("inverses", "f32"),
        ],
        3,
    );
    let (sum, entry) = (group_reduction("a + b"), by_group("f32"));
    let (prelude, x) = (prelude(&arrays), numbers.read("x[start + r]"));
    let made = format!("({x} - mean) * inverse * scale[at] + shift[at]");
    let made = numbers.store_expression(&made);
    format!(
        r"{prelude}{arrays}{entry}
  let start = g * p[1];
  var v = 0.0;
  var mean = 0.0;
  if (p[3] != 0u) {{
    for (var r = l; r < p[1]; r += 64u) {{ v += {x}; }}
    t[l] = v;
    {sum}
    mean = t[0] / f32(p[1]);
    workgroupBarrier();
  }}
  v = 0.0;
  for (var r = l; r < p[1]; r += 64u) {{ let d = {x} - mean; v += d * d; }}
  t[l] = v;
  {sum}
  let inverse = 1.0 / sqrt(t[0] / f32(p[1]) + f(2u));
  for (var r = l; r < p[1]; r += 64u) {{
    let at = ((start + r) / p[4]) % p[5];
    y[start + r] = {made};
  }}
  if (l == 0u) {{ means[g] = mean; inverses[g] = inverse; }}
}}"
    )
}

/// Returns the kernel that finds the index of the largest element along the middle dimension (the
/// smallest if `p[4]` is set); of equal ones the first (the last if `p[3]` is set).
pub(crate) fn place_of_extreme(numbers: KernelTypes) -> String {
    let arrays = numbers.array_bindings();
    let prelude = prelude(&arrays);
    let (first, each) = (
        numbers.read("x[start]"),
        numbers.read("x[start + r * p[2]]"),
    );
    format!(
        r"{prelude}{arrays}{BY_THREAD}
  let start = (i / p[2]) * p[1] * p[2] + i % p[2];
  var best = {first};
  var place = 0u;
  for (var r = 1u; r < p[1]; r++) {{
    let v = {each};
    let beats = select(v > best, v < best, p[4] != 0u);
    if (beats || (p[3] != 0u && v == best)) {{ best = v; place = r; }}
  }}
  y[i] = i32(place);
}}"
    )
}

/// Returns the kernel that finds the `p[3]` first elements in order along the middle dimension, the
/// largest first if `p[4]` is set. Each element counts those before it, and writes itself at that
/// place if it is one of the first. NaN counts as larger than any number.
pub(crate) fn top_kernel(numbers: KernelTypes) -> String {
    let names = [
        ("x", numbers.read),
        ("y", numbers.written),
        ("places", "i32"),
    ];
    let arrays = bindings(&names, 2);
    let prelude = prelude(&arrays);
    let number = numbers.number;
    let is_none = match number {
        "f32" | "f64" => "is_nan(v)",
        _ => "false",
    };
    let (own, each) = (numbers.read("x[i]"), numbers.read("x[start + r * p[2]]"));
    let made = numbers.store_expression("v");
    format!(
        r"{prelude}{arrays}
fn is_none(v: {number}) -> bool {{ return {is_none}; }}
{BY_THREAD}
  let own = (i / p[2]) % p[1];
  let lane = i / (p[1] * p[2]);
  let start = lane * p[1] * p[2] + i % p[2];
  let v = {own};
  var before = 0u;
  for (var r = 0u; r < p[1]; r++) {{
    let other = {each};
    let above = other > v || (is_none(other) && !is_none(v));
    let below = other < v || (is_none(v) && !is_none(other));
    if (select(below, above, p[4] != 0u) || (!above && !below && r < own)) {{ before++; }}
  }}
  if (before < p[3]) {{
    let at = lane * p[3] * p[2] + before * p[2] + i % p[2];
    y[at] = {made};
    places[at] = i32(own);
  }}
}}"
    )
}

/// Rotary positions: sizes are count, heads, length, width, rotated width, whether pairs are
/// interleaved, and whether heads come before positions.
pub(crate) fn rotate_kernel(numbers: KernelTypes) -> String {
    let arrays = bindings(
        &[
            ("x", numbers.read),
            ("cosines", "f32"),
            ("sines", "f32"),
            ("y", numbers.written),
        ],
        1,
    );
    let prelude = prelude(&arrays);
    let (own, other) = (numbers.read("x[i]"), numbers.read("x[other]"));
    let made = |expression: String| numbers.store_expression(&expression);
    let same = made(own.clone());
    let first = made(format!("{own} * cosines[at] - {other} * sines[at]"));
    let second = made(format!("{other} * sines[at] + {own} * cosines[at]"));
    format!(
        r"{prelude}{arrays}{BY_THREAD}
  let width = p[3];
  let c = i % width;
  let half = p[4] / 2u;
  if (c >= p[4]) {{ y[i] = {same}; return; }}
  var position = (i / (width * p[1])) % p[2];
  if (p[6] != 0u) {{ position = (i / width) % p[2]; }}
  let sample = i / (width * p[1] * p[2]);
  var angle = c % half;
  var first = c < half;
  var other = select(i - half, i + half, first);
  if (p[5] != 0u) {{
    angle = c / 2u;
    first = c % 2u == 0u;
    other = select(i - 1u, i + 1u, first);
  }}
  let at = (sample * p[2] + position) * half + angle;
  if (first) {{ y[i] = {first}; }}
  else {{ y[i] = {second}; }}
}}"
    )
}
