//! Runs the conversation of `souk demo`: asks the bundled language model some questions, with the
//! model cut over two providers, and kills one provider in the middle of an answer. Another
//! provider must finish the answer.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use souk_folder::config::KEY_FILE;
use souk_folder::key::NodeKey;
use souk_llm::bundled_model;
use souk_llm::sampling::Sampling;
use souk_node::market::{AccountKey, Receipt};
use souk_node::scheduler::planning::Objective;
use souk_testnet::layout;
use souk_testnet::supervisor::Supervisor;
use souk_texts::{
    SessionSize, StopSignal, TextEngine, TextModel, TextRequest, WrittenText, new_message,
    open_model,
};
use tokio::runtime::Handle;

use crate::args::{LeaseArgs, Output, PlacementArgs};
use crate::commands::generate;
use crate::commands::texts;
use crate::failure::{Failure, Kind, Outcome};
use crate::show::print_line;
use crate::stop;

/// The questions, each with words that its answer must contain.
const QUESTIONS: [(&str, &str); 2] = [
    ("What is escrow?", "held for a lease"),
    ("What is a lease?", "device time"),
];

/// The question during whose answer a provider is killed, and the number of pieces before that. The
/// answer is longer than these and what a session computes ahead, so another must finish it.
const KILL_AT: (usize, usize) = (1, 3);

/// Largest number of tokens of an answer, and the size of the session for all questions and
/// answers.
const ANSWER_MAX: usize = 64;
const SESSION: SessionSize = SessionSize {
    tokens: 200,
    sequences: 1,
    is_embedding: false,
};

/// Number of providers; each runs a part of the model.
const PROVIDERS: usize = 2;

/// Largest cost of the answers, in credits, including credits that unsettled leases hold.
const BUDGET: f64 = 60.0;

/// A conversation over a market.
pub struct Conversation {
    answers: Vec<WrittenText>,
    /// The provider that was killed.
    killed: String,
    receipts: Vec<Receipt>,
}

impl Conversation {
    /// Returns the facts for programs.
    pub fn to_json(&self) -> Value {
        json!({
            "answers": self.answers.iter().map(|it| &it.text).collect::<Vec<_>>(),
            "killed": self.killed,
            "receipts": self.receipts,
        })
    }
}

/// Asks the questions over the market in a folder, and kills a provider meanwhile.
pub async fn run_conversation(
    supervisor: &mut Supervisor,
    home: &Path,
    output: Output,
) -> Result<Conversation, Failure> {
    if output == Output::Text {
        print_line("text: a language model answers, cut over two providers");
    }
    let (model, text_model) = open_model(Path::new(bundled_model::NAME), None)?;
    let stop = StopSignal::default();
    let args = place_args();
    let model = (model, &text_model);
    let opening = texts::open_engine(home, output, model, &args, SESSION, stop.clone());
    let engine = opening.await?;
    let mut asked = stop::Requests::new();
    let stopping = tokio::spawn(async move {
        asked.next().await;
        stop.raise_signal();
    });
    let mut killed = String::new();
    let kill = |engine: &TextEngine, handle: &Handle| {
        killed = handle.block_on(kill_provider(supervisor, home, engine, output))?;
        Ok(())
    };
    let answered =
        tokio::task::block_in_place(|| ask_questions(&engine, &text_model, output, kill));
    stopping.abort();
    let (receipts, failed) = engine.end_leases().await;
    if let Some(failure) = failed {
        return Err(failure.into());
    }
    let answers = answered?;
    if output == Output::Text {
        texts::print_payments(&receipts);
    }
    check_answers(&answers)?;
    Ok(Conversation {
        answers,
        killed,
        receipts,
    })
}

/// Returns the arguments of a text that providers of CPUs generate.
fn place_args() -> PlacementArgs {
    PlacementArgs {
        local: false,
        lease: LeaseArgs {
            emulated: true,
            device: vec!["cpu".to_owned()],
            budget: Some(BUDGET),
            min_providers: PROVIDERS,
            max_providers: PROVIDERS,
            prefer: Objective::Fastest,
            wait: Duration::ZERO,
            out: None,
        },
        context: None,
        draft: 0,
        verify: 1,
        threads: None,
    }
}

/// Asks the questions one after the other, and calls `kill` in the middle of an answer.
fn ask_questions(
    engine: &TextEngine,
    text_model: &TextModel,
    output: Output,
    mut kill: impl FnMut(&TextEngine, &Handle) -> Outcome,
) -> Result<Vec<WrittenText>, Failure> {
    let handle = Handle::current();
    let mut sequence = engine.open_sequence(&handle)?;
    let mut messages = Vec::new();
    let mut answers = Vec::new();
    for (number, (question, _)) in QUESTIONS.into_iter().enumerate() {
        if output == Output::Text {
            print_line(&format!("> {question}"));
        }
        messages.push(new_message("user", question));
        let prompt = text_model.encode_conversation(&messages)?;
        let sampling = Sampling::default();
        let request = TextRequest {
            tokens_max: ANSWER_MAX,
            ..TextRequest::new(&prompt, &sampling)
        };
        let (mut pieces, mut done) = (0, Ok(()));
        let answer = souk_texts::write(text_model, &mut sequence, &request, |piece| {
            generate::print_piece(output, piece.text);
            pieces += 1;
            if (number, pieces) == KILL_AT {
                done = kill(engine, &handle);
            }
        })?;
        done?;
        if output == Output::Text {
            print_line(&format!("\n  {}", answer.summary_line()));
        }
        messages.push(new_message("assistant", &answer.text));
        answers.push(answer);
    }
    Ok(answers)
}

/// Kills a provider of the text's session, as `kill -9` does, and returns its name.
async fn kill_provider(
    supervisor: &mut Supervisor,
    home: &Path,
    engine: &TextEngine,
    output: Output,
) -> Result<String, Failure> {
    let providers = engine.session_providers().await;
    let is_one = |name: &String| {
        let key = NodeKey::load(&home.join(name).join(KEY_FILE));
        key.is_ok_and(|key| providers.contains(&AccountKey(key.public_key())))
    };
    let names = layout::node_names(home);
    let Some(name) = names.into_iter().rev().find(is_one) else {
        let cause = "no node of this market is a provider of the text";
        return Err(Failure::new(Kind::Unexpected, cause, ""));
    };
    let killed = supervisor.cluster().kill_node(&name).await;
    killed.map_err(|error| Failure::new(Kind::Unexpected, error, ""))?;
    if output == Output::Text {
        print_line(&format!(
            "\n  (here {name}, which runs a part of the model, is killed as by kill -9)"
        ));
    }
    Ok(name)
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
