//! Describes products of matrices in the form that cuBLASLt requires, and decides which types and
//! strides of operands a card can multiply with it.
//!
//! cuBLASLt is column-major, so a product of matrices in C order is that of their transposes, the
//! right one before the left. A bias along the columns is then one along its rows, which cuBLASLt
//! adds itself. `cublas_lt`, which calls the library, therefore exchanges the two sides.

use cudarc::cublaslt::sys::{cublasComputeType_t, cublasLtEpilogue_t, cudaDataType_t};
use souk_memory::DType;

/// From this compute capability on, cards multiply 32-bit floats as TF32, and bf16 directly.
const AMPERE: (u8, u8) = (8, 0);
/// From this one on cards multiply integers of 8 bits in units for matrices.
const TURING: (u8, u8) = (7, 5);
/// Depth, columns and pitches of products of 8-bit integers must be multiples of this.
const BYTES: usize = 4;
/// From this compute capability on, cards multiply 8-bit floats directly.
pub(super) const ADA: (u8, u8) = (8, 9);
/// Depth, columns and pitches of products of 8-bit floats must be multiples of this.
const QUARTERS: usize = 16;

/// An activation that cuBLASLt can apply to the result of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedFunction {
    /// `Relu`.
    Relu,
    /// `Gelu` approximated by the hyperbolic tangent. No library has the exact one.
    GeluTanh,
}

/// How products of 32-bit floats are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumPrecision {
    /// Multiplies the floats as they are.
    Full,
    /// Multiplies the floats rounded to 19 bits, if the card can and the caller asked for it.
    Tf32,
}

/// One side of a product: its place, whether it is transposed, and the distances between its rows
/// and between its matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side<P> {
    /// Where it lies.
    pub place: P,
    /// Element type.
    pub dtype: DType,
    /// Whether its columns lie together, not its rows.
    pub is_transposed: bool,
    /// Elements from one stored row to the next.
    pub pitch: usize,
    /// Elements from one matrix of a batch to the next.
    pub stride: usize,
}

/// A batch of products: `known(factor * left * right + bias)` for each matrix. Sums have 32 bits
/// (integers, if the operands are 8-bit integers). If there are scales, each operand is multiplied
/// by its scale. `P` is a place: a buffer or an address.
#[derive(Clone, Debug, PartialEq)]
pub struct Product<P> {
    /// Type of the result and of the bias.
    pub made: DType,
    /// How it is summed.
    pub sums: SumPrecision,
    /// Rows of the left side and of the result.
    pub rows: usize,
    /// Columns of the right side and of the result.
    pub columns: usize,
    /// Columns of the left side, and rows of the right.
    pub depth: usize,
    /// How many matrices each side is.
    pub batch: usize,
    /// Factor of each product.
    pub factor: f32,
    /// The left side.
    pub left: Side<P>,
    /// The right side.
    pub right: Side<P>,
    /// Factors of the left and the right side: one 32-bit float each, on the card.
    pub scales: Option<[P; 2]>,
    /// One for each column.
    pub bias: Option<P>,
    /// Function of each element at the end.
    pub known: Option<FusedFunction>,
    /// Where the result goes.
    pub result: P,
}

/// The types and the epilogue of a call to the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CublasTypes {
    pub left: cudaDataType_t,
    pub right: cudaDataType_t,
    pub made: cudaDataType_t,
    pub compute: cublasComputeType_t,
    /// Type of the factor.
    pub factor: cudaDataType_t,
    pub epilogue: cublasLtEpilogue_t,
}

impl<P> Side<P> {
    /// A side by the steps of its rows and columns, if its rows or columns lie together.
    pub fn read(
        (place, dtype): (P, DType),
        (row, column): (usize, usize),
        stride: usize,
    ) -> Option<Self> {
        let (is_transposed, pitch) = match (row, column) {
            (pitch, 1) => (false, pitch),
            (1, pitch) => (true, pitch),
            _ => return None,
        };
        Some(Self {
            place,
            dtype,
            is_transposed,
            pitch,
            stride,
        })
    }

