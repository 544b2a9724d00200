//! The buyers' own kernels in the market's terms: each language is a feature of a device.

use souk_market::Features;
use souk_onnx::NodeProto;
use souk_onnx::custom::Custom;
use souk_roles::market::features;
use souk_scheduler::graph::Graph;

use crate::folder::config::DeviceChoice;
use crate::folder::limits::ProviderLimits;

/// All languages of kernels.
const LANGUAGES: [Custom; 2] = [Custom::Wasm, Custom::Wgsl];

fn feature(language: Custom) -> Features {
    features::of(&features::KERNELS, language.name())
}

/// Returns the features that an ask states: the languages that this build supports on the devices
/// and that the provider's limits allow.
#[must_use]
pub fn offered(devices: &DeviceChoice, limits: &ProviderLimits) -> Features {
    let allowed =
        |language: &Custom| runs(devices, *language) && limits.check_kernel(*language).is_ok();
    union(LANGUAGES.into_iter().filter(allowed))
}

/// Returns whether one of the devices runs kernels in a language.
fn runs(devices: &DeviceChoice, language: Custom) -> bool {
    match devices {
        DeviceChoice::Cpu { .. } | DeviceChoice::Emulated { .. } => {
            language == Custom::Wasm && cfg!(feature = "wasm")
        }
        DeviceChoice::Gpu { .. } | DeviceChoice::Cuda { .. } => language == Custom::Wgsl,
        DeviceChoice::Onnxruntime { .. } => false,
        DeviceChoice::Group(group) => group.iter().any(|device| runs(device, language)),
    }
}

/// Returns the features that a graph needs.
#[must_use]
pub fn needed(graph: &Graph) -> Features {
    let nodes = graph.nodes().iter();
    union(nodes.flat_map(|node| kernels(&node.proto)))
}

/// Returns the languages of a node's kernels, including those in its bodies.
fn kernels(node: &NodeProto) -> Vec<Custom> {
    let inner = node.subgraphs().flat_map(|graph| &graph.node);
    let own = Custom::of(node).into_iter();
    own.chain(inner.flat_map(kernels)).collect()
}

fn union(languages: impl Iterator<Item = Custom>) -> Features {
    Features(languages.fold(0, |bits, language| bits | feature(language).0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> DeviceChoice {
        DeviceChoice::Gpu {
            name: "any".to_owned(),
            memory_mib: None,
        }
    }

    #[test]
    fn a_device_offers_the_languages_it_runs_and_its_provider_allows() {
        let all = ProviderLimits::default();
        let none = ProviderLimits {
            wgsl: false,
            ..ProviderLimits::default()
        };
        assert_eq!(offered(&gpu(), &all), feature(Custom::Wgsl));
        assert_eq!(offered(&gpu(), &none), Features(0));
        let wasm = if cfg!(feature = "wasm") { 1 } else { 0 };
        let cpu = DeviceChoice::Cpu { threads: 1 };
        assert_eq!(offered(&cpu, &all), Features(wasm));
        let group = DeviceChoice::Group(vec![cpu, gpu()]);
        assert_eq!(offered(&group, &all), Features(wasm | 2));
    }

    #[test]
    fn every_language_has_a_feature() {
        for language in LANGUAGES {
            assert_ne!(feature(language), Features(0), "{}", language.name());
        }
    }
}
