//! The harm that is done to a set, and its end.

use std::time::Duration;

use anyhow::{Result, anyhow};
use bson::doc;
use clap::ValueEnum;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

use crate::net::{Mode, Party};
use crate::set::{Life, Set};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Nemesis {
    /// `kill -9` of the primary.
    KillPrimary,
    /// `kill -9` of a minority, without the primary.
    KillSecondaries,
    /// `kill -9` of all members at once.
    KillAll,
    /// `kill -9` of one member after the other; each is started again at once.
    KillEach,
    /// The machines of a minority lose their power, and what was not synced is lost.
    PowerMinority,
    /// All machines lose their power at once.
    PowerAll,
    /// SIGSTOP of the primary, for longer than its lead lasts.
    StopPrimary,
    /// SIGSTOP of a minority, without the primary.
    StopSecondaries,
    /// SIGSTOP of all members, one after the other.
    StopAll,
    /// Connections break, again and again.
    Cut,
    /// The primary hears no member, and none hears it; clients reach everybody.
    IsolatePrimary,
    /// The same for a minority without the primary.
    IsolateSecondaries,
    /// Two halves, the clients with both.
    Halves,
    /// Each member reaches only its neighbours.
    Ring,
    /// The others hear the primary, but it doesn't hear them; or the other way round.
    OneWay,
    /// Some links lose what is said in one direction.
    Holes,
    /// Messages take long.
    Slow,
    /// Clients don't reach the primary; members do.
    HidePrimary,
    /// The disks of a minority are full.
    FullDisk,
    /// Syncs take long.
    SlowDisk,
    /// Wall clocks jump by up to an hour, forward or back.
    ClockJump,
    /// The primary is told to step down.
    StepDown,
    /// A secondary is taken out of the set, and comes back at the end.
    Remove,
}

use Nemesis::*;

impl Nemesis {
    pub fn all() -> &'static [Nemesis] {
        Self::value_variants()
    }

    pub fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// How long it lasts before it ends.
    pub fn duration(self, rng: &mut StdRng) -> Duration {
        let milliseconds = match self {
            // Sometimes it's over before anybody has drawn a conclusion.
            _ if rng.random_bool(0.15) => 20..400,
            // And sometimes the log is cut meanwhile.
            KillSecondaries | StopSecondaries | IsolateSecondaries if rng.random_bool(0.3) => {
                5000..12_000
            }
            // Past the election time-out, and some seconds into the lead of another.
            StopPrimary | IsolatePrimary | OneWay => 2500..6000,
            StopAll => 500..2500,
            KillEach | StepDown => 100..1000,
            FullDisk | SlowDisk | ClockJump | Slow => 2000..5000,
            _ => 300..5000,
        };
        Duration::from_millis(rng.random_range(milliseconds))
    }
}

