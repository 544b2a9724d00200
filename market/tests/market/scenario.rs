//! Runs scenarios that are text files: each line is a command to the exchange, and the lines after
//! it that begin with `> ` are the expected answer.
//!
//! The files are in `tests/scenarios`, and docs/market.md explains them. With `SOUK_MARKET_BLESS=1`
//! the test writes the answers anew; you should read the difference before you commit it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use souk_market::*;

use crate::town::{account, ask, bid, body, key, receipt, resources};

/// The people of a scenario by name, and the market they are in.
struct Stage {
    people: BTreeMap<String, u8>,
    names: BTreeMap<AccountKey, String>,
    genesis: Genesis,
    exchange: Option<Exchange>,
    now: u64,
    nonce: u64,
    answers: Vec<String>,
}

/// The words of a line, and what follows a certain word.
struct Words<'a>(Vec<&'a str>);

impl Words<'_> {
    fn after(&self, word: &str) -> Option<u64> {
        let at = self.0.iter().position(|other| *other == word)?;
        self.0[at + 1].parse().ok()
    }

    fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    /// Prices by notice, each as `NOTICE:PRICE`.
    fn spot_prices(&self) -> Vec<SpotPrice> {
        let pairs = self.0.iter().filter_map(|word| word.split_once(':'));
        let price = |(notice, price): (&str, &str)| SpotPrice {
            notice: Millis(notice.parse().unwrap()),
            price: Price(price.parse().unwrap()),
        };
        pairs.map(price).collect()
    }

    fn number(&self, at: usize) -> u64 {
        self.0[at]
            .parse()
            .unwrap_or_else(|_| panic!("a number at {at} in {:?}", self.0))
    }
}

impl Stage {
    fn new() -> Self {
        let genesis = Genesis::new("scenario".try_into().unwrap(), account(1));
        let (people, names) = (BTreeMap::new(), BTreeMap::new());
        let answers = Vec::new();
        Self {
            people,
            names,
            genesis,
            exchange: None,
            now: 0,
            nonce: 0,
            answers,
        }
    }

    fn exchange(&mut self) -> &mut Exchange {
        let genesis = &self.genesis;
        self.exchange
            .get_or_insert_with(|| Exchange::new(genesis.clone()))
    }

    fn line(&mut self, line: &str) {
        let words = Words(line.split_whitespace().collect());
        match words.0[0] {
            "account" => self.open(words.0[1], words.number(2)),
            "deposit" => self.genesis.rules.ask_deposit = Credits(words.number(1)),
            "room" => self.genesis.rules.orders_max = words.number(1) as u32,
            "classes" => self.genesis.rules.classes_max = words.number(1) as u32,
            "fee" => self.genesis.rules.fee_basis_points = words.number(1) as u16,
            "cap" => self.genesis.rules.withdrawal_cap_day = Credits(words.number(1)),
            "notice" => self.genesis.rules.rules_notice = Millis(words.number(1)),
            "operators" => self.genesis.operators_needed = words.number(1) as u32,
            "wait" => {
                self.now += words.number(1);
                let now = Millis(self.now);
                let events = self.exchange().tick(now);
                self.tell(&events);
            }
            "balances" => self.balances(),
            _ => self.say(&words),
        }
        if let Some(exchange) = &self.exchange {
            exchange.audit();
        }
    }

    fn open(&mut self, name: &str, credits: u64) {
        let number = match name {
            "operator" => 1,
            "other-operator" => 2,
            "third-operator" => 3,
            _ => 20 + self.people.len() as u8,
        };
        if name.ends_with("-operator") {
            self.genesis.operators.push(account(number));
        }
        self.people.insert(name.to_owned(), number);
        self.names.insert(account(number), name.to_owned());
        let named = name.try_into().unwrap();
        self.genesis
            .accounts
            .push((account(number), named, Credits(credits)));
    }

    fn say(&mut self, words: &Words<'_>) {
        let number = self.people[words.0[0]];
        let command = self.command(number, words);
        self.nonce += 1;
        let batch = Batch {
            market: self.exchange().market(),
            account: account(number),
            nonce: Nonce(self.nonce),
            expires: Millis(self.now + 60_000),
            commands: vec![command],
        };
        let verified = batch.sign(key(number)).verify().unwrap();
        let now = Millis(self.now);
        let mut applied = self.exchange().apply(now, &verified);
        self.tell(&applied.events);
        if let Err(refusal) = applied.outcomes.remove(0).into_result() {
            self.answers
                .push(format!("refused ({}): {refusal}", refusal.code()));
        }
    }

