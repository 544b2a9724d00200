//! Measures a device operator by operator, for `souk device bench`: times each operator of a table
//! in several types and sizes, and collects the times in a [`Sheet`], which the device's owner can
//! sign and others can compare.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use souk_memory::{Bf16, DType, Element, F16, Tensor};
use souk_onnx::subgraph::{CompileError, Subgraph};
use souk_onnx::work::{Extent, Work};
use souk_onnx::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, encode_model,
    tensor_to_proto,
};
use souk_vocabulary::links::Link;
use souk_vocabulary::processor::{Processor, Program, RunError, WorkError};
use souk_vocabulary::profile::Profile;

use crate::copies::measure_links;

/// Version of the operator set of the table's nodes.
const OPSET: i64 = 23;
/// Time for each measurement, with at least [`RUNS_MIN`] runs.
const TIME_EACH: Duration = Duration::from_millis(60);
/// Time for each measurement of a quick table.
const TIME_EACH_QUICK: Duration = Duration::from_millis(15);
/// Least runs; the best counts.
const RUNS_MIN: usize = 3;

/// The timing of one operator at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Operator type.
    pub operator: String,
    /// Element type.
    pub dtype: DType,
    /// Shapes of the inputs.
    pub shapes: Vec<Vec<usize>>,
    /// Seconds of the fastest run.
    pub seconds: f64,
    /// Arithmetic operations per second.
    pub operations_per_second: f64,
    /// Bytes per second, of the least that must move.
    pub bytes_per_second: f64,
}

/// The measured times of a device's operators and links, which its owner can sign and others can
/// compare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sheet {
    /// Identity of the device and its driver; if it changes, the device must be measured again.
    pub key: String,
    /// Whether it covers only the smaller sizes.
    pub quick: bool,
    /// Time of the measurement, in seconds since 1970 by the owner's clock.
    pub measured_at: u64,
    /// Profile of the device, with measured memory bandwidth and launch time.
    pub profile: Profile,
    /// Times of operators. Each is that of a whole run, including the link to the device and back.
    pub rows: Vec<Row>,
    /// Times of copies between its memory and others; none if it works in the host's.
    #[serde(default)]
    pub links: Vec<Link>,
    /// Mean watts over the whole table; `None` if there is no meter.
    pub watts: Option<f64>,
    /// Seconds of the whole measurement, including the time to open and describe the device; `None`
    /// in sheets older than this field.
    #[serde(default)]
    pub seconds: Option<f64>,
}

impl Sheet {
    /// Measures a device identified by `key`, and its links to `others`. `measured_at` is the time
    /// of the measurement, and `begun` the instant at which the caller began to open the device.
    ///
    /// # Errors
    /// [`WorkError`] if the backend fails on an operator that it has.
    pub fn measure_device(
        device: &dyn Processor,
        others: &[&dyn Processor],
        key: String,
        quick: bool,
        measured_at: u64,
        begun: Instant,
    ) -> Result<Self, WorkError> {
        let (start, before) = (Instant::now(), device.meter_joules());
        let rows = time_operators(device, quick)?;
        let seconds = start.elapsed().as_secs_f64();
        let joules = before.zip(device.meter_joules());
        Ok(Self {
            links: measure_links(device, others, quick)?,
            key,
            quick,
            measured_at,
            profile: device.profile().clone(),
            rows,
            watts: joules.map(|(before, after)| (after - before) / seconds),
            seconds: Some(begun.elapsed().as_secs_f64()),
        })
    }
}

/// A quick sheet should take at most this many seconds, including the time to open the device.
pub const QUICK_SECONDS_MAX: f64 = 10.0;
/// One run should take at most this many seconds, as predicted from the next smaller size; the
/// table leaves out longer ones.
const RUN_SECONDS_MAX: f64 = 1.0;
/// The most seconds of one run in a quick table.
const RUN_SECONDS_MAX_QUICK: f64 = 0.04;
/// The most that time grows from one size to the next: products have four times the side.
const GROWTH: f64 = 64.0;

const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::Bf16];
const NUMBERS: &[DType] = &[
    DType::F32,
    DType::F64,
    DType::F16,
    DType::Bf16,
    DType::I32,
    DType::I64,
];

/// An operator with its element types, and its inputs' shapes in three sizes.
struct TimedOperator {
    operator: &'static str,
    dtypes: &'static [DType],
    sizes: [&'static [&'static [usize]]; 3],
}

