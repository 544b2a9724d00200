//! Tests the CUDA kernels on paper, that is, without a card: translates every kernel that a run
//! records to CUDA C++, compiles it with NVRTC if that is there, and runs it on this machine's CPU.

use souk_cuda::emit::Translation;
use souk_testing::host::{self, HostKernel};

/// Whether `SOUK_TEST_NVRTC` says that the compiler is there; else the tests say that they skip.
pub(crate) fn has_compiler() -> bool {
    let wanted = std::env::var_os("SOUK_TEST_NVRTC").is_some();
    if !wanted {
        eprintln!("SKIPPED: kernels are translated and not compiled (SOUK_TEST_NVRTC is not set)");
    }
    wanted
}

/// Translates a kernel, and compiles it for the oldest card and a new one if the compiler is
/// there; then for this machine's CPU.
pub(crate) fn check(wgsl: &str) -> HostKernel {
    let translated = souk_cuda::emit::translate_kernel(wgsl);
    let translated = translated.unwrap_or_else(|error| panic!("{error}\n{wgsl}"));
    let host = compiled(&translated);
    if !has_compiler() {
        return host;
    }
    let oldest = souk_cuda::nvrtc::oldest_capability().expect("a compiler for some card");
    for capability in [oldest, (9, 0)] {
        let compiled = souk_cuda::nvrtc::compile_ptx(&translated.source, capability);
        if let Err(error) = compiled {
            panic!("for {capability:?}: {error}\n{wgsl}\n{}", translated.source);
        }
    }
    host
}

fn compiled(translated: &Translation) -> HostKernel {
    let bindings = translated.arrays.iter().map(|bound| bound.binding as usize);
    HostKernel::compile(&translated.source, translated.threads, bindings.collect())
}

#[test]
fn variables_begin_with_vectors_of_constants() {
    let kernel = "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(1) fn main() {
          var v = vec3(1.5, -2.0, 4.0);
          var s = vec2(0.25);
          var pair = vec4(vec2(8.0, 16.0), 32.0, 64.0);
          var rows = array<vec2<f32>, 2>(vec2(1.0, 2.0), vec2(3.0));
          v.x += 1.0;
          y[0] = v.x + v.y + v.z;
          y[1] = s.x + s.y;
          y[2] = pair.y + pair.w;
          y[3] = rows[1].x + rows[0].y;
        }";
    if !host::has_compiler() {
        assert!(souk_cuda::emit::translate_kernel(kernel).is_ok());
        return;
    }
    let host = check(kernel);
    let mut given = [0f32; 4];
    host.launch(&[(given.as_mut_ptr().cast(), 4)], [1, 1, 1]);
    assert_eq!(given, [4.5, 0.5, 80.0, 5.0]);
}
