//! Tests orders and leases that a user trades by commands, from the bid to the settlement: payments
//! and returned credits must be right to the micro-credit.

use std::time::Duration;

use serde_json::Value;
use souk_folder::key::NodeKey;
use souk_node::market::{ContentId, Receipt};

use crate::common::{Ran, digits};
use crate::founding::{Machines, text};
use crate::seller::until;

/// One lease, in micro-credits: 0.1 credits a second for a minute.
const MINUTE: u64 = 6_000_000;

/// What each account begins with.
const CREDITS: u64 = 100_000_000;

/// A market that takes the half of what is paid, in which nothing is waited for longer than a
/// second.
const RULES: &str = "settle_grace_seconds = 1\nrules_notice_seconds = 1\nstake_hold_seconds = 0\n\
                     fee_basis_points = 5000\n";

/// The market on the founder's machine, and what else trades in it.
struct Hall {
    machines: Machines,
    line: String,
}

impl Hall {
    fn found() -> Hall {
        let mut machines = Machines::new();
        let rules = machines.folder("rules.toml");
        std::fs::write(&rules, RULES).expect("a file is written");
        let listen = "/ip4/127.0.0.1/tcp/0";
        let rules = rules.to_str().expect("a plain path");
        let words = ["market", "create", "--name", "hall", "--listen", listen];
        let found = [&words[..], &["--rules", rules]].concat();
        let line = text(&machines.souk("founder", &found).done()["invitation"]);
        machines.run("founder", "validator");
        machines.until_done("founder", &["market", "classes"]);
        Hall { machines, line }
    }

    /// What a command says that must be done.
    fn done(&self, machine: &str, words: &[&str]) -> Value {
        self.machines.souk(machine, words).done()
    }

    /// The word by which the market refuses a command.
    fn refusal(&self, machine: &str, words: &[&str]) -> String {
        let ran = self.machines.souk(machine, words);
        assert_eq!(ran.code, 8, "{} {}", ran.stdout, ran.stderr);
        text(&ran.json()["error"]["refusal"])
    }

    /// A buyer with credits.
    fn buyer(&self, name: &str) -> String {
        self.done(name, &["market", "join", &self.line]);
        let account = text(&self.done(name, &["account", "new"])["account"]);
        self.done("founder", &["operator", "credit", &account, "100"]);
        account
    }

    /// The folder of a provider, which does not run.
    fn seller(&self, folder: &str, (name, leases, price): (&str, &str, &str)) {
        let parent = folder.split('/').next().expect("there is a first part");
        self.done(parent, &["market", "join", &self.line]);
        let init = ["provider", "init", "--yes", "--device", "amd-epyc-9654"];
        let listen = ["--listen", "/ip4/127.0.0.1/tcp/0", "--leases", leases];
        let named = ["--name", name, "--price", price];
        self.done(folder, &[&init[..], &listen, &named].concat());
    }

    /// Available, in escrow and at stake.
    fn money(&self, machine: &str) -> [u64; 3] {
        let account = &self.done(machine, &["account", "show"])["account"];
        ["available", "escrow", "stake"].map(|part| number(&account[part]))
    }

    fn lease(&self, id: &str) -> Value {
        self.done("founder", &["lease", "show", id])
    }

    /// A lease once it is closed: why, what its provider got, the fee, what came back.
    fn closed(&self, id: &str) -> (String, [u64; 3]) {
        until("it is closed", || self.lease(id)["state"] == "closed");
        let closed = self.lease(id);
        let parts = ["paid", "fee", "refunded"].map(|part| number(&closed[part]));
        (text(&closed["reason"]), parts)
    }

    /// Why an account's credits moved, the oldest first; each movement begins where the one before
    /// ended.
    fn history(&self, machine: &str) -> Vec<String> {
        let history = self.done(machine, &["account", "history"]);
        let movements = history["movements"].as_array().expect("movements").iter();
        let mut before = None;
        for movement in movements.clone() {
            assert!(
                before.is_none_or(|before| before == &movement["before"]),
                "{history}"
            );
            before = Some(&movement["after"]);
        }
        movements.map(|movement| text(&movement["why"])).collect()
    }

