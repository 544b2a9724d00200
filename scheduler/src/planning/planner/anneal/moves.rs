//! Proposes the random changes that annealing tries: another device for a task or for a group of
//! neighbours, an exchange of devices, or another place in the queue of the same device.

use super::decode::{Change, Decoder};
use super::random::Random;

/// Part of the changes that affect tasks on the critical path.
const CRITICAL_SHARE: f64 = 0.7;
/// Parts of the changes that move one task to another device, and a group of neighbours. The rest
/// reorder a queue.
const DEVICE_SHARE: f64 = 0.4;
const GROUP_SHARE: f64 = 0.3;
/// Minimum reach in the order within which tasks exchange devices.
const SWAP_REACH: usize = 12;
/// Maximum number of tasks in a group.
const GROUP_MAX: usize = 12;

/// Fills `change`; returns false if the random change is impossible.
pub(super) fn propose_change(
    decoder: &mut Decoder<'_>,
    random: &mut Random,
    change: &mut Change,
) -> bool {
    change.stretch.clear();
    change.devices.clear();
    let task = if random.next_unit() < CRITICAL_SHARE {
        decoder.find_critical();
        decoder.critical[random.next_below(decoder.critical.len())] as usize
    } else {
        random.next_below(decoder.order.len())
    };
    let kind = random.next_unit();
    if decoder.problem.device_count() == 1 || kind > DEVICE_SHARE + GROUP_SHARE {
        in_queue(decoder, random, task, change)
    } else if kind < DEVICE_SHARE {
        to_device(decoder, random, task, change)
    } else if kind < DEVICE_SHARE + GROUP_SHARE * 0.5 {
        move_group(decoder, random, task, change)
    } else {
        swap_tasks(decoder, random, task, change)
    }
}

/// Returns the positions that the task can take: after its inputs and before its readers.
fn position_window(decoder: &Decoder<'_>, task: usize) -> (u32, u32) {
    let before = decoder
        .problem
        .inputs_of(task)
        .map(|(before, _)| decoder.position[before] + 1);
    let after = decoder
        .problem
        .readers_of(task)
        .map(|(after, _)| decoder.position[after] - 1);
    let last = decoder.order.len() as u32 - 1;
    (before.max().unwrap_or(0), after.min().unwrap_or(last))
}

/// Returns a device other than the task's: any, or that of a task with which it exchanges data.
fn other_device(decoder: &Decoder<'_>, random: &mut Random, task: usize) -> usize {
    let problem = decoder.problem;
    let now = decoder.device[task] as usize;
    let partners = problem.inputs_of(task).len() + problem.readers_of(task).len();
    if partners > 0 && random.next_unit() < 0.5 {
        let pick = random.next_below(partners);
        let partner = problem
            .inputs_of(task)
            .chain_nth(problem.readers_of(task), pick);
        let device = decoder.device[partner] as usize;
        if device != now {
            return device;
        }
    }
    (now + 1 + random.next_below(problem.device_count() - 1)) % problem.device_count()
}

/// Returns the element at an index of two lists laid end to end.
trait ChainNth: ExactSizeIterator<Item = (usize, u64)> + Sized {
    fn chain_nth(mut self, mut other: impl Iterator<Item = (usize, u64)>, place: usize) -> usize {
        let own = self.len();
        let found = if place < own {
            self.nth(place)
        } else {
            other.nth(place - own)
        };
        found.expect("the place is within both lists").0
    }
}

impl<I: ExactSizeIterator<Item = (usize, u64)>> ChainNth for I {}

fn to_device(decoder: &Decoder<'_>, random: &mut Random, task: usize, change: &mut Change) -> bool {
    let device = other_device(decoder, random, task);
    if !decoder.can_move(task, device) {
        return false;
    }
    if random.next_unit() < 0.5 {
        let (first, last) = position_window(decoder, task);
        let position = decoder.position[task];
        let reach = (4 * decoder.problem.device_count()) as u32;
        let first = first.max(position.saturating_sub(reach));
        let last = last.min(position + reach);
        let position = first + random.next_below((last - first + 1) as usize) as u32;
        shift_task(decoder, task, position as usize, change);
    }
    change.devices.push((task as u32, device as u32));
    true
}

