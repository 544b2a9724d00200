//! A buyer for tests that controls each step of a lease: it buys the lease and starts it, but sends
//! nothing that the work needs, so the lease stays busy.

use std::future::pending;
use std::time::{Duration, Instant};

use souk_folder::key::{NodeKey, peer_of};
use souk_folder::market_file::MarketFile;
use souk_network::content::inline_contents::MessageWithContents;
use souk_network::content::transfers;
use souk_network::protocols::lease::{self, Opening, Part, ProviderMessage, Request, Start};
use souk_network::wire;
use souk_network::{Network, NetworkConfig};
use souk_node::client::broker::Broker;
use souk_node::client::trader::{TradeError, Trader};
use souk_node::market::{
    Acceptance, AccountKey, Bid, Command, Credits, JobId, Lease, LeaseId, LeaseState, Limit,
    Listing, Millis, Name, Price, Term, TimeInForce, Units, Wants,
};
use souk_node::memory::ContentId;

use tokio::runtime::Runtime;

use crate::common::Market;

/// A buyer under the test's control.
pub struct Hand {
    runtime: Runtime,
    network: Network,
    trader: Trader,
}

impl Hand {
    /// The buyer of the testnet.
    pub fn join(market: &Market) -> Hand {
        let path = market.folder().join("net/buyer/key");
        Hand::with(
            market,
            NodeKey::load(&path).expect("the testnet has a buyer"),
        )
    }

    /// Another buyer, to whom the operator gives this much.
    pub fn stranger(market: &Market, name: &str, amount: Credits) -> Hand {
        Hand::funded(market, NodeKey::generate(), name, amount)
    }

    /// The buyer with this key, to whom the operator gives this much.
    pub fn funded(market: &Market, key: NodeKey, name: &str, amount: Credits) -> Hand {
        let path = market.folder().join("net/operator/key");
        let operator = Hand::with(
            market,
            NodeKey::load(&path).expect("the testnet has an operator"),
        );
        let hand = Hand::with(market, key);
        for (who, name) in [(&operator, "operator"), (&hand, name)] {
            let name = Name::try_from(name).expect("a short name");
            let registered = who.runtime.block_on(who.trader.register_account(name));
            registered.expect("an account is registered");
        }
        let account = hand.trader.account();
        let given = operator.trader.endow_account(account, amount);
        let given = operator.runtime.block_on(given);
        given.expect("the operator may deposit");
        hand
    }

    fn with(market: &Market, key: NodeKey) -> Hand {
        let runtime = Runtime::new().expect("threads");
        let folder = market.folder().join("net");
        let file = MarketFile::read_nearest(&folder).expect("the testnet has a market");
        let contacts = file.contacts().expect("its validators have addresses");
        let joined = runtime.block_on(async {
            let network = Network::start(&key, NetworkConfig::default()).await;
            let network = network.expect("it listens nowhere");
            // Whoever fetches from it waits for ever.
            network.serve_protocol(transfers::PROTOCOL, 64, |_, stream| async move {
                pending::<()>().await;
                drop(stream);
            });
            let broker = Broker::new(network.clone(), &contacts).await;
            (network, broker.expect("there are validators"))
        });
        let (network, broker) = joined;
        let trader = Trader::new(key, file.genesis.market_id(), broker);
        Hand {
            runtime,
            network,
            trader,
        }
    }

    /// What a provider offers.
    pub fn listing(&self, provider: AccountKey) -> Option<Listing> {
        let book = self.runtime.block_on(self.trader.broker().fetch_book());
        let mut asks = book.expect("the market answers").into_iter();
        asks.find(|listing| listing.provider == provider)
    }

    /// Leases a provider's device for a minute, once it is on offer.
    pub fn buy(&self, provider: AccountKey) -> Lease {
        let begin = Instant::now();
        let listing = loop {
            if let Some(listing) = self.listing(provider) {
                break listing;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "never on offer");
            std::thread::sleep(Duration::from_millis(50));
        };
        let bid = Bid {
            class: listing.class,
            wants: Wants::default(),
            limit: Limit::Price(listing.price),
            budget: Credits(1_000_000),
            quantity: Units(1),
            all_or_none: true,
            duration: Millis(60_000),
            start_delay_max: Millis(0),
            term: Term::Firm,
            tif: TimeInForce::Fok,
            job: JobId(NodeKey::generate().public_key()),
        };
        let lease = self.bid(bid);
        assert_eq!(lease.provider, provider, "it is the cheapest of its class");
        lease
    }

