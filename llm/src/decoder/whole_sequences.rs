//! Builds the form of a decoder that is trained: it reads whole sequences at once, has no caches,
//! and returns the logits of all positions. If an adapter is trained, the model contains it beside
//! its matrices.
//!
//! The scheduler's module `gradient` can differentiate each operator of this model. Products have
//! the form of `Gemm` with the weight as the file has it, so that neither pass transposes a weight.
//! Sequences begin at position 0 and are filled up at their end. So causal attention sees no
//! filling, and only the loss needs to know of it.

use souk_memory::{DType, Tensor};
use souk_onnx::subgraph::weight_id;
use souk_onnx::{
    Dimension, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, external_location,
    tensor_to_proto,
};

use super::nodes::Nodes;
use super::{ANGLES, IR_VERSION, LOGITS, NORM, OPSET, TOKENS};
use crate::adapter::Adapter;
use crate::config::{Architecture, Config, ConfigError};
use crate::weights::{WeightError, Weights};

/// The value of masked scores, whose exponential is 0 beside any other score.
const MASKED: f32 = -1e30;

/// The extents of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSize {
    /// Number of sequences.
    pub rows: usize,
    /// Positions of each of them.
    pub length: usize,
}

/// Largest length of a sequence that can be trained: the graph holds a mask of that many numbers
/// squared, 64 MiB.
pub const LENGTH_MAX: usize = 4_096;

/// Checks that a decoder of these dimensions can be trained.
///
/// # Errors
/// [`ConfigError::Training`] with the unsupported part.
pub(crate) fn check_trainable(config: &Config) -> Result<(), ConfigError> {
    let is_family = matches!(
        config.architecture,
        Architecture::Llama | Architecture::Mistral | Architecture::Qwen2 | Architecture::Qwen3
    );
    let refused = |what: &'static str| Err(ConfigError::Training(what));
    if config.experts.is_some() {
        return refused("its mixture of experts");
    }
    if !is_family {
        return refused("its family: supported are llama, mistral, qwen2, qwen3");
    }
    if config.score_limit.is_some() || config.logit_limit.is_some() {
        return refused("its limits on scores or logits");
    }
    Ok(())
}

/// Builds the decoder with its weights inside, and with an adapter if you give one. Its input is
/// [`TOKENS`] and its output [`LOGITS`], `[rows, length, vocabulary]`. The dimensions must be
/// trainable.
///
/// # Errors
/// [`WeightError`] if a weight is missing or does not match the dimensions.
pub(crate) fn build_training_model(
    config: &Config,
    weights: Weights,
    adapter: Option<&Adapter>,
    size: BatchSize,
) -> Result<ModelProto, WeightError> {
    let mut nodes = Nodes::new(weights);
    let mut body = WholeSequences {
        config,
        adapter,
        size,
        nodes: &mut nodes,
    };
    body.write()?;
    let dims = [size.rows, size.length, config.vocabulary];
    let dims = dims.map(|dim| Dimension::new_fixed(dim as i64));
    let declare = |name, dtype: DType, dims: &[Dimension]| {
        ValueInfoProto::new_tensor(name, dtype.onnx_code(), Some(dims.to_vec()))
    };
    let tokens = declare(TOKENS, DType::I64, &dims[..2]);
    let logits = declare(LOGITS, DType::F32, &dims);
    let (mut graph, contents) = nodes.finish(vec![tokens], vec![logits])?;
    for initialiser in &mut graph.initializer {
        let id = external_location(initialiser).and_then(weight_id);
        if let Some(bytes) = id.and_then(|id| contents.get(&id)) {
            initialiser.raw_data = Some(bytes.clone());
            initialiser.data_location = None;
            initialiser.external_data.clear();
        }
    }
    Ok(ModelProto {
        ir_version: Some(IR_VERSION),
        producer_name: Some("souk".to_owned()),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(OPSET),
        }],
        graph: Some(graph),
        ..ModelProto::default()
    })
}

/// The graph under construction. The stream between layers is `[rows * length, hidden]`.
struct WholeSequences<'a> {
    config: &'a Config,
    adapter: Option<&'a Adapter>,
    size: BatchSize,
    nodes: &'a mut Nodes,
}

