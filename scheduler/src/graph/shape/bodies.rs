//! Infers the outputs of `If`, `Loop` and `Scan` from their bodies, by the same rules as the graph
//! around them.
//!
//! A node with a body stays one task, so only the facts of its outputs matter. If a rule refuses a
//! body, its facts are unknown, because a branch that never runs can be wrong. The work of a body
//! is the work of its nodes, as often as it runs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use souk_onnx::budget::ExceededLimit;
use souk_onnx::custom::Custom;
use souk_onnx::work::{Work, has_bodies};
use souk_onnx::{DataType, GraphProto, NodeProto};

use super::super::captures::captured_names;
use super::operation::axis_of;
use super::work::{node_work, with_extents};
use super::{Dims, Fact, infer_outputs as infer_node, tensor_fact};

/// Number of rounds after which a loop's carried values count as unknown. Each round turns at least
/// one known extent or rank into an unknown one, so real loops take two or three rounds.
const ROUNDS_MAX: usize = 8;

/// Maximum number of node inferences in the bodies of a model, including repeated ones, because a
/// loop's carried values take several rounds and nested loops multiply them.
const STEPS_MAX: u64 = 200_000;

/// The number of node inferences in bodies that remain.
#[derive(Clone, Debug)]
pub(crate) struct InferenceBudget(Rc<Cell<u64>>);

impl Default for InferenceBudget {
    fn default() -> Self {
        Self(Rc::new(Cell::new(STEPS_MAX)))
    }
}

impl InferenceBudget {
    /// Uses up this many steps and returns whether enough of them remained.
    fn take_steps(&self, steps: usize) -> bool {
        let left = self.0.get().checked_sub(steps as u64);
        self.0.set(left.unwrap_or(0));
        left.is_some_and(|left| left > 0)
    }

    /// Returns an error if the steps did not suffice.
    pub fn check_limit(&self) -> Result<(), ExceededLimit> {
        match self.0.get() {
            0 => Err(ExceededLimit::Steps { limit: STEPS_MAX }),
            _ => Ok(()),
        }
    }
}

/// The facts of the values that a body can read, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    facts: BTreeMap<String, Fact>,
    steps: InferenceBudget,
}

impl Scope {
    pub fn new(facts: BTreeMap<String, Fact>, steps: &InferenceBudget) -> Self {
        let steps = steps.clone();
        Self { facts, steps }
    }

    fn get(&self, name: &str) -> Option<&Fact> {
        self.facts.get(name)
    }

    fn insert(&mut self, name: &str, fact: Fact) {
        self.facts.insert(name.to_owned(), fact);
    }

    /// Returns the facts that the bodies of a node read from this scope.
    fn seen_by(&self, node: &NodeProto) -> Self {
        let names = captured_names(node).into_iter();
        let facts = names.filter_map(|name| Some((name.to_owned(), self.get(name)?.clone())));
        Self::new(facts.collect(), &self.steps)
    }
}

/// Returns the facts of a node's outputs, or `None` if the operator has no body.
pub(super) fn infer_bodies(
    node: &NodeProto,
    opset: i64,
    inputs: &[Option<&Fact>],
    outer: &Scope,
) -> Option<Vec<Fact>> {
    if !node.operator_domain().is_empty() {
        return None;
    }
    let body = |name: &str| node.attribute(name)?.g.as_ref();
    let facts = match node.op_type() {
        "If" => infer_if(
            inputs,
            body("then_branch").map(|body| run(body, opset, &[], outer)),
            body("else_branch").map(|body| run(body, opset, &[], outer)),
        ),
        "Loop" => infer_loop(body("body")?, opset, inputs, outer),
        // Before operator set 9, `Scan` had its own batch dimension and a different order of
        // inputs.
        "Scan" if opset >= 9 => infer_scan(node, body("body")?, opset, inputs, outer),
        "Scan" => None,
        _ => return None,
    };
    Some(facts.unwrap_or_default())
}

/// The work of a node beyond its own operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InnerWork {
    /// The work of its bodies, as often as they run.
    pub work: Work,
    /// Whether the work is complete. It is unknown in advance for a loop whose count comes at run
    /// time, for a choice at run time and for a kernel of the buyer's own.
    pub is_known: bool,
}

