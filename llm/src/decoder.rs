//! Builds a decoder as an ONNX model with states, from standard operators; mixtures of experts add
//! one of souk's own.
//!
//! Keys and values live in caches of a fixed size. Inputs say where to write and how far to read,
//! so a request moves only its tokens, and you can go back by passing a smaller number. Another
//! input selects the rows that become logits: one for the next token, all for a comparison.

mod experts;
mod nodes;
mod token_sampling;
mod whole_sequences;

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{ContentId, DType, Tensor};
use souk_onnx::states::StatePort;
use souk_onnx::subgraph::Subgraph;
use souk_onnx::{Dimension, ModelProto, OperatorSetIdProto, ValueInfoProto, encode_model};

use crate::config::Config;
use crate::weights::{WeightError, Weights, split_joint_matrices, stack_experts};
use nodes::{AttentionSettings, Nodes};
pub use token_sampling::{LOGIT_ROWS, SAMPLED_TOKENS, SAMPLING, to_sampling_model};
pub use whole_sequences::{BatchSize, LENGTH_MAX};
pub(crate) use whole_sequences::{build_training_model, check_trainable};

/// Input of token ids: `[1, sequence]`.
pub const TOKENS: &str = "input_ids";
/// Input of token positions: `[1, sequence]`.
pub const POSITIONS: &str = "position_ids";
/// Input of the write position in the caches: `[1]`.
pub const WRITE: &str = "write_indices";
/// Input of the valid length of the caches after the write: `[1]`.
pub const LENGTH: &str = "cache_length";
/// Input of the tokens that get logits: `[rows]`.
pub const ROWS: &str = "logit_rows";
/// Output of logits: `[1, rows, vocabulary]`.
pub const LOGITS: &str = "logits";

/// The value from which the head makes logits.
pub(crate) const NORM: &str = "model.norm";

/// Tables of cosines and sines for each position; the second pair is for layers with a window.
const ANGLES: [&str; 2] = ["cosines", "sines"];
const ANGLES_LOCAL: [&str; 2] = ["cosines.local", "sines.local"];

/// Version of the standard operators: the first with caches written in place. The format's version
/// came with it.
const OPSET: i64 = 24;
const IR_VERSION: i64 = 12;
/// Version for models with windows: the first whose attention supports them.
const OPSET_WINDOWS: i64 = 25;
const IR_VERSION_WINDOWS: i64 = 13;

/// A decoder ready to compile.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// The model without its weights, which are separate contents.
    pub subgraph: Subgraph,
    /// The caches of keys and values.
    pub states: Vec<StatePort>,
    /// Maximum positions in the caches of a session.
    pub room: usize,
    /// Sizes of one position in a cache.
    pub cache: [usize; 2],
}

impl Decoder {
    /// Returns the first value of each state: caches of zeros for this many positions.
    #[must_use]
    pub fn empty_cache(&self, room: usize) -> Tensor {
        let [heads, width] = self.cache;
        let floats = vec![0.0f32; heads * room * width];
        Tensor::from_vec([1, heads, room, width], floats).expect("as many floats as the sizes say")
    }

    /// Builds a decoder for positions up to `room`.
    ///
    /// # Errors
    /// [`WeightError`] if a weight is missing or does not match the dimensions.
    pub(crate) fn build(
        config: &Config,
        mut weights: Weights,
        room: usize,
    ) -> Result<Self, WeightError> {
        split_joint_matrices(&mut weights, config)?;
        stack_experts(&mut weights, config)?;
        let mut nodes = Nodes::new(weights);
        let mut body = DecoderGraph {
            config,
            room,
            nodes: &mut nodes,
            states: Vec::new(),
        };
        body.write()?;
        let states = body.states;
        let (graph, contents) = nodes.finish(
            graph_inputs(config, &states),
            graph_outputs(config, &states),
        )?;
        let has_windows =
            (0..config.layers).any(|layer| effective_window(config, layer, room).is_some());
        let (opset, ir_version) = match has_windows {
            true => (OPSET_WINDOWS, IR_VERSION_WINDOWS),
            false => (OPSET, IR_VERSION),
        };
        let standard = OperatorSetIdProto {
            domain: None,
            version: Some(opset),
        };
        let own = config.experts.map(|_| token_sampling::own_operators());
        let model = ModelProto {
            ir_version: Some(ir_version),
            producer_name: Some("souk".to_owned()),
            opset_import: std::iter::once(standard).chain(own).collect(),
            graph: Some(graph),
            ..ModelProto::default()
        };
        Ok(Self {
            subgraph: encode_subgraph(&model, contents),
            states,
            room,
            cache: [config.key_heads, config.head_width],
        })
    }
}