/// Moves the task and its neighbours on the same device to another device, because with expensive
/// transfers none of them gains by moving alone.
fn move_group(
    decoder: &Decoder<'_>,
    random: &mut Random,
    task: usize,
    change: &mut Change,
) -> bool {
    let device = other_device(decoder, random, task);
    let now = decoder.device[task];
    let mut size = 2;
    while size < GROUP_MAX && random.next_unit() < 0.7 {
        size += 1;
    }
    change.devices.push((task as u32, device as u32));
    let mut next = 0;
    while next < change.devices.len() && change.devices.len() < size {
        let member = change.devices[next].0 as usize;
        next += 1;
        let before = decoder.problem.inputs_of(member);
        for (other, _) in before.chain(decoder.problem.readers_of(member)) {
            let known = change
                .devices
                .iter()
                .any(|&(task, _)| task as usize == other);
            if decoder.device[other] == now && !known && change.devices.len() < size {
                change.devices.push((other as u32, device as u32));
            }
        }
    }
    let members = change.devices.iter().map(|&(task, _)| task as usize);
    decoder
        .free_memory
        .has_room_for_all(decoder.problem, members, device)
        && change
            .devices
            .iter()
            .all(|&(task, _)| decoder.can_run(task as usize, device))
}

/// Moves `task` to `position` in the order and shifts everything between by one.
fn shift_task(decoder: &Decoder<'_>, task: usize, position: usize, change: &mut Change) {
    let now = decoder.position[task] as usize;
    change.begin = now.min(position);
    change
        .stretch
        .extend_from_slice(&decoder.order[change.begin..=now.max(position)]);
    if now < position {
        change.stretch.rotate_left(1);
    } else {
        change.stretch.rotate_right(1);
    }
}

/// Makes the task and another one close by in the order exchange their devices and, if possible,
/// their positions.
fn swap_tasks(
    decoder: &Decoder<'_>,
    random: &mut Random,
    task: usize,
    change: &mut Change,
) -> bool {
    let position = decoder.position[task] as usize;
    let reach = SWAP_REACH.max(2 * decoder.problem.device_count());
    let first = position.saturating_sub(reach);
    let last = (position + reach).min(decoder.order.len() - 1);
    let at = first + random.next_below(last - first + 1);
    let other = decoder.order[at] as usize;
    let (here, there) = (decoder.device[task], decoder.device[other]);
    if here == there
        || !decoder.can_run(task, there as usize)
        || !decoder.can_run(other, here as usize)
    {
        return false;
    }
    if decoder.problem.has_memory_limit()
        && (!decoder.can_move(task, there as usize) || !decoder.can_move(other, here as usize))
    {
        return false;
    }
    change.devices.push((task as u32, there));
    change.devices.push((other as u32, here));
    let (early, late) = (position.min(at), position.max(at));
    let (head, tail) = (decoder.order[early] as usize, decoder.order[late] as usize);
    if position_window(decoder, head).1 as usize >= late
        && position_window(decoder, tail).0 as usize <= early
    {
        change.begin = early;
        change
            .stretch
            .extend_from_slice(&decoder.order[early..=late]);
        let length = change.stretch.len();
        change.stretch.swap(0, length - 1);
    }
    true
}

/// Moves the task before one ahead of it on its device: the task alone if possible, or that one
/// after the task, or the task together with all that it needs from between.
fn in_queue(
    decoder: &mut Decoder<'_>,
    random: &mut Random,
    task: usize,
    change: &mut Change,
) -> bool {
    let position = decoder.position[task];
    let Some(mut ahead) = decoder.task_ahead(task) else {
        return false;
    };
    // Sometimes moves further forward.
    while random.next_unit() < 0.25 {
        match decoder.task_ahead(ahead as usize) {
            Some(further) => ahead = further,
            None => break,
        }
    }
    let ahead = ahead as usize;
    let target = decoder.position[ahead];
    if position_window(decoder, task).0 <= target {
        shift_task(decoder, task, target as usize, change);
        return true;
    }
    if position_window(decoder, ahead).1 >= position {
        shift_task(decoder, ahead, position as usize, change);
        return true;
    }
    advance_task(decoder, task, target as usize, change)
}

/// Moves `task` and everything between that it depends on to `target`; returns false if it depends
/// on the task there.
fn advance_task(
    decoder: &mut Decoder<'_>,
    task: usize,
    target: usize,
    change: &mut Change,
) -> bool {
    let now = decoder.position[task] as usize;
    let stamp = decoder.new_stamp();
    decoder.stamps[task] = stamp;
    for at in (target..=now).rev() {
        let member = decoder.order[at] as usize;
        if decoder.stamps[member] != stamp {
            continue;
        }
        if at == target {
            return false;
        }
        for (before, _) in decoder.problem.inputs_of(member) {
            decoder.stamps[before] = stamp;
        }
    }
    let between = &decoder.order[target..=now];
    let moved = |task: &&u32| decoder.stamps[**task as usize] == stamp;
    change.begin = target;
    change.stretch.extend(between.iter().filter(moved));
    change
        .stretch
        .extend(between.iter().filter(|task| !moved(task)));
    true
}
