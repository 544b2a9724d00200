//! Copies tensors into the memory of a WebAssembly module and out of it. Both sides pass them as a
//! table of the type, the sizes and the address of each tensor. The host trusts nothing that a
//! module states: it checks every address, size and type before it copies a byte.

use bytes::Bytes;
use souk_memory::{DType, Shape, ShapeError, Tensor};

use super::{Session, WasmError};

/// Bytes of a tensor in a table.
const ENTRY_BYTES: usize = 16;
/// Bytes of a size.
const SIZE_BYTES: usize = 8;
/// Upper bound on the dimensions whose sizes the host reads; a shape itself has its own limit.
const RANK_MAX: usize = 64;

/// Writes tensors and a table of them; returns the table's address.
pub(super) fn write(session: &mut Session, tensors: &[Tensor]) -> Result<u32, WasmError> {
    let mut entries = Vec::with_capacity(ENTRY_BYTES * tensors.len());
    for tensor in tensors {
        let dims = tensor.dims().iter().map(|&size| size as u64);
        let sizes: Vec<u8> = dims.flat_map(u64::to_le_bytes).collect();
        let fields = [
            tensor.dtype().onnx_code().cast_unsigned(),
            u32::try_from(tensor.dims().len()).unwrap_or(u32::MAX),
            write_bytes(session, &sizes)?,
            write_bytes(session, tensor.bytes())?,
        ];
        entries.extend(fields.into_iter().flat_map(u32::to_le_bytes));
    }
    write_bytes(session, &entries)
}

/// Asks the module for memory and writes there.
fn write_bytes(session: &mut Session, bytes: &[u8]) -> Result<u32, WasmError> {
    let length = bytes.len() as u64;
    let Ok(wanted) = u32::try_from(length) else {
        let (bytes, limit) = (length, session.limits.memory_bytes);
        return Err(WasmError::Memory { bytes, limit });
    };
    let address = session.call(session.alloc, wanted)?;
    let memory = session.memory.data_mut(&mut session.store);
    let place = byte_range(address, length).and_then(|range| memory.get_mut(range));
    let outside = WasmError::Outside {
        address,
        bytes: length,
    };
    place.ok_or(outside)?.copy_from_slice(bytes);
    Ok(address)
}

/// Reads the tensors of a table, which must be of these types.
pub(super) fn read(
    session: &Session,
    table: u32,
    dtypes: &[DType],
    bytes_max: u64,
) -> Result<Vec<Tensor>, WasmError> {
    let memory = session.memory.data(&session.store);
    let entries = memory_slice(memory, table, (ENTRY_BYTES * dtypes.len()) as u64)?;
    let mut total = 0u64;
    let mut tensors = Vec::with_capacity(dtypes.len());
    let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
    for (index, (entry, &dtype)) in entries.iter().zip(dtypes).enumerate() {
        let (fields, _) = entry.as_chunks::<4>();
        let [code, rank, sizes, values] = [0, 1, 2, 3].map(|it| u32::from_le_bytes(fields[it]));
        if code != dtype.onnx_code().cast_unsigned() {
            return Err(WasmError::Type {
                index,
                expected: dtype,
                found: code,
            });
        }
        let rank = rank as usize;
        if rank > RANK_MAX {
            return Err(ShapeError::Rank { rank }.into());
        }
        let sizes = memory_slice(memory, sizes, (SIZE_BYTES * rank) as u64)?;
        let (sizes, _) = sizes.as_chunks::<SIZE_BYTES>();
        let dims = sizes.iter().map(|size| u64::from_le_bytes(*size));
        let dims = dims.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        let shape = Shape::new(dims.collect::<Vec<usize>>())?;
        let bytes = shape.byte_length(dtype) as u64;
        total = total.saturating_add(bytes);
        if total > bytes_max {
            let (bytes, limit) = (total, bytes_max);
            return Err(WasmError::Output { bytes, limit });
        }
        let held = Bytes::copy_from_slice(memory_slice(memory, values, bytes)?);
        tensors.push(Tensor::new(dtype, shape, held)?);
    }
    Ok(tensors)
}

fn memory_slice(memory: &[u8], address: u32, bytes: u64) -> Result<&[u8], WasmError> {
    let found = byte_range(address, bytes).and_then(|range| memory.get(range));
    found.ok_or(WasmError::Outside { address, bytes })
}

fn byte_range(address: u32, bytes: u64) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(address).ok()?;
    let end = start.checked_add(usize::try_from(bytes).ok()?)?;
    Some(start..end)
}
