//! An example of a buyer's own operator, in Rust, compiled to a WebAssembly module that an
//! `ai.souk.Wasm` node runs: the median of each three neighbours along the last axis, which removes
//! clicks from a signal. ONNX has no such operator. At the ends a value stays as it is.
//!
//!     rustup target add wasm32-unknown-unknown
//!     rustc --edition 2024 --target wasm32-unknown-unknown --crate-type cdylib -C opt-level=s \
//!         -C panic=abort -C strip=symbols -o median.wasm devices/kernels/median.rs
//!
//! `median.wat` next to this file is the compiled module as text.
#![no_std]

use core::arch::wasm32;
use core::slice;

/// A tensor in the module's memory.
#[repr(C)]
pub struct Tensor {
    /// Element type, by its number in ONNX.
    dtype: u32,
    /// How many sizes.
    rank: u32,
    /// The sizes, outermost first.
    dims: *const u64,
    /// The values in C order.
    values: *mut f32,
}

/// 32-bit floats, in ONNX.
const FLOAT: u32 = 1;
const PAGE_BYTES: usize = 64 << 10;

unsafe extern "C" {
    /// Where the linker's own data ends.
    static __heap_base: u8;
}

static mut TAKEN: usize = 0;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    wasm32::unreachable()
}

/// Memory that nobody uses yet, for a run; nothing is given back.
#[unsafe(no_mangle)]
pub extern "C" fn souk_alloc(bytes: usize) -> *mut u8 {
    // SAFETY: a module has one thread, and whatever lies above the linker's data is the heap's.
    unsafe {
        let base = (&raw const __heap_base).addr();
        let start = (base + TAKEN).next_multiple_of(16);
        let end = start + bytes;
        let held = wasm32::memory_size(0) * PAGE_BYTES;
        if end > held && wasm32::memory_grow(0, (end - held).div_ceil(PAGE_BYTES)) == usize::MAX {
            wasm32::unreachable();
        }
        TAKEN = end - base;
        start as *mut u8
    }
}

/// Gives the table of outputs for a table of inputs, or 0 for inputs that it does not take.
#[unsafe(no_mangle)]
pub extern "C" fn souk_run(inputs: *const Tensor, count: u32) -> *const Tensor {
    // SAFETY: the host wrote `count` tensors there.
    let inputs = unsafe { slice::from_raw_parts(inputs, count as usize) };
    let [
        Tensor {
            dtype: FLOAT,
            rank,
            dims,
            values,
        },
    ] = *inputs
    else {
        return core::ptr::null();
    };
    if rank == 0 {
        return core::ptr::null();
    }
    // SAFETY: so many sizes and values are there, and the new ones are nobody else's.
    let (from, to, row) = unsafe {
        let sizes = slice::from_raw_parts(dims, rank as usize);
        let elements = sizes.iter().product::<u64>() as usize;
        let row = sizes[rank as usize - 1] as usize;
        let made = souk_alloc(4 * elements).cast::<f32>();
        let from = slice::from_raw_parts(values, elements);
        (from, slice::from_raw_parts_mut(made, elements), row)
    };
    to.copy_from_slice(from);
    for (from, to) in from
        .chunks_exact(row.max(1))
        .zip(to.chunks_exact_mut(row.max(1)))
    {
        for (three, to) in from.windows(3).zip(&mut to[1..]) {
            let (low, high) = (three[0].min(three[2]), three[0].max(three[2]));
            *to = three[1].max(low).min(high);
        }
    }
    let output = souk_alloc(size_of::<Tensor>()).cast::<Tensor>();
    let values = to.as_mut_ptr();
    // SAFETY: the memory was taken for it, aligned for anything.
    unsafe {
        output.write(Tensor {
            dtype: FLOAT,
            rank,
            dims,
            values,
        })
    };
    output
}
