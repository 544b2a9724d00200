//! Copies data directly from one card's memory to another's, and describes the links between cards
//! and to the host.

#![expect(
    unsafe_code,
    reason = "CUDA is called with handles and addresses; each block says why they hold"
)]

use std::path::Path as Folder;
use std::sync::PoisonError;

use cudarc::driver::{CudaContext, DriverError, result, sys};
use souk_host::bus;
use souk_memory::paths::{Path, PathKind};
use souk_vocabulary::links;

use super::{Driver, Span, error_text};

/// Folder in which Linux describes the devices on the PCI bus.
const BUS: &str = "/sys/bus/pci/devices";
/// Generation and lanes of PCI Express where the system states neither: cards that souk runs on
/// have at least the third generation, and most have sixteen lanes.
const PCIE_LEAST: (u8, u8) = (3, 16);
/// Room for a card's place on the bus, such as `0000:3b:00.0`, with a zero at its end.
const PLACE_BYTES: usize = 32;

/// Returns the link between a card's memory and the host's.
pub(super) fn host_link(context: &CudaContext) -> Path {
    let integrated = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED;
    // SAFETY: the context's device exists as long as it does.
    let integrated = unsafe { result::device::get_attribute(context.cu_device(), integrated) };
    if integrated == Ok(1) {
        // It is one memory, within which the driver copies.
        return links::host_copy_path();
    }
    let stated = pci_bus_id(context).and_then(|place| bus::pcie_at(&Folder::new(BUS).join(place)));
    let (generation, lanes) = PCIE_LEAST;
    stated.unwrap_or_else(|| links::pcie_path(generation, lanes))
}

/// A card's place on the bus as Linux spells it.
fn pci_bus_id(context: &CudaContext) -> Option<String> {
    let mut bytes = [0u8; PLACE_BYTES];
    let length = i32::try_from(bytes.len()).ok()?;
    // SAFETY: the driver writes at most this many bytes, and a zero after the last.
    let said =
        unsafe { sys::cuDeviceGetPCIBusId(bytes.as_mut_ptr().cast(), length, context.cu_device()) };
    said.result().ok()?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let place = std::str::from_utf8(&bytes[..end]).ok()?;
    Some(place.to_ascii_lowercase())
}

impl Driver {
    /// Returns the link from another card's memory to this one's, if a copy from there is possible;
    /// queries each card once.
    pub fn link_from(&self, other: &Self) -> Option<Path> {
        let (own, others) = (self.stream.context(), other.stream.context());
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let link = peers
            .entry(others.ordinal())
            .or_insert_with(|| try_peer_access(own, others).then(|| self.describe_link(other)));
        *link
    }

    /// Describes the link between two cards that reach each other. Cards do atomic operations in
    /// each other's memory over NVLink, and none does over PCI Express.
    fn describe_link(&self, other: &Self) -> Path {
        let (own, others) = (self.stream.context(), other.stream.context());
        use sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED as ATOMIC;
        let mut value = 0;
        // SAFETY: both contexts' devices exist, and the driver writes one number.
        let said = unsafe {
            sys::cuDeviceGetP2PAttribute(&mut value, ATOMIC, own.cu_device(), others.cu_device())
        };
        if said.result().is_ok() && value == 1 {
            return links::nvlink_path(self.capability.min(other.capability));
        }
        let slower = |one: Path, two: Path| match one.bytes_per_second <= two.bytes_per_second {
            true => one,
            false => two,
        };
        let slowest = slower(self.host_link, other.host_link);
        match slowest.kind {
            PathKind::Pcie { .. } => slowest,
            _ => links::pcie_path(PCIE_LEAST.0, PCIE_LEAST.1),
        }
    }

    /// Copies a span of another card's memory to one of this card's with as many bytes. The copy
    /// runs after all earlier work of the other stream, and before all later work of either. The
    /// caller must keep the memory of both spans alive.
    pub fn copy_from_peer(&self, from: &Self, source: Span, target: Span) -> Result<(), String> {
        let written = {
            let _alone = from.order.lock_stream();
            from.stream.record_event(None).map_err(error_text)?
        };
        let read = {
            let _alone = self.order.lock_stream();
            self.stream.wait(&written).map_err(error_text)?;
            let (own, others) = (self.stream.context(), from.stream.context());
            let bytes = usize::try_from(target.bytes().min(source.bytes())).map_err(error_text)?;
            // SAFETY: both spans have this many bytes, and the caller keeps them alive. The event
            // says that the source is written; the one below delays any work that overwrites it.
            unsafe {
                result::memcpy_peer_async(
                    own.cu_ctx(),
                    target.address(),
                    others.cu_ctx(),
                    source.address(),
                    bytes,
                    self.stream.cu_stream(),
                )
            }
            .map_err(error_text)?;
            self.stream.record_event(None).map_err(error_text)?
        };
        let _alone = from.order.lock_stream();
        from.stream.wait(&read).map_err(error_text)
    }
}

/// Grants one card access to another's memory, if that is possible, and returns whether it is.
fn try_peer_access(own: &CudaContext, other: &CudaContext) -> bool {
    let mut can = 0;
    // SAFETY: both contexts' devices exist, and the driver writes one number.
    let said = unsafe { sys::cuDeviceCanAccessPeer(&mut can, own.cu_device(), other.cu_device()) };
    said.result().is_ok() && can == 1 && enable_peer_access(own, other).is_ok()
}

fn enable_peer_access(own: &CudaContext, other: &CudaContext) -> Result<(), DriverError> {
    own.bind_to_thread()?;
    // SAFETY: both contexts live as long as their cards are open; the flags must be 0.
    let enabled = unsafe { sys::cuCtxEnablePeerAccess(other.cu_ctx(), 0) };
    if enabled != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
        enabled.result()?;
    }
    if !other.has_async_alloc() {
        return Ok(());
    }
    // The pool grants access to the memory that it allocates.
    let mut pool = std::ptr::null_mut();
    let access = sys::CUmemAccessDesc {
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: own.cu_device(),
        },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the driver writes one handle, which is the card's own pool and is never destroyed.
    // The call reads one description before it returns.
    unsafe {
        sys::cuDeviceGetMemPool(&mut pool, other.cu_device()).result()?;
        sys::cuMemPoolSetAccess(pool, &access, 1).result()
    }
}
