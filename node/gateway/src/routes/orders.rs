//! `/v1/market/orders`: places orders by hand, and lists, changes and cancels the orders of the
//! gateway's account that rest in the books.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use souk_api::order::{CancelledView, OrderView, PlacedView};
use souk_node::market::{Command, OpenOrder, OrderId, Price, Units};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::{Body, Parameters};
use crate::order_body::OrderBody;
use crate::page::{Page, Paging};
use crate::problem::Problem;
use crate::state::{SharedState, State as Gateway};
use crate::{keys, orders, parse};

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(list, place))
        .routes(routes!(one, amend, cancel))
}

/// The changes to an order; fields that are not given stay as they are.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Amendment {
    /// Its new price, in micro-credits a device-second.
    #[serde(default, deserialize_with = "parse::amount_if_any")]
    price: Option<u64>,
    /// Its new number of units.
    units: Option<u32>,
}

/// The orders of the gateway's account that rest in the books, the oldest first.
#[utoipa::path(get, path = "/v1/market/orders", tag = "orders", params(Paging),
    responses((status = 200, body = Page<OrderView>)), security(("token" = ["read"])))]
async fn list(
    State(state): State<SharedState>,
    Parameters(paging): Parameters<Paging>,
) -> Result<Page<OrderView>, Problem> {
    let orders = state
        .buyer
        .broker()
        .fetch_orders(state.buyer.account())
        .await?;
    let all = orders.iter().map(OrderView::from).collect();
    let parse = |text: &str| text.parse().ok();
    Page::from_entries(
        all,
        |one: &OrderView| one.order,
        &paging,
        parse,
        u64::to_string,
    )
}

/// Place a bid, or an ask for the rest of a lease. If the key was used before, the answer is the
/// result of the order that was placed then.
#[utoipa::path(post, path = "/v1/market/orders", tag = "orders", request_body = OrderBody,
    params(("Idempotency-Key" = String, Header, description = "One for each order",
            min_length = 1, max_length = 255, pattern = "^[!-~]+$")),
    responses((status = 201, body = PlacedView)), security(("token" = ["trade"])))]
async fn place(
    State(state): State<SharedState>,
    headers: HeaderMap,
    Body(asked): Body<OrderBody>,
) -> Result<(StatusCode, Json<PlacedView>), Problem> {
    let placed = orders::place_order(&state, keys::idempotency_key(&headers)?, &asked).await?;
    Ok((StatusCode::CREATED, Json(placed)))
}

/// One order of the gateway's account.
#[utoipa::path(get, path = "/v1/market/orders/{order}", tag = "orders",
    params(("order" = u64, Path, description = "Its id")),
    responses((status = 200, body = OrderView)), security(("token" = ["read"])))]
async fn one(
    State(state): State<SharedState>,
    Path(order): Path<String>,
) -> Result<Json<OrderView>, Problem> {
    let open = find_open_order(&state, &order).await?;
    Ok(Json(OrderView::from(&open)))
}

/// Change an order. With fewer units at the same price it keeps its priority in the book.
#[utoipa::path(patch, path = "/v1/market/orders/{order}", tag = "orders",
    params(("order" = u64, Path, description = "Its id")), request_body = Amendment,
    responses((status = 200, body = PlacedView)), security(("token" = ["trade"])))]
async fn amend(
    State(state): State<SharedState>,
    Path(order): Path<String>,
    Body(asked): Body<Amendment>,
) -> Result<Json<PlacedView>, Problem> {
    let now = find_open_order(&state, &order).await?;
    let amend = Command::Amend {
        order: now.id,
        quantity: asked.units.map_or(now.quantity, Units),
        price: asked.price.map_or(now.price, Price),
    };
    let done = state.buyer.trader().submit_one(amend).await?;
    PlacedView::from_acceptance(&done)
        .map(Json)
        .ok_or_else(unexpected_answer)
}

/// Cancel an order: the credits that it held return.
#[utoipa::path(delete, path = "/v1/market/orders/{order}", tag = "orders",
    params(("order" = u64, Path, description = "Its id")),
    responses((status = 200, body = CancelledView)), security(("token" = ["trade"])))]
async fn cancel(
    State(state): State<SharedState>,
    Path(order): Path<String>,
) -> Result<Json<CancelledView>, Problem> {
    let order = find_open_order(&state, &order).await?.id;
    let done = state
        .buyer
        .trader()
        .submit_one(Command::Cancel { order })
        .await?;
    CancelledView::from_acceptance(order, &done)
        .map(Json)
        .ok_or_else(unexpected_answer)
}

async fn find_open_order(state: &Gateway, id: &str) -> Result<OpenOrder, Problem> {
    let number = id.parse().map(OrderId);
    let number = number.map_err(|_| Problem::malformed_input(format!("{id} is no order's id")))?;
    let orders = state
        .buyer
        .broker()
        .fetch_orders(state.buyer.account())
        .await?;
    let found = orders.into_iter().find(|open| open.id == number);
    found.ok_or_else(|| {
        let detail = format!("order {number} does not rest in a book, or is another's");
        Problem::not_found(detail, "/v1/market/orders lists those that rest")
    })
}

fn unexpected_answer() -> Problem {
    Problem::unexpected_failure("the market answered something else")
}
