//! Computes `LabelEncoder`, which replaces each element by its value in a table, for example a
//! label by its number or a number by its label. souk has replaced strings by ids before.

use std::collections::BTreeMap;

use souk_memory::Tensor;
use souk_onnx::subgraph::UnsupportedReason;
use souk_onnx::{NodeProto, tensor_from_proto};

use super::call::{Call, KernelError, Results};
use super::value::{element_bytes, from_bytes};

/// Checks that the table consists of tensors; souk converts every table to tensors when it loads a
/// model.
pub(super) fn check_table(node: &NodeProto) -> Result<(), UnsupportedReason> {
    let missing = |name: &&str| node.tensor(name).is_none();
    let attributes = ["keys_tensor", "values_tensor", "default_tensor"];
    match attributes.into_iter().find(missing) {
        Some(name) => Err(UnsupportedReason::Attribute(name)),
        None => Ok(()),
    }
}

fn table_tensor(call: &Call<'_>, name: &'static str) -> Result<Tensor, KernelError> {
    let proto = call.node.tensor(name).ok_or(KernelError::Attribute(name))?;
    tensor_from_proto(proto).map_err(|_| KernelError::Attribute(name))
}

pub(super) fn run(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let (keys, values) = (
        table_tensor(call, "keys_tensor")?,
        table_tensor(call, "values_tensor")?,
    );
    let default = table_tensor(call, "default_tensor")?;
    let width = element_bytes(&values)?;
    if keys.dtype() != input.dtype() {
        return Err(KernelError::DType(input.dtype()));
    }
    if default.dtype() != values.dtype() || default.shape().element_count() != 1 {
        return Err(KernelError::Attribute("default_tensor"));
    }
    let table: BTreeMap<Vec<u8>, &[u8]> = element_keys(&keys)?
        .into_iter()
        .zip(values.bytes().chunks_exact(width))
        .rev()
        .collect();
    let default: &[u8] = default.bytes();
    let found = element_keys(input)?;
    let found = found
        .iter()
        .map(|key| table.get(key).copied().unwrap_or(default));
    let bytes: Vec<u8> = found.flatten().copied().collect();
    Ok(vec![from_bytes(values.dtype(), input.dims(), bytes)?])
}

/// Returns the bytes of each element, equal for equal elements: zero has one sign, and all NaN are
/// the same.
fn element_keys(tensor: &Tensor) -> Result<Vec<Vec<u8>>, KernelError> {
    if !tensor.dtype().is_float() {
        let elements = tensor.bytes().chunks_exact(element_bytes(tensor)?);
        return Ok(elements.map(<[u8]>::to_vec).collect());
    }
    let alike = |value: f64| match value {
        value if value.is_nan() => f64::NAN,
        value => value + 0.0,
    };
    let values = super::value::to_floats(tensor)?.into_iter();
    Ok(values
        .map(|value| alike(value).to_le_bytes().to_vec())
        .collect())
}
