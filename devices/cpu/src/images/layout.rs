//! Decides for images of one size how large each value of a plan is and where it lies in memory.
//! The image engine lays its plan out again when a run has inputs of another size.
//!
//! Images lie channels last. A step writes the parts of a concatenation directly into their final
//! place, so the concatenation costs nothing. Memory can be reused as soon as no step reads it.

use std::collections::BTreeMap;

use souk_reference::Scope;
use souk_reference::call::Call;
use souk_reference::conv::Window;
use souk_reference::shape::element_count;

use super::filters::FilterDims;
use super::patterns::Pooling;
use super::plan::{ImageAction, ImagePlan, SlidingWindow};
use crate::tiled::plan::Step;
use crate::tiled::values::Value;

/// Channels up to which an image given is framed with its padding, so that a whole row of a window
/// is read at once.
const FRAMED_CHANNELS_MAX: usize = 8;

/// Largest window, stride, dilation and padding: beyond this they are no picture's.
const MOVE_MAX: usize = 1 << 10;

/// The size of a batch of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub samples: usize,
    pub height: usize,
    pub width: usize,
    pub channels: usize,
}

impl Image {
    pub fn pixel_count(&self) -> usize {
        self.samples * self.height * self.width
    }
}

/// The place of an image in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImagePlace {
    pub buffer: usize,
    /// The first channel within a pixel of the buffer.
    pub channel: usize,
    /// Floats from a pixel to the next.
    pub stride: usize,
    /// Rows above and pixels to the left that are zero, and how large the image is with them.
    pub frame: Option<Frame>,
}

/// Zeros around an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub top: usize,
    pub left: usize,
    pub height: usize,
    pub width: usize,
}

/// How a window moves over an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WindowGeometry {
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub before: [usize; 2],
    pub output: [usize; 2],
}

/// A plan laid out for inputs of one size.
#[derive(Debug)]
pub(super) struct Layout {
    pub images: Vec<Image>,
    pub places: Vec<ImagePlace>,
    /// The motion of each step's window, if it has one.
    pub moves: Vec<WindowGeometry>,
    /// Floats of each buffer.
    pub buffers: Vec<usize>,
    /// Floats of the longest pixel.
    pub pixel_max: usize,
}

impl Layout {
    /// Lays out a plan. Returns `None` if these sizes do not fit each other, or if some window
    /// would see only padding.
    pub fn new(plan: &ImagePlan, inputs: &[Image], filters: &[Option<FilterDims>]) -> Option<Self> {
        let empty = Image {
            samples: 0,
            height: 0,
            width: 0,
            channels: 0,
        };
        let mut images = vec![empty; plan.values];
        if inputs
            .iter()
            .any(|image| image.pixel_count() * image.channels == 0)
        {
            return None;
        }
        for ((_, value), image) in plan.inputs.iter().zip(inputs) {
            images[*value] = *image;
        }
        let mut moves = vec![WindowGeometry::default(); plan.steps.len()];
        for (index, step) in plan.steps.iter().enumerate() {
            let dims = filters[index];
            (images[step.output], moves[index]) = step_result(step, &images, dims)?;
        }
        let mut layout = Self {
            pixel_max: images.iter().map(|image| image.channels).max()?,
            places: Vec::new(),
            buffers: Vec::new(),
            images,
            moves,
        };
        layout.place_values(plan, filters)?;
        Some(layout)
    }

    /// Whether all inputs of a concatenation were written directly into its output.
    pub fn is_together(&self, step: &Step<ImageAction>) -> bool {
        let (to, mut channel) = (self.places[step.output], 0);
        step.inputs.iter().all(|&value| {
            let place = self.places[value];
            let lies = (place.buffer, place.channel) == (to.buffer, to.channel + channel);
            channel += self.images[value].channels;
            lies && place.stride == to.stride
        })
    }

    /// Gives every value a place.
    fn place_values(&mut self, plan: &ImagePlan, filters: &[Option<FilterDims>]) -> Option<()> {
        let frames = self.plan_frames(plan, filters);
        let homes = value_homes(plan, &self.images);
        let root = |mut value: Value| {
            let mut channel = 0;
            while let Some(&(home, offset)) = homes.get(&value) {
                (value, channel) = (home, channel + offset);
            }
            (value, channel)
        };
        let lives = value_lifetimes(plan, |value| root(value).0);
        let mut buffers: BTreeMap<Value, usize> = BTreeMap::new();
        let mut free: Vec<usize> = Vec::new();
        for now in 0..=plan.steps.len() {
            for (value, _) in lives.iter().filter(|(_, life)| life.0 == now) {
                let image = self.images[*value];
                let pixels = frames.get(value).map_or(image.pixel_count(), |frame| {
                    image.samples * frame.height * frame.width
                });
                let floats = element_count(&[pixels, image.channels]).ok()?;
                buffers.insert(*value, self.allocate_buffer(floats, &mut free));
            }
            let ended = lives.iter().filter(|(_, life)| life.1 == now);
            free.extend(ended.filter_map(|(value, _)| buffers.get(value)));
        }
        let place = |value| {
            let (home, channel) = root(value);
            ImagePlace {
                buffer: buffers.get(&home).copied().unwrap_or(0),
                channel,
                stride: self.images[home].channels,
                frame: frames.get(&value).copied(),
            }
        };
        self.places = (0..plan.values).map(place).collect();
        Some(())
    }