/// The operators to time.
const TABLE: [TimedOperator; 10] = [
    TimedOperator {
        operator: "MatMul",
        dtypes: FLOATS,
        sizes: [
            &[&[64, 64], &[64, 64]],
            &[&[256, 256], &[256, 256]],
            &[&[1024, 1024], &[1024, 1024]],
        ],
    },
    TimedOperator {
        operator: "MatMulInteger",
        dtypes: &[DType::I8],
        sizes: [
            &[&[64, 64], &[64, 64]],
            &[&[256, 256], &[256, 256]],
            &[&[1024, 1024], &[1024, 1024]],
        ],
    },
    TimedOperator {
        operator: "Conv",
        dtypes: FLOATS,
        sizes: [
            &[&[1, 16, 14, 14], &[16, 16, 3, 3]],
            &[&[1, 32, 28, 28], &[64, 32, 3, 3]],
            &[&[1, 64, 56, 56], &[128, 64, 3, 3]],
        ],
    },
    TimedOperator {
        operator: "Attention",
        dtypes: FLOATS,
        sizes: [
            &[&[1, 2, 16, 32], &[1, 2, 16, 32], &[1, 2, 16, 32]],
            &[&[1, 4, 64, 64], &[1, 4, 64, 64], &[1, 4, 64, 64]],
            &[&[1, 8, 256, 64], &[1, 8, 256, 64], &[1, 8, 256, 64]],
        ],
    },
    TimedOperator {
        operator: "Add",
        dtypes: NUMBERS,
        sizes: [
            &[&[1 << 10], &[1 << 10]],
            &[&[1 << 16], &[1 << 16]],
            &[&[1 << 22], &[1 << 22]],
        ],
    },
    TimedOperator {
        operator: "Gelu",
        dtypes: FLOATS,
        sizes: [&[&[1 << 10]], &[&[1 << 16]], &[&[1 << 22]]],
    },
    TimedOperator {
        operator: "LayerNormalization",
        dtypes: FLOATS,
        sizes: [
            &[&[8, 128], &[128]],
            &[&[512, 128], &[128]],
            &[&[8192, 512], &[512]],
        ],
    },
    TimedOperator {
        operator: "Softmax",
        dtypes: FLOATS,
        sizes: [&[&[8, 128]], &[&[512, 128]], &[&[8192, 512]]],
    },
    TimedOperator {
        operator: "ReduceSum",
        dtypes: NUMBERS,
        sizes: [&[&[8, 128]], &[&[512, 128]], &[&[8192, 512]]],
    },
    TimedOperator {
        operator: "Transpose",
        dtypes: NUMBERS,
        sizes: [&[&[32, 32]], &[&[256, 256]], &[&[2048, 2048]]],
    },
];

/// Times each operator of the table in each of its types and sizes, except those that the device
/// does not have and those that would take long.
///
/// # Errors
/// [`WorkError`] if the backend fails on an operator that it has.
pub fn time_operators(device: &dyn Processor, quick: bool) -> Result<Vec<Row>, WorkError> {
    let (time, seconds_max) = match quick {
        true => (TIME_EACH_QUICK, RUN_SECONDS_MAX_QUICK),
        false => (TIME_EACH, RUN_SECONDS_MAX),
    };
    let mut rows = Vec::new();
    for timed in &TABLE {
        for &dtype in timed.dtypes {
            for shapes in timed.sizes {
                let Some((row, passed)) =
                    time_operator(device, timed.operator, dtype, shapes, time)?
                else {
                    break;
                };
                rows.push(row);
                if passed * GROWTH > seconds_max {
                    break;
                }
            }
        }
    }
    Ok(rows)
}

