//! Measures how soon audits notice a cheaper version of a model, and how often they call an honest
//! provider a cheat: `cargo run --release -p souk-texts --example audit_rates [AUDITS]`.
//!
//! The model is the bundled one. Honest providers have its weights in bf16, or round every value
//! between the layers and the logits to bf16. Cheats have weights of 8 bits (fp8 as E4M3, and q8_0)
//! or 4 bits (q4_0), give the answers to other questions, or write random letters. All answer the
//! same questions, the reference model reads the answers once, and audits draw from them. Some
//! providers cheat only in a part of their answers, and use weights in bf16 for the others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use souk_cpu::Cpu;
use souk_llm::bundled_model;
use souk_llm::decoder::to_sampling_model;
use souk_llm::generation::Sequence;
use souk_llm::sampling::Sampling;
use souk_node::memory::{Bf16, DType, F16, Tensor, safetensors};
use souk_onnx::{
    AttributeProto, AttributeType, DecodeError, NodeProto, decode_model, encode_model,
};
use souk_roles::tokens::audit::{AuditCore, TokenReading, Verdict};
use souk_roles::tokens::text::{AnswerText, Finish, Message, Role, TextAnswer, TextRequest};
use souk_texts::{AuditReference, SessionSize, TextEngine, open_model, write};
use souk_vocabulary::catalogue;
use souk_vocabulary::processor::Processor;
use souk_vocabulary::processor::session::State;
use tokio::runtime::Handle;

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ROOM: usize = 256;
const ANSWER_TOKENS: usize = 64;
const WORDS: [&str; 24] = [
    "a lease",
    "escrow",
    "a tab",
    "a market",
    "an ask",
    "a bid",
    "a provider",
    "a buyer",
    "a validator",
    "the order book",
    "a receipt",
    "a stake",
    "the log",
    "a session",
    "a sandbox",
    "a price",
    "a slot",
    "credits",
    "a device",
    "a graph",
    "a note",
    "reputation",
    "a kernel",
    "a settlement",
];
const FORMS: [&str; 6] = [
    "What is {}?",
    "Explain {} to a child.",
    "Why does souk have {}?",
    "Who pays for {}?",
    "Compare {} with a lease.",
    "When does {} end?",
];

/// A version of the model with which a provider computes.
#[derive(Clone, Copy, PartialEq)]
enum Version {
    Bf16Weights,
    Bf16Values,
    Q8,
    Fp8,
    Q4,
}

/// The answers of a provider as the reference reads them.
type Readings = Vec<Vec<TokenReading>>;

/// The tokens after which the audits are counted that convict a provider of one version.
const LENGTHS: [u64; 4] = [100, 200, 400, 1_000];

/// The same for a provider that cheats in a part of its answers.
const LENGTHS_OF_PARTS: [u64; 4] = [400, 1_000, 2_000, 4_000];

/// The tokens after which the audits are counted that say the provider fits.
const FITS_IN: u64 = 1_000;

/// The parts of their answers in which cheats cheat.
const PARTS: [f64; 3] = [0.3, 0.1, 0.05];

/// A provider that cheats in a part of its answers only.
#[derive(Clone, Copy)]
struct Mixture<'a> {
    cheats: &'a Readings,
    honest: &'a Readings,
    part: f64,
    lengths: [u64; 4],
}

#[tokio::main]
async fn main() -> Fallible<()> {
    let audits = std::env::args()
        .nth(1)
        .map_or(Ok(10_000), |it| it.parse())?;
    tokio::task::spawn_blocking(move || measure(audits)).await?
}

