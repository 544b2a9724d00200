//! `/v1/market` and `/v1/text-keys`: the market's classes (devices that trade together), their
//! order books, trades and candles (prices per period), all asks, the offers of language models by
//! the token, and the sums over all accounts. Also the keys of `souk openai key`, with the spending
//! of each.

use axum::Json;
use axum::extract::{Path, State};
use serde::Deserialize;
use souk_api::ask::AskView;
use souk_api::market::{CandlesView, ClassView, DepthView, LEVELS, TotalsView, TradesView};
use souk_api::text_key::TextKeyView;
use souk_api::text_offer::TextOfferView;
use souk_node::buyer::text_keys::{now, read_book};
use souk_node::buyer::text_router::text_offers;
use souk_node::client::market_data;
use souk_node::market::Listing;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::Parameters;
use crate::page::{Page, Paging};
use crate::parse;
use crate::problem::Problem;
use crate::state::SharedState;

/// Length of a candle in the market's own data, in seconds.
const MINUTE: u64 = 60;

/// Length of the longest candle, in seconds: the market keeps a day.
const STEP_MAX: u64 = 86_400;

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(classes))
        .routes(routes!(depth))
        .routes(routes!(trades))
        .routes(routes!(candles))
        .routes(routes!(asks))
        .routes(routes!(texts))
        .routes(routes!(text_keys))
        .routes(routes!(totals))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Levels {
    /// Prices on each side at most: 1 to 64, else 32.
    #[param(minimum = 1, maximum = 64)]
    levels: Option<usize>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct CandleQuery {
    /// Seconds in a candle: a multiple of 60, up to 86400; else 60.
    #[param(minimum = 60, maximum = 86400, multiple_of = 60)]
    step: Option<u64>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct AskFilter {
    /// Only this kind of device, such as `gpu`.
    kind: Option<String>,
    /// Only devices with this in their name, large or small.
    device: Option<String>,
    /// Only real devices, not emulated ones.
    #[serde(default)]
    real: bool,
    /// Only up to this price, in micro-credits a device-second.
    #[serde(default, deserialize_with = "parse::amount_if_any")]
    #[param(maximum = 9007199254740991i64)]
    max_price: Option<u64>,
    /// Entries at most: 1 to 1000, else 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Where the last page ended.
    cursor: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TextFilter {
    /// Only the offers of this model.
    model: Option<String>,
}

/// Every offer of a model by the token, by model and price.
#[utoipa::path(get, path = "/v1/market/texts", tag = "market", params(TextFilter),
    responses((status = 200, body = Vec<TextOfferView>)), security(("token" = ["read"])))]
async fn texts(
    State(state): State<SharedState>,
    Parameters(asked): Parameters<TextFilter>,
) -> Result<Json<Vec<TextOfferView>>, Problem> {
    let offers = text_offers(state.book().await?.to_vec()).into_iter();
    let is_named = |model: &str| asked.model.as_deref().is_none_or(|named| named == model);
    let named = offers.filter(|offer| is_named(offer.card.model.as_str()));
    Ok(Json(
        named
            .map(|offer| TextOfferView::from(&offer.listing))
            .collect(),
    ))
}

/// The keys of `souk openai key`, and what each has spent.
#[utoipa::path(get, path = "/v1/text-keys", tag = "market",
    responses((status = 200, body = Vec<TextKeyView>)), security(("token" = ["read"])))]
async fn text_keys(State(state): State<SharedState>) -> Result<Json<Vec<TextKeyView>>, Problem> {
    let folder = state.folder.clone();
    let book = tokio::task::spawn_blocking(move || read_book(&folder)).await;
    let book = book.map_err(Problem::unexpected_failure)?;
    let book = book.map_err(Problem::unexpected_failure)?;
    let accounts = book.accounts(now()).into_iter();
    let keys = accounts.map(|(terms, account)| TextKeyView::new(terms, &account));
    Ok(Json(keys.collect()))
}

/// Every class that was ever traded in or quoted.
#[utoipa::path(get, path = "/v1/market/classes", tag = "market",
    responses((status = 200, body = Vec<ClassView>)), security(("token" = ["read"])))]
async fn classes(State(state): State<SharedState>) -> Result<Json<Vec<ClassView>>, Problem> {
    let classes = state.classes().await?;
    Ok(Json(classes.iter().map(ClassView::from).collect()))
}

