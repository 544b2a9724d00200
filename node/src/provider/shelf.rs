//! The ask: in the book while the device is free, out of it while it is leased or stopping.
//!
//! The shelf looks at what the log says and does what is missing, rather than remembering what it
//! did: after a crash, a lost answer or a lease that ended by itself that is still the right step.

use std::sync::Arc;
use std::time::Duration;

use souk_market::{
    Accepted, Accepts, Ask, Command, DeviceId, Lease, LeaseState, Limit, Millis, OrderId, Price,
    TimeInForce, Units,
};

use super::{Provider, books};
use crate::trader::TradeError;

/// Looked at this often even if no word of a change came.
const PERIOD: Duration = Duration::from_secs(2);

/// How long withdrawing the ask may hold up a stop.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(2);

/// Leases are for at least this long and at most an hour.
const DURATION_MIN: Millis = Millis(1);
const DURATION_MAX: Millis = Millis(3_600_000);

/// Each provider sells one device.
const DEVICE: DeviceId = DeviceId(1);

pub(super) struct Shelf {
    provider: Arc<Provider>,
    order: Option<OrderId>,
}

impl Shelf {
    pub(super) fn new(provider: Arc<Provider>) -> Shelf {
        Shelf {
            provider,
            order: None,
        }
    }

    /// Keeps the ask as it should be, for ever.
    pub(super) async fn keep(&mut self) {
        let account = self.provider.trader.account();
        let mut changes = self.provider.trader.broker().watch(account);
        loop {
            if let Err(error) = self.put_right().await {
                tracing::warn!(%error, "the ask could not be looked after");
            }
            if let Err(error) = books::close_closed(&self.provider).await {
                tracing::warn!(%error, "how leases ended is not in the journal");
            }
            // The watch ends only with the process; the period holds then.
            let _ = tokio::time::timeout(PERIOD, changes.changed()).await;
        }
    }

    /// Takes the ask out of the book, if it can be done soon.
    pub(super) async fn withdraw(&mut self) {
        let Some(order) = self.order.take() else {
            return;
        };
        let cancel = self.provider.trader.submit_one(Command::Cancel { order });
        match tokio::time::timeout(WITHDRAW_TIMEOUT, cancel).await {
            Ok(Ok(_)) => tracing::info!(%order, "withdrew the ask"),
            Ok(Err(error)) => tracing::warn!(%order, %error, "the ask was not withdrawn"),
            Err(_) => tracing::warn!(%order, "the ask was not withdrawn in time"),
        }
    }

    async fn put_right(&mut self) -> Result<(), TradeError> {
        let trader = &self.provider.trader;
        let leases = trader.broker().leases(trader.account()).await?;
        let account = trader.broker().account(trader.account()).await?;
        let open_orders = account.map_or(0, |account| account.open_orders);
        if leases.iter().any(|lease| runs_here(lease, &self.provider)) {
            return Ok(());
        }
        match (open_orders, self.order) {
            (0, _) => self.place().await,
            (_, Some(_)) => Ok(()),
            (_, None) => self.replace().await,
        }
    }

    async fn place(&mut self) -> Result<(), TradeError> {
        let command = Command::PlaceAsk(Box::new(self.ask()));
        if let Accepted::Placed { order, .. } = self.provider.trader.submit_one(command).await? {
            tracing::info!(%order, "placed the ask");
            self.order = Some(order);
        }
        Ok(())
    }

    /// Replaces an ask left by a former run of this node, whose device may have been another.
    async fn replace(&mut self) -> Result<(), TradeError> {
        let trader = &self.provider.trader;
        let book = trader.broker().book().await?;
        let old = book
            .into_iter()
            .filter(|listing| listing.provider == trader.account());
        let cancel: Vec<_> = old
            .map(|listing| Command::Cancel {
                order: listing.order,
            })
            .collect();
        if !cancel.is_empty() {
            trader.submit(cancel).await?;
        }
        self.place().await
    }

    fn ask(&self) -> Ask {
        Ask {
            device: DEVICE,
            capacity: Units(1),
            resources: self.provider.resources.clone(),
            limit: Limit::Price(Price(self.provider.price)),
            quantity: Units(1),
            duration_min: DURATION_MIN,
            duration_max: DURATION_MAX,
            notice: Millis(0),
            accepts: Accepts::default(),
            tif: TimeInForce::Gtc,
        }
    }
}

fn runs_here(lease: &Lease, provider: &Provider) -> bool {
    let mine = lease.provider == provider.trader.account();
    mine && matches!(lease.state, LeaseState::Active | LeaseState::Ending { .. })
}
