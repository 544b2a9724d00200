//! Tests the decoder of a provider: equal answers in any batch, slow and lost readers, refusals,
//! stop strings, and failed steps.

use std::collections::BTreeMap;

use souk_llm::decoder::{LOGITS, SAMPLED_TOKENS};
use souk_llm::generation::Step;
use souk_node::memory::Tensor;
use souk_roles::tokens::text::{Message, Role};
use souk_vocabulary::processor::session::{SequenceStep, Session};
use souk_vocabulary::processor::{Outcome, RunError};

use crate::steps::step_outcome;

use super::*;

/// The number of positions that the tests need.
const CONTEXT: usize = 128;

fn open(slots: u32) -> ServedDecoder {
    let size = ServingSize {
        slots,
        context: Some(CONTEXT),
        threads: Some(2),
    };
    ServedDecoder::open(Path::new("bundled"), size, Handle::current()).unwrap()
}

fn ask(question: &str, seed: i64) -> TextRequest {
    TextRequest {
        messages: vec![Message {
            role: Role::User,
            content: question.to_owned(),
        }],
        tokens_max: 24,
        // At lower ones, the model is sure of its words.
        temperature: Some(2.0),
        seed: Some(seed),
        ..TextRequest::default()
    }
}

async fn read(mut answer: OwnAnswer) -> Result<(String, Finish), OwnFault> {
    let mut text = String::new();
    while let Some(piece) = answer.recv().await {
        let piece = piece?;
        text.push_str(&piece.text.content);
        if let Some(finish) = piece.finish {
            return Ok((text, finish));
        }
    }
    Err(OwnFault::Failed("no end".to_owned()))
}

const QUESTIONS: [&str; 4] = [
    "What is a lease?",
    "What is escrow?",
    "What is a tab?",
    "Who?",
];

