//! Tests models read from GGUF files: they must give the same results as the same models read from
//! folders.

use bytes::Bytes;
use serde_json::{Value, json};
use souk_llm::model::{LanguageModel, ModelError};
use souk_memory::F16;
use souk_vocabulary::processor::Processor;

use super::common;
use super::decoders::{Case, ROOM, near};
use super::gguf_writer::Writer;
use super::k_quants::{SuperBlock, q4_k, q6_k};

/// What each tensor is called in GGUF files.
const NAMES: [(&str, &str); 21] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
];

/// What the stacks of experts' parts are called.
const STACKS: [(&str, &str); 6] = [
    ("w1", "ffn_gate_exps"),
    ("w3", "ffn_up_exps"),
    ("w2", "ffn_down_exps"),
    ("gate_proj", "ffn_gate_exps"),
    ("up_proj", "ffn_up_exps"),
    ("down_proj", "ffn_down_exps"),
];

/// What a tensor is called; the norm after attention is another family's norm before what follows.
fn name(config: &Value, known: &str) -> String {
    match known {
        "model.embed_tokens.weight" => return "token_embd.weight".to_owned(),
        "model.norm.weight" => return "output_norm.weight".to_owned(),
        "lm_head.weight" => return "output.weight".to_owned(),
        _ => {}
    }
    let rest = known.strip_prefix("model.layers.").unwrap();
    let (layer, rest) = rest.split_once('.').unwrap();
    let (part, ending) = rest.rsplit_once('.').unwrap();
    if let Some((_, part)) = part.split_once(".experts.") {
        let (_, part) = part.split_once('.').unwrap();
        let (_, stack) = STACKS.iter().find(|(known, _)| *known == part).unwrap();
        return format!("blk.{layer}.{stack}.{ending}");
    }
    let (_, part) = match part {
        "post_attention_layernorm" if is_gemma(config) => &("", "post_attention_norm"),
        part => NAMES.iter().find(|(known, _)| *known == part).unwrap(),
    };
    format!("blk.{layer}.{part}.{ending}")
}

fn family(config: &Value) -> &str {
    match config["model_type"].as_str().unwrap() {
        "mixtral" => "llama",
        "qwen2_moe" => "qwen2moe",
        "qwen3_moe" => "qwen3moe",
        family => family.strip_suffix("_text").unwrap_or(family),
    }
}

fn is_gemma(config: &Value) -> bool {
    family(config).starts_with("gemma")
}

/// Rows of queries and keys as Llama's converters order them: a pair's two side by side.
fn side_by_side(values: &[f32], rows: usize, width: usize) -> Vec<f32> {
    let depth = values.len() / rows;
    let from = |row: usize| {
        let (head, within) = (row / width, row % width);
        head * width + within / 2 + (within % 2) * (width / 2)
    };
    let rows = (0..rows).flat_map(|row| &values[from(row) * depth..][..depth]);
    rows.copied().collect()
}

