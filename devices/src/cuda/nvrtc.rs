//! Compiling kernels for a card.

use cudarc::nvrtc::{CompileOptions, Ptx, compile_ptx_with_opts};

/// The oldest card that is compiled for where none is at hand: Volta.
#[cfg(test)]
pub(super) const OLDEST: (u8, u8) = (7, 0);

/// Compiles a translated kernel. The error is the compiler's own text.
pub(super) fn compile(source: &str, capability: (u8, u8)) -> Result<Ptx, String> {
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
