//! Reads and writes little-endian fields with lengths, the only layout of this crate's bytes on
//! disk and on the wire.
//!
//! A reader must return errors and not panic, because its input can come from a damaged disk.

use bytes::Bytes;

/// The bytes end before a field does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes wanted at byte {at}, {left} left")]
pub struct TruncationError {
    /// The field's offset in bytes.
    pub at: usize,
    /// The length that the field should have, in bytes.
    pub wanted: usize,
    /// The bytes that remain.
    pub left: usize,
}

/// Writes fields in order.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Creates an empty writer with space for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity),
        }
    }

    /// Appends one byte.
    pub fn write_u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Appends four bytes.
    pub fn write_u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends eight bytes.
    pub fn write_u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends bytes without a length.
    pub fn write_raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a length of four bytes, then the bytes, which must be fewer than 4 GiB.
    pub fn write_block(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("a block is far below 4 GiB");
        self.write_u32(length);
        self.write_raw(bytes);
    }

    /// Appends a count of four bytes, then each number.
    pub fn write_numbers(&mut self, numbers: &[u64]) {
        self.write_u32(u32::try_from(numbers.len()).expect("a list of ids is short"));
        for number in numbers {
            self.write_u64(*number);
        }
    }

    /// Returns the number of bytes written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether nothing is written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Creates a writer that appends to `bytes`.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Returns the bytes written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads fields in order; blocks share the memory of the input.
#[derive(Debug)]
pub struct Reader {
    bytes: Bytes,
    at: usize,
}

impl Reader {
    /// Creates a reader at the beginning of `bytes`.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes, at: 0 }
    }

    fn read_bytes(&mut self, wanted: usize) -> Result<Bytes, TruncationError> {
        let left = self.remaining_len();
        if wanted > left {
            return Err(TruncationError {
                at: self.at,
                wanted,
                left,
            });
        }
        let taken = self.bytes.slice(self.at..self.at + wanted);
        self.at += wanted;
        Ok(taken)
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], TruncationError> {
        let left = self.remaining_len();
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let found = rest.first_chunk::<N>().copied();
        let array = found.ok_or(TruncationError {
            at: self.at,
            wanted: N,
            left,
        })?;
        self.at += N;
        Ok(array)
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// If the bytes end before it.
    pub fn read_u8(&mut self) -> Result<u8, TruncationError> {
        Ok(self.read_array::<1>()?[0])
    }

    /// Reads four bytes.
    ///
    /// # Errors
    /// If the bytes end before the field does.
    pub fn read_u32(&mut self) -> Result<u32, TruncationError> {
        Ok(u32::from_le_bytes(self.read_array()?))
    }

    /// Reads eight bytes.
    ///
    /// # Errors
    /// If the bytes end before the field does.
    pub fn read_u64(&mut self) -> Result<u64, TruncationError> {
        Ok(u64::from_le_bytes(self.read_array()?))
    }

    /// Reads the thirty-two bytes of a digest.
    ///
    /// # Errors
    /// If the bytes end before the field does.
    pub fn read_digest(&mut self) -> Result<[u8; 32], TruncationError> {
        self.read_array()
    }

    /// Reads a block that [`Writer::write_block`] wrote.
    ///
    /// # Errors
    /// If the bytes end before the field does.
    pub fn read_block(&mut self) -> Result<Bytes, TruncationError> {
        let length = self.read_u32()?;
        self.read_bytes(length as usize)
    }

    /// Skips a block that [`Writer::write_block`] wrote.
    ///
    /// # Errors
    /// If the bytes end before the field does.
    pub fn skip_block(&mut self) -> Result<(), TruncationError> {
        let wanted = self.read_u32()? as usize;
        let (at, left) = (self.at, self.remaining_len());
        if wanted > left {
            return Err(TruncationError { at, wanted, left });
        }
        self.at += wanted;
        Ok(())
    }

    /// Reads numbers that [`Writer::write_numbers`] wrote.
    ///
    /// # Errors
    /// If the bytes end before the field does.
    pub fn read_numbers(&mut self) -> Result<Vec<u64>, TruncationError> {
        let count = self.read_u32()? as usize;
        if count.saturating_mul(8) > self.remaining_len() {
            return Err(TruncationError {
                at: self.at,
                wanted: count * 8,
                left: self.remaining_len(),
            });
        }
        (0..count).map(|_| self.read_u64()).collect()
    }

    /// Returns the unread bytes without reading them.
    #[must_use]
    pub fn unread_bytes(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Reads all remaining bytes.
    #[must_use]
    pub fn read_rest(&mut self) -> Bytes {
        let rest = self.bytes.slice(self.at..);
        self.at = self.bytes.len();
        rest
    }

    /// Returns the number of unread bytes.
    #[must_use]
    pub fn remaining_len(&self) -> usize {
        self.bytes.len() - self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::default();
        writer.write_u8(7);
        writer.write_u32(70_000);
        writer.write_u64(u64::MAX);
        writer.write_block(b"souk");
        writer.write_numbers(&[1, 2, 3]);
        writer.write_raw(&[9; 32]);
        let mut reader = Reader::new(Bytes::from(writer.into_bytes()));
        assert_eq!(reader.read_u8(), Ok(7));
        assert_eq!(reader.read_u32(), Ok(70_000));
        assert_eq!(reader.read_u64(), Ok(u64::MAX));
        assert_eq!(reader.read_block().as_deref(), Ok(b"souk".as_slice()));
        assert_eq!(reader.read_numbers(), Ok(vec![1, 2, 3]));
        assert_eq!(reader.read_digest(), Ok([9; 32]));
        assert_eq!(reader.remaining_len(), 0);
    }

    #[test]
    fn a_short_field_is_refused_with_its_place() {
        let mut reader = Reader::new(Bytes::from_static(&[1, 255, 255, 255, 255]));
        assert_eq!(reader.read_u8(), Ok(1));
        let wanted = u32::MAX as usize;
        assert_eq!(
            reader.read_block(),
            Err(TruncationError {
                at: 5,
                wanted,
                left: 0
            })
        );
    }
}
