//! Translates the body of a WGSL function to CUDA C++: its local variables, statements and
//! expressions.

use std::fmt::Write;

use naga::valid::FunctionInfo;
use naga::{
    BinaryOperator, Block, Expression, Function, Handle, MathFunction, ScalarKind, Statement,
    SwitchValue, Type, TypeInner, UnaryOperator,
};

use super::{EmitError, WRITTEN, Writer, literal_text, scalar_name};

/// A function under translation. Each expression becomes a named constant, in naga's order, so that
/// reads happen where WGSL defines them.
pub(super) struct Body<'w, 'a> {
    pub writer: &'w mut Writer<'a>,
    pub function: &'w Function,
    pub info: &'w FunctionInfo,
}

type Text = Result<String, EmitError>;

impl Body<'_, '_> {
    /// Writes the local variables. WGSL sets those without an initial value to zero.
    pub(super) fn write_locals(&mut self) -> Result<(), EmitError> {
        for (handle, local) in self.function.local_variables.iter() {
            let name = self.writer.type_name(local.ty)?;
            let init = match local.init {
                Some(init) => self.initial_text(init)?,
                None => format!("{name}{{}}"),
            };
            self.write_line(&format!("{name} v{} = {init};", handle.index()));
        }
        Ok(())
    }

    /// Returns the initial value of a variable. The kernel's compiler knows it, so no earlier
    /// statement has named its parts.
    fn initial_text(&self, handle: Handle<Expression>) -> Text {
        match &self.function.expressions[handle] {
            Expression::Compose { ty, components } => {
                let parts = components.iter().map(|part| self.initial_text(*part));
                self.composite_text(*ty, parts.collect::<Result<Vec<_>, _>>()?)
            }
            Expression::Splat { size, value } => Ok(format!(
                "splat<{}>({})",
                *size as u32,
                self.initial_text(*value)?
            )),
            _ => self.value(handle),
        }
    }

    pub(super) fn write_block(&mut self, block: &Block) -> Result<(), EmitError> {
        block
            .iter()
            .try_for_each(|statement| self.write_statement(statement))
    }

    fn write_line(&mut self, line: &str) {
        writeln!(self.writer.text, "{line}").expect(WRITTEN);
    }

    fn write_statement(&mut self, statement: &Statement) -> Result<(), EmitError> {
        match statement {
            Statement::Emit(range) => {
                for handle in range.clone() {
                    if !self.is_pointer(handle) {
                        let text = self.expression_text(handle)?;
                        self.write_constant(handle, &format!("{text};"));
                    }
                }
            }
            Statement::Block(block) => {
                self.write_line("{");
                self.write_block(block)?;
                self.write_line("}");
            }
            Statement::If {
                condition,
                accept,
                reject,
            } => {
                let condition = self.value(*condition)?;
                self.write_line(&format!("if ({condition}) {{"));
                self.write_block(accept)?;
                self.write_line("} else {");
                self.write_block(reject)?;
                self.write_line("}");
            }
            Statement::Switch { selector, cases } => self.write_switch(*selector, cases)?,
            Statement::Loop {
                body,
                continuing,
                break_if,
            } => self.write_loop(body, continuing, *break_if)?,
            Statement::Break => self.write_line("break;"),
            Statement::Continue => self.write_line("continue;"),
            Statement::Return { value } => {
                let value = value.map(|value| self.value(value)).transpose()?;
                self.write_line(&format!("return {};", value.unwrap_or_default()));
            }
            Statement::ControlBarrier(_) => self.write_line("__syncthreads();"),
            Statement::MemoryBarrier(_) => self.write_line("__threadfence_block();"),
            Statement::Store { pointer, value } => {
                let (place, value) = (self.place_text(*pointer)?, self.value(*value)?);
                self.write_line(&format!("{place} = {value};"));
            }
            Statement::Call {
                function,
                arguments,
                result,
            } => {
                let given = arguments
                    .iter()
                    .map(|argument| self.place_or_value(*argument));
                let given = given.collect::<Result<Vec<_>, _>>()?.join(", ");
                let called = format!("f{}({given});", function.index());
                match result {
                    Some(result) => self.write_constant(*result, &called),
                    None => self.write_line(&called),
                }
            }
            Statement::WorkGroupUniformLoad { pointer, result } => {
                let place = self.place_text(*pointer)?;
                self.write_line("__syncthreads();");
                self.write_constant(*result, &format!("{place};"));
                self.write_line("__syncthreads();");
            }
            _ => return Err(EmitError::Untranslated("images, atomics and the like")),
        }
        Ok(())
    }

    /// Writes a constant that holds the value of an expression.
    fn write_constant(&mut self, handle: Handle<Expression>, text: &str) {
        self.write_line(&format!("const auto e{} = {text}", handle.index()));
    }

