//! Functions of the model put in place of the nodes that call them, so that their insides can be
//! inferred, costed and cut like the rest.
//!
//! A function that speaks another version of an operator set than the model stays a call, since its
//! nodes would change their meaning; its definition then travels with every subgraph that calls it.

use std::collections::BTreeMap;

use souk_onnx::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto};

/// Calls within calls are followed this deep: beyond it a model is taken to call itself.
const DEPTH_MAX: usize = 32;

/// Replaces calls of the model's functions by their bodies, as far as that changes no meaning.
pub(super) fn functions(model: &mut ModelProto) {
    let functions: Vec<FunctionProto> = model.functions.clone();
    if functions.is_empty() {
        return;
    }
    for depth in 0..DEPTH_MAX {
        let usable: Vec<bool> = functions.iter().map(|body| agrees(model, body)).collect();
        let Some(graph) = model.graph.as_mut() else {
            return;
        };
        let mut nodes = Vec::with_capacity(graph.node.len());
        let mut called = Vec::new();
        for (index, node) in std::mem::take(&mut graph.node).into_iter().enumerate() {
            match find(&functions, &node).filter(|&found| usable[found]) {
                Some(found) => {
                    nodes.extend(expand(&functions[found], &node, (depth, index)));
                    called.push(found);
                }
                None => nodes.push(node),
            }
        }
        graph.node = nodes;
        for &found in &called {
            adopt_opsets(model, &functions[found]);
        }
        if called.is_empty() {
            return;
        }
    }
}

fn find(functions: &[FunctionProto], node: &NodeProto) -> Option<usize> {
    functions.iter().position(|function| {
        function.name() == node.op_type()
            && function.domain() == node.domain()
            && function.overload() == node.overload()
    })
}

/// Whether the function speaks the model's versions of the operator sets they share.
fn agrees(model: &ModelProto, function: &FunctionProto) -> bool {
    let same = |domain: &str, version: i64| match model.opset(domain) {
        Some(known) => known == version,
        None => true,
    };
    function
        .opset_import
        .iter()
        .all(|set| same(set.domain(), set.version()))
}

fn adopt_opsets(model: &mut ModelProto, function: &FunctionProto) {
    for set in &function.opset_import {
        if model.opset(set.domain()).is_none() {
            model.opset_import.push(set.clone());
        }
    }
}

/// The nodes of `function` under names of their own, from the depth and place `at` of the call;
/// its formal names are replaced by those of `call`.
fn expand(function: &FunctionProto, call: &NodeProto, at: (usize, usize)) -> Vec<NodeProto> {
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    for (place, formal) in function.input.iter().enumerate() {
        names.insert(formal, call.input.get(place).cloned().unwrap_or_default());
    }
    for (formal, actual) in function.output.iter().zip(&call.output) {
        if !actual.is_empty() {
            names.insert(formal, actual.clone());
        }
    }
    let prefix = format!("{}.{}.{}", call.op_type(), at.0, at.1);
    let rename = Rename { names, prefix };
    let nodes = function.node.iter().map(|node| {
        let mut node = rename.node(node);
        node.attribute = attributes(&node.attribute, function, call);
        node
    });
    nodes.collect()
}

/// New names for the values of a function's body.
struct Rename<'a> {
    names: BTreeMap<&'a str, String>,
    prefix: String,
}

