//! Estimates a path's latency and bandwidth from observed transfers, by a weighted line through
//! (bytes, seconds). It can separate the two only if transfers differ in size.

/// The factor by which each transfer reduces the weight of earlier ones.
const FADE: f64 = 0.95;

/// The sums for a line through the observed transfers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LineFit {
    weight: f64,
    bytes: f64,
    seconds: f64,
    bytes_squared: f64,
    product: f64,
}

impl LineFit {
    pub fn add(&mut self, bytes: f64, seconds: f64) {
        for (sum, value) in [
            (&mut self.weight, 1.0),
            (&mut self.bytes, bytes),
            (&mut self.seconds, seconds),
            (&mut self.bytes_squared, bytes * bytes),
            (&mut self.product, bytes * seconds),
        ] {
            *sum = *sum * FADE + value;
        }
    }

    /// Returns the latency in seconds and the bytes per second. While all transfers have about one
    /// size, it uses the known latency and derives the bandwidth from the rest of the time. Returns
    /// `None` if the transfers determine neither.
    pub fn latency_and_bandwidth(&self, latency_known: f64) -> Option<(f64, f64)> {
        let (mean_bytes, mean_seconds) = (self.bytes / self.weight, self.seconds / self.weight);
        let spread = self.bytes_squared / self.weight - mean_bytes * mean_bytes;
        // With sizes that differ by less than a tenth, only noise would separate latency and
        // bandwidth.
        if spread > 0.01 * mean_bytes * mean_bytes {
            let slope = (self.product / self.weight - mean_bytes * mean_seconds) / spread;
            let latency = (mean_seconds - slope * mean_bytes).max(0.0);
            return (slope > 0.0).then(|| (latency, 1.0 / slope));
        }
        let moving = mean_seconds - latency_known;
        (moving > 0.0 && mean_bytes > 0.0).then(|| (latency_known, mean_bytes / moving))
    }
}
