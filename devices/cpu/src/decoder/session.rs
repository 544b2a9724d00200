//! A session: caches, and the buffers of a step.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use souk_vocabulary::processor::RunError;
use souk_vocabulary::processor::session::State;

use super::DecoderModel;
use super::attention::{RowBlock, Shared};
use super::plan::RowCount;
use super::run::{Run, StepInputs};
use crate::tiled::aligned::AlignedFloats;
use crate::tiled::worker_pool;

/// Caches that are written in place.
pub(in super::super) struct DecoderSession<'a> {
    model: &'a DecoderModel,
    /// By state.
    caches: Vec<AlignedFloats>,
    /// Positions the caches have room for.
    room: usize,
    /// By slot, grown as steps want them.
    buffers: Vec<AlignedFloats>,
    shared: Shared,
}

/// A refusal of what a step was given, in the words of the operator that would refuse it.
fn refused(operator: &str, node: &str, reason: String) -> RunError {
    RunError::Operator {
        operator: operator.to_owned(),
        node: node.to_owned(),
        reason,
    }
}

impl<'a> DecoderSession<'a> {
    pub fn new(model: &'a DecoderModel, states: Vec<State>) -> Result<Self, RunError> {
        let mut values: BTreeMap<String, Tensor> = states
            .into_iter()
            .map(|state| (state.port.input, state.value))
            .collect();
        let mut caches = Vec::with_capacity(model.plan.states.len());
        let mut room = None;
        for state in &model.plan.states {
            let name = state.port.input.clone();
            let Some(value) = values.remove(&name) else {
                let dtype = DType::F32;
                return Err(RunError::InputMissing { name, dtype });
            };
            let own = value.dims().get(2).copied().unwrap_or(0);
            let wanted = [1, state.heads, *room.get_or_insert(own), state.width];
            if value.dims() != wanted {
                return Err(RunError::InputShape {
                    name,
                    expected: format!("{wanted:?}"),
                    found: value.shape().clone(),
                });
            }
            let floats = value.elements::<f32>().map_err(|_| RunError::InputDType {
                name,
                expected: DType::F32,
                found: value.dtype(),
            })?;
            let cache = state.shape(own).packed(&floats);
            caches.push(cache);
        }
        if let Some(name) = values.into_keys().next() {
            let known = model
                .plan
                .states
                .iter()
                .map(|it| it.port.input.clone())
                .collect();
            return Err(RunError::InputUnknown { name, known });
        }
        Ok(Self {
            model,
            caches,
            room: room.unwrap_or(0),
            buffers: Vec::new(),
            shared: Shared::new(),
        })
    }

