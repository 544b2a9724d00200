//! Tests decoders of every architecture on this machine's processor: their logits and texts must
//! match those of a reference in 64-bit floats (`reference/decoder.py`).

use std::ops::ControlFlow;

use serde::Deserialize;
use serde_json::Value;
use souk_llm::decoder::Decoder;
use souk_llm::generation::{DrawnToken, Ending, GenerationError, Request, Sequence, generate};
use souk_llm::model::LanguageModel;
use souk_llm::sampling::Sampling;
use souk_vocabulary::processor::session::{HeldSession, SequenceStep, Session, State};
use souk_vocabulary::processor::{Outcome, Processor, Program, RunError};

use super::common;

/// Of the largest logit: what 32-bit floats may differ by.
const TOLERANCE: f32 = 2e-5;
/// Positions the caches have room for.
pub const ROOM: usize = 48;

/// What `reference/decoder.py` found.
#[derive(Deserialize)]
pub struct Case {
    pub config: Value,
    pub prompt: Vec<u32>,
    pub generated: Vec<u32>,
    /// After the prompt, and before the last token.
    pub logits: [Vec<f32>; 2],
}

impl Case {
    pub fn read(name: &str) -> Self {
        let path = format!("{}/tests/reference/{name}.json", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    pub fn model(&self) -> LanguageModel {
        let folder = tempfile::tempdir().unwrap();
        common::write_folder(folder.path(), &self.config, &common::weights(&self.config));
        LanguageModel::open(folder.path()).unwrap()
    }

    pub fn decoder(&self) -> Decoder {
        common::drawing(self.model().into_decoder(ROOM).unwrap())
    }

    fn program(&self) -> (Box<dyn Program>, Decoder) {
        let decoder = self.decoder();
        (common::cpu().compile(&decoder.subgraph).unwrap(), decoder)
    }
}

pub fn near(found: &[f32], expected: &[f32], what: &str) {
    near_within(TOLERANCE, found, expected, what);
}

/// As near as a part of the largest.
pub fn near_within(tolerance: f32, found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f32, |most, it| most.max(it.abs()));
    let pairs = found.iter().zip(expected);
    let apart = pairs.fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(
        apart <= tolerance * largest,
        "{what}: {apart} apart of {largest}"
    );
}

pub const CASES: [&str; 10] = [
    "llama",
    "llama-3",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "phi3-long",
    "mistral-window",
    "gemma2",
    "gemma3",
];

/// Mixtures of experts, which not every device runs.
pub const EXPERTS: [&str; 3] = ["mixtral", "qwen2-moe", "qwen3-moe"];

#[test]
fn every_architecture_gives_the_logits_and_the_text_of_its_reference() {
    for name in CASES.into_iter().chain(EXPERTS) {
        let case = Case::read(name);
        let (program, decoder) = case.program();
        let mut sequence = common::sequence(&*program, &decoder, ROOM);
        let first = sequence.push(&case.prompt).unwrap();
        near(&first, &case.logits[0], name);
        for drafts_max in [0, 8] {
            let (text, ending) = written(&mut sequence, &case, drafts_max);
            let ended = (ending, &text);
            assert_eq!(ended, (Ending::Length, &case.generated), "{name}");
        }
        let all = [&case.prompt[..], &case.generated[..]].concat();
        sequence.truncate(0);
        let last = sequence.push(&all[..all.len() - 1]).unwrap();
        near(&last, &case.logits[1], name);
    }
}

/// The text after a case's prompt, from the beginning.
pub fn written(sequence: &mut Sequence<'_>, case: &Case, drafts_max: usize) -> (Vec<u32>, Ending) {
    sequence.truncate(0);
    let request = Request {
        prompt: &case.prompt,
        sampling: &Sampling::default(),
        ends: &[],
        grammar: None,
        tokens_max: case.generated.len(),
        drafts_max,
        likeliest: None,
        is_wanted: &|| true,
    };
    text(sequence, &request)
}

fn text(sequence: &mut Sequence<'_>, request: &Request<'_>) -> (Vec<u32>, Ending) {
    let mut text = Vec::new();
    let take = |token: DrawnToken| {
        text.push(token.id);
        ControlFlow::Continue(())
    };
    let generated = generate(sequence, request, take).unwrap();
    (text, generated.ending)
}

/// With probabilities wanted tokens are drawn here, without where the logits are.
#[test]
fn a_text_is_the_same_whoever_draws_its_tokens() {
    let case = Case::read("llama");
    let (program, decoder) = case.program();
    let mut sequence = common::sequence(&*program, &decoder, ROOM);
    let sampling = Sampling {
        temperature: 1.3,
        top_k: 20,
        top_p: 0.9,
        min_p: 0.02,
        bias: [(3, 1.0)].into(),
        seed: 0xfeed_0123_4567_89ab,
        ..Sampling::default()
    };
    let request = Request {
        prompt: &case.prompt,
        sampling: &sampling,
        ends: &[],
        grammar: None,
        tokens_max: 12,
        drafts_max: 0,
        likeliest: None,
        is_wanted: &|| true,
    };
    let texts = [(None, 0), (None, 4), (Some(0), 0), (Some(0), 4)].map(|(likeliest, most)| {
        sequence.truncate(0);
        let request = Request {
            likeliest,
            drafts_max: most,
            ..request.clone()
        };
        text(&mut sequence, &request)
    });
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    assert_ne!(texts[0].0, case.generated[..12.min(case.generated.len())]);
}

/// They alone refuse a step that does not fit in these words: others leave it to the operator.
#[test]
fn every_architecture_runs_on_the_kernels_of_decoders() {
    for name in CASES.into_iter().chain(EXPERTS) {
        let (program, decoder) = Case::read(name).program();
        let states = decoder.states.iter().map(|port| State {
            port: port.clone(),
            value: decoder.empty_cache(10),
        });
        let mut session = program.open_session(states.collect()).unwrap();
        let given = stepped(&mut *session, &[(0, &[1, 2], 9)]);
        let refused = given[0].1.as_ref().unwrap_err();
        assert!(
            refused.contains("2 rows do not fit at 9 of 10"),
            "{name}: {refused}"
        );
    }
}

/// The decoder without what it says of its states.
pub fn stateless(mut decoder: Decoder) -> Decoder {
    let mut model = souk_onnx::decode_model(decoder.subgraph.model.clone()).unwrap();
    let nodes = model.graph.as_mut().unwrap().node.iter_mut();
    nodes.for_each(|node| node.metadata_props.clear());
    decoder.subgraph.model = souk_onnx::encode_model(&model);
    decoder
}

/// The other engines know nothing of decoders: what they give is what ONNX defines.
#[test]
fn a_decoder_that_does_not_say_its_states_runs_elsewhere_to_the_same_logits() {
    let families = ["llama-3", "qwen2", "phi3-long", "mistral-window"];
    let others = ["gemma2", "gemma3"].into_iter().chain(EXPERTS);
    for name in families.into_iter().chain(others) {
        let case = Case::read(name);
        let decoder = stateless(case.decoder());
        let program = common::cpu().compile(&decoder.subgraph).unwrap();
        let mut sequence = common::sequence(&*program, &decoder, ROOM);
        sequence.push(&case.prompt[..6]).unwrap();
        let logits = sequence.push(&case.prompt[6..]).unwrap();
        near(&logits, &case.logits[0], name);
    }
}

#[test]
fn tokens_one_by_one_give_the_bits_that_they_give_at_once() {
    for name in ["llama", "qwen3", "gemma2", "gemma3"]
        .into_iter()
        .chain(EXPERTS)
    {
        let case = Case::read(name);
        let (program, decoder) = case.program();
        let mut sequence = common::sequence(&*program, &decoder, ROOM);
        let at_once = sequence.push_all(&case.prompt).unwrap();
        sequence.truncate(0);
        let each = case
            .prompt
            .iter()
            .flat_map(|token| sequence.push(&[*token]).unwrap());
        let one_by_one: Vec<f32> = each.collect();
        assert!(
            at_once == one_by_one,
            "{name}: sums depend on the rows beside them"
        );
    }
}

/// The states of a sequence that has seen nothing.
pub fn states(decoder: &Decoder) -> Vec<State> {
    let state = |port: &souk_onnx::states::StatePort| State {
        port: port.clone(),
        value: decoder.empty_cache(ROOM),
    };
    decoder.states.iter().map(state).collect()
}

/// Steps of sequences, and what each gave.
pub type Given = Vec<(u32, Result<Vec<f32>, String>)>;

pub fn stepped(session: &mut dyn Session, steps: &[(u32, &[u32], usize)]) -> Given {
    let step = |&(sequence, tokens, after): &(u32, &[u32], usize)| SequenceStep {
        sequence,
        inputs: souk_llm::generation::step_inputs(tokens, after, &[tokens.len() - 1]),
    };
    let steps: Vec<SequenceStep> = steps.iter().map(step).collect();
    let outcomes = session.step_all(&steps);
    let logits = |outcome: Result<Outcome, RunError>| {
        let outcome = outcome.map_err(|error| error.to_string())?;
        Ok(outcome.outputs["logits"].to_vec::<f32>().unwrap())
    };
    let given = steps.iter().map(|step| step.sequence);
    given.zip(outcomes.into_iter().map(logits)).collect()
}

#[test]
fn sequences_of_one_session_give_the_bits_that_each_gives_alone() {
    for name in ["llama", "qwen3", "gemma3", "qwen2-moe"] {
        let case = Case::read(name);
        let (program, decoder) = case.program();
        let session = || program.open_session(states(&decoder)).unwrap();
        let (prompt, other): (&[u32], &[u32]) = (&case.prompt, &[9, 8, 7, 6, 5]);
        // Each goes its own way, comes and leaves, and one is refused a step beside the others.
        let rounds: [&[(u32, &[u32], usize)]; 4] = [
            &[(0, &prompt[..3], 0)],
            &[(0, &prompt[3..5], 3), (7, other, 0)],
            &[(7, &[1], 5), (0, &[2, 3], ROOM - 1), (2, &prompt[..6], 0)],
            &[(2, &prompt[6..], 6), (0, &prompt[5..], 5)],
        ];
        let mut together = session();
        let mut alone = std::collections::BTreeMap::new();
        for round in rounds {
            let found = stepped(&mut *together, round);
            for (step, (sequence, found)) in round.iter().zip(found) {
                let own = alone.entry(sequence).or_insert_with(session);
                let by_itself = stepped(&mut **own, &[(0, step.1, step.2)]).remove(0).1;
                assert!(
                    found == by_itself,
                    "{name}: sequence {sequence} depends on others"
                );
                assert_eq!(found.is_err(), step.2 == ROOM - 1);
            }
        }
        for (sequence, own) in alone {
            let bytes = |session: &dyn Session, sequence| {
                let states = session.export_states(sequence).unwrap().into_values();
                states
                    .map(|it| it.to_vec::<f32>().unwrap())
                    .collect::<Vec<_>>()
            };
            assert!(
                bytes(&*together, sequence) == bytes(&*own, 0),
                "{name}: its caches"
            );
        }
    }
}

#[test]
fn a_sequence_goes_back_and_on_as_if_it_had_never_been_elsewhere() {
    let case = Case::read("llama");
    let (program, decoder) = case.program();
    let mut sequence = common::sequence(&*program, &decoder, ROOM);
    let straight = sequence.push(&case.prompt).unwrap();
    sequence.truncate(4);
    sequence.push(&[1, 2, 3, 4, 5]).unwrap();
    sequence.truncate(4);
    let again = sequence.push(&case.prompt[4..]).unwrap();
    assert_eq!(straight, again);
}

#[test]
fn what_one_session_exports_another_goes_on_with() {
    let case = Case::read("qwen2");
    let (program, decoder) = case.program();
    let first = |port: &souk_onnx::states::StatePort| State {
        port: port.clone(),
        value: decoder.empty_cache(ROOM),
    };
    let inputs = |tokens: &[u32], from: usize| {
        souk_llm::generation::step_inputs(tokens, from, &[tokens.len() - 1])
    };
    let mut own = program
        .open_session(decoder.states.iter().map(first).collect())
        .unwrap();
    own.step(&inputs(&case.prompt[..5], 0)).unwrap();
    let mut moved = own.export_states(0).unwrap();
    let states = decoder.states.iter().map(|port| State {
        port: port.clone(),
        value: moved.remove(&port.input).unwrap(),
    });
    let mut plain = HeldSession::new(&*program, states.collect());
    let rest = inputs(&case.prompt[5..], 5);
    let there = plain.step(&rest).unwrap();
    let here = own.step(&rest).unwrap();
    near(
        &there.outputs["logits"].to_vec::<f32>().unwrap(),
        &here.outputs["logits"].to_vec::<f32>().unwrap(),
        "moved",
    );
}

#[test]
fn a_sequence_longer_than_its_room_is_refused_and_stands() {
    let case = Case::read("llama");
    let (program, decoder) = case.program();
    let mut sequence = common::sequence(&*program, &decoder, 10);
    sequence.push(&case.prompt).unwrap();
    let refused = sequence.push(&[1, 2]);
    assert!(matches!(
        refused,
        Err(GenerationError::Room {
            wanted: 11,
            room: 10
        })
    ));
    assert_eq!(sequence.length(), case.prompt.len());
    sequence.push(&[1]).unwrap();
}

#[test]
fn room_past_the_window_of_longrope_is_refused_by_name() {
    let case = Case::read("phi3-long");
    let refused = case.model().into_decoder(65).err().unwrap().to_string();
    let expected = "the model's longrope is supported only in its original window of 64 \
                    positions, but 65 are requested";
    assert_eq!(refused, expected);
    assert_eq!(case.model().positions(), 64);
}

#[test]
fn a_written_model_is_the_same_model() {
    let case = Case::read("llama-3");
    let folder = tempfile::tempdir().unwrap();
    common::write_folder(folder.path(), &case.config, &common::weights(&case.config));
    let written = folder.path().join("written");
    LanguageModel::open(folder.path())
        .unwrap()
        .write(&written, ROOM)
        .unwrap();
    let model = LanguageModel::open(&written).unwrap();
    assert_eq!(model.positions(), ROOM);
    let again = model.into_decoder(ROOM).unwrap();
    let first = case.model().into_decoder(ROOM).unwrap();
    assert_eq!(again.states, first.states);
    assert_eq!(again.subgraph.weights, first.subgraph.weights);
    assert_eq!(again.subgraph.model, first.subgraph.model);
    let refused = LanguageModel::open(&written)
        .unwrap()
        .into_decoder(ROOM + 1);
    assert!(refused.err().unwrap().to_string().contains("room for 48"));
}

#[test]
fn weights_that_do_not_fit_the_numbers_are_refused_by_name() {
    let case = Case::read("llama");
    let refused = |change: fn(&mut std::collections::BTreeMap<String, souk_memory::Tensor>)| {
        let mut weights = common::weights(&case.config);
        change(&mut weights);
        let folder = tempfile::tempdir().unwrap();
        common::write_folder(folder.path(), &case.config, &weights);
        let model = LanguageModel::open(folder.path()).unwrap();
        model.into_decoder(ROOM).err().unwrap().to_string()
    };
    let missing = refused(|it| drop(it.remove("model.layers.2.mlp.up_proj.weight")));
    assert_eq!(
        missing,
        "weight \"model.layers.2.mlp.up_proj.weight\" is missing"
    );
    let more = refused(|it| {
        let norm = it["model.norm.weight"].clone();
        it.insert("model.layers.0.self_attn.q_norm.weight".to_owned(), norm);
    });
    assert!(more.contains("q_norm"), "{more}");
    let sizes = refused(|it| {
        let norm = it["model.norm.weight"].clone();
        it.insert("lm_head.weight".to_owned(), norm);
    });
    assert!(sizes.contains("[64], not [97, 64]"), "{sizes}");
}
