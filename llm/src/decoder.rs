//! A decoder as an ONNX model with states, of standard operators only.
//!
//! Keys and values lie in caches of a fixed size, written where the inputs say and read as far as
//! they say; so a request moves no more than its tokens, and going back is a smaller number. Which
//! rows become logits is an input too: one for the next token, all to be compared.

mod nodes;

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{ContentId, DType, Tensor};
use souk_onnx::states::StatePort;
use souk_onnx::subgraph::Subgraph;
use souk_onnx::{Dimension, ModelProto, OperatorSetIdProto, ValueInfoProto, encode};

use crate::config::Config;
use crate::weights::{WeightError, Weights, separate};
use nodes::Nodes;

/// Token ids: `[1, sequence]`.
pub const TOKENS: &str = "input_ids";
/// Their positions: `[1, sequence]`.
pub const POSITIONS: &str = "position_ids";
/// Where in the caches they go: `[1]`.
pub const WRITE: &str = "write_indices";
/// How much of the caches counts once they are written: `[1]`.
pub const LENGTH: &str = "cache_length";
/// Which of the tokens have logits: `[rows]`.
pub const ROWS: &str = "logit_rows";
/// The result: `[1, rows, vocabulary]`.
pub const LOGITS: &str = "logits";

/// The standard operators' version: the first with caches that are written in place.
const OPSET: i64 = 24;
/// The version of the format that came with it.
const IR_VERSION: i64 = 12;

/// A decoder ready to compile.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// The model; its weights lie beside it.
    pub subgraph: Subgraph,
    /// Its states.
    pub states: Vec<StatePort>,
    /// Positions that the caches of a session have room for at most.
    pub room: usize,
    /// Sizes of a cache of one position.
    pub cache: [usize; 2],
}

impl Decoder {
    /// The first value of each state: caches of zeros with so much room.
    #[must_use]
    pub fn empty_cache(&self, room: usize) -> Tensor {
        let [heads, width] = self.cache;
        let floats = vec![0.0f32; heads * room * width];
        Tensor::from_vec([1, heads, room, width], floats).expect("as many floats as the sizes say")
    }

    /// Builds one with positions up to `room`.
    ///
    /// # Errors
    /// [`WeightError`]: a weight that is missing, or not what the numbers say.
    pub(crate) fn build(
        config: &Config,
        mut weights: Weights,
        room: usize,
    ) -> Result<Self, WeightError> {
        separate(&mut weights, config)?;
        let mut nodes = Nodes::new(weights);
        let mut body = DecoderGraph {
            config,
            nodes: &mut nodes,
            states: Vec::new(),
        };
        body.write(room)?;
        let states = body.states;
        let (graph, contents) = nodes.finish(inputs(config, &states), outputs(config, &states))?;
        let model = ModelProto {
            ir_version: Some(IR_VERSION),
            producer_name: Some("souk".to_owned()),
            opset_import: vec![OperatorSetIdProto {
                domain: None,
                version: Some(OPSET),
            }],
            graph: Some(graph),
            ..ModelProto::default()
        };
        Ok(Self {
            subgraph: subgraph(&model, contents),
            states,
            room,
            cache: [config.key_heads, config.head_width],
        })
    }
}

fn subgraph(model: &ModelProto, weights: BTreeMap<ContentId, Bytes>) -> Subgraph {
    Subgraph {
        model: encode(model),
        weights,
    }
}

fn inputs(config: &Config, states: &[StatePort]) -> Vec<ValueInfoProto> {
    let integers = |name: &str, dims: Vec<Dimension>| {
        ValueInfoProto::tensor(name, DType::I64.onnx_code(), Some(dims))
    };
    let row = || vec![Dimension::fixed(1), Dimension::symbol("sequence")];
    let mut inputs = vec![
        integers(TOKENS, row()),
        integers(POSITIONS, row()),
        integers(WRITE, vec![Dimension::fixed(1)]),
        integers(LENGTH, vec![Dimension::fixed(1)]),
        integers(ROWS, vec![Dimension::symbol("rows")]),
    ];
    inputs.extend(states.iter().map(|state| cache(config, &state.input)));
    inputs
}

fn outputs(config: &Config, states: &[StatePort]) -> Vec<ValueInfoProto> {
    let dims = vec![
        Dimension::fixed(1),
        Dimension::symbol("rows"),
        Dimension::fixed(config.vocabulary as i64),
    ];
    let logits = ValueInfoProto::tensor(LOGITS, DType::F32.onnx_code(), Some(dims));
    let caches = states.iter().map(|state| cache(config, &state.output));
    std::iter::once(logits).chain(caches).collect()
}

fn cache(config: &Config, name: &str) -> ValueInfoProto {
    let dims = vec![
        Dimension::fixed(1),
        Dimension::fixed(config.key_heads as i64),
        Dimension::symbol("room"),
        Dimension::fixed(config.head_width as i64),
    ];
    ValueInfoProto::tensor(name, DType::F32.onnx_code(), Some(dims))
}

/// A graph being written.
struct DecoderGraph<'a> {
    config: &'a Config,
    nodes: &'a mut Nodes,
    states: Vec<StatePort>,
}

