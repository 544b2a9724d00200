//! A first run before the first job's: what only a process's first run pays is paid here.
//!
//! A fresh process has code that was never executed, threads that never ran and memory that was
//! never touched. A small model through each kind of engine takes that out of the first job.

use souk_onnx::sample;
use souk_vocabulary::processor::{Processor, WorkError};

/// Compiles a small model on a device and runs it once.
///
/// # Errors
/// If the device fails an operator it should have; it is no less fit for jobs without.
pub fn warm(device: &dyn Processor) -> Result<(), WorkError> {
    let program = device.compile(&sample::subgraph())?;
    program.run(&sample::inputs())?;
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
        let profile = souk_vocabulary::catalogue::find("amd-epyc-9654")
            .unwrap()
            .clone();
        let cpu = Arc::new(Cpu::new(profile.clone(), NonZeroUsize::MIN));
        warm(&*cpu).unwrap();
        warm(&EmulatedDevice::new(profile, cpu, EmulatedConfig::default()).unwrap()).unwrap();
    }
}
