//! Inlines the model's functions at their calls, so that the import can infer, cost and cut their
//! nodes like the rest.
//!
//! Calls occur in the graph, in its bodies and in other functions. The import counts the total of
//! all calls before it replaces any, because functions that call each other twice double with each
//! level. It upgrades a function of an older operator set to the model's, and a model that is older
//! than one of its functions to that function's.

use std::collections::BTreeMap;

use souk_onnx::budget::{ExceededLimit, Usage};
use souk_onnx::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto};
use thiserror::Error;

use super::upgrade;

/// Maximum depth of calls within calls, and of bodies within bodies. Exporters nest as deep as a
/// model's modules.
const DEPTH_MAX: usize = 32;

/// The reason why functions cannot be inlined.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FunctionError {
    /// The functions expand to more than a model can have.
    #[error(transparent)]
    Beyond(#[from] ExceededLimit),
    /// A function calls itself or nests too deep.
    #[error("function {function:?} calls itself, or is more than {DEPTH_MAX} calls deep")]
    Recursion {
        /// Name of the function.
        function: String,
    },
    /// Nodes of two versions of the standard operator set cannot be upgraded to one version.
    #[error(
        "{operator} means another thing in operator set {from} than in {to}, and the model uses \
         both: export its functions for one operator set"
    )]
    Version {
        /// Name of the operator.
        operator: String,
        /// The older version.
        from: i64,
        /// The newer version.
        to: i64,
    },
}

/// Replaces calls of the model's functions by their bodies.
///
/// # Errors
/// [`FunctionError`] if functions expand to too much, call themselves, or have incompatible
/// versions.
pub(super) fn inline_functions(model: &mut ModelProto) -> Result<(), FunctionError> {
    let mut library = Library::from_functions(std::mem::take(&mut model.functions));
    let Some(mut graph) = model.graph.take() else {
        return Ok(());
    };
    if !library.functions.is_empty() {
        let within = library.count_nodes(&graph.node, Usage::of_graph(&graph), 0)?;
        within.check_limits("the graph")?;
        library.align_opsets(model, &mut graph)?;
        library.inline_calls(&mut graph);
    }
    model.graph = Some(graph);
    Ok(())
}

/// The functions of a model.
struct Library {
    functions: Vec<FunctionProto>,
    places: BTreeMap<(String, String, String), usize>,
    /// The total of each function with all that it calls; none for functions without calls.
    counted: Vec<CountState>,
    /// Number of replaced calls, which makes the names of each call unique.
    replaced: usize,
}

/// The state of a function's count.
#[derive(Clone, Copy)]
enum CountState {
    Never,
    Now,
    Is(Extent),
}

/// The total of some nodes with all functions that they call.
#[derive(Clone, Copy)]
struct Extent {
    usage: Usage,
    /// Depth of calls within calls.
    calls: usize,
    /// Depth of bodies within bodies.
    bodies: usize,
}

impl Extent {
    fn check_limits(self, function: &str) -> Result<Self, FunctionError> {
        self.usage.check_limits()?;
        if self.calls.max(self.bodies) > DEPTH_MAX {
            let function = function.to_owned();
            return Err(FunctionError::Recursion { function });
        }
        Ok(self)
    }
}

impl Library {
    fn from_functions(functions: Vec<FunctionProto>) -> Self {
        let mut places = BTreeMap::new();
        for (place, function) in functions.iter().enumerate() {
            let [domain, name] = [function.domain(), function.name()].map(str::to_owned);
            let overload = function.overload().to_owned();
            places.entry((domain, name, overload)).or_insert(place);
        }
        Self {
            counted: vec![CountState::Never; functions.len()],
            functions,
            places,
            replaced: 0,
        }
    }

    fn find_function(&self, node: &NodeProto) -> Option<usize> {
        let [domain, name] = [node.domain(), node.op_type()].map(str::to_owned);
        let key = (domain, name, node.overload().to_owned());
        self.places.get(&key).copied()
    }