fn measure(audits: u64) -> Fallible<()> {
    let folder = tempfile::tempdir()?;
    let handle = Handle::current();
    for temperature in [0.0, 1.0] {
        let mut reference = AuditReference::open(Path::new("bundled"), Some(ROOM), None, &handle)?;
        let own = answer_all(Path::new("bundled"), None, temperature)?;
        let answers = own.iter().map(|(request, answer)| (request, answer, 0));
        let noise = reference.measure_noise(answers)?;
        let noise = noise.ok_or("no answer can be read")?;
        println!("noise {noise:.4} at temperature {temperature}");
        let mut all = Vec::new();
        for (name, version) in [
            ("bf16 weights", Version::Bf16Weights),
            ("bf16 values", Version::Bf16Values),
            ("q8_0", Version::Q8),
            ("fp8", Version::Fp8),
            ("q4_0", Version::Q4),
        ] {
            let path = write_version(folder.path(), name, version)?;
            let answers = answer_all(&path, Some(version), temperature)?;
            all.push((name, read_all(&mut reference, &answers)));
        }
        let mut others = own.clone();
        let half = own.len() / 2;
        for (at, (_, answer)) in others.iter_mut().enumerate() {
            answer.clone_from(&own[(at + half) % own.len()].1);
        }
        all.push(("other questions", read_all(&mut reference, &others)));
        for (at, (_, answer)) in others.iter_mut().enumerate() {
            answer.text.content = write_letters(at as u64);
        }
        all.push(("letters", read_all(&mut reference, &others)));
        let drawn = match temperature == 0.0 {
            true => "temperature 0",
            false => "seeded",
        };
        let honest = &all[0].1;
        print_head(LENGTHS);
        for (name, cheats) in &all {
            let whole = Mixture {
                cheats,
                honest,
                part: 1.0,
                lengths: LENGTHS,
            };
            print_rates(&format!("{name} | {drawn}"), noise, whole, audits);
        }
        print_head(LENGTHS_OF_PARTS);
        for (name, cheats) in all.iter().skip(3) {
            for part in PARTS {
                let mixture = Mixture {
                    cheats,
                    honest,
                    part,
                    lengths: LENGTHS_OF_PARTS,
                };
                let name = format!("{name} in {} % | {drawn}", 100.0 * part);
                print_rates(&name, noise, mixture, audits.div_ceil(5));
            }
        }
    }
    Ok(())
}

/// Reads the answers of a provider as if they were the first.
fn read_all(reference: &mut AuditReference, answers: &[(TextRequest, TextAnswer)]) -> Readings {
    reference.begin_provider();
    let read = answers.iter();
    let read = read.filter_map(|(request, answer)| reference.read_answer(request, answer, 0).ok());
    read.collect()
}

/// Writes words of random letters.
fn write_letters(mut number: u64) -> String {
    let mut text = String::new();
    for at in 0..60 {
        number = mix(number);
        text.push(match at % 6 {
            5 => ' ',
            _ => char::from(b'a' + (number % 26) as u8),
        });
    }
    text
}

fn print_head(lengths: [u64; 4]) {
    let lengths = lengths.map(|it| it.to_string()).join(" | ");
    println!("| version | drawn | own draws | caught in {lengths} | fits in {FITS_IN} |");
    println!("|---|---|---|---|---|---|---|---|");
}

fn print_rates(name: &str, noise: f64, mixture: Mixture<'_>, audits: u64) {
    let (mut caught, mut fits, mut most) = ([0_u64; 4], 0_u64, f64::NEG_INFINITY);
    let [.., last] = mixture.lengths;
    for audit in 0..audits {
        let mut core = AuditCore::new(noise).expect("the noise was measured");
        let (mut draw, mut fitted, mut tokens) = (audit, false, 0);
        'answers: loop {
            draw = mix(draw);
            let is_cheat = (draw >> 11) as f64 / ((1_u64 << 53) as f64) < mixture.part;
            let readings = if is_cheat {
                mixture.cheats
            } else {
                mixture.honest
            };
            draw = mix(draw);
            core.begin_answer();
            for reading in &readings[(draw % readings.len() as u64) as usize] {
                core.push(reading);
                tokens += 1;
                if tokens == FITS_IN {
                    fitted = core.verdict() == Verdict::Fits;
                }
                if tokens >= last || core.verdict() == Verdict::DoesNotFit {
                    break 'answers;
                }
            }
            most = most.max(core.tally().evidence);
        }
        fits += u64::from(fitted);
        if let Some(after) = core.tally().convicted_after {
            for (count, length) in caught.iter_mut().zip(mixture.lengths) {
                *count += u64::from(after <= length);
            }
        }
    }
    let part = |count: u64| format!("{:.2} %", 100.0 * count as f64 / audits as f64);
    let caught = caught.map(part).join(" | ");
    let all = || mixture.cheats.iter().flatten();
    let (own, tokens) = (all().filter(|it| it.rank == 0).count(), all().count());
    println!(
        "| {name} | {:.2} % of {tokens} | {caught} | {} |",
        100.0 * own as f64 / tokens.max(1) as f64,
        part(fits),
    );
    let mut margins: Vec<f64> = all().filter(|it| it.rank > 0).map(|it| it.margin).collect();
    margins.sort_by(f64::total_cmp);
    let top = margins.last().copied().unwrap_or_default() / noise;
    let median = margins.get(margins.len() / 2).copied().unwrap_or_default() / noise;
    eprintln!(
        "    {name}: {} others, median {median:.2}, most {top:.2} of the noise; evidence up to 1e{most:.1}",
        margins.len(),
    );
}

