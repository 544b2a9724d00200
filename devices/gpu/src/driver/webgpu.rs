//! Drives a GPU through wgpu, which uses Vulkan, Metal or Direct3D 12: allocates buffers, compiles
//! WGSL, submits launches, and reads results back.

use std::time::Duration;

use bytes::Bytes;
use wgpu::{
    BindGroupDescriptor, BindGroupEntry, BindingResource, Buffer, BufferBinding, BufferDescriptor,
    BufferSize, BufferUsages, CommandBuffer, ComputePipeline, ComputePipelineDescriptor, Device,
    ErrorFilter, Features, PollError, PollType, Queue, ShaderModuleDescriptor, ShaderSource,
};

use crate::driver;
use crate::driver::submitter::{Submitter, submit_to_queue};
use crate::driver::{Launch, Pipeline, Stretch};
use crate::error::GpuError;
use crate::numbers::doubles::DoubleSupport;

/// When a driver answers a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionSignal {
    /// Once the work is the device's.
    Begun,
    /// Once the work is done.
    Done,
}

/// A device and its queue.
pub(crate) struct WebGpu {
    device: Device,
    queue: Queue,
    /// The submitting thread, where the driver computes before it answers.
    submitter: Option<Submitter>,
}

impl WebGpu {
    /// A device just opened; `lost` will be called when it goes away.
    pub fn new(
        device: Device,
        queue: Queue,
        answers: CompletionSignal,
        lost: impl Fn() + Send + 'static,
    ) -> Self {
        device.set_device_lost_callback(move |_, _| lost());
        // Without this handler, wgpu panics on an error outside any scope; the flag reports a lost
        // device.
        device.on_uncaptured_error(std::sync::Arc::new(|_| {}));
        let submitter = match answers {
            CompletionSignal::Done => Submitter::start(device.clone(), queue.clone()),
            CompletionSignal::Begun => None,
        };
        Self {
            device,
            queue,
            submitter,
        }
    }

    /// Submits commands, or nothing. Returns `Ok(false)` if the driver does not answer in this
    /// time.
    pub fn submit_commands(
        &self,
        commands: Option<CommandBuffer>,
        time_max: Duration,
    ) -> Result<bool, GpuError> {
        match &self.submitter {
            Some(submitter) => submitter.submit_commands(commands, time_max),
            None => submit_to_queue(&self.device, &self.queue, commands).map(|()| true),
        }
    }

    pub fn buffer_bytes_max(&self) -> u64 {
        let limits = self.device.limits();
        let binding = limits.max_storage_buffer_binding_size;
        binding.min(limits.max_buffer_size)
    }

    pub fn has_halves(&self) -> bool {
        self.device.features().contains(Features::SHADER_F16)
    }

    /// Floats of 64 bits are read from sizes, and taken apart, as integers of 64.
    pub fn double_support(&self) -> DoubleSupport {
        let features = self.device.features();
        let integers = features.contains(Features::SHADER_INT64);
        DoubleSupport {
            integers,
            floats: integers && features.contains(Features::SHADER_F64),
        }
    }

    pub fn allocate_buffer(&self, size: u64) -> Option<Buffer> {
        let scope = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&BufferDescriptor {
            label: None,
            size,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let failed = pollster::block_on(scope.pop()).is_some();
        (!failed).then_some(buffer)
    }

    pub fn upload_bytes(&self, bytes: &[u8], size: u64) -> Option<Buffer> {
        let buffer = self.allocate_buffer(size)?;
        if bytes.len().is_multiple_of(4) {
            self.queue.write_buffer(&buffer, 0, bytes);
        } else {
            let mut padded = bytes.to_vec();
            padded.resize(size as usize, 0);
            self.queue.write_buffer(&buffer, 0, &padded);
        }
        Some(buffer)
    }

    /// Uploads contents to buffers of these sizes, through one buffer that holds all of them.
    pub fn upload_all(&self, contents: &[(&[u8], u64)]) -> Result<Option<Vec<Buffer>>, GpuError> {
        let failed = |error: &dyn std::fmt::Display| GpuError::Driver(error.to_string());
        let sizes = contents.iter().map(|(_, size)| *size);
        let buffers = sizes.clone().map(|size| self.allocate_buffer(size));
        let Some(buffers) = buffers.collect::<Option<Vec<Buffer>>>() else {
            return Ok(None);
        };
        let scope = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let staging = self.device.create_buffer(&BufferDescriptor {
            label: None,
            size: sizes.sum(),
            usage: BufferUsages::COPY_SRC,
            mapped_at_creation: true,
        });
        if pollster::block_on(scope.pop()).is_some() {
            return Ok(None);
        }
        let mut view = staging
            .get_mapped_range_mut(..)
            .map_err(|error| failed(&error))?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for ((bytes, size), buffer) in contents.iter().zip(&buffers) {
            let start = at as usize;
            view.slice(start..start + bytes.len())
                .copy_from_slice(bytes);
            encoder.copy_buffer_to_buffer(&staging, at, buffer, 0, *size);
            at += size;
        }
        drop(view);
        staging.unmap();
        self.queue.submit([encoder.finish()]);
        Ok(Some(buffers))
    }

    pub fn compile_kernel(&self, source: &str) -> Result<ComputePipeline, GpuError> {
        let scope = self.device.push_error_scope(ErrorFilter::Validation);
        let module = self.device.create_shader_module(ShaderModuleDescriptor {
            label: None,
            source: ShaderSource::Wgsl(source.into()),
        });
        let pipeline = self
            .device
            .create_compute_pipeline(&ComputePipelineDescriptor {
                label: None,
                layout: None,
                module: &module,
                entry_point: Some("main"),
                compilation_options: Default::default(),
                cache: None,
            });
        match pollster::block_on(scope.pop()) {
            Some(error) => Err(GpuError::Kernel(error.to_string())),
            None => Ok(pipeline),
        }
    }

    /// Submits one command buffer for all launches. Returns `Ok(false)` if the driver does not
    /// answer in this time.
    pub fn submit_launches(
        &self,
        launches: &[Launch],
        time_max: Duration,
    ) -> Result<bool, GpuError> {
        let scope = self.device.push_error_scope(ErrorFilter::Validation);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for launch in launches {
                #[cfg_attr(not(feature = "cuda"), expect(irrefutable_let_patterns))]
                let Launch::Kernel {
                    pipeline,
                    arrays,
                    groups: [x, y, z],
                } = launch
                else {
                    continue;
                };
                #[cfg_attr(not(feature = "cuda"), expect(irrefutable_let_patterns))]
                let Pipeline::WebGpu(pipeline) = &**pipeline else {
                    continue;
                };
                pass.set_pipeline(pipeline);
                pass.set_bind_group(0, &self.create_bind_group(pipeline, arrays), &[]);
                pass.dispatch_workgroups(*x, *y, *z);
            }
        }
        let commands = encoder.finish();
        if let Some(error) = pollster::block_on(scope.pop()) {
            return Err(GpuError::Kernel(error.to_string()));
        }
        self.submit_commands(Some(commands), time_max)
    }