impl InnerWork {
    const NONE: Self = Self {
        work: Work {
            operations: 0,
            bytes_read: 0,
            bytes_written: 0,
            launches: 0,
            dtype: None,
        },
        is_known: true,
    };
    const UNKNOWN: Self = Self {
        is_known: false,
        ..Self::NONE
    };
}

/// Returns the work of a node's bodies, as often as they run. Returns none for a node without
/// bodies, or if a rule refuses the body.
pub(crate) fn inner_work(
    node: &NodeProto,
    opset: i64,
    inputs: &[Option<&Fact>],
    outer: &Scope,
) -> InnerWork {
    if Custom::from_node(node).is_some() {
        return InnerWork::UNKNOWN;
    }
    if !has_bodies(node) {
        return InnerWork::NONE;
    }
    let body = |name: &str| node.attribute(name)?.g.as_ref();
    let round = |name: &str, given: Option<Vec<Fact>>| {
        let scope = scope_of(body(name)?, opset, &given?, outer)?;
        Some(sum(body(name)?, opset, &scope))
    };
    let first = inputs.first().copied().flatten();
    let first = first.and_then(|fact| fact.ints.as_deref());
    let bodies = match node.op_type() {
        "If" => {
            let chosen = match first {
                Some([0]) => &["else_branch"][..],
                Some([_]) => &["then_branch"][..],
                _ => &["then_branch", "else_branch"][..],
            };
            let branches = chosen.iter().map(|name| round(name, Some(Vec::new())));
            branches.collect::<Vec<_>>()
        }
        "Loop" => {
            let settled = body("body").and_then(|body| settle_loop(body, opset, inputs, outer));
            vec![round(
                "body",
                settled.map(|(carried, _)| loop_inputs(&carried)),
            )]
        }
        _ if opset < 9 => return InnerWork::UNKNOWN,
        _ => {
            let sequences = body("body").and_then(|_| Sequences::from_scan(node, inputs));
            let given = sequences.and_then(|sequences| {
                let (carried, _) = sequences.settle_states(body("body")?, opset, outer)?;
                Some([carried, sequences.elements].concat())
            });
            vec![round("body", given)]
        }
    };
    let stated = match first {
        Some([rounds]) => Some((*rounds).max(0).unsigned_abs()),
        _ => None,
    };
    let is_each_known = bodies.len() == 1
        && bodies
            .iter()
            .all(|body| body.as_ref().is_some_and(|body| body.is_known));
    let works: Vec<Work> = bodies.iter().flatten().map(|body| body.work).collect();
    with_extents(inputs, |extents| InnerWork {
        work: Work::for_bodies(node, extents, stated, &works),
        is_known: is_each_known && Work::max_rounds(node, extents, stated).is_some(),
    })
}

/// Returns the work of a body's nodes, from the facts of all its values.
fn sum(body: &GraphProto, opset: i64, scope: &Scope) -> InnerWork {
    let is_sized = |fact: &&Fact| fact.byte_length().is_some();
    body.node.iter().fold(InnerWork::NONE, |all, node| {
        let of = |name: &String| scope.get(name);
        let inputs: Vec<Option<&Fact>> = node.input.iter().map(of).collect();
        let outputs: Vec<&Fact> = node.output.iter().filter_map(of).collect();
        let inner = inner_work(node, opset, &inputs, &scope.seen_by(node));
        let mut values = inputs.iter().flatten().chain(&outputs);
        InnerWork {
            work: all.work + (node_work(node, &inputs, &outputs) + inner.work),
            is_known: all.is_known && inner.is_known && values.all(is_sized),
        }
    })
}

/// Returns the facts of a body's outputs from those of its inputs, or `None` if a rule refuses a
/// node.
fn run(body: &GraphProto, opset: i64, inputs: &[Fact], outer: &Scope) -> Option<Vec<Fact>> {
    let scope = scope_of(body, opset, inputs, outer)?;
    let of = |name: &str| scope.get(name).cloned().unwrap_or_default();
    Some(body.output.iter().map(|output| of(output.name())).collect())
}

