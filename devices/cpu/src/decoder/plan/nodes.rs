//! Reads the nodes of a decoder's graph one by one and adds the steps that compute them to a plan.
//! The planner gives up on the graph as soon as [`Reader`] meets a node that it does not know.

mod elements;
mod routing;

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::graph::{Graph, values_read};
use souk_onnx::states::StatePort;
use souk_onnx::subgraph::Port;
use souk_onnx::{routing as routed, sampling};

use super::super::cache::CacheOrder;
use super::super::matrix::{BLOCK, MatrixSource};
use super::super::products::bytes_width;
use super::{
    Action, DecoderOutput, DecoderStep, ExpertStack, Inputs, Meaning, Names, OutputKind, RowCount,
    RowsId, State, Table, View,
};

/// Epsilon of `RMSNormalization` without that attribute.
const EPSILON_DEFAULT: f32 = 1e-5;

/// A graph being read.
pub(super) struct Reader<'a> {
    graph: &'a Graph,
    pub steps: Vec<DecoderStep>,
    /// Floats in a row of each value.
    pub widths: Vec<usize>,
    pub matrices: Vec<MatrixSource>,
    pub tables: Vec<Table>,
    pub states: Vec<State>,
    pub inputs: Inputs,
    names: Names,
    /// How many nodes and outputs read each name.
    uses: BTreeMap<&'a str, usize>,
    /// Matrices by the name of their weight.
    placed: BTreeMap<String, usize>,
    /// Stacks of experts' matrices by name.
    stacks: BTreeMap<String, ExpertStack>,
    /// Rows as bytes, by the value they come from and the number of parts.
    quantised: BTreeMap<(RowsId, usize), RowsId>,
    /// The step that makes each value.
    makers: Vec<usize>,
    /// Rows of each value.
    counts: Vec<RowCount>,
}

impl<'a> Reader<'a> {
    pub fn new(graph: &'a Graph, ports: Vec<StatePort>) -> Option<Self> {
        let state = |port: StatePort| {
            let input = graph.inputs.iter().find(|input| input.name == port.input)?;
            let [Some(1), Some(heads), _, Some(width)] = input.dims.as_deref()? else {
                return None;
            };
            let (heads, width) = (*heads, *width);
            let state = State {
                port,
                heads,
                width,
                order: None,
            };
            (input.dtype == DType::F32).then_some(state)
        };
        let states: Vec<State> = ports.into_iter().map(state).collect::<Option<_>>()?;
        let mut uses = BTreeMap::new();
        let outputs = graph.outputs.iter().map(|port| port.name.as_str());
        for name in graph.nodes().iter().flat_map(values_read).chain(outputs) {
            *uses.entry(name).or_insert(0) += 1;
        }
        let named = states.iter().enumerate();
        let names = named.map(|(at, state)| (state.port.input.clone(), Meaning::State(at)));
        let mut reader = Self {
            graph,
            steps: Vec::new(),
            widths: Vec::new(),
            matrices: Vec::new(),
            tables: Vec::new(),
            names: names.collect(),
            states,
            inputs: Inputs::default(),
            uses,
            placed: BTreeMap::new(),
            stacks: BTreeMap::new(),
            quantised: BTreeMap::new(),
            makers: Vec::new(),
            counts: Vec::new(),
        };
        reader.read_rows_input()?;
        Some(reader)
    }

    /// Rows of floats that are an input: this is a later part of a decoder.
    fn read_rows_input(&mut self) -> Option<()> {
        let is_state = |name: &str| self.states.iter().any(|it| it.port.input == name);
        let floats = |port: &&Port| port.dtype == DType::F32 && !is_state(&port.name);
        let mut entering = self.graph.inputs.iter().filter(floats);
        let Some(port) = entering.next() else {
            return Some(());
        };
        let [Some(1), _, Some(width)] = port.dims.as_deref()? else {
            return None;
        };
        let (name, width) = (port.name.clone(), *width);
        if entering.next().is_some() {
            return None;
        }
        let made = self.add_step(Action::Enter, Vec::new(), width, RowCount::Tokens);
        let rows = Meaning::Rows(made, View::Flat);
        self.names.insert(name.clone(), rows);
        self.inputs.entered = Some((name, width));
        Some(())
    }

