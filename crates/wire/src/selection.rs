//! Which members of a set may serve a request, from what they last said about themselves: a pure
//! function, by the rules that drivers follow.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use crate::read_preference::{ReadMode, ReadPreference, TagSet};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    Primary,
    Secondary,
    /// It answers, and serves nothing: it recovers, or is an arbiter, or not of this set.
    Other,
    /// It has not answered, or no more.
    #[default]
    Unknown,
}

/// A member as it last described itself.
#[derive(Clone, Debug)]
pub struct Described {
    pub kind: Kind,
    pub tags: Vec<(String, String)>,
    /// When the last write that it has was made, by the primary's clock.
    pub last_write_ms: Option<i64>,
    pub described: Instant,
    /// How long an exchange takes, averaged; not known at first.
    pub round_trip: Option<Duration>,
}

impl Default for Described {
    fn default() -> Described {
        Described {
            kind: Kind::Unknown,
            tags: Vec::new(),
            last_write_ms: None,
            described: Instant::now(),
            round_trip: None,
        }
    }
}

/// How members are compared.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A member this much slower than the fastest is as good as that.
    pub latency_window: Duration,
    /// How old what a member says may be while it's the last thing it said.
    pub heartbeat: Duration,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            latency_window: Duration::from_millis(15),
            heartbeat: Duration::from_secs(10),
        }
    }
}

/// The members that may serve, as indexes into `members`; they are equally good.
pub fn select(members: &[Described], preference: &ReadPreference, rules: Rules) -> Vec<usize> {
    let of = |kind: Kind| {
        let found = members.iter().enumerate();
        found.filter_map(move |(index, member)| (member.kind == kind).then_some(index))
    };
    let primary = || of(Kind::Primary).take(1).collect::<Vec<_>>();
    let secondaries = || narrowed(members, of(Kind::Secondary).collect(), preference, rules);
    match preference.mode {
        ReadMode::Primary => primary(),
        ReadMode::PrimaryPreferred => or(primary(), secondaries),
        ReadMode::Secondary => secondaries(),
        ReadMode::SecondaryPreferred => or(secondaries(), primary),
        ReadMode::Nearest => {
            let all = of(Kind::Primary).take(1).chain(of(Kind::Secondary));
            narrowed(members, all.collect(), preference, rules)
        }
    }
}

fn or(first: Vec<usize>, second: impl FnOnce() -> Vec<usize>) -> Vec<usize> {
    if first.is_empty() { second() } else { first }
}

/// Those of the candidates that are fresh enough, then those with the first tags that any has,
/// then the fastest.
fn narrowed(
    members: &[Described],
    mut candidates: Vec<usize>,
    preference: &ReadPreference,
    rules: Rules,
) -> Vec<usize> {
    if let Some(most) = preference.max_staleness {
        let most_ms = i64::try_from(most.as_millis()).unwrap_or(i64::MAX);
        let stale = |index: &usize| staleness_ms(members, &members[*index], rules);
        candidates.retain(|index| stale(index).is_none_or(|stale| stale <= most_ms));
    }
    if !preference.tags.is_empty() {
        let tagged = preference.tags.iter().map(|set| {
            let fitting = candidates.iter().copied();
            fitting
                .filter(|index| fits(set, &members[*index]))
                .collect::<Vec<_>>()
        });
        candidates = tagged
            .into_iter()
            .find(|fitting| !fitting.is_empty())
            .unwrap_or_default();
    }
    let fastest = candidates
        .iter()
        .filter_map(|index| members[*index].round_trip)
        .min();
    if let Some(fastest) = fastest {
        let limit = fastest + rules.latency_window;
        candidates.retain(|index| members[*index].round_trip.is_none_or(|trip| trip <= limit));
    }
    candidates
}

fn fits(set: &TagSet, member: &Described) -> bool {
    set.0.iter().all(|wanted| member.tags.contains(wanted))
}

