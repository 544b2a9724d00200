//! Reads arrays of texts from `.npy` files. They are not tensors: NumPy stores each text in the
//! length of the longest. The module supports NumPy's kinds `U` and `S`; texts of kind `S` must be
//! UTF-8.

use super::header::Fields;
use super::{NpyError, c_order};
use crate::{Shape, TensorError};

/// The bytes of a character of a text of kind `U`.
const CHARACTER_BYTES: usize = 4;

/// An array of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Texts {
    /// The array's shape.
    pub dims: Vec<usize>,
    /// The texts in C order.
    pub texts: Vec<String>,
}

/// Reads a file of texts; returns `None` for a file of numbers.
///
/// # Errors
/// [`NpyError`], if the file is not valid.
pub fn read_texts(file: &[u8]) -> Result<Option<Texts>, NpyError> {
    let (fields, start) = Fields::read(file)?;
    let unknown = || NpyError::Descr {
        descr: fields.descr.to_owned(),
    };
    let name = fields.descr.trim_start_matches(['<', '>', '|', '=']);
    let (character, length) = match name.split_at_checked(1) {
        Some(("U", length)) => (CHARACTER_BYTES, length),
        Some(("S", length)) => (1, length),
        _ => return Ok(None),
    };
    let length: usize = length.parse().map_err(|_| unknown())?;
    let width = length.checked_mul(character).ok_or_else(unknown)?;
    let shape = Shape::new(fields.dims.clone()).map_err(TensorError::from)?;
    let elements = file.get(start..).unwrap_or_default();
    if shape.element_count().checked_mul(width) != Some(elements.len()) {
        return Err(NpyError::Header {
            reason: "its texts do not fill the shape",
        });
    }
    let ordered = match fields.fortran && shape.rank() > 1 {
        true => c_order(&elements.to_vec().into(), &shape, width),
        false => elements.to_vec().into(),
    };
    let is_turned = fields.descr.starts_with('>');
    let text = |element: usize| {
        let bytes = &ordered[element * width..(element + 1) * width];
        let text = match character {
            1 => String::from_utf8(bytes.to_vec()).ok(),
            _ => decode_characters(bytes, is_turned),
        };
        let text = text.ok_or(NpyError::Text { element })?;
        Ok(text.trim_end_matches('\0').to_owned())
    };
    let texts = (0..shape.element_count())
        .map(text)
        .collect::<Result<_, NpyError>>()?;
    Ok(Some(Texts {
        dims: fields.dims,
        texts,
    }))
}

fn decode_characters(bytes: &[u8], is_turned: bool) -> Option<String> {
    let (codes, _) = bytes.as_chunks::<CHARACTER_BYTES>();
    let character = |code: &[u8; CHARACTER_BYTES]| {
        char::from_u32(match is_turned {
            true => u32::from_be_bytes(*code),
            false => u32::from_le_bytes(*code),
        })
    };
    codes.iter().map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As NumPy writes `numpy.array([["a", "bé"]])` and the like.
    fn file(descr: &str, elements: &[u8]) -> Vec<u8> {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (1, 2), }}");
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((text.len() as u16).to_le_bytes());
        file.extend(text.as_bytes());
        file.extend(elements);
        file
    }

    #[test]
    fn texts_are_read_in_either_order_and_as_bytes() {
        let codes = ['a', '\0', 'b', 'é'].map(u32::from);
        let expected = Texts {
            dims: vec![1, 2],
            texts: vec!["a".to_owned(), "bé".to_owned()],
        };
        let little = codes.map(u32::to_le_bytes).concat();
        assert_eq!(
            read_texts(&file("<U2", &little)),
            Ok(Some(expected.clone()))
        );
        let big = codes.map(u32::to_be_bytes).concat();
        assert_eq!(read_texts(&file(">U2", &big)), Ok(Some(expected)));
        let bytes = read_texts(&file("|S2", b"a\0bc")).unwrap().unwrap();
        assert_eq!(bytes.texts, ["a", "bc"]);
        assert_eq!(read_texts(&file("<f4", &[0; 8])), Ok(None));
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let surrogate = [0xd800_u32, 0, 0, 0].map(u32::to_le_bytes).concat();
        let refused = read_texts(&file("<U2", &surrogate));
        assert_eq!(refused, Err(NpyError::Text { element: 0 }));
        assert!(read_texts(&file("<U2", &[0; 12])).is_err());
        assert!(read_texts(&file("<U99999999999999999999", &[])).is_err());
    }
}
