//! Binds the inputs of a job to the inputs that the model declares: checks their types and shapes,
//! and fills in the sizes that the model leaves open.

use std::collections::BTreeMap;

use souk_memory::DType;
use souk_onnx::{Dimension, DimensionValue, ValueInfoProto};

use super::ImportError;
use super::shape::{Fact, data_type, data_type_name};

/// Element type and extents of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputType {
    /// Element type.
    pub dtype: DType,
    /// Extents of each dimension.
    pub dims: Vec<usize>,
}

/// The known inputs of a job at the import of its model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    inputs: BTreeMap<String, InputType>,
    symbols: BTreeMap<String, u64>,
    assumed_extent: Option<u64>,
}

impl Bindings {
    /// Creates empty bindings. You must add each input that the model declares.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates bindings for looking at a model without inputs: you can omit inputs, and a symbolic
    /// extent counts as `extent`.
    #[must_use]
    pub fn with_assumed_extent(extent: u64) -> Self {
        Self {
            assumed_extent: Some(extent),
            ..Self::default()
        }
    }

    /// Adds an input with its element type and extents.
    #[must_use]
    pub fn with_input(mut self, name: impl Into<String>, dtype: DType, dims: &[usize]) -> Self {
        let dims = dims.to_vec();
        self.inputs.insert(name.into(), InputType { dtype, dims });
        self
    }

    /// Fixes a symbolic extent, for example `batch` = 8, with which all inputs must agree.
    #[must_use]
    pub fn with_symbol(mut self, name: impl Into<String>, extent: u64) -> Self {
        self.symbols.insert(name.into(), extent);
        self
    }

    /// Returns whether the caller bound an input of that name.
    pub(super) fn has_input(&self, name: &str) -> bool {
        self.inputs.contains_key(name)
    }

    /// Returns whether an input of that name is required but missing.
    pub(super) fn is_input_missing(&self, name: &str) -> bool {
        self.assumed_extent.is_none() && !self.has_input(name)
    }

    pub(super) fn input_names(&self) -> impl Iterator<Item = &String> {
        self.inputs.keys()
    }
}

/// The symbols bound so far, each with the input that bound it.
pub(super) struct Binder<'a> {
    bindings: &'a Bindings,
    bound: BTreeMap<String, (u64, String)>,
}

impl<'a> Binder<'a> {
    pub(super) fn new(bindings: &'a Bindings) -> Self {
        let given = bindings.symbols.iter();
        let bound = given.map(|(name, &extent)| (name.clone(), (extent, "the caller".to_owned())));
        Self {
            bindings,
            bound: bound.collect(),
        }
    }

    /// Checks the type and rank of an input and binds its symbols: the first pass.
    pub(super) fn check_input(&mut self, declared: &ValueInfoProto) -> Result<(), ImportError> {
        let name = declared.name();
        let Some(given) = self.bindings.inputs.get(name) else {
            if self.bindings.assumed_extent.is_some() {
                return Ok(());
            }
            return Err(ImportError::MissingInput {
                name: name.to_owned(),
                expected: describe_declaration(declared),
            });
        };
        let Some(tensor) = declared.tensor_type() else {
            return Err(ImportError::InputType {
                name: name.to_owned(),
                expected: describe_declaration(declared),
                found: given.dtype,
            });
        };
        let code = tensor.elem_type();
        if code != 0 && code != given.dtype.onnx_code() {
            return Err(ImportError::InputType {
                name: name.to_owned(),
                expected: data_type_name(code),
                found: given.dtype,
            });
        }
        match &tensor.shape {
            Some(shape) => self.bind_symbols(name, &shape.dim, &given.dims),
            None => Ok(()),
        }
    }

