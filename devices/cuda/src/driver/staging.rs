//! Staging memory: pinned host memory, which a card can read and write itself. Every copy to or
//! from the card passes through it in parts: the host copies one part while the card moves another.

#![expect(
    unsafe_code,
    reason = "the card copies by address; each block says why they hold"
)]

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DriverError, PinnedHostSlice, result, sys,
};

use super::Span;

/// Bytes of a part. There are two for each way.
const PART_BYTES: usize = 4 << 20;

/// The parts for both directions, two for each.
pub(super) struct Staging {
    /// For copies to the card. The host writes them, in write-combined memory, which it can read
    /// only slowly.
    there: [Part; 2],
    /// For copies from the card.
    back: [Part; 2],
}

struct Part {
    memory: PinnedHostSlice<u8>,
    /// The event after the last operation of the card on this part.
    done: CudaEvent,
}

impl Part {
    fn allocate_pinned(context: &Arc<CudaContext>, flags: u32) -> Result<Self, DriverError> {
        // SAFETY: bytes have no value they may not have, and are written before they are read.
        let memory = unsafe { context.alloc_pinned_with_flags::<u8>(PART_BYTES, flags) }?;
        let done = context.new_event(None)?;
        Ok(Self { memory, done })
    }
}

impl Staging {
    pub(super) fn allocate_staging(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let there = || Part::allocate_pinned(context, sys::CU_MEMHOSTALLOC_WRITECOMBINED);
        let back = || Part::allocate_pinned(context, 0);
        Ok(Self {
            there: [there()?, there()?],
            back: [back()?, back()?],
        })
    }

    /// Writes bytes to a span, which must have room for them, before any later work of the stream.
    pub(super) fn write(
        &mut self,
        stream: &CudaStream,
        span: Span,
        bytes: &[u8],
    ) -> Result<(), DriverError> {
        let mut address = span.address();
        for (chunk, index) in bytes.chunks(PART_BYTES).zip([0, 1].into_iter().cycle()) {
            let part = &mut self.there[index];
            part.done.synchronize()?;
            let memory = &mut part.memory.as_mut_slice()?[..chunk.len()];
            memory.copy_from_slice(chunk);
            // SAFETY: the span has room for all chunks, and this part is not written again before
            // its event says that the card has read it.
            unsafe { result::memcpy_htod_async(address, memory, stream.cu_stream()) }?;
            part.done.record(stream)?;
            address += chunk.len() as u64;
        }
        Ok(())
    }

    /// Reads this many bytes of a span, which must have as many, after all earlier work of the
    /// stream.
    pub(super) fn read(
        &mut self,
        stream: &CudaStream,
        span: Span,
        bytes: usize,
    ) -> Result<Vec<u8>, DriverError> {
        let mut held = Vec::with_capacity(bytes);
        let parts = bytes.div_ceil(PART_BYTES);
        let length = |index: usize| PART_BYTES.min(bytes - index * PART_BYTES);
        for index in 0..=parts {
            if index < parts {
                let part = &mut self.back[index % 2];
                let memory = &mut part.memory.as_mut_slice()?[..length(index)];
                let address = span.address() + (index * PART_BYTES) as u64;
                // SAFETY: the span has as many bytes, and this part was read here before: it is
                // two behind the one that is waited for below.
                unsafe { result::memcpy_dtoh_async(memory, address, stream.cu_stream()) }?;
                part.done.record(stream)?;
            }
            if let Some(before) = index.checked_sub(1) {
                let part = &self.back[before % 2];
                part.done.synchronize()?;
                held.extend_from_slice(&part.memory.as_slice()?[..length(before)]);
            }
        }
        Ok(held)
    }
}
