//! Embeds the bundled models and their test data into the program, for the demo, tests and
//! benchmarks. The folder of each model under `models/` also has the script that made it.

use bytes::Bytes;

/// A classifier of 8x8 images of digits, with images outside its training set.
///
/// Input `images` float32 `[batch, 1, 8, 8]` whose values should be from 0 to 16, output `logits`
/// float32 `[batch, 10]`; scikit-learn's digits, see `models/digits/make.py`.
pub mod digits {
    use super::Bytes;

    /// The ONNX model.
    pub const MODEL: Bytes = Bytes::from_static(include_bytes!("../models/digits/digits.onnx"));
    /// Held-out images as .npy, float32 `[360, 1, 8, 8]`.
    pub const IMAGES: Bytes = Bytes::from_static(include_bytes!("../models/digits/images.npy"));
    /// The digit each image shows, as .npy, int64 `[360]`.
    pub const LABELS: Bytes = Bytes::from_static(include_bytes!("../models/digits/labels.npy"));
}
