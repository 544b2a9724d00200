//! Tests mixture-of-experts models, read from folders and from GGUF files, with weights in floats
//! and in blocks.

use serde_json::json;
use souk_llm::model::LanguageModel;
use souk_memory::{F16, Tensor};
use souk_vocabulary::processor::Processor;
use souk_vocabulary::processor::session::State;

use super::common;
use super::decoders::{Case, EXPERTS, ROOM, near, stateless, stepped};
use super::gguf_files::{Kind, apart, files, logits, metadata, opened};
use super::gguf_writer::Writer;

#[test]
fn a_gguf_file_of_experts_gives_the_logits_of_its_reference() {
    for name in EXPERTS {
        let case = Case::read(name);
        let [file, _] = files(&case.config, Kind::F32);
        near(&logits(&file, &case.prompt), &case.logits[0], name);
    }
}

#[test]
fn experts_of_halves_give_what_the_floats_they_stand_for_give() {
    for name in EXPERTS {
        let case = Case::read(name);
        let [file, plain] = files(&case.config, Kind::F16);
        let expected = logits(&plain, &case.prompt);
        near(&logits(&file, &case.prompt), &expected, name);
    }
}

/// Elsewhere rows are not rounded, and blocks are what they stand for.
#[test]
fn blocks_of_experts_are_on_other_engines_the_floats_they_stand_for() {
    for name in EXPERTS {
        for (kind, blocks) in [(Kind::Q8, "q8_0"), (Kind::Q4, "q4_0")] {
            let case = Case::read(name);
            let [file, plain] = files(&case.config, kind);
            let decoder = opened(&file).unwrap().into_decoder(ROOM).unwrap();
            let decoder = stateless(common::drawing(decoder));
            let program = common::cpu().compile(&decoder.subgraph).unwrap();
            let mut sequence = common::sequence(&*program, &decoder, ROOM);
            let found = sequence.push(&case.prompt).unwrap();
            let expected = logits(&plain, &case.prompt);
            near(&found, &expected, &format!("{name} {blocks}"));
        }
    }
}

/// Rows are rounded to bytes, so this is no closer than a byte is. All experts are chosen: else
/// what is off by a byte could choose others, of which nothing is near.
#[test]
fn blocks_of_experts_give_nearly_what_the_floats_they_stand_for_give() {
    for name in EXPERTS {
        for (kind, blocks) in [(Kind::Q8, "q8_0"), (Kind::Q4, "q4_0")] {
            let mut case = Case::read(name);
            let all = ["num_experts", "num_local_experts"].map(|key| case.config[key].clone());
            let all = all.into_iter().find(|count| count.is_u64());
            case.config["num_experts_per_tok"] = all.unwrap();
            let [file, plain] = files(&case.config, kind);
            let (found, expected) = (logits(&file, &case.prompt), logits(&plain, &case.prompt));
            let apart = apart(&found, &expected);
            assert!(apart < 0.03, "{name} {blocks}: {apart}");
        }
    }
}

/// Weights are rounded to bytes as rows are, each by as much and neither by the other's: so they
/// are off by the root of two times what blocks are that stay what they are, more or less.
#[test]
fn super_blocks_of_experts_give_nearly_what_the_floats_they_stand_for_give() {
    let mut case = Case::read("qwen2-moe");
    let widths = ["hidden_size", "moe_intermediate_size"];
    for key in widths
        .into_iter()
        .chain(["shared_expert_intermediate_size"])
    {
        case.config[key] = json!(256);
    }
    case.config["num_experts_per_tok"] = case.config["num_experts"].clone();
    let off = |kind: Kind| {
        let [file, plain] = files(&case.config, kind);
        apart(&logits(&file, &case.prompt), &logits(&plain, &case.prompt))
    };
    let blocks = off(Kind::Q8);
    for (kind, name) in [(Kind::Q4K, "q4_K"), (Kind::Q6K, "q6_K")] {
        let off = off(kind);
        assert!(off < 2.0 * blocks && off < 0.1, "{name}: {off}, {blocks}");
    }
}

/// They alone refuse a step that does not fit in these words.
#[test]
fn experts_of_every_kind_run_on_the_kernels_of_decoders() {
    let case = Case::read("qwen2-moe");
    for kind in [Kind::F32, Kind::F16, Kind::Q8, Kind::Q4] {
        let [file, _] = files(&case.config, kind);
        let decoder = common::drawing(opened(&file).unwrap().into_decoder(ROOM).unwrap());
        let program = common::cpu().compile(&decoder.subgraph).unwrap();
        let states = decoder.states.iter().map(|port| State {
            port: port.clone(),
            value: decoder.empty_cache(10),
        });
        let mut session = program.open_session(states.collect()).unwrap();
        let given = stepped(&mut *session, &[(0, &[1, 2], 9)]);
        let refused = given[0].1.as_ref().unwrap_err();
        assert!(
            refused.contains("2 rows do not fit at 9 of 10"),
            "{refused}"
        );
    }
}

