//! Tests `souk train` in a market of real processes: results as in PyTorch, resumed runs, and
//! faulty providers.

use std::fs;

use serde_json::{Value, json};
use souk_node::memory::{Shape, Tensor, npy};
use souk_onnx as onnx;

use crate::common::{Market, Ran, digits, kill, souk};

/// The losses of the first steps by PyTorch; `scheduler/tests/reference/training.py` printed them.
const LOSSES: [f64; 3] = [16.618235, 17.656204, 18.359743];

fn read_digits(name: &str) -> Tensor {
    let bytes = fs::read(digits(name)).expect("it is there");
    npy::read(&bytes.into()).expect("it is an array")
}

/// Returns the number of each digit, plus three.
fn moved_labels() -> Tensor {
    let labels = read_digits("labels.npy");
    let moved = labels.to_vec::<i64>().expect("they are integers");
    let moved: Vec<i64> = moved.iter().map(|digit| (digit + 3) % 10).collect();
    Tensor::from_vec(labels.dims(), moved).expect("the same shape")
}

/// Trains the digits model to give each digit plus three.
fn train(market: &Market, more: &[&str]) -> Ran {
    let labels = format!("labels={}", market.write("moved.npy", &moved_labels()));
    let images = format!("images={}", digits("images.npy").display());
    let model = digits("digits.onnx").to_string_lossy().into_owned();
    let arguments = [
        "train", &model, "-i", &images, "--target", &labels, "--loss",
    ];
    let settings = [
        "cross-entropy",
        "--batch",
        "36",
        "--lr",
        "2e-4",
        "--in-order",
    ];
    market.souk(&[&arguments[..], &settings, more].concat())
}

fn weights(path: &std::path::Path) -> Vec<onnx::TensorProto> {
    let bytes = fs::read(path).expect("the model is there").into();
    let model = onnx::decode_model(bytes).expect("it is a model");
    model.graph.expect("a model has a graph").initializer
}

#[test]
fn a_model_is_trained_over_a_lease_with_the_losses_of_pytorch() {
    let market = Market::up();
    let plan = train(&market, &["--steps", "3", "--plan"]).done();
    assert_eq!(
        (&plan["steps"], &plan["parameters"]),
        (&3.into(), &34_586.into())
    );
    let out = market.path("tuned.onnx");
    let options = [
        "--steps", "3", "--budget", "20", "--device", "cpu", "-o", &out,
    ];
    let done = train(&market, &options).done();
    let losses = done["losses"].as_array().expect("a loss for each step");
    let losses: Vec<f64> = losses.iter().filter_map(Value::as_f64).collect();
    assert_eq!(losses.len(), LOSSES.len(), "{losses:?}");
    for (found, expected) in losses.iter().zip(LOSSES) {
        assert!(
            (found - expected).abs() <= 1e-5 * expected,
            "{found}, PyTorch {expected}"
        );
    }
    assert!(
        done["spent_micro"].as_u64() > Some(0),
        "{}",
        done["spent_micro"]
    );
    let (old, new) = (weights(&digits("digits.onnx")), weights(out.as_ref()));
    assert!(old.iter().zip(&new).all(|(old, new)| old.dims == new.dims));
    assert!(
        old.iter()
            .zip(&new)
            .all(|(old, new)| old.raw_data != new.raw_data)
    );
    let report = fs::read(market.folder().join("tuned.json")).expect("the report is there");
    let report: Value = serde_json::from_slice(&report).expect("it is JSON");
    assert_eq!(report["steps_done"], 3);
    market.assert_escrow_returns();
    // What cannot be trained is found before anything is bought.
    let refused = train(&market, &["--steps", "3", "--freeze", "tail", "-o", &out]);
    assert_eq!(refused.code, 3, "{}", refused.stdout);
}

/// Returns some rows of a tensor.
fn rows(all: &Tensor, from: usize, count: usize) -> Tensor {
    let width = all.bytes().len() / all.dims()[0];
    let bytes = all.bytes().slice(from * width..(from + count) * width);
    let mut dims = all.dims().to_vec();
    dims[0] = count;
    let shape = Shape::new(dims).expect("fewer rows");
    Tensor::new(all.dtype(), shape, bytes).expect("whole rows")
}

