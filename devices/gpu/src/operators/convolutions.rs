//! Records the kernels of `Conv` and `ConvTranspose`. A convolution is a product whose right
//! operand the kernel reads from the image through the window, so our kernel unfolds nothing in
//! memory. Thin groups and transposed convolutions take a thread for each element. The card maker's
//! library is tried first where the driver has one.

use souk_memory::DType;
use souk_reference::call::KernelError;
use souk_reference::conv::{TransposedWindow, Window};

use crate::error::GpuError;
use crate::numbers::packed::{Halves, packing_functions, read, store_expression, word_type};
use crate::numbers::quarters::Rounding;
#[cfg(feature = "cuda")]
use crate::operators::products::library::library_conv;
use crate::operators::products::{tile_grid, tile_rows, tiled_kernel_source};
use crate::operators::unfolding::TAP;
use crate::recording::{Array, Epilogue, Groups, Step, to_word};
use crate::shaders::{BY_THREAD, bindings, prelude};

/// Spatial dimensions the kernels know; fewer are padded with ones.
const SPACE: usize = 3;
/// With fewer output channels to a group than this a tile would be mostly empty.
const TILED_CHANNELS_MIN: usize = 8;

/// Returns the sizes of three spatial dimensions: the given ones, padded in front with `fill`.
pub(crate) fn spatial_sizes(sizes: &[usize], fill: usize) -> Result<[usize; SPACE], KernelError> {
    let mut all = [fill; SPACE];
    let missing = SPACE
        .checked_sub(sizes.len())
        .ok_or(KernelError::Range(0))?;
    all[missing..].copy_from_slice(sizes);
    Ok(all)
}

/// Returns the sizes of a window in the order in which kernels read them: input, kernel, output,
/// strides, dilations and padding before, three of each.
pub(crate) fn window_sizes(window: &Window, input: &[usize]) -> Result<Vec<usize>, KernelError> {
    let lists = [
        (input, 1),
        (&window.kernel[..], 1),
        (&window.output[..], 1),
        (&window.strides[..], 1),
        (&window.dilations[..], 1),
        (&window.before[..], 0),
    ];
    let mut sizes = Vec::with_capacity(lists.len() * SPACE);
    for (list, fill) in lists {
        sizes.extend(spatial_sizes(list, fill)?);
    }
    Ok(sizes)
}

/// The types of a convolution.
#[derive(Clone, Copy)]
struct ConvolutionTypes {
    halves: Halves,
    input: DType,
    weights: DType,
    made: DType,
}

impl ConvolutionTypes {
    fn weight_expression(self, at: &str) -> String {
        read(self.weights, self.halves, "weights", at)
    }

    fn element_expression(self, at: &str) -> String {
        read(self.input, self.halves, "x", at)
    }
}

/// Records `Conv` over one to three spatial dimensions.
pub(crate) fn conv(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (input, weights) = (step.native_array(0)?, step.stored_array(1)?);
    let bias = step.optional_wide(2)?;
    let mismatch = || KernelError::Shapes(input.dims.clone(), weights.dims.clone());
    let (&[samples, channels, ref spatial @ ..], &[filters, each, ref kernel @ ..]) =
        (&input.dims[..], &weights.dims[..])
    else {
        return Err(mismatch().into());
    };
    let groups = step.call.int_attribute("group", 1).max(1) as usize;
    if channels != each * groups || !filters.is_multiple_of(groups) {
        return Err(mismatch().into());
    }
    if bias.as_ref().is_some_and(|bias| bias.dims != [filters]) {
        return Err(KernelError::Range(2).into());
    }
    let window = Window::read(&step.call, kernel.to_vec(), spatial)?;
    let dims = [&[samples, filters], &window.output[..]].concat();
    let taps: usize = kernel.iter().product();
    let places: usize = window.output.iter().product();
    let own = filters / groups;
    let mut sizes = vec![own, places, each * taps, groups];
    sizes.extend(window_sizes(&window, spatial)?);
    sizes.extend([each, taps]);
    #[cfg(feature = "cuda")]
    if groups == 1 && own >= TILED_CHANNELS_MIN {
        let image = [&input, &weights];
        if let Some(result) = library_conv(step, image, bias.as_ref(), (&dims, &sizes))? {
            return Ok(vec![result]);
        }
    }
    let result = step.stream.allocate_array(step.output_dtype(), &dims)?;
    sizes.push(result.count());
    let halves = step.stream.context.half_support();
    let types = ConvolutionTypes {
        halves,
        input: input.dtype,
        weights: weights.dtype,
        made: result.dtype,
    };
    let of = |dtype| word_type(dtype, halves);
    let mut names = vec![("x", of(types.input)), ("weights", of(types.weights))];
    let mut arrays = vec![&input, &weights];
    if let Some(bias) = &bias {
        names.push(("bias", "f32"));
        arrays.push(bias);
    }
    names.push(("y", of(types.made)));
    arrays.push(&result);
    let arrays_text = bindings(&names, 1);
    let with_bias = bias.is_some();
    if own < TILED_CHANNELS_MIN {
        let source = conv_direct(&arrays_text, types, with_bias, step.epilogue);
        sizes[0] = result.count();
        sizes.push(own);
        step.record_kernel(&source, &sizes, &arrays, Groups::Threads(result.count()))?;
    } else {
        let source = tiled_kernel_source(
            &arrays_text,
            &conv_lines(types, with_bias, step.epilogue),
            tile_rows(own),
        );
        let groups = tile_grid(own, places, samples * groups);
        step.record_kernel(&source, &sizes, &arrays, groups)?;
    }
    Ok(vec![result])
}