/// The asks and bids of a class, summed by price.
#[utoipa::path(get, path = "/v1/market/classes/{class}/depth", tag = "market",
    params(("class" = String, Path, description = "Its name, or the beginning of it"), Levels),
    responses((status = 200, body = DepthView)), security(("token" = ["read"])))]
async fn depth(
    State(state): State<SharedState>,
    Path(class): Path<String>,
    Parameters(asked): Parameters<Levels>,
) -> Result<Json<DepthView>, Problem> {
    let levels = match asked.levels {
        None => LEVELS,
        Some(levels @ 1..=64) => levels,
        Some(levels) => {
            let detail = format!("levels is {levels}, and may be 1 to 64");
            return Err(Problem::malformed_input(detail));
        }
    };
    let quotes = market_data::find_quotes(state.buyer.broker(), &class).await?;
    Ok(Json(DepthView::new(&quotes, levels)))
}

/// The last trades of a class.
#[utoipa::path(get, path = "/v1/market/classes/{class}/trades", tag = "market",
    params(("class" = String, Path, description = "Its name, or the beginning of it")),
    responses((status = 200, body = TradesView)), security(("token" = ["read"])))]
async fn trades(
    State(state): State<SharedState>,
    Path(class): Path<String>,
) -> Result<Json<TradesView>, Problem> {
    let quotes = market_data::find_quotes(state.buyer.broker(), &class).await?;
    Ok(Json(TradesView::from(&quotes)))
}

/// The prices of a class within the last day, as candles.
#[utoipa::path(get, path = "/v1/market/classes/{class}/candles", tag = "market",
    params(("class" = String, Path, description = "Its name, or the beginning of it"), CandleQuery),
    responses((status = 200, body = CandlesView)), security(("token" = ["read"])))]
async fn candles(
    State(state): State<SharedState>,
    Path(class): Path<String>,
    Parameters(asked): Parameters<CandleQuery>,
) -> Result<Json<CandlesView>, Problem> {
    let step = asked.step.unwrap_or(MINUTE);
    if step == 0 || step > STEP_MAX || !step.is_multiple_of(MINUTE) {
        let detail = format!("step is {step}, and is a multiple of {MINUTE} up to {STEP_MAX}");
        return Err(Problem::malformed_input(detail));
    }
    let quotes = market_data::find_quotes(state.buyer.broker(), &class).await?;
    let candles = market_data::merge_candles(&quotes.candles, step * 1_000);
    Ok(Json(CandlesView::new(&quotes.class, step, &candles)))
}

/// All asks that match the filter, the cheapest first.
#[utoipa::path(get, path = "/v1/market/asks", tag = "market", params(AskFilter),
    responses((status = 200, body = Page<AskView>)), security(("token" = ["read"])))]
async fn asks(
    State(state): State<SharedState>,
    Parameters(asked): Parameters<AskFilter>,
) -> Result<Page<AskView>, Problem> {
    let book = state.book().await?;
    let named = asked.device.as_ref().map(|name| name.to_lowercase());
    let suits = |ask: &&Listing| {
        let stated = &ask.resources;
        let model = stated.model.as_str().to_lowercase();
        asked
            .kind
            .as_ref()
            .is_none_or(|kind| stated.kind_name.as_str() == kind)
            && named.as_ref().is_none_or(|name| model.contains(name))
            && !(asked.real && stated.emulated)
            && asked.max_price.is_none_or(|most| ask.price.0 <= most)
    };
    let all: Vec<AskView> = book.iter().filter(suits).map(AskView::from).collect();
    let paging = Paging {
        limit: asked.limit,
        cursor: asked.cursor,
    };
    let parse = |text: &str| {
        let (price, order) = text.split_once('.')?;
        Some((price.parse().ok()?, order.parse().ok()?))
    };
    let key = |ask: &AskView| (ask.price, ask.order);
    Page::from_entries(all, key, &paging, parse, |(price, order)| {
        format!("{price}.{order}")
    })
}

/// The sums over all accounts.
#[utoipa::path(get, path = "/v1/market/totals", tag = "market",
    responses((status = 200, body = TotalsView)), security(("token" = ["read"])))]
async fn totals(State(state): State<SharedState>) -> Result<Json<TotalsView>, Problem> {
    let totals = state.buyer.broker().fetch_totals().await?;
    Ok(Json(TotalsView::from(&totals)))
}
