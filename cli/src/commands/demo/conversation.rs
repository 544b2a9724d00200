//! `souk demo --chat`: asks the bundled language model questions, cut over two providers.

use std::path::Path;

use serde_json::json;
use souk_llm::bundled;
use souk_llm::sampling::Sampling;
use souk_node::scheduler::planning::Objective;
use tokio::runtime::Handle;

use crate::args::{LeaseArgs, Output, PlaceArgs};
use crate::commands::generate;
use crate::commands::texts::{
    self, Place, PromptWeights, SessionSize, StopSign, Wish, WrittenText,
};
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, print_line};

/// The questions, each with words that its answer must contain.
const QUESTIONS: [(&str, &str); 3] = [
    ("What is a lease?", "time bought"),
    ("What is an ask?", "offer"),
    ("What is escrow?", "held for a lease"),
];

/// Largest number of tokens of an answer, and the size of the session for all questions and
/// answers.
const ANSWER_MAX: usize = 64;
const SESSION: SessionSize = SessionSize {
    tokens: 400,
    sequences: 1,
    is_embedding: false,
};

/// Number of providers; each runs a part of the model.
const PROVIDERS: usize = 2;

/// Largest cost of the answers, in credits, including credits that unsettled leases hold.
const BUDGET: f64 = 30.0;

/// Asks the questions over the market in a folder.
pub async fn run_conversation(home: &Path, output: Output) -> Outcome {
    let (model, voice) = texts::open_model(Path::new(bundled::NAME), None)?;
    let place = PlaceArgs {
        local: false,
        lease: LeaseArgs {
            emulated: true,
            device: Vec::new(),
            budget: Some(BUDGET),
            min_providers: PROVIDERS,
            max_providers: PROVIDERS,
            prefer: Objective::Fastest,
            wait: 0,
            out: None,
        },
        context: None,
        draft: 0,
        verify: 1,
        threads: None,
    };
    let stop = StopSign::new();
    let place = Place::open_place(home, output, model, voice.room, &place, SESSION, stop).await?;
    let answered = tokio::task::block_in_place(|| -> Result<Vec<WrittenText>, Failure> {
        let mut sequence = place.open_sequence(&Handle::current())?;
        let mut messages = Vec::new();
        let mut answers = Vec::new();
        for (question, _) in QUESTIONS {
            if output == Output::Text {
                print_line(&format!("> {question}"));
            }
            messages.push(texts::new_message("user", question));
            let wish = Wish {
                prompt: &voice.encode_conversation(&messages)?,
                sampling: &Sampling::default(),
                stops: &[],
                tokens_max: ANSWER_MAX,
                drafts_max: 0,
                grammar: None,
                likeliest: None,
                prompt_weights: PromptWeights::Unwanted,
                marks: &[],
                is_wanted: &|| true,
            };
            let answer = texts::write(&voice, &mut sequence, &wish, |piece| {
                generate::print_piece(output, piece.text);
            })?;
            if output == Output::Text {
                print_line(&format!("\n  {}", answer.summary_line()));
            }
            messages.push(texts::new_message("assistant", &answer.text));
            answers.push(answer);
        }
        Ok(answers)
    });
    let (receipts, failed) = place.end_leases().await;
    if let Some(failure) = failed {
        return Err(failure);
    }
    let answers = answered?;
    match output {
        Output::Json => show::print_json(&json!({
            "answers": answers.iter().map(|it| &it.text).collect::<Vec<_>>(),
            "receipts": receipts,
        })),
        Output::Text => texts::tell_paid(&receipts),
    }
    check_answers(&answers)
}

/// Checks the answers: each must contain its expected words.
fn check_answers(answers: &[WrittenText]) -> Outcome {
    let wrong = QUESTIONS.iter().zip(answers);
    let wrong = wrong.filter(|((_, word), answer)| !answer.text.contains(word));
    match wrong.map(|((question, _), _)| *question).next() {
        None => Ok(()),
        Some(question) => {
            let cause = format!("{question:?} was not answered as the model was taught");
            Err(Failure::new(Kind::Verification, cause, ""))
        }
    }
}