/// A convolution's part of the tiled product; `z` counts samples and in them groups.
fn conv_lines(types: ConvolutionTypes, with_bias: bool, epilogue: &Epilogue) -> String {
    let functions = packing_functions(types.weights, Rounding::default());
    let weight = types.weight_expression("((z % p[3]) * p[0] + m) * p[2] + k");
    let bias = if with_bias {
        "bias[(z % p[3]) * p[0] + m]"
    } else {
        "0.0"
    };
    let (then, done) = epilogue.kernel_lines(&format!("sum + {bias}"));
    let done = store_expression(types.made, &done);
    let element =
        types.element_expression("(z * p[22] + k / p[23]) * (p[4] * p[5] * p[6]) + u32(at)");
    format!(
        r"{TAP}{functions}{then}
fn left(z: u32, m: u32, k: u32) -> f32 {{
  return {weight};
}}
fn right(z: u32, k: u32, n: u32) -> f32 {{
  let at = tap(k % p[23], n);
  if (at < 0) {{ return 0.0; }}
  return {element};
}}
fn done(z: u32, m: u32, n: u32, sum: f32) {{
  y[(z * p[0] + m) * p[1] + n] = {done};
}}"
    )
}

/// A thread for each element of the result: for depthwise and other thin groups.
fn conv_direct(
    arrays: &str,
    types: ConvolutionTypes,
    with_bias: bool,
    epilogue: &Epilogue,
) -> String {
    let functions = packing_functions(types.weights, Rounding::default());
    let at = "((group * p[25] + m) * p[22] + c) * p[23] + k";
    let weight = types.weight_expression(at);
    let bias = if with_bias {
        "bias[group * p[25] + m]"
    } else {
        "0.0"
    };
    let (then, done) = epilogue.kernel_lines(&format!("sum + {bias}"));
    let done = store_expression(types.made, &done);
    let element = types.element_expression("(z * p[22] + c) * (p[4] * p[5] * p[6]) + u32(at)");
    let prelude = prelude(arrays);
    format!(
        r"{prelude}{functions}{then}{arrays}{TAP}{BY_THREAD}
  let n = i % p[1];
  let m = (i / p[1]) % p[25];
  let z = i / (p[1] * p[25]);
  let group = z % p[3];
  var sum = 0.0;
  for (var k = 0u; k < p[23]; k++) {{
    let at = tap(k, n);
    if (at < 0) {{ continue; }}
    for (var c = 0u; c < p[22]; c++) {{
      sum += {weight}
        * {element};
    }}
  }}
  y[i] = {done};
}}"
    )
}