    /// Returns one entry for each call by nodes and their bodies, with the number of bodies around
    /// the call, and the depth of the deepest body.
    fn find_calls(&self, nodes: &[NodeProto], around: usize) -> (Vec<(usize, usize)>, usize) {
        let (mut called, mut bodies) = (Vec::new(), around);
        for node in nodes {
            called.extend(self.find_function(node).map(|function| (function, around)));
            for body in node.subgraphs() {
                let (within, deepest) = self.find_calls(&body.node, around + 1);
                called.extend(within);
                bodies = bodies.max(deepest);
            }
        }
        (called, bodies)
    }

    /// Returns the total of nodes with their calls. `own` is the nodes' own usage, `depth` the
    /// number of enclosing calls.
    fn count_nodes(
        &mut self,
        nodes: &[NodeProto],
        own: Usage,
        depth: usize,
    ) -> Result<Extent, FunctionError> {
        let (called, bodies) = self.find_calls(nodes, 0);
        let mut extent = Extent {
            usage: own,
            calls: 0,
            bodies,
        };
        for (function, around) in called {
            let within = self.count_function(function, depth)?;
            extent = Extent {
                usage: extent.usage.with(within.usage).check_limits()?,
                calls: extent.calls.max(within.calls + 1),
                bodies: extent.bodies.max(around + within.bodies),
            };
        }
        Ok(extent)
    }

    fn count_function(&mut self, place: usize, depth: usize) -> Result<Extent, FunctionError> {
        let name = self.functions[place].name().to_owned();
        match self.counted[place] {
            CountState::Is(extent) => return Ok(extent),
            _ if depth > DEPTH_MAX => return Err(FunctionError::Recursion { function: name }),
            CountState::Now => return Err(FunctionError::Recursion { function: name }),
            CountState::Never => self.counted[place] = CountState::Now,
        }
        let own = Usage::of_function(&self.functions[place])?;
        let nodes = std::mem::take(&mut self.functions[place].node);
        let extent = self.count_nodes(&nodes, own, depth + 1);
        self.functions[place].node = nodes;
        let extent = extent?.check_limits(&name)?;
        self.counted[place] = CountState::Is(extent);
        Ok(extent)
    }

    /// Returns the functions that have calls.
    fn called_functions(&self) -> impl Iterator<Item = usize> + use<> {
        let counted = self.counted.iter().enumerate();
        let used = counted.filter(|(_, it)| matches!(it, CountState::Is(_)));
        let used: Vec<usize> = used.map(|(place, _)| place).collect();
        used.into_iter()
    }

    /// Upgrades the graph and all called functions to the newest of their operator sets.
    fn align_opsets(
        &mut self,
        model: &mut ModelProto,
        graph: &mut GraphProto,
    ) -> Result<(), FunctionError> {
        let versions = self
            .called_functions()
            .filter_map(|it| standard_opset(&self.functions[it]));
        let own = model.opset("");
        let Some(to) = versions.chain(own).max() else {
            return Ok(());
        };
        let refused = |from| move |operator| FunctionError::Version { operator, from, to };
        if let Some(from) = own {
            upgrade::upgrade_nodes(&mut graph.node, from, to).map_err(refused(from))?;
        }
        for place in self.called_functions() {
            let function = &mut self.functions[place];
            let from = standard_opset(function).unwrap_or(to);
            upgrade::upgrade_nodes(&mut function.node, from, to).map_err(refused(from))?;
            for set in &function.opset_import {
                if model.opset(set.domain()).is_none() {
                    model.opset_import.push(set.clone());
                }
            }
        }
        let is_standard = |domain: &str| matches!(domain, "" | "ai.onnx");
        for set in &mut model.opset_import {
            if is_standard(set.domain()) {
                set.version = Some(to);
            }
        }
        Ok(())
    }

    fn inline_calls(&mut self, graph: &mut GraphProto) {
        let nodes = std::mem::take(&mut graph.node);
        let mut written = Vec::with_capacity(nodes.len());
        for mut node in nodes {
            for attribute in &mut node.attribute {
                let bodies = attribute.g.iter_mut().chain(&mut attribute.graphs);
                bodies.for_each(|body| self.inline_calls(body));
            }
            self.write(node, &mut written);
        }
        graph.node = written;
    }

