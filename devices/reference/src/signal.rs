//! Computes Fourier transforms and the other operators of audio models: `DFT`, `STFT` and
//! `MelWeightMatrix`.

use std::f64::consts::PI;

use souk_memory::DType;

use super::call::{Call, KernelError, Results, resolve_axis};
use super::generate::stated_type;
use super::shape::{element_count, split_at_axis};
use super::value::{from_floats, to_floats};

/// A complex number.
#[derive(Clone, Copy, Default)]
struct Complex {
    real: f64,
    imaginary: f64,
}

/// Computes the discrete Fourier transform by its definition: `length` results of the first
/// `length` inputs; missing inputs are zero.
fn fourier_transform(line: &[Complex], length: usize, inverse: bool) -> Vec<Complex> {
    let turn = if inverse { 2.0 * PI } else { -2.0 * PI } / length as f64;
    let one = |frequency: usize| {
        let mut sum = Complex::default();
        for (at, value) in line.iter().take(length).enumerate() {
            let angle = turn * (frequency * at % length) as f64;
            let (sine, cosine) = angle.sin_cos();
            sum.real += value.real * cosine - value.imaginary * sine;
            sum.imaginary += value.real * sine + value.imaginary * cosine;
        }
        if inverse {
            sum.real /= length as f64;
            sum.imaginary /= length as f64;
        }
        sum
    };
    (0..length).map(one).collect()
}

pub(super) fn dft(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let rank = input.dims().len();
    let stated = if call.opset >= 20 {
        call.optional_scalar_int(2)?.unwrap_or(-2)
    } else {
        call.int_attribute("axis", 1)
    };
    let axis = resolve_axis(stated, rank)?;
    let (inverse, onesided) = (call.is_flag_set("inverse"), call.is_flag_set("onesided"));
    let parts = *input.dims().last().ok_or(KernelError::Range(0))?;
    if axis + 1 >= rank || !(parts == 1 || parts == 2) {
        return Err(KernelError::Range(0));
    }
    let signal = &input.dims()[..rank - 1];
    let (outer, size, inner) = split_at_axis(signal, axis);
    let length = match call.optional_scalar_int(1)? {
        Some(length) => usize::try_from(length).map_err(|_| KernelError::Range(1))?,
        None if inverse && onesided => 2 * (size.max(1) - 1),
        None => size,
    };
    let values = to_floats(input)?;
    let lines = Lines {
        values: &values,
        parts,
        size,
        inner,
    };
    let kept = if onesided && !inverse {
        length / 2 + 1
    } else {
        length
    };
    let parts_out = if onesided && inverse { 1 } else { 2 };
    let mut dims = input.dims().to_vec();
    (dims[axis], dims[rank - 1]) = (kept, parts_out);
    let mut results = vec![0.0; element_count(&dims)?];
    for lane in 0..outer * inner {
        let mut line = lines.read(lane);
        if onesided && inverse {
            mirror_spectrum(&mut line, length);
        }
        for (at, value) in fourier_transform(&line, length, inverse)
            .into_iter()
            .take(kept)
            .enumerate()
        {
            let place = ((lane / inner * kept + at) * inner + lane % inner) * parts_out;
            results[place] = value.real;
            if parts_out == 2 {
                results[place + 1] = value.imaginary;
            }
        }
    }
    Ok(vec![from_floats(input.dtype(), &dims, results)?])
}

/// Lines of complex numbers along an axis of interleaved values.
struct Lines<'a> {
    values: &'a [f64],
    parts: usize,
    size: usize,
    inner: usize,
}

impl Lines<'_> {
    fn read(&self, lane: usize) -> Vec<Complex> {
        let one = |at: usize| {
            let place = (lane / self.inner * self.size + at) * self.inner + lane % self.inner;
            let place = place * self.parts;
            let imaginary = if self.parts == 2 {
                self.values[place + 1]
            } else {
                0.0
            };
            Complex {
                real: self.values[place],
                imaginary,
            }
        };
        (0..self.size).map(one).collect()
    }
}

