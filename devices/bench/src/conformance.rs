//! Runs the ONNX project's operator tests on a backend and counts the correct results.
//!
//! A case is a folder: `model.onnx`, `meta.json` with tolerances and the names, types and shapes of
//! inputs and outputs, and `ins_<i>.bin` and `outs_<i>.bin` with their elements, raw little-endian
//! in C order; texts are lists in `ins_<i>.json` and `outs_<i>.json`. The benchmark loads a model
//! as souk loads a buyer's: it expands operators that are short for others, and processes texts
//! before the model runs. A case passes, is refused before it runs, or is wrong; a failure during
//! the run also counts as wrong, because a buyer would have paid by then. Random outputs have no
//! expected values: such a case passes by type and shape, and is counted separately.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_memory::{DType, Shape, Tensor, TensorError};
use souk_onnx::expansion::{StringTable, expand_model};
use souk_onnx::schema::is_drawn;
use souk_onnx::subgraph::Subgraph;
use souk_onnx::{GraphProto, decode_model, encode_model};
use souk_vocabulary::processor::Processor;
use thiserror::Error;

/// An expected value can be off by this many roundings of the largest element, because it was
/// computed in the output's own precision, where sums of large terms have errors of that size.
pub const ROUNDINGS: f64 = 2.0;

/// The results of a backend on the cases of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Names of the cases with correct outputs.
    pub pass: Vec<String>,
    /// Those cases that are correct only if the expected values can have rounding errors: the error
    /// of some element exceeds the case's tolerance, but by at most [`ROUNDINGS`] roundings of the
    /// output's largest element.
    pub pass_by_rounding: Vec<String>,
    /// Cases with random outputs of the right type and shape, which `pass` does not include.
    #[serde(default)]
    pub drawn: Vec<String>,
    /// Cases that the backend refused before they ran, with the reason.
    pub unsupported: BTreeMap<String, String>,
    /// Cases with wrong outputs or a failure during the run, with the difference or error.
    pub wrong: BTreeMap<String, String>,
}

/// Reasons why a folder of cases cannot run.
#[derive(Debug, Error)]
pub enum ConformanceError {
    /// Reading a file failed.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// Path of the file or folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// A case's description is malformed.
    #[error("{} does not describe a case: {cause}", path.display())]
    Meta {
        /// Path of the file.
        path: PathBuf,
        /// The parser's error.
        cause: serde_json::Error,
    },
    /// The folder contains no case.
    #[error("there is no case in {}", path.display())]
    Empty {
        /// Path of the folder.
        path: PathBuf,
    },
}

/// The result of one case.
enum Verdict {
    Pass,
    PassByRounding,
    Drawn,
    Unsupported(String),
    Wrong(String),
}

/// The description of a case.
#[derive(Deserialize)]
struct Meta {
    rtol: f64,
    atol: f64,
    ins: Vec<(String, String, Vec<usize>)>,
    outs: Vec<(String, String, Vec<usize>)>,
}

/// Runs every case in the folder `dir` on a backend. A case must be a folder with a `meta.json`;
/// anything else is ignored.
///
/// # Errors
/// [`ConformanceError`] if the folder has no readable cases.
pub fn run_dir(dir: &Path, backend: &dyn Processor) -> Result<Report, ConformanceError> {
    let unreadable = |cause| ConformanceError::Read {
        path: dir.to_owned(),
        cause,
    };
    let entries = fs::read_dir(dir).map_err(unreadable)?;
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut folders: Vec<PathBuf> = folders
        .filter(|it| it.join("meta.json").is_file())
        .collect();
    folders.sort();
    if folders.is_empty() {
        return Err(ConformanceError::Empty {
            path: dir.to_owned(),
        });
    }
    let mut report = Report::default();
    for folder in folders {
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        match run_case(&folder, backend)? {
            Verdict::Pass => report.pass.push(name),
            Verdict::PassByRounding => {
                report.pass.push(name.clone());
                report.pass_by_rounding.push(name);
            }
            Verdict::Drawn => report.drawn.push(name),
            Verdict::Unsupported(reason) => {
                report.unsupported.insert(name, reason);
            }
            Verdict::Wrong(found) => {
                report.wrong.insert(name, found);
            }
        }
    }
    Ok(report)
}