    /// The outputs that are no states, and the one value that they are of.
    pub fn find_result(&self) -> Option<(RowsId, Vec<DecoderOutput>)> {
        let is_state = |name: &str| self.states.iter().any(|it| it.port.output == name);
        let others = self.graph.outputs.iter();
        let mut result = None;
        let outputs = others.filter(|port| !is_state(&port.name)).map(|port| {
            let (value, kind) = match self.meaning_of(&port.name)? {
                Meaning::Rows(value, View::Flat) => (value, OutputKind::Rows),
                Meaning::Last(value, kind) => (value, kind),
                _ => return None,
            };
            set_or_match(&mut result, value)?;
            let name = port.name.clone();
            Some(DecoderOutput { name, kind })
        });
        let outputs = outputs.collect::<Option<Vec<DecoderOutput>>>()?;
        Some((result?, outputs))
    }

    pub fn read_node(&mut self, node: &NodeProto) -> Option<()> {
        let made = match node.op_type() {
            _ if sampling::is_sample(node) => self.read_sample(node),
            _ if routed::is_routed(node) => self.read_routed_product(node),
            _ if !node.operator_domain().is_empty() => None,
            "Cast" => self.read_cast(node),
            "DequantizeLinear" => self.read_dequantize(node),
            "Transpose" => self.read_transpose(node),
            "Gather" => self.read_gather(node),
            "RMSNormalization" => self.read_norm(node),
            "MatMul" => self.read_product(node),
            "Reshape" => self.read_reshape(node),
            "RotaryEmbedding" => self.read_rotation(node),
            "TensorScatter" => self.read_cache_write(node),
            "Attention" => self.read_attention(node),
            "Swish" => self.read_swish(node),
            "Gelu" => self.read_gelu(node),
            "Tanh" => self.read_tanh(node),
            "Mul" => self.read_mul(node),
            "Add" => self.read_add(node),
            "Softmax" => self.read_softmax(node),
            "TopK" => return self.read_top_k(node),
            "Div" => self.read_div(node),
            "ReduceSum" => self.read_sum(node),
            "Sigmoid" => self.read_sigmoid(node),
            _ => None,
        }?;
        let [output] = &node.output[..] else {
            return None;
        };
        self.names.insert(output.clone(), made);
        Some(())
    }

    fn meaning_of(&self, name: &str) -> Option<Meaning> {
        self.names.get(name).copied()
    }

    fn rows_input(&self, node: &NodeProto, index: usize) -> Option<(RowsId, View)> {
        match self.meaning_of(node.input_name(index)?)? {
            Meaning::Rows(value, view) => Some((value, view)),
            _ => None,
        }
    }

    fn flat_input(&self, node: &NodeProto, index: usize) -> Option<RowsId> {
        let (value, view) = self.rows_input(node, index)?;
        (view == View::Flat).then_some(value)
    }

