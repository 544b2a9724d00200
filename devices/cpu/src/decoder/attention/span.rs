//! Computes what several queries get from one span, a fixed number of consecutive positions in the
//! caches: scores, shares and sums of values. The tasks of attention call it for every span that
//! their rows see.
//!
//! The queries share the load of each key or value. A score runs along its key, a sum of values
//! along positions, each in one chain of additions. Therefore a query gives the same bits whichever
//! queries are computed with it.

use std::ops::Range;

use super::SPAN;
use crate::decoder::lanes::{Array, LANES, LaneIsa, Lanes};
use crate::tiled::row_math::{EXPONENTIAL_FACTORS, hyperbolic_tangent};

/// Below this the exponential is negligible, and its exponent would not fit a float.
const EXPONENT_MIN: f32 = -87.0;
/// Added to a float it leaves the nearest whole number in the lowest bits.
const ROUND: f32 = 12_582_912.0;

/// Queries and a head of two caches.
pub(super) struct HeadAttention {
    /// Sixteen positions side by side, number by number.
    pub keys: *const f32,
    /// Position by position, each a whole number of sixteens long.
    pub values: *const f32,
    /// Numbers of a position.
    pub width: usize,
    pub scale: f32,
    /// Bound on the scores.
    pub limit: Option<f32>,
    /// Each query, and the positions it sees.
    pub queries: Vec<(*const f32, Range<usize>)>,
}

