//! Tests the preparation, which computes a model's operators on strings before the model runs. The
//! expected values are those of ONNX's own examples.

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::Tensor;

use super::super::{ExpansionError, Meanings, RUNTIME_DOMAIN, expand_model};
use super::*;
use crate::{DataType, GraphProto, ModelProto, NodeProto, ValueInfoProto};

fn texts(texts: &[&str]) -> Vec<Bytes> {
    let texts = texts.iter();
    texts.map(|text| Bytes::from(text.to_string())).collect()
}

/// A model of these nodes, of the texts `t` and `u`, whose output is `y`.
fn model(nodes: Vec<NodeProto>) -> ModelProto {
    let text = |name| ValueInfoProto::new_tensor(name, DataType::String as i32, None);
    ModelProto {
        graph: Some(GraphProto {
            node: nodes,
            input: vec![text("t"), text("u")],
            output: vec![ValueInfoProto::new_tensor("y", 0, None)],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

/// Texts as a tensor of their numbers.
fn numbers(meanings: &mut Meanings, dims: &[usize], texts: &[&str]) -> Tensor {
    let words = &mut meanings.texts.words;
    let numbers: Vec<i64> = texts.iter().map(|text| words.intern_string(text)).collect();
    Tensor::from_vec(dims.to_vec(), numbers).unwrap()
}

/// What a node makes of `t` and `u`, and the words.
fn prepared(
    node: NodeProto,
    dims: &[usize],
    t: &[&str],
    u: &[&str],
) -> (Result<BTreeMap<String, Tensor>, PreparationError>, Meanings) {
    let mut given = model(vec![node]);
    let mut meanings = expand_model(&mut given).unwrap();
    let t = numbers(&mut meanings, dims, t);
    let u = numbers(&mut meanings, &[u.len()], u);
    let mut inputs = BTreeMap::from([("t".to_owned(), t), ("u".to_owned(), u)]);
    let Meanings {
        texts, preparation, ..
    } = &mut meanings;
    let done = preparation.run(&mut texts.words, &mut inputs);
    (done.map(|()| inputs), meanings)
}

/// The texts that a node makes, with their shape.
fn made(node: NodeProto, dims: &[usize], t: &[&str], u: &[&str]) -> (Vec<usize>, Vec<String>) {
    let (inputs, meanings) = prepared(node, dims, t, u);
    let made = &inputs.unwrap()["y (prepared)"];
    let text = |number| meanings.texts.words.find_string(number).unwrap().to_owned();
    let texts = made.to_vec::<i64>().unwrap().into_iter().map(text);
    (made.dims().to_vec(), texts.collect())
}

fn counts(skips: i64, least: i64, dims: &[usize], t: &[&str]) -> Vec<f32> {
    let pool = texts(&["2", "3", "5", "4", "5", "6", "7", "8", "6", "7"]);
    let node = NodeProto::for_operator("TfIdfVectorizer", &["t"], "y")
        .with("mode", "TF")
        .with("min_gram_length", least)
        .with("max_gram_length", 2)
        .with("max_skip_count", skips)
        .with("ngram_counts", vec![0, 4])
        .with("ngram_indexes", vec![0, 1, 2, 3, 4, 5, 6])
        .with("pool_strings", pool);
    let (inputs, _) = prepared(node, dims, t, &[]);
    inputs.unwrap()["y (prepared)"].to_vec().unwrap()
}

#[test]
fn a_sentence_is_lowered_cut_and_counted_before_the_model_runs() {
    let lower = NodeProto::for_operator("StringNormalizer", &["t"], "low")
        .with("case_change_action", "LOWER");
    let tokens = NodeProto {
        domain: Some(RUNTIME_DOMAIN.to_owned()),
        ..NodeProto::for_operator("Tokenizer", &["low"], "tokens")
    };
    let tokens = tokens
        .with("tokenexp", "[a-z]+")
        .with("pad_value", "#")
        .with("mincharnum", 2);
    let count = NodeProto::for_operator("TfIdfVectorizer", &["tokens"], "counts")
        .with("mode", "TFIDF")
        .with("ngram_counts", vec![0])
        .with("ngram_indexes", vec![1, 0])
        .with("weights", vec![0.5f32, 2.0])
        .with("pool_strings", texts(&["good", "bad"]));
    let rest = NodeProto::for_operator("Neg", &["counts"], "y");
    let mut given = model(vec![lower, tokens, count, rest]);
    let mut meanings = expand_model(&mut given).unwrap();
    let graph = given.graph.unwrap();
    let operators: Vec<&str> = graph.node.iter().map(NodeProto::op_type).collect();
    assert_eq!(operators, ["Neg"]);
    let inputs: Vec<&str> = graph.input.iter().map(ValueInfoProto::name).collect();
    assert_eq!(inputs, ["u", "counts"]);

    let said = ["Good, GOOD a day", "bad"];
    let t = numbers(&mut meanings, &[2], &said);
    let mut inputs = BTreeMap::from([("t".to_owned(), t)]);
    let Meanings {
        texts, preparation, ..
    } = &mut meanings;
    preparation.run(&mut texts.words, &mut inputs).unwrap();
    assert_eq!(
        inputs.keys().collect::<Vec<_>>(),
        ["counts"],
        "no text goes on"
    );
    assert_eq!(inputs["counts"].dims(), [2, 2]);
    let counted: Vec<f32> = inputs["counts"].to_vec().unwrap();
    assert_eq!(counted, [0.0, 1.0, 2.0, 0.0]);

    let missing = preparation.run(&mut texts.words, &mut BTreeMap::new());
    assert_eq!(missing, Err(PreparationError::Missing("t".to_owned())));
    let mut inputs = BTreeMap::from([("t".to_owned(), Tensor::scalar(1.0f32))]);
    let error = preparation.run(&mut texts.words, &mut inputs).unwrap_err();
    assert!(error.to_string().contains("it takes texts"), "{error}");
}

#[test]
fn sequences_are_counted_with_words_between() {
    let row = ["1", "1", "3", "3", "3", "7", "8", "6", "7", "5", "6", "8"];
    assert_eq!(
        counts(5, 2, &[12], &row),
        [0.0, 0.0, 0.0, 0.0, 1.0, 3.0, 1.0]
    );
    assert_eq!(
        counts(0, 2, &[12], &row),
        [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    );
    let rows = [
        [0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0],
    ];
    assert_eq!(counts(5, 1, &[2, 6], &row), rows.concat());
}

#[test]
fn words_that_do_not_count_are_left_out() {
    let node = |action| {
        NodeProto::for_operator("StringNormalizer", &["t"], "y")
            .with("case_change_action", action)
            .with("stopwords", texts(&["Monday"]))
    };
    let days = ["monday", "tuesday"];
    let (dims, texts) = made(node("UPPER"), &[1, 2], &days, &[]);
    assert_eq!((dims, texts), (vec![1, 1], vec!["TUESDAY".to_owned()]));
    let exact = node("NONE").with("is_case_sensitive", 1);
    assert_eq!(made(exact, &[2], &days, &[]).1, days);
    let (dims, texts) = made(node("LOWER"), &[1], &["MONDAY"], &[]);
    assert_eq!((dims, texts), (vec![1], vec![String::new()]));
}

#[test]
fn texts_are_joined_split_matched_and_read() {
    let joined = NodeProto::for_operator("StringConcat", &["t", "u"], "y");
    let (dims, texts) = made(joined, &[2, 1], &["a", "b"], &["1", "2", "3"]);
    assert_eq!(dims, [2, 3]);
    assert_eq!(texts, ["a1", "a2", "a3", "b1", "b2", "b3"]);

    let split = |delimiter, most: Option<i64>| {
        let node = NodeProto::for_operator("StringSplit", &["t"], "y").with("delimiter", delimiter);
        match most {
            Some(most) => node.with("maxsplit", most),
            None => node,
        }
    };
    let (dims, texts) = made(split(".", None), &[2], &["a.com", "b.c.net"], &[]);
    assert_eq!(dims, [2, 3]);
    assert_eq!(texts, ["a", "com", "", "b", "c", "net"]);
    let (dims, texts) = made(split("", Some(1)), &[2], &[" hello  my world", ""], &[]);
    assert_eq!(dims, [2, 2]);
    assert_eq!(texts, ["hello", "my world", "", ""]);

    let matched = NodeProto::for_operator("RegexFullMatch", &["t"], "y").with("pattern", "a|ab");
    let (inputs, _) = prepared(matched, &[3], &["ab", "abc", "a"], &[]);
    let matched = inputs.unwrap()["y (prepared)"].to_bools().unwrap();
    assert_eq!(matched, [true, false, true]);

    let cast = NodeProto::for_operator("Cast", &["t"], "y").with("to", DataType::Float as i64);
    let (inputs, _) = prepared(cast.clone(), &[2], &["1.5", "-2e3"], &[]);
    let read: Vec<f32> = inputs.unwrap()["y (prepared)"].to_vec().unwrap();
    assert_eq!(read, [1.5, -2000.0]);
    let (inputs, _) = prepared(cast, &[1], &["one"], &[]);
    let error = inputs.unwrap_err().to_string();
    assert!(error.contains("\"one\" is not a number"), "{error}");
}

#[test]
fn what_only_a_provider_makes_is_not_computed_with() {
    let told = NodeProto::for_classical_operator("LabelEncoder", &["u"], "label")
        .with("keys_strings", texts(&["a"]))
        .with("values_strings", texts(&["b"]));
    let lower = NodeProto::for_operator("StringNormalizer", &["label"], "y");
    let error = expand_model(&mut model(vec![told, lower])).unwrap_err();
    let (node, operator) = ("y".to_owned(), "StringNormalizer".to_owned());
    assert_eq!(error, ExpansionError::Text { node, operator });
}