/// SplitMix64's finaliser.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Answers all questions with a version of the model.
fn answer_all(
    path: &Path,
    version: Option<Version>,
    temperature: f64,
) -> Fallible<Vec<(TextRequest, TextAnswer)>> {
    let (model, text_model) = open_model(path, Some(ROOM))?;
    let size = SessionSize {
        tokens: ROOM,
        sequences: 1,
        is_embedding: false,
    };
    let (cpu, engine);
    let program;
    let mut sequence = if version == Some(Version::Bf16Values) {
        let mut decoder = model.into_decoder(ROOM)?;
        decoder.subgraph.model = round_values(to_sampling_model(decoder.subgraph.model)?)?;
        let threads = std::thread::available_parallelism()?;
        cpu = Cpu::new(catalogue::all_processors()[0].clone(), threads);
        program = cpu.compile(&decoder.subgraph)?;
        let states = decoder.states.iter().map(|port| State {
            port: port.clone(),
            value: decoder.empty_cache(ROOM),
        });
        Sequence::new(program.open_session(states.collect())?, ROOM)
    } else {
        engine = TextEngine::open_local(model, ROOM, size, None)?;
        engine.open_sequence(&Handle::current())?
    };
    let mut answers = Vec::new();
    for (number, word) in WORDS.iter().enumerate() {
        for (form, question) in FORMS.iter().enumerate() {
            let request = TextRequest {
                messages: vec![Message {
                    role: Role::User,
                    content: question.replace("{}", word),
                }],
                tokens_max: ANSWER_TOKENS as u32,
                temperature: Some(temperature),
                seed: Some((number * FORMS.len() + form) as i64),
                ..TextRequest::default()
            };
            let message = souk_texts::new_message("user", &request.messages[0].content);
            let prompt = text_model.encode_conversation(&[message])?;
            let sampling = Sampling {
                temperature,
                seed: request.seed.unwrap_or_default().cast_unsigned(),
                ..Sampling::default()
            };
            let wanted = souk_texts::TextRequest {
                tokens_max: ANSWER_TOKENS,
                ..souk_texts::TextRequest::new(&prompt, &sampling)
            };
            let mut content = String::new();
            write(&text_model, &mut sequence, &wanted, |piece| {
                content.push_str(piece.text)
            })?;
            let text = AnswerText {
                content,
                ..AnswerText::default()
            };
            let answer = TextAnswer {
                text,
                finish: Finish::Length,
                message: String::new(),
            };
            answers.push((request, answer));
        }
    }
    Ok(answers)
}

