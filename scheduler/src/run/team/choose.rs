//! Which of the ways to take part a plan is made with.
//!
//! Where members share cores there are several: one of them alone, or all of them, each slower. The
//! best single device is what all others are held to. Members that share cores run together only
//! when the best of them was seen by itself: what it takes beside others says too little of that.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use souk_devices::processor::CompileError;

use super::divide::{self, Divided, Led};
use super::fallbacks::Lack;
use super::flow::values;
use super::frugal::{self, Least, TeamGoal};
use super::laid::{self, Energy, Frugal, Laid, Offered, Setting, duration, pieced, pinned};
use super::place::{Placed, place, wins};
use super::{LayError, Member, Task, TaskError, wishes};
use crate::executor::Speeds;
use crate::graph::NodeId;
use crate::problem::{NEVER, ProblemError, Time};

/// Plans of one task, each without what a device refused of the ones before.
const REFUSALS_MAX: usize = 8;

/// The part of a device's time that it has to have been seen to take alone.
const SEEN: f64 = 0.9;

/// One way to take part, planned.
struct Draft {
    offered: Offered,
    placed: Result<Placed, LayError>,
}

/// The device that ends soonest alone.
#[derive(Clone, Copy)]
struct Rival {
    device: usize,
    time: Time,
}

impl Draft {
    fn makespan(&self) -> Time {
        self.placed.as_ref().map_or(NEVER, |placed| placed.makespan)
    }

    fn single(&self) -> Option<Rival> {
        let (device, time) = self.placed.as_ref().ok()?.single?;
        Some(Rival { device, time })
    }

    /// What it promises without shared operators, unless members that slow each other then win too
    /// little.
    fn promise(&self, rival: Option<Rival>) -> Time {
        let loses = |rival: Rival| !wins(self.makespan(), rival.time);
        match self.offered.known.is_contended() && rival.is_some_and(loses) {
            true => NEVER,
            false => self.makespan(),
        }
    }
}

/// Plans a task's model over the members and compiles each piece where it is planned. What a
/// member refuses is planned on others: it knows only then what it is to do.
pub(super) fn lay(setting: &Setting<'_>, task: &Task, speeds: Speeds) -> Result<Laid, TaskError> {
    let mut barred = BTreeSet::new();
    let mut before = setting.before.as_ref();
    let (mut why, mut lacks) = (None, Vec::new());
    for _ in 0..REFUSALS_MAX {
        let mut laid = match (lay_without(setting, task, speeds.clone(), &barred), why) {
            (Ok(laid), _) => laid,
            // That no member is left says less than what the last one lacks.
            (Err(_), Some(why)) => return Err(TaskError::Compile(why)),
            (Err(error), None) => return Err(error),
        };
        let Some(refusal) = compile(setting.members, &laid)? else {
            laid.lacks.append(&mut lacks);
            return Ok(laid);
        };
        if let Some(before) = before.take_if(|_| is_full(&refusal.why)) {
            // Both plans have no room at once.
            drop(laid);
            (before.drop)();
            why = Some(refusal.why);
            continue;
        }
        why = Some(refusal.why);
        lacks.extend(refusal.lacks);
        let known = barred.len();
        barred.extend(refusal.nodes);
        if barred.len() == known {
            break;
        }
    }
    // The run moves what is refused still.
    lay_without(setting, task, speeds, &barred)
}

/// Pieces that were refused where they were planned.
pub(super) struct Refusal {
    /// Their devices and nodes.
    nodes: Vec<(usize, NodeId)>,
    /// What their devices lack of them.
    lacks: Vec<Lack>,
    /// Why the first was.
    pub why: CompileError,
}

/// Compiles each piece where it is planned.
pub(super) fn compile(members: &[Member], laid: &Laid) -> Result<Option<Refusal>, CompileError> {
    let (mut refused, mut lacks) = (Vec::new(), Vec::new());
    let mut why = None;
    for (piece, &device) in laid.pieces.iter().zip(&laid.schedule.device) {
        match piece.program(device, &*members[device].processor) {
            // The run finds that out as well, and moves its work to the others.
            Err(CompileError::DeviceLost { .. }) if members.len() > 1 => {}
            Err(error) if members.len() > 1 && is_the_devices(&error) => {
                refused.extend(piece.nodes.iter().map(|&node| (device, node)));
                lacks.extend(Lack::refused(&members[device].label, piece, &error));
                why.get_or_insert(error);
            }
            compiled => drop(compiled?),
        }
    }
    Ok(why.map(|why| Refusal {
        nodes: refused,
        lacks,
        why,
    }))
}

