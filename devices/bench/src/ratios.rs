//! Compares a card with its maker's software: large products with the maker's library, and
//! memory-bound operators with a copy within the card.
//!
//! Our side is a compiled subgraph, as a buyer runs it: its inputs are on the card, and its output
//! stays there. The benchmark requests many operations in a row and waits once, so that neither
//! side pays for the link to the host.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use souk_cuda::{Block, CudaError, Driver, Product, Side, SumPrecision};
use souk_gpu::GpuConfig;
use souk_gpu::card::open_card as open_unmeasured;
use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::subgraph::CompileError;
use souk_onnx::work::{Extent, Work};
use souk_registry::sheet::{node_subgraph, wave_tensor};
use souk_vocabulary::processor::{Processor, RunError, WorkError};
use souk_vocabulary::residency::TensorHandle;
use thiserror::Error;

/// Large products must reach this part of the library's rate.
pub const PRODUCT_PART_MIN: f64 = 0.90;
/// Memory-bound operators must reach this part of a copy's rate.
pub const MEMORY_PART_MIN: f64 = 0.85;

/// Version of the operator set of the timed nodes.
const OPSET: i64 = 21;
/// Number of timed rounds of each side; the best counts.
const ROUNDS: usize = 3;
/// The card must complete all operations within this time.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Columns of the matrices for memory-bound operators.
const COLUMNS: usize = 4096;

/// The sizes to time.
#[derive(Clone, Debug)]
pub struct Extents {
    /// Sides of square matrices.
    pub sides: Vec<usize>,
    /// Rows of 4,096 elements for memory-bound kernels.
    pub rows: usize,
    /// Least time of a round.
    pub time: Duration,
}

impl Default for Extents {
    /// Returns products that fill any card, and arrays far larger than its caches.
    fn default() -> Self {
        Self {
            sides: vec![4096, 8192],
            rows: 16_384,
            time: Duration::from_millis(300),
        }
    }
}

/// The rates of one operation on both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratio {
    /// Operator, sizes and element type.
    pub name: String,
    /// Our operations or bytes per second.
    pub ours: f64,
    /// The maker's operations or bytes per second.
    pub makers: f64,
    /// Our rate must reach this part of the maker's.
    pub part_min: f64,
}

impl Ratio {
    /// Returns our part of the maker's rate; 0 if it is not finite.
    #[must_use]
    pub fn rate_fraction(&self) -> f64 {
        let part = self.ours / self.makers;
        if part.is_finite() { part } else { 0.0 }
    }

    /// Returns whether our rate is sufficient.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.rate_fraction() >= self.part_min
    }
}

/// Reasons why a card cannot be timed.
#[derive(Debug, Error)]
pub enum RatioError {
    /// The card is not accessible.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The maker's library is absent, or refuses this product.
    #[error("cuBLASLt is absent, or refuses products of {dtype}")]
    Products {
        /// Element type of the product.
        dtype: DType,
    },
    /// The card has too little memory.
    #[error("the card has no room for {bytes} bytes")]
    Memory {
        /// Bytes requested at once.
        bytes: u64,
    },
    /// An operation took too long.
    #[error("the card did not finish within {TIME_MAX:?}")]
    Hung,
    /// The card refused a subgraph, or it failed.
    #[error(transparent)]
    Work(#[from] WorkError),
}

impl RatioError {
    fn from_driver(reason: String) -> Self {
        CudaError::Driver { reason }.into()
    }
}

impl From<RunError> for RatioError {
    fn from(error: RunError) -> Self {
        WorkError::from(error).into()
    }
}

impl From<CompileError> for RatioError {
    fn from(error: CompileError) -> Self {
        WorkError::from(error).into()
    }
}

/// Times a card on both sides.
///
/// # Errors
/// [`RatioError`] if the card or library is absent, or an operation failed.
pub fn measure_ratios(ordinal: usize, extents: &Extents) -> Result<Vec<Ratio>, RatioError> {
    let card = open_unmeasured(ordinal, GpuConfig::default())?;
    let bare = DirectCard {
        driver: Driver::open(ordinal).map_err(RatioError::from_driver)?,
        time: extents.time,
    };
    let mut ratios = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for &side in &extents.sides {
            let dims = vec![side, side];
            let node = operator_node("MatMul", 2);
            let (seconds, work) =
                time_node(&card, &node, dtype, &[dims.clone(), dims], extents.time)?;
            let operations = work.operations as f64;
            ratios.push(Ratio {
                name: format!("MatMul {side}x{side} {dtype}"),
                ours: operations / seconds,
                makers: operations / bare.time_product(dtype, side)?,
                part_min: PRODUCT_PART_MIN,
            });
        }
    }
    let copied = bare.copy_rate((4 * extents.rows * COLUMNS) as u64)?;
    for (name, inputs) in [("Relu", 1), ("Add", 2), ("Softmax", 1), ("Transpose", 1)] {
        for dtype in [DType::F32, DType::F16] {
            let dims = vec![vec![extents.rows, COLUMNS]; inputs];
            let node = operator_node(name, inputs);
            let (seconds, work) = time_node(&card, &node, dtype, &dims, extents.time)?;
            let bytes = work.bytes_read.saturating_add(work.bytes_written);
            ratios.push(Ratio {
                name: format!("{name} {}x{COLUMNS} {dtype}", extents.rows),
                ours: bytes as f64 / seconds,
                makers: copied,
                part_min: MEMORY_PART_MIN,
            });
        }
    }
    Ok(ratios)
}

