//! Looks at every node at every step of the world, for the checkers that judge as it goes on.

use std::collections::BTreeMap;

use flower_api::report::Lifecycle;

use super::{leaders::Leaders, members::Members, states::States};
use crate::{node::Live, world::World};

/// What it has seen.
#[derive(Default)]
pub struct Observer {
    /// Applied states.
    pub states: States,
    /// Leaders.
    pub leaders: Leaders,
    /// Members.
    pub members: Members,
    /// Configuration looked at last, by host: reports are made only when it changes.
    looked: BTreeMap<String, u64>,
    steps: u64,
    /// States that nodes told of.
    told: BTreeMap<&'static str, u64>,
}

impl Observer {
    /// Looks at all nodes; the first violation in words.
    pub fn look(&mut self, world: &World) -> Option<String> {
        self.steps += 1;
        let steps = self.steps;
        world
            .registry
            .running()
            .into_iter()
            .find_map(|(host, live)| {
                let place = world.places.get(&host);
                let volume = place.map_or(0, |place| place.volumes);
                if let Some(why) = &live.broken
                    && place.is_some_and(|place| !place.rotten)
                {
                    return Some(format!("{host}: its data broke by itself: {why}"));
                }
                self.look_at(&host, &live, volume, steps)
            })
    }

    /// States that were reached.
    pub fn reached(&self) -> BTreeMap<&'static str, u64> {
        let mut reached = self.told.clone();
        let changes = self.leaders.count().saturating_sub(1) as u64;
        let removed = self.members.removed() as u64;
        for (state, count) in [("leader changed", changes), ("member removed", removed)] {
            if count > 0 {
                reached.insert(state, count);
            }
        }
        reached
    }

    fn look_at(&mut self, host: &str, live: &Live, volume: u64, steps: u64) -> Option<String> {
        if let Some(member) = live.member
            && let Some(why) = self.members.lives(member, host, volume)
        {
            return Some(why);
        }
        let consensus = live.consensus.as_ref()?;
        let lead = *consensus.leadership().borrow();
        if let Some(lead) = lead
            && let Some(why) = self.leaders.see(host, lead.member(), lead.term())
        {
            return Some(why);
        }
        let view = consensus.view();
        let position = view.applied()?;
        let before = self.looked.get(host).copied();
        if before != Some(position.index) {
            self.looked.insert(host.to_owned(), position.index);
            if let Some(why) = self.states.see(host, position, view.checksum()) {
                return Some(why);
            }
        }
        // Reports cost more; configurations change rarely.
        if steps.is_multiple_of(16) && consensus.lifecycle() == Lifecycle::Member {
            live.member.inspect(|member| self.members.hears(*member));
            let report = consensus.report();
            let positions = report.positions;
            for (state, reached) in [
                ("image received", report.images_received > 0),
                ("log purged", positions.purged > 0),
                ("log replayed on start", report.replayed_entries > 0),
            ] {
                if reached {
                    self.told.insert(state, 1);
                }
            }
            let configuration = report.configuration?;
            if configuration.committed {
                return self.members.configured(&configuration);
            }
        }
        None
    }
}
