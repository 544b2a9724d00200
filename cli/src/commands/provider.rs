//! `souk provider …`: sets up, runs and shows a provider.

mod device_text;
mod endpoint;
mod init;
mod measure;
mod price;
mod schedule;
#[cfg(feature = "generate")]
mod serve;

pub use measure::measure_offer;

use std::path::Path;

use serde_json::json;
use souk_folder::clock::unix_ms;
use souk_folder::config::ProviderFile;
use souk_network::content::links::{LINKS_FILE, Links};
use souk_node::endpoint::TokenFigures;
use souk_node::provider::{self, History, LiveFigures, Statistics};
use souk_sandbox::device::costs::LearnedCosts;
use souk_sandbox::device::onnxruntime_library::LibraryRecord;
use souk_sandbox::executor::IsolationFile;

use super::node;
use crate::args::{Output, Provider};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::from_config;
use crate::show;

/// Runs a command on providers.
pub async fn run(folder: &Path, output: Output, command: Provider) -> Outcome {
    match command {
        Provider::Run(run) => node::run_provider(folder, run).await,
        Provider::Init(new) => {
            #[cfg(feature = "generate")]
            if let Some(source) = &new.serve {
                return serve::create_provider(folder, output, &new, source).await;
            }
            match &new.endpoint {
                Some(url) => endpoint::create_provider(folder, output, &new, url).await,
                None => init::run(folder, output, &new).await,
            }
        }
        Provider::Measure => measure::measure_provider(folder, output).await,
        Provider::Price { credits, out } => price::show_or_set_price(folder, output, credits, out),
        Provider::Status { reset } => show_status(folder, output, reset),
    }
}

/// Shows a provider's state from its folder alone: the provider and the market can both be down.
fn show_status(folder: &Path, output: Output, reset: bool) -> Outcome {
    let file = ProviderFile::read_folder(folder).map_err(from_config)?;
    let history = History::read(folder).map_err(|error| {
        let hint = "restore the file from a copy, or check the folder's permissions";
        Failure::new(Kind::State, error, hint)
    })?;
    let (runs, kept) = (provider::is_running(folder), IsolationFile::read(folder));
    let linked = LibraryRecord::read(folder);
    let learned = LearnedCosts::read(folder);
    if reset {
        LearnedCosts::request_reset(folder).map_err(|error| {
            let hint = "check the folder's permissions";
            Failure::new(Kind::State, error, hint)
        })?;
    }
    let sums = match reset {
        true => Statistics::reset(folder, unix_ms()),
        false => Statistics::read(folder),
    };
    let sums = sums.map_err(|error| {
        let hint = "remove that file, or start anew with --reset: no payment depends on it";
        Failure::new(Kind::State, error, hint)
    })?;
    let live = LiveFigures::read(folder, unix_ms()).filter(|_| runs);
    let tokens = TokenFigures::read(folder).filter(|_| file.device.sells_tokens());
    let links = Links::load_or_default(Some(folder.join(LINKS_FILE))).list_links();
    match output {
        Output::Json => {
            let facts = show::provider::to_json(&file, &history, runs, &kept);
            let links = show::provider::links_json(&links);
            let sums = show::statistics::to_json(&sums);
            let live = show::provider::live_json(live.as_ref());
            let more = [
                ("tokens", json!(tokens)),
                ("links", links),
                ("statistics", sums),
                ("learned", json!(learned)),
                ("live", live),
                ("onnxruntime", json!(linked)),
            ];
            show::print_json(&show::with(facts, more));
        }
        Output::Text => {
            show::provider::print_provider(&file, &history, tokens.as_ref(), runs, &kept);
            show::provider::print_library(linked.as_ref());
            show::provider::print_live(live.as_ref());
            show::statistics::print_statistics(&sums);
            show::learned_costs::print_learned_costs(&learned);
            show::provider::print_links(&links);
            if reset {
                show::print_line("the statistics and the learned costs of the devices are reset");
            }
        }
    }
    Ok(())
}