/// By how much a member may be behind: estimated against the primary, or else against the member
/// that has the most. `None` if it can't be estimated, as for the primary itself.
fn staleness_ms(members: &[Described], member: &Described, rules: Rules) -> Option<i64> {
    if member.kind != Kind::Secondary {
        return None;
    }
    let heartbeat_ms = i64::try_from(rules.heartbeat.as_millis()).unwrap_or(i64::MAX);
    let own = member.last_write_ms?;
    if let Some(primary) = members.iter().find(|other| other.kind == Kind::Primary) {
        // What the primary has written between its own description and this member's is counted
        // as if it had written all the time.
        let between = signed_ms(member.described, primary.described);
        return Some(between - own + primary.last_write_ms? + heartbeat_ms);
    }
    let secondaries = members.iter().filter(|other| other.kind == Kind::Secondary);
    let most = secondaries.filter_map(|other| other.last_write_ms).max()?;
    Some(most - own + heartbeat_ms)
}

fn signed_ms(later: Instant, earlier: Instant) -> i64 {
    let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    match later.checked_duration_since(earlier) {
        Some(ahead) => ms(ahead),
        None => -ms(earlier.duration_since(later)),
    }
}

/// Whose claim to be the primary counts: the later election, then the later configuration.
pub type Claim = (Option<[u8; 12]>, i64);