    /// Asserts that credits are where they were, and that none are held.
    fn assert_holds(&self, machine: &str, available: u64) {
        until("nothing is held any more", || self.money(machine)[1] == 0);
        assert_eq!(self.money(machine), [available, 0, 0], "{machine}");
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// The milliseconds between two moments less than a day apart, which are RFC 3339 in UTC.
fn between(earlier: &Value, later: &Value) -> i64 {
    let of_day = |moment: &Value| {
        let moment = text(moment);
        let (_, time) = moment.split_once('T').expect("a date and a time");
        let parts = time.trim_end_matches('Z').split(':');
        let parts = parts.map(|part| part.parse::<f64>().expect("a number"));
        (parts.fold(0.0, |sum, part| sum * 60.0 + part) * 1e3).round() as i64
    };
    (of_day(later) - of_day(earlier)).rem_euclid(86_400_000)
}

fn number_of(list: &Value) -> usize {
    list.as_array().map_or(0, Vec::len)
}

fn id(value: &Value) -> String {
    number(value).to_string()
}

/// The lease that an order bought at once.
fn bought(placed: &Value, place: usize) -> String {
    id(&placed["trades"][place]["lease"])
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn what_is_offered_by_hand_is_bought_prolonged_and_ended_by_either_side() {
    let hall = Hall::found();
    hall.buyer("eve");
    hall.seller("ann/atlas", ("atlas", "2", "0.1"));
    let ann = "ann/atlas";
    let ask = ["order", "ask", "--units", "1", "--lease", "2m"];
    // A provider that has nothing offers one lease; the next takes a deposit.
    let first = id(&hall.done(ann, &ask)["order"]);
    let dearer = [&ask[..], &["--price", "0.2"]].concat();
    assert_eq!(hall.refusal(ann, &dearer), "deposit_short");
    let account = text(&hall.done(ann, &["account", "show"])["account"]["account"]);
    hall.done("founder", &["operator", "credit", &account, "1"]);
    let second = id(&hall.done(ann, &dearer)["order"]);
    assert_eq!(hall.money(ann), [990_000, 10_000, 0]);
    let held = |order: &str| number(&hall.done(ann, &["order", "show", order])["held"]);
    assert_eq!((held(&first), held(&second)), (0, 10_000));
    let cancelled = hall.done(ann, &["order", "cancel", &second]);
    assert_eq!(number(&cancelled["released"]), 10_000);
    hall.done(ann, &dearer);

    // Both are bought: the deposit returns, and each lease holds its own price.
    let class = text(&hall.done("eve", &["market", "classes"])[0]["class"]);
    let bid = ["order", "bid", &class, "--price", "0.2", "--lease", "1m"];
    let placed = hall.done("eve", &[&bid[..], &["--units", "2"]].concat());
    let (cheap, dear) = (bought(&placed, 0), bought(&placed, 1));
    assert_eq!(hall.money(ann), [1_000_000, 0, 0]);
    assert_eq!(hall.money("eve"), [CREDITS - 3 * MINUTE, 3 * MINUTE, 0]);

    // As long as the ask allows, at its price.
    let begun = hall.lease(&cheap);
    let extended = hall.done("eve", &["lease", "extend", &cheap, "30"]);
    assert_eq!(number(&extended["escrow"]), MINUTE + MINUTE / 2);
    assert_eq!(between(&begun["ends_at"], &extended["ends_at"]), 30_000);
    let over = ["lease", "extend", &cheap, "31"];
    assert_eq!(hall.refusal("eve", &over), "lease_long");

    // Its buyer ends the one; its provider may not take a firm one back, and gives it up.
    hall.done("eve", &["lease", "end", &dear]);
    let nothing_used = ("buyer_ended".to_owned(), [0, 0, 2 * MINUTE]);
    assert_eq!(hall.closed(&dear), nothing_used);
    assert_eq!(hall.refusal(ann, &["lease", "end", &cheap]), "buyer_only");
    let give_up = ["lease", "give-up", &cheap];
    assert_eq!(hall.refusal("eve", &give_up), "provider_only");
    let reclaim = ["lease", "reclaim", &cheap];
    assert_eq!(hall.refusal(ann, &reclaim), "lease_firm");
    // Stake stands for leases that are open.
    hall.done(ann, &["account", "stake", "0.5"]);
    let unstake = ["account", "unstake", "0.5"];
    assert_eq!(hall.refusal(ann, &unstake), "stake_held");
    assert_eq!(hall.money(ann), [500_000, 0, 500_000]);
    let reputation = || {
        let shown = hall.done(ann, &["account", "show"]);
        number(&shown["account"]["reputation"])
    };
    let before = reputation();
    let refunded = &hall.done(ann, &give_up)["refunded"];
    assert_eq!(number(refunded), MINUTE + MINUTE / 2);
    assert_eq!(reputation(), before, "the two have settled nothing");
    hall.done(ann, &unstake);

    // A spot lease ends with its notice.
    hall.done(ann, &[&ask[..], &["--notice", "1s"]].concat());
    let placed = hall.done("eve", &[&bid[..], &["--spot"]].concat());
    let spot = bought(&placed, 0);
    let deadline = hall.lease(&spot)["ends_at"].clone();
    let reclaimed = hall.done(ann, &["lease", "reclaim", &spot]);
    let sooner = between(&reclaimed["ends_at"], &deadline);
    assert!((1..60_000).contains(&sooner), "{reclaimed}");
    assert_eq!(hall.closed(&spot), ("reclaimed".to_owned(), [0, 0, MINUTE]));

    hall.assert_holds("eve", CREDITS);
    hall.assert_holds(ann, 1_000_000);
    let sold = hall.history(ann);
    assert!(sold.contains(&format!("order {second} rests")), "{sold:?}");
    assert!(
        sold.contains(&format!("lease {cheap} sold; lease {dear} sold")),
        "{sold:?}"
    );
    let paid = hall.history("eve");
    for (lease, why) in [
        (&dear, "ended by the buyer"),
        (&cheap, "given up"),
        (&spot, "reclaimed"),
    ] {
        let told = format!("lease {lease}: nothing paid, {why}");
        assert!(paid.contains(&told), "{paid:?}");
    }
    assert!(
        paid.contains(&format!("lease {cheap} extended")),
        "{paid:?}"
    );
    assert_own_tick(&hall, &class);
    assert_measured_once(&hall);
}

/// A CPU is offered as it was measured before, until its owner has it measured anew.
fn assert_measured_once(hall: &Hall) {
    let own = "own/cpu";
    hall.done("own", &["market", "join", &hall.line]);
    let init = [
        "provider", "init", "--yes", "--device", "cpu", "--price", "1",
    ];
    hall.done(own, &[&init[..], &["--cores", "1"]].concat());
    let file = hall.machines.folder("own/cpu/measured.json");
    let kept = || std::fs::read_to_string(&file).expect("what was measured is kept");
    let first = kept();
    hall.done(own, &["order", "ask"]);
    assert_eq!(kept(), first, "nothing was measured");
    let told = hall.done(own, &["provider", "measure"]);
    assert_ne!(kept(), first);
    let class = &hall.done(own, &["order", "list"])[0]["class"];
    let kind = |class: &Value| text(class).split('-').next().map(str::to_owned);
    assert_eq!(kind(&told["class"]), kind(class), "{told}");
}

/// A class has the tick that its operator gives it, from the announced time on.
fn assert_own_tick(hall: &Hall, class: &str) {
    let change = ["operator", "rules", "change", "--class", class];
    hall.done(
        "founder",
        &[&change[..], &["--tick", "10000", "--notice", "1s"]].concat(),
    );
    until("the class has its tick", || {
        let rules = hall.done("founder", &["operator", "rules", "show"]);
        let own = &rules["rules"]["classes"][0];
        own.is_object() && number(&own["tick"]) == 10_000
    });
    let bid = ["order", "bid", class, "--time-in-force", "ioc"];
    let priced = |price| [&bid[..], &["--price", price]].concat();
    assert_eq!(hall.refusal("eve", &priced("0.305")), "price_off_tick");
    let placed = hall.done("eve", &priced("0.31"));
    assert_eq!(placed["trades"], Value::Array(Vec::new()));
    hall.assert_holds("eve", CREDITS);
}

/// What a job paid: its receipt.
fn submitted(hall: &Hall, buyer: &str, more: &[&str]) -> Value {
    submit(hall, buyer, more).done()["receipts"][0]["body"].clone()
}

fn submit(hall: &Hall, buyer: &str, more: &[&str]) -> Ran {
    let input = format!("images={}", digits("images.npy").display());
    let (model, out) = (
        digits("digits.onnx"),
        hall.machines.folder(&format!("{buyer}-out")),
    );
    let (model, out) = (model.to_string_lossy(), out.to_string_lossy());
    let submit = ["submit", "--emulated", &model, "-i", &input, "-o", &out];
    hall.machines.souk(buyer, &[&submit[..], more].concat())
}

/// What so much use costs at a price, rounded up; and the market's share of that.
fn due(price: u64, receipt: &Value) -> (u64, u64) {
    let amount = (price * number(&receipt["usage"])).div_ceil(1_000_000);
    (amount, amount / 2)
}

#[test]
fn a_lease_is_resold_and_another_displaced_and_each_is_paid_its_own() {
    let mut hall = Hall::found();
    hall.buyer("eve");
    hall.buyer("joe");
    let ann = "ann/atlas";
    hall.seller(ann, ("atlas", "1", "0.1"));
    hall.machines.run(ann, "provider");
    // So that jobs have something to plan over where the device is taken.
    hall.seller("bob/dear", ("dear", "1", "9"));
    hall.done("bob/dear", &["order", "ask"]);
    let offers = || number_of(&hall.done("eve", &["book"]));
    until("both offer", || offers() == 2);
    let class = text(&hall.done("eve", &["market", "classes"])[0]["class"]);

    // Eve buys it at 0.1 and sells the rest at 0.25: Joe's job runs on it.
    let bid = ["order", "bid", &class, "--price", "0.1", "--lease", "10m"];
    let first = bought(&hall.done("eve", &bid), 0);
    assert_eq!(hall.money("eve"), [CREDITS - 10 * MINUTE, 10 * MINUTE, 0]);
    hall.done("eve", &["lease", "resell", &first, "0.25"]);
    let again = ["lease", "resell", &first, "0.3"];
    assert_eq!(hall.refusal("eve", &again), "lease_resold");
    let receipt = submitted(&hall, "joe", &["--bid", "0.25"]);
    assert_eq!(number(&receipt["price"]), 250_000);
    let (amount, _) = due(250_000, &receipt);
    assert_eq!(number(&receipt["amount"]), amount);
    let (owed, share) = due(100_000, &receipt);
    let (gain, gain_share) = (amount - owed, (amount - owed) / 2);
    let second = displaced(&hall, ann);
    let (higher, higher_share) = due(100_001, &second);
    until("every lease is settled", || {
        let leases = hall.done(ann, &["lease", "list"]);
        let mut leases = leases.as_array().expect("a list").iter();
        leases.all(|lease| lease["state"] == "closed")
    });
    hall.assert_holds("joe", CREDITS - amount - higher);
    // A device that Eve holds and does not use costs her a tenth of its price, until she sold its
    // rest and while nothing began.
    let most = CREDITS + gain - gain_share;
    let held = most - hall.money("eve")[0];
    assert!(held < 400_000, "{held}");
    let earned = hall.money(ann)[0];
    let least = owed - share + higher - higher_share;
    assert!((least..=least + held).contains(&earned), "{earned}");

    // What the market took is its operator's to collect, and no more.
    let fees = share + gain_share + higher_share + held - (earned - least);
    assert_eq!(fees_of(&hall), fees);
    let over = ["operator", "collect", &credits(fees + 1)];
    assert_eq!(hall.refusal("founder", &over), "funds_short");
    let collected = hall.done("founder", &["operator", "collect", &credits(fees)]);
    assert_eq!(number(&collected["available"]), fees);
    assert_eq!(fees_of(&hall), 0);
    assert_fault_is_proven(&hall, ann, &second);

    // A provider that has nothing to do does not wait for a market that is gone.
    hall.machines.kill(0);
    assert!(hall.machines.terminated(1) < Duration::from_secs(10));
}

/// A provider that signs another result of the same work loses what it has at stake.
fn assert_fault_is_proven(hall: &Hall, ann: &str, receipt: &Value) {
    let lease = id(&receipt["lease"]);
    let first = hall
        .machines
        .folder(&format!("joe-out/receipt-{lease}.json"));
    let other = hall.machines.folder("other.json");
    let paths = [&first, &other].map(|path| path.to_string_lossy().into_owned());
    let prove = ["receipt", "prove", &paths[0], &paths[1]];
    let text = std::fs::read_to_string(&first).expect("a receipt");
    let mut lie: Receipt = serde_json::from_str(&text).expect("a receipt");
    let put = |receipt: &Receipt| {
        let text = serde_json::to_string(receipt).expect("it has only named fields");
        std::fs::write(&other, text).expect("a file is written");
    };
    put(&lie);
    let same = hall.machines.souk("eve", &prove);
    assert_eq!(same.code, 3, "{}", same.stdout);
    lie.body.outputs[0] = ContentId([7; 32]);
    put(&lie);
    let forged = hall.machines.souk("eve", &prove);
    assert_eq!(forged.code, 7, "{}", forged.stdout);
    let key = NodeKey::load(&hall.machines.folder(ann).join("key")).expect("a key");
    put(&Receipt::new(lie.body).sign_as_provider(key.signing_key()));

    let [staked, ..] = hall.money(ann);
    hall.done(ann, &["account", "stake", &credits(staked)]);
    let [before, ..] = hall.money("joe");
    let proven = hall.done("eve", &prove);
    let cost = number(&receipt["amount"]);
    let compensated = (staked / 2).min(cost);
    assert_eq!(number(&proven["slashed"]), staked);
    assert_eq!(number(&proven["compensated"]), compensated);
    hall.assert_holds(ann, 0);
    hall.assert_holds("joe", before + compensated);
    assert_eq!(fees_of(hall), staked - compensated);
    assert_eq!(hall.refusal("eve", &prove), "fault_known");
}

/// An amount as commands take it.
fn credits(micro: u64) -> String {
    format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000)
}

/// What the market has earned, and nobody has collected.
fn fees_of(hall: &Hall) -> u64 {
    let balance = hall.done("founder", &["balance"]);
    assert_eq!(balance["totals"]["balanced"], true);
    number(&balance["totals"]["fees"])
}

/// Joe's job takes the device of Eve's, which is spot and has not begun: his receipt.
fn displaced(hall: &Hall, ann: &str) -> Value {
    let slowly = ["--spot", "--max-price", "0.1", "--upload-limit", "1KiB"];
    let leases = || hall.done(ann, &["lease", "list"]);
    let runs = |lease: &Value| lease["state"] == "active" && lease["term"] == "spot";
    std::thread::scope(|scope| {
        let eve = scope.spawn(|| submit(hall, "eve", &slowly));
        until("Eve has a spot lease", || {
            leases().as_array().is_some_and(|all| all.iter().any(runs))
        });
        let spot = id(&leases()[0]["lease"]);
        let receipt = submitted(hall, "joe", &["--bid", "0.2", "--displace", "10s"]);
        assert_eq!(number(&receipt["price"]), 100_001, "a tick more than hers");
        // Whether it ends by notice or she refuses what came to nothing before.
        let (_, [paid, ..]) = hall.closed(&spot);
        assert_eq!(
            (&hall.lease(&spot)["successor"], paid),
            (&receipt["lease"], 0)
        );
        // Hers would go on with it, as slowly.
        let jobs = hall.done("eve", &["job", "list"]);
        let name = text(&jobs[0]["name"]);
        hall.done("eve", &["job", "cancel", &name]);
        assert_eq!(eve.join().expect("it ends").code, 130);
        receipt
    })
}