/// Begins it, and says what was done. `leader`: who leads, as far as anybody knows.
pub async fn begin(
    kind: Nemesis,
    set: &mut Set,
    leader: Option<usize>,
    rng: &mut StdRng,
) -> Result<String> {
    let count = set.len();
    let primary = leader.unwrap_or_else(|| rng.random_range(0..count));
    let mut others: Vec<usize> = (0..count).filter(|&member| member != primary).collect();
    others.shuffle(rng);
    let minority = rng.random_range(1..=set.minority());
    let few = others[..minority].to_vec();
    Ok(match kind {
        KillPrimary => {
            set.kill(primary);
            format!("killed member {primary}, the primary")
        }
        KillSecondaries => {
            few.iter().for_each(|&member| set.kill(member));
            format!("killed members {few:?}")
        }
        KillAll => {
            (0..count).for_each(|member| set.kill(member));
            "killed all members".to_owned()
        }
        KillEach => {
            let mut order: Vec<usize> = (0..count).collect();
            order.shuffle(rng);
            for &member in &order {
                set.kill(member);
                let pause = rng.random_range(0..1500);
                tokio::time::sleep(Duration::from_millis(pause)).await;
                set.start_member(member);
            }
            format!("killed and started members {order:?}, one after the other")
        }
        PowerMinority | PowerAll => {
            let mut any: Vec<usize> = (0..count).collect();
            if kind == PowerMinority {
                any.shuffle(rng);
                any.truncate(minority);
            }
            // All at once, before anybody says anything more.
            any.iter().for_each(|&member| set.kill(member));
            let mut lost = Vec::new();
            for &member in &any {
                lost.push(set.lose_power(member, rng)?);
            }
            format!("cut the power of members {any:?}; lost writes to {lost:?} files")
        }
        StopPrimary => {
            set.stop(primary)?;
            format!("stopped member {primary}, the primary")
        }
        StopSecondaries => {
            for &member in &few {
                set.stop(member)?;
            }
            format!("stopped members {few:?}")
        }
        StopAll => {
            for member in 0..count {
                set.stop(member)?;
                let pause = rng.random_range(0..300);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            "stopped all members".to_owned()
        }
        StepDown => {
            let admin = set.direct(primary).await.database("admin");
            let command = doc! { "replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 2 };
            let asked = admin.run_command(command).into_future();
            let answer = tokio::time::timeout(Duration::from_secs(10), asked).await;
            let answer = match answer {
                Ok(answer) => answer.map(drop).map_err(Into::into),
                Err(_) => Err(anyhow!("no answer")),
            };
            format!("told member {primary} to step down: {}", in_words(answer))
        }
        Remove => {
            let answer = set.reconfigure(primary, Some(others[0])).await;
            format!(
                "took member {} out of the set: {}",
                others[0],
                in_words(answer)
            )
        }
        FullDisk => {
            // Any minority, the primary like the others.
            let mut any: Vec<usize> = (0..count).collect();
            any.shuffle(rng);
            any.truncate(minority);
            let left = rng.random_range(0..200_000);
            for &member in &any {
                set.members[member].may_end = true;
                set.members[member].control.fill_disk(left)?;
            }
            format!("{left} bytes left on the disks of members {any:?}")
        }
        SlowDisk => {
            let delay = Duration::from_millis(rng.random_range(20..400));
            let slow = if rng.random_bool(0.5) {
                few
            } else {
                (0..count).collect()
            };
            for &member in &slow {
                set.members[member].control.slow_disk(delay)?;
            }
            format!("syncs of members {slow:?} take {delay:?} longer")
        }
        ClockJump => {
            let mut jumps = Vec::new();
            for member in 0..count {
                if rng.random_bool(0.7) {
                    let seconds = rng.random_range(-3600..3600);
                    set.members[member].control.shift_clock(seconds)?;
                    jumps.push(format!("{member}: {seconds} s"));
                }
            }
            format!("clocks jumped ({})", jumps.join(", "))
        }
        _ => network(kind, set, primary, &few, rng),
    })
}

/// A command that may fail, as the set is in trouble.
fn in_words(answer: Result<()>) -> String {
    match answer {
        Ok(()) => "ok".to_owned(),
        Err(error) => format!("{error:#}").chars().take(120).collect(),
    }
}

fn network(
    kind: Nemesis,
    set: &mut Set,
    primary: usize,
    few: &[usize],
    rng: &mut StdRng,
) -> String {
    let count = set.len();
    let pairs: Vec<(usize, usize)> = (0..count)
        .flat_map(|one| (one + 1..count).map(move |other| (one, other)))
        .collect();
    let net = set.net.clone();
    // Silence, as if packets were dropped, or refusal at once.
    let refuse = rng.random_bool(0.3);
    let apart = |one: usize, other: usize| {
        let (one, other) = (Party::Member(one), Party::Member(other));
        if refuse {
            net.refuse(one, other);
        } else {
            net.set(one, other, Mode::Held);
            net.set(other, one, Mode::Held);
        }
    };
    let how = if refuse { "refusing" } else { "silent" };
    match kind {
        IsolatePrimary => {
            (0..count)
                .filter(|&other| other != primary)
                .for_each(|other| apart(primary, other));
            format!("isolated member {primary}, the primary ({how})")
        }
        IsolateSecondaries => {
            for &(one, other) in &pairs {
                if few.contains(&one) || few.contains(&other) {
                    apart(one, other);
                }
            }
            format!("isolated members {few:?} ({how})")
        }
        Halves => {
            let mut order: Vec<usize> = (0..count).collect();
            order.shuffle(rng);
            let (left, right) = order.split_at(count / 2);
            for &one in left {
                right.iter().for_each(|&other| apart(one, other));
            }
            format!("parted {left:?} from {right:?} ({how})")
        }
        Ring => {
            for &(one, other) in &pairs {
                let distance = other - one;
                // In a set of three a ring misses one link, or nothing would be missing.
                let neighbours = distance == 1 || (count > 3 && distance == count - 1);
                if !neighbours {
                    apart(one, other);
                }
            }
            format!("members reach only their neighbours ({how})")
        }
        OneWay => {
            let deaf = rng.random_bool(0.5);
            for other in (0..count).filter(|&other| other != primary) {
                let (primary, other) = (Party::Member(primary), Party::Member(other));
                let (from, to) = if deaf {
                    (other, primary)
                } else {
                    (primary, other)
                };
                net.set(from, to, Mode::Held);
            }
            let what = if deaf {
                "hears no member"
            } else {
                "is heard by no member"
            };
            format!("member {primary}, the primary, {what}")
        }
        Holes => {
            let mut held = Vec::new();
            for &(one, other) in &pairs {
                let (from, to) = if rng.random_bool(0.5) {
                    (one, other)
                } else {
                    (other, one)
                };
                if rng.random_bool(0.5) {
                    net.set(Party::Member(from), Party::Member(to), Mode::Held);
                    held.push(format!("{from}->{to}"));
                }
            }
            format!("silent: {}", held.join(" "))
        }
        Slow => {
            let delay = Duration::from_millis(rng.random_range(20..600));
            for from in 0..count {
                for to in (0..count).filter(|&to| to != from) {
                    let delay = Mode::Delayed(delay.mul_f64(rng.random_range(0.0..1.0)));
                    net.set(Party::Member(from), Party::Member(to), delay);
                }
            }
            format!("messages take up to {delay:?}")
        }
        HidePrimary => {
            let primary = Party::Member(primary);
            if refuse {
                net.refuse(Party::Clients, primary);
            } else {
                net.set(Party::Clients, primary, Mode::Held);
                net.set(primary, Party::Clients, Mode::Held);
            }
            format!("hid {primary:?}, the primary, from clients ({how})")
        }
        _ => {
            let parties: Vec<Party> = (0..count)
                .map(Party::Member)
                .chain([Party::Clients])
                .collect();
            let times = rng.random_range(3..15);
            for _ in 0..times {
                if let (Some(&one), Some(&other)) = (parties.choose(rng), parties.choose(rng)) {
                    net.cut(one, other);
                }
            }
            format!("cut connections {times} times")
        }
    }
}

/// Ends all harm. What had died is started again; nothing is waited for.
pub fn heal(set: &mut Set, rng: &mut StdRng) -> Result<()> {
    let mut order: Vec<usize> = (0..set.len()).collect();
    order.shuffle(rng);
    let network_first = rng.random_bool(0.5);
    let lose_held = rng.random_bool(0.5);
    if network_first {
        set.net.heal(lose_held);
    }
    for member in order {
        let control = &set.members[member].control;
        control.enough_disk()?;
        control.slow_disk(Duration::ZERO)?;
        // A clock that was put right jumps once more.
        control.shift_clock(0)?;
        match set.members[member].life {
            Life::Runs => {}
            Life::Stopped => set.resume(member)?,
            Life::Killed => set.start_member(member),
        }
    }
    if !network_first {
        set.net.heal(lose_held);
    }
    Ok(())
}
