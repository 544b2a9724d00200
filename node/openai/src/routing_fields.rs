//! Reads the fields that OpenRouter adds to OpenAI's API: `provider` and `models`, by which a
//! request controls its routing, and those that OpenRouter's clients send with each request. It
//! refuses each demand that souk cannot meet, because to ignore one would mislead the client.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::router::{RouteSort, RoutingRules};

use crate::refusal::Refusal;

/// The most models of a request.
const MODELS_MAX: usize = 8;

/// The most names of a list.
const NAMES_MAX: usize = 64;

/// The micro-credits of a credit.
const MICRO: f64 = 1e6;

/// The routing that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingFields {
    /// The models to try, one after the other.
    pub models: Vec<String>,
    /// The rules for the offers of each.
    pub rules: RoutingRules,
}

/// The fields of `provider` that are not read yet.
struct ProviderFields(Map<String, Value>);

impl RoutingFields {
    /// Takes the routing out of a request's body, so that the fields of OpenAI's API are left. The
    /// field `model` becomes the first model.
    pub fn take_from(body: &mut Map<String, Value>) -> Result<RoutingFields, Refusal> {
        let models = take_models(body)?;
        take_usage(body)?;
        take_defaults(body)?;
        let given = body.remove("provider").unwrap_or_default();
        let rules = match given {
            Value::Null => RoutingRules::default(),
            Value::Object(fields) => ProviderFields(fields).into_rules()?,
            _ => {
                return Err(Refusal::invalid_field(
                    "provider",
                    "provider should be an object",
                ));
            }
        };
        Ok(RoutingFields { models, rules })
    }
}

fn take_models(body: &mut Map<String, Value>) -> Result<Vec<String>, Refusal> {
    let wrong = |message: String| Refusal::invalid_field("models", message);
    let others = body.remove("models").unwrap_or_default();
    let others: Option<Vec<String>> = serde_json::from_value(others)
        .map_err(|_| wrong("models should be a list of names".to_owned()))?;
    let others = others.unwrap_or_default();
    if others.len() > MODELS_MAX {
        let message = format!("a request names at most {MODELS_MAX} models: leave some out");
        return Err(wrong(message));
    }
    let first = body.get("model").and_then(Value::as_str).map(str::to_owned);
    let mut models: Vec<String> = Vec::new();
    for model in first.into_iter().chain(others) {
        if !models.contains(&model) {
            models.push(model);
        }
    }
    if models.len() > MODELS_MAX {
        let message = format!("a request names at most {MODELS_MAX} models: leave some out");
        return Err(wrong(message));
    }
    // No ask has a longer name, and each message about the request would repeat it.
    for model in &models {
        TextCard::new(model).map_err(|fault| wrong(fault.to_string()))?;
    }
    let is_absent = body.get("model").is_none_or(Value::is_null);
    if is_absent && let Some(first) = models.first() {
        body.insert("model".to_owned(), json!(first));
    }
    Ok(models)
}

/// Takes `usage`, which asks for the token counts of an answer. A whole answer always has them,
/// and a stream has them if its options ask for them: then this sets the option.
fn take_usage(body: &mut Map<String, Value>) -> Result<(), Refusal> {
    let wrong = || {
        let message = "usage should be an object with include, which is true or false";
        Refusal::invalid_field("usage", message)
    };
    let is_wanted = match body.remove("usage").unwrap_or_default() {
        Value::Null => false,
        Value::Object(fields) => match (fields.len(), fields.get("include")) {
            (1, Some(Value::Bool(is_wanted))) => *is_wanted,
            _ => return Err(wrong()),
        },
        _ => return Err(wrong()),
    };
    if is_wanted {
        let options = body.entry("stream_options").or_insert(Value::Null);
        if options.is_null() {
            *options = json!({});
        }
        if let Value::Object(options) = options {
            options.insert("include_usage".to_owned(), json!(true));
        }
    }
    Ok(())
}

/// Takes the fields that souk supports only with their default, and refuses other values.
fn take_defaults(body: &mut Map<String, Value>) -> Result<(), Refusal> {
    let defaults = [
        ("transforms", json!([])),
        ("route", json!("fallback")),
        ("include_reasoning", json!(true)),
        ("reasoning", json!({})),
    ];
    for (name, default) in defaults {
        let given = body.remove(name).unwrap_or_default();
        if !given.is_null() && given != default {
            return Err(Refusal::unsupported_field(name));
        }
    }
    Ok(())
}