    /// Runs once; gives the output that is no state.
    pub fn outputs(
        &mut self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<BTreeMap<String, Tensor>, RunError> {
        let given = self.given(inputs)?;
        let plan = &self.model.plan;
        let blocks = RowBlock::of(given.count, given.length);
        self.grow(&given);
        self.shared.grow(self.model, &blocks);
        let run = Run {
            model: self.model,
            given: &given,
            room: self.room,
            buffers: &worker_pool::memories(&mut self.buffers),
            caches: &worker_pool::memories(&mut self.caches),
            blocks: &blocks,
            shared: self.shared.memory(),
        };
        worker_pool::run(&self.model.threads, &run.tasks(), |stage, task| {
            run.task(stage, task)
        });
        let (name, value) = &plan.result;
        let place = plan.places[*value];
        let rows = given.count(run.row_count(*value));
        let floats = self.buffers[place.slot][..rows * place.width].to_vec();
        let made = Tensor::from_vec([1, rows, place.width], floats);
        let made = made.map_err(|cause| RunError::Engine {
            engine: "decoder",
            reason: cause.to_string(),
        })?;
        Ok(BTreeMap::from([(name.clone(), made)]))
    }

    /// The states as outputs.
    pub fn outputs_of_states(&self) -> BTreeMap<String, Tensor> {
        let states = self.model.plan.states.iter();
        let named = states.map(|state| state.port.output.clone());
        named.zip(self.states()).collect()
    }

    /// The states as inputs.
    pub fn export(&self) -> BTreeMap<String, Tensor> {
        let states = self.model.plan.states.iter();
        let named = states.map(|state| state.port.input.clone());
        named.zip(self.states()).collect()
    }

    fn states(&self) -> impl Iterator<Item = Tensor> {
        let states = self.model.plan.states.iter().zip(&self.caches);
        states.map(|(state, cache)| {
            let sizes = [1, state.heads, self.room, state.width];
            Tensor::from_vec(sizes, state.shape(self.room).unpacked(cache))
                .expect("a cache is as large as it says")
        })
    }

    /// Buffers for as many rows as a step has.
    fn grow(&mut self, given: &StepInputs) {
        let most = given
            .count(RowCount::Tokens)
            .max(given.count(RowCount::Selected));
        let widths = &self.model.plan.slots;
        if self.buffers.len() < widths.len() {
            self.buffers = widths
                .iter()
                .map(|width| AlignedFloats::zeros(width * most))
                .collect();
        }
        for (buffer, width) in self.buffers.iter_mut().zip(widths) {
            if buffer.len() < width * most {
                *buffer = AlignedFloats::zeros(width * most);
            }
        }
    }

    /// The inputs as numbers, each within its range.
    fn given(&self, inputs: &BTreeMap<String, Tensor>) -> Result<StepInputs, RunError> {
        self.check_names(inputs)?;
        let (plan, names) = (&self.model.plan, &self.model.plan.inputs);
        let tokens = integers(inputs, &names.tokens)?;
        let tokens = within(&tokens, self.model.vocabulary(), "Gather", "a token")?;
        let entered = entered(inputs, &names.entered)?;
        let rows_entered = names
            .entered
            .as_ref()
            .map(|(_, width)| entered.len() / width);
        let count = rows_entered.unwrap_or(tokens.len());
        let angles = plan
            .tables
            .iter()
            .map(|table| table.cosines.len() / table.width)
            .min();
        let positions = integers(inputs, &names.positions)?;
        let positions = within(
            &positions,
            angles.unwrap_or(0),
            "RotaryEmbedding",
            "a position",
        )?;
        let unlike = |name: &Option<String>, found: usize| name.is_some() && found != count;
        if unlike(&names.positions, positions.len()) || unlike(&names.tokens, tokens.len()) {
            let reason = format!("{} positions for {count} rows", positions.len());
            return Err(refused("RotaryEmbedding", "positions", reason));
        }
        let write = single(inputs, &names.write)?;
        if write.checked_add(count).is_none_or(|end| end > self.room) {
            let reason = format!("{count} rows do not fit at {write} of {}", self.room);
            return Err(refused("TensorScatter", "caches", reason));
        }
        let length = single(inputs, &names.length)?;
        if length > self.room || length < count {
            let reason = format!(
                "{length} positions of {} count, with {count} new",
                self.room
            );
            return Err(refused("Attention", "caches", reason));
        }
        let rows = within(&integers(inputs, &names.rows)?, count, "Gather", "a row")?;
        Ok(StepInputs {
            tokens,
            positions,
            write,
            length,
            rows,
            entered,
            count,
        })
    }

    fn check_names(&self, inputs: &BTreeMap<String, Tensor>) -> Result<(), RunError> {
        let names = &self.model.plan.inputs;
        let named = [
            &names.tokens,
            &names.positions,
            &names.write,
            &names.length,
            &names.rows,
        ];
        let entered = names.entered.iter().map(|(name, _)| name);
        let known: Vec<&String> = named.into_iter().flatten().chain(entered).collect();
        match inputs.keys().find(|name| !known.contains(name)) {
            Some(name) => Err(RunError::InputUnknown {
                name: name.clone(),
                known: known.into_iter().cloned().collect(),
            }),
            None => Ok(()),
        }
    }
}

/// The rows that another part made.
fn entered(
    inputs: &BTreeMap<String, Tensor>,
    name: &Option<(String, usize)>,
) -> Result<Vec<f32>, RunError> {
    let Some((name, width)) = name else {
        return Ok(Vec::new());
    };
    let dtype = DType::F32;
    let missing = || RunError::InputMissing {
        name: name.clone(),
        dtype,
    };
    let tensor = inputs.get(name).ok_or_else(missing)?;
    if tensor.dims().len() != 3 || tensor.dims()[0] != 1 || tensor.dims()[2] != *width {
        return Err(RunError::InputShape {
            name: name.clone(),
            expected: format!("[1, ?, {width}]"),
            found: tensor.shape().clone(),
        });
    }
    tensor.to_vec().map_err(|_| RunError::InputDType {
        name: name.clone(),
        expected: dtype,
        found: tensor.dtype(),
    })
}

/// The numbers of an input; none where the plan has no such input.
fn integers(
    inputs: &BTreeMap<String, Tensor>,
    name: &Option<String>,
) -> Result<Vec<i64>, RunError> {
    let Some(name) = name else {
        return Ok(Vec::new());
    };
    let missing = || RunError::InputMissing {
        name: name.clone(),
        dtype: DType::I64,
    };
    let tensor = inputs.get(name).ok_or_else(missing)?;
    tensor.to_vec().map_err(|_| RunError::InputDType {
        name: name.clone(),
        expected: DType::I64,
        found: tensor.dtype(),
    })
}

fn single(inputs: &BTreeMap<String, Tensor>, name: &Option<String>) -> Result<usize, RunError> {
    match (name, &integers(inputs, name)?[..]) {
        (None, _) => Ok(0),
        (Some(_), &[one]) if one >= 0 => Ok(one as usize),
        (Some(name), _) => Err(refused(
            "TensorScatter",
            name,
            "it is one number".to_owned(),
        )),
    }
}

/// Numbers below a limit; negative ones count from it backwards, as `Gather` has them.
fn within(
    numbers: &[i64],
    limit: usize,
    operator: &str,
    what: &str,
) -> Result<Vec<usize>, RunError> {
    let place = |&number: &i64| {
        let from = if number < 0 {
            number + limit as i64
        } else {
            number
        };
        let place = usize::try_from(from).ok().filter(|place| *place < limit);
        place.ok_or_else(|| refused(operator, what, format!("{number} is not below {limit}")))
    };
    numbers.iter().map(place).collect()
}
