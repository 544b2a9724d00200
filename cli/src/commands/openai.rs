//! `souk openai`: serves a language model, or all models that providers sell by the token, to
//! programs that use OpenAI's HTTP API.
//!
//! Unlike `souk serve`, it has OpenAI's paths, errors and keys, so it has an HTTP listener of its
//! own.

mod keys;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use souk_gateway::{HttpListener, ListenerError, LocalKey};
use souk_node::buyer::audit_results::{AUDITS_FOLDER, read_distrusted};
use souk_node::buyer::text_keys::TextKeys;
use souk_node::buyer::text_router::{TabObserver, TabOutcome, TextRouter};
use souk_node::buyer::transcripts::TranscriptFolder;
use souk_node::market::{AccountKey, Receipt};
use souk_openai::{
    AccessPolicy, KEY_FILE, ServedModel, ServerObserver, ServingOptions, market_router, router,
};
use souk_testnet::process::READY;
use souk_texts::{SessionSize, StopSignal, open_adapted_model};

use super::serve::from_tokens;
use super::{submit, texts};
use crate::args::{OpenaiArgs, OpenaiCommand, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::join_as_buyer;
use crate::show;
use crate::stop;

/// The most connections of a server for all models: requests that have a tab, those that wait for
/// one, and clients between two requests.
const CONNECTIONS_MAX: usize = 512;

/// How often the server looks whether there are new audits.
const AUDITS_PERIOD: Duration = Duration::from_secs(1);

/// Answers HTTP requests until a signal stops it.
pub async fn run(folder: &Path, output: Output, args: &OpenaiArgs) -> Outcome {
    if let Some(OpenaiCommand::Key(command)) = &args.command {
        return keys::run(folder, output, command);
    }
    match &args.model {
        Some(model) => serve_model(folder, output, args, model).await,
        None => serve_market(folder, output, args).await,
    }
}

/// Serves every model that the market's endpoints sell.
async fn serve_market(folder: &Path, output: Output, args: &OpenaiArgs) -> Outcome {
    let mut requests = stop::Requests::new();
    if args.place.local {
        let hint = "name a model: souk openai MODEL --local";
        return Err(Failure::new(
            Kind::Usage,
            "--local runs a model that you have",
            hint,
        ));
    }
    let limits = texts::lease_limits(&args.place.lease)?;
    let listener = bind_listener(args).await?;
    let listener = listener.with_connections(CONNECTIONS_MAX);
    let buyer = join_as_buyer(folder).await?;
    let clock = buyer.broker().log_clock();
    let observer = Arc::new(TabNotices { output });
    let mut texts = TextRouter::new(buyer, limits.budget, observer);
    if let Some(most) = args.keep_transcripts {
        texts = texts.with_transcripts(open_transcripts(folder, most)?);
    }
    let audits = leave_cheats(folder, &texts);
    let (mut access, key_file) = load_access(folder, args)?;
    // A program that started this server for itself must not hold the keys of everybody else.
    if !args.until_stdin_closes {
        let keys = TextKeys::open(folder, clock).map_err(|error| keys::from_file(&error))?;
        access.keys = Some(keys);
    }
    let keys = access.keys.clone();
    let url = format!("http://{}/v1", listener.address());
    let facts = json!({ "ready": true, "url": url, "model": null, "key_file": key_file });
    let text = format!(
        "{READY} {url} with every model of `souk model list`; its key is in {}; stop with Ctrl-C",
        key_file.display()
    );
    show::print_result(output, &facts, &text);
    if keys.as_ref().is_some_and(TextKeys::is_held_elsewhere) {
        show::print_notice(
            "another souk openai of this folder takes the keys of `souk openai key list`; this one \
             takes only its own until the other stops",
        );
    }
    tokio::select! {
        () = listener.serve(market_router(texts.clone(), access)) => {}
        () = follow_changes(keys.as_ref()) => {}
        () = follow_audits(folder, &texts, audits) => {}
        () = wait_for_stop(&mut requests, args) => {}
    }
    // Open tabs are settled first; the user can cut that wait short with a second signal.
    tokio::select! {
        () = close_market(&texts, keys.as_ref()) => {}
        () = requests.next() => {}
    }
    let spending = texts.spending();
    if output == Output::Text {
        let (spent, held) = (spending.spent.0, spending.held.0);
        show::print_notice(&format!(
            "spent {} credits over {} tabs{}",
            show::format_credits(spent),
            spending.receipts,
            match held {
                0 => String::new(),
                held => format!(
                    "; {} are held until their leases end",
                    show::format_credits(held)
                ),
            }
        ));
    }
    Ok(())
}

async fn follow_changes(keys: Option<&TextKeys>) {
    match keys {
        Some(keys) => keys.follow_changes().await,
        None => std::future::pending().await,
    }
}

fn open_transcripts(folder: &Path, most: u32) -> Result<TranscriptFolder, Failure> {
    let opened = TranscriptFolder::open(folder, most as usize);
    opened.map_err(|error| {
        let cause = format!(
            "transcripts cannot be kept in {}: {error}",
            folder.display()
        );
        Failure::new(Kind::State, cause, "give a --dir that you can write")
    })
}

/// Buys nothing from providers whose answers failed an audit of this folder. Returns the time of
/// the last change of the audits, read before them, so that the caller misses no change.
fn leave_cheats(folder: &Path, texts: &TextRouter) -> Option<std::time::SystemTime> {
    let changed = audits_changed(folder);
    match read_distrusted(folder) {
        Ok((distrusted, damaged)) => {
            show::text_offers::print_damaged_audits(damaged);
            texts.set_distrusted(distrusted);
        }
        Err(error) => show::print_notice(&format!("earlier audits are not read: {error}")),
    }
    changed
}

/// Returns when the audits of a folder were changed.
fn audits_changed(folder: &Path) -> Option<std::time::SystemTime> {
    let folder = std::fs::metadata(folder.join(AUDITS_FOLDER)).ok()?;
    folder.modified().ok()
}

/// Follows the audits that are made while the server runs.
async fn follow_audits(folder: &Path, texts: &TextRouter, mut seen: Option<std::time::SystemTime>) {
    loop {
        tokio::time::sleep(AUDITS_PERIOD).await;
        if audits_changed(folder) != seen {
            seen = leave_cheats(folder, texts);
        }
    }
}

/// Waits until all tabs are settled and all requests are charged to their keys.
async fn close_market(texts: &TextRouter, keys: Option<&TextKeys>) {
    texts.close().await;
    if let Some(keys) = keys {
        keys.close().await;
    }
}

/// Serves one model.
async fn serve_model(folder: &Path, output: Output, args: &OpenaiArgs, model: &Path) -> Outcome {
    let mut requests = stop::Requests::new();
    let (model, text_model) = open_adapted_model(model, args.adapter.path(), args.place.context)?;
    let name = text_model.card.name.clone();
    let listener = bind_listener(args).await?;
    let stop = StopSignal::default();
    let size = SessionSize {
        tokens: args.session.session,
        sequences: args.sequences,
        is_embedding: args.embeddings,
    };
    let model = (model, &text_model);
    let opening = texts::open_engine(folder, output, model, &args.place, size, stop.clone());
    let engine = opening.await?;
    let (access, path) = load_access(folder, args)?;
    let options = ServingOptions {
        keep_alive: args.keep_alive,
        drafts_max: args.place.draft,
        is_embedding: args.embeddings,
        aliases: args.alias.clone(),
    };
    let observer = Arc::new(RequestNotices {
        output,
        out: args.place.lease.out.clone(),
    });
    let (model, mut working) = ServedModel::start(text_model, engine, options, observer);
    let url = format!("http://{}/v1", listener.address());
    let facts = json!({ "ready": true, "url": url, "model": name, "key_file": path });
    let text = format!(
        "{READY} {url} with {name}; its key is in {}; stop with Ctrl-C",
        path.display()
    );
    show::print_result(output, &facts, &text);
    tokio::select! {
        () = listener.serve(router(model.clone(), access)) => {}
        () = wait_for_stop(&mut requests, args) => {}
    }
    model.close();
    // The current step ends first; the user can cut that wait short with a second signal.
    let done = tokio::select! {
        done = &mut working => done,
        () = requests.next() => {
            stop.raise_signal();
            working.await
        }
    };
    done.map_err(|error| Failure::new(Kind::Unexpected, error, ""))
}

async fn wait_for_stop(requests: &mut stop::Requests, args: &OpenaiArgs) {
    match args.until_stdin_closes {
        true => requests.next_or_stdin_closed().await,
        false => requests.next().await,
    }
}

async fn bind_listener(args: &OpenaiArgs) -> Result<HttpListener, Failure> {
    let bound = HttpListener::bind_loopback(args.listen).await;
    bound.map_err(from_listener)
}

/// Returns the rules of access, with the key from its file, and the path of that file.
fn load_access(folder: &Path, args: &OpenaiArgs) -> Result<(AccessPolicy, PathBuf), Failure> {
    let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let path = path.join(KEY_FILE);
    crate::folder::create_folder(path.parent().unwrap_or(folder))?;
    let access = AccessPolicy {
        key: LocalKey::load_or_create(&path).map_err(from_tokens)?,
        keys: None,
        origins: args.cors.clone(),
    };
    Ok((access, path))
}

/// Shows in the terminal how tabs end.
struct TabNotices {
    output: Output,
}

impl TabObserver for TabNotices {
    fn on_tab_ended(&self, provider: Option<AccountKey>, outcome: &TabOutcome) {
        let provider = provider.map_or("no provider".to_owned(), |it| show::short_id(&it));
        if let Some(failure) = &outcome.failure {
            show::print_notice(&format!("  a tab at {provider} ended early: {failure}"));
        } else if self.output == Output::Text {
            let cost = show::format_credits(outcome.cost.0);
            show::print_notice(&format!("  a tab at {provider} is settled: {cost} credits"));
        }
    }

    fn on_not_kept(&self, error: &std::io::Error) {
        show::print_notice(&format!("  a tab's transcript is not kept: {error}"));
    }
}

/// Shows in the terminal what the server does, and writes the receipts of its sessions.
struct RequestNotices {
    output: Output,
    /// The folder for receipts.
    out: Option<PathBuf>,
}

impl ServerObserver for RequestNotices {
    fn on_answered(&self, summary: &str) {
        if self.output == Output::Text {
            show::print_notice(&format!("  {summary}"));
        }
    }

    fn on_request_failed(&self, cause: &str) {
        show::print_notice(&format!("a request failed: {cause}"));
    }

    fn on_session_ended(&self, receipts: &[Receipt]) {
        if self.output == Output::Text && !receipts.is_empty() {
            show::print_notice("the session is given up:");
            texts::print_payments(receipts);
        }
        let Some(out) = &self.out else { return };
        if let Err(failure) = submit::write_each(out, receipts) {
            show::print_notice(&format!("receipts are not written: {}", failure.cause));
        }
    }
}

fn from_listener(error: ListenerError) -> Failure {
    let (kind, hint) = match error {
        ListenerError::NotLoopback { .. } => (
            Kind::Input,
            "give --listen 127.0.0.1:0, and put a proxy with a password in front of it for others",
        ),
        ListenerError::Listen { .. } => (
            Kind::Network,
            "another program may listen there: give --listen another port",
        ),
    };
    Failure::new(kind, error, hint)
}