/// Returns one row, and the elapsed seconds of a run, which differ from the row's if the device is
/// emulated. Returns `None` if the device refuses the operator in this type.
fn time_operator(
    device: &dyn Processor,
    operator: &str,
    dtype: DType,
    shapes: &[&[usize]],
    time: Duration,
) -> Result<Option<(Row, f64)>, WorkError> {
    let names: Vec<String> = (0..shapes.len()).map(|index| format!("x{index}")).collect();
    let node = NodeProto {
        op_type: Some(operator.to_owned()),
        input: names.clone(),
        output: vec!["y".to_owned()],
        ..NodeProto::default()
    };
    let inputs: BTreeMap<String, Tensor> = names
        .into_iter()
        .zip(shapes)
        .map(|(name, dims)| (name, wave_tensor(dtype, dims)))
        .collect();
    let output = match operator {
        "MatMulInteger" => DType::I32,
        _ => dtype,
    };
    let subgraph = node_subgraph(&node, OPSET, &inputs, &BTreeMap::new(), &[output]);
    let program = match device.compile(&subgraph) {
        Ok(program) => program,
        // An external engine can report the types that it lacks only when it compiles.
        Err(CompileError::Unsupported(_) | CompileError::Engine { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let made = program.run(&inputs)?.outputs;
    let extent = |tensor| Extent {
        dtype: Tensor::dtype(tensor),
        dims: tensor.dims(),
    };
    let given: Vec<_> = inputs.values().map(|tensor| Some(extent(tensor))).collect();
    let results: Vec<_> = made.values().map(extent).collect();
    let work = Work::for_node(&node, &given, &results);
    let (seconds, passed) = fastest_run(&*program, &inputs, time)?;
    let bytes = work.bytes_read + work.bytes_written;
    let row = Row {
        operator: operator.to_owned(),
        dtype,
        shapes: shapes.iter().map(|dims| dims.to_vec()).collect(),
        seconds,
        operations_per_second: work.operations as f64 / seconds,
        bytes_per_second: bytes as f64 / seconds,
    };
    Ok(Some((row, passed)))
}

/// Returns values between -1 and 1, or for integers between -100 and 100, which repeat
/// periodically.
pub fn wave_tensor(dtype: DType, dims: &[usize]) -> Tensor {
    let wave: Vec<f64> = (0..PERIOD).map(|at| (at as f64 * 0.7).sin()).collect();
    match dtype {
        DType::F64 => repeat_values(dims, &wave, |it| it),
        DType::F16 => repeat_values(dims, &wave, |it| F16::from_f32(it as f32)),
        DType::Bf16 => repeat_values(dims, &wave, |it| Bf16::from_f32(it as f32)),
        DType::I8 => repeat_values(dims, &wave, |it| (it * 100.0) as i8),
        DType::I32 => repeat_values(dims, &wave, |it| (it * 100.0) as i32),
        DType::I64 => repeat_values(dims, &wave, |it| (it * 100.0) as i64),
        _ => repeat_values(dims, &wave, |it| it as f32),
    }
}

/// Period of the values; it must divide no timed size.
const PERIOD: usize = 1021;

fn repeat_values<T: Element>(dims: &[usize], values: &[f64], of: impl Fn(f64) -> T) -> Tensor {
    let each: Vec<T> = values.iter().map(|&value| of(value)).collect();
    let count = dims.iter().product();
    let all: Vec<T> = each.iter().copied().cycle().take(count).collect();
    Tensor::from_vec(dims, all).expect("as many values as the shape has")
}

/// Returns one node as a subgraph from its inputs to its outputs, with its weights inside.
#[must_use]
pub fn node_subgraph(
    node: &NodeProto,
    opset: i64,
    inputs: &BTreeMap<String, Tensor>,
    weights: &BTreeMap<String, Tensor>,
    outputs: &[DType],
) -> Subgraph {
    let input = |(name, tensor): (&String, &Tensor)| {
        let dims = tensor
            .dims()
            .iter()
            .map(|&size| Dimension::new_fixed(size as i64))
            .collect();
        ValueInfoProto::new_tensor(name.as_str(), tensor.dtype().onnx_code(), Some(dims))
    };
    let output = |(name, dtype): (&String, &DType)| {
        ValueInfoProto::new_tensor(name.as_str(), dtype.onnx_code(), None)
    };
    let named = node.output.iter().filter(|name| !name.is_empty());
    let model = ModelProto {
        ir_version: Some(10),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(opset),
        }],
        graph: Some(GraphProto {
            node: vec![node.clone()],
            name: Some("alone".to_owned()),
            input: inputs.iter().map(input).collect(),
            output: named.zip(outputs).map(output).collect(),
            initializer: weights
                .iter()
                .map(|(name, it)| tensor_to_proto(name.as_str(), it))
                .collect(),
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    };
    Subgraph {
        model: encode_model(&model),
        weights: BTreeMap::new(),
    }
}

/// Returns the seconds of the fastest run among as many as fit into `time`: by the device's
/// account, and by the clock.
fn fastest_run(
    program: &dyn Program,
    inputs: &BTreeMap<String, Tensor>,
    time: Duration,
) -> Result<(f64, f64), RunError> {
    let start = Instant::now();
    let (mut best, mut passed) = (f64::INFINITY, f64::INFINITY);
    let mut runs = 0;
    while runs < RUNS_MIN || start.elapsed() < time {
        let begun = Instant::now();
        best = best.min(program.run(inputs)?.busy.as_secs_f64());
        passed = passed.min(begun.elapsed().as_secs_f64());
        runs += 1;
    }
    Ok((best.max(1e-9), passed))
}

#[cfg(test)]
mod tests {
    use souk_cpu::Cpu;

    use super::*;

    /// The CPU that results are held against.
    fn cpu() -> Cpu {
        Cpu::new(souk_testing::cpu_profile(), std::num::NonZeroUsize::MIN)
    }

    #[test]
    fn a_quick_table_has_a_row_for_every_operator_and_type() {
        let rows = time_operators(&cpu(), true).unwrap();
        for timed in &TABLE {
            for &dtype in timed.dtypes {
                let of = |row: &&Row| row.operator == timed.operator && row.dtype == dtype;
                let found: Vec<&Row> = rows.iter().filter(of).collect();
                let name = format!("{} in {dtype}", timed.operator);
                assert!(!found.is_empty(), "{name}");
                for (row, shapes) in found.iter().zip(timed.sizes) {
                    assert_eq!(row.shapes, shapes, "{name}");
                    assert!(row.seconds > 0.0 && row.bytes_per_second > 0.0, "{name}");
                }
            }
        }
    }
}
