//! `souk generate`: continues a text token by token.

use std::io::{IsTerminal, Write};
use std::path::Path;

use serde_json::json;
use souk_llm::grammar::Grammar;
use souk_node::market::Receipt;
use souk_texts::{
    SessionSize, StopSignal, TextEngine, TextError, TextForm, TextModel, TextRequest, WrittenText,
    new_message, open_adapted_model,
};
use tokio::runtime::Handle;

use super::texts;
use crate::args::{GenerateArgs, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::show;
use crate::stop;

/// Generates the text, prints it as it arrives, ends the leases and reports what they cost.
pub async fn run(folder: &Path, output: Output, args: &GenerateArgs) -> Outcome {
    let sampling = texts::sampling_from_args(&args.sampling)?;
    let (model, text_model) =
        open_adapted_model(&args.model, args.adapter.path(), args.place.context)?;
    let prompt = encode_prompt(&text_model, args)?;
    let grammar = build_grammar(&text_model, args)?;
    let request = TextRequest {
        stops: &args.stop,
        grammar: grammar.as_ref(),
        tokens_max: args.tokens,
        drafts_max: args.place.draft,
        ..TextRequest::new(&prompt, &sampling)
    };
    let stop = StopSignal::default();
    let size = SessionSize {
        tokens: prompt.len() + args.tokens,
        sequences: 1,
        is_embedding: false,
    };
    let model = (model, &text_model);
    let opening = texts::open_engine(folder, output, model, &args.place, size, stop.clone());
    let engine = opening.await?;
    // On this machine there is no lease to end, so a signal can simply end the process.
    if !args.place.local {
        let mut asked = stop::Requests::new();
        tokio::spawn(async move {
            asked.next().await;
            stop.raise_signal();
        });
    }
    let written = tokio::task::block_in_place(|| -> Result<WrittenText, TextError> {
        let mut sequence = engine.open_sequence(&Handle::current())?;
        souk_texts::write(&text_model, &mut sequence, &request, |piece| {
            print_piece(output, piece.text);
        })
    });
    let (receipts, failed) = engine.end_leases().await;
    if let Some(failure) = failed {
        return Err(failure.into());
    }
    let written = written?;
    if let Some(out) = &args.place.lease.out {
        super::submit::write_each(out, &receipts)?;
    }
    report_result(output, &text_model, &engine, &written, &receipts);
    Ok(())
}

/// Prints a piece of a text to standard output.
pub fn print_piece(output: Output, piece: &str) {
    if output == Output::Text {
        let mut stdout = std::io::stdout();
        // If the reader closed standard output, the command still reports its figures. A file or a
        // program gets the text unchanged.
        let piece = match stdout.is_terminal() {
            true => show::escape_controls(piece),
            false => piece.into(),
        };
        let _ = stdout
            .write_all(piece.as_bytes())
            .and_then(|()| stdout.flush());
    }
}

fn encode_prompt(text_model: &TextModel, args: &GenerateArgs) -> Result<Vec<u32>, Failure> {
    if !args.chat {
        return Ok(text_model.encode_text(&args.prompt)?);
    }
    let system = args.system.iter();
    let system = system.map(|text| new_message("system", text));
    let user = new_message("user", &args.prompt);
    Ok(text_model.encode_conversation(&system.chain([user]).collect::<Vec<_>>())?)
}

/// Returns the grammar that the arguments ask for.
fn build_grammar(text_model: &TextModel, args: &GenerateArgs) -> Result<Option<Grammar>, Failure> {
    let (form, of) = match &args.json_schema {
        Some(path) => {
            let named =
                |error| Failure::new(Kind::Input, format!("{}: {error}", path.display()), "");
            let schema = serde_json::from_slice(&crate::files::read(path)?);
            (
                TextForm::Schema(schema.map_err(named)?),
                path.display().to_string(),
            )
        }
        None if args.json_object => (TextForm::Object, "--json-object".to_owned()),
        None => return Ok(None),
    };
    let refused = |error| Failure::new(Kind::Input, format!("{of}: {error}"), "");
    text_model
        .build_grammar(&form, None)
        .map(Some)
        .map_err(refused)
}

/// Reports the result and the payments.
fn report_result(
    output: Output,
    text_model: &TextModel,
    engine: &TextEngine,
    written: &WrittenText,
    receipts: &[Receipt],
) {
    let name = &text_model.card.name;
    if output == Output::Json {
        show::print_json(&json!({
            "model": name, "text": written.text, "tokens": written.tokens,
            "prompt_tokens": written.prompt,
            "seconds_to_first_token": written.first.as_secs_f64(),
            "tokens_per_second": written.tokens_per_second(),
            "milliseconds_between_tokens": {
                "p50": written.gap_percentile(50), "p99": written.gap_percentile(99),
                "most": written.gap_percentile(100),
            },
            "drafted": written.drafted.0, "accepted": written.drafted.1,
            "ended_by": written.ending.describe_ending(),
            "market": !receipts.is_empty(), "receipts": receipts,
        }));
        return;
    }
    show::print_line("");
    show::print_notice(&format!(
        "{name} {}: {}",
        engine.describe_location(),
        written.summary_line()
    ));
    texts::print_payments(receipts);
}
