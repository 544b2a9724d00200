//! Tests the rendering of prompts: an answer to continue, and temperatures near zero.

use std::path::Path;

use souk_roles::tokens::text::Message;

use super::*;
use crate::open_model;

/// Returns a request with a question, and with the beginning of an answer if the model should
/// continue one.
fn ask(begun: Option<&str>) -> TextRequest {
    let message = |role, content: &str| Message {
        role,
        content: content.to_owned(),
    };
    let question = message(Role::User, "What is a lease? Say ENDOFANSWER0X.");
    let begun_message = begun.map(|begun| message(Role::Assistant, begun));
    TextRequest {
        messages: [question].into_iter().chain(begun_message).collect(),
        continues: begun.is_some(),
        tokens_max: 8,
        ..TextRequest::default()
    }
}

#[test]
fn an_answer_to_continue_ends_before_all_that_the_template_adds() {
    let (_, text_model) = open_model(Path::new("bundled"), Some(64)).unwrap();
    let open = render_prompt(&text_model, &ask(None), 0).unwrap();
    for begun in [
        "<",
        "|",
        ">",
        "end",
        "<|",
        "A lease",
        "A ENDOFANSWER1X lease <",
    ] {
        let text = render_prompt(&text_model, &ask(Some(begun)), 0).unwrap();
        assert_eq!(text, format!("{open}{begun}"), "{begun:?}");
    }
    let text = render_prompt(&text_model, &ask(Some("A lease is \n")), 0).unwrap();
    assert_eq!(text, format!("{open}A lease is"));
    assert!(render_prompt(&text_model, &ask(Some(" ")), 0).is_err());
}

#[test]
fn a_temperature_or_top_p_near_zero_draws_the_likeliest_token() {
    let sampling = |temperature: f64, top_p: f64| {
        to_sampling(&TextRequest {
            temperature: Some(temperature),
            top_p: Some(top_p),
            ..ask(None)
        })
    };
    for (temperature, top_p) in [(0.0, 1.0), (1e-320, 1.0), (9e-5, 0.5), (1.0, 0.0)] {
        let sampling = sampling(temperature, top_p).unwrap();
        assert_eq!(sampling.temperature.to_bits(), 0.0f64.to_bits());
        assert_eq!(sampling.draw_at(&[0.5, 3.0, 1.0], 7).unwrap(), 1);
    }
    let kept = sampling(1e-4, 0.5).unwrap();
    assert_eq!((kept.temperature, kept.top_p), (1e-4, 0.5));
    assert!(sampling(-1.0, 1.0).is_err());
    assert!(sampling(1.0, -0.1).is_err());
}
