//! Differentiates operators that move elements without changing them, such as reshapes,
//! transpositions and concatenations: the gradient moves back to where each element came from.

use souk_onnx::NodeProto;

use super::Gradients;
use crate::gradient::node_view::NodeView;
use crate::gradient::writer::Writer;

/// `Reshape`, `Flatten`, `Squeeze` and `Unsqueeze`.
pub(super) fn differentiate_reshape(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    Ok(vec![Some(writer.reshape(gradient, &view.input_dims(0)?))])
}

/// `Identity`, and `Dropout` as models have it for use: it drops nothing.
pub(super) fn differentiate_identity(view: &NodeView<'_>, gradient: &str) -> Gradients {
    let is_training =
        view.node.inputs.get(2).copied().flatten().is_some() && view.input_ints(2) != Some(&[0]);
    if is_training {
        return Err(view.unsupported("it drops elements, which a seed would have to choose"));
    }
    Ok(vec![Some(gradient.to_owned())])
}

/// `Transpose`: the inverse permutation.
pub(super) fn differentiate_transpose(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let rank = view.input_dims(0)?.len();
    let axes = match view.node.proto.ints("perm") {
        Some(axes) => axes.to_vec(),
        None => (0..rank as i64).rev().collect(),
    };
    let mut inverse = vec![0; rank];
    for (to, from) in axes.iter().enumerate() {
        inverse[view.find_axis(*from, rank)?] = to;
    }
    Ok(vec![Some(writer.transpose(gradient, &inverse))])
}

/// `Concat`: each input gets its part.
pub(super) fn differentiate_concat(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let axis = view.axis(0, view.output_dims()?.len())?;
    let count = view.node.inputs.len();
    let sizes = (0..count).map(|place| Ok(view.input_dims(place)?[axis] as i64));
    let sizes: Vec<i64> = sizes.collect::<Result<_, crate::gradient::GradientError>>()?;
    let sizes = writer.add_ints(&sizes);
    let node = NodeProto::for_operator("Split", &[gradient, &sizes], "").with("axis", axis as i64);
    let parts = writer.add_node_with_outputs(node, count);
    Ok(parts.into_iter().map(Some).collect())
}

/// `Expand`: the sum over the copies.
pub(super) fn differentiate_expand(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let (from, to) = (view.output_dims()?, view.input_dims(0)?);
    Ok(vec![Some(writer.unbroadcast(gradient, &from, &to))])
}
