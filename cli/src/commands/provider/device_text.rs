//! Formats the choice of a device as TOML, as `souk provider init` writes it into `provider.toml`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

use serde_json::Value;
use souk_folder::config::DeviceChoice;

/// Formats the limit of a device's memory.
fn part_text(memory_mib: Option<NonZeroU32>) -> String {
    memory_mib.map_or_else(String::new, |mib| format!(", memory_mib = {mib}"))
}

/// Formats the owner's fields of an engine's requests.
fn fields_text(fields: &BTreeMap<String, Value>) -> String {
    if fields.is_empty() {
        return String::new();
    }
    let each = fields.iter().map(|(name, value)| entry_text(name, value));
    format!(", fields = {{ {} }}", each.collect::<Vec<_>>().join(", "))
}

fn entry_text(name: &str, value: &Value) -> String {
    let name = serde_json::to_string(name).expect("text always encodes");
    format!("{name} = {}", value_text(value))
}

/// Formats a value of JSON on one line of TOML.
fn value_text(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            let each = values.iter().map(value_text);
            format!("[{}]", each.collect::<Vec<_>>().join(", "))
        }
        Value::Object(entries) => {
            let each = entries.iter().map(|(name, value)| entry_text(name, value));
            format!("{{ {} }}", each.collect::<Vec<_>>().join(", "))
        }
        scalar => scalar.to_string(),
    }
}

/// Formats a device.
pub(super) fn device_text(device: &DeviceChoice) -> String {
    match device {
        DeviceChoice::Cpu { threads } => format!("cpu = {{ threads = {threads} }}"),
        DeviceChoice::Exact { threads } => format!("exact = {{ threads = {threads} }}"),
        DeviceChoice::Gpu { name, memory_mib } => {
            let name = serde_json::to_string(name).expect("text always encodes");
            format!("gpu = {{ name = {name}{} }}", part_text(*memory_mib))
        }
        DeviceChoice::Cuda {
            ordinal,
            memory_mib,
        } => {
            let part = part_text(*memory_mib);
            format!("cuda = {{ ordinal = {ordinal}{part} }}")
        }
        DeviceChoice::Onnxruntime { provider } => {
            let provider = serde_json::to_string(provider).expect("text always encodes");
            format!("onnxruntime = {{ provider = {provider} }}")
        }
        DeviceChoice::Emulated { profile, manner } => {
            let profile = serde_json::to_string(profile).expect("text always encodes");
            let told = manner.stated_entries().into_iter();
            let told = told.map(|(name, value)| format!(", {name} = {value}"));
            let told = told.collect::<String>();
            format!("emulated = {{ profile = {profile}{told} }}")
        }
        DeviceChoice::Endpoint(endpoint) => {
            let quoted = |text: &str| serde_json::to_string(text).expect("text always encodes");
            let (url, model) = (quoted(&endpoint.url), quoted(&endpoint.model));
            let file = |name: &str, path: &Option<PathBuf>| {
                let path = path.as_ref().map(|path| quoted(&path.to_string_lossy()));
                path.map_or_else(String::new, |path| format!(", {name} = {path}"))
            };
            let key = file("key_file", &endpoint.key_file);
            let authorities = file("ca_file", &endpoint.ca_file);
            let resold = if endpoint.resold {
                ", resold = true"
            } else {
                ""
            };
            let fields = fields_text(&endpoint.fields);
            format!(
                "endpoint = {{ url = {url}, model = {model}{key}{authorities}{resold}{fields} }}"
            )
        }
        DeviceChoice::Serve(served) => {
            let quoted = |text: &str| serde_json::to_string(text).expect("text always encodes");
            let (source, model) = (
                quoted(&served.source.to_string_lossy()),
                quoted(&served.model),
            );
            let number = |name: &str, number: Option<usize>| {
                number.map_or_else(String::new, |number| format!(", {name} = {number}"))
            };
            let context = number("context", served.context);
            let threads = number("threads", served.threads.map(|threads| threads as usize));
            format!("serve = {{ source = {source}, model = {model}{context}{threads} }}")
        }
        DeviceChoice::Group(devices) => {
            let each = devices
                .iter()
                .map(|device| format!("{{ {} }}", device_text(device)));
            format!("group = [{}]", each.collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use souk_folder::config::EndpointChoice;

    use super::*;

    #[derive(serde::Deserialize)]
    struct File {
        device: DeviceChoice,
    }

    #[test]
    fn an_engine_with_fields_is_read_as_it_was_written() {
        let kwargs = json!({ "enable_thinking": false, "a \"b\"": [1, "x = 1", {}] });
        let fields = [
            ("repeat_penalty".to_owned(), json!(1.0)),
            ("chat_template_kwargs".to_owned(), kwargs),
        ];
        let choice = DeviceChoice::Endpoint(EndpointChoice {
            url: "http://127.0.0.1:8000/v1".to_owned(),
            model: "m".to_owned(),
            key_file: None,
            ca_file: None,
            resold: true,
            fields: BTreeMap::from(fields),
        });
        let text = format!("[device]\n{}\n", device_text(&choice));
        let file: File = toml::from_str(&text).expect("it is TOML");
        assert_eq!(file.device, choice);
    }
}