    /// Writes a loop. Its continuing block runs before each turn but the first, so that a
    /// `continue` anywhere leads there.
    fn write_loop(
        &mut self,
        body: &Block,
        continuing: &Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<(), EmitError> {
        self.write_line("for (bool first = true;; first = false) {\nif (!first) {");
        self.write_block(continuing)?;
        if let Some(condition) = break_if {
            let condition = self.value(condition)?;
            self.write_line(&format!("if ({condition}) break;"));
        }
        self.write_line("}");
        self.write_block(body)?;
        self.write_line("}");
        Ok(())
    }

    fn write_switch(
        &mut self,
        selector: Handle<Expression>,
        cases: &[naga::SwitchCase],
    ) -> Result<(), EmitError> {
        let selector = self.value(selector)?;
        self.write_line(&format!("switch ({selector}) {{"));
        for case in cases {
            match case.value {
                SwitchValue::I32(value) => self.write_line(&format!("case {value}:")),
                SwitchValue::U32(value) => self.write_line(&format!("case {value}u:")),
                SwitchValue::Default => self.write_line("default:"),
            }
            if case.fall_through && case.body.is_empty() {
                continue;
            }
            self.write_line("{");
            self.write_block(&case.body)?;
            self.write_line(if case.fall_through { "}" } else { "} break;" });
        }
        self.write_line("}");
        Ok(())
    }

    fn is_pointer(&self, handle: Handle<Expression>) -> bool {
        let inner = self.info[handle].ty.inner_with(&self.writer.module.types);
        matches!(
            inner,
            TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }
        )
    }

    fn is_vector(&self, handle: Handle<Expression>) -> bool {
        let inner = self.info[handle].ty.inner_with(&self.writer.module.types);
        matches!(inner, TypeInner::Vector { .. })
    }

    fn place_or_value(&self, handle: Handle<Expression>) -> Text {
        match self.is_pointer(handle) {
            true => self.place_text(handle),
            false => self.value(handle),
        }
    }

    /// Returns the place to read or write.
    fn place_text(&self, handle: Handle<Expression>) -> Text {
        match &self.function.expressions[handle] {
            Expression::GlobalVariable(global) => Ok(format!("g{}", global.index())),
            Expression::LocalVariable(local) => Ok(format!("v{}", local.index())),
            Expression::FunctionArgument(index) => Ok(format!("a{index}")),
            Expression::Access { base, index } => {
                let (base, index) = (self.place_text(*base)?, self.value(*index)?);
                Ok(format!("{base}[{index}]"))
            }
            Expression::AccessIndex { base, index } => {
                Ok(format!("{}[{index}u]", self.place_text(*base)?))
            }
            _ => Err(EmitError::Untranslated("such pointers")),
        }
    }

    /// Returns the text of a value: its name if it has one, otherwise its expression.
    fn value(&self, handle: Handle<Expression>) -> Text {
        let expression = &self.function.expressions[handle];
        match expression {
            Expression::Literal(_) | Expression::Constant(_) | Expression::ZeroValue(_) => {
                self.expression_text(handle)
            }
            Expression::FunctionArgument(index) => Ok(format!("a{index}")),
            _ => Ok(format!("e{}", handle.index())),
        }
    }

    fn expression_text(&self, handle: Handle<Expression>) -> Text {
        let value = |handle: &Handle<Expression>| self.value(*handle);
        Ok(match &self.function.expressions[handle] {
            Expression::Literal(value) => literal_text(*value)?,
            Expression::Constant(constant) => {
                let init = self.writer.module.constants[*constant].init;
                self.writer.constant_text(init)?
            }
            Expression::ZeroValue(ty) => format!("({}{{}})", self.writer.type_name(*ty)?),
            Expression::Compose { ty, components } => {
                let parts = components.iter().map(value);
                self.composite_text(*ty, parts.collect::<Result<Vec<_>, _>>()?)?
            }
            Expression::Access { base, index } => format!("{}[{}]", value(base)?, value(index)?),
            Expression::AccessIndex { base, index } => format!("{}[{index}u]", value(base)?),
            Expression::Splat { size, value: of } => {
                format!("splat<{}>({})", *size as u32, value(of)?)
            }
            Expression::Swizzle {
                size,
                vector,
                pattern,
            } => {
                let parts = pattern[..*size as usize].iter();
                let parts: Vec<String> = parts.map(|it| (*it as u32).to_string()).collect();
                format!("swizzle<{}>({})", parts.join(", "), value(vector)?)
            }
            Expression::FunctionArgument(index) => format!("a{index}"),
            Expression::Load { pointer } => self.place_text(*pointer)?,
            Expression::Unary { op, expr } => unary_text(*op, &value(expr)?),
            Expression::Binary { op, left, right } => {
                let vectors = self.is_vector(*left) || self.is_vector(*right);
                binary_text(*op, &value(left)?, &value(right)?, vectors)?
            }
            Expression::Select {
                condition,
                accept,
                reject,
            } => {
                if self.is_vector(*condition) {
                    return Err(EmitError::Untranslated("choices by vectors"));
                }
                let (yes, no) = (value(accept)?, value(reject)?);
                format!("({} ? {yes} : {no})", value(condition)?)
            }
            Expression::Math {
                fun,
                arg,
                arg1,
                arg2,
                ..
            } => self.call_text(*fun, *arg, [*arg1, *arg2])?,
            Expression::As {
                expr,
                kind,
                convert,
            } => conversion_text(*kind, convert.is_some(), &value(expr)?)?,
            Expression::ArrayLength(pointer) => format!("{}.length", self.place_text(*pointer)?),
            _ => return Err(EmitError::Untranslated("images, atomics and the like")),
        })
    }
}