fn operator_node(name: &str, inputs: usize) -> NodeProto {
    NodeProto {
        op_type: Some(name.to_owned()),
        input: (0..inputs).map(|index| format!("x{index}")).collect(),
        output: vec!["y".to_owned()],
        ..NodeProto::default()
    }
}

/// Returns the seconds of a node on our side, and its work.
fn time_node(
    card: &dyn Processor,
    node: &NodeProto,
    dtype: DType,
    shapes: &[Vec<usize>],
    time: Duration,
) -> Result<(f64, Work), RatioError> {
    let tensors = shapes.iter().map(|dims| wave_tensor(dtype, dims));
    let given: BTreeMap<String, Tensor> = node.input.iter().cloned().zip(tensors).collect();
    let program = card.compile(&node_subgraph(
        node,
        OPSET,
        &given,
        &BTreeMap::new(),
        &[dtype],
    ))?;
    let memory = card
        .device_memory()
        .expect("a card has a memory of its own");
    let mut inputs = BTreeMap::new();
    for (name, tensor) in &given {
        inputs.insert(
            name.clone(),
            TensorHandle::Device(memory.copy_from_host(tensor)?),
        );
    }
    let small = memory.copy_from_host(&wave_tensor(DType::F32, &[1]))?;
    let kept = BTreeSet::from(["y".to_owned()]);
    let once = || {
        program
            .run_held(&inputs, &kept)
            .map(drop)
            .map_err(RatioError::from)
    };
    let wait = || small.to_host().map(drop).map_err(RatioError::from);
    let seconds = time_operation(time, once, wait)?;
    let extent = |dims| Extent { dtype, dims };
    let read: Vec<_> = shapes.iter().map(|dims| Some(extent(dims))).collect();
    let made = &shapes[0];
    let turned: Vec<usize> = made.iter().rev().copied().collect();
    let made = if node.op_type() == "Transpose" {
        &turned
    } else {
        made
    };
    Ok((seconds, Work::for_node(node, &read, &[extent(made)])))
}

/// Direct access to a card and its maker's library.
struct DirectCard {
    driver: Driver,
    time: Duration,
}

impl DirectCard {
    fn allocate_block(&self, bytes: u64) -> Result<Block, RatioError> {
        let block = self.driver.allocate_block(bytes);
        block.ok_or(RatioError::Memory { bytes })
    }

    /// Waits until the card has completed all operations.
    fn wait_until_idle(&self, block: &Block) -> Result<(), RatioError> {
        let read = self.driver.read(&[(block, 4)], TIME_MAX);
        let read = read.map_err(RatioError::from_driver)?;
        read.map(drop).ok_or(RatioError::Hung)
    }

    /// Returns the seconds of a product of two squares with the same values as ours.
    fn time_product(&self, dtype: DType, side: usize) -> Result<f64, RatioError> {
        let values = wave_tensor(dtype, &[side, side]);
        let bytes = values.bytes().len() as u64;
        let [left, right, made] = [
            self.allocate_block(bytes)?,
            self.allocate_block(bytes)?,
            self.allocate_block(bytes)?,
        ];
        for block in [&left, &right] {
            let written = self.driver.write(block, values.bytes());
            written.map_err(RatioError::from_driver)?;
        }
        let read = |block: &Block| Side {
            place: block.span(0, bytes),
            dtype,
            is_transposed: false,
            pitch: side,
            stride: side * side,
        };
        let product = Product {
            made: dtype,
            sums: SumPrecision::Full,
            rows: side,
            columns: side,
            depth: side,
            batch: 1,
            factor: 1.0,
            left: read(&left),
            right: read(&right),
            scales: None,
            bias: None,
            known: None,
            result: made.span(0, bytes),
        };
        if !self.driver.can_multiply(&product) {
            return Err(RatioError::Products { dtype });
        }
        let once = || {
            self.driver
                .multiply_matrices(&product)
                .map_err(RatioError::from_driver)
        };
        time_operation(self.time, once, || self.wait_until_idle(&made))
    }