    /// A free buffer of this many floats: the one that grows least, or a new one.
    fn allocate_buffer(&mut self, floats: usize, free: &mut Vec<usize>) -> usize {
        let growth = |&buffer: &usize| {
            let held = self.buffers[buffer];
            (floats.saturating_sub(held), held)
        };
        let best = (0..free.len()).min_by_key(|&at| growth(&free[at]));
        let buffer = match best {
            Some(at) => free.swap_remove(at),
            None => {
                self.buffers.push(0);
                self.buffers.len() - 1
            }
        };
        self.buffers[buffer] = self.buffers[buffer].max(floats);
        buffer
    }

    /// Frames of the images given that only one window reads, where pixels are too short to read
    /// one by one; that window then finds no padding.
    fn plan_frames(
        &mut self,
        plan: &ImagePlan,
        filters: &[Option<FilterDims>],
    ) -> BTreeMap<Value, Frame> {
        let mut frames = BTreeMap::new();
        for &(_, value) in &plan.inputs {
            let reads = |step: &&Step<ImageAction>| step.inputs.contains(&value);
            let wanted = plan.outputs.iter().any(|(_, output)| *output == value);
            let mut readers = plan
                .steps
                .iter()
                .enumerate()
                .filter(|(_, step)| reads(step));
            let (Some((index, step)), None, false) = (readers.next(), readers.next(), wanted)
            else {
                continue;
            };
            let (image, moves) = (self.images[value], &mut self.moves[index]);
            let fits = matches!(step.action, ImageAction::Convolve(_))
                && step.inputs == [value]
                && filters[index].is_some_and(|dims| dims.groups == 1)
                && image.channels <= FRAMED_CHANNELS_MAX
                && moves.dilations == [1, 1];
            if !fits {
                continue;
            }
            let reach = |axis: usize| {
                let last = (moves.output[axis].max(1) - 1) * moves.strides[axis];
                last + moves.kernel[axis]
            };
            let frame = Frame {
                top: moves.before[0],
                left: moves.before[1],
                height: reach(0).max(moves.before[0] + image.height),
                width: reach(1).max(moves.before[1] + image.width),
            };
            moves.before = [0, 0];
            frames.insert(value, frame);
        }
        frames
    }
}

/// For each value written within another: that other value, and the first channel in it.
fn value_homes(plan: &ImagePlan, images: &[Image]) -> BTreeMap<Value, (Value, usize)> {
    let mut homes = BTreeMap::new();
    for step in plan.steps.iter().rev() {
        if !matches!(step.action, ImageAction::Concat) {
            continue;
        }
        let mut channel = 0;
        for &value in &step.inputs {
            let is_given = plan.inputs.iter().any(|(_, given)| *given == value);
            let once = step.inputs.iter().filter(|it| **it == value).count() == 1;
            if !is_given && once && !homes.contains_key(&value) {
                homes.insert(value, (step.output, channel));
            }
            channel += images[value].channels;
        }
    }
    homes
}

/// For each value with a buffer of its own: the first and the last step that needs it. Inputs are
/// needed from before the first step, outputs until after the last.
fn value_lifetimes(
    plan: &ImagePlan,
    root: impl Fn(Value) -> Value,
) -> BTreeMap<Value, (usize, usize)> {
    let mut lives: BTreeMap<Value, (usize, usize)> = BTreeMap::new();
    let mut need = |value: Value, at: usize| {
        let life = lives.entry(root(value)).or_insert((at, at));
        *life = (life.0.min(at), life.1.max(at));
    };
    for &(_, value) in &plan.inputs {
        need(value, 0);
    }
    for (index, step) in plan.steps.iter().enumerate() {
        for &value in step.inputs.iter().chain([&step.output]) {
            need(value, index);
        }
    }
    for &(_, value) in &plan.outputs {
        need(value, plan.steps.len());
    }
    lives
}

