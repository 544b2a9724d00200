//! Tests decoders on a GPU (often a software driver): their results must match those of this
//! machine's processor.

use souk_gpu::{Gpu, GpuConfig, list_adapters};
use souk_llm::decoder::Decoder;
use souk_llm::generation::Ending;
use souk_llm::model::LanguageModel;
use souk_vocabulary::processor::{Processor, Program};

use super::common;
use super::decoders::{CASES, Case, ROOM, near_within, states, stepped, written};
use super::gguf_files::{Kind, files};

/// Of the largest logit: sums of 32-bit floats in other orders, and the bits that WGSL lets
/// exponentials be off.
const TOLERANCE: f32 = 1e-4;

/// Without an adapter these tests pass, saying so, unless `SOUK_TEST_GPU` is set.
fn gpu() -> Option<Gpu> {
    let adapters = list_adapters();
    let Some(adapter) = adapters.first() else {
        assert!(
            std::env::var_os("SOUK_TEST_GPU").is_none(),
            "SOUK_TEST_GPU is set and there is no adapter"
        );
        eprintln!("SKIPPED: no GPU adapter (install mesa-vulkan-drivers)");
        return None;
    };
    Some(Gpu::open_unmeasured(adapter, GpuConfig::default()).unwrap())
}

fn compiled(device: &dyn Processor, decoder: &Decoder) -> Box<dyn Program> {
    device.compile(&decoder.subgraph).unwrap()
}

#[test]
fn every_architecture_gives_the_logits_and_the_text_of_the_processor() {
    let Some(gpu) = gpu() else { return };
    for name in CASES {
        let case = Case::read(name);
        let decoder = case.decoder();
        let programs = [compiled(&common::cpu(), &decoder), compiled(&gpu, &decoder)];
        let mut sequences = programs
            .each_ref()
            .map(|program| common::sequence(&**program, &decoder, ROOM));
        let prompt = &case.prompt[..];
        // A prompt, tokens one by one, back into the prompt, and another way on from there.
        let pieces = [(0, &prompt[..6]), (6, &prompt[6..7]), (7, &prompt[7..])];
        let ways = [(4, &[9, 8, 7][..]), (7, &[6]), (4, &prompt[4..])];
        for (at, tokens) in pieces.into_iter().chain(ways) {
            let [expected, found] = sequences.each_mut().map(|sequence| {
                sequence.truncate(at);
                sequence.push(tokens).unwrap()
            });
            near_within(TOLERANCE, &found, &expected, &format!("{name} at {at}"));
        }
        let text = written(&mut sequences[1], &case, 0);
        assert_eq!(text, (case.generated.clone(), Ending::Length), "{name}");
    }
}

#[test]
fn sequences_of_one_session_keep_their_own_caches() {
    let Some(gpu) = gpu() else { return };
    let case = Case::read("qwen3");
    let decoder = case.decoder();
    let programs = [compiled(&common::cpu(), &decoder), compiled(&gpu, &decoder)];
    let mut sessions = programs
        .each_ref()
        .map(|program| program.open_session(states(&decoder)).unwrap());
    let (prompt, other): (&[u32], &[u32]) = (&case.prompt, &[9, 8, 7, 6, 5]);
    let rounds: [&[(u32, &[u32], usize)]; 4] = [
        &[(0, &prompt[..3], 0), (7, other, 0)],
        &[(7, &[1], 5), (0, &prompt[3..], 3)],
        &[(7, &[2, 3], ROOM - 1), (0, &[4], 4)],
        &[(0, &prompt[5..], 5), (7, &[2], 6)],
    ];
    for round in rounds {
        let [expected, found] = sessions
            .each_mut()
            .map(|session| stepped(&mut **session, round));
        for ((sequence, expected), (_, found)) in expected.iter().zip(&found) {
            match (expected, found) {
                (Ok(expected), Ok(found)) => {
                    near_within(TOLERANCE, found, expected, &format!("{sequence}"));
                }
                (expected, found) => assert_eq!(expected.is_ok(), found.is_ok()),
            }
        }
    }
}

#[test]
fn a_mixture_of_experts_is_refused_by_the_name_of_its_operator() {
    let Some(gpu) = gpu() else { return };
    let decoder = Case::read("mixtral").decoder();
    let refused = gpu.compile(&decoder.subgraph).err().unwrap().to_string();
    assert!(refused.contains("RoutedMatMul"), "{refused}");
}

/// The processor rounds rows to bytes where weights are blocks; a GPU does not.
#[test]
fn halves_and_blocks_give_what_the_floats_they_stand_for_give() {
    let Some(gpu) = gpu() else { return };
    let kinds = [(Kind::F16, "f16"), (Kind::Q8, "q8_0"), (Kind::Q4, "q4_0")];
    for (kind, name) in kinds {
        let case = Case::read("qwen3");
        let folder = tempfile::tempdir().unwrap();
        let [file, plain] = files(&case.config, kind);
        let logits = |device: &dyn Processor, bytes: &[u8]| {
            let path = folder.path().join("model.gguf");
            std::fs::write(&path, bytes).unwrap();
            let decoder = LanguageModel::open(&path)
                .unwrap()
                .into_decoder(ROOM)
                .unwrap();
            let decoder = common::drawing(decoder);
            let program = compiled(device, &decoder);
            let mut sequence = common::sequence(&*program, &decoder, ROOM);
            let first = sequence.push(&case.prompt).unwrap();
            [first, sequence.push(&[5]).unwrap()].concat()
        };
        let expected = logits(&common::cpu(), &plain);
        near_within(TOLERANCE, &logits(&gpu, &file), &expected, name);
    }
}
