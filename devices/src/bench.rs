//! Times single operators on a device: a table over operators and sizes, and how well the cost
//! model foretells the operators of a real model.

mod accuracy;
mod links;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use souk_memory::{Bf16, DType, F16, Tensor};

use crate::cpu::WorkError;
use crate::onnx::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, encode,
    tensor_to_proto,
};
use crate::processor::{CompileError, Processor, Program, RunError, Subgraph};
use crate::profile::Profile;
use crate::work::{Extent, Work};
pub use accuracy::{Accuracy, Each, Errors, accuracy};
pub use links::{Link, links};

/// Version of the operator set the table's nodes are written in.
const OPSET: i64 = 21;
/// Time given to each measurement, with at least [`RUNS_MIN`] runs.
const TIME_EACH: Duration = Duration::from_millis(60);
/// The same for a quick table.
const TIME_EACH_QUICK: Duration = Duration::from_millis(15);
/// Fewest runs of which the best counts.
const RUNS_MIN: usize = 3;

/// One operator at one size, timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operator.
    pub operator: String,
    /// Element type.
    pub dtype: DType,
    /// Shapes of the inputs.
    pub shapes: Vec<Vec<usize>>,
    /// Seconds of the fastest run.
    pub seconds: f64,
    /// Arithmetic operations per second.
    pub operations_per_second: f64,
    /// Bytes that must move at least, per second.
    pub bytes_per_second: f64,
}

/// What a device was measured to do: what its owner signs and others may compare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sheet {
    /// The device and its driver: measured anew when this changes.
    pub key: String,
    /// Whether only the smaller sizes were timed.
    pub quick: bool,
    /// Seconds since 1970 when it was measured, by its owner's clock.
    pub measured_at: u64,
    /// The device, with memory bandwidth and launch overhead as measured.
    pub profile: Profile,
    /// Operators timed. A time is that of a whole run, the way to the device and back included.
    pub rows: Vec<Row>,
    /// Copies between its memory and others' timed; none where it works in the host's.
    #[serde(default)]
    pub links: Vec<Link>,
    /// Joules a second over the whole table; `None` where there is no meter.
    pub watts: Option<f64>,
}

impl Sheet {
    /// Measures a device that is called `key`, and its links with `others`.
    ///
    /// # Errors
    /// If the backend fails an operator it has.
    pub fn measure(
        device: &dyn Processor,
        others: &[&dyn Processor],
        key: String,
        quick: bool,
        measured_at: u64,
    ) -> Result<Self, WorkError> {
        let (start, before) = (Instant::now(), device.meter_joules());
        let rows = table(device, quick)?;
        let seconds = start.elapsed().as_secs_f64();
        let joules = before.zip(device.meter_joules());
        Ok(Self {
            links: links(device, others, quick)?,
            key,
            quick,
            measured_at,
            profile: device.profile().clone(),
            rows,
            watts: joules.map(|(before, after)| (after - before) / seconds),
        })
    }
}

/// Operators and the shapes of their inputs, in three sizes each.
const TABLE: [(&str, [&[&[usize]]; 3]); 7] = [
    (
        "MatMul",
        [
            &[&[64, 64], &[64, 64]],
            &[&[256, 256], &[256, 256]],
            &[&[1024, 1024], &[1024, 1024]],
        ],
    ),
    (
        "Conv",
        [
            &[&[1, 16, 14, 14], &[16, 16, 3, 3]],
            &[&[1, 32, 28, 28], &[64, 32, 3, 3]],
            &[&[1, 64, 56, 56], &[128, 64, 3, 3]],
        ],
    ),
    (
        "Add",
        [
            &[&[1 << 10], &[1 << 10]],
            &[&[1 << 16], &[1 << 16]],
            &[&[1 << 22], &[1 << 22]],
        ],
    ),
    ("Gelu", [&[&[1 << 10]], &[&[1 << 16]], &[&[1 << 22]]]),
    ("Softmax", [&[&[8, 128]], &[&[512, 128]], &[&[8192, 512]]]),
    ("ReduceSum", [&[&[8, 128]], &[&[512, 128]], &[&[8192, 512]]]),
    (
        "Transpose",
        [&[&[32, 32]], &[&[256, 256]], &[&[2048, 2048]]],
    ),
];

