//! `/v1/providers`, `/v1/validators`, `/v1/accounts`: the market's participants. The path of a
//! provider also changes the price of one whose folder is the gateway's or lies in it.

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use souk_api::account::{AccountView, MovementView, format_place};
use souk_api::member::ValidatorView;
use souk_folder::price::{self, PriceError};
use souk_network::protocols::statement::StatementLine;
use souk_node::market::AccountKey;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::{Body, Parameters};
use crate::page::{Page, Paging};
use crate::parties_view::{self, ProviderDetail, ProviderView};
use crate::problem::{Code, Problem};
use crate::state::SharedState;
use crate::{parse, statement_place};

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(providers))
        .routes(routes!(provider, reprice))
        .routes(routes!(validators))
        .routes(routes!(me))
        .routes(routes!(statement))
}

/// The change to a provider's offer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Selling {
    /// Its new price, in micro-credits a device-second.
    #[serde(deserialize_with = "parse::amount")]
    price: u64,
}

/// The result of a change.
#[derive(Debug, Serialize, ToSchema)]
struct SoldView {
    account: String,
    /// Micro-credits a device-second.
    price: u64,
    /// The price before the change.
    previous_price: u64,
}

/// The providers with asks in the book, by account.
#[utoipa::path(get, path = "/v1/providers", tag = "parties", params(Paging),
    responses((status = 200, body = Page<ProviderView>)), security(("token" = ["read"])))]
async fn providers(
    State(state): State<SharedState>,
    Parameters(paging): Parameters<Paging>,
) -> Result<Page<ProviderView>, Problem> {
    let all = parties_view::list_providers(&state.book().await?);
    let parse = |text: &str| text.parse::<AccountKey>().ok().map(|key| key.to_string());
    Page::from_entries(
        all,
        |one: &ProviderView| one.account.clone(),
        &paging,
        parse,
        String::clone,
    )
}

/// One account, and what it offers.
#[utoipa::path(get, path = "/v1/providers/{account}", tag = "parties",
    params(("account" = String, Path, description = "Its 64 hexadecimal digits")),
    responses((status = 200, body = ProviderDetail)), security(("token" = ["read"])))]
async fn provider(
    State(state): State<SharedState>,
    Path(account): Path<String>,
) -> Result<Json<ProviderDetail>, Problem> {
    let hint = "/v1/providers lists those with something on offer";
    let none = || Problem::not_found(format!("there is no account {account}"), hint);
    let key: AccountKey = account.parse().map_err(|_| none())?;
    let book = state.book().await?;
    let found = parties_view::find_provider(state.buyer.broker(), &book, key).await?;
    found.map(Json).ok_or_else(none)
}

/// Change the price of a provider whose folder is the gateway's or lies in it. The provider adopts
/// the price within seconds, when it next looks at the market; leases that are already sold keep
/// theirs.
#[utoipa::path(patch, path = "/v1/providers/{account}", tag = "parties",
    params(("account" = String, Path, description = "Its 64 hexadecimal digits")),
    request_body = Selling, responses((status = 200, body = SoldView)),
    security(("token" = ["operate"])))]
async fn reprice(
    State(state): State<SharedState>,
    Path(account): Path<String>,
    Body(asked): Body<Selling>,
) -> Result<Json<SoldView>, Problem> {
    let none = || {
        let detail = format!("no provider of this gateway's folder has the account {account}");
        Problem::not_found(detail, "a price is set where the provider's folder is")
    };
    let key: AccountKey = account.parse().map_err(|_| none())?;
    let home = price::folder_of(&state.folder, key).ok_or_else(none)?;
    let previous_price = price::set_price(&home, asked.price).map_err(|error| match error {
        PriceError::Config(error) => Problem::unexpected_failure(error),
        made @ PriceError::Made { .. } => {
            let hint = "change its [pricing]; strategy = \"fixed\" asks the price";
            Problem::new(Code::State, made, hint)
        }
    })?;
    Ok(Json(SoldView {
        account: key.to_string(),
        price: asked.price,
        previous_price,
    }))
}

/// The validators, and how far each is.
#[utoipa::path(get, path = "/v1/validators", tag = "parties",
    responses((status = 200, body = Vec<ValidatorView>)), security(("token" = ["read"])))]
async fn validators(State(state): State<SharedState>) -> Result<Json<Vec<ValidatorView>>, Problem> {
    let all = parties_view::list_validators(state.buyer.broker()).await?;
    Ok(Json(all))
}

/// The gateway's own account.
#[utoipa::path(get, path = "/v1/accounts/me", tag = "parties",
    responses((status = 200, body = AccountView)), security(("token" = ["read"])))]
async fn me(State(state): State<SharedState>) -> Result<Json<AccountView>, Problem> {
    let own = state.buyer.account();
    let found = state.buyer.broker().fetch_account(own).await?;
    let found = found.ok_or_else(|| {
        let hint = "open it: `souk account new`";
        Problem::not_found(format!("the account {own} is not open"), hint)
    })?;
    Ok(Json(AccountView::from(&found)))
}

/// The statement of the gateway's own account (changes of its balance), the newest first.
#[utoipa::path(get, path = "/v1/accounts/me/statement", tag = "parties", params(Paging),
    responses((status = 200, body = Page<MovementView>)), security(("token" = ["read"])))]
async fn statement(
    State(state): State<SharedState>,
    Parameters(paging): Parameters<Paging>,
) -> Result<Page<MovementView>, Problem> {
    let limit = paging.page_limit()?;
    let mut before = statement_place::parse_cursor(&paging)?;
    let (mut lines, mut more) = (Vec::new(), true);
    let own = state.buyer.account();
    while more && lines.len() < limit {
        let page = state.buyer.broker().statement_before(own, before).await?;
        more = page.more;
        lines.extend(page.lines);
        before = lines.last().map(|line: &StatementLine| line.place);
    }
    more |= lines.len() > limit;
    lines.truncate(limit);
    let next = lines
        .last()
        .filter(|_| more)
        .map(|line| format_place(line.place));
    Ok(Page {
        items: lines.iter().map(MovementView::from).collect(),
        next,
    })
}
