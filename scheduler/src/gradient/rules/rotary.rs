//! Differentiates rotary embeddings, which encode the position of a token by rotating pairs of
//! numbers.

use super::Gradients;
use crate::gradient::node_view::NodeView;
use crate::gradient::writer::Writer;

/// `RotaryEmbedding`: the gradient rotates back, by the angles with the opposite sign.
pub(super) fn differentiate_rotation(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    if view.is_wanted(1) || view.is_wanted(2) {
        return Err(view.unsupported("its angles are trained; name them with --freeze"));
    }
    let mut node = view.node.proto.clone();
    let sines = writer.add("Neg", &[view.input(2)?]);
    node.input[0] = gradient.to_owned();
    node.input[2] = sines;
    Ok(vec![Some(writer.add_node(node))])
}
