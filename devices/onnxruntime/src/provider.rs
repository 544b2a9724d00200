//! Lists the execution providers of ONNX Runtime that souk supports: for each, the kind of its
//! processor, its options, and its properties before any measurement. A provider is the part of the
//! library that reaches a processor; OpenVINO reaches three, and each has an entry of its own.

use std::collections::BTreeMap;
use std::env::consts::OS;
use std::num::NonZeroUsize;
use std::time::Duration;

use ort::ep::{
    CANN, CUDA, CoreML, ExecutionProvider, ExecutionProviderDispatch, MIGraphX, OpenVINO, QNN,
    TensorRT, Vitis,
};
use souk_host::discover::{self, CpuDescription};
use souk_vocabulary::profile::{Backend, Memory, Profile};
use souk_vocabulary::taxonomy::{CpuIsa, FpgaFamily, GpuApi, MemoryKind, NpuFamily, ProcessorKind};

/// ONNX Runtime's name for the provider that every library has.
const HOST: &str = "CPUExecutionProvider";

/// One processor, and the provider (a part of the library) that reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// ONNX Runtime's name for it.
    pub name: String,
    /// The processor to use, if the provider reaches several.
    pub device: Option<&'static str>,
    /// The kind of its processor.
    pub kind: ProcessorKind,
}

/// A provider that a library's build can include.
struct ProviderEntry {
    name: &'static str,
    device: Option<&'static str>,
    kind: fn(CpuIsa) -> ProcessorKind,
    is_built_in: fn() -> ort::Result<bool>,
}

/// All supported providers, in the order of lists: the host's CPU last.
const KNOWN: [ProviderEntry; 11] = [
    new_entry::<QNN>(|_| npu_kind(NpuFamily::QualcommHexagon)),
    new_entry::<CoreML>(|_| npu_kind(NpuFamily::AppleNeuralEngine)),
    new_entry::<CANN>(|_| npu_kind(NpuFamily::HuaweiAscend)),
    new_entry::<Vitis>(|_| ProcessorKind::Fpga {
        family: FpgaFamily::AmdXilinx,
    }),
    // The architecture and the compute capability appear only when a model is loaded.
    new_entry::<MIGraphX>(|_| gpu_kind(GpuApi::Rocm { gfx: String::new() })),
    new_entry::<TensorRT>(|_| cuda_kind()),
    new_entry::<CUDA>(|_| cuda_kind()),
    openvino_entry("NPU", |_| npu_kind(NpuFamily::IntelVpu)),
    openvino_entry("GPU", |_| gpu_kind(GpuApi::OneApi)),
    openvino_entry("CPU", |isa| ProcessorKind::Cpu { isa }),
    ProviderEntry {
        name: HOST,
        device: None,
        kind: |isa| ProcessorKind::Cpu { isa },
        is_built_in: || Ok(true),
    },
];

const fn new_entry<T: ExecutionProvider>(kind: fn(CpuIsa) -> ProcessorKind) -> ProviderEntry {
    ProviderEntry {
        name: T::NAME,
        device: None,
        kind,
        is_built_in: T::is_available,
    }
}

const fn openvino_entry(device: &'static str, kind: fn(CpuIsa) -> ProcessorKind) -> ProviderEntry {
    ProviderEntry {
        device: Some(device),
        ..new_entry::<OpenVINO>(kind)
    }
}

const fn npu_kind(family: NpuFamily) -> ProcessorKind {
    ProcessorKind::Npu { family }
}

const fn gpu_kind(api: GpuApi) -> ProcessorKind {
    ProcessorKind::Gpu { api }
}

const fn cuda_kind() -> ProcessorKind {
    gpu_kind(GpuApi::Cuda { capability: (0, 0) })
}

/// Returns the providers that the open library's build includes, for a machine whose CPU has `isa`.
pub(super) fn built_in(isa: CpuIsa) -> Vec<Provider> {
    let there = KNOWN
        .iter()
        .filter(|known| matches!((known.is_built_in)(), Ok(true)));
    there.map(|known| known.new_provider(isa)).collect()
}

impl ProviderEntry {
    fn new_provider(&self, isa: CpuIsa) -> Provider {
        Provider {
            name: self.name.to_owned(),
            device: self.device,
            kind: (self.kind)(isa),
        }
    }
}

impl Provider {
    /// Returns the provider of the host's CPU, which every library has.
    pub(super) fn for_host(isa: CpuIsa) -> Self {
        KNOWN[KNOWN.len() - 1].new_provider(isa)
    }

    /// Returns the provider's name, followed by the processor if the provider reaches several.
    #[must_use]
    pub fn title(&self) -> String {
        match self.device {
            Some(device) => format!("{}:{device}", self.name),
            None => self.name.clone(),
        }
    }

