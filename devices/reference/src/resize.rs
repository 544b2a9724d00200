//! Computes `Resize` and `Upsample`, which interpolate an image along one axis after another.

use souk_memory::Tensor;

use super::call::{Call, KernelError, Results, resolve_axes};
use super::layout::to_sizes;
use super::shape::split_at_axis;
use super::value::{from_floats, to_floats};

/// The resizing of one axis.
struct Axis {
    input: usize,
    output: usize,
    scale: f64,
    roi: (f64, f64),
}

/// The settings that apply to every axis.
struct ResizeSettings<'a> {
    mode: &'a str,
    nearest: &'a str,
    coordinates: &'a str,
    antialias: bool,
    exclude_outside: bool,
    cubic: f64,
    extrapolation: f64,
}

pub(super) fn upsample(call: &Call<'_>) -> Results {
    let scales = match call.optional_input(1) {
        Some(scales) => to_floats(scales)?,
        None => {
            let scales = call.node.floats("scales").ok_or(KernelError::Missing(1))?;
            scales.iter().map(|&scale| f64::from(scale)).collect()
        }
    };
    let input = call.input(0)?;
    let axis = |(&size, &scale): (&usize, &f64)| Axis {
        input: size,
        output: (size as f64 * scale) as usize,
        scale,
        roi: (0.0, 1.0),
    };
    let axes: Vec<Axis> = input.dims().iter().zip(&scales).map(axis).collect();
    let mode = if call.text_attribute("mode", "nearest") == "nearest" {
        "nearest"
    } else {
        "linear"
    };
    let method = ResizeSettings {
        mode,
        nearest: "floor",
        coordinates: "asymmetric",
        antialias: false,
        exclude_outside: false,
        cubic: -0.75,
        extrapolation: 0.0,
    };
    resize_axes(input, &axes, &method)
}

pub(super) fn resize(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let method = ResizeSettings {
        mode: call.text_attribute("mode", "nearest"),
        nearest: call.text_attribute("nearest_mode", "round_prefer_floor"),
        coordinates: call.text_attribute("coordinate_transformation_mode", "half_pixel"),
        antialias: call.is_flag_set("antialias"),
        exclude_outside: call.is_flag_set("exclude_outside"),
        cubic: call.float_attribute("cubic_coeff_a", -0.75),
        extrapolation: call.float_attribute("extrapolation_value", 0.0),
    };
    resize_axes(input, &axes_of(call, input)?, &method)
}

fn axes_of(call: &Call<'_>, input: &Tensor) -> Result<Vec<Axis>, KernelError> {
    let rank = input.dims().len();
    let chosen = match call.node.ints("axes").filter(|it| !it.is_empty()) {
        Some(list) => resolve_axes(list, rank)?,
        None => (0..rank).collect(),
    };
    // Version 10 has no region of interest: scales are its second input.
    let first = usize::from(call.opset >= 11);
    let keep = |axis: usize| Axis {
        input: input.dims()[axis],
        output: input.dims()[axis],
        scale: 1.0,
        roi: (0.0, 1.0),
    };
    let mut result: Vec<Axis> = (0..rank).map(keep).collect();
    let filled = |index: usize| {
        call.optional_input(index)
            .filter(|it| it.shape().element_count() > 0)
    };
    if let Some(region) = filled(1).filter(|_| first == 1) {
        let region = to_floats(region)?;
        for (index, &axis) in chosen.iter().enumerate() {
            let pair = region.get(index).zip(region.get(index + chosen.len()));
            result[axis].roi = pair.map(|(&a, &b)| (a, b)).ok_or(KernelError::Range(1))?;
        }
    }
    if let Some(wanted) = filled(first + 2) {
        let wanted = to_sizes(&super::value::to_indices(wanted)?, first + 2)?;
        set_sizes(call, &mut result, &chosen, &wanted)?;
        return Ok(result);
    }
    let scales = to_floats(
        filled(first + 1)
            .or(filled(first))
            .ok_or(KernelError::Missing(2))?,
    )?;
    for (&axis, &scale) in chosen.iter().zip(&scales) {
        result[axis].scale = scale;
        result[axis].output = (result[axis].input as f64 * scale).floor() as usize;
    }
    Ok(result)
}