#[test]
fn held_out_examples_have_the_loss_of_pytorch_and_change_no_bit() {
    let market = Market::up();
    let (images, labels) = (read_digits("images.npy"), moved_labels());
    // The batch of the second step, whose loss before it is known, and five rows that fill none.
    let images = market.write("held-images.npy", &rows(&images, 36, 41));
    let labels = market.write("held-labels.npy", &rows(&labels, 36, 41));
    let (images, labels) = (format!("images={images}"), format!("labels={labels}"));
    let eval = ["--eval", &images, "--eval", &labels, "--eval-every", "1"];
    let plan = train(&market, &[&eval[..], &["--steps", "3", "--plan"]].concat()).done();
    assert_eq!(plan["evaluations"], 4);
    let run = |name: &str, more: &[&str]| {
        let out = market.path(name);
        let options = [
            "--steps", "3", "--budget", "20", "--device", "cpu", "-o", &out,
        ];
        train(&market, &[&options[..], more].concat()).done()
    };
    let (with, without) = (run("with.onnx", &eval), run("without.onnx", &[]));
    assert_same_training(&with, &without);
    assert_eq!(without["held_out"], Value::Null);
    assert_eq!(with["held_out"]["examples"], 36);
    let held_out = with["held_out"]["losses"].as_array().expect("a list");
    let steps: Vec<&Value> = held_out.iter().map(|it| &it["step"]).collect();
    assert_eq!(steps, [0, 1, 2, 3]);
    let found = held_out[1]["loss"].as_f64().expect("a number");
    assert!((found - LOSSES[1]).abs() <= 1e-5 * LOSSES[1], "{found}");
    let runs = market.souk(&["train", "list"]).json();
    assert_eq!(runs[0]["held_out_loss"], held_out[3]["loss"]);
    // What does not fit is found before anything is bought.
    let out = market.path("refused.onnx");
    for wrong in [
        ["--eval", &images],
        ["--eval", "images.npy"],
        ["--eval-every", "2"],
    ] {
        let refused = train(&market, &[&wrong[..], &["-o", &out]].concat());
        assert!(
            [2, 3].contains(&refused.code),
            "{wrong:?}: {}",
            refused.stdout
        );
    }
    market.assert_escrow_returns();
}

/// Examples for the bundled model, which knows none of this.
const EXAMPLES: [(&str, &str); 4] = [
    ("Who wrote the letter?", "Ada wrote the letter in Turin."),
    (
        "Where is the harbour?",
        "The harbour is behind the old mill.",
    ),
    ("What colour is the boat?", "The boat is green."),
    ("When does the ferry leave?", "The ferry leaves at noon."),
];