impl Rename<'_> {
    fn value(&self, name: &str) -> String {
        match self.names.get(name) {
            Some(actual) => actual.clone(),
            None if name.is_empty() => String::new(),
            None => format!("{}/{name}", self.prefix),
        }
    }

    fn node(&self, node: &NodeProto) -> NodeProto {
        let mut renamed = node.clone();
        renamed
            .input
            .iter_mut()
            .for_each(|name| *name = self.value(name));
        renamed
            .output
            .iter_mut()
            .for_each(|name| *name = self.value(name));
        renamed.name = Some(format!("{}/{}", self.prefix, node.name()));
        for attribute in &mut renamed.attribute {
            attribute.g = attribute.g.as_ref().map(|body| self.graph(body));
            attribute.graphs = attribute
                .graphs
                .iter()
                .map(|body| self.graph(body))
                .collect();
        }
        renamed
    }

    /// A body within the body: it sees the names around it.
    fn graph(&self, body: &GraphProto) -> GraphProto {
        let mut renamed = body.clone();
        let put = |name: &mut Option<String>| {
            if let Some(name) = name {
                *name = self.value(name);
            }
        };
        renamed.node = body.node.iter().map(|node| self.node(node)).collect();
        renamed
            .input
            .iter_mut()
            .for_each(|info| put(&mut info.name));
        renamed
            .output
            .iter_mut()
            .for_each(|info| put(&mut info.name));
        renamed
            .value_info
            .iter_mut()
            .for_each(|info| put(&mut info.name));
        renamed
            .initializer
            .iter_mut()
            .for_each(|tensor| put(&mut tensor.name));
        renamed
    }
}

/// Attributes of a node in the body, with references to the function's attributes resolved: the
/// call's value, else the function's default, else none.
fn attributes(
    attributes: &[AttributeProto],
    function: &FunctionProto,
    call: &NodeProto,
) -> Vec<AttributeProto> {
    let resolve = |attribute: &AttributeProto| {
        let mut resolved = attribute.clone();
        for body in resolved.g.iter_mut().chain(&mut resolved.graphs) {
            for node in &mut body.node {
                node.attribute = self::attributes(&node.attribute, function, call);
            }
        }
        let wanted = attribute.ref_attr_name();
        if wanted.is_empty() {
            return Some(resolved);
        }
        let default = || {
            function
                .attribute_proto
                .iter()
                .find(|known| known.name() == wanted)
        };
        let mut value = call.attribute(wanted).or_else(default)?.clone();
        value.name.clone_from(&attribute.name);
        Some(value)
    };
    attributes.iter().filter_map(resolve).collect()
}

#[cfg(test)]
mod tests {
    use souk_onnx::OperatorSetIdProto;

    use super::*;

    fn node(op: &str, domain: &str, input: &[&str], output: &[&str]) -> NodeProto {
        NodeProto {
            op_type: Some(op.into()),
            domain: Some(domain.into()),
            input: input.iter().map(|&name| name.into()).collect(),
            output: output.iter().map(|&name| name.into()).collect(),
            ..NodeProto::default()
        }
    }

    fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
        OperatorSetIdProto {
            domain: Some(domain.into()),
            version: Some(version),
        }
    }

    /// A model that calls `mine.Twice(x)`, which is `Relu` of `Relu` and speaks `version`.
    fn model(version: i64) -> ModelProto {
        let function = FunctionProto {
            name: Some("Twice".into()),
            domain: Some("mine".into()),
            input: vec!["a".into()],
            output: vec!["c".into()],
            node: vec![
                node("Relu", "", &["a"], &["b"]),
                node("Relu", "", &["b"], &["c"]),
            ],
            opset_import: vec![opset("", version)],
            ..FunctionProto::default()
        };
        let calls = vec![
            node("Twice", "mine", &["x"], &["y"]),
            node("Twice", "mine", &["y"], &["z"]),
        ];
        ModelProto {
            opset_import: vec![opset("", 18), opset("mine", 1)],
            graph: Some(GraphProto {
                node: calls,
                ..GraphProto::default()
            }),
            functions: vec![function],
            ..ModelProto::default()
        }
    }

    #[test]
    fn calls_become_bodies_with_names_of_their_own() {
        let mut model = model(18);
        functions(&mut model);
        let nodes = &model.graph.as_ref().unwrap().node;
        let ends: Vec<_> = nodes
            .iter()
            .map(|node| (&*node.input[0], &*node.output[0]))
            .collect();
        let expected = [
            ("x", "Twice.0.0/b"),
            ("Twice.0.0/b", "y"),
            ("y", "Twice.0.1/b"),
            ("Twice.0.1/b", "z"),
        ];
        assert_eq!(ends, expected);
    }

    #[test]
    fn a_function_of_another_version_stays_a_call() {
        let mut model = model(17);
        functions(&mut model);
        assert_eq!(model.graph.unwrap().node.len(), 2);
    }
}