/// Returns the facts of all values that a body reads or computes.
fn scope_of(body: &GraphProto, opset: i64, inputs: &[Fact], outer: &Scope) -> Option<Scope> {
    if !outer
        .steps
        .take_steps(1 + outer.facts.len() + body.initializer.len())
    {
        return None;
    }
    let mut scope = outer.clone();
    for tensor in &body.initializer {
        scope.insert(tensor.name(), tensor_fact(tensor).unwrap_or_default());
    }
    for (input, fact) in body.input.iter().zip(inputs) {
        scope.insert(input.name(), fact.clone());
    }
    // The standard requires the nodes of a body to be in running order.
    for node in &body.node {
        if !scope
            .steps
            .take_steps(1 + node.input.len() + node.output.len())
        {
            return None;
        }
        let facts = {
            let of = |name: &String| scope.get(name);
            let inputs: Vec<Option<&Fact>> = node.input.iter().map(of).collect();
            infer_node(node, opset, &inputs, &scope.seen_by(node)).ok()?
        };
        for (name, fact) in node.output.iter().zip(facts) {
            scope.insert(name, fact);
        }
    }
    Some(scope)
}

/// Returns the facts of the branch that the condition chooses, or those that both branches share.
fn infer_if(
    inputs: &[Option<&Fact>],
    then: Option<Option<Vec<Fact>>>,
    otherwise: Option<Option<Vec<Fact>>>,
) -> Option<Vec<Fact>> {
    let (then, otherwise) = (then.flatten(), otherwise.flatten());
    let condition = inputs.first().copied().flatten();
    match condition.and_then(|fact| fact.ints.as_deref()) {
        Some([0]) => otherwise,
        Some([_]) => then,
        _ => {
            let pairs = then?.into_iter().zip(otherwise?);
            Some(pairs.map(|(a, b)| merge_facts(&a, &b)).collect())
        }
    }
}

/// Returns the facts that hold for both values.
fn merge_facts(a: &Fact, b: &Fact) -> Fact {
    let dims = match (&a.dims, &b.dims) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            let same = a.iter().zip(b).map(|(a, b)| if a == b { *a } else { None });
            Some(same.collect::<Dims>())
        }
        _ => None,
    };
    Fact {
        elem: if a.elem == b.elem { a.elem } else { None },
        dims,
        ints: a.ints.clone().filter(|ints| b.ints.as_ref() == Some(ints)),
        floats: a
            .floats
            .clone()
            .filter(|floats| b.floats.as_ref() == Some(floats)),
    }
}

/// Returns the facts of the values that a loop carries and of its other outputs per round. `round`
/// maps the carried values to all outputs of a round.
fn settle_carried(
    mut carried: Vec<Fact>,
    round: impl Fn(&[Fact]) -> Option<Vec<Fact>>,
) -> Option<(Vec<Fact>, Vec<Fact>)> {
    for _ in 0..ROUNDS_MAX {
        let mut made = round(&carried)?;
        let beside = made.split_off(carried.len().min(made.len()));
        let pairs = carried.iter().zip(&made);
        let next: Vec<Fact> = pairs
            .map(|(before, after)| merge_facts(before, after))
            .collect();
        if next == carried {
            return Some((carried, beside));
        }
        carried = next;
    }
    None
}

/// Infers `Loop`: its inputs are the number of rounds, the condition and the carried values.
fn infer_loop(
    body: &GraphProto,
    opset: i64,
    inputs: &[Option<&Fact>],
    outer: &Scope,
) -> Option<Vec<Fact>> {
    let (mut carried, beside) = settle_loop(body, opset, inputs, outer)?;
    // The number of rounds is known only at run time.
    carried.extend(beside.into_iter().map(|fact| stack_fact(fact, 0, None)));
    Some(carried)
}

/// Returns the facts of the values that a loop carries and of its other outputs per round.
fn settle_loop(
    body: &GraphProto,
    opset: i64,
    inputs: &[Option<&Fact>],
    outer: &Scope,
) -> Option<(Vec<Fact>, Vec<Fact>)> {
    let start = inputs.iter().skip(2);
    let start = start.map(|fact| fact.cloned().unwrap_or_default());
    settle_carried(start.collect(), |carried| {
        let made = run(body, opset, &loop_inputs(carried), outer)?;
        // The condition is the first output.
        made.get(1..).map(<[Fact]>::to_vec)
    })
}

