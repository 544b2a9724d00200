//! Prints the models that providers sell by the token, and their offers.

use serde_json::{Value, json};
use souk_api::text_offer::{ModelView, TextOfferView, TokenPrice};
use souk_node::buyer::audit_results::{AUDITS_FOLDER, AuditResult, Verdict};

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
pub fn print_offers(offers: Vec<TextOfferView>, audits: &[AuditResult]) {
    let header = [
        "provider",
        "free",
        "in a million",
        "cached",
        "out a million",
        "reputation",
        "engine",
        "ask",
        "audited",
    ];
    let mut table = Table::new(&header);
    for offer in offers {
        let [input, cached, output] = prices(offer.price);
        let (free, reputation) = (offer.free_slots.to_string(), offer.reputation.to_string());
        let ask = offer.ask.to_string();
        let audited = find_audit(audits, &offer).map_or_else(String::new, describe_tally);
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
            audited,
        ]);
    }
    table.print();
}

/// Returns the offers with what the buyer's own audits found, as `audited`.
pub fn with_audits(offers: &[TextOfferView], audits: &[AuditResult]) -> Vec<Value> {
    let each = offers.iter().map(|offer| {
        let audited = find_audit(audits, offer).map(|audit| {
            json!({
                "verdict": audit.tally.verdict, "tokens": audit.tally.tokens, "at": audit.at,
                "answers": audit.answers, "unread": audit.unread_answers(),
                "leaves": audit.leaves,
            })
        });
        super::with(json!(offer), [("audited", json!(audited))])
    });
    each.collect()
}

fn find_audit<'a>(audits: &'a [AuditResult], offer: &TextOfferView) -> Option<&'a AuditResult> {
    let is_of_it = |audit: &&AuditResult| audit.provider.to_string() == offer.provider;
    audits.iter().find(is_of_it)
}

/// Says that files are no results of audits. A verdict that is lost must not be so in silence.
pub fn print_damaged_audits(damaged: usize) {
    if damaged > 0 {
        let files = super::format_count(super::to_u64(damaged), "file");
        super::print_notice(&format!(
            "{files} of {AUDITS_FOLDER} cannot be read, and what they said is left out: audit the \
             providers again"
        ));
    }
}

/// Describes how far an audit came, such as `41k tokens, fits`.
pub fn describe_tally(audit: &AuditResult) -> String {
    let tokens = match audit.tally.tokens {
        few @ 0..10_000 => few.to_string(),
        many => format!("{}k", many / 1_000),
    };
    let verdict = match audit.tally.verdict {
        Verdict::Fits => "fits",
        Verdict::DoesNotFit => "does not fit",
        Verdict::NotEnough => "not enough",
    };
    let all = audit.answers + audit.unread_answers();
    match audit.unread_answers() {
        0 => format!("{tokens} tokens, {verdict}"),
        unread => format!(
            "{tokens} tokens, {verdict}, {} % unread",
            unread * 100 / all
        ),
    }
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