pub fn metadata(writer: &mut Writer, config: &Value) {
    let family = family(config);
    let number = |key: &str| config[key].as_u64().map(|it| u32::try_from(it).unwrap());
    let keys = [
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("feed_forward_length", "intermediate_size"),
        ("context_length", "max_position_embeddings"),
        ("attention.key_length", "head_dim"),
        ("attention.sliding_window", "sliding_window"),
        ("attention.sliding_window_pattern", "sliding_window_pattern"),
        ("expert_count", "num_local_experts"),
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        (
            "expert_shared_feed_forward_length",
            "shared_expert_intermediate_size",
        ),
    ];
    writer.text("general.architecture", family);
    for (key, known) in keys {
        if let Some(number) = number(known) {
            writer.number(&format!("{family}.{key}"), number);
        }
    }
    for limit in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(number) = config[limit].as_f64() {
            writer.float(&format!("{family}.{limit}"), number as f32);
        }
    }
    if config["rope_scaling"]["rope_type"] == "linear" {
        let factor = config["rope_scaling"]["factor"].as_f64().unwrap();
        writer.text(&format!("{family}.rope.scaling.type"), "linear");
        writer.float(&format!("{family}.rope.scaling.factor"), factor as f32);
    }
    let float = |key: &str| config[key].as_f64().unwrap() as f32;
    writer.float(&format!("{family}.rope.freq_base"), float("rope_theta"));
    if let Some(share) = config["partial_rotary_factor"].as_f64() {
        let heads = number("hidden_size").unwrap() / number("num_attention_heads").unwrap();
        let turned = (f64::from(heads) * share) as u32;
        writer.number(&format!("{family}.rope.dimension_count"), turned);
    }
    if let Some(original) = number("original_max_position_embeddings") {
        long_angles(writer, config, original);
    }
    let epsilon = format!("{family}.attention.layer_norm_rms_epsilon");
    writer.float(&epsilon, float("rms_norm_eps"));
    writer.text("tokenizer.ggml.model", "gpt2");
    let words = (0..number("vocab_size").unwrap()).map(|id| format!("w{id}"));
    writer.texts("tokenizer.ggml.tokens", &words.collect::<Vec<_>>());
    writer.texts("tokenizer.ggml.merges", &[]);
}

/// What files say of angles that are others past so many positions.
fn long_angles(writer: &mut Writer, config: &Value, original: u32) {
    let family = family(config);
    let key = format!("{family}.rope.scaling.original_context_length");
    writer.number(&key, original);
    let times = config["max_position_embeddings"].as_f64().unwrap() / f64::from(original);
    let grown = (1.0 + times.ln() / f64::from(original).ln()).sqrt();
    let key = format!("{family}.rope.scaling.attn_factor");
    writer.float(&key, grown as f32);
    for which in ["short", "long"] {
        let factors = config["rope_scaling"][format!("{which}_factor")].as_array();
        let factors = factors
            .unwrap()
            .iter()
            .map(|it| it.as_f64().unwrap() as f32);
        let bytes: Vec<u8> = factors.flat_map(f32::to_le_bytes).collect();
        let name = format!("rope_factors_{which}.weight");
        writer.tensor(&name, 0, &[bytes.len() / 4], &bytes);
    }
}

/// How matrices are written.
#[derive(Clone, Copy)]
pub enum Kind {
    F32,
    F16,
    Q8,
    Q4,
    Q4K,
    Q6K,
}

/// A matrix' bytes and its type's number, and the numbers it then stands for.
fn written(kind: Kind, values: &[f32]) -> (u32, Vec<u8>, Vec<f32>) {
    let bytes = |block: &[f32], to: &mut (Vec<u8>, Vec<f32>)| {
        let largest = block.iter().fold(0.0f32, |most, it| most.max(it.abs()));
        let most = if matches!(kind, Kind::Q8) { 127.0 } else { 7.0 };
        let scale = F16::from_f32(largest / most);
        to.0.extend(scale.0.to_le_bytes());
        let whole = |it: &f32| (it / scale.to_f32()).round().clamp(-most, most);
        to.1.extend(block.iter().map(|it| whole(it) * scale.to_f32()));
        if matches!(kind, Kind::Q8) {
            to.0.extend(block.iter().map(|it| (whole(it) as i8).cast_unsigned()));
        } else {
            let four = |it: &f32| (whole(it) + 8.0) as u8;
            let pairs = block[..16].iter().zip(&block[16..]);
            to.0.extend(pairs.map(|(low, high)| four(low) | (four(high) << 4)));
        }
    };
    match kind {
        Kind::F32 => {
            let bytes = values.iter().flat_map(|it| it.to_le_bytes()).collect();
            (0, bytes, values.to_vec())
        }
        Kind::F16 => {
            let halves: Vec<F16> = values.iter().map(|it| F16::from_f32(*it)).collect();
            let bytes = halves.iter().flat_map(|it| it.0.to_le_bytes()).collect();
            (1, bytes, halves.iter().map(|it| it.to_f32()).collect())
        }
        Kind::Q8 | Kind::Q4 => {
            let mut made = (Vec::new(), Vec::new());
            values.chunks(32).for_each(|block| bytes(block, &mut made));
            (if matches!(kind, Kind::Q8) { 8 } else { 2 }, made.0, made.1)
        }
        Kind::Q4K => super_blocks(12, q4_k, values),
        Kind::Q6K => super_blocks(14, q6_k, values),
    }
}

