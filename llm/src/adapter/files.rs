//! Reads and writes an adapter's two files as the library PEFT has them: `adapter_config.json` and
//! `adapter_model.safetensors`. A configuration that states an extension of LoRA is refused by its
//! key.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};
use souk_memory::safetensors;

use super::{Adapter, AdapterError, PREFIX, RANK_MAX};

/// The file of the configuration.
pub const CONFIG: &str = "adapter_config.json";
/// The file of the tensors.
pub const WEIGHTS: &str = "adapter_model.safetensors";

/// Keys of extensions that change the result; they must be absent, null, false or empty.
const EXTENSIONS: [&str; 17] = [
    "use_dora",
    "fan_in_fan_out",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "megatron_config",
    "trainable_token_indices",
    "target_parameters",
    "corda_config",
    "eva_config",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "use_bdlora",
    "use_qalora",
];

/// The first numbers of an adapter that leave the base's weights as they are. PEFT changes them
/// for all others (PiSSA, OLoRA, LoftQ and more), also when it loads the adapter.
const INITIALISATIONS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// Numbers below this are written without a fraction if they have none.
const WHOLE_MAX: f64 = 1e15;

impl Adapter {
    /// Reads an adapter from a folder.
    ///
    /// # Errors
    /// [`AdapterError`]; it names the file, and the unsupported key or tensor.
    pub fn read(folder: &Path) -> Result<Self, AdapterError> {
        let path = folder.join(CONFIG);
        let config: Value = serde_json::from_slice(&read_file(&path)?)
            .map_err(|cause| AdapterError::Json { path, cause })?;
        check_extensions(&config)?;
        let number = |key: &'static str| {
            let refused = || refused_value(key, &config[key]);
            config[key].as_f64().ok_or_else(refused)
        };
        let (rank, alpha) = (number("r")?, number("lora_alpha")?);
        if rank.fract() != 0.0 || rank < 1.0 || rank > RANK_MAX as f64 {
            return Err(refused_value("r", &config["r"]));
        }
        // A factor that is divided by the root of the rank is this one, divided by the rank.
        let alpha = match config["use_rslora"] == Value::Bool(true) {
            true => alpha * rank.sqrt(),
            false => alpha,
        };
        let path = folder.join(WEIGHTS);
        let bytes = Bytes::from(read_file(&path)?);
        let tensors = safetensors::read(&bytes);
        let tensors = tensors.map_err(|cause| AdapterError::Safetensors { path, cause })?;
        let is_pair = |name: &str| {
            let ending = [".lora_A.weight", ".lora_B.weight"];
            name.starts_with(PREFIX) && ending.iter().any(|it| name.ends_with(it))
        };
        if let Some(name) = tensors.keys().find(|name| !is_pair(name)) {
            return Err(AdapterError::Tensor(name.clone()));
        }
        if tensors.is_empty() {
            return Err(AdapterError::Empty);
        }
        let targets = config["target_modules"].as_array().into_iter().flatten();
        let targets = targets.filter_map(|it| it.as_str().map(str::to_owned));
        Ok(Self {
            rank: rank as usize,
            alpha,
            scale: (alpha / rank) as f32,
            targets: targets.collect(),
            tensors,
        })
    }

    /// Returns the adapter's files by name; `base` is the name of the model for people and for
    /// PEFT, which loads it if nobody gives it a model.
    ///
    /// # Errors
    /// [`AdapterError::Safetensors`].
    pub fn to_files(&self, base: &str) -> Result<BTreeMap<&'static str, Bytes>, AdapterError> {
        let path = WEIGHTS.into();
        let weights = safetensors::write(&self.tensors);
        let weights = weights.map_err(|cause| AdapterError::Safetensors { path, cause })?;
        let is_whole = self.alpha.fract() == 0.0 && self.alpha < WHOLE_MAX;
        let alpha = match is_whole {
            true => json!(self.alpha as u64),
            false => json!(self.alpha),
        };
        let config = json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base,
            "r": self.rank, "lora_alpha": alpha, "target_modules": self.targets,
            "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": false, "use_rslora": false,
            "use_dora": false, "init_lora_weights": true, "modules_to_save": null,
            "rank_pattern": {}, "alpha_pattern": {}, "inference_mode": true,
        });
        let config = serde_json::to_vec_pretty(&config).expect("plain data");
        Ok([(CONFIG, config.into()), (WEIGHTS, weights)].into())
    }
}

fn check_extensions(config: &Value) -> Result<(), AdapterError> {
    if config["peft_type"] != "LORA" {
        return Err(refused_value("peft_type", &config["peft_type"]));
    }
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    };
    if let Some(key) = EXTENSIONS.iter().find(|key| !is_empty(&config[**key])) {
        return Err(refused_value(key, &config[*key]));
    }
    let first = &config["init_lora_weights"];
    let is_known = |first: &str| INITIALISATIONS.contains(&first);
    if !(first.is_null() || first.is_boolean() || first.as_str().is_some_and(is_known)) {
        return Err(refused_value("init_lora_weights", first));
    }
    match config["bias"].as_str() {
        None | Some("none") => Ok(()),
        Some(_) => Err(refused_value("bias", &config["bias"])),
    }
}

fn refused_value(key: &'static str, value: &Value) -> AdapterError {
    let value = value.to_string();
    AdapterError::Feature { key, value }
}

fn read_file(path: &Path) -> Result<Vec<u8>, AdapterError> {
    std::fs::read(path).map_err(|cause| AdapterError::File {
        path: path.to_owned(),
        cause,
    })
}
