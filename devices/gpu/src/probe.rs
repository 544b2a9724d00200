//! Tests whether a device's own 16-bit floats behave as those of the CPU. WebGPU leaves small
//! values, rounding and overflow to drivers, so the compiler runs this test, which tries all 16-bit
//! floats, before it compiles the first graph that uses them.

use souk_memory::{DType, F16};

use crate::context::Context;
use crate::error::GpuError;
use crate::numbers::packed::Halves;
use crate::recording::{Groups, Stream};
use crate::shaders::{BY_THREAD, bindings, prelude};

/// Patterns of 16 bits.
const PATTERNS: usize = 1 << 16;

/// Returns `Halves::Own` if the device has 16-bit floats that give the CPU's bits, otherwise (also
/// after any failure) `Halves::Words`.
pub(crate) fn probe_halves(context: &Context) -> Halves {
    let is_right = || {
        has_exact_widening(context).and_then(|widens| Ok(widens && has_exact_rounding(context)?))
    };
    match context.driver().has_halves() && is_right().unwrap_or(false) {
        true => Halves::Own,
        false => Halves::Words,
    }
}

/// Whether the device widens each half to its exact value; a NaN can become any NaN.
fn has_exact_widening(context: &Context) -> Result<bool, GpuError> {
    let given: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let lines = "y[i] = f32(x[i]);";
    let found = run_probe(context, [DType::F16, DType::F32], lines, &given, PATTERNS)?;
    let same = |(bytes, bits): (&[u8], u16)| {
        let found = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let expected = F16(bits).to_f32();
        found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan())
    };
    Ok(found.chunks_exact(4).zip(0..=u16::MAX).all(same))
}

/// Whether each half, and the floats halfway to the next and on both sides of that, are rounded to
/// the nearest, of two as near to the even one.
fn has_exact_rounding(context: &Context) -> Result<bool, GpuError> {
    let about = |bits: u16| {
        let (own, next) = (F16(bits), F16(bits.wrapping_add(1)));
        let (own, next) = (own.to_f32(), next.to_f32());
        // A value beyond the largest is rounded as if one more half came after it.
        let next = if next.is_infinite() {
            65_536.0_f32.copysign(own)
        } else {
            next
        };
        let middle = own + (next - own) / 2.0;
        [own, middle.next_down(), middle, middle.next_up()]
    };
    let given: Vec<f32> = (0..=u16::MAX).flat_map(about).collect();
    let bytes: Vec<u8> = given.iter().flat_map(|value| value.to_le_bytes()).collect();
    let lines = "y[i] = f16(x[i]);";
    let found = run_probe(
        context,
        [DType::F32, DType::F16],
        lines,
        &bytes,
        given.len(),
    )?;
    let same = |(bytes, value): (&[u8], &f32)| {
        let found = F16(u16::from_le_bytes([bytes[0], bytes[1]]));
        let expected = F16::from_f32(*value);
        let is_none = |half: F16| half.to_f32().is_nan();
        found.0 == expected.0 || (is_none(found) && is_none(expected))
    };
    Ok(found.chunks_exact(2).zip(&given).all(same))
}

/// Runs a kernel over values, one thread per element, and returns its results.
fn run_probe(
    context: &Context,
    [from, to]: [DType; 2],
    lines: &str,
    given: &[u8],
    count: usize,
) -> Result<bytes::Bytes, GpuError> {
    let name = |dtype| if dtype == DType::F16 { "f16" } else { "f32" };
    let arrays = bindings(&[("x", name(from)), ("y", name(to))], 1);
    let prelude = prelude(&arrays);
    let source = format!("{prelude}{arrays}{BY_THREAD}  {lines}\n}}");
    let mut stream = Stream::new(context);
    let x = stream.upload_words(from, &[count], given)?;
    let y = stream.allocate_array(to, &[count])?;
    let groups = Groups::Threads(count);
    stream.record_dispatch(&source, &[count as u32], &[&x, &y], groups)?;
    stream.submit()?;
    let read = context.read(&[(y.buffer.get(), y.bytes())])?;
    Ok(read.into_iter().next().unwrap_or_default())
}
