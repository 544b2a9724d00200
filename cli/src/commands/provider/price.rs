//! `souk provider price`: shows or changes the price in a provider's file, by the device-second or,
//! for an inference engine, by the million output tokens.

use std::path::Path;

use serde_json::{Value, json};
use souk_api::text_offer::{TokenPrice, TokenRates};
use souk_folder::config::ProviderFile;
use souk_folder::price::{PriceError, set_price};
use souk_node::market::{Price, TokenTerms};

use super::endpoint::{to_token_price, warn_of_high_price};
use super::init::to_micro_credits;
use crate::args::Output;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::from_config;
use crate::show;

/// Shows or changes the price in the provider's file.
pub fn show_or_set_price(
    folder: &Path,
    output: Output,
    credits: Option<f64>,
    out: Option<f64>,
) -> Outcome {
    let file = ProviderFile::read_folder(folder).map_err(from_config)?;
    let sells_tokens = file.device.sells_tokens();
    let terms = sells_tokens.then(|| file.pricing.tokens.to_terms());
    let now = match (credits, out) {
        (None, None) => {
            let (facts, text) = describe_price(file.price, terms);
            show::print_result(output, &facts, &text);
            return Ok(());
        }
        (Some(credits), _) if sells_tokens => {
            let cause = format!("{credits} is no clear price: this provider sells tokens");
            let hint = "give the price of a million output tokens, such as --out 0.25";
            return Err(Failure::new(Kind::Usage, cause, hint));
        }
        (Some(credits), _) => to_micro_credits(credits, "the price")?,
        (None, Some(out)) if sells_tokens => to_token_price(out)?.0,
        (None, Some(_)) => {
            let cause = "--out is a price of tokens, and this provider sells a device";
            let hint = "give the price of a device-second: souk provider price 0.25";
            return Err(Failure::new(Kind::Usage, cause, hint));
        }
    };
    if sells_tokens {
        warn_of_high_price(Price(now), Some(Price(file.price)));
    }
    let until_now = set_price(folder, now).map_err(|error| match error {
        PriceError::Config(error) => from_config(error),
        made @ PriceError::Made { .. } => {
            let hint = "change its [pricing]; strategy = \"fixed\" asks the price";
            Failure::new(Kind::State, made, hint)
        }
    })?;
    let (mut facts, text) = describe_price(now, terms);
    let (_, before) = describe_price(until_now, terms);
    facts["previous_price"] = json!(until_now);
    let text = format!("{text}; until now {before}; a provider that runs asks it within seconds");
    show::print_result(output, &facts, &text);
    Ok(())
}

/// Describes a price of device time, by the token if those are sold.
fn describe_price(price: u64, terms: Option<TokenTerms>) -> (Value, String) {
    if terms.is_none() {
        let text = format!("{} credits a device-second", show::format_credits(price));
        return (json!({ "price": price }), text);
    }
    let tokens = TokenPrice::from(TokenRates::new(Price(price), terms));
    let text = show::text_offers::format_token_price(tokens);
    (json!({ "price": price, "tokens": tokens }), text)
}