fn run_case(folder: &Path, backend: &dyn Processor) -> Result<Verdict, ConformanceError> {
    let path = folder.join("meta.json");
    let meta: Meta = serde_json::from_slice(&read(&path)?)
        .map_err(|cause| ConformanceError::Meta { path, cause })?;
    let mut model = match decode_model(read(&folder.join("model.onnx"))?.into()) {
        Ok(model) => model,
        Err(error) => return Ok(Verdict::Unsupported(error.to_string())),
    };
    let mut meanings = match expand_model(&mut model) {
        Ok(meanings) => meanings,
        Err(error) => return Ok(Verdict::Unsupported(error.to_string())),
    };
    let is_drawn = model.graph.as_ref().is_some_and(has_random_nodes);
    let program = match backend.compile(&Subgraph {
        model: encode_model(&model),
        weights: BTreeMap::new(),
    }) {
        Ok(program) => program,
        Err(error) => return Ok(Verdict::Unsupported(error.to_string())),
    };
    let words = &mut meanings.texts.words;
    let mut inputs = BTreeMap::new();
    for (index, value) in meta.ins.iter().enumerate() {
        match read_tensor(folder, &format!("ins_{index}"), value, words)? {
            Ok(tensor) => inputs.insert(value.0.clone(), tensor),
            Err(reason) => return Ok(Verdict::Unsupported(reason)),
        };
    }
    if let Err(error) = meanings.preparation.run(words, &mut inputs) {
        return Ok(Verdict::Wrong(error.to_string()));
    }
    // The case can list initializers among the inputs, which already have values.
    inputs.retain(|name, _| program.inputs().iter().any(|port| port.name == *name));
    let outputs = match program.run(&inputs) {
        Ok(outcome) => outcome.outputs,
        Err(error) => return Ok(Verdict::Wrong(error.to_string())),
    };
    let mut by_rounding = false;
    for (index, value) in meta.outs.iter().enumerate() {
        let expected = match read_tensor(folder, &format!("outs_{index}"), value, words)? {
            Ok(tensor) => tensor,
            Err(reason) => return Ok(Verdict::Unsupported(reason)),
        };
        let found = outputs.get(&value.0);
        let (rtol, atol) = match is_drawn {
            true => (0.0, f64::INFINITY),
            false => (meta.rtol, meta.atol),
        };
        let Some(difference) = find_difference(&expected, found, rtol, atol) else {
            continue;
        };
        let atol = atol + rounding_tolerance(&expected);
        if find_difference(&expected, found, rtol, atol).is_some() {
            return Ok(Verdict::Wrong(format!("{}: {difference}", value.0)));
        }
        by_rounding = true;
    }
    Ok(match (is_drawn, by_rounding) {
        (true, _) => Verdict::Drawn,
        (false, true) => Verdict::PassByRounding,
        (false, false) => Verdict::Pass,
    })
}

/// Returns whether a graph draws any value at random.
fn has_random_nodes(graph: &GraphProto) -> bool {
    let mut nodes = graph.node.iter();
    nodes.any(|node| is_drawn(node.op_type()) || node.subgraphs().any(has_random_nodes))
}

fn read(path: &Path) -> Result<Vec<u8>, ConformanceError> {
    fs::read(path).map_err(|cause| ConformanceError::Read {
        path: path.to_owned(),
        cause,
    })
}