/// Sets the stated sizes, or the largest (smallest) of the same proportions within (around) them.
fn set_sizes(
    call: &Call<'_>,
    result: &mut [Axis],
    chosen: &[usize],
    wanted: &[usize],
) -> Result<(), KernelError> {
    if wanted.len() != chosen.len() {
        return Err(KernelError::Shapes(wanted.to_vec(), chosen.to_vec()));
    }
    let scale = |(&axis, &size): (&usize, &usize)| size as f64 / result[axis].input as f64;
    let scales = chosen.iter().zip(wanted).map(scale);
    let common = match call.text_attribute("keep_aspect_ratio_policy", "stretch") {
        "not_larger" => Some(scales.fold(f64::INFINITY, f64::min)),
        "not_smaller" => Some(scales.fold(0.0, f64::max)),
        _ => None,
    };
    for (&axis, &size) in chosen.iter().zip(wanted) {
        let own = &mut result[axis];
        own.scale = common.unwrap_or(size as f64 / own.input as f64);
        own.output = match common {
            Some(scale) => (scale * own.input as f64 + 0.5).floor() as usize,
            None => size,
        };
    }
    Ok(())
}

fn resize_axes(input: &Tensor, axes: &[Axis], method: &ResizeSettings<'_>) -> Results {
    let mut dims = input.dims().to_vec();
    let mut values = to_floats(input)?;
    for (index, axis) in axes.iter().enumerate() {
        let crop = method.coordinates == "tf_crop_and_resize" && axis.roi != (0.0, 1.0);
        if axis.input == axis.output && axis.scale == 1.0 && !crop {
            continue;
        }
        if axis.input == 0 {
            return Err(KernelError::Range(0));
        }
        let (outer, size, inner) = split_at_axis(&dims, index);
        dims[index] = axis.output;
        let mut next = vec![0.0; super::shape::element_count(&dims)?];
        for at in 0..axis.output {
            let taps = axis.weighted_taps(at, method);
            for block in 0..outer {
                for offset in 0..inner {
                    let target = (block * axis.output + at) * inner + offset;
                    next[target] = match &taps {
                        None => method.extrapolation,
                        Some(taps) => taps
                            .iter()
                            .map(|(from, by)| values[(block * size + from) * inner + offset] * by)
                            .sum(),
                    };
                }
            }
        }
        values = next;
    }
    if !input.dtype().is_float() {
        // Integers are rounded as in the ONNX project's evaluator, and saturate.
        let rounded = values
            .into_iter()
            .map(|value| super::quantize::clamp_to_type(input.dtype(), value.round_ties_even()));
        let rounded = rounded.collect();
        return Ok(vec![super::value::from_ints(
            input.dtype(),
            &dims,
            rounded,
        )?]);
    }
    Ok(vec![from_floats(input.dtype(), &dims, values)?])
}

impl Axis {
    /// Returns the input coordinate of an output index.
    fn source(&self, at: usize, method: &ResizeSettings<'_>) -> f64 {
        let (at, input) = (at as f64, self.input as f64);
        let output = self.scale * input;
        match method.coordinates {
            "align_corners" if output == 1.0 => 0.0,
            "align_corners" => at * (input - 1.0) / (output - 1.0),
            "asymmetric" => at / self.scale,
            // Only version 11 defines this, but exporters still write it.
            "tf_half_pixel_for_nn" => (at + 0.5) / self.scale,
            "tf_crop_and_resize" => {
                let (start, end) = self.roi;
                let along = if output == 1.0 {
                    (end - start) * (input - 1.0) / 2.0
                } else {
                    at * (end - start) * (input - 1.0) / (output - 1.0)
                };
                along + start * (input - 1.0)
            }
            // The specification says so; the ONNX project's evaluator places it outside, at -0.5.
            "pytorch_half_pixel" if self.output == 1 => 0.0,
            "half_pixel_symmetric" => {
                let shift = input / 2.0 * (1.0 - self.output as f64 / output);
                shift + (at + 0.5) / self.scale - 0.5
            }
            _ => (at + 0.5) / self.scale - 0.5,
        }
    }

    /// Returns the input indices and weights for an output index; `None` if it lies beyond the
    /// input.
    fn weighted_taps(&self, at: usize, method: &ResizeSettings<'_>) -> Option<Vec<(usize, f64)>> {
        let source = self.source(at, method);
        let last = self.input as f64 - 1.0;
        let crop = method.coordinates == "tf_crop_and_resize";
        if crop && (source < 0.0 || source > last) {
            return None;
        }
        if method.mode == "nearest" {
            let near = match method.nearest {
                "floor" => source.floor(),
                "ceil" => source.ceil(),
                "round_prefer_ceil" => (source + 0.5).floor(),
                _ => (source - 0.5).ceil(),
            };
            return Some(vec![(near.clamp(0.0, last) as usize, 1.0)]);
        }
        let mut weights = self.source_weights(source, method);
        if method.exclude_outside {
            let inside = |place: f64| (0.0..=last).contains(&place);
            weights.retain(|(place, _)| inside(*place));
        }
        let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
        let sum = if sum == 0.0 { 1.0 } else { sum };
        let clamp = |(place, by): (f64, f64)| (place.clamp(0.0, last) as usize, by / sum);
        Some(weights.into_iter().map(clamp).collect())
    }

