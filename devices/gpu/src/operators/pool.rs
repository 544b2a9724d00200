//! Records the kernels of `MaxPool`, `AveragePool`, `LpPool` and `LRN` (local response
//! normalisation, across channels).

use souk_memory::DType;
use souk_reference::call::KernelError;
use souk_reference::conv::Window;

use crate::error::GpuError;
use crate::numbers::packed::compute_dtype;
use crate::operators::convolutions::{spatial_sizes, window_sizes};
use crate::operators::elementwise::output_dtype;
use crate::recording::{Array, Groups, Step};
use crate::shaders::{BY_THREAD, KernelTypes, bindings, prelude};

/// Records `MaxPool`, `AveragePool` or `LpPool` over one to three spatial dimensions.
pub(crate) fn pool(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let &[samples, channels, ref spatial @ ..] = &input.dims[..] else {
        return Err(KernelError::Range(0).into());
    };
    let kernel = step.call.node.ints("kernel_shape");
    let kernel = kernel.ok_or(KernelError::Attribute("kernel_shape"))?;
    let size = |&size: &i64| usize::try_from(size);
    let kernel: Vec<usize> = kernel
        .iter()
        .map(size)
        .collect::<Result<_, _>>()
        .map_err(|_| KernelError::Attribute("kernel_shape"))?;
    let window = Window::read(&step.call, kernel, spatial)?;
    let dims = [&[samples, channels], &window.output[..]].concat();
    let result = step
        .stream
        .allocate_array(output_dtype(step, compute_dtype(input.dtype)), &dims)?;
    let numbers = input.numbers_to(&result);
    let power = step
        .call
        .float_attribute("p", step.call.int_attribute("p", 2) as f64) as f32;
    let padded = step.call.is_flag_set("count_include_pad");
    let mut sizes = vec![
        result.count(),
        window.output.iter().product(),
        power.to_bits() as usize,
        usize::from(padded),
    ];
    sizes.extend(window_sizes(&window, spatial)?);
    sizes.extend(spatial_sizes(&window.after, 0)?);
    let groups = Groups::Threads(result.count());
    if step.call.node.op_type() == "MaxPool" {
        let mut made = vec![result];
        if step.call.output_count() > 1 {
            made.push(step.stream.array_of_words(DType::I64, &dims)?);
        }
        sizes[3] = usize::from(step.call.is_flag_set("storage_order"));
        let source = max_pool_kernel(numbers, made.len() > 1);
        let arrays: Vec<&Array> = std::iter::once(&input).chain(&made).collect();
        step.record_kernel(&source, &sizes, &arrays, groups)?;
        return Ok(made);
    }
    let [init, each, last] = match step.call.node.op_type() {
        "AveragePool" => ["0.0", "sum + v", "sum / count"],
        _ => ["0.0", "sum + pow(abs(v), f(2u))", "pow(sum, 1.0 / f(2u))"],
    };
    let arrays = bindings(&[("x", numbers.read), ("y", numbers.written)], 1);
    let start = format!("var sum = {init};");
    let last = numbers.store_expression(last);
    let source = source(
        (&arrays, numbers),
        &start,
        &format!("sum = {each};"),
        &format!("y[i] = {last};"),
    );
    step.record_kernel(&source, &sizes, &[&input, &result], groups)?;
    Ok(vec![result])
}

/// Returns the kernel of `MaxPool`. If `has_places`, it also writes the index in the input of each
/// maximum, the first of equal ones, in row-major order or, if `p[3]` is not 0, in column-major
/// order. The maximum of a window that sees only padding is minus infinity, or the smallest 32-bit
/// integer.
fn max_pool_kernel(numbers: KernelTypes, has_places: bool) -> String {
    let names = [
        ("x", numbers.read),
        ("y", numbers.written),
        ("places", "i32"),
    ];
    let made = numbers.store_expression("sum");
    let (arrays, places) = match has_places {
        true => (bindings(&names, 2), "\n  places[i] = i32(plane + place);"),
        false => (bindings(&names[..2], 1), ""),
    };
    let (lowest, is_none) = match numbers.number {
        "f32" => ("-infinity()", "is_nan(v)"),
        _ => ("i32(0x80000000u)", "false"),
    };
    let start = format!("var sum = {lowest};\n  var place = 0u;\n  var is_first = true;");
    let each = format!(
        "if (is_first || v > sum || {is_none}) {{
            sum = v;
            is_first = false;
            place = (u32(z) * p[5] + u32(y_)) * p[6] + u32(x_);
            if (p[3] != 0u) {{ place = (u32(x_) * p[5] + u32(y_)) * p[4] + u32(z); }}
          }}"
    );
    source(
        (&arrays, numbers),
        &start,
        &each,
        &format!("y[i] = {made};{places}"),
    )
}