/// Returns the window of a layer if some positions are beyond it.
fn effective_window(config: &Config, layer: usize, room: usize) -> Option<usize> {
    config.window_of(layer).filter(|window| *window < room)
}

fn encode_subgraph(model: &ModelProto, weights: BTreeMap<ContentId, Bytes>) -> Subgraph {
    Subgraph {
        model: encode_model(model),
        weights,
    }
}

fn graph_inputs(config: &Config, states: &[StatePort]) -> Vec<ValueInfoProto> {
    let integers = |name: &str, dims: Vec<Dimension>| {
        ValueInfoProto::new_tensor(name, DType::I64.onnx_code(), Some(dims))
    };
    let row = || vec![Dimension::new_fixed(1), Dimension::new_symbol("sequence")];
    let mut inputs = vec![
        integers(TOKENS, row()),
        integers(POSITIONS, row()),
        integers(WRITE, vec![Dimension::new_fixed(1)]),
        integers(LENGTH, vec![Dimension::new_fixed(1)]),
        integers(ROWS, vec![Dimension::new_symbol("rows")]),
    ];
    inputs.extend(
        states
            .iter()
            .map(|state| cache_value_info(config, &state.input)),
    );
    inputs
}

fn graph_outputs(config: &Config, states: &[StatePort]) -> Vec<ValueInfoProto> {
    let dims = vec![
        Dimension::new_fixed(1),
        Dimension::new_symbol("rows"),
        Dimension::new_fixed(config.vocabulary as i64),
    ];
    let logits = ValueInfoProto::new_tensor(LOGITS, DType::F32.onnx_code(), Some(dims));
    let caches = states
        .iter()
        .map(|state| cache_value_info(config, &state.output));
    std::iter::once(logits).chain(caches).collect()
}

fn cache_value_info(config: &Config, name: &str) -> ValueInfoProto {
    let dims = vec![
        Dimension::new_fixed(1),
        Dimension::new_fixed(config.key_heads as i64),
        Dimension::new_symbol("room"),
        Dimension::new_fixed(config.head_width as i64),
    ];
    ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), Some(dims))
}

/// The graph under construction.
struct DecoderGraph<'a> {
    config: &'a Config,
    room: usize,
    nodes: &'a mut Nodes,
    states: Vec<StatePort>,
}

