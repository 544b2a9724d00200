//! A session of a decoder: it stores the caches of its sequences and the buffers of a step, checks
//! the inputs of steps, runs them, and returns their outputs. Several sequences can step together,
//! and each gets the outputs that it would get alone.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use souk_onnx::sampling::{self, Sampling};
use souk_vocabulary::processor::RunError;
use souk_vocabulary::processor::session::{SequenceStep, State};

use super::DecoderModel;
use super::attention::{RowBlock, SpanResults};
use super::cache::RowPlace;
use super::plan::{self, DecoderOutput, OutputKind, RowCount};
use super::run::{Run, StepInputs};
use crate::tiled::aligned_floats::AlignedFloats;
use crate::tiled::worker_pool;

/// Sequences whose caches are written in place.
pub(in super::super) struct DecoderSession<'a> {
    model: &'a DecoderModel,
    /// Initial contents of a sequence's caches by state; `None` means zeros.
    first: Vec<Option<Tensor>>,
    /// Caches of each sequence, by state.
    sequences: BTreeMap<u32, Vec<AlignedFloats>>,
    /// Positions that caches have room for.
    room: usize,
    /// By slot, grown as steps want them.
    buffers: Vec<AlignedFloats>,
    shared: SpanResults,
}

/// The outputs of a sequence's step, and its number of rows.
pub(in super::super) type StepResult = (BTreeMap<String, Tensor>, usize);

/// The rows of a step that the caller wants.
struct RowsRequest {
    rows: usize,
    /// The rows that the outputs contain.
    logit_rows: Vec<usize>,
    /// How tokens are drawn, and the position of the first.
    sampling: (Sampling, u64),
}

impl RowsRequest {
    /// Returns an output of these rows.
    fn build_output(
        &self,
        output: &DecoderOutput,
        rows: &[f32],
        width: usize,
    ) -> Result<Tensor, RunError> {
        let made = match output.kind {
            OutputKind::Rows => Tensor::from_vec([1, self.rows, width], rows.to_vec()),
            OutputKind::LogitRows => {
                let logit_rows = self.logit_rows.iter();
                let floats = logit_rows
                    .flat_map(|row| &rows[row * width..][..width])
                    .copied();
                Tensor::from_vec(
                    [1, self.logit_rows.len(), width],
                    floats.collect::<Vec<f32>>(),
                )
            }
            OutputKind::Drawn => {
                let (sampling, position) = &self.sampling;
                let drawn = |(row, at)| sampling.draw_at(row, at).map(i64::from);
                let tokens = rows.chunks_exact(width).zip(*position..).map(drawn);
                let tokens = tokens.collect::<Result<Vec<i64>, _>>();
                let tokens = tokens
                    .map_err(|it| input_error(sampling::OPERATOR, &output.name, it.to_string()))?;
                Tensor::from_vec([1, self.rows], tokens)
            }
        };
        made.map_err(|cause| RunError::Engine {
            engine: "decoder",
            reason: cause.to_string(),
        })
    }
}

