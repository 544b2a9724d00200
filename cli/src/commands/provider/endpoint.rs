//! `souk provider init --endpoint`: asks an inference engine for its models, and writes the file of
//! a provider that sells one of them by the token. `--serve` writes such a file too.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use souk_api::text_offer::TokenPrice;
use souk_folder::config::{DeviceChoice, EndpointChoice, FORMAT, PROVIDER_TOML, ProviderFile};
use souk_node::endpoint::Endpoint;
use souk_node::market::Price;

use super::super::node::from_endpoint;
use super::device_text::device_text;
use super::init::{check_is_new, check_name, store_file, to_micro_credits};
use super::schedule::{bands_text, hours_text, parse_bands, parse_hours};
use crate::args::{Output, ProviderInitArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::from_config;
use crate::show;

pub(super) fn absolute_path(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the price of device time at which a million output tokens cost so many credits.
pub(super) fn to_token_price(out: f64) -> Result<Price, Failure> {
    let micro = to_micro_credits(out, "--out")?;
    let price = TokenPrice::to_device_price(micro).filter(|price| price.0 > 0);
    price.ok_or_else(|| {
        let cause = format!("--out {out} is no price of a million tokens");
        let hint = "give a multiple of 0.001 credits, such as 0.2";
        Failure::new(Kind::Input, cause, hint)
    })
}

/// The comment in `provider.toml` above the engine.
const ABOUT: &str = "\
# The engine, and the name by which it knows the model. An http URL must be of this machine. The key
# goes to that host alone. resold tells buyers that you do not run the engine yourself.";

/// A model to sell by the token.
pub(super) struct SoldModel<'a> {
    pub(super) device: DeviceChoice,
    pub(super) model: &'a str,
    /// The comment in `provider.toml` above the device.
    pub(super) about: &'a str,
    /// More of the plan: lines for people, and an object with the same for programs.
    pub(super) plan: Vec<String>,
    pub(super) facts: Value,
}

/// Creates the folder of a provider that sells a model of the engine at `url`.
pub async fn create_provider(
    folder: &Path,
    output: Output,
    new: &ProviderInitArgs,
    url: &str,
) -> Outcome {
    check_is_new(folder)?;
    let choice = EndpointChoice {
        url: url.to_owned(),
        model: new.model.clone().unwrap_or_default(),
        key_file: new.key_file.as_deref().map(absolute_path),
        ca_file: new.ca_file.as_deref().map(absolute_path),
        resold: new.resold,
    };
    let endpoint = Endpoint::new(&choice, new.slots).map_err(from_endpoint)?;
    endpoint.check_engine().await.map_err(from_endpoint)?;
    let sold = SoldModel {
        device: DeviceChoice::Endpoint(choice),
        model: endpoint.card().model.as_str(),
        about: ABOUT,
        plan: Vec::new(),
        facts: json!({ "resold": new.resold }),
    };
    write_provider(folder, output, new, sold)
}

/// Shows the plan of a provider that sells a model by the token, and writes its folder.
pub(super) fn write_provider(
    folder: &Path,
    output: Output,
    new: &ProviderInitArgs,
    sold: SoldModel<'_>,
) -> Outcome {
    let (text, price) = render_file(folder, new, &sold.device, sold.about)?;
    let path = folder.join(PROVIDER_TOML);
    let tokens = TokenPrice::from(price);
    let sells = format!(
        "{} at {} credits a million input tokens and {} a million output tokens, to {} buyers at \
         once",
        sold.model,
        show::format_credits(tokens.input_per_million),
        show::format_credits(tokens.output_per_million),
        new.slots,
    );
    let stated = [
        ("file", json!(path)),
        ("model", json!(sold.model)),
        ("price", json!(tokens)),
        ("slots", json!(new.slots)),
        ("dry_run", json!(new.dry_run)),
    ];
    let facts = show::with(sold.facts, stated);
    let mut said = sold.plan;
    if new.dry_run {
        said.push(format!("it would sell {sells}"));
        show::print_result(output, &facts, &said.join("\n"));
        return Ok(());
    }
    store_file(folder, &text)?;
    said.push(format!(
        "wrote {}: it sells {sells}; start it with `souk --dir {} provider run`",
        path.display(),
        folder.display()
    ));
    show::print_result(output, &facts, &said.join("\n"));
    Ok(())
}

/// Returns the text of `provider.toml`, and the price in it. It checks all options that the file
/// has.
pub(super) fn render_file(
    folder: &Path,
    new: &ProviderInitArgs,
    device: &DeviceChoice,
    about: &str,
) -> Result<(String, Price), Failure> {
    let price = to_token_price(new.out.unwrap_or_default())?;
    let folder_name = folder.file_name();
    let default = folder_name.map_or("provider".into(), |name| name.to_string_lossy());
    let name = check_name(new.name.as_deref().unwrap_or(&default))?;
    let quoted = |text: &str| serde_json::to_string(text).expect("text always encodes");
    let text = format!(
        include_str!("endpoint.toml.txt"),
        format = FORMAT,
        name = quoted(&name),
        listen = quoted(&new.listen),
        region = quoted(&String::from(new.region.unwrap_or_default())),
        price = price.0,
        about = about,
        device = device_text(device),
        slots = new.slots,
        hours = hours_text(&parse_hours(&new.limits.hours)?),
        buyer_reputation_min = new.limits.min_reputation,
        bands = bands_text(&parse_bands(&new.pricing.band)?),
    );
    // Reads the file back before anything relies on it.
    ProviderFile::parse_toml(&folder.join(PROVIDER_TOML), &text).map_err(from_config)?;
    Ok((text, price))
}
