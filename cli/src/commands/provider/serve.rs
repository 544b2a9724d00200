//! `souk provider init --serve`: opens a language model, measures souk's own decoder on it, and
//! writes the file of a provider that sells its answers by the token. `provider run` opens the
//! model again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use souk_api::text_offer::FLOOR_US_MAX;
use souk_folder::config::{DeviceChoice, ServedModelChoice};
use souk_llm::bundled_model;
use souk_node::endpoint::Endpoint;
use souk_node::endpoint::own_engine::OwnEngine;
use souk_texts::{DecoderSpeed, ServedDecoder};
use tokio::task::spawn_blocking;

use super::super::node::from_endpoint;
use super::super::served_model::{open_decoder, unexpected_failure};
use super::endpoint::{OUTPUT_TOKEN_US, SoldModel, absolute_path, render_file, write_provider};
use super::init::check_is_new;
use crate::args::{Output, ProviderInitArgs};
use crate::failure::Outcome;
use crate::show;

/// The comment in `provider.toml` above the model.
const ABOUT: &str = "\
# The model that souk's own decoder runs, and the name under which it is sold. context is the number
# of positions for the messages and the answer of a request. threads is how many threads compute.";

/// Stands for the model's own name until the model is open.
const UNNAMED: &str = "unnamed";

/// Creates the folder of a provider that sells the answers of a model.
pub async fn create_provider(
    folder: &Path,
    output: Output,
    new: &ProviderInitArgs,
    source: &Path,
) -> Outcome {
    check_is_new(folder)?;
    let mut choice = ServedModelChoice {
        source: settle_source(source),
        model: new.model.clone().unwrap_or_else(|| UNNAMED.to_owned()),
        context: new.context.map(|context| context as usize),
        threads: new.threads,
    };
    // A wrong option should cost neither a load of the model nor a measurement.
    Endpoint::check_model_name(&choice.model).map_err(from_endpoint)?;
    let device = DeviceChoice::Serve(choice.clone());
    render_file(folder, new, &device, ABOUT, 0)?;
    let decoder = open_decoder(&choice, new.slots).await?;
    if new.model.is_none() {
        decoder.model_name().clone_into(&mut choice.model);
    }
    let engine: Arc<dyn OwnEngine> = Arc::new(decoder.clone());
    // The name must fit into an ask.
    Endpoint::of_own_engine(&choice, new.slots, Some(engine)).map_err(from_endpoint)?;
    let measured = decoder.clone();
    let measuring = spawn_blocking(move || measured.measure_speed());
    let speed = measuring.await.map_err(unexpected_failure)??;
    let model = choice.model.clone();
    let sold = SoldModel {
        plan: describe_plan(&choice, &decoder, speed, new.slots),
        facts: json!({
            "context": decoder.context_length(), "memory_bytes": decoder.memory_bytes(),
            "tokens_per_second": { "one": speed.one, "all": speed.all },
        }),
        device: DeviceChoice::Serve(choice),
        model: &model,
        about: ABOUT,
        floor: measured_floor(speed, new.slots),
    };
    write_provider(folder, output, new, sold)
}

/// Returns the floor by default: half of the tokens a second that each slot makes when all are at
/// work. The model's tokens can be shorter than souk's, and a buyer that uses its slot should pay
/// for tokens, not for time. It is at most what souk's buyers pay for holding a slot.
fn measured_floor(speed: DecoderSpeed, slots: u32) -> u32 {
    let each = speed.all / f64::from(slots.max(1));
    ((each / 2.0) as u32).min(FLOOR_US_MAX / OUTPUT_TOKEN_US)
}

/// Returns the model's path, which must be found from any folder.
fn settle_source(source: &Path) -> PathBuf {
    match source == Path::new(bundled_model::NAME) && !source.exists() {
        true => source.to_owned(),
        false => absolute_path(source),
    }
}

fn describe_plan(
    choice: &ServedModelChoice,
    decoder: &ServedDecoder,
    speed: DecoderSpeed,
    slots: u32,
) -> Vec<String> {
    let source = choice.source.display();
    vec![
        format!(
            "model   {} from {source}, by souk's own decoder",
            choice.model
        ),
        format!(
            "memory  {} for the weights and the caches of {slots} slots of {} positions",
            show::format_bytes(decoder.memory_bytes()),
            decoder.context_length(),
        ),
        format!(
            "speed   {:.0} of the model's tokens a second with one buyer, {:.0} with {slots} \
             together",
            speed.one, speed.all,
        ),
    ]
}
