//! Tests that a kernel which exceeds its time limit ends its device and no other.

use std::time::Duration;

use super::*;

/// Rounds of a loop of which each hangs on the last: as many as Mesa's llvmpipe lets one invocation
/// have, whatever it asks for.
const ROUNDS: u32 = 65_535;
/// Workgroups that go through them: seconds of the cores of a small machine.
const GROUPS: u32 = 16_384;
/// Time that a kernel has here.
const TIME_MAX: Duration = Duration::from_millis(20);

/// A graph of one kernel that takes its time.
fn endless() -> Subgraph {
    let source = format!(
        "
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) at: vec3<u32>) {{
  var word = x[0] + at.x;
  for (var round = 0u; round < {ROUNDS}u; round++) {{
    word ^= word << 13u;
    word ^= word >> 17u;
    word ^= word << 5u;
  }}
  y[at.x] = word;
}}"
    );
    let source = source.into_bytes();
    let kernel = Tensor::from_vec([source.len()], source).unwrap();
    let custom = souk_testing::custom_node("Wgsl", &["kernel", "x"], &["y"], &[1]);
    let custom = with(custom, "output_shapes", |attribute| {
        attribute.strings = vec![bytes::Bytes::from(GROUPS.to_string())];
    });
    let custom = with_ints(custom, "groups", &[i64::from(GROUPS)]);
    let (x, y) = (("x", DType::F32), ("y", DType::F32));
    subgraph(&model(vec![custom], &[x], &[y], &[("kernel", kernel)]))
}

#[test]
fn a_kernel_that_does_not_end_in_its_time_ends_its_device_and_no_other() {
    let adapters = list_adapters();
    let Some(adapter) = adapters.iter().find(|adapter| adapter.is_software()) else {
        eprintln!("SKIPPED: there is no software adapter");
        return;
    };
    let config = GpuConfig {
        time_max: TIME_MAX,
        ..GpuConfig::default()
    };
    let gpu = Gpu::open_unmeasured(adapter, config).unwrap();
    let program = gpu.compile(&endless()).unwrap();
    let seed = tensor(DType::F32, &[1], &[1.0]);
    let hung = program.run(&BTreeMap::from([("x".to_owned(), seed)]));
    let hung = hung.unwrap_err();
    let RunError::Hung { device, limit } = &hung else {
        panic!("{hung}");
    };
    assert_eq!((device.as_str(), *limit), (adapter.name(), TIME_MAX));
    let said = hung.to_string();
    assert!(
        said.contains(adapter.name()) && said.contains("20ms"),
        "{said}"
    );
    // It still runs there: nothing waits behind it.
    let relu = node("Relu", &["x"], &["y"]);
    let input = [(vec![4], vec![1.0])];
    let refused = run(&gpu, &relu, DType::F32, &input, &[]).unwrap_err();
    assert!(matches!(refused, RunError::DeviceLost { .. }), "{refused}");
    let next = Gpu::open_unmeasured(adapter, GpuConfig::default()).unwrap();
    assert!(run(&next, &relu, DType::F32, &input, &[]).is_ok());
    // Nobody waited for the kernel; the process is not to end within the driver.
    #[cfg_attr(not(feature = "cuda"), expect(irrefutable_let_patterns))]
    let driver::Driver::WebGpu(hung) = gpu.context.driver() else {
        panic!("it was opened through wgpu");
    };
    assert!(hung.submit_commands(None, Duration::MAX).unwrap());
    drop(program);
    drop(gpu);
    assert!(run(&next, &relu, DType::F32, &input, &[]).is_ok());
}