/// Whether a device had no room.
pub(super) fn is_full(error: &CompileError) -> bool {
    matches!(error, CompileError::OutOfMemory { .. })
}

/// Whether another device may take what one refused so.
pub(super) fn is_the_devices(error: &CompileError) -> bool {
    match error {
        CompileError::Unsupported(_)
        | CompileError::OutOfMemory { .. }
        | CompileError::Engine { .. } => true,
        CompileError::Decode(_)
        | CompileError::WeightMissing { .. }
        | CompileError::WeightMismatch { .. }
        | CompileError::WeightPlace { .. }
        | CompileError::Weight(_)
        | CompileError::Port { .. }
        | CompileError::Dangling { .. }
        | CompileError::DeviceLost { .. } => false,
    }
}

/// The layout that has no barred node on the device it is barred from.
pub(super) fn lay_without(
    setting: &Setting<'_>,
    task: &Task,
    speeds: Speeds,
    barred: &BTreeSet<(usize, NodeId)>,
) -> Result<Laid, TaskError> {
    let offers = laid::offers(setting, task.model, &task.inputs, &speeds)?;
    let draft = |mut offered: Offered| {
        for &(device, node) in barred {
            offered.known.bar(device, node);
        }
        let unmet = wishes::heed(&mut offered, setting.members, barred, setting.lost);
        offered.lacks = offered.lacks.iter().cloned().chain(unmet).collect();
        let (stated, seconds) = (&offered.stated, &offered.known.seconds);
        let placed = place(&offered.graph, stated, seconds, &offered.links);
        Draft {
            placed: placed.map_err(LayError::from),
            offered,
        }
    };
    let mut drafts: Vec<Draft> = offers.into_iter().map(draft).collect();
    // Of those who share cores each is asked by itself.
    let own = drafts.iter().enumerate();
    let own = own.filter(|(_, draft)| drafts.len() == 1 || !draft.offered.known.is_contended());
    let rivals = own.filter_map(|(index, draft)| Some((index, draft.single()?)));
    let rival = rivals.min_by_key(|(_, rival)| rival.time);
    let is_seen = rival.is_none_or(|(index, Rival { device, .. })| {
        let known = &drafts[index].offered.known;
        !setting.cores.shares(device) || known.seen_alone[device] >= SEEN
    });
    let wants_least = saves_joules(setting, &drafts);
    if let Some(laid) = least(task, &mut drafts, (setting, &speeds))? {
        return Ok(whole(laid, drafts, rival, None));
    }
    let mut chosen = choose(&drafts, setting, rival)?;
    let contended = drafts.len() - 1;
    let is_trial = !is_seen && contended > 0 && chosen.0 == contended;
    if is_trial {
        drafts.truncate(contended);
        chosen = choose(&drafts, setting, rival)?;
    }
    let laid = match chosen {
        (index, Some(led)) => {
            let divided = Divided::new(drafts.remove(index).offered, led);
            divide::lay(&task.name, divided, setting, speeds)?
        }
        (index, None) => whole_nodes(task, &mut drafts, index, rival, (setting, speeds))?,
    };
    let told = || laid::lock(setting.costs).told();
    let mut laid = laid;
    laid.energy.frugal = wants_least.then_some(Frugal::Soonest);
    Ok(whole(laid, drafts, rival, is_trial.then(told)))
}

/// A layout with what is known of those it was preferred to.
fn whole(
    laid: Laid,
    drafts: Vec<Draft>,
    rival: Option<(usize, Rival)>,
    trial: Option<u64>,
) -> Laid {
    Laid {
        readers: Arc::new(values::readers(&laid)),
        single: rival.map(|(_, rival)| (rival.device, duration(rival.time))),
        rivals: drafts
            .into_iter()
            .map(|draft| draft.offered.known)
            .collect(),
        trial,
        ..laid
    }
}

/// Whether joules are to be few and somebody says what it draws. Nothing of such a layout moves, so
/// that once a member is lost the soonest is taken.
fn saves_joules(setting: &Setting<'_>, drafts: &[Draft]) -> bool {
    let mut watts = drafts.iter().flat_map(|draft| &draft.offered.watts);
    setting.goal == TeamGoal::Energy && setting.lost == 0 && watts.any(Option::is_some)
}

