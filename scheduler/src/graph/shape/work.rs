//! Computes the work of an operator from the facts of its inputs and outputs.

use souk_memory::DType;
use souk_onnx::NodeProto;
use souk_onnx::work::{Extent, Work};

use super::Fact;

/// Returns the work of a node itself; values of unknown size count zero.
pub(crate) fn node_work(proto: &NodeProto, inputs: &[Option<&Fact>], outputs: &[&Fact]) -> Work {
    with_extents(inputs, |inputs| {
        let outputs: Vec<Option<&Fact>> = outputs.iter().copied().map(Some).collect();
        with_extents(&outputs, |outputs| {
            let known: Vec<Extent<'_>> = outputs.iter().copied().flatten().collect();
            Work::for_node(proto, inputs, &known)
        })
    })
}

/// Calls `then` with the types and sizes of values; none for unknown ones.
pub(super) fn with_extents<T>(
    facts: &[Option<&Fact>],
    then: impl FnOnce(&[Option<Extent<'_>>]) -> T,
) -> T {
    let known = |fact: &Fact| -> Option<(DType, Vec<usize>)> {
        let dtype = DType::from_onnx_code(fact.elem? as i32).ok()?;
        let sizes = fact.dims.as_ref()?.iter();
        let dims = sizes.map(|size| usize::try_from((*size)?).ok());
        Some((dtype, dims.collect::<Option<_>>()?))
    };
    let known: Vec<_> = facts.iter().map(|fact| fact.and_then(known)).collect();
    let extents: Vec<_> = known.iter().map(|it| it.as_ref().map(as_extent)).collect();
    then(&extents)
}

fn as_extent((dtype, dims): &(DType, Vec<usize>)) -> Extent<'_> {
    Extent {
        dtype: *dtype,
        dims,
    }
}