/// Writes the results of the queries over a span: their sums of values, their largest scores, and
/// the sums of their shares, which are zero where a query sees no position of the span.
#[expect(unsafe_code, reason = "built for each set of instructions")]
pub(super) fn attend_span(isa: LaneIsa, look: &HeadAttention, span: usize, found: &mut [f32]) {
    let within = |position: usize| position.saturating_sub(span * SPAN).min(SPAN);
    let seen = look.queries.iter().map(|(_, seen)| seen);
    let starts: Vec<usize> = seen.clone().map(|seen| within(seen.start)).collect();
    let ends = seen
        .zip(&starts)
        .map(|(seen, start)| match within(seen.end) {
            end if end > *start => end,
            _ => 0,
        });
    let mut job = SpanJob {
        look,
        span,
        counts: ends.collect(),
        starts,
        shares: vec![0.0; look.queries.len() * SPAN],
        found,
    };
    // SAFETY: the set of instructions was found on this processor.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            LaneIsa::Vnni => look_512(&mut job),
            #[cfg(target_arch = "x86_64")]
            LaneIsa::Avx2 => look_256(&mut job),
            // Attention multiplies no bytes.
            #[cfg(target_arch = "aarch64")]
            LaneIsa::NeonDots | LaneIsa::Neon => job.run::<crate::decoder::lanes::neon::Neon>(),
            LaneIsa::Plain => job.run::<Array>(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
#[expect(unsafe_code, reason = "built for wider vectors; the caller has them")]
unsafe fn look_512(job: &mut SpanJob<'_>) {
    // SAFETY: the caller's contract, handed on.
    unsafe { job.run::<crate::decoder::lanes::x86::Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[expect(unsafe_code, reason = "built for wider vectors; the caller has them")]
unsafe fn look_256(job: &mut SpanJob<'_>) {
    // SAFETY: the caller's contract, handed on.
    unsafe { job.run::<crate::decoder::lanes::x86::Half>() }
}

struct SpanJob<'a> {
    look: &'a HeadAttention,
    span: usize,
    /// Positions of the span up to the last that each query sees; 0 where it sees none.
    counts: Vec<usize>,
    /// The first of these positions that each query sees.
    starts: Vec<usize>,
    /// Of each query, for each position of the span.
    shares: Vec<f32>,
    found: &'a mut [f32],
}

/// Calls a method for some queries after the other: as many at once as registers hold, with as
/// many vectors of the other side as there are registers left.
macro_rules! tiles {
    ($count:expr, |$first:ident, $number:ident, $vectors:ident| $call:expr) => {
        let mut $first = 0;
        while $first < $count {
            macro_rules! tile {
                ($n:literal, $v:literal) => {{
                    const $number: usize = $n;
                    const $vectors: usize = $v;
                    $call;
                    $first += $n;
                }};
            }
            match $count - $first {
                1 => tile!(1, 4),
                2 => tile!(2, 2),
                3 => tile!(3, 2),
                4 | 5 => tile!(4, 1),
                _ => tile!(6, 1),
            }
        }
    };
}

#[expect(unsafe_code, reason = "pointers keep the inner loops free of checks")]
impl SpanJob<'_> {
    /// # Safety
    /// The processor must have the instructions of `L`; queries and caches must be there and stay.
    #[inline(always)]
    unsafe fn run<L: Lanes>(&mut self) {
        let queries = self.counts.len();
        // SAFETY: the caller's contract handed on.
        unsafe {
            tiles!(queries, |first, N, V| self.compute_scores::<L, N, V>(first));
            for query in 0..queries {
                self.compute_shares::<L>(query);
            }
            tiles!(queries, |first, N, V| self.sum_values::<L, N, V>(first));
        }
    }

    /// Computes the scores of `N` queries, for `V` sixteens of positions at once while enough
    /// remain.
    #[inline(always)]
    unsafe fn compute_scores<L: Lanes, const N: usize, const V: usize>(&mut self, first: usize) {
        let most = *self.counts[first..first + N].iter().max().unwrap_or(&0);
        let groups = most.div_ceil(LANES);
        let mut group = 0;
        // SAFETY: caches have whole sixteens of positions.
        unsafe {
            while group + V <= groups {
                self.scores_at::<L, N, V>(first, group);
                group += V;
            }
            for group in group..groups {
                self.scores_at::<L, N, 1>(first, group);
            }
        }
    }

    #[inline(always)]
    unsafe fn scores_at<L: Lanes, const N: usize, const V: usize>(
        &mut self,
        first: usize,
        group: usize,
    ) {
        let width = self.look.width;
        let queries: [*const f32; N] =
            std::array::from_fn(|query| self.look.queries[first + query].0);
        let start = (self.span * SPAN + group * LANES) * width;
        let keys = self.look.keys.wrapping_add(start);
        let shares = self.shares[first * SPAN + group * LANES..].as_mut_ptr();
        // SAFETY: a query has as many numbers as a key, and caches have whole sixteens of
        // positions; a span's shares lie one query behind the other.
        unsafe {
            let mut sums = [[L::splat(0.0); V]; N];
            for at in 0..width {
                let mut loaded = [L::splat(0.0); V];
                for (group, key) in loaded.iter_mut().enumerate() {
                    *key = L::load_f32(keys.add((group * width + at) * LANES));
                }
                for (query, sums) in queries.iter().zip(&mut sums) {
                    let query = L::splat(*query.add(at));
                    for (sum, key) in sums.iter_mut().zip(loaded) {
                        *sum = key.times_plus(query, *sum);
                    }
                }
            }
            let scale = L::splat(self.look.scale);
            for (query, sums) in sums.into_iter().enumerate() {
                for (group, sum) in sums.into_iter().enumerate() {
                    sum.times(scale)
                        .store(shares.add(query * SPAN + group * LANES));
                }
            }
        }
    }

    /// Turns a query's scores into shares: exponentials of the differences from the largest.
    #[inline(always)]
    unsafe fn compute_shares<L: Lanes>(&mut self, query: usize) {
        let (queries, count) = (self.counts.len(), self.counts[query]);
        let start = self.starts[query].min(count);
        let shares = &mut self.shares[query * SPAN..][..count.next_multiple_of(LANES)];
        if let Some(limit) = self.look.limit {
            for score in &mut *shares {
                *score = limit * hyperbolic_tangent(*score / limit);
            }
        }
        shares[..start].fill(f32::NEG_INFINITY);
        shares[count..].fill(f32::NEG_INFINITY);
        let mut side_by_side = [0.0f32; LANES];
        let mut largest = f32::NEG_INFINITY;
        // SAFETY: sixteen floats are there each time.
        unsafe {
            let mut most = L::splat(f32::NEG_INFINITY);
            for part in shares.chunks_exact(LANES) {
                most = L::load_f32(part.as_ptr()).at_least(most);
            }
            most.store(side_by_side.as_mut_ptr());
            for score in side_by_side {
                largest = if score > largest { score } else { largest };
            }
            for part in shares.chunks_exact_mut(LANES) {
                let less = L::load_f32(part.as_ptr()).plus(L::splat(-largest));
                exponential(less).store(part.as_mut_ptr());
            }
            // A position that the query does not see has share zero, not the least share.
            shares[..start].fill(0.0);
            shares[count..].fill(0.0);
            let mut sum = L::splat(0.0);
            for part in shares.chunks_exact(LANES) {
                sum = sum.plus(L::load_f32(part.as_ptr()));
            }
            sum.store(side_by_side.as_mut_ptr());
        }
        let mut half = LANES;
        while half > 1 {
            half /= 2;
            for lane in 0..half {
                side_by_side[lane] += side_by_side[lane + half];
            }
        }
        let behind = self.found.len() - 2 * queries;
        self.found[behind + query] = largest;
        self.found[behind + queries + query] = side_by_side[0];
    }

    /// Sums the values of `N` queries, for `V` sixteens of numbers at once while enough remain.
    #[inline(always)]
    unsafe fn sum_values<L: Lanes, const N: usize, const V: usize>(&mut self, first: usize) {
        let counts = &self.counts[first..first + N];
        let shared = *counts.iter().min().unwrap_or(&0);
        let groups = self.look.width.div_ceil(LANES);
        let mut group = 0;
        // SAFETY: values have whole sixteens of numbers.
        unsafe {
            while group + V <= groups {
                self.weigh_at::<L, N, V>(first, group, 0..shared);
                group += V;
            }
            for group in group..groups {
                self.weigh_at::<L, N, 1>(first, group, 0..shared);
            }
            for query in first..first + N {
                let rest = shared..self.counts[query];
                for group in (0..groups).filter(|_| !rest.is_empty()) {
                    self.weigh_at::<L, 1, 1>(query, group, rest.clone());
                }
            }
        }
    }

    /// Adds values of some positions, or begins with them, each as much as its share says.
    #[inline(always)]
    unsafe fn weigh_at<L: Lanes, const N: usize, const V: usize>(
        &mut self,
        first: usize,
        group: usize,
        positions: Range<usize>,
    ) {
        let padded = self.look.width.next_multiple_of(LANES);
        let shares = self.shares[first * SPAN..].as_ptr();
        let to = self.found[first * padded + group * LANES..].as_mut_ptr();
        let start = self.span * SPAN * padded + group * LANES;
        let values = self.look.values.wrapping_add(start);
        // SAFETY: values have whole sixteens of numbers, and so have sums, one query behind the
        // other; positions are those of the span that all of these queries see.
        unsafe {
            let mut sums = [[L::splat(0.0); V]; N];
            if positions.start > 0 {
                for (query, sums) in sums.iter_mut().enumerate() {
                    for (group, sum) in sums.iter_mut().enumerate() {
                        *sum = L::load_f32(to.add(query * padded + group * LANES));
                    }
                }
            }
            for at in positions {
                let mut loaded = [L::splat(0.0); V];
                for (group, value) in loaded.iter_mut().enumerate() {
                    *value = L::load_f32(values.add(at * padded + group * LANES));
                }
                for (query, sums) in sums.iter_mut().enumerate() {
                    let share = L::splat(*shares.add(query * SPAN + at));
                    for (sum, value) in sums.iter_mut().zip(loaded) {
                        *sum = value.times_plus(share, *sum);
                    }
                }
            }
            for (query, sums) in sums.into_iter().enumerate() {
                for (group, sum) in sums.into_iter().enumerate() {
                    sum.store(to.add(query * padded + group * LANES));
                }
            }
        }
    }
}

/// Computes exponentials of values that are not above zero: powers of two, and a polynomial of the
/// rest of each exponent (Cephes' `expf`).
///
/// # Safety
/// The processor must have the instructions of `L`.
#[inline(always)]
#[expect(unsafe_code, reason = "vector instructions")]
unsafe fn exponential<L: Lanes>(value: L) -> L {
    // SAFETY: the caller's contract.
    unsafe {
        let value = value.at_least(L::splat(EXPONENT_MIN));
        let shifted = value.times_plus(L::splat(std::f32::consts::LOG2_E), L::splat(ROUND));
        let power = shifted.plus(L::splat(-ROUND));
        let rest = power.times_plus(L::splat(-0.693_359_4), value);
        let rest = power.times_plus(L::splat(2.121_944_4e-4), rest);
        let mut sum = L::splat(1.987_569_1e-4);
        for factor in EXPONENTIAL_FACTORS {
            sum = sum.times_plus(rest, L::splat(factor));
        }
        let sum = sum.times_plus(rest.times(rest), rest).plus(L::splat(1.0));
        sum.scale_by_power(shifted)
    }
}
