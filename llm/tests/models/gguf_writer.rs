//! Writes GGUF files for the tests.

use bytes::Bytes;

/// A file as it is written.
#[derive(Default)]
pub struct Writer {
    metadata: Vec<u8>,
    entries: u64,
    places: Vec<u8>,
    tensors: u64,
    data: Vec<u8>,
}

fn text(to: &mut Vec<u8>, text: &str) {
    to.extend_from_slice(&(text.len() as u64).to_le_bytes());
    to.extend_from_slice(text.as_bytes());
}

impl Writer {
    /// An entry of the metadata: its key, its type's number, its bytes.
    fn entry(&mut self, key: &str, kind: u32, value: &[u8]) {
        text(&mut self.metadata, key);
        self.metadata.extend_from_slice(&kind.to_le_bytes());
        self.metadata.extend_from_slice(value);
        self.entries += 1;
    }

    /// A whole number.
    pub fn number(&mut self, key: &str, number: u32) {
        self.entry(key, 4, &number.to_le_bytes());
    }

    /// A float.
    pub fn float(&mut self, key: &str, float: f32) {
        self.entry(key, 6, &float.to_le_bytes());
    }

    /// A text.
    pub fn text(&mut self, key: &str, value: &str) {
        let mut bytes = Vec::new();
        text(&mut bytes, value);
        self.entry(key, 8, &bytes);
    }

    /// Several texts.
    pub fn texts(&mut self, key: &str, values: &[String]) {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(values.len() as u64).to_le_bytes());
        for value in values {
            text(&mut bytes, value);
        }
        self.entry(key, 9, &bytes);
    }

    /// Several whole numbers.
    pub fn numbers(&mut self, key: &str, values: &[u32]) {
        let mut bytes = 4u32.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.entry(key, 9, &bytes);
    }

    /// A tensor: its name, its type's number, its sizes outermost first, its bytes.
    pub fn tensor(&mut self, name: &str, kind: u32, dims: &[usize], bytes: &[u8]) {
        text(&mut self.places, name);
        self.places
            .extend_from_slice(&(dims.len() as u32).to_le_bytes());
        for dim in dims.iter().rev() {
            self.places.extend_from_slice(&(*dim as u64).to_le_bytes());
        }
        self.places.extend_from_slice(&kind.to_le_bytes());
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        self.places
            .extend_from_slice(&(self.data.len() as u64).to_le_bytes());
        self.data.extend_from_slice(bytes);
        self.tensors += 1;
    }

    /// The file.
    pub fn finish(self) -> Bytes {
        let mut file = b"GGUF".to_vec();
        file.extend_from_slice(&3u32.to_le_bytes());
        file.extend_from_slice(&self.tensors.to_le_bytes());
        file.extend_from_slice(&self.entries.to_le_bytes());
        file.extend_from_slice(&self.metadata);
        file.extend_from_slice(&self.places);
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend_from_slice(&self.data);
        file.into()
    }
}
