//! `souk order bid|ask|show|explain`: places orders by hand, shows and explains them.

use std::path::Path;
use std::time::Duration;

use souk_api::order::{ExplanationView, OrderView, PlacedView};
use souk_folder::clock::unix_ms;
use souk_folder::config::ProviderFile;
use souk_folder::market_file::MarketFile;
use souk_node::buyer::draw_job;
use souk_node::client::broker::Broker;
use souk_node::market::{
    AccountKey, Ask, Bid, BuyerFilter, Command, Credits, Limit, Millis, OrderId, Permille, Price,
    Term, TimeInForce, Units, Wants,
};
use souk_node::provider::{self, Conditions};

use super::open_order;
use crate::args::{AskArgs, BidArgs, Output, RestArgs, Tif};
use crate::commands::account::{from_trade, opened_trader, out_of_turn, own_account, own_trader};
use crate::commands::market::views;
use crate::commands::provider::measure_offer;
use crate::commands::providers;
use crate::commands::submit::wanted_regions;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{connect_broker, from_config, unreachable_market};
use crate::show;

/// Places a bid.
pub async fn place_bid(folder: &Path, output: Output, args: &BidArgs) -> Outcome {
    let trader = own_trader(folder).await?;
    let bid = bid_of(trader.broker(), trader.account(), args).await?;
    place_order(folder, output, Command::PlaceBid(Box::new(bid))).await
}

/// Places an ask for the device of a provider.
pub async fn place_ask(folder: &Path, output: Output, args: &AskArgs) -> Outcome {
    let ask = ask_of(folder, args).await?;
    // A provider that never ran has no account yet.
    opened_trader(folder, None).await?;
    place_order(folder, output, Command::PlaceAsk(Box::new(ask))).await
}

/// Shows the asks that a bid would find.
pub async fn explain_bid(folder: &Path, output: Output, args: &BidArgs) -> Outcome {
    let account = own_account(folder)?;
    let broker = connect_broker(folder).await?;
    let bid = bid_of(&broker, account, args).await?;
    let class = bid.class;
    let found = broker
        .explain_bid(account, bid)
        .await
        .map_err(unreachable_market)?;
    let found = found.map_err(|refusal| from_trade(refusal.into()))?;
    match output {
        Output::Json => show::print_json(&ExplanationView::new(&class, &found)),
        Output::Text => show::trade::print_explanation(&class, &found),
    }
    Ok(())
}

/// Shows one resting order.
pub async fn show_order(folder: &Path, output: Output, order: OrderId) -> Outcome {
    let order = open_order(&connect_broker(folder).await?, own_account(folder)?, order).await?;
    match output {
        Output::Json => show::print_json(&OrderView::from(&order)),
        Output::Text => show::trade::print_order(&order),
    }
    Ok(())
}

async fn place_order(folder: &Path, output: Output, command: Command) -> Outcome {
    let trader = own_trader(folder).await?;
    let done = trader.submit_one(command).await.map_err(from_trade)?;
    let placed = PlacedView::from_acceptance(&done).ok_or_else(|| out_of_turn(&done))?;
    match output {
        Output::Json => show::print_json(&placed),
        Output::Text => show::trade::print_placed(&done),
    }
    Ok(())
}

async fn bid_of(broker: &Broker, account: AccountKey, args: &BidArgs) -> Result<Bid, Failure> {
    let limit = match args.price {
        Some(price) => Limit::Price(Price(price)),
        None => Limit::Market,
    };
    let (units, duration) = (Units(args.units), to_millis(args.lease));
    let comes_to = match limit {
        Limit::Price(price) => price.escrow_for(units, duration),
        Limit::Market => None,
    };
    let budget = args.budget.map(Credits).or(comes_to).ok_or_else(|| {
        let cause = "price x units x time is more than a market can hold";
        Failure::new(Kind::Input, cause, "bid for less, or give --budget")
    })?;
    Ok(Bid {
        class: views::find_class(broker, &args.class).await?,
        wants: bid_wants(broker, args).await?,
        limit,
        budget,
        quantity: units,
        all_or_none: args.all_or_none,
        duration,
        start_delay_max: args.displace.map_or(Millis(0), to_millis),
        term: if args.spot { Term::Spot } else { Term::Firm },
        tif: time_in_force(&args.rest, args.market_order)?,
        job: draw_job(account),
    })
}

async fn bid_wants(broker: &Broker, args: &BidArgs) -> Result<Wants, Failure> {
    Ok(Wants {
        memory_bytes: args.min_memory.unwrap_or(0),
        regions: wanted_regions(&args.region)?,
        reputation: Permille(args.min_reputation),
        stake: Credits(args.min_stake.unwrap_or(0)),
        notice: args.min_notice.map_or(Millis(0), to_millis),
        excluded: providers::resolve_providers(broker, &args.exclude).await?,
        ..Wants::default()
    })
}

async fn ask_of(folder: &Path, args: &AskArgs) -> Result<Ask, Failure> {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    let file = ProviderFile::read_folder(folder).map_err(from_config)?;
    let (_, resources) = measure_offer(folder, &file).await?;
    let leases = Units(file.limits.leases);
    let offered = args.units.map_or(leases, Units);
    let conditions = Conditions::new(file, market.genesis.rules.tick);
    let terms = conditions
        .terms_for_minute(provider::minute_now(), None)
        .ok_or_else(|| {
            let cause = "it is outside the hours of the provider's limits";
            Failure::new(Kind::State, cause, "change `hours` in its provider.toml")
        })?;
    let ask = terms.to_ask(&resources, leases, offered);
    Ok(Ask {
        limit: args
            .price
            .map_or(ask.limit, |price| Limit::Price(Price(price))),
        duration_max: args.lease.map_or(ask.duration_max, to_millis),
        notice: args.notice.map_or(ask.notice, to_millis),
        spot: match &args.spot[..] {
            [] => ask.spot,
            given => given.to_vec(),
        },
        accepts: BuyerFilter {
            reputation: ask.accepts.reputation.max(Permille(args.min_reputation)),
            excluded: args.exclude.clone(),
            only: args.only.clone(),
        },
        tif: time_in_force(&args.rest, false)?,
        ..ask
    })
}

/// Returns how long an order rests; a market order never does.
fn time_in_force(rest: &RestArgs, is_market: bool) -> Result<TimeInForce, Failure> {
    let wrong = |cause: &str| {
        let hint = "give --rest 2h alone, or --time-in-force gtc, ioc or fok";
        Err(Failure::new(Kind::Input, cause, hint))
    };
    match (rest.time_in_force, rest.rest) {
        (None, None) if is_market => Ok(TimeInForce::Ioc),
        (None | Some(Tif::Gtc), None) => Ok(TimeInForce::Gtc),
        (Some(Tif::Ioc), None) => Ok(TimeInForce::Ioc),
        (Some(Tif::Fok), None) => Ok(TimeInForce::Fok),
        (None | Some(Tif::Gtd), Some(rest)) => {
            let until = unix_ms().saturating_add(to_millis(rest).0);
            Ok(TimeInForce::Gtd(Millis(until)))
        }
        (Some(Tif::Gtd), None) => wrong("--time-in-force gtd takes --rest"),
        (Some(_), Some(_)) => wrong("--rest goes with --time-in-force gtd alone"),
    }
}

fn to_millis(time: Duration) -> Millis {
    Millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
