//! Tests that the check of a device passes correct drivers and finds each kind of faulty one.

use std::sync::Mutex;

use souk_cpu::Cpu;
use souk_memory::Bf16;
use souk_onnx::NodeProto;
use souk_onnx::subgraph::{Port, Unsupported};
use souk_onnx::work::Work;
use souk_vocabulary::processor::{Estimate, Outcome, RunError};
use souk_vocabulary::profile::Profile;

use super::*;

/// The CPU that results are held against.
fn cpu() -> Cpu {
    Cpu::new(souk_testing::cpu_profile(), NonZeroUsize::MIN)
}

/// What a driver makes of a right answer, given the one before it.
type Lie = fn(&Tensor, Option<&Tensor>) -> Result<Tensor, RunError>;

/// A CPU behind a driver of this kind.
struct Driven(Cpu, Lie);

struct DrivenProgram {
    inner: Box<dyn Program>,
    lie: Lie,
    last: Mutex<Option<Tensor>>,
}

impl Processor for Driven {
    fn profile(&self) -> &Profile {
        self.0.profile()
    }

    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported> {
        self.0.check_support(node)
    }

    fn estimate(&self, work: &Work) -> Estimate {
        self.0.estimate(work)
    }

    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError> {
        Ok(Box::new(DrivenProgram {
            inner: self.0.compile(subgraph)?,
            lie: self.1,
            last: Mutex::default(),
        }))
    }

    fn memory_free_bytes(&self) -> u64 {
        self.0.memory_free_bytes()
    }

    fn utilisation(&self) -> f64 {
        self.0.utilisation()
    }

    fn meter_joules(&self) -> Option<f64> {
        None
    }
}

impl Program for DrivenProgram {
    fn inputs(&self) -> &[Port] {
        self.inner.inputs()
    }

    fn outputs(&self) -> &[Port] {
        self.inner.outputs()
    }

    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        self.inner.run(inputs)?.try_map(|right| {
            let last = self.last.lock().unwrap().replace(right.clone());
            (self.lie)(&right, last.as_ref())
        })
    }
}

fn altered(right: &Tensor, alter: impl Fn(usize, &[f32]) -> f32) -> Tensor {
    let values = right.to_vec::<f32>().unwrap();
    let told = (0..values.len()).map(|index| alter(index, &values));
    Tensor::from_vec(right.dims().to_vec(), told.collect()).unwrap()
}

fn found(lie: Lie) -> Result<(), CheckError> {
    check_device(&Driven(cpu(), lie))
}

#[test]
fn a_driver_that_tells_the_truth_passes() {
    found(|right, _| Ok(right.clone())).unwrap();
}

#[test]
fn eight_bits_of_mantissa_pass() {
    let in_bf16 = |right: &Tensor, _: Option<&Tensor>| {
        Ok(altered(right, |index, values| {
            Bf16::from_f32(values[index]).to_f32()
        }))
    };
    found(in_bf16).unwrap();
}

#[test]
fn what_a_driver_leaves_swaps_repeats_or_spoils_is_found() {
    let lies: [(&str, Lie); 4] = [
        ("leaves its memory as it was", |right, _| {
            Ok(altered(right, |_, _| 0.0))
        }),
        ("swaps neighbours", |right, _| {
            let other = |index: usize, values: &[f32]| values[(index ^ 1).min(values.len() - 1)];
            Ok(altered(right, other))
        }),
        ("answers the last question again", |right, last| {
            Ok(last.unwrap_or(right).clone())
        }),
        ("makes one element no number", |right, _| {
            let last = right.shape().element_count() - 1;
            Ok(altered(right, |index, values| match index == last {
                true => f32::NAN,
                false => values[index],
            }))
        }),
    ];
    for (what, lie) in lies {
        let error = found(lie).unwrap_err();
        let is_first = matches!(
            &error,
            CheckError::Wrong {
                operator: "Add",
                ..
            }
        );
        assert!(is_first, "who {what}: {error}");
        let text = error.to_string();
        assert!(text.contains("its driver computes Add wrongly"), "{text}");
    }
}

#[test]
fn another_shape_and_a_failure_are_named() {
    let flat: Lie = |right, _| Ok(right.to_shape([right.shape().element_count()]).unwrap());
    let other = found(flat).unwrap_err().to_string();
    assert!(
        other.contains("returns f32 [231] for Add, but f32 [7, 33] was requested"),
        "{other}"
    );
    let broken: Lie = |_, _| {
        Err(RunError::Engine {
            engine: "driver",
            reason: "lost".to_owned(),
        })
    };
    let failed = found(broken).unwrap_err().to_string();
    assert!(failed.contains("Add fails when it is tried"), "{failed}");
}

#[cfg(feature = "wgpu")]
#[test]
fn every_gpu_that_is_here_passes() {
    for adapter in souk_gpu::list_adapters() {
        let gpu = souk_gpu::Gpu::open_unmeasured(&adapter, Default::default()).unwrap();
        check_device(&gpu).unwrap();
    }
}
