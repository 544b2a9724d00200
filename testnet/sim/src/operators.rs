//! The operators of the simulated market: three of whom two must say the same. They confirm and
//! refuse what people request, give and take credits, freeze and thaw, and change rules.

use souk_market::{
    Acceptance, AccountKey, ClassRules, Command, Credits, Founder, Genesis, MarketId, Millis, Name,
    Price, Refusal, RequestId, Rule, Setting, SigningKey, Units,
};
use souk_roles::market::roster::{Body, Order, SignedOrder};

use super::goods::{key, push, resources};
use super::random::Random;

/// How many there are, and how many must say the same.
pub const OPERATORS: usize = 3;
const NEEDED: u32 = 2;

/// The key of an operator, by number.
pub fn signing_key(number: usize) -> SigningKey {
    let name = [&b"operator"[..], &number.to_le_bytes()[..]].concat();
    SigningKey::from_bytes(blake3::hash(&name).as_bytes())
}

/// The key of a validator, by its raft id.
pub fn validator_key(raft_id: u64) -> SigningKey {
    let name = [&b"validator"[..], &raft_id.to_le_bytes()[..]].concat();
    SigningKey::from_bytes(blake3::hash(&name).as_bytes())
}

/// The validators that a market begins with.
pub fn found_validators(genesis: &mut Genesis, count: usize) {
    let founder = |raft_id: u64| Founder {
        raft_id,
        account: AccountKey::from(&validator_key(raft_id)),
        address: format!("validator {raft_id}"),
    };
    genesis.validators = (1..=count as u64).map(founder).collect();
}

/// The signatures of as many operators as must under an order about the validators.
pub fn sign_order(
    market: MarketId,
    order: &Order,
    number: u64,
    expires: Millis,
) -> Vec<SignedOrder> {
    let signed = |operator| {
        let key = signing_key(operator);
        let body = Body {
            market,
            signer: AccountKey::from(&key),
            number,
            expires,
            order: order.clone(),
        };
        SignedOrder::sign(body, &key)
    };
    (0..NEEDED as usize).map(signed).collect()
}

/// How long before it takes effect a change of the rules is told.
const NOTICE: Millis = Millis(500);

/// What they know of their affairs.
#[derive(Default)]
pub struct Operators {
    accounts: Vec<AccountKey>,
    /// Said by one of them, and not yet by enough.
    said: Vec<Command>,
    requests: Vec<RequestId>,
    changes: Vec<u64>,
    frozen: Vec<AccountKey>,
}

impl Operators {
    /// Has a market begin with them, and with accounts that have nothing and never come.
    pub fn found(genesis: &mut Genesis, keys: Vec<AccountKey>, strangers: &[AccountKey]) {
        genesis.operators = keys;
        genesis.operators_needed = NEEDED;
        genesis.rules.rules_notice = NOTICE;
        for key in strangers {
            genesis.accounts.push((*key, Name::default(), Credits(0)));
        }
    }

    /// Takes down whom they may deal with.
    pub fn join(&mut self, genesis: &Genesis) {
        self.accounts = genesis.accounts.iter().map(|(key, ..)| *key).collect();
    }

    /// What one of them says next; it is `now` by its clock.
    pub fn command(&mut self, random: &mut Random, now: Millis) -> Command {
        if random.chance(500)
            && let Some(command) = self.said.pop()
        {
            return command;
        }
        let command = self.new_command(random, now);
        push(&mut self.said, command.clone());
        command
    }

    /// Somebody made a request.
    pub fn on_request(&mut self, request: RequestId) {
        push(&mut self.requests, request);
    }

    /// What came of what one of them said.
    pub fn read(&mut self, outcomes: &[Result<Acceptance, Refusal>]) {
        for outcome in outcomes {
            if let Ok(Acceptance::Due { change, .. }) = outcome {
                push(&mut self.changes, *change);
            }
        }
    }

    fn new_command(&mut self, random: &mut Random, now: Millis) -> Command {
        let account = self.accounts[random.place(self.accounts.len())];
        let (to, amount) = (account, Credits(random.between(1, 5_000)));
        match random.below(100) {
            0..5 => {
                let account = AccountKey::from(&key(random));
                Command::Deposit { account, amount }
            }
            5..25 => Command::Deposit { account, amount },
            25..50 => self.decide(random),
            50..60 => {
                let amount = Credits(random.between(1, 50));
                Command::Collect { to, amount }
            }
            60..66 => {
                push(&mut self.frozen, account);
                let reason = Name::default();
                Command::Freeze { account, reason }
            }
            66..80 => match self.frozen.pop() {
                Some(account) => Command::Thaw { account },
                None => Command::Deposit { account, amount },
            },
            80..94 => {
                let at = Millis(now.0 + NOTICE.0 + random.between(200, 12_000));
                let settings = (0..random.between(1, 3)).map(|_| setting(random));
                let settings = settings.collect();
                Command::ChangeRules { settings, at }
            }
            _ => match self.changes.pop() {
                Some(change) => Command::KeepRules { change },
                None => Command::Collect { to, amount },
            },
        }
    }

    /// About a request, or about none that there is.
    fn decide(&mut self, random: &mut Random) -> Command {
        let request = self.requests.pop();
        let request = request.unwrap_or(RequestId(random.below(100)));
        let reason = Name::default();
        if random.chance(300) {
            self.requests.push(request);
            return Command::Lock { request };
        }
        match random.chance(700) {
            true => Command::Confirm { request },
            false => Command::Refuse { request, reason },
        }
    }
}

/// One of the rules that may change, within what a market goes on with.
fn setting(random: &mut Random) -> Setting {
    let number = |rule, value| Setting::Number { rule, value };
    match random.below(9) {
        0 => number(Rule::FeeBasisPoints, random.below(1_000)),
        1 => number(Rule::AskDeposit, random.between(1, 50_000)),
        2 => number(Rule::OrdersMax, random.between(2, 60)),
        3 => number(Rule::OpenOrdersMax, random.between(4, 100)),
        4 => number(Rule::RequestsMax, random.between(1, 8)),
        5 => number(Rule::ClosedLeasesKept, random.between(100, 900)),
        6 => number(Rule::DepositCapDay, random.below(1_000_000)),
        7 => number(Rule::WithdrawalCapDay, random.below(1_000_000)),
        _ => Setting::Class(ClassRules {
            class: resources().class(),
            tick: Price(random.between(1, 3)),
            lot: Units(1),
            auction: random.chance(200).then_some(Millis(250)),
        }),
    }
}
