//! Attention of a group of queries that look at one head of keys and values.
//!
//! Keys and values are read once for all queries of the group, one position after the other: so a
//! sum's order depends on the position alone.

use super::DecoderModel;
use crate::tiled::exponentials::exponentials;
use crate::tiled::vectors::pass;

/// Numbers of a head that are summed side by side.
const LANES: usize = 16;

/// One head of two caches.
#[derive(Clone, Copy)]
pub(super) struct Caches {
    pub keys: *const f32,
    pub values: *const f32,
    /// Positions that are looked at.
    pub seen: usize,
    /// Floats of a position.
    pub width: usize,
}

/// What the queries of a group, one behind the other, find; written to `made`, as long as they.
#[expect(unsafe_code, reason = "caches and results are shared by threads")]
pub(super) fn group(
    model: &DecoderModel,
    caches: Caches,
    queries: &[f32],
    made: *mut f32,
    scale: f32,
) {
    let Caches { seen, width, .. } = caches;
    // SAFETY: the caches have room for what is seen, which earlier stages wrote; of this stage
    // nobody writes them. What is made is this task's alone, and as long as the queries.
    let (keys, values, made) = unsafe {
        (
            std::slice::from_raw_parts(caches.keys, seen * width),
            std::slice::from_raw_parts(caches.values, seen * width),
            std::slice::from_raw_parts_mut(made, queries.len()),
        )
    };
    let mut shares = vec![0.0; queries.len() / width * seen];
    scores(model.isa, &mut shares, queries, keys, (width, scale));
    let mut totals = Vec::with_capacity(queries.len() / width);
    for row in shares.chunks_exact_mut(seen) {
        let mut total = 0.0;
        exponentials(model.isa, row, &mut total);
        totals.push(total);
    }
    made.fill(0.0);
    weigh(model.isa, made, &shares, values, width);
    for (made, total) in made.chunks_exact_mut(width).zip(totals) {
        made.iter_mut().for_each(|value| *value /= total);
    }
}

pass! {
    /// Each query with each key.
    fn scores(to: &mut [f32], queries: &[f32], keys: &[f32], by: (usize, f32)) {
        let (width, scale) = by;
        let seen = keys.len() / width;
        for (at, key) in keys.chunks_exact(width).enumerate() {
            for (query, to) in queries.chunks_exact(width).zip(to.chunks_exact_mut(seen)) {
                let mut sums = [0.0f32; LANES];
                let (whole, rest) = (query.chunks_exact(LANES), width / LANES * LANES);
                for (query, key) in whole.zip(key.chunks_exact(LANES)) {
                    for (sum, (a, b)) in sums.iter_mut().zip(query.iter().zip(key)) {
                        *sum += a * b;
                    }
                }
                for (sum, (a, b)) in sums.iter_mut().zip(query[rest..].iter().zip(&key[rest..])) {
                    *sum += a * b;
                }
                let mut half = LANES;
                while half > 1 {
                    half /= 2;
                    for lane in 0..half {
                        sums[lane] += sums[lane + half];
                    }
                }
                to[at] = sums[0] * scale;
            }
        }
    }
}

pass! {
    /// Adds values, each as much as its share says.
    fn weigh(to: &mut [f32], shares: &[f32], values: &[f32], width: usize) {
        let seen = values.len() / width;
        for (at, value) in values.chunks_exact(width).enumerate() {
            for (to, shares) in to.chunks_exact_mut(width).zip(shares.chunks_exact(seen)) {
                let share = shares[at];
                for (to, value) in to.iter_mut().zip(value) {
                    *to += share * value;
                }
            }
        }
    }
}