    fn map_place<Q>(&self, spell: impl Fn(&P) -> Option<Q>) -> Option<Side<Q>> {
        Some(Side {
            place: spell(&self.place)?,
            dtype: self.dtype,
            is_transposed: self.is_transposed,
            pitch: self.pitch,
            stride: self.stride,
        })
    }
}

impl<P> Product<P> {
    /// Converts its places with `spell`; returns `None` if one has no conversion.
    pub fn map_places<Q>(&self, spell: impl Fn(&P) -> Option<Q>) -> Option<Product<Q>> {
        let bias = match &self.bias {
            Some(bias) => Some(spell(bias)?),
            None => None,
        };
        let scales = match &self.scales {
            Some([left, right]) => Some([spell(left)?, spell(right)?]),
            None => None,
        };
        Some(Product {
            scales,
            left: self.left.map_place(&spell)?,
            right: self.right.map_place(&spell)?,
            bias,
            result: spell(&self.result)?,
            made: self.made,
            sums: self.sums,
            rows: self.rows,
            columns: self.columns,
            depth: self.depth,
            batch: self.batch,
            factor: self.factor,
            known: self.known,
        })
    }

    /// Returns a key of everything except addresses: products with one key use the same algorithm.
    pub fn algorithm_key(&self) -> Vec<u64> {
        let sides = [&self.left, &self.right].into_iter();
        let sides = sides.flat_map(|side| {
            let flag = u64::from(side.is_transposed);
            [flag, side.pitch as u64, side.stride as u64]
        });
        let code = |dtype: DType| u64::from(dtype.onnx_code().unsigned_abs());
        let known = match self.known {
            None => 0,
            Some(FusedFunction::Relu) => 1,
            Some(FusedFunction::GeluTanh) => 2,
        };
        let mut form = vec![
            code(self.left.dtype),
            code(self.right.dtype),
            code(self.made),
            u64::from(self.scales.is_some()),
            u64::from(self.sums == SumPrecision::Tf32),
            u64::from(self.factor.to_bits()),
            u64::from(self.bias.is_some()),
            known,
        ];
        form.extend([self.rows, self.columns, self.depth, self.batch].map(|it| it as u64));
        form.extend(sides);
        form
    }

    /// The terms for a card of this compute capability; `None` where it cannot do this product.
    pub fn compute_terms(&self, capability: (u8, u8)) -> Option<CublasTypes> {
        let is_ampere = capability >= AMPERE;
        let full = cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let compute = match (self.left.dtype, self.sums) {
            (DType::F32, SumPrecision::Tf32) if is_ampere => {
                cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
            }
            (DType::F32 | DType::F16, _) => full,
            (DType::Bf16, _) if is_ampere => full,
            (DType::F8E4M3Fn | DType::F8E5M2, _) if capability >= ADA => full,
            (DType::I8, _) if capability >= TURING => cublasComputeType_t::CUBLAS_COMPUTE_32I,
            _ => return None,
        };
        let is_laid = match self.left.dtype {
            DType::F8E4M3Fn | DType::F8E5M2 => self.is_square(),
            DType::I8 => self.right.dtype == DType::I8 && self.is_of_bytes(),
            dtype => self.right.dtype == dtype,
        };
        if !is_laid {
            return None;
        }
        Some(CublasTypes {
            left: data_type(self.left.dtype)?,
            right: data_type(self.right.dtype)?,
            made: data_type(self.made)?,
            compute,
            factor: match self.made {
                DType::I32 => cudaDataType_t::CUDA_R_32I,
                _ => cudaDataType_t::CUDA_R_32F,
            },
            epilogue: select_epilogue(self.bias.is_some(), self.known),
        })
    }
}

impl<P> Product<P> {
    /// Returns whether 8-bit integers lie as the library requires: rows along the depth on both
    /// sides, in multiples of four, with plain sums. The library also requires addresses at
    /// multiples of four bytes, which every buffer has.
    fn is_of_bytes(&self) -> bool {
        let is_even = [self.depth, self.columns, self.left.pitch, self.right.pitch]
            .iter()
            .all(|side| side.is_multiple_of(BYTES));
        self.has_both_along_depth()
            && is_even
            && self.batch == 1
            && self.factor == 1.0
            && self.is_bare(DType::I32)
    }