    /// Returns the bytes per second, read and written, of a copy of this size.
    fn copy_rate(&self, bytes: u64) -> Result<f64, RatioError> {
        let [from, to] = [self.allocate_block(bytes)?, self.allocate_block(bytes)?];
        let spans = (from.span(0, bytes), to.span(0, bytes));
        let once = || {
            let copied = self.driver.copy_span(spans.0, spans.1);
            copied.map_err(RatioError::from_driver)
        };
        let seconds = time_operation(self.time, once, || self.wait_until_idle(&to))?;
        Ok(2.0 * bytes as f64 / seconds)
    }
}

/// Returns the seconds of one operation in a row of them that takes `time`, without the wait at the
/// end; the best of several rounds.
fn time_operation(
    time: Duration,
    once: impl Fn() -> Result<(), RatioError>,
    wait: impl Fn() -> Result<(), RatioError>,
) -> Result<f64, RatioError> {
    let row = |count: u32| {
        let start = Instant::now();
        (0..count).try_for_each(|_| once())?;
        wait()?;
        Ok::<Duration, RatioError>(start.elapsed())
    };
    row(1)?;
    let idle = row(0)?;
    let mut count = 1;
    while row(count)? < time {
        count *= 2;
    }
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let passed = row(count)?;
        let seconds = passed.saturating_sub(idle).as_secs_f64() / f64::from(count);
        best = best.min(seconds);
    }
    Ok(best.max(1e-9))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use souk_testing::card::{LOG, run_with_log};

    use super::*;

    #[test]
    fn a_ratio_is_met_at_its_part_and_not_where_nothing_was_measured() {
        let ratio = |ours, makers| Ratio {
            name: "MatMul".to_owned(),
            ours,
            makers,
            part_min: PRODUCT_PART_MIN,
        };
        assert!(ratio(9.0, 10.0).is_met());
        assert!(!ratio(8.9, 10.0).is_met());
        assert!(ratio(11.0, 10.0).is_met(), "faster than the maker's");
        assert!((ratio(8.5, 10.0).rate_fraction() - 0.85).abs() < 1e-12);
        assert!(!ratio(1.0, 0.0).is_met() && !ratio(0.0, 0.0).is_met());
    }

    #[test]
    fn rows_grow_until_they_take_the_time() {
        let (calls, waits) = (Cell::new(0_u32), Cell::new(0));
        let once = || {
            calls.set(calls.get() + 1);
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        };
        let wait = || {
            waits.set(waits.get() + 1);
            Ok(())
        };
        time_operation(Duration::from_millis(8), once, wait).unwrap();
        assert!(calls.get() > waits.get(), "many are waited for once");
        let failed = time_operation(Duration::ZERO, || Err(RatioError::Hung), || Ok(()));
        assert!(matches!(failed, Err(RatioError::Hung)));
    }

    #[test]
    fn no_card_is_said() {
        if souk_cuda::list_devices().is_ok() {
            return;
        }
        let said = measure_ratios(0, &Extents::default())
            .unwrap_err()
            .to_string();
        assert!(said.contains("absent") || said.contains("CUDA"), "{said}");
    }

    /// Does nothing unless it is the process that [`noted`] began.
    #[test]
    fn ratios_in_their_own_process() {
        if std::env::var_os(LOG).is_none() {
            return;
        }
        let extents = Extents {
            sides: vec![64],
            rows: 4,
            time: Duration::from_millis(1),
        };
        let found = measure_ratios(0, &extents).unwrap();
        let names: Vec<&str> = found.iter().map(|ratio| ratio.name.as_str()).collect();
        assert_eq!(names[..2], ["MatMul 64x64 f32", "MatMul 64x64 f16"]);
        assert_eq!(names.len(), 2 + 2 * 4, "{names:?}");
        assert!(
            found.iter().all(|ratio| ratio.rate_fraction() > 0.0),
            "{found:?}"
        );
        let absent = measure_ratios(7, &extents).unwrap_err().to_string();
        assert!(absent.contains("no CUDA device 7"), "{absent}");
        println!("the card has run");
    }

    #[test]
    fn a_card_is_held_against_its_makers_library_and_copies() {
        let test = "ratios::tests::ratios_in_their_own_process";
        let Some(noted) = run_with_log(test) else {
            return;
        };
        let count = |line: &str| noted.iter().filter(|it| *it == line).count();
        let whole = count("product compute 68 epilogue 1 type 0");
        // Ours is launched and captured, then a graph; the maker's is asked for in five rows.
        assert!(whole >= 2 + 5, "both sides multiply: {noted:?}");
        assert!(count("copied within 65536") >= 4, "{noted:?}");
    }
}
