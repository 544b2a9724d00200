//! Tests that whole models give the same results on the GPU backend as on the CPU.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use souk_cpu::Cpu;
use souk_gpu::{Gpu, GpuConfig, list_adapters};
use souk_memory::Tensor;
use souk_onnx::subgraph::Subgraph;
use souk_vocabulary::catalogue;
use souk_vocabulary::processor::{Processor, Program};

/// How far the two may be apart, relative to the largest score.
const TOLERANCE: f64 = 1e-4;

fn compiled(device: &dyn Processor) -> Box<dyn Program> {
    let model = include_bytes!("../../../testnet/models/digits/digits.onnx");
    let subgraph = Subgraph {
        model: model.as_slice().into(),
        weights: BTreeMap::new(),
    };
    device.compile(&subgraph).expect("a bundled model")
}

#[test]
fn the_digit_classifier_gives_the_same_scores_on_gpu_and_cpu() {
    let adapters = list_adapters();
    let Some(adapter) = adapters.first() else {
        let wanted = std::env::var_os("SOUK_TEST_GPU").is_some();
        assert!(!wanted, "SOUK_TEST_GPU is set and there is no adapter");
        eprintln!("SKIPPED: no GPU adapter");
        return;
    };
    let gpu = Gpu::open_unmeasured(adapter, GpuConfig::default()).expect("it opens");
    let profile = catalogue::find_processor("amd-epyc-9654").expect("catalogued");
    let cpu = Cpu::new(profile.clone(), NonZeroUsize::MIN);
    let (on_gpu, on_cpu) = (compiled(&gpu), compiled(&cpu));
    for samples in [1usize, 7, 1] {
        let port = &on_gpu.inputs()[0];
        let open = port.dims.clone().expect("it states its shape");
        let dims: Vec<usize> = open.iter().map(|size| size.unwrap_or(samples)).collect();
        let count: usize = dims.iter().product();
        let values = (0..count).map(|at| (at as f32 * 0.37).sin()).collect();
        let image = Tensor::from_vec(dims, values).expect("as many values as the shape has");
        let inputs = BTreeMap::from([(port.name.clone(), image)]);
        let found = on_gpu.run(&inputs).expect("it runs").outputs;
        let expected = on_cpu.run(&inputs).expect("it runs").outputs;
        for (name, expected) in expected {
            let expected = expected.to_f64s().expect("floats");
            let found = found[&name].to_f64s().expect("floats");
            let largest = expected
                .iter()
                .fold(0.0f64, |it, value| it.max(value.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() <= TOLERANCE * largest, "{name}");
            }
        }
    }
}
