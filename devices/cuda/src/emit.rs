//! Translates GPU kernels from WGSL to CUDA C++: naga parses and validates the WGSL, and this
//! module writes naga's representation as C++.
//!
//! So the same kernels and the same checks serve all GPUs. A kernel becomes a class whose members
//! are its arrays and functions; `emit/prelude.cu` implements WGSL's guarantees for arithmetic and
//! bounds. This module refuses, by name, features that no kernel of ours uses (images, structures,
//! atomics).

mod body;

use std::fmt::Write;

use naga::proc::Layouter;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{
    AddressSpace, ArraySize, Binding, BuiltIn, Expression, Function, FunctionArgument, Handle,
    Literal, Module, ScalarKind, StorageAccess, Type, TypeInner,
};
use thiserror::Error;

use body::Body;

/// The first lines of every kernel.
const PRELUDE: &str = include_str!("emit/prelude.cu");

/// The function of a translated kernel that is launched.
pub const ENTRY: &str = "souk_main";

/// A kernel in CUDA C++.
#[derive(Clone, Debug)]
pub struct Translation {
    /// Source in CUDA C++.
    pub source: String,
    /// Threads of a block.
    pub threads: [u32; 3],
    /// Its arrays, in the order in which it takes the address and the number of elements of each.
    pub arrays: Vec<BoundArray>,
}

/// An array that a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundArray {
    /// Which binding of group 0 it is.
    pub binding: u32,
    /// Whether the kernel writes to it.
    pub is_written: bool,
}

/// Why a kernel was not translated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EmitError {
    /// It is no WGSL.
    #[error("{reason}")]
    Parse {
        /// naga's message.
        reason: String,
    },
    /// It is no valid kernel.
    #[error("{reason}")]
    Invalid {
        /// naga's message.
        reason: String,
    },
    /// It has no entry.
    #[error("it has no compute entry called main")]
    Entry,
    /// It uses something that is not translated.
    #[error("{0} are not translated for CUDA")]
    Untranslated(&'static str),
}

/// Translates the WGSL of a kernel.
pub fn translate_kernel(wgsl: &str) -> Result<Translation, EmitError> {
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|error| EmitError::Parse {
        reason: error.emit_to_string(wgsl),
    })?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::default());
    let info = validator
        .validate(&module)
        .map_err(|error| EmitError::Invalid {
            reason: error.emit_to_string(wgsl),
        })?;
    let mut layouter = Layouter::default();
    let laid = layouter.update(module.to_ctx());
    laid.map_err(|error| EmitError::Invalid {
        reason: error.to_string(),
    })?;
    Writer {
        module: &module,
        info: &info,
        text: PRELUDE.to_owned(),
    }
    .write_kernel()
}

struct Writer<'a> {
    module: &'a Module,
    info: &'a ModuleInfo,
    text: String,
}

/// Writing to a text does not fail.
const WRITTEN: &str = "a text takes whatever is written to it";