/// Completes a spectrum with the half that a real signal implies.
fn mirror_spectrum(line: &mut Vec<Complex>, length: usize) {
    line.resize(length / 2 + 1, Complex::default());
    for at in length / 2 + 1..length {
        let twin = line[length - at];
        line.push(Complex {
            real: twin.real,
            imaginary: -twin.imaginary,
        });
    }
}

/// Computes the Fourier transforms of overlapping frames of a signal.
pub(super) fn stft(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let (batch, length, parts) = match *input.dims() {
        [batch, length] => (batch, length, 1),
        [batch, length, parts] => (batch, length, parts),
        _ => return Err(KernelError::Range(0)),
    };
    let step = call
        .optional_scalar_int(1)?
        .ok_or(KernelError::Missing(1))?;
    let step = usize::try_from(step)
        .ok()
        .filter(|&step| step > 0)
        .ok_or(KernelError::Range(1))?;
    let window = call.optional_input(2).map(to_floats).transpose()?;
    let frame = match (call.optional_scalar_int(3)?, &window) {
        (Some(frame), _) => usize::try_from(frame).map_err(|_| KernelError::Range(3))?,
        (None, Some(window)) => window.len(),
        (None, None) => length,
    };
    if frame > length || frame == 0 || window.as_ref().is_some_and(|it| it.len() != frame) {
        return Err(KernelError::Range(3));
    }
    let frames = 1 + (length - frame) / step;
    let kept = if call.int_attribute("onesided", 1) != 0 {
        frame / 2 + 1
    } else {
        frame
    };
    let values = to_floats(input)?;
    let mut results = Vec::with_capacity(batch * frames * kept * 2);
    for sample in 0..batch {
        for number in 0..frames {
            let one = |at: usize| {
                let place = (sample * length + number * step + at) * parts;
                let weight = window.as_ref().map_or(1.0, |window| window[at]);
                let imaginary = if parts == 2 {
                    values[place + 1] * weight
                } else {
                    0.0
                };
                Complex {
                    real: values[place] * weight,
                    imaginary,
                }
            };
            let line: Vec<Complex> = (0..frame).map(one).collect();
            let spectrum = fourier_transform(&line, frame, false);
            results.extend(
                spectrum
                    .iter()
                    .take(kept)
                    .flat_map(|it| [it.real, it.imaginary]),
            );
        }
    }
    Ok(vec![from_floats(
        input.dtype(),
        &[batch, frames, kept, 2],
        results,
    )?])
}

/// Computes triangular filters, spaced evenly on the mel scale.
pub(super) fn mel_weights(call: &Call<'_>) -> Results {
    let number = |index| {
        call.optional_scalar_float(index)?
            .ok_or(KernelError::Missing(index))
    };
    let (bins, length, rate) = (number(0)?, number(1)?, number(2)?);
    let mel = |hertz: f64| 2595.0 * (hertz / 700.0).ln_1p() / std::f64::consts::LN_10;
    let (low, high) = (mel(number(3)?), mel(number(4)?));
    let bins = element_count(&[bins.max(0.0) as usize])?;
    let spectrum = (length as usize) / 2 + 1;
    let step = (high - low) / (bins + 2) as f64;
    let edge = |index: usize| {
        let mel = low + index as f64 * step;
        let hertz = 700.0 * (mel / 2595.0 * std::f64::consts::LN_10).exp_m1();
        ((length + 1.0) * hertz / rate).floor() as usize
    };
    let mut weights = vec![0.0; element_count(&[spectrum, bins])?];
    let mut set = |row: usize, column: usize, value: f64| {
        if row < spectrum {
            weights[row * bins + column] = value;
        }
    };
    for bin in 0..bins {
        let (left, centre, right) = (edge(bin), edge(bin + 1), edge(bin + 2));
        if left == centre {
            set(centre, bin, 1.0);
        } else {
            for row in left..=centre {
                set(row, bin, (row - left) as f64 / (centre - left) as f64);
            }
        }
        for row in centre..right {
            set(row, bin, (right - row) as f64 / (right - centre) as f64);
        }
    }
    let dtype = stated_type(call, "output_datatype")?.unwrap_or(DType::F32);
    Ok(vec![from_floats(dtype, &[spectrum, bins], weights)?])
}
