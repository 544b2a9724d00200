//! Tests `souk generate` in a market of real processes: a text must be that of this machine, even
//! if its provider dies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use souk_node::memory::{Tensor, safetensors};

use crate::common::{Market, Ran, SOUK, kill};
use crate::hand::Hand;
use crate::seller::{Seller, until};

/// Tokens of a text.
const TOKENS: &str = "24";
const PROMPT: &str = "w84 w52 w15 w96 w44 w91 w2 w72 w36";
/// Times the prompt of a text is said, so that it is given in two pieces of unlike lengths.
const TIMES: usize = 30;

/// Numbers between -1 and 1, the same each time.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(seed | 1);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// A decoder of random weights as Hugging Face's tools leave one, its words numbers.
pub fn model(market: &Market) -> String {
    model_of(market, 0)
}

/// One of so many experts in each layer, of which each row goes through two.
fn model_of(market: &Market, experts: usize) -> String {
    let (hidden, wide, vocabulary, layers) = (64, 96, 97, 3);
    let mut sizes = BTreeMap::from([
        (
            "model.embed_tokens.weight".to_owned(),
            vec![vocabulary, hidden],
        ),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ]);
    for layer in 0..layers {
        let own: [(&str, &[usize]); 6] = [
            ("input_layernorm", &[hidden]),
            ("post_attention_layernorm", &[hidden]),
            ("self_attn.q_proj", &[hidden, hidden]),
            ("self_attn.k_proj", &[hidden / 2, hidden]),
            ("self_attn.v_proj", &[hidden / 2, hidden]),
            ("self_attn.o_proj", &[hidden, hidden]),
        ];
        let mut add = |part: &str, dims: &[usize]| {
            sizes.insert(format!("model.layers.{layer}.{part}.weight"), dims.to_vec());
        };
        for (part, dims) in own {
            add(part, dims);
        }
        let parts: [(&str, [usize; 2]); 3] = match experts {
            0 => [
                ("mlp.gate_proj", [wide, hidden]),
                ("mlp.up_proj", [wide, hidden]),
                ("mlp.down_proj", [hidden, wide]),
            ],
            _ => [
                ("w1", [wide, hidden]),
                ("w3", [wide, hidden]),
                ("w2", [hidden, wide]),
            ],
        };
        for (part, dims) in parts {
            let expert = |at| format!("block_sparse_moe.experts.{at}.{part}");
            (0..experts).for_each(|at| add(&expert(at), &dims));
            if experts == 0 {
                add(part, &dims);
            }
        }
        if experts > 0 {
            add("block_sparse_moe.gate", &[experts, hidden]);
        }
    }
    let weights = sizes.into_iter().zip(1..).map(|((name, dims), seed)| {
        let unit = numbers(seed, dims.iter().product()).into_iter();
        let scaled = |unit: f32| match &name {
            name if name.contains("norm") => 1.0 + unit / 4.0,
            name if name.contains("embed") => unit,
            _ => unit / 4.0,
        };
        let values = unit.map(scaled).collect();
        let tensor = Tensor::from_vec(dims, values).expect("as many as the sizes say");
        (name, tensor)
    });
    let weights = safetensors::write(&weights.collect()).expect("they can be written");
    let family = if experts > 0 { "mixtral" } else { "llama" };
    let config = json!({
        "model_type": family, "num_local_experts": experts, "num_experts_per_tok": 2,
        "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": wide,
        "vocab_size": vocabulary, "rms_norm_eps": 1e-5, "max_position_embeddings": 1024,
        "rope_theta": 10000.0, "tie_word_embeddings": true,
    });
    let words = (0..vocabulary).map(|id| (format!("w{id}"), json!(id)));
    let tokenizer = json!({"version": "1.0", "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "unk_token": "w0",
            "vocab": words.collect::<serde_json::Map<_, _>>()}});
    let folder = market.folder().join("model");
    fs::create_dir(&folder).expect("a folder is made");
    let write = |name: &str, bytes: &[u8]| {
        fs::write(folder.join(name), bytes).expect("a file is written");
    };
    write("config.json", config.to_string().as_bytes());
    write("tokenizer.json", tokenizer.to_string().as_bytes());
    let template = "{% for m in messages %}{{ 'w1 ' if m.role == 'user' else 'w2 ' }}\
        {{ m.content }} {% endfor %}w3";
    let template = json!({ "chat_template": template }).to_string();
    write("tokenizer_config.json", template.as_bytes());
    write("model.safetensors", &weights);
    folder.to_string_lossy().into_owned()
}

