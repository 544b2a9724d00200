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
    let (model, text_model) = open_model(Path::new("bundled"), Some(CONTEXT)).unwrap();
    let mut sequence = open_sequence(model, &text_model, Some(1), &Handle::current()).unwrap();
    let prepared = PreparedRequest::new(&text_model, request).unwrap();
    let wanted = crate::TextRequest {
        tokens_max: prepared.tokens_max,
        ..crate::TextRequest::new(&prepared.tokens, &prepared.sampling)
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
    let mut reference = open();
    let mut own = |question: &str, temperature, seed| {
        let asked = request(question, temperature, seed);
        let read = reference.read_answer(&asked, &answer(&asked), 0).unwrap();
        assert!(read.len() > 8, "{read:?}");
        read.iter().filter(|it| it.rank > 0).count()
    };
    assert_eq!(own("What is a lease?", 0.0, 1), 0);
    assert_eq!(own("What is a lease?", 2.0, 1), 0);
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
    let mut core = AuditCore::new(noise);
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
    let thought = refused(&|_, it| it.text.reasoning = "hm".to_owned());
    assert_eq!(thought, ReadFault::Reasoning);
    assert_eq!(refused(&|_, it| it.text.content.clear()), ReadFault::Short);
    let long = refused(&|it, _| it.messages[0].content = "market ".repeat(400));
    assert!(matches!(long, ReadFault::Refused(_)), "{long}");
}
