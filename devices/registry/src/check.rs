//! Checks a device's results, so that souk finds a faulty driver before it offers the device for
//! sale.
//!
//! The module runs small operators of each kind on the device, twice with different values, and
//! compares the results with those of the CPU. A device that computes in fewer bits than requested
//! passes; a device that leaves memory unchanged, swaps rows or repeats its last answer does not.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use souk_cpu::Cpu;
use souk_memory::{DType, Tensor};
use souk_onnx::subgraph::{CompileError, Subgraph};
use souk_onnx::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, encode_model,
};
use souk_vocabulary::processor::{Processor, Program, WorkError};
use thiserror::Error;

/// The operator set of the checks.
const OPSET: i64 = 17;
/// A device's result must not differ from the CPU's by more than this part of its largest element.
/// Processors that compute 32-bit floats with 8 bits of mantissa stay below it in sums this short.
const TOLERANCE: f64 = 0.03;
/// Names of a check's inputs.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// An operator, the sizes of its inputs and those of its output.
type Check = (&'static str, &'static [&'static [usize]], &'static [usize]);

const CHECKS: [Check; 13] = [
    ("Add", &[&[7, 33], &[33]], &[7, 33]),
    ("Mul", &[&[5, 1, 9], &[5, 11, 9]], &[5, 11, 9]),
    ("Exp", &[&[3, 67]], &[3, 67]),
    ("Tanh", &[&[130]], &[130]),
    ("Relu", &[&[4, 65]], &[4, 65]),
    ("MatMul", &[&[33, 65], &[65, 47]], &[33, 47]),
    ("Gemm", &[&[9, 40], &[40, 17], &[17]], &[9, 17]),
    ("Conv", &[&[2, 3, 19, 17], &[8, 3, 3, 3]], &[2, 8, 17, 15]),
    ("GlobalAveragePool", &[&[2, 5, 9, 9]], &[2, 5, 1, 1]),
    ("Softmax", &[&[6, 101]], &[6, 101]),
    ("LayerNormalization", &[&[6, 48], &[48], &[48]], &[6, 48]),
    ("ReduceMean", &[&[11, 13]], &[1, 1]),
    ("Transpose", &[&[12, 35]], &[35, 12]),
];

/// Reasons why a device does not pass.
#[derive(Debug, Error)]
pub enum CheckError {
    /// The device computes a different result.
    #[error(
        "{device}: its driver computes {operator} wrongly (element {element} is {found}, and the \
         CPU has {expected}): use another driver, or leave the device out"
    )]
    Wrong {
        /// Model of the device.
        device: String,
        /// Operator type.
        operator: &'static str,
        /// Index of the element with the largest error, in row-major order.
        element: usize,
        /// The device's value of that element.
        found: f64,
        /// The CPU's value of that element.
        expected: f64,
    },
    /// The device returns a tensor of another shape or type.
    #[error("{device}: its driver returns {found} for {operator}, but {expected} was requested")]
    Other {
        /// Model of the device.
        device: String,
        /// Operator type.
        operator: &'static str,
        /// Type and shape from the device.
        found: String,
        /// Type and shape of the correct result.
        expected: String,
    },
    /// The device fails on an operator that it supports.
    #[error("{device}: {operator} fails when it is tried: {cause}")]
    Failed {
        /// Model of the device.
        device: String,
        /// Operator type.
        operator: &'static str,
        /// Reason for the failure.
        cause: Box<WorkError>,
    },
}

/// Checks a device; skips operators that it does not have. A device that fails should not be sold.
///
/// # Errors
/// [`CheckError`] for the first operator with a different result than on the CPU.
pub fn check_device(device: &dyn Processor) -> Result<(), CheckError> {
    let cpu = Cpu::new(device.profile().clone(), NonZeroUsize::MIN);
    CHECKS
        .iter()
        .try_for_each(|each| check_operator(device, &cpu, each))
}

/// Checks a device as [`check_device`] does, with the error as text. You can use it to test a
/// device again that was lost in a run.
///
/// # Errors
/// See [`check_device`].
pub fn recheck_device(device: &dyn Processor) -> Result<(), String> {
    check_device(device).map_err(|error| error.to_string())
}