impl ProviderFields {
    fn into_rules(mut self) -> Result<RoutingRules, Refusal> {
        self.refuse_unstated_properties()?;
        let sort: Option<String> = self.take_field("sort", "price, throughput or latency")?;
        let sort = match sort.as_deref() {
            None => None,
            Some("price") => Some(RouteSort::Price),
            Some("throughput") => Some(RouteSort::Throughput),
            Some("latency") => Some(RouteSort::Latency),
            Some(_) => return Err(wrong_field("sort", "price, throughput or latency")),
        };
        let fallbacks: Option<bool> = self.take_field("allow_fallbacks", "true or false")?;
        // This always holds: each provider gets all fields, and souk refuses unknown ones.
        let _: Option<bool> = self.take_field("require_parameters", "true or false")?;
        let (input_price_max, output_price_max) = self.take_prices()?;
        let rules = RoutingRules {
            order: self.take_names("order")?,
            only: self.take_names("only")?,
            ignore: self.take_names("ignore")?,
            sort,
            input_price_max,
            output_price_max,
            allows_fallbacks: fallbacks.unwrap_or(true),
            // The buyer's audits fill this list, and not the client.
            distrusted: Vec::new(),
        };
        match self.0.keys().next() {
            Some(name) => Err(Refusal::unsupported_field(&format!("provider.{name}"))),
            None => Ok(rules),
        }
    }

    /// Refuses demands about properties that offers do not state.
    fn refuse_unstated_properties(&mut self) -> Result<(), Refusal> {
        let wanted: Option<Vec<String>> = self.take_field("quantizations", "a list of names")?;
        let wanted = wanted.unwrap_or_default();
        if !wanted.is_empty() && !wanted.iter().any(|name| name == "unknown") {
            let message = "provider.quantizations cannot be kept: offers do not state the \
                           precision of their model yet; leave it out, or add \"unknown\"";
            return Err(unstated_property("quantizations", message));
        }
        let policy: Option<String> = self.take_field("data_collection", "allow or deny")?;
        match policy.as_deref() {
            None | Some("allow") => Ok(()),
            Some("deny") => {
                let message = "provider.data_collection cannot be \"deny\": offers do not state \
                               yet whether the provider keeps prompts, and any can do so; leave it \
                               out, or name providers that you trust in provider.only";
                Err(unstated_property("data_collection", message))
            }
            Some(_) => Err(wrong_field("data_collection", "allow or deny")),
        }
    }

    /// Returns the maximum prices of a million input and output tokens, in micro-credits.
    fn take_prices(&mut self) -> Result<(Option<u64>, Option<u64>), Refusal> {
        let given: Option<Map<String, Value>> =
            self.take_field("max_price", "an object with prompt and completion")?;
        let mut given = given.unwrap_or_default();
        let mut take = |name: &str| -> Result<Option<u64>, Refusal> {
            let value = given.remove(name).unwrap_or_default();
            let number = match &value {
                Value::Null => return Ok(None),
                Value::String(text) => text.parse().ok(),
                value => value.as_f64(),
            };
            let credits = number.filter(|it: &f64| it.is_finite() && *it >= 0.0);
            let named = format!("max_price.{name}");
            let what = "credits for a million tokens, such as 0.5";
            let credits = credits.ok_or_else(|| wrong_field(&named, what))?;
            // A cast from a float saturates.
            Ok(Some((credits * MICRO).round() as u64))
        };
        let prices = (take("prompt")?, take("completion")?);
        match given.keys().next() {
            Some(name) => {
                let name = format!("provider.max_price.{name}");
                Err(Refusal::unsupported_field(&name))
            }
            None => Ok(prices),
        }
    }

    fn take_names(&mut self, field: &str) -> Result<Vec<String>, Refusal> {
        let what = "a list of providers, by name or account";
        let names: Option<Vec<String>> = self.take_field(field, what)?;
        let names = names.unwrap_or_default();
        match names.len() > NAMES_MAX {
            true => Err(wrong_field(
                field,
                &format!("a list of at most {NAMES_MAX} names"),
            )),
            false => Ok(names),
        }
    }

    fn take_field<T: DeserializeOwned>(
        &mut self,
        name: &str,
        what: &str,
    ) -> Result<Option<T>, Refusal> {
        let value = self.0.remove(name).unwrap_or_default();
        serde_json::from_value(value).map_err(|_| wrong_field(name, what))
    }
}

fn wrong_field(name: &str, what: &str) -> Refusal {
    let name = format!("provider.{name}");
    Refusal::invalid_field(&name, format!("{name} should be {what}"))
}

