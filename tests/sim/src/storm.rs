//! What befalls a set: crashes, cuts, bad disks, sleeping processes; and what its operator does to
//! it.

use std::time::Duration;

use banyan_consensus::{Change, PeerId};
use futures::FutureExt;

use crate::life::Trouble;
use crate::network::address;
use crate::simulation::{Event, MILLI, SECOND, Simulation};
use crate::state::State;

impl<S: State> Simulation<S> {
    fn somebody(&mut self) -> PeerId {
        let ids: Vec<PeerId> = self.members.keys().copied().collect();
        self.random.pick(&ids).copied().unwrap_or(1)
    }

    pub(crate) fn storm(&mut self) -> Result<(), String> {
        let pause = self.random.between(20 * MILLI, 500 * MILLI);
        self.schedule(pause, Event::Storm);
        if !self.stormy {
            return Ok(());
        }
        let id = self.somebody();
        let lives = self.members.get(&id).map_or(0, |member| member.lives);
        match self.random.below(20) {
            0 => self.crash(id, true)?,
            1 => self.crash(id, false)?,
            2..=5 => {
                // Wherever it happens to be then.
                let effects = self.random.below(40);
                self.tell(|| format!("{id} will die after {effects} more effects"));
                if let Some(alive) = self.alive(id) {
                    alive.life.light_fuse(effects);
                }
            }
            6 if self.random.once_in(2) => self.blackout()?,
            6..=7 => {
                let after = self.random.below(30);
                self.tell(|| format!("the disk of {id} will fail after {after} operations"));
                self.give_trouble(id, Trouble::Fails(after));
            }
            8 => {
                self.tell(|| format!("the disk of {id} is full"));
                self.give_trouble(id, Trouble::Full);
                let until = self.random.between(50 * MILLI, SECOND);
                self.schedule(until, Event::Repair(id, lives));
            }
            9 => {
                let micros = self.random.between(20 * MILLI, 400 * MILLI);
                self.tell(|| format!("the disk of {id} is slow: up to {micros} us for a sync"));
                if let Some(alive) = self.alive(id) {
                    alive.life.set_sync_micros(micros);
                }
                let until = self.random.between(500 * MILLI, 3 * SECOND);
                self.schedule(until, Event::Repair(id, lives));
            }
            10..=12 => self.part(),
            13 => {
                self.around.network.heal();
                self.tell(|| "the network is whole".to_owned());
            }
            14 => {
                let asleep = self.random.between(100 * MILLI, 3 * SECOND);
                self.tell(|| format!("{id} sleeps for {} ms", asleep / MILLI));
                let now = self.now;
                if let Some(alive) = self.alive(id) {
                    alive.busy_until = now + asleep;
                }
            }
            15 => {
                let to = self.somebody();
                self.tell(|| format!("{id}, if it leads, hands over to {to}"));
                if let Some(alive) = self.alive(id) {
                    alive.group.transfer_leadership(to);
                }
            }
            16 => {
                self.tell(|| format!("{id}, if it leads, steps down"));
                if let Some(alive) = self.alive(id) {
                    alive.group.step_down();
                }
            }
            17 => {
                let electable = self.random.below(3) != 0;
                if let Some(alive) = self.alive(id) {
                    alive.group.set_electable(electable);
                }
            }
            18 => {
                let late = Duration::from_millis(self.random.below(400));
                if let Some(alive) = self.alive(id) {
                    alive.stepper.delay_tick(late);
                }
            }
            _ => {
                // Most of them are not delayed at all.
                let delay = self.random.below(12_000).saturating_sub(8_000);
                self.tell(|| format!("{id} applies {delay} ms late"));
                if let Some(alive) = self.alive(id) {
                    alive.group.set_apply_delay(Duration::from_millis(delay));
                }
            }
        }
        self.touched(id);
        Ok(())
    }

    fn give_trouble(&mut self, id: PeerId, trouble: Trouble) {
        if let Some(alive) = self.alive(id) {
            alive.life.trouble(Some(trouble));
        }
    }

    /// The power of everybody goes, at about the same time.
    fn blackout(&mut self) -> Result<(), String> {
        self.tell(|| "the power goes".to_owned());
        for id in self.members.keys().copied().collect::<Vec<_>>() {
            let lives = self.members.get(&id).map_or(0, |member| member.lives);
            match self.random.once_in(2) {
                true => self.crash(id, true)?,
                false => {
                    let after = self.random.below(3 * MILLI);
                    self.schedule(after, Event::Kill(id, lives, true));
                }
            }
        }
        Ok(())
    }

    fn part(&mut self) {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for id in self.members.keys().copied().collect::<Vec<_>>() {
            match self.random.once_in(2) {
                true => here.push(id),
                false => there.push(id),
            }
        }
        let one_way = self.random.once_in(3);
        if self.random.once_in(2) {
            self.around.network.heal();
        }
        self.around.network.part(&here, &there, one_way);
        self.summary.cuts += 1;
        self.tell(|| {
            let way = if one_way { "->" } else { "<->" };
            format!("the network is cut: {here:?} {way} {there:?}")
        });
    }

    /// The operator wants everybody to be a voter, most of the time.
    pub(crate) fn operate(&mut self) {
        let pause = self.random.between(20 * MILLI, 600 * MILLI);
        self.schedule(pause, Event::Operate);
        if let Some((id, lives, mut outcome)) = self.changing.take() {
            let here = self
                .members
                .get(&id)
                .is_some_and(|member| member.lives == lives);
            match (&mut outcome).now_or_never() {
                None if here && !self.random.once_in(20) => {
                    self.changing = Some((id, lives, outcome));
                    return;
                }
                Some(Ok(_)) => self.summary.changes += 1,
                _ => {}
            }
        }
        let size = self.members.len() as u64;
        let victim = self.somebody();
        let roll = self.random.below(40);
        let number = self.random.below(3);
        let stormy = self.stormy;
        let leader = self.members.iter().find(|(_, member)| {
            let alive = member.alive.as_ref();
            alive.is_some_and(|alive| alive.group.leader_term() != 0)
        });
        let Some((&id, member)) = leader else {
            return;
        };
        let Some(alive) = &member.alive else {
            return;
        };
        let membership = alive.group.status().membership;
        let missing = (1..=size).find(|&id| membership.get(id).is_none());
        let learner = membership.members.iter().find(|member| !member.voter);
        let change = match (missing, learner, roll) {
            (_, _, 0..=1) if stormy => Change::Remove(victim),
            (_, _, 2..=4) if stormy => Change::Demote(victim),
            (_, _, 5) if stormy => Change::UpdateAddress {
                id: victim,
                address: address(victim, number),
            },
            (Some(id), _, _) => Change::AddLearner {
                id,
                address: address(id, 0),
            },
            (_, Some(learner), _) => Change::Promote(learner.id),
            _ => return,
        };
        let lives = member.lives;
        let outcome = alive.group.change_membership(change.clone());
        let outcome = outcome
            .map(|outcome| outcome.map_err(|error| error.to_string()))
            .boxed();
        self.tell(|| format!("the operator asks {id} for {change:?}"));
        self.changing = Some((id, lives, outcome));
        self.touched(id);
    }
}
