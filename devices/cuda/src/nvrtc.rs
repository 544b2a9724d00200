//! Compiles translated kernels from CUDA C++ to PTX with NVRTC, NVIDIA's run-time compiler.

use cudarc::nvrtc::{CompileOptions, Ptx, compile_ptx_with_opts};

/// Returns the compute capability to compile for where no card is present: Volta, or the oldest
/// that CUDA still supports.
#[must_use]
#[expect(unsafe_code, reason = "the compiler writes as many numbers as it says")]
pub fn oldest_capability() -> Option<(u8, u8)> {
    use cudarc::nvrtc::sys;

    let mut count = 0;
    // SAFETY: it writes one number.
    let said = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) };
    if said != sys::nvrtcResult::NVRTC_SUCCESS {
        return None;
    }
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: it writes as many numbers as it said just now.
    let said = unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
    if said != sys::nvrtcResult::NVRTC_SUCCESS {
        return None;
    }
    let oldest = known.into_iter().filter(|known| *known >= 70).min();
    let oldest = u8::try_from(oldest?).ok()?;
    Some((oldest / 10, oldest % 10))
}

/// Compiles a translated kernel. Cards of this compute capability and later ones can load it.
///
/// # Errors
/// The compiler's own text.
pub fn compile_ptx(source: &str, capability: (u8, u8)) -> Result<Ptx, String> {
    let (major, minor) = capability;
    let options = CompileOptions {
        options: vec![
            format!("--gpu-architecture=compute_{major}{minor}"),
            "--device-as-default-execution-space".to_owned(),
            "--std=c++17".to_owned(),
        ],
        ..CompileOptions::default()
    };
    compile_ptx_with_opts(source, options).map_err(|error| format!("{error:?}"))
}