impl DecoderGraph<'_> {
    fn write(&mut self) -> Result<(), WeightError> {
        let Config {
            architecture,
            hidden,
            layers,
            vocabulary,
            ..
        } = *self.config;
        self.add_angle_tables();
        let embedding = "model.embed_tokens.weight";
        let table = self.nodes.matrix(embedding, [vocabulary, hidden])?;
        let mut stream = self.nodes.add("Gather", &[&table, TOKENS], "embedded", &[]);
        if architecture.is_gemma() {
            let factor = (hidden as f64).sqrt() as f32;
            stream = self
                .nodes
                .add_constant_product(&stream, factor, "embedded.scaled");
        }
        for layer in 0..layers {
            stream = self.add_layer(layer, stream)?;
        }
        let wanted = self
            .nodes
            .add("Gather", &[&stream, ROWS], "wanted", &[("axis", 1)]);
        let normal = self.add_norm(NORM, hidden, &wanted)?;
        let head = match self.nodes.has_weight("lm_head.weight") {
            true => self.nodes.matrix("lm_head.weight", [vocabulary, hidden])?,
            false => table,
        };
        match self.config.logit_limit {
            Some(limit) => {
                let free = self.nodes.add_matrix_product(&normal, &head, "logits.free");
                let part = self
                    .nodes
                    .add_constant_product(&free, 1.0 / limit, "logits.part");
                let bent = self.nodes.add("Tanh", &[&part], "logits.bent", &[]);
                self.nodes.add_constant_product(&bent, limit, LOGITS);
            }
            None => {
                self.nodes.add_matrix_product(&normal, &head, LOGITS);
            }
        }
        Ok(())
    }

    /// Adds the tables of angles, including those of layers with a window if they differ.
    fn add_angle_tables(&mut self) {
        let Config { rotary, window, .. } = self.config;
        let local = window.as_ref().and_then(|window| window.rotary.as_ref());
        for (rotary, names) in [(Some(rotary), ANGLES), (local, ANGLES_LOCAL)] {
            let Some(rotary) = rotary else { continue };
            for (name, table) in names.into_iter().zip(rotary.angle_tables(self.room)) {
                self.nodes.table(name, [self.room, rotary.width / 2], table);
            }
        }
    }

    fn add_layer(&mut self, layer: usize, stream: String) -> Result<String, WeightError> {
        let hidden = self.config.hidden;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        // Gemma normalises the output of each part, other families do not. The norm between the
        // parts is named after attention in these and after feed-forward in Gemma.
        let [seen_norm, between, made_norm] = match self.config.architecture.is_gemma() {
            true => [
                Some("post_attention_layernorm"),
                Some("pre_feedforward_layernorm"),
                Some("post_feedforward_layernorm"),
            ],
            false => [None, Some("post_attention_layernorm"), None],
        };
        let normal = |body: &mut Self, part: Option<&str>, from: String| match part {
            Some(part) => body.add_norm(&name(part), hidden, &from),
            None => Ok(from),
        };
        let entering = normal(self, Some("input_layernorm"), stream.clone())?;
        let seen = self.add_attention(layer, &entering)?;
        let seen = normal(self, seen_norm, seen)?;
        let sum = format!("attended.{layer}");
        let stream = self.nodes.add("Add", &[&stream, &seen], &sum, &[]);
        // Each part must have at least one layer's states, because the decoder kernels support no
        // others. So no cut is inside or after the last layer.
        let is_last = layer + 1 == self.config.layers;
        if !is_last {
            self.nodes.may_cut();
        }
        let entering = normal(self, between, stream.clone())?;
        let made = self.feed_forward(layer, &entering)?;
        let made = normal(self, made_norm, made)?;
        let sum = format!("hidden.{layer}");
        let stream = self.nodes.add("Add", &[&stream, &made], &sum, &[]);
        if !is_last {
            self.nodes.may_cut();
        }
        Ok(stream)
    }

    fn add_norm(&mut self, name: &str, width: usize, from: &str) -> Result<String, WeightError> {
        let weight = self.nodes.add_vector(&format!("{name}.weight"), width)?;
        let epsilon = self.config.epsilon;
        Ok(self.nodes.add_norm(from, &weight, name, epsilon))
    }

    /// Adds a product with a weight of these sizes, and its bias if there is one.
    fn linear(
        &mut self,
        name: &str,
        [rows, columns]: [usize; 2],
        from: &str,
        has_bias: bool,
    ) -> Result<String, WeightError> {
        let weight = self
            .nodes
            .matrix(&format!("{name}.weight"), [rows, columns])?;
        if !has_bias {
            return Ok(self.nodes.add_matrix_product(from, &weight, name));
        }
        let product = self
            .nodes
            .add_matrix_product(from, &weight, &format!("{name}.product"));
        let bias = self.nodes.add_vector(&format!("{name}.bias"), rows)?;
        Ok(self.nodes.add("Add", &[&product, &bias], name, &[]))
    }

    /// Adds queries, keys or values by head: `[1, heads, sequence, width]`.
    fn add_heads(&mut self, layer: usize, which: char, from: &str) -> Result<String, WeightError> {
        let Config {
            architecture,
            hidden,
            head_width,
            ..
        } = *self.config;
        let heads = match which {
            'q' => self.config.heads,
            _ => self.config.key_heads,
        };
        let name = format!("model.layers.{layer}.self_attn.{which}_proj");
        let sizes = [heads * head_width, hidden];
        let flat = self.linear(&name, sizes, from, architecture.has_biases())?;
        let mut by_head = self
            .nodes
            .split(&flat, [heads, head_width], &format!("{name}.split"));
        if architecture.has_head_norms() && which != 'v' {
            let norm = format!("model.layers.{layer}.self_attn.{which}_norm");
            by_head = self.add_norm(&norm, head_width, &by_head)?;
        }
        Ok(self
            .nodes
            .swap_middle_axes(&by_head, &format!("{name}.heads")))
    }

    fn add_rotation(&mut self, layer: usize, from: &str) -> String {
        let local = self.config.window.as_ref();
        let local = local.filter(|window| window.layers.is_local(layer));
        let (rotary, [cosines, sines]) = match local.and_then(|it| it.rotary.as_ref()) {
            Some(own) => (own, ANGLES_LOCAL),
            None => (&self.config.rotary, ANGLES),
        };
        let mut attributes = vec![("interleaved", i64::from(rotary.interleaved))];
        if rotary.width < self.config.head_width {
            attributes.push(("rotary_embedding_dim", rotary.width as i64));
        }
        let inputs = [from, cosines, sines, POSITIONS];
        let name = format!("{from}.rotated");
        self.nodes
            .add("RotaryEmbedding", &inputs, &name, &attributes)
    }

    fn add_attention(&mut self, layer: usize, from: &str) -> Result<String, WeightError> {
        let Config {
            hidden,
            heads,
            head_width,
            ..
        } = *self.config;
        let queries = self.add_heads(layer, 'q', from)?;
        let queries = self.add_rotation(layer, &queries);
        let keys = self.add_heads(layer, 'k', from)?;
        let keys = self.add_rotation(layer, &keys);
        let values = self.add_heads(layer, 'v', from)?;
        let keys = self.add_cache_update(&format!("key.{layer}"), &keys);
        let values = self.add_cache_update(&format!("value.{layer}"), &values);
        let inputs = [&queries, &keys, &values, "", "", "", LENGTH];
        let name = format!("model.layers.{layer}.self_attn");
        let look = AttentionSettings {
            window: effective_window(self.config, layer, self.room),
            factor: self.config.score_factor,
            limit: self.config.score_limit,
        };
        let seen = self.nodes.add_attention(&inputs, &name, &look);
        let turned = self
            .nodes
            .swap_middle_axes(&seen, &format!("{name}.turned"));
        let flat = self
            .nodes
            .join_heads(&turned, heads * head_width, &format!("{name}.joined"));
        let sizes = [hidden, heads * head_width];
        self.linear(&format!("{name}.o_proj"), sizes, &flat, false)
    }

    /// Adds the cache with these new keys or values.
    fn add_cache_update(&mut self, name: &str, new: &str) -> String {
        let (input, output) = (format!("past_{name}"), format!("present_{name}"));
        let inputs = [&input, new, WRITE];
        let made = self.nodes.add_state(&inputs, &output);
        self.states.push(StatePort { input, output });
        made
    }

    fn feed_forward(&mut self, layer: usize, from: &str) -> Result<String, WeightError> {
        let base = format!("model.layers.{layer}.mlp");
        match self.config.experts {
            Some(experts) => self.add_experts(&experts, &base, from),
            None => self.add_gated_product(&base, self.config.feed_forward, from),
        }
    }

    /// Adds the gate, up and down products of a feed-forward part.
    fn add_gated_product(
        &mut self,
        base: &str,
        width: usize,
        from: &str,
    ) -> Result<String, WeightError> {
        let hidden = self.config.hidden;
        let name = |part: &str| format!("{base}.{part}");
        let wide = [width, hidden];
        let gate = self.linear(&name("gate_proj"), wide, from, false)?;
        let open = match self.config.architecture.is_gemma() {
            true => self.nodes.add_gelu(&gate, &name("open")),
            false => self.nodes.add("Swish", &[&gate], &name("open"), &[]),
        };
        let up = self.linear(&name("up_proj"), wide, from, false)?;
        let gated = self.nodes.add("Mul", &[&open, &up], &name("gated"), &[]);
        self.linear(&name("down_proj"), [hidden, width], &gated, false)
    }
}
