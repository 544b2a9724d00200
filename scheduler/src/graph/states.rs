//! Finds the state values of a graph, which the device that runs their node holds from request to
//! request, and the outputs that a session feeds back as inputs of the next request. Also finds the
//! values at which the model permits a cut. Planners and the buyer's sessions use them.

use std::collections::{BTreeMap, BTreeSet};

use souk_onnx::states;

use super::shape::Dims;
use super::{Graph, ValueId};

impl Graph {
    /// Returns the inputs that are states, and the outputs that are their next values. In a session
    /// they never travel.
    #[must_use]
    pub fn state_values(&self) -> BTreeSet<ValueId> {
        let ports = self.nodes.iter().flat_map(|node| {
            let ports = states::of_node(&node.proto).filter_map(Result::ok);
            ports.flat_map(move |(input, output)| {
                let input = node.inputs.get(input).copied().flatten();
                let output = node.outputs.get(output).copied().flatten();
                [input, output].into_iter().flatten()
            })
        });
        ports.collect()
    }

    /// Returns the values at which the model permits a cut; none if it declares nothing and permits
    /// any.
    #[must_use]
    pub fn permitted_cuts(&self) -> Option<BTreeSet<ValueId>> {
        let cuts = self.nodes.iter().flat_map(|node| {
            let places = states::cuts_of_node(&node.proto);
            places.filter_map(|output| node.outputs.get(output).copied().flatten())
        });
        let cuts: BTreeSet<ValueId> = cuts.collect();
        (!cuts.is_empty()).then_some(cuts)
    }

    /// Returns the outputs that are fed back, each with the input that it becomes in the next
    /// request.
    #[must_use]
    pub fn feedback_outputs(&self) -> Vec<(ValueId, ValueId)> {
        let fed = self.nodes.iter().flat_map(|node| {
            let fed = states::fed_of_node(&node.proto);
            fed.filter_map(|(output, input)| {
                let output = node.outputs.get(output).copied().flatten()?;
                let named = |id: &&ValueId| self.value(**id).name == input;
                let input = self.inputs().iter().find(named)?;
                Some((output, *input))
            })
        });
        fed.collect()
    }

    /// Returns the same graph with the sizes left open in its parts' declarations that differ in
    /// another import of its model, so that the parts accept both.
    #[must_use]
    pub fn open_to(mut self, other: &Graph) -> Graph {
        let others = other.values.iter();
        let others = others.filter_map(|it| Some((it.name.as_str(), it.fact.dims.as_ref()?)));
        let others: BTreeMap<&str, &Dims> = others.collect();
        for (at, value) in self.values.iter().enumerate() {
            let other = others.get(value.name.as_str());
            let both = value.fact.dims.as_ref().zip(other);
            let Some((own, other)) = both.filter(|(own, other)| own.len() == other.len()) else {
                continue;
            };
            let pairs = own.iter().zip(other.iter());
            let alike = pairs.map(|(own, other)| own.filter(|_| own == other));
            self.open.insert(ValueId(at), alike.collect());
        }
        self
    }
}
