//! Computes which languages of buyers' own kernels a provider's devices run and a model needs. Each
//! language is a *feature*, a property that asks state and bids demand.

use souk_folder::config::DeviceChoice;
use souk_folder::limits::ProviderLimits;
use souk_market::Features;
use souk_onnx::NodeProto;
use souk_onnx::custom::Custom;
use souk_roles::market::features;
use souk_scheduler::graph::Graph;

/// All languages of kernels.
const LANGUAGES: [Custom; 2] = [Custom::Wasm, Custom::Wgsl];

fn kernel_feature(language: Custom) -> Features {
    features::find_feature(&features::KERNELS, language.name())
}

/// Returns the features that an ask states: the languages that this build supports on the devices
/// and that the provider's limits allow.
#[must_use]
pub fn offered_features(devices: &DeviceChoice, limits: &ProviderLimits) -> Features {
    let allowed = |language: &Custom| {
        can_run_language(devices, *language) && limits.check_kernel(*language).is_ok()
    };
    union_features(LANGUAGES.into_iter().filter(allowed))
}

/// Returns whether one of the devices runs kernels in a language.
fn can_run_language(devices: &DeviceChoice, language: Custom) -> bool {
    match devices {
        _ if devices.is_exact() => false,
        DeviceChoice::Exact { .. } => false,
        DeviceChoice::Cpu { .. } | DeviceChoice::Emulated { .. } => language == Custom::Wasm,
        DeviceChoice::Gpu { .. } | DeviceChoice::Cuda { .. } => language == Custom::Wgsl,
        DeviceChoice::Onnxruntime { .. } | DeviceChoice::Endpoint(_) | DeviceChoice::Serve(_) => {
            false
        }
        DeviceChoice::Group(group) => group
            .iter()
            .any(|device| can_run_language(device, language)),
    }
}

/// Returns the features that a graph needs.
#[must_use]
pub fn needed_features(graph: &Graph) -> Features {
    let nodes = graph.nodes().iter();
    union_features(nodes.flat_map(|node| kernel_languages(&node.proto)))
}

/// Returns the languages of a node's kernels, including those in its bodies.
fn kernel_languages(node: &NodeProto) -> Vec<Custom> {
    let inner = node.subgraphs().flat_map(|graph| &graph.node);
    let own = Custom::from_node(node).into_iter();
    own.chain(inner.flat_map(kernel_languages)).collect()
}

fn union_features(languages: impl Iterator<Item = Custom>) -> Features {
    Features(languages.fold(0, |bits, language| bits | kernel_feature(language).0))
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
        assert_eq!(offered_features(&gpu(), &all), kernel_feature(Custom::Wgsl));
        assert_eq!(offered_features(&gpu(), &none), Features(0));
        let cpu = DeviceChoice::Cpu { threads: 1 };
        assert_eq!(offered_features(&cpu, &all), Features(1));
        let group = DeviceChoice::Group(vec![cpu, gpu()]);
        assert_eq!(offered_features(&group, &all), Features(1 | 2));
    }

    #[test]
    fn every_language_has_a_feature() {
        for language in LANGUAGES {
            assert_ne!(kernel_feature(language), Features(0), "{}", language.name());
        }
    }
}
