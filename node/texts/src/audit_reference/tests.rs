//! Tests audits of answers against a reference model: honest engines must pass, other models and
//! random text must be convicted.

use souk_roles::tokens::audit::{AuditCore, Verdict};
use souk_roles::tokens::text::{AnswerText, Finish, Message, Role};

use super::*;
use crate::write;

const CONTEXT: usize = 160;

fn request(question: &str, temperature: f64, seed: i64) -> TextRequest {
    TextRequest {
        messages: vec![Message {
            role: Role::User,
            content: question.to_owned(),
        }],
        tokens_max: 48,
        temperature: Some(temperature),
        seed: Some(seed),
        ..TextRequest::default()
    }
}

/// Answers a request as souk's own decoder does.
fn answer(request: &TextRequest) -> TextAnswer {
    answer_with(request, 1.0)
}

/// Answers a request with a penalty on repetitions.
fn answer_with(request: &TextRequest, repetition: f64) -> TextAnswer {
    let (model, text_model) = open_model(Path::new("bundled"), Some(CONTEXT)).unwrap();
    let mut sequence = open_sequence(model, &text_model, Some(1), &Handle::current()).unwrap();
    let prepared = PreparedRequest::new(&text_model, request).unwrap();
    let sampling = souk_llm::sampling::Sampling {
        repetition,
        ..prepared.sampling
    };
    let wanted = crate::TextRequest {
        tokens_max: prepared.tokens_max,
        ..crate::TextRequest::new(&prepared.tokens, &sampling)
    };
    let mut content = String::new();
    write(&text_model, &mut sequence, &wanted, |piece| {
        content.push_str(piece.text);
    })
    .unwrap();
    TextAnswer {
        text: AnswerText {
            content,
            ..AnswerText::default()
        },
        finish: Finish::Length,
        message: String::new(),
    }
}

