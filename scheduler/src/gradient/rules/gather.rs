//! Differentiates operators that select rows, such as the embedding of tokens: each row gets the
//! sum of the gradients of its copies.

use souk_onnx::NodeProto;

use super::Gradients;
use crate::gradient::node_view::NodeView;
use crate::gradient::writer::Writer;

/// `Gather` along the first axis, as a product with the matrix that says which row each index
/// chose. The order of its sum is that of the product, so it is the same in each run.
pub(super) fn differentiate_gather(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let (dims, indices) = (view.input_dims(0)?, view.input_dims(1)?);
    if view.axis(0, dims.len())? != 0 {
        return Err(view.unsupported("it gathers along another axis than the first"));
    }
    let rows: usize = indices.iter().product();
    let width: usize = dims[1..].iter().product();
    let flat = writer.reshape(view.input(1)?, &[rows]);
    let depth = writer.add_int(dims[0] as i64);
    let values = writer.add_floats(&[0.0, 1.0]);
    let node = NodeProto::for_operator("OneHot", &[&flat, &depth, &values], "").with("axis", 0);
    // One row for each row of the input, one column for each index.
    let chosen = writer.add_node(node);
    let gradient = writer.reshape(gradient, &[rows, width]);
    let sums = writer.add("MatMul", &[&chosen, &gradient]);
    Ok(vec![Some(writer.reshape(&sums, &dims)), None])
}
