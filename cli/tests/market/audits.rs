//! Tests `souk audit`: it must find the provider that sold answers of a cheaper model under the
//! same name, and `souk openai` must stop buying from it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use souk_node::memory::{F16, Tensor, safetensors};

use crate::chats::Server;
use crate::common::Market;
use crate::endpoints::ask;
use crate::seller::{Seller, until};

const MODEL: &str = "souk/glossary";

/// Questions whose answers the model did not learn by heart.
const QUESTIONS: [&str; 12] = [
    "Why does a tab end?",
    "Compare escrow with a lease.",
    "Who pays for a note?",
    "Explain a receipt to a child.",
    "When does a session end?",
    "What has a stake to do with a bid?",
    "Is a slot a device?",
    "Who may read the log?",
    "Why is a sandbox small?",
    "Describe a price in other words.",
    "What comes after a settlement?",
    "How does a buyer find an ask?",
];

/// Writes the bundled model to a folder with its matrices in 4 bits, as q4_0 rounds them.
fn write_cheaper_model(folder: &Path) -> PathBuf {
    let home = folder.join("cheaper");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../llm/models/glossary");
    fs::create_dir_all(&home).expect("a folder is made");
    for name in ["chat_template.jinja", "config.json", "tokenizer.json"] {
        fs::copy(source.join(name), home.join(name)).expect("a file is copied");
    }
    let file = fs::read(source.join("model.safetensors")).expect("weights");
    let read = safetensors::read(&file.into()).expect("weights are read");
    let rounded = read.into_iter().map(|(name, tensor)| {
        let mut halves = tensor.to_vec::<F16>().expect("they are halves");
        if tensor.dims().len() > 1 {
            halves.chunks_mut(32).for_each(round_block);
        }
        let tensor = Tensor::from_vec(tensor.dims(), halves).expect("as many as before");
        (name, tensor)
    });
    let rounded = safetensors::write(&rounded.collect()).expect("weights are written");
    fs::write(home.join("model.safetensors"), rounded).expect("a file is written");
    home
}

/// Rounds a block to 16 steps, so that the number of the largest magnitude is the first one.
fn round_block(block: &mut [F16]) {
    let largest = block.iter().map(|it| it.to_f32());
    let largest = largest.fold(0.0_f32, |most, it| match it.abs() > most.abs() {
        true => it,
        false => most,
    });
    let step = F16::from_f32(largest / -8.0).to_f32();
    for it in block.iter_mut().filter(|_| step != 0.0) {
        let code = (it.to_f32() / step + 8.5).floor().clamp(0.0, 15.0);
        *it = F16::from_f32((code - 8.0) * step);
    }
}

fn serve(market: &Market, name: &str, model: &str) -> Seller {
    let price = ["--out", "0.2", "--slots", "2"];
    let mut seller = Seller::of_model(market, name, (model, MODEL), &price);
    seller.start();
    until("its ask is in the book", || {
        let offers = market.souk(&["model", "show", MODEL]);
        offers.code == 0 && offers.stdout.contains(name)
    });
    seller
}

/// Asks all questions of a provider, at temperature 0 and by seed.
fn ask_all(server: &Server, provider: &str) {
    for (number, question) in QUESTIONS.iter().enumerate() {
        for temperature in [0.0, 1.0] {
            let asked = json!({
                "model": MODEL, "provider": { "only": [provider] }, "max_tokens": 60,
                "temperature": temperature, "seed": 40 + number,
                "messages": [{ "role": "user", "content": question }],
            });
            ask(server, &asked).of(200);
        }
    }
}

fn transcripts(market: &Market) -> Vec<PathBuf> {
    let folder = market.folder().join("net/buyer/transcripts");
    let entries = fs::read_dir(folder).expect("the folder is there");
    entries
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

fn audit_of<'a>(audits: &'a Value, seller: &Seller) -> &'a Value {
    let account = seller.account().to_string();
    let audits = audits.as_array().expect("a list");
    let found = audits.iter().find(|it| it["provider"] == account.as_str());
    found.unwrap_or_else(|| panic!("no audit of {account}: {audits:?}"))
}

