//! Turns a decoder's graph into steps over rows, one row for each token, which the engine then
//! runs. [`DecoderPlan::new`] returns `None` if the graph does anything that decoders do not do,
//! and another engine must run it.
//!
//! Rows lie one behind the other, whatever axes the graph has them by: reshaping into heads and
//! exchanging axes change only the view (the axes by which the graph has rows), and need no step.

mod nodes;
mod slots;

use std::collections::BTreeMap;
use std::ops::Range;

use souk_onnx::graph::Graph;
use souk_onnx::states::{StatePort, model_states};

use super::cache::{CacheOrder, CacheShape};
use super::matrix::MatrixSource;
use nodes::Reader;
pub(super) use slots::RowSlot;

/// The number of a value in the plan. A value has rows of one width.
pub(super) type RowsId = usize;

/// The steps of a decoder in order.
#[derive(Debug)]
pub(super) struct DecoderPlan {
    pub steps: Vec<DecoderStep>,
    /// Steps that can be done at once.
    pub stages: Vec<Range<usize>>,
    /// Where each value lies.
    pub places: Vec<RowSlot>,
    /// Floats in a row of each slot.
    pub slots: Vec<usize>,
    pub matrices: Vec<MatrixSource>,
    pub tables: Vec<Table>,
    pub states: Vec<State>,
    pub inputs: Inputs,
    /// The value that outputs are of.
    pub result: RowsId,
    /// The outputs that are no states.
    pub outputs: Vec<DecoderOutput>,
}

/// An output of the graph that is not the new value of a state.
#[derive(Clone, Debug)]
pub(super) struct DecoderOutput {
    pub name: String,
    pub kind: OutputKind,
}

/// How an output follows from the rows of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputKind {
    /// All rows.
    Rows,
    /// The rows that the input `logit_rows` selects.
    LogitRows,
    /// The token that is drawn from each.
    Drawn,
}

/// A step.
#[derive(Debug)]
pub(super) struct DecoderStep {
    pub action: Action,
    pub reads: Vec<RowsId>,
    /// The value that it makes; a step that only writes a state makes none.
    pub makes: Option<RowsId>,
    pub rows: RowCount,
}

/// The number of rows that a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowCount {
    /// One for each token.
    Tokens,
    /// One for each that was selected.
    Selected,
}

/// The operation of a step.
#[derive(Debug)]
pub(super) enum Action {
    /// Takes rows that another part of the decoder computed.
    Enter,
    /// Rows of a matrix for tokens.
    Embed { matrix: usize },
    /// Some of the rows.
    Select,
    /// A root mean square norm of each part of a row that is as wide as the scale.
    Normalise { scale: Vec<f32>, epsilon: f32 },
    /// Converts each of this many parts of a row to bytes separately.
    Quantise { parts: usize },
    /// A product, with a bias for each column or none; a second value is added to the result.
    Product { matrix: usize, bias: Vec<f32> },
    /// Shares of one, by exponentials.
    Softmax,
    /// The largest shares and their places; scaled to a sum of one if `is_normalised`.
    Choose { is_normalised: bool },
    /// Products with the matrices of the experts that a second value chose. A row is one for all
    /// its choices, or has a part for each.
    Route {
        experts: ExpertStack,
        has_parts: bool,
    },
    /// The sum of a row's parts, each times its share, which a second value has.
    Mix,
    /// A row times the logistic function of the one number of a second value.
    Portion,
    /// Each head turned by its position, from its first number on as far as the table goes.
    Rotate {
        table: usize,
        interleaved: bool,
        head_width: usize,
    },
    /// Rows written into a state.
    Keep { state: usize },
    /// Attention of each query over two states.
    Attend {
        keys: usize,
        values: usize,
        heads: usize,
        scale: f32,
        /// Bound on the scores.
        limit: Option<f32>,
        /// Positions a row sees, its own among them, if not all.
        window: Option<usize>,
    },
    /// A gate times the value that passes it.
    Gate { curve: Curve },
    /// Every number times a factor.
    Scale { factor: f32 },
    /// The hyperbolic tangent of every number times `inner`, times `outer`.
    Bend { inner: f32, outer: f32 },
    /// A sum.
    Add,
}

