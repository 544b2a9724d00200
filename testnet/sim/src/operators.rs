//! Plays the operators of the simulated market, three accounts of whom two must agree. They confirm
//! and refuse requests, deposit and withdraw credits, freeze and thaw accounts, and change rules.

use souk_market::{
    Acceptance, AccountKey, ClassRules, Command, Credits, Founder, Genesis, MarketId, Millis, Name,
    Price, RULES_VERSION, Refusal, RequestId, Rule, Setting, SigningKey, Units, Upgrade,
};
use souk_roles::market::roster::{Body, MembershipOrder, SignedMembershipOrder};

use super::random::Random;
use super::resources::{device_resources, key, push};

/// Number of operators, and of those who must agree.
pub const OPERATORS: usize = 3;
const NEEDED: u32 = 2;

/// Returns an operator's key, by number.
pub fn signing_key(number: usize) -> SigningKey {
    let name = [&b"operator"[..], &number.to_le_bytes()[..]].concat();
    SigningKey::from_bytes(blake3::hash(&name).as_bytes())
}

/// Returns a validator's key, by its raft id.
pub fn validator_key(raft_id: u64) -> SigningKey {
    let name = [&b"validator"[..], &raft_id.to_le_bytes()[..]].concat();
    SigningKey::from_bytes(blake3::hash(&name).as_bytes())
}

/// Adds the initial validators to a market's genesis.
pub fn found_validators(genesis: &mut Genesis, count: usize) {
    let founder = |raft_id: u64| Founder {
        raft_id,
        account: AccountKey::from(&validator_key(raft_id)),
        address: format!("validator {raft_id}"),
    };
    genesis.validators = (1..=count as u64).map(founder).collect();
}

/// Returns enough operators' signatures under an order about the validators.
pub fn sign_order(
    market: MarketId,
    order: &MembershipOrder,
    number: u64,
    expires: Millis,
) -> Vec<SignedMembershipOrder> {
    let signed = |operator| {
        let key = signing_key(operator);
        let body = Body {
            market,
            signer: AccountKey::from(&key),
            number,
            expires,
            order: order.clone(),
        };
        SignedMembershipOrder::sign(body, &key)
    };
    (0..NEEDED as usize).map(signed).collect()
}

/// Notice of a change of the rules before it takes effect.
const NOTICE: Millis = Millis(500);

/// Notice of a new version of the rules: operators must agree at least [`NOTICE`] before.
const UPGRADE_NOTICE: Millis = Millis(6_000);

/// How often the operators announce the latest version of the rules.
const UPGRADES_MAX: u32 = 2;

/// The operators' accounts, with what they know of pending commands and requests.
#[derive(Default)]
pub struct Operators {
    accounts: Vec<AccountKey>,
    /// Commands that too few operators have approved so far.
    pending_commands: Vec<Command>,
    requests: Vec<RequestId>,
    changes: Vec<u64>,
    frozen: Vec<AccountKey>,
    /// How often they have announced the latest version of the rules.
    upgrades: u32,
}

impl Operators {
    /// Adds the operators to a genesis, and accounts without credits that never act.
    pub fn add_operators(genesis: &mut Genesis, keys: Vec<AccountKey>, strangers: &[AccountKey]) {
        genesis.operators = keys;
        genesis.operators_needed = NEEDED;
        genesis.rules.rules_notice = NOTICE;
        for key in strangers {
            genesis.accounts.push((*key, Name::default(), Credits(0)));
        }
    }

    /// Records the accounts that the operators may affect.
    pub fn record_accounts(&mut self, genesis: &Genesis) {
        self.accounts = genesis.accounts.iter().map(|(key, ..)| *key).collect();
    }

    /// Returns the next command of an operator; `now` is the operator's clock.
    pub fn draw_command(&mut self, random: &mut Random, now: Millis) -> Command {
        if random.chance(500)
            && let Some(command) = self.pending_commands.pop()
        {
            return command;
        }
        let command = self.new_command(random, now);
        push(&mut self.pending_commands, command.clone());
        command
    }

    /// Records a request.
    pub fn on_request(&mut self, request: RequestId) {
        push(&mut self.requests, request);
    }

    /// Processes the outcomes of an operator's command.
    pub fn read(&mut self, outcomes: &[Result<Acceptance, Refusal>]) {
        for outcome in outcomes {
            if let Ok(Acceptance::Due { change, .. }) = outcome {
                push(&mut self.changes, *change);
            }
        }
    }

    fn new_command(&mut self, random: &mut Random, now: Millis) -> Command {
        let account = self.accounts[random.draw_index(self.accounts.len())];
        let (to, amount) = (account, Credits(random.draw_between(1, 5_000)));
        match random.draw_below(100) {
            0..5 => {
                let account = AccountKey::from(&key(random));
                Command::Deposit { account, amount }
            }
            5..25 => Command::Deposit { account, amount },
            25..50 => self.draw_decision(random),
            50..60 => {
                let amount = Credits(random.draw_between(1, 50));
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
                let at = Millis(now.0 + NOTICE.0 + random.draw_between(200, 12_000));
                let settings = (0..random.draw_between(1, 3)).map(|_| draw_setting(random));
                let settings = settings.collect();
                Command::ChangeRules { settings, at }
            }
            _ => match self.changes.pop() {
                Some(change) => Command::KeepRules { change },
                None if self.upgrades < UPGRADES_MAX => self.announce_upgrade(now),
                None => Command::Collect { to, amount },
            },
        }
    }

    /// Returns the announcement of the latest version of the rules. It comes again, because it may
    /// be lost or approved too late; each time puts the version off, until it applies.
    fn announce_upgrade(&mut self, now: Millis) -> Command {
        self.upgrades += 1;
        Command::Upgrade(Upgrade {
            to: RULES_VERSION,
            at: Millis(now.0 + UPGRADE_NOTICE.0),
        })
    }

    /// Returns a decision about a request, or about one that does not exist.
    fn draw_decision(&mut self, random: &mut Random) -> Command {
        let request = self.requests.pop();
        let request = request.unwrap_or(RequestId(random.draw_below(100)));
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

/// Returns a random change of a rule within limits that keep the market working.
fn draw_setting(random: &mut Random) -> Setting {
    let number = |rule, value| Setting::Number { rule, value };
    match random.draw_below(9) {
        0 => number(Rule::FeeBasisPoints, random.draw_below(1_000)),
        1 => number(Rule::AskDeposit, random.draw_between(1, 50_000)),
        2 => number(Rule::OrdersMax, random.draw_between(2, 60)),
        3 => number(Rule::OpenOrdersMax, random.draw_between(4, 100)),
        4 => number(Rule::RequestsMax, random.draw_between(1, 8)),
        5 => number(Rule::ClosedLeasesKept, random.draw_between(100, 900)),
        6 => number(Rule::DepositCapDay, random.draw_below(1_000_000)),
        7 => number(Rule::WithdrawalCapDay, random.draw_below(1_000_000)),
        _ => Setting::Class(ClassRules {
            class: device_resources().class(),
            tick: Price(random.draw_between(1, 3)),
            lot: Units(1),
        }),
    }
}