/// Audits one provider alone, whose transcripts stay, and forgets the audit again.
fn leave_to_itself(market: &Market, seller: &Seller) {
    let aside = market.folder().join("aside");
    fs::create_dir_all(&aside).expect("a folder is made");
    let account = seller.account().to_string();
    let of_others: Vec<PathBuf> = transcripts(market)
        .into_iter()
        .filter(|path| {
            let text = fs::read_to_string(path).expect("a transcript");
            let read: Value = serde_json::from_str(&text).expect("JSON");
            read["provider"] != account.as_str()
        })
        .collect();
    let moved = |path: &PathBuf| aside.join(path.file_name().expect("a file"));
    for path in &of_others {
        fs::rename(path, moved(path)).expect("a file is moved");
    }
    let alone = market
        .souk(&["audit", "run", MODEL, "--reference", "bundled"])
        .done();
    let alone = audit_of(&alone, seller).clone();
    assert_eq!(alone["tally"]["verdict"], "does_not_fit", "{alone}");
    assert_eq!(alone["leaves"], false, "{alone}");
    let path = PathBuf::from(alone["evidence"].as_str().expect("a path"));
    let id = path
        .file_stem()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    market.souk(&["audit", "forget", &id]).done();
    assert_eq!(market.souk(&["audit", "forget", &id]).code, 3);
    for path in &of_others {
        fs::rename(moved(path), path).expect("a file is moved back");
    }
}

#[test]
fn a_cheaper_version_under_the_same_name_is_named_and_left() {
    let market = Market::with_one_provider();
    let none = market.souk(&["audit", "run", MODEL, "--reference", "bundled"]);
    assert_eq!(none.code, 3, "{}", none.stdout);
    let cheaper = write_cheaper_model(market.folder());
    let honest = serve(&market, "honest", "bundled");
    let cheat = serve(&market, "cheat", &cheaper.display().to_string());
    let server = Server::run(&market, &["--budget", "20", "--keep-transcripts", "40"]);
    ask_all(&server, "honest");
    ask_all(&server, "cheat");
    until("the tabs are settled and kept", || {
        transcripts(&market).len() >= 2
    });
    for path in transcripts(&market) {
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }

    // If nobody else is judged, the reference can be the cause, so the cheat is not left yet.
    leave_to_itself(&market, &cheat);

    let audits = market
        .souk(&["audit", "run", MODEL, "--reference", "bundled"])
        .done();
    let named = audit_of(&audits, &cheat);
    assert_eq!(named["tally"]["verdict"], "does_not_fit", "{named}");
    let cleared = audit_of(&audits, &honest);
    assert_ne!(cleared["tally"]["verdict"], "does_not_fit", "{cleared}");
    assert!(cleared["tally"]["tokens"].as_u64() > Some(200), "{cleared}");
    assert_eq!(cleared["signed_tabs"], cleared["tabs"], "{cleared}");
    let listed = market.souk(&["audit", "list"]).done();
    assert_eq!(listed.as_array().map(Vec::len), Some(2));
    let offers = market.souk(&["model", "show", MODEL]).done();
    let shown = offers.as_array().expect("offers").iter();
    let shown = shown.filter(|it| it["audited"]["verdict"] == "does_not_fit");
    let shown: Vec<&Value> = shown.map(|it| &it["provider_name"]).collect();
    assert_eq!(shown, ["cheat"]);

    // The running server leaves the cheat within moments, and says why.
    let only = json!({
        "model": MODEL, "provider": { "only": ["cheat"] }, "max_tokens": 4,
        "messages": [{ "role": "user", "content": "Why?" }],
    });
    until("the cheat is left", || {
        let answer = ask(&server, &only);
        answer.status == 400 && answer.json().to_string().contains("audit")
    });
    ask(
        &server,
        &json!({ "model": MODEL, "max_tokens": 4,
        "messages": [{ "role": "user", "content": "Why?" }] }),
    )
    .of(200);

    // A stranger reads the evidence offline, and finds out if it was changed.
    let evidence = market
        .folder()
        .join("net")
        .join(named["evidence"].as_str().expect("a path"));
    let verify = |path: &Path| {
        let path = path.display().to_string();
        market.souk(&["audit", "verify", &path, "--reference", "bundled"])
    };
    let again = verify(&evidence).done();
    assert_eq!(
        again["result"]["tally"]["verdict"], "does_not_fit",
        "{again}"
    );
    assert_eq!(again["signed_tabs"], again["tabs"], "{again}");
    let text = fs::read_to_string(&evidence).expect("evidence");
    let mut forged: Value = serde_json::from_str(&text).expect("JSON");
    // Blames the honest provider for the texts of the other one.
    forged["result"]["provider"] = json!(honest.account());
    for tab in forged["tabs"].as_array_mut().expect("tabs") {
        tab["provider"] = json!(honest.account());
    }
    let path = market.folder().join("forged.json");
    fs::write(&path, forged.to_string()).expect("a file is written");
    let refused = verify(&path);
    assert_eq!(refused.code, 7, "{}", refused.stdout);
}