/// Reads the tensor of a file, with numbers for texts. Returns the reason if the case lacks the
/// file or its type is unknown.
fn read_tensor(
    folder: &Path,
    file: &str,
    (name, dtype, dims): &(String, String, Vec<usize>),
    words: &mut StringTable,
) -> Result<Result<Tensor, String>, ConformanceError> {
    let path = folder.join(format!("{file}.json"));
    if path.is_file() {
        let texts: Vec<String> = serde_json::from_slice(&read(&path)?)
            .map_err(|cause| ConformanceError::Meta { path, cause })?;
        let numbers: Vec<i64> = texts.iter().map(|text| words.intern_string(text)).collect();
        let tensor = Tensor::from_vec(dims.clone(), numbers);
        return Ok(tensor.map_err(|error| error.to_string()));
    }
    let Some(dtype) = numpy_type(dtype) else {
        return Ok(Err(format!(
            "the test's value {name:?} is of the type {dtype}"
        )));
    };
    let path = folder.join(format!("{file}.bin"));
    if !path.is_file() {
        return Ok(Err(format!("the test comes without the value of {name:?}")));
    }
    let bytes = Bytes::from(read(&path)?);
    let shape = Shape::new(dims.clone()).map_err(TensorError::from);
    let tensor = shape.and_then(|shape| Tensor::new(dtype, shape, bytes));
    Ok(tensor.map_err(|error| error.to_string()))
}

/// Returns the element type with this name in NumPy.
fn numpy_type(name: &str) -> Option<DType> {
    let short = match name {
        "float32" => "f32",
        "float64" => "f64",
        "float16" => "f16",
        "bfloat16" => "bf16",
        "float8_e5m2" => "f8e5m2",
        "float8_e5m2fnuz" => "f8e5m2fnuz",
        "float8_e4m3fn" => "f8e4m3fn",
        "float8_e4m3fnuz" => "f8e4m3fnuz",
        "float8_e8m0fnu" => "f8e8m0",
        "float4_e2m1fn" => "f4e2m1",
        "bool" => "bool",
        name => return integer_type(name),
    };
    short.parse().ok()
}

fn integer_type(name: &str) -> Option<DType> {
    let short = match name.strip_prefix("uint") {
        Some(bits) => format!("u{bits}"),
        None => format!("i{}", name.strip_prefix("int")?),
    };
    short.parse().ok()
}

/// Returns [`ROUNDINGS`] roundings of the largest finite element; 0 for types that are not floats.
fn rounding_tolerance(expected: &Tensor) -> f64 {
    let epsilon = match expected.dtype() {
        DType::F16 => 2f64.powi(-10),
        DType::Bf16 => 2f64.powi(-7),
        DType::F32 => f64::from(f32::EPSILON),
        DType::F64 => f64::EPSILON,
        _ => return 0.0,
    };
    let finite = expected
        .to_f64s()
        .unwrap_or_default()
        .into_iter()
        .filter(|it| it.is_finite());
    ROUNDINGS * epsilon * finite.fold(0.0, |largest, value| value.abs().max(largest))
}

/// Returns how an output differs from the expected one; `None` if it does not.
fn find_difference(
    expected: &Tensor,
    found: Option<&Tensor>,
    rtol: f64,
    atol: f64,
) -> Option<String> {
    let Some(found) = found else {
        return Some("missing".to_owned());
    };
    if found.dtype() != expected.dtype() {
        return Some(format!("{} instead of {}", found.dtype(), expected.dtype()));
    }
    if found.dims() != expected.dims() {
        return Some(format!(
            "shape {} instead of {}",
            found.shape(),
            expected.shape()
        ));
    }
    let (Ok(expected), Ok(found)) = (expected.to_f64s(), found.to_f64s()) else {
        let same = expected.bytes() == found.bytes();
        return (!same).then(|| "other values".to_owned());
    };
    let close = |expected: f64, found: f64| {
        let near = (expected - found).abs() <= atol + rtol * expected.abs();
        near || expected == found || (expected.is_nan() && found.is_nan())
    };
    let mut pairs = expected.iter().zip(&found).enumerate();
    let (index, (expected, found)) = pairs.find(|(_, (a, b))| !close(**a, **b))?;
    Some(format!("element {index} is {found} instead of {expected}"))
}

