//! Tests embeddings: the vectors that a decoder without its head computes for a text.

use souk_llm::decoder::Decoder;
use souk_llm::embedding::{Pooling, to_embedding_model};
use souk_llm::generation::GenerationError;
use souk_llm::model::LanguageModel;
use souk_memory::Tensor;
use souk_vocabulary::processor::Processor;

use super::common;
use super::decoders::{CASES, Case, ROOM, near};

fn decoder(case: &Case) -> Decoder {
    let mut decoder = case.decoder();
    let plain = case.model().into_decoder(ROOM).unwrap().subgraph.model;
    decoder.subgraph.model = to_embedding_model(plain).unwrap();
    common::drawing(decoder)
}

/// The logits that a model's head makes of what comes before it.
fn headed(case: &Case, vector: &[f32]) -> Vec<f32> {
    let weights = common::weights(&case.config);
    let names = ["lm_head.weight", "model.embed_tokens.weight"];
    let head = names.iter().find_map(|name| weights.get(*name)).unwrap();
    let limit = case.config["final_logit_softcapping"].as_f64();
    let logits = head.to_f64s().unwrap();
    let logits = logits.chunks_exact(vector.len()).map(|row| {
        let products = row.iter().zip(vector).map(|(a, b)| a * f64::from(*b));
        let sum = products.sum::<f64>();
        limit.map_or(sum, |limit| (sum / limit).tanh() * limit)
    });
    logits.map(|logit| logit as f32).collect()
}

fn length(vector: &[f32]) -> f32 {
    vector.iter().map(|it| it * it).sum::<f32>().sqrt()
}

#[test]
fn the_head_makes_the_references_logits_of_every_architectures_vectors() {
    for name in CASES {
        let case = Case::read(name);
        let decoder = decoder(&case);
        let program = common::cpu().compile(&decoder.subgraph).unwrap();
        let mut sequence = common::sequence(&*program, &decoder, ROOM);
        let vector = sequence.push(&case.prompt).unwrap();
        near(&headed(&case, &vector), &case.logits[0], name);
    }
}

#[test]
fn a_vector_is_of_the_last_position_or_the_mean_and_of_length_one() {
    let case = Case::read("qwen3");
    let decoder = decoder(&case);
    let program = common::cpu().compile(&decoder.subgraph).unwrap();
    let mut sequence = common::sequence(&*program, &decoder, ROOM);
    let rows = sequence.push_all(&case.prompt).unwrap();
    let width = rows.len() / case.prompt.len();
    let rows: Vec<&[f32]> = rows.chunks_exact(width).collect();
    let normal = |vector: Vec<f32>| {
        let length = length(&vector);
        vector.iter().map(|it| it / length).collect::<Vec<_>>()
    };
    let last = sequence.embed_tokens(&case.prompt, Pooling::Last).unwrap();
    near(&last, &normal(rows[rows.len() - 1].to_vec()), "last");
    let sums = (0..width).map(|at| rows.iter().map(|row| row[at]).sum());
    let mean = sequence.embed_tokens(&case.prompt, Pooling::Mean).unwrap();
    near(&mean, &normal(sums.collect()), "mean");
    assert!((length(&mean) - 1.0).abs() < 1e-5);
    for pooling in [Pooling::Last, Pooling::Mean] {
        let long = vec![1; ROOM + 1];
        let refused = sequence.embed_tokens(&long, pooling);
        assert!(matches!(refused, Err(GenerationError::Room { .. })));
        let none = sequence.embed_tokens(&[], pooling);
        assert!(matches!(none, Err(GenerationError::Empty)));
    }
}

#[test]
fn a_folder_without_a_head_is_read_with_what_it_says_of_its_vectors() {
    let case = Case::read("qwen3");
    let weights = common::weights(&case.config);
    let bare: std::collections::BTreeMap<String, Tensor> = weights
        .iter()
        .filter(|(name, _)| *name != "lm_head.weight")
        .map(|(name, it)| (name.trim_start_matches("model.").to_owned(), it.clone()))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    common::write_folder(folder.path(), &case.config, &bare);
    let model = LanguageModel::open(folder.path()).unwrap();
    assert_eq!(model.card.pooling, Pooling::Last);
    model.into_decoder(ROOM).unwrap();
    let said = folder.path().join("1_Pooling");
    std::fs::create_dir(&said).unwrap();
    let say = |text: &str| std::fs::write(said.join("config.json"), text).unwrap();
    say(r#"{"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true}"#);
    let model = LanguageModel::open(folder.path()).unwrap();
    assert_eq!(model.card.pooling, Pooling::Mean);
    say(r#"{"pooling_mode_cls_token": true}"#);
    let refused = LanguageModel::open(folder.path()).map(|_| ()).unwrap_err();
    assert!(
        refused.to_string().contains("pooling_mode = cls_token"),
        "{refused}"
    );
}