fn check_operator(device: &dyn Processor, cpu: &Cpu, each: &Check) -> Result<(), CheckError> {
    let (operator, sizes, _) = *each;
    let name = || device.profile().model.clone();
    let failed = |cause: WorkError| CheckError::Failed {
        device: name(),
        operator,
        cause: Box::new(cause),
    };
    let subgraph = operator_subgraph(each);
    let tried = match device.compile(&subgraph) {
        Ok(program) => program,
        Err(CompileError::Unsupported(_)) => return Ok(()),
        Err(error) => return Err(failed(error.into())),
    };
    let right = cpu
        .compile(&subgraph)
        .map_err(|error| failed(error.into()))?;
    for round in 0..2 {
        let inputs = generate_inputs(sizes, round);
        let run = |program: &dyn Program| {
            let outcome = program.run(&inputs).map_err(|error| failed(error.into()))?;
            let output = outcome.outputs.into_values().next();
            Ok(output.expect("the graph has an output"))
        };
        let (found, expected) = (run(&*tried)?, run(&*right)?);
        compare_tensors(name, operator, [&found, &expected])?;
    }
    Ok(())
}

fn compare_tensors(
    device: impl Fn() -> String,
    operator: &'static str,
    [found, expected]: [&Tensor; 2],
) -> Result<(), CheckError> {
    let what = |tensor: &Tensor| format!("{} {}", tensor.dtype(), tensor.shape());
    if what(found) != what(expected) {
        return Err(CheckError::Other {
            device: device(),
            operator,
            found: what(found),
            expected: what(expected),
        });
    }
    let values = |tensor: &Tensor| tensor.to_f64s().expect("32-bit floats are numbers");
    let (found, expected) = (values(found), values(expected));
    let largest = expected
        .iter()
        .fold(0.0, |most: f64, it| most.max(it.abs()));
    let pairs = found.into_iter().zip(expected).enumerate();
    // A result that is not a number counts as infinitely far off.
    let distance = |(found, expected): (f64, f64)| match (found - expected).abs() {
        distance if distance.is_nan() => f64::INFINITY,
        distance => distance,
    };
    let worst = pairs.max_by(|(_, one), (_, other)| distance(*one).total_cmp(&distance(*other)));
    match worst {
        Some((element, pair)) if distance(pair) > TOLERANCE * largest => Err(CheckError::Wrong {
            device: device(),
            operator,
            element,
            found: pair.0,
            expected: pair.1,
        }),
        _ => Ok(()),
    }
}

/// Returns values from -1 to 1, without a pattern that would hide a swap of rows or halves.
fn generate_inputs(sizes: &[&[usize]], round: usize) -> BTreeMap<String, Tensor> {
    let tensor = |(place, dims): (usize, &&[usize])| {
        let count = dims.iter().product::<usize>();
        let value = |index: usize| {
            let phase = 12.9898 * index as f64 + 78.233 * (place + 3 * round) as f64;
            phase.sin() as f32
        };
        Tensor::from_vec(dims.to_vec(), (0..count).map(value).collect())
            .expect("as many values as its sizes say")
    };
    let tensors = sizes.iter().enumerate().map(tensor);
    NAMES.map(str::to_owned).into_iter().zip(tensors).collect()
}

fn operator_subgraph(&(operator, inputs, output): &Check) -> Subgraph {
    let port = |name: &str, dims: &[usize]| {
        let dims = dims.iter().map(|&size| Dimension::new_fixed(size as i64));
        ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), Some(dims.collect()))
    };
    let ports = NAMES
        .iter()
        .zip(inputs)
        .map(|(name, dims)| port(name, dims));
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(OPSET),
        }],
        graph: Some(GraphProto {
            name: Some("check".to_owned()),
            node: vec![NodeProto::for_operator(
                operator,
                &NAMES[..inputs.len()],
                "y",
            )],
            input: ports.collect(),
            output: vec![port("y", output)],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    };
    Subgraph {
        model: encode_model(&model),
        weights: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests;