    /// Returns whether it is OpenVINO's, which has its own rules.
    pub(super) fn is_openvino(&self) -> bool {
        self.name == OpenVINO::NAME
    }

    /// Returns whether it is the library's default provider, with its own kernels for the host's
    /// CPU.
    pub(super) fn is_host(&self) -> bool {
        self.name == HOST
    }

    /// Returns whether it computes on the host's CPU.
    pub(super) fn is_cpu(&self) -> bool {
        matches!(self.kind, ProcessorKind::Cpu { .. })
    }

    /// Returns whether the provider reaches several processors, some of which a machine can lack.
    pub(super) fn is_one_of_several(&self) -> bool {
        self.device.is_some()
    }

    /// Returns its processor's profile before any measurement; `build` describes the library's
    /// build. A provider reports nothing about its processor's memory: if that is not the host's,
    /// or the system does not state the host's, the profile has 0 bytes of memory, and its source
    /// says so. The bandwidth is infinite.
    #[must_use]
    pub fn unmeasured_profile(&self, build: &str) -> Profile {
        self.profile_on_host(build, &discover::describe_cpu())
    }

    fn profile_on_host(&self, build: &str, cpu: &CpuDescription) -> Profile {
        let memory = self.host_memory();
        let bytes = memory.and(cpu.memory_bytes);
        let source = match (memory, bytes) {
            (Some(_), Some(_)) => "the machine's own",
            (Some(_), None) => "the machine's own, of which the size is not known",
            (None, _) => "not known, its provider tells nothing of it",
        };
        Profile {
            name: Backend::Onnxruntime.name().to_owned(),
            vendor: self.vendor_name(&cpu.vendor),
            model: match self.is_cpu() {
                true => format!("{} ({})", cpu.model, self.title()),
                false => self.title(),
            },
            kind: self.kind.clone(),
            emulated: false,
            memory: Memory {
                kind: memory.unwrap_or(MemoryKind::Unknown),
                bytes: bytes.unwrap_or(0),
                bytes_per_second: f64::INFINITY,
            },
            throughput: BTreeMap::new(),
            launch: Duration::ZERO,
            power: None,
            traits: Vec::new(),
            source: format!("{build}; memory: {source}"),
        }
    }

    /// Returns the processor's maker; `host` is the maker of the host's CPU.
    fn vendor_name(&self, host: &str) -> String {
        match &self.kind {
            ProcessorKind::Cpu { .. } => host,
            ProcessorKind::Gpu { api } => match api {
                GpuApi::Cuda { .. } => "NVIDIA",
                GpuApi::Rocm { .. } => "AMD",
                GpuApi::OneApi => "Intel",
                GpuApi::Metal => "Apple",
                GpuApi::Adreno => "Qualcomm",
                GpuApi::Mali => "Arm",
                GpuApi::WebGpu => "unknown",
            },
            ProcessorKind::Npu { family } => match family {
                NpuFamily::AppleNeuralEngine => "Apple",
                NpuFamily::QualcommHexagon => "Qualcomm",
                NpuFamily::IntelVpu => "Intel",
                NpuFamily::AmdXdna => "AMD",
                NpuFamily::HuaweiAscend => "Huawei",
                NpuFamily::GoogleEdge => "Google",
                NpuFamily::Other => "unknown",
            },
            ProcessorKind::Fpga {
                family: FpgaFamily::AmdXilinx,
            } => "AMD",
            _ => "unknown",
        }
        .to_owned()
    }

    /// Returns the kind of its memory if that is the host's; `None` if the processor has or may
    /// have its own, which no provider reports.
    fn host_memory(&self) -> Option<MemoryKind> {
        match self.kind {
            ProcessorKind::Cpu { .. } => Some(MemoryKind::Unknown),
            // These are part of the host's chip.
            ProcessorKind::Npu {
                family:
                    NpuFamily::AppleNeuralEngine | NpuFamily::QualcommHexagon | NpuFamily::IntelVpu,
            } => Some(MemoryKind::Unified),
            _ => None,
        }
    }

    /// Returns the provider with its options; `None` for the default one, which is always present.
    pub(super) fn build_dispatch(
        &self,
        threads: NonZeroUsize,
    ) -> Option<ExecutionProviderDispatch> {
        Some(match self.name.as_str() {
            OpenVINO::NAME => OpenVINO::default()
                .with_device_type(self.device.unwrap_or("CPU"))
                .with_num_threads(threads.get())
                .build(),
            QNN::NAME => hexagon_provider().build(),
            CoreML::NAME => CoreML::default().build(),
            CANN::NAME => CANN::default().build(),
            Vitis::NAME => Vitis::default().build(),
            MIGraphX::NAME => MIGraphX::default().build(),
            TensorRT::NAME => TensorRT::default().build(),
            CUDA::NAME => CUDA::default().build(),
            _ => return None,
        })
    }
}

