//! Multiplies matrices with cuBLASLt: describes each product to the library, and keeps the
//! algorithm that the library chose for it.

#![expect(
    unsafe_code,
    reason = "the library is called with handles and addresses; each block says why they hold"
)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{self, cublasLtMatmulDescAttributes_t as Attribute, cudaDataType_t};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::{Span, error_text};
use crate::product::{CublasTypes, Product, Side};

/// Memory that cuBLASLt's kernels can use: as much as NVIDIA advises, from Hopper on and before.
const WORKSPACE_BYTES: usize = 4 << 20;
const WORKSPACE_BYTES_HOPPER: usize = 32 << 20;
const HOPPER: (u8, u8) = (9, 0);
/// Upper bound on the forms of products whose algorithm the library keeps.
const ALGORITHMS_MAX: usize = 4096;

/// cuBLASLt, opened for one card.
pub(super) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: CudaSlice<u8>,
    stream: Arc<CudaStream>,
    capability: (u8, u8),
    /// The algorithm for each form of product; `None` for a form that the library refused.
    algorithms: Mutex<BTreeMap<Vec<u64>, Option<Algorithm>>>,
}

#[derive(Clone, Copy)]
struct Algorithm {
    terms: CublasTypes,
    cublas: sys::cublasLtMatmulAlgo_t,
}

// SAFETY: the library says that its handle can be used by several threads.
unsafe impl Send for CublasLt {}
// SAFETY: as above; a lock guards the mutable part.
unsafe impl Sync for CublasLt {}

/// The description of a product: its operation, and the layouts of the operands and the result.
struct ProductDescription {
    operation: sys::cublasLtMatmulDesc_t,
    /// Of the right side, the left side and the result, in the library's order.
    layouts: Vec<sys::cublasLtMatrixLayout_t>,
}

impl CublasLt {
    /// Opens the library for a card.
    pub(super) fn open(stream: Arc<CudaStream>, capability: (u8, u8)) -> Result<Self, String> {
        let bytes = match capability >= HOPPER {
            true => WORKSPACE_BYTES_HOPPER,
            false => WORKSPACE_BYTES,
        };
        // SAFETY: the library's kernels write the workspace before they read it.
        let workspace = unsafe { stream.alloc::<u8>(bytes) }.map_err(error_text)?;
        Ok(Self {
            handle: result::create_handle().map_err(error_text)?,
            workspace,
            stream,
            capability,
            algorithms: Mutex::default(),
        })
    }

    /// Returns whether the library computes such a product on this card.
    pub(super) fn can_multiply<P>(&self, product: &Product<P>) -> bool {
        self.find_algorithm(product).is_some()
    }

    /// Returns the algorithm of a product, which it asks of the library once.
    fn find_algorithm<P>(&self, product: &Product<P>) -> Option<Algorithm> {
        let form = product.algorithm_key();
        let mut algorithms = self
            .algorithms
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(algorithm) = algorithms.get(&form) {
            return *algorithm;
        }
        let algorithm = product
            .compute_terms(self.capability)
            .and_then(|terms| self.query_algorithm(product, terms).ok());
        if algorithms.len() >= ALGORITHMS_MAX {
            algorithms.clear();
        }
        algorithms.insert(form, algorithm);
        algorithm
    }

    /// Asks the library for its fastest algorithm.
    fn query_algorithm<P>(
        &self,
        product: &Product<P>,
        terms: CublasTypes,
    ) -> Result<Algorithm, CublasError> {
        let description = ProductDescription::for_product(product, terms)?;
        let preference = result::create_matmul_pref()?;
        let bytes = self.workspace.len();
        let most =
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the attribute is one `size_t`, which is read before the call returns; all
        // handles are those just made.
        let found = unsafe {
            let place = ptr::from_ref(&bytes).cast();
            result::set_matmul_pref_attribute(preference, most, place, size_of::<usize>()).and_then(
                |()| {
                    let [right, left, made] = description.to_layouts();
                    result::get_matmul_algo_heuristic(
                        self.handle,
                        description.operation,
                        right,
                        left,
                        made,
                        made,
                        preference,
                    )
                },
            )
        };
        // SAFETY: this function created it and does not use it again.
        unsafe { result::destroy_matmul_pref(preference) }?;
        Ok(Algorithm {
            terms,
            cublas: found?.algo,
        })
    }