    /// Writes a node, or its expansion, after its own bodies.
    fn write(&mut self, node: NodeProto, written: &mut Vec<NodeProto>) {
        let Some(place) = self.find_function(&node) else {
            written.push(node);
            return;
        };
        let prefix = format!("{}.{}", node.op_type(), self.replaced);
        self.replaced += 1;
        let mut body = GraphProto {
            node: expand_call(&self.functions[place], &node, prefix),
            ..GraphProto::default()
        };
        self.inline_calls(&mut body);
        written.extend(body.node);
    }
}

/// Returns a function's version of the standard operator set.
fn standard_opset(function: &FunctionProto) -> Option<i64> {
    let mut sets = function.opset_import.iter();
    let set = sets.find(|set| matches!(set.domain(), "" | "ai.onnx"))?;
    Some(set.version())
}

/// Returns the nodes of `function` under names that begin with `prefix`, with its formal names
/// replaced by those of `call`.
fn expand_call(function: &FunctionProto, call: &NodeProto, prefix: String) -> Vec<NodeProto> {
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    for (place, formal) in function.input.iter().enumerate() {
        names.insert(formal, call.input.get(place).cloned().unwrap_or_default());
    }
    // An `Identity` passes on an output that is also an input or another output.
    let mut through = Vec::new();
    for (formal, actual) in function.output.iter().zip(&call.output) {
        match names.get(formal.as_str()) {
            _ if actual.is_empty() => {}
            Some(same) => through.push(NodeProto::for_operator("Identity", &[same], actual)),
            None => drop(names.insert(formal, actual.clone())),
        }
    }
    let rename = Rename { names, prefix };
    let nodes = function.node.iter().map(|node| {
        let mut node = rename.rename_node(node);
        node.attribute = resolve_attributes(&node.attribute, function, call);
        node
    });
    nodes.chain(through).collect()
}

