//! `souk chat`: holds a conversation with a language model, with one message for each line of
//! standard input.
//!
//! The conversation uses one session, whose caches stay with the device between turns. In each turn
//! the model's template writes the whole conversation as text, but the caches hold its beginning,
//! so this sends only the rest.

use std::io::{BufRead, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use souk_llm::chat::Message;
use souk_llm::generation::Sequence;
use souk_llm::sampling::Sampling;
use souk_texts::{
    SessionSize, StopSignal, TextModel, TextRequest, WrittenText, new_message, open_adapted_model,
};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use super::generate::print_piece;
use super::texts;
use crate::args::{ChatArgs, Output};
use crate::failure::Outcome;
use crate::show;
use crate::stop;

/// Lines that can wait: people type more slowly, and a pipe can wait.
const LINES_MAX: usize = 16;

/// Runs the command.
pub async fn run(folder: &Path, output: Output, args: &ChatArgs) -> Outcome {
    let sampling = texts::sampling_from_args(&args.sampling)?;
    let (model, text_model) =
        open_adapted_model(&args.model, args.adapter.path(), args.place.context)?;
    let system = args.system.iter();
    let system = system.map(|text| new_message("system", text));
    let messages: Vec<Message> = system.collect();
    // This refuses a model without a conversation template before the user types anything.
    let first = [&messages[..], &[new_message("user", "")]].concat();
    text_model.encode_conversation(&first)?;
    let stop = StopSignal::default();
    let size = SessionSize {
        tokens: args.session.session,
        sequences: 1,
        is_embedding: false,
    };
    let model = (model, &text_model);
    let opening = texts::open_engine(folder, output, model, &args.place, size, stop.clone());
    let engine = opening.await?;
    let mut chat = Chat {
        output,
        text_model: &text_model,
        args,
        sampling: &sampling,
        interrupts: watch_interrupts(stop),
        lines: stdin_lines(),
        messages,
        turns: Vec::new(),
    };
    let handle = Handle::current();
    let talked = tokio::task::block_in_place(|| {
        let mut sequence = engine.open_sequence(&handle)?;
        chat.run_turns(&mut sequence, &handle)
    });
    let turns = std::mem::take(&mut chat.turns);
    let (receipts, failed) = engine.end_leases().await;
    if let Some(out) = &args.place.lease.out {
        super::submit::write_each(out, &receipts)?;
    }
    match output {
        Output::Json => show::print_json(&json!({
            "model": text_model.card.name, "turns": turns, "market": !receipts.is_empty(),
            "receipts": receipts,
        })),
        Output::Text => texts::print_payments(&receipts),
    }
    failed.map_or(talked, |error| Err(error.into()))
}

/// A running conversation.
struct Chat<'a> {
    output: Output,
    text_model: &'a TextModel,
    args: &'a ChatArgs,
    sampling: &'a Sampling,
    interrupts: Interrupts,
    lines: mpsc::Receiver<String>,
    messages: Vec<Message>,
    /// Reports of the turns, which JSON output prints at the end.
    turns: Vec<Value>,
}

impl Chat<'_> {
    /// Takes turns until the input ends.
    fn run_turns(&mut self, sequence: &mut Sequence<'_>, handle: &Handle) -> Outcome {
        let is_asked = self.output == Output::Text && std::io::stdin().is_terminal();
        if is_asked {
            let name = &self.text_model.card.name;
            show::print_notice(&format!(
                "{name}; a line is a message, Ctrl-C or Ctrl-D ends"
            ));
        }
        loop {
            if is_asked {
                eprint!("> ");
            }
            let next = async {
                tokio::select! {
                    line = self.lines.recv() => line,
                    () = self.interrupts.interrupt_notify.notified() => None,
                }
            };
            match handle.block_on(next) {
                Some(line) if line.trim().is_empty() => {}
                Some(line) => self.answer_line(sequence, &line)?,
                None => return Ok(()),
            }
        }
    }

    fn answer_line(&mut self, sequence: &mut Sequence<'_>, line: &str) -> Outcome {
        self.messages.push(new_message("user", line));
        let prompt = self.text_model.encode_conversation(&self.messages)?;
        let answering = &self.interrupts.answering;
        answering.store(true, Ordering::SeqCst);
        let is_wanted = || answering.load(Ordering::SeqCst);
        let request = TextRequest {
            stops: &self.args.stop,
            tokens_max: self.args.tokens,
            drafts_max: self.args.place.draft,
            is_wanted: &is_wanted,
            ..TextRequest::new(&prompt, self.sampling)
        };
        let output = self.output;
        let written = souk_texts::write(self.text_model, sequence, &request, |piece| {
            print_piece(output, piece.text);
        });
        answering.store(false, Ordering::SeqCst);
        self.report_turn(written?);
        Ok(())
    }

    fn report_turn(&mut self, written: WrittenText) {
        match self.output {
            Output::Json => self.turns.push(json!({
                "text": written.text, "tokens": written.tokens,
                "prompt_tokens": written.prompt, "kept_tokens": written.kept,
                "ended_by": written.ending.describe_ending(),
            })),
            Output::Text => {
                show::print_line("");
                show::print_notice(&format!("  {}", written.summary_line()));
            }
        }
        self.messages.push(new_message("assistant", &written.text));
    }
}

/// The effect of Ctrl-C: during an answer, the first ends the answer and the second the session; at
/// the prompt, it ends the conversation.
struct Interrupts {
    /// Whether an answer is running that the user has not interrupted.
    answering: Arc<AtomicBool>,
    /// Signals an interrupt that came while no answer was running.
    interrupt_notify: Arc<Notify>,
}

fn watch_interrupts(stop: StopSignal) -> Interrupts {
    let (answering, interrupt_notify) = (Arc::<AtomicBool>::default(), Arc::<Notify>::default());
    let mut requests = stop::Requests::new();
    let is_typed = std::io::stdin().is_terminal();
    let (is_answering, at_prompt) = (answering.clone(), interrupt_notify.clone());
    tokio::spawn(async move {
        loop {
            requests.next().await;
            if !is_answering.swap(false, Ordering::SeqCst) {
                // Either of two can be waiting: a step without an answer, or the prompt.
                stop.raise_signal();
                at_prompt.notify_waiters();
            } else if !is_typed {
                // Without a terminal, the user cannot go on.
                at_prompt.notify_one();
            }
        }
    });
    Interrupts {
        answering,
        interrupt_notify,
    }
}

/// Returns the lines of standard input as they arrive.
fn stdin_lines() -> mpsc::Receiver<String> {
    let (give, lines) = mpsc::channel(LINES_MAX);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if give.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}