    /// Computes a product that the library does not refuse.
    pub(super) fn multiply_matrices(&self, product: &Product<Span>) -> Result<(), String> {
        let algorithm = self.find_algorithm(product);
        let algorithm =
            algorithm.ok_or_else(|| "the library of products refused this one".to_owned())?;
        let description =
            ProductDescription::for_product(product, algorithm.terms).map_err(error_text)?;
        if let Some(bias) = &product.bias {
            let place = Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            description
                .set_attribute(place, &bias.address())
                .map_err(error_text)?;
        }
        if let Some([left, right]) = &product.scales {
            let first = Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER;
            description
                .set_attribute(first, &right.address())
                .map_err(error_text)?;
            let second = Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER;
            description
                .set_attribute(second, &left.address())
                .map_err(error_text)?;
        }
        let [right, left, made] = description.to_layouts();
        // Both are of the sums' type: a float, or for 8-bit integers one of 32 bits. Zero has the
        // same bits in both.
        let alpha = match algorithm.terms.factor {
            cudaDataType_t::CUDA_R_32I => (product.factor as i32).cast_unsigned(),
            _ => product.factor.to_bits(),
        };
        let beta = 0u32;
        let (workspace, _held) = self.workspace.device_ptr(&self.stream);
        // SAFETY: the layouts describe the shapes of the memory named here, which the caller keeps
        // alive. Both factors have the scale's type, and the call reads them before it returns.
        let status = unsafe {
            result::matmul(
                self.handle,
                description.operation,
                ptr::from_ref(&alpha).cast(),
                ptr::from_ref(&beta).cast(),
                to_pointer(product.right.place.address()),
                right,
                to_pointer(product.left.place.address()),
                left,
                to_pointer(product.result.address()),
                made,
                to_pointer(product.result.address()).cast_mut(),
                made,
                &raw const algorithm.cublas,
                to_pointer(workspace).cast_mut(),
                self.workspace.len(),
                self.stream.cu_stream().cast(),
            )
        };
        status.map_err(error_text)
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle and does not use it again. If the release fails, no
        // caller can do anything about it.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl ProductDescription {
    fn for_product<P>(product: &Product<P>, terms: CublasTypes) -> Result<Self, CublasError> {
        let operation = result::create_matmul_desc(terms.compute, terms.factor)?;
        let mut description = Self {
            operation,
            layouts: Vec::with_capacity(3),
        };
        let flip = |side: &Side<P>| u32::from(side.is_transposed);
        description.set_attribute(
            Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
            &flip(&product.right),
        )?;
        description.set_attribute(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &flip(&product.left))?;
        description.set_attribute(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &terms.epilogue)?;
        let Product {
            rows,
            columns,
            depth,
            ..
        } = *product;
        description.add_layout(terms.right, &product.right, columns, depth, product)?;
        description.add_layout(terms.left, &product.left, depth, rows, product)?;
        let made = Side {
            place: (),
            dtype: product.made,
            is_transposed: false,
            pitch: columns,
            stride: rows * columns,
        };
        description.add_layout(terms.made, &made, columns, rows, product)?;
        Ok(description)
    }

    /// Sets one attribute of the operation.
    fn set_attribute<T>(&self, attribute: Attribute, value: &T) -> Result<(), CublasError> {
        let place = ptr::from_ref(value).cast();
        // SAFETY: the value has the attribute's type, and is read before the call returns.
        unsafe {
            result::set_matmul_desc_attribute(self.operation, attribute, place, size_of::<T>())
        }
    }

    /// Adds a layout: `rows` by `columns` in the library's order, once it is turned.
    fn add_layout<P, Q>(
        &mut self,
        data: cudaDataType_t,
        side: &Side<P>,
        rows: usize,
        columns: usize,
        product: &Product<Q>,
    ) -> Result<(), CublasError> {
        use sys::cublasLtMatrixLayoutAttribute_t as Layout;
        let (rows, columns) = match side.is_transposed {
            true => (columns, rows),
            false => (rows, columns),
        };
        let pitch = side.pitch as i64;
        let made = result::create_matrix_layout(data, rows as u64, columns as u64, pitch)?;
        self.layouts.push(made);
        let count = i32::try_from(product.batch);
        let refused = CublasError(sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE);
        let (count, stride) = (count.map_err(|_| refused)?, side.stride as i64);
        let batches = Layout::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
        let strides = Layout::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        // SAFETY: the attributes are a 32-bit and a 64-bit integer, read before each call returns.
        unsafe {
            let place = ptr::from_ref(&count).cast();
            result::set_matrix_layout_attribute(made, batches, place, size_of::<i32>())?;
            let place = ptr::from_ref(&stride).cast();
            result::set_matrix_layout_attribute(made, strides, place, size_of::<i64>())
        }
    }

    fn to_layouts(&self) -> [sys::cublasLtMatrixLayout_t; 3] {
        [self.layouts[0], self.layouts[1], self.layouts[2]]
    }
}

impl Drop for ProductDescription {
    fn drop(&mut self) {
        // SAFETY: this value created all of them and does not use them again. If a release fails,
        // no caller can do anything about it.
        unsafe {
            for layout in &self.layouts {
                let _ = result::destroy_matrix_layout(*layout);
            }
            let _ = result::destroy_matmul_desc(self.operation);
        }
    }
}

/// An address on the card as the library takes it.
fn to_pointer(address: CUdeviceptr) -> *const c_void {
    ptr::with_exposed_provenance(usize::try_from(address).unwrap_or(0))
}