fn generated(market: &Market, model: &str, more: &[&str]) -> Value {
    run(market, model, more).done()
}

fn run(market: &Market, model: &str, more: &[&str]) -> Ran {
    let prompt = [PROMPT; TIMES].join(" ");
    let asked = [
        "generate",
        model,
        &prompt,
        "--max-tokens",
        TOKENS,
        "--temperature",
        "1.5",
        "--seed",
        "4",
    ];
    market.souk(&[&asked[..], more].concat())
}

/// Starts a command whose output can be read while it runs.
fn spawn_command(market: &Market, arguments: &[&str]) -> Child {
    Command::new(SOUK)
        .arg("--dir")
        .arg(market.folder().join("net"))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

/// Those who are paid.
fn sellers(text: &Value) -> BTreeSet<String> {
    let receipts = text["receipts"].as_array().expect("a list").iter();
    let sellers = receipts.map(|it| {
        it["body"]["provider"]
            .as_str()
            .expect("an account")
            .to_owned()
    });
    sellers.collect()
}

fn sum(receipts: &Value) -> u64 {
    let receipts = receipts.as_array().expect("a list").iter();
    let amounts = receipts.map(|receipt| receipt["body"]["amount"].as_u64());
    amounts.map(|amount| amount.expect("a sum")).sum()
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_text_of_one_provider_or_of_two_is_that_of_this_machine() {
    let market = Market::up();
    let model = model(&market);
    let here = generated(&market, &model, &["--local"]);
    assert_eq!(here["market"], false);
    assert_eq!(here["tokens"].as_array().unwrap().len(), 24);
    for providers in ["1", "2"] {
        let out = market.path(&format!("receipts-{providers}"));
        let more = ["--min-providers", providers, "--budget", "60", "-o", &out];
        let sold = generated(&market, &model, &more);
        assert_eq!(sold["tokens"], here["tokens"]);
        assert_eq!(sold["text"], here["text"]);
        let receipts = sold["receipts"].as_array().unwrap();
        // On a busy machine a text may go on in another session, of others.
        let sellers = sellers(&sold);
        assert!(sellers.len() >= providers.parse().unwrap(), "{sellers:?}");
        for receipt in receipts {
            let body = &receipt["body"];
            // What travelled is named by one hash, and no state is among it.
            assert_eq!(body["outputs"].as_array().unwrap().len(), 1, "{body}");
            let file = format!("receipt-{}.json", body["lease"]);
            let written = fs::read(Path::new(&out).join(file)).unwrap();
            let written: Value = serde_json::from_slice(&written).unwrap();
            assert_eq!(written, *receipt);
        }
        assert!(sum(&sold["receipts"]) <= 60_000_000);
    }
    // Drafted tokens change no text; the likeliest ones repeat, so some of them are right.
    let asked = ["generate", &model, PROMPT, "--max-tokens", "48"];
    let plain = market.souk(&[&asked[..], &["--local"]].concat()).done();
    let more = ["--draft", "8", "--budget", "60"];
    let drafted = market.souk(&[&asked[..], &more].concat()).done();
    assert_eq!(drafted["tokens"], plain["tokens"]);
    assert!(drafted["accepted"].as_u64().unwrap() > 0, "{drafted}");
    market.assert_escrow_returns();
}

/// Who sells the operator of experts is found by its name, as for any other.
#[test]
#[ignore = "long: .ci/long runs it"]
fn a_text_of_a_mixture_of_experts_of_two_providers_is_that_of_this_machine() {
    let market = Market::up();
    let model = model_of(&market, 4);
    let here = generated(&market, &model, &["--local"]);
    let two = ["--min-providers", "2", "--budget", "60"];
    let sold = generated(&market, &model, &two);
    assert_eq!(sold["tokens"], here["tokens"]);
    assert!(sellers(&sold).len() >= 2, "{sold}");
    market.assert_escrow_returns();
}

#[test]
fn a_text_that_two_make_is_the_right_one_though_one_of_them_lies() {
    let market = Market::up();
    let model = model(&market);
    let here = generated(&market, &model, &["--local"]);
    let verified = ["--verify", "2", "--budget", "90"];
    let honest = generated(&market, &model, &verified);
    assert_eq!(honest["tokens"], here["tokens"]);
    let two = sellers(&honest);
    assert!(two.len() >= 2, "nobody is compared with himself: {honest}");
    // The first provider sells this machine's CPU, and only emulated devices play faults.
    let emulated = ["provider-2", "provider-3", "provider-4"];
    let liar = emulated
        .into_iter()
        .find(|name| two.contains(&market.account_of(name)));
    let liar = liar.expect("one of two is emulated");
    market.set_in_provider(liar, &[("fault", "lie".into()), ("fault_after", 5.into())]);
    let judged = run(&market, &model, &verified);
    let told = judged.stderr.clone();
    let judged = judged.done();
    assert_eq!(judged["tokens"], here["tokens"], "{told}");
    assert_eq!(judged["text"], here["text"]);
    // A token that the model does not have shows the lie before any comparison.
    let is_named = |line: &&str| {
        line.contains("is outvoted") || line.contains("drew a token that the model does not have")
    };
    let line = told.lines().find(is_named).unwrap_or_default();
    assert!(line.starts_with(&format!("{liar} ")), "{told}");
    market.assert_escrow_returns();
}

#[test]
fn a_text_of_a_gpu_or_half_of_one_is_that_of_this_machine() {
    if std::env::var_os("SOUK_TEST_GPU").is_none() {
        eprintln!("SKIPPED: SOUK_TEST_GPU is not set");
        return;
    }
    let market = Market::with_one_provider();
    let model = model(&market);
    let asked = ["generate", &model, PROMPT, "--max-tokens", TOKENS];
    let asked = [&asked[..], &["--temperature", "1.5", "--seed", "4"]].concat();
    let here = market.souk(&[&asked[..], &["--local"]].concat()).done();
    let mut seller = Seller::init(&market, "painter");
    seller.sell_gpu("llvmpipe");
    seller.start();
    let hand = Hand::join(&market);
    until("its ask is there", || {
        hand.listing(seller.account()).is_some()
    });
    for (more, parts) in [(["--device", "llvmpipe"], 1), (["--min-providers", "2"], 2)] {
        let more = [&asked[..], &more, &["--budget", "60"]].concat();
        let sold = market.souk(&more).done();
        assert_eq!(sold["tokens"], here["tokens"]);
        let sellers = sellers(&sold);
        assert_eq!(sellers.len(), parts, "{sellers:?}");
        let own = json!(seller.account());
        let own = own.as_str().expect("an account is told as a text");
        assert!(sellers.contains(own), "{sellers:?} without {own}");
    }
    market.assert_escrow_returns();
}

#[test]
fn a_text_whose_budget_is_too_small_is_refused_and_costs_nothing() {
    let market = Market::up();
    let model = model(&market);
    let asked = ["generate", &model, PROMPT, "--budget", "0"];
    let refused = market.souk(&asked);
    assert_ne!(refused.code, 0);
    assert!(refused.stdout.contains("--budget"), "{}", refused.stdout);
    // A part of what the leases of so many requests hold: it is known before any is bought, and is
    // not tried again and again.
    let asked = [
        "generate",
        &model,
        PROMPT,
        "--max-tokens",
        "1000",
        "--min-providers",
        "2",
    ];
    let refused = market.souk(&[&asked[..], &["--budget", "2"]].concat());
    assert_eq!(refused.code, 9, "{}", refused.stdout);
    assert!(
        refused.stderr.matches("buying another").count() == 0,
        "{}",
        refused.stderr
    );
    let facts: Value = serde_json::from_str(&refused.stdout).expect("JSON");
    let cause = facts["error"]["cause"].as_str().expect("a cause");
    assert!(cause.contains("hold"), "{cause}");
    assert_eq!(market.souk(&["balance"]).done()["totals"]["escrow"], 0);
}

#[test]
fn a_text_goes_on_in_the_same_words_when_its_provider_is_killed() {
    goes_on_when_its_provider_is_killed(&Market::up());
}

/// There is nobody else: it is waited for.
#[test]
#[ignore = "long: .ci/long runs it"]
fn a_text_goes_on_when_its_only_provider_is_killed_and_comes_back() {
    goes_on_when_its_provider_is_killed(&Market::with_one_provider());
}

fn goes_on_when_its_provider_is_killed(market: &Market) {
    let model = model(market);
    let many = [
        "generate",
        &model,
        PROMPT,
        "--max-tokens",
        "200",
        "--temperature",
        "1.5",
    ];
    let here = market.souk(&[&many[..], &["--local"]].concat()).done();
    let mut buyer = spawn_command(market, &many);
    let mut told = BufReader::new(buyer.stderr.take().expect("it is a pipe")).lines();
    let mut said = String::new();
    let seer = told.by_ref().map_while(Result::ok).find_map(|line| {
        said.push_str(&line);
        let (_, rest) = line.split_once("seen by ")?;
        rest.split(' ').next().map(str::to_owned)
    });
    let seer = seer.unwrap_or_else(|| panic!("nobody sees the text: {said}"));
    let mut stdout = buyer.stdout.take().expect("it is a pipe");
    let mut text = vec![0; 8];
    stdout.read_exact(&mut text).expect("the text has begun");
    for process in market.processes(&format!("{seer} ")) {
        kill(process, "-9");
    }
    stdout
        .read_to_end(&mut text)
        .expect("the text can be read to its end");
    let rest: Vec<String> = told.map_while(Result::ok).collect();
    let rest = rest.join("\n");
    let ended = buyer.wait().expect("it can be waited for");
    assert!(ended.success(), "{rest}");
    assert!(rest.contains("buying another"), "{rest}");
    let text = String::from_utf8(text).expect("a text");
    assert_eq!(
        text.trim_end(),
        here["text"].as_str().expect("a text").trim_end(),
        "{rest}"
    );
}

/// The jobs of the market's buyer, oldest first.
fn jobs(market: &Market) -> Vec<Value> {
    let jobs = market.souk(&["job", "list"]).done();
    jobs.as_array().expect("a list").clone()
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_session_is_a_job_and_a_user_cancels_it_even_when_its_process_is_dead() {
    let market = Market::up();
    let model = model(&market);
    generated(&market, &model, &[]);
    let [first] = &jobs(&market)[..] else {
        panic!("one job");
    };
    assert_eq!(first["state"], "done");
    // Its answers stay out of the journal: one comes with each token.
    assert_eq!(first["requests_answered"], 0, "{first}");
    let name = first["name"].as_str().expect("a name");
    let status = market.souk(&["job", "status", name]).done();
    assert!(status["spent"].as_u64() > Some(0), "{status}");
    assert!(!market.souk(&["job", "logs", name]).stdout.is_empty());
    let resumed = market.souk(&["job", "resume", name]);
    assert_ne!(resumed.code, 0, "{}", resumed.stdout);
    let cause = resumed.json()["error"]["cause"].to_string();
    assert!(cause.contains("a session of a language model"), "{cause}");

    let long = ["generate", &model, PROMPT, "--max-tokens", "400"];
    for is_killed in [false, true] {
        let mut buyer = spawn_command(&market, &long);
        let mut stdout = buyer.stdout.take().expect("it is a pipe");
        stdout.read_exact(&mut [0; 8]).expect("the text has begun");
        if is_killed {
            kill(buyer.id(), "-9");
            buyer.wait().expect("it can be waited for");
        }
        let last = jobs(&market).pop().expect("a job");
        assert_eq!(last["state"], "running", "{last}");
        let name = last["name"].as_str().expect("a name");
        let cancelled = market.souk(&["job", "cancel", name]).done();
        assert_eq!(cancelled["state"], "interrupted", "{cancelled}");
        let ended = buyer.wait_with_output().expect("it can be waited for");
        assert!(!ended.status.success());
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!said.contains("buying another"), "{said}");
        market.assert_escrow_returns();
    }
}
