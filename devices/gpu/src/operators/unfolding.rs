//! The WGSL that finds the element of an image under each place of a window, and the kernel that
//! unfolds an image into the matrix that a convolution multiplies. Convolutions and the maker's
//! library use them.

#[cfg(feature = "cuda")]
use crate::shaders::{BY_THREAD, bindings, prelude};

/// Where the window at result place `n` with its kernel at place `k` reads: `tap(k, n)` is the
/// place in the image, or none (-1). The geometry lies from `p[4]` on.
pub(crate) const TAP: &str = r"
fn tap(k: u32, n: u32) -> i32 {
  let kx = k % p[9]; let ky = (k / p[9]) % p[8]; let kz = k / (p[9] * p[8]);
  let ox = n % p[12]; let oy = (n / p[12]) % p[11]; let oz = n / (p[12] * p[11]);
  let z = i32(oz * p[13] + kz * p[16]) - i32(p[19]);
  let y = i32(oy * p[14] + ky * p[17]) - i32(p[20]);
  let x = i32(ox * p[15] + kx * p[18]) - i32(p[21]);
  if (z < 0 || y < 0 || x < 0 || z >= i32(p[4]) || y >= i32(p[5]) || x >= i32(p[6])) { return -1; }
  return (z * i32(p[5]) + y) * i32(p[6]) + x;
}
";

/// Returns the WGSL of the kernel that unfolds an image into a matrix, with which a convolution is
/// a product. It has a thread for each element of that matrix.
#[cfg(feature = "cuda")]
pub(crate) fn unfold_kernel() -> String {
    let arrays = bindings(&[("x", "f32"), ("y", "f32")], 1);
    let prelude = prelude(&arrays);
    format!(
        r"{prelude}{arrays}{TAP}{BY_THREAD}
  let n = i % p[1];
  let k = (i / p[1]) % p[2];
  let z = i / (p[1] * p[2]);
  let at = tap(k % p[23], n);
  var v = 0.0;
  if (at >= 0) {{ v = x[(z * p[22] + k / p[23]) * (p[4] * p[5] * p[6]) + u32(at)]; }}
  y[i] = v;
}}"
    )
}