    fn bind_symbols(
        &mut self,
        name: &str,
        dims: &[Dimension],
        given: &[usize],
    ) -> Result<(), ImportError> {
        let wrong = || ImportError::InputShape {
            name: name.to_owned(),
            expected: describe_dims(dims),
            found: given.to_vec(),
        };
        if dims.len() != given.len() {
            return Err(wrong());
        }
        for (dim, &extent) in dims.iter().zip(given) {
            let extent = extent as u64;
            match &dim.value {
                Some(DimensionValue::DimValue(fixed))
                    if *fixed > 0 && u64::try_from(*fixed) != Ok(extent) =>
                {
                    return Err(wrong());
                }
                _ => {
                    if let Some(symbol) = dim.symbol_name() {
                        self.bind_symbol(symbol, extent, name)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn bind_symbol(&mut self, symbol: &str, extent: u64, by: &str) -> Result<(), ImportError> {
        let entry = self.bound.entry(symbol.to_owned());
        let (first, first_input) = entry.or_insert((extent, by.to_owned()));
        if *first == extent {
            return Ok(());
        }
        Err(ImportError::SymbolConflict {
            symbol: symbol.to_owned(),
            first_input: first_input.clone(),
            first: *first,
            second_input: by.to_owned(),
            second: extent,
        })
    }

    /// Returns the fact of an input after all symbols are bound: the second pass.
    pub(super) fn input_fact(&self, declared: &ValueInfoProto) -> Fact {
        if let Some(given) = self.bindings.inputs.get(declared.name()) {
            let dims = given.dims.iter().map(|&dim| Some(dim as u64)).collect();
            return Fact::new_tensor(data_type(given.dtype.onnx_code()), dims);
        }
        self.declared_fact(declared)
    }

    /// Returns the fact of a declaration, with its symbols replaced by their extents.
    pub(super) fn declared_fact(&self, declared: &ValueInfoProto) -> Fact {
        let Some(tensor) = declared.tensor_type() else {
            return Fact::default();
        };
        let dims = tensor.shape.as_ref().map(|shape| {
            let dims = shape.dim.iter();
            dims.map(|dim| self.bound_extent(dim)).collect()
        });
        Fact {
            elem: data_type(tensor.elem_type()),
            dims,
            ..Fact::default()
        }
    }

    fn bound_extent(&self, dim: &Dimension) -> Option<u64> {
        match &dim.value {
            Some(DimensionValue::DimValue(extent)) if *extent > 0 => u64::try_from(*extent).ok(),
            // Exporters write -1, 0 or empty names for an open size.
            _ => {
                let bound = dim.symbol_name().and_then(|symbol| self.bound.get(symbol));
                let bound = bound.map(|(extent, _)| *extent);
                bound.or(self.bindings.assumed_extent)
            }
        }
    }
}

/// Formats a declaration for people, for example `i64 [batch, seq]`.
pub(super) fn describe_declaration(declared: &ValueInfoProto) -> String {
    match declared.tensor_type() {
        None => "a value that is no tensor".to_owned(),
        Some(tensor) => {
            let dims = tensor.shape.as_ref();
            let dims = dims.map_or("of any shape".to_owned(), |shape| describe_dims(&shape.dim));
            format!("{} {dims}", data_type_name(tensor.elem_type()))
        }
    }
}

fn describe_dims(dims: &[Dimension]) -> String {
    let texts = dims.iter().map(|dim| match &dim.value {
        Some(DimensionValue::DimValue(extent)) if *extent > 0 => extent.to_string(),
        _ => dim.symbol_name().unwrap_or("?").to_owned(),
    });
    format!("[{}]", texts.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_is_left_open_is_any() {
        let open = [
            Dimension::new_fixed(-1),
            Dimension::new_fixed(0),
            Dimension::new_symbol("?"),
            Dimension::new_symbol("?"),
            Dimension::new_fixed(3),
        ];
        let code = DType::F32.onnx_code();
        let declared = ValueInfoProto::new_tensor("x", code, Some(open.to_vec()));
        let check = |dims: &[usize]| {
            let bindings = Bindings::new().with_input("x", DType::F32, dims);
            let mut binder = Binder::new(&bindings);
            binder
                .check_input(&declared)
                .map(|()| binder.input_fact(&declared).dims)
        };
        let dims = vec![Some(4), Some(5), Some(6), Some(7), Some(3)];
        assert_eq!(check(&[4, 5, 6, 7, 3]), Ok(Some(dims)));
        let error = check(&[4, 5, 6, 7, 8]).unwrap_err();
        assert!(error.to_string().contains("[?, ?, ?, ?, 3]"), "{error}");
        let open = Binder::new(&Bindings::new()).declared_fact(&declared).dims;
        assert_eq!(open, Some(vec![None, None, None, None, Some(3)]));
    }
}