/// Returns the inputs of a loop's round.
fn loop_inputs(carried: &[Fact]) -> Vec<Fact> {
    let scalar = |elem: DataType| Fact::new_tensor(Some(elem), Vec::new());
    let mut given = vec![scalar(DataType::Int64), scalar(DataType::Bool)];
    given.extend_from_slice(carried);
    given
}

/// Infers `Scan`: its inputs are the states, then the sequences, of which each round reads one
/// element.
fn infer_scan(
    node: &NodeProto,
    body: &GraphProto,
    opset: i64,
    inputs: &[Option<&Fact>],
    outer: &Scope,
) -> Option<Vec<Fact>> {
    let sequences = Sequences::from_scan(node, inputs)?;
    let (mut made, beside) = sequences.settle_states(body, opset, outer)?;
    for (index, fact) in beside.into_iter().enumerate() {
        let rank = fact.rank().map_or(1, |rank| rank + 1);
        let axis = axis_of(axis_stated(node, "scan_output_axes", index), rank).ok()?;
        made.push(stack_fact(fact, axis, sequences.length));
    }
    Some(made)
}

fn axis_stated(node: &NodeProto, name: &str, index: usize) -> i64 {
    let axes = node.ints(name).unwrap_or_default();
    axes.get(index).copied().unwrap_or(0)
}

/// The inputs of a `Scan`.
struct Sequences {
    states: Vec<Fact>,
    /// The element of each sequence that a round reads.
    elements: Vec<Fact>,
    length: Option<u64>,
}

impl Sequences {
    fn from_scan(node: &NodeProto, inputs: &[Option<&Fact>]) -> Option<Self> {
        let sequences = usize::try_from(node.int("num_scan_inputs")?).ok()?;
        let states = inputs.len().checked_sub(sequences)?;
        let mut elements = Vec::new();
        let mut length = None;
        for (index, fact) in inputs[states..].iter().enumerate() {
            let fact = (*fact)?;
            let mut dims = fact.dims.clone()?;
            let axis = axis_stated(node, "scan_input_axes", index);
            let axis = axis_of(axis, dims.len()).ok()?;
            length = dims.remove(axis).or(length);
            elements.push(Fact::new_tensor(fact.elem, dims));
        }
        let start = inputs[..states].iter();
        let states = start.map(|fact| fact.cloned().unwrap_or_default());
        Some(Self {
            states: states.collect(),
            elements,
            length,
        })
    }

    /// Returns the facts of the states and of the other outputs in any round.
    fn settle_states(
        &self,
        body: &GraphProto,
        opset: i64,
        outer: &Scope,
    ) -> Option<(Vec<Fact>, Vec<Fact>)> {
        settle_carried(self.states.clone(), |carried| {
            let given: Vec<Fact> = carried.iter().chain(&self.elements).cloned().collect();
            run(body, opset, &given, outer)
        })
    }
}

/// Returns the fact of all rounds' results, stacked along a new axis.
fn stack_fact(fact: Fact, axis: usize, length: Option<u64>) -> Fact {
    let dims = fact.dims.map(|mut dims| {
        dims.insert(axis, length);
        dims
    });
    Fact {
        elem: fact.elem,
        dims,
        ..Fact::default()
    }
}

#[cfg(test)]
mod tests {
    use souk_memory::DType;
    use souk_onnx::{AttributeProto, ValueInfoProto};

    use super::*;

    fn node(op: &str, input: &[&str], output: &[&str]) -> NodeProto {
        NodeProto {
            op_type: Some(op.to_owned()),
            input: input.iter().map(|&name| name.to_owned()).collect(),
            output: output.iter().map(|&name| name.to_owned()).collect(),
            ..NodeProto::default()
        }
    }