impl Writer<'_> {
    fn write_kernel(mut self) -> Result<Translation, EmitError> {
        let entries = &self.module.entry_points;
        let is_main = |entry: &&naga::EntryPoint| entry.name == "main";
        let entry = entries.iter().find(is_main).ok_or(EmitError::Entry)?;
        let place = entries.iter().position(|it| it.name == "main");
        let threads = entry.workgroup_size;
        self.text.push_str("struct Kernel {\n");
        let mut arrays = Vec::new();
        // A member is a runtime array, a reference to a block's shared memory, or a thread's own.
        for (handle, global) in self.module.global_variables.iter() {
            let index = handle.index();
            let element = |writer: &Self| match &writer.module.types[global.ty].inner {
                TypeInner::Array {
                    base,
                    size: ArraySize::Dynamic,
                    ..
                } => match writer.module.types[*base].inner {
                    // A vector of three occupies the space of four; no kernel of ours stores one.
                    TypeInner::Scalar(scalar) => Ok(scalar_name(scalar)?.to_owned()),
                    _ => Err(EmitError::Untranslated("arrays but of numbers")),
                },
                _ => Err(EmitError::Untranslated("buffers that are no arrays")),
            };
            match global.space {
                AddressSpace::Storage { access } => {
                    let is_written = access.contains(StorageAccess::STORE);
                    let element = element(&self)?;
                    let readonly = if is_written { "" } else { "const " };
                    writeln!(self.text, "Words<{readonly}{element}> g{index};").expect(WRITTEN);
                    let place = global.binding.filter(|place| place.group == 0);
                    let place = place.ok_or(EmitError::Untranslated("groups but the first"))?;
                    let binding = place.binding;
                    arrays.push((
                        handle,
                        BoundArray {
                            binding,
                            is_written,
                        },
                        element,
                    ));
                }
                AddressSpace::WorkGroup => {
                    let name = self.type_name(global.ty)?;
                    writeln!(self.text, "{name}& g{index};").expect(WRITTEN);
                }
                _ => {
                    return Err(EmitError::Untranslated(
                        "variables of a thread outside of it",
                    ));
                }
            }
        }
        for (handle, function) in self.module.functions.iter() {
            let info = &self.info[handle];
            let name = format!("f{}", handle.index());
            self.write_function(function, info, &name, &function.arguments)?;
        }
        let entry_info = self.info.get_entry_point(place.unwrap_or_default());
        self.write_function(&entry.function, entry_info, "run", &[])?;
        self.text.push_str("};\n");
        self.write_entry_point(threads, &arrays)?;
        let mut arrays: Vec<BoundArray> = arrays.into_iter().map(|(_, bound, _)| bound).collect();
        arrays.sort_by_key(|bound| bound.binding);
        Ok(Translation {
            source: self.text,
            threads,
            arrays,
        })
    }

    /// Writes the function to launch: it binds the arrays and clears the block's shared memory, as
    /// WGSL requires.
    fn write_entry_point(
        &mut self,
        threads: [u32; 3],
        arrays: &[(Handle<naga::GlobalVariable>, BoundArray, String)],
    ) -> Result<(), EmitError> {
        let all: u32 = threads.iter().product();
        let mut sorted: Vec<_> = arrays.iter().collect();
        sorted.sort_by_key(|(_, bound, _)| bound.binding);
        let parameter = |(handle, bound, element): &&(_, BoundArray, String)| {
            let readonly = if bound.is_written { "" } else { "const " };
            let index = Handle::<naga::GlobalVariable>::index(*handle);
            format!("{readonly}{element}* at{index}, u32 length{index}")
        };
        let parameters: Vec<String> = sorted.iter().map(parameter).collect();
        let parameters = parameters.join(", ");
        writeln!(
            self.text,
            "extern \"C\" __global__ void __launch_bounds__({all}) {ENTRY}({parameters}) {{"
        )
        .expect(WRITTEN);
        let mut members = Vec::new();
        let mut shared = false;
        for (handle, global) in self.module.global_variables.iter() {
            let index = handle.index();
            if global.space != AddressSpace::WorkGroup {
                members.push(format!("{{at{index}, length{index}}}"));
                continue;
            }
            let name = self.type_name(global.ty)?;
            writeln!(
                self.text,
                "__shared__ {name} g{index};\nfor (u32 i = threadIdx.x; i < sizeof(g{index}) / 4; \
                 i += {all}u) reinterpret_cast<u32*>(&g{index})[i] = 0u;"
            )
            .expect(WRITTEN);
            members.push(format!("g{index}"));
            shared = true;
        }
        if shared {
            self.text.push_str("__syncthreads();\n");
        }
        let members = members.join(", ");
        writeln!(self.text, "Kernel kernel{{{members}}};\nkernel.run();\n}}").expect(WRITTEN);
        Ok(())
    }

    fn write_function(
        &mut self,
        function: &Function,
        info: &naga::valid::FunctionInfo,
        name: &str,
        arguments: &[FunctionArgument],
    ) -> Result<(), EmitError> {
        let result = match &function.result {
            Some(result) => self.type_name(result.ty)?,
            None => "void".to_owned(),
        };
        let mut parameters = Vec::new();
        for (index, argument) in arguments.iter().enumerate() {
            parameters.push(format!("{} a{index}", self.type_name(argument.ty)?));
        }
        let parameters = parameters.join(", ");
        writeln!(self.text, "{result} {name}({parameters}) {{").expect(WRITTEN);
        if arguments.is_empty() {
            for (index, argument) in function.arguments.iter().enumerate() {
                let value = builtin_text(argument)?;
                writeln!(self.text, "const auto a{index} = {value};").expect(WRITTEN);
            }
        }
        let mut body = Body {
            writer: self,
            function,
            info,
        };
        body.write_locals()?;
        body.write_block(&function.body)?;
        self.text.push_str("}\n");
        Ok(())
    }

    fn type_name(&self, ty: Handle<Type>) -> Result<String, EmitError> {
        Ok(match &self.module.types[ty].inner {
            TypeInner::Scalar(scalar) => scalar_name(*scalar)?.to_owned(),
            TypeInner::Vector { size, scalar } => {
                format!("V<{}, {}>", scalar_name(*scalar)?, *size as u32)
            }
            TypeInner::Array {
                base,
                size: ArraySize::Constant(count),
                ..
            } => format!("V<{}, {count}>", self.type_name(*base)?),
            TypeInner::Pointer { base, .. } => format!("{}&", self.type_name(*base)?),
            TypeInner::Struct { .. } => return Err(EmitError::Untranslated("structures")),
            TypeInner::Atomic(_) => return Err(EmitError::Untranslated("atomics")),
            _ => {
                return Err(EmitError::Untranslated(
                    "types but numbers and arrays of them",
                ));
            }
        })
    }

    /// An expression known when the kernel is compiled.
    fn constant_text(&self, expression: Handle<Expression>) -> Result<String, EmitError> {
        match &self.module.global_expressions[expression] {
            Expression::Literal(value) => literal_text(*value),
            Expression::Constant(constant) => {
                self.constant_text(self.module.constants[*constant].init)
            }
            Expression::ZeroValue(ty) => Ok(format!("({}{{}})", self.type_name(*ty)?)),
            Expression::Compose { ty, components } => {
                let parts = components.iter().map(|part| self.constant_text(*part));
                let parts = parts.collect::<Result<Vec<_>, _>>()?.join(", ");
                Ok(format!("{}{{{{{parts}}}}}", self.type_name(*ty)?))
            }
            Expression::Splat { size, value } => {
                let value = self.constant_text(*value)?;
                Ok(format!("splat<{}>({value})", *size as u32))
            }
            _ => Err(EmitError::Untranslated("such constants")),
        }
    }
}

