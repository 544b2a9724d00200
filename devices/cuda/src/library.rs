//! Checks which of CUDA's libraries this machine has. souk must check before it calls cudarc,
//! because cudarc panics if a library is missing.

#![expect(unsafe_code, reason = "opening a library runs its initialisers")]

use thiserror::Error;

/// A CUDA library that this machine does not have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("CUDA is absent: {library} not found; {remedy}")]
pub struct MissingLibrary {
    /// File name of the library.
    pub library: &'static str,
    /// What to install to get it.
    pub remedy: &'static str,
}

/// Checks that the driver's library and the compiler's are there. You must call this before you
/// open a card.
///
/// # Errors
/// Returns the first library that is missing.
pub fn check_libraries() -> Result<(), MissingLibrary> {
    // SAFETY: this opens a library, if there is one, and reads nothing in it.
    let driver = unsafe { cudarc::driver::sys::is_culib_present() };
    // SAFETY: as above.
    let compiler = unsafe { cudarc::nvrtc::sys::is_culib_present() };
    if !driver {
        return Err(MissingLibrary {
            library: "libcuda.so.1",
            remedy: "it comes with NVIDIA's driver",
        });
    }
    if !compiler {
        return Err(MissingLibrary {
            library: "libnvrtc.so",
            remedy: "it comes with the CUDA toolkit and with PyPI's nvidia-cuda-nvrtc wheels",
        });
    }
    Ok(())
}

/// Returns whether cuBLASLt is there, the library of matrix products. Without it, souk's own kernel
/// computes products.
pub(super) fn has_cublaslt() -> bool {
    // SAFETY: this opens a library, if there is one, and reads nothing in it.
    unsafe { cudarc::cublaslt::sys::is_culib_present() }
}