    fn body(nodes: Vec<NodeProto>, input: &[&str], output: &[&str]) -> GraphProto {
        let value = |name: &&str| ValueInfoProto::new_tensor(*name, DType::F32.onnx_code(), None);
        GraphProto {
            node: nodes,
            input: input.iter().map(value).collect(),
            output: output.iter().map(value).collect(),
            ..GraphProto::default()
        }
    }

    fn with(mut node: NodeProto, name: &str, body: GraphProto) -> NodeProto {
        node.attribute.push(AttributeProto {
            name: Some(name.to_owned()),
            g: Some(body),
            ..AttributeProto::default()
        });
        node
    }

    fn floats(dims: &[u64]) -> Fact {
        let dims = dims.iter().map(|&dim| Some(dim)).collect();
        Fact::new_tensor(Some(DataType::Float), dims)
    }

    fn scope() -> Scope {
        let facts = BTreeMap::from([
            ("x".to_owned(), floats(&[2, 3])),
            ("y".to_owned(), floats(&[2, 4])),
        ]);
        Scope::new(facts, &InferenceBudget::default())
    }

    fn either() -> NodeProto {
        let node_if = node("If", &["c"], &["z"]);
        let then = body(vec![node("Relu", &["x"], &["a"])], &[], &["a"]);
        let otherwise = body(vec![node("Exp", &["y"], &["b"])], &[], &["b"]);
        with(with(node_if, "then_branch", then), "else_branch", otherwise)
    }

    #[test]
    fn an_if_makes_what_both_branches_agree_on() {
        let condition = Fact::new_tensor(Some(DataType::Bool), Vec::new());
        let facts = infer_node(&either(), 17, &[Some(&condition)], &scope()).unwrap();
        let dims = vec![Some(2), None];
        assert_eq!(facts, [Fact::new_tensor(Some(DataType::Float), dims)]);
    }

    #[test]
    fn an_if_of_a_known_condition_is_its_branch() {
        let mut condition = Fact::new_tensor(Some(DataType::Bool), Vec::new());
        condition.ints = Some(vec![0]);
        let facts = infer_node(&either(), 17, &[Some(&condition)], &scope()).unwrap();
        assert_eq!(facts, [floats(&[2, 4])]);
    }

    #[test]
    fn a_loop_keeps_the_extents_that_do_not_change() {
        // Carries v -> Concat(v, x) along axis 1, and stacks Relu(x).
        let mut concat = node("Concat", &["v", "x"], &["grown"]);
        concat.attribute.push(AttributeProto {
            name: Some("axis".to_owned()),
            i: Some(1),
            ..AttributeProto::default()
        });
        let nodes = vec![
            node("Identity", &["go"], &["on"]),
            concat,
            node("Relu", &["x"], &["each"]),
        ];
        let inner = body(nodes, &["i", "go", "v"], &["on", "grown", "each"]);
        let node_loop = with(
            node("Loop", &["m", "", "v0"], &["v1", "all"]),
            "body",
            inner,
        );
        let start = floats(&[2, 1]);
        let inputs = [None, None, Some(&start)];
        let facts = infer_node(&node_loop, 17, &inputs, &scope()).unwrap();
        let dims = |dims: &[Option<u64>]| Some(dims.to_vec());
        assert_eq!(facts[0].dims, dims(&[Some(2), None]));
        assert_eq!(facts[1].dims, dims(&[None, Some(2), Some(3)]));
    }

    #[test]
    fn a_scan_stacks_one_result_for_each_element() {
        let inner = body(
            vec![
                node("Add", &["s", "e"], &["t"]),
                node("Exp", &["t"], &["o"]),
            ],
            &["s", "e"],
            &["t", "o"],
        );
        let mut scan = with(node("Scan", &["s0", "seq"], &["s1", "all"]), "body", inner);
        scan.attribute.push(AttributeProto {
            name: Some("num_scan_inputs".to_owned()),
            i: Some(1),
            ..AttributeProto::default()
        });
        let (state, sequence) = (floats(&[3]), floats(&[7, 3]));
        let inputs = [Some(&state), Some(&sequence)];
        let facts = infer_node(&scan, 17, &inputs, &Scope::default()).unwrap();
        assert_eq!(facts, [floats(&[3]), floats(&[7, 3])]);
    }
}