    /// The lease that a bid for a job of its own buys. Where no validator says what became of the
    /// bid, the job's leases do: it is not placed twice.
    fn bid(&self, bid: Bid) -> Lease {
        let job = bid.job;
        let placed = self.trader.submit_one(Command::PlaceBid(Box::new(bid)));
        match self.runtime.block_on(placed) {
            Ok(Acceptance::Placed { trades, .. }) => self.lease(trades[0].lease),
            Err(TradeError::Uncertain(cause)) => {
                let (account, jobs) = (self.trader.account(), [job]);
                let leases = self.trader.broker().job_leases(account, &jobs);
                let leases = self.runtime.block_on(leases).expect("the market answers");
                let lease = leases.into_iter().next();
                lease.unwrap_or_else(|| panic!("the log has no lease of the bid: {cause}"))
            }
            other => panic!("a bid is placed: {other:?}"),
        }
    }

    /// Takes a spot lease's device over by a bid of twice its price; `idle` are providers whose
    /// free devices would do as well.
    pub fn displace(&self, lease: &Lease, idle: &[AccountKey]) {
        let wants = Wants {
            excluded: idle.to_vec(),
            ..Wants::default()
        };
        let bid = Bid {
            class: lease.class,
            wants,
            limit: Limit::Price(Price(lease.price.0 * 2)),
            budget: Credits(1_000_000),
            quantity: Units(1),
            all_or_none: true,
            duration: Millis(1_000),
            start_delay_max: Millis(60_000),
            term: Term::Firm,
            tif: TimeInForce::Fok,
            job: JobId(NodeKey::generate().public_key()),
        };
        let taken = self.bid(bid);
        assert_eq!(taken.device, lease.device);
        assert!(matches!(taken.state, LeaseState::Waiting { behind, .. } if behind == lease.id));
    }

    /// The leases of an account that are not closed.
    pub fn leases_of(&self, account: AccountKey) -> Vec<Lease> {
        let found = self
            .runtime
            .block_on(self.trader.broker().fetch_leases(account));
        found.expect("the market answers")
    }

    /// Ends a lease.
    pub fn end(&self, lease: LeaseId) {
        let ended = self.trader.submit_one(Command::EndLease { lease });
        match self.runtime.block_on(ended) {
            Ok(_) => {}
            Err(TradeError::Uncertain(_)) if self.lease(lease).is_closed() => {}
            Err(error) => panic!("a buyer may end its lease: {error}"),
        }
    }

    /// A lease as the log has it.
    pub fn lease(&self, id: LeaseId) -> Lease {
        let found = self.runtime.block_on(self.trader.broker().fetch_lease(id));
        found.expect("the market answers").expect("it is known")
    }

    /// Starts a lease whose graph nobody will ever send; what the provider says first. None where
    /// it is not reached.
    pub fn start(&self, lease: &Lease) -> Option<ProviderMessage> {
        let start = Start {
            sequences: 0,
            lease: lease.id,
            job: lease.job,
            parts: vec![Part {
                name: "part 1 of 1".to_owned(),
                graph: ContentId::for_content(b"never sent"),
                weights: Vec::new(),
                inputs: Vec::new(),
                outputs: Vec::new(),
                flops: 0,
                expected: Default::default(),
            }],
            peers: Vec::new(),
            priority: 0,
            first: Request::default(),
            last: true,
        };
        self.runtime.block_on(async {
            let broker = self.trader.broker();
            for contact in broker.find_contacts(&[lease.provider]).await.ok()? {
                self.network.add_contact(&contact).await.ok()?;
            }
            let peer = peer_of(&lease.provider.0).ok()?;
            let opened = self.network.open_stream(peer, lease::PROTOCOL).await;
            let mut stream = opened.ok()?;
            let opening = MessageWithContents::without_contents(Opening::Start(Box::new(start)));
            wire::send(&mut stream, &opening).await.ok()?;
            let event = wire::receive::<MessageWithContents<ProviderMessage>>(&mut stream).await;
            let event = event.ok().map(|said| said.message);
            // The provider is told that its buyer left when the stream closes: it stays open.
            tokio::spawn(async move {
                pending::<()>().await;
                drop(stream);
            });
            event
        })
    }
}