    /// Returns the positions around `source`, perhaps outside the input, with their weights.
    fn source_weights(&self, source: f64, method: &ResizeSettings<'_>) -> Vec<(f64, f64)> {
        let shrink = if method.antialias {
            self.scale.min(1.0)
        } else {
            1.0
        };
        let reach = if method.mode == "cubic" { 2.0 } else { 1.0 } / shrink;
        let first = (source - reach).floor() as i64;
        let last = (source + reach).ceil() as i64;
        let weigh = |place: i64| {
            let distance = ((place as f64 - source) * shrink).abs();
            let weight = if method.mode == "cubic" {
                cubic_weight(distance, method.cubic)
            } else {
                (1.0 - distance).max(0.0)
            };
            (place as f64, weight)
        };
        (first..=last)
            .map(weigh)
            .filter(|(_, weight)| *weight != 0.0)
            .collect()
    }
}

/// Computes Keys' cubic convolution kernel.
pub(super) fn cubic_weight(x: f64, a: f64) -> f64 {
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use souk_memory::DType;
    use souk_onnx::{AttributeProto, NodeProto};

    use super::super::{Scope, run_nodes};
    use super::*;

    /// Attributes as `cases.txt` has them; texts where they are no numbers.
    fn attribute(name: &str, value: &str) -> AttributeProto {
        match (value.parse::<i64>(), value.parse::<f32>()) {
            (Ok(value), _) => AttributeProto::from_value(name, value),
            (_, Ok(value)) => AttributeProto::from_value(name, value),
            _ => AttributeProto::from_value(name, value),
        }
    }

    /// A resize as a line of `cases.txt` has it, and its input.
    fn case(line: &str) -> (NodeProto, Scope) {
        let mut words = line.split(' ');
        let x = match words.next() {
            Some("u8") => Tensor::from_vec([5], vec![10u8, 200, 30, 255, 0]),
            _ => Tensor::from_vec([5], vec![1f32, -2.0, 4.0, 0.5, 3.0]),
        };
        let region = Tensor::from_vec([2], vec![0.25f32, 1.125]).unwrap();
        let mut scope = Scope::from([("x".to_owned(), x.unwrap()), ("region".to_owned(), region)]);
        let mut node = NodeProto::for_operator("Resize", &["x", "region", "scale", "size"], "y");
        for word in words {
            match word.split_once('=').unwrap() {
                ("scale", value) => {
                    let scale = Tensor::from_vec([1], vec![value.parse::<f32>().unwrap()]);
                    scope.insert("scale".to_owned(), scale.unwrap());
                }
                ("size", value) => {
                    let size = Tensor::from_vec([1], vec![value.parse::<i64>().unwrap()]);
                    scope.insert("size".to_owned(), size.unwrap());
                }
                (name, value) => node.attribute.push(attribute(name, value)),
            }
        }
        (node, scope)
    }

    #[test]
    fn all_modes_are_as_the_onnx_project_evaluates_them() {
        let cases = include_str!("resize/cases.txt").lines();
        for line in cases.filter(|line| !line.starts_with('#')) {
            let (given, expected) = line.split_once(" > ").unwrap();
            let (node, mut scope) = case(given);
            run_nodes(&[node], &mut scope, 19).unwrap();
            let expected = expected.split(' ').map(|word| word.parse::<f64>().unwrap());
            let expected: Vec<f64> = expected.collect();
            let found = to_floats(&scope["y"]).unwrap();
            assert_eq!(found.len(), expected.len(), "{given}");
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() < 1e-5,
                    "{given}: {found}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn one_pixel_of_pytorch_is_the_first_as_the_text_says() {
        let line = "f32 mode=cubic coordinate_transformation_mode=pytorch_half_pixel size=1";
        let (node, mut scope) = case(line);
        run_nodes(&[node], &mut scope, 19).unwrap();
        assert_eq!(to_floats(&scope["y"]).unwrap(), [1.0]);
        assert_eq!(scope["y"].dtype(), DType::F32);
    }
}
