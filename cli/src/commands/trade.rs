//! `souk order …` and `souk lease …`: places, shows, changes and ends an account's orders in
//! the market, and its leases, which are the device time that it bought or sold.

mod orders;

use std::path::Path;

use serde_json::json;
use souk_api::lease::LeaseView;
use souk_api::order::{CancelledView, OrderView, PlacedView};
use souk_node::client::broker::Broker;
use souk_node::market::{
    self, Acceptance, AccountKey, Command, LeaseId, Millis, OpenOrder, OrderId, Price, Units,
};

use super::account::{from_trade, out_of_turn, own_account, own_trader};
use super::providers;
use crate::args::{Lease, Order, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{connect_broker, unreachable_market};
use crate::{show, suggested_command};

/// Runs a command on orders.
pub async fn run_order(folder: &Path, output: Output, command: Order) -> Outcome {
    match command {
        Order::Bid(args) => orders::place_bid(folder, output, &args).await,
        Order::Ask(args) => orders::place_ask(folder, output, &args).await,
        Order::Explain(args) => orders::explain_bid(folder, output, &args).await,
        Order::Show { order } => orders::show_order(folder, output, OrderId(order)).await,
        Order::List => list_orders(folder, output).await,
        Order::Cancel { order } => {
            let cancel = Command::Cancel {
                order: OrderId(order),
            };
            let done = carried_out(folder, cancel).await?;
            let cancelled = CancelledView::from_acceptance(OrderId(order), &done);
            let cancelled = cancelled.ok_or_else(|| out_of_turn(&done))?;
            let text = format!(
                "order {order} is out of the book; {} returned",
                show::format_credits(cancelled.released)
            );
            show::print_result(output, &json!(cancelled), &text);
            Ok(())
        }
        Order::Amend {
            order,
            price,
            units,
        } => amend_order(folder, output, OrderId(order), price, units).await,
    }
}

/// Runs a command on leases.
pub async fn run_lease(folder: &Path, output: Output, command: Lease) -> Outcome {
    let (lease, command) = match command {
        Lease::List => return list_leases(folder, output).await,
        Lease::Show { lease } => return show_lease(folder, output, LeaseId(lease)).await,
        Lease::Start { lease: id } => {
            let lease = LeaseId(id);
            (lease, Command::StartWork { lease })
        }
        Lease::Refuse { lease: id } => {
            let lease = LeaseId(id);
            (lease, Command::Dispute { lease })
        }
        Lease::End { lease: id } => {
            let lease = LeaseId(id);
            (lease, Command::EndLease { lease })
        }
        Lease::GiveUp { lease: id } => {
            let lease = LeaseId(id);
            (lease, Command::GiveUp { lease })
        }
        Lease::Reclaim { lease: id } => {
            let lease = LeaseId(id);
            (lease, Command::Reclaim { lease })
        }
        Lease::Extend { lease: id, seconds } => {
            let lease = LeaseId(id);
            let by = Millis(seconds.saturating_mul(1_000));
            (lease, Command::Extend { lease, by })
        }
        Lease::Resell { lease: id, price } => {
            let (lease, price) = (LeaseId(id), Price(price));
            (lease, Command::Resell { lease, price })
        }
    };
    change_lease(folder, output, lease, command).await
}

async fn list_orders(folder: &Path, output: Output) -> Outcome {
    let account = own_account(folder)?;
    let broker = connect_broker(folder).await?;
    let orders = broker
        .fetch_orders(account)
        .await
        .map_err(unreachable_market)?;
    match output {
        Output::Json => {
            show::print_json(&orders.iter().map(OrderView::from).collect::<Vec<_>>());
        }
        Output::Text => show::trade::print_orders(&orders),
    }
    Ok(())
}

async fn amend_order(
    folder: &Path,
    output: Output,
    order: OrderId,
    price: Option<u64>,
    units: Option<u32>,
) -> Outcome {
    let trader = own_trader(folder).await?;
    let now = open_order(trader.broker(), trader.account(), order).await?;
    let amend = Command::Amend {
        order,
        quantity: units.map_or(now.quantity, Units),
        price: price.map_or(now.price, Price),
    };
    let done = trader.submit_one(amend).await.map_err(from_trade)?;
    let placed = PlacedView::from_acceptance(&done).ok_or_else(|| out_of_turn(&done))?;
    let text = show::trade::describe_acceptance(&done);
    show::print_result(output, &json!(placed), &text);
    Ok(())
}

async fn open_order(
    broker: &Broker,
    account: AccountKey,
    order: OrderId,
) -> Result<OpenOrder, Failure> {
    let orders = broker.fetch_orders(account).await;
    let mut orders = orders.map_err(unreachable_market)?.into_iter();
    orders.find(|open| open.id == order).ok_or_else(|| {
        let cause = format!("order {order} does not rest in a book, or is another's");
        Failure::new(
            Kind::Input,
            cause,
            format!(
                "this account's: {}",
                suggested_command::market_command("order list")
            ),
        )
    })
}

async fn list_leases(folder: &Path, output: Output) -> Outcome {
    let account = own_account(folder)?;
    let broker = connect_broker(folder).await?;
    let leases = broker
        .fetch_leases(account)
        .await
        .map_err(unreachable_market)?;
    match output {
        Output::Json => {
            show::print_json(&leases.iter().map(LeaseView::from).collect::<Vec<_>>());
        }
        Output::Text => {
            let names = providers::of_leases(&broker, &leases).await?;
            show::trade::print_leases(&leases, account, &names);
        }
    }
    Ok(())
}

async fn show_lease(folder: &Path, output: Output, id: LeaseId) -> Outcome {
    let broker = connect_broker(folder).await?;
    let lease = find_lease(&broker, id).await?;
    match output {
        Output::Json => show::print_json(&LeaseView::from(&lease)),
        Output::Text => {
            let names = providers::of_leases(&broker, std::slice::from_ref(&lease)).await?;
            show::trade::print_lease(&lease, &names);
        }
    }
    Ok(())
}

async fn find_lease(broker: &Broker, id: LeaseId) -> Result<market::Lease, Failure> {
    let lease = broker.fetch_lease(id).await.map_err(unreachable_market)?;
    lease.ok_or_else(|| {
        let cause = format!("the market knows no lease {id}");
        Failure::new(
            Kind::Input,
            cause,
            "old ones are forgotten; `souk lease list` shows open ones",
        )
    })
}

/// Carries out a command on a lease, and shows the lease as it is afterwards.
async fn change_lease(folder: &Path, output: Output, id: LeaseId, command: Command) -> Outcome {
    let trader = own_trader(folder).await?;
    let done = trader.submit_one(command).await.map_err(from_trade)?;
    match output {
        Output::Json => {
            let lease = find_lease(trader.broker(), id).await?;
            show::print_json(&LeaseView::from(&lease));
        }
        Output::Text => show::print_line(&show::trade::describe_acceptance(&done)),
    }
    Ok(())
}

async fn carried_out(folder: &Path, command: Command) -> Result<Acceptance, Failure> {
    let trader = own_trader(folder).await?;
    trader.submit_one(command).await.map_err(from_trade)
}