fn super_blocks(
    number: u32,
    block: fn(&[f32]) -> SuperBlock,
    values: &[f32],
) -> (u32, Vec<u8>, Vec<f32>) {
    let (bytes, meant): (Vec<_>, Vec<_>) = values.chunks(256).map(block).unzip();
    (number, bytes.concat(), meant.concat())
}

/// The tensors of a file, each with its sizes: those of experts one behind the other.
fn tensors(config: &Value) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for (known, dims) in common::sizes(config) {
        let mut values = common::weight(&known, dims.iter().product());
        if is_gemma(config) && known.ends_with("norm.weight") {
            // Norms are whole there.
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        let is_turned = known.contains("q_proj.weight") || known.contains("k_proj.weight");
        if is_turned && family(config) == "llama" {
            let heads = config["num_attention_heads"].as_u64().unwrap() as usize;
            let width = config["hidden_size"].as_u64().unwrap() as usize / heads;
            values = side_by_side(&values, dims[0], width);
        }
        let name = name(config, &known);
        match tensors.iter_mut().find(|it| it.0 == name) {
            Some((_, dims, before)) => {
                dims[0] += 1;
                before.extend(values);
            }
            None if name.contains("_exps.") => {
                tensors.push((name, [&[1], &dims[..]].concat(), values));
            }
            // Converters drop an axis of one.
            None if dims[0] == 1 => tensors.push((name, dims[1..].to_vec(), values)),
            None => tensors.push((name, dims, values)),
        }
    }
    tensors
}

/// A file of a model, and the same model in floats of 32 bits.
pub fn files(config: &Value, kind: Kind) -> [Bytes; 2] {
    let [mut file, mut plain] = [Writer::default(), Writer::default()];
    metadata(&mut file, config);
    metadata(&mut plain, config);
    for (name, dims, values) in tensors(config) {
        // Routers stay what they are.
        let is_matrix = dims.len() > 1 && !name.contains("ffn_gate_inp");
        let own = if is_matrix { kind } else { Kind::F32 };
        let (number, bytes, meant) = written(own, &values);
        file.tensor(&name, number, &dims, &bytes);
        let (number, bytes, _) = written(Kind::F32, &meant);
        plain.tensor(&name, number, &dims, &bytes);
    }
    [file.finish(), plain.finish()]
}

/// A model of a file.
pub fn opened(file: &Bytes) -> Result<LanguageModel, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, file).unwrap();
    LanguageModel::open(&path)
}

/// The logits after the prompt.
pub fn logits(file: &Bytes, prompt: &[u32]) -> Vec<f32> {
    let decoder = common::drawing(opened(file).unwrap().into_decoder(ROOM).unwrap());
    let program = common::cpu().compile(&decoder.subgraph).unwrap();
    common::sequence(&*program, &decoder, ROOM)
        .push(prompt)
        .unwrap()
}

#[test]
fn a_gguf_file_gives_the_logits_of_its_reference() {
    for name in ["llama", "qwen2", "qwen3", "phi3", "phi3-long"] {
        let case = Case::read(name);
        let [file, _] = files(&case.config, Kind::F32);
        near(&logits(&file, &case.prompt), &case.logits[0], name);
    }
}