#[tokio::test(flavor = "multi_thread")]
async fn equal_requests_have_equal_answers_in_any_company() {
    let decoder = open(4);
    let mut alone = Vec::new();
    for (number, question) in QUESTIONS.iter().enumerate() {
        let request = ask(question, number as i64);
        alone.push(
            read(decoder.begin_answer(LeaseId(1), request))
                .await
                .unwrap(),
        );
    }
    assert!(alone.iter().all(|(text, _)| !text.is_empty()), "{alone:?}");
    // All at once, in other sequences, and again after each tab has a conversation.
    for round in 0..3 {
        let begun: Vec<OwnAnswer> = QUESTIONS
            .iter()
            .enumerate()
            .map(|(number, question)| {
                let tab = LeaseId(10 + (number + round) as u64);
                decoder.begin_answer(tab, ask(question, number as i64))
            })
            .collect();
        for (answer, alone) in begun.into_iter().zip(&alone) {
            assert_eq!(&read(answer).await.unwrap(), alone, "round {round}");
        }
    }
    let other = read(decoder.begin_answer(LeaseId(1), ask(QUESTIONS[0], 99))).await;
    assert_ne!(other.unwrap(), alone[0], "a seed has an effect");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_does_not_read_and_one_that_left_stall_nobody() {
    let decoder = open(2);
    let unread = decoder.begin_answer(LeaseId(1), ask(QUESTIONS[0], 1));
    for number in 0..3 {
        let answer = decoder.begin_answer(LeaseId(2), ask(QUESTIONS[1], number));
        read(answer).await.unwrap();
    }
    // It lost nothing.
    let late = read(unread).await.unwrap();
    let again = read(decoder.begin_answer(LeaseId(3), ask(QUESTIONS[0], 1))).await;
    assert_eq!(again.unwrap(), late);
    // More requests than slots: those that were given up free their sequence.
    let long = TextRequest {
        tokens_max: 10_000,
        ..ask(QUESTIONS[2], 1)
    };
    for tab in 0..8 {
        drop(decoder.begin_answer(LeaseId(20 + tab), long.clone()));
    }
    read(decoder.begin_answer(LeaseId(30), ask(QUESTIONS[3], 1)))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_model_cannot_answer_is_refused_with_the_cause() {
    let decoder = open(1);
    let refused = |request: TextRequest| {
        let answer = decoder.begin_answer(LeaseId(1), request);
        async { read(answer).await.unwrap_err().to_string() }
    };
    let long = refused(ask(&"a market ".repeat(200), 1)).await;
    assert!(long.contains("its context of 128"), "{long}");
    let empty = TextRequest {
        continues: true,
        ..ask("  ", 1)
    };
    let empty = refused(empty).await;
    assert!(empty.contains("continue"), "{empty}");
    // The sequence is free again.
    let whole = read(decoder.begin_answer(LeaseId(1), ask(QUESTIONS[0], 1))).await;
    assert!(!whole.unwrap().0.is_empty());
    // An answer that reaches the end of the context has a length.
    let most = TextRequest {
        tokens_max: 10_000,
        temperature: Some(2.0),
        ..ask(QUESTIONS[0], 3)
    };
    let (_, finish) = read(decoder.begin_answer(LeaseId(1), most)).await.unwrap();
    assert!(matches!(finish, Finish::Length | Finish::Stop));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_ones_answer_goes_on_where_it_broke_off() {
    let decoder = open(1);
    let request = TextRequest {
        temperature: Some(0.0),
        tokens_max: 60,
        ..ask(QUESTIONS[0], 1)
    };
    let whole = read(decoder.begin_answer(LeaseId(1), request.clone())).await;
    let (whole, _) = whole.unwrap();
    let words: Vec<&str> = whole.split_inclusive(' ').collect();
    assert!(words.len() > 5, "{whole}");
    let begun = AnswerText {
        content: words[..4].concat(),
        ..AnswerText::default()
    };
    let rest = request.to_rest(&begun).unwrap().unwrap();
    let rest = read(decoder.begin_answer(LeaseId(2), rest))
        .await
        .unwrap()
        .0;
    assert_eq!(begun.content.trim_end().to_owned() + &rest, whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_ends_an_answer_before_it() {
    let decoder = open(1);
    let request = TextRequest {
        temperature: Some(0.0),
        ..ask(QUESTIONS[0], 1)
    };
    let (whole, _) = read(decoder.begin_answer(LeaseId(1), request.clone()))
        .await
        .unwrap();
    let stop = whole.split(' ').nth(2).unwrap().to_owned();
    let stopped = TextRequest {
        stop: vec![stop.clone()],
        ..request
    };
    let (text, finish) = read(decoder.begin_answer(LeaseId(1), stopped))
        .await
        .unwrap();
    assert_eq!(finish, Finish::Stop);
    assert_eq!(text, whole[..whole.find(&stop).unwrap()]);
}

/// A session whose first steps fail; later ones draw token 1 of two.
struct FirstFails(usize);

impl Session for FirstFails {
    fn step_all(&mut self, steps: &[SequenceStep]) -> Vec<Result<Outcome, RunError>> {
        let step = |step: &SequenceStep| match self.0.checked_sub(1) {
            Some(left) => {
                self.0 = left;
                let (engine, reason) = ("own", "out of order".to_owned());
                Err(RunError::Engine { engine, reason })
            }
            None => {
                let rows = Step::of_inputs(&step.inputs).rows.len();
                let drawn = Tensor::from_vec([1, rows], vec![1i64; rows]).unwrap();
                let logits = Tensor::from_vec([1, rows, 2], [0.0f32, 1.0].repeat(rows)).unwrap();
                let outputs = [
                    (SAMPLED_TOKENS.to_owned(), drawn),
                    (LOGITS.to_owned(), logits),
                ];
                Ok(step_outcome(outputs.into()))
            }
        };
        steps.iter().map(step).collect()
    }

    fn export_states(&self, _: u32) -> Result<BTreeMap<String, Tensor>, RunError> {
        Ok(BTreeMap::new())
    }
}

#[test]
fn a_session_is_kept_if_only_one_step_failed() {
    for (failures, is_kept) in [(1, true), (2, false)] {
        let mut sequence = Sequence::new(Box::new(FirstFails(failures)), 8);
        sequence.push(&[0, 1]).unwrap_err();
        assert_eq!(can_step(&mut sequence), is_kept);
        assert_eq!(sequence.length(), 0);
    }
}