/// The size of a step's result, and how its window moves.
fn step_result(
    step: &Step<ImageAction>,
    images: &[Image],
    filters: Option<FilterDims>,
) -> Option<(Image, WindowGeometry)> {
    let first = images[*step.inputs.first()?];
    let still = |image| Some((image, WindowGeometry::default()));
    match &step.action {
        ImageAction::Convolve(convolution) => {
            let dims = filters?;
            let moves = window_geometry(&convolution.window, first, [dims.height, dims.width])?;
            let whole = dims.depth.checked_mul(dims.groups)? == first.channels
                && dims.filters.is_multiple_of(dims.groups);
            let image = Image {
                height: moves.output[0],
                width: moves.output[1],
                channels: dims.filters,
                ..first
            };
            let mut added = step.inputs[1..].iter().map(|&value| images[value]);
            (whole && added.all(|it| it == image)).then_some((image, moves))
        }
        ImageAction::Scale { factor, .. } => {
            (factor.len() == first.channels).then_some((first, WindowGeometry::default()))
        }
        ImageAction::Sum(_) => {
            let same = step.inputs.iter().all(|&value| images[value] == first);
            same.then_some((first, WindowGeometry::default()))
        }
        ImageAction::Bound(_) | ImageAction::Neighbours { .. } => still(first),
        ImageAction::Pool(pooling, sliding) => {
            let sizes = sliding.node.ints("kernel_shape")?;
            let &[height, width] = sizes else { return None };
            let kernel = [usize::try_from(height).ok()?, usize::try_from(width).ok()?];
            let moves = window_geometry(sliding, first, kernel)?;
            let [height, width] = moves.output;
            let image = Image {
                height,
                width,
                ..first
            };
            let seen = *pooling == Pooling::MeanPadded || sees_all(&moves, first);
            seen.then_some((image, moves))
        }
        ImageAction::PoolAll(_) => still(Image {
            height: 1,
            width: 1,
            ..first
        }),
        ImageAction::Concat => {
            let all = || step.inputs.iter().map(|&value| images[value]);
            let same = all().all(|it| {
                let channels = first.channels;
                Image { channels, ..it } == first
            });
            let channels = all().map(|it| it.channels).sum();
            same.then_some((Image { channels, ..first }, WindowGeometry::default()))
        }
        ImageAction::Shuffle(shuffle) => {
            let sizes = [first.channels, first.height, first.width];
            (sizes == [shuffle.channels, shuffle.height, shuffle.width])
                .then_some((first, WindowGeometry::default()))
        }
    }
}

fn window_geometry(
    sliding: &SlidingWindow,
    image: Image,
    kernel: [usize; 2],
) -> Option<WindowGeometry> {
    let call = Call {
        node: &sliding.node,
        inputs: Vec::new(),
        scope: &Scope::new(),
        opset: sliding.opset,
    };
    let window = Window::read(&call, kernel.to_vec(), &[image.height, image.width]).ok()?;
    let pair = |list: &[usize]| <[usize; 2]>::try_from(list).ok();
    let moves = WindowGeometry {
        kernel,
        strides: pair(&window.strides)?,
        dilations: pair(&window.dilations)?,
        before: pair(&window.before)?,
        output: pair(&window.output)?,
    };
    let stated = sliding
        .node
        .ints("kernel_shape")
        .filter(|it| !it.is_empty());
    let agrees = stated.is_none_or(|stated| {
        stated.len() == 2 && (0..2).all(|axis| stated[axis] == kernel[axis] as i64)
    });
    let lists = [kernel, moves.strides, moves.dilations, moves.before];
    let sizes_fit = lists.iter().flatten().all(|&size| size <= MOVE_MAX);
    let none_empty = kernel.iter().chain(&moves.output).all(|&size| size > 0);
    (agrees && sizes_fit && none_empty && image.pixel_count() > 0).then_some(moves)
}

/// Whether every place of a window sees some of the image.
fn sees_all(moves: &WindowGeometry, image: Image) -> bool {
    let sizes = [image.height, image.width];
    (0..2).all(|axis| {
        (0..moves.output[axis]).all(|at| {
            (0..moves.kernel[axis]).any(|tap| source(moves, axis, at, tap, sizes[axis]).is_some())
        })
    })
}

/// Returns the position that a tap of a window reads along one axis, or `None` if it is padding.
#[inline]
pub(super) fn source(
    moves: &WindowGeometry,
    axis: usize,
    at: usize,
    tap: usize,
    size: usize,
) -> Option<usize> {
    let reached = at * moves.strides[axis] + tap * moves.dilations[axis];
    let place = reached.checked_sub(moves.before[axis])?;
    (place < size).then_some(place)
}