/// Times each operator of the table in 32-bit floats, and products in narrower and wider ones too;
/// what the device does not have is left out.
///
/// # Errors
/// If the backend fails an operator it has.
pub fn table(device: &dyn Processor, quick: bool) -> Result<Vec<Row>, WorkError> {
    let time = if quick { TIME_EACH_QUICK } else { TIME_EACH };
    let sizes = if quick { 2 } else { 3 };
    let mut rows = Vec::new();
    for (operator, shapes) in TABLE {
        for shapes in shapes.iter().take(sizes) {
            rows.extend(row(device, operator, DType::F32, shapes, time)?);
        }
    }
    for dtype in [DType::F64, DType::F16, DType::Bf16] {
        let shapes: &[&[usize]] = &[&[64, 64], &[64, 64]];
        rows.extend(row(device, "MatMul", dtype, shapes, time)?);
    }
    // Halves beside whole floats where they differ most: in what is computed, and what is moved.
    for (operator, shapes) in TABLE.iter().take(3) {
        rows.extend(row(device, operator, DType::F16, shapes[sizes - 1], time)?);
    }
    Ok(rows)
}

/// One row; `None` if the device refuses the operator in this type.
fn row(
    device: &dyn Processor,
    operator: &str,
    dtype: DType,
    shapes: &[&[usize]],
    time: Duration,
) -> Result<Option<Row>, WorkError> {
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
        .map(|(name, dims)| (name, waves(dtype, dims)))
        .collect();
    let subgraph = alone(&node, OPSET, &inputs, &BTreeMap::new(), &[dtype]);
    let program = match device.compile(&subgraph) {
        Ok(program) => program,
        // An engine of others says which types it lacks only when it compiles.
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
    let work = Work::of(&node, &given, &results);
    let seconds = best(&*program, &inputs, time)?;
    let bytes = work.bytes_read + work.bytes_written;
    Ok(Some(Row {
        operator: operator.to_owned(),
        dtype,
        shapes: shapes.iter().map(|dims| dims.to_vec()).collect(),
        seconds,
        operations_per_second: work.operations as f64 / seconds,
        bytes_per_second: bytes as f64 / seconds,
    }))
}

/// Values between -1 and 1.
fn waves(dtype: DType, dims: &[usize]) -> Tensor {
    let count = dims.iter().product();
    let wave = |index: usize| (index as f64 * 0.7).sin();
    let made = match dtype {
        DType::F64 => Tensor::from_vec(dims, (0..count).map(wave).collect::<Vec<f64>>()),
        DType::F16 => {
            let half = |it| F16::from_f32(wave(it) as f32);
            Tensor::from_vec(dims, (0..count).map(half).collect::<Vec<F16>>())
        }
        DType::Bf16 => {
            let half = |it| Bf16::from_f32(wave(it) as f32);
            Tensor::from_vec(dims, (0..count).map(half).collect::<Vec<Bf16>>())
        }
        _ => Tensor::from_vec(
            dims,
            (0..count).map(|it| wave(it) as f32).collect::<Vec<f32>>(),
        ),
    };
    made.expect("as many values as the shape has")
}

fn alone(
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
            .map(|&size| Dimension::fixed(size as i64))
            .collect();
        ValueInfoProto::tensor(name.as_str(), tensor.dtype().onnx_code(), Some(dims))
    };
    let output = |(name, dtype): (&String, &DType)| {
        ValueInfoProto::tensor(name.as_str(), dtype.onnx_code(), None)
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
        model: encode(&model),
        weights: BTreeMap::new(),
    }
}

/// Seconds of the fastest of as many runs as fit into `time`.
fn best(
    program: &dyn Program,
    inputs: &BTreeMap<String, Tensor>,
    time: Duration,
) -> Result<f64, RunError> {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < RUNS_MIN || start.elapsed() < time {
        best = best.min(program.run(inputs)?.busy.as_secs_f64());
        runs += 1;
    }
    Ok(best.max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::cpu;

    #[test]
    fn a_quick_table_has_a_row_for_every_operator_and_size() {
        let rows = table(&cpu(), true).unwrap();
        assert_eq!(
            rows.len(),
            TABLE.len() * 2 + 3 + 3,
            "products in three more types, and halves of three operators"
        );
        let halves = rows.iter().filter(|row| row.dtype == DType::F16);
        let halves: Vec<&str> = halves.map(|row| row.operator.as_str()).collect();
        assert_eq!(halves, ["MatMul", "MatMul", "Conv", "Add"]);
        assert!(
            rows.iter()
                .all(|row| row.seconds > 0.0 && row.bytes_per_second > 0.0)
        );
    }
}