#[cfg(test)]
mod tests {
    use souk_cpu::Cpu;
    use souk_onnx::{ModelProto, ValueInfoProto};
    use souk_testing::{model, node};

    use super::*;

    /// The CPU that results are held against.
    fn cpu() -> Cpu {
        Cpu::new(souk_testing::cpu_profile(), std::num::NonZeroUsize::MIN)
    }

    /// A case of one node from `x` to `y`, two floats each.
    fn case(dir: &Path, name: &str, operator: &str, output: [f32; 2]) {
        let folder = dir.join(name);
        fs::create_dir(&folder).unwrap();
        let nodes = vec![node(operator, &["x"], &["y"])];
        let proto = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &[]);
        fs::write(folder.join("model.onnx"), encode_model(&proto)).unwrap();
        let value = |name: &str| format!(r#"[["{name}", "float32", [2]]]"#);
        let (ins, outs) = (value("x"), value("y"));
        let meta = format!(r#"{{"rtol": 0.001, "atol": 1e-7, "ins": {ins}, "outs": {outs}}}"#);
        fs::write(folder.join("meta.json"), meta).unwrap();
        let bytes = |values: [f32; 2]| values.map(f32::to_le_bytes).concat();
        fs::write(folder.join("ins_0.bin"), bytes([-1.0, 1000.0])).unwrap();
        fs::write(folder.join("outs_0.bin"), bytes(output)).unwrap();
    }

    #[test]
    fn cases_are_told_apart_by_what_became_of_them() {
        let dir = tempfile::tempdir().unwrap();
        case(dir.path(), "right", "Relu", [0.0, 1000.0]);
        case(dir.path(), "rounded", "Relu", [1e-4, 1000.0]);
        case(dir.path(), "off", "Relu", [0.5, 1000.0]);
        case(dir.path(), "unknown", "Frobnicate", [0.0, 1000.0]);
        case(dir.path(), "by chance", "RandomNormalLike", [0.0, 1000.0]);
        let report = run_dir(dir.path(), &cpu()).unwrap();
        assert_eq!(report.pass, ["right", "rounded"]);
        assert_eq!(report.pass_by_rounding, ["rounded"]);
        assert_eq!(report.drawn, ["by chance"]);
        assert_eq!(report.wrong["off"], "y: element 0 is 0 instead of 0.5");
        assert!(report.unsupported["unknown"].contains("Frobnicate"));
    }

    #[test]
    fn texts_are_taken_apart_before_a_case_runs() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("joined");
        fs::create_dir(&folder).unwrap();
        let text = |name: &str| ValueInfoProto::new_tensor(name, 8, None);
        let joined = ModelProto {
            ir_version: Some(10),
            graph: Some(GraphProto {
                input: vec![text("x")],
                output: vec![text("y")],
                node: vec![node("StringConcat", &["x", "x"], &["y"])],
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        };
        fs::write(folder.join("model.onnx"), encode_model(&joined)).unwrap();
        let value = |name: &str| format!(r#"[["{name}", "object", [2]]]"#);
        let (ins, outs) = (value("x"), value("y"));
        let meta = format!(r#"{{"rtol": 0, "atol": 0, "ins": {ins}, "outs": {outs}}}"#);
        fs::write(folder.join("meta.json"), meta).unwrap();
        fs::write(folder.join("ins_0.json"), r#"["a", "b"]"#).unwrap();
        fs::write(folder.join("outs_0.json"), r#"["aa", "bb"]"#).unwrap();
        assert_eq!(run_dir(dir.path(), &cpu()).unwrap().pass, ["joined"]);
        fs::write(folder.join("outs_0.json"), r#"["aa", "ab"]"#).unwrap();
        let report = run_dir(dir.path(), &cpu()).unwrap();
        assert_eq!(report.wrong.keys().collect::<Vec<_>>(), ["joined"]);
    }

    #[test]
    fn a_folder_without_cases_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            run_dir(dir.path(), &cpu()),
            Err(ConformanceError::Empty { .. })
        ));
    }
}