fn scalar_name(scalar: naga::Scalar) -> Result<&'static str, EmitError> {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Float, 4) => Ok("float"),
        (ScalarKind::Sint, 4) => Ok("int"),
        (ScalarKind::Uint, 4) => Ok("u32"),
        (ScalarKind::Bool, _) => Ok("bool"),
        _ => Err(EmitError::Untranslated("numbers but of 32 bits")),
    }
}

fn literal_text(value: Literal) -> Result<String, EmitError> {
    Ok(match value {
        // Write the bits, so that CUDA reads exactly the same value.
        Literal::F32(value) => format!("__uint_as_float({:#x}u)", value.to_bits()),
        Literal::U32(value) => format!("{value}u"),
        Literal::I32(value) => format!("int({}u)", value.cast_unsigned()),
        Literal::Bool(value) => value.to_string(),
        _ => return Err(EmitError::Untranslated("numbers but of 32 bits")),
    })
}

/// Returns the CUDA expression of a built-in position of a thread.
fn builtin_text(argument: &FunctionArgument) -> Result<&'static str, EmitError> {
    let Some(Binding::BuiltIn(builtin)) = &argument.binding else {
        return Err(EmitError::Untranslated("structures"));
    };
    Ok(match builtin {
        BuiltIn::GlobalInvocationId => {
            "V<u32, 3>{{blockIdx.x * blockDim.x + threadIdx.x, \
             blockIdx.y * blockDim.y + threadIdx.y, blockIdx.z * blockDim.z + threadIdx.z}}"
        }
        BuiltIn::LocalInvocationId => "V<u32, 3>{{threadIdx.x, threadIdx.y, threadIdx.z}}",
        BuiltIn::LocalInvocationIndex => {
            "u32((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x)"
        }
        BuiltIn::WorkGroupId => "V<u32, 3>{{blockIdx.x, blockIdx.y, blockIdx.z}}",
        BuiltIn::NumWorkGroups => "V<u32, 3>{{gridDim.x, gridDim.y, gridDim.z}}",
        _ => return Err(EmitError::Untranslated("such values of the device")),
    })
}