/// Returns the refusal of a step's input, in the words of the operator that would refuse it.
fn input_error(operator: &str, node: &str, reason: String) -> RunError {
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
        let mut first = Vec::with_capacity(model.plan.states.len());
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
            let is_zero = floats.iter().all(|float| float.to_bits() == 0);
            first.push((!is_zero).then_some(value));
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
            first,
            sequences: BTreeMap::new(),
            room: room.unwrap_or(0),
            buffers: Vec::new(),
            shared: SpanResults::new(),
        })
    }

    /// Runs one step for each of these sequences, which must all differ; returns the outputs that
    /// are not states.
    pub fn run_steps(&mut self, steps: &[SequenceStep]) -> Vec<Result<StepResult, RunError>> {
        let mut batch = StepInputs::default();
        let mut at_work = Vec::new();
        let plan = &self.model.plan;
        let rows_of = plan.row_count(plan.result);
        let given = steps.iter().map(|step| {
            let one = self.read_inputs(&step.inputs)?;
            let rows = one.row_count(rows_of);
            let logit_rows = read_integers(&step.inputs, &plan.inputs.logit_rows)?;
            let wish = RowsRequest {
                rows,
                logit_rows: resolve_indices(&logit_rows, rows, "Gather", "a row")?,
                sampling: read_sampling(&step.inputs, &plan.inputs.sampling)?,
            };
            let tokens = one.row_count(RowCount::Tokens);
            batch.add(one, at_work.len());
            at_work.push(step.sequence);
            Ok((tokens, wish))
        });
        let given: Vec<Result<(usize, RowsRequest), RunError>> = given.collect();
        let width = plan.places[plan.result].width;
        let made = self.run(&batch, &at_work);
        let mut from = 0;
        let outcome = |given: Result<(usize, RowsRequest), RunError>| {
            let (tokens, wish) = given?;
            let rows = &made[from * width..][..wish.rows * width];
            from += wish.rows;
            let outputs = plan.outputs.iter().map(|output| {
                let tensor = wish.build_output(output, rows, width)?;
                Ok((output.name.clone(), tensor))
            });
            let outputs = outputs.collect::<Result<_, RunError>>()?;
            Ok((outputs, tokens))
        };
        given.into_iter().map(outcome).collect()
    }

    /// Runs a step of some sequences; returns the rows of the result, one after the other.
    fn run(&mut self, given: &StepInputs, at_work: &[u32]) -> &[f32] {
        let blocks = RowBlock::from_places(&given.places);
        self.reserve_buffers(given);
        self.shared.reserve_tasks(self.model, &blocks);
        for sequence in at_work {
            if !self.sequences.contains_key(sequence) {
                self.sequences.insert(*sequence, self.empty_caches());
            }
        }
        // All sequences differ, so the loop removes each only once.
        let mut own = self.sequences.iter_mut().collect::<BTreeMap<_, _>>();
        let caches = at_work.iter().map(|sequence| {
            let caches = own.remove(sequence);
            worker_pool::to_memories(caches.expect("a sequence is stepped once at a time"))
        });
        let run = Run {
            model: self.model,
            given,
            room: self.room,
            caches: &caches.collect::<Vec<_>>(),
            buffers: &worker_pool::to_memories(&mut self.buffers),
            blocks: &blocks,
            shared: self.shared.shared_memory(),
        };
        worker_pool::run(
            &self.model.threads,
            &run.tasks_per_stage(),
            |stage, task| run.run_task(stage, task),
        );
        &self.buffers[self.model.plan.places[self.model.plan.result].slot]
    }

    /// The caches of a sequence that was not stepped.
    fn empty_caches(&self) -> Vec<AlignedFloats> {
        let states = self.model.plan.states.iter().zip(&self.first);
        let cache = |(state, first): (&plan::State, &Option<Tensor>)| {
            let shape = state.cache_shape(self.room);
            let first = first.as_ref().and_then(|it| it.elements::<f32>().ok());
            match first {
                Some(first) => shape.pack_cache(&first),
                None => AlignedFloats::zeros(shape.heads * shape.head_floats()),
            }
        };
        states.map(cache).collect()
    }

    /// The states of a sequence as outputs.
    pub fn outputs_of_states(&self, sequence: u32) -> BTreeMap<String, Tensor> {
        let states = self.model.plan.states.iter();
        let named = states.map(|state| state.port.output.clone());
        named.zip(self.sequence_states(sequence)).collect()
    }

    /// The states of a sequence as inputs.
    pub fn export_states(&self, sequence: u32) -> BTreeMap<String, Tensor> {
        let states = self.model.plan.states.iter();
        let named = states.map(|state| state.port.input.clone());
        named.zip(self.sequence_states(sequence)).collect()
    }

    fn sequence_states(&self, sequence: u32) -> Vec<Tensor> {
        let empty;
        let caches = match self.sequences.get(&sequence) {
            Some(caches) => caches,
            None => {
                empty = self.empty_caches();
                &empty
            }
        };
        let states = self.model.plan.states.iter().zip(caches);
        let tensor = |(state, cache): (&plan::State, &AlignedFloats)| {
            let sizes = [1, state.heads, self.room, state.width];
            let shape = state.cache_shape(self.room);
            Tensor::from_vec(sizes, shape.unpack_cache(cache))
                .expect("a cache is as large as it says")
        };
        states.map(tensor).collect()
    }

    /// Buffers for as many rows as a step has.
    fn reserve_buffers(&mut self, given: &StepInputs) {
        let most = given
            .row_count(RowCount::Tokens)
            .max(given.row_count(RowCount::Selected));
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

    /// The inputs of a sequence as numbers, each within its range.
    fn read_inputs(&self, inputs: &BTreeMap<String, Tensor>) -> Result<StepInputs, RunError> {
        self.check_names(inputs)?;
        let (plan, names) = (&self.model.plan, &self.model.plan.inputs);
        let tokens = read_integers(inputs, &names.tokens)?;
        let tokens = resolve_indices(&tokens, self.model.vocabulary_size(), "Gather", "a token")?;
        let entered = read_input_rows(inputs, &names.entered)?;
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
        let positions = read_integers(inputs, &names.positions)?;
        let positions = resolve_indices(
            &positions,
            angles.unwrap_or(0),
            "RotaryEmbedding",
            "a position",
        )?;
        let unlike = |name: &Option<String>, found: usize| name.is_some() && found != count;
        if unlike(&names.positions, positions.len()) || unlike(&names.tokens, tokens.len()) {
            let reason = format!("{} positions for {count} rows", positions.len());
            return Err(input_error("RotaryEmbedding", "positions", reason));
        }
        let write = read_single(inputs, &names.write)?;
        if write.checked_add(count).is_none_or(|end| end > self.room) {
            let reason = format!("{count} rows do not fit at {write} of {}", self.room);
            return Err(input_error("TensorScatter", "caches", reason));
        }
        let length = read_single(inputs, &names.length)?;
        if length > self.room || length < count {
            let reason = format!(
                "{length} positions of {} count, with {count} new",
                self.room
            );
            return Err(input_error("Attention", "caches", reason));
        }
        let rows = resolve_indices(
            &read_integers(inputs, &names.rows)?,
            count,
            "Gather",
            "a row",
        )?;
        let place = |row: usize| RowPlace {
            sequence: 0,
            write: write + row,
            seen: length - count + row + 1,
        };
        Ok(StepInputs {
            tokens,
            positions,
            places: (0..count).map(place).collect(),
            rows,
            entered,
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
            &names.logit_rows,
            &names.sampling,
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

/// Returns the rows that another part computed.
fn read_input_rows(
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
fn read_integers(
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

/// Returns the parameters of sampling and the position of the first token; any values will do if
/// the plan samples no tokens.
fn read_sampling(
    inputs: &BTreeMap<String, Tensor>,
    name: &Option<String>,
) -> Result<(Sampling, u64), RunError> {
    let Some(name) = name else {
        return Ok((Sampling::default(), 0));
    };
    let dtype = DType::F64;
    let missing = || RunError::InputMissing {
        name: name.clone(),
        dtype,
    };
    let tensor = inputs.get(name).ok_or_else(missing)?;
    let numbers: Vec<f64> = tensor.to_vec().map_err(|_| RunError::InputDType {
        name: name.clone(),
        expected: dtype,
        found: tensor.dtype(),
    })?;
    let read = Sampling::from_numbers(&numbers);
    read.map_err(|error| input_error(sampling::OPERATOR, name, error.to_string()))
}

fn read_single(
    inputs: &BTreeMap<String, Tensor>,
    name: &Option<String>,
) -> Result<usize, RunError> {
    match (name, &read_integers(inputs, name)?[..]) {
        (None, _) => Ok(0),
        (Some(_), &[one]) if one >= 0 => Ok(one as usize),
        (Some(name), _) => Err(input_error(
            "TensorScatter",
            name,
            "it is one number".to_owned(),
        )),
    }
}

/// Numbers below a limit; negative ones count from it backwards, as `Gather` has them.
fn resolve_indices(
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
        place.ok_or_else(|| input_error(operator, what, format!("{number} is not below {limit}")))
    };
    numbers.iter().map(place).collect()
}