/// The new names for the values of a function's body.
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

    fn rename_node(&self, node: &NodeProto) -> NodeProto {
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
            attribute.g = attribute.g.as_ref().map(|body| self.rename_graph(body));
            attribute.graphs = attribute
                .graphs
                .iter()
                .map(|body| self.rename_graph(body))
                .collect();
        }
        renamed
    }

    /// Renames a body within the body, which reads the names around it.
    fn rename_graph(&self, body: &GraphProto) -> GraphProto {
        let mut renamed = body.clone();
        let put = |name: &mut Option<String>| {
            if let Some(name) = name {
                *name = self.value(name);
            }
        };
        renamed.node = body
            .node
            .iter()
            .map(|node| self.rename_node(node))
            .collect();
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

/// Returns the attributes of a node in the body, with references to the function's attributes
/// resolved: to the call's value, else to the function's default, else to none.
fn resolve_attributes(
    attributes: &[AttributeProto],
    function: &FunctionProto,
    call: &NodeProto,
) -> Vec<AttributeProto> {
    let resolve = |attribute: &AttributeProto| {
        let mut resolved = attribute.clone();
        for body in resolved.g.iter_mut().chain(&mut resolved.graphs) {
            for node in &mut body.node {
                node.attribute = resolve_attributes(&node.attribute, function, call);
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
        inline_functions(&mut model).unwrap();
        let nodes = &model.graph.as_ref().unwrap().node;
        let ends: Vec<_> = nodes
            .iter()
            .map(|node| (&*node.input[0], &*node.output[0]))
            .collect();
        let expected = [
            ("x", "Twice.0/b"),
            ("Twice.0/b", "y"),
            ("y", "Twice.1/b"),
            ("Twice.1/b", "z"),
        ];
        assert_eq!(ends, expected);
    }

    #[test]
    fn a_function_of_another_version_is_written_in_the_newer_of_both() {
        for version in [17, 19] {
            let mut model = model(version);
            inline_functions(&mut model).unwrap();
            assert_eq!(model.opset(""), Some(version.max(18)));
            assert_eq!(model.graph.unwrap().node.len(), 4);
        }
    }

    #[test]
    fn operators_that_changed_between_versions_are_named() {
        let mut model = model(11);
        model.functions[0].node[0].op_type = Some("Softmax".into());
        let operator = "Softmax".to_owned();
        let refusal = FunctionError::Version {
            operator,
            from: 11,
            to: 18,
        };
        assert_eq!(inline_functions(&mut model), Err(refusal));
    }

    #[test]
    fn calls_in_bodies_and_in_functions_are_replaced_too() {
        let mut model = model(18);
        let mut outer = model.functions[0].clone();
        outer.name = Some("Four".into());
        outer.node = vec![
            node("Twice", "mine", &["a"], &["b"]),
            node("Twice", "mine", &["b"], &["c"]),
        ];
        model.functions.push(outer);
        let body = GraphProto {
            node: vec![node("Four", "mine", &["x"], &["inner"])],
            ..GraphProto::default()
        };
        let mut choice = node("If", "", &["p"], &["y"]);
        choice.attribute.push(AttributeProto {
            name: Some("then_branch".into()),
            g: Some(body),
            ..AttributeProto::default()
        });
        model.graph.as_mut().unwrap().node = vec![choice];
        inline_functions(&mut model).unwrap();
        let graph = model.graph.unwrap();
        let body = graph.node[0].subgraphs().next().unwrap();
        let operators: Vec<&str> = body.node.iter().map(NodeProto::op_type).collect();
        assert_eq!(operators, ["Relu"; 4]);
        assert_eq!(body.node[0].input, ["x"]);
        assert_eq!(body.node[3].output, ["inner"]);
    }

    #[test]
    fn an_output_that_is_an_input_is_handed_through() {
        let mut model = model(18);
        model.functions[0].output.insert(0, "a".into());
        let call = node("Twice", "mine", &["x"], &["same", "y"]);
        model.graph.as_mut().unwrap().node = vec![call];
        inline_functions(&mut model).unwrap();
        let nodes = model.graph.unwrap().node;
        assert_eq!(nodes[0].input, ["x"]);
        assert_eq!(nodes[1].output, ["y"]);
        assert_eq!((&*nodes[2].input[0], &*nodes[2].output[0]), ("x", "same"));
    }

    /// A model whose functions each call the next twice, `depth` deep.
    fn doubling(depth: usize) -> ModelProto {
        let mut whole = model(18);
        let one = whole.functions.remove(0);
        whole.functions = (0..depth)
            .map(|level| {
                let next = format!("f{}", level + 1);
                let mut function = one.clone();
                function.name = Some(format!("f{level}"));
                if level + 1 < depth {
                    function.node = vec![
                        node(&next, "mine", &["a"], &["b"]),
                        node(&next, "mine", &["b"], &["c"]),
                    ];
                }
                function
            })
            .collect();
        whole.graph.as_mut().unwrap().node = vec![node("f0", "mine", &["x"], &["y"])];
        whole
    }

    #[test]
    fn functions_that_double_are_counted_before_they_are_replaced() {
        let mut small = doubling(10);
        inline_functions(&mut small).unwrap();
        assert_eq!(small.graph.unwrap().node.len(), 1 << 10);
        for depth in [18, 24, 32] {
            let refused = inline_functions(&mut doubling(depth));
            assert!(
                matches!(refused, Err(FunctionError::Beyond(_))),
                "{refused:?}"
            );
        }
        let mut own = doubling(3);
        own.functions[2].node[0] = node("f0", "mine", &["a"], &["b"]);
        let refused = inline_functions(&mut own);
        assert!(matches!(refused, Err(FunctionError::Recursion { .. })));
    }

    #[test]
    fn lists_of_functions_count_at_each_call() {
        let mut model = model(18);
        let list = AttributeProto {
            name: Some("value_ints".into()),
            ints: vec![1; 1 << 16],
            ..AttributeProto::default()
        };
        model.functions[0].node[0].attribute.push(list);
        let call = node("Twice", "mine", &["x"], &["y"]);
        model.graph.as_mut().unwrap().node = vec![call; 1000];
        let refused = inline_functions(&mut model);
        assert!(matches!(
            refused,
            Err(FunctionError::Beyond(ExceededLimit::Memory { .. }))
        ));
    }
}