/// The member whose claim is the strongest, among those that claim to be the primary.
pub fn strongest(claims: impl Iterator<Item = (usize, Claim)>) -> Option<usize> {
    claims
        .max_by_key(|(index, claim)| (*claim, Reverse(*index)))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(kind: Kind, milliseconds: u64, tags: &[(&str, &str)]) -> Described {
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        Described {
            kind,
            tags: tags.iter().map(owned).collect(),
            round_trip: Some(Duration::from_millis(milliseconds)),
            ..Described::default()
        }
    }

    fn tagged(mode: ReadMode, sets: &[&[(&str, &str)]]) -> ReadPreference {
        let set = |tags: &&[(&str, &str)]| {
            TagSet(
                tags.iter()
                    .map(|(n, v)| (n.to_string(), v.to_string()))
                    .collect(),
            )
        };
        ReadPreference {
            mode,
            tags: sets.iter().map(set).collect(),
            max_staleness: None,
        }
    }

    fn chosen(members: &[Described], preference: &ReadPreference) -> Vec<usize> {
        select(members, preference, Rules::default())
    }

    #[test]
    fn modes_choose_kinds() {
        use Kind::{Other, Primary, Secondary, Unknown};
        let set = [
            member(Other, 1, &[]),
            member(Secondary, 5, &[]),
            member(Primary, 5, &[]),
            member(Secondary, 6, &[]),
            member(Unknown, 1, &[]),
        ];
        let modes = [
            (ReadMode::Primary, vec![2]),
            (ReadMode::PrimaryPreferred, vec![2]),
            (ReadMode::Secondary, vec![1, 3]),
            (ReadMode::SecondaryPreferred, vec![1, 3]),
            (ReadMode::Nearest, vec![2, 1, 3]),
        ];
        for (mode, expected) in &modes {
            assert_eq!(chosen(&set, &(*mode).into()), *expected, "{mode:?}");
        }
        let without_primary = [member(Secondary, 5, &[]), member(Unknown, 5, &[])];
        let without_secondary = [member(Primary, 5, &[]), member(Other, 5, &[])];
        for (mode, secondaries, primaries) in [
            (ReadMode::Primary, 0, 1),
            (ReadMode::PrimaryPreferred, 1, 1),
            (ReadMode::Secondary, 1, 0),
            (ReadMode::SecondaryPreferred, 1, 1),
            (ReadMode::Nearest, 1, 1),
        ] {
            assert_eq!(chosen(&without_primary, &mode.into()).len(), secondaries);
            assert_eq!(chosen(&without_secondary, &mode.into()).len(), primaries);
        }
        assert!(chosen(&[], &ReadMode::Nearest.into()).is_empty());
    }

    #[test]
    fn the_first_tag_set_that_somebody_has_counts() {
        let set = [
            member(Kind::Primary, 1, &[("dc", "ny")]),
            member(Kind::Secondary, 1, &[("dc", "ny"), ("rack", "1")]),
            member(Kind::Secondary, 1, &[("dc", "sf"), ("rack", "2")]),
        ];
        let secondary = |sets: &[&[(&str, &str)]]| chosen(&set, &tagged(ReadMode::Secondary, sets));
        assert_eq!(secondary(&[&[("dc", "ny")]]), [1]);
        assert!(secondary(&[&[("dc", "ny"), ("rack", "2")]]).is_empty());
        assert_eq!(secondary(&[&[("dc", "tokyo")], &[("dc", "sf")]]), [2]);
        assert_eq!(secondary(&[&[("dc", "tokyo")], &[]]), [1, 2]);
        let nearest = tagged(ReadMode::Nearest, &[&[("dc", "ny")]]);
        assert_eq!(chosen(&set, &nearest), [0, 1]);
        // The tags hold for secondaries; the primary is what is fallen back to.
        let preferred = tagged(ReadMode::SecondaryPreferred, &[&[("dc", "tokyo")]]);
        assert_eq!(chosen(&set, &preferred), [0]);
        let preferred = tagged(ReadMode::PrimaryPreferred, &[&[("dc", "tokyo")]]);
        assert_eq!(chosen(&set, &preferred), [0]);
    }

    #[test]
    fn slow_members_are_left_out_and_unmeasured_ones_are_not() {
        let mut set = [
            member(Kind::Primary, 40, &[]),
            member(Kind::Secondary, 5, &[]),
            member(Kind::Secondary, 20, &[]),
            member(Kind::Secondary, 21, &[]),
        ];
        assert_eq!(chosen(&set, &ReadMode::Secondary.into()), [1, 2]);
        assert_eq!(chosen(&set, &ReadMode::Nearest.into()), [1, 2]);
        assert_eq!(chosen(&set, &ReadMode::Primary.into()), [0]);
        set[3].round_trip = None;
        assert_eq!(chosen(&set, &ReadMode::Secondary.into()), [1, 2, 3]);
    }

    #[test]
    fn stale_members_are_left_out() {
        let now = Instant::now();
        let wrote = |kind, seconds: i64, said_ms: u64| Described {
            kind,
            last_write_ms: Some(seconds * 1000),
            described: now + Duration::from_millis(said_ms),
            ..Described::default()
        };
        let bound = |mode| ReadPreference {
            mode,
            max_staleness: Some(Duration::from_secs(120)),
            ..ReadPreference::default()
        };
        // 110 s behind, plus a heartbeat of 10 s, is the bound; one second more is beyond.
        let with_primary = [
            wrote(Kind::Primary, 1000, 0),
            wrote(Kind::Secondary, 890, 0),
            wrote(Kind::Secondary, 889, 0),
            // The primary may have written during the 2 s that lie between the descriptions.
            wrote(Kind::Secondary, 891, 2000),
            wrote(Kind::Secondary, 892, 2000),
        ];
        assert_eq!(chosen(&with_primary, &bound(ReadMode::Secondary)), [1, 4]);
        assert_eq!(chosen(&with_primary, &bound(ReadMode::Nearest)), [0, 1, 4]);
        let without = [
            wrote(Kind::Secondary, 1000, 0),
            wrote(Kind::Secondary, 890, 5000),
            wrote(Kind::Secondary, 889, 0),
        ];
        assert_eq!(
            chosen(&without, &bound(ReadMode::SecondaryPreferred)),
            [0, 1]
        );
    }

    #[test]
    fn the_later_election_is_the_primary() {
        let claim = |term: u8, version| (Some([term; 12]), version);
        let strongest = |claims: &[Claim]| strongest(claims.iter().copied().enumerate());
        assert_eq!(strongest(&[claim(1, 9), claim(2, 1)]), Some(1));
        assert_eq!(strongest(&[claim(3, 1), claim(2, 1)]), Some(0));
        assert_eq!(strongest(&[(None, 5), claim(1, 1)]), Some(1));
        assert_eq!(strongest(&[claim(1, 1), claim(1, 1)]), Some(0));
        assert_eq!(strongest(&[]), None);
    }
}
