//! `souk model`: lists the models that providers sell by the token, shows the contents of a model
//! file, converts models to souk's format, and merges an adapter into a model.

#[cfg(feature = "generate")]
mod import;
#[cfg(feature = "generate")]
mod merge;

use std::path::Path;

use souk_api::text_offer::{ModelView, TextOfferView};
use souk_node::buyer::audit_results::{AuditResult, latest_audits, read_audits};
use souk_node::buyer::text_router::{TextOffer, text_offers, was_sold_lately};
use souk_node::client::broker::Broker;
use souk_node::scheduler::graph::{Bindings, Graph};

use super::book::market_failure;
use super::submit::from_import;
use crate::args::{Model, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::connect_broker;
use crate::{files, show};

/// Runs a command on models.
pub async fn run(folder: &Path, output: Output, command: &Model) -> Outcome {
    match command {
        Model::List => list_models(folder, output).await,
        Model::Show { model } => show_offers(folder, output, model).await,
        Model::Inspect { file, symbol } => inspect_model(output, file, symbol),
        #[cfg(feature = "generate")]
        Model::Import { from, to, context } => import::import_model(output, from, to, *context),
        #[cfg(feature = "generate")]
        Model::Merge { from, adapter, out } => merge::merge_model(output, from, adapter, out),
    }
}

/// Lists the models on sale, each with its cheapest price.
async fn list_models(folder: &Path, output: Output) -> Outcome {
    let broker = connect_broker(folder).await?;
    let offers = fetch_offers(&broker).await?;
    let models = offers.chunk_by(|one, other| one.card == other.card);
    let views: Vec<ModelView> = models.filter_map(describe_model).collect();
    match output {
        Output::Json => show::print_json(&views),
        Output::Text => show::text_offers::print_models(views),
    }
    Ok(())
}

/// Shows every offer of a model, the cheapest first.
async fn show_offers(folder: &Path, output: Output, model: &str) -> Outcome {
    let broker = connect_broker(folder).await?;
    let mut offers = fetch_offers(&broker).await?;
    offers.retain(|offer| offer.card.model.as_str() == model);
    if offers.is_empty() {
        let was_sold = was_sold_lately(&broker, model).await;
        if was_sold.map_err(market_failure)? {
            let cause =
                format!("no slot of {model} is free: all are taken, or its providers have stopped");
            let hint = "try again in a moment: a tab that is idle ends after two seconds";
            return Err(Failure::new(Kind::NoPlan, cause, hint));
        }
        let cause = format!("no provider sells {model} now");
        return Err(Failure::new(
            Kind::NoPlan,
            cause,
            "`souk model list` shows what is on sale",
        ));
    }
    let listings = offers.iter().map(|offer| &offer.listing);
    let views: Vec<TextOfferView> = listings.map(TextOfferView::from).collect();
    let (audits, damaged) = read_audits(folder).unwrap_or_default();
    show::text_offers::print_damaged_audits(damaged);
    let audits = latest_audits(audits).into_values();
    let of_model = audits.filter(|audit| audit.model == model);
    let audits: Vec<AuditResult> = of_model.collect();
    match output {
        Output::Json => show::print_json(&show::text_offers::with_audits(&views, &audits)),
        Output::Text => show::text_offers::print_offers(views, &audits),
    }
    Ok(())
}

fn describe_model(offers: &[TextOffer]) -> Option<ModelView> {
    ModelView::from_offers(offers.iter().map(|offer| &offer.listing))
}

async fn fetch_offers(broker: &Broker) -> Result<Vec<TextOffer>, Failure> {
    let book = broker.fetch_book().await.map_err(market_failure)?;
    Ok(text_offers(book))
}

fn inspect_model(output: Output, file: &Path, symbol: &[String]) -> Outcome {
    let bytes = files::read(file)?;
    let mut bindings = Bindings::with_assumed_extent(1);
    for text in symbol {
        let parsed = text
            .split_once('=')
            .and_then(|(name, n)| Some((name, n.parse().ok()?)));
        let (name, extent) = parsed.ok_or_else(|| {
            let cause = format!("\"{text}\" is not NAME=N");
            Failure::new(Kind::Input, cause, "write --symbol batch=8")
        })?;
        bindings = bindings.with_symbol(name, extent);
    }
    let folder = file.parent().map(Path::to_owned).unwrap_or_default();
    let declared = Graph::declared_inputs(bytes.clone()).map_err(from_import)?;
    let mut find = |relative: &str| Some(folder.join(relative));
    let graph = Graph::import_with(bytes, &bindings, &mut find).map_err(from_import)?;
    match output {
        Output::Json => show::print_json(&show::model::to_json(&graph, &declared)),
        Output::Text => show::model::print_graph(&graph, &declared),
    }
    Ok(())
}