#[test]
fn a_language_model_learns_over_a_lease_what_it_could_not_answer() {
    let market = Market::up();
    let lines = EXAMPLES.map(|(question, answer)| {
        let message = |role, text| json!({ "role": role, "content": text });
        let messages = [message("user", question), message("assistant", answer)];
        json!({ "messages": messages }).to_string()
    });
    let data = market.path("data.jsonl");
    fs::write(&data, lines.join("\n")).expect("the folder is there");
    let out = market.path("tuned");
    let train = |more: &[&str]| market.souk(&[&["train", "bundled", &data], more].concat());
    let plan = train(&["--epochs", "24", "--plan"]).done();
    assert_eq!(
        (&plan["steps"], &plan["tokens"]),
        (&24.into(), &2_496.into())
    );
    assert!(plan["price_micro_per_million_tokens"].as_u64() > Some(0));
    let answer = |(question, _): (&str, &str), more: &[&str]| {
        let arguments = ["generate", "bundled", question, "--chat", "--local"];
        let done = market.souk(&[&arguments[..], more].concat()).done();
        done["text"].as_str().expect("a text").to_owned()
    };
    // The model learns one of the two held-out examples, and they fill half a batch.
    let held = market.path("held.jsonl");
    let other = lines[3].replace("noon", "night");
    fs::write(&held, format!("{}\n{other}\n", lines[1])).expect("the folder is there");
    let settings = ["--lr", "3e-3", "--budget", "20", "--device", "cpu"];
    let run = |epochs: &str, out: &str, more: &[&str]| {
        let place = ["--epochs", epochs, "-o", out];
        train(&[&settings[..], &place, more].concat()).done()
    };
    let evaluated = |every| ["--eval", &held, "--eval-every", every];
    let done = run("24", &out, &evaluated("12"));
    let losses = done["losses"].as_array().expect("a loss for each step");
    assert_eq!(losses.len(), 24);
    assert!(
        losses[0].as_f64() > Some(3.0) && losses[23].as_f64() < Some(0.1),
        "{losses:?}"
    );
    for example in EXAMPLES {
        assert_ne!(answer(example, &[]), example.1);
        assert_eq!(answer(example, &["--adapter", &out]), example.1);
    }
    market.assert_escrow_returns();
    let losses = done["held_out"]["losses"].as_array().expect("a list");
    let losses: Vec<f64> = losses.iter().filter_map(|it| it["loss"].as_f64()).collect();
    assert_eq!(losses.len(), 3);
    assert!(losses[0] > 2.0 && losses[2] < losses[0], "{losses:?}");
    // Held-out examples change no bit.
    let with = run("3", &market.path("with"), &evaluated("1"));
    let without = run("3", &market.path("without"), &[]);
    assert_same_training(&with, &without);
    // One step on the same two examples begins with the same loss, also after the training.
    let merged = market.path("merged");
    let first_loss = |model: &str, out: &str| {
        let once = [
            "train", model, &held, "--steps", "1", "--device", "cpu", "-o", out,
        ];
        let done = market.souk(&once).done();
        done["losses"][0].as_f64().expect("a number")
    };
    let before = first_loss("bundled", &market.path("before"));
    assert!((before - losses[0]).abs() < 1e-4, "{before}, {losses:?}");
    let done = market.souk(&[
        "model",
        "merge",
        "bundled",
        "--adapter",
        &out,
        "-o",
        &merged,
    ]);
    done.done();
    let after = first_loss(&merged, &market.path("after"));
    assert!((after - losses[2]).abs() < 1e-3, "{after}, {losses:?}");
    let long = "a word ".repeat(40);
    let long = json!({ "prompt": "?", "completion": long }).to_string();
    fs::write(&held, long).expect("the folder is there");
    let refused = train(&["--eval", &held, "-o", &market.path("refused")]);
    assert_eq!(refused.code, 3, "{}", refused.stdout);
    assert!(
        refused.json()["error"]["cause"]
            .to_string()
            .contains("line 1")
    );
    let (question, expected) = EXAMPLES[0];
    let arguments = ["generate", &merged, question, "--chat", "--local"];
    assert_eq!(market.souk(&arguments).done()["text"], expected);
    // What does not fit is found before anything is bought.
    for wrong in [["--rank", "0"], ["--targets", "lm_head"], ["--length", "9"]] {
        let refused = train(&[&wrong[..], &["-o", &out]].concat());
        assert_eq!(refused.code, 3, "{}", refused.stdout);
    }
}

/// The steps of a run whose buyer is killed and whose provider dies.
const STEPS: u64 = 8;

/// The runs that go well before the first device dies: the first held-out loss, and twice two steps
/// with one more. The states of four steps are kept then.
const RUNS_BEFORE_DEATH: u64 = 7;

/// The runs that go well before the second device stalls: two steps, a held-out loss, and a step.
/// The states of two more steps are kept then.
const RUNS_BEFORE_STALL: u64 = 4;