    fn create_bind_group(&self, pipeline: &ComputePipeline, arrays: &[Stretch]) -> wgpu::BindGroup {
        let mut entries: Vec<BindGroupEntry<'_>> = Vec::with_capacity(arrays.len());
        for (stretch, binding) in arrays.iter().zip(0..) {
            let Some(buffer) = wgpu_buffer(&stretch.buffer) else {
                continue;
            };
            let resource = BindingResource::Buffer(BufferBinding {
                buffer,
                offset: stretch.start,
                size: BufferSize::new(stretch.length.max(4)),
            });
            entries.push(BindGroupEntry { binding, resource });
        }
        self.device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        })
    }

    pub fn read(
        &self,
        buffers: &[(&driver::Buffer, u64)],
        time_max: Duration,
    ) -> Result<Option<Vec<Bytes>>, GpuError> {
        let padded = |bytes: u64| bytes.next_multiple_of(8);
        let total: u64 = buffers.iter().map(|(_, bytes)| padded(*bytes)).sum();
        if total == 0 {
            let nothing = || vec![Bytes::new(); buffers.len()];
            return Ok(self.wait_idle(time_max)?.then(nothing));
        }
        let staging = self.device.create_buffer(&BufferDescriptor {
            label: None,
            size: total,
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for (buffer, bytes) in buffers {
            if let Some(buffer) = wgpu_buffer(buffer).filter(|_| *bytes > 0) {
                let copied = bytes.next_multiple_of(4);
                encoder.copy_buffer_to_buffer(buffer, 0, &staging, at, copied);
            }
            at += padded(*bytes);
        }
        if !self.submit_commands(Some(encoder.finish()), time_max)? {
            return Ok(None);
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, .., move |mapped| {
            // The receiver is gone only if the wait below failed.
            let _ = sender.send(mapped);
        });
        if !self.wait_idle(time_max)? {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| GpuError::Driver(error.to_string());
        let mapped = receiver.recv().map_err(|_| failed(&"nothing was mapped"))?;
        mapped.map_err(|error| failed(&error))?;
        let view = staging
            .get_mapped_range(..)
            .map_err(|error| failed(&error))?;
        let mut at = 0;
        let mut read = Vec::with_capacity(buffers.len());
        for (_, bytes) in buffers {
            read.push(Bytes::copy_from_slice(&view[at..at + *bytes as usize]));
            at += padded(*bytes) as usize;
        }
        Ok(Some(read))
    }

    /// Waits until everything submitted is done; whether it was in time.
    fn wait_idle(&self, time_max: Duration) -> Result<bool, GpuError> {
        let waited = self.device.poll(PollType::Wait {
            submission_index: None,
            timeout: Some(time_max),
        });
        match waited {
            Ok(_) => Ok(true),
            Err(PollError::Timeout) => Ok(false),
            Err(error) => Err(GpuError::Driver(error.to_string())),
        }
    }
}

/// Returns the buffer, if it is one of wgpu.
fn wgpu_buffer(buffer: &driver::Buffer) -> Option<&Buffer> {
    match buffer {
        driver::Buffer::WebGpu(buffer) => Some(buffer),
        #[cfg(feature = "cuda")]
        _ => None,
    }
}