impl WholeSequences<'_> {
    fn write(&mut self) -> Result<(), WeightError> {
        let Config {
            hidden,
            layers,
            vocabulary,
            ..
        } = *self.config;
        let BatchSize { rows, length } = self.size;
        self.add_tables();
        let table = "model.embed_tokens.weight";
        let table = self.nodes.matrix(table, [vocabulary, hidden])?;
        let flat = self.nodes.reshape(TOKENS, &[-1], "tokens.flat");
        let mut stream = self.nodes.add("Gather", &[&table, &flat], "embedded", &[]);
        for layer in 0..layers {
            stream = self.add_layer(layer, &stream)?;
        }
        let normal = self.add_norm(NORM, hidden, &stream)?;
        let head = match self.nodes.has_weight("lm_head.weight") {
            true => self.nodes.matrix("lm_head.weight", [vocabulary, hidden])?,
            false => table,
        };
        let logits = self.nodes.add_gemm(&[&normal, &head], "logits.flat", 1.0);
        let sizes = [rows as i64, length as i64, vocabulary as i64];
        self.nodes.reshape(&logits, &sizes, LOGITS);
        Ok(())
    }

    /// Adds the angles of positions, the positions, and the masks of attention.
    fn add_tables(&mut self) {
        let BatchSize { rows, length } = self.size;
        let rotary = &self.config.rotary;
        for (name, table) in ANGLES.into_iter().zip(rotary.angle_tables(length)) {
            self.nodes.table(name, [length, rotary.width / 2], table);
        }
        let positions = (0..rows).flat_map(|_| 0..length as i64);
        let positions = Tensor::from_vec([rows, length], positions.collect::<Vec<i64>>());
        let positions = positions.expect("each row has all positions");
        self.nodes.add_constant("positions", &positions);
        for window in (0..self.config.layers).map(|layer| self.config.window_of(layer)) {
            let is_seen = |query: usize, key: usize| {
                key <= query && window.is_none_or(|window| query - key < window)
            };
            let cells = (0..length * length).map(|at| match is_seen(at / length, at % length) {
                true => 0.0,
                false => MASKED,
            });
            let name = mask_name(window);
            if !self.nodes.has_constant(&name) {
                self.nodes.table(&name, [length, length], cells.collect());
            }
        }
    }

    fn add_layer(&mut self, layer: usize, stream: &str) -> Result<String, WeightError> {
        let Config {
            hidden,
            feed_forward,
            ..
        } = *self.config;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let entering = self.add_norm(&name("input_layernorm"), hidden, stream)?;
        let seen = self.add_attention(layer, &entering)?;
        let sum = format!("attended.{layer}");
        let stream = self.nodes.add("Add", &[stream, &seen], &sum, &[]);
        let entering = self.add_norm(&name("post_attention_layernorm"), hidden, &stream)?;
        let wide = [feed_forward, hidden];
        let gate = self.add_linear(&name("mlp.gate_proj"), wide, &entering)?;
        let open = self.nodes.add("Swish", &[&gate], &name("mlp.open"), &[]);
        let up = self.add_linear(&name("mlp.up_proj"), wide, &entering)?;
        let gated = self
            .nodes
            .add("Mul", &[&open, &up], &name("mlp.gated"), &[]);
        let made = self.add_linear(&name("mlp.down_proj"), [hidden, feed_forward], &gated)?;
        let sum = format!("hidden.{layer}");
        Ok(self.nodes.add("Add", &[&stream, &made], &sum, &[]))
    }

    fn add_norm(&mut self, name: &str, width: usize, from: &str) -> Result<String, WeightError> {
        let weight = self.nodes.add_vector(&format!("{name}.weight"), width)?;
        let epsilon = self.config.epsilon;
        Ok(self.nodes.add_norm(from, &weight, name, epsilon))
    }

    /// Adds a product with a weight of these sizes, its bias if the family has one, and the
    /// adapter's part if it targets the matrix.
    fn add_linear(
        &mut self,
        name: &str,
        [outputs, inputs]: [usize; 2],
        from: &str,
    ) -> Result<String, WeightError> {
        let weight = format!("{name}.weight");
        let weight = self.nodes.matrix(&weight, [outputs, inputs])?;
        let mut factors = vec![from.to_owned(), weight];
        let bias = format!("{name}.bias");
        if self.nodes.has_weight(&bias) && self.config.architecture.has_biases() {
            factors.push(self.nodes.add_vector(&bias, outputs)?);
        }
        let factors: Vec<&str> = factors.iter().map(String::as_str).collect();
        let adapter = self
            .adapter
            .and_then(|it| Some((it.scale(), it.pair_of(name)?)));
        let Some((scale, [down, up])) = adapter else {
            return Ok(self.nodes.add_gemm(&factors, name, 1.0));
        };
        let base = self.nodes.add_gemm(&factors, &format!("{name}.base"), 1.0);
        let [down_name, up_name] = Adapter::tensor_names(name);
        self.nodes.add_constant(&down_name, down);
        self.nodes.add_constant(&up_name, up);
        let narrow = format!("{name}.narrow");
        let narrow = self.nodes.add_gemm(&[from, &down_name], &narrow, 1.0);
        let inputs = [narrow.as_str(), &up_name, &base];
        Ok(self.nodes.add_gemm(&inputs, name, scale))
    }

    /// Adds queries, keys or values by head: `[rows, heads, length, width]`.
    fn add_heads(&mut self, layer: usize, which: char, from: &str) -> Result<String, WeightError> {
        let Config {
            architecture,
            hidden,
            head_width,
            ..
        } = *self.config;
        let BatchSize { rows, length } = self.size;
        let heads = match which {
            'q' => self.config.heads,
            _ => self.config.key_heads,
        };
        let name = format!("model.layers.{layer}.self_attn.{which}_proj");
        let flat = self.add_linear(&name, [heads * head_width, hidden], from)?;
        let sizes = [rows, length, heads, head_width].map(|size| size as i64);
        let split = format!("{name}.split");
        let mut by_head = self.nodes.reshape(&flat, &sizes, &split);
        if architecture.has_head_norms() && which != 'v' {
            let norm = format!("model.layers.{layer}.self_attn.{which}_norm");
            by_head = self.add_norm(&norm, head_width, &by_head)?;
        }
        let turned = format!("{name}.heads");
        let turned = self.nodes.swap_middle_axes(&by_head, &turned);
        if which == 'v' {
            return Ok(turned);
        }
        let rotary = &self.config.rotary;
        let mut attributes = vec![("interleaved", i64::from(rotary.interleaved))];
        if rotary.width < head_width {
            attributes.push(("rotary_embedding_dim", rotary.width as i64));
        }
        let inputs = [turned.as_str(), ANGLES[0], ANGLES[1], "positions"];
        let name = format!("{name}.rotated");
        Ok(self
            .nodes
            .add("RotaryEmbedding", &inputs, &name, &attributes))
    }

    /// Adds attention in its parts. The queries that share a head of keys are the rows of one
    /// product.
    fn add_attention(&mut self, layer: usize, from: &str) -> Result<String, WeightError> {
        let Config {
            hidden,
            heads,
            key_heads,
            head_width,
            ..
        } = *self.config;
        let BatchSize { rows, length } = self.size;
        let groups = heads / key_heads;
        let base = format!("model.layers.{layer}.self_attn");
        let name = |part: &str| format!("{base}.{part}");
        let queries = self.add_heads(layer, 'q', from)?;
        let keys = self.add_heads(layer, 'k', from)?;
        let values = self.add_heads(layer, 'v', from)?;
        let usual = 1.0 / (head_width as f32).sqrt();
        let factor = self.config.score_factor.unwrap_or(usual);
        let scaled = name("scaled");
        let queries = self.nodes.add_constant_product(&queries, factor, &scaled);
        let sizes = |all: &[usize]| all.iter().map(|size| *size as i64).collect::<Vec<i64>>();
        let grouped = sizes(&[rows, key_heads, groups * length, head_width]);
        let queries = self.nodes.reshape(&queries, &grouped, &name("grouped"));
        let turned = name("keys.turned");
        let keys = self.nodes.transpose(&keys, &turned, &[0, 1, 3, 2]);
        let scores = self
            .nodes
            .add("MatMul", &[&queries, &keys], &name("scores"), &[]);
        let by_group = sizes(&[rows, key_heads, groups, length, length]);
        let scores = self.nodes.reshape(&scores, &by_group, &name("by_group"));
        let mask = mask_name(self.config.window_of(layer));
        let masked = self
            .nodes
            .add("Add", &[&scores, &mask], &name("masked"), &[]);
        let last = [("axis", -1)];
        let shares = self
            .nodes
            .add("Softmax", &[&masked], &name("shares"), &last);
        let joined = sizes(&[rows, key_heads, groups * length, length]);
        let shares = self.nodes.reshape(&shares, &joined, &name("shares.joined"));
        let seen = self
            .nodes
            .add("MatMul", &[&shares, &values], &name("seen"), &[]);
        let by_head = sizes(&[rows, heads, length, head_width]);
        let seen = self.nodes.reshape(&seen, &by_head, &name("by_head"));
        let turned = self.nodes.swap_middle_axes(&seen, &name("turned"));
        let flat = sizes(&[rows * length, heads * head_width]);
        let flat = self.nodes.reshape(&turned, &flat, &name("joined"));
        self.add_linear(&name("o_proj"), [hidden, heads * head_width], &flat)
    }
}

/// Returns the name of the mask for layers with this window.
fn mask_name(window: Option<usize>) -> String {
    match window {
        Some(window) => format!("mask.{window}"),
        None => "mask".to_owned(),
    }
}

impl Nodes {
    /// Adds a product with a matrix whose rows are the result's columns, times a factor, and the
    /// third input if there is one.
    fn add_gemm(&mut self, inputs: &[&str], name: &str, factor: f32) -> String {
        let node = NodeProto::for_operator("Gemm", inputs, name).with("transB", 1);
        let node = match factor {
            1.0 => node,
            _ => node.with("alpha", factor),
        };
        self.push(NodeProto {
            name: Some(name.to_owned()),
            ..node
        });
        name.to_owned()
    }

    /// Adds a constant whose values stay in the model.
    fn add_constant(&mut self, name: &str, tensor: &Tensor) {
        self.push_initializer(tensor_to_proto(name, tensor));
    }
}
