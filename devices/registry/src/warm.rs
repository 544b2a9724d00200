//! Runs a small model on a device before its first job, because the first run in a process is
//! slower.
//!
//! A fresh process has code, threads and memory that were never used, and the first run of an
//! engine pays for them.

use souk_onnx::sample;
use souk_vocabulary::processor::{Processor, WorkError};

/// Compiles a small model on a device and runs it once. You should call this before the device's
/// first job.
///
/// # Errors
/// [`WorkError`] if the device fails on an operator that it should have; it can still run jobs
/// without that operator.
pub fn warm_up_device(device: &dyn Processor) -> Result<(), WorkError> {
    let program = device.compile(&sample::model_subgraph())?;
    program.run(&sample::model_inputs())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use souk_cpu::Cpu;
    use souk_emulated::{EmulatedConfig, EmulatedDevice};

    use super::*;

    #[test]
    fn a_cpu_and_what_is_emulated_on_it_are_warmed() {
        let profile = souk_vocabulary::catalogue::find_processor("amd-epyc-9654")
            .unwrap()
            .clone();
        let cpu = Arc::new(Cpu::new(profile.clone(), NonZeroUsize::MIN));
        warm_up_device(&*cpu).unwrap();
        warm_up_device(&EmulatedDevice::new(profile, cpu, EmulatedConfig::default()).unwrap())
            .unwrap();
    }
}