/// Rounds every value between the nodes to bf16.
fn round_values(model: bytes::Bytes) -> Result<bytes::Bytes, DecodeError> {
    let mut model = decode_model(model)?;
    let Some(graph) = &mut model.graph else {
        return Ok(encode_model(&model));
    };
    const ROUNDED: [&str; 8] = [
        "MatMul",
        "Gemm",
        "Add",
        "Mul",
        "RMSNormalization",
        "RotaryEmbedding",
        "Swish",
        "Attention",
    ];
    let mut nodes = Vec::new();
    for mut node in std::mem::take(&mut graph.node) {
        let is_rounded = ROUNDED.contains(&node.op_type());
        let name = node.output.first().cloned().unwrap_or_default();
        if !is_rounded {
            nodes.push(node);
            continue;
        }
        let (exact, narrow) = (format!("{name}.exact"), format!("{name}.narrow"));
        node.output[0].clone_from(&exact);
        nodes.push(node);
        for (from, to, dtype) in [(&exact, &narrow, DType::Bf16), (&narrow, &name, DType::F32)] {
            let mut cast = NodeProto::for_operator("Cast", &[from], to);
            cast.name = Some(to.clone());
            cast.attribute = vec![AttributeProto {
                name: Some("to".to_owned()),
                r#type: Some(AttributeType::Int as i32),
                i: Some(i64::from(dtype.onnx_code())),
                ..AttributeProto::default()
            }];
            nodes.push(cast);
        }
    }
    graph.node = nodes;
    Ok(encode_model(&model))
}

/// Writes the bundled model with weights of a version.
fn write_version(folder: &Path, name: &str, version: Version) -> Fallible<PathBuf> {
    let home = bundled_model::write_files(&folder.join(name.replace(' ', "-")))?;
    let file = home.join("model.safetensors");
    let read = safetensors::read(&std::fs::read(&file)?.into())?;
    let tensors: BTreeMap<String, Tensor> = read
        .into_iter()
        .map(|(name, tensor)| {
            let floats = tensor.to_f64s().expect("weights are floats");
            let mut floats: Vec<f32> = floats.into_iter().map(|it| it as f32).collect();
            let is_matrix = tensor.dims().len() > 1;
            let is_table = name.contains("embed");
            match version {
                Version::Bf16Weights => round_each(&mut floats, |it| Bf16::from_f32(it).to_f32()),
                Version::Fp8 if is_matrix => round_rows(&mut floats, tensor.dims()[1], 448.0, fp8),
                Version::Q8 if is_matrix => round_rows(&mut floats, 32, 127.0, f32::round),
                // As llama.cpp does, the table is kept better.
                Version::Q4 if is_table => round_rows(&mut floats, 32, 127.0, f32::round),
                Version::Q4 if is_matrix => round_q4(&mut floats),
                _ => {}
            }
            let halves: Vec<F16> = floats.into_iter().map(F16::from_f32).collect();
            let tensor = Tensor::from_vec(tensor.dims(), halves).expect("as many as before");
            (name, tensor)
        })
        .collect();
    std::fs::write(file, safetensors::write(&tensors)?)?;
    Ok(home)
}

fn round_each(floats: &mut [f32], round: impl Fn(f32) -> f32) {
    floats.iter_mut().for_each(|it| *it = round(*it));
}

/// Rounds floats in blocks whose largest becomes `most`.
fn round_rows(floats: &mut [f32], width: usize, most: f32, round: impl Fn(f32) -> f32) {
    for block in floats.chunks_mut(width) {
        let largest = block
            .iter()
            .fold(0.0_f32, |largest, it| largest.max(it.abs()));
        let step = (largest / most).max(f32::MIN_POSITIVE);
        round_each(block, |it| round(it / step) * step);
    }
}

/// Rounds to a float of 4 bits of exponent and 3 of mantissa.
fn fp8(value: f32) -> f32 {
    let exponent = value.abs().max(f32::MIN_POSITIVE).log2().floor().max(-6.0);
    let step = (exponent - 3.0).exp2();
    (value / step).round() * step
}

/// Rounds to 16 steps, of which the first is the value of the largest magnitude.
fn round_q4(floats: &mut [f32]) {
    for block in floats.chunks_mut(32) {
        let largest = block
            .iter()
            .copied()
            .fold(0.0_f32, |most, it| match it.abs() > most.abs() {
                true => it,
                false => most,
            });
        let step = F16::from_f32(largest / -8.0).to_f32();
        if step != 0.0 {
            round_each(block, |it| {
                (it / step + 8.5)
                    .floor()
                    .clamp(0.0, 15.0)
                    .mul_add(step, -8.0 * step)
            });
        }
    }
}