/// Records `ConvTranspose`. Each element of the result gathers the inputs that reach it.
pub(crate) fn conv_transpose(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (input, weights) = (step.native_array(0)?, step.stored_array(1)?);
    let bias = step.optional_wide(2)?;
    let mismatch = || KernelError::Shapes(input.dims.clone(), weights.dims.clone());
    let (&[samples, channels, ref spatial @ ..], &[from, own, ref kernel @ ..]) =
        (&input.dims[..], &weights.dims[..])
    else {
        return Err(mismatch().into());
    };
    let groups = step.call.int_attribute("group", 1).max(1) as usize;
    if channels != from || !channels.is_multiple_of(groups) || spatial.len() != kernel.len() {
        return Err(mismatch().into());
    }
    let spread = TransposedWindow::read(&step.call, kernel, spatial)?;
    let dims = [&[samples, own * groups], &spread.output[..]].concat();
    let result = step.stream.allocate_array(step.output_dtype(), &dims)?;
    let taps = kernel.iter().product();
    let places = spread.output.iter().product();
    let mut sizes = vec![result.count(), places, own, groups];
    let lists = [
        (spatial, 1),
        (kernel, 1),
        (&spread.output[..], 1),
        (&spread.strides[..], 1),
        (&spread.dilations[..], 1),
    ];
    for (list, fill) in lists {
        sizes.extend(spatial_sizes(list, fill)?);
    }
    let before: Vec<usize> = spread.before.iter().map(|&cut| to_word(cut)).collect();
    sizes.extend(spatial_sizes(&before, 0)?);
    sizes.extend([channels / groups, taps]);
    let types = ConvolutionTypes {
        halves: step.stream.context.half_support(),
        input: input.dtype,
        weights: weights.dtype,
        made: result.dtype,
    };
    let of = |dtype| word_type(dtype, types.halves);
    let mut names = vec![("x", of(types.input)), ("weights", of(types.weights))];
    let mut arrays = vec![&input, &weights];
    if let Some(bias) = &bias {
        names.push(("bias", "f32"));
        arrays.push(bias);
    }
    names.push(("y", of(types.made)));
    arrays.push(&result);
    let with = if bias.is_some() {
        "sum + bias[channel]"
    } else {
        "sum"
    };
    let (then, done) = step.epilogue.kernel_lines(with);
    let source = conv_transpose_source(types, &bindings(&names, 1), &then, &done);
    step.record_kernel(&source, &sizes, &arrays, Groups::Threads(result.count()))?;
    Ok(vec![result])
}

/// A transposed convolution, a thread for each element of the result.
fn conv_transpose_source(types: ConvolutionTypes, arrays: &str, then: &str, done: &str) -> String {
    let functions = packing_functions(types.weights, Rounding::default());
    let weight = types.weight_expression("(source * p[2] + channel % p[2]) * p[23] + k");
    let image = "(sample * p[22] * p[3] + source) * (p[4] * p[5] * p[6])";
    let element = types.element_expression(&format!("{image} + at"));
    let (prelude, done) = (prelude(arrays), store_expression(types.made, done));
    format!(
        r"{prelude}{functions}{then}{arrays}
fn reach(o: u32, cut: u32, k: u32, dilation: u32, stride: u32, size: u32) -> i32 {{
  let at = i32(o) + bitcast<i32>(cut) - i32(k * dilation);
  if (at < 0 || at % i32(stride) != 0 || at / i32(stride) >= i32(size)) {{ return -1; }}
  return at / i32(stride);
}}
{BY_THREAD}
  let n = i % p[1];
  let channel = (i / p[1]) % (p[2] * p[3]);
  let sample = i / (p[1] * p[2] * p[3]);
  let group = channel / p[2];
  let ox = n % p[12]; let oy = (n / p[12]) % p[11]; let oz = n / (p[12] * p[11]);
  var sum = 0.0;
  for (var k = 0u; k < p[23]; k++) {{
    let z_ = reach(oz, p[19], k / (p[9] * p[8]), p[16], p[13], p[4]);
    let y_ = reach(oy, p[20], (k / p[9]) % p[8], p[17], p[14], p[5]);
    let x_ = reach(ox, p[21], k % p[9], p[18], p[15], p[6]);
    if (z_ < 0 || y_ < 0 || x_ < 0) {{ continue; }}
    let at = (u32(z_) * p[5] + u32(y_)) * p[6] + u32(x_);
    for (var c = 0u; c < p[22]; c++) {{
      let source = group * p[22] + c;
      sum += {element} * {weight};
    }}
  }}
  y[i] = {done};
}}"
    )
}
