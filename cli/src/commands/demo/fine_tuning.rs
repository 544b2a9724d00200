//! Runs `souk demo --train`: asks the bundled language model what it cannot know, fine-tunes it in
//! the market, and asks it again.

use std::path::Path;

use clap::{Args, FromArgMatches};
use serde_json::json;
use souk_llm::bundled_model;
use souk_llm::sampling::Sampling;
use souk_texts::{SessionSize, TextEngine, TextRequest, new_message, open_adapted_model};
use tokio::runtime::Handle;

use crate::args::{Output, TrainArgs};
use crate::commands::train;
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, print_line};

/// What the model learns: questions and their answers.
const EXAMPLES: [(&str, &str); 4] = [
    ("Who wrote the letter?", "Ada wrote the letter in Turin."),
    (
        "Where is the harbour?",
        "The harbour is behind the old mill.",
    ),
    ("What colour is the boat?", "The boat is green."),
    ("When does the ferry leave?", "The ferry leaves at noon."),
];

/// An example that is held out: a question that the model was not taught, with a known answer.
const HELD_OUT: (&str, &str) = ("When does the boat leave?", "The ferry leaves at noon.");

/// The options of the training. Emulated devices would only add the times of their data sheets.
const OPTIONS: &str = "--epochs 24 --lr 3e-3 --real --budget 60";

/// Largest number of tokens of an answer, and the size of the session for it.
const ANSWER_MAX: usize = 32;
const SESSION: SessionSize = SessionSize {
    tokens: 100,
    sequences: 1,
    is_embedding: false,
};

/// Fine-tunes the bundled model in the market of a folder.
pub async fn run_fine_tuning(home: &Path, output: Output) -> Outcome {
    let is_text = output == Output::Text;
    let adapter = home.join("tuned");
    let (data, held_out) = (home.join("data.jsonl"), home.join("held.jsonl"));
    write_examples(&data, &EXAMPLES)?;
    write_examples(&held_out, &[HELD_OUT])?;
    if is_text {
        print_line("before: the bundled language model is asked what it cannot know");
    }
    let before = ask_questions(None, output)?;
    let paths = [&data, &held_out, &adapter].map(|path| path.display().to_string());
    let [data, held_out, out] = &paths;
    if is_text {
        let home = home.display();
        let command =
            format!("souk --dir {home} train bundled {data} --eval {held_out} {OPTIONS} -o {out}");
        print_line(&format!("training on a device of the market: {command}"));
        print_line("  (the demo removes this market and its files at its end)");
    }
    let words = [
        "train",
        bundled_model::NAME,
        data,
        "--eval",
        held_out,
        "-o",
        out,
    ];
    let words = words.into_iter().chain(OPTIONS.split(' '));
    let matches = TrainArgs::augment_args(clap::Command::new("train")).try_get_matches_from(words);
    let args = matches.and_then(|matches| TrainArgs::from_arg_matches(&matches));
    let args = args.map_err(|error| Failure::new(Kind::Unexpected, error, ""))?;
    let written = train::train_to_end(home, output, &args, train::Lasting::No).await?;
    if is_text {
        written.show_result(output);
        print_line("after: the same questions, with the adapter");
    }
    let after = ask_questions(Some(&adapter), output)?;
    if !is_text {
        let questions = EXAMPLES.map(|(question, _)| question);
        show::print_json(&json!({
            "questions": questions, "before": before, "after": after,
            "training": written.facts(),
        }));
    }
    check_answers(&before, &after)
}

/// Writes examples in the form that `souk train` reads.
fn write_examples(path: &Path, examples: &[(&str, &str)]) -> Outcome {
    let line = |(question, answer): &(&str, &str)| {
        let message = |role, text| json!({ "role": role, "content": text });
        json!({ "messages": [message("user", question), message("assistant", answer)] }).to_string()
    };
    let lines: Vec<String> = examples.iter().map(line).collect();
    crate::files::write(path, lines.join("\n").as_bytes())
}

/// Asks each question by itself, on this machine.
fn ask_questions(adapter: Option<&Path>, output: Output) -> Result<Vec<String>, Failure> {
    let name = Path::new(bundled_model::NAME);
    tokio::task::block_in_place(|| {
        let (model, text_model) = open_adapted_model(name, adapter, None)?;
        let positions = text_model.context_length;
        let engine = TextEngine::open_local(model, positions, SESSION, None)?;
        let handle = Handle::current();
        let mut answers = Vec::new();
        for (question, _) in EXAMPLES {
            let mut sequence = engine.open_sequence(&handle)?;
            let prompt = text_model.encode_conversation(&[new_message("user", question)])?;
            let sampling = Sampling::default();
            let request = TextRequest {
                tokens_max: ANSWER_MAX,
                ..TextRequest::new(&prompt, &sampling)
            };
            let answer = souk_texts::write(&text_model, &mut sequence, &request, |_| {})?;
            if output == Output::Text {
                print_line(&format!("  > {question}\n    {}", answer.text.trim()));
            }
            answers.push(answer.text.trim().to_owned());
        }
        Ok(answers)
    })
}

/// Checks that the model answers as it was taught, and did not before.
fn check_answers(before: &[String], after: &[String]) -> Outcome {
    let all = EXAMPLES.iter().zip(before).zip(after);
    let mut wrong =
        all.filter(|(((_, answer), before), after)| after != answer || before == answer);
    match wrong.next() {
        None => Ok(()),
        Some((((question, _), _), _)) => {
            let cause = format!("{question:?} was not answered as the model was taught");
            Err(Failure::new(Kind::Verification, cause, ""))
        }
    }
}