    fn command(&mut self, number: u8, words: &Words<'_>) -> Command {
        let second = || words.number(2);
        let lease = || LeaseId(words.number(2));
        match words.0[1] {
            "ask" => Command::PlaceAsk(Box::new(an_ask(words))),
            "bid" => Command::PlaceBid(Box::new(a_bid(words))),
            "gang" => Command::PlaceGang(vec![a_bid(words); second() as usize]),
            "cancel" => Command::Cancel {
                order: OrderId(second()),
            },
            "amend" => {
                let (quantity, price) = (words.after("units"), words.after("at"));
                let (quantity, price) = (Units(quantity.unwrap() as u32), Price(price.unwrap()));
                Command::Amend {
                    order: OrderId(second()),
                    quantity,
                    price,
                }
            }
            "start" => Command::StartWork { lease: lease() },
            "ready" => Command::StateReady { lease: lease() },
            "note" => Command::NoteUsage {
                lease: lease(),
                usage: used(words),
            },
            "accept" => Command::AcceptNote {
                lease: lease(),
                usage: used(words),
            },
            "dispute" => Command::Dispute { lease: lease() },
            "end" => Command::EndLease { lease: lease() },
            "give-up" => Command::GiveUp { lease: lease() },
            "reclaim" => Command::Reclaim { lease: lease() },
            "extend" => Command::Extend {
                lease: lease(),
                by: Millis(words.after("by").unwrap()),
            },
            "resell" => Command::Resell {
                lease: lease(),
                price: Price(words.after("at").unwrap()),
            },
            "stake" => Command::Stake {
                amount: Credits(second()),
            },
            "withdraw" => Command::Request {
                direction: Direction::Withdrawal,
                amount: Credits(second()),
                reference: Name::default(),
            },
            "request" => Command::Request {
                direction: Direction::Deposit,
                amount: Credits(second()),
                reference: Name::default(),
            },
            "lock" => Command::Lock {
                request: RequestId(second()),
            },
            "confirm" => Command::Confirm {
                request: RequestId(second()),
            },
            "refuse" => Command::Refuse {
                request: RequestId(second()),
                reason: Name::try_from(words.0[3..].join(" ")).unwrap(),
            },
            "give" => Command::Transfer {
                to: account(self.people[words.0[2]]),
                amount: Credits(words.after("credits").unwrap()),
                reference: Name::default(),
            },
            "collect" => Command::Collect {
                to: account(number),
                amount: Credits(second()),
            },
            "freeze" => Command::Freeze {
                account: account(self.people[words.0[2]]),
                reason: Name::try_from(words.0[3..].join(" ")).unwrap(),
            },
            "thaw" => Command::Thaw {
                account: account(self.people[words.0[2]]),
            },
            "change" => Command::ChangeRules {
                settings: vec![self.setting(words)],
                at: Millis(words.after("from").unwrap()),
            },
            "keep" => Command::KeepRules { change: second() },
            "upgrade" => Command::Upgrade(Upgrade {
                to: second() as u16,
                at: Millis(words.after("from").unwrap()),
            }),
            "settle" => Command::Settle(Box::new(self.receipt(lease(), used(words), 3))),
            "prove" => {
                let used = used(words);
                let pair = [
                    self.receipt(lease(), used, 3),
                    self.receipt(lease(), used, 4),
                ];
                Command::ProveFault(Box::new(pair))
            }
            other => panic!("{number} can't {other}"),
        }
    }

    /// What a rule becomes: a number, or the lot of the one class there is.
    fn setting(&self, words: &Words<'_>) -> Setting {
        let (name, value) = (words.0[2], words.number(3));
        let rule = Rule::ALL.iter().find(|rule| rule.name() == name);
        if let Some(rule) = rule.copied() {
            return Setting::Number { rule, value };
        }
        assert_eq!(name, "lot", "a rule");
        Setting::Class(ClassRules {
            class: bid(1).class,
            tick: Price(1),
            lot: Units(value as u32),
        })
    }