/// The layout that draws the fewest joules of those that end in time, if that is wanted.
fn least(
    task: &Task,
    drafts: &mut Vec<Draft>,
    (setting, speeds): (&Setting<'_>, &Speeds),
) -> Result<Option<Laid>, TaskError> {
    if !saves_joules(setting, drafts) {
        return Ok(None);
    }
    let least = |within: Option<Duration>| {
        let each = drafts.iter().enumerate().filter_map(|(index, draft)| {
            // What cannot be planned so is told where it is planned to end soonest.
            let least = frugal::place(&draft.offered, within).ok().flatten()?;
            Some((index, least))
        });
        each.min_by_key(|(_, least)| least.joules)
    };
    let lay = |(index, least): (usize, Least)| -> Result<(usize, Laid), TaskError> {
        let offered = &drafts[index].offered;
        let laid = pieced(&task.name, offered, &least.placed, setting, speeds.clone())?;
        let problem = Arc::new(pinned(&laid)?);
        Ok((index, Laid { problem, ..laid }))
    };
    let Some(unhurried) = least(None) else {
        return Ok(None);
    };
    let (index, laid) = lay(unhurried)?;
    let late = setting.left.filter(|left| laid.expected > *left);
    let (index, laid, frugal) = match late.map(|left| least(Some(left))) {
        None => (index, laid, Frugal::Least),
        Some(None) => return Ok(None),
        Some(Some(hurried)) => {
            let frugal = Frugal::Hurried(laid.expected);
            let (index, laid) = lay(hurried)?;
            if setting.left.is_some_and(|left| laid.expected > left) {
                return Ok(None);
            }
            (index, laid, frugal)
        }
    };
    Ok(Some(Laid {
        known: Some(drafts.remove(index).offered.known),
        energy: Energy {
            frugal: Some(frugal),
            ..laid.energy
        },
        ..laid
    }))
}

/// The draft that ends soonest, and what several devices share in it.
fn choose(
    drafts: &[Draft],
    setting: &Setting<'_>,
    rival: Option<(usize, Rival)>,
) -> Result<(usize, Option<Led>), LayError> {
    let rival = rival.map(|(_, rival)| rival);
    let numbered = || drafts.iter().enumerate();
    let promises = numbered().map(|(index, draft)| (index, draft.promise(rival)));
    let (soonest, promise) = promises
        .min_by_key(|(_, promise)| *promise)
        .expect("there is a draft");
    let led = numbered().map(|(index, draft)| {
        let led = divide::divide(&draft.offered, setting, promise)?;
        Ok(led.map(|led| (index, led)))
    });
    let led: Vec<Option<(usize, Led)>> = led.collect::<Result<_, LayError>>()?;
    let each = led.into_iter().flatten();
    let led = each.min_by(|one, other| one.1.seconds.total_cmp(&other.1.seconds));
    Ok(led.map_or((soonest, None), |(index, led)| (index, Some(led))))
}

/// The layout that runs each node on one device: on several, unless their pieces, which hand over
/// only when they are whole, then win too little over one device.
fn whole_nodes(
    task: &Task,
    drafts: &mut Vec<Draft>,
    index: usize,
    rival: Option<(usize, Rival)>,
    (setting, speeds): (&Setting<'_>, Speeds),
) -> Result<Laid, TaskError> {
    let Draft { offered, placed } = &mut drafts[index];
    let failed = || LayError::Problem(ProblemError::NoDevice);
    let placed = std::mem::replace(placed, Err(failed()))?;
    let lay = |offered: &Offered, placed: &Placed| {
        pieced(&task.name, offered, placed, setting, speeds.clone())
    };
    let laid = lay(offered, &placed)?;
    let several = laid.pieces.len() > 1;
    let loses = |rival: &Rival| several && !wins(laid.schedule.makespan, rival.time);
    let (laid, index) = match rival.filter(|(_, rival)| loses(rival)) {
        Some((index, Rival { device, time })) => {
            let offered = &drafts[index].offered;
            let alone = Placed::on(device, time, offered.graph.nodes().len());
            (lay(offered, &alone)?, index)
        }
        None => (laid, index),
    };
    Ok(Laid {
        known: Some(drafts.remove(index).offered.known),
        ..laid
    })
}