/// Returns Qualcomm's provider on its tensor unit. Without a library's name, the provider would use
/// no backend, or its CPU backend.
fn hexagon_provider() -> QNN {
    let library = match OS {
        "windows" => "QnnHtp.dll",
        _ => "libQnnHtp.so",
    };
    QNN::default().with_backend_path(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a provider and a device of it stand for: kind, maker, whether the memory is the host's.
    fn told(known: &ProviderEntry) -> (String, String, String, bool) {
        let provider = known.new_provider(CpuIsa::Other);
        (
            provider.title(),
            format!("{:?}", provider.kind),
            provider.vendor_name("the host's"),
            provider.host_memory().is_some(),
        )
    }

    #[test]
    fn each_provider_stands_for_the_processor_it_reaches() {
        let table = [
            (
                "QNNExecutionProvider",
                "Npu { family: QualcommHexagon }",
                "Qualcomm",
                true,
            ),
            (
                "CoreMLExecutionProvider",
                "Npu { family: AppleNeuralEngine }",
                "Apple",
                true,
            ),
            (
                "CANNExecutionProvider",
                "Npu { family: HuaweiAscend }",
                "Huawei",
                false,
            ),
            (
                "VitisAIExecutionProvider",
                "Fpga { family: AmdXilinx }",
                "AMD",
                false,
            ),
            (
                "MIGraphXExecutionProvider",
                "Gpu { api: Rocm { gfx: \"\" } }",
                "AMD",
                false,
            ),
            (
                "TensorrtExecutionProvider",
                "Gpu { api: Cuda { capability: (0, 0) } }",
                "NVIDIA",
                false,
            ),
            (
                "CUDAExecutionProvider",
                "Gpu { api: Cuda { capability: (0, 0) } }",
                "NVIDIA",
                false,
            ),
            (
                "OpenVINOExecutionProvider:NPU",
                "Npu { family: IntelVpu }",
                "Intel",
                true,
            ),
            (
                "OpenVINOExecutionProvider:GPU",
                "Gpu { api: OneApi }",
                "Intel",
                false,
            ),
            (
                "OpenVINOExecutionProvider:CPU",
                "Cpu { isa: Other }",
                "the host's",
                true,
            ),
            (
                "CPUExecutionProvider",
                "Cpu { isa: Other }",
                "the host's",
                true,
            ),
        ];
        let table = table.map(|(name, kind, vendor, shares)| {
            (name.to_owned(), kind.to_owned(), vendor.to_owned(), shares)
        });
        assert_eq!(KNOWN.each_ref().map(told), table);
    }

    #[test]
    fn each_provider_but_the_hosts_is_asked_for_by_name() {
        for known in &KNOWN {
            let asked = known
                .new_provider(CpuIsa::Other)
                .build_dispatch(NonZeroUsize::MIN);
            assert_eq!(asked.is_none(), known.name == HOST, "{}", known.name);
        }
    }

    #[test]
    fn memory_that_is_not_the_hosts_is_said_to_be_unknown() {
        for known in &KNOWN {
            let profile = known
                .new_provider(CpuIsa::Other)
                .unmeasured_profile("a library");
            let is_host = known.new_provider(CpuIsa::Other).host_memory().is_some();
            let expected = is_host
                .then(|| discover::describe_cpu().memory_bytes)
                .flatten();
            assert_eq!(
                profile.memory.bytes,
                expected.unwrap_or(0),
                "{}",
                known.name
            );
            assert_eq!(
                profile.source.contains("not known"),
                !is_host,
                "{}",
                known.name
            );
        }
    }

    #[test]
    fn memory_of_a_host_that_does_not_state_it_is_said_to_be_unknown() {
        let cpu = CpuDescription {
            memory_bytes: None,
            ..discover::describe_cpu()
        };
        for known in &KNOWN {
            let provider = known.new_provider(CpuIsa::Other);
            let profile = provider.profile_on_host("a library", &cpu);
            assert_eq!(profile.memory.bytes, 0, "{}", known.name);
            assert!(profile.source.contains("not known"), "{}", profile.source);
        }
    }

    #[test]
    fn qualcomms_is_told_to_use_the_tensor_unit() {
        let told = format!("{:?}", hexagon_provider());
        assert!(told.contains("QnnHtp"), "{told}");
    }
}
