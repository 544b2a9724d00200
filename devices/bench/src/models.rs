//! Times whole models on a device, with inputs that you can also pass to other engines.
//!
//! A rule that fits in a line of any language generates the inputs: ones for integers whose input
//! has "mask" in its name, `index * 37 % 30000` for other integers, the sine of the index for
//! floats.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use souk_host::system;
use souk_memory::{DType, Tensor, TensorError};
use souk_onnx as onnx;
use souk_onnx::SplitError;
use souk_onnx::subgraph::{CompileError, Port, Subgraph};
use souk_vocabulary::processor::{Processor, RunError};
use thiserror::Error;

/// Number of elements to show of each output.
const SHOWN: usize = 4;
/// Upper bound of generated integers: the least vocabulary of the tested models.
const INTEGER_MAX: usize = 30_000;

/// The time and memory that a model took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelTime {
    /// Name of the file.
    pub model: String,
    /// Number of nodes that a run executes.
    pub operators: u64,
    /// Seconds that compilation took.
    pub compile_seconds: f64,
    /// Number of timed runs.
    pub runs: usize,
    /// Seconds of the fastest run.
    pub best_seconds: f64,
    /// Seconds of the median run.
    pub median_seconds: f64,
    /// Memory of the process before it opened the file; `None` if the system does not report it.
    pub memory_before_bytes: Option<u64>,
    /// Peak memory of the process since it opened the file; `None` if the system does not report
    /// it.
    pub memory_peak_bytes: Option<u64>,
    /// First elements of each output.
    pub outputs: BTreeMap<String, Vec<f64>>,
}

/// Reasons why a model cannot be timed.
#[derive(Debug, Error)]
pub enum ModelError {
    /// Reading the folder failed.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// Path of the folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The folder contains no model.
    #[error("there is no .onnx file in {}", path.display())]
    Empty {
        /// Path of the folder.
        path: PathBuf,
    },
    /// The file is not a model.
    #[error("{}: {cause}", path.display())]
    Split {
        /// Path of the file.
        path: PathBuf,
        /// Reason for the error.
        cause: SplitError,
    },
    /// The device refuses the model.
    #[error("{}: {cause}", path.display())]
    Compile {
        /// Path of the file.
        path: PathBuf,
        /// Reason for the refusal.
        cause: CompileError,
    },
    /// The rule for inputs does not cover the type of one.
    #[error("{}: no values can be generated for the input {input:?} of {dtype}", path.display())]
    Input {
        /// Path of the file.
        path: PathBuf,
        /// Name of the input.
        input: String,
        /// Element type of the input.
        dtype: DType,
    },
    /// A run failed.
    #[error("{}: {cause}", path.display())]
    Run {
        /// Path of the file.
        path: PathBuf,
        /// Reason for the failure.
        cause: RunError,
    },
}

/// Returns the models at a path: the file itself, or the `.onnx` files of a folder in order of
/// their names.
///
/// # Errors
/// [`ModelError::Read`] or [`ModelError::Empty`] if the folder has no readable model.
pub fn model_files(path: &Path) -> Result<Vec<PathBuf>, ModelError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).map_err(|cause| ModelError::Read {
        path: path.to_owned(),
        cause,
    })?;
    let found = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = found
        .filter(|file| file.extension().is_some_and(|it| it == "onnx"))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(ModelError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(files)
}

/// Opens a model file, and keeps each of its weights in memory once.
///
/// # Errors
/// [`ModelError::Split`] if the file is not a model.
pub fn open_model(path: &Path) -> Result<Subgraph, ModelError> {
    let split = onnx::split_file(path).map_err(|cause| ModelError::Split {
        path: path.to_owned(),
        cause,
    });
    let (model, weights) = split?;
    Ok(Subgraph { model, weights })
}

/// Times `runs` runs of the model in a file. `sizes` replace the open sizes of each input, from the
/// first on; any further ones are 1. Nothing else in the process should measure its peak of memory
/// meanwhile, because this function restarts it.
///
/// # Errors
/// [`ModelError`] if the file has no model that the device can run.
pub fn time_model(
    device: &dyn Processor,
    path: &Path,
    sizes: &[usize],
    runs: usize,
) -> Result<ModelTime, ModelError> {
    system::memory_peak_restart();
    let memory_before_bytes = system::memory_peak_bytes();
    let subgraph = open_model(path)?;
    let start = Instant::now();
    let program = device.compile_owned(subgraph);
    let program = program.map_err(|cause| ModelError::Compile {
        path: path.to_owned(),
        cause,
    })?;
    let compile_seconds = start.elapsed().as_secs_f64();
    let inputs = generate_inputs(path, program.inputs(), sizes)?;
    let run = || {
        program.run(&inputs).map_err(|cause| ModelError::Run {
            path: path.to_owned(),
            cause,
        })
    };
    let mut last = run()?;
    let mut seconds = Vec::with_capacity(runs);
    for _ in 0..runs.max(1) {
        last = run()?;
        seconds.push(last.busy.as_secs_f64());
    }
    Ok(ModelTime {
        operators: last.operators,
        compile_seconds,
        memory_before_bytes,
        ..ModelTime::from_runs(path, seconds, &last.outputs)
    })
}