    fn has_both_along_depth(&self) -> bool {
        self.right.is_transposed && !self.left.is_transposed
    }

    /// Whether the product has no bias and no function at the end, and a result of this type.
    fn is_bare(&self, made: DType) -> bool {
        self.bias.is_none() && self.known.is_none() && self.made == made
    }

    /// Returns whether 8-bit floats lie as the library requires: rows along the depth on both
    /// sides, in multiples of sixteen, at least one side with the finer layout, no bias and no
    /// function at the end.
    fn is_square(&self) -> bool {
        let both = [self.left.dtype, self.right.dtype];
        let is_even = [self.depth, self.columns, self.left.pitch, self.right.pitch]
            .iter()
            .all(|side| side.is_multiple_of(QUARTERS));
        let is_fine = both != [DType::F8E5M2; 2] && both.into_iter().all(is_quarter);
        self.has_both_along_depth() && is_even && self.is_bare(DType::F32) && is_fine
    }
}

/// Whether the library multiplies this type of 8 bits.
fn is_quarter(dtype: DType) -> bool {
    matches!(dtype, DType::F8E4M3Fn | DType::F8E5M2)
}

/// A type as the library names it.
fn data_type(dtype: DType) -> Option<cudaDataType_t> {
    Some(match dtype {
        DType::F32 => cudaDataType_t::CUDA_R_32F,
        DType::F16 => cudaDataType_t::CUDA_R_16F,
        DType::Bf16 => cudaDataType_t::CUDA_R_16BF,
        DType::F8E4M3Fn => cudaDataType_t::CUDA_R_8F_E4M3,
        DType::F8E5M2 => cudaDataType_t::CUDA_R_8F_E5M2,
        DType::I8 => cudaDataType_t::CUDA_R_8I,
        DType::I32 => cudaDataType_t::CUDA_R_32I,
        _ => return None,
    })
}

/// Returns the library's epilogue for a bias and a function.
fn select_epilogue(has_bias: bool, known: Option<FusedFunction>) -> cublasLtEpilogue_t {
    match (has_bias, known) {
        (false, None) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
        (true, None) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
        (false, Some(FusedFunction::Relu)) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU,
        (true, Some(FusedFunction::Relu)) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS,
        (false, Some(FusedFunction::GeluTanh)) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU,
        (true, Some(FusedFunction::GeluTanh)) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_BIAS,
    }
}