/// A few tokens have experts that have no row, or one; many have several rows of each.
#[test]
fn tokens_of_blocks_one_by_one_give_the_bits_that_they_give_at_once() {
    for name in EXPERTS {
        let case = Case::read(name);
        let [file, _] = files(&case.config, Kind::Q8);
        let decoder = common::drawing(opened(&file).unwrap().into_decoder(ROOM).unwrap());
        let program = common::cpu().compile(&decoder.subgraph).unwrap();
        let mut sequence = common::sequence(&*program, &decoder, ROOM);
        let tokens: Vec<u32> = (0..40).map(|at| at * 7 % 97).collect();
        let at_once = sequence.push_all(&tokens).unwrap();
        sequence.truncate(0);
        let each = tokens
            .iter()
            .flat_map(|token| sequence.push(&[*token]).unwrap());
        assert!(at_once == each.collect::<Vec<f32>>(), "{name}");
    }
}

#[test]
fn a_written_model_of_experts_is_the_same_model() {
    let case = Case::read("mixtral");
    let folder = tempfile::tempdir().unwrap();
    common::write_folder(folder.path(), &case.config, &common::weights(&case.config));
    let opened = || LanguageModel::open(folder.path()).unwrap();
    let written = folder.path().join("written");
    opened().write(&written, ROOM).unwrap();
    let again = LanguageModel::open(&written)
        .unwrap()
        .into_decoder(ROOM)
        .unwrap();
    let first = opened().into_decoder(ROOM).unwrap();
    assert_eq!(again.subgraph.weights, first.subgraph.weights);
    assert_eq!(again.subgraph.model, first.subgraph.model);
}

/// As many contents as a model without experts has: a stack is one.
#[test]
fn the_experts_of_a_layer_are_three_contents() {
    let of = |name: &str| {
        let decoder = Case::read(name).decoder();
        decoder.subgraph.weights.len()
    };
    let layers = Case::read("llama").config["num_hidden_layers"]
        .as_u64()
        .unwrap();
    assert_eq!(
        of("mixtral"),
        of("llama") + layers as usize,
        "routers are more"
    );
}

#[test]
fn experts_that_do_not_fit_are_refused_by_name() {
    let case = Case::read("mixtral");
    let second = "model.layers.1.block_sparse_moe.experts.2.w3.weight";
    let refused = |weight: Option<Tensor>| {
        let mut weights = common::weights(&case.config);
        match weight {
            Some(weight) => weights.insert(second.to_owned(), weight),
            None => weights.remove(second),
        };
        let folder = tempfile::tempdir().unwrap();
        common::write_folder(folder.path(), &case.config, &weights);
        let model = LanguageModel::open(folder.path()).unwrap();
        model.into_decoder(ROOM).err().unwrap().to_string()
    };
    assert_eq!(refused(None), format!("weight {second:?} is missing"));
    let halves = Tensor::from_vec([96, 64], vec![F16::from_f32(1.0); 96 * 64]);
    let expected =
        format!("weight {second:?} does not have the type of the other experts' weights");
    assert_eq!(refused(halves.ok()), expected);
    let wide = Tensor::from_vec([64, 96], vec![1.0f32; 96 * 64]);
    let expected = format!("weight {second:?} has the sizes [64, 96], not [96, 64]");
    assert_eq!(refused(wide.ok()), expected);
}

#[test]
fn what_a_file_says_of_experts_and_is_not_known_is_refused_by_name() {
    let refused = |name: &str, add: &dyn Fn(&mut Writer)| {
        let mut file = Writer::default();
        metadata(&mut file, &Case::read(name).config);
        add(&mut file);
        opened(&file.finish()).err().unwrap().to_string()
    };
    let counts = [
        ("expert_gating_func", 2),
        ("leading_dense_block_count", 1),
        ("expert_group_count", 8),
        ("interleave_moe_layer_step", 2),
    ];
    for (key, value) in counts {
        let refused = refused("qwen3-moe", &|file: &mut Writer| {
            file.number(&format!("qwen3moe.{key}"), value);
        });
        assert_eq!(refused, format!("{key} = {value} is not supported"));
    }
    let scaled = refused("qwen2-moe", &|file: &mut Writer| {
        file.float("qwen2moe.expert_weights_scale", 2.5);
    });
    assert_eq!(scaled, "expert_weights_scale = 2.5 is not supported");
    let gemma = refused("gemma2", &|file: &mut Writer| {
        file.number("gemma2.expert_count", 8);
    });
    assert_eq!(gemma, "expert_count = 8 is not supported");
}