impl Body<'_, '_> {
    fn composite_text(&self, ty: Handle<Type>, parts: Vec<String>) -> Text {
        let parts = parts.join(", ");
        let name = self.writer.type_name(ty)?;
        Ok(match &self.writer.module.types[ty].inner {
            TypeInner::Vector { .. } => format!("compose<{name}>({parts})"),
            _ => format!("{name}{{{{{parts}}}}}"),
        })
    }

    fn call_text(
        &self,
        name: MathFunction,
        first: Handle<Expression>,
        more: [Option<Handle<Expression>>; 2],
    ) -> Text {
        if self.is_vector(first) {
            return Err(EmitError::Untranslated("functions of vectors"));
        }
        let given = std::iter::once(first).chain(more.into_iter().flatten());
        let given = given.map(|argument| self.value(argument));
        let given = given.collect::<Result<Vec<_>, _>>()?.join(", ");
        Ok(format!("{}({given})", math_function_name(name)?))
    }
}

/// Converts a value to another kind of number, by value or bit by bit.
fn conversion_text(kind: ScalarKind, by_value: bool, value: &str) -> Text {
    let name = scalar_name(naga::Scalar { kind, width: 4 })?;
    Ok(match by_value {
        true => format!("convert<{name}>({value})"),
        false => format!("Bits<{name}>::of({value})"),
    })
}

fn unary_text(operator: UnaryOperator, value: &str) -> String {
    match operator {
        UnaryOperator::Negate => format!("neg({value})"),
        UnaryOperator::LogicalNot => format!("!{value}"),
        UnaryOperator::BitwiseNot => format!("~{value}"),
    }
}

fn binary_text(operator: BinaryOperator, left: &str, right: &str, vectors: bool) -> Text {
    use BinaryOperator as Op;
    let named = match operator {
        Op::Add => Some("add"),
        Op::Subtract => Some("sub"),
        Op::Multiply => Some("mul"),
        Op::Divide => Some("div"),
        Op::Modulo => Some("rem"),
        _ if vectors => return Err(EmitError::Untranslated("comparisons of vectors")),
        Op::ShiftLeft => Some("shl"),
        Op::ShiftRight => Some("shr"),
        _ => None,
    };
    if let Some(name) = named {
        return Ok(format!("{name}({left}, {right})"));
    }
    let sign = match operator {
        Op::Equal => "==",
        Op::NotEqual => "!=",
        Op::Less => "<",
        Op::LessEqual => "<=",
        Op::Greater => ">",
        Op::GreaterEqual => ">=",
        Op::And => "&",
        Op::ExclusiveOr => "^",
        Op::InclusiveOr => "|",
        Op::LogicalAnd => "&&",
        _ => "||",
    };
    Ok(format!("({left} {sign} {right})"))
}

fn math_function_name(function: MathFunction) -> Result<&'static str, EmitError> {
    use MathFunction as Of;
    Ok(match function {
        Of::Abs => "abs_",
        Of::Min => "min_",
        Of::Max => "max_",
        Of::Clamp => "clamp_",
        Of::Saturate => "saturate_",
        Of::Cos => "cosf",
        Of::Cosh => "coshf",
        Of::Sin => "sinf",
        Of::Sinh => "sinhf",
        Of::Tan => "tanf",
        Of::Tanh => "tanhf",
        Of::Acos => "acosf",
        Of::Asin => "asinf",
        Of::Atan => "atanf",
        Of::Atan2 => "atan2f",
        Of::Asinh => "asinhf",
        Of::Acosh => "acoshf",
        Of::Atanh => "atanhf",
        Of::Ceil => "ceilf",
        Of::Floor => "floorf",
        // To the even of two as near, as WGSL and ONNX have it.
        Of::Round => "rintf",
        Of::Fract => "fract_",
        Of::Trunc => "truncf",
        Of::Exp => "expf",
        Of::Exp2 => "exp2f",
        Of::Log => "logf",
        Of::Log2 => "log2f",
        Of::Pow => "powf",
        Of::Sign => "sign_",
        Of::Fma => "fmaf",
        Of::Mix => "mix_",
        Of::Step => "step_",
        Of::Sqrt => "sqrtf",
        Of::InverseSqrt => "rsqrtf",
        Of::Dot4I8Packed => "dot4",
        _ => return Err(EmitError::Untranslated("some functions")),
    })
}