    /// A receipt that both parties have signed, with an output of that content.
    fn receipt(&mut self, lease: LeaseId, usage: DeviceMicros, output: u8) -> Receipt {
        let exchange = self.exchange();
        let mut body = body(exchange, lease, usage.0);
        body.outputs = vec![ContentId([output; 32])];
        let number = |key| self.people[&self.names[&key]];
        let (provider, buyer) = (number(body.provider), number(body.buyer));
        receipt(body, provider, buyer)
    }

    fn balances(&mut self) {
        let people: Vec<(String, u8)> = self
            .people
            .iter()
            .map(|(name, number)| (name.clone(), *number))
            .collect();
        for (name, number) in people {
            let known = self.exchange().account(account(number)).unwrap();
            let (available, escrow, stake) = (known.available, known.escrow, known.stake);
            let stake = if stake.0 > 0 {
                format!(", {stake} at stake")
            } else {
                String::new()
            };
            self.answers
                .push(format!("{name} has {available}, {escrow} in escrow{stake}"));
        }
        let totals = self.exchange().totals();
        self.answers.push(format!("fees {}", totals.fees));
    }

    fn tell(&mut self, events: &[Event]) {
        for event in events {
            self.answers.extend(self.told(event));
        }
    }

    fn told(&self, event: &Event) -> Option<String> {
        let name = |key: &AccountKey| self.names[key].as_str();
        Some(match event {
            Event::Balance { .. }
            | Event::Accused { .. }
            | Event::DisputeClosed { .. }
            | Event::Registered { .. }
            | Event::Forgotten { .. }
            | Event::Moved { .. } => return None,
            Event::Requested(request) => {
                let direction = format!("{:?}", request.direction).to_lowercase();
                format!(
                    "request {}: a {direction} of {}",
                    request.id, request.amount
                )
            }
            Event::Locked(request) => {
                let payer = request.lock.map(|lock| name(&lock.payer)).unwrap();
                format!("request {} is locked, {payer} pays", request.id)
            }
            Event::Decided {
                request,
                confirmed: true,
                ..
            } => format!("request {} is confirmed", request.id),
            Event::Decided {
                request, reason, ..
            } => format!("request {} is refused: {reason}", request.id),
            Event::Approved {
                approval,
                account,
                given,
                needed,
            } => {
                format!("{} approves {approval}: {given} of {needed}", name(account))
            }
            Event::Frozen { account, reason } => format!("{} is frozen: {reason}", name(account)),
            Event::Thawed { account } => format!("{} is thawed", name(account)),
            Event::RulesDue { change, at } => format!("change {change} is due at {at}"),
            Event::RulesChanged { change } => format!("change {change} is made"),
            Event::RulesKept { change } => format!("change {change} is taken back"),
            Event::UpgradeDue(upgrade) => {
                format!("version {} is due at {}", upgrade.to, upgrade.at)
            }
            Event::Upgraded { to } => format!("version {to} applies"),
            Event::Transferred {
                from, to, amount, ..
            } => format!("{} gives {} {amount}", name(from), name(to)),
            Event::Rested {
                order,
                side,
                price,
                quantity,
                ..
            } => {
                let side = format!("{side:?}").to_lowercase();
                format!("{side} {order} rests: {quantity} at {price}")
            }
            Event::OrderClosed { order, reason, .. } => {
                format!(
                    "order {order} is out: {}",
                    format!("{reason:?}").to_lowercase()
                )
            }
            Event::Traded(trade) => {
                let Trade {
                    lease,
                    quantity,
                    price,
                    escrow,
                    start,
                    deadline,
                    ..
                } = trade;
                let (buyer, provider) = (name(&trade.buyer), name(&trade.provider));
                format!(
                    "lease {lease}: {buyer} has {quantity} of {provider} at {price} from {start} \
                     to {deadline}, escrow {escrow}"
                )
            }
            Event::ProviderReady { lease, until, .. } => {
                format!("the provider of lease {lease} is ready, the buyer has until {until}")
            }
            Event::WorkStarted { lease, .. } => format!("the work of lease {lease} has begun"),
            Event::Note {
                lease,
                usage,
                state,
                ..
            } => {
                let state = format!("{state:?}").to_lowercase();
                format!(
                    "note on lease {lease}: {} ms used, {state}",
                    usage.0 / 1_000
                )
            }
            Event::LeaseEnding {
                lease, at, reason, ..
            } => {
                format!("lease {lease} will end at {at}: {reason:?}")
            }
            Event::LeaseEnded {
                lease,
                until,
                reason,
                ..
            } => {
                format!("lease {lease} has ended, closes at {until}: {reason:?}")
            }
            Event::LeaseStarted {
                lease, deadline, ..
            } => {
                format!("lease {lease} has started, ends at {deadline}")
            }
            Event::LeaseExtended {
                lease, deadline, ..
            } => {
                format!("lease {lease} now ends at {deadline}")
            }
            Event::Slashed {
                lease,
                slashed,
                compensated,
                provider,
                ..
            } => {
                let provider = name(provider);
                format!("{provider} loses {slashed} for lease {lease}, {compensated} to its buyer")
            }
            Event::LeaseClosed {
                lease,
                reason,
                paid,
                fee,
                refunded,
                ..
            } => format!(
                "lease {lease} is closed ({reason:?}): paid {paid}, fee {fee}, refunded {refunded}"
            ),
        })
    }
}