/// Arguments that train the bundled classifier for [`STEPS`] steps.
fn interrupted_run(market: &Market, out: &str) -> Vec<String> {
    let file = |name: &str| digits(name).to_string_lossy().into_owned();
    let images = format!("images={}", file("images.npy"));
    let labels = format!("labels={}", file("labels.npy"));
    let held_out = ["images.npy", "labels.npy"].map(|name| {
        let batch = rows(&read_digits(name), 0, 36);
        let input = name.trim_end_matches(".npy");
        format!("{input}={}", market.write(&format!("held-{name}"), &batch))
    });
    let model = file("digits.onnx");
    let settings = "--loss cross-entropy --batch 36 --lr 2e-4 --eval-every 2 --prefer cheapest";
    let lease = format!("--steps {STEPS} --keep 2 --budget 50 --device cpu -o {out}");
    let words = ["train", &model, "-i", &images, "--target", &labels];
    let held_out = ["--eval", &held_out[0], "--eval", &held_out[1]];
    let words = [&words[..], &held_out].concat();
    let options = settings.split(' ').chain(lease.split(' '));
    words
        .into_iter()
        .chain(options)
        .map(str::to_owned)
        .collect()
}

/// Runs `souk` with the arguments of a run.
fn run_to_end(market: &Market, arguments: &[String]) -> Ran {
    market.souk(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the number of steps that a run has kept.
fn steps_kept(market: &Market, out: &str) -> u64 {
    let runs = market.souk(&["train", "list"]).json();
    let runs = runs.as_array().expect("a list").iter();
    let mut runs = runs.filter(|run| run["result"] == out);
    runs.next()
        .map_or(0, |run| run["steps_done"].as_u64().expect("a number"))
}

/// Asserts that two runs made the same, to the bit, and have the same held-out losses.
fn assert_same(left: &Value, right: &Value) {
    assert_same_training(left, right);
    let held_out = &left["held_out"]["losses"];
    assert_eq!(held_out.as_array().map(Vec::len), Some(5), "{held_out}");
    assert_eq!(held_out, &right["held_out"]["losses"]);
}

fn assert_same_training(left: &Value, right: &Value) {
    assert_eq!(left["losses"], right["losses"], "each batch counts once");
    assert_eq!(left["steps_done"], right["steps_done"]);
    assert_eq!(left["tuned"]["blake3"], right["tuned"]["blake3"]);
}

/// Has the two cheapest CPUs play a fault each: the cheapest one, where a run begins, dies, and the
/// next one stalls.
fn make_faulty(market: &Market) {
    let plays = |fault: &str, runs: u64, price: u64| {
        vec![
            (
                "device",
                json!({ "emulated": { "profile": "amd-epyc-9654" } }),
            ),
            ("fault", json!(fault)),
            ("fault_after", json!(runs)),
            ("price", json!(price)),
        ]
    };
    market.set_in_providers([
        ("provider-3", plays("die", RUNS_BEFORE_DEATH, 1)),
        ("provider-4", plays("stall", RUNS_BEFORE_STALL, 2)),
    ]);
}

/// Starts a run, and kills its buyer when so many steps are kept. Returns what it said.
fn kill_buyer(market: &Market, arguments: &[String], out: &str, steps: u64) -> String {
    let log = market.folder().join("buyer.log");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_souk"));
    command.arg("--dir").arg(market.folder().join("net"));
    command
        .args(arguments)
        .stdout(std::process::Stdio::null())
        .stderr(fs::File::create(&log).expect("a file is made"));
    let mut buyer = command.spawn().expect("souk starts");
    let begin = std::time::Instant::now();
    while steps_kept(market, out) < steps {
        assert!(begin.elapsed().as_secs() < 600, "it keeps steps in time");
        let ended = buyer.try_wait().expect("it is a child of this process");
        assert_eq!(ended, None, "it keeps steps before it ends");
    }
    let busy = market.souk(&["train", "resume", out]);
    assert_eq!(busy.code, 8, "it is at work: {}", busy.stdout);
    kill(buyer.id(), "-9");
    let ended = buyer.wait().expect("it was killed");
    assert_eq!(ended.code(), None, "it had not ended by itself");
    fs::read_to_string(&log).expect("a text")
}

/// Asserts that a run with kept steps is not replaced, and not resumed from another account.
fn assert_run_is_its_buyers(market: &Market, arguments: &[String], out: &str) {
    let again = run_to_end(market, arguments);
    assert_eq!(
        again.code, 8,
        "a run with steps is not replaced: {}",
        again.stdout
    );
    let net = market.folder().join("net");
    let other = net.join("other");
    fs::create_dir_all(other.join("buyer")).expect("a folder");
    fs::copy(net.join("operator/key"), other.join("buyer/key")).expect("a key");
    let other = souk(&other, &["train", "resume", out]);
    assert_eq!(other.code, 8, "another account: {}", other.stdout);
    let cause = other.json()["error"]["cause"].to_string();
    assert!(cause.contains("began the run"), "{cause}");
}

#[test]
fn a_run_whose_provider_dies_and_whose_buyer_is_killed_makes_the_same() {
    let market = Market::up();
    let out = market.path("undisturbed.onnx");
    let undisturbed = run_to_end(&market, &interrupted_run(&market, &out)).done();

    make_faulty(&market);
    let out = market.path("tuned.onnx");
    let arguments = interrupted_run(&market, &out);
    // The second device stalls there.
    let said = kill_buyer(&market, &arguments, &out, 6);
    // On a slow machine the time of its lease is over before the first device dies.
    let ends = ["the lease ended early: ", "the lease is over; "];
    assert!(ends.iter().any(|end| said.contains(end)), "{said}");
    let kept = steps_kept(&market, &out);
    assert!((6..STEPS).contains(&kept), "{kept} steps");
    assert_run_is_its_buyers(&market, &arguments, &out);
    let resumed = market.souk(&["train", "resume", &out]).done();
    assert_same(&resumed, &undisturbed);
    let runs = market.souk(&["train", "list"]).json();
    let states: Vec<&Value> = runs
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| &it["state"])
        .collect();
    assert_eq!(states, ["done", "done"]);
    let done = market.souk(&["train", "resume", &out]);
    assert_eq!(done.code, 8, "nothing is left to do: {}", done.stdout);
    market.assert_escrow_returns();
}

/// The prices of the two cheapest CPUs, in micro-credits for a second.
const PRICES: [u64; 2] = [1, 2];

/// Has the two cheapest devices be CPUs of the same kind.
fn sell_two_cpus(market: &Market, faults: [&[(&'static str, Value)]; 2]) {
    let sold = |place: usize| {
        let cpu = json!({ "emulated": { "profile": "amd-epyc-9654" } });
        let sold = [("device", cpu), ("price", json!(PRICES[place]))];
        [&sold[..], faults[place]].concat()
    };
    market.set_in_providers([("provider-3", sold(0)), ("provider-4", sold(1))]);
}

/// Returns the number of providers in the receipts of a run.
fn count_providers(done: &Value) -> usize {
    let receipts = done["receipts"].as_array().expect("a list").iter();
    let providers = receipts.map(|it| it["body"]["provider"].to_string());
    providers.collect::<std::collections::BTreeSet<_>>().len()
}

#[test]
fn two_workers_make_the_same_on_one_and_on_two_providers() {
    let market = Market::up();
    sell_two_cpus(&market, [&[], &[]]);
    // The batches with which the two workers begin.
    let (images, labels) = (read_digits("images.npy"), moved_labels());
    let images = market.write("held-images.npy", &rows(&images, 0, 72));
    let labels = market.write("held-labels.npy", &rows(&labels, 0, 72));
    let held_out = [format!("images={images}"), format!("labels={labels}")];
    let settings = "--steps 5 --workers 2 --round 2 --budget 20 --device cpu --prefer cheapest";
    let run = |name: &str, price: &str, more: &[&str]| {
        let out = market.path(name);
        let place = ["--max-price", price, "-o", &out];
        let settings: Vec<&str> = settings.split(' ').collect();
        train(&market, &[&settings, &place[..], more].concat())
    };
    let plan = train(
        &market,
        &[&settings.split(' ').collect::<Vec<_>>()[..], &["--plan"]].concat(),
    );
    let workers = &plan.done()["workers"];
    assert_eq!(
        (&workers["count"], &workers["rounds"]),
        (&2.into(), &3.into())
    );
    // The states are three vectors of 34,586 numbers, for each of two workers.
    assert_eq!(workers["round_bytes_to_workers"], 2 * 3 * 4 * 34_586);
    assert_eq!(workers["round_bytes_from_workers"], 2 * 3 * 4 * 34_586);
    let one = run("one.onnx", "0.000001", &["--keep", "1"]).done();
    assert_eq!(count_providers(&one), 1);
    let eval = [
        "--eval",
        &held_out[0],
        "--eval",
        &held_out[1],
        "--eval-every",
        "3",
    ];
    let two = run("two.onnx", "0.000002", &eval).done();
    assert_eq!(count_providers(&two), 2);
    assert_same_training(&one, &two);
    // The examples are evaluated at the ends of rounds.
    let held_out = two["held_out"]["losses"].as_array().expect("a list");
    let steps: Vec<&Value> = held_out.iter().map(|it| &it["step"]).collect();
    assert_eq!(steps, [0, 4, 5]);
    // Before the first step, their loss is the mean of the workers' first losses.
    let loss = |value: &Value| value.as_f64().expect("a number");
    let (found, expected) = (loss(&two["losses"][0]), loss(&held_out[0]["loss"]));
    assert!(
        (found - expected).abs() <= 1e-6 * expected,
        "{found}, {expected}"
    );
    assert!(
        loss(&held_out[2]["loss"]) < expected,
        "it learns: {held_out:?}"
    );
    market.assert_escrow_returns();
}

#[test]
fn a_run_of_workers_whose_provider_dies_and_whose_buyer_is_killed_makes_the_same() {
    let market = Market::up();
    let arguments = |out: &str| {
        let file = |name: &str| digits(name).to_string_lossy().into_owned();
        let images = format!("images={}", file("images.npy"));
        let labels = format!("labels={}", file("labels.npy"));
        let words = [
            "train",
            &file("digits.onnx"),
            "-i",
            &images,
            "--target",
            &labels,
        ];
        let settings = "--loss cross-entropy --batch 36 --lr 2e-4 --prefer cheapest --device cpu \
                        --steps 12 --workers 2 --round 2 --keep 1 --budget 50 -o";
        let options = settings.split_whitespace().chain([out]);
        words
            .into_iter()
            .chain(options)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let out = market.path("undisturbed.onnx");
    let undisturbed = run_to_end(&market, &arguments(&out)).done();
    // The cheapest device, where the first round begins, dies after a step of it.
    let dies = [("fault", json!("die")), ("fault_after", json!(1))];
    sell_two_cpus(&market, [&dies, &[]]);
    let out = market.path("tuned.onnx");
    let arguments = arguments(&out);
    let said = kill_buyer(&market, &arguments, &out, 2);
    assert!(said.contains("ended early"), "its provider died: {said}");
    let kept = steps_kept(&market, &out);
    assert!((2..12).contains(&kept), "{kept} steps");
    let resumed = market.souk(&["train", "resume", &out]).done();
    assert_same_training(&resumed, &undisturbed);
    assert!(!std::path::Path::new(&format!("{out}.run/rounds")).exists());
    market.assert_escrow_returns();
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn the_demo_teaches_the_bundled_model_what_it_could_not_answer() {
    let home = tempfile::tempdir().expect("a folder");
    let shown = souk(home.path(), &["demo", "--train"]).done();
    assert_eq!(shown["after"][1], "The harbour is behind the old mill.");
    assert_ne!(shown["before"][1], shown["after"][1]);
    let training = &shown["training"];
    assert_eq!(training["steps_done"], 24);
    let held_out = &training["held_out"]["losses"];
    let loss = |at: &Value| at["loss"].as_f64().expect("a number");
    assert!(loss(&held_out[3]) < loss(&held_out[0]), "{held_out}");
}
