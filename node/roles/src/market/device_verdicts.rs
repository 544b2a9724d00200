//! Remembers why devices do not suit a buyer. Asks on the same terms share one value of resources,
//! so a validator that walks a large book judges each device once and not once for each ask.

use souk_market::Resources;

use super::unsuitable::Cause;

/// The number of verdicts that are remembered. A device whose place another one takes is judged
/// again.
const PLACES: usize = 1_024;

/// The verdict on a device, without its ask's price, account and terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceVerdict {
    /// Why it does not suit, if so.
    pub cause: Option<Cause>,
    /// Whether it lacks an operator of the model.
    pub is_short: bool,
}

/// The verdicts of one question, by the address of the resources.
pub(super) struct DeviceVerdicts<'a> {
    places: Vec<Option<(&'a Resources, DeviceVerdict)>>,
}

impl<'a> DeviceVerdicts<'a> {
    /// Creates an empty memory.
    pub(super) fn new() -> Self {
        Self {
            places: vec![None; PLACES],
        }
    }

    /// Returns the verdict on a device, which `judge` makes if none is remembered.
    pub(super) fn find_or_judge(
        &mut self,
        device: &'a Resources,
        judge: impl FnOnce(&'a Resources) -> DeviceVerdict,
    ) -> DeviceVerdict {
        let address = std::ptr::from_ref(device).addr();
        let place = &mut self.places[address / size_of::<Resources>() % PLACES];
        if let Some((known, verdict)) = place
            && std::ptr::eq(*known, device)
        {
            return *verdict;
        }
        let verdict = judge(device);
        *place = Some((device, verdict));
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_its_own_verdict_also_if_two_share_a_place() {
        let devices = vec![Resources::default(); 3 * PLACES];
        let mut verdicts = DeviceVerdicts::new();
        let mut judged = 0;
        for round in 0..2 {
            for (number, device) in devices.iter().enumerate() {
                let is_short = number % 3 == 0;
                let cause = (number % 2 == 0).then_some(Cause::Emulated);
                let own = DeviceVerdict { cause, is_short };
                for _ in 0..2 {
                    let found = verdicts.find_or_judge(device, |_| {
                        judged += 1;
                        own
                    });
                    assert_eq!(found, own, "device {number} in round {round}");
                }
            }
        }
        // The second question about a device finds the verdict of the first.
        assert_eq!(judged, 2 * devices.len());
    }
}
