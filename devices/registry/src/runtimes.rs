//! Opens processors through ONNX Runtime and measures them, so that their profiles state the
//! measured speed.

use std::num::NonZeroUsize;
use std::sync::Arc;

use souk_onnxruntime::{Library, OnnxRuntime, Provider};

use crate::measure;

/// Opens a provider's processor and measures it, which takes about a second. The processor must
/// support 32-bit floats.
#[must_use]
pub fn open_measured(
    library: Arc<Library>,
    provider: Provider,
    threads: NonZeroUsize,
) -> OnnxRuntime {
    let mut profile = provider.unmeasured_profile(library.build_info());
    let opened = |profile| OnnxRuntime::new(library.clone(), provider.clone(), profile, threads);
    measure::measure_processor(&opened(profile.clone())).write_to_profile(&mut profile, &[]);
    opened(profile)
}