    fn weight_input(&self, node: &NodeProto, index: usize) -> Option<&'a Tensor> {
        self.graph.weights.get(node.input_name(index)?)
    }

    fn float_weights(&self, node: &NodeProto, index: usize) -> Option<Vec<f32>> {
        self.weight_input(node, index)?.to_vec().ok()
    }

    fn add_step(
        &mut self,
        action: Action,
        reads: Vec<RowsId>,
        width: usize,
        rows: RowCount,
    ) -> RowsId {
        let made = self.widths.len();
        self.widths.push(width);
        self.makers.push(self.steps.len());
        self.counts.push(rows);
        self.steps.push(DecoderStep {
            action,
            reads,
            makes: Some(made),
            rows,
        });
        made
    }

    /// A matrix by the name of its weight, one place for all that read it.
    fn intern_matrix(&mut self, name: &str, given: impl FnOnce() -> MatrixSource) -> Option<usize> {
        if let Some(known) = self.placed.get(name) {
            return Some(*known);
        }
        let given = given();
        given.valid_dims()?;
        self.matrices.push(given);
        let at = self.matrices.len() - 1;
        self.placed.insert(name.to_owned(), at);
        Some(at)
    }

    /// Returns a weight of 32-bit floats, or a matrix that a node made of a weight.
    fn matrix_of(&mut self, name: &str) -> Option<Meaning> {
        if let Some(named) = self.meaning_of(name) {
            return Some(named);
        }
        let tensor = self.graph.weights.get(name)?;
        let is_floats = tensor.dtype() == DType::F32 && tensor.dims().len() == 2;
        let at = self.intern_matrix(name, || MatrixSource::Floats(tensor.clone()));
        at.filter(|_| is_floats).map(Meaning::Matrix)
    }

    fn read_cast(&mut self, node: &NodeProto) -> Option<Meaning> {
        let name = node.input_name(0)?;
        let tensor = self.graph.weights.get(name)?;
        let is_wide = node.int("to") == Some(i64::from(DType::F32.onnx_code()));
        if tensor.dims().len() == 3 {
            let stack = self.intern_stack(name, || MatrixSource::Floats(tensor.clone()))?;
            return is_wide.then_some(Meaning::Experts(stack));
        }
        let at = self.intern_matrix(name, || MatrixSource::Floats(tensor.clone()))?;
        is_wide.then_some(Meaning::Matrix(at))
    }

    fn read_dequantize(&mut self, node: &NodeProto) -> Option<Meaning> {
        let (integers, scales) = (self.weight_input(node, 0)?, self.weight_input(node, 1)?);
        let f32 = i64::from(DType::F32.onnx_code());
        let is_stack = integers.dims().len() == 3;
        let axis = node.int("axis").unwrap_or(1);
        let fits = node.input_name(2).is_none()
            && (axis == -1 || axis == if is_stack { 2 } else { 1 })
            && node.int("block_size") == Some(BLOCK as i64)
            && node.int("output_dtype") == Some(f32);
        let given = || MatrixSource::Blocks(integers.clone(), scales.clone());
        if is_stack {
            let stack = self.intern_stack(node.input_name(0)?, given)?;
            return fits.then_some(Meaning::Experts(stack));
        }
        let at = self.intern_matrix(node.input_name(0)?, given)?;
        fits.then_some(Meaning::Matrix(at))
    }

    fn read_transpose(&mut self, node: &NodeProto) -> Option<Meaning> {
        let axes = node.ints("perm")?;
        let name = node.input_name(0)?;
        match (self.matrix_of(name)?, axes) {
            (Meaning::Matrix(at), [1, 0]) => Some(Meaning::Turned(at)),
            (Meaning::Rows(value, View::Split { heads }), [0, 2, 1, 3]) => {
                Some(Meaning::Rows(value, View::Heads { heads }))
            }
            (Meaning::Rows(value, View::Heads { heads }), [0, 2, 1, 3]) => {
                Some(Meaning::Rows(value, View::Split { heads }))
            }
            _ => None,
        }
    }

    fn read_gather(&mut self, node: &NodeProto) -> Option<Meaning> {
        let axis = node.int("axis").unwrap_or(0);
        match self.matrix_of(node.input_name(0)?)? {
            Meaning::Matrix(matrix) if axis == 0 => {
                let tokens = self.integer_input(node, 1, 2)?;
                set_or_match(&mut self.inputs.tokens, tokens)?;
                let [_, width] = self.matrices[matrix].valid_dims()?;
                let action = Action::Embed { matrix };
                let value = self.add_step(action, Vec::new(), width, RowCount::Tokens);
                Some(Meaning::Rows(value, View::Flat))
            }
            Meaning::Rows(value, View::Flat) if axis == 1 => {
                let rows = self.integer_input(node, 1, 1)?;
                if self.counts[value] == RowCount::Selected {
                    set_or_match(&mut self.inputs.logit_rows, rows)?;
                    return Some(Meaning::Last(value, OutputKind::LogitRows));
                }
                set_or_match(&mut self.inputs.rows, rows)?;
                let width = self.widths[value];
                let value = self.add_step(Action::Select, vec![value], width, RowCount::Selected);
                Some(Meaning::Rows(value, View::Flat))
            }
            _ => None,
        }
    }

    /// Tokens drawn from rows.
    fn read_sample(&mut self, node: &NodeProto) -> Option<Meaning> {
        let value = self.flat_input(node, 0)?;
        let name = node.input_name(1)?;
        let port = self.graph.inputs.iter().find(|input| input.name == name)?;
        if port.dtype != DType::F64 || port.dims.as_ref()?.len() != 1 {
            return None;
        }
        set_or_match(&mut self.inputs.sampling, name.to_owned())?;
        Some(Meaning::Last(value, OutputKind::Drawn))
    }

    /// The name of an input of whole numbers with so many axes, the first of which is one where
    /// there are two.
    fn integer_input(&self, node: &NodeProto, index: usize, axes: usize) -> Option<String> {
        let name = node.input_name(index)?;
        let port = self.graph.inputs.iter().find(|input| input.name == name)?;
        let dims = port.dims.as_deref()?;
        let fits = port.dtype == DType::I64
            && dims.len() == axes
            && (axes == 1 || dims.first() == Some(&Some(1)));
        fits.then(|| name.to_owned())
    }

    fn read_norm(&mut self, node: &NodeProto) -> Option<Meaning> {
        let (value, view) = self.rows_input(node, 0)?;
        let scale = self.float_weights(node, 1)?;
        let width = match view {
            View::Flat => self.widths[value],
            View::Split { heads } | View::Heads { heads } => self.widths[value] / heads,
        };
        let fits = node.int("axis") == Some(-1)
            && matches!(node.int("stash_type"), None | Some(1))
            && scale.len() == width;
        if !fits {
            return None;
        }
        let epsilon = node.float("epsilon").unwrap_or(EPSILON_DEFAULT);
        let (width, rows) = (self.widths[value], self.counts[value]);
        let made = self.add_step(
            Action::Normalise { scale, epsilon },
            vec![value],
            width,
            rows,
        );
        Some(Meaning::Rows(made, view))
    }

    fn read_product(&mut self, node: &NodeProto) -> Option<Meaning> {
        let value = self.flat_input(node, 0)?;
        let Meaning::Turned(matrix) = self.meaning_of(node.input_name(1)?)? else {
            return None;
        };
        let [rows, depth] = self.matrices[matrix].valid_dims()?;
        if self.widths[value] != depth {
            return None;
        }
        let read = match self.matrices[matrix].kind()?.is_blocks() {
            true => self.quantise_rows(value, 1),
            false => value,
        };
        let bias = Vec::new();
        let count = self.counts[value];
        let made = self.add_step(Action::Product { matrix, bias }, vec![read], rows, count);
        Some(Meaning::Rows(made, View::Flat))
    }

    /// Returns rows as bytes in this many parts; all products that take them share one conversion.
    fn quantise_rows(&mut self, value: RowsId, parts: usize) -> RowsId {
        if let Some(known) = self.quantised.get(&(value, parts)) {
            return *known;
        }
        let width = bytes_width(self.widths[value] / parts) * parts;
        let action = Action::Quantise { parts };
        let made = self.add_step(action, vec![value], width, self.counts[value]);
        self.quantised.insert((value, parts), made);
        made
    }

    fn read_reshape(&mut self, node: &NodeProto) -> Option<Meaning> {
        if let Meaning::Choice(choices, part) = self.meaning_of(node.input_name(0)?)? {
            return self.read_share_reshape(node, choices, part);
        }
        let (value, view) = self.rows_input(node, 0)?;
        let sizes: Vec<i64> = self.weight_input(node, 1)?.to_vec().ok()?;
        let width = self.widths[value] as i64;
        let keeps_zeros = matches!(node.int("allowzero"), None | Some(0));
        let view = match (view, &sizes[..]) {
            (View::Flat, [0, 0, heads, each]) if heads.checked_mul(*each) == Some(width) => {
                let heads = usize::try_from(*heads).ok().filter(|heads| *heads > 0)?;
                View::Split { heads }
            }
            (View::Split { .. }, [0, 0, whole]) if *whole == width => View::Flat,
            _ => return None,
        };
        keeps_zeros.then_some(Meaning::Rows(value, view))
    }

    fn read_rotation(&mut self, node: &NodeProto) -> Option<Meaning> {
        let (value, view) = self.rows_input(node, 0)?;
        let View::Heads { heads } = view else {
            return None;
        };
        let positions = self.integer_input(node, 3, 2)?;
        set_or_match(&mut self.inputs.positions, positions)?;
        let (width, rows) = (self.widths[value], self.counts[value]);
        let head_width = width / heads;
        let stated = node.int("rotary_embedding_dim").unwrap_or(0);
        let turned = match usize::try_from(stated).ok()? {
            0 => head_width,
            stated => stated,
        };
        let table = self.intern_table(node)?;
        if self.tables[table].width * 2 != turned || turned > head_width {
            return None;
        }
        let action = Action::Rotate {
            table,
            interleaved: node.int("interleaved") == Some(1),
            head_width,
        };
        Some(Meaning::Rows(
            self.add_step(action, vec![value], width, rows),
            view,
        ))
    }

    /// The tables a node reads, one place for all that read the same.
    fn intern_table(&mut self, node: &NodeProto) -> Option<usize> {
        let names = [node.input_name(1)?, node.input_name(2)?].map(str::to_owned);
        if let Some(known) = self.tables.iter().position(|table| table.names == names) {
            return Some(known);
        }
        let [_, width] = self.weight_input(node, 1)?.dims().try_into().ok()?;
        if self.weight_input(node, 2)?.dims() != self.weight_input(node, 1)?.dims() {
            return None;
        }
        self.tables.push(Table {
            names,
            cosines: self.float_weights(node, 1)?,
            sines: self.float_weights(node, 2)?,
            width,
        });
        Some(self.tables.len() - 1)
    }

    fn state_input(&self, node: &NodeProto, index: usize) -> Option<usize> {
        match self.meaning_of(node.input_name(index)?)? {
            Meaning::State(state) => Some(state),
            _ => None,
        }
    }

    fn read_cache_write(&mut self, node: &NodeProto) -> Option<Meaning> {
        let state = self.state_input(node, 0)?;
        let (value, view) = self.rows_input(node, 1)?;
        let write = self.integer_input(node, 2, 1)?;
        set_or_match(&mut self.inputs.write, write)?;
        let State {
            heads,
            width,
            ref port,
            ..
        } = self.states[state];
        let fits = matches!(node.int("axis"), None | Some(-2 | 2))
            && matches!(node.string("mode"), None | Some("linear"))
            && view == View::Heads { heads }
            && self.widths[value] == heads * width
            && node.output.first() == Some(&port.output);
        if !fits {
            return None;
        }
        self.steps.push(DecoderStep {
            action: Action::Keep { state },
            reads: vec![value],
            makes: None,
            rows: RowCount::Tokens,
        });
        Some(Meaning::State(state))
    }

    fn read_attention(&mut self, node: &NodeProto) -> Option<Meaning> {
        let (value, view) = self.rows_input(node, 0)?;
        let (keys, values) = (self.state_input(node, 1)?, self.state_input(node, 2)?);
        // Written ones alone: the graph has no other order of writing and reading.
        let written = |index: usize, state: usize| {
            node.input_name(index) == Some(self.states[state].port.output.as_str())
        };
        let length = self.integer_input(node, 6, 1)?;
        let known = ["is_causal", "scale", "softcap", "left_window_size"];
        let others = node.attribute.iter().any(|it| !known.contains(&it.name()));
        let View::Heads { heads } = view else {
            return None;
        };
        let (key, value_state) = (&self.states[keys], &self.states[values]);
        let fits = written(1, keys)
            && written(2, values)
            && (3..6).all(|index| node.input_name(index).is_none())
            && node.int("is_causal") == Some(1)
            && !others
            && (key.heads, key.width) == (value_state.heads, value_state.width)
            && heads.is_multiple_of(key.heads)
            && heads * key.width == self.widths[value];
        if !fits {
            return None;
        }
        let scale = node
            .float("scale")
            .unwrap_or(1.0 / (key.width as f32).sqrt());
        // A negative size means no bound; the size does not count a row's own position.
        let window = node.int("left_window_size").unwrap_or(-1);
        let window = usize::try_from(window).ok().map(|before| before + 1);
        set_or_match(&mut self.inputs.length, length)?;
        set_or_match(&mut self.states[keys].order, CacheOrder::Keys)?;
        set_or_match(&mut self.states[values].order, CacheOrder::Values)?;
        let action = Action::Attend {
            keys,
            values,
            heads,
            scale,
            limit: node.float("softcap").filter(|limit| *limit > 0.0),
            window,
        };
        let width = self.widths[value];
        let made = self.add_step(action, vec![value], width, RowCount::Tokens);
        Some(Meaning::Rows(made, view))
    }

    fn is_read_once(&self, node: &NodeProto, index: usize) -> bool {
        let name = node.input_name(index).unwrap_or_default();
        self.uses.get(name) == Some(&1)
    }
}

/// Notes the one thing for a role; all nodes must agree on it.
fn set_or_match<T: PartialEq>(known: &mut Option<T>, given: T) -> Option<()> {
    match known {
        Some(known) => (*known == given).then_some(()),
        None => {
            *known = Some(given);
            Some(())
        }
    }
}