impl ModelTime {
    /// Computes the figures from the runs' times and the last outputs.
    pub(crate) fn from_runs(
        path: &Path,
        mut seconds: Vec<f64>,
        outputs: &BTreeMap<String, Tensor>,
    ) -> Self {
        seconds.sort_by(f64::total_cmp);
        let shown = |(name, tensor): (&String, &Tensor)| {
            let values = tensor.to_f64s().unwrap_or_default();
            (name.clone(), values.into_iter().take(SHOWN).collect())
        };
        let name = path.file_name().unwrap_or_default();
        Self {
            model: name.to_string_lossy().into_owned(),
            operators: 0,
            compile_seconds: 0.0,
            runs: seconds.len(),
            best_seconds: seconds[0],
            median_seconds: seconds[seconds.len() / 2],
            memory_before_bytes: None,
            memory_peak_bytes: system::memory_peak_bytes(),
            outputs: outputs.iter().map(shown).collect(),
        }
    }
}

/// Generates values for every input.
///
/// # Errors
/// [`ModelError::Input`] for an element type without a rule.
pub fn generate_inputs(
    path: &Path,
    ports: &[Port],
    sizes: &[usize],
) -> Result<BTreeMap<String, Tensor>, ModelError> {
    let one = |port: &Port| match generate_input(port, sizes) {
        Some(Ok(tensor)) => Ok((port.name.clone(), tensor)),
        _ => Err(ModelError::Input {
            path: path.to_owned(),
            input: port.name.clone(),
            dtype: port.dtype,
        }),
    };
    ports.iter().map(one).collect()
}

fn generate_input(port: &Port, sizes: &[usize]) -> Option<Result<Tensor, TensorError>> {
    let mut sizes = sizes.iter().copied();
    let open = port.dims.clone().unwrap_or_default().into_iter();
    let dims: Vec<usize> = open
        .map(|size| size.or_else(|| sizes.next()).unwrap_or(1))
        .collect();
    let count = dims
        .iter()
        .try_fold(1usize, |count, &size| count.checked_mul(size))?;
    let is_mask = port.name.contains("mask");
    let whole = |index: usize| if is_mask { 1 } else { index * 37 % INTEGER_MAX };
    Some(match port.dtype {
        DType::I64 => Tensor::from_vec(dims, (0..count).map(|it| whole(it) as i64).collect()),
        DType::I32 => Tensor::from_vec(dims, (0..count).map(|it| whole(it) as i32).collect()),
        DType::F32 => Tensor::from_vec(dims, (0..count).map(|it| (it as f32).sin()).collect()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use souk_cpu::Cpu;
    use souk_onnx::encode_model;
    use souk_testing::{model, node};

    use super::*;

    /// The CPU that results are held against.
    fn cpu() -> Cpu {
        Cpu::new(souk_testing::cpu_profile(), std::num::NonZeroUsize::MIN)
    }

    #[test]
    fn a_folder_of_models_is_timed_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let weight = Tensor::from_vec([1, 512], vec![2f32; 512]).unwrap();
        let nodes = vec![node("Mul", &["x", "w"], &["y"])];
        let proto = model(
            nodes,
            &[("x", DType::F32)],
            &[("y", DType::F32)],
            &[("w", weight)],
        );
        std::fs::write(dir.path().join("b.onnx"), encode_model(&proto)).unwrap();
        std::fs::write(dir.path().join("a.onnx"), encode_model(&proto)).unwrap();
        std::fs::write(dir.path().join("notes.txt"), "none").unwrap();
        let files = model_files(dir.path()).unwrap();
        assert_eq!(files.len(), 2);
        let timed = time_model(&cpu(), &files[0], &[], 3).unwrap();
        assert_eq!((timed.model.as_str(), timed.runs), ("a.onnx", 3));
        assert!(timed.best_seconds > 0.0 && timed.best_seconds <= timed.median_seconds);
        assert_eq!(timed.outputs["y"], [0.0; 4], "the sine of 0, twice");
    }

    #[test]
    fn what_is_no_model_is_named_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            model_files(dir.path()),
            Err(ModelError::Empty { .. })
        ));
        let path = dir.path().join("x.onnx");
        std::fs::write(&path, "no model").unwrap();
        let error = time_model(&cpu(), &path, &[], 1).unwrap_err().to_string();
        assert!(error.contains("x.onnx"), "{error}");
    }
}
