//! Opens GPUs, through a graphics driver or CUDA, and measures them, so that their profiles state
//! the measured speed. A node does this for a GPU whose figures it does not have yet.

use souk_gpu::{Adapter, Gpu, GpuConfig, OpenError};
use souk_memory::DType;
use souk_vocabulary::processor::Processor;
use souk_vocabulary::profile::Throughput;
use souk_vocabulary::taxonomy::ProcessorKind;

use crate::{copies, measure};

/// Opens an adapter and measures it, which takes about a second. Other work on the GPU should pause
/// meanwhile, because it lowers the figures.
///
/// # Errors
/// [`OpenError`] if the driver refuses.
pub fn open_gpu(adapter: &Adapter, config: GpuConfig) -> Result<Gpu, OpenError> {
    Ok(measure_gpu(Gpu::open_unmeasured(adapter, config)?))
}

/// Opens a card through CUDA and measures it.
///
/// # Errors
/// See [`card::open_card`](souk_gpu::card::open_card).
#[cfg(feature = "cuda")]
pub fn open_card(ordinal: usize, config: GpuConfig) -> Result<Gpu, souk_cuda::CudaError> {
    Ok(measure_gpu(souk_gpu::card::open_card(ordinal, config)?))
}

/// Returns the GPU with the measured figures in its profile.
fn measure_gpu(gpu: Gpu) -> Gpu {
    let measured = measure::measure_processor(&gpu);
    let mut profile = gpu.profile().clone();
    // The GPU computes bfloat16, the upper halves of floats, in 32 bits.
    measured.write_to_profile(&mut profile, &[DType::Bf16]);
    // A software GPU (`Custom`) would take seconds for the products of 16-bit floats, so it states
    // the figure of 32 bits, unmeasured.
    let operations_per_second = match profile.kind {
        ProcessorKind::Custom => measured.f32_operations_per_second,
        _ => measure::product_rate(&gpu, DType::F16),
    };
    let halves = Throughput {
        operations_per_second,
        sparse: false,
        measured: profile.kind != ProcessorKind::Custom,
    };
    profile.throughput.insert(DType::F16, halves);
    let gpu = gpu.with_profile(profile);
    // If a link fails now, it will also fail for its users.
    let timed = copies::measure_links(&gpu, &[], true).unwrap_or_default();
    gpu.with_link_timings(&timed)
}

#[cfg(test)]
mod tests {
    use souk_gpu::list_adapters;

    use super::*;

    #[test]
    fn what_a_card_does_in_halves_is_measured_in_halves() {
        let adapters = list_adapters();
        let Some(adapter) = adapters.first() else {
            return;
        };
        let gpu = open_gpu(adapter, GpuConfig::default()).unwrap();
        let rate = |dtype: DType| gpu.profile().throughput[&dtype];
        for dtype in [DType::F16, DType::F32, DType::Bf16] {
            assert!(rate(dtype).operations_per_second > 1e6, "{dtype}");
        }
        assert_eq!(rate(DType::Bf16), rate(DType::F32));
        // Two measurements never come out alike to the last bit; a copy does, and says so.
        let is_copied =
            rate(DType::F16).operations_per_second == rate(DType::F32).operations_per_second;
        assert_eq!(is_copied, adapter.is_software());
        assert_eq!(rate(DType::F16).measured, !adapter.is_software());
    }
}
