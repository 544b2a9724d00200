//! Compiling kernels for a card.

use cudarc::nvrtc::{CompileOptions, Ptx, compile_ptx_with_opts};

/// The oldest card that is compiled for where none is at hand: Volta, or what CUDA still knows.
#[cfg(test)]
#[expect(unsafe_code, reason = "the compiler writes as many numbers as it says")]
pub fn oldest() -> (u8, u8) {
    use cudarc::nvrtc::sys;

    let mut count = 0;
    // SAFETY: it writes one number.
    let said = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) };
    assert_eq!(said, sys::nvrtcResult::NVRTC_SUCCESS);
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: it writes as many numbers as it said just now.
    let said = unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
    assert_eq!(said, sys::nvrtcResult::NVRTC_SUCCESS);
    let oldest = known.into_iter().filter(|known| *known >= 70).min();
    let oldest = oldest.and_then(|known| u8::try_from(known).ok());
    let oldest = oldest.expect("a compiler for some card");
    (oldest / 10, oldest % 10)
}

/// Compiles a translated kernel. The error is the compiler's own text.
pub fn compile(source: &str, capability: (u8, u8)) -> Result<Ptx, String> {
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