/// The matrices of a layer's experts: consecutive matrices of the plan, all of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpertStack {
    /// Index of the first matrix.
    pub matrix: usize,
    pub count: usize,
}

/// The function by which a gate scales its own value: SiLU or GELU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Curve {
    /// The logistic function (SiLU).
    Logistic,
    /// The normal distribution function, approximated by the hyperbolic tangent (GELU).
    Gauss,
}

/// A table of the cosines and sines of each position, for rotary embeddings.
#[derive(Debug)]
pub(super) struct Table {
    pub names: [String; 2],
    pub cosines: Vec<f32>,
    pub sines: Vec<f32>,
    /// Floats a position.
    pub width: usize,
}

/// A state: a cache of keys or values.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub port: StatePort,
    pub heads: usize,
    pub width: usize,
    /// How the steps read the cache; `None` if no step does.
    pub order: Option<CacheOrder>,
}

impl State {
    /// Returns the shape of a cache with room for this many positions.
    pub fn cache_shape(&self, room: usize) -> CacheShape {
        CacheShape {
            order: self.order.unwrap_or(CacheOrder::Values),
            heads: self.heads,
            room,
            width: self.width,
        }
    }
}

/// Names of the graph's inputs by their role.
#[derive(Clone, Debug, Default)]
pub(super) struct Inputs {
    pub tokens: Option<String>,
    pub positions: Option<String>,
    pub write: Option<String>,
    pub length: Option<String>,
    pub rows: Option<String>,
    /// Selects the rows of the result that the output contains.
    pub logit_rows: Option<String>,
    /// The inputs that state how tokens are drawn from the rows.
    pub sampling: Option<String>,
    /// The input of rows that another part of the decoder computed, and their width.
    pub entered: Option<(String, usize)>,
}

impl DecoderPlan {
    /// Plans a graph with states; `None` if this engine does not know it as a decoder.
    pub fn new(graph: &Graph) -> Option<Self> {
        let ports = model_states(&graph.model)
            .ok()
            .filter(|ports| !ports.is_empty())?;
        let mut reader = Reader::new(graph, ports)?;
        for node in graph.nodes() {
            reader.read_node(node)?;
        }
        let (result, outputs) = reader.find_result()?;
        let Reader {
            steps,
            widths,
            matrices,
            tables,
            states,
            inputs,
            ..
        } = reader;
        let (places, slots) = slots::assign_slots(&steps, &widths, result);
        let stages = slots::divide_stages(&steps, &places);
        Some(Self {
            steps,
            stages,
            places,
            slots,
            matrices,
            tables,
            states,
            inputs,
            result,
            outputs,
        })
    }

    /// Rows of a value.
    pub fn row_count(&self, value: RowsId) -> RowCount {
        let mut steps = self.steps.iter().rev();
        let maker = steps.find(|step| step.makes == Some(value));
        maker.map_or(RowCount::Tokens, |step| step.rows)
    }
}

/// The meaning of each name in the graph.
type Names = BTreeMap<String, Meaning>;

/// The meaning of a name in the graph.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    /// Rows.
    Rows(RowsId, View),
    /// Rows from which a gate is computed.
    Open(RowsId, Curve, View),
    /// A number of each row that a logistic curve is of.
    Logistic(RowsId),
    /// Something of the experts that a value chose.
    Choice(RowsId, ChoicePart),
    /// A row's parts, each times its share, which a second value has.
    Weighted(RowsId, RowsId),
    /// A matrix as the graph contains it.
    Matrix(usize),
    /// A matrix with its axes exchanged.
    Turned(usize),
    /// Matrices of experts.
    Experts(ExpertStack),
    /// A state, before or after it was written.
    State(usize),
    /// Some rows of a value, or tokens drawn from them; it can only be an output.
    Last(RowsId, OutputKind),
}

/// A part of the choice of experts for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChoicePart {
    /// Which they are.
    Experts,
    /// Their shares: `[1, rows, choices]`.
    Shares,
    /// The sum of the shares.
    Sum,
    /// The shares as `[1, rows, choices, 1]`.
    Column,
}

/// By which axes the graph has rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// `[1, rows, width]`.
    Flat,
    /// `[1, rows, heads, width]`.
    Split { heads: usize },
    /// `[1, heads, rows, width]`.
    Heads { heads: usize },
}
