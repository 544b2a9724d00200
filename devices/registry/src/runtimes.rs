//! Opens processors through ONNX Runtime and measures them.

use std::num::NonZeroUsize;
use std::sync::Arc;

use souk_onnxruntime::{Library, OnnxRuntime, Provider};

use crate::measure;

/// Opens a provider's processor and measures it, which takes about a second.
#[must_use]
pub fn measured(library: Arc<Library>, provider: Provider, threads: NonZeroUsize) -> OnnxRuntime {
    let mut profile = provider.profile(library.build());
    let opened = |profile| OnnxRuntime::new(library.clone(), provider.clone(), profile, threads);
    measure::processor(&opened(profile.clone())).note(&mut profile, &[]);
    opened(profile)
}