fn unstated_property(name: &str, message: &str) -> Refusal {
    Refusal::invalid_field(format!("provider.{name}"), message).with_code("unsupported_parameter")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<(RoutingFields, Map<String, Value>), Value> {
        let Value::Object(mut body) = body else {
            panic!("a body is an object");
        };
        let read = RoutingFields::take_from(&mut body);
        read.map(|fields| (fields, body))
            .map_err(|refusal| refusal.to_object()["error"].clone())
    }

    #[test]
    fn the_first_of_the_models_takes_the_place_of_no_model() {
        for body in [
            json!({ "models": ["b", "a"] }),
            json!({ "model": null, "models": ["b", "a"] }),
        ] {
            let (fields, body) = read(body).unwrap();
            assert_eq!((fields.models.len(), &body["model"]), (2, &json!("b")));
        }
    }

    #[test]
    fn routing_is_read_and_leaves_the_rest_of_the_body() {
        let (fields, body) = read(json!({
            "model": "a", "models": ["b", "a"], "temperature": 1,
            "provider": {
                "order": ["atlas"], "only": null, "ignore": ["kim"], "sort": "latency",
                "max_price": { "prompt": 0.05, "completion": "0.2" }, "allow_fallbacks": false,
                "require_parameters": true, "data_collection": "allow", "quantizations": [],
            },
        }))
        .unwrap();
        assert_eq!(fields.models, ["a", "b"]);
        let expected = RoutingRules {
            order: vec!["atlas".to_owned()],
            ignore: vec!["kim".to_owned()],
            sort: Some(RouteSort::Latency),
            input_price_max: Some(50_000),
            output_price_max: Some(200_000),
            allows_fallbacks: false,
            ..RoutingRules::default()
        };
        assert_eq!(fields.rules, expected);
        assert_eq!(
            Value::Object(body),
            json!({ "model": "a", "temperature": 1 })
        );
        let (fields, body) = read(json!({ "models": ["b", "c"] })).unwrap();
        assert_eq!((fields.models.len(), &body["model"]), (2, &json!("b")));
        let (fields, _) = read(json!({ "model": "a", "provider": null })).unwrap();
        assert_eq!(fields.rules, RoutingRules::default());
    }

    #[test]
    fn fields_that_clients_of_openrouter_always_send_are_taken() {
        let (_, body) = read(json!({
            "model": "a", "usage": { "include": true }, "transforms": [], "route": "fallback",
            "include_reasoning": true, "reasoning": {}, "stream_options": null,
        }))
        .unwrap();
        let options = json!({ "include_usage": true });
        assert_eq!(
            Value::Object(body),
            json!({ "model": "a", "stream_options": options })
        );
        let (_, body) = read(json!({ "model": "a", "usage": { "include": false } })).unwrap();
        assert_eq!(Value::Object(body), json!({ "model": "a" }));
        for (name, value) in [
            ("usage", json!({ "include": 4 })),
            ("usage", json!(true)),
            ("transforms", json!(["middle-out"])),
            ("include_reasoning", json!(false)),
            ("reasoning", json!({ "effort": "low" })),
        ] {
            let mut body = json!({ "model": "a" });
            body[name] = value;
            assert_eq!(read(body).unwrap_err()["param"], name);
        }
    }

    #[test]
    fn wishes_that_souk_cannot_keep_are_refused_by_name() {
        let refused = |provider: Value| {
            let error = read(json!({ "model": "a", "provider": provider })).unwrap_err();
            assert!(error["message"].as_str().unwrap().contains(' '), "{error}");
            error["param"].as_str().unwrap().to_owned()
        };
        let cases = [
            (json!({ "quantizations": ["fp8"] }), "quantizations"),
            (json!({ "data_collection": "deny" }), "data_collection"),
            (json!({ "data_collection": 4 }), "data_collection"),
            (json!({ "zdr": true }), "zdr"),
            (json!({ "sort": "name" }), "sort"),
            (json!({ "order": "atlas" }), "order"),
            (json!({ "ignore": vec!["x"; 65] }), "ignore"),
            (json!({ "max_price": { "image": 1 } }), "max_price.image"),
            (json!({ "max_price": { "prompt": -1 } }), "max_price.prompt"),
            (
                json!({ "max_price": { "completion": "x" } }),
                "max_price.completion",
            ),
            (json!({ "require_parameters": 1 }), "require_parameters"),
        ];
        for (provider, name) in cases {
            assert_eq!(refused(provider), format!("provider.{name}"));
        }
        assert!(read(json!({ "provider": { "quantizations": ["fp8", "unknown"] } })).is_ok());
        assert_eq!(
            read(json!({ "provider": [] })).unwrap_err()["param"],
            "provider"
        );
        assert_eq!(
            read(json!({ "models": "a" })).unwrap_err()["param"],
            "models"
        );
        let long = json!({ "models": ["m", "x".repeat(65)] });
        assert_eq!(read(long).unwrap_err()["param"], "models");
        let many: Vec<String> = (0..9).map(|it| it.to_string()).collect();
        assert_eq!(
            read(json!({ "models": many })).unwrap_err()["param"],
            "models"
        );
    }
}