/// Returns a kernel in which each thread `i` goes over the window of one output element. It runs
/// `start`, then `each` for every input element `v` in the window, then `last`, which can read
/// `count`, the number of elements. The words of `p`, three for each size (depth, height, width): 0
/// the number of outputs, 1 the outputs of one channel, 2 the power (bits of a float), 3
/// `count_include_pad` or `storage_order`, 4 input, 7 kernel, 10 output, 13 strides, 16 dilations,
/// 19 padding before, 22 padding after.
fn source((arrays, numbers): (&str, KernelTypes), start: &str, each: &str, last: &str) -> String {
    let prelude = prelude(arrays);
    let element = numbers.read("x[plane + (u32(z) * p[5] + u32(y_)) * p[6] + u32(x_)]");
    format!(
        r"{prelude}{arrays}{BY_THREAD}
  let n = i % p[1];
  let plane = (i / p[1]) * (p[4] * p[5] * p[6]);
  let ox = n % p[12]; let oy = (n / p[12]) % p[11]; let oz = n / (p[12] * p[11]);
  {start}
  var count = 0.0;
  for (var kz = 0u; kz < p[7]; kz++) {{
    let z = i32(oz * p[13] + kz * p[16]) - i32(p[19]);
    if (z >= i32(p[4] + p[22])) {{ continue; }}
    for (var ky = 0u; ky < p[8]; ky++) {{
      let y_ = i32(oy * p[14] + ky * p[17]) - i32(p[20]);
      if (y_ >= i32(p[5] + p[23])) {{ continue; }}
      for (var kx = 0u; kx < p[9]; kx++) {{
        let x_ = i32(ox * p[15] + kx * p[18]) - i32(p[21]);
        if (x_ >= i32(p[6] + p[24])) {{ continue; }}
        let inside = z >= 0 && y_ >= 0 && x_ >= 0
          && z < i32(p[4]) && y_ < i32(p[5]) && x_ < i32(p[6]);
        if (inside || p[3] != 0u) {{ count += 1.0; }}
        if (inside) {{
          let v = {element};
          {each}
        }}
      }}
    }}
  }}
  {last}
}}"
    )
}

/// Records `LRN`: divides each element by `(bias + alpha / size * sum)^beta`, where `sum` is that
/// of the squares in the `size` neighbouring channels.
pub(crate) fn local_response(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let &[_, channels, ref spatial @ ..] = &input.dims[..] else {
        return Err(KernelError::Range(0).into());
    };
    let size = step.call.int_attribute("size", 1).max(1) as usize;
    let numbers = [("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)];
    let result = step
        .stream
        .allocate_array(step.output_dtype(), &input.dims)?;
    let mut sizes = vec![input.count(), spatial.iter().product(), channels, size];
    let bits =
        |(name, default)| (step.call.float_attribute(name, default) as f32).to_bits() as usize;
    sizes.extend(numbers.map(bits));
    let of = input.numbers_to(&result);
    let arrays = bindings(&[("x", of.read), ("y", of.written)], 1);
    let prelude = prelude(&arrays);
    let neighbour = of.read("x[u32(i32(i) + (c - channel) * i32(p[1]))]");
    let own = of.read("x[i]");
    let made = of.store_expression(&format!(
        "{own} / pow(f(6u) + f(4u) / f32(p[3]) * sum, f(5u))"
    ));
    let source = format!(
        r"{prelude}{arrays}{BY_THREAD}
  let channel = i32((i / p[1]) % p[2]);
  let first = max(channel - i32((p[3] - 1u) / 2u), 0);
  let last = min(channel + i32(p[3] / 2u), i32(p[2]) - 1);
  var sum = 0.0;
  for (var c = first; c <= last; c++) {{
    let v = {neighbour};
    sum += v * v;
  }}
  y[i] = {made};
}}"
    );
    let groups = Groups::Threads(input.count());
    step.record_kernel(&source, &sizes, &[&input, &result], groups)?;
    Ok(vec![result])
}