/// Returns the step from one matrix of a batch to the next, if they lie evenly. `dims` are the
/// dimensions of the batch, and `steps` are those of one side along them.
pub fn even_stride(dims: &[usize], steps: &[usize]) -> Option<usize> {
    let mut lies: Vec<(usize, usize)> = dims.iter().copied().zip(steps.iter().copied()).collect();
    lies.retain(|(size, _)| *size != 1);
    let Some(&(_, last)) = lies.last() else {
        return Some(0);
    };
    let even = |pair: &[(usize, usize)]| pair[0].1 == pair[1].0 * pair[1].1;
    lies.windows(2).all(even).then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(dtype: DType) -> Product<()> {
        let side = Side::read(((), dtype), (64, 1), 0).unwrap();
        Product {
            scales: None,
            made: dtype,
            sums: SumPrecision::Full,
            rows: 32,
            columns: 64,
            depth: 64,
            batch: 1,
            factor: 1.0,
            left: side.clone(),
            right: side,
            bias: None,
            known: None,
            result: (),
        }
    }

    #[test]
    fn floats_are_rounded_before_they_are_multiplied_only_where_that_is_asked_for() {
        let full = cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let asked = Product {
            sums: SumPrecision::Tf32,
            ..product(DType::F32)
        };
        let compute = |product: &Product<()>, card| product.compute_terms(card).unwrap().compute;
        assert_eq!(compute(&product(DType::F32), (9, 0)), full);
        assert_eq!(
            compute(&asked, (8, 0)),
            cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
        );
        assert_eq!(compute(&asked, (7, 5)), full, "a card without it");
        assert_ne!(asked.algorithm_key(), product(DType::F32).algorithm_key());
    }

    #[test]
    fn a_card_is_asked_only_for_types_it_has() {
        assert_eq!(product(DType::Bf16).compute_terms((7, 5)), None);
        assert!(product(DType::Bf16).compute_terms((8, 0)).is_some());
        assert!(product(DType::F16).compute_terms((7, 0)).is_some());
        assert_eq!(product(DType::F64).compute_terms((9, 0)), None);
    }

    #[test]
    fn floats_of_8_bits_are_multiplied_where_they_lie_right_on_a_card_that_has_them() {
        let mut quarters = Product {
            made: DType::F32,
            scales: Some([(), ()]),
            ..product(DType::F8E4M3Fn)
        };
        quarters.right.is_transposed = true;
        let terms = quarters.compute_terms((8, 9)).unwrap();
        assert_eq!(terms.left, cudaDataType_t::CUDA_R_8F_E4M3);
        assert_eq!(terms.made, cudaDataType_t::CUDA_R_32F);
        assert_eq!(quarters.compute_terms((8, 6)), None);
        let refused = |change: fn(&mut Product<()>)| {
            let mut other = quarters.clone();
            change(&mut other);
            assert_eq!(other.compute_terms((9, 0)), None);
        };
        refused(|it| it.right.is_transposed = false);
        refused(|it| it.depth = 60);
        refused(|it| it.bias = Some(()));
        refused(|it| (it.left.dtype, it.right.dtype) = (DType::F8E5M2, DType::F8E5M2));
        refused(|it| it.right.dtype = DType::F16);
        quarters.left.dtype = DType::F8E5M2;
        assert!(quarters.compute_terms((9, 0)).is_some());
    }

    #[test]
    fn bytes_are_multiplied_where_they_lie_in_fours_along_the_depth() {
        let mut bytes = Product {
            made: DType::I32,
            ..product(DType::I8)
        };
        bytes.right.is_transposed = true;
        // Any number of rows, and fours that are no sixteens.
        (bytes.rows, bytes.depth, bytes.columns) = (7, 20, 12);
        (bytes.left.pitch, bytes.right.pitch) = (20, 20);
        let terms = bytes.compute_terms((7, 5)).unwrap();
        assert_eq!(terms.compute, cublasComputeType_t::CUBLAS_COMPUTE_32I);
        assert_eq!(terms.left, cudaDataType_t::CUDA_R_8I);
        assert_eq!(terms.made, cudaDataType_t::CUDA_R_32I);
        assert_eq!(terms.factor, cudaDataType_t::CUDA_R_32I);
        assert_eq!(
            bytes.compute_terms((7, 0)),
            None,
            "a card without the units"
        );
        let refused = |change: fn(&mut Product<()>)| {
            let mut other = bytes.clone();
            change(&mut other);
            assert_eq!(other.compute_terms((9, 0)), None);
        };
        refused(|it| it.right.is_transposed = false);
        refused(|it| it.left.is_transposed = true);
        refused(|it| it.depth = 18);
        refused(|it| it.columns = 10);
        refused(|it| it.left.pitch = 21);
        refused(|it| it.made = DType::F32);
        refused(|it| it.right.dtype = DType::U8);
        refused(|it| it.factor = 2.0);
        refused(|it| it.bias = Some(()));
        refused(|it| it.batch = 2);
        let floats = product(DType::F16).compute_terms((9, 0)).unwrap();
        assert_eq!(floats.factor, cudaDataType_t::CUDA_R_32F);
    }

    #[test]
    fn bias_and_function_are_the_librarys_epilogue() {
        let mut product = product(DType::F16);
        let mut epilogues = Vec::new();
        for bias in [None, Some(())] {
            for known in [
                None,
                Some(FusedFunction::Relu),
                Some(FusedFunction::GeluTanh),
            ] {
                (product.bias, product.known) = (bias, known);
                epilogues.push(product.compute_terms((9, 0)).unwrap().epilogue as u32);
            }
        }
        // As cuBLASLt's header numbers them.
        assert_eq!(epilogues, [1, 2, 32, 4, 6, 36]);
    }
}
