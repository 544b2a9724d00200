//! Tests the decoder's attention: right results at every vector width, and the same bits whichever
//! rows are computed together.

use souk_memory::Tensor;

use super::super::cache::CacheOrder;
use super::*;
use crate::tiled::worker_pool;

/// Numbers that differ, between minus one and one.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let number = |at: u32| {
        let word = (at.wrapping_add(seed)).wrapping_mul(2_654_435_761);
        (word >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count as u32).map(number).collect()
}

/// The blocks of so many rows from the first position on.
fn blocks(length: usize) -> Vec<RowBlock> {
    let place = |row: usize| RowPlace {
        sequence: 0,
        write: row,
        seen: row + 1,
    };
    RowBlock::from_places(&(0..length).map(place).collect::<Vec<_>>())
}

/// Sizes, and a sequence's queries, keys and values.
struct Sequence {
    heads: usize,
    group: usize,
    width: usize,
    length: usize,
    limit: Option<f32>,
    window: Option<usize>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Sequence {
    fn new(heads: usize, group: usize, width: usize, length: usize) -> Self {
        let caches = heads * length * width;
        let mut queries = numbers(length * heads * group * width, 1);
        queries.iter_mut().for_each(|it| *it *= 4.0);
        Self {
            heads,
            group,
            width,
            length,
            limit: None,
            window: None,
            queries,
            keys: numbers(caches, 2),
            values: numbers(caches, 3),
        }
    }

    fn stride(&self) -> usize {
        self.heads * self.group * self.width
    }

    /// What rows find, taken together in these blocks; `parts` is how many tasks share each head.
    fn found(&self, lane_isa: LaneIsa, blocks: &[RowBlock]) -> Vec<f32> {
        let cache = |order: CacheOrder, floats: &[f32]| {
            let (heads, room, width) = (self.heads, self.length, self.width);
            let shape = CacheShape {
                order,
                heads,
                room,
                width,
            };
            (shape.pack_cache(floats), shape)
        };
        let (keys, keys_shape) = cache(CacheOrder::Keys, &self.keys);
        let (values, values_shape) = cache(CacheOrder::Values, &self.values);
        let mut own = [keys, values];
        let caches = [worker_pool::to_memories(&mut own)];
        let places = blocks.len() * self.heads;
        let each = found_floats(ROWS * self.group, self.width);
        let mut shared = SpanResults {
            floats: AlignedFloats::zeros(places * max_span_count(blocks) * each),
            done: (0..places).map(|_| AtomicUsize::new(0)).collect(),
        };
        let mut made = vec![f32::NAN; self.queries.len()];
        let attention = CacheAttention {
            isa: Isa::detect_widest(),
            lane_isa,
            blocks,
            caches: &caches,
            keys: (0, keys_shape),
            values: (1, values_shape),
            queries: self.queries.as_ptr(),
            made: made.as_mut_ptr(),
            stride: self.stride(),
            group: self.group,
            scale: 0.5,
            limit: self.limit,
            window: self.window,
            shared: shared.shared_memory(),
        };
        // The last task first: whoever is last joins, wherever its spans are.
        let tasks = task_count(blocks, self.heads);
        (0..tasks).rev().for_each(|task| attention.run_task(task));
        made
    }

    /// What a query finds, in 64 bits.
    fn exact(&self, row: usize, query: usize) -> Vec<f64> {
        let (width, head) = (self.width, query / self.group);
        let start = row * self.stride() + query * width;
        let query = &self.queries[start..start + width];
        let at = |floats: &[f32], position: usize| {
            let start = (head * self.length + position) * width;
            floats[start..start + width]
                .iter()
                .map(|it| f64::from(*it))
                .collect::<Vec<f64>>()
        };
        let score = |position: usize| {
            let key = at(&self.keys, position);
            let terms = query.iter().zip(&key).map(|(a, b)| f64::from(*a) * b);
            let score = terms.sum::<f64>() * 0.5;
            let limit = self.limit.map(f64::from);
            limit.map_or(score, |limit| limit * (score / limit).tanh())
        };
        let is_seen = |position: usize| self.window.is_none_or(|window| position + window > row);
        let share = |position: usize| match is_seen(position) {
            true => score(position).exp(),
            false => 0.0,
        };
        let shares: Vec<f64> = (0..=row).map(share).collect();
        let mut sums = vec![0.0; width];
        for (position, share) in shares.iter().enumerate() {
            for (sum, value) in sums.iter_mut().zip(at(&self.values, position)) {
                *sum += share * value / shares.iter().sum::<f64>();
            }
        }
        sums
    }
}

#[test]
fn rows_find_what_they_should_on_every_isa() {
    let sizes = [(2, 3, 24, 150), (1, 7, 16, 65), (3, 1, 64, 70)];
    let looks = [
        (None, None),
        (Some(2.0), None),
        (None, Some(1)),
        (None, Some(64)),
        (Some(2.0), Some(69)),
    ];
    for ((heads, group, width, length), (limit, window)) in sizes
        .into_iter()
        .flat_map(|it| looks.map(|look| (it, look)))
    {
        let mut sequence = Sequence::new(heads, group, width, length);
        (sequence.limit, sequence.window) = (limit, window);
        let parts = (0..length).flat_map(|row| (0..heads * group).map(move |head| (row, head)));
        let exact: Vec<_> = parts.map(|(row, head)| sequence.exact(row, head)).collect();
        for isa in LaneIsa::all_supported() {
            let found = sequence.found(isa, &blocks(length));
            assert_eq!(found.len(), exact.len() * width);
            for (part, exact) in found.chunks(width).zip(&exact) {
                for (found, exact) in part.iter().zip(exact) {
                    assert!(
                        (f64::from(*found) - exact).abs() < 1e-5,
                        "{isa:?} {found} {exact}"
                    );
                }
            }
        }
    }
}

/// The id of what rows find by fused instructions, without a limit and a window, and with both.
const FUSED: [&str; 2] = [
    "587ad065f3650ba56394b354fe701f2ed455ec203480a6409b3ca8b865716056",
    "3c3bd1ed578a7c9a3e37a8ab3085f8feddd2c6da37bcb31415d0db1dd81ccd08",
];

#[test]
fn fused_rows_find_the_bits_of_the_table_on_every_processor() {
    let mut sequence = Sequence::new(2, 3, 24, 150);
    let looks = [(None, None), (Some(2.0), Some(69))];
    for ((limit, window), expected) in looks.into_iter().zip(FUSED) {
        (sequence.limit, sequence.window) = (limit, window);
        for isa in LaneIsa::all_supported() {
            let found = sequence.found(isa, &blocks(150));
            let found = Tensor::from_vec([found.len()], found)
                .unwrap()
                .id()
                .to_string();
            let is_fused = isa != LaneIsa::Plain;
            assert_eq!(found == expected, is_fused, "{isa:?} {found}");
        }
    }
}

#[test]
fn a_row_finds_the_same_bits_alone_and_in_any_company() {
    let length = 500;
    let mut sequence = Sequence::new(2, 3, 24, length);
    let looks = LaneIsa::all_supported().into_iter();
    for (isa, window) in looks.flat_map(|isa| [(isa, None), (isa, Some(100))]) {
        sequence.window = window;
        let blocks = blocks(length);
        assert_eq!(
            task_count(&blocks, 2),
            blocks.len() * 2,
            "no head of a block is shared out"
        );
        let together = sequence.found(isa, &blocks);
        for row in [0, 15, 16, 63, 64, 300, 499] {
            for count in [1, 3] {
                let first = (row + 1usize).saturating_sub(count);
                let block = RowBlock {
                    first,
                    count: row + 1 - first,
                    seen: first + 1,
                    sequence: 0,
                };
                assert!(
                    row < SPAN || task_count(&[block], 2) > 2,
                    "spans are shared out"
                );
                let alone = sequence.found(isa, &[block]);
                let rows = first * sequence.stride()..(row + 1) * sequence.stride();
                assert!(alone[rows.clone()] == together[rows], "{isa:?} row {row}");
            }
        }
    }
}

/// Numbers that a row does not see are nothing to it, even where they are none.
#[test]
fn what_a_row_does_not_see_is_nothing_to_it() {
    let mut sequence = Sequence::new(1, 3, 16, 70);
    let before = sequence.found(LaneIsa::best_supported(), &blocks(70));
    for cache in [&mut sequence.keys, &mut sequence.values] {
        cache[66 * 16..].fill(f32::NAN);
    }
    let after = sequence.found(LaneIsa::best_supported(), &blocks(70));
    let seen = ..66 * sequence.stride();
    assert!(before[seen] == after[seen]);
    assert!(after[66 * sequence.stride()..].iter().all(|it| it.is_nan()));
}
