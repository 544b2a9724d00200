//! Prints the models that providers sell by the token, and their offers.

use souk_api::text_offer::{ModelView, TextOfferView, TokenPrice};

use super::format_credits;
use super::table::Table;

/// Prints the models on sale, each with its cheapest price.
pub fn print_models(models: Vec<ModelView>) {
    if models.is_empty() {
        super::print_notice(
            "no provider has a free slot of a model now; `souk model show MODEL` says whether all \
             slots of a model are taken",
        );
        return;
    }
    let mut table = Table::new(&[
        "model",
        "offers",
        "free",
        "in a million",
        "cached",
        "out a million",
    ]);
    for model in models {
        let [input, cached, output] = prices(model.price);
        let (offers, free) = (model.offers.to_string(), model.free_slots.to_string());
        table.add_row([model.model, offers, free, input, cached, output]);
    }
    table.print();
}

/// Prints the offers of one model.
pub fn print_offers(offers: Vec<TextOfferView>) {
    let header = [
        "provider",
        "free",
        "in a million",
        "cached",
        "out a million",
        "reputation",
        "engine",
        "ask",
    ];
    let mut table = Table::new(&header);
    for offer in offers {
        let [input, cached, output] = prices(offer.price);
        let (free, reputation) = (offer.free_slots.to_string(), offer.reputation.to_string());
        let ask = offer.ask.to_string();
        let engine = if offer.resold { "resold" } else { "own" }.to_owned();
        table.add_row([
            offer.provider_name,
            free,
            input,
            cached,
            output,
            reputation,
            engine,
            ask,
        ]);
    }
    table.print();
}

/// Formats the prices of a million tokens, in credits.
fn prices(price: TokenPrice) -> [String; 3] {
    let TokenPrice {
        input_per_million,
        cached_per_million,
        output_per_million,
    } = price;
    [input_per_million, cached_per_million, output_per_million].map(format_credits)
}

/// Formats the prices of tokens as a phrase.
pub fn format_token_price(price: TokenPrice) -> String {
    let [input, cached, output] = prices(price);
    format!(
        "{output} credits a million output tokens, {input} a million input tokens, {cached} a \
         million cached ones"
    )
}
