//! The CUDA libraries that are present. This module opens them first, because the layer below ends
//! the process if one is missing.

#![expect(
    unsafe_code,
    reason = "opening a library runs what that does when it is opened"
)]

use thiserror::Error;

/// A library that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("CUDA is absent: {library} not found; {remedy}")]
pub struct MissingLibrary {
    /// File name of the library.
    pub library: &'static str,
    /// Where it comes from.
    pub remedy: &'static str,
}

/// Whether the driver and the compiler are there. You must check this before you open a card.
///
/// # Errors
/// [`MissingLibrary`], the first that is not.
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

/// Whether the library of matrix products is there; without it products take our own kernel.
pub(super) fn has_products() -> bool {
    // SAFETY: this opens a library, if there is one, and reads nothing in it.
    unsafe { cudarc::cublaslt::sys::is_culib_present() }
}