fn used(words: &Words<'_>) -> DeviceMicros {
    DeviceMicros(words.after("used").unwrap() * 1_000)
}

fn in_force(words: &Words<'_>) -> TimeInForce {
    match (words.has("ioc"), words.has("fok"), words.after("until")) {
        (true, _, _) => TimeInForce::Ioc,
        (_, true, _) => TimeInForce::Fok,
        (_, _, Some(at)) => TimeInForce::Gtd(Millis(at)),
        _ => TimeInForce::Gtc,
    }
}

/// The one device there is, or one of another kind.
fn of_kind(words: &Words<'_>) -> Resources {
    let kind = words.after("kind").map(|kind| KindCode(kind as u16));
    let plain = resources();
    Resources {
        kind: kind.unwrap_or(plain.kind),
        ..plain
    }
}

fn an_ask(words: &Words<'_>) -> Ask {
    let units = Units(words.after("units").unwrap_or(1) as u32);
    Ask {
        resources: of_kind(words),
        capacity: units,
        quantity: units,
        notice: Millis(words.after("notice").unwrap_or(0)),
        spot: words.spot_prices(),
        tif: in_force(words),
        ..ask(
            words.after("device").unwrap_or(1),
            words.after("at").unwrap(),
        )
    }
}

fn a_bid(words: &Words<'_>) -> Bid {
    let plain = bid(words.after("at").unwrap());
    let memory = words.after("memory").map(|gigabytes| gigabytes << 30);
    Bid {
        class: of_kind(words).class(),
        wants: Wants {
            memory_bytes: memory.unwrap_or(plain.wants.memory_bytes),
            notice: Millis(words.after("wants").unwrap_or(0)),
            ..plain.wants
        },
        quantity: Units(words.after("units").unwrap_or(1) as u32),
        duration: Millis(words.after("for").unwrap_or(10_000)),
        budget: Credits(words.after("budget").unwrap_or(10_000_000)),
        start_delay_max: Millis(words.after("delay").unwrap_or(0)),
        term: if words.has("spot") {
            Term::Spot
        } else {
            Term::Firm
        },
        all_or_none: words.has("whole"),
        tif: in_force(words),
        ..plain
    }
}

/// The file with the answers as they are.
fn played(text: &str) -> String {
    let mut stage = Stage::new();
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with('>')) {
        out.push_str(line);
        out.push('\n');
        if !line.is_empty() && !line.starts_with('#') {
            stage.line(line);
            for answer in stage.answers.drain(..) {
                out.push_str(&format!("> {answer}\n"));
            }
        }
    }
    out
}

#[test]
#[allow(clippy::disallowed_methods, reason = "scenarios are files")]
fn scenarios_end_as_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 14, "every scenario is there");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let played = played(&text);
        if std::env::var("SOUK_MARKET_BLESS").is_ok() {
            fs::write(&file, &played).unwrap();
        } else {
            assert_eq!(text, played, "{}", file.display());
        }
    }
}
