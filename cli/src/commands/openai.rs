//! `souk openai`: serves a language model to programs that use OpenAI's HTTP API.
//!
//! It has its own listener, because its paths, errors and key are OpenAI's, not the gateway's.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use souk_gateway::{HttpListener, ListenerError, LocalKey};
use souk_node::market::Receipt;
use souk_openai::{AccessPolicy, KEY_FILE, ServedModel, ServerObserver, ServingOptions, router};
use souk_testnet::process::READY;
use souk_texts::{SessionSize, StopSignal, open_model};

use super::serve::from_tokens;
use super::{submit, texts};
use crate::args::{OpenaiArgs, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::show;
use crate::stop;

/// Answers HTTP requests until a signal stops it.
pub async fn run(folder: &Path, output: Output, args: &OpenaiArgs) -> Outcome {
    let mut requests = stop::Requests::new();
    let (model, text_model) = open_model(&args.model, args.place.context)?;
    let name = text_model.card.name.clone();
    let listener = HttpListener::bind_loopback(args.listen)
        .await
        .map_err(from_listener)?;
    let stop = StopSignal::default();
    let size = SessionSize {
        tokens: args.session.session,
        sequences: args.sequences,
        is_embedding: args.embeddings,
    };
    let model = (model, &text_model);
    let opening = texts::open_engine(folder, output, model, &args.place, size, stop.clone());
    let engine = opening.await?;
    let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let path = path.join(KEY_FILE);
    crate::folder::create_folder(path.parent().unwrap_or(folder))?;
    let access = AccessPolicy {
        key: LocalKey::load_or_create(&path).map_err(from_tokens)?,
        origins: args.cors.clone(),
    };
    let options = ServingOptions {
        keep_alive: Duration::from_secs(args.keep_alive),
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
        () = requests.next() => {}
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