fn open() -> AuditReference {
    AuditReference::open(
        Path::new("bundled"),
        Some(CONTEXT),
        Some(1),
        &Handle::current(),
    )
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_decoders_own_answers_are_its_own_draws_and_those_of_another_seed_are_not() {
    let own = |question: &str, temperature, seed| {
        let asked = request(question, temperature, seed);
        let read = open().read_answer(&asked, &answer(&asked), 0).unwrap();
        assert!(read.len() > 8, "{read:?}");
        read.iter().filter(|it| it.rank > 0).count()
    };
    assert_eq!(own("What is a lease?", 0.0, 1), 0);
    for seed in 1..4 {
        assert_eq!(own("What is a lease?", 1.5, seed), 0);
    }
    assert_eq!(own("Who pays for escrow?", 1.0, -5), 0);
    let asked = request("What is a lease?", 2.0, 2);
    let told = answer(&request("What is a lease?", 2.0, 3));
    let read = open().read_answer(&asked, &told, 0).unwrap();
    let others = read.iter().filter(|it| it.rank > 0).count();
    assert!(others > read.len() / 4, "{others} of {}", read.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_that_was_read_before_is_no_news() {
    let mut reference = open();
    let asked = request("What is a bid?", 0.0, 1);
    let told = answer(&asked);
    let first = reference.read_answer(&asked, &told, 0).unwrap();
    assert!(!first.is_empty());
    assert_eq!(reference.read_answer(&asked, &told, 0), Ok(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_noise_of_rounding_is_small_and_measured_alike() {
    let asked = request("What is a market?", 0.0, 1);
    let told = answer(&asked);
    let measure = || {
        let noise = open().measure_noise([(&asked, &told, 0)]);
        noise.unwrap().expect("the answer is read")
    };
    let noise = measure();
    assert!((0.005..0.3).contains(&noise), "{noise}");
    assert_eq!(noise, measure());
    let mut core = AuditCore::new(noise).unwrap();
    core.begin_answer();
    for reading in open().read_answer(&asked, &told, 0).unwrap() {
        core.push(&reading);
    }
    assert_ne!(core.verdict(), Verdict::DoesNotFit);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_cannot_be_judged_are_refused_by_name() {
    let mut reference = open();
    let asked = request("What is a bid?", 1.0, 1);
    let told = answer(&asked);
    let mut refused = |change: &dyn Fn(&mut TextRequest, &mut TextAnswer)| {
        let (mut asked, mut told) = (asked.clone(), told.clone());
        change(&mut asked, &mut told);
        reference.read_answer(&asked, &told, 0).unwrap_err()
    };
    assert_eq!(refused(&|it, _| it.top_p = Some(0.9)), ReadFault::Sampling);
    let penalty = refused(&|it, _| it.presence_penalty = Some(1.0));
    assert_eq!(penalty, ReadFault::Sampling);
    let filtered = refused(&|_, it| it.finish = Finish::ContentFilter);
    assert_eq!(filtered, ReadFault::Filtered);
    assert!(filtered.is_evasive() && !penalty.is_evasive());
    assert_eq!(refused(&|_, it| it.text.content.clear()), ReadFault::Short);
    let long = refused(&|it, _| it.messages[0].content = "market ".repeat(400));
    assert!(matches!(long, ReadFault::Refused(_)), "{long}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_more_or_an_invented_thought_does_not_hide_an_answer() {
    let asked = request("What is a lease?", 0.0, 1);
    let told = answer(&asked);
    let read = open().read_answer(&asked, &told, 0).unwrap();
    for added in ["\n", " ", "\n\n"] {
        let mut changed = told.clone();
        changed.text.content.insert_str(0, added);
        let again = open().read_answer(&asked, &changed, 0).unwrap();
        assert!(again.len() >= read.len(), "{added:?}: {}", again.len());
    }
    let mut thinking = told.clone();
    thinking.text.reasoning = "hm".to_owned();
    assert_eq!(open().read_answer(&asked, &thinking, 0).unwrap(), read);
}

const QUESTIONS: [&str; 6] = [
    "What is a lease?",
    "What is a market?",
    "Who pays for escrow?",
    "Compare a bid with a lease.",
    "Explain a receipt to a child.",
    "Why does a tab end?",
];

/// Returns a text of any tokens of the reference, which a number chooses.
fn write_nonsense(reference: &AuditReference, mut number: u64) -> String {
    let mut text = String::new();
    while text.len() < 160 {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let token = ((number >> 33) % 1_024) as u32;
        let bytes = reference.bytes_of(&[token]).unwrap_or_default();
        let piece = String::from_utf8(bytes).unwrap_or_default();
        if piece
            .chars()
            .all(|it| it.is_ascii_alphabetic() || it == ' ')
        {
            text.push_str(&piece);
        }
    }
    text
}

/// Audits the answers to all questions, of which `change` replaces the texts.
fn audit_changed(
    temperature: f64,
    change: impl Fn(&AuditReference, usize, String) -> String,
) -> souk_roles::tokens::audit::AuditTally {
    let (mut reference, mut core) = (open(), AuditCore::new(0.04).unwrap());
    for (number, question) in QUESTIONS.into_iter().enumerate() {
        let asked = request(question, temperature, number as i64);
        let mut told = answer(&asked);
        told.text.content = change(&reference, number, told.text.content);
        core.begin_answer();
        let read = reference.read_answer(&asked, &told, 0).unwrap();
        read.iter().for_each(|reading| core.push(reading));
    }
    core.tally()
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_and_texts_from_elsewhere_convict() {
    const ELSEWHERE: [&str; 6] = [
        "The old mill by the river had not turned for years when the flood came up again.",
        "Boil the potatoes for twenty minutes, and peel them while they are still warm.",
        "Her brother wrote twice from the coast, but neither letter reached the village.",
        "In the spring the storks return, and the children count them from the roof.",
        "Nobody could say who had painted the door blue, or why it was done at night.",
        "A violin needs a dry room; a piano forgives more, and a flute does not care.",
    ];
    for temperature in [0.0, 1.0] {
        let all = audit_changed(temperature, |reference, number, _| {
            write_nonsense(reference, number as u64 + 1)
        });
        assert_eq!(all.verdict, Verdict::DoesNotFit, "{temperature}: {all:?}");
        let half = audit_changed(temperature, |reference, number, own| match number % 2 {
            0 => write_nonsense(reference, number as u64 + 1),
            _ => own,
        });
        assert_eq!(half.verdict, Verdict::DoesNotFit, "{temperature}: {half:?}");
        let other = audit_changed(temperature, |_, number, _| ELSEWHERE[number].to_owned());
        assert_eq!(
            other.verdict,
            Verdict::DoesNotFit,
            "{temperature}: {other:?}"
        );
        let honest = audit_changed(temperature, |_, _, own| own);
        assert_ne!(
            honest.verdict,
            Verdict::DoesNotFit,
            "{temperature}: {honest:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_penalises_repetitions_by_default_is_not_convicted() {
    let mut penalised = 0;
    for penalty in [1.1, 1.5] {
        let (mut reference, mut core) = (open(), AuditCore::new(0.04).unwrap());
        for question in QUESTIONS {
            let asked = request(question, 0.0, 1);
            let told = answer_with(&asked, penalty);
            core.begin_answer();
            let read = reference.read_answer(&asked, &told, 0).unwrap();
            read.iter().for_each(|reading| core.push(reading));
        }
        assert_ne!(core.verdict(), Verdict::DoesNotFit, "{penalty}");
        penalised += core.tally().penalised;
    }
    assert!(penalised > 0);
}

#[test]
fn the_folder_of_a_reference_states_the_penalty_that_engines_take_from_it() {
    let folder = tempfile::tempdir().unwrap();
    assert!((read_repetition_penalty(folder.path()) - 1.0).abs() < 1e-9);
    let file = folder.path().join("generation_config.json");
    std::fs::write(&file, r#"{ "repetition_penalty": 1.05 }"#).unwrap();
    assert!((read_repetition_penalty(folder.path()) - 1.05).abs() < 1e-9);
}
