//! `souk provider init --endpoint`: asks an inference engine for its models, and writes the file of
//! a provider that sells one of them by the token. `--serve` writes such a file too.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use souk_api::text_offer::{TokenPrice, TokenRates};
use souk_folder::config::{DeviceChoice, EndpointChoice, FORMAT, PROVIDER_TOML, ProviderFile};
use souk_folder::pricing::TokenPricing;
use souk_node::endpoint::Endpoint;
use souk_node::market::Price;

use super::super::node::from_endpoint;
use super::device_text::device_text;
use super::init::{check_is_new, check_name, parse_listen, store_file, to_micro_credits};
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

/// Warns of a price that is probably meant in another unit: a high one, or one far above the last.
pub(super) fn warn_of_high_price(price: Price, until_now: Option<Price>) {
    let is_high = match until_now {
        Some(last) => price.0 / USUAL_RISE_MAX >= last.0.max(1),
        None => price.0 >= USUAL_PRICE_MAX.0,
    };
    if is_high {
        let credits = show::format_credits(price.0.saturating_mul(1_000));
        show::print_notice(&format!(
            "{credits} credits a million output tokens is a high price: --out is in credits, and \
             `price` in provider.toml in micro-credits a thousand tokens"
        ));
    }
}

/// Returns what input tokens and held slots cost, by the options, where output tokens cost `price`.
/// `floor` is how many output tokens a second of holding costs if no option says so.
fn to_token_pricing(
    new: &ProviderInitArgs,
    price: Price,
    floor: u32,
) -> Result<TokenPricing, Failure> {
    let micros = |option: &'static str, credits: Option<f64>| {
        let Some(credits) = credits else {
            return Ok(None);
        };
        let per_million = to_micro_credits(credits, option)?;
        let micros = TokenPrice::to_token_micros(per_million, price);
        micros.map(Some).ok_or_else(|| {
            let cause = format!("{option} {credits} is less than a thousandth of --out");
            let hint = "give a higher price, or 0 for none";
            Failure::new(Kind::Input, cause, hint)
        })
    };
    let usual = TokenPricing::default();
    let pricing = TokenPricing {
        input_us: micros("--in", new.input)?.unwrap_or(usual.input_us),
        cached_us: micros("--cached", new.cached)?,
        floor_us: new.floor.unwrap_or(floor).saturating_mul(OUTPUT_TOKEN_US),
    };
    match pricing.to_terms().check() {
        Ok(()) => Ok(pricing),
        Err(fault) => {
            let hint = "lower --in, or give a --cached that is at most as much as --in";
            Err(Failure::new(Kind::Input, fault, hint))
        }
    }
}

/// The device time of an output token, in microseconds.
pub(super) const OUTPUT_TOKEN_US: u32 = 1_000;

/// The price of device time from which souk warns: 100 credits a million output tokens.
const USUAL_PRICE_MAX: Price = Price(100_000);

/// The factor between two prices from which souk warns.
const USUAL_RISE_MAX: u64 = 10;

/// The comment in `provider.toml` above the engine.
const ABOUT: &str = "\
# The engine, and the name by which it knows the model. An http URL must be of this machine. The key
# goes to that host alone. resold tells buyers that you do not run the engine yourself. fields are
# sent with each request too, such as fields = { repeat_penalty = 1.0 }.";

/// What the plan says of an engine that would begin an answer anew.
const DISCONTINUOUS: &str = "the engine ignores `continue_final_message`, so buyers go on \
    elsewhere with an answer that another provider began";

/// A model to sell by the token.
pub(super) struct SoldModel<'a> {
    pub(super) device: DeviceChoice,
    pub(super) model: &'a str,
    /// The comment in `provider.toml` above the device.
    pub(super) about: &'a str,
    /// How many output tokens a second of holding a slot costs if no option says so.
    pub(super) floor: u32,
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
    let fields = new.field.iter();
    let fields = fields.map(|field| (field.name.clone(), field.value.clone()));
    let choice = EndpointChoice {
        url: url.to_owned(),
        model: new.model.clone().unwrap_or_default(),
        key_file: new.key_file.as_deref().map(absolute_path),
        ca_file: new.ca_file.as_deref().map(absolute_path),
        resold: new.resold,
        fields: fields.collect(),
    };
    let endpoint = Endpoint::new(&choice, new.slots).map_err(from_endpoint)?;
    endpoint.check_engine().await.map_err(from_endpoint)?;
    let continues = !endpoint.ignores_continuation();
    let plan = match continues {
        true => Vec::new(),
        false => vec![DISCONTINUOUS.to_owned()],
    };
    let sold = SoldModel {
        device: DeviceChoice::Endpoint(choice),
        model: endpoint.card().model.as_str(),
        about: ABOUT,
        floor: 0,
        plan,
        facts: json!({ "resold": new.resold, "continues": continues }),
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
    let (text, rates) = render_file(folder, new, &sold.device, sold.about, sold.floor)?;
    let path = folder.join(PROVIDER_TOML);
    let tokens = TokenPrice::from(rates);
    let floor = rates.terms.floor_us / OUTPUT_TOKEN_US;
    let held = match floor {
        0 => String::new(),
        floor => format!("; a held slot costs {floor} output tokens a second at least"),
    };
    let sells = format!(
        "{} at {}, to {} buyers at once{held}",
        sold.model,
        show::text_offers::format_token_price(tokens),
        new.slots,
    );
    let stated = [
        ("file", json!(path)),
        ("model", json!(sold.model)),
        ("price", json!(tokens)),
        ("slots", json!(new.slots)),
        ("floor_tokens", json!(floor)),
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

/// Returns the text of `provider.toml`, and the prices in it. It checks all options that the file
/// has.
pub(super) fn render_file(
    folder: &Path,
    new: &ProviderInitArgs,
    device: &DeviceChoice,
    about: &str,
    floor: u32,
) -> Result<(String, TokenRates), Failure> {
    let price = to_token_price(new.out.unwrap_or_default())?;
    warn_of_high_price(price, None);
    let pricing = to_token_pricing(new, price, floor)?;
    let terms = pricing.to_terms();
    let folder_name = folder.file_name();
    let default = folder_name.map_or("provider".into(), |name| name.to_string_lossy());
    let name = check_name(new.name.as_deref().unwrap_or(&default))?;
    let quoted = |text: &str| serde_json::to_string(text).expect("text always encodes");
    let text = format!(
        include_str!("endpoint.toml.txt"),
        format = FORMAT,
        name = quoted(&name),
        listen = quoted(&parse_listen(&new.listen)?.to_string()),
        region = quoted(&String::from(new.region.unwrap_or_default())),
        price = price.0,
        about = about,
        device = device_text(device),
        slots = new.slots,
        hours = hours_text(&parse_hours(&new.limits.hours)?),
        buyer_reputation_min = new.limits.min_reputation,
        bands = bands_text(&parse_bands(&new.pricing.band)?),
        tokens = format_args!(
            "{{ input_us = {}, cached_us = {}, floor_us = {} }}",
            terms.input_us, terms.cached_us, terms.floor_us
        ),
    );
    // Reads the file back before anything relies on it.
    ProviderFile::parse_toml(&folder.join(PROVIDER_TOML), &text).map_err(from_config)?;
    Ok((text, TokenRates::new(price, Some(terms))))
}
