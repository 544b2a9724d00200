//! Runs a folder of operator tests on a backend and prints the counts:
//! `conformance DIR [cpu|onnxruntime[:PROVIDER]|wgpu]`.

use std::num::NonZeroUsize;
use std::path::Path;

use souk_cpu::Cpu;
use souk_devices_bench::conformance;
use souk_vocabulary::catalogue;
use souk_vocabulary::processor::Processor;

fn main() {
    let dir = std::env::args().nth(1).expect("a folder of cases");
    let backend = std::env::args().nth(2).unwrap_or("cpu".to_owned());
    let report = conformance::run_dir(Path::new(&dir), &*device(&backend)).expect("cases");
    for (name, found) in &report.wrong {
        println!("wrong {name}: {found}");
    }
    for (name, reason) in &report.unsupported {
        println!("unsupported {name}: {reason}");
    }
    println!("by rounding {:?}", report.pass_by_rounding);
    let counts = (
        report.pass.len(),
        report.unsupported.len(),
        report.wrong.len(),
    );
    println!(
        "pass {} unsupported {} wrong {}",
        counts.0, counts.1, counts.2
    );
}

fn device(backend: &str) -> Box<dyn Processor> {
    #[cfg(feature = "wgpu")]
    if backend == "wgpu" {
        let adapters = souk_gpu::list_adapters();
        let adapter = adapters.first().expect("an adapter");
        let opened = souk_gpu::Gpu::open_unmeasured(adapter, Default::default());
        return Box::new(opened.expect("it opens"));
    }
    #[cfg(feature = "onnxruntime")]
    if let Some(provider) = backend.strip_prefix("onnxruntime") {
        use souk_onnxruntime::{Library, OnnxRuntime};
        let library = Library::find_or_open().expect("a library");
        let provider = provider.trim_start_matches(':');
        let provider = library
            .find_provider(provider)
            .expect("such a provider")
            .clone();
        println!(
            "{} of {}: {}",
            provider.title(),
            library.path().display(),
            library.build_info()
        );
        let profile = catalogue::find_processor("amd-epyc-9654").expect("it is in the catalogue");
        let device = OnnxRuntime::new(library, provider, profile.clone(), NonZeroUsize::MIN);
        return Box::new(device);
    }
    assert_eq!(backend, "cpu", "no such backend in this build");
    let profile = catalogue::find_processor("amd-epyc-9654").expect("it is in the catalogue");
    Box::new(Cpu::new(profile.clone(), NonZeroUsize::MIN))
}