impl DecoderGraph<'_> {
    fn write(&mut self, room: usize) -> Result<(), WeightError> {
        let Config {
            hidden,
            layers,
            vocabulary,
            ref rotary,
            ..
        } = *self.config;
        let [cosines, sines] = rotary.tables(room);
        for (name, table) in [("cosines", cosines), ("sines", sines)] {
            self.nodes.table(name, [room, rotary.width / 2], table);
        }
        let embedding = "model.embed_tokens.weight";
        let table = self.nodes.matrix(embedding, [vocabulary, hidden])?;
        let mut stream = self.nodes.add("Gather", &[&table, TOKENS], "embedded", &[]);
        for layer in 0..layers {
            stream = self.layer(layer, stream)?;
        }
        let wanted = self
            .nodes
            .add("Gather", &[&stream, ROWS], "wanted", &[("axis", 1)]);
        let normal = self.norm("model.norm", hidden, &wanted)?;
        let head = match self.nodes.has("lm_head.weight") {
            true => self.nodes.matrix("lm_head.weight", [vocabulary, hidden])?,
            false => table,
        };
        self.nodes.product(&normal, &head, LOGITS);
        Ok(())
    }

    fn layer(&mut self, layer: usize, stream: String) -> Result<String, WeightError> {
        let hidden = self.config.hidden;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let normal = self.norm(&name("input_layernorm"), hidden, &stream)?;
        let seen = self.attention(layer, &normal)?;
        let sum = format!("attended.{layer}");
        let stream = self.nodes.add("Add", &[&stream, &seen], &sum, &[]);
        let normal = self.norm(&name("post_attention_layernorm"), hidden, &stream)?;
        let gated = self.feed_forward(layer, &normal)?;
        let sum = format!("hidden.{layer}");
        Ok(self.nodes.add("Add", &[&stream, &gated], &sum, &[]))
    }

    fn norm(&mut self, name: &str, width: usize, from: &str) -> Result<String, WeightError> {
        let weight = self.nodes.vector(&format!("{name}.weight"), width)?;
        let epsilon = self.config.epsilon;
        Ok(self.nodes.norm(from, &weight, name, epsilon))
    }

    /// A product with a weight of these rows, and its bias where there is one.
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
            return Ok(self.nodes.product(from, &weight, name));
        }
        let product = self
            .nodes
            .product(from, &weight, &format!("{name}.product"));
        let bias = self.nodes.vector(&format!("{name}.bias"), rows)?;
        Ok(self.nodes.add("Add", &[&product, &bias], name, &[]))
    }

    /// Queries, keys or values by head: `[1, heads, sequence, width]`.
    fn heads(&mut self, layer: usize, which: char, from: &str) -> Result<String, WeightError> {
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
            by_head = self.norm(&norm, head_width, &by_head)?;
        }
        Ok(self.nodes.turned(&by_head, &format!("{name}.heads")))
    }

    fn rotated(&mut self, from: &str) -> String {
        let rotary = &self.config.rotary;
        let mut attributes = vec![("interleaved", i64::from(rotary.interleaved))];
        if rotary.width < self.config.head_width {
            attributes.push(("rotary_embedding_dim", rotary.width as i64));
        }
        let inputs = [from, "cosines", "sines", POSITIONS];
        let name = format!("{from}.rotated");
        self.nodes
            .add("RotaryEmbedding", &inputs, &name, &attributes)
    }

    fn attention(&mut self, layer: usize, from: &str) -> Result<String, WeightError> {
        let Config {
            hidden,
            heads,
            head_width,
            ..
        } = *self.config;
        let queries = self.heads(layer, 'q', from)?;
        let queries = self.rotated(&queries);
        let keys = self.heads(layer, 'k', from)?;
        let keys = self.rotated(&keys);
        let values = self.heads(layer, 'v', from)?;
        let keys = self.remembered(&format!("key.{layer}"), &keys);
        let values = self.remembered(&format!("value.{layer}"), &values);
        let inputs = [&queries, &keys, &values, "", "", "", LENGTH];
        let name = format!("model.layers.{layer}.self_attn");
        let seen = self
            .nodes
            .add("Attention", &inputs, &name, &[("is_causal", 1)]);
        let turned = self.nodes.turned(&seen, &format!("{name}.turned"));
        let flat = self
            .nodes
            .joined(&turned, heads * head_width, &format!("{name}.joined"));
        let sizes = [hidden, heads * head_width];
        self.linear(&format!("{name}.o_proj"), sizes, &flat, false)
    }

    /// A cache with these keys or values written to it.
    fn remembered(&mut self, name: &str, new: &str) -> String {
        let (input, output) = (format!("past_{name}"), format!("present_{name}"));
        let inputs = [&input, new, WRITE];
        let made = self.nodes.kept(&inputs, &output);
        self.states.push(StatePort { input, output });
        made
    }

    fn feed_forward(&mut self, layer: usize, from: &str) -> Result<String, WeightError> {
        let Config {
            hidden,
            feed_forward,
            ..
        } = *self.config;
        let name = |part: &str| format!("model.layers.{layer}.mlp.{part}");
        let wide = [feed_forward, hidden];
        let gate = self.linear(&name("gate_proj"), wide, from, false)?;
        let open = self.nodes.add("Swish", &[&gate], &name("open"), &[]);
        let up = self.linear(&name("up_proj"), wide, from, false)?;
        let gated = self.nodes.add("Mul", &[&open, &up], &name("gated"), &[]);
        self.linear(&name("down_proj"), [hidden, feed_forward], &gated, false)
    }
}