/// Files do not say what scores are multiplied by: it is what a head's width makes usual.
#[test]
fn a_file_of_gemma_gives_the_logits_of_its_folder() {
    for name in ["gemma2", "gemma3"] {
        let mut case = Case::read(name);
        case.config["query_pre_attn_scalar"] = case.config["head_dim"].clone();
        let decoder = case.decoder();
        let program = common::cpu().compile(&decoder.subgraph).unwrap();
        let mut sequence = common::sequence(&*program, &decoder, ROOM);
        let expected = sequence.push(&case.prompt).unwrap();
        let [file, _] = files(&case.config, Kind::F32);
        near(&logits(&file, &case.prompt), &expected, name);
    }
}

#[test]
fn halves_give_what_the_floats_they_stand_for_give() {
    let case = Case::read("llama");
    let [file, plain] = files(&case.config, Kind::F16);
    let expected = logits(&plain, &case.prompt);
    near(&logits(&file, &case.prompt), &expected, "f16");
}

/// Rows are rounded to bytes as well, so this is no closer than a byte is.
#[test]
fn blocks_give_nearly_what_the_floats_they_stand_for_give() {
    for name in ["qwen3", "phi3"] {
        for (kind, blocks) in [(Kind::Q8, "q8_0"), (Kind::Q4, "q4_0")] {
            let case = Case::read(name);
            let [file, plain] = files(&case.config, kind);
            let (found, expected) = (logits(&file, &case.prompt), logits(&plain, &case.prompt));
            let apart = apart(&found, &expected);
            assert!(apart < 0.03, "{name} {blocks}: {apart}");
        }
    }
}

/// How far apart two vectors are, of the second's length.
pub fn apart(found: &[f32], expected: &[f32]) -> f64 {
    let size = |values: &mut dyn Iterator<Item = f32>| {
        values.map(|it| f64::from(it).powi(2)).sum::<f64>().sqrt()
    };
    let apart = size(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    apart / size(&mut expected.iter().copied())
}

/// Qwen 3's, with rows of whole super-blocks.
fn wide() -> Case {
    let mut case = Case::read("qwen3");
    for key in ["hidden_size", "intermediate_size"] {
        case.config[key] = json!(256);
    }
    case.config["head_dim"] = json!(64);
    case
}

/// Weights are rounded to bytes as rows are, each by as much and neither by the other's: so this is
/// the tolerance of blocks that stay what they are, times the root of two.
#[test]
fn super_blocks_give_nearly_what_the_floats_they_stand_for_give() {
    for (kind, name) in [(Kind::Q4K, "q4_K"), (Kind::Q6K, "q6_K")] {
        let case = wide();
        let [file, plain] = files(&case.config, kind);
        let (found, expected) = (logits(&file, &case.prompt), logits(&plain, &case.prompt));
        let apart = apart(&found, &expected);
        assert!(apart < 0.03 * 2f64.sqrt(), "{name}: {apart}");
    }
}

#[test]
fn a_way_of_scaling_angles_that_is_not_known_is_refused_by_name() {
    let mut file = Writer::default();
    metadata(&mut file, &Case::read("qwen3").config);
    file.text("qwen3.rope.scaling.type", "yarn");
    let refused = opened(&file.finish()).err().unwrap().to_string();
    assert_eq!(refused, "rope.scaling.type = yarn is not supported");
}

#[test]
fn a_vector_of_super_blocks_is_refused_by_name() {
    let case = wide();
    let mut file = Writer::default();
    metadata(&mut file, &case.config);
    for (name, dims, values) in tensors(&case.config) {
        let is_norm = name == "output_norm.weight";
        let own = if is_norm { Kind::Q6K } else { Kind::F32 };
        let (number, bytes, _) = written(own, &values);
        file.tensor(&name, number, &dims, &bytes);
    }
    let refused = opened(&file.finish()).unwrap().into_decoder(ROOM);
    let refused = refused.err().unwrap().to_string();
    assert!(
        refused.contains("\"model.norm.weight\" is of i8"),
        "{refused}"
    );
}
